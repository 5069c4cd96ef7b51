//! Commands that measure, and what they write.
//!
//! In: a model and a text or sizes. Out: logits (`logits.rs`, `npy.rs`), scores (`perplexity.rs`), sums of inputs
//! (`imatrix.rs`), times (`bench.rs`, `saved.rs`, `timed.rs`).

pub(crate) mod bench;
pub(crate) mod imatrix;
pub(crate) mod logits;
pub(crate) mod npy;
pub(crate) mod perplexity;
pub(crate) mod saved;
pub(crate) mod timed;
