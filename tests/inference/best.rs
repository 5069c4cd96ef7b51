//! Tokens that are chosen where their scores are computed.
//!
//! In: the default model and the oracles, once with all logits and once with the best only. Out: the same tokens,
//! greedy and drawn; `gpu.rs` has the same for a GPU.

use std::ops::ControlFlow;
use std::path::PathBuf;

use fusebox_compiler::options::Numbers;
use fusebox_models::generate::{Generator, Settings};
use fusebox_models::layers::embed::Scored;
use fusebox_models::sample::Settings as Sampling;
use fusebox_runtime::session::Session;
use support::given::story;
use support::oracles;
use support::run::Run;

use crate::recorded::{MODELS, files};

/// Tokens of each answer.
const MOST_TOKENS: usize = 12;

/// The default model, and one file of each oracle.
pub(super) fn models() -> Vec<PathBuf> {
    let mut paths = vec![story()];
    let folder = oracles::folder();
    paths.extend(folder.iter().flat_map(|folder| MODELS.map(|(model, _)| folder.join(model))).filter_map(
        |folder| {
            let mut quantised = files(&folder).into_iter().filter(|(_, format)| format.is_some());
            quantised.next().map(|(path, _)| path)
        },
    ));
    paths
}

/// Greedy, and drawn from the three and the ten likeliest.
pub(super) fn samplings() -> [Sampling; 3] {
    [(0.0, 0), (0.8, 3), (1.5, 10)].map(|(temperature, top_k)| Sampling {
        temperature,
        top_k,
        top_p: 0.95,
        seed: 5,
        ..Sampling::default()
    })
}

/// The tokens that a session answers with, and the session.
pub(super) fn answer(session: Session, sampling: &Sampling, max_tokens: usize) -> (Vec<u32>, Session) {
    let settings =
        Settings { max_tokens, ignore_eos: true, sampling: sampling.clone(), ..Settings::default() };
    let mut generator = Generator::new(session, None, settings).unwrap();
    let answer = generator.answer(&[3, 14, 15, 9], &mut |_| ControlFlow::Continue(())).unwrap();
    (answer.tokens, generator.into_session().0)
}

#[test]
fn the_best_logits_give_the_tokens_that_all_give() {
    for path in models() {
        for sampling in samplings() {
            let tokens = |scored| {
                let mut run = Run::new(Numbers::Quantised);
                run.settings.scored = scored;
                answer(run.open(&path), &sampling, MOST_TOKENS).0
            };
            let best = Scored::TopK(sampling.device_top_k().unwrap());
            assert_eq!(tokens(best), tokens(Scored::Last), "{} {sampling:?}", path.display());
        }
    }
}

#[test]
fn a_session_with_too_few_of_the_best_is_refused() {
    let mut run = Run::new(Numbers::Single);
    run.settings.scored = Scored::TopK(3);
    let refused = |sampling| {
        let settings = Settings { sampling, ..Settings::default() };
        Generator::new(run.open(&models()[0]), None, settings).err().unwrap().to_string()
    };
    let four = refused(Sampling { temperature: 1.0, top_k: 4, ..Sampling::default() });
    assert_eq!(four, "sampling: expected a session that gives 4 logits, found 3");
    refused(Sampling { temperature: 1.0, ..Sampling::default() });
    refused(Sampling { repeat_penalty: 1.2, ..Sampling::default() });
}
