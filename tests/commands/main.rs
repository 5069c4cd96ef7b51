//! The `fusebox` command from outside: what it prints, and what it refuses; and the library of that name.
//!
//! In: command lines, the default model, and files written to a folder of the test's own. Out: exit codes, sentences,
//! keys and texts. Bad input gets one sentence that says what, where and what would be accepted, and exit code 2.
//! One file per command; programs are cached in a folder of the tests, so that they are compiled once.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that does not hold panics, its helpers too")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use support::own;

mod answer;
mod explain;
mod facade;
#[cfg(all(unix, feature = "hub"))]
mod hub;
mod measure;
mod quantize;
mod refusals;
mod serve;
#[cfg(target_os = "linux")]
mod terminal;

/// The root of the tree, where commands run.
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// The program cache of all these tests.
fn programs() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("programs")
}

/// The command with a program cache.
fn command(cache: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fusebox"));
    command
        .current_dir(ROOT)
        .args(arguments)
        .env("FUSEBOX_CACHE", cache)
        .env_remove("FUSEBOX_LEVEL")
        // The same kernels on every machine that tests.
        .env("FUSEBOX_TARGET", "cpu")
        .stdin(Stdio::null());
    // Some GPU drivers print errors where there is no such folder, unless they must not look.
    command.env_remove("XDG_RUNTIME_DIR");
    command
}

/// Runs a command line.
fn fusebox(arguments: &[&str]) -> Output {
    command(&programs(), arguments).output().expect("the command runs")
}

/// The standard output of a command line that succeeds.
#[track_caller]
fn told(arguments: &[&str]) -> String {
    let output = fusebox(arguments);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {error}");
    String::from_utf8(output.stdout).expect("text")
}

/// The JSON that a command line that succeeds prints.
#[track_caller]
fn json(arguments: &[&str]) -> Value {
    serde_json::from_str(&told(arguments)).expect("JSON")
}

/// The sentence that a command line is refused with.
#[track_caller]
fn refused(arguments: &[&str]) -> String {
    sentence(&fusebox(arguments), arguments)
}

#[track_caller]
fn sentence(output: &Output, arguments: &[&str]) -> String {
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {error}");
    assert!(output.stdout.is_empty(), "{arguments:?} prints before it refuses");
    assert_eq!(error.lines().count(), 1, "{arguments:?}: {error}");
    let sentence = error.trim_end().strip_prefix("fusebox: ");
    sentence.unwrap_or_else(|| panic!("{arguments:?}: {error}")).to_owned()
}

/// A copy of the default model in which a metadata key is renamed to another of the same length.
fn without(key: &str, file: &str) -> String {
    let model = Path::new(ROOT).join("assets/story.gguf");
    let mut bytes = fs::read(model).expect("the default model");
    let at = bytes.windows(key.len()).position(|window| window == key.as_bytes()).expect("it has the key");
    bytes[at + key.len() - 1] = b'_';
    let path = own::write(file, &bytes);
    path.to_str().expect("a plain path").to_owned()
}
