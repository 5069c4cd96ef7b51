//! A decoder defined in code: blocks as data, with the weights of a GGUF file.
//!
//! Run with `cargo run --release --example define`: describes every block of a small model, binds the weights of a file
//! to it, and generates. No family is asked for; another mixer, network or order of norms is another line here.
//! `own_model.rs` writes the formulas of its blocks instead.

use std::ops::ControlFlow;
use std::path::Path;

use fusebox::config::{Block, Config, Dense, Grouped, Mixer, Network, Pairing, QkNorm, Rope, Scaling};
use fusebox::{Error, Model, Run};

const PROMPT: &str = "Once upon a time";

/// Five blocks of attention with QK norm and SwiGLU.
fn decoder() -> Config {
    let rope = Rope { theta: 1e4, pairing: Pairing::Halves, scaling: Scaling::None };
    let heads = Grouped { rope: Some(rope), qk_norm: Some(QkNorm::Head), ..Grouped::new(6, 2, 64) };
    let block = Block::new(Mixer::Grouped(heads), Network::Dense(Dense::swiglu(512)));
    Config { tied: true, ..Config::new(vec![block; 5], 256, 1536, 512) }
}

#[expect(clippy::print_stdout, reason = "an example shows what it did")]
fn main() -> Result<(), Error> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/story.gguf");
    let mut model = Model::define(file, decoder(), Run { max_tokens: Some(40), ..Run::auto() })?;
    let answer = model.writer()?.go_on(PROMPT, |_| ControlFlow::Continue(()))?;
    println!("{PROMPT}{}", answer.text);
    Ok(())
}
