//! The engine of the scheduler over the engine of the library.
//!
//! In: pieces. Out: rows of logits; those of last tokens lie where the device has them.
//! Sequences take pages of one KV cache. One that is opened shares those that hold its first tokens, whether another
//! sequence uses them or they are idle since one ended; a fork shares those of its origin. Vectors of texts come from
//! programs of their own, over a cache of their own, which are made when they are first wanted.
//! Where a state goes only forward, a sequence that is cut starts again: the tokens that are kept are computed with the
//! next ones.

use std::path::PathBuf;

use fusebox::tokenizer::Pair;
use fusebox::{Batch, Embedder, Engine as Library, Error, Kin, Sequence as Id};

use crate::engine::{Capacity, Engine, Known, Piece, Refused, Scored, SequenceId};

/// Makes something of a model, on the thread that uses it.
pub(crate) type Make<T> = Box<dyn Fn() -> Result<T, Error> + Send>;

/// How the parts of an engine are made.
pub(crate) struct Parts {
    /// The engine of all sequences.
    pub(crate) engine: Make<Library>,
    /// What gives vectors of texts, if it is known how.
    pub(crate) embedder: Option<Make<Embedder>>,
    /// The folder that pages are written to at the end, and read from at the start.
    pub(crate) folder: Option<PathBuf>,
    /// Tells people.
    pub(crate) note: fn(&str),
}

/// Sequences of an engine of the library.
pub(crate) struct Paged {
    parts: Parts,
    engine: Library,
    embedder: Option<Embedder>,
    /// The sequences by their numbers; none where a number is free.
    open: Vec<Option<Sequence>>,
    /// The rows of the pieces of the last step.
    rows: Vec<Rows>,
}

/// The rows of a piece of the last step.
enum Rows {
    /// That of the last token, which the engine has until its next step.
    Last(Id),
    /// Copies of all; none where none are wanted.
    All(Vec<f32>),
}

/// What is said where a text is embedded and nothing says how.
const NO_POOLING: &str = "the model does not say how hidden vectors are pooled";

/// An open sequence.
#[derive(Clone)]
struct Sequence {
    id: Id,
    kin: Kin,
    /// Its first tokens, where they have yet to be computed again.
    again: Vec<u32>,
}

impl Paged {
    /// Makes the engine of `n` sequences.
    ///
    /// # Errors
    /// Where it does not compile, or the device refuses it.
    pub(crate) fn new(parts: Parts, n: usize) -> Result<Self, Error> {
        let mut engine = (parts.engine)()?;
        if let Some(folder) = &parts.folder {
            // A start without it is slower, and nothing else.
            match engine.load_prefixes(folder) {
                Ok(0) => {}
                Ok(n) => (parts.note)(&format!("prefix cache: {n} pages from {}", folder.display())),
                Err(error) => (parts.note)(&format!("starting without a prefix cache: {error}")),
            }
        }
        Ok(Self { parts, engine, embedder: None, open: vec![None; n], rows: Vec::new() })
    }

    fn sequence(&mut self, sequence: SequenceId) -> &mut Sequence {
        self.open[sequence.0].as_mut().expect("the sequence is open")
    }

    /// The number of the next sequence.
    fn free(&self) -> Result<usize, Refused> {
        self.open.iter().position(Option::is_none).ok_or(Refused::Full { needed: 1, free: 0 })
    }

    /// The first `n` tokens of a sequence.
    fn tokens(&self, sequence: &Sequence, n: usize) -> Result<Vec<u32>, Refused> {
        let tokens = self.engine.tokens(sequence.id)?;
        Ok(sequence.again.iter().chain(tokens).copied().take(n).collect())
    }

    /// Whether a sequence can be cut to `n` tokens.
    fn can_cut(&self, sequence: &Sequence, n: usize) -> Result<bool, Refused> {
        Ok(sequence.again.is_empty() && self.engine.can_cut(sequence.id, n)?)
    }
}

impl Engine for Paged {
    fn capacity(&self) -> Capacity {
        let context = self.engine.context().min(self.engine.n_pages() * self.engine.page_len());
        Capacity {
            page: self.engine.page_len(),
            pages: self.engine.n_pages(),
            free: self.engine.n_free_pages(),
            idle: self.engine.n_idle_pages(),
            sequences: self.open.len(),
            context,
            vocab: self.engine.n_vocab(),
            shares: !self.engine.is_forward_only(),
            longest: if self.engine.evicts() { self.engine.longest() } else { context },
        }
    }

