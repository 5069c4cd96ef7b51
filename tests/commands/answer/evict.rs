//! `--evict` and the size of a KV cache, by the default model.

use crate::{json, refused};

#[test]
fn a_text_goes_on_beyond_its_context() {
    let common = ["run", "-p", "Once upon a time", "-c", "256", "-n", "600", "--ignore-eos", "--json"];
    let with = |more: &[&str]| json(&[&common[..], more].concat());
    let ended = with(&[]);
    assert_eq!((&ended["finish"], &ended["evicted"]), (&"context".into(), &0.into()));
    let whole = with(&["--evict", "sliding", "--keep-first", "4", "--window", "64"]);
    assert_eq!(whole["finish"], "length");
    let n_evicted = whole["evicted"].as_u64().expect("a number");
    // What is kept: a page of first tokens, the window, and the page that is being filled.
    assert!((603 - n_evicted) >= 64 + 63 && (603 - n_evicted) <= 64 + 64 + 63, "{n_evicted}");
    assert_eq!(whole["tokens"].as_array().map(Vec::len), Some(600));
    // The names of llama.cpp and others; less memory than any machine has makes the window shorter.
    let aliases = ["--eviction-policy", "sliding", "--protected-prefix", "4", "--eviction-window", "64"];
    assert_eq!(with(&aliases)["tokens"], whole["tokens"]);
    let pressed = with(&["--evict", "sliding", "--window", "64", "--memory-threshold-mb", "999999999"]);
    assert!(pressed["evicted"].as_u64() >= Some(n_evicted));
    // Without pressure nothing goes while all fits into the window.
    let common = ["run", "-p", "Once", "-n", "150", "--ignore-eos", "--json"];
    let (plain, more) = (json(&common), ["--evict", "sliding", "--window", "192"]);
    let short = json(&[&common[..], &more].concat());
    assert_eq!((&short["evicted"], &short["tokens"]), (&0.into(), &plain["tokens"]));
}

#[test]
fn an_answer_keeps_what_the_end_of_its_prompt_attends_to() {
    let prompt = "Once upon a time there was a girl who had a red ball. ".repeat(12);
    let common = ["run", "-p", &prompt, "-n", "8", "--ignore-eos", "--json"];
    let with = |more: &[&str]| json(&[&common[..], more].concat());
    let whole = with(&[]);
    let n_tokens = whole["prompt_tokens"].as_u64().expect("a number");
    let some = with(&["--evict", "snapkv", "--window", "100"]);
    // The first token follows the whole prompt.
    assert_eq!(some["evicted"].as_u64(), Some(n_tokens - 100));
    assert_eq!(some["tokens"][0], whole["tokens"][0]);
    let aliases = ["--eviction-policy", "snapkv", "--eviction-window", "100", "--keep", "4"];
    assert_eq!(with(&aliases)["tokens"], some["tokens"]);
    // Where all of it is kept, nothing changes.
    let all = with(&["--evict", "snapkv", "--window", "320"]);
    assert_eq!((&all["evicted"], &all["tokens"]), (&0.into(), &whole["tokens"]));
}

#[test]
fn what_does_not_fit_is_refused() {
    let run =
        |more: &[&str]| refused(&[&["run", "-p", "Once", "-c", "256", "--evict", "sliding"], more].concat());
    let sentence = "4 first tokens and a window of 128 need a context of 320, found 256";
    assert!(run(&["--window", "128"]).contains(sentence));
    assert!(run(&["--window", "8"]).contains("its window is 8, expected at least 32"));
    let chosen =
        |more: &[&str]| refused(&[&["run", "-p", "Once", "-c", "256", "--evict", "snapkv"], more].concat());
    assert!(chosen(&["--window", "64"]).contains("its window is 64, expected at least 68"));
    assert!(chosen(&["--window", "192"]).contains("a window of 192 need a context of 320, found 256"));
    assert!(run(&["--chat", "--context-shift"]).contains("cannot be used with"));
    let bench = |more: &[&str]| refused(&[&["bench", "-p", "0", "-n", "4", "-r", "1"], more].concat());
    assert!(bench(&["--kv-pages", "0"]).contains("0 pages of 64 tokens, expected 1 to"));
    assert!(bench(&["--kv-memory", "0"]).contains("0 pages of 64 tokens, expected 1 to"));
    assert!(bench(&["--kv-pages", "1", "--kv-memory", "1"]).contains("cannot be used with"));
    // The second sequence finds no page.
    assert!(bench(&["--batch", "2", "--kv-pages", "1"]).contains("pages"));
}

#[test]
fn a_pool_of_so_much_memory_is_enough_for_what_fits() {
    let rows =
        json(&["bench", "-p", "0", "-n", "4", "-r", "1", "--batch", "2", "--kv-memory", "1", "-o", "json"]);
    assert_eq!(rows[0]["batch"], 2);
}
