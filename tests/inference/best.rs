//! Tokens that are chosen where their scores are computed.
//!
//! In: the default model and the oracles, once with all logits and once with the best only. Out: the same tokens,
//! greedy and drawn, on the processor and on a GPU; and what comes back for each of them.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use fusebox_compiler::codegen::cpu::level::Numbers;
use fusebox_models::generate::{Generator, Settings};
use fusebox_models::layers::embed::Scored;
use fusebox_models::sample::Settings as Sampling;
use fusebox_runtime::session::Session;

use crate::inference::recorded::{MODELS, files};
use crate::inference::{Run, gpu};
use crate::oracles;

/// Tokens of each answer.
const MOST_TOKENS: usize = 12;

/// The default model, and one file of each oracle.
fn models() -> Vec<PathBuf> {
    let mut paths = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/story.gguf")];
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
fn samplings() -> [Sampling; 3] {
    [(0.0, 0), (0.8, 3), (1.5, 10)].map(|(temperature, top_k)| Sampling {
        temperature,
        top_k,
        top_p: 0.95,
        seed: 5,
        ..Sampling::default()
    })
}

/// The tokens that a session answers with, and the session.
fn answer(session: Session, sampling: &Sampling, max_tokens: usize) -> (Vec<u32>, Session) {
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

#[test]
fn a_token_and_its_score_are_all_that_comes_back_from_a_gpu() {
    let [greedy, _, drawn] = samplings();
    let samplings = [greedy, drawn];
    for kind in gpu::kinds() {
        // A program that plays a GPU is slow.
        for (path, sampling) in
            models().iter().take(3).flat_map(|path| samplings.iter().map(move |it| (path, it)))
        {
            let device_top_k = sampling.device_top_k().unwrap();
            let n_tokens = 3;
            let session = gpu::session(kind, path, Scored::TopK(device_top_k));
            let (found, session) = answer(session, sampling, n_tokens);
            // The prompt is one replay, and the last token is not fed.
            let each = session.footprint().returned / n_tokens;
            assert!(each <= (8 * device_top_k).next_multiple_of(256) + 256, "{each} bytes");
            let session = gpu::session(kind, path, Scored::Last);
            assert_eq!(found, answer(session, sampling, n_tokens).0, "{} {sampling:?}", path.display());
        }
    }
}
