//! From the tokens of a prompt to the text that follows.
//!
//! In: a session, how tokens are chosen, and what ends an answer. Out: pieces of text as soon as they are certain, then
//! an [`Answer`] with its tokens, why it ended, and how long it took.
//! A conversation goes on where it stands: of each prompt, only what the session has not taken yet is fed to it.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use fusebox_runtime::session::Session;

use crate::error::Error;
use crate::sample::{self, Sampler};
use crate::stop::Stop;
use crate::tokenizer::Tokenizer;
use crate::tokenizer::stream::Stream;

/// When an answer ends, and how its tokens are chosen.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Settings {
    /// The most tokens of an answer.
    pub most_tokens: usize,
    /// Texts that end an answer, and are no part of it.
    pub stops: Vec<String>,
    /// Whether tokens that end an answer do not.
    pub ignores_ends: bool,
    /// How tokens are chosen.
    pub sampling: sample::Settings,
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// It has as many tokens as it may have.
    Length,
    /// The model ended it.
    End,
    /// One of the texts that end it came.
    Stop,
    /// The context is full.
    Context,
    /// Nobody wants to read on.
    Closed,
}

/// What followed a prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// Its tokens, without the one that ended it.
    pub tokens: Vec<u32>,
    /// Its text, without the one that ended it.
    pub text: String,
    /// Why it ended.
    pub finish: Finish,
    /// How long it took.
    pub timing: Timing,
}

/// How long an answer took.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Timing {
    /// How many tokens of the prompt were fed.
    pub n_prompt: usize,
    /// How long that took.
    pub prefill: Duration,
    /// From the prompt to the first token of the answer; nothing where there is none.
    pub first_token: Option<Duration>,
    /// How many tokens of the answer were fed.
    pub n_decoded: usize,
    /// How long it took to feed them and to choose what follows.
    pub decode: Duration,
}

/// A text that a model goes on with.
pub struct Generator<'a> {
    session: Session,
    /// Without one, a token's number is its text.
    tokenizer: Option<&'a Tokenizer>,
    sampler: Sampler,
    settings: Settings,
    /// The tokens that the session has taken.
    taken: Vec<u32>,
}

impl Finish {
    /// The word for it in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Length => "length",
            Self::End => "end",
            Self::Stop => "stop",
            Self::Context => "context",
            Self::Closed => "closed",
        }
    }
}

impl Timing {
    /// Tokens of the prompt a second.
    pub fn prefill_rate(&self) -> Option<f64> {
        rate(self.n_prompt, self.prefill)
    }

    /// Tokens of the answer a second.
    pub fn decode_rate(&self) -> Option<f64> {
        rate(self.n_decoded, self.decode)
    }
}

fn rate(n: usize, time: Duration) -> Option<f64> {
    (n > 0 && !time.is_zero()).then(|| n as f64 / time.as_secs_f64())
}

impl<'a> Generator<'a> {
    /// A generator at the start of a text.
    ///
    /// # Errors
    /// [`Error::Setting`] for a setting that makes no sense, or that needs more logits than the session gives.
    pub fn new(
        session: Session,
        tokenizer: Option<&'a Tokenizer>,
        settings: Settings,
    ) -> Result<Self, Error> {
        let sampler = Sampler::new(settings.sampling.clone(), session.n_vocab())?;
        Stop::new(settings.stops.clone())?;
        if let Some(found) = session.best().map(<[u32]>::len) {
            let needed = settings.sampling.n_best().unwrap_or(usize::MAX).min(session.n_vocab());
            if needed > found {
                let expected = format!("a session that gives {needed} logits");
                return Err(Error::Setting { setting: "sampling", expected, found: found.to_string() });
            }
        }
        Ok(Self { session, tokenizer, sampler, settings, taken: Vec::new() })
    }

    /// The session, as the last answer left it.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// The session, and the tokens that it has taken.
    pub fn into_session(self) -> (Session, Vec<u32>) {
        (self.session, self.taken)
    }

