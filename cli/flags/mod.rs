//! Flags that commands share.
//!
//! In: a command line. Out: what is opened, drawn and dropped by it. `model.rs` has the model, device and precision,
//! `fetch.rs` what fetches a model by name, `adapters.rs` LoRA, `prompt.rs` the prompt, `sampling.rs` how tokens are
//! drawn; `draft.rs`, `evict.rs`, `prompt_cache.rs` and `switch.rs` have what their names say; `given.rs` looks at
//! files that flags name, `foreign.rs` takes the flags of other programs.

pub(crate) mod adapters;
pub(crate) mod draft;
pub(crate) mod evict;
#[cfg(feature = "hub")]
pub(crate) mod fetch;
pub(crate) mod foreign;
pub(crate) mod given;
pub(crate) mod model;
pub(crate) mod prompt;
pub(crate) mod prompt_cache;
pub(crate) mod sampling;
pub(crate) mod switch;
