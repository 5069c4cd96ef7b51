//! Small encoders, whose hidden states Transformers recorded.
//!
//! In: folders and GGUF files that `tests/fixtures/encoders.py` made, and what it recorded of them. Out: the same
//! vectors for every kind of pooling, the same tokens, and a sentence where one is asked to generate.

use std::fs::{self, read_to_string};
use std::path::{Path, PathBuf};

use fusebox_compiler::codegen::cpu::Cpu;
use fusebox_compiler::options::{Numbers, Options};
use fusebox_compiler::simd::Level;
use fusebox_compiler::tensor::quant::Format;
use fusebox_models::embed::pooling::Pooling;
use fusebox_models::layers::embed::Scored;
use fusebox_models::load::{Model, Settings};
use fusebox_models::tokenizer::Tokenizer;
use fusebox_runtime::device::cpu::CpuDevice;
use fusebox_runtime::session::Session;
use fusebox_runtime::session::cache::Cache;
use fusebox_runtime::weights::Checkpoint;
use serde_json::{Value as Json, json};
use support::given::fixture;
use support::own::path;
use support::run::relative_error;

/// Single precision, summed in another order.
const SAME: f64 = 5e-6;
/// The longest recorded text.
const CONTEXT: usize = 96;

fn recorded() -> Json {
    serde_json::from_str(&read_to_string(fixture("encoders/encoders.json")).unwrap()).unwrap()
}

/// The folder of a model and its GGUF file, where there is one.
fn files(name: &str) -> Vec<PathBuf> {
    let all = [fixture("encoders").join(name), fixture("encoders").join(format!("{name}.gguf"))];
    all.into_iter().filter(|path| path.exists()).collect()
}

fn session(path: &Path) -> Session {
    let model = Model::embedder(path).unwrap_or_else(|error| panic!("{error}"));
    let cpu = Cpu::at(Level::host(), Numbers::Single).unwrap();
    let settings = Settings::of_one(CONTEXT, CONTEXT, Format::F32, Scored::Embedded);
    let device = Box::new(CpuDevice::new(cpu, 2).unwrap());
    model.session(device, &settings, &Options::default(), &Cache::default()).unwrap()
}

pub(super) fn numbers<T>(json: &Json, of: impl Fn(&Json) -> T) -> Vec<T> {
    json.as_array().unwrap().iter().map(of).collect()
}

pub(super) fn ids(json: &Json) -> Vec<u32> {
    numbers(json, |id| id.as_u64().unwrap() as u32)
}

#[test]
fn hidden_states_are_those_of_transformers() {
    let recorded = recorded();
    let texts = numbers(&recorded["tokens"], ids);
    for (name, expected) in recorded["models"].as_object().unwrap() {
        for path in files(name) {
            let mut session = session(&path);
            for (tokens, expected) in texts.iter().zip(expected.as_array().unwrap()) {
                session.truncate(0).unwrap();
                let (mut rows, mut width) = (Vec::new(), 0);
                let mut each = |row: &[f32]| {
                    width = row.len();
                    rows.extend_from_slice(row);
                };
                session.score(tokens, &mut each).unwrap();
                let ways = [(Pooling::Mean, "mean"), (Pooling::First, "first"), (Pooling::Last, "last")];
                for (pooling, way) in ways {
                    let expected = numbers(&expected[way], |x| x.as_f64().unwrap() as f32);
                    let error = relative_error(&pooling.pooled(&rows, width), &expected);
                    assert!(error < SAME, "{error:.1e} {way} of {}: {}", tokens.len(), path.display());
                }
            }
        }
    }
}

#[test]
fn words_are_split_as_bert_does() {
    for path in files("bert") {
        let tokenizer = Tokenizer::open(&Checkpoint::open(&path).unwrap()).unwrap();
        for text in recorded()["texts"].as_array().unwrap() {
            let given = text[0].as_str().unwrap();
            assert_eq!(
                tokenizer.encode(given, true).unwrap(),
                ids(&text[1]),
                "{given:?}: {}",
                path.display()
            );
        }
        let tokens = tokenizer.encode("hello worlds, hello", false).unwrap();
        assert_eq!(tokenizer.decode(&tokens, true), "hello worlds , hello");
    }
}

