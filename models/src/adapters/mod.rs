//! Adapters: what is added to a model when it is opened. LoRA changes projections, control vectors change blocks.
//!
//! In: files with their scales, and a model's config and graph. Out: the ranks and the blocks that go into its config,
//! and the bytes of the new weights, or one sentence that says what does not fit.
//! All adapters of a projection become one: rows of their first matrices follow each other, and so do columns of their
//! second, which have the scale in them. So another scale is no other program.
//! Those that a sequence chooses from are one as well, and the sequence's factors on their ranks are an input.
//! The model that they are for: `adapted.rs`. One file of LoRA: `lora.rs`, with the configuration of PEFT in `peft.rs`;
//! control vectors: `control.rs`. Layers add the products in `layers/low_rank.rs`; `quantize/merge.rs` adds them to the
//! weights of a new file.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use fusebox_compiler::graph::Graph;
use fusebox_compiler::graph::op::Op;
use fusebox_compiler::tensor::quant::Format;
use fusebox_runtime::device::Weights;
use fusebox_runtime::error::{Error, Place};

use crate::adapters::adapted::{Base, EMBEDDING, refused};
use crate::adapters::lora::{Lora, Product};
use crate::binding::sizes;
use crate::config::Choices;
use crate::naming::tensors::{CHOICE_A, CHOICE_B, DIRECTION, EXPERTS, LORA_A, LORA_B};

pub(crate) mod adapted;
mod control;
pub(crate) mod lora;
mod peft;

/// What is added to a model.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Adapters {
    /// LoRA adapters, each a GGUF file or a folder of PEFT, with their scales.
    pub loras: Vec<(PathBuf, f32)>,
    /// LoRA adapters that a sequence chooses from.
    pub choices: Vec<Choice>,
    /// Control vectors, each a GGUF file, with their scales.
    pub control_vectors: Vec<(PathBuf, f32)>,
    /// The first and the last block that control vectors change; all of them.
    pub control_layers: Option<[usize; 2]>,
}

/// A LoRA adapter that a sequence may have or not.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// Its name.
    pub name: String,
    /// A GGUF file or a folder of PEFT.
    pub path: PathBuf,
    /// The factor on what it changes.
    pub scale: f32,
}

/// The weights that adapters add to a graph.
#[derive(Debug, Default)]
pub(crate) struct Added {
    pub(crate) ranks: BTreeMap<String, usize>,
    pub(crate) choices: Choices,
    /// The rank of each adapter that a sequence chooses from.
    pub(crate) choice_ranks: Vec<usize>,
    pub(crate) steered: BTreeSet<usize>,
    weights: BTreeMap<String, Weight>,
}

#[derive(Debug)]
struct Weight {
    format: Format,
    bytes: Vec<u8>,
    /// Its rows and columns, of each expert.
    sizes: [usize; 2],
    /// The file and the tensor that it comes from.
    from: (PathBuf, String),
}

impl Adapters {
    /// Whether nothing is added.
    pub fn is_empty(&self) -> bool {
        self.loras.is_empty() && self.choices.is_empty() && self.control_vectors.is_empty()
    }

    /// Reads what is added to the weights of a graph.
    pub(crate) fn read(&self, base: &Base<'_>) -> Result<Added, Error> {
        let mut added = Added::default();
        for (name, products) in self.products(base)? {
            let rank = added.add(&name, [LORA_A, LORA_B], &products);
            added.ranks.insert(name, rank);
        }
        added.add_choices(&self.choices, base)?;
        let directions = control::read(&self.control_vectors, self.control_layers, base)?;
        for (layer, (direction, from)) in directions {
            added.steered.insert(layer);
            let weight = Weight::new(Format::F32, &direction, [1, direction.len()], from);
            added.weights.insert(format!("blk.{layer}.{DIRECTION}"), weight);
        }
        Ok(added)
    }

    /// What is added to each weight of a model.
    pub(crate) fn products(&self, base: &Base<'_>) -> Result<BTreeMap<String, Vec<Product>>, Error> {
        let mut products: BTreeMap<String, Vec<Product>> = BTreeMap::new();
        for (path, strength) in &self.loras {
            for (name, product) in of_one(path, *strength, base)? {
                let all = products.entry(name).or_default();
                if let Some(first) = all.first()
                    && first.sizes() != product.sizes()
                {
                    let what =
                        format!("expected {:?} rows and columns, found {:?}", first.sizes(), product.sizes());
                    let [(path, tensor), _] = product.from;
                    return Err(refused(&path, Place::Tensor(tensor), what));
                }
                all.push(product);
            }
        }
        Ok(products)
    }
}

/// What an adapter adds to each weight of a model.
fn of_one(path: &Path, strength: f32, base: &Base<'_>) -> Result<BTreeMap<String, Product>, Error> {
    let mut lora = Lora::open(path, strength, base)?;
    let mut products = BTreeMap::new();
    for target in &base.targets {
        if let Some(product) = lora.product(target)? {
            products.insert(target.name.clone(), product);
        }
    }
    lora.refuse_unused()?;
    Ok(products)
}

