//! Says what is wrong with a graph, whoever made it.
//!
//! In: any graph, however broken. Out: one complaint for each thing that does not hold; none for a sound graph.
//! Every later stage relies on what is checked here and never checks it again.
//! A graph without complaints has a text form that reads back to itself: see `print.rs` and `parse.rs`.

use std::collections::BTreeMap;

use crate::error::Complaint;
use crate::foundation::text::Scanner;
use crate::graph::attributes::is_too_large;
use crate::graph::op::{Binary, Op, Role};
use crate::graph::print::symbols;
use crate::graph::{BlockId, Graph, Name, Node, NodeId};
use crate::tensor::shape::{Axis, Shape};

/// The most positions that are ranked.
const MAX_RANKED: i64 = 1 << 24;

/// Everything that does not hold in this graph.
pub fn verify(graph: &Graph) -> Vec<Complaint> {
    let order = order_complaints(graph);
    // Everything else follows arguments, which must be there first.
    if order.is_empty() { [verify_nodes(graph), together_complaints(graph)].concat() } else { order }
}

/// What does not hold of nodes on their own: types, sizes and names.
pub fn verify_nodes(graph: &Graph) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    for (id, node) in graph.nodes.iter() {
        let found = node_complaints(graph, node);
        complaints.extend(found.into_iter().map(|what| complaint(graph, id, what)));
    }
    complaints
}

/// What does not hold of nodes together: their order, shared names, writes, blocks and outputs.
pub fn verify_structure(graph: &Graph) -> Vec<Complaint> {
    let order = order_complaints(graph);
    if order.is_empty() { together_complaints(graph) } else { order }
}

fn together_complaints(graph: &Graph) -> Vec<Complaint> {
    let mut complaints = tensor_complaints(graph);
    complaints.extend(write_complaints(graph));
    complaints.extend(symbol_complaints(graph));
    complaints.extend(block_complaints(graph));
    complaints.extend(output_complaints(graph));
    complaints
}

fn order_complaints(graph: &Graph) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    for (id, node) in graph.nodes.iter() {
        let name = node.op.name();
        if let Some(late) = node.args.iter().find(|arg| **arg >= id) {
            let what = format!("`{name}`: argument {late} does not come earlier");
            complaints.push(complaint(graph, id, what));
        }
        if let Some(block) = node.block.filter(|block| graph.blocks.get(*block).is_none()) {
            complaints.push(complaint(graph, id, format!("`{name}`: {block} does not exist")));
        }
    }
    complaints
}

fn complaint(graph: &Graph, id: NodeId, what: impl std::fmt::Display) -> Complaint {
    match graph.nodes[id].site {
        Some(site) => Complaint::new(site, what),
        None => Complaint::new(id, what),
    }
}

fn node_complaints(graph: &Graph, node: &Node) -> Vec<String> {
    let name = node.op.name();
    let mut found = Vec::new();
    found.extend(type_complaint(graph, node).map(|what| format!("`{name}`{what}")));
    if let Op::Contract { over } = &node.op
        && !over.is_sorted_by(|a, b| a < b)
    {
        found.push(format!("`{name}`: the summed axes are not sorted"));
    }
    found.extend(size_complaints(&node.ty.shape).map(|what| format!("`{name}`: {what}")));
    found.extend(ranked_complaint(graph, node));
    found.extend(node.ty.shape.axes().filter_map(|axis| unwritable("axis", axis.as_str())));
    found.extend(tensor_name(&node.op).and_then(|(kind, name)| unwritable(kind, name)));
    found
}

fn type_complaint(graph: &Graph, node: &Node) -> Option<String> {
    match graph.infer(&node.op, &node.args) {
        Err(misfit) => Some(format!(": {misfit}")),
        // The order of axes says how a value lies in memory, which is not the operation's to say.
        Ok(ty) if ty.dtype != node.ty.dtype || !ty.shape.same_axes(&node.ty.shape) => {
            Some(format!(" makes {ty}, not {}", node.ty))
        }
        Ok(_) => None,
    }
}

fn size_complaints(shape: &Shape) -> impl Iterator<Item = String> {
    let negative = shape.iter().filter(|(_, size)| size.least() < 0);
    let negative = negative.map(|(axis, size)| format!("the size {size} of axis {axis} may be negative"));
    let too_large = is_too_large(shape).then(|| format!("{shape} is larger than 2^40 elements"));
    negative.chain(too_large)
}

