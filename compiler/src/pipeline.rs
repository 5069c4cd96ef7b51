//! The road: one function, one stage a line.
//!
//! In: the graph of a model and options. Out: a plan of fused kernels and the story of how it came about.
//! Distinct blocks are improved, partitioned and lowered once, however often they are used; their kernels are prepared
//! for the device once, too. Every stage's result is verified before the next begins; what a verifier refuses is a bug
//! of ours and is reported as one.

use std::fmt;
use std::time::Instant;

use crate::error::{Complaint, Error};
use crate::foundation::entity::List;
use crate::fuse::hazard::{protect, separate_outputs};
use crate::fuse::merge::{Partition, Steering, partition};
use crate::graph::Graph;
use crate::graph::divide::{Template, TemplateId, divide};
use crate::graph::narrow::narrow;
use crate::kernel::lower::{Bound, lower};
use crate::kernel::price::LoweredPrice;
use crate::options::Options;
use crate::prepare::prepare;
use crate::recount::{block_story, with_steps};
use crate::rewrite::{Choice, Report, Settings, improve_with, rules};
use crate::schedule::assemble::{Unit, UnitLaunch, assemble};
use crate::schedule::{Plan, Sequence, plan};
use crate::story::Story;
use crate::{fuse, graph, kernel, schedule};

/// Nodes of one block that can be compiled together: a layer of a model has a few hundred.
const MAX_BLOCK_NODES: usize = 2_000;

/// Compiles a graph.
///
/// # Errors
/// [`Error::Input`] for a graph that does not verify, [`Error::Limit`] for sizes no memory holds, [`Error::Bug`] where
/// a stage made something wrong.
pub fn compile(graph: &Graph, options: &Options) -> Result<Compiled, Error> {
    let mut road = Road::new(options);
    let sequence = road.launches(graph)?;
    let (sequence, changes) = road.stage("prepare", || prepare(sequence, options))?;
    let plan = road.stage("plan", || plan(sequence))?;
    road.verified("plan", || schedule::verify::verify(&plan))?;
    let story = with_steps(road.story, &plan, &changes);
    Ok(Compiled { plan, story })
}

/// The launches of a graph before they are prepared for the device, as [`blame`](crate::prepare::blame::blame) takes
/// them.
///
/// # Errors
/// As [`compile`].
pub fn launches(graph: &Graph, options: &Options) -> Result<Sequence, Error> {
    Road::new(options).launches(graph)
}

/// A compiled graph.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// The launches in order, and the memory plan.
    pub plan: Plan,
    /// How it came about.
    pub story: Story,
}

impl fmt::Display for Compiled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.story, self.plan)
    }
}

/// The story goes along: it times, verifies and records each stage.
struct Road<'a> {
    options: &'a Options,
    story: Story,
}

impl<'a> Road<'a> {
    fn new(options: &'a Options) -> Self {
        Self { options, story: Story { target: options.target.to_string(), ..Story::default() } }
    }

    /// Compiles every distinct block, and puts their launches in order.
    fn launches(&mut self, graph: &Graph) -> Result<Sequence, Error> {
        self.accepted(|| graph::verify::verify_structure(graph))?;
        let narrowed = self.stage("narrow", || narrow(graph));
        // Misfits are reported node by node below.
        let graph = narrowed.as_ref().unwrap_or(graph);
        let graph = &*self.stage("divide", || separate_outputs(graph));
        let division = self.stage("divide", || divide(graph));
        let mut units: List<TemplateId, Unit> = List::default();
        for (id, template) in division.templates.iter() {
            let n_uses = division.instances.iter().filter(|instance| instance.template == id).count();
            units.push(self.block(template, n_uses)?);
        }
        Ok(self.stage("assemble", || assemble(graph, &division, units)))
    }

