//! A list that a signal may read at any time.
//!
//! In: values that matter while something lasts. Out: those that do, found without a lock.
//! An entry that was taken off stays in memory, for a signal may be looking at it; an equal value takes its place.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// The list.
pub(crate) struct Noted<T: 'static> {
    first: OnceLock<Box<Entry<T>>>,
}

struct Entry<T: 'static> {
    value: T,
    lasts: AtomicBool,
    next: OnceLock<Box<Entry<T>>>,
}

/// While it lives, a value is on the list.
#[derive(Debug)]
pub(crate) struct Note {
    lasts: &'static AtomicBool,
}

impl<T: PartialEq> Noted<T> {
    /// An empty list.
    pub(crate) const fn new() -> Self {
        Self { first: OnceLock::new() }
    }

    /// Puts a value on the list.
    pub(crate) fn add(&'static self, mut value: T) -> Note {
        let mut place = &self.first;
        loop {
            if let Some(Entry { value: own, lasts, next }) = place.get().map(Box::as_ref) {
                if *own == value && !lasts.swap(true, Ordering::AcqRel) {
                    return Note { lasts };
                }
                place = next;
                continue;
            }
            let entry = Entry { value, lasts: AtomicBool::new(true), next: OnceLock::new() };
            match place.set(Box::new(entry)) {
                Ok(()) => {
                    let Entry { lasts, .. } = place.get().expect("it was set just now").as_ref();
                    return Note { lasts };
                }
                // Another thread was faster, and this one goes behind.
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
        entries.filter(|entry| entry.lasts.load(Ordering::Acquire)).map(|entry| &entry.value)
    }
}

impl Drop for Note {
    fn drop(&mut self) {
        self.lasts.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_there_while_their_notes_live() {
        static LIST: Noted<u32> = Noted::new();
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
        static LIST: Noted<usize> = Noted::new();
        let add = |n: usize| std::thread::spawn(move || std::mem::forget(LIST.add(n)));
        (0..8).map(add).collect::<Vec<_>>().into_iter().for_each(|thread| thread.join().unwrap());
        let mut all: Vec<usize> = LIST.iter().copied().collect();
        all.sort_unstable();
        assert_eq!(all, (0..8).collect::<Vec<_>>());
    }
}
