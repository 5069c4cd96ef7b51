//! Text generation: from the tokens of a prompt to the text that follows.
//!
//! In: a session, sampling settings, and stop conditions. Out: pieces of text as soon as they are certain, then an
//! [`Answer`] with its tokens, the reason it ended, and timing.
//! With a draft, several tokens are guessed and verified in one step (`draft/`).
//! The KV cache is reused: of each prompt, only what follows the longest common prefix with the tokens in the cache is
//! fed to the session.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fusebox_runtime::session::Session;

use crate::draft::{Draft, Speculation};
use crate::error::Error;
use crate::generate::stop::Stop;
use crate::sample::{self, Sampler};
use crate::tokenizer::Tokenizer;
use crate::tokenizer::stream::Stream;

pub mod stop;

/// Stop conditions and sampling settings.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Settings {
    /// Maximum number of generated tokens.
    pub max_tokens: usize,
    /// Stop strings: each ends the answer and is not part of it.
    pub stops: Vec<String>,
    /// Whether to keep generating after an end-of-sequence token.
    pub ignore_eos: bool,
    /// Sampling settings.
    pub sampling: sample::Settings,
}

/// Why generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The maximum number of tokens was reached.
    Length,
    /// An end-of-sequence token.
    Eos,
    /// A stop string.
    Stop,
    /// The context is full.
    Context,
    /// The reader asked to stop.
    Closed,
}

/// The result of a generation.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// Generated tokens, without the end-of-sequence token.
    pub tokens: Vec<u32>,
    /// Generated text, without the stop string.
    pub text: String,
    /// Why it ended.
    pub finish: Finish,
    /// Timing.
    pub timing: Timing,
    /// When each token came, since the start.
    pub times: Vec<Duration>,
    /// Where the sequence moved to another session.
    pub switched: Option<Switched>,
}

/// A sequence that moved to another session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Switched {
    /// How many tokens of the answer had come.
    pub n_before: usize,
    /// When the move began, since the start.
    pub at: Duration,
    /// How long it took.
    pub took: Duration,
}

/// Timing of a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Timing {
    /// Prompt tokens that were fed: those not in the KV cache yet.
    pub n_prompt: usize,
    /// Prefill time.
    pub prefill: Duration,
    /// Time to first token; `None` where no token was generated.
    pub first_token: Option<Duration>,
    /// Decode steps: generated tokens that were fed.
    pub n_decoded: usize,
    /// Decode time, with sampling.
    pub decode: Duration,
    /// Tokens that a draft guessed.
    pub n_guessed: usize,
    /// How many of them came.
    pub n_right: usize,
}

/// Generates text in one session.
pub struct Generator {
    session: Session,
    /// Without one, token ids are printed as text.
    tokenizer: Option<Arc<Tokenizer>>,
    sampler: Sampler,
    settings: Settings,
    /// The tokens in the KV cache.
    cached: Vec<u32>,
    /// What was fed of the next prompt, and how long that and restoring took.
    prefilled: (usize, Duration),
    speculation: Option<Speculation>,
    /// The session that the sequence moves to, and how many tokens it has then.
    next: Option<(Session, usize)>,
}

impl Finish {
    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Length => "length",
            Self::Eos => "end",
            Self::Stop => "stop",
            Self::Context => "context",
            Self::Closed => "closed",
        }
    }
}

impl Timing {
    /// Prefill throughput in tokens per second.
    pub fn prefill_rate(&self) -> Option<f64> {
        rate(self.n_prompt, self.prefill)
    }

    /// Decode throughput in tokens per second.
    pub fn decode_rate(&self) -> Option<f64> {
        rate(self.n_decoded, self.decode)
    }
}

fn rate(n: usize, time: Duration) -> Option<f64> {
    (n > 0 && !time.is_zero()).then(|| n as f64 / time.as_secs_f64())
}

impl Answer {
    /// Decode throughput in tokens per second before the sequence moved, and after.
    pub fn rates_around_switch(&self) -> Option<[Option<f64>; 2]> {
        let Switched { n_before, at, took } = self.switched?;
        let (first, last) = (self.times.first()?, self.times.last()?);
        let before = rate(n_before.saturating_sub(1), at.saturating_sub(*first));
        let after = rate(self.times.len() - n_before, last.saturating_sub(at + took));
        Some([before, after])
    }
}

