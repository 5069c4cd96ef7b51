//! Limits that the system puts on files.
//!
//! In: nothing. Out: a file that may not grow any more is an error of what writes it, as on a full disk.
//! Otherwise the system would end the program there, and what is half written would stay.

/// Makes it so, for the whole process.
pub(crate) fn are_errors() {
    #[cfg(unix)]
    // SAFETY: a signal that is ignored runs no code.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
    }
}
