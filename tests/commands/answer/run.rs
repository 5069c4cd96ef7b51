//! `fusebox run` from the command line, with the default model.
//!
//! In: prompts and settings. Out: texts that depend on them alone, and the keys of the JSON.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use support::own;

use crate::{command, fusebox, json, programs, refused, sentence, told, without};

fn text(told: &Value) -> &str {
    told["text"].as_str().expect("a text")
}

#[test]
fn a_story_begins_as_stories_do() {
    let story = told(&["run", "-n", "24"]);
    assert!(story.starts_with("Once upon a time") && story.ends_with('\n') && story.len() > 40, "{story}");
}

#[test]
fn json_has_what_tools_read() {
    let told = json(&["run", "-p", "Once upon a time", "-n", "12", "--json"]);
    assert_eq!(told["tokens"].as_array().map(Vec::len), Some(12));
    assert!(!text(&told).is_empty());
    assert!(told["prompt_tokens"].as_u64().is_some_and(|n| n > 0));
    assert_eq!(told["finish"], json!("length"));
    for key in ["load_ms", "compile_ms", "first_token_ms", "prefill_tok_s", "decode_tok_s"] {
        assert!(told["timing"][key].as_f64().is_some_and(|n| n > 0.0), "{key}: {}", told["timing"]);
    }
    let between = told["timing"]["between_ms"].as_array().expect("a list");
    assert!(
        between.len() == 11 && between.iter().all(|time| time.as_f64() > Some(0.0)),
        "{}",
        told["timing"]
    );
    for key in ["per_step", "per_block", "lowered", "emitted", "from_cache", "compiled", "kept"] {
        assert!(told["kernels"][key].is_u64(), "{key}: {}", told["kernels"]);
    }
    for key in ["weights_mapped", "arena", "state"] {
        assert!(told["memory"][key].as_u64().is_some_and(|n| n > 0), "{key}: {}", told["memory"]);
    }
    let memory = ["rss_after_load", "rss_after_compile", "peak_rss"].map(|key| told["memory"][key].as_u64());
    assert!(memory.is_sorted() && memory[0] > Some(0) || !cfg!(target_os = "linux"), "{}", told["memory"]);
    assert!(told["memory"]["peak_rss"].is_u64() || told["memory"]["peak_rss"].is_null());
}

#[test]
fn the_text_is_that_of_the_json() {
    let plain = told(&["run", "-p", "The old man", "-n", "16"]);
    let told = json(&["run", "-p", "The old man", "-n", "16", "--json"]);
    assert_eq!(plain.trim_end_matches('\n'), text(&told).trim_end_matches('\n'));
}

#[test]
fn tokens_words_and_files_are_the_same_prompt() {
    let words = json(&["run", "-p", "One day", "-n", "8", "--json"]);
    let path = own::write("prompt.txt", b"One day");
    let file = json(&["run", "-f", path.to_str().expect("a plain path"), "-n", "8", "--json"]);
    assert_eq!((&words["tokens"], &words["prompt_tokens"]), (&file["tokens"], &file["prompt_tokens"]));
    let again = json(&["run", "--tokens", "5,6,7", "-n", "8", "--json"]);
    assert_eq!(again["prompt_tokens"], json!(3));
}

#[test]
fn a_seed_gives_the_same_text_and_the_likeliest_needs_none() {
    let ask = |more: &[&str]| {
        let prompt = ["run", "-p", "Once", "-n", "16", "--ignore-eos", "--json"];
        text(&json(&[&prompt, more].concat())).to_owned()
    };
    let bold = |seed| {
        ask(&["--temp", "1.5", "--top-k", "200", "--top-p", "0.99", "--min-p", "0.001", "--seed", seed])
    };
    assert_eq!(bold("1"), bold("1"));
    assert_ne!(bold("1"), bold("2"));
    assert_eq!(ask(&["--seed", "1"]), ask(&["--seed", "2"]));
    assert_eq!(ask(&["-t", "1"]), ask(&["-t", "2"]));
    assert_ne!(ask(&[]), ask(&["--repeat-penalty", "8"]));
}

