//! Continuous batching: which tokens the next replay takes.
//!
//! In: requests, an engine, and the time. Out: events for those who wait, one tick after another.
//! Each tick drops what was cancelled or is late, gives every sequence that decodes its token, fills the rest of the
//! token budget with pieces of prompts, and admits requests while there are pages. Where the pool is full, the youngest
//! sequence is preempted and computed again later; `prefix.rs` says what of a prompt need not be computed, `guess.rs`
//! which tokens are verified before they are drawn.
//! Nothing here waits, sends over a network or reads a clock.

use std::cmp::Reverse;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use fusebox::Kin;
use fusebox::draft::Guesser;
use fusebox::draft::ngram::Ngram;
use tokio::sync::mpsc;

use crate::engine::{Engine, Piece, Refused, Scored as Rows, SequenceId};
use crate::grammar::{Constraint, keep_allowed};
use crate::http::problem::Problem;
use crate::sampling::{Drawer, Scored, score};

mod guess;
mod prefix;

use guess::{Guesses, drop_guesses};
use prefix::{Placed, Prefixes};

/// By how much a step of priority moves a request in the queue: one that waits longer than this goes first.
const AGEING: Duration = Duration::from_secs(30);
/// A reader with room for fewer events is not computed for: a step sends a few for each choice, and what was guessed.
pub(crate) const ROOM: usize = 512;
/// How long a reader may leave its events unread.
const SLOW_READER: Duration = Duration::from_secs(30);
/// How many times a piece of a prompt may be passed by shorter ones.
const MAX_PASSED: usize = 8;
/// What a request hears of its sequence.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Event {
    /// The prompt is computed; so many of its tokens were there already.
    Started { cached: usize },
    /// The scores of the prompt's tokens, where they were wanted.
    Prompt(Vec<Scored>),
    /// Another token.
    Token(Scored),
    /// The end.
    Done(Finish),
    /// The end, with a reason.
    Failed(Box<Failure>),
}

/// Why a sequence failed.
#[derive(Clone, Debug)]
pub(crate) struct Failure(pub(crate) Problem);

impl PartialEq for Failure {
    fn eq(&self, other: &Self) -> bool {
        self.0.message == other.0.message
    }
}

/// Why a sequence ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finish {
    /// An end token of the model, or the end of the grammar; the event before it has that token.
    End,
    /// A stop token of the request.
    StopToken(u32),
    /// As many tokens as were allowed.
    Length,
    /// The context is full.
    Context,
    /// The deadline.
    Late,
}

/// A sequence that is wanted.
pub(crate) struct Job {
    pub(crate) prompt: Vec<u32>,
    pub(crate) max_tokens: usize,
    pub(crate) drawer: Drawer,
    /// How many of the likeliest tokens are reported for each token of the prompt.
    pub(crate) prompt_scores: Option<usize>,
    /// Tokens that end the answer.
    pub(crate) ends: Vec<u32>,
    /// Stop tokens of the request.
    pub(crate) stops: Vec<u32>,
    /// Tokens before which no end is drawn.
    pub(crate) min_tokens: usize,
    pub(crate) constraint: Option<Constraint>,
    /// Lower goes first.
    pub(crate) priority: i64,
    pub(crate) deadline: Option<Instant>,
    /// Prompts with another salt are not shared.
    pub(crate) salt: Option<String>,
    /// Factors on each rank of the adapters that it chooses from.
    pub(crate) scales: Arc<[f32]>,
    /// Whether the beginnings of other sequences may be used.
    pub(crate) is_cached: bool,
    /// The most tokens that are guessed for a step.
    pub(crate) guesses: usize,
    pub(crate) events: mpsc::Sender<(usize, Event)>,
    /// The number of the choice, sent with each event.
    pub(crate) choice: usize,
    pub(crate) cancelled: Arc<AtomicBool>,
    pub(crate) arrived: Instant,
    /// Its place in the queue, until it runs.
    pub(crate) place: Option<QueuePlace>,
}

/// A place in the queue; it is free again when this is dropped.
#[derive(Debug)]
pub(crate) struct QueuePlace {
    queue: Arc<Queue>,
    n_tokens: usize,
}

/// How much waits.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    requests: AtomicUsize,
    tokens: AtomicUsize,
}

