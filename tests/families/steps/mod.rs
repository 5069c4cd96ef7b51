//! Many steps: sequences, what they forget, and models without their ends.

pub(crate) mod ends;
pub(crate) mod evict;
pub(crate) mod sequences;
