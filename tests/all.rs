//! All integration tests, in one binary: it links once.
//!
//! `tidy` holds the source tree to the house rules.

mod differential;
mod slow;
mod tidy;
