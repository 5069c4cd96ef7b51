//! Commands that explain: a model file, a graph and its kernels, this machine.
//!
//! In: a file, the name of a block, or a device. Out: tables and stories, as text or JSON.

pub(crate) mod doctor;
pub(crate) mod example;
pub(crate) mod inspect;
pub(crate) mod print_kernels;
pub(crate) mod story;
