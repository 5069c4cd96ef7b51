//! `fusebox inspect` as a user meets it.
//!
//! In: files written here. Out: text, JSON, and exit code 2 with one sentence for a bad file.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};
use support::gguf::{U32, Writer, pair, tensor};
use support::own::write;

use crate::ROOT;

fn inspect(path: &Path, more: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fusebox"));
    command.current_dir(ROOT);
    command.args(["inspect", "-m"]).arg(path).args(more).output().expect("the command runs")
}

/// The good file, and one tensor of a type that no kernel reads.
fn file() -> Writer {
    let mut writer = Writer::good();
    writer.tensors.push(tensor("odd\n", &[256], 15, 128));
    writer.data.resize(128 + 292, 0);
    writer
}

#[test]
fn text_has_the_metadata_the_tensors_and_the_totals() {
    let path = write("inspect.gguf", &file().bytes());
    let output = inspect(&path, &[]);
    assert_eq!(output.status.code(), Some(0));
    let text = String::from_utf8(output.stdout).expect("text");
    let (head, rest) = text.split_once("\nmetadata").expect("metadata follows the head");
    assert!(head.starts_with("kind          GGUF v3\nfile          "), "{head}");
    assert!(head.ends_with("architecture  qwen3\n"), "{head}");
    let expected = " (3)
  general.architecture  qwen3
  qwen3.block_count     2
  tokens                [9 strings]

tensors (3)
  norm   [3]      f32                   12 B
  proj   [2, 32]  q8_0                  68 B
  odd\\n  [256]    q8_k (not supported)  292 B

by format
  f32   1 tensor  12 B
  q8_0  1 tensor  68 B
  q8_k  1 tensor  292 B
";
    assert_eq!(rest, expected);
}

#[test]
fn a_name_wider_than_any_table_stands_out_of_it() {
    let mut writer = Writer::good();
    writer.pairs.push(pair(&"\u{1b}".repeat(20_000), U32, 1u32.to_le_bytes()));
    let output = inspect(&write("wide.gguf", &writer.bytes()), &[]);
    assert_eq!(output.status.code(), Some(0));
    assert!(String::from_utf8(output.stdout).expect("text").contains("{1b}  1\n"));
}

#[test]
fn json_has_what_tools_read() {
    let path = write("inspect-json.gguf", &file().bytes());
    let output = inspect(&path, &["--json"]);
    let told: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((&told["kind"], &told["architecture"]), (&json!("GGUF v3"), &json!("qwen3")));
    assert_eq!(told["bytes"], json!(file().bytes().len()));
    assert_eq!(told["metadata"]["qwen3.block_count"], json!(2));
    assert_eq!(told["metadata"]["tokens"], json!("[9 strings]"));
    let proj = json!({ "name": "proj", "shape": [2, 32], "format": "q8_0", "supported": true, "bytes": 68 });
    assert_eq!(told["tensors"][1], proj);
    assert_eq!(told["tensors"][2]["supported"], json!(false));
    assert_eq!(told["totals"][0], json!({ "format": "f32", "tensors": 1, "bytes": 12 }));
}

#[test]
fn a_bad_file_is_one_sentence_and_exit_code_2() {
    let path = write("inspect-bad.gguf", &Writer { version: 99, ..file() }.bytes());
    let output = inspect(&path, &[]);
    let error = String::from_utf8(output.stderr).expect("text");
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(output.stdout.is_empty() && error.lines().count() == 1, "{error}");
    let expected = "inspect-bad.gguf: byte 4: GGUF version 99 is not supported, expected 2 or 3\n";
    assert!(error.starts_with("fusebox: ") && error.ends_with(expected), "{error}");
}
