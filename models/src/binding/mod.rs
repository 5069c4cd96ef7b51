//! Where the tensors of a graph lie in a file.
//!
//! In: a checkpoint and a graph. Out: for every weight of the graph its format and its bytes, or one sentence that
//! names the tensor. A tensor is found under one of its names, or as rows of a joined tensor; neither is copied.
//! Four kinds are made when they are first needed: experts that are stored apart, the halves of a matrix that is stored
//! as one (0.4 % of a model that has it), tensors that the graph wants in single precision, which are small, and
//! matrices in single precision whose numbers are all bfloat16 numbers.
//! Only the graph says which tensors there should be. Their names are in `naming/tensors.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use fusebox_compiler::foundation::amount::counted;
use fusebox_compiler::graph::Graph;
use fusebox_compiler::graph::op::Op;
use fusebox_compiler::tensor::quant::Format;
use fusebox_compiler::tensor::shape::Shape;
use fusebox_runtime::device::Weights;
use fusebox_runtime::error::{Error, Place};
use fusebox_runtime::weights::{Checkpoint, Stored, TensorInfo};

use crate::facts::Facts;
use crate::naming::tensors::{BIAS, block_of, expert, halves, is_needless, joined, kin, names};

pub(crate) mod source;

use source::{Axis, Recipe, Source};

/// The tensors of a checkpoint by the names that graphs use.
#[derive(Debug)]
pub struct Bound {
    /// The file.
    pub checkpoint: Checkpoint,
    sources: BTreeMap<String, Source>,
}

impl Weights for Bound {
    fn bytes(&self, name: &str) -> Option<&[u8]> {
        self.sources.get(name)?.bytes(&self.checkpoint)
    }
}

/// Finds every weight of a graph. One that the graph has in single precision gets it; all others may have any format.
///
/// # Errors
/// Where one is missing, has another shape or an unknown format, or where there is a bias that the graph does not add.
pub fn bind(
    path: &Path,
    checkpoint: Checkpoint,
    graph: &Graph,
) -> Result<(Bound, BTreeMap<String, Format>), Error> {
    let search = Search::new(path, &checkpoint, graph);
    let (mut sources, mut formats) = (BTreeMap::new(), BTreeMap::new());
    for (name, found) in search.all()? {
        let (source, format) = search.narrowed(&search.wanted[&name], found);
        sources.insert(name.clone(), source);
        formats.insert(name, format);
    }
    Ok((Bound { checkpoint, sources }, formats))
}

/// Finds every weight of a graph, in the format that it is stored in.
///
/// # Errors
/// As [`bind`].
pub(crate) fn find(
    path: &Path,
    checkpoint: &Checkpoint,
    graph: &Graph,
) -> Result<BTreeMap<String, (Source, Format)>, Error> {
    Search::new(path, checkpoint, graph).all()
}

/// The most that each axis may have.
pub(crate) fn sizes(shape: &Shape) -> Vec<usize> {
    shape.iter().map(|(_, size)| size.most() as usize).collect()
}

/// What is looked for, and where.
struct Search<'a> {
    path: &'a Path,
    checkpoint: &'a Checkpoint,
    /// All weights.
    wanted: BTreeMap<String, Wanted>,
}

/// What a tensor must be like.
struct Wanted {
    shape: Vec<usize>,
    is_single: bool,
}

impl<'a> Search<'a> {
    fn new(path: &'a Path, checkpoint: &'a Checkpoint, graph: &Graph) -> Self {
        let weights = graph.nodes.values().filter_map(|node| match &node.op {
            Op::Weight { name, shape, format } => {
                Some((name.to_string(), Wanted { shape: sizes(shape), is_single: *format == Format::F32 }))
            }
            _ => None,
        });
        Self { path, checkpoint, wanted: weights.collect() }
    }

    fn all(&self) -> Result<BTreeMap<String, (Source, Format)>, Error> {
        let all = self.wanted.iter().map(|(name, wanted)| Ok((name.clone(), self.find(name, wanted)?)));
        let found = all.collect::<Result<BTreeMap<_, _>, Error>>()?;
        self.refuse_unasked(&found)?;
        Ok(found)
    }

    fn find(&self, name: &str, wanted: &Wanted) -> Result<(Source, Format), Error> {
        self.refuse_bias(name)?;
        let shape = &wanted.shape[..];
        if let Some((own, info)) = self.stored(name) {
            let format = self.checked(&own, info, shape)?;
            if wanted.is_single && format != Format::F32 {
                let recipe = Recipe::Single { tensor: own, format, n_elements: info.n_elements() };
                return Ok((Source::made(recipe), Format::F32));
            }
            return Ok((Source::Run { tensor: own, bytes: 0..info.n_bytes() }, format));
        }
        if let Some(found) = self.rows(name)? {
            return Ok(found);
        }
        if let Some(found) = self.pieces(name, shape)? {
            return Ok(found);
        }
        if let Some(found) = self.half(name)? {
            return Ok(found);
        }
        let own = names(self.checkpoint.kind(), name).into_iter().next().unwrap_or_default();
        Err(self.refused(&own, format!("expected a tensor of shape {shape:?}, found none")))
    }

