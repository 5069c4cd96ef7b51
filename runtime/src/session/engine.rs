//! The engine: many sequences over one KV cache, and the programs that extend them.
//!
//! In: pieces, each a sequence and its next tokens (or vectors in their place). Out: for each sequence, rows of logits
//! (or the best of them, or hidden vectors).
//! A sequence takes pages of the cache as it grows; sequences with equal beginnings share pages. A step takes one token
//! of each of many sequences in one replay, which reads every weight once, and runs of several tokens in replays of
//! their own. Before anything is written, a step makes sure that there are pages: without them it is
//! [`Error::Full`], and nothing has changed.
//! An engine and the graphs that it runs agree on names, those of [`inputs`](crate::session::inputs). A decode step
//! allocates nothing. Here is what is done to one sequence; `engine/step.rs` has the steps.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use fusebox_compiler::foundation::amount::counted;
use fusebox_compiler::foundation::entity::Id;
use fusebox_compiler::graph::Name;
use fusebox_compiler::schedule::{Place, Plan};
use fusebox_compiler::tensor::quant::Format;

use crate::device::{Device, Footprint, ProgramId, Weights};
use crate::error::Error;
use crate::session::classes::{Form, Programs};
use crate::session::loaded::{Loaded, Outputs, Rows};
use crate::session::pool::{PageId, Pool, Prefix};
use crate::session::{is_carried, refused};

mod step;

/// One of the sequences of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SequenceId {
    index: u32,
    /// Numbers are used again, so this tells a sequence from an earlier one of its number.
    generation: u32,
}

impl fmt::Display for SequenceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.index.fmt(f)
    }
}

/// Sizes that an engine and its graphs share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The most tokens of a sequence.
    pub context: usize,
    /// The size of the vocabulary.
    pub n_vocab: usize,
    /// Rows of a page of the KV cache: the tokens that it holds.
    pub page_rows: usize,
    /// Pages of all sequences together.
    pub n_pages: usize,
    /// Sequences that may have tokens at a time, where states go from token to token.
    pub n_sequences: usize,
}

/// What a sequence is extended by.
#[derive(Clone, Copy, Debug)]
pub enum Feed<'a> {
    /// Tokens.
    Tokens(&'a [u32]),
    /// Vectors in place of the embeddings of tokens, one after another.
    Vectors(&'a [f32]),
}

/// What a step does to one sequence.
#[derive(Clone, Copy, Debug)]
pub struct Piece<'a> {
    /// The sequence.
    pub sequence: SequenceId,
    /// What it is extended by.
    pub feed: Feed<'a>,
    /// Whether every token gets a row of output, where the programs can; else the last one.
    pub is_scored: bool,
}

impl<'a> Piece<'a> {
    /// Tokens, of which the last gets a row of output.
    pub fn of(sequence: SequenceId, tokens: &'a [u32]) -> Self {
        Self { sequence, feed: Feed::Tokens(tokens), is_scored: false }
    }
}

/// Many sequences over one KV cache.
pub struct Engine {
    device: Box<dyn Device>,
    weights: Arc<dyn Weights>,
    programs: Programs,
    /// For each class of tokens, its program, once it was needed. The first class takes one token.
    loaded: Vec<Option<Loaded>>,
    limits: Limits,
    pool: Pool,
    /// The name of a state that goes from token to token, if there is one.
    carried: Option<Name>,
    /// Places for the states of a sequence that nobody uses; none at all where no state goes from token to token.
    free_states: Vec<u32>,
    slots: Vec<Slot>,
    /// How many numbers a row of the output has, and which outputs there are.
    width: usize,
    outputs: Outputs,
    /// Counts steps: the rows of a sequence are those of the step that computed them.
    n_steps: u64,
    /// The pieces of a batch, by their numbers; kept for its memory.
    batch: Vec<usize>,
}

/// A sequence, or room for one.
#[derive(Default)]
struct Slot {
    generation: u32,
    sequence: Option<Sequence>,
}

/// The state of one sequence.
struct Sequence {
    /// Its tokens, as far as it was extended by tokens.
    tokens: Vec<u32>,
    /// How many tokens it has.
    len: usize,
    pages: Vec<PageId>,
    /// Where its states lie that go from token to token, if there are any and it has tokens.
    state: Option<u32>,
    /// What each full page holds, as long as all of the sequence came from tokens.
    prefixes: Vec<Prefix>,
    /// What is known before its first token.
    start: Prefix,
    output: Option<Output>,
}

