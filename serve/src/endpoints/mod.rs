//! The endpoints, a file each, and what they share.
//!
//! In: the body of a request. Out: an answer, whole or as a stream. `messages.rs` makes messages of every interface
//! those of a template, `chat.rs` a conversation a prompt; `params.rs` has settings that OpenAI's endpoints share.
//!
//! | file | paths |
//! |---|---|
//! | `openai/chat.rs` | `/v1/chat/completions` |
//! | `openai/completions.rs` | `/v1/completions` |
//! | `responses.rs` | `/v1/responses`; nothing is stored |
//! | `embeddings.rs` | `/v1/embeddings` |
//! | `rerank.rs` | `/v1/rerank` |
//! | `anthropic.rs` | `/v1/messages` |
//! | `ollama.rs` | `/api/*`; no files are managed |
//! | `native.rs` | health, properties, slots, tokens, templates; no prompt is told |

pub(crate) mod anthropic;
pub(crate) mod chat;
pub(crate) mod embeddings;
pub(crate) mod messages;
pub(crate) mod native;
pub(crate) mod ollama;
pub(crate) mod openai;
pub(crate) mod params;
pub(crate) mod rerank;
pub(crate) mod responses;
