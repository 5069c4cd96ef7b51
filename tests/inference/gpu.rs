//! Whole models on a GPU, or on a program that plays one.
//!
//! In: the default model and the oracles, as far as their families are known. Out: the largest error of each file,
//! below twice the bar of the processor, and greedy tokens where their margin is wide.
//! The first adapter for Vulkan and the first GPU of NVIDIA answer; of what is not found, the tests say so.

use std::fs;
use std::path::{Path, PathBuf};

use fusebox_compiler::foundation::amount::bytes;
use fusebox_compiler::options::{Numbers, Options};
use fusebox_compiler::target::Target;
use fusebox_compiler::tensor::quant::Format;
use fusebox_models::layers::embed::Scored;
use fusebox_models::load::{Model, Settings};
use fusebox_runtime::device::gpu::cuda::{Cuda, CudaDevice};
use fusebox_runtime::device::gpu::device_memory::silent;
use fusebox_runtime::device::gpu::wgpu_driver::{Driver, Interface};
use fusebox_runtime::device::gpu::wgpu_machine::WgpuDevice;
use fusebox_runtime::device::{Device, Footprint};
use fusebox_runtime::error::Error;
use fusebox_runtime::session::Session;
use fusebox_runtime::session::cache::Cache;
use support::given::{fixture, story};
use support::run::{Run, relative_error};
use support::skip::skip;
use support::{oracles, own};

use crate::best::{answer, models, samplings};
use crate::recorded::{MODELS, errors_of, files, json, prompts, prompts_of};

/// Twice what the processor may be off.
const BAR: f64 = 2e-5;

/// KV caches in blocks.
const CACHES: [Format; 2] = [Format::Q8_0, Format::Q4_0];
/// The same with one of them: what is near the middle of two numbers may go to either.
const BAR_IN_BLOCKS: f64 = 1e-3;

/// Tokens of each answer: a program that plays a GPU is slow.
const MOST_TOKENS: usize = 3;

/// A kind of GPU.
#[derive(Clone, Copy)]
enum Kind {
    /// What Vulkan drives, a program on the processor included.
    Vulkan,
    /// A GPU of NVIDIA, computing in single precision throughout.
    Cuda,
}

/// The kinds that are here, and a line for each that is not.
fn kinds() -> Vec<Kind> {
    let is_there = |kind: &Kind| device(*kind, None).map_err(skip).is_ok();
    [Kind::Vulkan, Kind::Cuda].into_iter().filter(is_there).collect()
}

fn device(kind: Kind, limit: Option<usize>) -> Result<Box<dyn Device>, Error> {
    Ok(match kind {
        Kind::Vulkan => Box::new(WgpuDevice::new(Driver::open(Interface::Vulkan)?, limit, silent())),
        Kind::Cuda => Box::new(CudaDevice::new(Cuda::open(true, None)?, limit, silent())),
    })
}

/// A session on the first GPU of a kind.
fn session(kind: Kind, path: &Path, scored: Scored) -> Session {
    limited(kind, path, (scored, Format::F32), None).unwrap_or_else(|error| panic!("{error}"))
}

/// The same on a device with a limited memory.
fn limited(
    kind: Kind,
    path: &Path,
    (scored, cache): (Scored, Format),
    limit: Option<usize>,
) -> Result<Session, Error> {
    let settings = Settings::of_one(256, 64, cache, scored);
    on(device(kind, limit)?, kind, path, (&settings, None))
}

/// A session on a device of a kind, with programs kept in a folder, if there is one.
fn on(
    device: Box<dyn Device>,
    kind: Kind,
    path: &Path,
    (settings, folder): (&Settings, Option<PathBuf>),
) -> Result<Session, Error> {
    let target = match kind {
        Kind::Vulkan => "vulkan",
        Kind::Cuda => "cuda-sm90",
    };
    let target = Target::named(target).unwrap();
    let options = Options { numbers: Numbers::Single, ..Options::for_target(target) };
    let model = Model::open(path).unwrap_or_else(|error| panic!("{error}"));
    model.session(device, settings, &options, &Cache::new(folder))
}

