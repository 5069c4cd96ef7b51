//! Binds the weights of a graph to the tensors of a file.
//!
//! In: a checkpoint and a graph. Out: for every weight of the graph its format and its bytes, or one sentence that
//! names the tensor. A weight is a tensor under one of its names, or rows of a fused tensor; neither is copied.
//! Five kinds are derived on first use: experts that are stored separately; the two parts of a matrix that is fused per
//! head (0.4 % of a model that has one); small tensors that the graph wants in F32; F32 matrices whose elements are all
//! bfloat16 numbers; and types that keep few bits of several elements together, which become bytes.
//! Only the graph says which tensors there should be. Their names are in `naming/tensors.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;

use fusebox_compiler::foundation::amount::counted;
use fusebox_compiler::graph::Graph;
use fusebox_compiler::graph::op::Op;
use fusebox_compiler::tensor::quant::Format;
use fusebox_compiler::tensor::shape::Shape;
use fusebox_runtime::device::Weights;
use fusebox_runtime::error::{Error, Place};
use fusebox_runtime::weights::expand::expanded;
use fusebox_runtime::weights::{Checkpoint, Stored, TensorInfo};

use crate::families::hparams;
use crate::hparams::Hparams;
use crate::naming::tensors::{
    BIAS, How, Part, Qkv, alternatives, block_of, fused, fused_per_head, is_redundant,
};

pub(crate) mod source;

use source::{Axis, Number, Recipe, Source};

/// The weights of a graph, bound to a checkpoint.
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

    fn check(&self) -> Result<(), Error> {
        self.checkpoint.check()
    }
}

