//! Pushes slices towards the inputs, so that only what is read is computed.
//!
//! In: a graph. Out: a graph of the same meaning with slices before what they were taken of: if every reader of a value
//! wants the same range of an axis, only that range is computed, and of its arguments as well, as long as operations
//! treat positions independently. State writes and outputs are always whole. So a prefill that needs the logits of the
//! last token only computes the queries, and everything after them, of that token alone in the last block; the model
//! says nothing about it.

use indexmap::IndexMap;

use crate::foundation::entity::List;
use crate::graph::infer::Misfit;
use crate::graph::op::Op;
use crate::graph::{BlockId, Graph, Node, NodeId};
use crate::tensor::shape::{Axis, Type};
use crate::tensor::sym::Sym;

/// Positions of one axis, as a slice takes them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Run {
    axis: Axis,
    start: Sym,
    len: Sym,
}

/// What all readers of a value want of it.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Need {
    Nothing,
    Part(Run),
    Whole,
}

impl Need {
    /// What is wanted by these readers and by one more.
    fn and(&mut self, other: Self) {
        if *self == Self::Nothing {
            *self = other;
        } else if *self != other && other != Self::Nothing {
            *self = Self::Whole;
        }
    }
}

/// The same graph without what nobody reads.
///
/// # Errors
/// Where types do not fit together: `verify.rs` says of which nodes.
pub fn narrow(graph: &Graph) -> Result<Graph, Misfit> {
    let needs = needs(graph);
    let mut made =
        Made { graph: Graph { blocks: graph.blocks.clone(), ..Graph::default() }, ..Made::default() };
    for (id, node) in graph.nodes.iter() {
        let place = match &needs[id] {
            Need::Nothing => None,
            Need::Part(run) => Some(made.part(graph, node, run, &needs)?),
            Need::Whole => Some(made.whole(node, &needs)),
        };
        made.places.push(place);
    }
    let outputs = graph.outputs.iter().map(|(name, node)| (name.clone(), made.at(*node)));
    Ok(Graph { outputs: outputs.collect(), ..made.graph })
}

/// A graph that is being made of another.
#[derive(Default)]
struct Made {
    graph: Graph,
    /// Where the values of the other are, so far.
    places: List<NodeId, Option<NodeId>>,
    /// Parts of values that are whole, for the block that reads them.
    slices: IndexMap<(NodeId, Run, Option<BlockId>), NodeId>,
}

impl Made {
    fn at(&self, node: NodeId) -> NodeId {
        self.places[node].expect("what is read is made")
    }

    fn whole(&mut self, node: &Node, needs: &List<NodeId, Need>) -> NodeId {
        if let (Op::Slice { .. }, [arg]) = (&node.op, &node.args[..])
            && let Need::Part(_) = needs[*arg]
        {
            return self.at(*arg);
        }
        let args = node.args.iter().map(|arg| self.at(*arg)).collect();
        self.graph.push(Node { args, ..node.clone() })
    }

    /// A run of a value.
    fn part(
        &mut self,
        graph: &Graph,
        node: &Node,
        run: &Run,
        needs: &List<NodeId, Need>,
    ) -> Result<NodeId, Misfit> {
        let mut args = Vec::new();
        for (position, arg) in node.args.iter().enumerate() {
            let need = need_of(node, position, &graph.nodes[*arg].ty, run);
            args.push(match need {
                Need::Part(run) if needs[*arg] == Need::Whole => self.slice(*arg, run, node)?,
                _ => self.at(*arg),
            });
        }
        let op = match &node.op {
            Op::Expand { axis, .. } if *axis == run.axis => Op::Expand { axis: *axis, len: run.len.clone() },
            op => op.clone(),
        };
        self.push(op, args, node)
    }

    fn slice(&mut self, arg: NodeId, run: Run, reader: &Node) -> Result<NodeId, Misfit> {
        let key = (arg, run.clone(), reader.block);
        if let Some(slice) = self.slices.get(&key) {
            return Ok(*slice);
        }
        let Run { axis, start, len } = run;
        let slice = self.push(Op::Slice { axis, start, len }, vec![self.at(arg)], reader)?;
        self.slices.insert(key, slice);
        Ok(slice)
    }

    /// Appends an operation that stands where `node` stood.
    fn push(&mut self, op: Op, args: Vec<NodeId>, node: &Node) -> Result<NodeId, Misfit> {
        let ty = self.graph.infer(&op, &args)?;
        Ok(self.graph.push(Node { op, args, ty, block: node.block, site: node.site }))
    }
}

