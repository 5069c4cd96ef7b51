//! Sessions: token sequences with their KV caches, and the programs that extend them.
//!
//! In: tokens, or vectors in their place. Out: logits, or the best of them, or hidden vectors.
//! Most sessions have one sequence. A session of several has one that is selected, which prompts go to, and a batch
//! program that decodes one token of each sequence in one replay and reads every weight once.
//! A session and the graphs that it runs agree on names: the symbol [`POSITION`] is the position of the first token of
//! a replay, [`TOKENS`] is the number of tokens; in a batch, [`position_of`] and [`state_of`] name the position and the
//! states of one sequence. A program has one input (tokens or vectors) and one output (logits or vectors). A program
//! that selects the best logits by itself has their tokens as a second output.
//! The program for one token is loaded when the session is created, and a decode step allocates nothing. The others are
//! compiled and loaded when a prompt of their size first comes, or in [`Session::prepare`].
//! `classes.rs` says which program takes how many tokens, `loaded.rs` is a program on its device, `cache.rs` keeps
//! compiled programs on disk, `device/` runs them.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use fusebox_compiler::error::{Complaint, Error as CompilerError};
use fusebox_compiler::foundation::amount::counted;
use fusebox_compiler::graph::Name;
use fusebox_compiler::program::Program;
use fusebox_compiler::schedule::{BufferSlot, Place, Plan};
use fusebox_compiler::tensor::quant::Format;

use crate::device::{Device, Footprint, ProgramId, Weights};
use crate::error::Error;

pub mod cache;
pub mod classes;
mod loaded;

use classes::Programs;
use loaded::Loaded;

/// The symbol for the position of a replay's first token.
pub const POSITION: &str = "P";
/// The symbol for the number of tokens of a replay, where it varies.
pub const TOKENS: &str = "T";

/// What the names of states begin with that no position indexes.
const CARRIED: &str = "carried_";

/// The name of a state that no position indexes: it goes from token to token, and only forward.
pub fn carried(name: &str) -> String {
    format!("{CARRIED}{name}")
}

/// Whether a state has such a name; blocks put theirs before it, sequences their number after it.
fn is_carried(name: &str) -> bool {
    name.split('.').any(|part| part.starts_with(CARRIED))
}

/// One of the sequences of a session, by its number from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct SequenceId(pub usize);

impl fmt::Display for SequenceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The symbol for the position of one sequence of a batch.
pub fn position_of(sequence: SequenceId) -> String {
    format!("{POSITION}{sequence}")
}

/// The name of a state of one sequence of a batch.
pub fn state_of(state: &str, sequence: SequenceId) -> String {
    format!("{state}.{sequence}")
}

/// One or more token sequences with their KV caches.
pub struct Session {
    device: Box<dyn Device>,
    weights: Arc<dyn Weights>,
    programs: Programs,
    /// For each class of token counts, its program, once it was needed. The first class takes one token.
    loaded: Vec<Option<Loaded>>,
    /// The program that decodes one token of each sequence.
    batch: Option<Loaded>,
    sequences: Vec<Sequence>,
    selected: SequenceId,
    context: usize,
    n_vocab: usize,
    /// How many numbers a row of the output has.
    width: usize,
    /// The numbers of the outputs: rows, and the tokens of the best logits.
    outputs: (usize, Option<usize>),
}

/// The state of one sequence.
#[derive(Clone)]
struct Sequence {
    /// How many tokens it has.
    position: usize,
    /// The program of its last replay, and which rows of the output are its own.
    output: ProgramId,
    rows: Range<usize>,
}

