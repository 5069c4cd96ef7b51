//! Llama, Mistral and all models of the same architecture.
//!
//! Run with `cargo run --release --example llama`: it shows the kernels of a block. With `-- --model PATH -p TEXT` it
//! runs a model of your own, and takes the flags of `fusebox run`. Nothing is downloaded.
//! A block is a page of mathematics: `models/src/layers/block.rs`. Its sizes: `models/src/families/published.rs`.

use std::process::ExitCode;

fn main() -> ExitCode {
    fusebox_cli::example("llama-3.2-1b")
}
