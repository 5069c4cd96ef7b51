//! Many sequences over one KV cache: what each says does not depend on the others.
//!
//! In: small models with random weights, and random steps: sequences are opened, extended, forked, truncated and
//! released. Out: the logits of each sequence as if it were alone, pages that add up, and one sentence for invalid
//! calls, which change nothing.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use fusebox_compiler::codegen::cpu::Cpu;
use fusebox_compiler::foundation::random::Random;
use fusebox_compiler::graph::Name;
use fusebox_compiler::options::{Numbers, Options, Planted};
use fusebox_compiler::schedule::{Place, Plan};
use fusebox_compiler::tensor::quant::Format;
use fusebox_models::config::attention::Latent;
use fusebox_models::config::network::Dense;
use fusebox_models::config::recurrent::{Beside, Delta, ShortConv, StateSpace};
use fusebox_models::config::{self, Block, Config, KvCache, Mixer, Network};
use fusebox_models::layers::embed::Scored;
use fusebox_models::load::{Model, Settings};
use fusebox_runtime::device::cpu::CpuDevice;
use fusebox_runtime::device::fake::FakeDevice;
use fusebox_runtime::device::{Device, Footprint, ProgramId, Weights};
use fusebox_runtime::error::Error;
use fusebox_runtime::session::Session;
use fusebox_runtime::session::cache::Cache;
use fusebox_runtime::session::engine::{Engine, Piece, SequenceId};
use fusebox_runtime::session::kin::Kin;
use support::gguf::Writer;
use support::own::path;
use support::plain::{Attention, Grouped, Plain, Window};
use support::run::relative_error;

use crate::made::{Made, random_tensors, write};
use crate::odd::{experts, grouped, latent, small};

/// Single precision, summed in another order.
const SAME: f64 = 1e-5;
/// The most tokens of a sequence.
const CONTEXT: usize = 20;
/// Pages of all sequences, fewer than the longest of each would take.
const N_PAGES: usize = 12;

pub(crate) fn processor() -> Box<dyn Device> {
    Box::new(CpuDevice::new(Cpu::host(Numbers::Single).unwrap(), 2).unwrap())
}

/// A device whose KV cache is no number wherever nothing was written.
pub(crate) struct Poisoned(pub(crate) Box<dyn Device>, pub(crate) BTreeSet<Name>);

impl Device for Poisoned {
    fn load(&mut self, plan: &Plan, weights: &Arc<dyn Weights>) -> Result<ProgramId, Error> {
        let program = self.0.load(plan, weights)?;
        for slot in plan.buffers.values().filter(|slot| slot.place == Place::State) {
            if self.1.insert(slot.name.clone()) {
                self.0.write_state(&slot.name, 0, &vec![0xff; slot.bytes])?;
            }
        }
        Ok(program)
    }

    fn describe(&self) -> String {
        self.0.describe()
    }

    fn input(&mut self, program: ProgramId, number: usize) -> &mut [u8] {
        self.0.input(program, number)
    }

    fn replay(&mut self, program: ProgramId, symbols: &[i64]) -> Result<(), Error> {
        self.0.replay(program, symbols)
    }

    fn profile(&mut self, program: ProgramId, symbols: &[i64]) -> Result<Vec<Duration>, Error> {
        self.0.profile(program, symbols)
    }

    fn output(&self, program: ProgramId, number: usize) -> &[u8] {
        self.0.output(program, number)
    }

    fn read_state(&mut self, name: &str, offset: usize, to: &mut [u8]) -> Result<(), Error> {
        self.0.read_state(name, offset, to)
    }

    fn write_state(&mut self, name: &str, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        self.0.write_state(name, offset, bytes)
    }

    fn footprint(&self) -> Footprint {
        self.0.footprint()
    }

    fn free(&self) -> Option<usize> {
        self.0.free()
    }
}

pub(crate) fn model(made: &Made, name: &str) -> Model {
    let file = path(&format!("{name}.gguf"));
    let is_latent = matches!(made.config.attention, Attention::Latent(_));
    made.gguf(&file, if is_latent { "deepseek2" } else { "llama" });
    Model::open(&file).unwrap()
}