    fn known(&self, tokens: &[u32], kin: &Kin) -> Known {
        let (tokens, idle) = self.engine.known_prefix(tokens, kin);
        Known { tokens, idle }
    }

    fn open(&mut self, tokens: &[u32], kin: &Kin) -> Result<(SequenceId, usize), Refused> {
        let free = self.free()?;
        let id = self.engine.open_as(kin)?;
        let n = self.engine.share_known(id, tokens)?;
        self.open[free] = Some(Sequence { id, kin: kin.clone(), again: Vec::new() });
        Ok((SequenceId(free), n))
    }

    fn fork(&mut self, of: SequenceId, at: usize) -> Result<SequenceId, Refused> {
        let (free, of) = (self.free()?, self.sequence(of).clone());
        let own = if self.can_cut(&of, at)? {
            let id = self.engine.fork(of.id)?;
            self.engine.truncate(id, at)?;
            Sequence { id, again: Vec::new(), ..of }
        } else {
            let again = self.tokens(&of, at)?;
            Sequence { id: self.engine.open_as(&of.kin)?, again, ..of }
        };
        self.open[free] = Some(own);
        Ok(SequenceId(free))
    }

    fn takes(&self, sequence: SequenceId, n: usize) -> usize {
        let own = self.open[sequence.0].as_ref().expect("the sequence is open");
        self.engine.takes(own.id, n).expect("the sequence is open")
    }

    fn step(&mut self, batch: &[Piece]) -> Result<(), Refused> {
        let ids: Vec<Id> = batch.iter().map(|piece| self.sequence(piece.sequence).id).collect();
        let tokens = |piece: &Piece| {
            let again = &self.open[piece.sequence.0].as_ref().expect("the sequence is open").again;
            [again, &*piece.tokens].concat()
        };
        let mut extensions = Batch::new();
        for (id, piece) in ids.iter().zip(batch) {
            if piece.scored == Scored::All {
                extensions.score(*id, tokens(piece));
            } else {
                extensions.add(*id, tokens(piece));
            }
        }
        let mut rows: Vec<Vec<f32>> = vec![Vec::new(); batch.len()];
        self.engine.step_with(&extensions, |id, row| {
            let number = ids.iter().position(|own| *own == id).expect("a piece of the batch");
            rows[number].extend_from_slice(row);
        })?;
        let n_vocab = self.engine.n_vocab();
        self.rows.clear();
        for ((piece, id), mut rows) in batch.iter().zip(ids).zip(rows) {
            let n_again = std::mem::take(&mut self.sequence(piece.sequence).again).len();
            rows.drain(..(n_again * n_vocab).min(rows.len()));
            self.rows.push(if piece.scored == Scored::Last { Rows::Last(id) } else { Rows::All(rows) });
        }
        Ok(())
    }

    fn rows(&self, piece: usize) -> &[f32] {
        match &self.rows[piece] {
            Rows::Last(id) => self.engine.logits(*id).expect("the last step extended the sequence"),
            Rows::All(rows) => rows,
        }
    }

    fn truncate(&mut self, sequence: SequenceId, n: usize) {
        let own = self.sequence(sequence).clone();
        let is_cut = self.can_cut(&own, n).expect("the sequence is open");
        let (again, n) =
            if is_cut { (Vec::new(), n) } else { (self.tokens(&own, n).expect("the sequence is open"), 0) };
        self.engine.truncate(own.id, n).expect("the sequence is open");
        self.sequence(sequence).again = again;
    }

    fn release(&mut self, sequence: SequenceId, is_known: bool) {
        if let Some(own) = self.open[sequence.0].take() {
            let closed = if is_known { self.engine.release(own.id) } else { self.engine.discard(own.id) };
            closed.expect("the sequence is open");
        }
    }

    fn save(&mut self) {
        let Some(folder) = &self.parts.folder else { return };
        match self.engine.save_prefixes(folder) {
            Ok(n) => (self.parts.note)(&format!("prefix cache: {n} pages to {}", folder.display())),
            Err(error) => (self.parts.note)(&format!("the prefix cache is not kept: {error}")),
        }
    }

