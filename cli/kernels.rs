//! What runs for every token, with what each launch costs on this machine.
//!
//! In: a session in the middle of a text. Out: a table of its launches with measured times, its plan, or its kernels as
//! text. Equal kernels of equal layers are one row; a share of 100 % is what memory gives at best, measured here: that
//! of the processor, so kernels on a GPU have none.
//! What lies in the caches of the processor may be faster than memory.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::ValueEnum;
use fusebox_compiler::codegen::{planned, source};
use fusebox_compiler::error::Error;
use fusebox_compiler::foundation::amount::{bytes, count, counted};
use fusebox_compiler::foundation::table::table;
use fusebox_compiler::kernel::Param;
use fusebox_compiler::kernel::measure::measure;
use fusebox_compiler::schedule::{KernelId, Plan, Step};
use fusebox_compiler::target::Target;
use fusebox_compiler::tensor::sym::Symbol;
use fusebox_runtime::session::{POSITION, Session, TOKENS};

use crate::machine;

/// How many times each launch is measured.
const N_TIMES: usize = 9;

/// A view of what runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum View {
    /// Launches with their times.
    Table,
    /// Launches with their buffers, and the arena.
    Plan,
    /// What every kernel is compiled from.
    Source,
}

/// Launches of one kernel.
struct Row<'p> {
    first: usize,
    n_launches: usize,
    step: &'p Step,
    time: Duration,
}

/// Shows what runs for a token that follows a text.
pub(crate) fn show(
    mut session: Session,
    taken: &[u32],
    n_threads: usize,
    (view, target): (View, Target),
) -> Result<String, String> {
    match view {
        View::Table => {
            let (times, position) = times(&mut session, taken)?;
            let [plan, _] = session.plans();
            Ok(as_table(plan, &times, position, (n_threads, &target)))
        }
        View::Plan => Ok(session.plans()[0].to_string()),
        View::Source => sources(session.plans()[0], &target),
    }
}

/// What every kernel of a plan is compiled from on a target.
pub(crate) fn sources(plan: &Plan, target: &Target) -> Result<String, String> {
    let all = || planned(plan, target)?.kernels.values().map(|kernel| source(kernel, target)).collect();
    let sources: Result<Vec<String>, Error> = all();
    Ok(sources.map_err(|error| error.to_string())?.join("\n"))
}

/// Bytes that a replay reads and writes, with so many tokens from a position on.
pub(crate) fn bytes_of_replay(plan: &Plan, position: usize, n_tokens: usize) -> f64 {
    let mut of_kernel: BTreeMap<KernelId, f64> = BTreeMap::new();
    let mut of_step = |step: &Step| {
        *of_kernel.entry(step.kernel).or_insert_with(|| bytes_of_launch(plan, step, position, n_tokens))
    };
    plan.steps.iter().map(&mut of_step).sum()
}

fn bytes_of_launch(plan: &Plan, step: &Step, position: usize, n_tokens: usize) -> f64 {
    // Whichever of several texts a position is of.
    let value = |symbol: Symbol| match symbol.name.as_str() {
        TOKENS => n_tokens as i64,
        name if name.starts_with(POSITION) => position as i64,
        _ => symbol.near,
    };
    let kernel = &plan.kernels[step.kernel];
    let elements = measure(kernel).elements;
    let bytes =
        |(id, param): (_, &Param)| elements[id].evaluate(value) as f64 * param.format.bytes_per_element();
    kernel.params.iter().map(bytes).sum()
}

/// How many launches the block has that is used most often.
pub(crate) fn per_block(plan: &Plan) -> usize {
    let mut blocks: BTreeMap<usize, Vec<KernelId>> = BTreeMap::new();
    for step in &plan.steps {
        blocks.entry(step.instance).or_default().push(step.kernel);
    }
    let mut uses: BTreeMap<Vec<KernelId>, usize> = BTreeMap::new();
    for kernels in blocks.into_values() {
        *uses.entry(kernels).or_default() += 1;
    }
    let most = uses.iter().max_by_key(|(kernels, n_uses)| (**n_uses, kernels.len()));
    most.map_or(0, |(kernels, _)| kernels.len())
}