pub(crate) fn settings(batch: usize, page_rows: usize, format: Format) -> Settings {
    let cache = KvCache { format, page_rows, n_pages: N_PAGES, n_sequences: 8 };
    Settings {
        context: CONTEXT,
        chunk: 8,
        batch,
        cache,
        scored: Scored::Last,
        scores_every: true,
        evicts: false,
        observed: 0,
    }
}

pub(crate) fn engine(model: &Model, settings: &Settings, device: Box<dyn Device>) -> Engine {
    model.engine(device, settings, &Options::default(), &Cache::default()).unwrap()
}

/// The logits after some tokens, computed alone from the start.
pub(crate) struct Alone(pub(crate) Session);

impl Alone {
    pub(crate) fn logits(&mut self, tokens: &[u32]) -> Vec<f32> {
        self.0.truncate(0).unwrap();
        self.0.feed(tokens).unwrap().to_vec()
    }
}

/// Random steps against every sequence alone.
fn check(name: &str, model: &Model, settings: Settings) {
    let KvCache { page_rows, n_pages, .. } = settings.cache;
    let mut alone = Alone(Session::of(engine(model, &settings, processor())));
    for device in [processor(), Box::<FakeDevice>::default()] {
        let device = Box::new(Poisoned(device, BTreeSet::new()));
        let mut engine = engine(model, &settings, device);
        let mut open: Vec<(SequenceId, Vec<u32>)> = Vec::new();
        let mut random = Random::new(page_rows as u64);
        let (mut n_full, mut n_shared, mut n_lost) = (0, 0, 0);
        let mut past: Vec<Vec<u32>> = Vec::new();
        for round in 0..90 {
            match random.below(6) {
                0 if open.len() < 7 => open.push((engine.open(), Vec::new())),
                1 if open.len() < 7 => {
                    // It begins as another does or did, and goes on differently.
                    let others: Vec<&Vec<u32>> = past.iter().chain(open.iter().map(|(_, own)| own)).collect();
                    let same = others.get(random.below(others.len().max(1))).map_or(&[][..], |own| own);
                    let wanted = [&same[..random.below(same.len() + 1)], &[random.below(50) as u32]].concat();
                    let id = engine.open();
                    let known = engine.known_prefix(&wanted, &Kin::default()).0;
                    let n = engine.share_known(id, &wanted).unwrap();
                    // The only free page may be the one whose rows would be copied.
                    assert!(n == known || engine.n_free_pages() <= 1, "{n} of {known}");
                    n_shared += n;
                    open.push((id, wanted[..n].to_vec()));
                }
                2 if !open.is_empty() && open.len() < 7 => {
                    let (id, tokens) = &open[random.below(open.len())];
                    let copy = engine.fork(*id).unwrap();
                    open.push((copy, tokens.clone()));
                }
                3 if !open.is_empty() => {
                    let number = random.below(open.len());
                    let (id, tokens) = &mut open[number];
                    let len = random.below(tokens.len() + 1);
                    let is_end = len == 0 || len == tokens.len();
                    let can_be_cut = engine.can_cut(*id, len).unwrap();
                    assert!(can_be_cut || engine.is_forward_only() || engine.limits().windows.is_some());
                    assert!(!(can_be_cut && engine.is_forward_only()) || is_end);
                    n_lost += usize::from(!can_be_cut);
                    assert_eq!(engine.truncate(*id, len).is_ok(), can_be_cut);
                    tokens.truncate(if can_be_cut { len } else { tokens.len() });
                }
                4 if open.len() > 4 => {
                    let (id, tokens) = open.swap_remove(random.below(open.len()));
                    if random.below(4) == 0 {
                        engine.discard(id).unwrap();
                    } else {
                        engine.release(id).unwrap();
                    }
                    past.push(tokens);
                }
                _ => {}
            }
            // Some are extended by one token, some by several, some not at all; of some every token is scored.
            let mut next: Vec<(SequenceId, Vec<u32>, bool)> = Vec::new();
            for (id, tokens) in &open {
                let n = [0, 1, 1, 1, 3, 11][random.below(6)].min(CONTEXT - tokens.len());
                let new: Vec<u32> = (0..n).map(|_| random.below(model.config.vocab) as u32).collect();
                if n > 0 {
                    next.push((*id, new, random.below(2) == 0));
                }
            }
            let pieces =
                next.iter().map(|(id, new, is_scored)| Piece { is_scored: *is_scored, ..piece(*id, new) });
            let pieces: Vec<Piece<'_>> = pieces.collect();
            let free = engine.n_free_pages();
            let mut rows: Vec<(SequenceId, Vec<f32>)> = Vec::new();
            match engine.step_with(&pieces, &mut |id, row| rows.push((id, row.to_vec()))) {
                Ok(()) => {}
                Err(Error::Full { needed, free: told }) => {
                    assert!(needed > told && engine.n_free_pages() == free);
                    n_full += 1;
                    continue;
                }
                Err(error) => panic!("{error}"),
            }
            for (id, new, is_scored) in &next {
                let (_, tokens) = open.iter_mut().find(|(own, _)| own == id).unwrap();
                let own = rows.iter().filter(|(of, _)| *is_scored && of == id);
                let first = tokens.len() + 1;
                tokens.extend(new);
                assert_eq!(own.clone().count(), if *is_scored { new.len() } else { 0 });
                for (n, (_, row)) in (first..).zip(own) {
                    let error = relative_error(row, &alone.logits(&tokens[..n]));
                    assert!(error <= SAME, "{name}: {error:e} in round {round} after {n} tokens");
                }
                assert_eq!(engine.tokens(*id).unwrap(), &tokens[..]);
                let error = relative_error(engine.logits(*id).unwrap(), &alone.logits(tokens));
                assert!(error <= SAME, "{name}: {error:e} in round {round} of {} tokens", tokens.len());
            }
        }
        assert!(n_full > 0, "{name}: the cache was never full");
        assert!(n_shared > 3 || engine.is_forward_only(), "{name}: {n_shared} tokens were shared");
        for (id, _) in open {
            engine.release(id).unwrap();
        }
        assert_eq!(engine.n_free_pages(), n_pages);
        if let Some(windows) = engine.limits().windows
            && windows.n_pages < n_pages
        {
            assert!(n_lost > 0, "{name}: every sequence could be cut anywhere");
        }
    }
}

