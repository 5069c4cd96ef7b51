//! A step: sequences are extended in as few replays as their pieces allow.
//!
//! In: pieces. Out: longer sequences, and the rows of their outputs.
//! Everything that can be refused is refused before anything is written: first what pieces ask for, then the pages that
//! they need. A few tokens of each of several sequences are one replay, a run of tokens of one sequence is another.

use std::time::Duration;

use fusebox_compiler::foundation::amount::counted;
use fusebox_compiler::foundation::entity::Id;
use fusebox_compiler::tensor::quant::Format;

use crate::device::ProgramId;
use crate::error::Error;
use crate::session::classes::Form;
use crate::session::engine::{Due, Engine, Feed, Limits, Output, Piece, Sequence, SequenceId, copy_part};
use crate::session::loaded::{Input, Rows};
use crate::session::names::refused;
use crate::session::pool::PageId;

/// The most tokens that a sequence has in a batch, where each is scored: a guess to be verified. Every token of a batch
/// reads the pages of its sequence for itself, so more of them are better a run.
const MOST_BATCHED: usize = 16;

/// Where the first token of a run goes.
#[derive(Clone, Copy)]
pub(super) struct Start {
    pub(super) slot: usize,
    pub(super) position: usize,
}

impl Engine {
    /// Extends every sequence of some pieces. Afterwards [`Engine::rows`] are those of this step.
    ///
    /// # Errors
    /// Where a piece names no sequence or one twice, has no tokens or unknown ones, would exceed the context, or there
    /// are too few free pages; then nothing is changed. Where a file of the weights has become shorter: then sequences
    /// may have rows that are wrong, and the engine is of no more use.
    pub fn step(&mut self, pieces: &[Piece<'_>]) -> Result<(), Error> {
        self.step_with(pieces, &mut |_, _| {})
    }

    /// The same, and calls `each` with every row of output: one for each token of a run where that is wanted or the
    /// programs return hidden vectors, else one for the last token of each replay; one for each token of a batch.
    ///
    /// # Errors
    /// As [`Engine::step`].
    pub fn step_with(
        &mut self,
        pieces: &[Piece<'_>],
        each: &mut dyn FnMut(SequenceId, &[f32]),
    ) -> Result<(), Error> {
        self.check(pieces)?;
        self.reserve(pieces)?;
        self.n_steps += 1;
        self.evict(pieces)?;
        let mut batch = std::mem::take(&mut self.batch);
        batch.clear();
        batch.extend((0..pieces.len()).filter(|number| self.is_batched(&pieces[*number], pieces.len())));
        let done = self.run_all(pieces, &batch, each);
        self.batch = batch;
        done
    }

    /// Whether a piece of a step goes into a batch: one token, or a few that are all scored.
    fn is_batched(&self, piece: &Piece<'_>, n_pieces: usize) -> bool {
        let n = self.decode().n_rows(piece.feed.rows());
        let most = MOST_BATCHED.min(self.most(Form::Batch));
        // A state that goes from token to token takes one token of a batch.
        n == 1 || n_pieces > 1 && piece.is_scored && n <= most && !self.is_forward_only()
    }

    fn run_all(
        &mut self,
        pieces: &[Piece<'_>],
        batched: &[usize],
        each: &mut dyn FnMut(SequenceId, &[f32]),
    ) -> Result<(), Error> {
        let mut left = batched;
        while !left.is_empty() {
            let (batch, later) = left.split_at(self.n_fitting(pieces, left));
            left = later;
            match batch {
                [one] => self.run(pieces[*one], each)?,
                _ => self.run_batch(pieces, batch, each)?,
            }
            // What runs later may be another batch, or a run that ends with a single token.
            if batch.len() < batched.len() || batch.len() == 1 {
                self.keep_outputs(pieces, batch)?;
            }
        }
        for (number, piece) in pieces.iter().enumerate().filter(|(number, _)| !batched.contains(number)) {
            self.run(*piece, each)?;
            self.keep_outputs(pieces, &[number])?;
        }
        Ok(())
    }

    /// How many of the first of these pieces one replay takes.
    fn n_fitting(&self, pieces: &[Piece<'_>], numbers: &[usize]) -> usize {
        let mut room = self.most(Form::Batch);
        let fits = |number: &&usize| {
            let n = self.decode().n_rows(pieces[**number].feed.rows());
            let is_room = n <= room;
            room = room.saturating_sub(n);
            is_room
        };
        numbers.iter().take_while(fits).count().max(1)
    }

    /// Copies the rows of pieces, where the program may run again in this step.
    fn keep_outputs(&mut self, pieces: &[Piece<'_>], numbers: &[usize]) -> Result<(), Error> {
        if pieces.len() == 1 {
            return Ok(());
        }
        for number in numbers {
            let id = pieces[*number].sequence;
            let rows = self.rows(id)?.to_vec();
            let best = self.best(id)?.map(<[u32]>::to_vec).unwrap_or_default();
            if let Some(output) = &mut self.sequence_mut(id)?.output {
                output.kept = Some((rows, best));
            }
        }
        Ok(())
    }

    /// Refuses a sequence whose states are lost.
    pub(in crate::session) fn check_states(&self, id: SequenceId) -> Result<(), Error> {
        let what = "its states were lost with a replay that failed; cut to no token, it begins anew";
        if self.sequence(id)?.is_lost { Err(refused("a sequence", what.to_owned())) } else { Ok(()) }
    }

    /// Refuses what a sequence cannot be extended by; says how many tokens or vectors it is.
    pub(in crate::session) fn check_feed(&self, id: SequenceId, feed: Feed<'_>) -> Result<usize, Error> {
        let sequence = self.sequence(id)?;
        self.check_states(id)?;
        if let Feed::Joined { tokens, kinds } = feed {
            let n_kinds = self.limits.n_kinds;
            if kinds.len() != tokens.len() || kinds.iter().any(|kind| *kind as usize >= n_kinds) {
                let what = format!("expected one below {n_kinds} for each of {} tokens", tokens.len());
                return Err(refused("kinds", what));
            }
        }
        if let Feed::Tokens(tokens) | Feed::Joined { tokens, .. } = feed {
            let n_vocab = self.limits.n_vocab;
            if let Some(token) = tokens.iter().find(|token| **token as usize >= n_vocab) {
                return Err(refused("tokens", format!("there is no token {token}, the model has {n_vocab}")));
            }
        }
        let n = self.decode().check(feed.rows())?;
        if n > self.room(id)? {
            let held = counted(self.longest(), "token");
            let what = format!("no room for {n} after {}: the context holds {held}", sequence.len);
            return Err(refused(feed.rows().name(), what));
        }
        Ok(n)
    }

    /// Refuses pieces that cannot be done, and plans what is dropped.
    fn check(&mut self, pieces: &[Piece<'_>]) -> Result<(), Error> {
        for (number, piece) in pieces.iter().enumerate() {
            if pieces[..number].iter().any(|other| other.sequence == piece.sequence) {
                return Err(refused("a step", format!("sequence {} stands twice", piece.sequence)));
            }
            let n = self.check_feed(piece.sequence, piece.feed)?;
            if self.evicts() {
                self.plan_eviction(piece, n)?;
            }
        }
        let n_new = pieces.iter().filter(|piece| self.needs_state(piece.sequence)).count();
        if n_new > self.free_states.len() { Err(self.no_state()) } else { Ok(()) }
    }

    /// Plans what a sequence drops before it is extended.
    fn plan_eviction(&mut self, piece: &Piece<'_>, n: usize) -> Result<(), Error> {
        let Limits { context, page_rows, .. } = self.limits;
        let id = piece.sequence;
        let sequence = self.sequence(id)?;
        let due = self.due(sequence, n, piece.is_scored);
        let n_kept = match &due {
            Due::Nothing => sequence.n_kept(),
            Due::Pages(due) => sequence.n_kept() - due.len() * page_rows,
            Due::Rows(needed) => needed.n_tokens(),
        };
        let what = match () {
            () if n_kept + n > context => {
                let held = counted(context, "token");
                Some(format!("no room for {n} beside what it keeps: the context holds {held}"))
            }
            () if due != Due::Nothing && sequence.tokens.len() != sequence.len => {
                Some("it has vectors in place of tokens, none of which can be dropped".to_owned())
            }
            () => None,
        };
        self.sequence_mut(id)?.due = due;
        what.map_or(Ok(()), |what| Err(refused("a sequence", what)))
    }

    /// Computes the tokens before pages that were dropped again, nearer to those that follow.
    fn evict(&mut self, pieces: &[Piece<'_>]) -> Result<(), Error> {
        for piece in pieces {
            if self.sequence(piece.sequence)?.is_moved {
                self.repeat_first(piece.sequence)?;
                self.sequence_mut(piece.sequence)?.is_moved = false;
            }
        }
        Ok(())
    }

    /// Drops the pages of a sequence that are due.
    fn drop_due(&mut self, id: SequenceId) {
        let rows = self.limits.page_rows;
        let Self { pool, slots, .. } = self;
        let sequence = slots[id.index as usize].sequence.as_mut().expect("the pieces were checked");
        let Due::Pages(due) = &mut sequence.due else { return };
        let due = std::mem::take(due);
        sequence.due = Due::Nothing;
        (sequence.n_evicted, sequence.n_first) = (sequence.n_evicted + due.len() * rows, due.start * rows);
        (sequence.is_moved, sequence.output) = (due.start > 0, None);
        // Of what is idle the beginning is kept longest.
        sequence.pages.drain(due).rev().for_each(|page| pool.give_back(page));
    }

    /// Gives a sequence pages of its own for the tokens before a gap, as their rows change.
    fn own_first(&mut self, id: SequenceId) {
        let rows = self.limits.page_rows;
        let Self { pool, slots, .. } = self;
        let sequence = slots[id.index as usize].sequence.as_mut().expect("the pieces were checked");
        let n_pages = if sequence.is_moved { sequence.n_first / rows } else { 0 };
        for page in &mut sequence.pages[..n_pages] {
            if pool.n_users(*page) > 1 {
                let own = pool.take().expect("the pages were counted");
                pool.give_back(std::mem::replace(page, own));
            } else {
                pool.forget(*page);
            }
        }
    }

    /// Computes the tokens before a gap again: their keys are where RoPE has them beside the tokens that follow.
    fn repeat_first(&mut self, id: SequenceId) -> Result<(), Error> {
        let sequence = self.sequence(id)?;
        let (tokens, moved) = (sequence.tokens[..sequence.n_first].to_vec(), sequence.n_evicted);
        let mut first = 0;
        for own in tokens.chunks(self.most_tokens()) {
            let at = Start { slot: first, position: first + moved };
            let (class, program) = self.bind_run(id, Form::Run, Feed::Tokens(own).rows(), own.len(), at)?;
            let loaded = self.loaded[class].as_ref().expect("it was just bound");
            self.device.replay(program, &loaded.symbols)?;
            first += own.len();
        }
        Ok(())
    }

    /// Gives every piece the pages that it will write to, or none of them any.
    fn reserve(&mut self, pieces: &[Piece<'_>]) -> Result<(), Error> {
        let needed = pieces.iter().map(|piece| self.needed(piece)).sum::<Result<usize, Error>>()?;
        let freed = pieces.iter().map(|piece| self.n_freed(piece.sequence)).sum::<Result<usize, Error>>()?;
        let windowed = pieces.iter().map(|piece| self.window_pages_needed(piece, pieces.len()));
        self.check_free([needed, windowed.sum::<Result<usize, Error>>()?], freed)?;
        for piece in pieces {
            self.drop_due(piece.sequence);
        }
        self.compact_due(pieces)?;
        for piece in pieces {
            if self.needs_state(piece.sequence) {
                let state = self.free_states.pop();
                self.sequence_mut(piece.sequence)?.state = state;
            }
            self.own_first(piece.sequence);
            let (n, rows) = (self.decode().n_rows(piece.feed.rows()), self.limits.page_rows);
            let len = self.sequence(piece.sequence)?.n_kept();
            if let Some(shared) = self.shared_last(piece.sequence)? {
                let own = self.take_page().expect("the pages were counted");
                self.copy_page(shared, own)?;
                self.replace_last(piece.sequence, own)?;
            } else if !len.is_multiple_of(rows)
                && let Some(own) = self.sequence(piece.sequence)?.pages.last().copied()
            {
                // It may have been full before the sequence was cut.
                self.pool.forget(own);
            }
            while self.sequence(piece.sequence)?.pages.len() < (len + n).div_ceil(rows) {
                let page = self.take_page().expect("the pages were counted");
                self.sequence_mut(piece.sequence)?.pages.push(page);
            }
        }
        Ok(())
    }

    /// How many window pages a piece takes.
    fn window_pages_needed(&self, piece: &Piece<'_>, n_pieces: usize) -> Result<usize, Error> {
        let n = self.decode().n_rows(piece.feed.rows());
        let most =
            if self.is_batched(piece, n_pieces) { n } else { self.most(self.form_of(piece.is_scored)) };
        self.n_window_pages(piece.sequence, n, most)
    }

    /// How many pages a piece takes from the pool.
    fn needed(&self, piece: &Piece<'_>) -> Result<usize, Error> {
        let sequence = self.sequence(piece.sequence)?;
        let n = self.decode().n_rows(piece.feed.rows());
        if let Due::Rows(needed) = sequence.due {
            let n_pages = (needed.n_tokens() + n).div_ceil(self.limits.page_rows);
            return Ok(n_pages - self.n_pages_of(needed) + self.n_replaced(sequence, needed));
        }
        let n_pages = (sequence.n_kept() + n).div_ceil(self.limits.page_rows);
        let copied = usize::from(self.shared_last(piece.sequence)?.is_some());
        let first = if let Due::Pages(due) = &sequence.due { &sequence.pages[..due.start] } else { &[] };
        let replaced = first.iter().filter(|page| self.pool.n_users(**page) > 1).count();
        // As many pages fewer are kept as are dropped.
        Ok(n_pages - sequence.pages.len() + copied + replaced)
    }

    /// How many pages become free where a sequence drops what is due.
    fn n_freed(&self, id: SequenceId) -> Result<usize, Error> {
        let sequence = self.sequence(id)?;
        Ok(match &sequence.due {
            Due::Nothing => 0,
            Due::Pages(due) => {
                let due = sequence.pages[due.clone()].iter();
                due.filter(|page| self.pool.n_users(**page) == 1).count()
            }
            Due::Rows(needed) => self.n_vacated(sequence, *needed),
        })
    }

    /// The last page of a sequence, where the next token goes there and others use it.
    pub(super) fn shared_last(&self, id: SequenceId) -> Result<Option<PageId>, Error> {
        let sequence = self.sequence(id)?;
        let is_partial = !sequence.n_kept().is_multiple_of(self.limits.page_rows);
        let last = sequence.pages.last().copied().filter(|_| is_partial);
        Ok(last.filter(|page| self.pool.n_users(*page) > 1))
    }

    /// Whether a sequence has yet to get a place for its states.
    pub(super) fn needs_state(&self, id: SequenceId) -> bool {
        self.is_forward_only() && self.sequence(id).is_ok_and(|sequence| sequence.state.is_none())
    }

    pub(super) fn no_state(&self) -> Error {
        let n = counted(self.limits.n_sequences, "sequence");
        refused("a sequence", format!("its states have no place: the engine keeps those of {n} at a time"))
    }

    /// Copies the states of a sequence that go from token to token to a free place.
    pub(super) fn copy_state(&mut self, from: u32) -> Result<u32, Error> {
        let Some(to) = self.free_states.pop() else { return Err(self.no_state()) };
        let n_sequences = self.limits.n_sequences;
        let Self { device, loaded, .. } = self;
        let decode = loaded[0].as_ref().expect("it is loaded when an engine is made");
        for (name, bytes) in decode.carried(n_sequences) {
            copy_part(&mut **device, name, bytes, [from as usize, to as usize])?;
        }
        Ok(to)
    }

    /// Copies a page of every state; in blocks with a window, where it has one there.
    pub(super) fn copy_page(&mut self, from: PageId, to: PageId) -> Result<(), Error> {
        if let Some(windows) = &mut self.windows
            && windows.of(from).is_some()
        {
            // Meanwhile its own stays.
            windows.cover(from);
            let attached = windows.attach(to);
            windows.leave(from);
            if attached.is_none() {
                return Err(Error::Full { needed: 1, free: 0 });
            }
        }
        for layout in self.page_layouts() {
            if let Some(places) = layout.place(from, self.windows()).zip(layout.place(to, self.windows())) {
                copy_part(&mut *self.device, &layout.state, layout.bytes, places.into())?;
            }
        }
        Ok(())
    }

    /// Extends one sequence, in as many replays as it takes.
    fn run(&mut self, piece: Piece<'_>, each: &mut dyn FnMut(SequenceId, &[f32])) -> Result<(), Error> {
        let rows = piece.feed.rows();
        let n = self.decode().n_rows(rows);
        let form = self.form_of(piece.is_scored);
        let (most, row_bytes) = (self.most(form), rows.bytes.len() / n);
        for first in (0..n).step_by(most) {
            let n_now = most.min(n - first);
            let now = rows.part(first, n_now, row_bytes);
            let form = if n_now == 1 { Form::Run } else { form };
            let sequence = self.sequence(piece.sequence)?;
            let at = Start { slot: sequence.n_kept(), position: sequence.len };
            self.cover(piece.sequence, at.slot..at.slot + n_now)?;
            let (class, program) = self.bind_run(piece.sequence, form, now, n_now, at)?;
            let loaded = self.loaded[class].as_ref().expect("it was just bound");
            let done = self.device.replay(program, &loaded.symbols).and_then(|()| self.weights.check());
            self.replayed(done, [piece.sequence])?;
            self.commit(piece.sequence, now, n_now, program, None)?;
            let found = self.rows(piece.sequence)?;
            found.chunks_exact(self.width).for_each(|row| each(piece.sequence, row));
        }
        Ok(())
    }

    /// Writes the inputs and symbols of a replay of tokens of one sequence; returns its class and program.
    pub(super) fn bind_run(
        &mut self,
        id: SequenceId,
        form: Form,
        rows: Rows<'_>,
        n: usize,
        at: Start,
    ) -> Result<(usize, ProgramId), Error> {
        let class = self.class_of(form, n);
        self.load(class)?;
        let Self { device, loaded, slots, limits, windows, .. } = self;
        let loaded = loaded[class].as_mut().expect("it was just loaded");
        let windows = || windows.as_ref().expect("a program with window pages has an engine that has them");
        let sequence = slots[id.index as usize].sequence.as_ref().expect("the pieces were checked");
        let places = |slot: usize| place(sequence, slot, limits.page_rows);
        let slots = at.slot..at.slot + n;
        loaded.bind(&mut **device, n, slots.end.div_ceil(limits.page_rows), |input, to| match input {
            Input::Rows => to[..rows.bytes.len()].copy_from_slice(rows.bytes),
            Input::Kinds => write(to, rows.kinds(n)),
            Input::Positions => write(to, (at.position..at.position + n).map(|position| position as i32)),
            Input::Page => write(to, slots.clone().map(|slot| places(slot).0)),
            Input::Row => write(to, slots.clone().map(|slot| places(slot).1)),
            Input::Slot => write(to, [at.slot as i32]),
            Input::Sequence => write(to, sequence.state.map(|state| state as i32)),
            Input::Scales => write_scales(to, sequence),
            Input::Table => write(to, sequence.pages.iter().map(|page| page_number(*page))),
            Input::WindowPage => {
                write(to, slots.clone().map(|slot| sequence.window_page(windows(), slot / limits.page_rows)));
            }
            Input::WindowTable => {
                let n_pages = slots.end.div_ceil(limits.page_rows);
                write(to, (0..n_pages).map(|number| sequence.window_page(windows(), number)));
            }
        });
        Ok((class, loaded.program))
    }

    /// Extends several sequences by a token or a few each, in one replay.
    fn run_batch(
        &mut self,
        pieces: &[Piece<'_>],
        batch: &[usize],
        each: &mut dyn FnMut(SequenceId, &[f32]),
    ) -> Result<(), Error> {
        let first = pieces[batch[0]].feed.rows();
        let row_bytes = first.bytes.len() / self.decode().n_rows(first);
        let n_of = |number: usize| pieces[number].feed.rows().bytes.len() / row_bytes;
        let n = batch.iter().map(|number| n_of(*number)).sum();
        let class = self.class_of(Form::Batch, n);
        self.load(class)?;
        for number in batch {
            let id = pieces[*number].sequence;
            let len = self.sequence(id)?.n_kept();
            self.cover(id, len..len + n_of(*number))?;
        }
        let n_scales = self.decode().n_scales();
        let Self { device, loaded, slots, limits, weights, windows, .. } = self;
        let windows = || windows.as_ref().expect("a program with window pages has an engine that has them");
        let loaded = loaded[class].as_mut().expect("it was just loaded");
        let sequences = || {
            batch.iter().map(|number| {
                let id = pieces[*number].sequence;
                slots[id.index as usize].sequence.as_ref().expect("the pieces were checked")
            })
        };
        // Each token with its sequence, and how many tokens of this batch are before it there.
        let tokens = || {
            let lengths = batch.iter().map(|number| n_of(*number));
            sequences().zip(lengths).flat_map(|(sequence, n)| (0..n).map(move |at| (sequence, at)))
        };
        let places =
            || tokens().map(|(sequence, at)| place(sequence, sequence.n_kept() + at, limits.page_rows));
        let n_pages = sequences().map(|sequence| sequence.pages.len()).max().unwrap_or(1);
        let most_pages = limits.context.div_ceil(limits.page_rows);
        loaded.bind(&mut **device, n, n_pages, |input, to| match input {
            Input::Rows => {
                let mut left = to;
                for number in batch {
                    let bytes = pieces[*number].feed.rows().bytes;
                    let (own, others) = std::mem::take(&mut left).split_at_mut(bytes.len());
                    own.copy_from_slice(bytes);
                    left = others;
                }
            }
            Input::Kinds => {
                let own = |number: &usize| pieces[*number].feed.rows().kinds(n_of(*number));
                write(to, batch.iter().flat_map(own));
            }
            Input::Positions => write(to, tokens().map(|(sequence, at)| (sequence.len + at) as i32)),
            Input::Slot => write(to, tokens().map(|(sequence, at)| (sequence.n_kept() + at) as i32)),
            Input::Page => write(to, places().map(|(page, _)| page)),
            Input::Row => write(to, places().map(|(_, row)| row)),
            Input::Sequence => {
                write(to, sequences().map(|sequence| sequence.state.map_or(0, |state| state as i32)));
            }
            Input::Scales => {
                let rows = to.chunks_exact_mut(n_scales * size_of::<f32>());
                for (to, (sequence, _)) in rows.zip(tokens()) {
                    write_scales(to, sequence);
                }
            }
            Input::Table => {
                let tables = to.chunks_exact_mut(most_pages * size_of::<i32>());
                for (to, (sequence, _)) in tables.zip(tokens()) {
                    write(to, sequence.pages.iter().map(|page| page_number(*page)));
                }
            }
            Input::WindowPage => {
                let pages = tokens().map(|(sequence, at)| {
                    sequence.window_page(windows(), (sequence.n_kept() + at) / limits.page_rows)
                });
                write(to, pages);
            }
            Input::WindowTable => {
                let tables = to.chunks_exact_mut(most_pages * size_of::<i32>());
                for (to, (sequence, _)) in tables.zip(tokens()) {
                    write(
                        to,
                        (0..sequence.pages.len()).map(|number| sequence.window_page(windows(), number)),
                    );
                }
            }
        });
        let done = device.replay(loaded.program, &loaded.symbols).and_then(|()| weights.check());
        let program = loaded.program;
        self.replayed(done, batch.iter().map(|number| pieces[*number].sequence))?;
        let mut first = 0;
        for number in batch {
            let Piece { sequence, feed, .. } = pieces[*number];
            self.commit(sequence, feed.rows(), n_of(*number), program, Some(first))?;
            first += n_of(*number);
            self.rows(sequence)?.chunks_exact(self.width).for_each(|row| each(sequence, row));
        }
        Ok(())
    }

    /// What a replay returned. One that failed may have changed states that go from token to token, and the sequences
    /// are not extended any more; rows of the KV cache are written again.
    fn replayed<T>(
        &mut self,
        done: Result<T, Error>,
        sequences: impl IntoIterator<Item = SequenceId>,
    ) -> Result<T, Error> {
        if done.is_err() && self.is_forward_only() {
            for id in sequences {
                let sequence = self.sequence_mut(id)?;
                // The first token sets the states.
                sequence.is_lost = sequence.len > 0;
            }
        }
        done
    }

    /// Records that a replay has extended a sequence; of a batch, from which of its tokens on.
    fn commit(
        &mut self,
        id: SequenceId,
        rows: Rows<'_>,
        n: usize,
        program: ProgramId,
        first: Option<usize>,
    ) -> Result<(), Error> {
        let n_rows = self.device.output(program, self.outputs.rows).len() / (self.width * size_of::<f32>());
        let rows_of = match first {
            Some(first) => first..first + n,
            None if n_rows > 1 => 0..n,
            None => 0..1,
        };
        let step = self.n_steps;
        let sequence = self.sequence_mut(id)?;
        sequence.output = Some(Output { step, program, rows: rows_of, kept: None });
        let was_known = sequence.tokens.len() == sequence.len;
        sequence.len += n;
        // Equal tokens of other kinds are another beginning.
        if rows.format == Format::I32 && rows.kinds.is_empty() && was_known {
            sequence.tokens.extend_from_slice(bytemuck::cast_slice(rows.bytes));
        }
        self.cover_next(id)?;
        self.record_pages(id)
    }

    /// Lets other sequences find the pages that a sequence has filled with tokens.
    pub(super) fn record_pages(&mut self, id: SequenceId) -> Result<(), Error> {
        let page_rows = self.limits.page_rows;
        if self.sequence(id)?.n_evicted > 0 {
            // What its pages hold was computed from tokens that are gone.
            return Ok(());
        }
        while self.sequence(id)?.prefixes.len() < self.sequence(id)?.tokens.len() / page_rows {
            let Self { pool, slots, .. } = self;
            let sequence = slots[id.index as usize].sequence.as_mut().expect("it was just extended");
            let number = sequence.prefixes.len();
            let before = sequence.prefixes.last().copied().unwrap_or(sequence.start);
            let own = &sequence.tokens[number * page_rows..(number + 1) * page_rows];
            sequence.prefixes.push(pool.fill(sequence.pages[number], before, own));
        }
        Ok(())
    }

    /// As [`Engine::step`] of one sequence by tokens that fit into one replay; returns how long each step of the plan
    /// took.
    ///
    /// # Errors
    /// As [`Engine::step`], and where the tokens do not fit into one replay.
    pub fn profile(&mut self, id: SequenceId, tokens: &[u32]) -> Result<Vec<Duration>, Error> {
        let piece = Piece::of(id, tokens);
        let (n, most) = (tokens.len(), self.most_tokens());
        if n > most {
            return Err(refused("tokens", format!("a replay takes {most} at most, found {n}")));
        }
        self.check(&[piece])?;
        self.reserve(&[piece])?;
        self.n_steps += 1;
        self.evict(&[piece])?;
        let sequence = self.sequence(id)?;
        let at = Start { slot: sequence.n_kept(), position: sequence.len };
        self.cover(id, at.slot..at.slot + n)?;
        let (class, program) = self.bind_run(id, Form::Run, piece.feed.rows(), n, at)?;
        let loaded = self.loaded[class].as_ref().expect("it was just bound");
        let times = self.device.profile(program, &loaded.symbols);
        let times = times.and_then(|times| self.weights.check().map(|()| times));
        let times = self.replayed(times, [id])?;
        self.commit(id, piece.feed.rows(), n, program, None)?;
        Ok(times)
    }
}

/// The page and the row of a slot.
fn place(sequence: &Sequence, slot: usize, page_rows: usize) -> (i32, i32) {
    (page_number(sequence.pages[slot / page_rows]), (slot % page_rows) as i32)
}

fn page_number(page: PageId) -> i32 {
    page.index() as i32
}

/// Writes the factors of a sequence on adapters.
fn write_scales(to: &mut [u8], sequence: &Sequence) {
    let own: &[u8] = bytemuck::cast_slice(sequence.kin.scales());
    to[..own.len()].copy_from_slice(own);
    to[own.len()..].fill(0);
}

/// Writes whole numbers to the start of an input.
fn write(to: &mut [u8], numbers: impl IntoIterator<Item = i32>) {
    let places = to.as_chunks_mut::<4>().0.iter_mut();
    places.zip(numbers).for_each(|(to, number)| *to = number.to_le_bytes());
}
