//! Embeddings from Rust: which of two sentences is nearer to a third.
//!
//! Run with `cargo run --release --example embeddings`; for real use open a model that was trained for it.

use fusebox::{Error, Model, Pooling, Run};

const QUERY: &str = "The little dog ran to the park.";
const TEXTS: [&str; 2] = ["A small dog runs in the park.", "She was sad and began to cry."];

#[expect(clippy::print_stdout, reason = "an example shows what it did")]
fn main() -> Result<(), Error> {
    let mut embedder = Model::built_in(Run::auto())?.embedder(Pooling::Mean)?;
    let query = embedder.embed(QUERY)?;
    for text in TEXTS {
        // Vectors have length 1, so that a product is the cosine of the angle between two.
        let cosine: f32 = embedder.embed(text)?.iter().zip(&query).map(|(a, b)| a * b).sum();
        println!("{cosine:.3}  {text}");
    }
    Ok(())
}
