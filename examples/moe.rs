//! Qwen3-MoE: a mixture of experts, of which only the selected ones are read.
//!
//! Run with `cargo run --release --example moe`: it shows the kernels of a block. With `-- --model PATH -p TEXT` it
//! runs a model of your own, and takes the flags of `fusebox run`. Nothing is downloaded.
//! A block is a page of mathematics: `models/src/layers/block.rs`. Its sizes: `models/src/families/published.rs`.

use std::process::ExitCode;

fn main() -> ExitCode {
    fusebox_cli::example("qwen3-30b-a3b")
}
