//! Writes a graph as text: one line a node, its type after it as a comment.
//!
//! In: a graph. Out: the text form, which `parse.rs` reads back to the same graph without its sites.
//! The same graph always gives the same text, and a graph that does not verify can still be printed.
//! `docs/graph.md` describes the form; stories show single nodes through [`node_line`].

use std::fmt;

use crate::foundation::entity::Id;
use crate::graph::infer::infer;
use crate::graph::op::{Op, Scalar};
use crate::graph::{BlockId, Graph, NodeId};
use crate::tensor::shape::{Axis, Type};
use crate::tensor::sym::{Sym, Symbol};

impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_symbols(self, f)?;
        let mut n_introduced = 0;
        let mut open = None;
        for (id, node) in self.nodes.iter() {
            if node.block != open {
                close(open, f)?;
                introduce(self, node.block, &mut n_introduced, f)?;
                open = node.block;
            }
            let indent = if open.is_some() { "  " } else { "" };
            write!(f, "{indent}{}", node_line(self, id))?;
            let shows_type = matches!(node.op, Op::Input { .. } | Op::Weight { .. } | Op::State { .. });
            if shows_type { writeln!(f)? } else { writeln!(f, "  # {}", node.ty)? }
        }
        close(open, f)?;
        write_empty_blocks(self, self.blocks.len(), &mut n_introduced, f)?;
        self.outputs.iter().try_for_each(|(name, id)| {
            let order = stored_order(self, *id).map(|order| format!(" stored {order}")).unwrap_or_default();
            writeln!(f, "output {name} = {id}{order}")
        })
    }
}

/// The order of an output's axes in memory, where it is not the order that its operation gives them.
fn stored_order(graph: &Graph, id: NodeId) -> Option<String> {
    let node = graph.nodes.get(id)?;
    let args: Option<Vec<&Type>> =
        node.args.iter().map(|arg| graph.nodes.get(*arg).map(|arg| &arg.ty)).collect();
    let given = infer(&node.op, &args?).ok()?;
    let is_other = given != node.ty && given.shape.same_axes(&node.ty.shape);
    is_other.then(|| list(&node.ty.shape.axes().collect::<Vec<_>>()))
}

/// One node as it stands in the text form, without its type: `%7 = mul %0 %1`.
pub(crate) fn node_line(graph: &Graph, id: NodeId) -> String {
    let node = &graph.nodes[id];
    format!("{id} = {}", op_line(&node.op, &node.args))
}

/// An operation with its arguments as in the text form: `reduce-sum %8 over d`.
pub(crate) fn op_line(op: &Op, args: &[NodeId]) -> String {
    let words: Vec<String> =
        std::iter::once(op.name().to_owned()).chain(args.iter().map(NodeId::to_string)).collect();
    words.join(" ") + &attributes(op)
}

/// Every symbol that types and operations mention, sorted by name; one with two bounds stands twice.
pub(crate) fn symbols(graph: &Graph) -> Vec<Symbol> {
    let in_types = graph.nodes.values().flat_map(|node| node.ty.shape.iter().map(|(_, size)| size));
    let in_ops = graph.nodes.values().flat_map(|node| sizes(&node.op));
    let mut symbols: Vec<Symbol> = in_types.chain(in_ops).flat_map(Sym::symbols).collect();
    let bounds = |s: &Symbol| (s.name, s.min, s.max, s.near);
    symbols.sort_by_key(bounds);
    symbols.dedup_by_key(|s| bounds(s));
    symbols
}

fn sizes(op: &Op) -> Vec<&Sym> {
    match op {
        Op::Input { ty, .. } => ty.shape.iter().map(|(_, size)| size).collect(),
        Op::Weight { shape, .. } | Op::State { shape, .. } | Op::Split { into: shape, .. } => {
            shape.iter().map(|(_, size)| size).collect()
        }
        Op::Iota { len, .. } | Op::Expand { len, .. } => vec![len],
        Op::Symbolic(value) => vec![value],
        Op::Slice { start, len, .. } => vec![start, len],
        Op::Const(_)
        | Op::Table { .. }
        | Op::Unary(_)
        | Op::Binary(_)
        | Op::Select
        | Op::Cast(_)
        | Op::Reduce { .. }
        | Op::Merge { .. }
        | Op::Rename { .. }
        | Op::Concat { .. }
        | Op::Contract { .. }
        | Op::Gather { .. }
        | Op::TopK { .. }
        | Op::Attend { .. }
        | Op::Write { .. }
        | Op::Barrier => Vec::new(),
    }
}