impl Session {
    /// A session with one empty sequence of at most `context` tokens, each below `n_vocab`. With a batch program it has
    /// several, as many as the number beside the program says.
    ///
    /// # Errors
    /// Where a program does not compile, has other inputs or outputs than a session needs, or the device refuses it.
    pub fn new(
        device: Box<dyn Device>,
        mut programs: Programs,
        batch: Option<(Program, usize)>,
        weights: &Arc<dyn Weights>,
        context: usize,
        n_vocab: usize,
    ) -> Result<Self, Error> {
        let decode = &programs.program(0)?.plan;
        let outputs = outputs(decode)?;
        let width = outputs_of(decode)[outputs.0].shape.max_len();
        let n_sequences = batch.as_ref().map_or(1, |(_, n_sequences)| *n_sequences);
        let empty = Sequence { position: 0, output: ProgramId::default(), rows: 0..1 };
        let loaded = programs.classes().iter().map(|_| None).collect();
        let mut session = Self {
            device,
            weights: Arc::clone(weights),
            programs,
            loaded,
            batch: None,
            sequences: vec![empty; n_sequences],
            selected: SequenceId::default(),
            context,
            n_vocab,
            width,
            outputs,
        };
        // GPU memory is scarce: the largest program is loaded first, so that all others fit into its arena.
        if session.device.free().is_some() {
            session.load(session.loaded.len() - 1)?;
        }
        if let Some((program, _)) = batch {
            session.check_outputs(&program.plan)?;
            let mut batch = Loaded::new(program.plan, 1)?;
            batch.load(&mut *session.device, weights, None)?;
            session.batch = Some(batch);
        }
        for number in 0..n_sequences {
            session.selected = SequenceId(number);
            session.sequences[number].output = session.load(0)?;
        }
        session.selected = SequenceId::default();
        Ok(session)
    }

    /// The number of the class that a replay of `n_tokens` belongs to.
    fn class_of(&self, n_tokens: usize) -> usize {
        let classes = self.programs.classes();
        classes.iter().position(|class| n_tokens <= class.most).unwrap_or(classes.len() - 1)
    }

    /// The most tokens of a replay.
    fn most_tokens(&self) -> usize {
        self.programs.classes().last().map_or(1, |class| class.most)
    }

    /// The program of a class with the states of the selected sequence; compiled and loaded if it was not before.
    fn load(&mut self, class: usize) -> Result<ProgramId, Error> {
        if self.loaded[class].is_none() {
            let plan = self.programs.take(class)?.plan;
            self.check_outputs(&plan)?;
            self.loaded[class] = Some(Loaded::new(plan, self.sequences.len())?);
        }
        let Self { device, weights, loaded, sequences, selected, .. } = self;
        let program = loaded[class].as_mut().expect("it was just created");
        program.load(&mut **device, weights, (sequences.len() > 1).then_some(*selected))
    }

    /// Refuses a plan whose outputs are not those of the session.
    fn check_outputs(&self, plan: &Plan) -> Result<(), Error> {
        if outputs(plan)? != self.outputs {
            return Err(refused("a program", "another one has other outputs".to_owned()));
        }
        Ok(())
    }

    fn loaded(&self, class: usize) -> &Loaded {
        of_class(&self.loaded, class)
    }

    /// Compiles and loads the programs that a prompt of `n_tokens` needs, so that the prompt itself does not wait for
    /// that.
    ///
    /// # Errors
    /// Where a program does not compile, or the device refuses it.
    pub fn prepare(&mut self, n_tokens: usize) -> Result<(), Error> {
        let most = self.most_tokens();
        for n_now in [n_tokens.min(most), n_tokens % most] {
            if n_now > 0 {
                self.load(self.class_of(n_now))?;
            }
        }
        Ok(())
    }

    /// The number of sequences.
    pub fn n_sequences(&self) -> usize {
        self.sequences.len()
    }

    /// Selects a sequence: all methods that concern one sequence concern this one from now on.
    ///
    /// # Errors
    /// Where there is no such sequence.
    pub fn select(&mut self, sequence: SequenceId) -> Result<(), Error> {
        let n = self.n_sequences();
        if sequence.0 >= n {
            let what = format!("there is no sequence {sequence}, the session has {n}");
            return Err(refused("sequences", what));
        }
        self.selected = sequence;
        Ok(())
    }

    fn sequence(&self) -> &Sequence {
        &self.sequences[self.selected.0]
    }

