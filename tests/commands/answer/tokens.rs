//! `fusebox tokens` from the command line.
//!
//! In: text, token ids, and files with a final newline. Out: the same tokens either way.

use std::io::Write;
use std::process::Stdio;

use support::own;

use crate::{command, json, programs, told};

#[test]
fn words_become_tokens_and_tokens_words() {
    let text = json(&["tokens", "-p", "Once upon a time", "--json"]);
    let tokens = text["tokens"].as_array().expect("a list");
    assert!(tokens.len() > 1);
    // As the list is printed.
    let back = json(&["tokens", "--tokens", &format!("{}", text["tokens"]), "--json"]);
    assert_eq!(back, text);
    let table = told(&["tokens", "-p", "Once upon a time"]);
    assert_eq!(table.lines().count(), 1 + tokens.len());
    assert!(table.contains("\" time\""), "{table}");
}

#[test]
fn a_part_of_a_character_is_shown_as_bytes() {
    let table = told(&["tokens", "-p", "🙂"]);
    let shown: String = table
        .lines()
        .skip(1)
        .filter_map(|line| line.trim_start().split_once("  "))
        .map(|row| row.1)
        .collect();
    assert_eq!(shown, "<f0><9f><99><82>", "{table}");
}

#[test]
fn the_end_of_the_last_line_is_no_part_of_a_text() {
    let expected = json(&["tokens", "-p", "Once upon\na time", "--json"]);
    for (name, end) in [("unended.txt", ""), ("ended.txt", "\n"), ("windows.txt", "\r\n")] {
        let path = own::write(name, format!("Once upon\na time{end}").as_bytes());
        assert_eq!(
            json(&["tokens", "-f", path.to_str().expect("a plain path"), "--json"]),
            expected,
            "{name}"
        );
    }
    let mut command = command(&programs(), &["tokens", "-f", "-", "--json"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the command runs");
    child.stdin.take().expect("it reads").write_all(b"Once upon\na time\n").expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(serde_json::from_slice::<serde_json::Value>(&output.stdout).expect("JSON"), expected);
}
