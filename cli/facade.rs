//! Models from Rust: open one, chat with it, complete a text, embed a text.
//!
//! In: a path, `owner/name` on the hub or the name of a stored model, and a [`Run`]. Out: answers and vectors.
//! Device, threads, context and memory are chosen as the command chooses them, by the same code; the handles own what
//! they use, and a fault is one sentence. Who wants a step of many sequences, or a graph of his own, takes the crates
//! below: [`Model::session`] and [`Model::checkpoint`] lead there.

use std::fmt;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fusebox_models::generate::{Answer, Generator, Settings};
use fusebox_models::layers::embed::Scored;
use fusebox_models::sample::Settings as Sampling;
use fusebox_models::sample::recommended::Recommended;
use fusebox_models::tokenizer::Tokenizer;
use fusebox_runtime::session::Session;
use fusebox_runtime::weights::Checkpoint;

use crate::chat::Conversation;
use crate::context::ContextLimit;
use crate::model::{DeviceFlags, OpenModel, n_threads};
use crate::progress::Progress;
use crate::prompt::open_tokenizer;
use crate::run::open_chat;
use crate::sampling::SamplingFlags;

/// What went wrong, in one sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error(String);

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Error {}

impl From<String> for Error {
    fn from(sentence: String) -> Self {
        Self(sentence)
    }
}

/// How a model is run. What is left out is chosen, as the command chooses it.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Run {
    /// `cpu`, `cuda`, `vulkan` or `metal`.
    pub device: Option<String>,
    /// Threads; all hardware threads.
    pub threads: Option<usize>,
    /// Context length in tokens; the model's, at most 4096, and no more than memory allows.
    pub context: Option<usize>,
    /// Computes in single precision throughout.
    pub precise: bool,
    /// The folder of compiled programs; one in the user's cache folder.
    pub cache: Option<PathBuf>,
    /// Settings of samplers; in a chat those that the model's files recommend, else greedy.
    pub sampling: Option<Sampling>,
    /// The most tokens of an answer or a text; no limit but the context.
    pub max_tokens: Option<usize>,
}

impl Run {
    /// Everything is chosen.
    pub fn auto() -> Self {
        Self::default()
    }

    fn settings(&self, sampling: Sampling) -> Settings {
        let max_tokens = self.max_tokens.unwrap_or(usize::MAX);
        Settings { max_tokens, sampling: self.sampling.clone().unwrap_or(sampling), ..Settings::default() }
    }
}

/// How a vector is made of those of all tokens of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// Their mean.
    Mean,
    /// That of the last token.
    Last,
}

/// An opened model.
pub struct Model {
    opened: OpenModel,
    run: Run,
    n_threads: usize,
}

/// A chat: messages so far, and a session that holds them.
pub struct Chat {
    conversation: Conversation,
    generator: Generator,
    limit: ContextLimit,
}

/// Continues prompts.
pub struct Writer {
    tokenizer: Arc<Tokenizer>,
    generator: Generator,
    limit: ContextLimit,
}

/// Makes vectors of strings.
pub struct Embedder {
    tokenizer: Arc<Tokenizer>,
    session: Session,
    limit: ContextLimit,
    pooling: Pooling,
}

impl Model {
    /// Opens a model: a path, `owner/name`, or the name of a stored model.
    ///
    /// # Errors
    /// Where there is none, it cannot be read, its architecture is not known, or the device cannot run it.
    pub fn open(name: impl AsRef<Path>, run: Run) -> Result<Self, Error> {
        Self::open_named(Some(name.as_ref()), run)
    }

    /// Opens the small model that is part of this crate.
    ///
    /// # Errors
    /// Where it cannot be written to the folder of the program cache, from where it is mapped.
    pub fn built_in(run: Run) -> Result<Self, Error> {
        Self::open_named(None, run)
    }

    fn open_named(name: Option<&Path>, run: Run) -> Result<Self, Error> {
        let n_threads = n_threads(run.threads)?;
        let mut flags = DeviceFlags::default();
        flags.set(run.device.as_deref(), run.precise);
        let mut opened = flags.open(name, &mut Progress::hidden(), true)?;
        if let Some(folder) = &run.cache {
            opened.keep_programs_in(folder);
        }
        Ok(Self { opened, run, n_threads })
    }

    /// Its files: metadata and raw tensors.
    pub fn checkpoint(&self) -> &Checkpoint {
        self.opened.model.checkpoint()
    }

    /// A session of one sequence: tokens in, and what `scored` asks for out.
    ///
    /// # Errors
    /// Where the context is longer than the model's, a program does not compile, or the device refuses it.
    pub fn session(&mut self, scored: Scored) -> Result<Session, Error> {
        let context = self.opened.context(self.run.context)?;
        Ok(self.opened.session(self.n_threads, context, scored)?)
    }

