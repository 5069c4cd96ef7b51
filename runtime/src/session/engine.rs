//! The engine: many sequences over one KV cache, and the programs that extend them.
//!
//! In: pieces, each a sequence and its next tokens (or vectors in their place). Out: for each sequence, rows of logits
//! (or the best of them, or hidden vectors).
//! A sequence takes pages of the cache as it grows; sequences with equal beginnings share pages. A step takes one token
//! of each of many sequences in one replay, which reads every weight once, and runs of several tokens in replays of
//! their own. Before anything is written, a step makes sure that there are pages: without them it is
//! [`Error::Full`], and nothing has changed.
//! An engine and the graphs that it runs agree on names, those of [`inputs`](crate::session::names::inputs). A decode
//! step allocates nothing. Here is what is done to one sequence; `engine/` has the steps, what is shared and dropped,
//! and the rows of output.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use fusebox_compiler::foundation::amount::counted;
use fusebox_compiler::graph::Name;
use fusebox_compiler::schedule::{Place, Plan};
use fusebox_compiler::tensor::quant::Format;

use crate::device::{Device, Footprint, ProgramId, Weights};
use crate::error::Error;
use crate::session::classes::{Form, Programs};
use crate::session::evict::{Eviction, Needed};
use crate::session::kin::Kin;
use crate::session::loaded::{Loaded, Outputs, Rows};
use crate::session::names::{is_carried, refused};
use crate::session::pool::windows::Windows;
use crate::session::pool::{PageId, Pool, Prefix};

mod compacting;
mod covering;
mod evicting;
mod outputs;
mod prefixes;
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
    /// How many kinds of tokens there are, where the model tells them apart; else 0.
    pub n_kinds: usize,
    /// Rows of a page of the KV cache: the tokens that it holds.
    pub page_rows: usize,
    /// Pages of all sequences together.
    pub n_pages: usize,
    /// Sequences that may have tokens at a time, where states go from token to token.
    pub n_sequences: usize,
    /// Pages of blocks with a window, where these have pages of their own.
    pub windows: Option<WindowPages>,
}

/// The KV cache of blocks with a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowPages {
    /// The most tokens that a token sees there, itself among them.
    pub reach: usize,
    /// Pages of all sequences together.
    pub n_pages: usize,
}

/// What a sequence is extended by.
#[derive(Clone, Copy, Debug)]
pub enum Feed<'a> {
    /// Tokens.
    Tokens(&'a [u32]),
    /// Tokens of texts that were joined, and the kind of each, which says whose it is.
    Joined {
        /// The tokens.
        tokens: &'a [u32],
        /// As many kinds.
        kinds: &'a [u32],
    },
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
    /// The pages of blocks with a window, where these have pages of their own.
    windows: Option<Windows>,
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
    /// Which tokens of a sequence are dropped.
    eviction: Option<Box<dyn Eviction>>,
    /// The number of the class whose programs choose rows, and how many tokens do; none where whole pages are dropped.
    chooser: Option<(usize, usize)>,
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
    /// How many tokens it has, evicted ones among them: the position of the next one.
    len: usize,
    /// The pages of the tokens that are kept.
    pages: Vec<PageId>,
    /// Which of these have window pages that stay, where there are any.
    covered: Range<usize>,
    /// How many tokens were evicted, and how many rows are kept of those before and between them.
    n_evicted: usize,
    n_first: usize,
    /// What the next step drops.
    due: Due,
    /// Whether those before a gap have yet to be computed again.
    is_moved: bool,
    /// Where its states lie that go from token to token, if there are any and it has tokens.
    state: Option<u32>,
    /// Whether a replay failed that may have changed them.
    is_lost: bool,
    /// What each full page holds, as long as all of the sequence came from tokens.
    prefixes: Vec<Prefix>,
    /// What is known before its first token.
    start: Prefix,
    kin: Kin,
    output: Option<Output>,
}

/// What a step drops of a sequence before it is extended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Due {
    #[default]
    Nothing,
    /// These of its pages.
    Pages(Range<usize>),
    /// All rows but those that are needed.
    Rows(Needed),
}

/// The rows of a sequence's last replay.
struct Output {
    step: u64,
    program: ProgramId,
    rows: Range<usize>,
    /// A copy, where a later replay of the same step has overwritten the program's outputs.
    kept: Option<(Vec<f32>, Vec<u32>)>,
}

impl Sequence {
    /// How many tokens are kept: the slot of the next one.
    fn n_kept(&self) -> usize {
        self.len - self.n_evicted
    }

    /// The first token from which on none was evicted.
    fn resumed(&self) -> usize {
        self.n_first + self.n_evicted
    }
}

