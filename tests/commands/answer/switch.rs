//! `--switch-device`: an answer begins on one device and ends on another.

use serde_json::Value;

use crate::{json, refused};

const PROMPT: &str = "Once upon a time there was a little girl who had a red ball and a dog.";

#[test]
fn an_answer_goes_on_where_it_moves_to() {
    let common = ["run", "-p", PROMPT, "-n", "40", "--json", "--device", "cpu"];
    let run = |more: &[&str]| json(&[&common[..], more].concat());
    let plain = run(&[]);
    assert_eq!(plain["switch"], Value::Null);
    let n_prompt = plain["prompt_tokens"].as_u64().expect("a number");
    let (at, too_late) = ((n_prompt + 10).to_string(), (n_prompt + 100).to_string());
    let moved = run(&["--switch-device", "cpu", "--switch-device-at", &at]);
    assert_eq!(moved["tokens"], plain["tokens"]);
    // The last token that came is not in the KV cache yet.
    assert_eq!(moved["switch"]["after_tokens"], 11);
    assert!(moved["switch"]["decode_tok_s_after"].is_number(), "{}", moved["switch"]);
    // The name that others have for it; sampling and drafts go on, and a prompt is not cut in two.
    let more = ["--switch-device", "cpu", "--switch-threshold", "1", "--warmup-tokens", "0"];
    let drawn = ["--temperature", "0.8", "--seed", "3"];
    assert_eq!(run(&[&more[..], &drawn].concat())["tokens"], run(&drawn)["tokens"]);
    let guessed = run(&[&more[..], &["--draft", "ngram", "--precise"]].concat());
    assert_eq!(guessed["switch"]["after_tokens"], 1);
    assert_eq!(guessed["tokens"], run(&["--precise"])["tokens"]);
    let never = run(&["--switch-device", "cpu", "--switch-device-at", &too_late]);
    assert_eq!((&never["switch"], &never["tokens"]), (&Value::Null, &plain["tokens"]));
}

#[test]
fn a_move_that_cannot_be_is_a_sentence() {
    let run = |more: &[&str]| refused(&[&["run", "-p", "Once"], more].concat());
    assert!(run(&["--switch-device", "abacus"]).contains("abacus"));
    assert!(run(&["--switch-device-at", "4"]).contains("--switch-device <NAME>"));
    assert!(run(&["--switch-device", "cpu", "--evict", "sliding"]).contains("cannot be used with"));
    assert!(refused(&["run", "--chat", "--switch-device", "cpu"]).contains("is for one prompt"));
}