    /// A chat, with a system message or without.
    ///
    /// # Errors
    /// As [`Model::session`], and where the model has no chat template or no tokenizer.
    pub fn chat(&mut self, system: Option<&str>) -> Result<Chat, Error> {
        let template = open_chat(&self.opened, true)?;
        let template = template.ok_or_else(|| Error("this model has no chat template".to_owned()))?;
        let tokenizer = self.tokenizer()?;
        let recommended = Recommended::of(self.checkpoint()).map_err(|error| error.to_string())?;
        let sampling = SamplingFlags::default().settings(&recommended, true, Some(&tokenizer));
        let (generator, limit) = self.generator(&tokenizer, sampling)?;
        let conversation = Conversation::new((template, tokenizer), system, None);
        Ok(Chat { conversation, generator, limit })
    }

    /// What continues prompts as they are.
    ///
    /// # Errors
    /// As [`Model::session`], and where the model has no tokenizer.
    pub fn writer(&mut self) -> Result<Writer, Error> {
        let tokenizer = self.tokenizer()?;
        let (generator, limit) = self.generator(&tokenizer, Sampling::default())?;
        Ok(Writer { tokenizer, generator, limit })
    }

    /// What makes vectors of strings.
    ///
    /// # Errors
    /// As [`Model::session`], and where the model has no tokenizer.
    pub fn embedder(&mut self, pooling: Pooling) -> Result<Embedder, Error> {
        let (tokenizer, session) = (self.tokenizer()?, self.session(Scored::Normed)?);
        let limit = self.opened.limit(session.context());
        Ok(Embedder { tokenizer, session, limit, pooling })
    }

    fn tokenizer(&self) -> Result<Arc<Tokenizer>, Error> {
        let tokenizer = open_tokenizer(self.checkpoint(), true)?;
        let tokenizer = tokenizer.ok_or_else(|| Error("this model has no tokenizer".to_owned()))?;
        Ok(Arc::new(tokenizer))
    }

    fn generator(
        &mut self,
        tokenizer: &Arc<Tokenizer>,
        sampling: Sampling,
    ) -> Result<(Generator, ContextLimit), Error> {
        let session = self.session(Scored::Last)?;
        let limit = self.opened.limit(session.context());
        let generator = Generator::new(session, Some(Arc::clone(tokenizer)), self.run.settings(sampling));
        Ok((generator.map_err(|error| error.to_string())?, limit))
    }
}

impl Chat {
    /// The answer to a message.
    ///
    /// # Errors
    /// As [`Chat::stream`].
    pub fn say(&mut self, message: &str) -> Result<Answer, Error> {
        self.stream(message, |_| ControlFlow::Continue(()))
    }

    /// The same, and `each` gets the text in pieces as it comes; it may stop the answer.
    ///
    /// # Errors
    /// Where the template does not take the message, or the chat does not fit into the context; then the chat is as it
    /// was.
    pub fn stream(
        &mut self,
        message: &str,
        mut each: impl FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Answer, Error> {
        let n_before = self.conversation.n_messages();
        let answer = self.conversation.prompt_with(message, self.limit).and_then(|(tokens, _)| {
            self.generator.answer(&tokens, &mut each).map_err(|error| error.to_string())
        });
        let answer = answer.inspect_err(|_| self.conversation.truncate(n_before))?;
        self.conversation.push_answer(&answer.text);
        Ok(answer)
    }
}

impl Writer {
    /// What follows a text; `each` gets it in pieces as it comes, and may stop it.
    ///
    /// # Errors
    /// Where the text is empty or does not fit into the context.
    pub fn go_on(
        &mut self,
        text: &str,
        mut each: impl FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Answer, Error> {
        let tokens = self.limit.encode("the text has", &self.tokenizer, text, true)?;
        Ok(self.generator.answer(&tokens, &mut each).map_err(|error| error.to_string())?)
    }
}

impl Embedder {
    /// The vector of a text, of length 1.
    ///
    /// # Errors
    /// Where the text is empty or does not fit into the context.
    pub fn embed(&mut self, text: &str) -> Result<Vec<f32>, Error> {
        let tokens = self.limit.encode("the text has", &self.tokenizer, text, true)?;
        let mut sums = vec![0.0; self.session.width()];
        let pooling = self.pooling;
        let mut each = |row: &[f32]| {
            for (sum, x) in sums.iter_mut().zip(row) {
                let before = if pooling == Pooling::Mean { *sum } else { 0.0 };
                *sum = before + f64::from(*x);
            }
        };
        self.session.truncate(0).map_err(|error| error.to_string())?;
        self.session.score(&tokens, &mut each).map_err(|error| error.to_string())?;
        // A mean has the direction of the sum.
        let length = sums.iter().map(|x| x * x).sum::<f64>().sqrt();
        if !length.is_finite() || length == 0.0 {
            return Err(Error("the vectors of the text have no direction".to_owned()));
        }
        Ok(sums.into_iter().map(|x| (x / length) as f32).collect())
    }
}
