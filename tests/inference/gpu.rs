//! Whole models on a GPU, or on a program that plays one.
//!
//! In: the default model and the oracles, as far as their families are known. Out: the largest error of each file,
//! below twice the bar of the processor, and greedy tokens where their margin is wide.
//! Where no adapter for Vulkan is found, the tests say so and pass.

use std::path::Path;

use fusebox_compiler::options::Options;
use fusebox_compiler::target::Target;
use fusebox_compiler::tensor::dtype::DType;
use fusebox_models::layers::embed::Scored;
use fusebox_models::load::{Model, Settings};
use fusebox_runtime::device::gpu::driver::{Driver, Interface};
use fusebox_runtime::device::gpu::graphics::GraphicsDevice;
use fusebox_runtime::session::Session;
use fusebox_runtime::session::cache::Cache;

use crate::inference::recorded::{errors_of, files, json, prompts, prompts_of};
use crate::oracles;

/// Twice what the processor may be off.
const BAR: f64 = 2e-5;

/// Tokens of each answer: a program that plays a GPU is slow.
const MOST_TOKENS: usize = 3;

/// A session on the first adapter; nothing, and a line that says so, where there is none.
#[expect(clippy::print_stdout, reason = "a test that does nothing says so")]
fn session(path: &Path) -> Option<Session> {
    let driver = Driver::open(Interface::Vulkan).map_err(|error| println!("skipped: {error}")).ok()?;
    let settings = Settings { context: 256, chunk: 64, cache: DType::F32, scored: Scored::Last };
    let options = Options::for_target(Target::named("vulkan").unwrap());
    let model = Model::open(path).unwrap_or_else(|error| panic!("{error}"));
    let device = Box::new(GraphicsDevice::new(driver));
    Some(model.session(device, &settings, &options, &mut Cache::default()).unwrap())
}

#[test]
fn the_default_model_answers_on_a_gpu_as_it_was_recorded() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let path = root.join("assets/story.gguf");
    let Some(mut session) = session(&path) else { return };
    let prompts = prompts_of(&json(&root.join("tests/fixtures/story.json")), None);
    for (error, _) in errors_of(&mut session, &path, &prompts, (true, MOST_TOKENS)) {
        assert!(error <= BAR, "{error:e}");
    }
}

#[test]
fn logits_of_a_gpu_are_those_of_exact_arithmetic() {
    let Some(folder) = oracles::folder() else { return };
    let folder = folder.join("tiny-qwen3");
    for (path, format) in files(&folder) {
        let Some(mut session) = session(&path) else { return };
        let prompts = prompts(&folder, format.as_deref());
        let errors = errors_of(&mut session, &path, &prompts, (true, MOST_TOKENS));
        let worst = errors.iter().map(|(error, _)| *error).fold(0.0, f64::max);
        println!("{worst:.2e} {}", path.display());
        assert!(worst <= BAR, "{worst:e} {}", path.display());
    }
}
