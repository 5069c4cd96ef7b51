//! Pages of mapped files that are gone: SIGBUS.
//!
//! In: the addresses of mappings. Out: a flag for each that had to be filled with zeros, because its file became
//! shorter while it was read.
//! The handler is installed with the first mapping and once for the process. It takes no lock and allocates nothing,
//! and it hands every other SIGBUS to the handler that was there before. A program that installs one later must do the
//! same for this one.

#![expect(unsafe_code, reason = "a signal is handled, and memory is mapped, by the system's own functions")]

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
#[cfg(unix)]
use std::sync::{Once, OnceLock};

use crate::signal_list::{Entered, SignalList};

/// A file in memory.
#[derive(Debug)]
pub(in crate::weights) struct Mapped {
    /// Its addresses.
    range: Range<usize>,
    /// Whether zeros stand where a part of it was.
    pub(in crate::weights) has_lost: AtomicBool,
}

impl PartialEq for Mapped {
    fn eq(&self, other: &Self) -> bool {
        self.range == other.range
    }
}

/// The files that are mapped.
static MAPPED: SignalList<Mapped> = SignalList::new();

/// What is done with other signals of the kind, and the size of a page.
#[cfg(unix)]
static BEFORE: OnceLock<(libc::sigaction, usize)> = OnceLock::new();

/// Keeps a mapping at these addresses from ending the process, for as long as the result lives.
pub(in crate::weights) fn watch(range: Range<usize>) -> Entered<Mapped> {
    #[cfg(unix)]
    install();
    let entered = MAPPED.add(Mapped { range, has_lost: AtomicBool::new(false) });
    // An entry of an earlier mapping at the same place may be used again.
    entered.value().has_lost.store(false, Ordering::Release);
    entered
}

/// Installs the handler, if it is not.
#[cfg(unix)]
fn install() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        // SAFETY: all zeros are a valid `sigaction`.
        let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: nothing is installed, and the result is as large as it must be.
        unsafe { libc::sigaction(libc::SIGBUS, std::ptr::null(), &raw mut before) };
        // SAFETY: it asks for a number.
        let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
        // The handler may run as soon as it is installed.
        let _ = BEFORE.set((before, page));
        // SAFETY: all zeros are a valid `sigaction`: no flags, no blocked signals.
        let mut own: libc::sigaction = unsafe { std::mem::zeroed() };
        own.sa_sigaction = on_bus_error as *const () as libc::sighandler_t;
        own.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: the handler is async-signal-safe and has the signature that `SA_SIGINFO` asks for.
        unsafe { libc::sigaction(libc::SIGBUS, &raw const own, std::ptr::null_mut()) };
    });
}

/// A page could not be read.
#[cfg(unix)]
extern "C" fn on_bus_error(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: `SA_SIGINFO` promises a valid description.
    let about = unsafe { &*info };
    // SAFETY: for SIGBUS the description holds the address of the access.
    let address = unsafe { about.si_addr() } as usize;
    let Some((before, page)) = BEFORE.get() else { return };
    let found = MAPPED.iter().find(|mapped| mapped.range.contains(&address));
    if let Some(mapped) = found
        && put_zeros(address & !(page - 1)..mapped.range.end.next_multiple_of(*page))
    {
        mapped.has_lost.store(true, Ordering::Release);
        return;
    }
    pass_on(before, signal, info, context);
}

/// Puts zeros in the place of whole pages.
#[cfg(unix)]
fn put_zeros(pages: Range<usize>) -> bool {
    let (at, flags) =
        (pages.start as *mut libc::c_void, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED);
    // SAFETY: the pages are those of a live mapping from one that cannot be read to its end, so nothing else is there;
    // what is put there is as readable. On the systems that have it this is one call of the system and takes no lock.
    let put = unsafe { libc::mmap(at, pages.len(), libc::PROT_READ, flags, -1, 0) };
    put != libc::MAP_FAILED
}

/// Does what would have been done without this handler.
#[cfg(unix)]
fn pass_on(
    before: &libc::sigaction,
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    type Plain = extern "C" fn(libc::c_int);
    type Described = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
    match before.sa_sigaction {
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: the default action runs no code of this program.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
            // SAFETY: `raise` is async-signal-safe; the signal arrives when this handler returns.
            unsafe { libc::raise(signal) };
        }
        handler if before.sa_flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: who installed it with this flag promised a function of this form.
            let handler = unsafe { std::mem::transmute::<libc::sighandler_t, Described>(handler) };
            handler(signal, info, context);
        }
        handler => {
            // SAFETY: who installed it without the flag promised a function of this form.
            let handler = unsafe { std::mem::transmute::<libc::sighandler_t, Plain>(handler) };
            handler(signal);
        }
    }
}
