//! `--prompt-cache`: a prompt is computed once, and a file that is none is one sentence.

use std::fs;

use support::own::path;

use crate::{json, refused};

const PROMPT: &str = "Once upon a time there was a little girl who had a red ball and a dog.";

#[test]
fn a_prompt_is_computed_once_and_answered_alike() {
    let file = path("prompt.fbkv");
    let _ = fs::remove_file(&file);
    let file = file.to_str().expect("a path in UTF-8");
    let run = |more: &[&str]| {
        json(&[&["run", "-p", PROMPT, "-n", "12", "--json", "--seed", "1"][..], more].concat())
    };
    let plain = run(&[]);
    let first = run(&["--prompt-cache", file]);
    let second = run(&["--prompt-cache", file]);
    assert_eq!((&first["text"], &second["text"]), (&plain["text"], &plain["text"]));
    let rate = |run: &serde_json::Value| run["timing"]["prefill_tok_s"].clone();
    assert!(rate(&first).is_number() && rate(&second).is_null(), "{} {}", first["timing"], second["timing"]);
    // A longer prompt goes on from the file, which is left alone.
    let before = fs::read(file).expect("it was written");
    let longer = format!("{PROMPT} The dog");
    let more = ["run", "-p", &longer, "-n", "4", "--json"];
    let read_only = ["--prompt-cache", file, "--prompt-cache-ro"];
    assert_eq!(json(&[&more[..], &read_only].concat())["text"], json(&more)["text"]);
    assert_eq!(fs::read(file).expect("it is there"), before);
}

#[test]
fn what_is_no_prompt_cache_is_a_sentence() {
    let file = path("text.fbkv");
    fs::write(&file, "a text").expect("a file");
    let file = file.to_str().expect("a path in UTF-8");
    let sentence = refused(&["run", "-p", PROMPT, "-n", "1", "--prompt-cache", file]);
    assert!(sentence.contains("expected a saved sequence"), "{sentence}");
    assert_eq!(fs::read(file).expect("it is there"), b"a text");
    let missing = path("missing.fbkv");
    let missing = missing.to_str().expect("a path in UTF-8");
    let sentence = refused(&["run", "-p", PROMPT, "--prompt-cache", missing, "--prompt-cache-ro"]);
    assert!(sentence.contains(missing), "{sentence}");
}
