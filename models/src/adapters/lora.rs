//! A LoRA adapter: two low-rank matrices for each projection that it changes.
//!
//! In: a GGUF file (`NAME.weight.lora_a`, `NAME.weight.lora_b`) or a folder of PEFT, and the model that it is for. Out:
//! for a weight of the model both matrices, with rows in the order that the model has them, and their scale.
//!
//! ```text
//!   W' = W + scale · B A          A [rank, inputs]   B [outputs, rank]
//!   scale = strength · alpha / rank
//! ```
//!
//! GGUF of Llama has the rows of queries and keys in another order than a folder, so an adapter of the other kind has
//! its rows of `B` reordered.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use fusebox_compiler::foundation::amount::counted;
use fusebox_runtime::error::{Error, Place, quoted};
use fusebox_runtime::weights::value::Value;
use fusebox_runtime::weights::{Checkpoint, Kind, Stored};

use crate::adapters::adapted::{Base, EMBEDDING, Target, is_gguf, refused};
use crate::adapters::peft::{self, Peft};
use crate::naming::tensors::{EXPERTS, How, LORA_A, LORA_B, Names, fused};

const TYPE: &str = "general.type";
const ADAPTER_TYPE: &str = "adapter.type";
const ARCHITECTURE: &str = "general.architecture";
const ALPHA: &str = "adapter.lora.alpha";
const INVOCATION: &str = "adapter.alora.invocation_tokens";
const WEIGHT: &str = ".weight";

/// What an adapter adds to a weight, which may be several matrices: `scale · B A` for each.
#[derive(Clone, Debug)]
pub(crate) struct Product {
    pub(crate) n: usize,
    pub(crate) rank: usize,
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    /// `[n, rank, columns]`
    pub(crate) a: Vec<f32>,
    /// `[n, rows, rank]`
    pub(crate) b: Vec<f32>,
    pub(crate) scale: f32,
    /// The file, and the tensors of both.
    pub(crate) from: [(PathBuf, String); 2],
}

/// The tensors of a pair.
#[derive(Clone, Default)]
struct Pair {
    a: Option<String>,
    b: Option<String>,
    is_embedding: bool,
}

/// An adapter in a file.
pub(crate) struct Lora<'a> {
    path: PathBuf,
    checkpoint: Checkpoint,
    /// The tensors by the name that the model's file has for the weight, without an ending.
    pairs: BTreeMap<String, Pair>,
    /// The names of those that were found in the model.
    used: BTreeSet<String>,
    names: Names,
    peft: Option<Peft>,
    alpha: f32,
    strength: f32,
    base: &'a Base<'a>,
}

impl<'a> Lora<'a> {
    /// Opens an adapter for a model.
    pub(crate) fn open(path: &Path, strength: f32, base: &'a Base<'a>) -> Result<Self, Error> {
        let (path, peft) = match peft::folder(path)? {
            None => (path.to_owned(), None),
            Some((weights, config)) => (weights, Some(config)),
        };
        let checkpoint = Checkpoint::open(&path)?;
        let kind = checkpoint.kind();
        let alpha = match (kind, &peft) {
            (Kind::Gguf { .. }, None) => alpha(&path, &checkpoint, base)?,
            (Kind::Safetensors, Some(_)) => 0.0,
            _ => {
                let what = "expected a GGUF adapter, or a folder with adapter_config.json";
                return Err(refused(&path, Place::Whole, what));
            }
        };
        if is_gguf(kind) != is_gguf(base.layout) && base.config.is_recurrent() {
            let what = format!("expected an adapter in the kind of file that the model has, {}", base.layout);
            return Err(refused(&path, Place::Whole, what));
        }
        let pairs = pairs(&path, &checkpoint, peft.is_some())?;
        let names = match kind {
            Kind::Gguf { .. } if base.has_own_names => Names::common(kind),
            _ => Names { kind, ..base.hparams().names() },
        };
        Ok(Self { path, checkpoint, pairs, used: BTreeSet::new(), names, peft, alpha, strength, base })
    }

    /// What it adds to a weight, if anything.
    pub(crate) fn product(&mut self, target: &Target) -> Result<Option<Product>, Error> {
        let found = match self.whole(target)? {
            None => self.of_experts(target)?,
            whole => whole,
        };
        let Some(mut product) = found else { return Ok(None) };
        if let Some([head, rotary_dim]) = self.base.reordered(&target.name, self.names.kind) {
            product.reorder(head, rotary_dim, is_gguf(self.base.layout));
        }
        Ok(Some(product))
    }

