//! Loading: from a file to a model that can run.
//!
//! In: the path of a checkpoint. Out: a [`Model`]: its hyper-parameters, its graphs, and its tensors by their names in
//! graphs.
//! Before anything is compiled, every weight of the graph is found in the file with the shape it needs: `binding/` does
//! that.

use std::collections::BTreeMap;
use std::iter;
use std::path::Path;
use std::sync::Arc;

use fusebox_compiler::graph::Graph;
use fusebox_compiler::graph::op::Op;
use fusebox_compiler::options::Options;
use fusebox_compiler::tensor::quant::Format;
use fusebox_compiler::tensor::sym::Sym;
use fusebox_runtime::device::{Device, Weights};
use fusebox_runtime::error::{Error, Place, quoted};
use fusebox_runtime::session::Session;
use fusebox_runtime::session::cache::Cache;
use fusebox_runtime::session::classes::{Class, Programs};
use fusebox_runtime::session::engine::{Engine, Limits, WindowPages};
use fusebox_runtime::session::names::{PAGE, WINDOW_PAGES};
use fusebox_runtime::weights::{Checkpoint, Kind};

use crate::adapters::adapted::{Base, targets};
use crate::adapters::{Adapters, Added};
use crate::binding::{Bound, bind};
use crate::config::{Choices, Config, Formats, KvCache};
use crate::families::{gguf_architecture, hparams, read, unsupported};
use crate::hparams::Hparams;
use crate::layers::embed::{Entry, Scored};
use crate::layers::step::Step;
use crate::naming::files;
use crate::naming::hparams::CAUSAL;
use crate::own::{Body, Decoder, registered};
use crate::sidecar;

/// A model in a file.
#[derive(Clone, Debug)]
pub struct Model {
    /// Its hyper-parameters.
    pub config: Config,
    body: Body,
    entry: Entry,
    scored: Scored,
    weights: Arc<Bound>,
    added: Arc<Added>,
}

/// The weights of a model, and those that adapters add.
struct Both {
    own: Arc<Bound>,
    added: Arc<Added>,
}

impl Weights for Both {
    fn bytes(&self, name: &str) -> Option<&[u8]> {
        self.own.bytes(name).or_else(|| self.added.bytes(name))
    }
}

/// What a model is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    /// To generate text: it needs a head.
    Generate,
    /// For its logits or hidden states.
    Hidden,
    /// For vectors or scores of texts.
    Embed,
    /// To generate text if it can, else for vectors or scores of texts.
    Either,
}

/// Settings of a session or an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Context length in tokens: the most of a sequence.
    pub context: usize,
    /// Maximum number of tokens per prefill step.
    pub chunk: usize,
    /// The most tokens of a decode step: one of each sequence, and those that are guessed.
    pub batch: usize,
    /// The KV cache.
    pub cache: KvCache,
    /// What a step returns.
    pub scored: Scored,
    /// Whether a step may score every one of its tokens, to verify a draft or to rate a text.
    pub scores_every: bool,
    /// Whether sequences drop tokens that are not the last.
    pub evicts: bool,
    /// How many of the last tokens of a sequence say which rows of the KV cache it keeps; 0 where none are chosen.
    pub observed: usize,
}

impl Settings {
    /// For one sequence, with a KV cache that holds all of its context.
    pub fn of_one(context: usize, chunk: usize, cache: Format, scored: Scored) -> Self {
        Self::of_batch(1, context, chunk, cache, scored)
    }

    /// The same, with pages of another size.
    #[must_use]
    pub fn with_pages_of(mut self, page_rows: usize) -> Self {
        self.cache.page_rows = page_rows;
        self.cache.n_pages = self.batch * self.cache.pages_of(self.context);
        self
    }

    /// For a number of sequences, with a KV cache that holds the whole context of each.
    pub fn of_batch(batch: usize, context: usize, chunk: usize, cache: Format, scored: Scored) -> Self {
        let one = KvCache::of_one(context);
        let cache = KvCache { format: cache, n_pages: batch * one.n_pages, n_sequences: batch, ..one };
        Self { context, chunk, batch, cache, scored, scores_every: false, evicts: false, observed: 0 }
    }
}

impl Model {
    /// Opens a checkpoint and checks that it holds a whole model.
    ///
    /// # Errors
    /// One sentence with the file and the key or tensor.
    pub fn open(path: &Path) -> Result<Self, Error> {
        Self::with_ends(path, Entry::Tokens, Purpose::Generate)
    }

    /// Opens a checkpoint that may lack the embedding matrix, the output head or both. Its sessions take embeddings,
    /// and without a head they return hidden states.
    ///
    /// # Errors
    /// As [`Model::open`].
    pub fn backbone(path: &Path) -> Result<Self, Error> {
        Self::with_ends(path, Entry::Vectors, Purpose::Hidden)
    }

