//! The model that adapters are for.
//!
//! In: a config, a checkpoint and a graph. Out: which weights may have an adapter, under which names, and the order of
//! the rows of their matrices.

use std::path::Path;

use fusebox_compiler::graph::Graph;
use fusebox_compiler::graph::op::Op;
use fusebox_runtime::error::{Error, Place};
use fusebox_runtime::weights::{Checkpoint, Kind};

use crate::binding::sizes;
use crate::config::{Config, Mixer};
use crate::families::{gguf_architecture, hparams, is_reordered};
use crate::hparams::Hparams;
use crate::naming::tensors::BIAS;

/// The matrix whose rows are looked up.
pub(crate) const EMBEDDING: &str = "token_embd";

/// The model that an adapter is for.
pub(crate) struct Base<'a> {
    pub(crate) config: &'a Config,
    pub(crate) checkpoint: &'a Checkpoint,
    /// Its weights that may have an adapter.
    pub(crate) targets: Vec<Target>,
    /// The kind of file whose order of rows the model has.
    pub(crate) layout: Kind,
    /// Whether targets have the names of the file, and not those of graphs.
    pub(crate) has_own_names: bool,
}

/// A weight that may have an adapter: its name in graphs, and its sizes.
pub(crate) struct Target {
    pub(crate) name: String,
    pub(crate) sizes: Vec<usize>,
}

impl Base<'_> {
    /// The name of its architecture in GGUF.
    pub(crate) fn architecture(&self) -> &str {
        let own = Hparams::architecture_of(self.checkpoint).unwrap_or_default();
        gguf_architecture(own).unwrap_or(own)
    }

    /// The hyper-parameters of its file, with the names of its family.
    pub(crate) fn hparams(&self) -> Hparams<'_> {
        hparams(self.checkpoint)
    }

    /// Whether rows of this matrix are in the order of another kind of file, and how: rows of a head, and how many of
    /// them are rotated.
    pub(crate) fn reordered(&self, name: &str, kind: Kind) -> Option<[usize; 2]> {
        let is_rotated = name.ends_with(".attn_q") || name.ends_with(".attn_k");
        let is_known = Hparams::architecture_of(self.checkpoint).is_some_and(is_reordered);
        if !is_rotated || !is_known || is_gguf(kind) == is_gguf(self.layout) {
            return None;
        }
        let layer: usize = name.strip_prefix("blk.")?.split('.').next()?.parse().ok()?;
        match &self.config.blocks.get(layer)?.mixer {
            Mixer::Grouped(heads) => Some([heads.head, heads.rotary_dim]),
            _ => None,
        }
    }
}

/// The weights of a graph that may have an adapter.
pub(crate) fn targets(graph: &Graph, config: &Config) -> Vec<Target> {
    let weights = graph.nodes.values().filter_map(|node| match &node.op {
        Op::Weight { name, shape, .. } if !name.ends_with(BIAS) && shape.iter().count() > 1 => {
            Some(Target { name: name.to_string(), sizes: sizes(shape) })
        }
        _ => None,
    });
    // A head that is the embedding matrix may have one of its own.
    let head = Target { name: "output".to_owned(), sizes: vec![config.vocab, config.hidden] };
    weights.chain(config.tied.then_some(head)).collect()
}

/// Whether rows are in the order of GGUF.
pub(crate) fn is_gguf(kind: Kind) -> bool {
    match kind {
        Kind::Gguf { .. } | Kind::Qorus => true,
        Kind::Safetensors | Kind::Ajc1 => false,
    }
}

/// An error about a file of an adapter.
pub(crate) fn refused(path: &Path, place: Place, what: impl Into<String>) -> Error {
    Error::input(path, place, what.into())
}
