//! Work stealing within a step: how threads share its tasks.
//!
//! In: the number of tasks. Out: each task once, to the threads that ask for one.
//! Each thread owns a contiguous range of tasks and takes them from the front, so it reads memory as one stream whose
//! start is known before the step begins. A thread without tasks steals from the back of another one's range.
//! Nothing is ordered by this: there is a barrier before a step, and one after it.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// What is left of the tasks of each thread: the first of them, and how many, in 32 bits each.
#[derive(Debug)]
pub(super) struct Shares(Vec<AtomicU64>);

impl Shares {
    /// No tasks, for `n_threads` threads.
    pub(super) fn new(n_threads: usize) -> Self {
        Self((0..n_threads.max(1)).map(|_| AtomicU64::new(0)).collect())
    }

    /// Shares tasks out.
    pub(super) fn deal(&mut self, n_tasks: i64) {
        let n_threads = self.0.len();
        for (thread, share) in self.0.iter_mut().enumerate() {
            let first = first(thread, n_threads, n_tasks);
            *share.get_mut() = packed(first..self::first(thread + 1, n_threads, n_tasks));
        }
    }

    /// Some tasks for a thread, until nobody has any left.
    pub(super) fn take(&self, thread: usize) -> Option<Range<i64>> {
        // Half of what is left, so that the rest may become others' tasks.
        let half = |left: &Range<i64>| (left.end - left.start + 1) / 2;
        let from_front = |left: Range<i64>| {
            let at = left.start + half(&left);
            (left.start..at, at..left.end)
        };
        let from_back = |left: Range<i64>| {
            let at = left.end - half(&left);
            (at..left.end, left.start..at)
        };
        let mut taken = cut(&self.0[thread], &from_front);
        while taken.is_none() {
            let n_left = |share: &&AtomicU64| share.load(Ordering::Relaxed) & u64::from(u32::MAX);
            let most = self.0.iter().max_by_key(n_left).filter(|share| n_left(share) > 0)?;
            taken = cut(most, &from_back);
        }
        taken
    }
}

/// The first task of a thread.
pub(super) fn first(thread: usize, n_threads: usize, n_tasks: i64) -> i64 {
    thread as i64 * n_tasks / n_threads as i64
}

/// Takes some of a share, if there is any: what a function divides it into is taken, and stays.
fn cut(share: &AtomicU64, divide: &dyn Fn(Range<i64>) -> (Range<i64>, Range<i64>)) -> Option<Range<i64>> {
    let mut before = share.load(Ordering::Relaxed);
    loop {
        let left = unpacked(before);
        if left.is_empty() {
            return None;
        }
        let (taken, rest) = divide(left);
        match share.compare_exchange_weak(before, packed(rest), Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return Some(taken),
            Err(now) => before = now,
        }
    }
}

fn packed(tasks: Range<i64>) -> u64 {
    let [first, n] = [tasks.start, tasks.end - tasks.start].map(u32::try_from);
    let all = "no memory holds what so many tasks store";
    u64::from(first.expect(all)) << 32 | u64::from(n.expect(all))
}

fn unpacked(share: u64) -> Range<i64> {
    let [first, n] = [share >> 32, share & u64::from(u32::MAX)].map(|n| n as i64);
    first..first + n
}

#[cfg(test)]
mod tests {
    use std::iter;

    use super::*;
    use crate::threads::each;

    #[test]
    fn every_task_is_taken_once() {
        for (n_threads, n_tasks) in [(1, 7), (2, 0), (2, 1), (3, 2), (4, 1000)] {
            let mut shares = Shares::new(n_threads);
            for _ in 0..20 {
                shares.deal(n_tasks);
                let own = |thread| iter::from_fn(|| shares.take(thread)).flatten().collect::<Vec<i64>>();
                let mut taken = each(n_threads, own).concat();
                taken.sort_unstable();
                assert_eq!(taken, (0..n_tasks).collect::<Vec<i64>>());
            }
        }
    }

    #[test]
    fn a_thread_begins_with_its_own_tasks_and_goes_on_with_the_last_of_others() {
        let mut shares = Shares::new(2);
        shares.deal(8);
        assert_eq!(shares.take(1), Some(4..6));
        assert_eq!(shares.take(1), Some(6..7));
        assert_eq!(shares.take(1), Some(7..8));
        assert_eq!(shares.take(1), Some(2..4));
        assert_eq!(shares.take(0), Some(0..1));
        assert_eq!(shares.take(0), Some(1..2));
        assert_eq!([shares.take(0), shares.take(1)], [None, None]);
    }
}
