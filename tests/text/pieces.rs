//! `SentencePiece` BPE vocabularies with scores, as Llama 2 and Mistral have them in GGUF files.
//!
//! In: `tests/fixtures/pieces.json`, recorded from `SentencePiece` by the script next to it. Out: the same tokens and
//! strings from a file with this vocabulary, and the effect of its options.

use std::fs::read_to_string;
use std::path::PathBuf;

use fusebox_models::tokenizer::Tokenizer;
use fusebox_runtime::weights::Checkpoint;
use fusebox_runtime::weights::gguf::store;
use fusebox_runtime::weights::value::{List, Value};
use serde_json::Value as Json;
use support::given::fixture;
use support::own;

fn recorded() -> Json {
    let path = fixture("pieces.json");
    serde_json::from_str(&read_to_string(path).unwrap()).unwrap()
}

fn texts(json: &Json) -> Vec<String> {
    json.as_array().unwrap().iter().map(|text| text.as_str().unwrap().to_owned()).collect()
}

fn ids(json: &Json) -> Vec<u32> {
    json.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

/// A GGUF file with the recorded vocabulary and these further pairs.
fn file(name: &str, pairs: &[(&str, Value)]) -> PathBuf {
    let recorded = recorded();
    let scores = recorded["scores"].as_array().unwrap().iter().map(|score| score.as_f64().unwrap());
    let types = ids(&recorded["types"]).into_iter().map(i64::from).collect();
    let mut all = vec![
        ("tokenizer.ggml.model", Value::Text("llama".to_owned())),
        ("tokenizer.ggml.tokens", Value::List(List::Texts(texts(&recorded["tokens"])))),
        ("tokenizer.ggml.scores", Value::List(List::Floats(scores.collect()))),
        ("tokenizer.ggml.token_type", Value::List(List::Signed(types))),
    ];
    for (key, value) in pairs {
        all.retain(|(known, _)| known != key);
        all.push((key, value.clone()));
    }
    let path = own::path(name);
    let pairs: Vec<Vec<u8>> = all.iter().map(|(key, value)| store::pair(key, value)).collect();
    store::write(&path, &pairs, &[], |_, _| Ok(())).unwrap();
    path
}

fn tokenizer(name: &str, pairs: &[(&str, Value)]) -> Tokenizer {
    Tokenizer::open(&Checkpoint::open(&file(name, pairs)).unwrap()).unwrap()
}

#[test]
fn tokens_and_texts_are_those_of_sentencepiece() {
    let tokenizer = tokenizer("pieces.gguf", &[]);
    let recorded = recorded();
    let cases = recorded["cases"].as_array().unwrap();
    assert!(cases.len() > 12);
    for case in cases {
        let (text, expected) = (case["text"].as_str().unwrap(), ids(&case["ids"]));
        assert_eq!(tokenizer.encode(text, false).unwrap(), expected, "{text:?}");
        assert_eq!(tokenizer.decode(&expected, false), case["decoded"].as_str().unwrap());
        assert_eq!(tokenizer.encode(text, true).unwrap(), [&[1], expected.as_slice()].concat(), "{text:?}");
    }
    assert_eq!(tokenizer.eos(), [2]);
}

#[test]
fn switches_of_the_file_are_followed() {
    let word = tokenizer("pieces.gguf", &[]).encode("the", false).unwrap();
    let off = Value::Bool(false);
    let bare = tokenizer(
        "bare.gguf",
        &[("tokenizer.ggml.add_space_prefix", off.clone()), ("tokenizer.ggml.add_bos_token", off)],
    );
    assert_eq!(bare.encode(" the", true).unwrap(), word);
    assert_ne!(bare.encode("the", true).unwrap(), word);
    assert_eq!(bare.decode(&word, false), " the");
    let ended = tokenizer("ended.gguf", &[("tokenizer.ggml.add_eos_token", Value::Bool(true))]);
    assert_eq!(ended.encode("the", true).unwrap(), [&[1], word.as_slice(), &[2]].concat());
}

#[test]
fn special_tokens_stand_for_themselves() {
    let tokenizer = tokenizer("pieces.gguf", &[]);
    let word = tokenizer.encode("the", false).unwrap();
    let around = [&[1], word.as_slice(), &[2], &word].concat();
    assert_eq!(tokenizer.encode("<s>the</s>the", false).unwrap(), around);
    assert_eq!(tokenizer.decode(&around, true), "the the");
    assert_eq!(tokenizer.encode("<0x0A>", false).unwrap().len(), 7);
}

#[test]
fn an_answer_keeps_its_space_after_words_and_loses_it_after_special_tokens() {
    let tokenizer = tokenizer("pieces.gguf", &[]);
    let word = tokenizer.encode("the", false).unwrap();
    let after = |before: u32| {
        let mut stream = tokenizer.stream_after(Some(before), true);
        word.iter().map(|id| stream.push(*id)).collect::<String>() + &stream.finish()
    };
    assert_eq!((after(word[0]), after(1)), (" the".to_owned(), "the".to_owned()));
}

#[test]
fn bad_scores_are_a_sentence() {
    let refused = |value: Value| {
        let path = file("scores.gguf", &[("tokenizer.ggml.scores", value)]);
        Tokenizer::open(&Checkpoint::open(&path).unwrap()).err().unwrap().to_string()
    };
    let few = refused(Value::List(List::Floats(vec![0.0; 3])));
    assert!(few.ends_with("key `tokenizer.ggml.scores`: expected 600 numbers, one for each token"), "{few}");
    let odd = refused(Value::List(List::Floats([vec![0.0; 599], vec![f64::NAN]].concat())));
    assert!(odd.ends_with("expected finite numbers, token 599 has NaN"), "{odd}");
    assert!(refused(Value::Text("x".to_owned())).contains("expected 600 numbers"));
}
