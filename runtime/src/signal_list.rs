//! A list that a signal handler may read at any time.
//!
//! In: values, each for as long as its [`Entered`] lives. Out: the values on the list, read without a lock.
//! A removed entry stays in memory, because a handler may be reading it; an equal value uses it again.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// The list.
pub(crate) struct SignalList<T: 'static> {
    first: OnceLock<Box<Entry<T>>>,
}

struct Entry<T: 'static> {
    value: T,
    is_listed: AtomicBool,
    next: OnceLock<Box<Entry<T>>>,
}

/// Keeps a value on the list while it lives.
pub(crate) struct Entered<T: 'static> {
    entry: &'static Entry<T>,
}

impl<T: PartialEq> SignalList<T> {
    /// An empty list.
    pub(crate) const fn new() -> Self {
        Self { first: OnceLock::new() }
    }

    /// Puts a value on the list.
    pub(crate) fn add(&'static self, mut value: T) -> Entered<T> {
        let mut place = &self.first;
        loop {
            if let Some(entry) = place.get().map(Box::as_ref) {
                if entry.value == value && !entry.is_listed.swap(true, Ordering::AcqRel) {
                    return Entered { entry };
                }
                place = &entry.next;
                continue;
            }
            let entry = Entry { value, is_listed: AtomicBool::new(true), next: OnceLock::new() };
            match place.set(Box::new(entry)) {
                Ok(()) => return Entered { entry: place.get().expect("it was set just now") },
                // Another thread was faster: this entry goes after that one.
                Err(entry) => value = entry.value,
            }
        }
    }

    /// The values on the list; nothing is reserved or locked.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        let mut place = &self.first;
        let entries = std::iter::from_fn(move || {
            let entry = place.get()?;
            place = &entry.next;
            Some(entry)
        });
        entries.filter(|entry| entry.is_listed.load(Ordering::Acquire)).map(|entry| &entry.value)
    }
}

impl<T> Entered<T> {
    /// The value on the list, which an earlier and equal one may have left there.
    pub(crate) fn value(&self) -> &T {
        &self.entry.value
    }
}

impl<T: fmt::Debug> fmt::Debug for Entered<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.entry.value.fmt(f)
    }
}

impl<T> Drop for Entered<T> {
    fn drop(&mut self) {
        self.entry.is_listed.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_listed_while_their_guards_live() {
        static LIST: SignalList<u32> = SignalList::new();
        let all = || LIST.iter().copied().collect::<Vec<_>>();
        assert!(all().is_empty());
        let (one, two, again) = (LIST.add(1), LIST.add(2), LIST.add(1));
        assert_eq!(all(), [1, 2, 1]);
        drop(one);
        assert_eq!(all(), [2, 1]);
        let _one = LIST.add(1);
        drop((two, again));
        assert_eq!(all(), [1], "it is where it was before");
        assert_eq!(LIST.first.get().unwrap().value, 1);
    }

    #[test]
    fn threads_add_at_once() {
        static LIST: SignalList<usize> = SignalList::new();
        let add = |n: usize| std::thread::spawn(move || std::mem::forget(LIST.add(n)));
        (0..8).map(add).collect::<Vec<_>>().into_iter().for_each(|thread| thread.join().unwrap());
        let mut all: Vec<usize> = LIST.iter().copied().collect();
        all.sort_unstable();
        assert_eq!(all, (0..8).collect::<Vec<_>>());
    }
}
