//! Every fused kernel against the definition of what it fuses.
//!
//! In: a graph, numbers for it, a target and how fusion is steered. The reference evaluator gives the value of every
//! node; each kernel is verified, interpreted on exactly the values it loads, and must store the values it stands for.
//! So an error is found at its kernel, not at the end of a model. `blocks.rs`, `cases.rs` and `random.rs` bring the
//! graphs; `jit.rs` runs the kernels as machine code, `gpu.rs` as code for GPUs; `races.rs` breaks them, and `road.rs`
//! takes whole graphs to results. `bounds.rs` says what rounding in blocks allows.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that does not hold panics, its helpers too")]

mod blocks;
mod bounds;
mod cases;
mod generate;
#[cfg(feature = "gpu")]
mod gpu;
#[cfg(not(feature = "gpu"))]
#[path = "no_gpu.rs"]
mod gpu;
mod jit;
mod races;
mod random;
mod road;
mod shrink;

use std::collections::BTreeMap;

use fusebox_compiler::error::Error;
use fusebox_compiler::foundation::entity::List;
use fusebox_compiler::fuse::hazard::protect;
use fusebox_compiler::fuse::merge::{Partition, Steering, partition};
use fusebox_compiler::graph::op::Op;
use fusebox_compiler::graph::{Graph, NodeId};
use fusebox_compiler::kernel::lower::params::{Buffer as Binding, storage_of};
use fusebox_compiler::kernel::lower::{Bound, lower};
use fusebox_compiler::kernel::parse::parse;
use fusebox_compiler::kernel::price::LoweredPrice;
use fusebox_compiler::kernel::run::memory::{Buffer, Buffers};
use fusebox_compiler::kernel::run::run;
use fusebox_compiler::kernel::{Access, Kernel, Param, ParamId};
use fusebox_compiler::options::Options;
use fusebox_compiler::prepare::prepare_kernel;
use fusebox_compiler::reference::compare::{Tolerance, close};
use fusebox_compiler::reference::{Bindings, evaluate_all};
use fusebox_compiler::target::Target;
use fusebox_compiler::tensor::label::Label;
use fusebox_compiler::tensor::shape::Shape;
use fusebox_compiler::tensor::value::{Data, Value};

use self::bounds::{of_kernels, steps};

/// Fuses a graph and checks every kernel; the error names the kernel and the first element that differs.
pub(crate) fn check(
    graph: &Graph,
    bindings: &Bindings,
    target: &Target,
    steering: Steering,
) -> Result<Partition, String> {
    check_within(graph, bindings, target, steering, of_kernels(graph))
}

/// The same with a tolerance of the caller's.
pub(crate) fn check_within(
    graph: &Graph,
    bindings: &Bindings,
    target: &Target,
    steering: Steering,
    tolerance: Tolerance,
) -> Result<Partition, String> {
    check_by(graph, bindings, target, steering, (tolerance, None))
}

/// A kernel that has been interpreted.
pub(crate) struct Interpreted<'a> {
    pub(crate) kernel: &'a Kernel,
    pub(crate) symbols: &'a BTreeMap<Label, i64>,
    /// The bytes of each weight, as a file holds them.
    pub(crate) stored: Vec<Option<&'a [u8]>>,
    pub(crate) before: Buffers,
    pub(crate) after: &'a Buffers,
}

