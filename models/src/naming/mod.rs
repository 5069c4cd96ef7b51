//! The names of hyper-parameters and tensors in each kind of file.
//!
//! In: the kind of a checkpoint, and a hyper-parameter or a tensor by its name here. Out: the names it may have there.
//! `hparams.rs` has the names of hyper-parameters, `tensors.rs` of tensors, `tokenizer.rs` of the parts of a tokenizer
//! in GGUF, `files.rs` of sidecar files.

pub(crate) mod files;
pub(crate) mod hparams;
pub mod tensors;
pub(crate) mod tokenizer;
