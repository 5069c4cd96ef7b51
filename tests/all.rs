//! All integration tests, in one binary: it links once.
//!
//! `tidy` holds the source tree to the house rules.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that does not hold panics, its helpers too")]

mod commands;
mod differential;
mod families;
mod files;
mod inference;
mod oracles;
mod own;
mod road;
mod slow;
mod sources;
mod stories;
mod text;
mod tidy;