fn piece(sequence: SequenceId, tokens: &[u32]) -> Piece<'_> {
    Piece::of(sequence, tokens)
}

/// A model whose first block has a window of five tokens.
fn windowed(name: &str) -> Model {
    let window = Some(Window { size: 5, full: [1].into() });
    model(&Made::new(&small(Attention::Grouped(Grouped { window, ..grouped(4, 2, 16) }), Format::F32)), name)
}

#[test]
fn sequences_with_windows_know_nothing_of_each_other() {
    let model = windowed("sequences-window");
    check("windows", &model, settings(5, 4, Format::F32));
    check("windows over pages of 2 rows", &model, settings(5, 2, Format::F16));
    // Fewer pages for blocks with a window.
    let cache = KvCache { format: Format::F32, page_rows: 2, n_pages: 30, n_sequences: 1 };
    let settings = Settings { chunk: 4, cache, ..settings(5, 2, Format::F32) };
    let windows = engine(&model, &settings, processor()).limits().windows.unwrap();
    assert!(windows.reach == 5 && windows.n_pages == 11, "{windows:?}");
    check("few pages for windows", &model, settings);
}

#[test]
fn beginnings_are_found_again_where_the_window_before_their_end_is_there() {
    let model = windowed("sequences-window-prefix");
    let cache = KvCache { format: Format::F32, page_rows: 1, n_pages: 60, n_sequences: 1 };
    let settings = Settings { chunk: 1, cache, ..settings(1, 1, Format::F32) };
    let mut one = engine(&model, &settings, processor());
    // The window, a chunk, three pages and an eighth of all.
    assert_eq!(one.limits().windows.unwrap().n_pages, 6 + 3 + 7);
    let long: Vec<u32> = (1..20).collect();
    let other: Vec<u32> = (20..30).collect();
    for prompt in [&long, &other] {
        let id = one.open();
        one.step(&[piece(id, prompt)]).unwrap();
        one.release(id).unwrap();
    }
    let folder = path("windows-prefixes");
    std::fs::create_dir_all(&folder).unwrap();
    assert_eq!(one.save_prefixes(&folder).unwrap(), 29);
    let mut another = engine(&model, &settings, processor());
    assert_eq!(another.load_prefixes(&folder).unwrap(), 29);
    let mut alone = Alone(Session::of(engine(&model, &settings, processor())));
    for engine in [&mut one, &mut another] {
        // Of the second prompt all is there, of the first its end; in the middle of it windows are gone.
        let kin = Kin::default();
        assert_eq!([&long, &other].map(|prompt| engine.known_prefix(prompt, &kin).0), [19, 10]);
        assert_eq!(engine.known_prefix(&[&long[..9], &[45]].concat(), &kin).0, 0);
        for prompt in [&long, &other] {
            let id = engine.open();
            assert_eq!(engine.share_prefix(id, prompt).unwrap(), prompt.len() - 1);
            engine.step(&[piece(id, &prompt[prompt.len() - 1..])]).unwrap();
            assert!(relative_error(engine.logits(id).unwrap(), &alone.logits(prompt)) <= SAME);
            engine.release(id).unwrap();
        }
    }
    let file = one.prefix_file(&folder);
    let bytes = std::fs::read(&file).unwrap();
    let (mut random, mut third) = (Random::new(8), engine(&model, &settings, Box::<FakeDevice>::default()));
    for round in 0..300 {
        let mut own = bytes.clone();
        match round % 3 {
            0 => own.truncate(random.below(own.len())),
            1 => own.push(0),
            _ => own[random.below(bytes.len())] ^= 1 << random.below(8),
        }
        std::fs::write(&file, &own).unwrap();
        let error = third.load_prefixes(&folder).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{}: ", file.display())), "{error}");
        assert_eq!((third.n_free_pages(), third.n_idle_pages()), (60, 0));
    }
    std::fs::write(&file, &bytes).unwrap();
    assert_eq!(third.load_prefixes(&folder).unwrap(), 29);
}

