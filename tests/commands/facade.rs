//! The library `fusebox` as a program uses it.
//!
//! In: the default model. Out: the same answers as those of the command, vectors, and sentences for what cannot be.

use std::ops::ControlFlow;

use fusebox::prelude::*;

use crate::{programs, told};

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../assets/story.gguf");

/// Greedy, with the program cache of the tests.
fn run() -> Run {
    Run { sampling: Some(Sampling::default()), cache: Some(programs()), ..Run::auto() }
}

fn model(run: Run) -> Model {
    Model::open(MODEL, run).expect("the default model")
}

#[test]
fn a_chat_answers_as_the_command_does() {
    let mut chat = model(Run { max_tokens: Some(16), ..run() }).chat(Some("Be brief.")).expect("a chat");
    let mut pieces = String::new();
    let answer = chat.stream("Tell me of a dog.", |piece| {
        pieces += piece;
        ControlFlow::Continue(())
    });
    let first = answer.expect("an answer").text;
    assert_eq!(pieces, first);
    let flags = ["run", MODEL, "-n", "16", "--temp", "0", "--system", "Be brief.", "Tell me of a dog."];
    assert_eq!(told(&flags), format!("{first}\n"));
    // What does not fit changes nothing; a chat goes on with all messages before.
    let long = "word ".repeat(5000);
    assert!(chat.say(&long).unwrap_err().to_string().contains("context length is 512"));
    let second = chat.say("And of a cat?").expect("an answer").text;
    let mut again = model(Run { max_tokens: Some(16), ..run() }).chat(Some("Be brief.")).expect("a chat");
    assert_eq!(again.say("Tell me of a dog.").expect("an answer").text, first);
    assert_eq!(again.say("And of a cat?").expect("an answer").text, second);
}

#[test]
fn a_text_goes_on_as_with_the_command_and_stops_when_it_is_told_to() {
    let mut writer = model(Run { max_tokens: Some(12), ..run() }).writer().expect("a writer");
    let whole = writer.go_on("The old man", |_| ControlFlow::Continue(())).expect("a text");
    assert_eq!(format!("{}\n", whole.text), told(&["run", "-p", "The old man", "-n", "12"]));
    let cut = writer.go_on("The old man", |_| ControlFlow::Break(())).expect("a text");
    assert!(cut.tokens.len() < whole.tokens.len() && whole.text.starts_with(&cut.text), "{cut:?}");
}

#[test]
fn vectors_have_length_one_and_are_those_of_their_text() {
    let cosine = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    let mut embedder = model(run()).embedder(Pooling::Mean).expect("an embedder");
    let mut embed = |text: &str| embedder.embed(text).expect("a vector");
    let (dog, cat, again) =
        (embed("A dog ran home."), embed("The cake was sweet."), embed("A dog ran home."));
    assert_eq!(dog, again);
    assert!((cosine(&dog, &dog) - 1.0).abs() < 1e-5);
    assert!(cosine(&dog, &cat) < 0.9);
    let last = model(run()).embedder(Pooling::Last).expect("an embedder").embed("A dog ran home.");
    assert!(cosine(&dog, &last.expect("a vector")) < 0.99);
    assert!(embedder.embed("").is_err());
}

#[test]
fn what_cannot_be_is_a_sentence() {
    let refused = |name: &str, run: Run| Model::open(name, run).err().expect("a sentence").to_string();
    assert!(refused("no-such.gguf", run()).contains("no-such.gguf"));
    assert!(refused(MODEL, Run { threads: Some(0), ..run() }).contains("expected 1 to 256"));
    assert!(refused(MODEL, Run { device: Some("abacus".to_owned()), ..run() }).contains("auto, cpu"));
    let mut long = model(Run { context: Some(100_000), ..run() });
    assert!(long.writer().err().expect("a sentence").to_string().contains("the model's context length"));
}
