//! OpenAI's two older endpoints, and what their answers share.

pub(crate) mod chat;
pub(crate) mod choices;
pub(crate) mod completions;
