//! The barrier of the thread team, under every order of its threads that the memory model allows.
//!
//! In: `runtime/src/threads/barrier.rs`, made of loom's atomics, mutexes and condition variables. Out: nothing, or the
//! order in which a thread passes early, does not see what another did, or sleeps for ever.
//! The tests are short, as every order is tried: a few threads pass a few times. Nobody spins: who waits looks once
//! more after it let others run, then sleeps.

// The barrier is compiled for the tests alone.
#![cfg(test)]

#[path = "../../../runtime/src/threads/barrier.rs"]
mod barrier;

/// What the barrier is made of here.
mod parts {
    pub(super) use std::sync::PoisonError;

    pub(super) use loom::hint::spin_loop;
    pub(super) use loom::sync::atomic::{AtomicUsize, Ordering, fence};
    pub(super) use loom::sync::{Condvar, Mutex};
    pub(super) use loom::thread::yield_now;

    pub(super) const SPINS: usize = 0;
    pub(super) const YIELDS: usize = 1;
}

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;

use barrier::Barrier;

/// Runs `work` on some threads under every order, this one included; each is given its number.
fn under_every_order<T: Send + Sync + 'static>(
    n_threads: usize,
    made: fn(usize) -> T,
    work: fn(&T, usize),
    done: fn(&T),
) {
    let mut builder = loom::model::Builder::new();
    // More switches by force change little and take hours.
    builder.preemption_bound = Some(if n_threads > 2 { 2 } else { 3 });
    builder.check(move || {
        let shared = Arc::new(made(n_threads));
        let others: Vec<_> = (1..n_threads)
            .map(|number| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || work(&shared, number))
            })
            .collect();
        work(&shared, 0);
        for other in others {
            other.join().unwrap();
        }
        done(&shared);
    });
}

struct Counted {
    barrier: Barrier,
    n_before: AtomicUsize,
    n_last: AtomicUsize,
}

fn counted(n_threads: usize) -> Counted {
    Counted { barrier: Barrier::new(n_threads), n_before: AtomicUsize::new(0), n_last: AtomicUsize::new(0) }
}

fn pass(shared: &Counted, n_rounds: usize) {
    let n_threads = shared.barrier.n_threads();
    for round in 1..=n_rounds {
        shared.n_before.fetch_add(1, Ordering::Relaxed);
        if shared.barrier.wait() {
            shared.n_last.fetch_add(1, Ordering::Relaxed);
        }
        let seen = shared.n_before.load(Ordering::Relaxed);
        assert!(seen >= round * n_threads, "{seen} of {n_threads} threads in round {round}");
    }
}

/// In each round one thread was the last, and nobody sleeps when all have left.
fn is_over(shared: &Counted, n_rounds: usize) {
    assert_eq!(shared.n_last.load(Ordering::Relaxed), n_rounds);
    assert_eq!(shared.barrier.n_asleep(), 0);
}

#[test]
fn two_threads_pass_twice() {
    under_every_order(2, counted, |shared, _| pass(shared, 2), |shared| is_over(shared, 2));
}

#[test]
fn three_threads_pass() {
    under_every_order(3, counted, |shared, _| pass(shared, 1), |shared| is_over(shared, 1));
}

/// What a team does: the first thread puts a job where the others read it, between two barriers.
struct Jobs {
    start: Barrier,
    end: Barrier,
    job: UnsafeCell<usize>,
}

// SAFETY: that `job` is never read while it is written is what the test is about; loom panics where it is.
unsafe impl Sync for Jobs {}

#[test]
fn a_job_is_written_while_nobody_reads_it() {
    let jobs = |n_threads| Jobs {
        start: Barrier::new(n_threads),
        end: Barrier::new(n_threads),
        job: UnsafeCell::new(0),
    };
    let work = |shared: &Jobs, number| {
        for job in 1..=2 {
            if number == 0 {
                // SAFETY: loom looks whether another thread is there.
                shared.job.with_mut(|own| unsafe { *own = job });
            }
            shared.start.wait();
            // SAFETY: as above.
            assert_eq!(shared.job.with(|own| unsafe { *own }), job);
            shared.end.wait();
        }
    };
    under_every_order(2, jobs, work, |shared| assert_eq!(shared.end.n_asleep(), 0));
}
