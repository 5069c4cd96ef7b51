//! Typed ids, and the dense list an id indexes.
//!
//! In: items, pushed one by one. Out: an id each, good for that list alone.
//! An id is four bytes, ordered by creation, and never a bare `usize` across a function boundary.
//! Declare one with [`define_id!`](crate::define_id); `graph` and `kernel` show the use.

use std::marker::PhantomData;
use std::ops::{Index, IndexMut};

/// An index with a type of its own.
pub trait Id: Copy + Eq + Ord {
    /// The id of the item at `index`.
    fn from_index(index: usize) -> Self;
    /// The position of the item.
    fn index(self) -> usize;
}

/// Declares an id type: `define_id!(NodeId, "%")` prints as `%7`.
#[macro_export]
macro_rules! define_id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(u32);

        impl $crate::foundation::entity::Id for $name {
            fn from_index(index: usize) -> Self {
                Self(u32::try_from(index).expect("fewer than 2^32 items"))
            }
            fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(self, f)
            }
        }
    };
}

/// A dense list indexed by a typed id.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct List<I, T> {
    items: Vec<T>,
    id: PhantomData<I>,
}

impl<I: Id, T> List<I, T> {
    /// Appends an item and returns its id.
    pub fn push(&mut self, item: T) -> I {
        self.items.push(item);
        I::from_index(self.items.len() - 1)
    }

    /// How many items there are.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether there are no items.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Every id, in order of creation.
    pub fn ids(&self) -> impl DoubleEndedIterator<Item = I> + ExactSizeIterator + use<I, T> {
        (0..self.items.len()).map(I::from_index)
    }

    /// Every item with its id.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (I, &T)> + ExactSizeIterator {
        self.items.iter().enumerate().map(|(index, item)| (I::from_index(index), item))
    }

    /// The items in order, to be changed.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.items.iter_mut()
    }

    /// Every item.
    pub fn values(&self) -> std::slice::Iter<'_, T> {
        self.items.iter()
    }

    /// Every item with its id, given away.
    pub fn into_entries(self) -> impl Iterator<Item = (I, T)> {
        self.items.into_iter().enumerate().map(|(index, item)| (I::from_index(index), item))
    }

    /// The item, or nothing where the id belongs to another list.
    pub fn get(&self, id: I) -> Option<&T> {
        self.items.get(id.index())
    }
}

impl<I: Id, T> Default for List<I, T> {
    fn default() -> Self {
        Self { items: Vec::new(), id: PhantomData }
    }
}

impl<I: Id, T> FromIterator<T> for List<I, T> {
    fn from_iter<It: IntoIterator<Item = T>>(items: It) -> Self {
        Self { items: items.into_iter().collect(), id: PhantomData }
    }
}

impl<I: Id, T> Index<I> for List<I, T> {
    type Output = T;
    fn index(&self, id: I) -> &T {
        &self.items[id.index()]
    }
}

impl<I: Id, T> IndexMut<I> for List<I, T> {
    fn index_mut(&mut self, id: I) -> &mut T {
        &mut self.items[id.index()]
    }
}

impl<I: Id, T: std::fmt::Debug> std::fmt::Debug for List<I, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(&self.items).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    define_id!(
        /// An id for the tests.
        #[expect(unreachable_pub, reason = "ids are public where they are declared for others")]
        TestId,
        "#"
    );

    #[test]
    fn ids_count_up_and_find_their_items() {
        let mut list: List<TestId, &str> = List::default();
        let a = list.push("a");
        let b = list.push("b");
        assert!(a < b);
        assert_eq!((list[a], list[b]), ("a", "b"));
        assert_eq!(format!("{b} {b:?}"), "#1 #1");
        assert_eq!(list.ids().collect::<Vec<_>>(), [a, b]);
        assert!(list.get(TestId::from_index(2)).is_none());
    }
}
