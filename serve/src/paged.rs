//! The engine of the scheduler over the engine of the library.
//!
//! In: pieces. Out: rows of logits, copied from the device.
//! Sequences take pages of one KV cache, and a fork shares those of its origin. Vectors of texts come from programs of
//! their own, over a cache of their own, which are made when they are first wanted.
//! Where a state goes only forward, a sequence that is cut starts again: the tokens that are kept are computed with the
//! next ones.

use fusebox::{Batch, Embedder, Engine as Library, Error, Sequence as Id};

use crate::engine::{Capacity, Engine, Piece, Refused, Scored, SequenceId};

/// Makes something of a model, on the thread that uses it.
pub(crate) type Make<T> = Box<dyn Fn() -> Result<T, Error> + Send>;

/// How the parts of an engine are made.
pub(crate) struct Parts {
    /// The engine of all sequences.
    pub(crate) engine: Make<Library>,
    /// What gives vectors of texts, if it is known how.
    pub(crate) embedder: Option<Make<Embedder>>,
}

/// Sequences of an engine of the library.
pub(crate) struct Paged {
    parts: Parts,
    engine: Library,
    embedder: Option<Embedder>,
    /// The sequences by their numbers; none where a number is free.
    open: Vec<Option<Sequence>>,
    /// The rows of the pieces of the last step.
    rows: Vec<Vec<f32>>,
}

/// What is said where a text is embedded and nothing says how.
const NO_POOLING: &str = "the model does not say how hidden vectors are pooled";

/// An open sequence.
#[derive(Clone)]
struct Sequence {
    id: Id,
    /// Its first tokens, where they have yet to be computed again.
    again: Vec<u32>,
}

impl Paged {
    /// Makes the engine of `n` sequences.
    ///
    /// # Errors
    /// Where it does not compile, or the device refuses it.
    pub(crate) fn new(parts: Parts, n: usize) -> Result<Self, Error> {
        let engine = (parts.engine)()?;
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
        let is_whole = sequence.again.is_empty() && n == self.engine.len(sequence.id)?;
        Ok(is_whole || !self.engine.is_forward_only())
    }
}

impl Engine for Paged {
    fn capacity(&self) -> Capacity {
        Capacity {
            page: self.engine.page_len(),
            pages: self.engine.n_pages(),
            free: self.engine.n_free_pages(),
            sequences: self.open.len(),
            context: self.engine.context(),
            vocab: self.engine.n_vocab(),
            shares: !self.engine.is_forward_only(),
        }
    }

    fn open(&mut self) -> Result<SequenceId, Refused> {
        let free = self.free()?;
        self.open[free] = Some(Sequence { id: self.engine.open(), again: Vec::new() });
        Ok(SequenceId(free))
    }

    fn fork(&mut self, of: SequenceId, at: usize) -> Result<SequenceId, Refused> {
        let (free, of) = (self.free()?, self.sequence(of).clone());
        let own = if self.can_cut(&of, at)? {
            let id = self.engine.fork(of.id)?;
            self.engine.truncate(id, at)?;
            Sequence { id, again: Vec::new() }
        } else {
            let again = self.tokens(&of, at)?;
            Sequence { id: self.engine.open(), again }
        };
        self.open[free] = Some(own);
        Ok(SequenceId(free))
    }

    fn step(&mut self, batch: &[Piece]) -> Result<(), Refused> {
        self.rows.iter_mut().for_each(Vec::clear);
        self.rows.resize_with(batch.len().max(self.rows.len()), Vec::new);
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
        let (engine, rows) = (&mut self.engine, &mut self.rows);
        engine.step_with(&extensions, |id, row| {
            let number = ids.iter().position(|own| *own == id).expect("a piece of the batch");
            rows[number].extend_from_slice(row);
        })?;
        let n_vocab = self.engine.n_vocab();
        for (number, (piece, id)) in batch.iter().zip(&ids).enumerate() {
            let n_again = std::mem::take(&mut self.sequence(piece.sequence).again).len();
            match piece.scored {
                Scored::None => {}
                Scored::Last => self.rows[number].extend_from_slice(self.engine.logits(*id)?),
                Scored::All => drop(self.rows[number].drain(..n_again * n_vocab)),
            }
        }
        Ok(())
    }

    fn rows(&self, piece: usize) -> &[f32] {
        &self.rows[piece]
    }

    fn truncate(&mut self, sequence: SequenceId, n: usize) {
        let own = self.sequence(sequence).clone();
        let is_cut = self.can_cut(&own, n).expect("the sequence is open");
        let (again, n) =
            if is_cut { (Vec::new(), n) } else { (self.tokens(&own, n).expect("the sequence is open"), 0) };
        self.engine.truncate(own.id, n).expect("the sequence is open");
        self.sequence(sequence).again = again;
    }

    fn release(&mut self, sequence: SequenceId) {
        if let Some(own) = self.open[sequence.0].take() {
            self.engine.release(own.id).expect("the sequence is open");
        }
    }

    fn embed(&mut self, tokens: &[u32]) -> Result<Vec<f32>, Refused> {
        if self.embedder.is_none() {
            let make = self.parts.embedder.as_ref().ok_or_else(|| Refused::Fault(NO_POOLING.to_owned()))?;
            self.embedder = Some(make()?);
        }
        let embedder = self.embedder.as_mut().expect("it was just made");
        Ok(embedder.embed_tokens(tokens)?)
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
    use fusebox_models::config::{Block, Config, Dense, Grouped, KvCache, Mixer, Network, ShortConv};
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

    fn engine(first: Mixer, n_sequences: usize) -> Paged {
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
                page_rows: cache.page_rows,
                n_pages: cache.n_pages,
                n_sequences: cache.n_sequences,
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
        let parts = Parts { engine: Box::new(make), embedder: None };
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
            let mut engine = engine(first, 3);
            assert_eq!(engine.capacity().shares, shares);
            let alone = engine.open().unwrap();
            let expected = step(&mut engine, alone, &[1, 2, 3, 7, 8], Scored::Last);
            let all = |found: &[f32]| found.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-4);
            let cut = engine.open().unwrap();
            step(&mut engine, cut, &[1, 2, 3, 4, 5], Scored::None);
            engine.truncate(cut, 4);
            engine.truncate(cut, 3);
            let forked = engine.fork(cut, 2).unwrap();
            assert!(all(&step(&mut engine, cut, &[7, 8], Scored::Last)));
            assert!(all(&step(&mut engine, forked, &[3, 7, 8], Scored::Last)));
            let rows = step(&mut engine, forked, &[9, 10], Scored::All);
            assert_eq!(rows.len(), 2 * engine.capacity().vocab);
            // What is scored is continued, in one cache.
            engine.release(alone);
            let scored = engine.open().unwrap();
            let rows = [&[1, 2][..], &[3, 7]].map(|tokens| step(&mut engine, scored, tokens, Scored::All));
            assert_eq!(rows.map(|rows| rows.len()), [2 * engine.capacity().vocab; 2]);
            assert!(all(&step(&mut engine, scored, &[8], Scored::Last)));
            engine.truncate(forked, 5);
            engine.truncate(forked, 0);
            assert!(all(&step(&mut engine, forked, &[1, 2, 3, 7, 8], Scored::Last)));
        }
    }
}
