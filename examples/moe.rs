//! Qwen3 with experts, of which only those are read that a token uses.
//!
//! Run with `cargo run --release --example moe`: it shows what a block becomes. With `-- --model PATH -p TEXT`
//! it runs a model of your own, and takes what `fusebox run` takes. Nothing is downloaded.
//! A block is a page of mathematics: `models/src/layers/block.rs`. Its sizes: `models/src/families/qwen3.rs`.

use std::process::ExitCode;

fn main() -> ExitCode {
    fusebox::example("qwen3-30b-a3b")
}
