//! Fusebox's compiler: a lazy graph of plain mathematics becomes a short list of fused kernels.
//!
//! The road is `pipeline::compile`: improve, partition, lower, plan. Every form along it can be printed and verified,
//! and a [`story`] tells what each stage did and why.
//! No file, device or model is known here.

#![deny(unsafe_code)]

pub mod codegen;
pub mod error;
pub mod foundation;
pub mod fuse;
pub mod graph;
pub mod kernel;
pub mod options;
pub mod pipeline;
pub mod program;
mod recount;
pub mod reference;
pub mod rewrite;
pub mod schedule;
pub mod story;
pub mod target;
pub mod tensor;