fn write_symbols(graph: &Graph, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let mut symbols = symbols(graph);
    symbols.dedup_by_key(|symbol| symbol.name);
    for Symbol { name, min, max, near } in &symbols {
        writeln!(f, "symbol {name} in {min}..{max} near {near}")?;
    }
    if symbols.is_empty() { Ok(()) } else { writeln!(f) }
}

fn close(open: Option<BlockId>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    if open.is_some() { writeln!(f, "end") } else { Ok(()) }
}

/// Opens a block. Blocks get their ids in the order of the text, so those before it are named first.
fn introduce(
    graph: &Graph,
    block: Option<BlockId>,
    n_introduced: &mut usize,
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    let Some(block) = block else { return Ok(()) };
    write_empty_blocks(graph, block.index(), n_introduced, f)?;
    *n_introduced = (*n_introduced).max(block.index() + 1);
    match graph.blocks.get(block) {
        Some(name) => writeln!(f, "block {name}"),
        None => writeln!(f, "block {block}"),
    }
}

fn write_empty_blocks(
    graph: &Graph,
    end: usize,
    n_introduced: &mut usize,
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    for name in graph.blocks.values().take(end).skip(*n_introduced) {
        writeln!(f, "block {name}\nend")?;
    }
    *n_introduced = end.max(*n_introduced);
    Ok(())
}

/// The attributes after the arguments, with a leading blank where there are any.
fn attributes(op: &Op) -> String {
    match op {
        Op::Input { name, ty } => format!(" {name} : {ty}"),
        Op::Weight { name, shape, format } | Op::State { name, shape, format } => {
            format!(" {name} : {format}{shape}")
        }
        Op::Const(Scalar::F32(bits)) => format!(" {}", float(*bits)),
        Op::Const(Scalar::I32(value)) => format!(" {value} : i32"),
        Op::Table { axis, values } => {
            let values: Vec<String> = values.iter().map(|bits| float(*bits)).collect();
            format!(" {axis} [{}]", values.join(", "))
        }
        Op::Iota { axis, len } | Op::Expand { axis, len } => format!(" {axis}:{len}"),
        Op::Symbolic(value) => format!(" {value}"),
        Op::Unary(_) | Op::Binary(_) | Op::Select | Op::Barrier => String::new(),
        Op::Cast(dtype) => format!(" {dtype}"),
        Op::Reduce { axis, .. } => format!(" over {axis}"),
        Op::Split { axis, into } => format!(" {axis} into {into}"),
        Op::Merge { axes, into } => format!(" {} into {into}", list(axes)),
        Op::Rename { from, to } => format!(" {from} to {to}"),
        Op::Slice { axis, start, len } => format!(" {axis} at {start} len {len}"),
        Op::Concat { axis } | Op::Gather { axis } => format!(" along {axis}"),
        Op::Contract { over } | Op::Attend { over } => format!(" over {}", list(over)),
        Op::TopK { axis, into, k } => format!(" {axis} into {into}:{k}"),
        Op::Write { axes } => format!(" along {}", list(axes)),
    }
}

fn list(axes: &[Axis]) -> String {
    let axes: Vec<&str> = axes.iter().map(Axis::as_str).collect();
    format!("[{}]", axes.join(", "))
}