/// Top-k keeps its whole axis in a tile, which bounds its length.
fn ranked_complaint(graph: &Graph, node: &Node) -> Option<String> {
    let Op::TopK { axis, .. } = node.op else { return None };
    let size = graph.nodes[*node.args.first()?].ty.shape.size(axis)?;
    (size.most() > MAX_RANKED).then(|| {
        format!("`top-k`: axis {axis} may have {} positions, at most 2^24 are searched", size.most())
    })
}

fn unwritable(kind: &str, name: &str) -> Option<String> {
    let mut scanner = Scanner::new(name);
    let is_word = scanner.word("").is_ok_and(|word| word == name);
    (!is_word).then(|| format!("the {kind} name `{name}` is not a word of letters, digits, `_`, `.` and `-`"))
}

/// What kind of tensor an operation names, and its name.
fn tensor_name(op: &Op) -> Option<(&'static str, &Name)> {
    let (Op::Input { name, .. } | Op::Weight { name, .. } | Op::State { name, .. }) = op else { return None };
    Some((op.name(), name))
}

fn tensor_complaints(graph: &Graph) -> Vec<Complaint> {
    let mut known: BTreeMap<(&str, &Name), &Op> = BTreeMap::new();
    let mut complaints = Vec::new();
    for (id, node) in graph.nodes.iter() {
        let Some((kind, name)) = tensor_name(&node.op) else { continue };
        let first = *known.entry((kind, name)).or_insert(&node.op);
        if *first != node.op {
            complaints.push(complaint(graph, id, format!("{kind} `{name}` has two types")));
        }
    }
    complaints
}

/// What a write replaces: a state as it was before the replay, or as another write left it.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Version<'a> {
    Before(&'a Name),
    After(NodeId),
}

fn write_complaints(graph: &Graph) -> Vec<Complaint> {
    let mut written: BTreeMap<Version<'_>, NodeId> = BTreeMap::new();
    let mut complaints = Vec::new();
    for (id, node) in graph.nodes.iter() {
        let (Op::Write { .. }, Some(state)) = (&node.op, node.args.first()) else { continue };
        let before = graph.nodes.get(*state).map(|node| &node.op);
        let version = if let Some(Op::State { name, .. }) = before {
            Version::Before(name)
        } else {
            Version::After(*state)
        };
        let first = *written.entry(version).or_insert(id);
        if first != id {
            complaints.push(complaint(graph, id, format!("{state} is written a second time, after {first}")));
        }
        complaints.extend(place_complaint(graph, node).map(|what| complaint(graph, id, what)));
    }
    complaints
}

/// Places of a write must be known to differ: positions do by themselves, and inputs are looked at before each replay.
fn place_complaint(graph: &Graph, write: &Node) -> Option<String> {
    let mut first: Option<&Shape> = None;
    for place in write.args.iter().skip(2) {
        if is_position(graph, *place, write.block) {
            continue;
        }
        let Some(input) = moved_input(graph, *place) else {
            return Some(format!(
                "`write`: the places {place} are computed, expected an input, or a sum of positions and symbols in \
                 the same block"
            ));
        };
        let own = &input.ty.shape;
        if *first.get_or_insert(own) != own {
            let [a, b] = [first.unwrap_or(own), own];
            return Some(format!("`write`: its places are inputs of {a} and of {b}, expected one shape"));
        }
    }
    None
}

/// Whether a node of a block is a sum of positions, symbols and numbers, moved in any way.
fn is_position(graph: &Graph, id: NodeId, block: Option<BlockId>) -> bool {
    let node = &graph.nodes[id];
    let args = || node.args.iter().all(|arg| is_position(graph, *arg, block));
    match &node.op {
        Op::Iota { .. } | Op::Symbolic(_) | Op::Const(_) => true,
        Op::Binary(Binary::Add | Binary::Sub) => node.block == block && args(),
        op => {
            node.block == block && op.role() == Role::Movement && !matches!(op, Op::Concat { .. }) && args()
        }
    }
}