#[test]
fn a_file_says_how_it_is_pooled() {
    let stated = |path: &PathBuf| Pooling::of(&Checkpoint::open(path).unwrap()).unwrap();
    assert!(files("bert").iter().all(|path| stated(path) == Some(Pooling::First)));
    let of_modern = files("modern-bert");
    assert_eq!(of_modern.iter().map(stated).collect::<Vec<_>>(), [None, Some(Pooling::Mean)]);
}

/// A folder with two projections behind pooling, of these shapes, and their numbers.
fn projected(name: &str, config: &Json) -> (PathBuf, [Vec<f32>; 2]) {
    let folder = path(name);
    let from = files("modern-bert").into_iter().find(|path| path.is_dir()).unwrap();
    fs::create_dir_all(&folder).unwrap();
    for file in fs::read_dir(from).unwrap().flatten().filter(|file| file.path().is_file()) {
        fs::copy(file.path(), folder.join(file.file_name())).unwrap();
    }
    let hidden = Model::embedder(&folder).unwrap().config.hidden;
    let matrix = |name: &str, [rows, columns]: [usize; 2]| {
        let numbers: Vec<f32> = (0..rows * columns).map(|i| ((i * 37 % 101) as f32 - 50.0) / 64.0).collect();
        let entry = json!({"dtype": "F32", "shape": [rows, columns], "data_offsets": [0, 4 * numbers.len()]});
        let header = json!({"linear.weight": entry}).to_string();
        let data: Vec<u8> = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
        let file = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &data].concat();
        fs::create_dir_all(folder.join(name)).unwrap();
        fs::write(folder.join(name).join("model.safetensors"), file).unwrap();
        fs::write(folder.join(name).join("config.json"), config.to_string()).unwrap();
        numbers
    };
    let both = [matrix("2_Dense", [10, hidden]), matrix("3_Dense", [6, 10])];
    (folder, both)
}

#[test]
fn projections_of_a_folder_follow_pooling() {
    let identity = json!({"bias": false, "activation_function": "torch.nn.modules.linear.Identity"});
    let (folder, [first, second]) = projected("projected", &identity);
    let plain = files("modern-bert").into_iter().find(|path| path.is_dir()).unwrap();
    let vector = |path: &Path| {
        let (mut rows, mut width) = (Vec::new(), 0);
        let mut each = |row: &[f32]| {
            width = row.len();
            rows.extend_from_slice(row);
        };
        session(path).score(&[3, 9, 4, 1], &mut each).unwrap();
        Pooling::Mean.pooled(&rows, width)
    };
    let times = |matrix: &[f32], x: &[f32]| -> Vec<f32> {
        matrix.chunks_exact(x.len()).map(|row| row.iter().zip(x).map(|(a, b)| a * b).sum()).collect()
    };
    let expected = times(&second, &times(&first, &vector(&plain)));
    assert_eq!(expected.len(), 6);
    let error = relative_error(&vector(&folder), &expected);
    assert!(error < SAME, "{error:.1e}");
}

#[test]
fn a_projection_that_is_more_than_a_matrix_is_refused() {
    let refused = |name: &str, config: &Json| {
        let (folder, _) = projected(name, config);
        Pooling::of(&Checkpoint::open(&folder).unwrap()).unwrap_err().to_string()
    };
    let sentence = "2_Dense: expected a projection without bias and activation, found another";
    let tanh = json!({"bias": false, "activation_function": "torch.nn.modules.activation.Tanh"});
    for (name, config) in [("tanh", tanh), ("bias", json!({"bias": true}))] {
        let error = refused(name, &config);
        assert!(error.contains(sentence), "{error}");
    }
    let (folder, _) = projected("no-weights", &json!({"bias": false}));
    fs::remove_file(folder.join("2_Dense/model.safetensors")).unwrap();
    let error = Pooling::of(&Checkpoint::open(&folder).unwrap()).unwrap_err().to_string();
    assert!(error.contains("2_Dense: expected its weights in model.safetensors, found none"), "{error}");
}

#[test]
fn an_encoder_is_not_asked_to_generate() {
    for path in files("bert").iter().chain(&files("gemma-embedding")) {
        let error = Model::open(path).unwrap_err().to_string();
        assert!(error.contains("`fusebox embed` does"), "{error}");
    }
}
