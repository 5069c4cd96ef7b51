//! The graph: a model as its author wrote it, a list of operations on tensors with named axes.
//!
//! In: lazy handles from `build.rs`, or text. Out: a [`Graph`], printed, parsed and verified here. A node comes after
//! its arguments; every node has the type `infer` gives it. Nothing runs here: `reference/` says what an operation
//! means. Start with `op.rs`.

use std::fmt;
use std::sync::Arc;

use crate::define_id;
use crate::foundation::entity::List;
use crate::tensor::quant::Format;
use crate::tensor::shape::Type;

mod attributes;
pub mod build;
pub mod divide;
pub(crate) mod infer;
pub mod narrow;
pub mod op;
pub mod parse;
mod parse_op;
pub(crate) mod print;
pub mod verify;

use infer::{Misfit, infer};
use op::Op;

define_id!(
    /// A node of a graph.
    NodeId,
    "%"
);

define_id!(
    /// A named part of a graph: one layer of a model, mostly.
    BlockId,
    "block"
);

/// A name that is longer than a label: a weight, a state, an output.
pub type Name = Arc<str>;

/// The place in the author's code that made a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Site {
    /// The source file.
    pub file: &'static str,
    /// The line, counted from 1.
    pub line: u32,
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// One operation with its arguments and the type of its result.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// What is done.
    pub op: Op,
    /// What it is done to; all come earlier in the graph.
    pub args: Vec<NodeId>,
    /// What comes out.
    pub ty: Type,
    /// The part of the model it belongs to.
    pub block: Option<BlockId>,
    /// Where the author wrote it, when known.
    pub site: Option<Site>,
}

/// A list of operations, with the values that are wanted of it.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Graph {
    /// Operations in an order in which they can be done.
    pub nodes: List<NodeId, Node>,
    /// The names of the parts.
    pub blocks: List<BlockId, Name>,
    /// The values the caller gets back, by name.
    pub outputs: Vec<(Name, NodeId)>,
}

impl Graph {
    /// Appends a node whose type was inferred.
    pub fn push(&mut self, node: Node) -> NodeId {
        self.nodes.push(node)
    }

    /// What must be computed: the outputs, then every write to a state, in order, each once.
    pub fn roots(&self) -> Vec<NodeId> {
        let mut roots: Vec<NodeId> = Vec::new();
        let writes =
            self.nodes.iter().filter(|(_, node)| matches!(node.op, Op::Write { .. })).map(|(id, _)| id);
        for id in self.outputs.iter().map(|(_, id)| *id).chain(writes) {
            if !roots.contains(&id) {
                roots.push(id);
            }
        }
        roots
    }

    /// The name by which the caller gets a value back, the first of several.
    pub fn output_of(&self, node: NodeId) -> Option<&Name> {
        self.outputs.iter().find(|(_, output)| *output == node).map(|(name, _)| name)
    }

    /// For every node, the nodes that read it; one that reads it twice stands twice.
    pub fn readers(&self) -> List<NodeId, Vec<NodeId>> {
        let mut readers: List<NodeId, Vec<NodeId>> = self.nodes.ids().map(|_| Vec::new()).collect();
        for (id, node) in self.nodes.iter() {
            for arg in &node.args {
                readers[*arg].push(id);
            }
        }
        readers
    }

    /// The state that a `State` or `Write` node holds; nothing for other nodes.
    pub fn state_of(&self, node: NodeId) -> Option<&Name> {
        if let Op::State { name, .. } = &self.written(node)?.op { Some(name) } else { None }
    }

    /// How the state that a `State` or `Write` node holds is stored; nothing for other nodes.
    pub fn stored_format(&self, node: NodeId) -> Option<Format> {
        if let Op::State { format, .. } = self.written(node)?.op { Some(format) } else { None }
    }

    /// The node that a chain of writes begins with.
    fn written(&self, node: NodeId) -> Option<&Node> {
        let mut node = &self.nodes[node];
        while let Op::Write { .. } = node.op {
            node = &self.nodes[*node.args.first()?];
        }
        Some(node)
    }

    /// The type of `op` applied to nodes of this graph.
    ///
    /// # Errors
    /// What does not fit: types, or what is written to.
    pub fn infer(&self, op: &Op, args: &[NodeId]) -> Result<Type, Misfit> {
        let types: Vec<&Type> = args.iter().map(|arg| &self.nodes[*arg].ty).collect();
        let ty = infer(op, &types)?;
        let (Op::Write { axes }, Some(first)) = (op, args.first()) else { return Ok(ty) };
        match self.written(*first).map(|node| &node.op) {
            Some(Op::State { shape, format, .. }) => {
                let row = shape.axes().last().filter(|row| format.block_len() > 1 && axes.contains(row));
                row.map_or(Ok(ty), |axis| Err(Misfit::InBlocks { format: *format, axis }))
            }
            // An earlier write has its own complaint where it writes to something else.
            _ if matches!(self.nodes[*first].op, Op::Write { .. }) => Ok(ty),
            _ => Err(Misfit::NoState),
        }
    }
}