    fn sequence_mut(&mut self) -> &mut Sequence {
        &mut self.sequences[self.selected.0]
    }

    /// How many tokens the sequence has.
    pub fn position(&self) -> usize {
        self.sequence().position
    }

    /// How many tokens a sequence may have.
    pub fn context(&self) -> usize {
        self.context
    }

    /// The size of the vocabulary.
    pub fn n_vocab(&self) -> usize {
        self.n_vocab
    }

    /// The plan that decodes one token.
    pub fn plan(&self) -> &Plan {
        &self.loaded(0).plan
    }

    /// The plan that decodes one token of each sequence; with one sequence, the plan that decodes one token.
    pub fn batch_plan(&self) -> &Plan {
        self.batch.as_ref().map_or_else(|| self.plan(), |batch| &batch.plan)
    }

    /// The plan that takes `n_tokens` in one replay.
    ///
    /// # Errors
    /// As [`Session::prepare`].
    pub fn plan_of(&mut self, n_tokens: usize) -> Result<&Plan, Error> {
        let class = self.class_of(n_tokens);
        self.load(class)?;
        Ok(&self.loaded(class).plan)
    }

    /// The replays that a prompt of `n_tokens` is split into: how many tokens each takes.
    pub fn pieces(&self, n_tokens: usize) -> impl Iterator<Item = usize> + use<> {
        let most = self.most_tokens();
        (0..n_tokens).step_by(most).map(move |first| most.min(n_tokens - first))
    }

    /// What the device holds.
    pub fn footprint(&self) -> Footprint {
        self.device.footprint()
    }

    /// What the device is.
    pub fn device(&self) -> String {
        self.device.describe()
    }

    /// Appends tokens and returns the logits of the next one.
    ///
    /// # Errors
    /// Where there are no tokens, a token is not in the vocabulary, the programs start from vectors, or the sequence
    /// would become longer than the context; then nothing is appended.
    pub fn feed(&mut self, tokens: &[u32]) -> Result<&[f32], Error> {
        self.score(tokens, &mut |_| {})?;
        Ok(self.logits())
    }

    /// Appends tokens, and calls `each` with every row of output: one row for each token where the programs score all
    /// tokens or return hidden vectors, else one for the last token of each replay.
    ///
    /// # Errors
    /// As [`Session::feed`].
    pub fn score(&mut self, tokens: &[u32], each: &mut dyn FnMut(&[f32])) -> Result<(), Error> {
        self.check_tokens(tokens)?;
        self.append(bytemuck::cast_slice(tokens), each)
    }

    /// Appends input vectors, one after another, in place of the embeddings of tokens; otherwise as [`Session::score`].
    ///
    /// # Errors
    /// As [`Session::feed`], and where the numbers are no whole vectors.
    pub fn score_vectors(&mut self, vectors: &[f32], each: &mut dyn FnMut(&[f32])) -> Result<(), Error> {
        let width = self.loaded(0).row_bytes / size_of::<f32>();
        if !vectors.len().is_multiple_of(width) {
            let what = format!("expected whole vectors of {width} numbers, found {}", vectors.len());
            return Err(refused("vectors", what));
        }
        let n = vectors.len() / width;
        self.check(Format::F32, "vectors", n)?;
        self.append(bytemuck::cast_slice(vectors), each)
    }