/// The shortest text that reads back to the same bits; a NaN other than the usual two shows its bits.
fn float(bits: u32) -> String {
    let value = f32::from_bits(bits);
    let quiet = f32::NAN.to_bits();
    match bits {
        _ if !value.is_nan() => format!("{value:?}"),
        _ if bits == quiet => "nan".to_owned(),
        _ if bits == quiet | 1 << 31 => "-nan".to_owned(),
        _ => format!("nan.{bits:08x}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::build::Builder;
    use crate::graph::parse::parse;
    use crate::tensor::dtype::DType;
    use crate::tensor::label::Label;
    use crate::tensor::quant::Format;

    fn symbol(name: &str, min: i64, max: i64) -> Sym {
        Sym::from(Symbol::new(Label::new(name).unwrap(), min, max, 1))
    }

    fn without_sites(mut graph: Graph) -> Graph {
        let ids: Vec<NodeId> = graph.nodes.ids().collect();
        for id in ids {
            graph.nodes[id].site = None;
        }
        graph
    }

    #[test]
    fn a_built_graph_prints_and_reads_back() {
        let g = Builder::new();
        let (t, d, s) = (g.dim("t", symbol("T", 1, 8)), g.dim("d", 4), g.dim("s", 64));
        let p = symbol("P", 0, 55);
        g.block("none", |_| ());
        let x = g.input("x", DType::F32, &[&t, &d]);
        let y = g.block("blk.0", |g| {
            let norm = &x * &g.weight("norm", Format::F32, &[&d]);
            g.block("blk.0.mix", |g| {
                g.state("k", Format::F32, &[&s, &d]).write_run(&s, p.clone(), &norm, &t)
            });
            norm.exp() * 0.5
        });
        let graph = g.finish(&[("y", &y), ("again", &y)]).unwrap();
        let text = "\
symbol P in 0..55 near 1
symbol T in 1..8 near 1

%0 = input x : f32[t:T, d:4]
block none
end
block blk.0
  %1 = weight blk.0.norm : f32[d:4]
  %2 = mul %0 %1  # f32[t:T, d:4]
end
block blk.0.mix
  %3 = state blk.0.mix.k : f32[s:64, d:4]
  %4 = iota t:T  # i32[t:T]
  %5 = symbolic P  # i32[]
  %6 = add %4 %5  # i32[t:T]
  %7 = write %3 %2 %6 along [s]  # f32[s:64, d:4]
end
block blk.0
  %8 = exp %2  # f32[t:T, d:4]
  %9 = const 0.5  # f32[]
  %10 = mul %8 %9  # f32[t:T, d:4]
end
output y = %10
output again = %10
";
        assert_eq!(graph.to_string(), text);
        assert_eq!(parse(text).unwrap(), without_sites(graph));
    }

    #[test]
    fn every_bit_of_a_float_reads_back() {
        let odd = [
            0x8000_0000,
            0x7f80_0000,
            0xff80_0000,
            0x7fc0_0000,
            0xffc0_0000,
            0x7f80_0001,
            0xffff_ffff,
            1,
            0x7f7f_ffff,
        ];
        for bits in odd {
            let text = format!("%0 = const {}\n%1 = table i [{}]\n", float(bits), float(bits));
            let graph = parse(&text).unwrap();
            let ops: Vec<&Op> = graph.nodes.values().map(|node| &node.op).collect();
            assert_eq!(ops[0], &Op::Const(Scalar::F32(bits)), "{text}");
            assert!(matches!(ops[1], Op::Table { values, .. } if **values == [bits]), "{text}");
        }
        assert_eq!([0x8000_0000, 0x7f80_0001].map(float), ["-0.0", "nan.7f800001"]);
    }

    #[test]
    fn a_broken_graph_still_prints() {
        let mut graph = parse("%0 = const 1.0\n%1 = neg %0\n").unwrap();
        let (first, last) = (NodeId::from_index(0), NodeId::from_index(1));
        graph.nodes[last].args = vec![NodeId::from_index(9)];
        graph.nodes[first].block = Some(BlockId::from_index(3));
        assert_eq!(graph.to_string(), "block block3\n  %0 = const 1.0  # f32[]\nend\n%1 = neg %9  # f32[]\n");
        assert_eq!(node_line(&graph, last), "%1 = neg %9");
    }
}