/// Another way to run a kernel; says what differs.
pub(crate) type Witness = fn(&Interpreted<'_>) -> Result<(), String>;

/// The same with a witness of every kernel.
pub(crate) fn check_by(
    graph: &Graph,
    bindings: &Bindings,
    target: &Target,
    steering: Steering,
    (tolerance, witness): (Tolerance, Option<Witness>),
) -> Result<Partition, String> {
    let graph = &protect(graph);
    let values = evaluate_all(graph, bindings).map_err(|error| error.to_string())?;
    let partition = partition(graph, &mut LoweredPrice::new(graph, target), steering);
    every_value_has_one_launch(graph, &partition)?;
    for roots in &partition.regions {
        let kernels = lower(graph, &partition.cut, roots, target).map_err(|_| "too large".to_owned())?;
        let kernels = prepared(kernels, target).map_err(|error| error.to_string())?;
        let checker = Checker { witness, ..Checker::new(graph, bindings, &values, roots) };
        check_launch(checker, &partition, &kernels, tolerance)?;
    }
    Ok(partition)
}

/// The kernels as the target runs them.
fn prepared(kernels: Vec<Bound>, target: &Target) -> Result<Vec<Bound>, Error> {
    let options = Options::for_target(*target);
    kernels.into_iter().map(|(kernel, bound)| Ok((prepare_kernel(&kernel, &options)?, bound))).collect()
}

/// Runs the kernels of one region on the values it loads and compares what they store.
fn check_launch(
    mut checker: Checker<'_>,
    partition: &Partition,
    kernels: &[Bound],
    tolerance: Tolerance,
) -> Result<(), String> {
    for bound in kernels {
        checker
            .kernel(partition, bound, tolerance)
            .map_err(|what| format!("{what}\n{}\n{}", bound.0, checker.graph))?;
    }
    Ok(())
}

/// Every stored value is stored once; whatever is loaded was stored before, and no state was overwritten meanwhile.
fn every_value_has_one_launch(graph: &Graph, partition: &Partition) -> Result<(), String> {
    let cut = &partition.cut;
    let mut stored: Vec<NodeId> = partition.regions.concat();
    stored.sort();
    if stored != cut.nodes().collect::<Vec<_>>() {
        return Err(format!("the launches store {stored:?}\n{graph}"));
    }
    let mut done: Vec<NodeId> = Vec::new();
    for roots in &partition.regions {
        for load in cut.loads(graph, &cut.cone(graph, roots)) {
            if cut.has(load) && !done.contains(&load) {
                return Err(format!("{load} is loaded by {roots:?} before it is stored\n{graph}"));
            }
            let overwrites = |node: &&NodeId| {
                matches!(graph.nodes[**node].op, Op::Write { .. }) && graph.nodes[**node].args[0] == load
            };
            if let Some(write) = done.iter().chain(roots).find(overwrites) {
                return Err(format!("{load} is loaded by {roots:?}, which {write} overwrites\n{graph}"));
            }
        }
        done.extend(roots);
    }
    Ok(())
}

struct Checker<'a> {
    graph: &'a Graph,
    bindings: &'a Bindings,
    values: &'a List<NodeId, Value>,
    roots: &'a [NodeId],
    witness: Option<Witness>,
    scratch: BTreeMap<Binding, Buffer>,
}

impl<'a> Checker<'a> {
    fn new(
        graph: &'a Graph,
        bindings: &'a Bindings,
        values: &'a List<NodeId, Value>,
        roots: &'a [NodeId],
    ) -> Self {
        Self { graph, bindings, values, roots, witness: None, scratch: BTreeMap::new() }
    }

    fn kernel(&mut self, partition: &Partition, bound: &Bound, tolerance: Tolerance) -> Result<(), String> {
        let (kernel, bindings) = bound;
        let complaints = fusebox_compiler::kernel::verify::verify(kernel);
        if let Some(complaint) = complaints.first() {
            return Err(complaint.to_string());
        }
        reads_back(kernel)?;
        let loads = partition.cut.loads(self.graph, &partition.cut.cone(self.graph, self.roots));
        let mut memory: Buffers = Buffers(List::default());
        for (param, binding) in kernel.params.values().zip(bindings) {
            memory.0.push(self.buffer(param, *binding, &loads));
        }
        let before = self.witness.map(|_| memory.clone());
        run(kernel, &self.bindings.symbols, &mut memory).map_err(|fault| fault.to_string())?;
        if let (Some(witness), Some(before)) = (self.witness, before) {
            let stored = bindings.iter().map(|binding| self.bytes(*binding)).collect();
            let symbols = &self.bindings.symbols;
            witness(&Interpreted { kernel, symbols, stored, before, after: &memory })?;
        }
        for (index, binding) in bindings.iter().enumerate() {
            self.stored(kernel, nth(kernel, index), *binding, &memory, tolerance)?;
        }
        Ok(())
    }

    /// The bytes of a weight.
    fn bytes(&self, binding: Binding) -> Option<&[u8]> {
        let Binding::Node(node) = binding else { return None };
        let Op::Weight { name, .. } = &self.graph.nodes[node].op else { return None };
        Some(&self.bindings.weights[name].bytes)
    }

