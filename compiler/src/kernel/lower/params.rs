//! The buffers of a kernel under construction.
//!
//! In: nodes that are loaded or stored. Out: one parameter for each buffer, in order of first use.
//! All versions of a state are one buffer. A kernel that would both read and write a buffer is refused.

use indexmap::IndexMap;

use crate::foundation::entity::{Id, List};
use crate::graph::op::Op;
use crate::graph::{Graph, NodeId};
use crate::kernel::{Access, Param, ParamId};
use crate::tensor::dtype::DType;
use crate::tensor::quant::Format;
use crate::tensor::shape::Shape;

/// What a parameter of a kernel is bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Buffer {
    /// The storage of a node; for any version of a state, its `State` node.
    Node(NodeId),
    /// Partial results that several tasks compute.
    Scratch(NodeId, Scratch),
}

/// The partial results of attention, or of a sum over experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scratch {
    /// The weighted sum, or the products of routed rows.
    Sum,
    /// The sum of the weights.
    Weights,
    /// The largest score, to which the weights are relative.
    Most,
}

#[derive(Clone, Default)]
pub(super) struct Params {
    buffers: IndexMap<Buffer, Param>,
    /// Whether some buffer is both read and written.
    pub(super) clash: bool,
}

impl Params {
    pub(super) fn read(&mut self, graph: &Graph, node: NodeId) -> ParamId {
        self.node(graph, node, Access::Read)
    }

    pub(super) fn write(&mut self, graph: &Graph, node: NodeId) -> ParamId {
        self.node(graph, node, Access::Write)
    }

    pub(super) fn scratch(&mut self, node: NodeId, which: Scratch, shape: &Shape, access: Access) -> ParamId {
        let name = match which {
            Scratch::Sum => "partial-sums",
            Scratch::Weights => "partial-weights",
            Scratch::Most => "partial-maxima",
        };
        let param = Param { name: name.into(), format: Format::F32, shape: shape.clone(), access };
        self.add(Buffer::Scratch(node, which), param)
    }

    pub(super) fn finish(self) -> (List<ParamId, Param>, Vec<Buffer>) {
        let (buffers, params): (Vec<_>, Vec<_>) = self.buffers.into_iter().unzip();
        (params.into_iter().collect(), buffers)
    }

    pub(super) fn accesses(&self) -> Vec<(Buffer, Access)> {
        self.buffers.iter().map(|(buffer, param)| (*buffer, param.access)).collect()
    }

    fn node(&mut self, graph: &Graph, node: NodeId, access: Access) -> ParamId {
        let storage = storage_of(graph, node);
        let found = &graph.nodes[storage];
        let (name, format) = match &found.op {
            Op::Weight { name, format, .. } | Op::State { name, format, .. } => (name.clone(), *format),
            Op::Input { name, .. } => (name.clone(), Format::of(found.ty.dtype)),
            Op::Table { .. } => ("table".into(), Format::of(DType::F32)),
            op => (format!("{}{storage}", op.name()).into(), Format::of(found.ty.dtype)),
        };
        self.add(Buffer::Node(storage), Param { name, format, shape: found.ty.shape.clone(), access })
    }

    fn add(&mut self, buffer: Buffer, param: Param) -> ParamId {
        let access = param.access;
        let entry = self.buffers.entry(buffer);
        let id = ParamId::from_index(entry.index());
        self.clash |= entry.or_insert(param).access != access;
        id
    }
}

/// The node whose storage holds a value: of a write, the state it writes to.
pub fn storage_of(graph: &Graph, mut node: NodeId) -> NodeId {
    while let Op::Write { .. } = graph.nodes[node].op {
        node = graph.nodes[node].args[0];
    }
    node
}
