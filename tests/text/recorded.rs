//! Tokens and chats as Transformers has them, from every file of the recorded models.
//!
//! In: the default model with its fixture, and the folder of `support::oracles` with an `oracle.json` for each model.
//! Out: agreement, byte for byte, from `tokenizer.json`, from each GGUF file of the same model, and from the qwen3.c
//! checkpoint.

use std::fs::{read_dir, read_to_string};
use std::path::{Path, PathBuf};

use fusebox_models::chat::Chat;
use fusebox_models::tokenizer::Tokenizer;
use fusebox_runtime::weights::{self, Checkpoint};
use serde_json::Value as Json;
use support::given::{fixture, story};
use support::oracles;

fn json(path: &Path) -> Json {
    serde_json::from_str(&read_to_string(path).unwrap()).unwrap()
}

/// The folders of a folder, or its files, sorted.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path());
    let mut entries: Vec<PathBuf> = entries.collect();
    entries.sort();
    entries
}

/// Every checkpoint with the recorded cases of its model.
fn checkpoints() -> Vec<(PathBuf, Json)> {
    let own = (story(), json(&fixture("story.json")));
    let mut checkpoints = vec![own];
    let Some(folder) = oracles::folder() else { return checkpoints };
    for folder in entries(&folder).into_iter().filter(|entry| entry.join("oracle.json").is_file()) {
        let recorded = json(&folder.join("oracle.json"));
        if folder.join("hf").is_dir() {
            checkpoints.push((folder.join("hf"), recorded.clone()));
        }
        checkpoints.extend(entries(&folder.join("gguf")).into_iter().map(|file| (file, recorded.clone())));
        // The qwen3.c checkpoint is an export of the model of the same name.
        let is_export = |entry: &PathBuf| entry.extension().is_some_and(|ending| ending == "bin");
        for file in entries(&folder).into_iter().filter(is_export) {
            let model = folder.with_file_name(file.file_stem().unwrap());
            checkpoints.push((file, json(&model.join("oracle.json"))));
        }
    }
    checkpoints
}

fn ids(json: &Json) -> Vec<u32> {
    json.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

/// Compares every case of a list; returns the number of cases.
fn compare(list: &str, check: impl Fn(&Checkpoint, &Tokenizer, &Json) -> Result<(), String>) -> usize {
    let mut n_cases = 0;
    let mut wrong = Vec::new();
    for (path, recorded) in checkpoints() {
        let checkpoint = Checkpoint::open(&path).unwrap();
        let tokenizer = Tokenizer::open(&checkpoint).unwrap();
        for case in recorded[list].as_array().unwrap() {
            n_cases += 1;
            if let Err(what) = check(&checkpoint, &tokenizer, case) {
                wrong.push(format!("{}: {what}", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {n_cases} cases\n{}", wrong.len(), wrong.join("\n"));
    n_cases
}

fn equal<T: PartialEq + std::fmt::Debug>(found: &T, expected: &T) -> Result<(), String> {
    if found == expected { Ok(()) } else { Err(format!("{found:?} instead of {expected:?}")) }
}

#[test]
fn every_file_gives_the_recorded_tokens() {
    compare("tokenizer", |_, tokenizer, case| {
        let found = tokenizer.encode(case["text"].as_str().unwrap(), true).unwrap();
        equal(&found, &ids(&case["ids"]))
    });
}

#[test]
fn every_file_gives_the_recorded_text_at_once_and_as_a_stream() {
    compare("tokenizer", |_, tokenizer, case| {
        let tokens = ids(&case["ids"]);
        let expected = case["decoded"].as_str().unwrap().to_owned();
        equal(&tokenizer.decode(&tokens, false), &expected)?;
        let mut stream = tokenizer.stream(false);
        let streamed: String = tokens.iter().map(|id| stream.push(*id)).collect();
        equal(&(streamed + &stream.finish()), &expected)
    });
}

#[test]
fn every_file_gives_the_recorded_chats() {
    compare("chat", |checkpoint, tokenizer, case| {
        let chat = Chat::open(checkpoint).unwrap().unwrap();
        let messages = case["messages"].as_array().unwrap();
        let arguments = case["kwargs"].as_object().unwrap();
        let prompt = case["add_generation_prompt"].as_bool().unwrap();
        let found = match chat.render(messages, prompt, arguments) {
            Ok(found) => found,
            // The templates of qwen3.c hold one user message.
            Err(error) if checkpoint.kind() == weights::Kind::Ajc1 => {
                let is_question = prompt && messages.len() <= 2;
                return if is_question { Err(error.to_string()) } else { Ok(()) };
            }
            Err(error) => return Err(error.to_string()),
        };
        equal(&found, &case["text"].as_str().unwrap().to_owned())?;
        equal(&tokenizer.encode(&found, false).unwrap(), &ids(&case["ids"]))
    });
}

#[test]
fn every_file_of_a_model_ends_answers_with_the_same_tokens() {
    let mut first: Option<(PathBuf, Vec<u32>)> = None;
    for (path, _) in checkpoints() {
        let tokenizer = Tokenizer::open(&Checkpoint::open(&path).unwrap()).unwrap();
        let ends = tokenizer.eos().to_vec();
        assert!(!ends.is_empty() && ends.iter().all(|id| tokenizer.is_eos(*id)), "{}", path.display());
        let model = path.parent().unwrap().parent().unwrap().to_owned();
        match &first {
            Some((of, expected)) if *of == model => assert_eq!(ends, *expected, "{}", path.display()),
            _ => first = Some((model, ends)),
        }
    }
}

#[test]
fn special_tokens_are_left_out_where_asked() {
    for (path, recorded) in checkpoints() {
        let tokenizer = Tokenizer::open(&Checkpoint::open(&path).unwrap()).unwrap();
        for case in recorded["tokenizer"].as_array().unwrap() {
            let tokens = ids(&case["ids"]);
            let plain: Vec<u32> = tokens.iter().copied().filter(|id| !tokenizer.is_special(*id)).collect();
            assert_eq!(
                tokenizer.decode(&tokens, true),
                tokenizer.decode(&plain, false),
                "{}",
                path.display()
            );
        }
    }
}