/// The rows of a sequence's last replay.
struct Output {
    step: u64,
    program: ProgramId,
    rows: Range<usize>,
    /// A copy, where a later replay of the same step has overwritten the program's outputs.
    kept: Option<(Vec<f32>, Vec<u32>)>,
}

impl Feed<'_> {
    fn rows(&self) -> Rows<'_> {
        match self {
            Self::Tokens(tokens) => Rows { format: Format::I32, bytes: bytemuck::cast_slice(tokens) },
            Self::Vectors(vectors) => Rows { format: Format::F32, bytes: bytemuck::cast_slice(vectors) },
        }
    }
}

impl Engine {
    /// An engine without sequences.
    ///
    /// # Errors
    /// Where a program does not compile, has other inputs or outputs than an engine needs, or the device refuses it.
    pub fn new(
        device: Box<dyn Device>,
        mut programs: Programs,
        weights: &Arc<dyn Weights>,
        limits: Limits,
    ) -> Result<Self, Error> {
        let decode = &programs.program(0)?.plan;
        let outputs = Outputs::of(decode)?;
        let width = outputs.width(decode);
        let carried = carried_state(decode).cloned();
        let n_states = if carried.is_some() { limits.n_sequences as u32 } else { 0 };
        let loaded = programs.classes().iter().map(|_| None).collect();
        let mut engine = Self {
            device,
            weights: Arc::clone(weights),
            programs,
            loaded,
            pool: Pool::new(limits.page_rows, limits.n_pages),
            carried,
            free_states: (0..n_states).rev().collect(),
            limits,
            slots: Vec::new(),
            width,
            outputs,
            n_steps: 0,
            batch: Vec::new(),
        };
        // GPU memory is scarce: the largest program is loaded first, so that all others fit into its arena.
        if engine.device.free().is_some() {
            for form in [Form::Run, Form::Scored, Form::Batch] {
                if let Some(largest) = engine.programs.classes().iter().rposition(|class| class.form == form)
                {
                    engine.load(largest)?;
                }
            }
        }
        engine.load(0)?;
        Ok(engine)
    }

    /// The number of the class that a replay belongs to.
    fn class_of(&self, form: Form, n_tokens: usize) -> usize {
        let class = self.programs.classes().iter().position(|class| class.takes(form, n_tokens));
        class.expect("replays take no more than the largest class")
    }

    /// The most tokens of a replay of this form; 0 where there is none.
    fn most(&self, form: Form) -> usize {
        let classes = self.programs.classes().iter().filter(|class| class.form == form);
        classes.map(|class| class.most).max().unwrap_or(0)
    }

    /// How a run is computed; one of a single token has one row in any case.
    fn form_of(&self, is_scored: bool) -> Form {
        if is_scored && self.most(Form::Scored) > 0 { Form::Scored } else { Form::Run }
    }

    /// The most tokens of one sequence that a replay takes.
    pub fn most_tokens(&self) -> usize {
        self.most(Form::Run)
    }

    /// The same where every token is scored; 0 where no replay does that.
    pub fn most_scored(&self) -> usize {
        self.most(Form::Scored)
    }

    /// The most sequences that a replay takes a token of.
    pub fn most_sequences(&self) -> usize {
        self.most(Form::Batch).max(1)
    }

    /// The program of a class; compiled and loaded if it was not before.
    fn load(&mut self, class: usize) -> Result<&mut Loaded, Error> {
        if self.loaded[class].is_none() {
            let plan = self.programs.take(class)?.plan;
            if Outputs::of(&plan)? != self.outputs {
                return Err(refused("a program", "another one has other outputs".to_owned()));
            }
            self.loaded[class] = Some(Loaded::new(&mut *self.device, plan, &self.weights)?);
        }
        Ok(self.loaded[class].as_mut().expect("it was just loaded"))
    }

    /// Compiles and loads the programs of runs of these numbers of tokens, so that no step waits for that.
    ///
    /// # Errors
    /// Where a program does not compile, or the device refuses it.
    pub fn prepare(&mut self, form: Form, n_tokens: usize) -> Result<(), Error> {
        let most = self.most(form);
        for n_now in [n_tokens.min(most), n_tokens % most.max(1)] {
            if n_now > 0 {
                let class = self.class_of(if n_now == 1 { Form::Run } else { form }, n_now);
                self.load(class)?;
            }
        }
        Ok(())
    }

