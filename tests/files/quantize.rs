//! Models written again in other formats.
//!
//! In: the default model, and among the oracles the files that llama.cpp's own tools made of others. Out: the same
//! formats for the same tensors and the same bytes; where the original is not there, no greater loss.

use std::fs::read_dir;
use std::path::{Path, PathBuf};

use fusebox_compiler::tensor::quant::Format;
use fusebox_models::config::Config;
use fusebox_models::load::Model;
use fusebox_models::quantize::importance::Importance;
use fusebox_models::quantize::overrides::Overrides;
use fusebox_models::quantize::split::Split;
use fusebox_models::quantize::types::{TYPES, Type};
use fusebox_models::quantize::{Job, Summary, quantize};
use fusebox_models::tokenizer::Tokenizer;
use fusebox_runtime::weights::gguf::{self, store};
use fusebox_runtime::weights::value::{List, Value};
use fusebox_runtime::weights::{Checkpoint, Kind, Stored, TensorInfo};
use support::given::story;
use support::oracles;
use support::own::{path, write};

use crate::is_whole;

/// A model written again under a name of these tests.
fn written(input: &Path, ty: &str, name: &str) -> (Checkpoint, Summary) {
    let output = path(name);
    let summary = quantize(input, &output, &Job::to(Type::named(ty).unwrap(), 2), &mut |_, _| ()).unwrap();
    (Checkpoint::open(&output).unwrap(), summary)
}

fn numbers(checkpoint: &Checkpoint, name: &str) -> Vec<f32> {
    let info = &checkpoint.tensors()[name];
    let Stored::As(format) = info.stored else { panic!("{name}") };
    format.decode_all(checkpoint.bytes(name).unwrap(), info.n_elements()).unwrap()
}

/// The root of the mean square of the differences.
fn distance(a: &[f32], b: &[f32]) -> f64 {
    let squares = a.iter().zip(b).map(|(a, b)| f64::from(a - b) * f64::from(a - b));
    (squares.sum::<f64>() / a.len() as f64).sqrt()
}

#[test]
fn every_type_is_read_back_with_all_it_says() {
    let original = Checkpoint::open(&story()).unwrap();
    for ty in TYPES {
        let (copy, summary) = written(&story(), ty.name, "again.gguf");
        assert!(is_whole(&copy) && copy.kind() == Kind::Gguf { version: 3 }, "{}", ty.name);
        assert_eq!(summary.bytes[1], copy.files().map(|(_, n)| n as u64).sum::<u64>());
        let kept = original.metadata().iter().filter(|(key, _)| key.as_str() != "general.file_type");
        for (key, value) in kept {
            assert_eq!(copy.metadata().get(key), Some(value), "{}: {key}", ty.name);
        }
        assert!(copy.tensors().keys().eq(original.tensors().keys()));
        for (name, info) in original.tensors() {
            assert_eq!(copy.tensors()[name].shape, info.shape);
            let (a, b) = (numbers(&original, name), numbers(&copy, name));
            let size = distance(&a, &vec![0.0; a.len()]);
            let most = match ty.format {
                Format::Q2K => 0.4,
                Format::Q3K => 0.25,
                _ => 0.12,
            };
            assert!(distance(&a, &b) <= most * size, "{}: {name} {}", ty.name, distance(&a, &b) / size);
        }
    }
}

#[test]
fn numbers_that_were_rounded_lose_again_only_where_they_are_rounded_again() {
    let twice = |ty| written(&story(), ty, "twice.gguf").1.n_requantised;
    assert_eq!(twice("F32"), 0);
    assert!(twice("F16") > 0 && twice("Q4_0") > 0);
}

