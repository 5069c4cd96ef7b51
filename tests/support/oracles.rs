//! Where the recorded results of other engines lie, if this machine has them.
//!
//! In: the environment variables `FUSEBOX_ORACLES` and `FUSEBOX_ORACLES_MISSING`. Out: folders. This is the only place
//! of the tests that looks.

use std::path::PathBuf;

use crate::skip::skip;

/// The folder with models of further families: `FUSEBOX_ORACLES_MISSING`, or next to the other one.
#[expect(clippy::disallowed_methods, reason = "this is the one place of the tests that looks for them")]
pub fn missing() -> Option<PathBuf> {
    let named = std::env::var("FUSEBOX_ORACLES_MISSING").ok().map(PathBuf::from);
    let beside = || Some(PathBuf::from(std::env::var("FUSEBOX_ORACLES").ok()?).join("../oracles-missing"));
    let folder = named.or_else(beside).filter(|folder| folder.is_dir());
    if folder.is_none() {
        skip("no oracles");
    }
    folder
}

/// The folder; nothing, and a line that says so, where there is none.
#[expect(clippy::disallowed_methods, reason = "this is the one place of the tests that looks for them")]
pub fn folder() -> Option<PathBuf> {
    let folder = std::env::var("FUSEBOX_ORACLES").ok().map(PathBuf::from);
    if folder.is_none() {
        skip("no oracles");
    }
    folder
}
