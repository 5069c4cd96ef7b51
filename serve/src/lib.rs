//! An inference server over Fusebox models.
//!
//! In: models, and requests over HTTP in the forms of OpenAI, Anthropic, Ollama and llama.cpp. Out: answers, whole or
//! as streams.
//! [`serve`] is the front door. `scheduler.rs` decides what each replay computes, over the seam in `engine.rs`;
//! `worker.rs` is the thread that owns an engine; `answer.rs` makes text of tokens; `routes.rs` says which path is
//! answered by what.

#![forbid(unsafe_code)]

mod answer;
mod anthropic;
mod app;
mod ask;
mod chat;
mod embeddings;
mod encoder;
mod engine;
mod fields;
mod frames;
mod grammar;
mod ids;
mod json_scan;
mod messages;
mod metrics;
mod model;
mod native;
mod ollama;
mod openai_chat;
mod openai_completions;
mod page;
mod paged;
mod params;
mod problem;
mod reply;
mod rerank;
mod responses;
mod routes;
mod sampling;
mod scheduler;
mod server;
mod settings;
mod stall;
#[cfg_attr(not(feature = "tls"), path = "tls/none.rs")]
mod tls;
mod tools;
mod worker;

pub use app::Source;
pub use model::CHATML;
pub use server::serve;
pub use settings::Settings;
