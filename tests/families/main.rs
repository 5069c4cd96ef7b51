//! Models of all families from files, besides the recorded ones.
//!
//! In: small models with random weights that the tests write: of odd sizes, fused and split, or invalid. Out: the
//! logits of the reference evaluator, or one sentence.
//! `made.rs` writes the files; all others read them.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that does not hold panics, its helpers too")]

mod adapters;
mod files;
mod importance;
mod made;
mod odd;
mod published;
mod refusals;
mod steps;
mod unsaid;