#[test]
fn sequences_of_latents_and_experts_know_nothing_of_each_other() {
    let own = small(Attention::Latent(latent(false)), Format::F32);
    let own = Plain { experts: Some(experts(4, 2)), dense: [0].into(), ..own };
    check("latents", &model(&Made::new(&own), "sequences-latents"), settings(5, 4, Format::F32));
}

/// A model whose blocks carry states, beside one with a KV cache.
pub(crate) fn recurrent(name: &str) -> Model {
    let (kernel, is_joint) = (4, false);
    let delta = Delta { n_key: 2, n_value: 4, key: 8, value: 8, kernel, is_tiled: false, is_joint };
    let space = StateSpace::new(4, 8, 2, 8, kernel);
    let heads = config::attention::Grouped::new(4, 2, 16);
    let both = Beside { heads: heads.clone(), space: space.clone(), inputs: [1.0, 0.5] };
    let mixers = [
        Mixer::ShortConv(ShortConv { kernel: 3 }),
        Mixer::Delta(delta),
        Mixer::StateSpace(space),
        Mixer::Beside(both),
        Mixer::Grouped(heads),
    ];
    let blocks = mixers.map(|mixer| Block::new(mixer, Network::Dense(Dense::swiglu(48))));
    let config = Config::new(blocks.to_vec(), 32, 50, CONTEXT);
    let file = path(&format!("{name}.gguf"));
    write(&file, Writer::good(), &random_tensors(&config));
    Model::define(&file, config).unwrap()
}

#[test]
fn sequences_of_recurrent_blocks_know_nothing_of_each_other() {
    check("states", &recurrent("sequences-states"), settings(5, 4, Format::F32));
}