/// The median time of every launch, and the position that the token stood at.
fn times(session: &mut Session, taken: &[u32]) -> Result<(Vec<Duration>, usize), String> {
    let token = taken.last().copied().unwrap_or(0);
    // A token needs a place.
    let position = session.position().min(session.context() - 1);
    let mut all: Vec<Vec<Duration>> = Vec::new();
    for _ in 0..=N_TIMES {
        session.truncate(position);
        all.push(session.profile(&[token]).map_err(|error| error.to_string())?);
    }
    session.truncate(position);
    let median = |step: usize| {
        // The first time warms up.
        let mut own: Vec<Duration> = all[1..].iter().map(|times| times[step]).collect();
        own.sort();
        own[own.len() / 2]
    };
    Ok(((0..all[0].len()).map(median).collect(), position))
}

/// Equal kernels together, in the order of their first launch.
fn rows<'p>(plan: &'p Plan, times: &[Duration]) -> Vec<Row<'p>> {
    let mut rows: Vec<Row<'p>> = Vec::new();
    for (number, (step, time)) in plan.steps.iter().zip(times).enumerate() {
        match rows.iter_mut().find(|row| row.step.kernel == step.kernel) {
            Some(row) => {
                row.n_launches += 1;
                row.time += *time;
            }
            None => rows.push(Row { first: number, n_launches: 1, step, time: *time }),
        }
    }
    rows
}

fn as_table(
    plan: &Plan,
    times: &[Duration],
    position: usize,
    (n_threads, target): (usize, &Target),
) -> String {
    let bandwidth = machine::bandwidth(n_threads, target);
    let heads = [
        "step",
        "times",
        "kernel",
        "skeleton",
        "ops",
        "bytes",
        "flops",
        "us",
        "GB/s",
        "share",
        "barrier after it",
    ];
    let mut lines = vec![heads.map(str::to_owned).to_vec()];
    let (mut all_bytes, mut all_flops, mut all_ops) = (0.0, 0.0, 0);
    for Row { first, n_launches, step, time } in rows(plan, times) {
        let kernel = &plan.kernels[step.kernel];
        let measure = measure(kernel);
        let (moved, n) = (bytes_of_launch(plan, step, position, 1), n_launches as f64);
        all_bytes += moved * n;
        all_flops += measure.flops * n;
        all_ops += step.n_ops * n_launches;
        let reasons: Vec<&str> = step.barriers.iter().map(|barrier| barrier.name()).collect();
        let [us, rate, share] = speed(moved, time.as_secs_f64() / n, bandwidth);
        lines.push(vec![
            first.to_string(),
            format!("×{n_launches}"),
            kernel.name.clone(),
            kernel.skeleton.to_string(),
            step.n_ops.to_string(),
            bytes(moved),
            count(measure.flops),
            us,
            rate,
            share,
            reasons.join(", "),
        ]);
    }
    let [us, rate, share] = speed(all_bytes, times.iter().sum::<Duration>().as_secs_f64(), bandwidth);
    lines.push(vec![
        "all".to_owned(),
        format!("×{}", plan.steps.len()),
        String::new(),
        String::new(),
        all_ops.to_string(),
        bytes(all_bytes),
        count(all_flops),
        us,
        rate,
        share,
        String::new(),
    ]);
    let threads = counted(n_threads, "thread");
    let memory = bandwidth.map_or_else(String::new, |bandwidth| {
        format!(" memory gives {:.1} GB/s to {threads};", bandwidth / 1e9)
    });
    format!(
        "{}{} a block, {} a token;{memory} token {position}\n",
        table("rrllrrrrrrl", "  ", &lines),
        counted(per_block(plan), "kernel"),
        plan.steps.len(),
    )
}

/// Microseconds, bytes a second, and their share of the most that memory gives, where that is known.
fn speed(moved: f64, seconds: f64, bandwidth: Option<f64>) -> [String; 3] {
    let rate = moved / seconds.max(1e-9);
    [format!("{:.1}", seconds * 1e6), format!("{:.1}", rate / 1e9), percent(rate, bandwidth)]
}

/// A share of the most that memory gives, where that is known.
pub(crate) fn percent(rate: f64, bandwidth: Option<f64>) -> String {
    bandwidth.map_or_else(|| "-".to_owned(), |most| format!("{:.0} %", 100.0 * machine::share(rate, most)))
}
