//! Models from Rust: open one, chat with it, complete a text, embed or rank texts, decode many sequences.
//!
//! In: a path, `owner/name` on the hub or the name of a stored model, and a [`Run`]. Out: handles that own what they
//! use. Device, threads, context and memory are chosen in `open.rs`, for programs as for the command; a fault is one
//! sentence.

use std::path::Path;
use std::sync::Arc;

use fusebox_models::adapters::Adapters;
use fusebox_models::config::Config;
use fusebox_models::embed::pooling::Pooling;
use fusebox_models::embed::relevance::Relevance;
use fusebox_models::embed::{Embedder as Embeds, pooling_of, scored};
use fusebox_models::generate::Generator;
use fusebox_models::layers::embed::Scored;
use fusebox_models::own::Decoder;
use fusebox_models::sample::Settings as Sampling;
use fusebox_models::sample::recommended::Recommended;
use fusebox_models::tokenizer::Tokenizer;
use fusebox_runtime::session::Session;
use fusebox_runtime::weights::Checkpoint;

use crate::chat::{Chat, Conversation};
use crate::drafts;
use crate::engine::Engine;
use crate::error::Error;
use crate::hub;
use crate::open::context::ContextLimit;
use crate::open::run::Run;
use crate::open::{Opened, Purpose, model_path, n_threads};
use crate::sampling::of_chat;
use crate::watch::{Watch, unwatched};
use crate::writer::{Embedder, Ranker, Writer};

/// An opened model.
pub struct Model {
    opened: Opened,
    run: Run,
    n_threads: usize,
}

impl Model {
    /// Opens a model: a path, `owner/name`, or the name of a stored model. An encoder is opened for vectors.
    ///
    /// # Errors
    /// Where there is none, it cannot be read, its architecture is not known, or the device cannot run it.
    pub fn open(name: impl AsRef<Path>, run: Run) -> Result<Self, Error> {
        Self::open_watched(name, run, unwatched())
    }

    /// The same, and `watch` hears what happens while the model is started.
    ///
    /// # Errors
    /// As [`Model::open`].
    pub fn open_watched(name: impl AsRef<Path>, run: Run, watch: Watch) -> Result<Self, Error> {
        Self::load(Some(name.as_ref()), Purpose::Either, run, watch)
    }

    /// Opens the small model that is part of this crate.
    ///
    /// # Errors
    /// Where it cannot be written to the folder of the program cache, from where it is mapped.
    pub fn built_in(run: Run) -> Result<Self, Error> {
        Self::load(None, Purpose::Text, run, unwatched())
    }

    /// Opens a decoder of your own with the weights of a model: a [`Config`], or a [`Decoder`]
    /// whose blocks are a function. Weights have the names of GGUF.
    ///
    /// # Errors
    /// As [`Model::open`], and where a weight of the blocks is not in the file.
    pub fn define(name: impl AsRef<Path>, decoder: impl Into<Decoder>, run: Run) -> Result<Self, Error> {
        Self::load(Some(name.as_ref()), Purpose::Defined(&decoder.into()), run, unwatched())
    }

    fn load(name: Option<&Path>, purpose: Purpose<'_>, run: Run, watch: Watch) -> Result<Self, Error> {
        n_threads(run.threads)?;
        let ready = run.ready()?;
        let opened = ready.open(&model_path(name, hub::path_of)?, purpose, watch)?;
        Self::new(opened, run)
    }

    /// A model that was opened by hand.
    ///
    /// # Errors
    /// Where the number of threads cannot be.
    pub fn new(opened: Opened, run: Run) -> Result<Self, Error> {
        let n_threads = n_threads(run.threads)?;
        Ok(Self { opened, run, n_threads })
    }

    /// Its files: metadata and raw tensors.
    pub fn checkpoint(&self) -> &Checkpoint {
        self.opened.model.checkpoint()
    }

    /// Its hyper-parameters.
    pub fn config(&self) -> &Config {
        &self.opened.model.config
    }

    /// Whether it generates text; an encoder does not.
    pub fn generates(&self) -> bool {
        self.opened.model.generates()
    }

    /// How hidden states become the vector of a text: as it is stated here, or as the model says; none where nothing
    /// does.
    ///
    /// # Errors
    /// Where the file of a folder is not read.
    pub fn pooling(&self, stated: Option<Pooling>) -> Result<Option<Pooling>, Error> {
        Ok(pooling_of(&self.opened.model, stated)?)
    }

    /// Its tokenizer.
    ///
    /// # Errors
    /// Where it has none, or none that is known.
    pub fn tokenizer(&self) -> Result<Arc<Tokenizer>, Error> {
        Ok(Arc::new(Tokenizer::open(self.checkpoint())?))
    }

    /// A session of one sequence: tokens in, and what `scored` asks for out.
    ///
    /// # Errors
    /// Where the context is longer than the model's, a program does not compile, or the device refuses it.
    pub fn session(&mut self, scored: Scored) -> Result<Session, Error> {
        let context = self.opened.context(self.run.context)?;
        Ok(self.opened.session(self.n_threads, context, scored)?)
    }