    fn with_ends(path: &Path, entry: Entry, purpose: Purpose) -> Result<Self, Error> {
        let checkpoint = Checkpoint::open(path)?;
        let architecture =
            Hparams::architecture_of(&checkpoint).ok_or_else(|| nameless(path, &checkpoint))?;
        if let Some(read) = registered(architecture) {
            let decoder = read(&checkpoint);
            let decoder = decoder.map_err(|what| Error::input(path, Place::Whole, what))?;
            return Self::bound(path, checkpoint, decoder, (entry, Scored::Last));
        }
        let hparams = hparams(&checkpoint);
        let config = read(architecture, hparams)?.ok_or_else(|| Error::Unsupported {
            path: path.to_owned(),
            place: Place::Whole,
            what: format!("the architecture {} {}", quoted(architecture), unsupported(architecture)),
        })?;
        let embeds_only = !config.is_causal() || config.ends.ranking.is_some();
        let purpose = match purpose {
            Purpose::Either if embeds_only => Purpose::Embed,
            Purpose::Either => Purpose::Generate,
            stated => stated,
        };
        if purpose == Purpose::Generate && !config.is_causal() {
            let what = "it embeds texts and writes none, as `fusebox embed` does";
            if hparams.flag(CAUSAL)? == Some(false) {
                return Err(hparams.refused(CAUSAL, format!("expected true, found false: {what}")));
            }
            return Err(Error::Unsupported {
                path: path.to_owned(),
                place: Place::Whole,
                what: what.to_owned(),
            });
        }
        let has_head = purpose == Purpose::Generate
            || purpose == Purpose::Hidden && hparams.has(if config.tied { "token_embd" } else { "output" });
        if entry == Entry::Vectors && config.per_layer.is_some() {
            let what = "expected token ids for its per-layer embeddings: it cannot start from vectors";
            return Err(Error::input(path, Place::Whole, what));
        }
        let scored = match purpose {
            _ if has_head => Scored::Last,
            Purpose::Embed if config.ends.ranking.is_some() => Scored::Ranked,
            Purpose::Embed => Scored::Embedded,
            Purpose::Generate | Purpose::Hidden | Purpose::Either => Scored::Normed,
        };
        Self::bound(path, checkpoint, config.into(), (entry, scored))
    }

    /// Opens a checkpoint to embed or to rank texts: its sessions return what [`Scored::Embedded`] or
    /// [`Scored::Ranked`] says. It needs no output head.
    ///
    /// # Errors
    /// As [`Model::open`].
    pub fn embedder(path: &Path) -> Result<Self, Error> {
        Self::with_ends(path, Entry::Tokens, Purpose::Embed)
    }

    /// Opens a checkpoint as [`Model::open`] where it can generate text, and as [`Model::embedder`] where it is an
    /// encoder or a ranker.
    ///
    /// # Errors
    /// As [`Model::open`].
    pub fn either(path: &Path) -> Result<Self, Error> {
        Self::with_ends(path, Entry::Tokens, Purpose::Either)
    }

    /// Whether it was opened with its output head: it generates text.
    pub fn generates(&self) -> bool {
        self.scored == Scored::Last
    }

    /// A decoder of your own with the weights of a checkpoint: a config made in code instead of read by a family, or a
    /// [`Decoder`] whose blocks are a function. Weights have the names of GGUF, or in a folder those of the family that
    /// it names.
    ///
    /// # Errors
    /// Where the blocks do not fit together, or a weight of theirs is not in the file.
    pub fn define(path: &Path, decoder: impl Into<Decoder>) -> Result<Self, Error> {
        Self::bound(path, Checkpoint::open(path)?, decoder.into(), (Entry::Tokens, Scored::Last))
    }

    fn bound(
        path: &Path,
        checkpoint: Checkpoint,
        Decoder { mut config, body }: Decoder,
        (entry, scored): (Entry, Scored),
    ) -> Result<Self, Error> {
        // F32 marks small tensors that are never quantised; matrices get another placeholder until the file's format is
        // known.
        config.formats = Formats::Uniform(Format::BF16);
        let graph = body.graph(&config, &Sym::from(1), entry, scored)?;
        let (bound, formats) = bind(path, checkpoint, &graph)?;
        config.formats = Formats::Each(formats);
        Ok(Self { config, body, entry, scored, weights: Arc::new(bound), added: Arc::default() })
    }