    /// Decodes a batch: appends one token to each sequence, or none where there is `None`. Afterwards
    /// [`Session::logits`] returns the logits of the selected sequence. Every weight is read once for all sequences.
    ///
    /// # Errors
    /// Where there is not one entry for each sequence, or else as [`Session::feed`]; then nothing is appended.
    pub fn decode_batch(&mut self, tokens: &[Option<u32>]) -> Result<(), Error> {
        if tokens.len() != self.n_sequences() {
            let sequences = counted(self.n_sequences(), "sequence");
            let what = format!("expected one for each of {sequences}, found {}", tokens.len());
            return Err(refused("tokens", what));
        }
        if self.batch.is_none() {
            return tokens[0].map_or(Ok(()), |token| self.feed(&[token]).map(|_| ()));
        }
        if tokens.contains(&None) && self.carried().is_some() {
            // A sequence without a token would go forward all the same.
            return Err(refused("tokens", "a state goes only forward: every sequence needs one".to_owned()));
        }
        let Some(batch) = &mut self.batch else { return Ok(()) };
        for (sequence, token) in self.sequences.iter().zip(tokens) {
            if let Some(token) = token {
                check_tokens(&[*token], self.n_vocab)?;
                batch.check(Format::I32, "tokens", 1, (sequence.position, self.context))?;
            }
        }
        let program = batch.load(&mut *self.device, &self.weights, None)?;
        // A sequence without a token computes token 0, and its position does not advance.
        let input = self.device.input(program, 0).chunks_exact_mut(size_of::<u32>());
        input.zip(tokens).for_each(|(to, token)| to.copy_from_slice(&token.unwrap_or(0).to_le_bytes()));
        batch.bind(self.sequences.iter().map(|sequence| sequence.position), 1);
        self.device.replay(program, &batch.symbols)?;
        for (row, (sequence, token)) in self.sequences.iter_mut().zip(tokens).enumerate() {
            if token.is_some() {
                let position = sequence.position + 1;
                *sequence = Sequence { position, output: program, rows: row..row + 1 };
            }
        }
        Ok(())
    }

    /// Replays the programs over the rows of an input.
    fn append(&mut self, rows: &[u8], each: &mut dyn FnMut(&[f32])) -> Result<(), Error> {
        let (mut left, row_bytes) = (rows, self.loaded(0).row_bytes);
        self.prepare(rows.len() / row_bytes)?;
        while !left.is_empty() {
            let n_now = (left.len() / row_bytes).min(self.most_tokens());
            let (now, later) = left.split_at(n_now * row_bytes);
            let (program, class) = self.bind(now, n_now)?;
            self.device.replay(program, &of_class(&self.loaded, class).symbols)?;
            self.commit(program, n_now);
            self.rows().chunks_exact(self.width).for_each(&mut *each);
            left = later;
        }
        Ok(())
    }

    /// As [`Session::feed`] of tokens that fit into one replay; returns how long each step of the plan took.
    ///
    /// # Errors
    /// As [`Session::feed`], and where the tokens do not fit into one replay.
    pub fn profile(&mut self, tokens: &[u32]) -> Result<Vec<Duration>, Error> {
        self.check_tokens(tokens)?;
        let (n, most) = (tokens.len(), self.most_tokens());
        if n > most {
            return Err(refused("tokens", format!("a replay takes {most} at most, found {n}")));
        }
        let (program, class) = self.bind(bytemuck::cast_slice(tokens), n)?;
        let times = self.device.profile(program, &of_class(&self.loaded, class).symbols)?;
        self.commit(program, n);
        Ok(times)
    }

    /// The last output row of the sequence: the logits of its next token, or a hidden vector. It is meaningless before
    /// the first token.
    pub fn logits(&self) -> &[f32] {
        let rows = self.rows();
        &rows[rows.len() - self.width..]
    }

    /// The tokens that the logits belong to, largest first, where the programs select the best.
    pub fn best(&self) -> Option<&[u32]> {
        let (_, ids) = self.outputs;
        Some(bytemuck::cast_slice(self.device.output(self.sequence().output, ids?)))
    }

    /// How many of the first `position` tokens can be kept: all, unless a state goes only forward.
    pub fn reusable(&self, position: usize) -> usize {
        if position >= self.position() || self.carried().is_none() { position } else { 0 }
    }

    /// Whether a state goes only forward, so that a sequence cannot be cut.
    pub fn is_forward_only(&self) -> bool {
        self.carried().is_some()
    }

    /// The name of a state that goes only forward, if there is one.
    fn carried(&self) -> Option<&Name> {
        let states = self.plan().buffers.values().filter(|slot| slot.place == Place::State);
        states.map(|slot| &slot.name).find(|name| is_carried(name))
    }

