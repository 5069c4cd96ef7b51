//! Numbers to try a graph with: the same for the same seed, on every machine.
//!
//! In: a graph, a seed and the symbols that matter. Out: [`Bindings`] for everything the graph names.
//! The numbers of a tensor depend on the seed, its name and its type alone: rewriting a graph does not change them.
//! Weights are bytes of their format that decode to numbers of about `1/√len` of their last axis, so that values keep
//! their size from layer to layer.

use std::hash::Hasher;

use fusebox_formats::{Factor, FactorKind, Numbers as Codes};

use super::bind::Scope;
use super::{Bindings, Stored};
use crate::foundation::hash::StableHasher;
use crate::foundation::random::Random;
use crate::graph::op::Op;
use crate::graph::print::symbols;
use crate::graph::{Graph, Node};
use crate::tensor::dtype::DType;
use crate::tensor::label::Label;
use crate::tensor::quant::Format;
use crate::tensor::shape::{Axis, Shape};
use crate::tensor::value::Value;

/// Whole-number inputs are below this.
const WHOLE_BELOW: u64 = 8;

/// Bindings for everything a graph names; a symbol that is not given has its usual value.
///
/// # Panics
/// Where a given symbol is outside its bounds.
pub fn bindings(graph: &Graph, seed: u64, given: &[(Label, i64)]) -> Bindings {
    let mut bindings = Bindings::default();
    for symbol in symbols(graph) {
        let value =
            given.iter().find(|(name, _)| *name == symbol.name).map_or(symbol.near, |(_, value)| *value);
        bindings.symbols.insert(symbol.name, value);
    }
    let known = bindings.clone();
    let scope = Scope::new(graph, &known).expect("every symbol is given within its bounds");
    for node in graph.nodes.values() {
        if let Op::Input { name, .. } | Op::Weight { name, .. } | Op::State { name, .. } = &node.op {
            let mut numbers = Numbers::of(seed, name);
            let axes = scope.axes(&node.ty.shape);
            if let Op::Weight { shape, format, .. } = &node.op {
                bindings.weights.insert(name.clone(), numbers.stored(*format, shape));
            } else if let Op::Input { .. } = &node.op {
                bindings.inputs.insert(name.clone(), numbers.value(node.ty.dtype, axes));
            } else {
                bindings.states.insert(name.clone(), numbers.value(node.ty.dtype, axes));
            }
        }
    }
    for node in graph.nodes.values() {
        if let Op::Write { axes } = &node.op {
            places(graph, node, axes, &scope, seed, &mut bindings);
        }
    }
    bindings
}

