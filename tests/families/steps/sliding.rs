//! Sequences that drop tokens of their middle.
//!
//! In: small models with random weights, and sequences longer than their context. Out: the logits of models that see
//! exactly the tokens that are kept, and one sentence for what cannot be done afterwards.
//! In a model of one block keys and values depend on their own token alone, so what follows is what follows the kept
//! tokens side by side. Over pages of one row a window is that of a model whose every block has it, however many
//! blocks there are.

use std::collections::BTreeSet;

use fusebox_compiler::foundation::random::Random;
use fusebox_compiler::tensor::quant::Format;
use fusebox_models::config::KvCache;
use fusebox_models::load::Settings;
use fusebox_runtime::device::fake::FakeDevice;
use fusebox_runtime::error::Error;
use fusebox_runtime::session::Session;
use fusebox_runtime::session::engine::{Engine, Piece, SequenceId};
use fusebox_runtime::session::evict::Sliding;
use support::own::path;
use support::plain::{Attention, Grouped, Plain, Window};
use support::run::relative_error;

use crate::made::Made;
use crate::odd::{grouped, latent, small};
use crate::steps::sequences::{Alone, Poisoned, engine, model, processor, recurrent, settings};

/// Single precision, with positions further on.
const SAME: f64 = 2e-5;

fn sliding(first: usize, window: usize) -> Sliding {
    Sliding { first, window, below: 0, available: || None }
}

/// The tokens that a sequence keeps, over pages of so many rows.
struct Kept {
    tokens: Vec<u32>,
    n_pages: usize,
}

impl Kept {
    fn extend(&mut self, new: &[u32], rows: usize, first: usize, window: usize) {
        let Self { tokens, n_pages } = self;
        if tokens.len() + new.len() > *n_pages * rows {
            let (first, end) = (first.div_ceil(rows), (tokens.len() + 1).saturating_sub(window) / rows);
            if end > first {
                tokens.drain(first * rows..end * rows);
            }
        }
        tokens.extend(new);
        *n_pages = tokens.len().div_ceil(rows);
    }
}

#[test]
fn what_follows_depends_on_the_first_and_the_last_tokens_alone() {
    let attentions = [Attention::Grouped(grouped(4, 2, 16)), Attention::Latent(latent(false))];
    for (number, attention) in attentions.into_iter().enumerate() {
        let own = Plain { n_layers: 1, ..small(attention, Format::F32) };
        let model = model(&Made::new(&own), &format!("evict-{number}"));
        let settings = settings(5, 4, Format::F32);
        let mut alone = Alone(Session::of(engine(&model, &settings, processor())));
        for (device, (first, window)) in [
            (processor(), (2, 6)),
            (Box::<FakeDevice>::default() as _, (4, 5)),
            (processor(), (0, 9)),
            (processor(), (5, 3)),
        ] {
            let mut engine = engine(&model, &settings, Box::new(Poisoned(device, BTreeSet::new())));
            engine.set_eviction(Box::new(sliding(first, window))).unwrap();
            let mut random = Random::new(window as u64);
            let mut open: Vec<(SequenceId, Kept)> = Vec::new();
            for round in 0..90 {
                match round {
                    // The second begins as the first does, whose pages it shares and does not change.
                    0 | 40 => open.push((engine.open(), Kept { tokens: Vec::new(), n_pages: 0 })),
                    50 => {
                        let copy = engine.fork(open[0].0).unwrap();
                        let Kept { tokens, n_pages } = &open[0].1;
                        open.push((copy, Kept { tokens: tokens.clone(), n_pages: *n_pages }));
                    }
                    _ => {}
                }
                let mut next = Vec::new();
                for (number, (id, kept)) in open.iter_mut().enumerate() {
                    let n = [1, 1, 1, 3][random.below(4)];
                    let n = if number == 2 && round % 3 == 0 { 0 } else { n };
                    let new: Vec<u32> = (0..n).map(|_| random.below(50) as u32).collect();
                    if n > 0 {
                        kept.extend(&new, 4, first, window);
                        next.push((*id, new, kept.tokens.clone()));
                    }
                }
                let pieces: Vec<Piece<'_>> = next.iter().map(|(id, new, _)| Piece::of(*id, new)).collect();
                engine.step(&pieces).unwrap();
                for (id, _, kept) in &next {
                    let error = relative_error(engine.logits(*id).unwrap(), &alone.logits(kept));
                    let (len, n_evicted) = (engine.len(*id).unwrap(), engine.n_evicted(*id).unwrap());
                    assert_eq!(len - n_evicted, kept.len());
                    assert!(error <= SAME, "{error:e} in round {round}, {len} tokens");
                }
            }
            assert!(engine.n_evicted(open[0].0).unwrap() > 60);
            for (id, _) in open {
                engine.release(id).unwrap();
            }
            assert_eq!(engine.n_free_pages(), engine.limits().n_pages);
        }
    }
}

