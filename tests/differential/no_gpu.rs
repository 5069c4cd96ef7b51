//! The GPUs of tests that are built without the feature `gpu`: none.
//!
//! In: what `gpu.rs` takes. Out: nothing, and a line that says so.

use support::skip::skip;

use crate::Interpreted;

/// Whether there is anything to run on.
pub(crate) fn is_there() -> bool {
    skip("built without GPUs");
    false
}

/// Does nothing.
#[expect(clippy::unnecessary_wraps, reason = "it stands for what compares results")]
pub(crate) fn on_gpu(_: &Interpreted<'_>) -> Result<(), String> {
    Ok(())
}
