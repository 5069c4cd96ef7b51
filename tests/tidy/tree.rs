//! The source tree as text, for tests that read it.
//!
//! In: the folder that this crate was built in. Out: files, the fenced blocks of documents, and a way to fail with all
//! offences at once. Nothing here compiles or runs what it reads, and no other crate is needed.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

pub mod marked;

/// The documents at the root.
const AT_ROOT: [&str; 4] = ["CHANGELOG.md", "CONTRIBUTING.md", "README.md", "SECURITY.md"];

/// A place where a rule is broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offence {
    /// The file, from the root of the tree.
    pub path: String,
    /// The line, counted from 1.
    pub line: usize,
    /// What is wrong there.
    pub what: String,
}

impl fmt::Display for Offence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.what)
    }
}

/// The offence `what` at a line of a file, counted from 1.
pub fn offence(path: &str, line: usize, what: impl Into<String>) -> Offence {
    Offence { path: path.to_owned(), line, what: what.into() }
}

/// Fails with all offences, each on its own line.
#[track_caller]
pub fn assert_none(offences: &[Offence]) {
    let list: Vec<String> = offences.iter().map(Offence::to_string).collect();
    assert!(list.is_empty(), "{} offences:\n{}\n", list.len(), list.join("\n"));
}

/// A text file of the tree; its path is relative to the root, with forward slashes.
#[derive(Clone, Debug)]
pub struct File {
    /// Where it lies.
    pub path: String,
    /// What stands in it.
    pub text: String,
}

/// The root of the tree.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("two folders up").to_owned()
}

/// Whether the tree has a file or folder.
pub fn exists(path: &str) -> bool {
    root().join(path).exists()
}

/// Every file with one of these extensions, sorted by path.
pub fn files(extensions: &[&str]) -> Vec<File> {
    let wanted = |path: &&String| extensions.iter().any(|e| path.ends_with(&format!(".{e}")));
    let paths = paths();
    let read = |path: &String| {
        let text = fs::read_to_string(root().join(path));
        File { path: path.clone(), text: text.expect("every source and document is readable UTF-8") }
    };
    paths.iter().filter(wanted).map(read).collect()
}

/// The path of every file of the tree, sorted; hidden folders and build output are not part of it.
pub fn paths() -> Vec<String> {
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

/// A fenced block of a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fence {
    /// The line of the first line inside.
    pub line: usize,
    /// What stands after the opening fence.
    pub language: String,
    /// The lines inside.
    pub body: String,
}

/// The documents a newcomer reads.
pub fn documents() -> Vec<File> {
    let is_document = |file: &File| AT_ROOT.contains(&&*file.path) || file.path.starts_with("docs/");
    files(&["md"]).into_iter().filter(is_document).collect()
}

/// The fenced blocks of a document.
pub fn fences(text: &str) -> Vec<Fence> {
    let (mut fences, mut open): (Vec<Fence>, Option<Fence>) = (Vec::new(), None);
    for (line, content) in (1..).zip(text.lines()) {
        match (&mut open, content.trim_start().strip_prefix("```")) {
            (None, Some(language)) => {
                let language = language.trim().to_owned();
                open = Some(Fence { line: line + 1, language, body: String::new() });
            }
            (Some(_), Some(_)) => fences.extend(open.take()),
            (Some(fence), None) => fence.body.extend([content, "\n"]),
            (None, None) => {}
        }
    }
    fences.extend(open);
    fences
}
