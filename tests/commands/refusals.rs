//! Bad command lines: each is one sentence that says what is wrong and what would be accepted.
//!
//! In: flags that make no sense. Out: exit code 2, nothing on standard output, and the words to look for.

use std::fs;
use std::path::Path;

use crate::commands::{command, json, programs, refused, without};
use crate::own;

#[test]
fn a_device_that_is_not_there_is_a_sentence_that_says_what_is() {
    let found = json(&["doctor", "--json"]);
    for device in found["devices"].as_array().expect("a list") {
        let Some(missing) = device["missing"].as_str() else { continue };
        let name = device["name"].as_str().expect("a name");
        let sentence = refused(&["run", "--device", name]);
        assert!(sentence.contains(missing) && sentence.contains("auto, cpu"), "{sentence}");
    }
}

#[test]
fn senseless_flags_are_sentences() {
    for (line, known) in [
        ("run -c 0", "1 to 512"),
        ("run -c 99999999", "1 to 512"),
        ("run -t 0", "1 to 256"),
        ("run -t 10000", "1 to 256"),
        ("run -n 99999999999999999999999", "too large"),
        ("run -n -1", "'--n <N>': expected a whole number"),
        ("run -t -1", "--threads"),
        ("bench -r -1", "--repeats"),
        ("run --seed -1", "--seed"),
        ("run --tokens 1,99999", "no token 99999"),
        ("run --tokens -1", "-1"),
        ("run --tokens 4294967296", "4294967296"),
        ("run --tokens 1,,2", "--tokens"),
        ("run --tokens ", "expected a whole number"),
        ("logits --tokens ", "expected a whole number"),
        ("bench -t ", "expected a whole number"),
        ("bench -d ", "expected a whole number"),
        ("run --temp nan", "at least 0"),
        ("run --temp -1", "at least 0"),
        ("run --temp inf", "at least 0"),
        ("run --top-p 0", "above 0"),
        ("run --min-p 1", "below 1"),
        ("run --repeat-penalty 0", "above 0"),
        ("run --kv-type f64", "f32, f16, q8_0"),
        ("run --print-kernels=all", "table, plan, source"),
        ("run --device abacus", "auto, cpu"),
        ("run --target cuda-sm90", "--print-kernels"),
        ("run --target abacus --print-kernels=source", "cuda-sm90, vulkan, metal"),
        ("run --target vulkan --print-kernels=plan", "--print-kernels=source"),
        ("run --speed 9", "--help"),
        ("run -p a --tokens 1", "cannot be used with"),
        ("run -f no-such-file", "no-such-file"),
        ("run -f /dev/zero", "expected at most"),
        ("story /dev/zero", "expected at most"),
        ("logits --tokens 1 -o Cargo.toml", "another file there"),
        ("run -m no-such-file -p a", "no-such-file"),
        ("run -m assets/story.gguf", "a prompt is needed"),
        ("run -m Cargo.toml -p a", "expected GGUF"),
        ("run -m docs -p a", "docs"),
        ("logits", "a text is needed"),
        ("logits --tokens 99999", "no token 99999"),
        ("logits --tokens 1 -o no-such-folder/a.npy", "no-such-folder"),
        ("logits -m Cargo.toml --tokens 1", "expected GGUF"),
        ("bench -p 0 -n 0", "at least one token"),
        ("bench -d 5000", "at most 512"),
        ("bench -d 18446744073709551615", "at most 512"),
        ("bench -r 0", "1 to 1000"),
        ("bench -t 1,0", "1 to 256"),
        ("bench -o xml", "md, json, csv"),
        ("bench -c 513", "1 to 512"),
        ("inspect -m no-such-file", "no-such-file"),
        ("inspect assets/story.gguf", "named with -m"),
        ("quantize assets/story.gguf no-such-folder/a.gguf Q2_K", "Q4_K_M"),
        ("quantize assets/story.gguf assets/story.gguf Q4_0", "another file"),
        ("quantize assets/story.gguf docs Q4_0", "folder"),
        ("quantize no-such-file a.gguf Q4_0", "no-such-file"),
        ("quantize assets/story.gguf no-such-folder/a.gguf F16", "no-such-folder/a.gguf: "),
        ("quantize assets/story.gguf a.gguf F16 -t 0", "1 to 256"),
        ("sing", "run, logits, bench, story, inspect, quantize and doctor"),
    ] {
        let arguments: Vec<&str> = line.split(' ').collect();
        let sentence = refused(&arguments);
        assert!(sentence.contains(known), "{line}: {sentence}");
    }
}

#[test]
fn empty_words_are_sentences() {
    assert!(refused(&["run", "-p", ""]).contains("at least one is needed"));
    assert!(refused(&["logits", "-p", ""]).contains("at least one is needed"));
    assert!(refused(&["run", "--stop", ""]).contains("stop"));
    let bytes = own::write("bytes.txt", &[0xff, 0xfe, 0x00]);
    assert!(refused(&["run", "-f", bytes.to_str().expect("a plain path")]).contains("bytes.txt"));
}

#[test]
fn a_file_that_is_no_whole_model_is_a_sentence() {
    let model = without("qwen3.block_count", "blockless.gguf");
    assert!(refused(&["run", "-m", &model, "-p", "a"]).contains("block_count"));
    let whole = fs::read(&model).expect("it was written");
    let path = own::write("half.gguf", &whole[..whole.len() / 2]);
    assert!(refused(&["run", "-m", path.to_str().expect("a plain path"), "-p", "a"]).contains("half.gguf"));
}

#[test]
fn an_answer_that_cannot_be_written_is_a_sentence() {
    let full = Path::new("/dev/full");
    if full.exists() {
        let mut command = command(&programs(), &["inspect", "-m", "assets/story.gguf"]);
        let output = command.stdout(fs::File::create(full).expect("a device")).output().expect("it runs");
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.starts_with("fusebox: standard output cannot be written to: "), "{error}");
    }
}
