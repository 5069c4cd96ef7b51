//! From a request that was understood to its answer: jobs are submitted, events become pieces of text.
//!
//! In: prompts, settings of sampling, and what the text is looked through for. Out: pieces of each choice, then its
//! end.
//! Dropping an [`Answering`] cancels what it waits for.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use tokio::sync::mpsc;

use crate::answer::{Piece, Reader, Reading};
use crate::grammar::{Constraint, Grammar};
use crate::http::ids;
use crate::http::problem::Problem;
use crate::model::Served;
use crate::sampling::{Drawer, Sampling, Scored};
use crate::scheduler::{Event, Failure, Job, ROOM};

/// How many events a reader may leave unread before its sequences are not computed any more.
const EVENTS: usize = 1000 + ROOM;

/// What is wanted.
#[derive(Debug)]
pub(crate) struct Ask {
    pub(crate) prompts: Vec<Vec<u32>>,
    /// Choices for each prompt.
    pub(crate) n: usize,
    /// None for what the context has room for.
    pub(crate) max_tokens: Option<usize>,
    pub(crate) sampling: Sampling,
    pub(crate) seed: Option<u64>,
    pub(crate) reading: Reading,
    pub(crate) prompt_scores: Option<usize>,
    pub(crate) ignores_ends: bool,
    pub(crate) stop_tokens: Vec<u32>,
    pub(crate) min_tokens: usize,
    pub(crate) grammar: Option<Grammar>,
    pub(crate) priority: i64,
    pub(crate) salt: Option<String>,
    /// The factor on each adapter of the model that it chooses from; 0 for those behind the last.
    pub(crate) adapters: Vec<f32>,
    pub(crate) is_cached: bool,
    /// The most tokens that are guessed for a step; none for as many as the server guesses.
    pub(crate) guesses: Option<usize>,
    pub(crate) deadline: Option<Instant>,
}

impl Default for Ask {
    fn default() -> Self {
        Self {
            prompts: Vec::new(),
            n: 1,
            max_tokens: None,
            sampling: Sampling::default(),
            seed: None,
            reading: Reading::default(),
            prompt_scores: None,
            ignores_ends: false,
            stop_tokens: Vec::new(),
            min_tokens: 0,
            grammar: None,
            priority: 0,
            salt: None,
            adapters: Vec::new(),
            is_cached: true,
            guesses: None,
            deadline: None,
        }
    }
}

/// What comes of a choice, by its number.
#[derive(Debug)]
pub(crate) enum Told {
    /// Its prompt is computed.
    Started(usize),
    /// The scores of its prompt.
    Prompt(usize, Vec<Scored>),
    Piece(usize, Piece),
    /// Its end.
    Done(usize),
}

/// Times of an answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    start: Instant,
    first: Option<Instant>,
    last: Option<Instant>,
}

/// An answer on its way.
pub(crate) struct Answering<'a> {
    events: mpsc::Receiver<(usize, Event)>,
    cancels: Vec<Arc<AtomicBool>>,
    pub(crate) readers: Vec<Reader<'a>>,
    told: VecDeque<Told>,
    n_open: usize,
    is_stop: Vec<u32>,
    /// Tokens of all prompts, each once.
    pub(crate) n_prompt: usize,
    pub(crate) n_cached: usize,
    n_choices: usize,
    pub(crate) times: Times,
}

impl Drop for Answering<'_> {
    fn drop(&mut self) {
        self.cancels.iter().for_each(|cancel| cancel.store(true, Ordering::Relaxed));
    }
}

