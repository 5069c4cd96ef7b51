//! From a file to a model that can be run.
//!
//! In: the path of a checkpoint. Out: a [`Model`]: its sizes, its graphs, and its tensors by the names that graphs use.
//! Before anything is compiled, every tensor that the graph asks for is found in the file with the shape it needs.
//! Which tensors those are stands nowhere: the graph is recorded once and asked.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use fusebox_compiler::graph::Graph;
use fusebox_compiler::graph::op::Op;
use fusebox_compiler::options::Options;
use fusebox_compiler::tensor::dtype::DType;
use fusebox_compiler::tensor::label::Label;
use fusebox_compiler::tensor::quant::Format;
use fusebox_compiler::tensor::shape::Shape;
use fusebox_compiler::tensor::sym::{Sym, Symbol};
use fusebox_runtime::device::{Device, Weights};
use fusebox_runtime::error::{Error, Place};
use fusebox_runtime::session::cache::Cache;
use fusebox_runtime::session::{Session, TOKENS};
use fusebox_runtime::weights::{Checkpoint, Stored, TensorInfo, open};

use crate::blocks::scored_model;
use crate::config::{Config, Formats};
use crate::facts::Facts;
use crate::families::{ARCHITECTURES, read};
use crate::layers::embed::Scored;
use crate::naming::tensor;

/// A model in a file.
#[derive(Clone, Debug)]
pub struct Model {
    /// Its sizes.
    pub config: Config,
    weights: Arc<Bound>,
}

/// The tensors of a checkpoint by the names that graphs use.
#[derive(Debug)]
struct Bound {
    checkpoint: Checkpoint,
    names: BTreeMap<String, String>,
}

/// How a model is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How many tokens the text may have.
    pub context: usize,
    /// How many tokens a replay takes at most.
    pub chunk: usize,
    /// How cached keys and values are stored.
    pub cache: DType,
    /// Which tokens are scored.
    pub scored: Scored,
}

impl Model {
    /// Opens a checkpoint and makes sure that it holds a whole model.
    ///
    /// # Errors
    /// One sentence with the file and the key or tensor.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let checkpoint = open(path)?;
        let architecture = checkpoint.architecture().unwrap_or("none");
        let known = read(architecture, &Facts::of(&checkpoint))?;
        let mut config = known.ok_or_else(|| Error::Unsupported {
            path: path.to_owned(),
            place: Place::Whole,
            what: format!("the architecture is {architecture}; known are {}", ARCHITECTURES.join(", ")),
        })?;
        let names = bind(path, &checkpoint, &mut config)?;
        Ok(Self { config, weights: Arc::new(Bound { checkpoint, names }) })
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
        let Settings { context, chunk, cache, scored } = *settings;
        // The caches have room for a whole chunk behind the last position, so that no range depends on another.
        let config = Config { context: context + chunk, cache, ..self.config.clone() };
        let name = Label::new(TOKENS).expect("one letter fits");
        let several = Symbol::new(name, 1, chunk as i64, (chunk as i64 / 2).max(1));
        let graph = |tokens: Sym| scored_model(&config, &tokens, config.n_layers, scored);
        Ok([graph(Sym::from(1))?, graph(several.into())?])
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
        let [decode, prefill] = self.graphs(settings)?;
        let programs = [cache.program(&decode, options)?, cache.program(&prefill, options)?];
        let weights: Arc<dyn Weights> = Arc::clone(&self.weights) as _;
        Session::new(device, programs, &weights, settings.context)
    }
}

impl Weights for Bound {
    fn bytes(&self, name: &str) -> Option<&[u8]> {
        self.checkpoint.bytes(self.names.get(name)?)
    }
}

/// Finds every tensor of the model's graph in the file, and notes its format.
fn bind(
    path: &Path,
    checkpoint: &Checkpoint,
    config: &mut Config,
) -> Result<BTreeMap<String, String>, Error> {
    // A table of tokens is the first thing that an absurd count would be too large for.
    let graph = scored_model(config, &Sym::from(1), config.n_layers, Scored::Last)?;
    let (mut names, mut formats) = (BTreeMap::new(), BTreeMap::new());
    for node in graph.nodes.values() {
        let Op::Weight { name, shape, .. } = &node.op else { continue };
        let own = tensor(checkpoint.kind(), name);
        let format = checked(path, &own, checkpoint.tensors().get(&own), shape)?;
        formats.insert(name.to_string(), format);
        names.insert(name.to_string(), own);
    }
    config.formats = Formats::Each(formats);
    Ok(names)
}

/// The format of a tensor whose shape is that of the graph, with neighbouring axes merged.
fn checked(path: &Path, name: &str, found: Option<&TensorInfo>, shape: &Shape) -> Result<Format, Error> {
    let place = || Place::Tensor(name.to_owned());
    let sizes: Vec<usize> = shape.iter().map(|(_, size)| size.most() as usize).collect();
    let Some(TensorInfo { shape: found, stored, .. }) = found else {
        return Err(Error::input(path, place(), format!("expected a tensor of shape {sizes:?}, found none")));
    };
    if !is_merged(found, &sizes) {
        return Err(Error::input(path, place(), format!("expected the shape {sizes:?}, found {found:?}")));
    }
    match stored {
        Stored::As(format) => Ok(*format),
        Stored::Other(other) => Err(Error::Unsupported {
            path: path.to_owned(),
            place: place(),
            what: format!(
                "its format {other} is not supported; {} are",
                Format::FIXED.map(Format::name).join(", ")
            ),
        }),
    }
}

/// Whether sizes are others with neighbours multiplied.
fn is_merged(merged: &[usize], sizes: &[usize]) -> bool {
    let mut sizes = sizes.iter();
    let each = merged.iter().all(|whole| {
        let mut product = 1;
        while product < *whole {
            let Some(size) = sizes.next() else { return false };
            product *= size;
        }
        product == *whole
    });
    each && sizes.all(|size| *size == 1)
}
