//! Llama, Mistral and all that are built like them.
//!
//! Run with `cargo run --release --example llama`: it shows what a block becomes. With `-- --model PATH -p TEXT`
//! it runs a model of your own, and takes what `fusebox run` takes. Nothing is downloaded.
//! A block is a page of mathematics: `models/src/layers/block.rs`. Its sizes: `models/src/families/llama.rs`.

use std::process::ExitCode;

fn main() -> ExitCode {
    fusebox::example("llama-3.2-1b")
}
