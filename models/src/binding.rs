//! Where the tensors of a graph lie in a file.
//!
//! In: a checkpoint and a graph. Out: for every weight of the graph its format and its bytes, or one sentence that
//! names the tensor. A tensor is found under one of its names; else its rows are a run of a joined tensor's, which is
//! not copied; else it is brought together from tensors of single experts, when it is first needed.
//! Which tensors there should be stands nowhere: the graph is asked. The names are in `naming/tensors.rs`.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::OnceLock;

use fusebox_compiler::graph::Graph;
use fusebox_compiler::graph::op::Op;
use fusebox_compiler::tensor::quant::Format;
use fusebox_compiler::tensor::shape::Shape;
use fusebox_runtime::device::Weights;
use fusebox_runtime::error::{Error, Place};
use fusebox_runtime::weights::{Checkpoint, Stored, TensorInfo};

use crate::naming::tensors::{BIAS, expert, joined, names};

/// The tensors of a checkpoint by the names that graphs use.
#[derive(Debug)]
pub struct Bound {
    /// The file.
    pub checkpoint: Checkpoint,
    sources: BTreeMap<String, Source>,
}

/// Where the bytes of a tensor are.
#[derive(Debug)]
enum Source {
    /// A run of the bytes of one stored tensor.
    Run { tensor: String, bytes: Range<usize> },
    /// Stored tensors one after another, brought together when they are first needed.
    Pieces { tensors: Vec<String>, together: OnceLock<Vec<u8>> },
}

impl Weights for Bound {
    fn bytes(&self, name: &str) -> Option<&[u8]> {
        match self.sources.get(name)? {
            Source::Run { tensor, bytes } => self.checkpoint.bytes(tensor)?.get(bytes.clone()),
            Source::Pieces { tensors, together } => Some(together.get_or_init(|| {
                let pieces = tensors.iter().filter_map(|tensor| self.checkpoint.bytes(tensor));
                pieces.collect::<Vec<_>>().concat()
            })),
        }
    }
}

/// Finds every weight of a graph.
///
/// # Errors
/// Where one is missing, has another shape or an unknown format, or where there is a bias that the graph does not add.
pub fn bind(
    path: &Path,
    checkpoint: Checkpoint,
    graph: &Graph,
) -> Result<(Bound, BTreeMap<String, Format>), Error> {
    let weights = graph.nodes.values().filter_map(|node| match &node.op {
        Op::Weight { name, shape, .. } => Some((name.to_string(), sizes(shape))),
        _ => None,
    });
    let search = Search { path, checkpoint: &checkpoint, wanted: weights.collect() };
    let (mut sources, mut formats) = (BTreeMap::new(), BTreeMap::new());
    for (name, shape) in &search.wanted {
        let (source, format) = search.find(name, shape)?;
        sources.insert(name.clone(), source);
        formats.insert(name.clone(), format);
        search.refuse_bias(name)?;
    }
    Ok((Bound { checkpoint, sources }, formats))
}

fn sizes(shape: &Shape) -> Vec<usize> {
    shape.iter().map(|(_, size)| size.most() as usize).collect()
}

/// What is looked for, and where.
struct Search<'a> {
    path: &'a Path,
    checkpoint: &'a Checkpoint,
    /// The shapes of all weights.
    wanted: BTreeMap<String, Vec<usize>>,
}