    /// The same model with adapters, in place of those that it had.
    ///
    /// # Errors
    /// Where a file is no adapter, or one of another model.
    pub fn with_adapters(mut self, adapters: &Adapters) -> Result<Self, Error> {
        let (mut config, one) = (self.config, Sym::from(1));
        config.ranks.clear();
        config.choices = Choices::default();
        config.steered.clear();
        let graph = self.body.graph(&config, &one, self.entry, self.scored)?;
        let targets = targets(&graph, &config);
        let checkpoint = &self.weights.checkpoint;
        let added = adapters.read(&Base {
            config: &config,
            checkpoint,
            targets,
            layout: checkpoint.kind(),
            has_own_names: false,
        })?;
        if let Formats::Each(formats) = &mut config.formats {
            formats.extend(added.formats());
        }
        (config.ranks, config.steered) = (added.ranks.clone(), added.steered.clone());
        config.choices = added.choices.clone();
        added.check(&self.body.graph(&config, &one, self.entry, self.scored)?)?;
        self.config = config;
        self.added = Arc::new(added);
        Ok(self)
    }

    /// The checkpoint: metadata and raw tensors.
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.weights.checkpoint
    }

    /// All weights of its graphs.
    pub(crate) fn weights(&self) -> Arc<dyn Weights> {
        let own = Arc::clone(&self.weights);
        if self.added.is_empty() {
            return own;
        }
        Arc::new(Both { own, added: Arc::clone(&self.added) })
    }

    /// The factors of a sequence on each rank of the adapters that it chooses from, given one for each adapter: 0 for
    /// those that it does not have, and for those that are not given.
    pub fn scales(&self, factors: &[f32]) -> Arc<[f32]> {
        let all = factors.iter().copied().chain(iter::repeat(0.0));
        self.added
            .choice_ranks
            .iter()
            .zip(all)
            .flat_map(|(rank, factor)| iter::repeat_n(factor, *rank))
            .collect()
    }

    /// The graph of a run that returns what the inputs of projections are.
    ///
    /// # Errors
    /// All errors of the graph.
    pub(crate) fn observing(&self, settings: &Settings, tokens: &Sym) -> Result<Graph, Error> {
        Ok(self.body.observing(&self.config_for(settings)?, tokens, self.entry)?)
    }

    /// The graph of a session for one class of token counts.
    ///
    /// # Errors
    /// All errors of the graph.
    pub fn graph(&self, settings: &Settings, class: Class) -> Result<Graph, Error> {
        let config = self.config_for(settings)?;
        Ok(self.body.graph(&config, Step::of(class), self.entry, settings.scored)?)
    }

    /// What a KV cache takes by the number of its pages.
    ///
    /// # Errors
    /// As [`Model::graph`].
    pub fn cache_bytes(&self, settings: &Settings) -> Result<impl Fn(usize) -> usize, Error> {
        let graph = self.graph(settings, Class::runs(1)[0])?;
        let states = graph.nodes.values().filter_map(|node| match &node.op {
            Op::State { name, shape, format } => {
                let (axis, size) = shape.iter().next()?;
                let bytes = format.bytes_for(shape.max_len())? / size.most().max(1) as usize;
                Some((name, (axis.to_string(), bytes)))
            }
            _ => None,
        });
        let states: BTreeMap<_, _> = states.collect();
        // States that are not paged have a place for each sequence.
        let of = |wanted: &str| -> usize {
            states.values().filter(|(axis, _)| axis == wanted).map(|(_, bytes)| bytes).sum()
        };
        let (page, window_page) = (of(PAGE), of(WINDOW_PAGES));
        Ok(move |n_pages| {
            let cache = KvCache { n_pages, ..settings.cache };
            let windows = self.window_pages(settings, &cache);
            n_pages * page + windows.map_or(0, |windows| windows.n_pages) * window_page
        })
    }

    /// The pages of blocks with a window. Where sequences drop tokens others come into the window: then all are kept.
    fn window_pages(&self, settings: &Settings, cache: &KvCache) -> Option<WindowPages> {
        if settings.evicts { None } else { self.config.window_pages(cache, settings.chunk) }
    }

    /// The config of a session's graphs.
    fn config_for(&self, settings: &Settings) -> Result<Config, Error> {
        let Settings { context, cache, scored, .. } = *settings;
        let path = sidecar::weights_path(self.checkpoint());
        let block = cache.format.block_len();
        if let Some(row) = self.config.cached_rows().into_iter().find(|row| row % block != 0) {
            let what = format!(
                "a KV cache of {} needs rows of a multiple of {block} elements, this model's have {row}; \
                 f16 and f32 take any",
                cache.format
            );
            return Err(Error::input(path, Place::Whole, what));
        }
        if !self.generates() && matches!(scored, Scored::Last | Scored::TopK(_)) {
            let what = "expected an output head for logits, found none: this model returns hidden states";
            return Err(Error::input(path, Place::Whole, what));
        }
        let windows = self.window_pages(settings, &cache);
        Ok(Config { context, cache, windows, ..self.config.clone().for_context(context) })
    }

    /// A session of one sequence, with an empty context.
    ///
    /// # Errors
    /// Where the context is longer than the model's, a graph does not compile, or the device refuses its program.
    pub fn session(
        &self,
        device: Box<dyn Device>,
        settings: &Settings,
        options: &Options,
        cache: &Cache,
    ) -> Result<Session, Error> {
        self.start(device, self.programs(settings, options, cache)?, settings)
    }

    /// An engine without sequences.
    ///
    /// # Errors
    /// As [`Model::session`].
    pub fn engine(
        &self,
        device: Box<dyn Device>,
        settings: &Settings,
        options: &Options,
        cache: &Cache,
    ) -> Result<Engine, Error> {
        let programs = self.programs(settings, options, cache)?;
        self.start_engine(device, programs, settings)
    }

    /// The programs of a session, which are compiled when they are first wanted.
    ///
    /// # Errors
    /// Where the settings do not fit the model.
    pub fn programs(&self, settings: &Settings, options: &Options, cache: &Cache) -> Result<Programs, Error> {
        let (config, entry, scored) = (self.config_for(settings)?, self.entry, settings.scored);
        let (body, options, cache) = (self.body.clone(), options.clone(), cache.clone());
        let compile = move |class: Class| {
            let graph = body.graph(&config, Step::of(class), entry, scored)?;
            cache.program(&graph, &options)
        };
        if settings.observed > 0 {
            self.check_choosable()?;
        }
        // Hidden vectors are of every token anyway.
        let has_logits = matches!(scored, Scored::Last | Scored::TopK(_));
        let most_scored = if settings.scores_every && has_logits { settings.chunk } else { 0 };
        let programs = Programs::new(settings.chunk, most_scored, settings.batch, Box::new(compile));
        Ok(programs.with_attention(settings.observed))
    }

    /// Refuses a model whose heads cannot keep rows of their own.
    fn check_choosable(&self) -> Result<(), Error> {
        let fault = if self.body.is_function() {
            Some("its blocks are a function".to_owned())
        } else {
            self.config.fixes_rows()
        };
        let what = |fault| format!("rows of its KV cache cannot be chosen by attention: {fault}");
        let path = sidecar::weights_path(self.checkpoint());
        fault.map_or(Ok(()), |fault| Err(Error::input(path, Place::Whole, what(fault))))
    }

    /// A session with programs of these settings.
    ///
    /// # Errors
    /// Where one does not compile, or the device refuses it.
    pub fn start(
        &self,
        device: Box<dyn Device>,
        programs: Programs,
        settings: &Settings,
    ) -> Result<Session, Error> {
        Ok(Session::of(self.start_engine(device, programs, settings)?))
    }

    /// An engine with programs of these settings.
    ///
    /// # Errors
    /// As [`Model::start`].
    pub fn start_engine(
        &self,
        device: Box<dyn Device>,
        programs: Programs,
        settings: &Settings,
    ) -> Result<Engine, Error> {
        let weights = self.weights();
        let KvCache { page_rows, n_pages, n_sequences, .. } = settings.cache;
        let (context, n_vocab, n_kinds) = (settings.context, self.config.vocab, self.config.added.n_kinds);
        let windows = self.window_pages(settings, &settings.cache);
        let limits = Limits { context, n_vocab, n_kinds, page_rows, n_pages, n_sequences, windows };
        Engine::new(device, programs, &weights, limits)
    }
}

