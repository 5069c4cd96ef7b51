//! Two stories at once, as a program of your own would tell them.
//!
//! Run with `cargo run --release --example two_texts`: opens a model, reads two beginnings, and goes on with both, one
//! token of each at a time, so that each weight is read once for the two of them.

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

const BEGINNINGS: [&str; 2] = ["Once upon a time", "The dog was"];
const N_TOKENS: usize = 40;

#[expect(clippy::print_stdout, reason = "an example shows what it did")]
fn main() -> Result<(), Box<dyn Error>> {
    let model = Model::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/story.gguf"))?;
    let tokenizer = Tokenizer::open(model.checkpoint())?;
    let device = CpuDevice::new(Cpu::at(Level::host(), Numbers::Quantised)?, 2)?;
    let settings = Settings { context: 128, chunk: 32, cache: Format::F16, scored: Scored::Last };
    let (options, mut programs) = (Options::default(), Cache::default());
    let mut session =
        model.session_of_texts(Box::new(device), &settings, BEGINNINGS.len(), &options, &mut programs)?;
    let mut sampler = Sampler::new(sample::Settings::default(), session.n_vocab())?;

    let mut texts = Vec::new();
    for (number, beginning) in BEGINNINGS.iter().enumerate() {
        let tokens = tokenizer.encode(beginning, true)?;
        session.turn_to(number)?;
        session.feed(&tokens)?;
        texts.push(tokens);
    }
    for _ in 0..N_TOKENS {
        for (number, text) in texts.iter_mut().enumerate() {
            session.turn_to(number)?;
            text.push(sampler.next(session.logits(), text)?);
        }
        session.feed_each(&texts.iter().map(|text| text.last().copied()).collect::<Vec<_>>())?;
    }
    for text in texts {
        println!("{}\n", tokenizer.decode(&text, true));
    }
    Ok(())
}
