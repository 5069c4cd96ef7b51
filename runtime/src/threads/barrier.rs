//! A point that no thread of a team passes before all have reached it.
//!
//! In: the number of threads. Out: [`Barrier::wait`], which returns when all wait. A waiting thread spins for a moment,
//! then lets others run, then sleeps.
//! `super::parts` names what it is made of, so that a model checker can put its own in place: `tests/loom` does.

use super::parts::{
    AtomicUsize, Condvar, Mutex, Ordering, PoisonError, SPINS, YIELDS, fence, spin_loop, yield_now,
};

/// A point that no thread of a team passes before all have reached it.
#[derive(Debug)]
pub struct Barrier {
    n_threads: usize,
    n_arrived: AtomicUsize,
    /// How often all have passed.
    n_passed: AtomicUsize,
    n_asleep: AtomicUsize,
    lock: Mutex<()>,
    wake: Condvar,
}

impl Barrier {
    /// A barrier for `n_threads` threads.
    pub fn new(n_threads: usize) -> Self {
        Self {
            n_threads,
            n_arrived: AtomicUsize::new(0),
            n_passed: AtomicUsize::new(0),
            n_asleep: AtomicUsize::new(0),
            lock: Mutex::new(()),
            wake: Condvar::new(),
        }
    }

    /// How many threads it is for.
    pub fn n_threads(&self) -> usize {
        self.n_threads
    }

    /// How many threads sleep here.
    #[cfg(test)]
    pub(super) fn n_asleep(&self) -> usize {
        self.n_asleep.load(Ordering::SeqCst)
    }

    /// Waits until all threads are here, and says whether this one was the last. What any did before, all see after.
    pub fn wait(&self) -> bool {
        let n_passed = self.n_passed.load(Ordering::Acquire);
        if self.n_arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.n_threads {
            self.n_arrived.store(0, Ordering::Relaxed);
            self.n_passed.store(n_passed.wrapping_add(1), Ordering::Release);
            // Who falls asleep says so before it looks a last time, with a fence between as here: it is seen here, or
            // it sees what was stored.
            fence(Ordering::SeqCst);
            if self.n_asleep.load(Ordering::Relaxed) > 0 {
                let guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
                self.wake.notify_all();
                drop(guard);
            }
            return true;
        }
        for turn in 0..SPINS + YIELDS {
            if self.n_passed.load(Ordering::Acquire) != n_passed {
                return false;
            }
            if turn < SPINS { spin_loop() } else { yield_now() }
        }
        self.sleep(n_passed);
        false
    }

    fn sleep(&self, n_passed: usize) {
        let mut guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.n_asleep.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        while self.n_passed.load(Ordering::Acquire) == n_passed {
            guard = self.wake.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        self.n_asleep.fetch_sub(1, Ordering::Relaxed);
    }
}
