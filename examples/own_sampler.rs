//! A sampler of your own, for two sequences that are decoded together.
//!
//! Run with `cargo run --release --example own_sampler`: both begin alike, so that the second is a fork that shares the
//! pages of the first. One takes the likeliest token; the other the second likeliest wherever that is nearly as likely.

use fusebox::{Batch, Engine, Error, Model, Run, Sequence};

const N_TOKENS: usize = 40;
/// How much less a logit may be than the largest.
const NEAR: f32 = 1.0;

/// The likeliest token, or the second where it is near.
fn pick(engine: &Engine, sequence: Sequence, takes_second: bool) -> Result<u32, Error> {
    let logits = engine.logits(sequence)?;
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
    let is_near = logits[order[0]] - logits[order[1]] < NEAR;
    Ok(order[usize::from(takes_second && is_near)] as u32)
}

#[expect(clippy::print_stdout, reason = "an example shows what it did")]
fn main() -> Result<(), Error> {
    let mut engine = Model::built_in(Run::auto())?.engine(2)?;
    let first = engine.open();
    let mut batch = Batch::new();
    batch.add(first, engine.encode("The dog was")?);
    engine.step(&batch)?;
    let second = engine.fork(first)?;
    let mut next = [pick(&engine, first, false)?, pick(&engine, first, true)?];
    for _ in 0..N_TOKENS {
        let mut batch = Batch::new();
        batch.add(first, [next[0]]);
        batch.add(second, [next[1]]);
        engine.step(&batch)?;
        next = [pick(&engine, first, false)?, pick(&engine, second, true)?];
    }
    for sequence in [first, second] {
        println!("{}\n", engine.decode(engine.tokens(sequence)?)?);
        engine.release(sequence)?;
    }
    Ok(())
}
