//! Language models compiled into a few fused kernels, as a library.
//!
//! ```no_run
//! use fusebox::prelude::*;
//!
//! let mut chat = Model::open("model.gguf", Run::auto())?.chat(None)?;
//! println!("{}", chat.say("Why is the sky blue?")?.text);
//! # Ok::<(), fusebox::Error>(())
//! ```
//!
//! | to | take |
//! |---|---|
//! | chat | [`Model::chat`] |
//! | continue a text | [`Model::writer`] |
//! | turn texts into vectors | [`Model::embedder`] |
//! | score how well documents answer a query | [`Model::ranker`] |
//! | decode many sequences together, with a sampler of your own | [`Model::engine`] |
//! | describe a decoder of your own | [`Model::define`], with the formulas in [`nn`] |
//! | open files of an architecture of your own | [`register_family`] |
//! | add a rewrite rule | [`Run::rules`], after [`rewrite::check`] |
//! | compile a graph that is no language model | [`graph`], [`Program`] |
//! | take a text apart, or render messages | [`tokenizer`], [`template`] |
//! | look into a file | [`weights`] |
//!
//! Everything goes along one road:
//!
//! ```text
//!  file ─► Model ──────────► Graph ─► improved Graph ─► regions ─► kernels ─► plan ─► program ─► Engine ─► logits
//!          config, tokenizer (formulas)  (rewrite rules)  (fusion)            (memory)  (machine code,  (sequences,
//!                                                                                        on disk)        KV cache)
//! ```
//!
//! A model is formulas on tensors with named axes, for which the compiler finds the cheapest equal form, decides what
//! shares a kernel, and makes code. Handles are `Run::auto()`'s choice of device, threads, context and memory, which is
//! that of the command; they own what they use.
//! This crate is a front: `fusebox-compiler`, `fusebox-runtime` and `fusebox-models` do the work, and may change where
//! this one does not. The command is the crate `fusebox-cli`, the server `fusebox-serve`.

#![forbid(unsafe_code)]

pub mod chat;
pub mod devices;
pub mod drafts;
pub mod engine;
mod error;
pub mod host;
#[cfg_attr(not(feature = "hub"), path = "hub/none.rs")]
pub mod hub;
mod model;
pub mod open;
pub mod profile;
mod program;
pub mod sampling;
pub mod watch;
mod writer;

pub use chat::Chat;
pub use engine::{Batch, Engine, Sequence};
pub use error::Error;
pub use fusebox_models::config::Config;
pub use fusebox_models::embed::pooling::{self, Pooling};
pub use fusebox_models::generate::{Answer, stop};
pub use fusebox_models::own::{Decoder, register_family};
pub use fusebox_models::sample::{Sampler, Settings as Sampling};
pub use fusebox_models::{
    adapters, blocks, chat as template, draft, embed, generate, layers as nn, quantize, sample, tokenizer,
};
pub use fusebox_runtime::session::Session;
pub use fusebox_runtime::session::kin::Kin;
pub use fusebox_runtime::{files, weights};
pub use model::Model;
pub use open::run::{Evict, KvPool, Policy, Run};
pub use program::Program;
pub use writer::{Embedder, Ranker, Writer};

/// The hyper-parameters of a model, as plain data: blocks of a mixer and a network each, and what is around them.
pub mod config {
    pub use fusebox_models::config::attention::{
        Grouped, Latent, OutputGate, QkNorm, Temperature, Values, Window,
    };
    pub use fusebox_models::config::network::{Activation, Dense, Experts, Gate, Groups};
    pub use fusebox_models::config::recurrent::{Beside, Delta, ShortConv, SpaceNorm, StateSpace};
    pub use fusebox_models::config::rope::{Pairing, Rope, Scaling};
    pub use fusebox_models::config::{
        Added, Block, Choices, Config, Ends, Formats, KvCache, Mixer, Network, Order, PAGE_ROWS, Pooler,
        Positions, Ranking,
    };
}

/// Amounts, tables and faults of files, for people.
pub mod text {
    pub use fusebox_compiler::foundation::{amount, table};
    pub use fusebox_runtime::error::fault_of_io;
}

/// Graphs: operations on tensors with named axes.
pub mod graph {
    pub use fusebox_compiler::graph::Graph;
    pub use fusebox_compiler::graph::build::{Builder, Dim, Tensor};
    pub use fusebox_compiler::graph::op::{Binary, Op, Unary};
    pub use fusebox_compiler::tensor::dtype::DType;
    pub use fusebox_compiler::tensor::quant::Format;
}

/// Rewrite rules: equalities that may save time, and whether they are true.
pub mod rewrite {
    pub use fusebox_compiler::rewrite::check::{Checked, check, check_on};
    pub use fusebox_compiler::rewrite::language::{EGraph, ENode, Kind};
    pub use fusebox_compiler::rewrite::rules::rule::{HoldsFor, Rule};
    pub use fusebox_compiler::rewrite::term::{Term, binary, contract, mul};
}

/// What most programs need.
pub mod prelude {
    pub use crate::{
        Answer, Batch, Chat, Embedder, Engine, Error, Model, Pooling, Ranker, Run, Sampler, Sampling,
        Sequence, Writer,
    };
}
