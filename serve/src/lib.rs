//! An inference server over Fusebox models.
//!
//! In: models, and requests over HTTP in the forms of OpenAI, Anthropic, Ollama and llama.cpp. Out: answers, whole or
//! as streams.
//! [`serve`] is the front door. `scheduler.rs` decides what each replay computes, over the seam in `engine/`;
//! `worker.rs` is the thread that owns an engine; `answer.rs` makes text of tokens; `routes.rs` says which path is
//! answered by which of `endpoints/`.

#![forbid(unsafe_code)]

mod answer;
mod app;
mod ask;
mod endpoints;
mod engine;
mod grammar;
mod http;
mod metrics;
mod model;
mod routes;
mod sampling;
mod scheduler;
mod server;
mod settings;
mod tools;
mod worker;

pub use app::Source;
pub use model::CHATML;
pub use server::serve;
pub use settings::Settings;
