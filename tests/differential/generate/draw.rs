//! What an operation is given: nodes, axes and shapes, drawn at random.
//!
//! In: a test that a node must pass, or nothing. Out: one of those that do, mostly one that nothing reads yet.

use std::sync::Arc;

use fusebox_compiler::graph::NodeId;
use fusebox_compiler::graph::op::Op;
use fusebox_compiler::tensor::dtype::DType;
use fusebox_compiler::tensor::shape::{Axis, Shape};
use fusebox_compiler::tensor::sym::Sym;

use super::known::Known;
use super::{Generator, label};

impl Generator {
    pub(super) fn chance(&mut self, one_in: usize) -> bool {
        self.random.below(one_in) == 0
    }

    pub(super) fn pick<X: Clone>(&mut self, from: &[X]) -> Option<X> {
        (!from.is_empty()).then(|| from[self.random.below(from.len())].clone())
    }

    pub(super) fn of(&self, node: NodeId) -> Known {
        let position = self.graph.nodes.ids().position(|id| id == node).unwrap();
        self.known[position]
    }

    pub(super) fn shape(&self, node: NodeId) -> Shape {
        self.graph.nodes[node].ty.shape.clone()
    }

    pub(super) fn dtype(&self, node: NodeId) -> DType {
        self.graph.nodes[node].ty.dtype
    }

    /// A node that satisfies a test, mostly one that nothing reads yet.
    pub(super) fn any(&mut self, test: impl Fn(&Self, NodeId) -> bool) -> Option<NodeId> {
        let fitting: Vec<NodeId> = self.graph.nodes.ids().filter(|id| test(self, *id)).collect();
        let unread: Vec<NodeId> = fitting.iter().copied().filter(|id| self.is_unread(*id)).collect();
        if !unread.is_empty() && !self.chance(3) {
            return self.pick(&unread);
        }
        let recent = if self.chance(2) { fitting.len() } else { fitting.len().min(4) };
        let from = fitting.len() - recent;
        self.pick(&fitting[from..])
    }

    pub(super) fn is_unread(&self, node: NodeId) -> bool {
        !self.graph.nodes.values().any(|other| other.args.contains(&node))
    }

    pub(super) fn float(&mut self) -> Option<NodeId> {
        let node = self.any(|g, id| g.dtype(id).is_float())?;
        self.single(node)
    }

    /// The same value in single precision.
    pub(super) fn single(&mut self, node: NodeId) -> Option<NodeId> {
        let known = self.of(node);
        if self.dtype(node) == DType::F32 {
            Some(node)
        } else {
            self.push(Op::Cast(DType::F32), &[node], known)
        }
    }

    pub(super) fn exact(&mut self) -> Option<NodeId> {
        let node = self.any(|g, id| g.of(id).exact && matches!(g.dtype(id), DType::F32 | DType::I32))?;
        Some(node)
    }

    pub(super) fn axis_of(&mut self, node: NodeId) -> Option<(Axis, Sym)> {
        let axes: Vec<(Axis, Sym)> = self.shape(node).iter().cloned().collect();
        self.pick(&axes)
    }

    pub(super) fn some_shape(&mut self, fixed: bool) -> Shape {
        let rank = self.random.below(4);
        let mut axes: Vec<(Axis, Sym)> = Vec::new();
        for _ in 0..rank {
            let dim = self.dims[self.random.below(self.dims.len())].clone();
            let fits = !fixed || dim.1.as_const().is_some();
            if fits && axes.iter().all(|(axis, _)| *axis != dim.0) {
                axes.push(dim);
            }
        }
        Shape::new(axes).unwrap()
    }

    /// An axis that a value lacks.
    pub(super) fn free(&mut self, node: NodeId) -> Option<Axis> {
        let shape = self.shape(node);
        let names = ["e", "f", "g", "h", "a", "b", "c", "d"].map(label);
        let free: Vec<Axis> = names.into_iter().filter(|axis| !shape.has(*axis)).collect();
        self.pick(&free)
    }

    pub(super) fn name(&self, stem: &str) -> Arc<str> {
        format!("{stem}{}", self.graph.nodes.len()).into()
    }
}
