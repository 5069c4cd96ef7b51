//! The house rules that a machine can check; `docs/style.md` says what they are for.
//!
//! In: the source tree as text. Out: one test for each rule, which fails with the list of all offences.
//! A rule is data plus a scan in its own file, and each scan has unit tests on literal text, so that a check which
//! can never fail is noticed. Nothing here compiles or runs what it reads, except the text forms in the docs.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

mod docs;
mod forms;
mod hygiene;
mod imports;
mod knobs;
mod layers;
mod ops;
mod rules;
mod snapshots;
mod source;

/// A place where a rule is broken.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Offence {
    path: String,
    line: usize,
    what: String,
}

impl fmt::Display for Offence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.what)
    }
}

/// The offence `what` at a line of a file, counted from 1.
fn offence(path: &str, line: usize, what: impl Into<String>) -> Offence {
    Offence { path: path.to_owned(), line, what: what.into() }
}

/// Fails with all offences, each on its own line.
#[track_caller]
fn assert_none(offences: &[Offence]) {
    let list: Vec<String> = offences.iter().map(Offence::to_string).collect();
    assert!(list.is_empty(), "{} offences:\n{}\n", list.len(), list.join("\n"));
}

/// A text file of the tree; its path is relative to the root, with forward slashes.
#[derive(Clone, Debug)]
struct File {
    path: String,
    text: String,
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn exists(path: &str) -> bool {
    root().join(path).exists()
}

/// Every file with one of these extensions, sorted by path.
fn files(extensions: &[&str]) -> Vec<File> {
    let wanted = |path: &&String| extensions.iter().any(|e| path.ends_with(&format!(".{e}")));
    let paths = paths();
    let read = |path: &String| {
        let text = fs::read_to_string(root().join(path));
        File { path: path.clone(), text: text.expect("every source and document is readable UTF-8") }
    };
    paths.iter().filter(wanted).map(read).collect()
}

/// The path of every file of the tree, sorted; hidden folders and build output are not part of it.
fn paths() -> Vec<String> {
    let mut paths = Vec::new();
    walk(&root(), "", &mut paths);
    paths.sort();
    paths
}

fn walk(folder: &Path, prefix: &str, paths: &mut Vec<String>) {
    let entries = fs::read_dir(folder).expect("every folder of the tree can be listed");
    for entry in entries {
        let entry = entry.expect("every entry of the tree can be read");
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = format!("{prefix}{name}");
        let is_build_output = entry.path().join("CACHEDIR.TAG").exists();
        if name.starts_with('.') || name == "target" || is_build_output {
            continue;
        }
        // A link may lead out of the tree, or round in a circle.
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => walk(&entry.path(), &format!("{path}/"), paths),
            Ok(kind) if kind.is_file() => paths.push(path),
            _ => {}
        }
    }
}

#[test]
fn the_tree_is_found() {
    let paths = paths();
    for known in ["Cargo.toml", "compiler/src/lib.rs", "tests/tidy/mod.rs"] {
        assert!(paths.iter().any(|p| p == known), "{known} is missing among {} files", paths.len());
    }
    assert!(paths.iter().all(|p| !p.starts_with("target/")));
}
