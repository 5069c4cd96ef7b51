//! Sequences whose heads keep rows of their own (`SnapKV`).
//!
//! In: small models with random weights, and sequences longer than what is kept. Out: the logits of a decoder in double
//! precision, written out here, whose heads see exactly the tokens that each of them keeps; and one sentence for models
//! whose rows cannot be chosen.

use std::collections::BTreeSet;

use fusebox_compiler::foundation::random::Random;
use fusebox_compiler::options::Options;
use fusebox_compiler::tensor::quant::Format;
use fusebox_models::config::rope::Pairing;
use fusebox_models::config::{KvCache, Mixer};
use fusebox_models::layers::block::block;
use fusebox_models::layers::embed::Scored;
use fusebox_models::load::{Model, Settings};
use fusebox_models::own::Decoder;
use fusebox_runtime::device::fake::FakeDevice;
use fusebox_runtime::error::Error;
use fusebox_runtime::session::Session;
use fusebox_runtime::session::cache::Cache;
use fusebox_runtime::session::engine::{Engine, Piece, SequenceId};
use fusebox_runtime::session::evict::SnapKv;
use fusebox_runtime::session::kin::Kin;
use support::own::path;
use support::plain::{Attention, Grouped, Plain, Window};
use support::run::relative_error;

use crate::made::Made;
use crate::odd::{grouped, latent, small};
use crate::steps::sequences::{Poisoned, engine, model, processor, recurrent};

/// Single precision against double.
const SAME: f64 = 3e-5;
/// Tokens that choose.
const OBSERVED: usize = 3;
/// Tokens that are kept, the first of them always.
const WINDOW: usize = 13;
const FIRST: usize = 2;
const CONTEXT: usize = 32;
const PAGE_ROWS: usize = 4;

fn settings() -> Settings {
    let cache = KvCache { format: Format::F32, page_rows: PAGE_ROWS, n_pages: 40, n_sequences: 1 };
    Settings {
        context: CONTEXT,
        chunk: 8,
        batch: 4,
        cache,
        scored: Scored::Last,
        scores_every: true,
        evicts: true,
        observed: OBSERVED,
    }
}

fn policy() -> SnapKv {
    SnapKv { first: FIRST, observed: OBSERVED, window: WINDOW, longest: 90, below: 0, available: || None }
}

/// A decoder with grouped-query attention, token by token.
struct Exact<'m> {
    made: &'m Made,
    pairing: Pairing,
}

/// A sequence of it.
#[derive(Clone)]
struct Text {
    n_tokens: usize,
    /// The key and the value of each token, of each head of each block.
    rows: Vec<Vec<Vec<[Vec<f64>; 2]>>>,
    /// The tokens that each head of each block sees.
    seen: Vec<Vec<Vec<usize>>>,
    /// For each of the last tokens, what it gave to each token, of each head of each block.
    given: Vec<Vec<Vec<Vec<f64>>>>,
}