    /// An engine for a number of sequences that are decoded together, with a KV cache that holds the whole context of
    /// each.
    ///
    /// # Errors
    /// As [`Model::session`].
    pub fn engine(&mut self, n_sequences: usize) -> Result<Engine, Error> {
        let context = self.opened.context(self.run.context)?;
        self.opened.scores_every = true;
        let runtime = self.opened.engine(self.n_threads, context, Scored::Last, n_sequences.max(1))?;
        Ok(Engine::new(runtime, self.tokenizer().ok()))
    }

    /// The same, for sequences up to `n_guessed` tokens of which are guessed and verified in one step: its programs are
    /// there when it is made, so that no step waits for one.
    ///
    /// # Errors
    /// As [`Model::engine`], and where a state goes only forward, so that wrong guesses could not be taken back.
    pub fn guessing_engine(&mut self, n_sequences: usize, n_guessed: usize) -> Result<Engine, Error> {
        self.opened.n_guessed = n_guessed;
        let mut engine = self.engine(n_sequences)?;
        if n_guessed > 0 {
            engine.prepare_guesses(n_guessed)?;
        }
        Ok(engine)
    }

    /// The factors of a sequence on each rank of the adapters that it chooses from ([`Adapters::choices`]), given one
    /// for each adapter; a [`Kin`](crate::Kin) takes them.
    pub fn scales(&self, factors: &[f32]) -> Arc<[f32]> {
        self.opened.model.scales(factors)
    }

    /// A chat, with a system message or without.
    ///
    /// # Errors
    /// As [`Model::session`], and where the model has no chat template or no tokenizer.
    pub fn chat(&mut self, system: Option<&str>) -> Result<Chat, Error> {
        let template = self.opened.chat()?;
        let template = template.ok_or_else(|| Error::from("this model has no chat template"))?;
        let tokenizer = self.tokenizer()?;
        let sampling = of_chat(&Recommended::of(self.checkpoint())?);
        let (generator, limit) = self.generator(&tokenizer, sampling)?;
        let mut conversation = Conversation::new((template, tokenizer), system, None);
        conversation.context_shift = self.run.context_shift;
        Ok(Chat::new(conversation, generator, limit))
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

    /// What makes vectors of strings, pooled as the model says or as it is stated here.
    ///
    /// # Errors
    /// As [`Model::session`], and where the model has no tokenizer, or nothing says how it pools.
    pub fn embedder(&mut self, pooling: impl Into<Option<Pooling>>) -> Result<Embedder, Error> {
        let tokenizer = self.tokenizer()?;
        let pooling = self.pooling(pooling.into())?;
        let pooling =
            pooling.ok_or_else(|| Error::from("the model does not say how hidden states are pooled"))?;
        self.embedder_of(tokenizer, scored(pooling), pooling)
    }

    /// What scores how well documents answer a query: a model with a head for it, or a decoder that is asked.
    ///
    /// # Errors
    /// As [`Model::session`], and where the model has no tokenizer, or cannot rank.
    pub fn ranker(&mut self) -> Result<Ranker, Error> {
        let tokenizer = self.tokenizer()?;
        let relevance = self.relevance(&tokenizer).map_err(|what| self.opened.in_model(what))?;
        let embedder = self.embedder_of(tokenizer, relevance.scored(), Pooling::Rank)?;
        Ok(Ranker { relevance, embedder })
    }

    /// How the model says whether a document answers a query.
    ///
    /// # Errors
    /// Says what it lacks, as [`Relevance::of`].
    pub fn relevance(&self, tokenizer: &Tokenizer) -> Result<Relevance, String> {
        Relevance::of(&self.opened.model, tokenizer)
    }

    fn embedder_of(
        &mut self,
        tokenizer: Arc<Tokenizer>,
        scored: Scored,
        pooling: Pooling,
    ) -> Result<Embedder, Error> {
        let session = self.session(scored)?;
        let limit = self.opened.limit(session.context());
        let inner = Embeds::new(&self.opened.model, session, pooling);
        Ok(Embedder { tokenizer, inner, limit })
    }

    fn generator(
        &mut self,
        tokenizer: &Arc<Tokenizer>,
        sampling: Sampling,
    ) -> Result<(Generator, ContextLimit), Error> {
        self.opened.scores_every = self.run.draft.is_some();
        let session = self.session(Scored::Last)?;
        let limit = self.opened.limit(session.context());
        let settings = self.run.settings(sampling);
        let mut generator = Generator::new(session, Some(Arc::clone(tokenizer)), settings)?;
        if let Some(name) = &self.run.draft {
            let run = Run { draft: None, adapters: Adapters::default(), ..self.run.clone() };
            let mut open = |name: &Path| {
                let path = model_path(Some(name), hub::path_of)?;
                run.ready()?.open(&path, Purpose::Text, unwatched())
            };
            let by = (Some(&**tokenizer), self.n_threads);
            drafts::begin(&mut generator, (name, drafts::USUAL), by, &mut open)?;
        }
        Ok((generator, limit))
    }
}