    fn embed(&mut self, input: &Pair) -> Result<Vec<f32>, Refused> {
        if self.embedder.is_none() {
            let make = self.parts.embedder.as_ref().ok_or_else(|| Refused::Fault(NO_POOLING.to_owned()))?;
            self.embedder = Some(make()?);
        }
        let embedder = self.embedder.as_mut().expect("it was just made");
        Ok(embedder.embed_pair(input)?)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use fusebox_compiler::graph::op::Op;
    use fusebox_compiler::options::Options;
    use fusebox_compiler::reference::random::Numbers;
    use fusebox_compiler::tensor::sym::Sym;
    use fusebox_models::blocks::{model, part};
    use fusebox_models::config::attention::Grouped;
    use fusebox_models::config::network::Dense;
    use fusebox_models::config::recurrent::ShortConv;
    use fusebox_models::config::{Block, Config, KvCache, Mixer, Network};
    use fusebox_models::layers::embed::{Entry, Scored as Scores};
    use fusebox_models::layers::step::Step;
    use fusebox_runtime::device::Weights;
    use fusebox_runtime::device::fake::FakeDevice;
    use fusebox_runtime::session::cache::Cache;
    use fusebox_runtime::session::classes::{Class, Programs};
    use fusebox_runtime::session::engine::{Engine as Runtime, Limits};

    use super::*;

    /// Tensors by the names that graphs use.
    struct Tensors(BTreeMap<String, Vec<u8>>);

    impl Weights for Tensors {
        fn bytes(&self, name: &str) -> Option<&[u8]> {
            self.0.get(name).map(Vec::as_slice)
        }
    }

    /// A small model with one of these mixers before attention.
    fn config(first: Mixer, n_sequences: usize) -> Config {
        let mixers = [first, Mixer::Grouped(Grouped::new(2, 1, 8))];
        let blocks = mixers.map(|mixer| Block::new(mixer, Network::Dense(Dense::swiglu(16))));
        let mut config = Config::new(blocks.to_vec(), 16, 30, 32);
        config.cache = KvCache { page_rows: 4, n_pages: 16, n_sequences, ..config.cache };
        config
    }

    fn engine(first: Mixer, n_sequences: usize, folder: Option<PathBuf>) -> Paged {
        let config = config(first, n_sequences);
        let make = move || {
            let graph =
                model(&config, &Sym::from(1), config.n_layers()).map_err(|error| error.to_string())?;
            let mut weights = BTreeMap::new();
            for node in graph.nodes.values() {
                let Op::Weight { name, shape, format } = &node.op else { continue };
                weights.insert(name.to_string(), Numbers::of(5, name).stored(*format, shape).bytes.to_vec());
            }
            let weights: Arc<dyn Weights> = Arc::new(Tensors(weights));
            let (context, n_vocab, cache) = (config.context, config.vocab, config.cache);
            let limits = Limits {
                context,
                n_vocab,
                n_kinds: 0,
                page_rows: cache.page_rows,
                n_pages: cache.n_pages,
                n_sequences: cache.n_sequences,
                windows: None,
            };
            let config = config.clone();
            let compile = move |class: Class| {
                let graph = part(&config, Step::of(class), config.n_layers(), Entry::Tokens, Scores::Last)?;
                Cache::default().program(&graph, &Options::default())
            };
            let programs = Programs::new(8, 8, n_sequences, Box::new(compile));
            let engine = Runtime::new(Box::<FakeDevice>::default(), programs, &weights, limits)?;
            Ok(engine.into())
        };
        let parts = Parts { engine: Box::new(make), embedder: None, folder, note: |_| {} };
        Paged::new(parts, n_sequences).unwrap()
    }

    fn step(engine: &mut Paged, sequence: SequenceId, tokens: &[u32], scored: Scored) -> Vec<f32> {
        engine.step(&[Piece { sequence, tokens: tokens.to_vec(), scored }]).unwrap();
        engine.rows(0).to_vec()
    }

    #[test]
    fn a_sequence_that_is_cut_goes_on_from_the_tokens_that_are_kept() {
        for (first, shares) in [
            (Mixer::ShortConv(ShortConv { kernel: 3 }), false),
            (Mixer::Grouped(Grouped::new(2, 2, 8)), true),
        ] {
            let mut engine = engine(first, 3, None);
            assert_eq!(engine.capacity().shares, shares);
            let alone = engine.open(&[], &Kin::default()).unwrap().0;
            let expected = step(&mut engine, alone, &[1, 2, 3, 7, 8], Scored::Last);
            let all = |found: &[f32]| found.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-4);
            let cut = engine.open(&[], &Kin::default()).unwrap().0;
            step(&mut engine, cut, &[1, 2, 3, 4, 5], Scored::None);
            engine.truncate(cut, 4);
            engine.truncate(cut, 3);
            let forked = engine.fork(cut, 2).unwrap();
            assert!(all(&step(&mut engine, cut, &[7, 8], Scored::Last)));
            assert!(all(&step(&mut engine, forked, &[3, 7, 8], Scored::Last)));
            let rows = step(&mut engine, forked, &[9, 10], Scored::All);
            assert_eq!(rows.len(), 2 * engine.capacity().vocab);
            // What is scored is continued, in one cache.
            engine.release(alone, true);
            let scored = engine.open(&[], &Kin::default()).unwrap().0;
            let rows = [&[1, 2][..], &[3, 7]].map(|tokens| step(&mut engine, scored, tokens, Scored::All));
            assert_eq!(rows.map(|rows| rows.len()), [2 * engine.capacity().vocab; 2]);
            assert!(all(&step(&mut engine, scored, &[8], Scored::Last)));
            engine.truncate(forked, 5);
            engine.truncate(forked, 0);
            assert!(all(&step(&mut engine, forked, &[1, 2, 3, 7, 8], Scored::Last)));
        }
    }