/// Binds every weight of a graph. A weight that the graph has in F32 is converted to it; all others may have any
/// format.
///
/// # Errors
/// Where a weight is missing, has another shape or an unknown format, or where the file has a bias that the graph does
/// not add.
pub fn bind(
    path: &Path,
    checkpoint: Checkpoint,
    graph: &Graph,
) -> Result<(Bound, BTreeMap<String, Format>), Error> {
    let search = Search::new(path, &checkpoint, graph);
    let (mut sources, mut formats) = (BTreeMap::new(), BTreeMap::new());
    for (name, found) in search.all()? {
        let (source, format) = search.as_bf16_if_exact(&search.wanted[&name], found);
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

/// The largest size of each axis.
pub(crate) fn sizes(shape: &Shape) -> Vec<usize> {
    shape.iter().map(|(_, size)| size.most() as usize).collect()
}

/// The search for the weights of a graph.
struct Search<'a> {
    path: &'a Path,
    checkpoint: &'a Checkpoint,
    hparams: Hparams<'a>,
    /// All weights.
    wanted: BTreeMap<String, Wanted>,
}

/// What a tensor must be like.
struct Wanted {
    shape: Vec<usize>,
    is_f32: bool,
}

impl Wanted {
    /// In single precision where graphs want that.
    fn as_wanted(&self, source: Source, format: Format, number: Number) -> (Source, Format) {
        if !self.is_f32 || format == Format::F32 && number == Number::Same {
            return (source, format);
        }
        let (source, n_elements) = (Box::new(source), self.shape.iter().product());
        (Source::derived(Recipe::AsF32 { source, format, n_elements, number }), Format::F32)
    }
}

impl<'a> Search<'a> {
    fn new(path: &'a Path, checkpoint: &'a Checkpoint, graph: &Graph) -> Self {
        let weights = graph.nodes.values().filter_map(|node| match &node.op {
            Op::Weight { name, shape, format } => {
                Some((name.to_string(), Wanted { shape: sizes(shape), is_f32: *format == Format::F32 }))
            }
            _ => None,
        });
        Self { path, checkpoint, hparams: hparams(checkpoint), wanted: weights.collect() }
    }

    fn all(&self) -> Result<BTreeMap<String, (Source, Format)>, Error> {
        let all = self.wanted.iter().map(|(name, wanted)| Ok((name.clone(), self.find(name, wanted)?)));
        let found = all.collect::<Result<BTreeMap<_, _>, Error>>()?;
        self.refuse_unused(&found)?;
        Ok(found)
    }

    fn find(&self, name: &str, wanted: &Wanted) -> Result<(Source, Format), Error> {
        self.refuse_bias(name)?;
        let shape = &wanted.shape[..];
        if let Some((own, info)) = self.stored(name) {
            let (source, format, number) = match self.hparams.how(name) {
                How::Transposed { part, of, is_interleaved } => {
                    let (source, format) = self.transposed(&own, info, shape, (part, of, is_interleaved))?;
                    (source, format, Number::Same)
                }
                How::PerKeyHead(part) => {
                    let (source, format) = self.per_key_head(name, &own, info, part)?;
                    (source, format, Number::Same)
                }
                How::Beside(part) => {
                    let (source, format) = self.beside(name, &own, info, part)?;
                    (source, format, Number::Same)
                }
                How::Columns { part, of } => {
                    let (source, format) = self.columns(&own, info, shape, (part, of))?;
                    (source, format, Number::Same)
                }
                how @ (How::Same | How::LessOne | How::LogOfNegative) => {
                    let number = match how {
                        How::LessOne => Number::PlusOne,
                        How::LogOfNegative => Number::NegativeExp,
                        _ => Number::Same,
                    };
                    let format = self.checked(&own, info, shape)?;
                    (run(own, info, 0..info.n_bytes()), format, number)
                }
            };
            return Ok(wanted.as_wanted(source, format, number));
        }
        if let Some((source, format)) = self.fused_rows(name)? {
            return Ok(wanted.as_wanted(source, format, Number::Same));
        }
        if let Some(found) = self.separate_experts(name, shape)? {
            return Ok(found);
        }
        if let Some(found) = self.fused_per_head(name)? {
            return Ok(found);
        }
        let own = self.hparams.names().of(name).into_iter().next().unwrap_or_else(|| name.to_owned());
        Err(self.refused(&own, format!("expected a tensor of shape {shape:?}, found none")))
    }

    /// Takes an F32 matrix as bfloat16 where that is exact: so the same model gives the same numbers from every file,
    /// and is read in half the time.
    fn as_bf16_if_exact(&self, wanted: &Wanted, (source, format): (Source, Format)) -> (Source, Format) {
        if wanted.is_f32 || format != Format::F32 || !source.is_exact_in_bf16(self.checkpoint) {
            return (source, format);
        }
        (Source::derived(Recipe::AsBf16(Box::new(source))), Format::BF16)
    }

    /// The tensor under one of its names.
    fn stored(&self, name: &str) -> Option<(String, &TensorInfo)> {
        self.hparams.stored(name).map(|(own, info)| (own.clone(), info))
    }

    /// Experts that are stored with inputs before outputs, and some parts of the outputs together.
    fn transposed(
        &self,
        own: &str,
        info: &TensorInfo,
        shape: &[usize],
        (part, of, is_interleaved): (usize, usize, bool),
    ) -> Result<(Source, Format), Error> {
        let (n_outputs, inputs) = match *shape {
            [_, outputs, inputs] => (outputs, inputs),
            [_, outputs] => (outputs, 1),
            _ => (1, 1),
        };
        let n_experts = shape.first().copied().unwrap_or(1);
        if let Stored::As(Format::MXFP4) = info.stored {
            return self.interleaved(own, info, [n_experts, n_outputs, inputs], (part, of, is_interleaved));
        }
        let stored = if shape.len() == 2 {
            vec![n_experts, of * n_outputs]
        } else {
            vec![n_experts, inputs, of * n_outputs]
        };
        let format = self.checked(own, info, &stored)?;
        if format.block_len() > 1 {
            return Err(self.refused(own, format!("expected plain numbers, found {format}")));
        }
        let (from, stride) = if is_interleaved { (part, of) } else { (part * n_outputs, 1) };
        let axes = [
            Axis { len: n_experts, stride: inputs * of * n_outputs },
            Axis { len: n_outputs, stride },
            Axis { len: inputs, stride: of * n_outputs },
        ];
        let element_bytes = format.block_bytes();
        Ok((Source::derived(Recipe::Strided { tensor: own.to_owned(), element_bytes, from, axes }), format))
    }

    /// The same where blocks run along the inputs, so that outputs come first: whole rows are taken.
    fn interleaved(
        &self,
        own: &str,
        info: &TensorInfo,
        [n_experts, n_outputs, inputs]: [usize; 3],
        (part, of, is_interleaved): (usize, usize, bool),
    ) -> Result<(Source, Format), Error> {
        let format = self.checked(own, info, &[n_experts, of * n_outputs, inputs])?;
        if of == 1 {
            return Ok((Source::Run { tensor: own.to_owned(), bytes: 0..info.n_bytes() }, format));
        }
        let row_bytes = info.n_bytes() / (n_experts * of * n_outputs).max(1);
        let (first, step) = if is_interleaved { (part, of) } else { (part * n_outputs, 1) };
        let rows = (0..n_experts).flat_map(|expert| {
            (0..n_outputs).map(move |output| expert * of * n_outputs + first + step * output)
        });
        let ranges = rows.map(|row| row * row_bytes..(row + 1) * row_bytes).collect();
        Ok((Source::derived(Recipe::Rows { tensor: own.to_owned(), ranges }), format))
    }

    /// Rows of a matrix with queries, keys, values and gates of one key head after another.
    fn per_key_head(
        &self,
        name: &str,
        own: &str,
        info: &TensorInfo,
        part: Part,
    ) -> Result<(Source, Format), Error> {
        let shape = |part: &str| {
            let block = name.rsplit_once('.').map_or("", |(block, _)| block);
            self.wanted.get(&format!("{block}.{part}")).map(|wanted| wanted.shape.as_slice())
        };
        let (Some(&[n_mixed, n_columns]), Some(&[n_heads, n_values, value, _])) =
            (shape("ssm_in"), shape("ssm_gate"))
        else {
            return Err(self.refused(own, "expected the parts of a delta rule, found others".to_owned()));
        };
        // Rows of each part, of one head.
        let v = n_values * value;
        let k = n_mixed.saturating_sub(n_heads * v) / 2 / n_heads;
        let n_rows = 2 * k + 2 * v;
        let format = self.checked(own, info, &[n_heads * n_rows, n_columns])?;
        let rows = |first: usize, n: usize| {
            (0..n_heads).map(move |head| head * n_rows + first..head * n_rows + first + n)
        };
        let rows: Vec<_> = match part {
            Part::Mixed => rows(0, k).chain(rows(k, k)).chain(rows(2 * k, v)).collect(),
            Part::Gate => rows(2 * k + v, v).collect(),
        };
        let ranges = byte_ranges(info, format, n_heads * n_rows, &rows);
        Ok((Source::derived(Recipe::Rows { tensor: own.to_owned(), ranges }), format))
    }

    /// Rows of a matrix, or of a bias, with the queries, the key and the value of one key head after another.
    fn beside(&self, name: &str, own: &str, info: &TensorInfo, part: Qkv) -> Result<(Source, Format), Error> {
        let (whole, ending) = name.strip_suffix(BIAS).map_or((name, ""), |whole| (whole, BIAS));
        let block = whole.rsplit_once('.').map_or("", |(block, _)| block);
        let shape = |part: &str| {
            let wanted = self.wanted.get(&format!("{block}.{part}{ending}"));
            wanted.map_or(&[][..], |wanted| &wanted.shape)
        };
        let (queries, keys) = (shape("attn_q"), shape("attn_k"));
        let n_columns = if ending.is_empty() { keys.last().copied().unwrap_or(1) } else { 1 };
        let n_kv = keys.first().copied().unwrap_or(1);
        let rows_of = |shape: &[usize]| shape.iter().product::<usize>() / n_columns.max(1) / n_kv.max(1);
        let (q, k) = (rows_of(queries), rows_of(keys));
        let n_rows = n_kv * (q + 2 * k);
        let expected = if ending.is_empty() { vec![n_rows, n_columns] } else { vec![n_rows] };
        let format = self.checked(own, info, &expected)?;
        let (first, n) = match part {
            Qkv::Queries => (0, q),
            Qkv::Key => (q, k),
            Qkv::Value => (q + k, k),
        };
        let rows: Vec<_> = (0..n_kv).map(|head| head * (q + 2 * k) + first).map(|row| row..row + n).collect();
        let ranges = byte_ranges(info, format, n_rows, &rows);
        Ok((Source::derived(Recipe::Rows { tensor: own.to_owned(), ranges }), format))
    }

    /// A part of the outputs of a matrix with inputs before outputs, or of its bias.
    fn columns(
        &self,
        own: &str,
        info: &TensorInfo,
        shape: &[usize],
        (part, of): (usize, usize),
    ) -> Result<(Source, Format), Error> {
        let n: usize = shape.iter().product();
        if info.shape.len() == 1 {
            let format = self.checked(own, info, &[of * n])?;
            let element_bytes = info.n_bytes() / (of * n).max(1);
            let range = part * n * element_bytes..(part + 1) * n * element_bytes;
            return Ok((run(own.to_owned(), info, range), format));
        }
        let outputs = info.shape.last().map_or(0, |outputs| outputs / of);
        let inputs = info.shape.first().copied().unwrap_or(0);
        if !is_merged(&[outputs, inputs], shape) {
            let what = format!(
                "expected the inputs and {of} times the outputs of {shape:?}, found {:?}",
                info.shape
            );
            return Err(self.refused(own, what));
        }
        let format = self.checked(own, info, &[inputs, of * outputs])?;
        if format.plain().is_none() {
            return Err(self.refused(own, format!("expected plain numbers, found {format}")));
        }
        let axes = [
            Axis { len: 1, stride: 0 },
            Axis { len: outputs, stride: 1 },
            Axis { len: inputs, stride: of * outputs },
        ];
        let (tensor, element_bytes) = (own.to_owned(), format.block_bytes());
        let recipe = Recipe::Strided { tensor, element_bytes, from: part * outputs, axes };
        Ok((Source::derived(recipe), format))
    }

    /// Rows of a fused tensor.
    fn fused_rows(&self, name: &str) -> Result<Option<(Source, Format)>, Error> {
        let Some((whole, parts)) = fused(name) else { return Ok(None) };
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
        let rows = first..first + n_rows(&name.to_owned());
        let mut ranges = byte_ranges(info, format, total, &[rows]);
        if let (Stored::As(_), 2..) = (info.stored, ranges.len()) {
            return Ok(Some((Source::derived(Recipe::Rows { tensor: own, ranges }), format)));
        }
        Ok(Some((run(own, info, ranges.swap_remove(0)), format)))
    }

    /// Experts that are stored separately.
    fn separate_experts(&self, name: &str, shape: &[usize]) -> Result<Option<(Source, Format)>, Error> {
        let names = self.hparams.names();
        let Some((n_experts, inner)) = shape.split_first() else { return Ok(None) };
        let is_there = |own: &String| self.checkpoint.tensors().contains_key(own);
        // All are named as the first is.
        let Some(spelling) = names.expert(name, 0).iter().position(is_there) else { return Ok(None) };
        let named = |idx| names.expert(name, idx).swap_remove(spelling);
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
        Ok(common.map(|format| (Source::derived(Recipe::Concatenated(tensors)), format)))
    }

    /// One part of a matrix that is fused per head; the first part is transposed.
    fn fused_per_head(&self, name: &str) -> Result<Option<(Source, Format)>, Error> {
        let Some((whole, [first, second])) = fused_per_head(name) else { return Ok(None) };
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
        let recipe = Recipe::Strided { tensor: own, element_bytes: format.block_bytes(), from, axes };
        Ok(Some((Source::derived(recipe), format)))
    }

    /// The format of a tensor, if its shape is the expected one up to merged adjacent axes.
    fn checked(&self, own: &str, info: &TensorInfo, shape: &[usize]) -> Result<Format, Error> {
        if !is_merged(&info.shape, shape) {
            return Err(self.refused(own, format!("expected the shape {shape:?}, found {:?}", info.shape)));
        }
        match info.stored {
            Stored::As(format) => Ok(format),
            Stored::Other(other) if let Some(format) = expanded(other) => Ok(format),
            Stored::Other(other) => Err(Error::Unsupported {
                path: self.path.to_owned(),
                place: Place::Tensor(own.to_owned()),
                what: format!(
                    "its format {other} is not supported, expected one of {}",
                    Format::FIXED.map(Format::name).join(", ")
                ),
            }),
        }
    }

    /// Refuses a tensor of a block that the graph does not use: the hyper-parameters contradict the tensors.
    fn refuse_unused(&self, found: &BTreeMap<String, (Source, Format)>) -> Result<(), Error> {
        let names = self.hparams.names();
        let blocks: BTreeSet<&str> = self.wanted.keys().filter_map(|name| block_of(name)).collect();
        let others = self.wanted.keys().flat_map(|name| alternatives(name)).flat_map(|name| names.of(&name));
        let mut known: BTreeSet<String> = others.collect();
        known.extend(found.values().flat_map(|(source, _)| source.tensors()).cloned());
        let is_unused = |(own, info): &(&String, &TensorInfo)| {
            let is_of_block = block_of(own).is_some_and(|block| blocks.contains(block));
            is_of_block && !known.contains(*own) && !is_redundant(own) && info.n_elements() > 0
        };
        match self.checkpoint.tensors().iter().find(is_unused) {
            Some((own, _)) => Err(self.refused(
                own,
                "expected no such tensor according to the hyper-parameters, found one".to_owned(),
            )),
            None => Ok(()),
        }
    }

    /// Refuses a bias that the graph does not add.
    fn refuse_bias(&self, name: &str) -> Result<(), Error> {
        let bias = format!("{name}{BIAS}");
        if name.ends_with(BIAS) || self.wanted.contains_key(&bias) {
            return Ok(());
        }
        let joint = fused(&bias).and_then(|(whole, _)| self.stored(&whole));
        match self.stored(&bias).or(joint) {
            Some((own, _)) => Err(self.refused(&own, "expected no bias here, found one".to_owned())),
            None => Ok(()),
        }
    }

    fn refused(&self, own: &str, what: String) -> Error {
        Error::input(self.path, Place::Tensor(own.to_owned()), what)
    }
}

/// Bytes of a tensor as kernels read them.
fn run(tensor: String, info: &TensorInfo, bytes: Range<usize>) -> Source {
    match info.stored {
        Stored::Other(ty) => Source::derived(Recipe::Expanded { tensor, bytes, ty }),
        Stored::As(_) => Source::Run { tensor, bytes },
    }
}

/// The bytes of some rows of a tensor; scales that follow all numbers have ranges of their own.
fn byte_ranges(info: &TensorInfo, format: Format, n_rows: usize, rows: &[Range<usize>]) -> Vec<Range<usize>> {
    let pieces = match (info.stored, format) {
        (Stored::As(_), Format::Int8 { .. }) => {
            vec![(0, info.n_elements()), (info.n_elements(), info.n_bytes() - info.n_elements())]
        }
        _ => vec![(0, info.n_bytes())],
    };
    let range = |(at, n_bytes): (usize, usize), rows: &Range<usize>| {
        let row_bytes = n_bytes / n_rows.max(1);
        at + rows.start * row_bytes..at + rows.end * row_bytes
    };
    pieces.into_iter().flat_map(|piece| rows.iter().map(move |rows| range(piece, rows))).collect()
}

/// Whether `merged` are `sizes` with adjacent ones multiplied.
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
