//! Models of all families from files, besides the recorded ones.
//!
//! In: small models with random weights that the tests write: of odd sizes, fused and split, or invalid. Out: the
//! logits of the reference evaluator, or one sentence.
//! `made.rs` writes the files; all others read them.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that does not hold panics, its helpers too")]

mod adapters;
mod arrays;
mod converted;
mod decoders;
mod encoders;
mod ends;
mod evict;
mod formats;
mod importance;
mod joined;
mod made;
mod odd;
mod oracles;
mod packed;
mod pairs;
mod recorded;
mod refusals;
mod sequences;
mod unsaid;