impl Queue {
    /// A place for a prompt of `n_tokens`.
    pub(crate) fn place(self: &Arc<Self>, n_tokens: usize) -> QueuePlace {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.tokens.fetch_add(n_tokens, Ordering::Relaxed);
        QueuePlace { queue: Arc::clone(self), n_tokens }
    }

    /// The requests that wait, and the tokens of their prompts.
    pub(crate) fn size(&self) -> (usize, usize) {
        (self.requests.load(Ordering::Relaxed), self.tokens.load(Ordering::Relaxed))
    }
}

impl Drop for QueuePlace {
    fn drop(&mut self) {
        self.queue.requests.fetch_sub(1, Ordering::Relaxed);
        self.queue.tokens.fetch_sub(self.n_tokens, Ordering::Relaxed);
    }
}

/// A job on its way.
struct Entry {
    job: Job,
    /// The prompt and what was generated.
    tokens: Vec<u32>,
    sequence: Option<SequenceId>,
    /// How many tokens the sequence has.
    n_done: usize,
    n_cached: usize,
    is_started: bool,
    n_passed: usize,
    /// Since when its reader has left no room.
    stalled: Option<Instant>,
    /// Whether it made no progress since it was preempted.
    was_preempted: bool,
    scores: Vec<Scored>,
    last_token: Option<Instant>,
    admitted: Option<Instant>,
    /// The logits after the prompt.
    row: Option<Arc<Vec<f32>>>,
    /// Sequences of another kin share nothing with it.
    kin: Kin,
    /// What guesses its next tokens.
    guesser: Option<Guesser>,
}

/// What an entry has of a replay.
#[derive(Clone, Debug)]
struct Part {
    /// The number of the entry among the running.
    at: usize,
    /// The number of its tokens in this replay.
    n: usize,
    /// And these, which may follow them.
    guess: Vec<u32>,
}

/// Limits of a scheduler.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// The most tokens of a replay.
    pub(crate) batch_tokens: usize,
}

/// What happened, for metrics.
#[derive(Clone, Debug, Default)]
pub(crate) struct Report {
    pub(crate) prompt_tokens: usize,
    pub(crate) cached_tokens: usize,
    pub(crate) queried_tokens: usize,
    pub(crate) generated: usize,
    pub(crate) guessed: usize,
    pub(crate) right: usize,
    pub(crate) preemptions: usize,
    pub(crate) cancelled: usize,
    pub(crate) slow_readers: usize,
    pub(crate) steps: usize,
    pub(crate) step_sequences: usize,
    pub(crate) finished: Vec<(&'static str, Duration, usize, usize)>,
    pub(crate) first_token: Vec<Duration>,
    pub(crate) between: Vec<Duration>,
    pub(crate) queued: Vec<Duration>,
    pub(crate) replay: Duration,
    pub(crate) prefill: Duration,
    pub(crate) mask: Duration,
}

/// What a tick did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tick {
    /// There may be more to do at once.
    Worked,
    /// Somebody waits for room or for a reader.
    Blocked,
    /// Nothing is left.
    Idle,
}

/// One sequence, for people who look.
#[derive(Clone, Debug, Default)]
pub(crate) struct Look {
    /// Tokens of its prompt.
    pub(crate) prompt: usize,
    /// Tokens that are computed.
    pub(crate) done: usize,
    /// Tokens of its answer.
    pub(crate) generated: usize,
}

/// The queue and the running sequences.
pub(crate) struct Scheduler {
    limits: Limits,
    waiting: Vec<Entry>,
    running: Vec<Entry>,
    prefixes: Prefixes,
    guesses: Guesses,
    pub(crate) report: Report,
}

impl Entry {
    fn new(job: Job, kin: Kin) -> Self {
        let guesser = (job.guesses > 0).then(|| Guesser::new(Box::<Ngram>::default(), job.guesses));
        Self {
            tokens: job.prompt.clone(),
            guesser,
            job,
            sequence: None,
            n_done: 0,
            n_cached: 0,
            is_started: false,
            n_passed: 0,
            stalled: None,
            was_preempted: false,
            scores: Vec::new(),
            last_token: None,
            admitted: None,
            row: None,
            kin,
        }
    }

    fn n_generated(&self) -> usize {
        self.tokens.len() - self.job.prompt.len()
    }

    fn remaining(&self) -> usize {
        self.tokens.len() - self.n_done
    }

    fn is_cancelled(&self) -> bool {
        self.job.cancelled.load(Ordering::Relaxed) || self.job.events.is_closed()
    }

