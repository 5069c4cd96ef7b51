//! A Unigram vocabulary, as T5 and XLM-RoBERTa have one, with a compiled normaliser.
//!
//! In: `tests/fixtures/unigram.json`, recorded from the package `tokenizers` by the script next to it. Out: the same
//! tokens from a folder and from a GGUF file with this vocabulary, and a sentence for a damaged table.

use std::fs::read_to_string;
use std::path::{Path, PathBuf};

use fusebox_models::tokenizer::Tokenizer;
use fusebox_runtime::weights::Checkpoint;
use fusebox_runtime::weights::gguf::store;
use fusebox_runtime::weights::value::{List, Value};
use serde_json::{Value as Json, json};
use support::given::fixture;

use crate::broken::folder;

fn recorded() -> Json {
    serde_json::from_str(&read_to_string(fixture("unigram.json")).unwrap()).unwrap()
}

fn list<T>(json: &Json, of: impl Fn(&Json) -> T) -> Vec<T> {
    json.as_array().unwrap().iter().map(of).collect()
}

/// A folder with this `tokenizer.json`.
fn written(name: &str, tokenizer: &Json) -> PathBuf {
    folder(name, &[("tokenizer.json", &tokenizer.to_string())])
}

/// A GGUF file with the recorded vocabulary and this table.
fn gguf(name: &str, recorded: &Json, table: Vec<u64>) -> PathBuf {
    let text = |json: &Json| json.as_str().unwrap().to_owned();
    let pairs = [
        ("model", Value::Text("t5".to_owned())),
        ("tokens", Value::List(List::Texts(list(&recorded["tokens"], text)))),
        ("scores", Value::List(List::Floats(list(&recorded["scores"], |x| x.as_f64().unwrap())))),
        ("token_type", Value::List(List::Signed(list(&recorded["types"], |n| n.as_i64().unwrap())))),
        ("precompiled_charsmap", Value::List(List::Unsigned(table))),
        ("remove_extra_whitespaces", Value::Bool(true)),
        ("bos_token_id", Value::Unsigned(1)),
        ("eos_token_id", Value::Unsigned(2)),
        ("unknown_token_id", Value::Unsigned(0)),
        ("add_bos_token", Value::Bool(true)),
    ];
    let pairs: Vec<Vec<u8>> =
        pairs.iter().map(|(key, value)| store::pair(&format!("tokenizer.ggml.{key}"), value)).collect();
    let path = support::own::path(name);
    store::write(&path, &pairs, &[], |_, _| Ok(())).unwrap();
    path
}

fn table(recorded: &Json) -> Vec<u64> {
    list(&recorded["charsmap"], |byte| byte.as_u64().unwrap())
}

fn tokenizer(path: &Path) -> Result<Tokenizer, String> {
    Tokenizer::open(&Checkpoint::open(path).unwrap()).map_err(|error| error.to_string())
}

#[test]
fn texts_are_split_as_by_the_package_tokenizers() {
    let recorded = recorded();
    let files =
        [written("folder", &recorded["tokenizer"]), gguf("unigram.gguf", &recorded, table(&recorded))];
    for path in files {
        let tokenizer = tokenizer(&path).unwrap();
        for text in recorded["texts"].as_array().unwrap() {
            let given = text[0].as_str().unwrap();
            let expected = list(&text[1], |id| id.as_u64().unwrap() as u32);
            assert_eq!(tokenizer.encode(given, true).unwrap(), expected, "{given:?}: {}", path.display());
        }
        let ids = tokenizer.encode("the kernels of it", false).unwrap();
        assert_eq!(tokenizer.decode(&ids, true), "the kernels of it");
    }
}

#[test]
fn a_damaged_table_or_vocabulary_is_a_sentence() {
    let recorded = recorded();
    let error = |path: &Path| tokenizer(path).err().expect("it is refused");
    let cut = gguf("cut.gguf", &recorded, table(&recorded)[..40].to_vec());
    assert!(error(&cut).contains("expected a valid table of a normaliser"), "{}", error(&cut));
    let spoilt = |name: &str, place: &str, value: Json| {
        let mut json = recorded["tokenizer"].clone();
        *json.pointer_mut(place).unwrap() = value;
        error(&written(name, &json))
    };
    for (name, place, value, expected) in [
        (
            "a",
            "/normalizer/normalizers/0/precompiled_charsmap",
            json!("AAAA"),
            "a valid precompiled_charsmap",
        ),
        ("b", "/model/unk_id", json!(null), "expected a token for unknown characters"),
        ("c", "/model/vocab/7", json!(["", -1.0]), "expected a text for each token"),
        ("d", "/model/vocab/7", json!(["<s>", -1.0]), "expected each token once"),
        ("e", "/added_tokens/2/id", json!(310), "expected ids that follow the vocabulary"),
    ] {
        let error = spoilt(name, place, value);
        assert!(error.contains(expected), "{error}");
    }
}
