//! The text side against recorded cases, and against invalid files.
//!
//! `recorded` compares tokens and chats with those of another engine, byte for byte, `pieces` those of `SentencePiece`
//! BPE; `broken` writes invalid files.

mod broken;
mod pieces;
mod recorded;