    /// Sends an event; there is room, or the event is the last.
    fn send(&self, event: Event) {
        // Who does not listen any more needs no events.
        let _ = self.job.events.try_send((self.job.choice, event));
    }

    /// What orders the queue: the time of arrival, moved by the priority.
    fn rank(&self, start: Instant) -> i128 {
        let arrived = self.job.arrived.saturating_duration_since(start).as_millis() as i128;
        arrived + i128::from(self.job.priority) * AGEING.as_millis() as i128
    }
}

impl Scheduler {
    pub(crate) fn new(limits: Limits) -> Self {
        let (waiting, running, prefixes) = (Vec::new(), Vec::new(), Prefixes::default());
        Self { limits, waiting, running, prefixes, guesses: Guesses::default(), report: Report::default() }
    }

    /// Puts a job into the queue.
    pub(crate) fn submit(&mut self, job: Job) {
        let kin = self.prefixes.kin_of(&job);
        self.waiting.push(Entry::new(job, kin));
    }

    pub(crate) fn n_waiting(&self) -> usize {
        self.waiting.len()
    }

    pub(crate) fn n_running(&self) -> usize {
        self.running.len()
    }

    /// The running sequences.
    pub(crate) fn look(&self) -> Vec<Look> {
        let look = |entry: &Entry| Look {
            prompt: entry.job.prompt.len(),
            done: entry.n_done,
            generated: entry.n_generated(),
        };
        self.running.iter().map(look).collect()
    }

    /// Ends everything, as the engine is gone.
    pub(crate) fn fail_all(&mut self, problem: &Problem) {
        self.prefixes.clear();
        for entry in self.running.drain(..).chain(self.waiting.drain(..)) {
            entry.send(Event::Failed(Box::new(Failure(problem.clone()))));
        }
    }

    /// Fails what runs, as the engine was lost; what waits goes on with the next.
    pub(crate) fn fail_running(&mut self, problem: &Problem) {
        self.prefixes.clear();
        for entry in self.running.drain(..) {
            entry.send(Event::Failed(Box::new(Failure(problem.clone()))));
        }
    }

    /// One tick.
    pub(crate) fn tick(&mut self, engine: &mut dyn Engine, now: Instant) -> Tick {
        self.reap(engine, now);
        self.admit(engine, now);
        self.draw_known(engine);
        let mut batch = self.batch(engine, now);
        if batch.is_empty() {
            let is_idle = self.running.is_empty() && self.waiting.is_empty();
            return if is_idle { Tick::Idle } else { Tick::Blocked };
        }
        self.guess(engine, &mut batch);
        self.compute(engine, batch);
        Tick::Worked
    }

    /// Drops what was cancelled, is late, or is not read.
    fn reap(&mut self, engine: &mut dyn Engine, now: Instant) {
        let is_late = |entry: &Entry| entry.job.deadline.is_some_and(|deadline| now >= deadline);
        for entry in self.waiting.extract_if(.., |entry| entry.is_cancelled() || is_late(entry)) {
            if entry.is_cancelled() {
                self.report.cancelled += 1;
            } else {
                entry.send(late(&entry));
            }
        }
        let mut at = 0;
        while at < self.running.len() {
            let entry = &mut self.running[at];
            let is_full = entry.job.events.capacity() < ROOM;
            entry.stalled = is_full.then(|| entry.stalled.unwrap_or(now));
            let is_slow = entry.stalled.is_some_and(|since| now.duration_since(since) > SLOW_READER);
            if !(entry.is_cancelled() || is_late(entry) || is_slow) {
                at += 1;
                continue;
            }
            let entry = self.running.remove(at);
            if entry.is_cancelled() {
                self.report.cancelled += 1;
            } else if is_slow {
                self.report.slow_readers += 1;
                entry.job.cancelled.store(true, Ordering::Relaxed);
            } else {
                entry.send(late(&entry));
            }
            self.prefixes.keep(engine, entry);
        }
    }

