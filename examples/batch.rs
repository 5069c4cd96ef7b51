//! Batched decoding from Rust: two sequences, decoded together.
//!
//! Run with `cargo run --release --example batch`: opens a model, prefills two prompts, and decodes both together, one
//! token of each per step, so that each weight is read once for both.

use fusebox::{Batch, Error, Model, Run, Sampler, Sampling};

const PROMPTS: [&str; 2] = ["Once upon a time", "The dog was"];
const N_TOKENS: usize = 40;

#[expect(clippy::print_stdout, reason = "an example shows what it did")]
fn main() -> Result<(), Error> {
    let mut engine = Model::built_in(Run { context: Some(128), ..Run::auto() })?.engine(PROMPTS.len())?;
    let mut sampler = Sampler::new(Sampling::default(), engine.n_vocab())?;
    // What each sequence is extended by next: its prompt, then one token after another.
    let mut next = Vec::new();
    for prompt in PROMPTS {
        next.push((engine.open(), engine.encode(prompt)?));
    }
    for _ in 0..N_TOKENS {
        let mut batch = Batch::new();
        for (sequence, tokens) in &next {
            batch.add(*sequence, tokens.clone());
        }
        engine.step(&batch)?;
        for (sequence, tokens) in &mut next {
            *tokens = vec![sampler.next(engine.logits(*sequence)?, engine.tokens(*sequence)?)?];
        }
    }
    for (sequence, _) in next {
        println!("{}\n", engine.decode(engine.tokens(sequence)?)?);
    }
    Ok(())
}