#[test]
fn a_window_over_single_rows_is_that_of_a_model_with_one() {
    let plain = small(Attention::Grouped(grouped(4, 2, 16)), Format::F32);
    let window = Some(Window { size: 5, full: [].into() });
    let windowed = Plain {
        attention: Attention::Grouped(Grouped { window, ..grouped(4, 2, 16) }),
        ..small(Attention::Grouped(grouped(4, 2, 16)), Format::F32)
    };
    let (plain, windowed) =
        (model(&Made::new(&plain), "evict-plain"), model(&Made::new(&windowed), "evict-windowed"));
    let cache = KvCache { format: Format::F32, page_rows: 1, n_pages: 48, n_sequences: 1 };
    let long = Settings { context: 48, cache, ..settings(1, 1, Format::F32) };
    let short = Settings { context: 8, ..long };
    let mut expected = Session::of(engine(&windowed, &long, processor()));
    let mut found = Session::of(engine(&plain, &short, processor()));
    found.set_eviction(Box::new(sliding(0, 5))).unwrap();
    let tokens: Vec<u32> = (0..48).map(|at| (at * at + 7) % 50).collect();
    for at in 0..48 {
        let error =
            relative_error(found.feed(&tokens[at..=at]).unwrap(), expected.feed(&tokens[at..=at]).unwrap());
        assert!(error <= SAME, "{error:e} after {at}");
    }
    assert_eq!((found.position(), found.n_evicted()), (48, 43));
    // A prompt is read page by page, once it is longer than the window.
    found.truncate(0).unwrap();
    let error = relative_error(found.feed(&tokens).unwrap(), expected.logits());
    assert!(error <= SAME, "{error:e}");
}

#[test]
fn what_needs_tokens_that_were_evicted_is_refused_by_name() {
    let plain = Plain { n_layers: 1, ..small(Attention::Grouped(grouped(4, 2, 16)), Format::F32) };
    let model = model(&Made::new(&plain), "evict-refused");
    let mut session = Session::of(engine(&model, &settings(1, 4, Format::F32), processor()));
    session.set_eviction(Box::new(sliding(2, 6))).unwrap();
    for token in 0..30 {
        session.feed(&[token]).unwrap();
    }
    assert_eq!((session.position(), session.n_evicted()), (30, 16));
    let said = |result: Result<(), Error>| result.unwrap_err().to_string();
    let expected =
        "a sequence: of its first 20 tokens some were evicted: none can be kept or at least 20, not 19";
    assert_eq!(said(session.truncate(19)), expected);
    let file = path("evicted.fbkv");
    let expected = "a sequence to save: 16 tokens of it were evicted: there is nothing to go on from";
    assert_eq!(said(session.save(&file)), expected);
    assert_eq!([31, 30, 20, 19, 0].map(|n| session.reusable(n)), [31, 30, 20, 0, 0]);
    // Cut and extended it is what it was.
    let expected = session.logits().to_vec();
    session.truncate(25).unwrap();
    session.feed(&[25, 26, 27, 28, 29]).unwrap();
    assert!(relative_error(session.logits(), &expected) <= SAME);
    session.truncate(0).unwrap();
    session.feed(&[1]).unwrap();
    assert_eq!((session.position(), session.n_evicted()), (1, 0));
    let mut recurrent =
        Session::of(engine(&recurrent("evict-states"), &settings(1, 4, Format::F32), processor()));
    let error = said(recurrent.set_eviction(Box::new(sliding(2, 6))));
    assert!(error.contains("holds all tokens, so none can be dropped"), "{error}");
}

#[test]
fn a_full_pool_is_refused_before_anything_is_dropped() {
    let plain = small(Attention::Grouped(grouped(4, 2, 16)), Format::F32);
    let model = model(&Made::new(&plain), "evict-full");
    let mut engine: Engine = engine(&model, &settings(2, 4, Format::F32), processor());
    engine.set_eviction(Box::new(sliding(2, 6))).unwrap();
    let (one, other) = (engine.open(), engine.open());
    engine.step(&[Piece::of(one, &[1; 16])]).unwrap();
    // Eight of twelve pages; the fork of both takes none.
    engine.step(&[Piece::of(other, &[2; 16])]).unwrap();
    let forks = [engine.fork(one).unwrap(), engine.fork(other).unwrap()];
    let rest = engine.open();
    engine.step(&[Piece::of(rest, &[3; 12])]).unwrap();
    // Both drop a page that the fork keeps, and each needs a first page of its own and a new one.
    let error = engine.step(&[Piece::of(one, &[4]), Piece::of(other, &[4])]).unwrap_err();
    assert!(matches!(error, Error::Full { needed: 4, free: 1 }), "{error}");
    assert_eq!([one, other].map(|id| engine.n_evicted(id).unwrap()), [0, 0]);
    for fork in forks {
        engine.release(fork).unwrap();
    }
    engine.step(&[Piece::of(one, &[4]), Piece::of(other, &[4])]).unwrap();
    assert_eq!([one, other].map(|id| engine.n_evicted(id).unwrap()), [4, 4]);
}