#[test]
fn pairs_of_every_type_are_read_back() {
    let pairs = [
        ("a", Value::Bool(true)),
        ("b", Value::Unsigned(7)),
        ("c", Value::Unsigned(u64::MAX)),
        ("d", Value::Signed(-7)),
        ("e", Value::Signed(i64::MIN)),
        ("f", Value::Float(0.5)),
        ("g", Value::Float(0.1)),
        ("h", Value::Text("é".to_owned())),
        ("i", Value::List(List::Texts(vec!["x".to_owned(), String::new()]))),
        ("j", Value::List(List::Lists(vec![List::Signed(vec![1, -1]), List::Bools(vec![false])]))),
        ("k", Value::List(List::Floats(vec![0.25, 0.1]))),
        ("l", Value::List(List::Unsigned(vec![]))),
    ];
    let bytes: Vec<Vec<u8>> = pairs.iter().map(|(key, value)| store::pair(key, value)).collect();
    let path = path("pairs.gguf");
    store::write(&path, &bytes, &[], |_, _| Ok(())).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    for (key, value) in &pairs {
        assert_eq!(checkpoint.metadata().get(*key), Some(value), "{key}");
    }
    assert!(gguf::pairs(&checkpoint).unwrap().values().copied().eq(bytes.iter().map(Vec::as_slice)));
}

fn bytes_of(checkpoint: &Checkpoint) -> Vec<(String, Stored, Vec<u8>)> {
    let each = checkpoint.tensors().iter();
    each.map(|(name, info)| (name.clone(), info.stored, checkpoint.bytes(name).unwrap().to_vec())).collect()
}