    /// What is stored in single precision and would fit bfloat16 is taken as that: so the same model gives the same
    /// numbers from every file, and is read in half the time.
    fn narrowed(&self, wanted: &Wanted, (source, format): (Source, Format)) -> (Source, Format) {
        if wanted.is_single || format != Format::F32 || !source.is_narrow(self.checkpoint) {
            return (source, format);
        }
        (Source::made(Recipe::Narrow(Box::new(source))), Format::BF16)
    }

    /// The tensor of one of the names.
    fn stored(&self, name: &str) -> Option<(String, &TensorInfo)> {
        Facts::of(self.checkpoint).stored(name).map(|(own, info)| (own.clone(), info))
    }

    /// The rows of a joined tensor.
    fn rows(&self, name: &str) -> Result<Option<(Source, Format)>, Error> {
        let Some((whole, parts)) = joined(name) else { return Ok(None) };
        let Some((own, info)) = self.stored(&whole) else { return Ok(None) };
        // A bias has rows of one element.
        let n_columns = if name.ends_with(BIAS) { 1 } else { info.shape.last().copied().unwrap_or(1).max(1) };
        let n_rows = |part: &String| {
            self.wanted.get(part).map_or(0, |own| own.shape.iter().product::<usize>() / n_columns)
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
        let is_there = |own: &String| self.checkpoint.tensors().contains_key(own);
        // All are spelt as the first is.
        let Some(spelling) = expert(kind, name, 0).iter().position(is_there) else { return Ok(None) };
        let named = |idx| expert(kind, name, idx).swap_remove(spelling);
        let (first, one_more) = (named(0), named(*n_experts));
        if is_there(&one_more) {
            return Err(
                self.refused(&one_more, format!("expected {}, found more", counted(*n_experts, "expert")))
            );
        }
        let (mut tensors, mut common) = (Vec::new(), None);
        for own in (0..*n_experts).map(named) {
            let Some(info) = self.checkpoint.tensors().get(&own) else {
                return Err(self.refused(&own, format!("expected a tensor of shape {inner:?}, found none")));
            };
            let format = self.checked(&own, info, inner)?;
            let expected = *common.get_or_insert(format);
            if format != expected {
                return Err(self.refused(&own, format!("expected {expected} as in {first}, found {format}")));
            }
            tensors.push(own);
        }
        Ok(common.map(|format| (Source::made(Recipe::Pieces(tensors)), format)))
    }

    /// A half of a matrix that has rows of both for every head; the first half is wanted the other way round.
    fn half(&self, name: &str) -> Result<Option<(Source, Format)>, Error> {
        let Some((whole, [first, second])) = halves(name) else { return Ok(None) };
        let Some((own, info)) = self.stored(&whole) else { return Ok(None) };
        let shape = |name: &str| self.wanted.get(name).map(|own| own.shape.as_slice());
        let (Some(&[n_heads, n_columns, n_first]), Some(&[_, n_second, _])) = (shape(&first), shape(&second))
        else {
            return Ok(None);
        };
        let format = self.checked(&own, info, &[n_heads, n_first + n_second, n_columns])?;
        let head = Axis { len: n_heads, stride: (n_first + n_second) * n_columns };
        let column = Axis { len: n_columns, stride: 1 };
        let row = |len| Axis { len, stride: n_columns };
        let (from, axes) = if name == first {
            (0, [head, column, row(n_first)])
        } else {
            (n_first * n_columns, [head, row(n_second), column])
        };
        let recipe = Recipe::Cut { tensor: own, element_bytes: format.block_bytes(), from, axes };
        Ok(Some((Source::made(recipe), format)))
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

    /// A tensor of a block that the graph does not ask for would be forgotten: facts that contradict the tensors.
    fn refuse_unasked(&self, found: &BTreeMap<String, (Source, Format)>) -> Result<(), Error> {
        let kind = self.checkpoint.kind();
        let blocks: BTreeSet<&str> = self.wanted.keys().filter_map(|name| block_of(name)).collect();
        let kin = self.wanted.keys().flat_map(|name| kin(name)).flat_map(|name| names(kind, &name));
        let mut known: BTreeSet<String> = kin.collect();
        known.extend(found.values().flat_map(|(source, _)| source.tensors()).cloned());
        let is_unasked = |(own, info): &(&String, &TensorInfo)| {
            let is_of_block = block_of(own).is_some_and(|block| blocks.contains(block));
            is_of_block && !known.contains(*own) && !is_needless(own) && info.n_elements() > 0
        };
        match self.checkpoint.tensors().iter().find(is_unasked) {
            Some((own, _)) => Err(self.refused(
                own,
                "expected no such tensor by what the model says of itself, found one".to_owned(),
            )),
            None => Ok(()),
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