/// The input that a node has the elements of, moved but not repeated.
fn moved_input(graph: &Graph, id: NodeId) -> Option<&Node> {
    let node = &graph.nodes[id];
    match node.op {
        Op::Input { .. } => Some(node),
        Op::Split { .. } | Op::Merge { .. } | Op::Rename { .. } | Op::Slice { .. } => {
            moved_input(graph, *node.args.first()?)
        }
        _ => None,
    }
}

fn symbol_complaints(graph: &Graph) -> Vec<Complaint> {
    let symbols = symbols(graph);
    let two_bounds = symbols.windows(2).filter(|pair| pair[0] == pair[1]);
    let mut found: Vec<String> =
        two_bounds.map(|pair| format!("symbol {} has two sets of bounds", pair[0].name)).collect();
    found.dedup();
    let is_identifier =
        |name: &Axis| Scanner::new(name.as_str()).identifier("").is_ok_and(|id| id == name.as_str());
    let mut odd: Vec<Axis> =
        symbols.iter().map(|symbol| symbol.name).filter(|name| !is_identifier(name)).collect();
    odd.dedup();
    found.extend(
        odd.iter().map(|name| format!("the symbol name `{name}` is not made of letters, digits and `_`")),
    );
    found.into_iter().map(|what| Complaint::new("", what)).collect()
}

fn block_complaints(graph: &Graph) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    for (id, name) in graph.blocks.iter() {
        complaints.extend(unwritable("block", name).map(|what| Complaint::new(id, what)));
        if graph.blocks.iter().any(|(other, same)| other < id && same == name) {
            complaints.push(Complaint::new(id, format!("a second block has the name `{name}`")));
        }
    }
    complaints
}

