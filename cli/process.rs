//! What a command is to the system: its signals, and what drivers are told by its environment.
//!
//! In: the start of a command, or a stretch of work. Out: errors that can be told instead of a limit's signal, and
//! whether somebody wants a piece of work to end: Ctrl-C while an answer is given ends the answer. A second one before
//! the first was noticed ends the command, as one outside of such a stretch does.

use std::sync::atomic::{AtomicBool, Ordering};

/// Whether Ctrl-C came.
static CAME: AtomicBool = AtomicBool::new(false);

/// Makes ready for a command, before there is another thread.
#[expect(clippy::disallowed_methods, reason = "it is no knob of ours")]
pub(crate) fn begin() {
    // A file that may not grow any more refuses what is written, instead of ending the process.
    #[cfg(unix)]
    // SAFETY: a signal that is ignored runs no code.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
    }
    // Mesa looks for a desktop when it orders devices, and complains on standard error where there is none.
    if std::env::var_os("XDG_RUNTIME_DIR").is_none() {
        // SAFETY: no other thread reads the environment yet.
        unsafe {
            std::env::set_var("NODEVICE_SELECT", "1");
        }
    }
}

/// While it lives, Ctrl-C is noted.
pub(crate) struct Interrupts {
    #[cfg(unix)]
    before: libc::sighandler_t,
}

/// What happens at Ctrl-C.
#[cfg(unix)]
extern "C" fn note(_: libc::c_int) {
    if CAME.swap(true, Ordering::Relaxed) {
        // SAFETY: it may be called by what handles a signal.
        unsafe { libc::_exit(130) }
    }
}

impl Interrupts {
    /// Notes the signal from now on.
    pub(crate) fn noted() -> Self {
        CAME.store(false, Ordering::Relaxed);
        Self {
            #[cfg(unix)]
            // SAFETY: what is called stores to an atomic or ends the process, which a signal may do at any time.
            before: unsafe { libc::signal(libc::SIGINT, note as *const () as libc::sighandler_t) },
        }
    }
}

/// Whether it came since.
pub(crate) fn came() -> bool {
    CAME.load(Ordering::Relaxed)
}

#[cfg(unix)]
impl Drop for Interrupts {
    fn drop(&mut self) {
        // SAFETY: this is what was there before.
        unsafe {
            libc::signal(libc::SIGINT, self.before);
        }
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::{Interrupts, came};

    #[test]
    fn one_signal_is_noted_and_ends_nothing() {
        let interrupts = Interrupts::noted();
        assert!(!came());
        // SAFETY: the signal is handled.
        unsafe {
            libc::raise(libc::SIGINT);
        }
        assert!(came());
        drop(interrupts);
        let _interrupts = Interrupts::noted();
        assert!(!came(), "it is forgotten");
    }
}