impl<'a> Answering<'a> {
    /// Checks that the prompts fit, and submits them.
    ///
    /// # Errors
    /// Where one does not fit, a setting or a grammar is refused, or the queue is full.
    pub(crate) fn submit(served: &'a Served, ask: Ask) -> Result<Self, Problem> {
        served.check_generates()?;
        let capacity = served.worker.capacity;
        let (send, events) = mpsc::channel(EVENTS);
        let arrived = Instant::now();
        let seed = ask.seed.unwrap_or_else(ids::seed);
        let scales = served.scales(&ask.adapters);
        let mut constraint = match &ask.grammar {
            Some(grammar) => {
                let made = served.grammars().and_then(|grammars| grammars.constraint(grammar));
                Some(made.map_err(|what| Problem {
                    param: Some("response_format".to_owned()),
                    ..Problem::invalid(format!("the grammar cannot be enforced: {what}"))
                })?)
            }
            None => None,
        };
        let (mut jobs, mut readers, mut cancels) = (Vec::new(), Vec::new(), Vec::new());
        for prompt in &ask.prompts {
            let n_free = capacity.context.saturating_sub(prompt.len());
            if prompt.is_empty() {
                return Err(Problem::field("prompt", "expected at least one token, found none"));
            }
            let wants_none = ask.max_tokens == Some(0);
            if n_free == 0 && !(wants_none && prompt.len() == capacity.context) {
                return Err(Problem::too_long(capacity.context, prompt.len()));
            }
            let most = if capacity.slides() {
                capacity.longest - prompt.len()
            } else {
                n_free.max(usize::from(!wants_none))
            };
            let max_tokens = ask.max_tokens.unwrap_or(usize::MAX).min(most);
            for choice in 0..ask.n {
                let mut sampling = ask.sampling.clone();
                sampling.chain.seed = seed.wrapping_add(choice as u64);
                let drawer = Drawer::new(sampling, capacity.vocab).map_err(Problem::invalid)?;
                let cancelled = Arc::new(AtomicBool::new(false));
                cancels.push(Arc::clone(&cancelled));
                readers.push(Reader::new(&served.tokenizer, ask.reading.clone(), prompt.last().copied()));
                let again = constraint.as_mut().map(Constraint::again);
                jobs.push(Job {
                    prompt: prompt.clone(),
                    max_tokens,
                    drawer,
                    prompt_scores: ask.prompt_scores,
                    ends: if ask.ignores_ends { Vec::new() } else { served.tokenizer.eos().to_vec() },
                    stops: ask.stop_tokens.clone(),
                    min_tokens: ask.min_tokens,
                    constraint: again.transpose().map_err(Problem::invalid)?,
                    priority: ask.priority,
                    deadline: ask.deadline,
                    salt: ask.salt.clone(),
                    scales: Arc::clone(&scales),
                    is_cached: ask.is_cached,
                    guesses: served.guesses.min(ask.guesses.unwrap_or(usize::MAX)),
                    events: send.clone(),
                    choice: jobs.len(),
                    cancelled,
                    arrived,
                    place: None,
                });
            }
        }
        let n_choices = jobs.len();
        served.worker.submit(jobs)?;
        Ok(Self {
            events,
            cancels,
            readers,
            told: VecDeque::new(),
            n_open: n_choices,
            is_stop: ask.stop_tokens,
            n_prompt: ask.prompts.iter().map(Vec::len).sum(),
            n_cached: 0,
            n_choices: ask.n,
            times: Times { start: arrived, first: None, last: None },
        })
    }

    /// What comes next; none after the end of the last choice.
    ///
    /// # Errors
    /// Where a choice failed; then the others are cancelled.
    pub(crate) async fn next(&mut self) -> Result<Option<Told>, Problem> {
        loop {
            if let Some(told) = self.told.pop_front() {
                return Ok(Some(told));
            }
            if self.n_open == 0 {
                return Ok(None);
            }
            match self.events.recv().await {
                Some((choice, event)) => self.take(choice, event)?,
                None => return Err(Problem::fault("The answer was dropped: nobody read it for too long.")),
            }
        }
    }