#[test]
fn a_sequence_without_a_place_for_its_states_is_refused() {
    let model = recurrent("sequences-places");
    let mut settings = settings(4, 4, Format::F32);
    settings.cache.n_sequences = 2;
    let mut engine = engine(&model, &settings, processor());
    let ids = [engine.open(), engine.open(), engine.open()];
    engine.step(&[piece(ids[0], &[1, 2]), piece(ids[1], &[3])]).unwrap();
    let expected = "a sequence: its states have no place: the engine keeps those of 2 sequences at a time";
    assert_eq!(engine.step(&[piece(ids[0], &[4]), piece(ids[2], &[5])]).unwrap_err().to_string(), expected);
    assert_eq!(engine.fork(ids[0]).unwrap_err().to_string(), expected);
    assert_eq!(ids.map(|id| engine.len(id).unwrap()), [2, 1, 0]);
    engine.truncate(ids[1], 0).unwrap();
    engine.step(&[piece(ids[0], &[4]), piece(ids[2], &[5])]).unwrap();
    assert_eq!(ids.map(|id| engine.len(id).unwrap()), [3, 0, 1]);
}

#[test]
fn a_replay_that_fails_loses_states_and_no_rows() {
    let grouped = Made::new(&small(Attention::Grouped(grouped(4, 2, 16)), Format::F32));
    for (model, is_recurrent) in
        [(model(&grouped, "sequences-failed"), false), (recurrent("sequences-failed-states"), true)]
    {
        // Whether a replay failed behind the prompts. Each thread counts its calls of micro-kernels, all of one engine.
        let fails_at = |call: u32| {
            let settings = settings(4, 4, Format::F32);
            let cpu = Cpu::host(Numbers::Single).unwrap().with_planted(Some(Planted { thread: 0, call }));
            let mut engine = engine(&model, &settings, Box::new(CpuDevice::new(cpu, 1).unwrap()));
            let ids = [engine.open(), engine.open()];
            let mut tokens = vec![3, 1, 4];
            if ids.iter().any(|id| engine.step(&[piece(*id, &tokens)]).is_err()) {
                return false;
            }
            let error = loop {
                let next = [tokens.len() as u32];
                if let Err(error) = engine.step(&ids.map(|id| piece(id, &next))) {
                    break error.to_string();
                }
                tokens.push(next[0]);
                assert!(tokens.len() < CONTEXT, "no call was the planted one");
            };
            assert!(error.contains("a thread: panicked"), "{error}");
            assert!(ids.iter().all(|id| engine.len(*id).unwrap() == tokens.len()));
            if is_recurrent {
                let refusal = engine.step(&[piece(ids[0], &[9])]).unwrap_err().to_string();
                assert!(refusal.contains("its states were lost"), "{refusal}");
                assert!(engine.fork(ids[1]).unwrap_err().to_string().contains("its states were lost"));
                for id in ids {
                    engine.truncate(id, 0).unwrap();
                    engine.step(&[piece(id, &tokens)]).unwrap();
                }
            }
            engine.step(&ids.map(|id| piece(id, &[9]))).unwrap();
            let found = ids.map(|id| engine.logits(id).unwrap().to_vec());
            let mut alone = Alone(Session::of(self::engine(&model, &settings, processor())));
            tokens.push(9);
            let expected = alone.logits(&tokens);
            for logits in found {
                assert!(relative_error(&logits, &expected) <= SAME);
            }
            true
        };
        let on_its_own = |call| std::thread::scope(|scope| scope.spawn(|| fails_at(call)).join().unwrap());
        assert!((3..12).any(|n| on_its_own(1 << n)));
    }
}

