//! Memory between pages that nobody may touch.
//!
//! In: bytes, and the edge they lie at. Out: the same bytes, of which the one before the first or the one behind the
//! last belongs to no page: an access that leaves them ends the process with a sentence that names what was run.

#![expect(unsafe_code, reason = "pages are asked of the system")]

use std::cell::Cell;
use std::ops::{Deref, DerefMut};
use std::sync::Once;
use std::{ptr, slice};

/// Where bytes lie between the guards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edge {
    /// The first byte follows a guard.
    Start,
    /// A guard follows the last byte.
    End,
}

/// Some bytes between guards.
pub struct Guarded {
    map: *mut libc::c_void,
    n_mapped: usize,
    start: *mut u8,
    len: usize,
}

thread_local! {
    /// What this thread runs, for the sentence of its last breath.
    static RUNNING: Cell<u64> = const { Cell::new(0) };
}

/// Says what this thread runs from here on: a seed, or a number of one's own.
pub fn running(number: u64) {
    static INSTALLED: Once = Once::new();
    RUNNING.set(number);
    INSTALLED.call_once(|| {
        for signal in [libc::SIGSEGV, libc::SIGBUS] {
            let handler = told as extern "C" fn(libc::c_int);
            // SAFETY: the handler writes to standard error and ends the process, which a handler may do.
            unsafe { libc::signal(signal, handler as libc::sighandler_t) };
        }
    });
}

/// Tells what ran, and ends the process.
extern "C" fn told(_: libc::c_int) {
    let mut text = *b"code left its buffers, running number ....................\n";
    let mut number = RUNNING.get();
    for place in text[38..58].iter_mut().rev() {
        *place = b'0' + (number % 10) as u8;
        number /= 10;
    }
    // SAFETY: the text is there, and `write` may be called in a handler.
    unsafe { libc::write(2, text.as_ptr().cast(), text.len()) };
    // SAFETY: it never returns, and nothing is left to do.
    unsafe { libc::_exit(101) };
}

impl Guarded {
    /// These bytes at an edge.
    ///
    /// # Panics
    /// Where the system gives no pages.
    pub fn new(bytes: &[u8], edge: Edge) -> Self {
        // SAFETY: it asks for a number.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        let n_inside = bytes.len().next_multiple_of(page).max(page);
        let n_mapped = n_inside + 2 * page;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: it maps new pages wherever the system likes, which nobody may touch yet.
        let map = unsafe { libc::mmap(ptr::null_mut(), n_mapped, libc::PROT_NONE, flags, -1, 0) };
        assert_ne!(map, libc::MAP_FAILED, "no pages");
        let inside = map.wrapping_byte_add(page);
        // SAFETY: these pages are among those just mapped.
        let opened = unsafe { libc::mprotect(inside, n_inside, libc::PROT_READ | libc::PROT_WRITE) };
        assert_eq!(opened, 0, "no access");
        let skipped = if edge == Edge::End { n_inside - bytes.len() } else { 0 };
        let start = inside.cast::<u8>().wrapping_add(skipped);
        let mut own = Self { map, n_mapped, start, len: bytes.len() };
        own.copy_from_slice(bytes);
        own
    }
}

impl Deref for Guarded {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the bytes lie in pages that were opened, were zeroed by the system, and live as long as this.
        unsafe { slice::from_raw_parts(self.start, self.len) }
    }
}

impl DerefMut for Guarded {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and they are borrowed alone.
        unsafe { slice::from_raw_parts_mut(self.start, self.len) }
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: it was mapped by `new`, and nobody borrows it any more.
        unsafe { libc::munmap(self.map, self.n_mapped) };
    }
}