fn output_complaints(graph: &Graph) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    for (position, (name, node)) in graph.outputs.iter().enumerate() {
        let mut add = |what: String| complaints.push(Complaint::new(format!("output {name}"), what));
        unwritable("output", name).into_iter().for_each(&mut add);
        if graph.nodes.get(*node).is_none() {
            add(format!("{node} does not exist"));
        }
        if graph.outputs[..position].iter().any(|(other, _)| other == name) {
            add("a second output has this name".to_owned());
        }
    }
    complaints
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::foundation::entity::Id;
    use crate::graph::parse::parse;
    use crate::graph::{BlockId, Site};
    use crate::tensor::dtype::DType;
    use crate::tensor::label::Label;
    use crate::tensor::shape::Type;
    use crate::tensor::sym::{Sym, Symbol};

    const TEXT: &str = "\
symbol P in 0..6 near 3
block a
%0 = input x : f32[t:2, d:4]
%1 = input y : f32[t:2, d:4]
%2 = state k : f32[s:8, d:4]
end
block b
%3 = iota t:2
%4 = symbolic P
%5 = add %3 %4
%6 = write %2 %0 %5 along [s]
%7 = mul %0 %1
%8 = contract %0 %1 over [d, t]
end
output z = %7
";

    fn node(index: usize) -> NodeId {
        NodeId::from_index(index)
    }

    /// The one complaint about the graph of `TEXT` once `spoil` is done with it.
    fn check(spoil: impl FnOnce(&mut Graph), expected: &str) {
        let mut graph = parse(TEXT).unwrap();
        spoil(&mut graph);
        let complaints: Vec<String> = verify(&graph).iter().map(Complaint::to_string).collect();
        assert_eq!(complaints, [expected]);
    }

    fn add(graph: &mut Graph, text: &str) {
        *graph = parse(&(TEXT.to_owned() + text)).unwrap();
    }

    fn shape_of(size: Sym) -> Shape {
        Shape::new([(Label::new("d").unwrap(), size)]).unwrap()
    }

    fn push_input(graph: &mut Graph, name: &str, shape: Shape) {
        let ty = Type::new(DType::F32, shape);
        let op = Op::Input { name: name.into(), ty: ty.clone() };
        graph.push(Node { op, args: Vec::new(), ty, block: None, site: None });
    }

    fn push_block(graph: &mut Graph, name: &str) {
        graph.blocks.push(name.into());
    }

    #[test]
    fn a_sound_graph_has_no_complaints() {
        assert_eq!(verify(&parse(TEXT).unwrap()), []);
    }

    #[test]
    fn nodes() {
        let site = Some(Site { file: "model.rs", line: 7 });
        check(|g| g.nodes[node(7)].args[1] = node(7), "%7: `mul`: argument %7 does not come earlier");
        check(|g| g.nodes[node(7)].args[1] = node(102), "%7: `mul`: argument %102 does not come earlier");
        check(|g| g.nodes[node(7)].args.truncate(1), "%7: `mul`: takes 2 arguments, got 1");
        check(
            |g| (g.nodes[node(7)].ty.dtype, g.nodes[node(7)].site) = (DType::I32, site),
            "model.rs:7: `mul` makes f32[t:2, d:4], not i32[t:2, d:4]",
        );
        check(|g| g.nodes[node(7)].block = Some(BlockId::from_index(5)), "%7: `mul`: block5 does not exist");
        check(
            |g| {
                let Op::Contract { over } = &mut g.nodes[node(8)].op else { return };
                over.reverse();
            },
            "%8: `contract`: the summed axes are not sorted",
        );
    }

    #[test]
    fn sizes_and_names() {
        check(
            |g| push_input(g, "n", shape_of(Sym::from(-1i64))),
            "%9: `input`: the size -1 of axis d may be negative",
        );
        check(
            |g| push_input(g, "n", shape_of(Sym::from(1i64 << 41))),
            "%9: `input`: [d:2199023255552] is larger than 2^40 elements",
        );
        check(
            |g| {
                push_input(g, "n", shape_of(Sym::from(1i64 << 25)));
                let args = vec![g.nodes.ids().next_back().unwrap()];
                let op = Op::TopK { axis: Label::new("d").unwrap(), into: Label::new("r").unwrap(), k: 2 };
                let ty = g.infer(&op, &args).unwrap();
                g.push(Node { op, args, ty, block: None, site: None });
            },
            "%10: `top-k`: axis d may have 33554432 positions, at most 2^24 are searched",
        );
        check(
            |g| push_input(g, "a b", Shape::scalar()),
            "%9: the input name `a b` is not a word of letters, digits, `_`, `.` and `-`",
        );
        check(
            |g| {
                let shape = Shape::new([(Label::new("1").unwrap(), Sym::from(2i64))]).unwrap();
                push_input(g, "n", shape);
            },
            "%9: the axis name `1` is not a word of letters, digits, `_`, `.` and `-`",
        );
        check(|g| add(g, "%9 = input x : f32[]"), "%9: input `x` has two types");
        check(|g| add(g, "%9 = state k : f16[s:8, d:4]"), "%9: state `k` has two types");
    }

    #[test]
    fn writes() {
        check(|g| add(g, "%9 = write %2 %0 %3 along [s]"), "%9: %2 is written a second time, after %6");
        check(
            |g| add(g, "%9 = state k : f32[s:8, d:4]\n%10 = write %9 %0 %3 along [s]"),
            "%10: %9 is written a second time, after %6",
        );
        check(
            |g| g.nodes[node(6)].args[0] = node(0),
            "%6: `write`: axis t would stand twice beside [t:2, d:4]",
        );
        let no_state = "%10: `write`: only a state can be written to";
        check(
            |g| {
                add(g, "%9 = barrier %2\n%10 = write %6 %0 %3 along [s]");
                g.nodes[node(10)].args[0] = node(9);
            },
            no_state,
        );
    }

    #[test]
    fn symbols_blocks_and_outputs() {
        let symbol = |name: &str, max: i64| Sym::from(Symbol::new(Label::new(name).unwrap(), 0, max, 1));
        check(|g| push_input(g, "n", shape_of(symbol("P", 7))), "symbol P has two sets of bounds");
        check(
            |g| push_input(g, "n", shape_of(symbol("P-1", 7))),
            "the symbol name `P-1` is not made of letters, digits and `_`",
        );
        check(|g| push_block(g, "a"), "block2: a second block has the name `a`");
        check(
            |g| push_block(g, ""),
            "block2: the block name `` is not a word of letters, digits, `_`, `.` and `-`",
        );
        check(|g| g.outputs.push(("w".into(), node(80))), "output w: %80 does not exist");
        check(|g| g.outputs.push(("z".into(), node(1))), "output z: a second output has this name");
        check(
            |g| g.outputs.push(("7".into(), node(1))),
            "output 7: the output name `7` is not a word of letters, digits, `_`, `.` and `-`",
        );
    }
}