impl Exact<'_> {
    fn heads(&self) -> &Grouped {
        let Attention::Grouped(heads) = &self.made.config.attention else { panic!("grouped heads") };
        heads
    }

    fn text(&self) -> Text {
        let (n_layers, n_kv) = (self.made.config.n_layers, self.heads().n_kv);
        Text {
            n_tokens: 0,
            rows: vec![vec![Vec::new(); n_kv]; n_layers],
            seen: vec![vec![Vec::new(); n_kv]; n_layers],
            given: Vec::new(),
        }
    }

    fn weight(&self, name: &str) -> Vec<f64> {
        let bytes = self.made.tensors[name].bytes.as_chunks::<4>().0;
        bytes.iter().map(|bytes| f64::from(f32::from_le_bytes(*bytes))).collect()
    }

    fn product(&self, name: &str, x: &[f64]) -> Vec<f64> {
        self.weight(name).chunks_exact(x.len()).map(|row| dot(row, x)).collect()
    }

    fn norm(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let scale = (dot(x, x) / x.len() as f64 + f64::from(self.made.config.eps)).sqrt();
        x.iter().zip(self.weight(name)).map(|(x, weight)| x / scale * weight).collect()
    }

    fn rotated(&self, x: &[f64], position: usize) -> Vec<f64> {
        let half = x.len() / 2;
        let mut y = x.to_vec();
        for pair in 0..half {
            let (i, j) = match self.pairing {
                Pairing::Halves => (pair, pair + half),
                Pairing::Interleaved => (2 * pair, 2 * pair + 1),
            };
            let frequency = self.made.config.rope.theta.powf(-(pair as f64) / half as f64);
            let (sin, cos) = (position as f64 * frequency).sin_cos();
            (y[i], y[j]) = (x[i] * cos - x[j] * sin, x[j] * cos + x[i] * sin);
        }
        y
    }

    /// The logits after another token.
    fn extend(&self, text: &mut Text, token: u32) -> Vec<f32> {
        let Plain { hidden, n_layers, .. } = self.made.config;
        let position = text.n_tokens;
        let embeddings = self.weight("token_embd");
        let mut x = embeddings[token as usize * hidden..][..hidden].to_vec();
        let mut given = Vec::new();
        for layer in 0..n_layers {
            let (y, weights) = self.attention(text, layer, position, &x);
            add(&mut x, &y);
            given.push(weights);
            let name = |name: &str| format!("blk.{layer}.{name}");
            let h = self.norm(&name("ffn_norm"), &x);
            let (gate, up) = (self.product(&name("ffn_gate"), &h), self.product(&name("ffn_up"), &h));
            let inner: Vec<f64> = gate.iter().zip(up).map(|(x, up)| x / (1.0 + (-x).exp()) * up).collect();
            add(&mut x, &self.product(&name("ffn_down"), &inner));
        }
        text.n_tokens += 1;
        text.given.push(given);
        let h = self.norm("output_norm", &x);
        embeddings.chunks_exact(hidden).map(|row| dot(row, &h) as f32).collect()
    }

    /// What attention adds, and what each head of the cache gives to each token.
    fn attention(
        &self,
        text: &mut Text,
        layer: usize,
        position: usize,
        x: &[f64],
    ) -> (Vec<f64>, Vec<Vec<f64>>) {
        let &Grouped { n_heads, n_kv, head, .. } = self.heads();
        let name = |name: &str| format!("blk.{layer}.{name}");
        let h = self.norm(&name("attn_norm"), x);
        let [q, k, v] = ["attn_q", "attn_k", "attn_v"].map(|own| self.product(&name(own), &h));
        let mut given = vec![vec![0.0; position + 1]; n_kv];
        let mut y = Vec::new();
        for own in 0..n_kv {
            let part = |x: &[f64]| x[own * head..][..head].to_vec();
            text.rows[layer][own].push([self.rotated(&part(&k), position), part(&v)]);
            text.seen[layer][own].push(position);
        }
        for (number, query) in q.chunks_exact(head).enumerate() {
            let own = number / (n_heads / n_kv);
            let (rows, seen) = (&text.rows[layer][own], &text.seen[layer][own]);
            let query = self.rotated(query, position);
            let scores = seen.iter().map(|at| (dot(&query, &rows[*at][0]) / (head as f64).sqrt()).exp());
            let scores: Vec<f64> = scores.collect();
            let sum: f64 = scores.iter().sum();
            let mut found = vec![0.0; head];
            for (at, score) in seen.iter().zip(scores) {
                given[own][*at] += score / sum;
                found.iter_mut().zip(&rows[*at][1]).for_each(|(found, value)| *found += score / sum * value);
            }
            y.extend(found);
        }
        (self.product(&name("attn_output"), &y), given)
    }
}

impl Text {
    fn n_kept(&self) -> usize {
        self.seen[0][0].len()
    }

