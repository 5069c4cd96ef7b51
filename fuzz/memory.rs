//! How much memory an input takes.
//!
//! In: every allocation of the process. Out: the most that was held at a time. Beyond a limit of its own the allocator
//! gives nothing more, so that an input cannot take the machine with it.

#![expect(unsafe_code, reason = "an allocator is an unsafe interface")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The most that the process may hold.
const MAX_HELD: usize = 3 << 30;

static HELD: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator, counted.
pub(crate) struct Counted;

#[global_allocator]
static ALLOCATOR: Counted = Counted;

/// Forgets what was the most; returns what is held.
pub(crate) fn reset() -> usize {
    let held = HELD.load(Relaxed);
    PEAK.store(held, Relaxed);
    held
}

/// The most that was held since.
pub(crate) fn peak() -> usize {
    PEAK.load(Relaxed)
}

fn take(n_bytes: usize) -> bool {
    let held = HELD.fetch_add(n_bytes, Relaxed) + n_bytes;
    if held > MAX_HELD {
        HELD.fetch_sub(n_bytes, Relaxed);
        return false;
    }
    PEAK.fetch_max(held, Relaxed);
    true
}

fn give_back(n_bytes: usize) {
    HELD.fetch_sub(n_bytes, Relaxed);
}

// SAFETY: every call is handed to the system's allocator as it came, or fails as an allocator may.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the promises of this function, which are the same.
        if take(layout.size()) { unsafe { System.alloc(layout) } } else { null_mut() }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the promises of this function, which are the same.
        if take(layout.size()) { unsafe { System.alloc_zeroed(layout) } } else { null_mut() }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        give_back(layout.size());
        // SAFETY: the caller keeps the promises of this function, which are the same.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if !take(size) {
            return null_mut();
        }
        // SAFETY: the caller keeps the promises of this function, which are the same.
        let moved = unsafe { System.realloc(at, layout, size) };
        give_back(if moved.is_null() { size } else { layout.size() });
        moved
    }
}
