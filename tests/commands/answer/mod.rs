//! Commands that generate.

mod chat;
mod evict;
mod prompt_cache;
mod run;
mod switch;
mod tokens;