    /// Drops what a step of `n` tokens drops before it begins, if it does not read a prompt.
    fn drop_due(&mut self, n: usize, is_scored: bool) {
        let is_full = self.n_kept() + n > CONTEXT;
        let least = if is_full { 1 } else { (WINDOW / 8).max(PAGE_ROWS) };
        if (is_full || n == 1 || is_scored && n <= OBSERVED) && self.n_kept() >= WINDOW + least {
            let given = &self.given[self.n_tokens - OBSERVED..];
            for (layer, heads) in self.seen.iter_mut().enumerate() {
                for (own, seen) in heads.iter_mut().enumerate() {
                    let of = |at: usize| given.iter().filter_map(|one| one[layer][own].get(at)).sum::<f64>();
                    let sums: Vec<f64> = seen.iter().map(|at| of(*at)).collect();
                    *seen = kept(&sums).into_iter().map(|slot| seen[slot]).collect();
                }
            }
        }
    }
}

/// The slots that are kept, by what each is given.
fn kept(given: &[f64]) -> Vec<usize> {
    let past = given.len() - OBSERVED;
    let mut between: Vec<usize> = (FIRST..past).collect();
    let around =
        |slot: usize| (0..past).filter(|other| other.abs_diff(slot) <= 2).map(|other| given[other]).sum();
    between.sort_by(|a, b| f64::total_cmp(&around(*b), &around(*a)));
    between.truncate(WINDOW - FIRST - OBSERVED);
    between.sort_unstable();
    (0..FIRST).chain(between).chain(past..given.len()).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn add(x: &mut [f64], y: &[f64]) {
    x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
}

fn made(name: &str, n_layers: usize) -> (Made, Model, Pairing) {
    let made = Made::new(&Plain { n_layers, ..small(Attention::Grouped(grouped(6, 3, 16)), Format::F32) });
    let model = model(&made, name);
    let Mixer::Grouped(heads) = &model.config.blocks[0].mixer else { panic!("grouped heads") };
    let pairing = heads.rope.as_ref().unwrap().pairing;
    (made, model, pairing)
}

#[test]
fn each_head_sees_what_it_keeps_and_nothing_else() {
    let (made, model, pairing) = made("chosen", 3);
    let exact = Exact { made: &made, pairing };
    for device in [processor(), Box::<FakeDevice>::default() as _] {
        let mut engine = engine(&model, &settings(), Box::new(Poisoned(device, BTreeSet::new())));
        engine.set_eviction(Box::new(policy())).unwrap();
        let mut random = Random::new(7);
        let mut open: Vec<(SequenceId, Text)> = vec![(engine.open(), exact.text())];
        let mut n_apart = 0;
        for round in 0..40 {
            match round {
                10 => open.push((engine.open(), exact.text())),
                // Before and after rows were chosen, which others then use as well.
                3 | 20 => {
                    let (id, text) = &open[0];
                    let copy = (engine.fork(*id).unwrap(), text.clone());
                    open.push(copy);
                }
                _ => {}
            }
            let mut next = Vec::new();
            for (id, text) in &mut open {
                let n = [1, 1, 1, 2, 3, 11][random.below(6)].min(80 - text.n_tokens);
                let new: Vec<u32> = (0..n).map(|_| random.below(50) as u32).collect();
                if n > 0 {
                    // A guess, and part of a prompt.
                    let is_scored = n == 3;
                    text.drop_due(n, is_scored);
                    let mut logits = Vec::new();
                    for token in &new {
                        logits = exact.extend(text, *token);
                    }
                    next.push((*id, new, is_scored, logits, text.n_kept()));
                    n_apart += usize::from(text.seen[1][0] != text.seen[1][2]);
                }
            }
            let pieces: Vec<Piece<'_>> = next
                .iter()
                .map(|(id, new, is_scored, ..)| Piece { is_scored: *is_scored, ..Piece::of(*id, new) })
                .collect();
            engine.step(&pieces).unwrap();
            for (id, _, _, logits, n_kept) in &next {
                let error = relative_error(engine.logits(*id).unwrap(), logits);
                let (len, n_evicted) = (engine.len(*id).unwrap(), engine.n_evicted(*id).unwrap());
                assert_eq!(len - n_evicted, *n_kept, "round {round}");
                assert!(error <= SAME, "{error:e} in round {round}, {len} tokens of sequence {id}");
            }
        }
        assert!(n_apart > 50, "heads of a block kept the same {n_apart} times");
        for (id, _) in open {
            engine.release(id).unwrap();
        }
        assert_eq!(engine.n_free_pages(), engine.limits().n_pages);
    }
}

#[test]
fn a_prompt_beyond_the_context_is_read_in_parts_and_cut_where_no_row_is_missing() {
    let (made, model, pairing) = made("chosen-prompt", 1);
    let exact = Exact { made: &made, pairing };
    let mut session = Session::of(engine(&model, &settings(), processor()));
    session.set_eviction(Box::new(policy())).unwrap();
    let tokens: Vec<u32> = (0..61).map(|at| (at * at + 3) % 50).collect();
    session.feed(&tokens[..60]).unwrap();
    let mut text = exact.text();
    // As much as the context holds, and then as much as is free beside what is kept.
    for part in [&tokens[..32], &tokens[32..51], &tokens[51..60]] {
        text.drop_due(part.len(), false);
        for token in part {
            exact.extend(&mut text, *token);
        }
    }
    text.drop_due(1, false);
    let expected = exact.extend(&mut text, tokens[60]);
    let found = session.feed(&tokens[60..]).unwrap();
    assert!(relative_error(found, &expected) <= SAME);
    assert_eq!((session.position(), session.n_evicted(), session.room()), (61, 61 - text.n_kept(), 29));
    // What chose and what follows is there whole.
    let (before, least) = (session.logits().to_vec(), 60 - OBSERVED);
    assert_eq!([61, least, least - 1, 0].map(|n| session.reusable(n)), [61, least, 0, 0]);
    session.truncate(58).unwrap();
    session.feed(&tokens[58..]).unwrap();
    assert!(relative_error(session.logits(), &before) <= SAME);
    let said = |result: Result<(), Error>| result.unwrap_err().to_string();
    let expected =
        "a sequence: of its first 57 tokens some were evicted: none can be kept or at least 57, not 56";
    assert_eq!(said(session.truncate(56)), expected);
    let expected = format!(
        "a sequence to save: {} tokens of it were evicted: there is nothing to go on from",
        session.n_evicted()
    );
    assert_eq!(said(session.save(&path("chosen.fbkv"))), expected);
    assert!(said(session.feed(&[1; 30]).map(drop)).contains("no room for 30 after 61"));
    assert!(said(session.set_eviction(Box::new(policy()))).contains("dropped tokens by another policy"));
    session.truncate(0).unwrap();
    let expected = exact.extend(&mut exact.text(), 7);
    assert!(relative_error(session.feed(&[7]).unwrap(), &expected) <= SAME);
}

#[test]
fn pages_are_counted_before_rows_move_and_the_beginning_is_still_found() {
    let (_, model, _) = made("chosen-pages", 2);
    let settings = Settings { cache: KvCache { n_pages: 13, ..settings().cache }, ..settings() };
    let mut engine: Engine = engine(&model, &settings, processor());
    engine.set_eviction(Box::new(policy())).unwrap();
    let prompt: Vec<u32> = (0..28).map(|at| (at * 11 + 5) % 50).collect();
    let one = engine.open();
    engine.step(&[Piece::of(one, &prompt)]).unwrap();
    let fork = engine.fork(one).unwrap();
    let rest = engine.open();
    engine.step(&[Piece::of(rest, &[3; 12])]).unwrap();
    assert_eq!(engine.n_free_pages(), 3);
    // Thirteen rows and one more: four pages, as the fork has the old ones.
    let error = engine.step(&[Piece::of(one, &[4])]).unwrap_err();
    assert!(matches!(error, Error::Full { needed: 4, free: 3 }), "{error}");
    assert_eq!((engine.n_evicted(one).unwrap(), engine.n_free_pages()), (0, 3));
    engine.release(rest).unwrap();
    engine.step(&[Piece::of(one, &[4])]).unwrap();
    assert_eq!((engine.n_evicted(one).unwrap(), engine.n_free_pages()), (15, 2));
    // The fork is as it was, and now overwrites pages of its own: the last ones.
    engine.release(one).unwrap();
    assert_eq!((engine.n_evicted(fork).unwrap(), engine.n_free_pages()), (0, 6));
    engine.step(&[Piece::of(fork, &[4])]).unwrap();
    assert_eq!((engine.n_evicted(fork).unwrap(), engine.n_free_pages()), (15, 9));
    let (known, _) = engine.known_prefix(&prompt, &Kin::default());
    assert_eq!(known, 12);
}

#[test]
fn a_model_whose_rows_cannot_be_chosen_is_refused_by_name() {
    let started = |model: &Model, settings: Settings| {
        let engine = model.engine(processor(), &settings, &Options::default(), &Cache::default());
        let done = engine.and_then(|mut engine| engine.set_eviction(Box::new(policy())));
        done.unwrap_err().to_string()
    };
    let (_, plain, _) = made("chosen-plain", 1);
    let none = Settings { observed: 0, ..settings() };
    assert!(started(&plain, none).contains("this engine has no program that returns it"));
    let more = Settings { observed: OBSERVED + 1, ..settings() };
    assert!(started(&plain, more).contains("the last 4 tokens choose rows, and 3 of them are kept"));
    let window = Some(Window { size: 5, full: [].into() });
    let windowed = Grouped { window, ..grouped(4, 2, 16) };
    let windowed = model(&Made::new(&small(Attention::Grouped(windowed), Format::F32)), "chosen-window");
    let expected =
        "rows of its KV cache cannot be chosen by attention: block 0 has a window, which counts rows";
    assert!(started(&windowed, settings()).contains(expected));
    let expected = "block 0 has a state of all tokens, of which none can be dropped";
    assert!(started(&recurrent("chosen-states"), settings()).contains(expected));
    let own = Decoder::new(plain.config.clone(), |m, x| {
        (0..m.config.n_layers()).fold(x, |x, layer| block(m, layer, &x, None))
    });
    let own = Model::define(&path("chosen-plain.gguf"), own).unwrap();
    assert!(started(&own, settings()).contains("its blocks are a function"));
}

#[test]
fn a_full_pool_drops_rows_while_a_prompt_is_read() {
    let (_, model, _) = made("chosen-full", 1);
    let settings = Settings { cache: KvCache { n_pages: 13, ..settings().cache }, ..settings() };
    let mut engine: Engine = engine(&model, &settings, processor());
    engine.set_eviction(Box::new(policy())).unwrap();
    let (one, other) = (engine.open(), engine.open());
    engine.step(&[Piece::of(one, &[5; 28])]).unwrap();
    engine.step(&[Piece::of(other, &[6; 20])]).unwrap();
    // There is a page for the rest of this prompt, and then none for more of that one.
    engine.step(&[Piece::of(other, &[7; 4])]).unwrap();
    assert_eq!((engine.n_free_pages(), engine.n_evicted(other).unwrap()), (0, 0));
    engine.step(&[Piece::of(one, &[8; 4])]).unwrap();
    assert_eq!((engine.n_free_pages(), engine.n_evicted(one).unwrap()), (2, 15));
}

#[test]
fn heads_that_share_a_latent_choose_together_on_every_device() {
    let latent = small(Attention::Latent(latent(false)), Format::F32);
    let model = model(&Made::new(&latent), "chosen-latent");
    let devices = [processor(), Box::<FakeDevice>::default() as _];
    let found = devices.map(|device| {
        let mut session =
            Session::of(engine(&model, &settings(), Box::new(Poisoned(device, BTreeSet::new()))));
        session.set_eviction(Box::new(policy())).unwrap();
        let prompt: Vec<u32> = (0..30).map(|at| (at * at + 3) % 50).collect();
        session.feed(&prompt).unwrap();
        let logits = session.feed(&[9]).unwrap().to_vec();
        assert_eq!((session.position(), session.n_evicted()), (31, 17));
        logits
    });
    let error = relative_error(&found[0], &found[1]);
    assert!(error <= SAME, "{error:e}");
}
