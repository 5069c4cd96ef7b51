//! Files that are this user's alone.
//!
//! In: paths. Out: files that no other user can have written, and folders in which none can put any.
//! A name in such a folder is never followed to another place. Where systems have no users in this sense, every file
//! counts as one's own.

use std::fs::{DirBuilder, File, Metadata};
use std::io;
#[cfg(unix)]
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Makes a folder, and those above it that are missing, which only this user may look into.
pub(crate) fn make_folder(path: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    builder.mode(0o700);
    builder.create(path)
}

/// Opens a file to read it, unless the name is a link; a pipe does not block.
#[cfg(unix)]
pub(crate) fn open(path: &Path) -> io::Result<File> {
    File::options().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)
}

/// The user that this process acts for.
#[cfg(unix)]
#[expect(unsafe_code, reason = "only the system knows whose process this is")]
fn user() -> u32 {
    // SAFETY: the function has no arguments and cannot fail.
    unsafe { libc::geteuid() }
}

/// Whether a file or a folder is this user's, and nobody else may write to it.
#[cfg(unix)]
pub(crate) fn is_own(about: &Metadata) -> bool {
    about.uid() == user() && about.mode() & 0o022 == 0
}

/// A folder for temporary files that no other user has the name of; it may have to be made.
pub(crate) fn temporary_folder() -> PathBuf {
    #[cfg(unix)]
    let name = format!("fusebox-{}", user());
    #[cfg(not(unix))]
    let name = "fusebox";
    std::env::temp_dir().join(name)
}

/// Opens a file to read it.
#[cfg(not(unix))]
pub(crate) fn open(path: &Path) -> io::Result<File> {
    File::open(path)
}

/// Whether a file or a folder is this user's.
#[cfg(not(unix))]
pub(crate) fn is_own(_: &Metadata) -> bool {
    true
}
