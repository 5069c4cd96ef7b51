//! The text side against recorded cases, and against invalid files.
//!
//! `recorded` compares tokens and chats with those of another engine, byte for byte, `pieces` those of `SentencePiece`
//! BPE, `unigram` those of the package `tokenizers`; `broken` writes invalid files.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that does not hold panics, its helpers too")]

mod broken;
mod pieces;
mod recorded;
mod unigram;