    /// A pair for the weight itself, or for one that it is a part of.
    fn whole(&mut self, target: &Target) -> Result<Option<Product>, Error> {
        let n = if target.name.ends_with(EXPERTS) { target.sizes.first().copied().unwrap_or(1) } else { 1 };
        let total: usize = target.sizes.iter().product();
        if let Some(own) = self.own_name(&target.name) {
            if self.names.how(&target.name) != How::Same {
                let what =
                    "the model has this matrix in another order, which PEFT adapters are not brought into";
                return Err(self.refused_pair(&own, what.to_owned()));
            }
            let product = self.read(&own, n)?;
            return if product.n_elements() == total {
                Ok(Some(product))
            } else {
                Err(self.refused_sizes(&own, &product, &target.sizes))
            };
        }
        let Some((whole, parts)) = fused(&target.name) else { return Ok(None) };
        let Some(own) = self.own_name(&whole) else { return Ok(None) };
        let product = self.read(&own, 1)?;
        let all: Vec<usize> = parts.iter().map(|part| self.rows_of(part, product.columns)).collect();
        if all.iter().sum::<usize>() != product.rows {
            return Err(self.refused_sizes(&own, &product, &target.sizes));
        }
        let at = parts.iter().position(|part| *part == target.name).unwrap_or(0);
        let first: usize = all[..at].iter().sum();
        Ok(Some(product.part(first, all[at])))
    }

    /// Rows of a weight of the model, given its columns.
    fn rows_of(&self, name: &str, columns: usize) -> usize {
        let own = self.base.targets.iter().find(|target| target.name == name);
        own.map_or(0, |own| own.sizes.iter().product::<usize>() / columns.max(1))
    }

    /// Pairs for every expert; those that have none add nothing.
    fn of_experts(&mut self, target: &Target) -> Result<Option<Product>, Error> {
        let Some((n, inner)) = target.sizes.split_first() else { return Ok(None) };
        let name_of = |lora: &Self, expert: usize| {
            let names = lora.names.expert(&target.name, expert).into_iter();
            names.map(|own| without_ending(&own).to_owned()).find(|own| lora.pairs.contains_key(own))
        };
        let own: Vec<Option<String>> = (0..*n).map(|expert| name_of(self, expert)).collect();
        let mut each = Vec::new();
        for name in &own {
            each.push(name.as_ref().map(|name| self.read(name, 1)).transpose()?);
        }
        let Some(first) = each.iter().flatten().next().cloned() else { return Ok(None) };
        let (mut a, mut b) = (Vec::new(), Vec::new());
        for (name, product) in own.iter().zip(&each) {
            let (Some(name), Some(product)) = (name, product) else {
                a.resize(a.len() + first.a.len(), 0.0);
                b.resize(b.len() + first.b.len(), 0.0);
                continue;
            };
            if product.n_elements() != inner.iter().product::<usize>() || product.columns != first.columns {
                return Err(self.refused_sizes(name, product, inner));
            }
            if product.rank != first.rank {
                let what =
                    format!("expected the rank {} of other experts, found {}", first.rank, product.rank);
                return Err(self.refused_pair(name, what));
            }
            a.extend_from_slice(&product.a);
            // Each may have a scale of its own.
            b.extend(product.b.iter().map(|x| x * product.scale));
        }
        Ok(Some(Product { n: *n, a, b, scale: 1.0, ..first }))
    }

    /// Refuses matrices for which the model has no projection.
    pub(crate) fn refuse_unused(&self) -> Result<(), Error> {
        match self.pairs.keys().find(|name| !self.used.contains(*name)) {
            None => Ok(()),
            Some(name) => {
                let what = "expected an adapter of this model's projections, found one of another";
                Err(self.refused_pair(name, what.to_owned()))
            }
        }
    }

    fn own_name(&self, name: &str) -> Option<String> {
        self.names.of(name).into_iter().find(|own| self.pairs.contains_key(own))
    }