    /// Drops all tokens from a position on and keeps those before it. Memory is freed when the session is dropped.
    ///
    /// # Errors
    /// Where a state goes only forward: then all tokens can be kept, or none.
    pub fn truncate(&mut self, position: usize) -> Result<(), Error> {
        if self.reusable(position) < position.min(self.position())
            && let Some(state) = self.carried()
        {
            let what = format!(
                "the state `{state}` goes only forward: of {} none or all can be kept, not {position}",
                counted(self.position(), "token")
            );
            return Err(refused("a sequence", what));
        }
        let sequence = self.sequence_mut();
        sequence.position = sequence.position.min(position);
        Ok(())
    }

    fn check_tokens(&self, tokens: &[u32]) -> Result<(), Error> {
        check_tokens(tokens, self.n_vocab)?;
        self.check(Format::I32, "tokens", tokens.len())
    }

    fn check(&self, format: Format, what: &str, n: usize) -> Result<(), Error> {
        self.loaded(0).check(format, what, n, (self.position(), self.context))
    }

    /// Writes the input and the symbols of a replay of `n` tokens; returns its program and class.
    fn bind(&mut self, rows: &[u8], n: usize) -> Result<(ProgramId, usize), Error> {
        let (position, class) = (self.position(), self.class_of(n));
        let program = self.load(class)?;
        let loaded = self.loaded[class].as_mut().expect("it was just loaded");
        loaded.bind([position], n);
        self.device.input(program, 0)[..rows.len()].copy_from_slice(rows);
        Ok((program, class))
    }

    /// Advances the sequence by the `n` tokens of a replay.
    fn commit(&mut self, program: ProgramId, n: usize) {
        let is_each = self.device.output(program, self.outputs.0).len() > self.width * size_of::<f32>();
        let position = self.position() + n;
        *self.sequence_mut() = Sequence { position, output: program, rows: 0..if is_each { n } else { 1 } };
    }

    /// The output rows of the sequence's last replay.
    fn rows(&self) -> &[f32] {
        let Sequence { output, rows, .. } = self.sequence();
        let all: &[f32] = bytemuck::cast_slice(self.device.output(*output, self.outputs.0));
        &all[rows.start * self.width..rows.end * self.width]
    }
}

fn of_class(loaded: &[Option<Loaded>], class: usize) -> &Loaded {
    loaded[class].as_ref().expect("a program is loaded before it is used")
}

/// Refuses tokens that are not in the vocabulary.
fn check_tokens(tokens: &[u32], n_vocab: usize) -> Result<(), Error> {
    let Some(token) = tokens.iter().find(|token| **token as usize >= n_vocab) else { return Ok(()) };
    Err(refused("tokens", format!("there is no token {token}, the model has {n_vocab}")))
}

/// The one input of a plan.
fn input(plan: &Plan) -> Result<&BufferSlot, Error> {
    let mut found = plan.buffers.values().filter(|slot| slot.place == Place::Input);
    match (found.next(), found.next()) {
        (Some(slot), None) => Ok(slot),
        _ => Err(refused("a program", "a session needs plans with one input".to_owned())),
    }
}

fn outputs_of(plan: &Plan) -> Vec<&BufferSlot> {
    plan.buffers.values().filter(|slot| slot.place == Place::Output).collect()
}

/// Which output of a plan has the rows, and which the tokens of the best logits, if there is one.
fn outputs(plan: &Plan) -> Result<(usize, Option<usize>), Error> {
    let formats: Vec<Format> = outputs_of(plan).iter().map(|slot| slot.format).collect();
    match formats[..] {
        [Format::F32] => Ok((0, None)),
        [Format::F32, Format::I32] => Ok((0, Some(1))),
        [Format::I32, Format::F32] => Ok((1, Some(0))),
        _ => Err(refused(
            "a program",
            "a session needs plans with rows, and at most tokens beside them".to_owned(),
        )),
    }
}

fn refused(place: &str, what: String) -> Error {
    CompilerError::Input { complaints: vec![Complaint::new(place, what)] }.into()
}