impl Search<'_> {
    fn find(&self, name: &str, shape: &[usize]) -> Result<(Source, Format), Error> {
        if let Some((own, info)) = self.stored(name) {
            let format = self.checked(&own, info, shape)?;
            return Ok((Source::Run { tensor: own, bytes: 0..info.n_bytes() }, format));
        }
        if let Some(found) = self.rows(name)? {
            return Ok(found);
        }
        if let Some(found) = self.pieces(name, shape)? {
            return Ok(found);
        }
        let own = names(self.checkpoint.kind(), name).into_iter().next().unwrap_or_default();
        Err(self.refused(&own, format!("expected a tensor of shape {shape:?}, found none")))
    }

    /// The tensor of one of the names.
    fn stored(&self, name: &str) -> Option<(String, &TensorInfo)> {
        let names = names(self.checkpoint.kind(), name);
        names.into_iter().find_map(|own| Some((own.clone(), self.checkpoint.tensors().get(&own)?)))
    }

    /// The rows of a joined tensor.
    fn rows(&self, name: &str) -> Result<Option<(Source, Format)>, Error> {
        let Some((whole, parts)) = joined(name) else { return Ok(None) };
        let Some((own, info)) = self.stored(&whole) else { return Ok(None) };
        // A bias has rows of one element.
        let n_columns = if name.ends_with(BIAS) { 1 } else { info.shape.last().copied().unwrap_or(1).max(1) };
        let n_rows = |part: &String| {
            self.wanted.get(part).map_or(0, |shape| shape.iter().product::<usize>() / n_columns)
        };
        let total: usize = parts.iter().map(n_rows).sum();
        let expected = if name.ends_with(BIAS) { vec![total] } else { vec![total, n_columns] };
        let format = self.checked(&own, info, &expected)?;
        let first: usize = parts.iter().take_while(|part| *part != name).map(n_rows).sum();
        let row_bytes = info.n_bytes() / total.max(1);
        let bytes = first * row_bytes..(first + n_rows(&name.to_owned())) * row_bytes;
        Ok(Some((Source::Run { tensor: own, bytes }, format)))
    }

    /// Tensors of single experts.
    fn pieces(&self, name: &str, shape: &[usize]) -> Result<Option<(Source, Format)>, Error> {
        let kind = self.checkpoint.kind();
        let Some((n_experts, inner)) = shape.split_first() else { return Ok(None) };
        let Some(first) = expert(kind, name, 0) else { return Ok(None) };
        if !self.checkpoint.tensors().contains_key(&first) {
            return Ok(None);
        }
        let tensors: Vec<String> = (0..*n_experts).filter_map(|idx| expert(kind, name, idx)).collect();
        let mut common = None;
        for own in &tensors {
            let Some(info) = self.checkpoint.tensors().get(own) else {
                return Err(self.refused(own, format!("expected a tensor of shape {inner:?}, found none")));
            };
            let format = self.checked(own, info, inner)?;
            let expected = *common.get_or_insert(format);
            if format != expected {
                return Err(self.refused(own, format!("expected {expected} as in {first}, found {format}")));
            }
        }
        Ok(common.map(|format| (Source::Pieces { tensors, together: OnceLock::new() }, format)))
    }

    /// The format of a tensor whose shape is the one wanted, with neighbouring axes merged.
    fn checked(&self, own: &str, info: &TensorInfo, shape: &[usize]) -> Result<Format, Error> {
        if !is_merged(&info.shape, shape) {
            return Err(self.refused(own, format!("expected the shape {shape:?}, found {:?}", info.shape)));
        }
        match info.stored {
            Stored::As(format) => Ok(format),
            Stored::Other(other) => Err(Error::Unsupported {
                path: self.path.to_owned(),
                place: Place::Tensor(own.to_owned()),
                what: format!(
                    "its format {other} is not supported; {} are",
                    Format::FIXED.map(Format::name).join(", ")
                ),
            }),
        }
    }

    /// A bias that the graph does not add would be forgotten.
    fn refuse_bias(&self, name: &str) -> Result<(), Error> {
        let bias = format!("{name}{BIAS}");
        if name.ends_with(BIAS) || self.wanted.contains_key(&bias) {
            return Ok(());
        }
        let joint = joined(&bias).and_then(|(whole, _)| self.stored(&whole));
        match self.stored(&bias).or(joint) {
            Some((own, _)) => Err(self.refused(&own, "expected no bias here, found one".to_owned())),
            None => Ok(()),
        }
    }

    fn refused(&self, own: &str, what: String) -> Error {
        Error::input(self.path, Place::Tensor(own.to_owned()), what)
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