/// What is wanted of each node, told from the last to the first.
fn needs(graph: &Graph) -> List<NodeId, Need> {
    let whole_or_nothing = |node: &Node| if node.op.is_leaf() { Need::Whole } else { Need::Nothing };
    let mut needs: List<NodeId, Need> = graph.nodes.values().map(whole_or_nothing).collect();
    graph.roots().into_iter().for_each(|root| needs[root] = Need::Whole);
    for (id, node) in graph.nodes.iter().rev() {
        if matches!(&needs[id], Need::Part(run) if !takes_apart(&node.op, run.axis)) {
            needs[id] = Need::Whole;
        }
        for (position, arg) in node.args.iter().enumerate() {
            let ty = &graph.nodes[*arg].ty;
            let need = match (&needs[id], &node.op) {
                (Need::Part(run), _) => need_of(node, position, ty, run),
                (Need::Whole, Op::Slice { axis, start, len }) if ty.shape.size(*axis) != Some(len) => {
                    Need::Part(Run { axis: *axis, start: start.clone(), len: len.clone() })
                }
                (need, _) => need.clone(),
            };
            needs[*arg].and(need);
        }
    }
    needs
}

/// Whether a run of positions of this axis needs no other positions of any argument.
fn takes_apart(op: &Op, along: Axis) -> bool {
    match op {
        Op::Unary(_)
        | Op::Binary(_)
        | Op::Select
        | Op::Cast(_)
        | Op::Barrier
        | Op::Reduce { .. }
        | Op::Rename { .. }
        | Op::Expand { .. }
        | Op::Contract { .. }
        | Op::Gather { .. }
        | Op::Attend { .. } => true,
        Op::Split { into, .. } => !into.has(along),
        Op::Merge { into, .. } | Op::TopK { into, .. } => *into != along,
        Op::Slice { axis, .. } | Op::Concat { axis } => *axis != along,
        Op::Write { .. }
        | Op::Input { .. }
        | Op::Weight { .. }
        | Op::State { .. }
        | Op::Const(_)
        | Op::Table { .. }
        | Op::Iota { .. }
        | Op::Symbolic(_) => false,
    }
}