impl Generator {
    /// A generator with an empty context.
    ///
    /// # Errors
    /// [`Error::Setting`] for a setting out of range, or for sampling that needs more logits than the session returns.
    pub fn new(
        session: Session,
        tokenizer: Option<Arc<Tokenizer>>,
        settings: Settings,
    ) -> Result<Self, Error> {
        let sampler = sampler_for(&session, &settings)?;
        Ok(Self {
            session,
            tokenizer,
            sampler,
            settings,
            cached: Vec::new(),
            prefilled: Default::default(),
            speculation: None,
            next: None,
        })
    }

    /// Has the sequence move to another session of the same model, as soon as it has `n_tokens` and a prompt is done. A
    /// draft is set before.
    ///
    /// # Errors
    /// Where that session returns another number of logits, or a program does not compile.
    pub fn set_switch(&mut self, mut session: Session, n_tokens: usize) -> Result<(), Error> {
        if session.width() != self.session.width() {
            let expected = format!("a session that gives {} logits", self.session.width());
            return Err(Error::Setting { setting: "switch", expected, found: session.width().to_string() });
        }
        if self.speculation.is_some() {
            session.prepare_scored(session.most_scored())?;
        }
        self.next = Some((session, n_tokens));
        Ok(())
    }

    /// Moves the sequence to the other session, if it is time.
    fn switch(&mut self) -> Result<bool, Error> {
        let n_tokens = self.cached.len();
        let Some((mut session, _)) = self.next.take_if(|(_, at)| n_tokens >= *at) else { return Ok(false) };
        self.drop_guess()?;
        session.continue_from(&mut self.session)?;
        self.session = session;
        Ok(true)
    }

    /// Has a draft guess up to `most` tokens at a time from now on. The session must have been made to score every
    /// token of a step.
    ///
    /// # Errors
    /// Where a state goes only forward, so that wrong guesses could not be taken back, or a program does not compile.
    pub fn set_draft(&mut self, draft: Box<dyn Draft>, most: usize) -> Result<(), Error> {
        if self.session.is_forward_only() {
            let expected = "a model whose KV cache can be cut".to_owned();
            let found = "one with recurrent states".to_owned();
            return Err(Error::Setting { setting: "draft", expected, found });
        }
        let most = most.min(self.session.most_scored().saturating_sub(1));
        if most == 0 {
            let expected = "a session that scores every token of a step".to_owned();
            return Err(Error::Setting { setting: "draft", expected, found: "another".to_owned() });
        }
        self.session.prepare_scored(most + 1)?;
        self.speculation = Some(Speculation::new(draft, most));
        Ok(())
    }

    /// Other stop conditions and sampling settings for the answers that follow; the KV cache stays.
    ///
    /// # Errors
    /// As [`Generator::new`]; then nothing has changed.
    pub fn set(&mut self, settings: Settings) -> Result<(), Error> {
        self.sampler = sampler_for(&self.session, &settings)?;
        self.settings = settings;
        Ok(())
    }

    /// Lends the session and the tokens in its KV cache, to measure it. What the session has forgotten afterwards is
    /// fed again when it is needed.
    pub fn lend<R>(&mut self, to: impl FnOnce(&mut Session, &[u32]) -> R) -> R {
        let result = to(&mut self.session, &self.cached);
        self.cached.truncate(self.session.position());
        result
    }

    /// The session, as the last generation left it.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// The session, and the tokens in its KV cache.
    pub fn into_session(self) -> (Session, Vec<u32>) {
        (self.session, self.cached)
    }

    /// Saves the sequence, so that [`Generator::restore`] goes on from it.
    ///
    /// # Errors
    /// Where the file cannot be written, or another one is there.
    pub fn save(&mut self, path: &Path) -> Result<(), Error> {
        Ok(self.session.save(path)?)
    }

    /// Replaces the sequence by one that was saved; of a prompt, only what follows their longest common prefix is fed.
    ///
    /// # Errors
    /// Where the file holds no sequence of this model, type of KV cache and context; then the context is empty.
    pub fn restore(&mut self, path: &Path) -> Result<(), Error> {
        let start = Instant::now();
        self.cached.clear();
        self.cached.extend(self.session.restore(path)?);
        self.prefilled = (0, start.elapsed());
        Ok(())
    }

    /// Feeds a prompt, whose answer comes next; it counts into the timing of that.
    ///
    /// # Errors
    /// As [`Generator::answer`].
    pub fn prefill(&mut self, prompt: &[u32]) -> Result<(), Error> {
        let start = Instant::now();
        let (n, _) = self.feed_prompt(prompt, &mut |_| ControlFlow::Continue(()))?;
        self.prefilled = (self.prefilled.0 + n, self.prefilled.1 + start.elapsed());
        Ok(())
    }

