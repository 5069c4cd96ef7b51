//! Folders of safetensors: one file, shards, and indices that lie.
//!
//! In: folders written here. Out: what was read, or the sentence.

use std::fs;
use std::path::PathBuf;

use fusebox_runtime::weights::Checkpoint;
use fusebox_runtime::weights::value::{List, Value};
use support::own::path;

use crate::refusal;
use crate::safetensors::{HEADER, file};

const OTHER: &str = "{\"c\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]}}";

/// A fresh folder with these files.
fn folder(name: &str, files: &[(&str, Vec<u8>)]) -> PathBuf {
    let folder = path(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("a writable folder");
    for (name, bytes) in files {
        fs::write(folder.join(name), bytes).expect("a writable folder");
    }
    folder
}

/// Two shards and an index of these entries.
fn sharded(name: &str, index: &str) -> PathBuf {
    let index = format!("{{\"metadata\":{{}},\"weight_map\":{{{index}}}}}");
    folder(
        name,
        &[
            ("1.safetensors", file(HEADER, 20)),
            ("2.safetensors", file(OTHER, 3)),
            ("model.safetensors.index.json", index.into_bytes()),
        ],
    )
}

const GOOD: &str = "\"a\":\"1.safetensors\",\"b\":\"1.safetensors\",\"c\":\"2.safetensors\"";

#[test]
fn one_file_comes_with_its_configuration() {
    let config = br#"{"model_type": "qwen3", "eps": 1e-6, "no": null, "tied": true, "min": -1,
        "rope_scaling": {"factor": 8.0, "inner": {"high": 4}}, "ids": [1, 2], "mixed": [1, "a"]}"#;
    let folder = folder("one", &[("model.safetensors", file(HEADER, 20)), ("config.json", config.to_vec())]);
    let checkpoint = Checkpoint::open(&folder).unwrap();
    assert_eq!(checkpoint.architecture(), Some("qwen3"));
    assert_eq!(checkpoint.tensors().len(), 2);
    let metadata = checkpoint.metadata();
    assert_eq!(metadata["rope_scaling.factor"], Value::Float(8.0));
    assert_eq!(metadata["rope_scaling.inner.high"], Value::Unsigned(4));
    assert_eq!(metadata["ids"], Value::List(List::Unsigned(vec![1, 2])));
    assert_eq!(metadata["mixed"], Value::Text("[1,\"a\"]".to_owned()));
    assert_eq!((&metadata["min"], &metadata["tied"]), (&Value::Signed(-1), &Value::Bool(true)));
    assert!(!metadata.contains_key("no") && checkpoint.is_null("no") && !checkpoint.is_null("none"));
    // The file stands for its folder.
    let file = Checkpoint::open(&folder.join("model.safetensors")).unwrap();
    assert_eq!((file.architecture(), file.tensors()), (Some("qwen3"), checkpoint.tensors()));
}

#[test]
fn shards_are_one_checkpoint() {
    let checkpoint = Checkpoint::open(&sharded("shards", GOOD)).unwrap();
    assert_eq!(checkpoint.tensors().keys().collect::<Vec<_>>(), ["b", "a", "c"]);
    assert_eq!(checkpoint.bytes("c").unwrap(), [0, 1, 2]);
    assert_eq!(checkpoint.bytes("a").unwrap(), [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(checkpoint.files().count(), 2);
}

#[test]
fn a_folder_without_weights_is_refused() {
    let sentence = "expected model.safetensors or model.safetensors.index.json in the folder, found neither";
    assert_eq!(refusal(&folder("bare", &[("config.json", b"{}".to_vec())])), sentence);
}

#[cfg(unix)]
#[test]
fn weights_that_cannot_be_looked_at_are_not_missing() {
    let folder = folder("looped", &[]);
    let file = folder.join("model.safetensors");
    std::os::unix::fs::symlink(&file, &file).expect("a link");
    let sentence = refusal(&folder);
    assert!(!sentence.contains("found neither") && sentence.contains("symbolic links"), "{sentence}");
}

#[test]
fn an_index_that_lies_is_refused() {
    for shard in ["../one/model.safetensors", "/etc/passwd", "..", ".", "", "a/b", "a\\n"] {
        let sentence = format!("tensor `a`: expected a file of the same folder, found `{shard}`");
        assert_eq!(refusal(&sharded("outside", &format!("\"a\":\"{shard}\""))), sentence);
    }
    assert_eq!(refusal(&sharded("none", "")), "key `weight_map`: expected 1 to 4096 files, found 0");
    let missing = format!("{GOOD},\"d\":\"2.safetensors\"");
    let sentence = "tensor `d`: expected it in `2.safetensors`, found nothing there";
    assert_eq!(refusal(&sharded("missing", &missing)), sentence);
    let swapped = GOOD.replace("\"a\":\"1", "\"a\":\"2");
    let sentence = "tensor `a`: expected it in `2.safetensors`, found nothing there";
    assert_eq!(refusal(&sharded("swapped", &swapped)), sentence);
    let twice = format!("{GOOD},\"a\":\"2.safetensors\"");
    let sentence = refusal(&sharded("twice", &twice));
    assert!(sentence.ends_with("expected JSON of another form: `a` comes twice"), "{sentence}");
    let gone = refusal(&sharded("gone", "\"a\":\"3.safetensors\""));
    assert!(gone.starts_with("no such file"), "{gone}");
}

#[test]
fn a_tensor_of_two_shards_is_refused() {
    let folder = sharded("double", GOOD);
    fs::write(folder.join("2.safetensors"), file(HEADER, 20)).expect("a writable folder");
    assert_eq!(refusal(&folder), "tensor `b`: expected a tensor of no other file, found it twice");
}

#[test]
fn a_bad_configuration_is_refused() {
    let with = |config: String| {
        folder("config", &[("model.safetensors", file(HEADER, 20)), ("config.json", config.into_bytes())])
    };
    let sentence = "byte 6: expected JSON, which this is not: expected value";
    assert_eq!(refusal(&with("{\"a\": }".to_owned())), sentence);
    assert_eq!(refusal(&with(" ".repeat((1 << 20) + 1))), "expected at most 1048576 bytes, found 1048577");
    let deep = refusal(&with(format!("{{\"a\":{}", "[".repeat(9000))));
    assert!(deep.ends_with("expected JSON, which this is not: recursion limit exceeded"), "{deep}");
    let long = refusal(&with(format!("{{\"{}\": {{\"a\": 1}}}}", "k".repeat(255))));
    assert!(long.ends_with("expected at most 256 bytes, found 257"), "{long}");
}
