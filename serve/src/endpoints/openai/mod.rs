//! OpenAI's chat and completions, and what their answers share.
//!
//! In: the body of a request. Out: one answer with its choices, or its chunks.

pub(crate) mod chat;
pub(crate) mod choices;
pub(crate) mod completions;