#[test]
fn equal_beginnings_are_computed_once() {
    let model =
        model(&Made::new(&small(Attention::Grouped(grouped(4, 2, 16)), Format::F32)), "sequences-shared");
    let settings = settings(4, 4, Format::F32);
    let mut engine = engine(&model, &settings, processor());
    let prompt: Vec<u32> = (1..12).collect();
    let first = engine.open();
    assert_eq!(engine.share_prefix(first, &prompt).unwrap(), 0);
    engine.step(&[piece(first, &prompt)]).unwrap();
    let expected = engine.logits(first).unwrap().to_vec();
    let free = engine.n_free_pages();
    let second = engine.open();
    assert_eq!(engine.share_prefix(second, &prompt).unwrap(), 8);
    assert_eq!(engine.n_free_pages(), free);
    engine.step(&[piece(second, &prompt[8..])]).unwrap();
    assert_eq!(engine.n_free_pages(), free - 1);
    assert!(relative_error(engine.logits(second).unwrap(), &expected) <= SAME);
    // What nobody uses any more is still found, to the token before the last; another salt finds nothing.
    engine.release(first).unwrap();
    engine.release(second).unwrap();
    assert_eq!((engine.n_free_pages(), engine.n_idle_pages()), (N_PAGES, 3));
    let third = engine.open();
    assert_eq!(engine.known_prefix(&prompt, &Kin::default()), (11, 3));
    assert_eq!(engine.share_prefix(third, &prompt).unwrap(), 10);
    engine.step(&[piece(third, &prompt[10..])]).unwrap();
    assert!(relative_error(engine.logits(third).unwrap(), &expected) <= SAME);
    let salted = engine.open_as(&1.into()).unwrap();
    assert_eq!(engine.share_prefix(salted, &prompt).unwrap(), 0);
    // A prompt of whole pages leaves its last token to be computed: the rows before it are copied.
    let whole = engine.open();
    assert_eq!(engine.share_prefix(whole, &prompt[..8]).unwrap(), 7);
    engine.step(&[piece(whole, &[40, 41])]).unwrap();
    let other = [&prompt[..7], &[40, 41]].concat();
    let mut alone = Alone(Session::of(self::engine(&model, &settings, processor())));
    assert!(relative_error(engine.logits(whole).unwrap(), &alone.logits(&other)) <= SAME);
    assert_eq!(engine.known_prefix(&prompt[..8], &Kin::default()).0, 8, "what is copied stays");
}

#[test]
fn what_cannot_be_done_is_refused_and_changes_nothing() {
    let model =
        model(&Made::new(&small(Attention::Grouped(grouped(4, 2, 16)), Format::F32)), "sequences-refused");
    let mut engine = engine(&model, &settings(4, 4, Format::F32), processor());
    let (a, b) = (engine.open(), engine.open());
    engine.step(&[piece(a, &[1, 2, 3]), piece(b, &[4])]).unwrap();
    let free = engine.n_free_pages();
    let long = [1; 18];
    for (pieces, expected) in [
        (vec![piece(a, &[1]), piece(a, &[2])], "a step: sequence 0 stands twice"),
        (vec![piece(b, &[1]), piece(a, &[50])], "tokens: there is no token 50, the model has 50"),
        (vec![piece(b, &[1]), piece(a, &[])], "tokens: there are none, at least one is needed"),
        (vec![piece(a, &long)], "tokens: no room for 18 after 3: the context holds 20 tokens"),
    ] {
        assert_eq!(engine.step(&pieces).unwrap_err().to_string(), expected);
        let lens = [a, b].map(|id| engine.len(id).unwrap());
        assert_eq!((lens, engine.n_free_pages()), ([3, 1], free));
    }
    engine.release(a).unwrap();
    let c = engine.open();
    assert_eq!(engine.len(c).unwrap(), 0);
    let gone = "a sequence: there is no sequence 0, or not any more";
    assert_eq!(engine.len(a).unwrap_err().to_string(), gone);
    assert_eq!(engine.step(&[piece(a, &[1])]).unwrap_err().to_string(), gone);
    let stale = "logits: the last step did not extend sequence 0";
    assert_eq!(engine.logits(c).unwrap_err().to_string(), stale);
}

