//! From a file to a model that can be run.
//!
//! In: the path of a checkpoint. Out: a [`Model`]: its sizes, its graphs, and its tensors by the names that graphs use.
//! Before anything is compiled, every tensor that the graph asks for is found in the file with the shape it needs:
//! `binding/` does that.

use std::path::Path;
use std::sync::Arc;

use fusebox_compiler::graph::Graph;
use fusebox_compiler::options::Options;
use fusebox_compiler::program::Program;
use fusebox_compiler::tensor::label::Label;
use fusebox_compiler::tensor::quant::Format;
use fusebox_compiler::tensor::sym::{Sym, Symbol};
use fusebox_runtime::device::{Device, Weights};
use fusebox_runtime::error::{Error, Place, quoted};
use fusebox_runtime::session::cache::Cache;
use fusebox_runtime::session::{Session, TOKENS};
use fusebox_runtime::weights::{Checkpoint, Kind, open};

use crate::beside;
use crate::binding::{Bound, bind};
use crate::blocks::{part, together};
use crate::config::{Config, Formats};
use crate::facts::Facts;
use crate::families::{architectures, read};
use crate::layers::embed::{Entry, Scored};
use crate::naming::files;

/// A model in a file.
#[derive(Clone, Debug)]
pub struct Model {
    /// Its sizes.
    pub config: Config,
    entry: Entry,
    has_head: bool,
    weights: Arc<Bound>,
}

/// How a model is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How many tokens the text may have.
    pub context: usize,
    /// How many tokens a replay takes at most.
    pub chunk: usize,
    /// How cached keys and values are stored.
    pub cache: Format,
    /// What a replay gives.
    pub scored: Scored,
}

impl Model {
    /// Opens a checkpoint and makes sure that it holds a whole model.
    ///
    /// # Errors
    /// One sentence with the file and the key or tensor.
    pub fn open(path: &Path) -> Result<Self, Error> {
        Self::with_ends(path, Entry::Tokens, true)
    }

    /// Opens a checkpoint that may lack the table of tokens, the head or both. Its sessions start from vectors, and
    /// without a head they end with them.
    ///
    /// # Errors
    /// As [`Model::open`].
    pub fn backbone(path: &Path) -> Result<Self, Error> {
        Self::with_ends(path, Entry::Vectors, false)
    }

    fn with_ends(path: &Path, entry: Entry, needs_head: bool) -> Result<Self, Error> {
        let checkpoint = open(path)?;
        let architecture = checkpoint.architecture().ok_or_else(|| nameless(path, &checkpoint))?;
        let facts = Facts::of(&checkpoint);
        let mut config = read(architecture, facts)?.ok_or_else(|| Error::Unsupported {
            path: path.to_owned(),
            place: Place::Whole,
            what: format!("the architecture is {}; known are {}", quoted(architecture), architectures()),
        })?;
        let has_head = needs_head || facts.has(if config.tied { "token_embd" } else { "output" });
        let scored = if has_head { Scored::Last } else { Scored::Normed };
        // Single precision marks the tensors that are kept in it, so matrices are given another format until they are
        // found.
        config.formats = Formats::Uniform(Format::BF16);
        let graph = part(&config, &Sym::from(1), config.n_layers, entry, scored)?;
        let (bound, formats) = bind(path, checkpoint, &graph)?;
        config.formats = Formats::Each(formats);
        Ok(Self { config, entry, has_head, weights: Arc::new(bound) })
    }