    /// The replays that a run of `n_tokens` is split into: how many tokens each takes.
    pub fn pieces(&self, n_tokens: usize) -> impl Iterator<Item = usize> + use<> {
        let most = self.most_tokens();
        (0..n_tokens).step_by(most).map(move |first| most.min(n_tokens - first))
    }

    /// The plan that takes `n_tokens` in one replay.
    ///
    /// # Errors
    /// As [`Engine::prepare`].
    pub fn plan_of(&mut self, form: Form, n_tokens: usize) -> Result<&Plan, Error> {
        let class = self.class_of(form, n_tokens);
        Ok(&self.load(class)?.plan)
    }

    /// The plan that decodes one token.
    pub fn plan(&self) -> &Plan {
        &self.decode().plan
    }

    fn decode(&self) -> &Loaded {
        self.loaded[0].as_ref().expect("it is loaded when an engine is made")
    }

    /// The sizes that it was made for.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// What the device holds.
    pub fn footprint(&self) -> Footprint {
        self.device.footprint()
    }

    /// What the device is.
    pub fn device(&self) -> String {
        self.device.describe()
    }

    /// How many pages sequences can still take.
    pub fn n_free_pages(&self) -> usize {
        self.pool.n_free()
    }

    /// A new sequence without tokens.
    pub fn open(&mut self) -> SequenceId {
        self.open_salted(0)
    }

    /// The same, which shares pages only with sequences of the same salt.
    pub fn open_salted(&mut self, salt: u64) -> SequenceId {
        let sequence = Sequence {
            // As much as it may ever need, so that no step allocates.
            tokens: Vec::with_capacity(self.limits.context),
            len: 0,
            pages: Vec::with_capacity(self.limits.context.div_ceil(self.limits.page_rows)),
            state: None,
            prefixes: Vec::with_capacity(self.limits.context.div_ceil(self.limits.page_rows)),
            start: self.pool.empty(salt),
            output: None,
        };
        self.insert(sequence)
    }

    fn insert(&mut self, sequence: Sequence) -> SequenceId {
        let index = self.slots.iter().position(|slot| slot.sequence.is_none()).unwrap_or(self.slots.len());
        if index == self.slots.len() {
            self.slots.push(Slot::default());
        }
        let slot = &mut self.slots[index];
        slot.generation += 1;
        slot.sequence = Some(sequence);
        SequenceId { index: index as u32, generation: slot.generation }
    }

    fn sequence(&self, id: SequenceId) -> Result<&Sequence, Error> {
        let slot = self.slots.get(id.index as usize).filter(|slot| slot.generation == id.generation);
        slot.and_then(|slot| slot.sequence.as_ref()).ok_or_else(|| no_sequence(id))
    }

    fn sequence_mut(&mut self, id: SequenceId) -> Result<&mut Sequence, Error> {
        let slot = self.slots.get_mut(id.index as usize).filter(|slot| slot.generation == id.generation);
        slot.and_then(|slot| slot.sequence.as_mut()).ok_or_else(|| no_sequence(id))
    }

    /// How many tokens a sequence has.
    ///
    /// # Errors
    /// Where there is no such sequence.
    pub fn len(&self, id: SequenceId) -> Result<usize, Error> {
        Ok(self.sequence(id)?.len)
    }

    /// The tokens of a sequence, as far as it was extended by tokens.
    ///
    /// # Errors
    /// Where there is no such sequence.
    pub fn tokens(&self, id: SequenceId) -> Result<&[u32], Error> {
        Ok(&self.sequence(id)?.tokens)
    }

    /// Ends a sequence and gives its pages back. Full pages are kept for sequences that begin alike, until their memory
    /// is wanted.
    ///
    /// # Errors
    /// Where there is no such sequence.
    pub fn release(&mut self, id: SequenceId) -> Result<(), Error> {
        self.truncate(id, 0)?;
        self.slots[id.index as usize].sequence = None;
        Ok(())
    }

    /// Whether a state goes only forward, so that a sequence cannot be cut.
    pub fn is_forward_only(&self) -> bool {
        self.carried.is_some()
    }

