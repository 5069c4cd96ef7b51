//! `fusebox quantize` from the command line.
//!
//! In: the default model. Out: a file that runs, and numbers that fit it.

use std::fs;
use std::process::Command;

use support::own;

use crate::{ROOT, command, json, programs, sentence, told};

#[test]
fn a_model_is_written_and_runs() {
    let path = own::path("story-q4_0.gguf");
    let path = path.to_str().expect("a plain path");
    let said = json(&["quantize", "assets/story.gguf", path, "q4_0", "--json"]);
    assert_eq!(said["bytes_after"].as_u64(), fs::metadata(path).ok().map(|file| file.len()));
    let bits = said["bits_per_weight"].as_f64().expect("a number");
    assert!((4.5..9.0).contains(&bits), "{bits}");
    assert!(said["formats"].as_array().expect("a list").iter().any(|format| format["format"] == "q4_0"));
    assert!(!told(&["run", "-m", path, "-p", "Once upon a time", "-n", "8"]).is_empty());
    let text = told(&["quantize", path, path.replace("q4_0", "f16").as_str(), "F16"]);
    assert!(text.contains("bits per weight") && text.contains("already quantised before"), "{text}");
}

#[test]
fn an_importance_matrix_is_collected_and_used() {
    let paths = ["story.txt", "story-imatrix.gguf", "story-weighted.gguf"].map(own::path);
    let [text, matrix, output] = paths.each_ref().map(|path| path.to_str().expect("a plain path"));
    let _ = fs::remove_file(matrix);
    fs::write(text, "Once upon a time there was a small dog. ".repeat(60)).expect("it is written");
    let said = told(&["imatrix", "assets/story.gguf", "-f", text, "-o", matrix, "-c", "64", "--chunks", "2"]);
    assert!(said.contains("over 2 chunks of 64 tokens"), "{said}");
    let written = ["quantize", "assets/story.gguf", output, "Q4_0", "--imatrix", matrix];
    assert!(told(&written).contains("bits per weight"));
    assert!(!told(&["run", "-m", output, "-p", "Once upon a time", "-n", "8"]).is_empty());
    let listed = told(&[&written[..], &["--dry-run", "--tensor-type", "ffn_down=q8_0"]].concat());
    assert!(listed.contains("blk.0.ffn_down.weight") && listed.contains("q8_0"), "{listed}");
}

#[cfg(unix)]
#[test]
fn a_file_that_may_not_grow_is_a_sentence_and_leaves_nothing() {
    let path = own::path("large.gguf");
    let line = "ulimit -f 100; exec \"$0\" quantize assets/story.gguf \"$1\" F32";
    let mut command = Command::new("sh");
    command.current_dir(ROOT);
    command.args(["-c", line, env!("CARGO_BIN_EXE_fusebox")]).arg(&path);
    let sentence = sentence(&command.output().expect("it runs"), &["quantize"]);
    assert!(sentence.contains("large.gguf: "), "{sentence}");
    assert_eq!(fs::read_dir(path.parent().expect("it has a folder")).expect("a folder").count(), 0);
}

#[cfg(unix)]
#[test]
fn a_signal_leaves_nothing_behind() {
    let path = own::path("ended.gguf");
    let folder = path.parent().expect("it has a folder");
    let names = || fs::read_dir(folder).expect("a folder").flatten().map(|file| file.file_name());
    // Where it was faster than the signal, it is done again.
    let is_ended = (0..200).any(|_| {
        let arguments = ["quantize", "assets/story.gguf", path.to_str().expect("a plain path"), "F32"];
        let mut child = command(&programs(), &arguments).spawn().expect("it runs");
        let mut is_there = || child.try_wait().expect("it is a child").is_none();
        while names().next().is_none() && is_there() {}
        // Until it is waited for, nothing else has its number.
        if is_there() {
            Command::new("kill").arg(child.id().to_string()).status().expect("it is sent");
        }
        let status = child.wait().expect("it ends");
        let left: Vec<_> = names().filter(|name| name != "ended.gguf").collect();
        assert!(left.is_empty(), "{left:?}");
        let _ = fs::remove_file(&path);
        status.code().is_none()
    });
    assert!(is_ended, "it was always faster");
}