    fn take(&mut self, choice: usize, event: Event) -> Result<(), Problem> {
        let reader = &mut self.readers[choice];
        if reader.reason.is_some() {
            // Drawn before the cancellation was seen.
            return Ok(());
        }
        match event {
            Event::Started { cached } => {
                if choice.is_multiple_of(self.n_choices) {
                    self.n_cached += cached;
                }
                self.told.push_back(Told::Started(choice));
            }
            Event::Prompt(scores) => self.told.push_back(Told::Prompt(choice, scores)),
            Event::Token(scored) => {
                let now = Instant::now();
                self.times.first.get_or_insert(now);
                self.times.last = Some(now);
                let is_stop = self.is_stop.contains(&scored.id);
                let pieces = reader.push(scored, is_stop);
                self.told.extend(pieces.into_iter().map(|piece| Told::Piece(choice, piece)));
                if reader.reason.is_some() {
                    self.cancels[choice].store(true, Ordering::Relaxed);
                    self.end(choice);
                }
            }
            Event::Done(finish) => {
                let pieces = reader.finish(finish);
                self.told.extend(pieces.into_iter().map(|piece| Told::Piece(choice, piece)));
                self.end(choice);
            }
            Event::Failed(failure) => {
                let Failure(problem) = *failure;
                return Err(problem);
            }
        }
        Ok(())
    }

    fn end(&mut self, choice: usize) {
        self.told.push_back(Told::Done(choice));
        self.n_open -= 1;
    }

    /// Tokens of all choices so far.
    pub(crate) fn n_generated(&self) -> usize {
        self.readers.iter().map(|reader| reader.n_tokens).sum()
    }

    fn n_reasoning(&self) -> usize {
        self.readers.iter().map(|reader| reader.n_reasoning).sum()
    }

    /// As OpenAI's `usage`.
    pub(crate) fn usage(&self) -> Value {
        let (n_prompt, n) = (self.n_prompt, self.n_generated());
        json!({
            "prompt_tokens": n_prompt,
            "completion_tokens": n,
            "total_tokens": n_prompt + n,
            "prompt_tokens_details": { "cached_tokens": self.n_cached },
            "completion_tokens_details": { "reasoning_tokens": self.n_reasoning() },
        })
    }

    /// As the `usage` of OpenAI's Responses.
    pub(crate) fn responses_usage(&self) -> Value {
        let (n_prompt, n) = (self.n_prompt, self.n_generated());
        json!({
            "input_tokens": n_prompt,
            "input_tokens_details": { "cached_tokens": self.n_cached },
            "output_tokens": n,
            "output_tokens_details": { "reasoning_tokens": self.n_reasoning() },
            "total_tokens": n_prompt + n,
        })
    }

    /// Prefill and decode time.
    pub(crate) fn times(&self) -> (Duration, Duration) {
        let Times { start, first, last } = self.times;
        let first = first.unwrap_or_else(Instant::now);
        (first.duration_since(start), last.unwrap_or(first).duration_since(first))
    }

    /// As llama.cpp's `timings`.
    pub(crate) fn timings(&self) -> Value {
        let (prompt, decode) = self.times();
        let rate =
            |n: usize, time: Duration| if time.is_zero() { 0.0 } else { n as f64 / time.as_secs_f64() };
        let n_prompt = self.n_prompt - self.n_cached.min(self.n_prompt);
        let n = self.n_generated();
        let mut timings = Map::new();
        timings.insert("cache_n".to_owned(), self.n_cached.into());
        timings.insert("prompt_n".to_owned(), n_prompt.into());
        timings.insert("prompt_ms".to_owned(), (prompt.as_secs_f64() * 1000.0).into());
        timings.insert("prompt_per_second".to_owned(), rate(n_prompt, prompt).into());
        timings.insert("predicted_n".to_owned(), n.into());
        timings.insert("predicted_ms".to_owned(), (decode.as_secs_f64() * 1000.0).into());
        timings.insert("predicted_per_second".to_owned(), rate(n.saturating_sub(1), decode).into());
        Value::Object(timings)
    }
}