    /// Compiles one distinct block, from the author's graph to kernels.
    fn block(&mut self, template: &Template, n_uses: usize) -> Result<Unit, Error> {
        let options = self.options;
        let n_nodes = template.graph.nodes.len();
        if n_nodes > MAX_BLOCK_NODES {
            let what = format!("the number of nodes of block `{}`", template.name);
            return Err(Error::Limit { what, found: n_nodes as u64, limit: MAX_BLOCK_NODES as u64 });
        }
        self.accepted(|| graph::verify::verify_nodes(&template.graph))?;
        let (better, report) = self.stage("improve", || improved(&template.graph, options));
        self.verified("improve", || graph::verify::verify(&better))?;
        let regions = self.stage("partition", || partitioned(&better, options));
        self.verified("partition", || fuse::verify::verify(&better, &regions))?;
        let kernels = self.stage("lower", || lowered(&better, &regions, options))?;
        let each =
            || kernels.iter().flatten().flat_map(|(kernel, _)| kernel::verify::verify(kernel)).collect();
        self.verified("lower", each)?;
        let story = block_story(template, n_uses, &better, &report, &regions, &kernels, &options.target);
        self.story.blocks.push(story);
        Ok(unit(better, &regions, kernels))
    }

    fn stage<T>(&mut self, name: &'static str, run: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = run();
        self.story.took(name, start.elapsed().as_secs_f64() * 1e3);
        result
    }

    /// Complaints here are for the author of the graph.
    fn accepted(&mut self, verify: impl FnOnce() -> Vec<Complaint>) -> Result<(), Error> {
        let complaints = self.stage("accept", verify);
        Error::input_if(complaints)
    }

    fn verified(
        &mut self,
        stage: &'static str,
        verify: impl FnOnce() -> Vec<Complaint>,
    ) -> Result<(), Error> {
        let complaints = self.stage("verify", verify);
        Error::bug_if(stage, complaints)
    }
}

fn improved(graph: &Graph, options: &Options) -> (Graph, Report) {
    let choice = options.chaos.map_or(Choice::Cheapest, Choice::Random);
    let settings =
        Settings { limits: options.limits, choice, fuel: options.fuel, ..Settings::new(options.target) };
    let (better, report) = improve_with(graph, &[rules::all(), options.rules.clone()].concat(), &settings);
    (with_orders_of(graph, protect(&better)), report)
}

fn partitioned(graph: &Graph, options: &Options) -> Partition {
    let steering = Steering { fuel: options.fuel, chaos: options.chaos };
    partition(graph, &mut LoweredPrice::new(graph, &options.target), steering)
}

/// The kernels of each region.
fn lowered(graph: &Graph, regions: &Partition, options: &Options) -> Result<Vec<Vec<Bound>>, Error> {
    let kernels = regions.regions.iter().map(|roots| {
        lower(graph, &regions.cut, roots, &options.target)
            .map_err(|_| Error::bug("lower", roots[0], "its region is too large to lower"))
    });
    kernels.collect()
}

/// Restores the axis order of the author's outputs: an equal form may have another. Each output has a buffer of its own
/// by now: an input that is an output lies as its maker says.
fn with_orders_of(asked: &Graph, mut better: Graph) -> Graph {
    for (name, output) in better.outputs.clone() {
        let before = asked.outputs.iter().find(|(own, _)| *own == name);
        if let Some((_, before)) = before {
            better.nodes[output].ty = asked.nodes[*before].ty.clone();
        }
    }
    better
}

fn unit(graph: Graph, regions: &Partition, kernels: Vec<Vec<Bound>>) -> Unit {
    let mut launches = Vec::new();
    for (roots, kernels) in regions.regions.iter().zip(kernels) {
        let last = kernels.len().saturating_sub(1);
        let fused = regions.fused(&graph, roots);
        let launch = |(index, bound)| {
            let barriers = regions.barriers(roots, index == last);
            UnitLaunch { bound, fused: fused.clone(), barriers }
        };
        launches.extend(kernels.into_iter().enumerate().map(launch));
    }
    Unit { graph, launches }
}
