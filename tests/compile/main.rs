//! Graphs and models through the compiler: whole roads, stories, kernels as text, and sources for GPUs.
//!
//! In: named blocks and models, the graphs of `tests/cases`, and the documents. Out: results as the definition has
//! them, exact counts, and snapshots.
//! `road.rs` compares and counts, `stories.rs` has a snapshot for each idea, `sources.rs` counts what GPUs are given;
//! `forms.rs`, `knobs.rs` and `rules.rs` hold the documents to the code.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that does not hold panics, its helpers too")]

mod forms;
mod knobs;
mod products;
mod road;
mod rules;
#[cfg(feature = "gpu")]
mod sources;
mod stories;
