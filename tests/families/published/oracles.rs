//! A small model of every further family, whose logits Transformers recorded.
//!
//! In: folders with a published form, GGUF files in several formats, the logits of Transformers, and those of exact
//! arithmetic on the rounded weights. Out: the largest error of each file, which must stay below its bar, and greedy
//! tokens where their recorded margin is wide enough to be told apart; with rounded activations, an error like
//! llama.cpp's.

use std::fs;
use std::path::{Path, PathBuf};

use fusebox_compiler::options::Numbers;
use fusebox_compiler::tensor::quant::Format;
use fusebox_models::load::Model;
use fusebox_runtime::session::Session;
use serde_json::Value;
use support::oracles;
use support::run::{Run, relative_error};

/// Of exact arithmetic in single precision, in another order.
const SAME: f64 = 1e-5;
/// The same where a model carries a state from token to token, or is of Gemma 4: rounding adds up.
const CARRIED: f64 = 5e-5;
const GEMMA4: f64 = 4e-5;
/// A margin between the two likeliest tokens that no rounding closes.
const WIDE: f64 = 1e-3;

/// The recorded models, each with the bar of its precise logits.
const MODELS: [(&str, f64); 21] = [
    ("tiny-ernie4_5", SAME),
    ("tiny-gemma2", SAME),
    ("tiny-gemma3", SAME),
    ("tiny-gemma4e", GEMMA4),
    ("tiny-glm4", SAME),
    ("tiny-gpt-oss", SAME),
    ("tiny-gpt-oss-truncated", SAME),
    ("tiny-granite", SAME),
    ("tiny-granite4h", CARRIED),
    ("tiny-hunyuan", SAME),
    ("tiny-lfm2", CARRIED),
    ("tiny-llama4", SAME),
    ("tiny-minimax-m2", SAME),
    ("tiny-ministral3", SAME),
    ("tiny-nemotron-h", CARRIED),
    ("tiny-olmo2", SAME),
    ("tiny-phi-longrope", SAME),
    ("tiny-qwen2moe", SAME),
    ("tiny-qwen3_5", CARRIED),
    ("tiny-qwen3next", CARRIED),
    ("tiny-smollm3", SAME),
];

/// Models that are recorded and lack a part here, with the end of the sentence that says so.
const REFUSED: [(&str, &str); 2] = [
    ("tiny-deepseek-v32", "it needs: an indexer, which selects the positions that attention sees"),
    ("tiny-gemma3n", "it needs: AltUp, LAuReL and activation sparsity"),
];

/// What was recorded of one prompt.
struct Prompt {
    name: String,
    ids: Vec<u32>,
    logits: Vec<f32>,
    greedy: Vec<u32>,
    margin: f64,
    /// The error of llama.cpp on the same file, if it is known.
    peer: Option<f64>,
}

