//! Reports tests that are skipped because this machine lacks something.
//!
//! In: a reason. Out: a line on standard error, `skipped: TEST: REASON`. The test harness does not capture it, so that
//! every run of the tests shows it, and `.ci/run` counts these lines.

use std::fmt::Display;
use std::io::{Write, stderr};
use std::thread;

/// Reports that the test of this thread skips something, and why.
///
/// # Panics
/// Where standard error is closed.
pub fn skip(reason: impl Display) {
    let test = thread::current();
    let test = test.name().unwrap_or("a test");
    writeln!(stderr(), "skipped: {test}: {reason}").expect("standard error is open");
}
