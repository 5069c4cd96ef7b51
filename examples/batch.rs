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
use fusebox_runtime::session::SequenceId;
use fusebox_runtime::session::cache::Cache;

const PROMPTS: [&str; 2] = ["Once upon a time", "The dog was"];
const N_TOKENS: usize = 40;

#[expect(clippy::print_stdout, reason = "an example shows what it did")]
fn main() -> Result<(), Box<dyn Error>> {
    let model = Model::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/story.gguf"))?;
    let tokenizer = Tokenizer::open(model.checkpoint())?;
    let device = CpuDevice::new(Cpu::at(Level::host(), Numbers::Quantised)?, 2)?;
    let settings = Settings { context: 128, chunk: 32, cache: Format::F16, scored: Scored::Last };
    let (options, programs) = (Options::default(), Cache::default());
    let mut session =
        model.session_of_sequences(Box::new(device), &settings, PROMPTS.len(), &options, &programs)?;
    let mut sampler = Sampler::new(sample::Settings::default(), session.n_vocab())?;

    let mut sequences = Vec::new();
    for (number, prompt) in PROMPTS.iter().enumerate() {
        let tokens = tokenizer.encode(prompt, true)?;
        session.select(SequenceId(number))?;
        session.feed(&tokens)?;
        sequences.push(tokens);
    }
    for _ in 0..N_TOKENS {
        for (number, sequence) in sequences.iter_mut().enumerate() {
            session.select(SequenceId(number))?;
            sequence.push(sampler.next(session.logits(), sequence)?);
        }
        session
            .decode_batch(&sequences.iter().map(|sequence| sequence.last().copied()).collect::<Vec<_>>())?;
    }
    for sequence in sequences {
        println!("{}\n", tokenizer.decode(&sequence, true));
    }
    Ok(())
}
