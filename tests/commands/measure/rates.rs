//! The rates that programs are compiled for, from the command line.
//!
//! In: the default model, with the rates of this machine and with stated ones. Out: a measurement that is made once and
//! again only where it is damaged, and the same numbers whatever the threads.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use support::own;

use crate::{command, programs, refused, told};

/// The command without a named target: for the device that is here.
fn unnamed(cache: &Path, arguments: &[&str]) -> Command {
    let mut command = command(cache, arguments);
    command.env_remove("FUSEBOX_TARGET");
    command
}

#[track_caller]
fn json_of(mut command: Command) -> Value {
    let output = command.output().expect("the command runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// The files of rates in a folder.
fn rates(cache: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(cache).expect("a folder").map(|file| file.expect("a file").path());
    files.filter(|path| path.extension().is_some_and(|ending| ending == "rates")).collect()
}

#[test]
fn the_processor_is_measured_once_and_again_where_its_file_is_damaged() {
    let cache = own::path("measured");
    // It may be left from an earlier run.
    let _ = fs::remove_dir_all(&cache);
    let run = || json_of(unnamed(&cache, &["run", "-n", "2", "--json"]));
    let cold = run();
    let [path] = &rates(&cache)[..] else { panic!("one file: {:?}", rates(&cache)) };
    let first = fs::read_to_string(path).expect("a text");
    let warm = run();
    assert_eq!((&warm["kernels"]["lowered"], &warm["tokens"]), (&0.into(), &cold["tokens"]));
    let doctor = json_of(unnamed(&cache, &["doctor", "--json"]));
    let processor = &doctor["devices"][0];
    assert_eq!(processor["compute_units"], doctor["threads"]);
    let target = processor["target"].as_str().expect("a target");
    assert_eq!(first.lines().nth(2), Some(target), "{first}");
    let text = unnamed(&cache, &["doctor"]).output().expect("the command runs").stdout;
    let text = String::from_utf8(text).expect("text");
    let gigabytes = &processor["bandwidth_gb_s"];
    assert!(text.contains(&format!("compiled for {target} (")), "{text}");
    assert!(text.contains(&format!(", {gigabytes} GB/s)")), "{text}");
    assert_eq!(fs::read_to_string(path).expect("a text"), first, "it is kept as it was");
    for damaged in [&first[..first.len() - 2], "", "no rates"] {
        fs::write(path, damaged).expect("a file");
        let again = json_of(unnamed(&cache, &["doctor", "--json"]));
        let kept = fs::read_to_string(path).expect("a text");
        assert_eq!(kept.lines().nth(2), again["devices"][0]["target"].as_str(), "{kept}");
        assert!(kept.lines().count() == 4 && again["devices"][0]["compute_units"] == doctor["threads"]);
    }
}

#[test]
fn graphics_devices_are_measured_once() {
    let cache = own::path("graphics");
    let _ = fs::remove_dir_all(&cache);
    let targets = || -> Vec<String> {
        let doctor = json_of(unnamed(&cache, &["doctor", "--json"]));
        let devices = doctor["devices"].as_array().expect("a list").clone();
        // CUDA states its rates.
        let measured = devices.iter().filter(|device| device["ready"] == true && device["name"] != "cuda");
        measured.map(|device| device["target"].as_str().expect("a target").to_owned()).collect()
    };
    let first = targets();
    let third_line = |path: &PathBuf| {
        fs::read_to_string(path).expect("a text").lines().nth(2).expect("a target").to_owned()
    };
    let kept: BTreeSet<String> = rates(&cache).iter().map(third_line).collect();
    assert_eq!(kept, first.iter().cloned().collect());
    assert_eq!(targets(), first, "what was kept is believed");
}

#[test]
fn a_named_target_needs_no_measurement() {
    let cache = own::path("named");
    let _ = fs::remove_dir_all(&cache);
    let found = json_of({
        let mut command = command(&cache, &["doctor", "--json"]);
        command.env("FUSEBOX_TARGET", "cpu:3:70");
        command
    });
    let processor = &found["devices"][0];
    assert_eq!(processor["target"], "cpu:3:70");
    assert_eq!((&processor["compute_units"], &processor["bandwidth_gb_s"]), (&3.into(), &70.into()));
    assert!(!cache.exists() || rates(&cache).is_empty());
}

#[test]
fn rates_change_kernels_and_threads_change_no_number() {
    let logits = |target: Option<&str>, threads: &str| -> Vec<f64> {
        let words = ["logits", "-p", "Once upon a time", "--precise", "-t", threads, "--json"];
        let mut command = unnamed(&programs(), &words);
        if let Some(target) = target {
            command.env("FUSEBOX_TARGET", target);
        }
        let told = json_of(command);
        told["logits"].as_array().expect("a list").iter().map(|x| x.as_f64().expect("a number")).collect()
    };
    let expected = logits(Some("cpu"), "1");
    for target in [None, Some("cpu:1:5"), Some("cpu:2:40"), Some("cpu:96:400")] {
        let [one, two, three] = ["1", "2", "3"].map(|threads| logits(target, threads));
        assert_eq!(one, two, "{target:?}");
        assert_eq!(one, three, "{target:?}");
        let furthest = one.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(furthest < 1e-3 && one.len() == expected.len(), "{target:?}: {furthest}");
    }
}

#[test]
fn stories_and_tables_tell_the_rates() {
    let story = |target| told(&["story", "--block", "qwen2.5-0.5b", "--target", target]);
    assert!(story("cpu:2:40").starts_with("# blk.0 for cpu:2:40\n"));
    assert_eq!(story("cuda-sm90:132:4800"), story("cuda-sm90"));
    let mut command = command(&programs(), &["run", "-n", "1", "--print-kernels"]);
    let output = command.env("FUSEBOX_TARGET", "cpu:2:40").output().expect("the command runs");
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(text.contains(" launches per step for cpu:2:40; "), "{text}");
    let source = told(&["run", "--target", "cuda-sm80:28:360", "--print-kernels=source"]);
    assert!(source.contains("__global__"), "{source}");
}

#[test]
fn rates_that_are_none_are_a_sentence() {
    for name in ["cpu:2", "cpu:0:40", "cuda-sm90:132:fast", "vulkan:64:500:1", "abacus:1:1"] {
        let sentence = refused(&["story", "--block", "qwen3-8b", "--target", name]);
        assert!(sentence.starts_with(&format!("--target is `{name}`, expected one of cpu, ")), "{sentence}");
        assert!(sentence.contains("NAME:UNITS:GB/S with 1 to 4096 compute units"), "{sentence}");
    }
}
