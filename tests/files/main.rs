//! Weight files: good ones are read back, bad ones are refused in one sentence.
//!
//! In: files that small writers make in a folder of the test's own, spoilt one at a time. Out: shapes, bytes,
//! sentences.
//! One file a kind; `recorded.rs` looks at files that other programs wrote.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that does not hold panics, its helpers too")]

use std::path::Path;

use fusebox_runtime::weights::Checkpoint;
use support::own::{path, write};

mod ajc1;
mod folder;
mod gguf;
mod made;
mod parts;
mod qorus;
mod quantize;
mod quants;
mod recorded;
mod safetensors;

/// Why a path is refused, without the path; the sentence must fit on one line.
#[track_caller]
fn refusal(path: &Path) -> String {
    let error = Checkpoint::open(path).expect_err("a bad file is refused").to_string();
    assert_eq!(error.lines().count(), 1, "{error}");
    let (_, sentence) = error.split_once(": ").expect("the sentence names the path first");
    sentence.to_owned()
}

/// Asserts why a file of these bytes is refused.
#[track_caller]
fn refuses(name: &str, bytes: &[u8], sentence: &str) {
    let path = write(name, bytes);
    assert_eq!(refusal(&path), sentence);
    assert!(Checkpoint::open(&path).expect_err("it is refused again").to_string().contains(name));
}

/// Opens every shorter version of a file: it may only open if nothing that it describes is missing.
#[track_caller]
fn refuses_every_truncation(name: &str, bytes: &[u8], shortest_good: usize) {
    for len in 0..bytes.len() {
        let path = write(name, &bytes[..len]);
        match Checkpoint::open(&path) {
            Ok(checkpoint) => {
                assert!(len >= shortest_good && is_whole(&checkpoint), "{len} bytes are enough");
            }
            Err(error) => {
                assert!(len < shortest_good, "{len}: {error}");
                assert_eq!(error.to_string().lines().count(), 1, "{error}");
            }
        }
    }
}

/// Whether every tensor has the bytes that it should have.
fn is_whole(checkpoint: &Checkpoint) -> bool {
    let mut tensors = checkpoint.tensors().iter();
    tensors.all(|(name, tensor)| checkpoint.bytes(name).is_some_and(|b| b.len() == tensor.n_bytes()))
}

#[test]
fn what_is_no_weight_file_is_refused() {
    let kinds = "expected GGUF, safetensors, a qwen3.c checkpoint or a Qorus file, found";
    refuses("empty", b"", &format!("byte 0: {kinds} an empty file"));
    refuses("short", b"GG", &format!("byte 0: {kinds} the bytes 47 47"));
    refuses("text", b"hello, world", &format!("byte 0: {kinds} the bytes 68 65 6c 6c"));
    let missing = refusal(&path("no-such-file"));
    assert!(missing.starts_with("no such file"), "{missing}");
}

#[cfg(unix)]
#[test]
fn a_device_is_no_weight_file() {
    assert_eq!(refusal(Path::new("/dev/null")), "expected a file or a folder, found something else");
}
