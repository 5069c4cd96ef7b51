//! Whole models on a GPU, or on a program that plays one.
//!
//! In: the default model and the oracles, as far as their families are known. Out: the largest error of each file,
//! below twice the bar of the processor, and greedy tokens where their margin is wide.
//! Where no adapter for Vulkan is found, the tests say so and pass.

use std::path::{Path, PathBuf};

use fusebox_compiler::codegen::cpu::level::Numbers;
use fusebox_compiler::options::Options;
use fusebox_compiler::target::Target;
use fusebox_compiler::tensor::quant::Format;
use fusebox_models::layers::embed::Scored;
use fusebox_models::load::{Model, Settings};
use fusebox_runtime::device::Device;
use fusebox_runtime::device::gpu::driver::{Driver, Interface};
use fusebox_runtime::device::gpu::graphics::GraphicsDevice;
use fusebox_runtime::device::gpu::holdings::silent;
use fusebox_runtime::error::Error;
use fusebox_runtime::session::Session;
use fusebox_runtime::session::cache::Cache;

use crate::inference::recorded::{MODELS, errors_of, files, json, prompts, prompts_of};
use crate::inference::{Run, relative_error};
use crate::oracles;

/// Twice what the processor may be off.
const BAR: f64 = 2e-5;

/// Tokens of each answer: a program that plays a GPU is slow.
const MOST_TOKENS: usize = 3;

/// A session on the first adapter; nothing, and a line that says so, where there is none.
pub(super) fn session(path: &Path, scored: Scored) -> Option<Session> {
    limited(path, (scored, Format::F32), None)
        .map(|session| session.unwrap_or_else(|error| panic!("{error}")))
}

/// The same on a device that holds at most so many bytes.
#[expect(clippy::print_stdout, reason = "a test that does nothing says so")]
fn limited(
    path: &Path,
    (scored, cache): (Scored, Format),
    limit: Option<usize>,
) -> Option<Result<Session, Error>> {
    let driver = Driver::open(Interface::Vulkan).map_err(|error| println!("skipped: {error}")).ok()?;
    let settings = Settings { context: 256, chunk: 64, cache, scored };
    let options = Options::for_target(Target::named("vulkan").unwrap());
    let model = Model::open(path).unwrap_or_else(|error| panic!("{error}"));
    let device = Box::new(GraphicsDevice::new(driver, limit, silent()));
    Some(model.session(device, &settings, &options, &mut Cache::default()))
}

#[test]
fn the_default_model_answers_on_a_gpu_as_it_was_recorded() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let path = root.join("assets/story.gguf");
    let Some(mut session) = session(&path, Scored::Last) else { return };
    let prompts = prompts_of(&json(&root.join("tests/fixtures/story.json")), None);
    for (error, _) in errors_of(&mut session, &path, &prompts, (true, MOST_TOKENS)) {
        assert!(error <= BAR, "{error:e}");
    }
}

#[test]
fn caches_of_8_bits_are_the_same_on_a_gpu() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/story.gguf");
    let Some(session) = limited(&path, (Scored::Last, Format::Q8_0), None) else { return };
    let mut session = session.unwrap_or_else(|error| panic!("{error}"));
    let mut run = Run::new(Numbers::Single);
    run.settings.cache = Format::Q8_0;
    let mut own = run.open(&path);
    for tokens in [&[3, 14, 15, 92, 65][..], &[35], &[89]] {
        let error = relative_error(session.feed(tokens).unwrap(), own.feed(tokens).unwrap());
        println!("{error:.1e}");
        assert!(error <= 1e-3, "{error:e}");
    }
}

#[test]
fn memory_that_does_not_suffice_is_a_sentence_and_nothing_is_lost() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/story.gguf");
    let Some(session) = session(&path, Scored::Best(1)) else { return };
    let needed = session.footprint();
    // Both programs share the arena, which the larger one brought.
    let plans = session.plans();
    assert!(needed.bytes() < needed.weights + needed.state + 2 * plans[1].arena_bytes.max(1 << 20));
    drop(session);
    for limit in [0, needed.weights, needed.weights + needed.state] {
        let error =
            limited(&path, (Scored::Best(1), Format::F32), Some(limit)).unwrap().err().unwrap().to_string();
        let free = format!("{:.1} MiB is free", limit as f64 / f64::from(1 << 20));
        assert!(error.starts_with("a program needs ") && error.ends_with(&free), "{error}");
    }
    let limit = Some(needed.bytes() + (1 << 20));
    let mut session = limited(&path, (Scored::Best(1), Format::F32), limit).unwrap().unwrap();
    session.feed(&[3, 14]).unwrap();
    assert_eq!(session.footprint().bytes(), needed.bytes());
}

#[test]
fn nothing_larger_than_the_memory_of_a_driver_is_free() {
    let open = |limit| Some(GraphicsDevice::new(Driver::open(Interface::Vulkan).ok()?, limit, silent()));
    let Some(device) = open(None) else { return };
    let free = device.free().expect("a driver says how much memory there is");
    assert!(free > 1 << 20 && free < 1 << 50, "{free}");
    assert_eq!(open(Some(1000)).and_then(|device| device.free()), Some(1000));
}

#[test]
fn logits_of_a_gpu_are_those_of_exact_arithmetic() {
    let Some(root) = oracles::folder() else { return };
    for (model, bar) in MODELS {
        let folder = root.join(model);
        // One file of each model will do: formats meet the interpreter elsewhere.
        let wanted = if model.starts_with("k256") { "Q4_K_M" } else { "Q8_0" };
        let is_wanted = |(_, format): &(PathBuf, Option<String>)| format.as_deref() == Some(wanted);
        let Some((path, format)) = files(&folder).into_iter().find(is_wanted) else { continue };
        let Some(mut session) = session(&path, Scored::Last) else { return };
        let prompts = prompts(&folder, format.as_deref());
        let errors = errors_of(&mut session, &path, &prompts, (true, MOST_TOKENS));
        let worst = errors.iter().map(|(error, _)| *error).fold(0.0, f64::max);
        println!("{worst:.2e} {}", path.display());
        assert!(worst <= 2.0 * bar, "{worst:e} {}", path.display());
    }
}
