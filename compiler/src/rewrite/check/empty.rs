//! The same graph with an axis that may be empty.
//!
//! In: a graph whose sizes are numbers. Out: for each of its axes, where every operation allows it, the graph in which
//! a symbol from 0 up is the size of that axis.

use std::collections::BTreeSet;

use crate::graph::op::Op;
use crate::graph::verify::verify;
use crate::graph::{Graph, Node};
use crate::tensor::label::Label;
use crate::tensor::shape::{Axis, Shape};
use crate::tensor::sym::{Sym, Symbol};

/// The graphs, each with the symbol that may be 0 and is as large as the axis was at most.
pub(super) fn emptied(graph: &Graph) -> Vec<(Graph, Symbol)> {
    let axes: BTreeSet<(Axis, i64)> = graph
        .nodes
        .values()
        .filter(|node| node.op.is_leaf())
        .flat_map(|node| node.ty.shape.iter().filter_map(|(axis, size)| Some((*axis, size.as_const()?))))
        .collect();
    axes.into_iter()
        .filter(|(_, size)| *size > 0)
        .filter_map(|(axis, size)| with(graph, axis, size))
        .collect()
}

fn with(graph: &Graph, axis: Axis, size: i64) -> Option<(Graph, Symbol)> {
    let symbol = Symbol::new(Label::new("Empty")?, 0, size, size);
    let sized = |shape: &Shape| {
        let sizes = shape.iter().map(|(own, len)| {
            let is_it = *own == axis && len.as_const() == Some(size);
            (*own, if is_it { Sym::from(symbol) } else { len.clone() })
        });
        Shape::new(sizes)
    };
    let other = |own: Axis, len: &Sym| {
        if own == axis && len.as_const() == Some(size) { Sym::from(symbol) } else { len.clone() }
    };
    let mut made = Graph { blocks: graph.blocks.clone(), ..Graph::default() };
    for (_, node) in graph.nodes.iter() {
        let mut op = node.op.clone();
        match &mut op {
            Op::Input { ty, .. } => ty.shape = sized(&ty.shape)?,
            Op::Iota { axis: own, len }
            | Op::Expand { axis: own, len }
            | Op::Slice { axis: own, len, .. } => {
                *len = other(*own, len);
            }
            Op::Split { into, .. } => *into = sized(into)?,
            _ => {}
        }
        let ty = made.infer(&op, &node.args).ok()?;
        made.push(Node { op, args: node.args.clone(), ty, block: node.block, site: node.site });
    }
    made.outputs.clone_from(&graph.outputs);
    let names_it = made.nodes.values().any(|node| node.ty.shape.iter().any(|(_, len)| len.least() == 0));
    (names_it && verify(&made).is_empty()).then_some((made, symbol))
}
