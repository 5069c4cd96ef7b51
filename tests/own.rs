//! Where a test writes: below a folder of its own.
//!
//! In: a name. Out: a path that no other test is given. Tests run side by side, and a file that is written while
//! another test has it mapped ends them all.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;

/// A path in the folder of the test that asks, which is there.
pub(crate) fn path(name: &str) -> PathBuf {
    let test = thread::current();
    let test = test.name().expect("a test runs in a thread of its name");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test.replace("::", "/"));
    fs::create_dir_all(&folder).expect("a writable folder");
    folder.join(name)
}

/// A file there.
pub(crate) fn write(name: &str, bytes: &[u8]) -> PathBuf {
    let path = path(name);
    fs::write(&path, bytes).expect("a writable folder");
    path
}