#[test]
fn a_stop_ends_the_text_and_is_no_part_of_it() {
    let whole = json(&["run", "-p", "Once upon a time", "-n", "24", "--json"]);
    let stop: String = text(&whole).chars().skip(10).take(5).collect();
    let cut = json(&[
        "run",
        "-p",
        "Once upon a time",
        "-n",
        "24",
        "--stop",
        "no such text",
        "--stop",
        &stop,
        "--json",
    ]);
    let (before, _) = text(&whole).split_once(&stop).expect("it was cut from there");
    assert_eq!((text(&cut), &cut["finish"]), (before, &json!("stop")));
}

#[test]
fn a_story_is_told_of_programs_that_were_kept_too() {
    let arguments = ["run", "--tokens", "5", "-n", "1"];
    told(&arguments);
    let run = |story: &Path| {
        command(&programs(), &arguments).env("FUSEBOX_STORY", story).output().expect("it runs")
    };
    let path = own::path("a.story");
    assert_eq!(run(&path).status.code(), Some(0));
    assert!(fs::read_to_string(&path).expect("a story").starts_with("# "));
    let missing = own::path("no-folder").join("a.story");
    let refusal = sentence(&run(&missing), &arguments);
    assert!(refusal.starts_with("FUSEBOX_STORY: "), "{refusal}");
}

#[test]
fn a_full_context_ends_the_text() {
    let told = json(&["run", "--tokens", "5,6,7", "-c", "8", "-n", "100", "--ignore-eos", "--json"]);
    assert_eq!(told["finish"], json!("context"));
    assert_eq!(told["tokens"].as_array().map(Vec::len), Some(6));
    let all = json(&["run", "--tokens", "5,6,7", "-n", "100000", "--ignore-eos", "--json"]);
    assert_eq!((&all["finish"], all["tokens"].as_array().map(Vec::len)), (&json!("context"), Some(510)));
    let refusal = refused(&["run", "--tokens", "5,6,7,8", "-c", "3"]);
    let expected =
        "story.gguf: the prompt has 4 tokens, but the context length is 3; -c raises it to at most 512";
    assert!(refusal.ends_with(expected), "{refusal}");
}

#[test]
fn a_text_that_cannot_fit_is_not_cut_into_tokens() {
    let path = own::write("long.txt", &vec![b'a'; 16 << 20]);
    let refusal = refused(&["run", "-f", path.to_str().expect("a plain path")]);
    let expected = "story.gguf: the prompt has at least ";
    assert!(refusal.contains(expected) && refusal.ends_with("the model supports no more"), "{refusal}");
}

#[test]
fn nothing_is_asked_for_and_nothing_comes() {
    assert_eq!(told(&["run", "-n", "0"]), "Once upon a time\n");
    assert_eq!(told(&["run", "-p", "Once", "-n", "0"]), "");
    let told = json(&["run", "-p", "Once", "-n", "0", "--json"]);
    assert_eq!((text(&told), &told["tokens"]), ("", &json!([])));
    assert!(told["timing"]["first_token_ms"].is_null() && told["timing"]["decode_tok_s"].is_null());
}

#[test]
fn precise_and_other_caches_are_possible() {
    for more in [
        &["--precise"][..],
        &["--kv-type", "f32"],
        &["--precise", "--kv-type", "f16"],
        &["--kv-type", "q8_0"],
        &["--kv-type", "q4_0"],
        &["--device", "cpu"],
    ] {
        let told = json(&[&["run", "-p", "Once upon a time", "-n", "4", "--json"], more].concat());
        assert_eq!(told["tokens"].as_array().map(Vec::len), Some(4), "{more:?}");
    }
}

#[test]
fn pages_of_any_size_hold_the_same_text() {
    let line = ["run", "-p", "Once upon a time", "-n", "40", "--precise", "--json"];
    let usual = json(&line);
    for size in ["16", "32", "256"] {
        let told = json(&[&line[..], &["--page-size", size]].concat());
        assert_eq!(told["tokens"], usual["tokens"], "{size}");
    }
    for size in ["0", "8", "48", "2048"] {
        let sentence = refused(&["run", "-p", "a", "--page-size", size]);
        assert_eq!(sentence, format!("--page-size is {size}, expected a power of two from 16 to 1024"));
    }
}

