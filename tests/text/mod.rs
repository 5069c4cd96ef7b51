//! The text side against recorded cases, and against files that are made to be wrong.
//!
//! `recorded` compares tokens and chats with what another engine said, byte for byte, `pieces` those of scored pieces;
//! `broken` writes bad files.

mod broken;
mod pieces;
mod recorded;
