//! Models of the recorded oracles: logits and the tokens that follow.
//!
//! In: the folders of the oracles, as far as their families are known. Out: the largest error of each file, which must
//! stay below its bar; and every greedy token whose recorded margin is wide enough to be told apart.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use fusebox_compiler::options::Numbers;
use fusebox_compiler::simd::Level;
use fusebox_compiler::tensor::quant::Format;
use fusebox_runtime::session::Session;
use serde_json::Value;
use support::given::{fixture, story};
use support::oracles;
use support::run::{Run, relative_error};

use crate::greedy;

/// A margin between the two likeliest tokens that no rounding closes.
const WIDE: f64 = 1e-3;

/// What was recorded of one prompt.
pub(super) struct Prompt {
    name: String,
    pub(super) ids: Vec<u32>,
    pub(super) logits: Vec<f32>,
    tokens: Vec<u32>,
    margin: f64,
    /// The error of llama.cpp on the same file.
    peer: f64,
}

pub(super) fn json(path: &Path) -> Value {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap()
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

fn floats(value: &Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect()
}

/// What is to be expected of a file: of the exact arithmetic on its weights, or of the original model.
pub(super) fn prompts(folder: &Path, format: Option<&str>) -> Vec<Prompt> {
    let exact = format.map(|format| json(&folder.join("exact.json"))[format].clone());
    prompts_of(&json(&folder.join("oracle.json")), exact.as_ref())
}

pub(super) fn prompts_of(oracle: &Value, exact: Option<&Value>) -> Vec<Prompt> {
    let prompt = |prompt: &Value| {
        let name = prompt["name"].as_str().unwrap().to_owned();
        let expected = exact.map_or(prompt, |exact| &exact[&name]);
        Prompt {
            ids: ids(&prompt["prompt_ids"]),
            logits: floats(&expected["last_logits"]),
            tokens: ids(&expected["greedy_ids"]),
            margin: expected["min_margin"].as_f64().unwrap_or(0.0),
            peer: expected["llama_cpp_rel_rms"].as_f64().unwrap_or(0.0),
            name,
        }
    };
    oracle["prompts"].as_array().unwrap().iter().map(prompt).collect()
}

/// The error of each prompt of a file, and llama.cpp's; wide margins must give the recorded tokens where `is_exact`.
fn errors(run: Run, path: &Path, prompts: &[Prompt], is_exact: bool) -> Vec<(f64, f64)> {
    errors_of(&mut run.open(path), path, prompts, (is_exact, usize::MAX))
}

/// The same of a session, with a limited number of tokens of each answer.
pub(super) fn errors_of(
    session: &mut Session,
    path: &Path,
    prompts: &[Prompt],
    (is_exact, most): (bool, usize),
) -> Vec<(f64, f64)> {
    let mut errors = Vec::new();
    for prompt in prompts {
        session.truncate(0).unwrap();
        let (logits, tokens) = greedy(session, &prompt.ids, prompt.tokens.len().min(most));
        if is_exact && prompt.margin > WIDE {
            assert_eq!(tokens, prompt.tokens[..tokens.len()], "{} {}", path.display(), prompt.name);
        }
        errors.push((relative_error(&logits, &prompt.logits), prompt.peer));
    }
    errors
}

/// The files of a folder with the format that `exact.json` knows each by; originals have none.
pub(super) fn files(folder: &Path) -> Vec<(PathBuf, Option<String>)> {
    let mut files = Vec::new();
    if folder.join("hf").is_dir() {
        files.push((folder.join("hf"), None));
    }
    let name = folder.file_name().unwrap().to_str().unwrap();
    let ggufs = fs::read_dir(folder.join("gguf")).into_iter().flatten();
    let mut ggufs: Vec<PathBuf> = ggufs.map(|entry| entry.unwrap().path()).collect();
    ggufs.sort();
    for path in ggufs {
        let stem = path.file_stem().unwrap().to_str().unwrap();
        let format = stem.strip_prefix(name).unwrap().trim_start_matches('-').to_owned();
        let is_original = format == "F32";
        files.push((path, (!is_original).then_some(format)));
    }
    files
}

#[test]
fn the_default_model_answers_as_it_was_recorded() {
    let prompts = prompts_of(&json(&fixture("story.json")), None);
    for (run, bar) in [(Run::new(Numbers::Single), 1e-5), (fast(), 3e-2)] {
        let is_exact = run.numbers == Numbers::Single;
        for (error, _) in errors(run, &story(), &prompts, is_exact) {
            assert!(error <= bar, "{error:e} in {}", run.numbers);
        }
    }
}

/// The recorded models, each with the bar of its precise logits.
pub(super) const MODELS: [(&str, f64); 12] = [
    ("tiny-llama", 1e-5),
    ("tiny-llama3rope", 1e-5),
    ("tiny-mistral", 1e-5),
    ("tiny-qwen2", 1e-5),
    ("tiny-qwen3", 1e-5),
    ("tiny-qwen3moe", 1e-5),
    ("tiny-deepseek-v2", 1e-5),
    ("tiny-deepseek-v2-qlora", 1e-5),
    // The original keeps another number from dividing by zero in two norms.
    ("tiny-glm4-moe-lite", 4e-5),
    ("k256-qwen3", 1e-5),
    ("k256-qwen3moe", 1e-5),
    ("k256-deepseek-v2", 1e-5),
];

#[test]
fn precise_logits_are_those_of_exact_arithmetic() {
    let Some(folder) = oracles::folder() else { return };
    for (model, bar) in MODELS {
        let folder = folder.join(model);
        for (path, format) in files(&folder) {
            let prompts = prompts(&folder, format.as_deref());
            let errors = errors(Run::new(Numbers::Single), &path, &prompts, true);
            let worst = errors.iter().map(|(error, _)| *error).fold(0.0, f64::max);
            println!("{worst:.2e} {}", path.display());
            assert!(worst <= bar, "{worst:e} {}", path.display());
        }
    }
}

#[test]
fn a_model_in_gguf_and_in_safetensors_gives_the_same_logits_bit_for_bit() {
    let Some(folder) = oracles::folder() else { return };
    let mut wrong = Vec::new();
    for (model, _) in MODELS {
        let (published, gguf) = (folder.join(model).join("hf"), format!("{model}/gguf/{model}-F32.gguf"));
        if !published.is_dir() || !folder.join(&gguf).is_file() {
            continue;
        }
        let prompts = prompts(&folder.join(model), None);
        for run in [Run::new(Numbers::Single), fast()] {
            let logits = |path: &Path| {
                let mut session = run.open(path);
                let mut logits = Vec::new();
                for prompt in &prompts {
                    session.truncate(0).unwrap();
                    logits.extend_from_slice(session.feed(&prompt.ids).unwrap());
                    logits.extend_from_slice(session.feed(&prompt.tokens[..1]).unwrap());
                }
                logits
            };
            let (a, b) = (logits(&published), logits(&folder.join(&gguf)));
            if a != b {
                wrong.push(format!("{model}, {}: {:e}", run.numbers, relative_error(&a, &b)));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The middle one of some numbers.
fn median(numbers: impl Iterator<Item = f64>) -> f64 {
    let mut numbers: Vec<f64> = numbers.collect();
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

/// Rounding is a matter of chance where the numbers of a model are random, so single files may be a quarter above what
/// llama.cpp loses with them; all files of a format together may not.
#[test]
fn rounded_activations_cost_no_more_than_they_cost_llama_cpp() {
    let Some(folder) = oracles::folder() else { return };
    let (mut wrong, mut ratios) = (Vec::new(), BTreeMap::<(Level, String), Vec<f64>>::new());
    for level in Level::supported() {
        let run = Run { level, ..fast() };
        for (model, _) in MODELS {
            let folder = folder.join(model);
            // Levels below the best are slow, and differ in what they do with blocks.
            let is_tried = |format: &Option<String>| {
                level == Level::host() || matches!(format.as_deref(), Some("Q8_0" | "Q4_K_M"))
            };
            for (path, format) in files(&folder).into_iter().filter(|(_, format)| is_tried(format)) {
                let prompts = prompts(&folder, format.as_deref());
                let errors = errors_of(&mut run.open(&path), &path, &prompts, (false, 1));
                let (own, peer) = (median(errors.iter().map(|e| e.0)), median(errors.iter().map(|e| e.1)));
                let text =
                    format!("{own:.2e} against {peer:.2e}, {:.2}, {level} {}", own / peer, path.display());
                println!("{text}");
                // Originals are in bfloat16; as with files of it, activations may be rounded to such numbers, too.
                let bar = if format.is_some() { 1.25 * peer } else { 1.2e-2 };
                if own > bar {
                    wrong.push(text);
                }
                if let Some(format) = format.filter(|_| peer > 0.0) {
                    ratios.entry((level, format)).or_default().push(own / peer);
                }
            }
        }
    }
    for ((level, format), ratios) in ratios {
        let mean = (ratios.iter().map(|ratio| ratio.ln()).sum::<f64>() / ratios.len() as f64).exp();
        println!("{mean:.2}, {level} {format}");
        if mean > 1.0 {
            wrong.push(format!("{mean:.2} times what llama.cpp loses, {level} {format}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The defaults of the commands.
fn fast() -> Run {
    let mut run = Run::new(Numbers::Quantised);
    run.settings.cache.format = Format::F16;
    run
}

/// Stored numbers of these checkpoints are multiples of a step, so a number of activations of the first block are
/// exactly between two 8-bit integers. The last bit of a sum of squares decides which one is taken, and every such
/// decision moves logits by a hundredth: the program itself differs from itself by 2.6e-2 once another optimisation
/// level adds up in another order. Quantised activations cannot be held against it more closely than that.
#[test]
fn checkpoints_of_qwen3_c_answer_as_its_own_program() {
    let Some(folder) = oracles::folder() else { return };
    let folder = folder.join("k256-qwen3-ajc1");
    let (path, prompts) = (folder.join("k256-qwen3.bin"), prompts(&folder, None));
    let mut exact = fast();
    exact.settings.cache.format = Format::F32;
    for (run, bar) in [(Run::new(Numbers::Single), 4e-2), (exact, 4e-2)] {
        let errors = errors(run, &path, &prompts, false);
        let worst = errors.iter().map(|(error, _)| *error).fold(0.0, f64::max);
        println!("{worst:.2e} {}", run.numbers);
        assert!(worst <= bar, "{worst:e} with {}", run.numbers);
    }
}
