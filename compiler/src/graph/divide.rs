//! Divides a model into its distinct blocks and their uses.
//!
//! In: a whole graph. Out: a [`Division`]: templates, each a graph of its own, and instances that say which weights,
//! states and values a template is used with. Blocks that differ only in those share a template and are compiled once.
//! Time is linear in the graph. Values that cross from one instance to another are inputs and outputs of templates.

use indexmap::IndexMap;

use crate::define_id;
use crate::foundation::entity::{Id, List};
use crate::foundation::hash::stable_hash;
use crate::graph::op::Op;
use crate::graph::{BlockId, Graph, Name, Node, NodeId};

define_id!(
    /// A distinct block.
    TemplateId,
    "template"
);

/// Distinct blocks, and where they are used.
#[derive(Clone, Debug, Default)]
pub struct Division {
    /// The distinct blocks, in order of first use.
    pub templates: List<TemplateId, Template>,
    /// Their uses, in order.
    pub instances: Vec<Instance>,
}

/// A block that is compiled once.
#[derive(Clone, Debug)]
pub struct Template {
    /// The name of its first use.
    pub name: Name,
    /// What it computes; values from outside are inputs, values used outside are outputs.
    pub graph: Graph,
    /// The names of its inputs, in order.
    pub inputs: Vec<Name>,
}

/// A use of a template.
#[derive(Clone, Debug)]
pub struct Instance {
    /// What is used.
    pub template: TemplateId,
    /// The model's name for each weight and state that the template names.
    pub leaves: IndexMap<Name, Name>,
    /// For each input of the template, the value of the model that it is.
    pub inputs: IndexMap<Name, NodeId>,
    /// For each output of the template, the value of the model that it is.
    pub outputs: IndexMap<Name, NodeId>,
}

/// Divides a graph.
pub fn divide(graph: &Graph) -> Division {
    let segments = Segments::of(graph);
    let mut division = Division::default();
    let mut known: IndexMap<u64, Vec<(TemplateId, Trace<'_>)>> = IndexMap::new();
    let mut places: List<NodeId, Option<u32>> = graph.nodes.ids().map(|_| None).collect();
    for index in 0..segments.members.len() {
        let trace = Trace::of(graph, &segments, index, &mut places);
        let same = known.entry(trace.hash()).or_default();
        let found = same.iter().find(|(_, first)| first.is_like(&trace)).map(|(id, _)| *id);
        let template = found.unwrap_or_else(|| division.templates.push(trace.template()));
        division.instances.push(trace.instance(template, &division.templates[template]));
        if found.is_none() {
            same.push((template, trace));
        }
    }
    division
}

/// Runs of computed nodes of one block. Leaves belong to none: each segment has its own.
struct Segments {
    members: Vec<Vec<NodeId>>,
    /// Whether a node is handed to another segment, or is an output of the whole.
    escapes: List<NodeId, bool>,
}

impl Segments {
    fn of(graph: &Graph) -> Self {
        let mut members: Vec<Vec<NodeId>> = Vec::new();
        let mut of: List<NodeId, Option<usize>> = graph.nodes.ids().map(|_| None).collect();
        let mut escapes: List<NodeId, bool> = graph.nodes.ids().map(|_| false).collect();
        let mut current: Option<Option<BlockId>> = None;
        for (id, node) in graph.nodes.iter() {
            let is_wanted = graph.output_of(id).is_some();
            if node.op.is_leaf() && !is_wanted {
                continue;
            }
            if current != Some(node.block) {
                current = Some(node.block);
                members.push(Vec::new());
            }
            let segment = members.len() - 1;
            members[segment].push(id);
            of[id] = Some(segment);
            escapes[id] |= is_wanted;
            for arg in &node.args {
                // Of a write, the state is there for everybody.
                let is_state = matches!(graph.nodes[*arg].op, Op::Write { .. });
                escapes[*arg] |= !is_state && of[*arg].is_some_and(|other| other != segment);
            }
        }
        Self { members, escapes }
    }
}

/// What a segment computes, without copies: its nodes in order, and arguments by their place in that order.
struct Trace<'a> {
    graph: &'a Graph,
    name: Name,
    /// Nodes, and whether each is a value from outside.
    nodes: Vec<(NodeId, bool)>,
    /// The places of all arguments, node by node.
    args: Vec<u32>,
    /// The places of values that are used outside.
    outputs: Vec<u32>,
}