    /// Moves requests from the queue to the running, while there is room.
    fn admit(&mut self, engine: &mut dyn Engine, now: Instant) {
        let Some(start) = self.waiting.iter().map(|entry| entry.job.arrived).min() else { return };
        self.waiting.sort_by_key(|entry| entry.rank(start));
        let mut at = 0;
        while at < self.waiting.len() {
            let capacity = engine.capacity();
            if self.running.len() >= capacity.sequences {
                return;
            }
            // What another is just computing is waited for, so that it is computed once.
            if self.is_computed_elsewhere(engine, &self.waiting[at], &capacity) {
                at += 1;
                continue;
            }
            let Some(Placed { sequence, n, row }) = self.place(engine, at) else { return };
            let mut entry = self.waiting.remove(at);
            entry.sequence = Some(sequence);
            entry.n_done = n;
            entry.row = entry.row.or(row);
            entry.job.place = None;
            let n_shared = n.min(entry.tokens.len() - 1);
            if entry.admitted.is_none() {
                entry.admitted = Some(now);
                entry.n_cached = n_shared;
                self.report.queried_tokens += entry.job.prompt.len();
                self.report.cached_tokens += n_shared;
                self.report.queued.push(now.duration_since(entry.job.arrived));
            }
            self.running.push(entry);
        }
    }

    /// Draws the first tokens of those whose logits are known already.
    fn draw_known(&mut self, engine: &mut dyn Engine) {
        let capacity = engine.capacity();
        let mut ended = Vec::new();
        for (at, entry) in self.running.iter_mut().enumerate() {
            if entry.remaining() == 0
                && let Some(row) = entry.row.clone()
            {
                match entry.next(&row, capacity.longest, Instant::now(), &mut self.report) {
                    Ok(None) => {}
                    Ok(Some(finish)) => ended.push((at, Ok(finish))),
                    Err(what) => ended.push((at, Err(what))),
                }
            }
        }
        self.end(engine, ended);
    }

    /// What the next replay computes.
    fn batch(&mut self, engine: &dyn Engine, now: Instant) -> Vec<Part> {
        let mut left = self.limits.batch_tokens;
        let mut batch = Vec::new();
        let is_ready = |entry: &Entry| entry.stalled.is_none_or(|since| now < since);
        for (at, entry) in self.running.iter().enumerate() {
            if is_ready(entry) && entry.remaining() == 1 && left > 0 {
                batch.push(Part { at, n: 1, guess: Vec::new() });
                left -= 1;
            }
        }
        let mut prompts: Vec<usize> = (0..self.running.len())
            .filter(|at| is_ready(&self.running[*at]) && self.running[*at].remaining() > 1)
            .collect();
        // Short rests of prompts go first, until a long one was passed too often.
        let budget = left;
        prompts.sort_by_key(|at| {
            let entry = &self.running[*at];
            (entry.n_passed < MAX_PASSED && entry.remaining() > budget, entry.job.priority, *at)
        });
        for at in prompts {
            let entry = &mut self.running[at];
            let sequence = entry.sequence.expect("a running entry has a sequence");
            let n = engine.takes(sequence, entry.remaining().min(left));
            if n == 0 {
                entry.n_passed += 1;
                continue;
            }
            entry.n_passed = 0;
            left -= n;
            batch.push(Part { at, n, guess: Vec::new() });
        }
        batch
    }

    fn piece(&self, Part { at, n, guess }: &Part) -> Piece {
        let entry = &self.running[*at];
        let (from, to) = (entry.n_done, entry.n_done + n);
        let wants_scores = entry.job.prompt_scores.is_some() && from < entry.job.prompt.len();
        let scored = match () {
            () if wants_scores || !guess.is_empty() => Rows::All,
            () if to == entry.tokens.len() => Rows::Last,
            () => Rows::None,
        };
        let sequence = entry.sequence.expect("a running entry has a sequence");
        Piece { sequence, tokens: [&entry.tokens[from..to], guess].concat(), scored }
    }

