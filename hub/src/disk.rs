//! Free space on the disk.
//!
//! In: a folder. Out: bytes, or nothing where the system does not say.

#[cfg(unix)]
use std::ffi::CString;
#[cfg(unix)]
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Bytes that are free for this user on the disk of a folder.
#[cfg(unix)]
#[expect(unsafe_code, reason = "the standard library has no function for it")]
#[allow(clippy::unnecessary_cast, reason = "the fields are narrower on some systems")]
pub(crate) fn free_space(folder: &Path) -> Option<u64> {
    let path = CString::new(folder.as_os_str().as_bytes()).ok()?;
    // SAFETY: all zeros are a valid `statvfs`.
    let mut about: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: the path ends in a zero, and the result is as large as it must be.
    let status = unsafe { libc::statvfs(path.as_ptr(), &raw mut about) };
    (status == 0).then(|| (about.f_bavail as u64).saturating_mul(about.f_frsize as u64))
}

/// Nothing is known.
#[cfg(not(unix))]
pub(crate) fn free_space(_: &Path) -> Option<u64> {
    None
}
