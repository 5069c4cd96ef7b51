//! Small rankers with a head, whose scores Transformers recorded.
//!
//! In: folders and GGUF files that `tests/fixtures/rankers.py` made, and what it recorded of them. Out: the same scores
//! of pairs of texts, the same tokens and kinds, and a sentence where a model cannot rank.

use std::fs::{self, read_to_string};
use std::path::{Path, PathBuf};

use fusebox_compiler::codegen::cpu::Cpu;
use fusebox_compiler::options::{Numbers, Options};
use fusebox_compiler::simd::Level;
use fusebox_compiler::tensor::quant::Format;
use fusebox_models::embed::Embedder;
use fusebox_models::embed::pooling::Pooling;
use fusebox_models::embed::relevance::Relevance;
use fusebox_models::layers::embed::Scored;
use fusebox_models::load::{Model, Settings};
use fusebox_models::tokenizer::{Pair, Tokenizer};
use fusebox_runtime::device::cpu::CpuDevice;
use fusebox_runtime::session::cache::Cache;
use fusebox_runtime::weights::Checkpoint;
use serde_json::Value as Json;
use support::given::fixture;
use support::own::path;

use super::encoders::{ids, numbers};

/// Single precision, summed in another order.
const SAME: f64 = 5e-6;
/// The longest recorded pair.
const CONTEXT: usize = 96;

fn recorded() -> Json {
    serde_json::from_str(&read_to_string(fixture("rankers/rankers.json")).unwrap()).unwrap()
}

/// The folder of a model and its GGUF file.
fn files(name: &str) -> [PathBuf; 2] {
    [fixture("rankers").join(name), fixture("rankers").join(format!("{name}.gguf"))]
}

/// The recorded inputs of a model, each with what was recorded under a key.
fn inputs(name: &str, key: &str) -> Vec<(Pair, f64)> {
    numbers(&recorded()["models"][name], |one| {
        let pair = Pair { tokens: ids(&one["tokens"]), kinds: ids(&one["kinds"]) };
        (pair, one[key].as_f64().unwrap())
    })
}

fn embedder(path: &Path) -> Embedder {
    let model = Model::embedder(path).unwrap_or_else(|error| panic!("{error}"));
    let cpu = Cpu::at(Level::host(), Numbers::Single).unwrap();
    let settings = Settings::of_one(CONTEXT, CONTEXT, Format::F32, Scored::Ranked);
    let device = Box::new(CpuDevice::new(cpu, 2).unwrap());
    let session = model.session(device, &settings, &Options::default(), &Cache::default()).unwrap();
    Embedder::new(&model, session, Pooling::Rank)
}

fn assert_scores(path: &Path, expected: &[(Pair, f64)]) {
    let mut embedder = embedder(path);
    for (pair, expected) in expected {
        let row = embedder.embed_pair(pair).unwrap();
        let error = (f64::from(row[0]) - expected).abs();
        assert!(row.len() == 1 && error < SAME, "{row:?}, expected {expected}: {}", path.display());
    }
}

#[test]
fn scores_are_those_of_transformers() {
    for name in ["bert", "xlm-roberta", "modern-bert"] {
        for path in files(name) {
            assert_scores(&path, &inputs(name, "score"));
        }
    }
}

#[test]
fn kinds_change_a_score_and_unknown_ones_are_refused() {
    let (pair, expected) = inputs("bert", "score").remove(0);
    let mut embedder = embedder(&files("bert")[0]);
    let alone = embedder.embed(&pair.tokens).unwrap();
    assert!((f64::from(alone[0]) - expected).abs() > 1e-3, "{alone:?}");
    for kinds in [vec![2; pair.tokens.len()], vec![0]] {
        let error = embedder.embed_pair(&Pair { kinds, ..pair.clone() }).unwrap_err().to_string();
        assert!(error.contains("expected one below 2 for each of 10 tokens"), "{error}");
    }
}

#[test]
fn a_head_reads_the_first_token_where_the_folder_says_so() {
    let [from, _] = files("modern-bert");
    let folder = path("head-of-first");
    fs::create_dir_all(&folder).unwrap();
    for file in fs::read_dir(from).unwrap().flatten() {
        fs::copy(file.path(), folder.join(file.file_name())).unwrap();
    }
    let config = read_to_string(folder.join("config.json")).unwrap();
    let with = |what: &str| {
        let config = config.replace(r#""classifier_pooling": "mean""#, what);
        fs::write(folder.join("config.json"), config).unwrap();
    };
    with(r#""classifier_pooling": "cls""#);
    assert_scores(&folder, &inputs("modern-bert", "score_of_first"));
    with(r#""classifier_pooling": "max""#);
    let error = Model::embedder(&folder).unwrap_err().to_string();
    assert!(error.contains("classifier_pooling") && error.contains("expected cls or mean"), "{error}");
}

#[test]
fn texts_are_joined_as_transformers_does() {
    let pairs = recorded()["pairs"].clone();
    for name in ["bert", "xlm-roberta"] {
        for path in files(name) {
            let model = Model::embedder(&path).unwrap();
            let tokenizer = Tokenizer::open(&Checkpoint::open(&path).unwrap()).unwrap();
            let relevance = Relevance::of(&model, &tokenizer).unwrap();
            for (texts, (expected, _)) in pairs.as_array().unwrap().iter().zip(inputs(name, "score")) {
                let [query, document] = [&texts[0], &texts[1]].map(|text| text.as_str().unwrap());
                let found = relevance.input(&tokenizer, [query, document]).unwrap();
                assert_eq!(found, expected, "{query:?} and {document:?}: {}", path.display());
            }
        }
    }
}

#[test]
fn a_head_of_another_task_ranks_nothing() {
    let [from, _] = files("bert");
    let folder = path("other-task");
    fs::create_dir_all(&folder).unwrap();
    for file in fs::read_dir(from).unwrap().flatten() {
        fs::copy(file.path(), folder.join(file.file_name())).unwrap();
    }
    let config = read_to_string(folder.join("config.json")).unwrap();
    let other = config.replace("ForSequenceClassification", "ForTokenClassification");
    assert_ne!(config, other);
    fs::write(folder.join("config.json"), other).unwrap();
    let model = Model::embedder(&folder).unwrap();
    let tokenizer = Tokenizer::open(model.checkpoint()).unwrap();
    let error = Relevance::of(&model, &tokenizer).unwrap_err();
    assert_eq!(error, "it cannot rank texts: expected a head that scores them, found none");
}