    /// Computes a batch, and makes room for it where there is none.
    fn compute(&mut self, engine: &mut dyn Engine, mut batch: Vec<Part>) {
        loop {
            let pieces: Vec<Piece> = batch.iter().map(|part| self.piece(part)).collect();
            let start = Instant::now();
            let outcome = engine.step(&pieces);
            let took = start.elapsed();
            match outcome {
                Ok(()) => {
                    self.report.replay += took;
                    self.report.steps += 1;
                    self.report.step_sequences += batch.len();
                    if batch.iter().any(|part| part.n > 1) {
                        self.report.prefill += took;
                    }
                    self.advance(engine, &batch);
                    // Drawing tokens is part of the time of a step.
                    self.note_pace(&batch, start.elapsed());
                    return;
                }
                Err(_) if drop_guesses(&mut batch) => {}
                Err(Refused::Full { .. }) => {
                    if self.prefixes.forget(engine) {
                        continue;
                    }
                    let Some(at) = self.preempt(engine) else {
                        // It is alone, and the pool is too small for it.
                        let entry = self.running.remove(0);
                        entry.send(Event::Done(Finish::Context));
                        self.report.finished.push(finished("length", &entry));
                        self.prefixes.keep(engine, entry);
                        return;
                    };
                    batch.retain(|part| part.at != at);
                    for part in &mut batch {
                        part.at -= usize::from(part.at > at);
                    }
                    if batch.is_empty() {
                        return;
                    }
                }
                Err(Refused::Fault(what)) if batch.len() == 1 => {
                    let entry = self.running.remove(batch[0].at);
                    self.fail(engine, &entry, &what);
                    return;
                }
                Err(Refused::Fault(_)) => {
                    // Each by itself, so that one fault is the fault of one request.
                    let sequences: Vec<(SequenceId, usize)> = batch
                        .iter()
                        .filter_map(|part| Some((self.running[part.at].sequence?, part.n)))
                        .collect();
                    for (sequence, n) in sequences {
                        let found = self.running.iter().position(|entry| entry.sequence == Some(sequence));
                        if let Some(at) = found {
                            self.compute(engine, vec![Part { at, n, guess: Vec::new() }]);
                        }
                    }
                    return;
                }
            }
        }
    }

    /// Takes the pages of the youngest running sequence; it waits and is computed again. None where only one runs.
    fn preempt(&mut self, engine: &mut dyn Engine) -> Option<usize> {
        if self.running.len() < 2 {
            return None;
        }
        // One that made no progress since the last time comes last.
        let youth =
            |(_, entry): &(usize, &Entry)| (!entry.was_preempted, entry.job.priority, entry.job.arrived);
        let (at, _) = self.running.iter().enumerate().max_by_key(youth)?;
        let mut entry = self.running.remove(at);
        engine.release(entry.sequence.take().expect("a running entry has a sequence"), entry.job.is_cached);
        entry.n_done = 0;
        entry.scores.clear();
        entry.was_preempted = true;
        self.report.preemptions += 1;
        self.waiting.push(entry);
        Some(at)
    }

    fn fail(&mut self, engine: &mut dyn Engine, entry: &Entry, what: &str) {
        entry.send(Event::Failed(Box::new(Failure(Problem::fault(what)))));
        self.report.finished.push(finished("error", entry));
        if let Some(sequence) = entry.sequence {
            engine.release(sequence, false);
        }
    }

    /// After a replay: scores, new tokens, ends.
    fn advance(&mut self, engine: &mut dyn Engine, batch: &[Part]) {
        let now = Instant::now();
        let capacity = engine.capacity();
        let mut ended: Vec<(usize, Result<Finish, String>)> = Vec::new();
        for (number, Part { at, n, guess }) in batch.iter().enumerate() {
            let entry = &mut self.running[*at];
            if *n > 1 || entry.n_done + 1 < entry.job.prompt.len() {
                self.report.prompt_tokens += n;
            }
            let rows = engine.rows(number);
            entry.note_scores(rows, *n, capacity.vocab);
            entry.n_done += n;
            if entry.n_done < entry.tokens.len() {
                continue;
            }
            let n_rows = rows.len() / capacity.vocab;
            let rows = rows.chunks_exact(capacity.vocab).skip(n_rows - (guess.len() + 1));
            let mut n_right = 0;
            for row in rows {
                if entry.job.is_cached && entry.n_done == entry.job.prompt.len() {
                    entry.row = Some(Arc::new(row.to_vec()));
                }
                match entry.next(row, capacity.longest, now, &mut self.report) {
                    Ok(None) => {}
                    Ok(Some(finish)) => ended.push((*at, Ok(finish))),
                    Err(what) => ended.push((*at, Err(what))),
                }
                let is_over = ended.last().is_some_and(|(other, _)| other == at);
                if is_over || guess.get(n_right) != entry.tokens.last() {
                    break;
                }
                n_right += 1;
                entry.n_done += 1;
            }
            if n_right < guess.len() {
                engine.truncate(entry.sequence.expect("a running entry has a sequence"), entry.n_done);
            }
            self.note_luck(*at, guess.len(), n_right);
        }
        self.end(engine, ended);
    }

