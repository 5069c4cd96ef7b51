//! A chat from Rust: a message, and its answer as it comes.
//!
//! Run with `cargo run --release --example chat`; the small built-in model answers with a story. `Model::open` takes a
//! path, or `owner/name` for a model on the hub.

use std::ops::ControlFlow;

use fusebox::{Error, Model, Run};

#[expect(clippy::print_stdout, reason = "an example shows what it did")]
fn main() -> Result<(), Error> {
    let mut model = Model::built_in(Run { max_tokens: Some(60), ..Run::auto() })?;
    let mut chat = model.chat(Some("You tell stories."))?;
    let answer = chat.stream("Tell me of a dog.", |piece| {
        print!("{piece}");
        ControlFlow::Continue(())
    })?;
    println!("\n\n{} tokens", answer.tokens.len());
    Ok(())
}
