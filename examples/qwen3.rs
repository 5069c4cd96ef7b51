//! A small Qwen3 tells a story.
//!
//! Run with `cargo run --release --example qwen3`. It takes the flags of `fusebox run`: `-- -m PATH -p TEXT` for a
//! model and a prompt of your own, `-- --print-kernels` for the kernels that run per token.
//! A block is a page of mathematics: `models/src/layers/block.rs`. Its sizes: `models/src/families/published.rs`.

use std::process::ExitCode;

fn main() -> ExitCode {
    fusebox_cli::run()
}
