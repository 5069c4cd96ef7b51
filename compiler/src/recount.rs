//! Writes down what the stages made, as the story tells it.
//!
//! In: graphs, partitions, kernels and plans. Out: the text and numbers of a [`Story`].
//! It decides nothing; whatever it needs to know is asked of the stage's own printer or counter.

use indexmap::IndexMap;

use crate::foundation::entity::Id;
use crate::fuse::barrier::Barrier;
use crate::fuse::merge::Partition;
use crate::graph::divide::Template;
use crate::graph::print::node_line;
use crate::graph::{Graph, NodeId};
use crate::kernel::lower::Bound;
use crate::kernel::measure::measure;
use crate::kernel::{Access, Kernel};
use crate::rewrite::{Form, Report, Stop};
use crate::schedule::Plan;
use crate::story::{BlockStory, EGraphStory, KernelStory, RegionStory, Story};
use crate::target::Target;

/// How much dearer a form must be to be worth telling that it was not chosen.
const WORTH_TELLING: f64 = 1.02;

/// What happened to one block.
pub(crate) fn block_story(
    template: &Template,
    n_uses: usize,
    better: &Graph,
    report: &Report,
    regions: &Partition,
    kernels: &[Vec<Bound>],
    target: &Target,
) -> BlockStory {
    let launches = regions.regions.iter().zip(kernels).flat_map(|(roots, kernels)| {
        let each = kernels.iter().enumerate();
        each.map(move |(index, (kernel, _))| (roots, kernel, index + 1 == kernels.len()))
    });
    BlockStory {
        name: template.name.to_string(),
        n_uses,
        asked: template.graph.to_string(),
        n_asked: n_operations(&template.graph),
        improved: better.to_string(),
        n_improved: n_operations(better),
        egraph: EGraphStory {
            nodes: report.nodes,
            classes: report.classes,
            rounds: report.rounds,
            stopped: stop_word(report.stopped).to_owned(),
        },
        rules_fired: report.fired.iter().map(|(rule, n)| ((*rule).to_owned(), *n)).collect(),
        rules_used: report.used.iter().map(|rule| (*rule).to_owned()).collect(),
        forms: form_lines(&report.forms),
        seconds: (report.seconds_before, report.seconds),
        regions: regions.regions.iter().map(|roots| region_story(better, regions, roots)).collect(),
        kernels: launches
            .map(|(roots, kernel, is_last)| {
                let n_ops = n_fused(better, regions, roots);
                kernel_story(kernel, n_ops, &regions.reasons(roots, is_last), target)
            })
            .collect(),
    }
}

/// The story with the launches of the plan it led to.
pub(crate) fn with_steps(mut story: Story, plan: &Plan) -> Story {
    // Kernels are numbered block by block, in the order of the blocks.
    let mut places = Vec::new();
    for (block, told) in story.blocks.iter().enumerate() {
        places.extend((0..told.kernels.len()).map(|kernel| (block, kernel)));
    }
    story.steps = plan.steps.iter().map(|step| places[step.kernel.index()]).collect();
    story.arena_bytes = plan.arena_bytes;
    story
}

fn n_operations(graph: &Graph) -> usize {
    graph.nodes.values().filter(|node| !node.op.is_leaf()).count()
}

fn stop_word(stop: Stop) -> &'static str {
    match stop {
        Stop::Saturated => "saturated",
        Stop::Nodes => "node limit",
        Stop::Rounds => "round limit",
        Stop::Fuel => "out of fuel",
    }
}

/// A line for each value that could have been computed in a dearer form: what was chosen, where, and instead of what.
fn form_lines(forms: &[Form]) -> Vec<String> {
    let mut lines: IndexMap<String, Vec<String>> = IndexMap::new();
    for Form { site, chosen, chosen_seconds, other, other_seconds } in forms {
        // Forms that cost the same, about, were no choice.
        if *other_seconds > WORTH_TELLING * chosen_seconds {
            let place = site.map(|site| format!(" at {site}")).unwrap_or_default();
            let head = format!("{chosen}{place}: {:.1} us", chosen_seconds * 1e6);
            lines.entry(head).or_default().push(format!("{other} {:.1} us", other_seconds * 1e6));
        }
    }
    lines.into_iter().map(|(head, others)| format!("{head}, instead of {}", others.join(", "))).collect()
}

fn region_story(graph: &Graph, regions: &Partition, roots: &[NodeId]) -> RegionStory {
    let stores = roots.iter().map(|root| {
        let reason = regions.reason(*root).map(|reason| reason.to_string()).unwrap_or_default();
        (node_line(graph, *root), reason)
    });
    RegionStory { n_ops: n_fused(graph, regions, roots), stores: stores.collect() }
}

/// How many operations a region computes.
pub(crate) fn n_fused(graph: &Graph, regions: &Partition, roots: &[NodeId]) -> usize {
    regions.cut.cone(graph, roots).iter().filter(|node| !graph.nodes[**node].op.is_leaf()).count()
}

fn kernel_story(kernel: &Kernel, n_ops: usize, barriers: &[Barrier], target: &Target) -> KernelStory {
    let measure = measure(kernel);
    let traffic = kernel.params.iter().map(|(id, param)| {
        let verb = if param.access == Access::Read { "reads" } else { "writes" };
        format!("{verb} {} {} of {}", measure.elements[id], param.format, param.name)
    });
    KernelStory {
        name: kernel.name.clone(),
        skeleton: kernel.skeleton.to_string(),
        n_ops,
        n_parts: kernel.parts.len(),
        n_tasks: measure.n_tasks,
        bytes_read: measure.bytes_read,
        bytes_written: measure.bytes_written,
        flops: measure.flops,
        tile_bytes: measure.tile_bytes,
        microseconds: measure.seconds(target) * 1e6,
        traffic: traffic.collect(),
        barriers: barriers.iter().map(ToString::to_string).collect(),
        text: kernel.to_string(),
    }
}
