//! `fusebox doctor` from the command line.
//!
//! In: nothing. Out: what this machine has, as text and as JSON.

use std::fs;

use serde_json::{Value, json};
use support::own;

use crate::{command, json, programs, told};

#[test]
fn it_tells_what_is_there_and_what_is_missing() {
    let found = json(&["doctor", "--json"]);
    assert!(found["threads"].as_u64().is_some_and(|n| n > 0));
    assert!(found["levels"].as_array().is_some_and(|levels| levels.contains(&"portable".into())));
    let folder = programs();
    assert_eq!(found["cache"]["folder"].as_str(), folder.to_str());
    let devices = found["devices"].as_array().expect("a list");
    assert_eq!((&devices[0]["name"], &devices[0]["ready"]), (&"cpu".into(), &true.into()));
    // What is ready says what is compiled for it.
    assert!(devices.iter().all(|device| device["target"].is_string() == device["ready"].as_bool().unwrap()));
    let caches = found["caches"].as_array().expect("a list");
    assert!(
        caches.iter().all(|cache| cache["bytes"].as_u64() > Some(0) && cache["threads"].as_u64() > Some(0))
    );
    // A device is ready or says what is missing.
    assert!(
        devices[1..].iter().all(|device| device["missing"].is_string() != device["ready"].as_bool().unwrap())
    );
    assert_eq!(found["default_model"]["found"], true);
    let text = told(&["doctor"]);
    for head in [
        "processor",
        "instruction set",
        "threads",
        "caches",
        "memory",
        "program cache",
        "default model",
        "device cuda",
    ] {
        assert!(text.lines().any(|line| line.starts_with(head)), "{head}: {text}");
    }
}

#[test]
fn it_counts_what_is_kept_and_nothing_else() {
    let folder = own::write("1.program", b"12345").parent().expect("it has a name").to_owned();
    own::write("2.code", b"123");
    own::write("3.code", b"1");
    own::write("4.code.5.part", b"12345678");
    let told = |arguments: &[&str]| {
        let output = command(&folder, arguments).output().expect("the command runs");
        String::from_utf8(output.stdout).expect("text")
    };
    let found: Value = serde_json::from_str(&told(&["doctor", "--json"])).expect("JSON");
    let expected = json!({ "folder": folder, "programs": 1, "cuda_kernels": 2, "bytes": 9, "fault": null });
    assert_eq!(found["cache"], expected);
    let text = told(&["doctor"]);
    assert!(text.contains(", 1 program, 2 compiled CUDA kernels, 9 B\n"), "{text}");
    assert_eq!(fs::read_dir(&folder).expect("a folder").count(), 4, "it leaves no file");
    fs::remove_dir_all(&folder).expect("it was made here");
}

#[test]
fn a_cache_that_cannot_be_written_is_told_with_the_reason() {
    let file = own::write("no-folder", b"a text");
    let told = |arguments: &[&str]| {
        let output = command(&file, arguments).output().expect("the command runs");
        String::from_utf8(output.stdout).expect("text")
    };
    let found: Value = serde_json::from_str(&told(&["doctor", "--json"])).expect("JSON");
    let fault = found["cache"]["fault"].as_str().expect("a reason");
    let text = told(&["doctor"]);
    assert!(text.contains(&format!("; not writable: {fault}\n")), "{text}");
}
