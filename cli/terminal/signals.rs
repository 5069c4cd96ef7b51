//! Signals and the environment of the process.
//!
//! In: the start of a command, or of an answer. Out: a write beyond the file size limit fails with an error instead of
//! a signal; Ctrl-C during an answer stops the answer. A second Ctrl-C before the first was noticed ends the command,
//! as one outside of an answer does.
//! A command that a signal ends deletes its unfinished files. Handlers take no lock and allocate nothing.

use std::sync::atomic::{AtomicBool, Ordering};

#[cfg(unix)]
use fusebox::files;

/// Whether Ctrl-C was pressed.
static CTRL_C: AtomicBool = AtomicBool::new(false);

/// Prepares the process for a command, before there is another thread.
#[expect(clippy::disallowed_methods, reason = "it is no knob of ours")]
pub(crate) fn init() {
    // Without this, exceeding the file size limit ends the process.
    #[cfg(unix)]
    // SAFETY: a signal that is ignored runs no code.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
    }
    #[cfg(unix)]
    install_handlers();
    // Mesa asks the desktop for the order of devices, and prints errors where there is none.
    if std::env::var_os("XDG_RUNTIME_DIR").is_none() {
        // SAFETY: no other thread reads the environment yet.
        unsafe {
            std::env::set_var("NODEVICE_SELECT", "1");
        }
    }
}

/// Installs the handlers of signals that end the process.
#[cfg(unix)]
fn install_handlers() {
    let handler = on_end as *const () as libc::sighandler_t;
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: the handler is async-signal-safe.
        let before = unsafe { libc::signal(signal, handler) };
        // `nohup` and shells start commands with ignored signals: keep that.
        if before == libc::SIG_IGN {
            // SAFETY: a signal that is ignored runs no code.
            unsafe { libc::signal(signal, before) };
        }
    }
}

/// Leaves the signals that end the process to whoever handles them next, who asks the handler before as well.
#[cfg(all(unix, feature = "serve"))]
pub(crate) fn release() {
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY: the default action runs no code of this program.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}

/// Deletes unfinished files; async-signal-safe.
#[cfg(unix)]
fn delete_unfinished() {
    for part in files::parts() {
        // SAFETY: the name ends in a zero, and `unlink` is async-signal-safe.
        unsafe { libc::unlink(part.as_ptr()) };
    }
}

/// Deletes unfinished files, then ends the process by the same signal.
#[cfg(unix)]
extern "C" fn on_end(signal: libc::c_int) {
    delete_unfinished();
    // SAFETY: the default action runs no code of this program.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
    // SAFETY: `raise` is async-signal-safe; the signal arrives when this handler returns.
    unsafe { libc::raise(signal) };
}

/// While this lives, Ctrl-C sets a flag.
pub(crate) struct CtrlC {
    #[cfg(unix)]
    before: libc::sighandler_t,
}

/// The signal handler.
#[cfg(unix)]
extern "C" fn on_ctrl_c(_: libc::c_int) {
    if CTRL_C.swap(true, Ordering::Relaxed) {
        delete_unfinished();
        // SAFETY: `_exit` may be called in a signal handler.
        unsafe { libc::_exit(130) }
    }
}

impl CtrlC {
    /// Installs the handler.
    pub(crate) fn catch() -> Self {
        CTRL_C.store(false, Ordering::Relaxed);
        Self {
            #[cfg(unix)]
            // SAFETY: the handler stores to an atomic or ends the process, which is allowed at any time.
            before: unsafe { libc::signal(libc::SIGINT, on_ctrl_c as *const () as libc::sighandler_t) },
        }
    }
}

/// Whether Ctrl-C was pressed since [`CtrlC::catch`].
pub(crate) fn ctrl_c_pressed() -> bool {
    CTRL_C.load(Ordering::Relaxed)
}

/// Ends the process as Ctrl-C does, if it was pressed, so that a shell knows: what was to be said has been said.
pub(crate) fn end_if_interrupted() {
    #[cfg(unix)]
    if ctrl_c_pressed() {
        on_end(libc::SIGINT);
    }
}

#[cfg(unix)]
impl Drop for CtrlC {
    fn drop(&mut self) {
        // SAFETY: this restores the previous handler.
        unsafe {
            libc::signal(libc::SIGINT, self.before);
        }
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::{CtrlC, ctrl_c_pressed};

    #[test]
    fn one_signal_is_noted_and_ends_nothing() {
        let ctrl_c = CtrlC::catch();
        assert!(!ctrl_c_pressed());
        // SAFETY: the signal is handled.
        unsafe {
            libc::raise(libc::SIGINT);
        }
        assert!(ctrl_c_pressed());
        drop(ctrl_c);
        let _ctrl_c = CtrlC::catch();
        assert!(!ctrl_c_pressed(), "it is forgotten");
    }
}