    /// What the file says besides.
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.weights.checkpoint
    }

    /// The graphs of a session: one token, and up to a chunk of them.
    ///
    /// # Errors
    /// Everything that does not fit together.
    pub fn graphs(&self, settings: &Settings) -> Result<[Graph; 2], Error> {
        let config = self.config_for(settings)?;
        let name = Label::new(TOKENS).expect("one letter fits");
        let chunk = settings.chunk as i64;
        let several = Symbol::new(name, 1, chunk, (chunk / 2).max(1));
        let graph = |tokens: Sym| part(&config, &tokens, config.n_layers, self.entry, settings.scored);
        Ok([graph(Sym::from(1))?, graph(several.into())?])
    }

    /// The sizes of a session's graphs.
    fn config_for(&self, settings: &Settings) -> Result<Config, Error> {
        let Settings { context, chunk, cache, scored } = *settings;
        let path = beside::weights(self.checkpoint());
        let (row, block) = (self.config.cached_row(), cache.block_len());
        if row % block != 0 {
            let what = format!(
                "caches of {cache} have rows of a multiple of {block} elements, this model's have {row}; f16 and f32 \
                 take any"
            );
            return Err(Error::input(path, Place::Whole, what));
        }
        if !self.has_head && matches!(scored, Scored::Last | Scored::Best(_) | Scored::All) {
            let what = "expected a head for scores, found none: this model ends with vectors";
            return Err(Error::input(path, Place::Whole, what));
        }
        // The caches have room for a whole chunk behind the last position, so that no range depends on another.
        Ok(Config { context: context + chunk, cache, ..self.config.clone() })
    }

    /// A session at the start of a text.
    ///
    /// # Errors
    /// Where the context is longer than the model's, a graph does not compile, or the device refuses it.
    pub fn session(
        &self,
        device: Box<dyn Device>,
        settings: &Settings,
        options: &Options,
        cache: &mut Cache,
    ) -> Result<Session, Error> {
        self.session_of_texts(device, settings, 1, options, cache)
    }

    /// A session at the start of several texts, which it can go on with together.
    ///
    /// # Errors
    /// As [`Model::session`], and where only the best scores of several texts are asked for.
    pub fn session_of_texts(
        &self,
        device: Box<dyn Device>,
        settings: &Settings,
        n_texts: usize,
        options: &Options,
        cache: &mut Cache,
    ) -> Result<Session, Error> {
        let programs = self.programs(settings, options, cache)?;
        let together = self.together(settings, n_texts, options, cache)?;
        self.start(device, programs, together, settings)
    }

    /// The programs of a session: one token, and up to a chunk of them.
    ///
    /// # Errors
    /// Where the context is longer than the model's, or a graph does not compile.
    pub fn programs(
        &self,
        settings: &Settings,
        options: &Options,
        cache: &mut Cache,
    ) -> Result<[Program; 2], Error> {
        let [decode, prefill] = self.graphs(settings)?;
        Ok([cache.program(&decode, options)?, cache.program(&prefill, options)?])
    }

    /// The program that takes one token of each of several texts, and how many there are; nothing for a single text.
    ///
    /// # Errors
    /// As [`Model::programs`].
    pub fn together(
        &self,
        settings: &Settings,
        n_texts: usize,
        options: &Options,
        cache: &mut Cache,
    ) -> Result<Option<(Program, usize)>, Error> {
        if n_texts <= 1 {
            return Ok(None);
        }
        let config = self.config_for(settings)?;
        let graph = together(&config, n_texts, config.n_layers, self.entry, settings.scored)?;
        Ok(Some((cache.program(&graph, options)?, n_texts)))
    }

    /// A session with programs that were made with these settings.
    ///
    /// # Errors
    /// Where the device refuses them.
    pub fn start(
        &self,
        device: Box<dyn Device>,
        programs: [Program; 2],
        together: Option<(Program, usize)>,
        settings: &Settings,
    ) -> Result<Session, Error> {
        let weights: Arc<dyn Weights> = Arc::clone(&self.weights) as _;
        Session::new(device, programs, together, &weights, settings.context, self.config.vocab)
    }
}

/// The error that a checkpoint does not say what model it holds.
fn nameless(path: &Path, checkpoint: &Checkpoint) -> Error {
    let config = beside::in_folder(checkpoint, files::MODEL);
    let (file, key) = match checkpoint.kind() {
        Kind::Gguf { .. } | Kind::Ajc1 | Kind::Qorus => (path, "general.architecture"),
        Kind::Safetensors if !path.is_dir() => {
            let what = "safetensors alone can only be inspected, expected their folder with its config.json";
            return Error::input(path, Place::Whole, what);
        }
        Kind::Safetensors if !config.is_file() => {
            let what = "expected a file that says what the weights beside it are, found none";
            return Error::input(&config, Place::Whole, what);
        }
        Kind::Safetensors => (config.as_path(), "model_type"),
    };
    let found = checkpoint.metadata().get(key).map_or("none".to_owned(), ToString::to_string);
    let what = format!("expected the name of an architecture, found {found}");
    Error::input(file, Place::Key(key.to_owned()), what)
}