    /// Reads a pair.
    fn read(&mut self, own: &str, n: usize) -> Result<Product, Error> {
        let pair = self.pairs.get(own).cloned().unwrap_or_default();
        let (Some(a_name), Some(b_name)) = (&pair.a, &pair.b) else {
            return Err(self.refused_pair(own, "expected two matrices, A and B, found one".to_owned()));
        };
        self.used.insert(own.to_owned());
        let (mut a_shape, mut a) = self.numbers(a_name)?;
        let (b_shape, b) = self.numbers(b_name)?;
        if pair.is_embedding
            && self.peft.is_none()
            && let [columns, rank] = a_shape[..]
        {
            a = (0..rank).flat_map(|r| (0..columns).map(move |v| v * rank + r)).map(|at| a[at]).collect();
            a_shape.reverse();
        }
        let ([rank, columns], [rows, b_rank]) = match (&a_shape[..], &b_shape[..]) {
            ([rank, columns], [rows, b_rank]) if n == 1 => ([*rank, *columns], [*rows, *b_rank]),
            ([n_a, a @ ..], [n_b, b @ ..]) if [n, n] == [*n_a, *n_b] && [a.len(), b.len()] == [2, 2] => {
                ([a[0], a[1]], [b[0], b[1]])
            }
            _ => {
                let what = format!(
                    "expected the shapes [rank, inputs] and [outputs, rank] of {}, found {a_shape:?} and {b_shape:?}",
                    counted(n, "matrix pair")
                );
                return Err(self.refused_pair(own, what));
            }
        };
        if rank != b_rank || rank == 0 {
            let what = format!("expected two matrices of one rank, found {a_shape:?} and {b_shape:?}");
            return Err(self.refused_pair(own, what));
        }
        let factor = match &self.peft {
            Some(peft) => peft.factor(own, rank),
            None if self.alpha == 0.0 => 1.0,
            None => self.alpha / rank as f32,
        };
        let from = [a_name, b_name].map(|name| (self.path.clone(), name.clone()));
        Ok(Product { n, rank, rows, columns, a, b, scale: self.strength * factor, from })
    }

    /// The shape and the numbers of a tensor.
    fn numbers(&self, name: &str) -> Result<(Vec<usize>, Vec<f32>), Error> {
        let refused = |what: String| refused(&self.path, Place::Tensor(name.to_owned()), what);
        let info = self.checkpoint.tensors().get(name);
        let info = info.ok_or_else(|| refused("expected a tensor, found none".to_owned()))?;
        let Stored::As(format) = info.stored else {
            return Err(refused(format!("expected numbers, found the format {}", info.stored)));
        };
        let bytes = self.checkpoint.bytes(name).unwrap_or_default();
        let numbers = format.decode_all(bytes, info.n_elements());
        Ok((info.shape.clone(), numbers.ok_or_else(|| refused("expected all its bytes".to_owned()))?))
    }

    fn refused_sizes(&self, own: &str, product: &Product, sizes: &[usize]) -> Error {
        let Product { rows, columns, rank, .. } = product;
        let what = format!(
            "expected matrices for a weight of the sizes {sizes:?}, found [{rank}, {columns}] and [{rows}, {rank}]: \
             is it for this model?"
        );
        self.refused_pair(own, what)
    }

    fn refused_pair(&self, own: &str, what: String) -> Error {
        let pair = self.pairs.get(own).cloned().unwrap_or_default();
        let name = pair.a.or(pair.b).unwrap_or_else(|| own.to_owned());
        refused(&self.path, Place::Tensor(name), what)
    }
}

impl Product {
    fn n_elements(&self) -> usize {
        self.n * self.rows * self.columns
    }

    /// The numbers of matrices, rows and columns.
    pub(crate) fn sizes(&self) -> [usize; 3] {
        [self.n, self.rows, self.columns]
    }

    /// The same with more ranks that add nothing.
    pub(crate) fn padded(&self, rank: usize) -> Self {
        let zeros = rank - self.rank;
        let a = self.a.chunks(self.rank * self.columns);
        let a = a.flat_map(|a| [a, &vec![0.0; zeros * self.columns]].concat()).collect();
        let b = self.b.chunks(self.rank).flat_map(|b| [b, &vec![0.0; zeros]].concat()).collect();
        Self { rank, a, b, ..self.clone() }
    }

    /// For the same weight, one that adds nothing.
    pub(crate) fn nothing(&self, rank: usize) -> Self {
        let Self { n, rows, columns, .. } = *self;
        let (a, b) = (vec![0.0; n * rank * columns], vec![0.0; n * rows * rank]);
        Self { rank, a, b, ..self.clone() }
    }

    /// Some rows of a single one.
    fn part(&self, first: usize, rows: usize) -> Self {
        let b = self.b[first * self.rank..(first + rows) * self.rank].to_vec();
        Self { rows, b, ..self.clone() }
    }