    /// What a parameter holds before the kernel runs.
    fn buffer(&self, param: &Param, binding: Binding, loads: &[NodeId]) -> Buffer {
        let node = match binding {
            Binding::Node(node) => node,
            Binding::Scratch(..) => {
                let empty = Buffer::zeros(param.format.dtype(), param.shape.max_len());
                return self.scratch.get(&binding).cloned().unwrap_or(empty);
            }
        };
        if let Op::Weight { name, format, .. } = &self.graph.nodes[node].op {
            return Buffer::stored(*format, &self.bindings.weights[name].bytes).expect("whole blocks");
        }
        let held = match param.access {
            Access::Read => loads.iter().find(|load| storage_of(self.graph, **load) == node).copied(),
            // A write changes part of a state; the rest stays as it was.
            Access::Write => {
                let write =
                    self.roots.iter().find(|root| storage_of(self.graph, **root) == node && **root != node);
                write.map(|write| self.graph.nodes[*write].args[0])
            }
        };
        let zeros = || Buffer::zeros(param.format.dtype(), param.shape.max_len());
        held.map_or_else(zeros, |held| laid_out(&self.values[held], &param.shape))
    }

    fn stored(
        &mut self,
        kernel: &Kernel,
        id: ParamId,
        binding: Binding,
        memory: &Buffers,
        tolerance: Tolerance,
    ) -> Result<(), String> {
        let param = &kernel.params[id];
        if param.access == Access::Read {
            return Ok(());
        }
        let Binding::Node(node) = binding else {
            self.scratch.insert(binding, memory.0[id].clone());
            return Ok(());
        };
        let root = self.roots.iter().find(|root| storage_of(self.graph, **root) == node);
        let expected = &self.values[*root.ok_or("stores what is no root")?];
        let actual = taken_out(&memory.0[id], &param.shape, expected);
        if param.format.block_len() > 1 {
            return close_in_blocks(param, expected, &actual, tolerance);
        }
        close(expected, &actual, tolerance).map_err(|what| format!("{}: {what}", param.name))
    }
}

/// Whether what a state of blocks holds is what it should be.
fn close_in_blocks(
    param: &Param,
    expected: &Value,
    actual: &Value,
    tolerance: Tolerance,
) -> Result<(), String> {
    let numbers = |value: &Value| value.floats().iter().map(|x| f64::from(*x)).collect::<Vec<_>>();
    let (wanted, found) = (numbers(expected), numbers(actual));
    let typical = (wanted.iter().map(|x| x * x).sum::<f64>() / wanted.len().max(1) as f64).sqrt();
    let steps = steps(param.format, &wanted);
    for (element, ((a, b), step)) in wanted.iter().zip(&found).zip(steps).enumerate() {
        let allowed = step + tolerance.absolute + tolerance.relative * typical.max(a.abs());
        if (a - b).abs() > allowed || b.is_nan() {
            return Err(format!("element {element} of {}: expected {a}, got {b}", param.name));
        }
    }
    Ok(())
}

/// A kernel's text reads back to a kernel of the same text.
fn reads_back(kernel: &Kernel) -> Result<(), String> {
    let text = kernel.to_string();
    let back = parse(&text).map_err(|error| format!("does not read back: {error}"))?;
    if back.to_string() == text { Ok(()) } else { Err(format!("reads back as\n{back}")) }
}

fn nth(kernel: &Kernel, index: usize) -> ParamId {
    kernel.params.ids().nth(index).expect("a parameter for each binding")
}

/// A value as it lies in a buffer for the largest sizes.
fn laid_out(value: &Value, shape: &Shape) -> Buffer {
    let mut buffer = Buffer::zeros(value.dtype, shape.max_len());
    for (from, to) in places(value, shape) {
        match (&mut buffer, &value.data) {
            (Buffer::Float(data), Data::Float(own)) => data[to] = own[from],
            (Buffer::Int(data), Data::Int(own)) => data[to] = own[from],
            _ => unreachable!("a buffer has the type of its value"),
        }
    }
    buffer
}

/// The part of a buffer that a value of the like of `like` takes.
fn taken_out(buffer: &Buffer, shape: &Shape, like: &Value) -> Value {
    let places = places(like, shape);
    let mut value = like.clone();
    for (to, from) in places {
        match (buffer, &mut value.data) {
            (Buffer::Float(data), Data::Float(own)) => own[to] = data[from],
            (Buffer::Int(data), Data::Int(own)) => own[to] = data[from],
            _ => unreachable!("a buffer has the type of its value"),
        }
    }
    value
}

/// For each element of a value, where it lies in a buffer of a shape.
fn places(value: &Value, shape: &Shape) -> Vec<(usize, usize)> {
    let (own, strides) = (value.strides(), shape.strides());
    let place = |element: usize| {
        let along = value.axes.iter().zip(&own).map(|((axis, size), stride)| {
            let position = element / stride % size;
            position * shape.position(*axis).map_or(0, |axis| strides[axis] as usize)
        });
        (element, along.sum())
    };
    (0..value.len()).map(place).collect()
}