#[test]
fn the_default_model_answers_on_a_gpu_as_it_was_recorded() {
    let path = story();
    let prompts = prompts_of(&json(&fixture("story.json")), None);
    for kind in kinds() {
        let mut session = session(kind, &path, Scored::Last);
        for (error, _) in errors_of(&mut session, &path, &prompts, (true, MOST_TOKENS)) {
            assert!(error <= BAR, "{error:e} on {}", session.device());
        }
    }
}

#[test]
fn caches_in_blocks_are_the_same_on_a_gpu() {
    let path = story();
    for (kind, cache) in kinds().into_iter().flat_map(|kind| CACHES.map(|cache| (kind, cache))) {
        let session = limited(kind, &path, (Scored::Last, cache), None);
        let mut session = session.unwrap_or_else(|error| panic!("{error}"));
        let mut run = Run::new(Numbers::Single);
        run.settings.cache.format = cache;
        let mut own = run.open(&path);
        for tokens in [&[3, 14, 15, 92, 65][..], &[35], &[89]] {
            let error = relative_error(session.feed(tokens).unwrap(), own.feed(tokens).unwrap());
            println!("{cache}: {error:.1e}");
            assert!(error <= BAR_IN_BLOCKS, "{cache}: {error:e} on {}", session.device());
        }
    }
}

#[test]
fn a_sequence_moves_to_a_gpu_and_back() {
    let path = story();
    let caches = [(Format::F32, BAR), (Format::Q4_0, BAR_IN_BLOCKS)];
    for (kind, (cache, bar)) in kinds().into_iter().flat_map(|kind| caches.map(|cache| (kind, cache))) {
        let mut run = Run::new(Numbers::Single);
        run.settings.cache.format = cache;
        let [mut stays, mut moves, mut back] = [run.open(&path), run.open(&path), run.open(&path)];
        let gpu = limited(kind, &path, (Scored::Last, cache), None);
        let mut gpu = gpu.unwrap_or_else(|error| panic!("{error}"));
        for tokens in [&[3, 14, 15, 92, 65][..], &[35]] {
            stays.feed(tokens).unwrap();
            moves.feed(tokens).unwrap();
        }
        gpu.continue_from(&mut moves).unwrap();
        assert_eq!(gpu.logits(), moves.logits());
        let check = |session: &mut Session, stays: &mut Session, token: u32| {
            let error = relative_error(session.feed(&[token]).unwrap(), stays.feed(&[token]).unwrap());
            assert!(error <= bar, "{cache}: {error:e} on {}", session.device());
        };
        check(&mut gpu, &mut stays, 89);
        back.continue_from(&mut gpu).unwrap();
        assert_eq!((back.position(), back.logits()), (7, gpu.logits()));
        check(&mut back, &mut stays, 79);
    }
}

#[test]
fn memory_that_does_not_suffice_is_a_sentence_and_nothing_is_lost() {
    let path = story();
    let best = (Scored::TopK(1), Format::F32);
    for kind in kinds() {
        let mut session = session(kind, &path, Scored::TopK(1));
        let needed = session.footprint();
        // All programs share the arena of the largest; those in between are loaded when they are first used.
        let arena_bytes = session.plan_of(64).unwrap().arena_bytes;
        assert!(needed.bytes() < needed.weights + needed.state + 2 * arena_bytes.max(1 << 20));
        session.prepare(7).unwrap();
        assert_eq!(session.footprint().bytes(), needed.bytes());
        drop(session);
        for limit in [0, needed.weights, needed.weights + needed.state] {
            let error = limited(kind, &path, best, Some(limit)).err().unwrap().to_string();
            let free = format!(", {} is free", bytes(limit as f64));
            assert!(error.starts_with("a program needs ") && error.ends_with(&free), "{error}");
        }
        let limit = Some(needed.bytes() + (1 << 20));
        let mut session = limited(kind, &path, best, limit).unwrap();
        session.feed(&[3, 14]).unwrap();
        assert_eq!(session.footprint().bytes(), needed.bytes());
    }
}

