//! The heaps of the process.
//!
//! In: the start of a server. Out: its threads share two heaps.
//! The allocator of glibc keeps a heap for each of up to eight threads a core, and returns little of them to the
//! system: a server whose requests run on many threads grew to twice the memory, and went on growing.

/// Lets all threads share two heaps, where the allocator has such a setting. No other thread should run yet.
pub(crate) fn share() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: a number is stored that the allocator reads when a thread allocates for the first time.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 2);
    }
}
