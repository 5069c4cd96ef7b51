//! Divides a model into its distinct blocks and their uses.
//!
//! In: a whole graph. Out: a [`Division`]: templates, each a graph of its own, and instances that say which weights,
//! states and values a template is used with. Blocks that differ only in those share a template and are compiled once.
//! Time is linear in the graph. Values that cross from one instance to another are inputs and outputs of templates.

use indexmap::IndexMap;

use crate::define_id;
use crate::foundation::entity::List;
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
}

/// A use of a template.
#[derive(Clone, Debug)]
pub struct Instance {
    /// What is used.
    pub template: TemplateId,
    /// The name of the block.
    pub name: Name,
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
    let mut known: IndexMap<u64, Vec<TemplateId>> = IndexMap::new();
    let mut copied: List<NodeId, Option<NodeId>> = graph.nodes.ids().map(|_| None).collect();
    for (index, nodes) in segments.members.iter().enumerate() {
        let mut copy = Copy { graph, segments: &segments, index, copied: &mut copied, touched: Vec::new() };
        let (template, mut instance) = copy.run(nodes);
        let key = stable_hash(&shape_of(&template));
        let same = known.entry(key).or_default();
        let found = same.iter().find(|id| shape_of(&division.templates[**id].graph) == shape_of(&template));
        instance.template = match found {
            Some(id) => *id,
            None => {
                let id = division.templates.push(Template { name: instance.name.clone(), graph: template });
                same.push(id);
                id
            }
        };
        division.instances.push(instance);
    }
    division
}

/// All that makes two templates the same.
type ShapeOf<'a> = (Vec<(&'a Op, &'a [NodeId])>, &'a [(Name, NodeId)]);

fn shape_of(graph: &Graph) -> ShapeOf<'_> {
    (graph.nodes.values().map(|node| (&node.op, node.args.as_slice())).collect(), &graph.outputs)
}

/// Runs of computed nodes of one block. Leaves belong to none: each segment has its own.
struct Segments {
    members: Vec<Vec<NodeId>>,
    of: List<NodeId, Option<usize>>,
    /// Whether a node is read by another segment, or is an output of the whole.
    escapes: List<NodeId, bool>,
}

impl Segments {
    fn of(graph: &Graph) -> Self {
        let mut members: Vec<Vec<NodeId>> = Vec::new();
        let mut of: List<NodeId, Option<usize>> = graph.nodes.ids().map(|_| None).collect();
        let mut escapes: List<NodeId, bool> = graph.nodes.ids().map(|_| false).collect();
        let mut current: Option<Option<BlockId>> = None;
        for (id, node) in graph.nodes.iter() {
            let is_wanted = graph.outputs.iter().any(|(_, output)| *output == id);
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
                escapes[*arg] |= of[*arg].is_some_and(|other| other != segment);
            }
        }
        Self { members, of, escapes }
    }
}

/// Copies one segment into a graph of its own.
struct Copy<'a> {
    graph: &'a Graph,
    segments: &'a Segments,
    index: usize,
    copied: &'a mut List<NodeId, Option<NodeId>>,
    touched: Vec<NodeId>,
}

impl Copy<'_> {
    fn run(&mut self, nodes: &[NodeId]) -> (Graph, Instance) {
        let block = nodes.first().and_then(|first| self.graph.nodes[*first].block);
        let name = block.map_or_else(|| Name::from("model"), |block| self.graph.blocks[block].clone());
        let mut instance = Instance {
            template: TemplateId::default(),
            name,
            leaves: IndexMap::new(),
            inputs: IndexMap::new(),
            outputs: IndexMap::new(),
        };
        let mut template = Graph::default();
        for id in nodes {
            let own = self.node(*id, &mut template, &mut instance);
            if self.segments.escapes[*id] {
                let name: Name = format!("out{}", template.outputs.len()).into();
                template.outputs.push((name.clone(), own));
                instance.outputs.insert(name, *id);
            }
        }
        for id in self.touched.drain(..) {
            self.copied[id] = None;
        }
        (template, instance)
    }

    fn node(&mut self, id: NodeId, template: &mut Graph, instance: &mut Instance) -> NodeId {
        if let Some(own) = self.copied[id] {
            return own;
        }
        let node = &self.graph.nodes[id];
        let is_own = self.segments.of[id] == Some(self.index) || node.op.is_leaf();
        let is_inside = is_own && !matches!(node.op, Op::Input { .. });
        let own = if is_inside {
            let args = node.args.iter().map(|arg| self.node(*arg, template, instance)).collect();
            let op = local(&node.op, instance);
            template.push(Node { op, args, ty: node.ty.clone(), block: None, site: node.site })
        } else {
            let name: Name = format!("in{}", instance.inputs.len()).into();
            instance.inputs.insert(name.clone(), id);
            let op = Op::Input { name, ty: node.ty.clone() };
            template.push(Node { op, args: Vec::new(), ty: node.ty.clone(), block: None, site: None })
        };
        self.copied[id] = Some(own);
        self.touched.push(id);
        own
    }
}

/// The operation with its name as the template calls it: without the name of the block.
fn local(op: &Op, instance: &mut Instance) -> Op {
    let mut op = op.clone();
    if let Op::Weight { name, .. } | Op::State { name, .. } = &mut op {
        let own = name.strip_prefix(&*instance.name).and_then(|rest| rest.strip_prefix('.'));
        let own: Name = own.map_or_else(|| name.clone(), Name::from);
        instance.leaves.insert(own.clone(), name.clone());
        *name = own;
    }
    op
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
        assert_eq!(third.inputs["in0"], division.instances[1].outputs["out0"]);
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
