//! What runs for every token, or for a prompt, with what each launch costs on this machine.
//!
//! In: a session in the middle of a text. Out: a table of its launches with measured times and what each fuses, its
//! plan, or its kernels as text. Equal kernels of equal layers are one row; a share of 100 % is what memory gives at
//! best, measured here: that of the processor, so kernels on a GPU have none.
//! What lies in the caches of the processor may be faster than memory.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::ValueEnum;
use fusebox_compiler::codegen::{planned, source};
use fusebox_compiler::error::Error;
use fusebox_compiler::foundation::amount::{bytes, count, counted};
use fusebox_compiler::foundation::table::table;
use fusebox_compiler::kernel::measure::{Measure, measure_at};
use fusebox_compiler::schedule::{KernelId, Plan, Step};
use fusebox_compiler::target::{Target, Work};
use fusebox_compiler::tensor::sym::Symbol;
use fusebox_runtime::session::{POSITION, Session, TOKENS};

use crate::machine;

/// How many times each launch is measured: of a token, and of a prompt.
const N_TIMES: [usize; 2] = [9, 3];

/// A view of what runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum View {
    /// Launches for a token, with their times.
    Table,
    /// The same for a prompt: the text so far, or as much of it as one replay takes.
    Prompt,
    /// Launches for a token with their buffers, and the arena.
    Plan,
    /// What every kernel is compiled from.
    Source,
}

/// Launches that were measured.
struct Measured<'p> {
    plan: &'p Plan,
    /// The median of each.
    times: Vec<Duration>,
    /// Where the first token stood, and how many there were.
    position: usize,
    n_tokens: usize,
    /// Bytes a second of memory, where they mean something.
    bandwidth: Option<f64>,
}

/// Launches of one kernel.
struct Row<'p> {
    first: usize,
    n_launches: usize,
    step: &'p Step,
    time: Duration,
}

/// Shows what runs for a token that follows a text, or for a text.
pub(crate) fn show(
    mut session: Session,
    taken: &[u32],
    n_threads: usize,
    (view, target): (View, Target),
) -> Result<String, String> {
    let [n_times_of_token, n_times_of_prompt] = N_TIMES;
    let (tokens, position, n_times) = match view {
        View::Plan => return Ok(session.plans()[0].to_string()),
        View::Source => return sources(session.plans()[0], &target),
        View::Table => {
            let token = taken.last().map_or(&[0][..], std::slice::from_ref);
            // A token needs a place.
            (token, session.position().min(session.context() - 1), n_times_of_token)
        }
        View::Prompt => {
            let (_, n_tokens) = session.pieces(taken.len()).next().ok_or("there is no text to read again")?;
            (&taken[..n_tokens], 0, n_times_of_prompt)
        }
    };
    let times = times(&mut session, tokens, position, n_times)?;
    let plan = session.plan_of(tokens.len());
    let bandwidth = machine::bandwidth(n_threads, &target);
    Ok(Measured { plan, times, position, n_tokens: tokens.len(), bandwidth }.told(n_threads))
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
        let bytes = || measured(plan, step, position, n_tokens).work().bytes;
        *of_kernel.entry(step.kernel).or_insert_with(bytes)
    };
    plan.steps.iter().map(&mut of_step).sum()
}

/// What a launch does with so many tokens from a position on.
fn measured(plan: &Plan, step: &Step, position: usize, n_tokens: usize) -> Measure {
    // Whichever of several texts a position is of.
    let value = |symbol: Symbol| match symbol.name.as_str() {
        TOKENS => n_tokens as i64,
        name if name.starts_with(POSITION) => position as i64,
        _ => symbol.near,
    };
    measure_at(&plan.kernels[step.kernel], &value)
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

/// The median time of every launch for tokens from a position on.
fn times(
    session: &mut Session,
    tokens: &[u32],
    position: usize,
    n_times: usize,
) -> Result<Vec<Duration>, String> {
    let mut all: Vec<Vec<Duration>> = Vec::new();
    for _ in 0..=n_times {
        session.truncate(position);
        all.push(session.profile(tokens).map_err(|error| error.to_string())?);
    }
    session.truncate(position);
    let median = |step: usize| {
        // The first time warms up.
        let mut own: Vec<Duration> = all[1..].iter().map(|times| times[step]).collect();
        own.sort();
        own[own.len() / 2]
    };
    Ok((0..all[0].len()).map(median).collect())
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

impl Measured<'_> {
    /// The table, what each row fuses, and a line about all of it.
    fn told(&self, n_threads: usize) -> String {
        let heads = "step,times,kernel,skeleton,ops,bytes,flops,us,GB/s,share,Gflop/s,barrier after it";
        let mut lines: Vec<Vec<String>> = vec![heads.split(',').map(str::to_owned).collect()];
        let mut fused = vec![["step", "fuses"].map(str::to_owned)];
        let (mut all_ops, mut all) = (0, Work::default());
        for Row { first, n_launches, step, time } in rows(self.plan, &self.times) {
            let kernel = &self.plan.kernels[step.kernel];
            let work = measured(self.plan, step, self.position, self.n_tokens).work();
            all_ops += step.fused.n_ops() * n_launches;
            all = all + Work { bytes: work.bytes * n_launches as f64, flops: work.flops * n_launches as f64 };
            let reasons: Vec<&str> = step.barriers.iter().map(|barrier| barrier.name()).collect();
            let times = format!("×{n_launches}");
            let what = [first.to_string(), times, kernel.name.clone(), kernel.skeleton.to_string()];
            let seconds = time.as_secs_f64() / n_launches as f64;
            lines.push(self.line(what, step.fused.n_ops(), work, seconds, &reasons.join(", ")));
            fused.push([first.to_string(), step.fused.to_string()]);
        }
        let what = ["all".to_owned(), format!("×{}", self.plan.steps.len()), String::new(), String::new()];
        let seconds = self.times.iter().sum::<Duration>().as_secs_f64();
        lines.push(self.line(what, all_ops, all, seconds, ""));
        let memory = self.bandwidth.map_or_else(String::new, |bandwidth| {
            format!(" memory gives {:.1} GB/s to {};", bandwidth / 1e9, counted(n_threads, "thread"))
        });
        let place = match self.n_tokens {
            1 => format!("token {}", self.position),
            n => format!("{n} tokens"),
        };
        format!(
            "{}{} a block, {} a replay;{memory} {place}\n\n{}",
            table("rrllrrrrrrrl", "  ", &lines),
            counted(per_block(self.plan), "kernel"),
            self.plan.steps.len(),
            table("rl", "  ", &fused),
        )
    }

    /// A row: what it is, what it does, and how fast.
    fn line(&self, what: [String; 4], n_ops: usize, work: Work, seconds: f64, reasons: &str) -> Vec<String> {
        let rate = |n: f64| n / seconds.max(1e-9);
        let numbers = [
            n_ops.to_string(),
            bytes(work.bytes),
            count(work.flops),
            format!("{:.1}", seconds * 1e6),
            format!("{:.1}", rate(work.bytes) / 1e9),
            percent(rate(work.bytes), self.bandwidth),
            format!("{:.1}", rate(work.flops) / 1e9),
            reasons.to_owned(),
        ];
        what.into_iter().chain(numbers).collect()
    }
}

/// A share of the most that memory gives, where that is known.
pub(crate) fn percent(rate: f64, bandwidth: Option<f64>) -> String {
    bandwidth.map_or_else(|| "-".to_owned(), |most| format!("{:.0} %", 100.0 * machine::share(rate, most)))
}