    /// Answers a prompt, which is the whole text up to here. Hands on the text in pieces, until nobody wants more.
    ///
    /// # Errors
    /// Where the prompt has no tokens, none of the model's or too many; then nothing was handed on.
    pub fn answer(
        &mut self,
        prompt: &[u32],
        each: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Answer, Error> {
        let start = Instant::now();
        let n_prompt = self.feed_prompt(prompt)?;
        let prefill = start.elapsed();
        let mut answer = Answer {
            tokens: Vec::new(),
            text: String::new(),
            finish: Finish::Length,
            timing: Timing { n_prompt, prefill, ..Timing::default() },
        };
        let mut voice = Voice {
            stream: self.tokenizer.map(|tokenizer| tokenizer.stream_after(prompt.last().copied(), true)),
            stop: Stop::new(self.settings.stops.clone())?,
            each,
        };
        answer.finish = self.go_on(&mut answer, &mut voice, start)?;
        if let Some(first) = answer.timing.first_token {
            answer.timing.decode = start.elapsed().saturating_sub(first);
        }
        voice.finish(&mut answer);
        Ok(answer)
    }

    /// Feeds what the session has not taken yet of a text, at least its last token.
    fn feed_prompt(&mut self, prompt: &[u32]) -> Result<usize, Error> {
        let pairs = self.taken.iter().zip(prompt);
        let n_same = pairs.take_while(|(a, b)| a == b).count().min(prompt.len().saturating_sub(1));
        self.session.truncate(n_same);
        self.taken.truncate(n_same);
        self.session.feed(&prompt[n_same..])?;
        self.taken.extend(&prompt[n_same..]);
        Ok(prompt.len() - n_same)
    }

    /// The token that follows, by all logits or the best, as the session has them.
    fn next(&mut self) -> Result<u32, Error> {
        match self.session.best() {
            Some(ids) => self.sampler.next_of(ids, self.session.logits()),
            None => self.sampler.next(self.session.logits(), &self.taken),
        }
    }

    fn go_on(&mut self, answer: &mut Answer, voice: &mut Voice<'_>, start: Instant) -> Result<Finish, Error> {
        while answer.tokens.len() < self.settings.most_tokens {
            let token = self.next()?;
            answer.timing.first_token.get_or_insert_with(|| start.elapsed());
            let is_end = self.tokenizer.is_some_and(|tokenizer| tokenizer.is_end(token));
            if is_end && !self.settings.ignores_ends {
                return Ok(Finish::End);
            }
            answer.tokens.push(token);
            if let ControlFlow::Break(finish) = voice.say(token, &mut answer.text) {
                return Ok(finish);
            }
            if answer.tokens.len() == self.settings.most_tokens {
                break;
            }
            if self.session.position() == self.session.context() {
                return Ok(Finish::Context);
            }
            self.session.feed(&[token])?;
            self.taken.push(token);
            answer.timing.n_decoded += 1;
        }
        Ok(Finish::Length)
    }
}

/// Where tokens become text that is handed on.
struct Voice<'a> {
    stream: Option<Stream<'a>>,
    stop: Stop,
    each: &'a mut dyn FnMut(&str) -> ControlFlow<()>,
}

impl Voice<'_> {
    /// Hands on what is certain with this token.
    fn say(&mut self, token: u32, text: &mut String) -> ControlFlow<Finish> {
        let piece = self.stream.as_mut().map_or_else(|| format!("{token} "), |stream| stream.push(token));
        let piece = self.stop.push(&piece);
        self.hand_on(&piece, text)?;
        if self.stop.has_stopped() { ControlFlow::Break(Finish::Stop) } else { ControlFlow::Continue(()) }
    }

    /// Hands on what was held back.
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
        let _ = self.hand_on(&rest, &mut answer.text);
    }

    fn hand_on(&mut self, piece: &str, text: &mut String) -> ControlFlow<Finish> {
        text.push_str(piece);
        if piece.is_empty() {
            return ControlFlow::Continue(());
        }
        (self.each)(piece).map_break(|()| Finish::Closed)
    }
}
