//! `DeepSeek` V2, GLM-4.7-Flash and Youtu-LLM: multi-head latent attention (MLA), which the compiler absorbs by itself.
//!
//! Run with `cargo run --release --example deepseek`: it shows the kernels of a block. With `-- --model PATH -p TEXT`
//! it runs a model of your own, and takes the flags of `fusebox run`. Nothing is downloaded.
//! A block is a page of mathematics: `models/src/layers/block.rs`. Its sizes: `models/src/families/published.rs`.

use std::process::ExitCode;

fn main() -> ExitCode {
    fusebox_cli::example("deepseek-v2-lite")
}
