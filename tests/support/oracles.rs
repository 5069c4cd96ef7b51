//! Where the recorded results of other engines lie, if this machine has them.
//!
//! In: the environment variable `FUSEBOX_ORACLES`. Out: a folder. This is the only place of the tests that
//! looks.

use std::path::PathBuf;

use crate::skip::skip;

/// The folder; nothing, and a line that says so, where there is none.
#[expect(clippy::disallowed_methods, reason = "this is the one place of the tests that looks for them")]
pub fn folder() -> Option<PathBuf> {
    let folder = std::env::var("FUSEBOX_ORACLES").ok().map(PathBuf::from);
    if folder.is_none() {
        skip("no oracles");
    }
    folder
}