#[test]
fn a_second_start_compiles_nothing() {
    let cache = own::path("fresh");
    // It may be left from an earlier run.
    let _ = fs::remove_dir_all(&cache);
    let ask = |cache: &Path| -> Value {
        let output = command(cache, &["run", "-n", "2", "--json"]).output().expect("the command runs");
        serde_json::from_slice(&output.stdout).expect("JSON")
    };
    let (cold, warm) = (ask(&cache), ask(&cache));
    assert_eq!(cold["kernels"]["from_cache"], json!(0));
    assert_eq!(warm["kernels"]["lowered"], json!(0));
    assert_eq!(warm["kernels"]["from_cache"], cold["kernels"]["lowered"]);
    assert_eq!(warm["tokens"], cold["tokens"]);
    let without = ask(Path::new(""));
    assert_eq!(without["kernels"]["from_cache"], json!(0));
    // A file that cannot be read to an end is no program, and is replaced.
    if cfg!(unix) {
        let programs = fs::read_dir(&cache).expect("a folder").map(|file| file.expect("a file").path());
        for program in programs {
            fs::remove_file(&program).expect("it was kept");
            assert!(Command::new("mkfifo").arg(&program).status().expect("it runs").success());
        }
        assert_eq!(ask(&cache)["kernels"], cold["kernels"]);
        assert_eq!(ask(&cache)["kernels"], warm["kernels"]);
    }
}

#[test]
fn every_program_has_its_story() {
    let path = own::path("stories.txt");
    // It may be left from an earlier run.
    let _ = fs::remove_file(&path);
    let mut command = command(Path::new(""), &["run", "-n", "1"]);
    assert!(command.env("FUSEBOX_STORY", &path).output().expect("the command runs").status.success());
    let stories = fs::read_to_string(&path).expect("it was written");
    // One of the decode program, and one of the prefill program.
    assert_eq!(stories.matches("## 5. plan").count(), 2, "{stories}");
}

#[test]
fn one_of_something_is_no_plural() {
    let output = fusebox(&["run", "-p", "Once", "-n", "1", "-t", "1"]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.starts_with("1 token ("), "{error}");
    let device = json(&["run", "-p", "Once", "-n", "1", "-t", "1", "--json"])["device"].to_string();
    assert!(device.ends_with(", 1 thread\""), "{device}");
}

#[test]
fn help_names_every_kind_of_model() {
    for command in ["run", "logits", "bench", "inspect", "quantize"] {
        let help = told(&[command, "--help"]).to_lowercase();
        for kind in ["gguf", "safetensors", "qwen3.c", "qorus"] {
            assert!(help.contains(kind), "{command} --help forgets {kind}: {help}");
        }
    }
}

#[test]
fn a_level_is_chosen_by_its_name() {
    let ask = |level| {
        let mut command = command(&programs(), &["run", "-p", "Once", "-n", "4", "--json"]);
        command.env("FUSEBOX_LEVEL", level).output().expect("the command runs")
    };
    let told: Value = serde_json::from_slice(&ask("portable").stdout).expect("JSON");
    assert!(told["device"].as_str().is_some_and(|device| device.contains("portable")), "{told}");
}

#[test]
fn a_model_without_words_goes_on_in_numbers() {
    let model = without("tokenizer.ggml.model", "wordless.gguf");
    let text = told(&["run", "-m", &model, "--tokens", "5,6,7", "-n", "3"]);
    assert_eq!(text.split_whitespace().filter(|number| number.parse::<u32>().is_ok()).count(), 3, "{text}");
    refused(&["run", "-m", &model, "-p", "Once"]);
}

#[test]
fn flags_are_known_by_the_names_that_others_have_for_them() {
    let own =
        json(&["run", "-p", "Once", "-n", "3", "-c", "64", "--temp", "0", "--kv-type", "f16", "--json"]);
    let theirs = "run -p Once --n-predict 3 --ctx-size 64 --temperature 0 --kv-type F16 --device CPU --json";
    assert_eq!(json(&theirs.split(' ').collect::<Vec<_>>())["tokens"], own["tokens"]);
}

#[test]
fn a_closed_pipe_is_no_fault() {
    let mut command = command(&programs(), &["run", "-n", "200", "--ignore-eos"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("the command runs");
    drop(child.stdout.take());
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
    assert!(fusebox(&["run", "--help"]).status.success());
}