    /// Ends entries, by their numbers among the running.
    fn end(&mut self, engine: &mut dyn Engine, mut ended: Vec<(usize, Result<Finish, String>)>) {
        ended.sort_by_key(|(at, _)| Reverse(*at));
        for (at, outcome) in ended {
            let entry = self.running.remove(at);
            match outcome {
                Ok(finish) => {
                    entry.send(Event::Done(finish));
                    self.report.finished.push(finished(finish.name(), &entry));
                    self.prefixes.keep(engine, entry);
                }
                Err(what) => self.fail(engine, &entry, &what),
            }
        }
    }
}

impl Finish {
    /// The name in metrics.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::End | Self::StopToken(_) => "stop",
            Self::Length | Self::Context | Self::Late => "length",
        }
    }
}

fn finished(name: &'static str, entry: &Entry) -> (&'static str, Duration, usize, usize) {
    (name, entry.job.arrived.elapsed(), entry.job.prompt.len(), entry.n_generated())
}

/// What a late request hears.
fn late(entry: &Entry) -> Event {
    if entry.n_generated() > 0 {
        Event::Done(Finish::Late)
    } else {
        Event::Failed(Box::new(Failure(Problem::late())))
    }
}

impl Entry {
    /// Whether both are choices of one request, for the same prompt: then the second has one token to compute.
    fn is_choice_beside(&self, other: &Self) -> bool {
        self.job.events.same_channel(&other.job.events) && self.job.prompt == other.job.prompt
    }

    /// Keeps the scores of the tokens that follow each row of a prompt.
    fn note_scores(&mut self, rows: &[f32], n: usize, n_vocab: usize) {
        let Some(n_top) = self.job.prompt_scores else { return };
        let n_prompt = self.job.prompt.len();
        if self.n_done >= n_prompt || rows.len() < n * n_vocab {
            return;
        }
        if self.n_done == 0 {
            self.scores = vec![Scored { id: self.tokens[0], ..Scored::default() }];
        }
        for (row, at) in rows.chunks_exact(n_vocab).zip(self.n_done + 1..n_prompt) {
            self.scores.push(score(row, self.tokens[at], n_top, &[]));
        }
    }

    /// Draws the next token and says whether it was the last.
    fn next(
        &mut self,
        logits: &[f32],
        context: usize,
        now: Instant,
        report: &mut Report,
    ) -> Result<Option<Finish>, String> {
        if !self.is_started {
            self.is_started = true;
            self.send(Event::Started { cached: self.n_cached });
            if self.job.prompt_scores.is_some() {
                let scores = std::mem::take(&mut self.scores);
                self.send(Event::Prompt(scores));
            }
        }
        if self.job.max_tokens == 0 {
            return Ok(Some(Finish::Length));
        }
        let n_generated = self.n_generated();
        let Job { drawer, constraint, ends, stops, min_tokens, .. } = &mut self.job;
        let scored = if let Some(constraint) = constraint {
            let start = Instant::now();
            let mask = constraint.mask()?;
            report.mask += start.elapsed();
            drawer.draw(logits, &self.tokens, Some(&|row| keep_allowed(mask, row)))?
        } else if n_generated < *min_tokens {
            let ban = |row: &mut [f32]| {
                for id in ends.iter().chain(&*stops) {
                    if let Some(logit) = row.get_mut(*id as usize) {
                        *logit = f32::NEG_INFINITY;
                    }
                }
            };
            drawer.draw(logits, &self.tokens, Some(&ban))?
        } else {
            drawer.draw(logits, &self.tokens, None)?
        };
        let id = scored.id;
        let is_over = match constraint {
            Some(constraint) => constraint.accept(id)?,
            None => false,
        };
        self.tokens.push(id);
        self.was_preempted = false;
        report.generated += 1;
        match self.last_token.replace(now) {
            Some(before) => report.between.push(now.duration_since(before)),
            None => report.first_token.push(now.duration_since(self.job.arrived)),
        }
        let Job { ends, stops, .. } = &self.job;
        let finish = match () {
            () if ends.contains(&id) => Some(Finish::End),
            () if stops.contains(&id) => Some(Finish::StopToken(id)),
            () if is_over => Some(Finish::End),
            () if n_generated + 1 >= self.job.max_tokens => Some(Finish::Length),
            () if self.tokens.len() >= context => Some(Finish::Context),
            () => None,
        };
        self.send(Event::Token(scored));
        Ok(finish)
    }
}

#[cfg(test)]
mod tests;