impl Feed<'_> {
    /// A part of what is `n` tokens or vectors.
    pub(super) fn part(self, range: Range<usize>, n: usize) -> Self {
        match self {
            Self::Tokens(tokens) => Self::Tokens(&tokens[range]),
            Self::Joined { tokens, kinds } => {
                Self::Joined { tokens: &tokens[range.clone()], kinds: &kinds[range] }
            }
            Self::Vectors(vectors) => {
                let width = vectors.len() / n;
                Self::Vectors(&vectors[range.start * width..range.end * width])
            }
        }
    }

    fn rows(&self) -> Rows<'_> {
        match self {
            Self::Tokens(tokens) => Rows::of_tokens(tokens, &[]),
            Self::Joined { tokens, kinds } => Rows::of_tokens(tokens, kinds),
            Self::Vectors(vectors) => {
                Rows { format: Format::F32, bytes: bytemuck::cast_slice(vectors), kinds: &[] }
            }
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
            windows: limits.windows.map(|own| Windows::new(limits.n_pages, own.n_pages, own.reach)),
            carried,
            free_states: (0..n_states).rev().collect(),
            limits,
            slots: Vec::new(),
            width,
            outputs,
            n_steps: 0,
            batch: Vec::new(),
            eviction: None,
            chooser: None,
        };
        // GPU memory is scarce: the largest program is loaded first, so that all others fit into its arena.
        if engine.device.free().is_some() {
            for form in Form::ALL {
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

    /// The program of a class; compiled and loaded if it was not before.
    fn load(&mut self, class: usize) -> Result<&mut Loaded, Error> {
        if self.loaded[class].is_none() {
            let plan = self.programs.take(class)?.plan;
            let is_attention = self.programs.classes()[class].form == Form::Attention;
            if !is_attention && Outputs::of(&plan)? != self.outputs {
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

    /// The same for every number of tokens.
    ///
    /// # Errors
    /// As [`Engine::prepare`].
    pub fn prepare_all(&mut self, form: Form) -> Result<(), Error> {
        for class in 0..self.programs.classes().len() {
            if self.programs.classes()[class].form == form {
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

    /// How many of those hold tokens that a sequence may share.
    pub fn n_idle_pages(&self) -> usize {
        self.pool.n_idle()
    }

    /// A new sequence without tokens.
    pub fn open(&mut self) -> SequenceId {
        self.insert_empty(Kin::default())
    }

    /// The same, which shares pages only with its kin, and has their factors on adapters.
    ///
    /// # Errors
    /// Where programs take another number of factors.
    pub fn open_as(&mut self, kin: &Kin) -> Result<SequenceId, Error> {
        let (n, found) = (self.decode().n_scales(), kin.scales().len());
        if found > 0 && found != n {
            let what = format!("expected {} on adapters, found {found}", counted(n, "factor"));
            return Err(refused("a sequence", what));
        }
        Ok(self.insert_empty(kin.clone()))
    }

    fn insert_empty(&mut self, kin: Kin) -> SequenceId {
        let sequence = Sequence {
            // As much as it may ever need, so that no step allocates.
            tokens: Vec::with_capacity(self.limits.context),
            len: 0,
            pages: Vec::with_capacity(self.limits.context.div_ceil(self.limits.page_rows)),
            covered: 0..0,
            n_evicted: 0,
            n_first: 0,
            due: Due::Nothing,
            is_moved: false,
            is_lost: false,
            state: None,
            prefixes: Vec::with_capacity(self.limits.context.div_ceil(self.limits.page_rows)),
            start: self.pool.empty(&kin),
            kin,
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

    /// The factors of a sequence on adapters; none where all are 0.
    pub(super) fn scales(&self, id: SequenceId) -> Result<&[f32], Error> {
        Ok(self.sequence(id)?.kin.scales())
    }

    /// The tokens of a sequence, as far as it was extended by tokens.
    ///
    /// # Errors
    /// Where there is no such sequence.
    pub fn tokens(&self, id: SequenceId) -> Result<&[u32], Error> {
        Ok(&self.sequence(id)?.tokens)
    }

    /// Ends a sequence and gives its pages back. What they hold is kept for sequences that begin alike, until their
    /// memory is wanted.
    ///
    /// # Errors
    /// Where there is no such sequence.
    pub fn release(&mut self, id: SequenceId) -> Result<(), Error> {
        self.truncate(id, 0)?;
        self.slots[id.index as usize].sequence = None;
        Ok(())
    }

    /// The same, but nothing is kept of what it does not share.
    ///
    /// # Errors
    /// Where there is no such sequence.
    pub fn discard(&mut self, id: SequenceId) -> Result<(), Error> {
        self.sequence_mut(id)?.tokens.clear();
        let Self { pool, slots, .. } = self;
        let sequence = slots[id.index as usize].sequence.as_ref().ok_or_else(|| no_sequence(id))?;
        for page in
            sequence.pages.iter().filter(|page| pool.n_users(**page) == 1).copied().collect::<Vec<_>>()
        {
            pool.forget(page);
        }
        self.release(id)
    }

    /// Whether a state goes only forward, so that a sequence cannot be cut.
    pub fn is_forward_only(&self) -> bool {
        self.carried.is_some()
    }

    /// Whether a sequence can be cut to `len` tokens.
    ///
    /// # Errors
    /// Where there is no such sequence.
    pub fn can_cut(&self, id: SequenceId, len: usize) -> Result<bool, Error> {
        let sequence = self.sequence(id)?;
        if len == 0 || len >= sequence.len {
            return Ok(true);
        }
        let is_after = sequence.n_evicted == 0 || len >= sequence.resumed();
        Ok(!self.is_forward_only() && is_after && self.are_seen(&sequence.pages, len))
    }

    /// Drops all tokens of a sequence from a position on, and gives the pages back that held only those.
    ///
    /// # Errors
    /// Where there is no such sequence, or a state goes only forward: then all tokens can be kept, or none. Where some
    /// were evicted, none of those before them can be kept alone; where blocks have a window, none whose window was
    /// given to other pages.
    pub fn truncate(&mut self, id: SequenceId, len: usize) -> Result<(), Error> {
        let rows = self.limits.page_rows;
        let sequence = self.sequence(id)?;
        if len >= sequence.len {
            return Ok(());
        }
        if len > 0 && !self.are_seen(&sequence.pages, len) {
            let what =
                format!("what its first {} see in blocks with a window is not kept", counted(len, "token"));
            return Err(refused("a sequence", what));
        }
        if !self.is_forward_only() && !self.can_cut(id, len)? {
            let least = sequence.resumed();
            let what = format!(
                "of its first {} some were evicted: none can be kept or at least {least}, not {len}",
                counted(least, "token")
            );
            return Err(refused("a sequence", what));
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
        self.note_last(id, len.div_ceil(rows))?;
        let sequence = self.sequence_mut(id)?;
        (sequence.len, sequence.output) = (len, None);
        sequence.tokens.truncate(len);
        sequence.prefixes.truncate(len / rows);
        if len == 0 {
            (sequence.n_evicted, sequence.n_first, sequence.is_lost) = (0, 0, false);
        }
        let n_pages = sequence.n_kept().div_ceil(rows);
        self.cover_next(id)?;
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

    /// A copy of a sequence. Both share the pages so far; each gets a page of its own when it is written to.
    ///
    /// # Errors
    /// Where there is no such sequence, or no place for a copy of its states.
    pub fn fork(&mut self, id: SequenceId) -> Result<SequenceId, Error> {
        self.check_states(id)?;
        let state = match self.sequence(id)?.state {
            Some(from) => Some(self.copy_state(from)?),
            None => None,
        };
        let copy = self.insert_empty(self.sequence(id)?.kin.clone());
        let source = self.sequence(id)?;
        let (len, n_evicted, n_first) = (source.len, source.n_evicted, source.n_first);
        let (tokens, pages, prefixes) =
            (source.tokens.clone(), source.pages.clone(), source.prefixes.clone());
        for page in &pages {
            self.pool.share(*page);
        }
        let own = self.sequence_mut(copy)?;
        (own.len, own.state) = (len, state);
        (own.n_evicted, own.n_first) = (n_evicted, n_first);
        own.tokens.extend(tokens);
        own.pages.extend(pages);
        own.prefixes.extend(prefixes);
        self.cover_next(copy)?;
        Ok(copy)
    }

    /// Gives an empty sequence the pages of `n_tokens`, whose content is written next.
    pub(super) fn grow(&mut self, id: SequenceId, n_tokens: usize) -> Result<(), Error> {
        let needed = n_tokens.div_ceil(self.limits.page_rows);
        self.check_free([needed, self.n_covered(n_tokens)], 0)?;
        if n_tokens > 0 && self.needs_state(id) {
            let Some(state) = self.free_states.pop() else { return Err(self.no_state()) };
            self.sequence_mut(id)?.state = Some(state);
        }
        for _ in 0..needed {
            let page = self.take_page().expect("the pages were counted");
            self.sequence_mut(id)?.pages.push(page);
        }
        self.sequence_mut(id)?.len = n_tokens;
        self.cover_next(id)
    }

    /// Takes a page from the pool; it has no window page yet.
    fn take_page(&mut self) -> Option<PageId> {
        let page = self.pool.take()?;
        if let Some(windows) = &mut self.windows {
            windows.detach(page);
        }
        Some(page)
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

    /// The pages of a sequence, and where its states lie that go from token to token.
    pub(super) fn places(&self, id: SequenceId) -> Result<(&[PageId], Option<usize>), Error> {
        let sequence = self.sequence(id)?;
        Ok((&sequence.pages, sequence.state.map(|state| state as usize)))
    }

    pub(super) fn pool(&self) -> &Pool {
        &self.pool
    }

    pub(super) fn pool_mut(&mut self) -> &mut Pool {
        &mut self.pool
    }

    pub(super) fn windows(&self) -> Option<&Windows> {
        self.windows.as_ref()
    }

    pub(super) fn windows_mut(&mut self) -> Option<&mut Windows> {
        self.windows.as_mut()
    }

    pub(super) fn device_mut(&mut self) -> &mut dyn Device {
        &mut *self.device
    }

    pub(super) fn weights(&self) -> &dyn Weights {
        &*self.weights
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
