//! Language models as plain mathematics.
//!
//! In: a [`Config`](config::Config) with the hyper-parameters of a model. Out: the graph of one step.
//! Nothing here knows of kernels, devices or speed: a layer is written as its paper writes it, even where that would be
//! slow if executed literally.
//! Start with `layers/block.rs`, one page per block; its parts are next to it, one idea per file.
//! `hparams.rs` and `families/` read the hyper-parameters of a model from its file; [`blocks`] has the graphs that
//! tools select by name.
//! [`tokenizer`], [`chat`], [`sample`] and [`generate`] are the text side. [`mod@quantize`] converts a model to another
//! format; [`adapters`] are added to one when it is opened.

#![forbid(unsafe_code)]

pub mod adapters;
pub mod binding;
pub mod blocks;
pub mod chat;
pub mod config;
pub mod draft;
pub mod embed;
pub mod error;
mod families;
pub mod generate;
mod hparams;
pub mod imatrix;
pub mod layers;
pub mod load;
pub mod naming;
pub mod own;
pub mod quantize;
pub mod sample;
mod sidecar;
pub mod tokenizer;
