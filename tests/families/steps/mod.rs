//! Many steps: sequences, what they forget, and models without their ends.

pub(crate) mod chosen;
pub(crate) mod ends;
pub(crate) mod sequences;
pub(crate) mod sliding;