    #[test]
    fn what_a_sequence_held_is_found_by_the_next_and_by_the_next_process() {
        let folder = std::env::temp_dir().join(format!("fusebox-paged-{}", std::process::id()));
        let first = Mixer::Grouped(Grouped::new(2, 2, 8));
        let mut before = engine(first.clone(), 3, Some(folder.clone()));
        let tokens: Vec<u32> = (1..12).collect();
        let (one, n) = before.open(&tokens, &Kin::default()).unwrap();
        assert_eq!(n, 0);
        let expected = step(&mut before, one, &tokens, Scored::Last);
        let (salted, _) = before.open(&[], &7.into()).unwrap();
        step(&mut before, salted, &[20, 21, 22, 23, 24], Scored::None);
        let (private, _) = before.open(&[], &Kin::default()).unwrap();
        step(&mut before, private, &[25, 26, 27, 28, 29], Scored::None);
        for (sequence, is_known) in [(one, true), (salted, true), (private, false)] {
            before.release(sequence, is_known);
        }
        // Three pages of the first, two with a salt.
        assert_eq!((before.capacity().free, before.capacity().idle), (16, 5));
        assert_eq!(before.known(&tokens, &Kin::default()), Known { tokens: 11, idle: 3 });
        assert_eq!(before.known(&tokens, &7.into()), Known::default());
        before.save();
        let mut after = engine(first.clone(), 3, Some(folder.clone()));
        assert_eq!((after.capacity().free, after.capacity().idle), (16, 3));
        for engine in [&mut before, &mut after] {
            for n in [11, 10, 9, 8, 5] {
                let (again, n_known) = engine.open(&tokens[..n], &Kin::default()).unwrap();
                assert_eq!(n_known, n);
                if n < 11 {
                    let row = step(engine, again, &tokens[n..], Scored::Last);
                    assert!(row.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-4), "{n}");
                }
                engine.release(again, true);
            }
        }
        // A damaged file, or one of another model, is told and not believed.
        let file = std::fs::read_dir(&folder).unwrap().next().unwrap().unwrap().path();
        let good = std::fs::read(&file).unwrap();
        let last = good.len() - 1;
        let changed = |at: usize, by: u8| [&good[..at], &[good[at] ^ by], &good[at + 1..]].concat();
        for bytes in [
            vec![],
            good[..9].to_vec(),
            good[..last].to_vec(),
            changed(last, 1),
            changed(99, 4),
            changed(4, 1),
        ] {
            std::fs::write(&file, &bytes).unwrap();
            assert_eq!(engine(first.clone(), 3, Some(folder.clone())).capacity().idle, 0);
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
