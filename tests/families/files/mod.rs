//! Models in every kind of file and format.

pub(crate) mod arrays;
pub(crate) mod converted;
pub(crate) mod formats;
pub(crate) mod joined;
pub(crate) mod packed;
pub(crate) mod pairs;
