//! Where a test writes: below a folder of its own.
//!
//! In: a name. Out: a path that no other test is given. Tests run side by side, and a file that is written while
//! another test has it mapped ends them all.

use std::env::current_exe;
use std::fs;
use std::path::PathBuf;
use std::thread;

/// A path in the folder of the test that asks, which is there: `target/tmp`, by binary and test.
///
/// # Panics
/// Where that folder cannot be written to.
pub fn path(name: &str) -> PathBuf {
    let binary = current_exe().expect("a running test has a binary");
    let test = thread::current();
    let test = test.name().expect("a test runs in a thread of its name");
    // The binary is `target/PROFILE/deps/AREA-HASH`.
    let target = binary.ancestors().nth(3).expect("a test is built in a target folder");
    let area = binary.file_stem().expect("a binary has a name").to_string_lossy();
    let area = area.split('-').next().expect("the area before the hash");
    let folder = target.join("tmp").join(area).join(test.replace("::", "/"));
    fs::create_dir_all(&folder).expect("a writable folder");
    folder.join(name)
}

/// A file there.
///
/// # Panics
/// Where it cannot be written.
pub fn write(name: &str, bytes: &[u8]) -> PathBuf {
    let path = path(name);
    fs::write(&path, bytes).expect("a writable folder");
    path
}
