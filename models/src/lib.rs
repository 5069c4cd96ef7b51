//! Language models as plain mathematics.
//!
//! In: a [`Config`](config::Config) with the sizes of a model. Out: a graph of what one step of it computes.
//! Nothing here knows of kernels, devices or speed: a layer is written as its paper writes it, also where that would
//! be slow if taken at its word.
//! Start with `layers/block.rs`, where a block is a page; what it is made of stands beside it, one idea a file.
//! `families/` reads the sizes of a model from its file; the graphs that tools ask for by name come from [`blocks`].
//! The text side stands beside: [`tokenizer`], [`chat`] and [`sample`] turn words into tokens and back; [`generate`]
//! brings both sides together. [`mod@quantize`] writes a model in smaller formats.

#![forbid(unsafe_code)]

mod beside;
pub mod binding;
pub mod blocks;
pub mod chat;
pub mod config;
pub mod error;
mod facts;
mod families;
pub mod generate;
pub mod layers;
pub mod load;
pub mod naming;
pub mod quantize;
pub mod sample;
mod stop;
pub mod tokenizer;
