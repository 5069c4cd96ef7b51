//! Records what the stages made, for the story.
//!
//! In: graphs, partitions, kernels and plans. Out: the text and numbers of a [`Story`].
//! It decides nothing; everything comes from the stages' own printers and counters.

use indexmap::IndexMap;

use crate::foundation::entity::Id;
use crate::fuse::barrier::Barrier;
use crate::fuse::fused::Fused;
use crate::fuse::merge::Partition;
use crate::graph::divide::Template;
use crate::graph::print::node_line;
use crate::graph::{Graph, NodeId};
use crate::kernel::lower::Bound;
use crate::kernel::measure::measure;
use crate::kernel::{Access, Kernel};
use crate::prepare::Change;
use crate::rewrite::{Form, Report, Stop};
use crate::schedule::Plan;
use crate::story::{BlockStory, EGraphStory, KernelStory, RegionStory, Story};
use crate::target::Target;

/// How much more expensive a form must be to be worth telling that it was not chosen.
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
        written: template.graph.to_string(),
        n_written: n_operations(&template.graph),
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
                let fused = regions.fused(better, roots);
                kernel_story(kernel, &fused, &regions.barriers(roots, is_last), target)
            })
            .collect(),
    }
}

/// The story with what was changed for the device, and the launches of the plan it led to.
pub(crate) fn with_steps(mut story: Story, plan: &Plan, changes: &[Change]) -> Story {
    // Kernels are numbered block by block, in the order of the blocks.
    let mut places = Vec::new();
    for (block, told) in story.blocks.iter().enumerate() {
        places.extend((0..told.kernels.len()).map(|kernel| (block, kernel)));
    }
    for Change { pass, reason, kernels } in changes {
        for id in kernels {
            let (block, kernel) = places[id.index()];
            let told = &mut story.blocks[block].kernels[kernel];
            told.prepared.push(format!("{pass}: {reason}"));
            told.text = plan.kernels[*id].to_string();
        }
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

/// A line for each value with a more expensive form: what was chosen, where, and instead of what.
fn form_lines(forms: &[Form]) -> Vec<String> {
    let mut lines: IndexMap<String, Vec<String>> = IndexMap::new();
    for Form { site, chosen, chosen_seconds, other, other_seconds } in forms {
        // Forms of about the same price were no choice.
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
    let computed = regions.computed(graph, roots);
    let fused = Fused::of(graph, &computed);
    let merged = regions.merges.iter().filter(|merge| computed.contains(&merge.values[0])).map(|merge| {
        let values: Vec<String> = merge.values.iter().map(ToString::to_string).collect();
        format!("without {} in memory: {}", values.join(" and "), merge.prices)
    });
    // The last of the joins that led to it.
    let join = regions.joins.iter().rfind(|join| join.values == roots);
    let joined = join.map(|join| format!("in one launch: {}", join.prices));
    RegionStory {
        n_ops: fused.n_ops(),
        fuses: fused.to_string(),
        computes: ranges(&computed),
        pays: merged.chain(joined).collect(),
        stores: stores.collect(),
    }
}

/// Values in order, those that follow each other by the first and the last.
fn ranges(values: &[NodeId]) -> String {
    let runs = values.chunk_by(|a, b| a.index() + 1 == b.index());
    let runs = runs.map(|run| match run {
        [first, .., last] => format!("{first}..={last}"),
        _ => run[0].to_string(),
    });
    runs.collect::<Vec<_>>().join(", ")
}

fn kernel_story(kernel: &Kernel, fused: &Fused, barriers: &[Barrier], target: &Target) -> KernelStory {
    let measure = measure(kernel);
    let traffic = kernel.params.iter().map(|(id, param)| {
        let verb = if param.access == Access::Read { "reads" } else { "writes" };
        format!("{verb} {} {} of {}", measure.elements[id], param.format, param.name)
    });
    KernelStory {
        name: kernel.name.clone(),
        skeleton: kernel.skeleton.to_string(),
        n_ops: fused.n_ops(),
        fuses: fused.to_string(),
        n_parts: kernel.parts.len(),
        n_tasks: measure.n_tasks,
        bytes_read: measure.bytes_read,
        bytes_written: measure.bytes_written,
        flops: measure.flops,
        tile_bytes: measure.tile_bytes,
        microseconds: measure.seconds(target) * 1e6,
        traffic: traffic.collect(),
        barriers: barriers.iter().map(ToString::to_string).collect(),
        prepared: Vec::new(),
        text: kernel.to_string(),
    }
}
