//! Whole models from files, run on the processor, or on a GPU in `gpu.rs`, and held against what others recorded.
//!
//! In: checkpoints with the logits and tokens of Transformers, of exact arithmetic on the same weights, or of the
//! program whose format it is. Out: errors below the bars that stand beside each test.
//! `recorded.rs` compares; `session.rs` looks at what holds for every session, `generate.rs` at what holds for answers,
//! `best.rs` at where tokens are chosen.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that does not hold panics, its helpers too")]

use fusebox_runtime::session::Session;

mod best;
mod draft;
mod generate;
#[cfg(feature = "gpu")]
mod gpu;
mod recorded;
mod session;

/// The tokens that a session decodes greedily, with the logits of the first.
fn greedy(session: &mut Session, prompt: &[u32], n: usize) -> (Vec<f32>, Vec<u32>) {
    let first = session.feed(prompt).unwrap().to_vec();
    let mut tokens = vec![likeliest(&first)];
    while tokens.len() < n {
        let logits = session.feed(&[tokens[tokens.len() - 1]]).unwrap();
        tokens.push(likeliest(logits));
    }
    (first, tokens)
}

fn likeliest(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (token, logit) in logits.iter().enumerate() {
        if *logit > logits[best] {
            best = token;
        }
    }
    best as u32
}