    /// Brings the rows of heads into the order of GGUF, or back: there both halves of the rotated rows alternate.
    fn reorder(&mut self, head: usize, rotary_dim: usize, to_gguf: bool) {
        if !self.rows.is_multiple_of(head) {
            return;
        }
        let half = rotary_dim / 2;
        let line = |line: usize| {
            let (start, at) = (line / head * head, line % head);
            match at {
                _ if at >= rotary_dim => line,
                _ if to_gguf => start + at % 2 * half + at / 2,
                _ if at < half => start + 2 * at,
                _ => start + 2 * (at - half) + 1,
            }
        };
        let rows = (0..self.rows).flat_map(|row| &self.b[line(row) * self.rank..(line(row) + 1) * self.rank]);
        self.b = rows.copied().collect();
    }

    /// What it adds to some rows, of all matrices together.
    pub(crate) fn add_to(&self, numbers: &mut [f32], first_row: usize) {
        for (row, numbers) in (first_row..).zip(numbers.chunks_mut(self.columns)) {
            let a = &self.a[row / self.rows * self.rank * self.columns..];
            for (b, a) in self.b[row * self.rank..(row + 1) * self.rank].iter().zip(a.chunks(self.columns)) {
                let factor = b * self.scale;
                numbers.iter_mut().zip(a).for_each(|(number, a)| *number += factor * a);
            }
        }
    }

    /// The transposed, for a matrix whose rows are looked up.
    pub(crate) fn transposed(&self) -> Self {
        let turned = |from: &[f32], [rows, columns]: [usize; 2]| -> Vec<f32> {
            (0..columns).flat_map(|column| (0..rows).map(move |row| from[row * columns + column])).collect()
        };
        let a = turned(&self.b, [self.rows, self.rank]);
        let b = turned(&self.a, [self.rank, self.columns]);
        Self { rows: self.columns, columns: self.rows, a, b, ..self.clone() }
    }
}

/// Checks what a GGUF file says of itself; its alpha.
fn alpha(path: &Path, checkpoint: &Checkpoint, base: &Base<'_>) -> Result<f32, Error> {
    let expect = |key: &str, expected: &str| match checkpoint.metadata().get(key).and_then(Value::as_text) {
        Some(found) if found == expected => Ok(()),
        found => {
            let found = found.map_or("none".to_owned(), quoted);
            let what = format!("expected {}, found {found}", quoted(expected));
            Err(refused(path, Place::Key(key.to_owned()), what))
        }
    };
    expect(TYPE, "adapter")?;
    expect(ADAPTER_TYPE, "lora")?;
    expect(ARCHITECTURE, base.architecture())?;
    if checkpoint.metadata().contains_key(INVOCATION) {
        let what = "an adapter that begins at certain tokens (aLoRA) is not supported";
        return Err(refused(path, Place::Key(INVOCATION.to_owned()), what));
    }
    let alpha = checkpoint.metadata().get(ALPHA).map(|value| value.to_f64().filter(|x| x.is_finite()));
    match alpha {
        Some(Some(alpha)) => Ok(alpha as f32),
        Some(None) | None => {
            Err(refused(path, Place::Key(ALPHA.to_owned()), "expected a number, found none"))
        }
    }
}

/// The tensors of a file, by the weight that they are for.
fn pairs(path: &Path, checkpoint: &Checkpoint, is_peft: bool) -> Result<BTreeMap<String, Pair>, Error> {
    let mut pairs: BTreeMap<String, Pair> = BTreeMap::new();
    for name in checkpoint.tensors().keys() {
        let found = if is_peft { peft::part(name) } else { gguf_part(name) };
        let Some((own, is_first, is_embedding)) = found else {
            let what = "expected the matrices A and B of LoRA, found another tensor";
            return Err(refused(path, Place::Tensor(name.clone()), what));
        };
        let pair = pairs.entry(own.to_owned()).or_default();
        pair.is_embedding |= is_embedding;
        let place = if is_first { &mut pair.a } else { &mut pair.b };
        *place = Some(name.clone());
    }
    if pairs.is_empty() {
        return Err(refused(path, Place::Whole, "expected the matrices of LoRA, found no tensor"));
    }
    Ok(pairs)
}

/// The weight that a tensor of GGUF is for, whether it is A, and whether rows of A are looked up.
fn gguf_part(name: &str) -> Option<(&str, bool, bool)> {
    let (own, is_first) = match (name.strip_suffix(LORA_A), name.strip_suffix(LORA_B)) {
        (Some(own), _) => (own, true),
        (None, Some(own)) => (own, false),
        (None, None) => return None,
    };
    let own = without_ending(own);
    Some((own, is_first, own == EMBEDDING))
}

fn without_ending(name: &str) -> &str {
    name.strip_suffix(WEIGHT).unwrap_or(name)
}
