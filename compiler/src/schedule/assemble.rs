//! Lists the launches of all uses of all blocks.
//!
//! In: a model divided into blocks, and the kernels of each distinct block. Out: a [`Sequence`]: every kernel once,
//! every launch with the values of its use. Time is linear in the launches. Nothing is decided here; `plan` assigns
//! memory.

use indexmap::IndexMap;

use crate::foundation::entity::{Id, List};
use crate::fuse::barrier::Barrier;
use crate::fuse::fused::Fused;
use crate::graph::divide::{Division, Instance, TemplateId};
use crate::graph::op::Op;
use crate::graph::{Graph, Name, NodeId};
use crate::kernel::lower::Bound;
use crate::kernel::lower::params::{Buffer, storage_of};
use crate::kernel::{Param, ParamId};
use crate::schedule::{BufferId, Home, KernelId, Sequence, Step, Value};

/// A distinct block with its kernels.
#[derive(Clone, Debug)]
pub(crate) struct Unit {
    /// What the kernels compute.
    pub graph: Graph,
    /// The launches in order.
    pub launches: Vec<UnitLaunch>,
}

/// A launch of a block, whoever uses the block.
#[derive(Clone, Debug)]
pub(crate) struct UnitLaunch {
    /// The kernel with its buffers.
    pub bound: Bound,
    /// The operations of the graph that it does.
    pub fused: Fused,
    /// Why its results are stored.
    pub barriers: Vec<Barrier>,
}

/// What makes two values of the whole the same.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Key {
    Weight(Name),
    State(Name),
    Constant(TemplateId, NodeId),
    /// A value of the model.
    Model(NodeId),
    /// A value inside one use of a block.
    Inside(usize, Buffer),
}

/// The launches of a whole model.
pub(crate) fn assemble(graph: &Graph, division: &Division, units: List<TemplateId, Unit>) -> Sequence {
    let mut kernels = List::default();
    let mut launches_of: List<TemplateId, Vec<(KernelId, Fused, Vec<Barrier>)>> = List::default();
    let mut graphs: List<TemplateId, (Graph, Vec<Vec<Buffer>>)> = List::default();
    for (_, unit) in units.into_entries() {
        let mut launches = Vec::new();
        let mut buffers = Vec::new();
        for UnitLaunch { bound: (kernel, bound), fused, barriers } in unit.launches {
            launches.push((kernels.push(kernel), fused, barriers));
            buffers.push(bound);
        }
        launches_of.push(launches);
        graphs.push((unit.graph, buffers));
    }
    let mut assembly = Assembly { graph, kernels: &kernels, values: IndexMap::new() };
    let mut steps = Vec::new();
    for (index, instance) in division.instances.iter().enumerate() {
        let (template, buffers) = &graphs[instance.template];
        for ((kernel, fused, barriers), buffers) in launches_of[instance.template].iter().zip(buffers) {
            let args = assembly.args(index, instance, template, *kernel, buffers);
            let (kernel, fused, barriers) = (*kernel, fused.clone(), barriers.clone());
            steps.push(Step { kernel, args, instance: index, fused, barriers });
        }
    }
    let values = assembly.values.into_values().collect();
    Sequence { kernels, values, steps }
}

struct Assembly<'a> {
    graph: &'a Graph,
    kernels: &'a List<KernelId, crate::kernel::Kernel>,
    values: IndexMap<Key, Value>,
}

impl Assembly<'_> {
    fn args(
        &mut self,
        index: usize,
        instance: &Instance,
        template: &Graph,
        kernel: KernelId,
        buffers: &[Buffer],
    ) -> Vec<BufferId> {
        let params = &self.kernels[kernel].params;
        let mut args = Vec::with_capacity(buffers.len());
        for (position, buffer) in buffers.iter().enumerate() {
            let (key, home, name) = self.identify(index, instance, template, *buffer);
            let Param { format, shape, name: own, .. } = &params[ParamId::from_index(position)];
            let entry = self.values.entry(key);
            args.push(BufferId::from_index(entry.index()));
            entry.or_insert_with(|| {
                let name = name.unwrap_or_else(|| own.clone());
                Value { name, format: *format, shape: shape.clone(), home }
            });
        }
        args
    }

    fn identify(
        &self,
        index: usize,
        instance: &Instance,
        template: &Graph,
        buffer: Buffer,
    ) -> (Key, Home, Option<Name>) {
        let Buffer::Node(node) = buffer else { return (Key::Inside(index, buffer), Home::Temporary, None) };
        let of_model = |name: &Name| instance.leaves.get(name).unwrap_or(name).clone();
        match &template.nodes[node].op {
            Op::Weight { name, .. } => (Key::Weight(of_model(name)), Home::Weight, Some(of_model(name))),
            Op::State { name, .. } => (Key::State(of_model(name)), Home::State, Some(of_model(name))),
            Op::Table { values, .. } => {
                (Key::Constant(instance.template, node), Home::Constant(values.clone()), None)
            }
            Op::Input { name, .. } => match instance.inputs.get(name) {
                Some(value) => self.of_model(*value),
                None => (Key::Inside(index, buffer), Home::Input, Some(name.clone())),
            },
            _ => match template.output_of(node).and_then(|name| instance.outputs.get(name)) {
                Some(value) => self.of_model(*value),
                None => (Key::Inside(index, buffer), Home::Temporary, None),
            },
        }
    }

    /// A value of the model: an input, a state, an output, or what one block hands to another.
    fn of_model(&self, value: NodeId) -> (Key, Home, Option<Name>) {
        let storage = storage_of(self.graph, value);
        match &self.graph.nodes[storage].op {
            Op::Input { name, .. } => (Key::Model(storage), Home::Input, Some(name.clone())),
            Op::State { name, .. } => (Key::State(name.clone()), Home::State, Some(name.clone())),
            _ => {
                let output = self.graph.output_of(value);
                let home = if output.is_some() { Home::Output } else { Home::Temporary };
                (Key::Model(value), home, output.cloned())
            }
        }
    }
}
