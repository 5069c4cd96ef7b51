//! What the kinds of files call things.
//!
//! In: the kind of a checkpoint, and a key or a tensor by the name it has here. Out: the names it may have there.
//! Every name that a file has of its own stands in this folder, and nowhere else: `keys.rs` has those of facts,
//! `tensors.rs` those of tensors.

pub mod keys;
pub mod tensors;
