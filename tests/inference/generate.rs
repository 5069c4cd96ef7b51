//! Answers of a model: why they end, what they are made of, and that a conversation goes on where it stands.
//!
//! In: the default model. Out: the same tokens whatever was said in between, and only what is new is fed.

use std::ops::ControlFlow;
use std::sync::Arc;

use fusebox_compiler::options::Numbers;
use fusebox_models::generate::{Answer, Finish, Generator, Settings};
use fusebox_models::load::Model;
use fusebox_models::tokenizer::Tokenizer;
use support::given::story;
use support::run::Run;

fn tokenizer() -> Arc<Tokenizer> {
    Arc::new(Tokenizer::open(Model::open(&story()).unwrap().checkpoint()).unwrap())
}

fn generator(tokenizer: &Arc<Tokenizer>, max_tokens: usize) -> Generator {
    let settings = Settings { max_tokens, ignore_eos: true, ..Settings::default() };
    Generator::new(Run::new(Numbers::Single).open(&story()), Some(Arc::clone(tokenizer)), settings).unwrap()
}

/// An answer, whose pieces must be its text.
fn answer(generator: &mut Generator, prompt: &[u32]) -> Answer {
    let mut pieces = String::new();
    let mut each = |piece: &str| {
        pieces += piece;
        ControlFlow::Continue(())
    };
    let answer = generator.answer(prompt, &mut each).unwrap();
    assert_eq!(pieces, answer.text);
    answer
}

#[test]
fn a_conversation_feeds_only_what_is_new() {
    let tokenizer = tokenizer();
    let mut talk = generator(&tokenizer, 6);
    let first = tokenizer.encode("Once upon a time", true).unwrap();
    let begun = answer(&mut talk, &first);
    assert_eq!((begun.tokens.len(), begun.timing.n_prompt, begun.timing.n_decoded), (6, first.len(), 5));
    let more = [first.clone(), begun.tokens.clone(), vec![13, 14]].concat();
    let on = answer(&mut talk, &more);
    assert_eq!(on.timing.n_prompt, 3, "the last token of an answer is not fed before it is needed");
    let fresh = answer(&mut generator(&tokenizer, 6), &more);
    assert_eq!((on.tokens, on.text), (fresh.tokens, fresh.text));
    let again = answer(&mut talk, &first);
    assert_eq!((again.timing.n_prompt, again.tokens), (1, begun.tokens));
}

#[test]
fn a_refused_prompt_changes_nothing() {
    let tokenizer = tokenizer();
    let mut talk = generator(&tokenizer, 3);
    let prompt = [5, 6, 7];
    let before = answer(&mut talk, &prompt).tokens;
    let mut silent = |_: &str| -> ControlFlow<()> { panic!("nothing is handed on") };
    for refused in [vec![], vec![5, 99_999], vec![5; 257]] {
        assert!(talk.answer(&refused, &mut silent).is_err());
    }
    assert_eq!(answer(&mut talk, &prompt).tokens, before);
}

#[test]
fn who_wants_no_more_gets_no_more() {
    let tokenizer = tokenizer();
    let closed = generator(&tokenizer, 50).answer(&[5, 6], &mut |_| ControlFlow::Break(())).unwrap();
    assert_eq!(closed.finish, Finish::Closed);
    assert!(closed.tokens.len() < 50);
    let full = answer(&mut generator(&tokenizer, 1000), &[5, 6]);
    assert_eq!((full.finish, full.tokens.len()), (Finish::Context, 255));
    let none = answer(&mut generator(&tokenizer, 0), &[5, 6]);
    assert_eq!((none.finish, none.timing.first_token), (Finish::Length, None));
}

#[test]
fn a_long_prompt_may_be_stopped_between_its_pieces_and_goes_on_from_there() {
    let tokenizer = tokenizer();
    let mut talk = generator(&tokenizer, 4);
    let prompt: Vec<u32> = (0..200).map(|n| 5 + n % 60).collect();
    // A replay takes at most 64 tokens.
    let mut pieces = Vec::new();
    let mut stop = |piece: &str| {
        pieces.push(piece.to_owned());
        if pieces.len() == 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let stopped = talk.answer(&prompt, &mut stop).unwrap();
    assert_eq!((stopped.finish, stopped.tokens.len(), stopped.timing.n_prompt), (Finish::Closed, 0, 128));
    assert_eq!((pieces, talk.session().position()), (vec![String::new(); 2], 128));
    let on = answer(&mut talk, &prompt);
    assert_eq!(on.timing.n_prompt, 72, "what was fed is kept");
    assert_eq!(on.tokens, answer(&mut generator(&tokenizer, 4), &prompt).tokens);
}
