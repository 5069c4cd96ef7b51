//! What the kinds of files call things.
//!
//! In: the kind of a checkpoint, and a key or a tensor by the name it has here. Out: the names it may have there.
//! `keys.rs` has the names of facts, `tensors.rs` those of tensors, `tokenizer.rs` those of the parts of a tokenizer,
//! `files.rs` those of the files beside weights.

pub(crate) mod files;
pub(crate) mod keys;
pub mod tensors;
pub(crate) mod tokenizer;
