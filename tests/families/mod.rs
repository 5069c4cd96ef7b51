//! Models of all families from files, beyond those that others recorded.
//!
//! In: small models with random weights that the tests write themselves: of odd sizes, joined and cut apart, or making
//! no sense. Out: logits as the reference has them, or one sentence.
//! `made.rs` writes the files; all others read them.

mod arrays;
mod converted;
mod ends;
mod joined;
mod made;
mod odd;
mod packed;
mod pairs;
mod recorded;
mod refusals;
mod texts;
mod unsaid;