/// Inputs that say where elements are written get places that all differ, as a caller promises.
fn places(graph: &Graph, write: &Node, axes: &[Axis], scope: &Scope<'_>, seed: u64, bindings: &mut Bindings) {
    let inputs = write.args[2..].iter().map(|index| match &graph.nodes[*index].op {
        Op::Input { name, ty } => Some((name, scope.axes(&ty.shape))),
        _ => None,
    });
    let Some(inputs) = inputs.collect::<Option<Vec<_>>>() else { return };
    let sizes: Vec<usize> =
        axes.iter().map(|axis| write.ty.shape.size(*axis).map_or(1, |size| size.most() as usize)).collect();
    let n: usize = inputs.iter().flat_map(|(_, axes)| axes).map(|(_, size)| *size).max().unwrap_or(1);
    let n_places = sizes.iter().product::<usize>().max(1);
    // Neighbours lie far apart, so that order does not hide a mistake.
    let step = (n_places / 2 + 1..=n_places + 1).find(|step| gcd(*step, n_places) == 1).unwrap_or(1);
    let first = Random::new(seed).below(n_places);
    let mut rest: Vec<usize> = (0..n).map(|element| (first + element * step) % n_places).collect();
    for ((name, axes), size) in inputs.iter().zip(&sizes).rev() {
        let numbers = rest.iter().map(|place| (place % size) as i32).collect();
        bindings.inputs.insert((*name).clone(), Value::int(axes.clone(), numbers));
        for place in &mut rest {
            *place /= size;
        }
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// A stream of numbers, elements and tensors.
#[derive(Clone, Debug)]
pub struct Numbers(Random);

impl Numbers {
    /// The stream of a seed and a name.
    pub fn of(seed: u64, name: &str) -> Self {
        let mut hasher = StableHasher::default();
        hasher.write_u64(seed);
        hasher.write(name.as_bytes());
        Self(Random::new(hasher.finish()))
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0.bits()
    }

    /// A number from 0 up to but not including 1.
    pub fn fraction(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1 << 24) as f32
    }

    /// A number from -1 to 1.
    pub fn signed(&mut self) -> f32 {
        self.fraction() * 2.0 - 1.0
    }

    /// A value: floats from -1 to 1, or small whole numbers that are not negative.
    pub fn value(&mut self, dtype: DType, axes: Vec<(Axis, usize)>) -> Value {
        let len = axes.iter().map(|(_, size)| size).product();
        match dtype {
            DType::F32 | DType::F16 | DType::BF16 => {
                Value::float(dtype, axes, (0..len).map(|_| self.signed()).collect())
            }
            DType::I32 => Value::int(axes, (0..len).map(|_| self.small()).collect()),
        }
    }

    /// A stored tensor whose elements are about `1/√len` of the last axis.
    pub fn stored(&mut self, format: Format, shape: &Shape) -> Stored {
        let row_len = shape.iter().last().map_or(1, |(_, size)| size.most().max(1));
        let most = 1.0 / (row_len as f32).sqrt();
        // Elements that do not fill whole blocks have no bytes; the evaluator says so.
        let n_bytes = format.bytes_for(shape.max_len()).unwrap_or(0);
        let mut bytes = vec![0; n_bytes];
        if let Format::Int8 { .. } = format {
            let (elements, scales) = bytes.split_at_mut(shape.max_len().min(n_bytes));
            self.fill(elements);
            for scale in scales.chunks_exact_mut(4) {
                put_f32(scale, self.about(most / 128.0));
            }
        } else {
            for block in bytes.chunks_exact_mut(format.block_bytes()) {
                self.block(format, most, block);
            }
        }
        Stored { format, bytes: bytes.into() }
    }

    /// One block: random bits, then scales and offsets that make its elements at most about `most`.
    fn block(&mut self, format: Format, most: f32, block: &mut [u8]) {
        self.fill(block);
        let Some(blocks) = format.blocks() else { return self.plain(format, most, block) };
        let size =
            |numbers: &Codes| numbers.ends().map(|end| end.abs() as f32).into_iter().fold(1.0, f32::max);
        let groups = blocks.groups.as_ref();
        let of_scales = groups.map_or(1.0, |groups| size(&groups.scales));
        let of_offsets = groups.and_then(|groups| groups.offsets.as_ref()).map(size);
        // With an offset that moves them, elements from zero on are twice as large.
        let wide = if blocks.offset.is_some() { 2.0 } else { 1.0 };
        put_factor(block, blocks.scale, self.about(wide * most / (of_scales * size(&blocks.quanta))));
        if let Some(offset) = blocks.offset {
            // The offset of a group is subtracted.
            let value = match of_offsets {
                Some(size) => self.about(most / size),
                None => -self.about(most),
            };
            put_factor(block, offset, value);
        }
    }

    /// One plain element.
    fn plain(&mut self, format: Format, most: f32, block: &mut [u8]) {
        match format.plain() {
            Some(DType::F32) => put_f32(block, most * self.signed()),
            Some(DType::F16) => block.copy_from_slice(&half_bytes(most * self.signed())),
            Some(DType::BF16) => {
                block.copy_from_slice(&half::bf16::from_f32(most * self.signed()).to_le_bytes());
            }
            Some(DType::I32) => block.copy_from_slice(&self.small().to_le_bytes()),
            None => unreachable!("the scales of `Int8` follow all elements, see `stored`"),
        }
    }

    fn fill(&mut self, bytes: &mut [u8]) {
        for byte in bytes {
            *byte = self.bits() as u8;
        }
    }

    /// A scale: half of `most` to all of it, so that no two blocks have the same.
    fn about(&mut self, most: f32) -> f32 {
        most * (1.0 + self.fraction()) / 2.0
    }

    fn small(&mut self) -> i32 {
        (self.bits() % WHOLE_BELOW) as i32
    }
}

fn half_bytes(value: f32) -> [u8; 2] {
    half::f16::from_f32(value).to_le_bytes()
}

fn put_f32(bytes: &mut [u8], value: f32) {
    bytes.copy_from_slice(&value.to_le_bytes());
}

/// Writes a scale, rounded to what the block can hold.
fn put_factor(block: &mut [u8], Factor { at, kind }: Factor, value: f32) {
    match kind {
        FactorKind::F16 => block[at..at + 2].copy_from_slice(&half_bytes(value)),
        FactorKind::F32 => put_f32(&mut block[at..at + 4], value),
        FactorKind::HalfE8M0 => block[at] = (value.log2().ceil() + 128.0) as u8,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::build::Builder;
    use crate::reference::evaluate;

    #[test]
    fn weights_of_every_format_are_moderate_and_lively() {
        let formats = Format::FIXED.into_iter().chain([Format::Int8 { group: 64 }]);
        for format in formats.filter(|format| *format != Format::I32) {
            let g = Builder::new();
            let w = g.weight("w", format, &[&g.dim("e", 4), &g.dim("d", 1024)]);
            let graph = g.finish(&[("w", &w)]).unwrap();
            let results = evaluate(&graph, &bindings(&graph, 7, &[])).unwrap();
            let w = super::super::index::numbers(&results.outputs["w"]);
            let rms = (w.iter().map(|x| x * x).sum::<f64>() / w.len() as f64).sqrt() * 32.0;
            let most = w.iter().fold(0.0, |most: f64, x| most.max(x.abs())) * 32.0;
            assert!((0.2..0.8).contains(&rms), "{format}: {rms}");
            assert!((0.5..2.01).contains(&most), "{format}: {most}");
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_numbers_and_another_gives_others() {
        let g = Builder::new();
        let x = g.input("x", DType::F16, &[&g.dim("d", 32)]);
        let y = g.input("y", DType::F16, &[&g.dim("d", 32)]);
        let graph = g.finish(&[("z", &g.concat(&g.dim("d", 32), &[&x, &y]))]).unwrap();
        let inputs = |seed| bindings(&graph, seed, &[]).inputs;
        assert_eq!(inputs(1), inputs(1));
        assert_ne!(inputs(1)["x"], inputs(2)["x"]);
        assert_ne!(inputs(1)["x"], inputs(1)["y"]);
    }
}
