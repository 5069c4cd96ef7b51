//! Batched decoding from Rust: two sequences, decoded together.
//!
//! Run with `cargo run --release --example batch`: opens a model, prefills two prompts, and decodes both together, one
//! token of each per step, so that each weight is read once for both.

use std::error::Error;
use std::path::Path;

use fusebox_compiler::codegen::cpu::Cpu;
use fusebox_compiler::codegen::cpu::level::{Level, Numbers};
use fusebox_compiler::options::Options;
use fusebox_compiler::tensor::quant::Format;
use fusebox_models::layers::embed::Scored;
use fusebox_models::load::{Model, Settings};
use fusebox_models::sample::{self, Sampler};
use fusebox_models::tokenizer::Tokenizer;
use fusebox_runtime::device::cpu::CpuDevice;
use fusebox_runtime::session::cache::Cache;
use fusebox_runtime::session::engine::{Feed, Piece};

const PROMPTS: [&str; 2] = ["Once upon a time", "The dog was"];
const N_TOKENS: usize = 40;

#[expect(clippy::print_stdout, reason = "an example shows what it did")]
fn main() -> Result<(), Box<dyn Error>> {
    let model = Model::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/story.gguf"))?;
    let tokenizer = Tokenizer::open(model.checkpoint())?;
    let device = CpuDevice::new(Cpu::at(Level::host(), Numbers::Quantised)?, 2)?;
    let settings = Settings::of_batch(PROMPTS.len(), 128, 32, Format::F16, Scored::Last);
    let mut engine = model.engine(Box::new(device), &settings, &Options::default(), &Cache::default())?;
    let mut sampler = Sampler::new(sample::Settings::default(), model.config.vocab)?;

    // What each sequence is extended by next: its prompt, then one token after another.
    let mut next = Vec::new();
    for prompt in PROMPTS {
        next.push((engine.open(), tokenizer.encode(prompt, true)?));
    }
    for _ in 0..N_TOKENS {
        let pieces = next.iter();
        let pieces =
            pieces.map(|(sequence, tokens)| Piece { sequence: *sequence, feed: Feed::Tokens(tokens) });
        engine.step(&pieces.collect::<Vec<_>>())?;
        for (sequence, tokens) in &mut next {
            *tokens = vec![sampler.next(engine.logits(*sequence)?, engine.tokens(*sequence)?)?];
        }
    }
    for (sequence, _) in next {
        println!("{}\n", tokenizer.decode(engine.tokens(sequence)?, true));
    }
    Ok(())
}