fn json(path: &Path) -> Option<Value> {
    Some(serde_json::from_str(&fs::read_to_string(path).ok()?).unwrap())
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

fn prompts(folder: &Path, format: Option<&str>) -> Vec<Prompt> {
    let oracle = json(&folder.join("oracle.json")).unwrap();
    let exact = format.and_then(|format| Some(json(&folder.join("exact.json"))?[format].clone()));
    let prompt = |prompt: &Value| {
        let name = prompt["name"].as_str().unwrap().to_owned();
        let expected = exact.as_ref().map_or(prompt, |exact| &exact[&name]);
        let logits = expected["last_logits"].as_array().unwrap();
        Prompt {
            ids: ids(&prompt["prompt_ids"]),
            logits: logits.iter().map(|x| x.as_f64().unwrap() as f32).collect(),
            greedy: ids(&expected["greedy_ids"]),
            margin: expected["min_margin"].as_f64().unwrap_or(0.0),
            peer: expected["llama_cpp_rel_rms"].as_f64(),
            name,
        }
    };
    oracle["prompts"].as_array().unwrap().iter().map(prompt).collect()
}

/// The files of a model, each with the format whose exact logits were recorded; others are held against the original.
fn files(folder: &Path) -> Vec<(PathBuf, Option<String>)> {
    let name = folder.file_name().unwrap().to_str().unwrap();
    let exact = json(&folder.join("exact.json"));
    let of_file = |path: &Path| {
        let format = path.file_stem()?.to_str()?.strip_prefix(name)?.trim_start_matches('-').to_owned();
        exact.as_ref()?.get(&format).map(|_| format)
    };
    let mut all: Vec<PathBuf> = vec![folder.join("hf")];
    let ggufs = fs::read_dir(folder.join("gguf")).into_iter().flatten();
    all.extend(ggufs.map(|entry| entry.unwrap().path()));
    all.sort();
    all.into_iter().map(|path| (path.clone(), of_file(&path))).collect()
}

/// The sessions of a file, and the longest prompt of each. Transformers takes the factors of longrope by the length of
/// a prompt, and a session by its context.
fn sessions(run: Run, model: &str, path: &Path) -> Vec<(Session, usize)> {
    let of_context = |context: usize| {
        let mut run = run;
        run.settings.context = context;
        (run.open(path), context - 16)
    };
    if model == "tiny-phi-longrope" { vec![of_context(128), of_context(256)] } else { vec![of_context(256)] }
}

/// The error of each prompt of a file, and llama.cpp's where it is known. With `is_exact` greedy tokens are compared.
fn errors(run: Run, model: &str, path: &Path, prompts: &[Prompt], is_exact: bool) -> Vec<(f64, Option<f64>)> {
    let mut sessions = sessions(run, model, path);
    let mut errors = Vec::new();
    for prompt in prompts {
        let (session, _) = sessions.iter_mut().find(|(_, most)| prompt.ids.len() <= *most).unwrap();
        session.truncate(0).unwrap();
        let logits = session.feed(&prompt.ids).unwrap().to_vec();
        errors.push((relative_error(&logits, &prompt.logits), prompt.peer));
        if is_exact && prompt.margin > WIDE {
            let mut found = vec![likeliest(&logits)];
            while found.len() < prompt.greedy.len() {
                found.push(likeliest(session.feed(&found[found.len() - 1..]).unwrap()));
            }
            assert_eq!(found, prompt.greedy, "{} {}", path.display(), prompt.name);
        }
    }
    errors
}

fn likeliest(logits: &[f32]) -> u32 {
    let best = (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b]).then(b.cmp(a)));
    best.unwrap() as u32
}

#[test]
fn every_further_family_answers_as_transformers_does() {
    let Some(folder) = oracles::missing() else { return };
    let mut wrong = Vec::new();
    for (model, bar) in MODELS {
        let folder = folder.join(model);
        for (path, format) in files(&folder) {
            let prompts = prompts(&folder, format.as_deref());
            let errors = errors(Run::new(Numbers::Single), model, &path, &prompts, true);
            let worst = errors.iter().map(|(error, _)| *error).fold(0.0, f64::max);
            println!("{worst:.2e} {}", path.display());
            if worst.is_nan() || worst > bar {
                wrong.push(format!("{worst:.2e} of {bar:e}: {}", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn rounded_activations_cost_further_families_what_they_cost_llama_cpp() {
    let Some(folder) = oracles::missing() else { return };
    let middle = |mut numbers: Vec<f64>| {
        numbers.sort_by(f64::total_cmp);
        numbers[numbers.len() / 2]
    };
    let (mut wrong, mut ratios) = (Vec::new(), Vec::new());
    for (model, _) in MODELS {
        let folder = folder.join(model);
        for (path, format) in files(&folder).into_iter().filter(|(_, format)| format.is_some()) {
            let prompts = prompts(&folder, format.as_deref());
            let mut run = Run::new(Numbers::Quantised);
            run.settings.cache.format = Format::F16;
            let errors = errors(run, model, &path, &prompts, false);
            let own = middle(errors.iter().map(|(error, _)| *error).collect());
            let peers: Vec<f64> = errors.iter().filter_map(|(_, peer)| *peer).collect();
            if peers.is_empty() {
                continue;
            }
            let peer = middle(peers);
            println!("{own:.2e} against {peer:.2e}, {:.2}: {}", own / peer, path.display());
            ratios.push(own / peer);
            // Single files are a matter of chance, as numbers are random; all together are not.
            if own.is_nan() || own > 1.5 * peer {
                wrong.push(format!("{own:.2e} against {peer:.2e}: {}", path.display()));
            }
        }
    }
    let ratio = middle(ratios);
    println!("{ratio:.2} times what llama.cpp loses");
    assert!(wrong.is_empty() && ratio <= 1.1, "{ratio:.2}\n{}", wrong.join("\n"));
}

#[test]
fn models_that_lack_a_part_say_which() {
    let Some(folder) = oracles::missing() else { return };
    for (model, expected) in REFUSED {
        let error = Model::open(&folder.join(model).join("hf")).unwrap_err().to_string();
        assert!(error.ends_with(expected), "{error}");
    }
}