/// What a run of an operation's result needs of an argument: the same run where the argument has the axis.
fn need_of(node: &Node, position: usize, ty: &Type, run: &Run) -> Need {
    let axis = match &node.op {
        Op::Rename { from, to } if *to == run.axis => *from,
        // The rows of a table are picked: an axis of this name can only be the other argument's.
        Op::Gather { axis } if position == 0 && *axis == run.axis => return Need::Whole,
        _ => run.axis,
    };
    if ty.shape.has(axis) { Need::Part(Run { axis, ..run.clone() }) } else { Need::Whole }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::build::{Builder, Tensor};
    use crate::reference::evaluate;
    use crate::reference::random::bindings;
    use crate::tensor::dtype::DType;
    use crate::tensor::label::Label;
    use crate::tensor::quant::Format;
    use crate::tensor::sym::Symbol;

    /// The types of the products and sums of a graph, in order.
    fn folds(graph: &Graph) -> Vec<String> {
        let folds = graph.nodes.values().filter(|node| node.op.is_fold());
        folds.map(|node| node.ty.shape.to_string()).collect()
    }

    /// A cache that is written with keys of all tokens, and scores of the last token.
    fn scored(tokens: impl Into<Sym>) -> Graph {
        let g = Builder::new();
        let tokens = tokens.into();
        let (t, d, s) = (g.dim("t", &tokens), g.dim("d", 4), g.dim("s", 16));
        let x = g.input("x", DType::F32, &[&t, &d]);
        let y = g.block("last", |g| {
            let product = |name: &str, x: &Tensor| {
                let e = g.dim("e", 3);
                x.contract(&g.weight(name, Format::F32, &[&e, &d]), [&d])
            };
            let k = g.state("k", Format::F32, &[&s, &g.dim("e", 3)]).write_run(&s, 0, &product("k", &x), &t);
            let scores = product("q", &x).contract(&k, [&g.dim("e", 3)]); // [t, s]
            let own = g.iota(&t);
            g.select(&g.iota(&s).le(&own), &scores, &g.constant(-1.0)).max(&s)
        });
        let last = y.slice(&t, tokens - 1, 1);
        g.finish(&[("y", &last)]).unwrap()
    }

    fn check(graph: &Graph, symbols: &[(Label, i64)]) -> Graph {
        let small = narrow(graph).unwrap();
        assert_eq!(crate::graph::verify::verify(&small), []);
        let bindings = bindings(graph, 3, symbols);
        assert_eq!(evaluate(graph, &bindings).unwrap(), evaluate(&small, &bindings).unwrap());
        small
    }

    #[test]
    fn only_keys_are_made_of_tokens_that_are_not_scored() {
        let graph = scored(5);
        assert_eq!(folds(&graph), ["[t:5, e:3]", "[t:5, e:3]", "[t:5, s:16]", "[t:5]"]);
        let small = check(&graph, &[]);
        assert_eq!(folds(&small), ["[t:5, e:3]", "[t:1, e:3]", "[t:1, s:16]", "[t:1]"]);
        // The slice of what comes from outside belongs to the block that reads it.
        let slices = small.nodes.values().filter(|node| matches!(node.op, Op::Slice { .. }));
        assert!(slices.clone().count() == 2 && slices.clone().all(|node| node.block.is_some()), "{small}");
    }

    #[test]
    fn how_many_tokens_there_are_need_not_be_known() {
        let tokens = Symbol::new(Label::new("T").unwrap(), 1, 8, 4);
        let graph = scored(tokens);
        for n in [1, 2, 8] {
            assert_eq!(
                folds(&check(&graph, &[(tokens.name, n)]))[1..],
                ["[t:1, e:3]", "[t:1, s:16]", "[t:1]"]
            );
        }
    }

    #[test]
    fn what_is_whole_anyway_stays_as_it_is() {
        let graph = scored(1);
        assert_eq!(folds(&narrow(&graph).unwrap()), folds(&graph));
        let g = Builder::new();
        let t = g.dim("t", 6);
        let y = g.input("x", DType::F32, &[&t]).exp();
        let both = g.finish(&[("a", &y.slice(&t, 0, 2)), ("b", &y.slice(&t, 4, 2))]).unwrap();
        assert_eq!(narrow(&both).unwrap(), both);
    }

    #[test]
    fn a_graph_that_does_not_fit_together_is_left_to_those_who_verify() {
        let graph = scored(5);
        for id in graph.nodes.ids() {
            let spoils: [fn(&mut Vec<NodeId>); 3] =
                [Vec::clear, |args| args.reverse(), |args| args.extend(args.clone())];
            for spoil in spoils {
                let mut graph = graph.clone();
                spoil(&mut graph.nodes[id].args);
                // A graph or a misfit, but never a panic.
                if let Ok(small) = narrow(&graph) {
                    assert!(small.nodes.len() <= graph.nodes.len() + 2);
                }
            }
        }
    }

    #[test]
    fn other_names_and_new_axes_are_followed() {
        let g = Builder::new();
        let (t, u, d, n) = (g.dim("t", 6), g.dim("u", 6), g.dim("d", 4), g.dim("n", 5));
        let x = g.input("x", DType::F32, &[&t, &d]).exp().sum(&d); // [t]
        let graph = g.finish(&[
            ("renamed", &x.rename(&t, &u).slice(&u, 2, 3)),
            ("expanded", &g.input("y", DType::F32, &[&u]).expand(&n).sum(&u).slice(&n, 1, 2)),
        ]);
        assert_eq!(folds(&check(&graph.unwrap(), &[])), ["[t:3]", "[n:2]"]);
    }

    #[test]
    fn what_picks_rows_is_taken_apart_and_what_ranks_is_not() {
        let g = Builder::new();
        let (t, v, d, r) = (g.dim("t", 6), g.dim("v", 8), g.dim("d", 4), g.dim("r", 3));
        let table = g.weight("table", Format::F32, &[&v, &d]);
        let ids = g.input("x", DType::F32, &[&t, &v]).top_k(&v, &r); // [t, r]
        let rows = table.gather(&v, &ids); // [t, r, d]
        let of = |y: &Tensor| folds(&check(&g.finish(&[("y", y)]).unwrap(), &[]));
        assert_eq!(of(&rows.sum(&d).slice(&t, 5, 1)), ["[t:1, r:3]", "[t:1, r:3]"]);
        assert_eq!(of(&rows.sum(&d).slice(&r, 0, 2)), ["[t:6, r:3]", "[t:6, r:2]"]);
    }
}