    /// Drops all tokens of a sequence from a position on, and gives the pages back that held only those.
    ///
    /// # Errors
    /// Where there is no such sequence, or a state goes only forward: then all tokens can be kept, or none.
    pub fn truncate(&mut self, id: SequenceId, len: usize) -> Result<(), Error> {
        let rows = self.limits.page_rows;
        let sequence = self.sequence(id)?;
        if len >= sequence.len {
            return Ok(());
        }
        if let Some(state) = self.carried.as_ref().filter(|_| len > 0) {
            let held = counted(sequence.len, "token");
            let what = format!(
                "the state `{state}` goes only forward: of {held} none or all can be kept, not {len}"
            );
            return Err(refused("a sequence", what));
        }
        let state = self.sequence_mut(id)?.state.take();
        self.free_states.extend(state);
        let sequence = self.sequence_mut(id)?;
        (sequence.len, sequence.output) = (len, None);
        sequence.tokens.truncate(len);
        sequence.prefixes.truncate(len / rows);
        let n_pages = len.div_ceil(rows);
        // The last pages go first, so that of an idle sequence the beginning is kept longest.
        while let Some(page) = self.sequence_mut(id)?.pages.pop_if(|_| true) {
            if self.sequence(id)?.pages.len() < n_pages {
                self.sequence_mut(id)?.pages.push(page);
                break;
            }
            self.pool.give_back(page);
        }
        Ok(())
    }

    /// Shares with an empty sequence the pages of earlier ones that begin with the same tokens; says how many tokens it
    /// has now. At least the last token is left to be computed, as its logits are wanted. Nothing is shared where a
    /// state goes from token to token, as pages do not hold it.
    ///
    /// # Errors
    /// Where there is no such sequence.
    pub fn share_prefix(&mut self, id: SequenceId, tokens: &[u32]) -> Result<usize, Error> {
        let rows = self.limits.page_rows;
        let sequence = self.sequence(id)?;
        if sequence.len > 0 || self.is_forward_only() {
            return Ok(sequence.len);
        }
        let mut before = sequence.start;
        for own in tokens[..tokens.len().saturating_sub(1)].chunks_exact(rows) {
            let Some((page, prefix)) = self.pool.find(before, own) else { break };
            self.pool.share(page);
            let sequence = self.sequence_mut(id)?;
            sequence.pages.push(page);
            sequence.prefixes.push(prefix);
            sequence.tokens.extend_from_slice(own);
            sequence.len += rows;
            before = prefix;
        }
        Ok(self.sequence(id)?.len)
    }

    /// A copy of a sequence. Both share the pages so far; each gets a page of its own when it is written to.
    ///
    /// # Errors
    /// Where there is no such sequence, or no place for a copy of its states.
    pub fn fork(&mut self, id: SequenceId) -> Result<SequenceId, Error> {
        let state = match self.sequence(id)?.state {
            Some(from) => Some(self.copy_state(from)?),
            None => None,
        };
        let copy = self.open();
        let source = self.sequence(id)?;
        let (len, start) = (source.len, source.start);
        let (tokens, pages, prefixes) =
            (source.tokens.clone(), source.pages.clone(), source.prefixes.clone());
        for page in &pages {
            self.pool.share(*page);
        }
        let own = self.sequence_mut(copy)?;
        (own.len, own.start, own.state) = (len, start, state);
        own.tokens.extend(tokens);
        own.pages.extend(pages);
        own.prefixes.extend(prefixes);
        Ok(copy)
    }

    /// Gives an empty sequence the pages of `n_tokens`, whose content is written next.
    pub(super) fn grow(&mut self, id: SequenceId, n_tokens: usize) -> Result<(), Error> {
        let (needed, free) = (n_tokens.div_ceil(self.limits.page_rows), self.pool.n_free());
        if needed > free {
            return Err(Error::Full { needed, free });
        }
        if n_tokens > 0 && self.needs_state(id) {
            let Some(state) = self.free_states.pop() else { return Err(self.no_state()) };
            self.sequence_mut(id)?.state = Some(state);
        }
        for _ in 0..needed {
            let page = self.pool.take().expect("the pages were counted");
            self.sequence_mut(id)?.pages.push(page);
        }
        self.sequence_mut(id)?.len = n_tokens;
        Ok(())
    }