#[test]
fn every_sequence_has_its_best_tokens() {
    let model =
        model(&Made::new(&small(Attention::Grouped(grouped(4, 2, 16)), Format::F32)), "sequences-best");
    let best = Settings { scored: Scored::TopK(2), ..settings(4, 4, Format::F32) };
    let (mut all, mut best) =
        (engine(&model, &settings(4, 4, Format::F32), processor()), engine(&model, &best, processor()));
    let prompts: [&[u32]; 3] = [&[3, 14, 15], &[7], &[1, 41]];
    for tokens in [prompts, [&[5], &[6], &[8]]] {
        let extend = |engine: &mut Engine, ids: &[SequenceId]| {
            let pieces: Vec<Piece<'_>> =
                ids.iter().zip(tokens).map(|(id, tokens)| piece(*id, tokens)).collect();
            engine.step(&pieces).unwrap();
        };
        let open = |engine: &mut Engine| (0..3).map(|_| engine.open()).collect::<Vec<_>>();
        let (ids, own) = (open(&mut all), open(&mut best));
        extend(&mut all, &ids);
        extend(&mut best, &own);
        for (id, own) in ids.iter().zip(&own) {
            let logits = all.logits(*id).unwrap();
            let mut order: Vec<u32> = (0..logits.len() as u32).collect();
            order.sort_by(|a, b| logits[*b as usize].total_cmp(&logits[*a as usize]));
            assert_eq!(best.best(*own).unwrap(), Some(&order[..2]));
        }
        for (id, own) in ids.into_iter().zip(own) {
            all.release(id).unwrap();
            best.release(own).unwrap();
        }
    }
}

#[test]
fn a_page_that_is_written_again_is_found_no_more() {
    let model =
        model(&Made::new(&small(Attention::Grouped(grouped(4, 2, 16)), Format::F32)), "sequences-cut-page");
    let mut engine = engine(&model, &settings(4, 4, Format::F32), processor());
    let (first, second) = (engine.open(), engine.open());
    engine.step(&[piece(first, &[1, 2, 3, 4, 5])]).unwrap();
    engine.truncate(first, 2).unwrap();
    engine.step(&[piece(first, &[6, 7])]).unwrap();
    assert_eq!(engine.share_prefix(second, &[1, 2, 3, 4, 5]).unwrap(), 2);
    engine.truncate(second, 0).unwrap();
    assert_eq!(engine.share_prefix(second, &[1, 2, 6, 7, 5]).unwrap(), 4);
}

#[test]
fn a_saved_sequence_goes_on_as_if_it_had_never_stopped() {
    // Rows of both fill blocks, those of the third do not.
    let own = small(Attention::Grouped(grouped(4, 2, 32)), Format::F32);
    let latents = Latent { kv_lora: 64, rope: 32, ..latent(false) };
    let latents = small(Attention::Latent(latents), Format::F32);
    let models = [
        model(&Made::new(&own), "sequences-saved"),
        model(&Made::new(&latents), "sequences-saved-latents"),
        recurrent("sequences-saved-states"),
        windowed("sequences-saved-windows"),
    ];
    let file = path("sequence.fbkv");
    for format in [Format::F32, Format::F16, Format::Q8_0, Format::Q4_0] {
        let models = if format.block_len() > 1 { &models[..2] } else { &models[..] };
        for (number, model) in models.iter().enumerate() {
            let settings = settings(3, 4, format);
            let mut one = engine(model, &settings, processor());
            // Other sequences come first, so that pages differ.
            let (other, saved) = (one.open(), one.open());
            one.step(&[piece(other, &[7, 8, 9, 7, 8]), piece(saved, &[1, 2, 3, 4, 5, 6])]).unwrap();
            one.save(saved, &file).unwrap();
            let mut another = engine(model, &settings, processor());
            let restored = another.open();
            another.restore(restored, &file).unwrap();
            assert_eq!(another.tokens(restored).unwrap(), [1, 2, 3, 4, 5, 6]);
            assert_eq!(another.logits(restored).unwrap(), one.logits(saved).unwrap());
            for token in [11, 12, 13] {
                one.step(&[piece(saved, &[token])]).unwrap();
                another.step(&[piece(restored, &[token])]).unwrap();
                assert_eq!(another.logits(restored).unwrap(), one.logits(saved).unwrap());
            }
            // Its full page is found by others.
            let shared = another.open();
            let n_shared = another.share_prefix(shared, &[1, 2, 3, 4, 5]).unwrap();
            assert_eq!(n_shared, if another.is_forward_only() { 0 } else { 4 });
            another.truncate(restored, 0).unwrap();
            let mut elsewhere = engine(&models[(number + 1) % models.len()], &settings, processor());
            let id = elsewhere.open();
            let error = elsewhere.restore(id, &file).unwrap_err().to_string();
            assert!(error.contains("it was saved with another model"), "{error}");
        }
    }
}

