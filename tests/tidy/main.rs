//! The house rules that a machine can check; `docs/style.md` says what they are for.
//!
//! In: the source tree as text. Out: one test for each rule, which fails with the list of all offences.
//! A rule is data plus a scan in its own file, and each scan has unit tests on literal text, so that a check which
//! can never fail is noticed. Nothing here compiles or runs what it reads; `tree.rs` does the reading.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that does not hold panics, its helpers too")]

mod code;
mod docs;
mod hygiene;
mod rules;
mod snapshots;
mod source;
mod words;

use tree::paths;

#[test]
fn the_tree_is_found() {
    let paths = paths();
    for known in ["Cargo.toml", "compiler/src/lib.rs", "tests/tidy/main.rs"] {
        assert!(paths.iter().any(|p| p == known), "{known} is missing among {} files", paths.len());
    }
    assert!(paths.iter().all(|p| !p.starts_with("target/")));
}