    /// Records what a sequence holds that has grown, and its last row of output.
    pub(super) fn restored(
        &mut self,
        id: SequenceId,
        tokens: &[u32],
        row: (Vec<f32>, Vec<u32>),
    ) -> Result<(), Error> {
        self.sequence_mut(id)?.tokens.extend_from_slice(tokens);
        self.record_pages(id)?;
        let is_ours = row.0.len() == self.width && row.1.len() == self.outputs.ids.map_or(0, |_| self.width);
        let (step, program) = (self.n_steps, self.decode().program);
        let output = Output { step, program, rows: 0..1, kept: Some(row) };
        self.sequence_mut(id)?.output = is_ours.then_some(output);
        Ok(())
    }

    /// The pages of a sequence, and where its states lie that go from token to token, by number.
    pub(super) fn places(&self, id: SequenceId) -> Result<(Vec<usize>, Option<usize>), Error> {
        let sequence = self.sequence(id)?;
        let pages = sequence.pages.iter().map(|page| page.index()).collect();
        Ok((pages, sequence.state.map(|state| state as usize)))
    }

    pub(super) fn device_mut(&mut self) -> &mut dyn Device {
        &mut *self.device
    }

    pub(super) fn weights(&self) -> &dyn Weights {
        &*self.weights
    }

    /// The rows of output of a sequence: of its last token, or of every token of its last replay.
    ///
    /// # Errors
    /// Where there is no such sequence, or the last step did not extend it.
    pub fn rows(&self, id: SequenceId) -> Result<&[f32], Error> {
        let Output { program, rows, kept, .. } = self.output(id)?;
        if let Some((rows, _)) = kept {
            return Ok(rows);
        }
        let all: &[f32] = bytemuck::cast_slice(self.device.output(*program, self.outputs.rows));
        Ok(&all[rows.start * self.width..rows.end * self.width])
    }

    /// The last row of output of a sequence: the logits of its next token, or a hidden vector.
    ///
    /// # Errors
    /// As [`Engine::rows`].
    pub fn logits(&self, id: SequenceId) -> Result<&[f32], Error> {
        let rows = self.rows(id)?;
        Ok(&rows[rows.len() - self.width..])
    }

    /// The tokens that the logits belong to, largest first, where the programs select the best.
    ///
    /// # Errors
    /// As [`Engine::rows`].
    pub fn best(&self, id: SequenceId) -> Result<Option<&[u32]>, Error> {
        let Output { program, rows, kept, .. } = self.output(id)?;
        let Some(ids) = self.outputs.ids else { return Ok(None) };
        if let Some((_, best)) = kept {
            return Ok(Some(best));
        }
        let all: &[u32] = bytemuck::cast_slice(self.device.output(*program, ids));
        Ok(Some(&all[rows.start * self.width..rows.end * self.width]))
    }

    fn output(&self, id: SequenceId) -> Result<&Output, Error> {
        let output = self.sequence(id)?.output.as_ref();
        let current = output.filter(|output| output.step == self.n_steps || output.kept.is_some());
        current.ok_or_else(|| refused("logits", format!("the last step did not extend sequence {id}")))
    }

    /// Whether the programs select the best logits.
    pub fn selects_best(&self) -> bool {
        self.outputs.ids.is_some()
    }

    /// How many numbers a row of output has.
    pub fn width(&self) -> usize {
        self.width
    }
}

/// The name of a state of a plan that goes from token to token, if there is one.
fn carried_state(plan: &Plan) -> Option<&Name> {
    let states = plan.buffers.values().filter(|slot| slot.place == Place::State);
    states.map(|slot| &slot.name).find(|name| is_carried(name))
}

/// Copies one of the parts of a state, of `part_bytes` each, to the place of another.
fn copy_part(
    device: &mut dyn Device,
    state: &str,
    part_bytes: usize,
    [from, to]: [usize; 2],
) -> Result<(), Error> {
    let mut bytes = vec![0; part_bytes];
    device.read_state(state, from * part_bytes, &mut bytes)?;
    device.write_state(state, to * part_bytes, &bytes)
}

fn no_sequence(id: SequenceId) -> Error {
    refused("a sequence", format!("there is no sequence {id}, or not any more"))
}
