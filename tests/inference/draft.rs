//! Speculative decoding: an answer with a draft is the answer without one.
//!
//! In: the default model, and drafts that are right, wrong or both. Out: the same tokens, drawn or the likeliest, in
//! single precision, where a longer step rounds nearly as a shorter one does.

use std::ops::ControlFlow;
use std::sync::Arc;

use fusebox_compiler::foundation::random::Random;
use fusebox_compiler::options::Numbers;
use fusebox_models::draft::Draft;
use fusebox_models::draft::ngram::Ngram;
use fusebox_models::draft::smaller::Smaller;
use fusebox_models::error::Error;
use fusebox_models::generate::{Answer, Finish, Generator, Settings};
use fusebox_models::layers::embed::Scored;
use fusebox_models::load::Model;
use fusebox_models::sample;
use fusebox_models::tokenizer::Tokenizer;
use support::given::story;
use support::run::Run;

const PROMPT: [u32; 3] = [1, 403, 501];

/// Knows the sequence, and guesses wrong with a share of `wrong` in ten.
struct Known {
    sequence: Vec<u32>,
    wrong: usize,
    random: Random,
}

impl Draft for Known {
    fn guess(&mut self, tokens: &[u32], n: usize, guess: &mut Vec<u32>) -> Result<(), Error> {
        for at in tokens.len()..tokens.len() + n {
            let right = self.sequence.get(at).copied().unwrap_or(0);
            guess.push(if self.random.below(10) < self.wrong { 7 } else { right });
        }
        Ok(())
    }
}

fn tokenizer() -> Tokenizer {
    Tokenizer::open(Model::open(&story()).unwrap().checkpoint()).unwrap()
}

fn generator(settings: &Settings, draft: Option<Box<dyn Draft>>) -> Generator {
    let mut run = Run::new(Numbers::Single);
    run.settings.scores_every = draft.is_some();
    run.settings.scored = settings.sampling.device_top_k().map_or(Scored::Last, Scored::TopK);
    let session = run.open(&story());
    let mut generator = Generator::new(session, Some(Arc::new(tokenizer())), settings.clone()).unwrap();
    if let Some(draft) = draft {
        generator.set_draft(draft, 8).unwrap();
    }
    generator
}

fn answer(generator: &mut Generator, prompt: &[u32]) -> Answer {
    let mut text = String::new();
    let mut each = |piece: &str| {
        text += piece;
        ControlFlow::Continue(())
    };
    let answer = generator.answer(prompt, &mut each).unwrap();
    assert_eq!(text, answer.text);
    answer
}

fn drawn(temperature: f32, top_k: usize, repeat_penalty: f32) -> Settings {
    let sampling =
        sample::Settings { temperature, top_k, repeat_penalty, seed: 5, ..sample::Settings::default() };
    Settings { max_tokens: 60, ignore_eos: true, sampling, ..Settings::default() }
}

#[test]
fn a_draft_changes_no_token() {
    for settings in [drawn(0.0, 0, 1.0), drawn(0.0, 0, 1.3), drawn(0.9, 20, 1.0), drawn(1.0, 0, 1.1)] {
        let plain = answer(&mut generator(&settings, None), &PROMPT);
        assert_eq!((plain.timing.n_guessed, plain.timing.n_right), (0, 0));
        let sequence = [&PROMPT[..], &plain.tokens].concat();
        for wrong in [0, 3, 10] {
            let draft = Known { sequence: sequence.clone(), wrong, random: Random::new(1) };
            let mut own = generator(&settings, Some(Box::new(draft)));
            let found = answer(&mut own, &PROMPT);
            assert_eq!(found.tokens, plain.tokens, "{settings:?}, {wrong} of 10 wrong");
            let (n_guessed, n_right) = (found.timing.n_guessed, found.timing.n_right);
            assert!(n_guessed > 0 && n_right <= n_guessed);
            assert!(if wrong == 10 { n_right < n_guessed } else { n_right > 0 }, "{n_right} of {n_guessed}");
            assert_eq!(found.timing.n_decoded, plain.timing.n_decoded);
            // Nothing that was guessed stays in the KV cache.
            assert!(own.session().position() < sequence.len());
        }
        let found = answer(&mut generator(&settings, Some(Box::<Ngram>::default())), &PROMPT);
        assert_eq!(found.tokens, plain.tokens);
    }
}

#[test]
fn a_model_guesses_for_itself() {
    let settings = drawn(0.0, 0, 1.0);
    let plain = answer(&mut generator(&settings, None), &PROMPT);
    let mut run = Run::new(Numbers::Single);
    run.settings.scored = Scored::TopK(1);
    let draft = Smaller::new(run.open(&story()), &tokenizer(), &tokenizer()).unwrap();
    let mut own = generator(&settings, Some(Box::new(draft)));
    let found = answer(&mut own, &PROMPT);
    assert_eq!(found.tokens, plain.tokens);
    assert!(found.timing.n_guessed > 0);
    assert_eq!(found.timing.n_right, found.timing.n_guessed);
    // The conversation goes on, and then another one begins.
    let more = [&PROMPT[..], &plain.tokens, &[13, 14]].concat();
    let on = answer(&mut own, &more);
    assert_eq!(on.tokens, answer(&mut generator(&settings, None), &more).tokens);
    assert_eq!(answer(&mut own, &PROMPT).tokens, plain.tokens);
}

#[test]
fn an_answer_ends_where_it_would_without_a_draft() {
    let settings = Settings { max_tokens: 1000, ..drawn(0.0, 0, 1.0) };
    let plain = answer(&mut generator(&settings, None), &PROMPT);
    assert_eq!(plain.finish, Finish::Context);
    let sequence = [&PROMPT[..], &plain.tokens].concat();
    for stops in [vec![], vec![" the".to_owned()]] {
        let settings = Settings { stops, ..settings.clone() };
        let plain = answer(&mut generator(&settings, None), &PROMPT);
        let draft = Known { sequence: sequence.clone(), wrong: 1, random: Random::new(2) };
        let found = answer(&mut generator(&settings, Some(Box::new(draft))), &PROMPT);
        assert_eq!((found.finish, found.tokens, found.text), (plain.finish, plain.tokens, plain.text));
    }
}

#[test]
fn a_session_that_scores_the_last_token_takes_no_draft() {
    let session = Run::new(Numbers::Single).open(&story());
    let mut generator = Generator::new(session, None, drawn(0.0, 0, 1.0)).unwrap();
    let error = generator.set_draft(Box::<Ngram>::default(), 8).unwrap_err().to_string();
    assert!(error.contains("expected a session that scores every token of a step"), "{error}");
}