impl Added {
    /// Adds adapters that a sequence chooses from. Each has its rank everywhere: zeros where it changes nothing.
    fn add_choices(&mut self, choices: &[Choice], base: &Base<'_>) -> Result<(), Error> {
        let all: Vec<BTreeMap<String, Product>> =
            choices.iter().map(|own| of_one(&own.path, own.scale, base)).collect::<Result<_, _>>()?;
        let rank = |own: &BTreeMap<String, Product>| own.values().map(|product| product.rank).max();
        self.choice_ranks = all.iter().map(|own| rank(own).unwrap_or(0)).collect();
        self.choices.rank = self.choice_ranks.iter().sum();
        self.choices.names = all.iter().flat_map(BTreeMap::keys).cloned().collect();
        for name in self.choices.names.clone() {
            let Some(any) = all.iter().find_map(|own| own.get(&name)) else { continue };
            let padded = all.iter().zip(&self.choice_ranks).map(|(own, rank)| match own.get(&name) {
                Some(product) => product.padded(*rank),
                None => any.nothing(*rank),
            });
            let padded: Vec<Product> = padded.collect();
            self.add(&name, [CHOICE_A, CHOICE_B], &padded);
        }
        Ok(())
    }

    /// Adds all products of one projection, whose matrices have names with these ends; their ranks together.
    fn add(&mut self, name: &str, [end_a, end_b]: [&str; 2], products: &[Product]) -> usize {
        let Some(first) = products.first() else { return 0 };
        let rank: usize = products.iter().map(|product| product.rank).sum();
        let [n, rows, columns] = [first.n, first.rows, first.columns];
        let a = (0..n).flat_map(|i| {
            products.iter().flat_map(move |own| &own.a[i * own.rank * columns..(i + 1) * own.rank * columns])
        });
        let mut a: Vec<f32> = a.copied().collect();
        let row = |i: usize| {
            let of = move |own: &Product| {
                let row = &own.b[i * own.rank..(i + 1) * own.rank];
                row.iter().map(|b| b * own.scale).collect::<Vec<f32>>()
            };
            products.iter().flat_map(of)
        };
        let b: Vec<f32> = (0..n * rows).flat_map(row).collect();
        let mut sizes = [rank, columns];
        if name == EMBEDDING {
            // Its rows are looked up.
            a = (0..columns).flat_map(|v| (0..rank).map(move |r| r * columns + v)).map(|at| a[at]).collect();
            sizes.reverse();
        }
        let [from_a, from_b] = first.from.clone();
        self.weights.insert(format!("{name}{end_a}"), Weight::narrow(&a, sizes, from_a));
        self.weights.insert(format!("{name}{end_b}"), Weight::narrow(&b, [rows, rank], from_b));
        rank
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.weights.is_empty()
    }

    /// The formats of the new weights.
    pub(crate) fn formats(&self) -> impl Iterator<Item = (String, Format)> {
        self.weights.iter().map(|(name, weight)| (name.clone(), weight.format))
    }

    /// Checks that the graph takes every new weight, in the shape that it has.
    pub(crate) fn check(&self, graph: &Graph) -> Result<(), Error> {
        let wanted = graph.nodes.values().filter_map(|node| match &node.op {
            Op::Weight { name, shape, .. } => Some((name.to_string(), sizes(shape))),
            _ => None,
        });
        let wanted: BTreeMap<String, Vec<usize>> = wanted.collect();
        for (name, weight) in &self.weights {
            let refused = |what| {
                let (path, tensor) = weight.from.clone();
                Error::input(&path, Place::Tensor(tensor), what)
            };
            let Some(shape) = wanted.get(name) else {
                let what =
                    "it changes a matrix that takes no adapter while it runs; `fusebox merge` may merge it";
                return Err(refused(what.to_owned()));
            };
            let of_one = shape.get(usize::from(name.contains(EXPERTS))..).unwrap_or_default();
            let [rows, columns] = weight.sizes;
            let of_first = name.strip_suffix(LORA_A).or(name.strip_suffix(CHOICE_A));
            let is_first = of_first.is_some() || name.ends_with(DIRECTION);
            let expected = if is_first && of_first != Some(EMBEDDING) {
                let (first, rest) = of_one.split_first().map_or((1, of_one), |(first, rest)| (*first, rest));
                if rest.is_empty() { [1, first] } else { [first, rest.iter().product()] }
            } else {
                let (last, rest) = of_one.split_last().map_or((1, of_one), |(last, rest)| (*last, rest));
                [rest.iter().product(), last]
            };
            if expected != [rows, columns] {
                let what = format!(
                    "expected {expected:?} rows and columns, found {:?}: is it for this model?",
                    weight.sizes
                );
                return Err(refused(what));
            }
        }
        Ok(())
    }
}

impl Weight {
    fn new(format: Format, numbers: &[f32], sizes: [usize; 2], from: (PathBuf, String)) -> Self {
        let mut bytes = vec![0; format.bytes_for(numbers.len()).unwrap_or_default()];
        // Any number becomes one of a plain format.
        let _ = format.encode(numbers, &mut bytes);
        Self { format, bytes, sizes, from }
    }

    /// In the smallest format that has all numbers as they are.
    fn narrow(numbers: &[f32], sizes: [usize; 2], from: (PathBuf, String)) -> Self {
        let is_exact = |format: &Format| format.rounded(numbers).is_some_and(|rounded| rounded == numbers);
        let format = [Format::BF16, Format::F16].into_iter().find(is_exact).unwrap_or(Format::F32);
        Self::new(format, numbers, sizes, from)
    }
}

impl Weights for Added {
    fn bytes(&self, name: &str) -> Option<&[u8]> {
        self.weights.get(name).map(|weight| weight.bytes.as_slice())
    }
}
