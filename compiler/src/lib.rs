//! Fusebox's compiler: a lazy graph of plain mathematics becomes a short list of fused kernels.
//!
//! The road is `pipeline::compile`: improve, partition, lower, prepare, plan. Every form along it can be printed and
//! verified, and a [`story`] tells what each stage did and why.
//! No file, device or model is known here.
//!
//! The doors are few: [`graph::build::Builder`] records a graph, [`pipeline::compile`] makes a
//! [`Plan`](schedule::Plan) of it, [`schedule::run::run`] interprets that with every access checked, and
//! [`codegen`] makes code of its kernels. Beside them stand [`options::Options`], for targets and limits, and
//! [`reference::evaluate`], which says what a graph means.
//!
//! ```
#![doc = include_str!("../../examples/hello_fusion.rs")]
//! ```

#![deny(unsafe_code)]

pub mod codegen;
pub mod error;
#[cfg(feature = "cpu")]
pub mod forms;
pub mod foundation;
pub mod fuse;
pub mod graph;
pub mod kernel;
pub mod options;
pub mod pipeline;
pub mod prepare;
pub mod program;
mod recount;
pub mod reference;
pub mod rewrite;
pub mod schedule;
pub mod story;
pub mod target;
pub mod tensor;

pub use fusebox_formats as formats;
#[cfg(feature = "cpu")]
pub use fusebox_simd as simd;
