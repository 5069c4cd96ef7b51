//! A thread pool: a team that executes one job at a time, and barriers within a job.
//!
//! In: the number of threads, then one job after another. Out: nothing; a job is done when [`Team::run`] returns.
//! A waiting thread spins for a moment and then sleeps: steps follow each other within microseconds, tokens may not.
//! Nothing is allocated after [`Team::new`]. A job catches its own panics, as only it knows at which barriers others
//! wait; one that does not would have them wait forever, so the process is aborted.
//! [`each`] runs a function once on several threads without a team.
//! `barrier.rs` is checked under every order of its threads, see `tests/loom`.

#![expect(unsafe_code, reason = "a job is borrowed by threads that outlive it")]

use std::cell::UnsafeCell;
use std::panic::resume_unwind;
use std::process::abort;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::{io, iter, mem};

pub mod barrier;

use barrier::Barrier;

/// What barriers are made of, and how long they wait: `tests/loom` has its own.
mod parts {
    pub(super) use std::hint::spin_loop;
    pub(super) use std::sync::atomic::{AtomicUsize, Ordering, fence};
    pub(super) use std::sync::{Condvar, Mutex, PoisonError};
    pub(super) use std::thread::yield_now;

    /// How often who waits looks again at once: some tens of microseconds.
    pub(super) const SPINS: usize = 4_000;
    /// How often it then lets others run and looks again before it sleeps: about a millisecond. Waking a sleeper takes
    /// long, and on a busy machine the thread that is waited for may be waiting for this very processor.
    pub(super) const YIELDS: usize = 1_000;
}

/// What a team does, given the number of the thread.
type Job<'a> = &'a (dyn Fn(usize) + Sync);

/// The result of each of `n_threads` threads, in the order of their numbers; the first is this one. If one panics, so
/// does this.
pub fn each<T: Send>(n_threads: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let work = &work;
    thread::scope(|scope| {
        let others: Vec<_> = (1..n_threads).map(|number| scope.spawn(move || work(number))).collect();
        let own = work(0);
        let others =
            others.into_iter().map(|other| other.join().unwrap_or_else(|panic| resume_unwind(panic)));
        iter::once(own).chain(others).collect()
    })
}

/// Threads that are ready for jobs; the caller is number 0 and works as well.
#[derive(Debug)]
pub struct Team {
    shared: Arc<Shared>,
    handles: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    start: Barrier,
    end: Barrier,
    is_over: AtomicBool,
    job: Slot,
}

/// Where the job lies between the two barriers.
struct Slot(UnsafeCell<Option<Job<'static>>>);

// SAFETY: `Team::run` writes it while all others wait for `start`, and they read it between `start` and `end`; the
// barriers order the two.
unsafe impl Sync for Slot {}

impl std::fmt::Debug for Slot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Slot")
    }
}

impl Team {
    /// A team of `n_threads` threads, the caller's included.
    ///
    /// # Errors
    /// What the system says where it gives no more threads.
    pub fn new(n_threads: usize) -> io::Result<Self> {
        let n_threads = n_threads.max(1);
        let shared = Arc::new(Shared {
            start: Barrier::new(n_threads),
            end: Barrier::new(n_threads),
            is_over: AtomicBool::new(false),
            job: Slot(UnsafeCell::new(None)),
        });
        let mut team = Self { shared, handles: Vec::new() };
        // All or none: a team of fewer would wait at its barriers forever.
        let mut failed = None;
        for number in 1..n_threads {
            let shared = Arc::clone(&team.shared);
            let builder = thread::Builder::new().name(format!("fusebox-{number}"));
            match builder.spawn(move || shared.work(number)) {
                Ok(handle) => team.handles.push(handle),
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            }
        }
        match failed {
            None => Ok(team),
            Some(error) => {
                // Those that wait are left to wait: they hold nothing but their stacks.
                team.handles.clear();
                mem::forget(team);
                Err(error)
            }
        }
    }

    /// How many threads there are.
    pub fn n_threads(&self) -> usize {
        self.shared.start.n_threads()
    }

    /// Does a job on all threads, and returns when all are done.
    pub fn run(&mut self, job: &(dyn Fn(usize) + Sync)) {
        if self.handles.is_empty() {
            return job(0);
        }
        // SAFETY: only the lifetime changes. The other threads use the job between the two barriers only, and this
        // function does not return, nor unwind, before all of them have passed the second.
        let job: Job<'static> = unsafe { mem::transmute::<Job<'_>, Job<'static>>(job) };
        // SAFETY: all other threads wait at `start`, where they read nothing; `&mut self` keeps other callers out.
        unsafe { *self.shared.job.0.get() = Some(job) };
        self.shared.start.wait();
        guarded(job, 0);
        self.shared.end.wait();
    }
}

impl Shared {
    fn work(&self, number: usize) {
        loop {
            self.start.wait();
            if self.is_over.load(Ordering::Acquire) {
                return;
            }
            // SAFETY: the job was stored before `start` was passed, and stays until `end` is.
            let job = unsafe { *self.job.0.get() };
            if let Some(job) = job {
                guarded(job, number);
            }
            self.end.wait();
        }
    }
}

/// Ends the process where the job panics.
fn guarded(job: Job<'_>, number: usize) {
    struct Guard;
    impl Drop for Guard {
        fn drop(&mut self) {
            abort();
        }
    }
    let guard = Guard;
    job(number);
    mem::forget(guard);
}

impl Drop for Team {
    fn drop(&mut self) {
        if self.handles.is_empty() {
            return;
        }
        self.shared.is_over.store(true, Ordering::Release);
        self.shared.start.wait();
        for handle in self.handles.drain(..) {
            // A worker does not panic, and there is nothing to do about one that did.
            let _ = handle.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    #[test]
    fn everyone_sees_what_all_did_before_the_barrier() {
        for n_threads in [1, 2, 3, 5] {
            let mut team = Team::new(n_threads).unwrap();
            let barrier = Barrier::new(n_threads);
            let count = AtomicUsize::new(0);
            for round in 1..=200 {
                team.run(&|_| {
                    for step in 1..=5 {
                        count.fetch_add(1, Ordering::Relaxed);
                        barrier.wait();
                        assert_eq!(count.load(Ordering::Relaxed), n_threads * ((round - 1) * 5 + step));
                        barrier.wait();
                    }
                });
            }
            assert_eq!(count.into_inner(), n_threads * 1000);
        }
    }

    #[test]
    fn each_thread_has_its_number_and_sleepers_wake() {
        let (done, is_done) = mpsc::channel();
        thread::spawn(move || {
            let mut team = Team::new(4).unwrap();
            let seen: [AtomicUsize; 4] = Default::default();
            for _ in 0..3 {
                while team.shared.start.n_asleep() < 3 {
                    thread::yield_now();
                }
                team.run(&|number| {
                    seen[number].fetch_add(1, Ordering::Relaxed);
                });
            }
            done.send(seen.map(AtomicUsize::into_inner)).unwrap();
        });
        assert_eq!(is_done.recv_timeout(Duration::from_mins(1)), Ok([3; 4]));
    }
}
