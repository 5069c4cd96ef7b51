//! A decoder defined in code: blocks as data, with the weights of a GGUF file.
//!
//! Run with `cargo run --release --example define`: describes every block of a small model, binds the weights of a file
//! to it, and generates. No family is asked for; another mixer, network or order of norms is another line here.

use std::error::Error;
use std::path::Path;

use fusebox_compiler::codegen::cpu::Cpu;
use fusebox_compiler::codegen::cpu::level::{Level, Numbers};
use fusebox_compiler::options::Options;
use fusebox_compiler::tensor::quant::Format;
use fusebox_models::config::{Block, Config, Dense, Grouped, Mixer, Network, Pairing, QkNorm, Rope, Scaling};
use fusebox_models::layers::embed::Scored;
use fusebox_models::load::{Model, Settings};
use fusebox_models::sample::{self, Sampler};
use fusebox_models::tokenizer::Tokenizer;
use fusebox_runtime::device::cpu::CpuDevice;
use fusebox_runtime::session::cache::Cache;

const PROMPT: &str = "Once upon a time";
const N_TOKENS: usize = 40;

/// Five blocks of attention with QK norm and SwiGLU.
fn decoder() -> Config {
    let rope = Rope { theta: 1e4, pairing: Pairing::Halves, scaling: Scaling::None };
    let heads = Grouped { rope: Some(rope), qk_norm: Some(QkNorm::Head), ..Grouped::new(6, 2, 64) };
    let block = Block::new(Mixer::Grouped(heads), Network::Dense(Dense::swiglu(512)));
    Config { tied: true, ..Config::new(vec![block; 5], 256, 1536, 512) }
}

#[expect(clippy::print_stdout, reason = "an example shows what it did")]
fn main() -> Result<(), Box<dyn Error>> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/story.gguf");
    let model = Model::define(&file, decoder())?;
    let tokenizer = Tokenizer::open(model.checkpoint())?;
    let device = CpuDevice::new(Cpu::at(Level::host(), Numbers::Quantised)?, 2)?;
    let settings = Settings::of_one(128, 32, Format::F16, Scored::Last);
    let mut session = model.session(Box::new(device), &settings, &Options::default(), &Cache::default())?;
    let mut sampler = Sampler::new(sample::Settings::default(), session.n_vocab())?;

    let mut tokens = tokenizer.encode(PROMPT, true)?;
    session.feed(&tokens)?;
    for _ in 0..N_TOKENS {
        let token = sampler.next(session.logits(), &tokens)?;
        tokens.push(token);
        session.feed(&[token])?;
    }
    println!("{}", tokenizer.decode(&tokens, true));
    Ok(())
}