    /// Generates the answer to a prompt, which is the whole sequence so far. `each` gets the text in pieces, and an
    /// empty one between the replays of a long prompt; it may stop either.
    ///
    /// # Errors
    /// Where the prompt is empty, has an unknown token, or does not fit into the context; then `each` was not called.
    pub fn answer(
        &mut self,
        prompt: &[u32],
        each: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Answer, Error> {
        let start = Instant::now();
        let (n_before, before) = std::mem::take(&mut self.prefilled);
        let start = start.checked_sub(before).unwrap_or(start);
        let (n_fed, fed) = self.feed_prompt(prompt, each)?;
        let (n_prompt, prefill) = (n_before + n_fed, start.elapsed());
        let mut answer = Answer {
            tokens: Vec::new(),
            text: String::new(),
            finish: Finish::Length,
            timing: Timing { n_prompt, prefill, ..Timing::default() },
            times: Vec::new(),
            switched: None,
        };
        let tokenizer = self.tokenizer.clone();
        let mut sink = TextSink {
            stream: tokenizer.as_ref().map(|tokenizer| tokenizer.stream_after(prompt.last().copied(), true)),
            stop: Stop::new(self.settings.stops.clone())?,
            each,
        };
        answer.finish = match fed {
            ControlFlow::Continue(()) => self.generate(&mut answer, &mut sink, start)?,
            ControlFlow::Break(()) => Finish::Closed,
        };
        self.drop_guess()?;
        if let Some(first) = answer.timing.first_token {
            answer.timing.decode = start.elapsed().saturating_sub(first);
        }
        sink.finish(&mut answer);
        Ok(answer)
    }

    /// How many tokens of a prompt are in the KV cache and stay there.
    pub fn n_kept(&self, prompt: &[u32]) -> usize {
        let pairs = self.cached.iter().zip(prompt);
        let n_same = pairs.take_while(|(a, b)| a == b).count();
        if n_same == self.cached.len() && n_same == prompt.len() && !self.session.logits().is_empty() {
            return n_same;
        }
        self.session.reusable(n_same.min(prompt.len().saturating_sub(1)))
    }

    /// Feeds the part of a prompt that is not in the KV cache, and at least its last token unless the logits after it
    /// are there; returns how many tokens it fed, and whether `each` stopped it.
    fn feed_prompt(
        &mut self,
        prompt: &[u32],
        each: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<(usize, ControlFlow<()>), Error> {
        let n_same = self.n_kept(prompt);
        if n_same > 0 && n_same == prompt.len() {
            return Ok((0, ControlFlow::Continue(())));
        }
        self.session.truncate(n_same)?;
        self.cached.truncate(n_same);
        let mut rest = &prompt[n_same..];
        // What cannot be fed is refused whole, before any of it is.
        let is_known = rest.iter().all(|token| (*token as usize) < self.session.n_vocab());
        if rest.is_empty() || !is_known || rest.len() > self.session.room() {
            self.session.feed(rest)?;
        }
        for n_tokens in self.session.pieces(rest.len()) {
            let (tokens, later) = rest.split_at(n_tokens);
            self.session.feed(tokens)?;
            self.cached.extend(tokens);
            rest = later;
            if !rest.is_empty() && each("").is_break() {
                return Ok((prompt.len() - n_same - rest.len(), ControlFlow::Break(())));
            }
        }
        Ok((prompt.len() - n_same, ControlFlow::Continue(())))
    }

    /// Samples the next token from all logits or the top k, whichever the session returns.
    fn next(&mut self) -> Result<u32, Error> {
        let n_left = self.speculation.as_ref().map_or(0, Speculation::n_left);
        // The last row follows the whole guess.
        let width = self.session.width();
        let row = |all: usize| all - (n_left + 1) * width..all - n_left * width;
        let logits = self.session.rows();
        let logits = &logits[row(logits.len())];
        match self.session.best() {
            Some(ids) => self.sampler.next_of_top_k(&ids[row(ids.len())], logits),
            None => self.sampler.next(logits, &self.cached),
        }
    }

    /// Extends the sequence by a token, unless it was guessed, so that the logits after it are there.
    fn extend(&mut self, token: u32, n_left: usize, timing: &mut Timing) -> Result<(), Error> {
        timing.n_decoded += 1;
        if self.speculation.as_mut().is_some_and(|own| own.is_right(token)) {
            timing.n_right += 1;
            self.cached.push(token);
            return Ok(());
        }
        self.drop_guess()?;
        self.cached.push(token);
        let Self { session, speculation, cached, .. } = self;
        let Some(own) = speculation else {
            session.feed(&[token])?;
            return Ok(());
        };
        let most = session.room().saturating_sub(1).min(n_left.saturating_sub(1));
        let limits = (most, session.n_vocab());
        let mut step = |tokens: &[u32]| Ok(session.score(tokens, &mut |_| {})?);
        timing.n_guessed += own.begin(cached, limits, &mut step)?;
        Ok(())
    }

    /// Takes back what was guessed and did not come.
    fn drop_guess(&mut self) -> Result<(), Error> {
        if let Some(own) = &mut self.speculation {
            own.end();
            if self.session.position() > self.cached.len() {
                self.session.truncate(self.cached.len())?;
            }
        }
        Ok(())
    }

    fn generate(
        &mut self,
        answer: &mut Answer,
        sink: &mut TextSink<'_>,
        start: Instant,
    ) -> Result<Finish, Error> {
        while answer.tokens.len() < self.settings.max_tokens {
            let token = self.next()?;
            answer.timing.first_token.get_or_insert_with(|| start.elapsed());
            let is_eos = self.tokenizer.as_ref().is_some_and(|tokenizer| tokenizer.is_eos(token));
            if is_eos && !self.settings.ignore_eos {
                return Ok(Finish::Eos);
            }
            answer.tokens.push(token);
            answer.times.push(start.elapsed());
            if let ControlFlow::Break(finish) = sink.push(token, &mut answer.text) {
                return Ok(finish);
            }
            if answer.tokens.len() == self.settings.max_tokens {
                break;
            }
            // What was guessed and may not come is in the sequence as well.
            if self.cached.len() == self.session.position() + self.session.room() {
                return Ok(Finish::Context);
            }
            let at = start.elapsed();
            if self.switch()? {
                let took = start.elapsed().saturating_sub(at);
                answer.switched = Some(Switched { n_before: answer.tokens.len(), at, took });
            }
            let n_left = self.settings.max_tokens - answer.tokens.len();
            self.extend(token, n_left, &mut answer.timing)?;
        }
        Ok(Finish::Length)
    }
}

/// A sampler, if the session returns as many logits as it needs.
fn sampler_for(session: &Session, settings: &Settings) -> Result<Sampler, Error> {
    let sampler = Sampler::new(settings.sampling.clone(), session.n_vocab())?;
    Stop::new(settings.stops.clone())?;
    if let Some(found) = session.best().map(|_| session.width()) {
        let needed = settings.sampling.device_top_k().unwrap_or(usize::MAX).min(session.n_vocab());
        if needed > found {
            let expected = format!("a session that gives {needed} logits");
            return Err(Error::Setting { setting: "sampling", expected, found: found.to_string() });
        }
    }
    Ok(sampler)
}

/// Turns tokens into pieces of text.
struct TextSink<'a> {
    stream: Option<Stream<'a>>,
    stop: Stop,
    each: &'a mut dyn FnMut(&str) -> ControlFlow<()>,
}

impl TextSink<'_> {
    /// Emits the text that this token makes certain.
    fn push(&mut self, token: u32, text: &mut String) -> ControlFlow<Finish> {
        let piece = self.stream.as_mut().map_or_else(|| format!("{token} "), |stream| stream.push(token));
        let piece = self.stop.push(&piece);
        self.emit(&piece, text)?;
        if self.stop.has_stopped() { ControlFlow::Break(Finish::Stop) } else { ControlFlow::Continue(()) }
    }

    /// Emits the text that was held back.
    fn finish(&mut self, answer: &mut Answer) {
        if matches!(answer.finish, Finish::Stop | Finish::Closed) {
            return;
        }
        let rest = self.stream.as_mut().map_or_else(String::new, Stream::finish);
        let rest = self.stop.push(&rest) + &self.stop.finish();
        if self.stop.has_stopped() {
            answer.finish = Finish::Stop;
        }
        // The answer is complete either way.
        let _ = self.emit(&rest, &mut answer.text);
    }

    fn emit(&mut self, piece: &str, text: &mut String) -> ControlFlow<Finish> {
        text.push_str(piece);
        if piece.is_empty() {
            return ControlFlow::Continue(());
        }
        (self.each)(piece).map_break(|()| Finish::Closed)
    }
}