impl<'a> Trace<'a> {
    fn of(
        graph: &'a Graph,
        segments: &Segments,
        index: usize,
        places: &mut List<NodeId, Option<u32>>,
    ) -> Self {
        let members = &segments.members[index];
        let block = members.first().and_then(|first| graph.nodes[*first].block);
        let name = block.map_or_else(|| Name::from("model"), |block| graph.blocks[block].clone());
        let mut trace = Self { graph, name, nodes: Vec::new(), args: Vec::new(), outputs: Vec::new() };
        for id in members {
            for arg in &graph.nodes[*id].args {
                trace.visit(*arg, false, places);
            }
            let place = trace.visit(*id, true, places);
            if segments.escapes[*id] {
                trace.outputs.push(place);
            }
        }
        for (id, _) in &trace.nodes {
            places[*id] = None;
        }
        trace
    }

    /// The place of a node; a node that is not a member is a leaf, which every segment has itself, or from outside.
    fn visit(&mut self, id: NodeId, is_member: bool, places: &mut List<NodeId, Option<u32>>) -> u32 {
        if let Some(place) = places[id] {
            return place;
        }
        let node = &self.graph.nodes[id];
        let is_own = (is_member || node.op.is_leaf()) && !matches!(node.op, Op::Input { .. });
        if is_own {
            self.args.extend(node.args.iter().filter_map(|arg| places[*arg]));
        }
        let place = self.nodes.len() as u32;
        self.nodes.push((id, !is_own));
        places[id] = Some(place);
        place
    }

    fn hash(&self) -> u64 {
        let name = |(id, is_outside): &(NodeId, bool)| {
            if *is_outside { "" } else { self.graph.nodes[*id].op.name() }
        };
        let names: Vec<&str> = self.nodes.iter().map(name).collect();
        stable_hash(&(names, &self.args, &self.outputs))
    }

    fn is_like(&self, other: &Self) -> bool {
        let same_node = |((a, a_outside), (b, b_outside)): (&(NodeId, bool), &(NodeId, bool))| {
            let (own, others) = (&self.graph.nodes[*a], &self.graph.nodes[*b]);
            let same_op = *a_outside || self.is_same_op(&own.op, other, &others.op);
            a_outside == b_outside && own.ty == others.ty && same_op
        };
        self.nodes.len() == other.nodes.len()
            && self.args == other.args
            && self.outputs == other.outputs
            && self.nodes.iter().zip(&other.nodes).all(same_node)
    }

    fn is_same_op(&self, own: &Op, other: &Self, others: &Op) -> bool {
        match (own, others) {
            (Op::Weight { name, shape, format }, Op::Weight { name: n, shape: s, format: f })
            | (Op::State { name, shape, format }, Op::State { name: n, shape: s, format: f }) => {
                self.local(name) == other.local(n) && shape == s && format == f
            }
            _ => own == others,
        }
    }