#[test]
fn a_moved_sequence_goes_on_as_if_it_had_stayed() {
    let own = small(Attention::Grouped(grouped(4, 2, 16)), Format::F32);
    let models = [
        model(&Made::new(&own), "sequences-moved"),
        recurrent("sequences-moved-states"),
        windowed("sequences-moved-windows"),
    ];
    for model in &models {
        let settings = settings(3, 4, Format::F16);
        let [mut one, mut another] = [(); 2].map(|()| engine(model, &settings, processor()));
        // Other sequences come first, so that pages differ.
        let (other, stays) = (one.open(), one.open());
        one.step(&[piece(other, &[7, 8, 9, 7, 8]), piece(stays, &[1, 2, 3, 4, 5, 6])]).unwrap();
        let (first, moved) = (another.open(), another.open());
        another.step(&[piece(first, &[3])]).unwrap();
        another.continue_from(moved, &mut one, stays).unwrap();
        assert_eq!(another.tokens(moved).unwrap(), [1, 2, 3, 4, 5, 6]);
        assert_eq!(another.logits(moved).unwrap(), one.logits(stays).unwrap());
        for token in [11, 12, 13] {
            one.step(&[piece(stays, &[token])]).unwrap();
            another.step(&[piece(moved, &[token])]).unwrap();
            assert_eq!(another.logits(moved).unwrap(), one.logits(stays).unwrap());
        }
        let error = another.continue_from(moved, &mut one, stays).unwrap_err().to_string();
        assert!(error.contains("has tokens already"), "{error}");
    }
    let [mut one, mut another, _] =
        models.each_ref().map(|model| engine(model, &settings(3, 4, Format::F16), processor()));
    let (from, to) = (one.open(), another.open());
    one.step(&[piece(from, &[1, 2])]).unwrap();
    let error = another.continue_from(to, &mut one, from).unwrap_err().to_string();
    assert!(error.contains("has another model"), "{error}");
    let mut short = engine(&models[0], &Settings { context: 4, ..settings(3, 4, Format::F16) }, processor());
    let to = short.open();
    one.step(&[piece(from, &[3, 4, 5])]).unwrap();
    let error = short.continue_from(to, &mut one, from).unwrap_err().to_string();
    assert!(error.contains("it has 5 tokens, the context of the other engine holds 4 tokens"), "{error}");
    assert_eq!(short.len(to).unwrap(), 0);
}

#[test]
fn a_damaged_sequence_is_refused_and_leaves_nothing() {
    let model =
        model(&Made::new(&small(Attention::Grouped(grouped(4, 2, 16)), Format::F32)), "sequences-damaged");
    let mut engine = engine(&model, &settings(3, 4, Format::F16), processor());
    let (whole, file) = (path("whole.fbkv"), path("damaged.fbkv"));
    let saved = engine.open();
    engine.step(&[piece(saved, &[1, 2, 3, 4, 5, 6])]).unwrap();
    engine.save(saved, &whole).unwrap();
    let bytes = std::fs::read(&whole).unwrap();
    engine.release(saved).unwrap();
    let id = engine.open();
    let mut random = Random::new(5);
    for round in 0..2_000 {
        let mut own = bytes.clone();
        if round % 4 == 0 {
            own.truncate(random.below(own.len()));
        } else {
            // The numbers at the start decide about sizes.
            let at = random.below(if round % 2 == 0 { 64 } else { own.len() });
            own[at] ^= 1 << random.below(8);
        }
        std::fs::write(&file, &own).unwrap();
        let error = engine.restore(id, &file).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{}: ", file.display())), "{error}");
        assert_eq!((engine.len(id).unwrap(), engine.n_free_pages()), (0, N_PAGES));
    }
    engine.restore(id, &whole).unwrap();
    let text = path("a-text.fbkv");
    std::fs::write(&text, "a text").unwrap();
    let error = engine.save(id, &text).unwrap_err().to_string();
    assert!(error.contains("found another file there"), "{error}");
}
