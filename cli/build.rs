//! Names the commit that the command is built from, so that figures can say what they were measured with.
//!
//! Built outside of a checkout, the command has none. A `+` after it says that files have changed since.

use std::path::Path;
use std::process::Command;

/// What belongs to the command: a change of it may be one that the commit has not.
const SOURCES: [&str; 10] = [
    "../Cargo.lock",
    "../Cargo.toml",
    "../assets",
    ".",
    "../compiler",
    "../hub",
    "../models",
    "../runtime",
    "../serve",
    "../src",
];

fn main() {
    // A file that is not there would make this run with every build.
    for path in SOURCES.into_iter().filter(|path| Path::new(path).exists()) {
        println!("cargo::rerun-if-changed={path}");
    }
    // These change with every commit, and lie elsewhere in a second checkout.
    for name in ["HEAD", "logs/HEAD"] {
        let path = git(&["rev-parse", "--git-path", name]);
        if let Some(path) = path.filter(|path| Path::new(path).exists()) {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    // Further below the root of a checkout this is a copy in another project.
    let is_own = git(&["rev-parse", "--show-prefix"]).is_some_and(|prefix| prefix == "cli/");
    let commit = git(&["rev-parse", "--short=12", "HEAD"]).filter(|_| is_own);
    let is_changed = || {
        let of_sources = ["status", "--porcelain", "--untracked-files=no", "--"];
        git(&[&of_sources[..], &SOURCES].concat()).is_some_and(|changes| !changes.is_empty())
    };
    let mark = if commit.is_some() && is_changed() { "+" } else { "" };
    let commit = format!("{}{mark}", commit.unwrap_or_default());
    println!("cargo::rustc-env=FUSEBOX_COMMIT={commit}");
    let of_commit = if commit.is_empty() { commit } else { format!(" ({commit})") };
    println!("cargo::rustc-env=FUSEBOX_VERSION={}{of_commit}", env!("CARGO_PKG_VERSION"));
}

/// What git answers, if this is a checkout of it.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim_end().to_owned())
}