/// Written by a job, under a name of these tests.
fn done(input: &Path, job: Job, name: &str) -> Summary {
    quantize(input, &path(name), &Job { n_threads: 2, ..job }, &mut |_, _| ())
        .unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn several_files_are_the_same_model_and_become_one_again() {
    let original = Checkpoint::open(&story()).unwrap();
    let bytes: usize = original.tensors().values().map(TensorInfo::n_bytes).sum();
    for (number, split) in [Split::Tensors(3), Split::Bytes(bytes as u64 / 3)].into_iter().enumerate() {
        let name = format!("parts-{number}.gguf");
        let summary = done(&story(), Job { split: Some(split), ..Job::default() }, &name);
        assert!(summary.n_files > 2, "{split:?}");
        let first = path(&format!("parts-{number}-00001-of-{:05}.gguf", summary.n_files));
        let parts = Checkpoint::open(&first).unwrap();
        assert_eq!(parts.files().count(), summary.n_files);
        assert_eq!(parts.files().map(|(_, n)| n as u64).sum::<u64>(), summary.bytes[1]);
        assert_eq!(bytes_of(&parts), bytes_of(&original), "{split:?}");
        done(&first, Job::default(), "joined.gguf");
        let joined = Checkpoint::open(&path("joined.gguf")).unwrap();
        assert_eq!(bytes_of(&joined), bytes_of(&original), "{split:?}");
        assert_eq!(joined.metadata(), original.metadata());
    }
}

#[test]
fn a_dry_run_says_what_would_be_written() {
    let name = "dry.gguf";
    let _ = std::fs::remove_file(path(name));
    let mut overrides = Overrides::of_ends(Some(Format::Q5_0), None);
    overrides.add("ffn_down=q8_0").unwrap();
    let job = Job { ty: Type::named("Q4_0"), overrides, is_dry: true, ..Job::default() };
    let dry = done(&story(), job.clone(), name);
    assert!(!path(name).exists());
    let written = done(&story(), Job { is_dry: false, ..job }, name);
    assert_eq!(dry, written);
    let format = |own: &str| {
        let found = written.tensors.iter().find(|tensor| tensor.name == own).unwrap();
        found.formats[1].clone()
    };
    assert_eq!(["blk.0.ffn_down.weight", "blk.0.attn_q.weight"].map(format), ["q8_0", "q4_0"]);
}

#[test]
fn an_importance_matrix_is_read_from_both_kinds_of_files() {
    let original = Checkpoint::open(&story()).unwrap();
    let (name, info) = original.tensors().iter().find(|(name, _)| name.contains("ffn_down")).unwrap();
    let columns = info.shape[1];
    let sums: Vec<f32> = (0..columns).map(|i| if i % 7 == 0 { 300.0 } else { 0.3 }).collect();
    let bytes: Vec<u8> = sums.iter().flat_map(|sum| sum.to_le_bytes()).collect();
    let word = |n: usize| (n as i32).to_le_bytes().to_vec();
    let own = [word(1), word(name.len()), name.as_bytes().to_vec(), word(3), word(columns), bytes.clone()];
    let older = write("importance.dat", &own.concat());
    let newer = path("importance.gguf");
    let entry = |ending: &str, shape: Vec<usize>| store::Entry {
        name: format!("{name}{ending}"),
        shape,
        stored: Stored::As(Format::F32),
    };
    let entries = [entry(".in_sum2", vec![1, columns]), entry(".counts", vec![1, 1])];
    let three = 3.0_f32.to_le_bytes();
    store::write(&newer, &[], &entries, |idx, put| put(if idx == 0 { &bytes } else { &three })).unwrap();
    let with = |importance: Option<&Path>, name: &str| {
        let importance = importance.map(|file| Importance::open(file).unwrap());
        done(&story(), Job { ty: Type::named("Q5_1"), importance, ..Job::default() }, name);
        bytes_of(&Checkpoint::open(&path(name)).unwrap())
    };
    let (plain, a, b) =
        (with(None, "plain.gguf"), with(Some(&older), "a.gguf"), with(Some(&newer), "b.gguf"));
    assert!(a == b);
    let changed: Vec<&String> = plain.iter().zip(&a).filter(|(x, y)| x != y).map(|(x, _)| &x.0).collect();
    assert_eq!(changed, [name]);
    let fault = |bytes: &[u8]| Importance::open(&write("fault.dat", bytes)).unwrap_err().to_string();
    assert!(fault(&own.concat()[..40]).contains("expected an importance matrix"));
    assert!(fault(&word(0)).contains("expected an importance matrix"));
    let wrong = [word(1), word(name.len()), name.as_bytes().to_vec(), word(3), word(2), vec![0; 8]].concat();
    let importance = Some(Importance::open(&write("wrong.dat", &wrong)).unwrap());
    let job = Job { ty: Type::named("Q5_1"), importance, ..Job::default() };
    let error = quantize(&story(), &path("wrong.gguf"), &job, &mut |_, _| ()).unwrap_err().to_string();
    assert!(error.contains("wrong.dat") && error.contains("found 2"), "{error}");
    let other = [word(1), word(5), b"other".to_vec(), word(3), word(2), vec![0; 8]].concat();
    let importance = Some(Importance::open(&write("other.dat", &other)).unwrap());
    let job = Job { ty: Type::named("Q5_1"), importance, ..Job::default() };
    let error = quantize(&story(), &path("other.gguf"), &job, &mut |_, _| ()).unwrap_err().to_string();
    assert!(error.contains("other.dat") && error.contains("those of another"), "{error}");
}

#[test]
fn an_error_leaves_what_was_there() {
    let folder = path("left");
    std::fs::create_dir_all(&folder).unwrap();
    let output = folder.join("old.gguf");
    std::fs::write(&output, b"old").unwrap();
    let entry = store::Entry { name: "a".to_owned(), shape: vec![2], stored: Stored::As(Format::F32) };
    let error = store::write(&output, &[], &[entry], |_, put| put(&[0; 4])).unwrap_err().to_string();
    assert!(error.contains("tensor `a`: expected its last byte at"), "{error}");
    assert_eq!(std::fs::read(&output).unwrap(), b"old");
    assert_eq!(read_dir(&folder).unwrap().count(), 1);
}

#[test]
fn nothing_is_written_over_a_file_that_is_something_else() {
    let output = write("notes.txt", b"mine");
    let error =
        quantize(&story(), &output, &Job::to(Type::named("Q8_0").unwrap(), 1), &mut |_, _| ()).unwrap_err();
    assert!(
        error.to_string().contains("expected the name of a new file, or of a GGUF file to replace"),
        "{error}"
    );
    assert_eq!(std::fs::read(&output).unwrap(), b"mine");
}

fn files(folder: &Path) -> Vec<(PathBuf, String)> {
    let Ok(entries) = read_dir(folder.join("gguf")) else { return Vec::new() };
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let ty = |file: &PathBuf| file.file_stem()?.to_str()?.rsplit_once('-').map(|(_, ty)| ty.to_owned());
    files.iter().filter_map(|file| Some((file.clone(), ty(file)?))).collect()
}

fn models() -> Vec<PathBuf> {
    let Some(folder) = oracles::folder() else { return Vec::new() };
    let mut folders: Vec<PathBuf> = read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.sort();
    folders.into_iter().filter(|folder| folder.join("gguf").is_dir()).collect()
}

#[test]
fn every_file_of_llama_cpp_is_written_byte_for_byte() {
    for model in models() {
        let files = files(&model);
        let Some((original, _)) = files.iter().find(|(_, ty)| ty == "F32") else { continue };
        assert!(files.len() > 7, "{}", model.display());
        for (file, ty) in &files {
            let (found, _) = written(original, ty, "equal.gguf");
            let expected = Checkpoint::open(file).unwrap();
            assert_eq!(found.tensors().len(), expected.tensors().len());
            for (name, info) in expected.tensors() {
                assert_eq!(found.tensors()[name].stored, info.stored, "{}: {name}", file.display());
                assert!(found.bytes(name) == expected.bytes(name), "{}: {name}", file.display());
            }
        }
    }
}

/// Keys that one of the two leaves out, as nothing that a model answers depends on them.
fn is_compared(key: &str) -> bool {
    let ids = ["padding_token_id", "unknown_token_id", "bos_token_id", "add_space_prefix"];
    !key.starts_with("general.") && ids.iter().all(|id| !key.ends_with(id))
}

#[test]
fn a_folder_becomes_what_llama_cpp_makes_of_it() {
    for model in models() {
        let files = files(&model);
        let Some((original, _)) = files.iter().find(|(_, ty)| ty == "F32") else { continue };
        let (found, _) = written(&model.join("hf"), "F32", "folder.gguf");
        let expected = Checkpoint::open(original).unwrap();
        assert_eq!(found.tensors().len(), expected.tensors().len(), "{}", model.display());
        for (name, info) in expected.tensors() {
            let own = &found.tensors()[name];
            assert_eq!((own.stored, &own.shape), (info.stored, &info.shape), "{}: {name}", model.display());
            let is_equal = found.bytes(name) == expected.bytes(name);
            let loss = distance(&numbers(&found, name), &numbers(&expected, name));
            assert!(is_equal || name == "rope_freqs.weight" && loss < 1e-6, "{}: {name}", model.display());
        }
        for (key, value) in expected.metadata().iter().filter(|(key, _)| is_compared(key)) {
            let is_none = !found.metadata().contains_key(key) && value.to_u64() == Some(0);
            let own = found.metadata().get(key);
            assert!(is_none || own == Some(value), "{}: {key}: {own:?}", model.display());
        }
    }
}

#[test]
fn a_folder_and_its_file_are_the_same_model() {
    let Some(folder) = oracles::folder() else { return };
    for name in ["tiny-mistral", "tiny-qwen3", "tiny-glm4-moe-lite"] {
        let folder = folder.join(name).join("hf");
        written(&folder, "BF16", "same.gguf");
        let (a, b) = (Model::open(&folder).unwrap().config, Model::open(&path("same.gguf")).unwrap().config);
        assert_eq!((a.hidden, a.vocab, a.context, a.tied), (b.hidden, b.vocab, b.context, b.tied), "{name}");
        let scaling = |config: &Config| config.rope().map(|rope| rope.scaling.clone());
        assert_eq!((a.experts(), scaling(&a)), (b.experts(), scaling(&b)), "{name}");
        let ends = |path: &Path| Tokenizer::open(&Checkpoint::open(path).unwrap()).unwrap().eos().to_vec();
        assert_eq!(ends(&folder), ends(&path("same.gguf")), "{name}");
    }
}

#[test]
fn groups_of_256_lose_no_more_than_llama_cpp() {
    for model in models() {
        let files = files(&model);
        let has_original = files.iter().any(|(_, ty)| ty == "F32");
        let Some((near, _)) = files.iter().find(|(_, ty)| ty == "Q8_0" && !has_original) else { continue };
        let original = Checkpoint::open(near).unwrap();
        for (file, ty) in files.iter().filter(|(_, ty)| ty.contains("_K")) {
            let (found, _) = written(near, ty, "near.gguf");
            let expected = Checkpoint::open(file).unwrap();
            for (name, info) in expected.tensors() {
                assert_eq!(found.tensors()[name].stored, info.stored, "{}: {name}", file.display());
                let exact = numbers(&original, name);
                let loss = |checkpoint: &Checkpoint| distance(&numbers(checkpoint, name), &exact);
                assert!(loss(&found) <= 1.05 * loss(&expected), "{}: {name}", file.display());
            }
        }
    }
}