/// Refuses an architecture that no family reads, by its name in GGUF or in `config.json`.
///
/// # Errors
/// Says which there are.
pub fn check_architecture(architecture: &str) -> Result<(), String> {
    // A multimodal model has its language model below, by a name of its own.
    let text = format!("{architecture}_text");
    let is_known = |name: &str| gguf_architecture(name).is_some() || registered(name).is_some();
    if is_known(architecture) || is_known(&text) {
        return Ok(());
    }
    Err(format!("the architecture {} {}", quoted(architecture), unsupported(architecture)))
}

/// The error of a checkpoint that does not name its architecture.
fn nameless(path: &Path, checkpoint: &Checkpoint) -> Error {
    let config = sidecar::in_folder(checkpoint, files::MODEL);
    let (file, key) = match checkpoint.kind() {
        Kind::Gguf { .. } | Kind::Ajc1 | Kind::Qorus => (path, "general.architecture"),
        Kind::Safetensors if !path.is_dir() => {
            let what = "safetensors alone can only be inspected, expected their folder with its config.json";
            return Error::input(path, Place::Whole, what);
        }
        Kind::Safetensors if !config.is_file() => {
            let what = "expected the config.json of the weights next to it, found no file";
            return Error::input(&config, Place::Whole, what);
        }
        Kind::Safetensors => (config.as_path(), "model_type"),
    };
    let found = checkpoint.metadata().get(key).map_or("none".to_owned(), ToString::to_string);
    let what = format!("expected the name of an architecture, found {found}");
    Error::input(file, Place::Key(key.to_owned()), what)
}