#[test]
fn nothing_larger_than_the_memory_of_a_driver_is_free() {
    for kind in kinds() {
        let free = device(kind, None).unwrap().free().expect("a driver says how much memory there is");
        assert!(free > 1 << 20 && free < 1 << 50, "{free}");
        assert_eq!(device(kind, Some(1000)).unwrap().free(), Some(1000));
    }
}

#[test]
fn a_warm_start_compiles_nothing_and_what_is_damaged_is_compiled_anew() {
    if !kinds().iter().any(|kind| matches!(kind, Kind::Cuda)) {
        return;
    }
    let folder = own::path("machine-code");
    // It may be left from an earlier time.
    let _ = fs::remove_dir_all(&folder);
    let path = story();
    let settings = Settings::of_one(256, 64, Format::F32, Scored::Last);
    let start = || {
        let folder = Some(folder.clone());
        let device = CudaDevice::new(Cuda::open(true, folder.clone()).unwrap(), None, silent());
        let mut session = on(Box::new(device), Kind::Cuda, &path, (&settings, folder)).unwrap();
        session.prepare(3).unwrap();
        let Footprint { n_compiled, n_kept, .. } = session.footprint();
        (session.feed(&[3, 14, 15]).unwrap().to_vec(), [n_compiled, n_kept])
    };
    let (expected, cold) = start();
    let n = cold[0];
    assert!(n > 2 && cold[1] == 0, "{cold:?}");
    let again = |counts: [usize; 2]| {
        let (found, warm) = start();
        assert_eq!(warm, counts);
        assert!(found == expected, "other code than before");
    };
    again([0, n]);
    let files = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    let is_code = |path: &PathBuf| path.extension().is_some_and(|ending| ending == "code");
    let files: Vec<PathBuf> = files.filter(is_code).collect();
    assert_eq!(files.len(), n);
    let mut bytes = fs::read(&files[0]).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&files[0], &bytes).unwrap();
    fs::write(&files[1], &fs::read(&files[1]).unwrap()[..middle]).unwrap();
    again([2, n - 2]);
    again([0, n]);
}

#[test]
fn logits_of_a_gpu_are_those_of_exact_arithmetic() {
    let Some(root) = oracles::folder() else { return };
    for kind in kinds() {
        for (model, bar) in MODELS {
            let folder = root.join(model);
            // One file of each model will do: formats meet the interpreter elsewhere.
            let wanted = if model.starts_with("k256") { "Q4_K_M" } else { "Q8_0" };
            let is_wanted = |(_, format): &(PathBuf, Option<String>)| format.as_deref() == Some(wanted);
            let Some((path, format)) = files(&folder).into_iter().find(is_wanted) else { continue };
            let mut session = session(kind, &path, Scored::Last);
            let prompts = prompts(&folder, format.as_deref());
            let errors = errors_of(&mut session, &path, &prompts, (true, MOST_TOKENS));
            let worst = errors.iter().map(|(error, _)| *error).fold(0.0, f64::max);
            println!("{worst:.2e} {} on {}", path.display(), session.device());
            assert!(worst <= 2.0 * bar, "{worst:e} {}", path.display());
        }
    }
}

#[test]
fn a_token_and_its_score_are_all_that_comes_back_from_a_gpu() {
    let [greedy, _, drawn] = samplings();
    let samplings = [greedy, drawn];
    for kind in kinds() {
        // A program that plays a GPU is slow.
        for (path, sampling) in
            models().iter().take(3).flat_map(|path| samplings.iter().map(move |it| (path, it)))
        {
            let device_top_k = sampling.device_top_k().unwrap();
            let n_tokens = 3;
            let best = session(kind, path, Scored::TopK(device_top_k));
            let (found, best) = answer(best, sampling, n_tokens);
            // The prompt is one replay, and the last token is not fed.
            let each = best.footprint().returned / n_tokens;
            assert!(each <= (8 * device_top_k).next_multiple_of(256) + 256, "{each} bytes");
            let all = session(kind, path, Scored::Last);
            assert_eq!(found, answer(all, sampling, n_tokens).0, "{} {sampling:?}", path.display());
        }
    }
}
