//! `fusebox story` from the command line.
//!
//! In: command lines, and graphs written to a folder of the test's own. Out: exit codes, sentences and keys.

use std::io::Write;
use std::process::Stdio;

use serde_json::Value;
use support::own;

use crate::{command, fusebox, json, programs, refused, told};

/// Runs the command on a graph and expects a sentence with this end.
fn refuses(name: &str, text: &str, sentence: &str) {
    let path = own::write(name, text.as_bytes());
    let error = refused(&["story", path.to_str().expect("a plain path")]);
    assert!(error.ends_with(sentence), "{error}");
}

#[test]
fn a_story_as_json_has_what_tools_read() {
    let output =
        fusebox(&["story", "--block", "qwen3-0.6b", "--layers", "2", "--target", "cuda-sm90", "--json"]);
    assert!(output.status.success());
    let story: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    for key in ["kernels", "bytes_read", "bytes_written", "flops", "arena_bytes"] {
        assert!(story[key].as_u64().is_some_and(|n| n > 0), "{key}: {}", story[key]);
    }
    assert_eq!(story["barriers"].as_array().map(Vec::len), story["kernels"].as_u64().map(|n| n as usize));
    for stage in ["divide", "improve", "partition", "lower", "prepare", "plan"] {
        assert!(story["stage_ms"][stage].is_number(), "{stage}");
    }
    assert!(story["egraph"]["nodes"].is_u64() && story["egraph"]["rounds"].is_u64());
    assert_eq!(story["egraph"]["stopped"], "saturated");
    assert!(story["rules_fired"]["attend-from-softmax"].is_u64());
}

#[test]
fn a_story_as_text_has_five_sections() {
    let path = own::write("five.graph", b"%0 = input x : f32[d:8]\n%1 = exp %0\noutput y = %1\n");
    let output = fusebox(&["story", path.to_str().expect("a plain path"), "--kernels"]);
    let text = String::from_utf8(output.stdout).expect("text");
    for head in [
        "## 1. as written",
        "## 2. improved",
        "## 3. regions",
        "## 4. kernels",
        "\n\n## 5. plan",
        "kernel \"map exp\"",
    ] {
        assert!(text.contains(head), "{head} is not in\n{text}");
    }
}

#[test]
fn the_same_question_gets_the_same_bytes() {
    let ask = || fusebox(&["story", "--block", "glm-4.7-flash", "--layers", "3", "--kernels"]).stdout;
    let first = ask();
    assert!(first.len() > 10_000);
    assert_eq!(first, ask());
}

#[test]
fn bad_graphs_are_refused_in_one_sentence() {
    refuses(
        "undefined.graph",
        "output y = %0\n",
        "line 1, column 12: %0 is not defined above, expected an earlier node",
    );
    refuses("unknown.graph", "%0 = softmax\n", "eq, reduce-sum, reduce-max");
    refuses(
        "mismatch.graph",
        "%0 = input a : f32[d:4]\n%1 = input b : f32[d:5]\n%2 = mul %0 %1\noutput y = %2\n",
        "axis d has two sizes: [d:4] meets [d:5], expected arguments that fit",
    );
    refuses(
        "blocks.graph",
        "%0 = weight w : q4_k[r:3, d:100]\noutput y = %0\n",
        "it must have a multiple of 256 elements, all sizes fixed, expected arguments that fit",
    );
    let long: Vec<String> = (1..2500).map(|n| format!("%{n} = exp %{}", n - 1)).collect();
    let long = format!("%0 = input x : f32[d:4]\n{}\noutput y = %2499\n", long.join("\n"));
    refuses("long.graph", &long, "the number of nodes of block `model` is 2500, at most 2000 is possible");
}

#[test]
fn unknown_names_are_answered_with_those_there_are() {
    for (arguments, known) in [
        (["story", "--block", "gpt-5"].as_slice(), "qwen3-0.6b"),
        (&["story", "--block", "qwen3-8b", "--target", "abacus"], "cpu"),
        (&["story", "--block", "qwen3-8b", "--tokens", "0"], "1 to 2048"),
        (&["story", "--block", "qwen3-8b", "--layers", "0"], "1 to 4096"),
        (&["story", "no-such-file.graph"], "no-such-file.graph"),
    ] {
        let error = refused(arguments);
        assert!(error.contains(known), "{arguments:?}: {error}");
    }
}

#[test]
fn a_graph_may_come_in_a_pipe() {
    let mut command = command(&programs(), &["story", "-"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the command runs");
    let graph = b"%0 = input x : f32[d:8]\n%1 = exp %0\noutput y = %1\n";
    child.stdin.take().expect("it reads").write_all(graph).expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    assert!(String::from_utf8_lossy(&output.stdout).contains("map exp"));
    refuses("empty.graph", "", "the graph has no output, expected a line such as `output y = %1`");
}

#[test]
fn a_model_has_a_story_and_times() {
    let story = json(&["story", "-m", "assets/story.gguf", "--json"]);
    let plan = told(&["run", "-n", "1", "--print-kernels=plan"]);
    let n_blocks = plan.matches(" attention k v").count();
    let is_attention =
        |barrier: &&Value| barrier["kernel"].as_str().is_some_and(|name| name.contains("attention k v"));
    let barriers = story["barriers"].as_array().expect("a list");
    assert!(n_blocks > 0 && barriers.iter().filter(is_attention).count() == n_blocks, "{story}");
    let timed = json(&["story", "-m", "assets/story.gguf", "--tokens", "8", "--time", "-t", "1", "--json"]);
    let steps = timed["measured"]["steps"].as_array().expect("a list");
    assert_eq!(Some(steps.len() as u64), timed["kernels"].as_u64());
    assert!(steps.iter().all(|step| step["us"].as_f64() > Some(0.0) && step["estimate_us"].is_number()));
    assert_eq!(timed["measured"]["threads"], 1);
    let table = told(&["story", "--block", "qwen3-0.6b", "--time"]);
    assert!(table.starts_with("step ") && table.contains("estimate us"), "{table}");
    assert_eq!(table.lines().count(), 5 + 3, "a head, five kernels, the sum, the threads: {table}");
    let error = refused(&["story", "assets/story.gguf"]);
    assert_eq!(error, "assets/story.gguf is a model, expected a graph as text; -m takes a model");
    assert!(
        refused(&["story", "--block", "qwen3-0.6b", "--time", "--target", "vulkan"])
            .contains("this processor")
    );
    assert!(refused(&["story", "-m", "assets/story.gguf", "--batch", "0"]).contains("1 to 256"));
}