    /// A name as the template calls it: without the name of the block.
    fn local<'n>(&self, name: &'n str) -> &'n str {
        let own = name.strip_prefix(&*self.name).and_then(|rest| rest.strip_prefix('.'));
        own.unwrap_or(name)
    }

    fn template(&self) -> Template {
        let mut graph = Graph::default();
        let inputs = self.input_names();
        let mut args = self.args.iter().map(|place| NodeId::from_index(*place as usize));
        let mut n_inputs = 0;
        for (id, is_outside) in &self.nodes {
            let Node { op, args: own, ty, site, .. } = &self.graph.nodes[*id];
            let (op, n_args) = if *is_outside {
                n_inputs += 1;
                (Op::Input { name: inputs[n_inputs - 1].clone(), ty: ty.clone() }, 0)
            } else {
                (self.renamed(op), own.len())
            };
            let args = args.by_ref().take(n_args).collect();
            graph.push(Node { op, args, ty: ty.clone(), block: None, site: *site });
        }
        let outputs = self.outputs.iter().map(|place| NodeId::from_index(*place as usize));
        graph.outputs = self.output_names().into_iter().zip(outputs).collect();
        Template { name: self.name.clone(), graph, inputs }
    }

    /// What the caller hands in keeps its name; what other blocks hand in is numbered.
    fn input_names(&self) -> Vec<Name> {
        let outside = self.nodes.iter().filter(|(_, is_outside)| *is_outside);
        let own = outside.map(|(id, _)| match &self.graph.nodes[*id].op {
            Op::Input { name, .. } => Some(name.clone()),
            _ => None,
        });
        numbered("in", &own.collect::<Vec<_>>())
    }

    fn output_names(&self) -> Vec<Name> {
        let own = self.outputs.iter().map(|place| {
            let (id, _) = self.nodes[*place as usize];
            self.graph.output_of(id).cloned()
        });
        numbered("out", &own.collect::<Vec<_>>())
    }

    fn renamed(&self, op: &Op) -> Op {
        let mut op = op.clone();
        if let Op::Weight { name, .. } | Op::State { name, .. } = &mut op {
            *name = self.local(name).into();
        }
        op
    }

    fn instance(&self, id: TemplateId, template: &Template) -> Instance {
        let mut leaves = IndexMap::new();
        let mut inputs = IndexMap::new();
        for (node, is_outside) in &self.nodes {
            match &self.graph.nodes[*node].op {
                _ if *is_outside => {
                    inputs.insert(template.inputs[inputs.len()].clone(), *node);
                }
                Op::Weight { name, .. } | Op::State { name, .. } => {
                    leaves.insert(self.local(name).into(), name.clone());
                }
                _ => {}
            }
        }
        let names = template.graph.outputs.iter().map(|(name, _)| name.clone());
        let outputs = names.zip(self.outputs.iter().map(|place| self.nodes[*place as usize].0)).collect();
        Instance { template: id, leaves, inputs, outputs }
    }
}

/// Names for all: those there are, and `stem` with a number where there is none.
fn numbered(stem: &str, own: &[Option<Name>]) -> Vec<Name> {
    let is_taken = |name: &str| own.iter().flatten().any(|other| &**other == name);
    let mut free = (0..).map(|n| format!("{stem}{n}")).filter(|name| !is_taken(name));
    let mut next = || free.next().unwrap_or_default().into();
    own.iter().map(|name| name.clone().unwrap_or_else(&mut next)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::build::Builder;
    use crate::tensor::dtype::DType;
    use crate::tensor::quant::Format;

    fn layers(n: usize, odd: Option<usize>) -> Graph {
        let g = Builder::new();
        let (t, d) = (g.dim("t", 2), g.dim("d", 4));
        let mut x = g.input("x", DType::F32, &[&t, &d]);
        for layer in 0..n {
            x = g.block(&format!("blk.{layer}"), |g| {
                let w = g.weight("w", Format::F32, &[&d]);
                if odd == Some(layer) { &x * &w } else { &x + &w }
            });
        }
        g.finish(&[("y", &(x * 2.0))]).unwrap()
    }

    #[test]
    fn equal_blocks_share_a_template() {
        let division = divide(&layers(5, None));
        assert_eq!(division.templates.len(), 2);
        assert_eq!(division.instances.len(), 6);
        let third = &division.instances[2];
        assert_eq!(third.leaves["w"], Name::from("blk.2.w"));
        assert_eq!(third.inputs.len(), 1);
        assert_eq!(third.inputs["x"], division.instances[1].outputs["out0"]);
    }

    #[test]
    fn a_block_that_differs_has_its_own() {
        assert_eq!(divide(&layers(5, Some(3))).templates.len(), 3);
    }

    #[test]
    fn the_whole_is_what_its_parts_say() {
        let division = divide(&layers(2, None));
        for template in division.templates.values() {
            assert_eq!(crate::graph::verify::verify(&template.graph), []);
        }
    }
}
