//! `--print-kernels`: the kernels that run for a decode step or a prefill, with measured times.
//!
//! In: a session after a run. Out: a table of its launches with measured times and the code that computes their
//! products, and of the operations that each fuses; its plan; or the sources of its kernels. Launches of the same
//! kernel share a row. `of peak` is the share of the memory bandwidth measured here; kernels on a GPU have none, as
//! only the processor's memory is measured.
//! A kernel whose data fit into the processor's caches can exceed 100 %.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::ValueEnum;
use fusebox_compiler::codegen::cpu::Cpu;
use fusebox_compiler::codegen::cpu::form::Form;
use fusebox_compiler::codegen::{planned, source};
use fusebox_compiler::error::Error;
use fusebox_compiler::foundation::amount::{bytes, count, counted};
use fusebox_compiler::foundation::entity::Id;
use fusebox_compiler::foundation::table::table;
use fusebox_compiler::kernel::measure::{Measure, measure_at};
use fusebox_compiler::kernel::{Kernel, ParamId};
use fusebox_compiler::schedule::{KernelId, Place, Plan, Step};
use fusebox_compiler::target::{Target, Work};
use fusebox_compiler::tensor::sym::Symbol;
use fusebox_models::config::PAGE_ROWS;
use fusebox_runtime::session::{PAGES, Session, TOKENS};

use crate::host;

/// Measurements of each launch: for decode, and for prefill.
const N_REPEATS: [usize; 2] = [9, 3];
/// Columns of the table of times.
const WIDTH: usize = 120;
/// Marks generated code where a micro-kernel would be faster.
const MARK: &str = "!";

/// A value of `--print-kernels`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum View {
    /// The launches of a decode step, with their times.
    Table,
    /// The same for a prefill of the sequence so far, or of its first chunk.
    Prompt,
    /// The launches of a decode step with their buffers, and the arena.
    Plan,
    /// The source that each kernel is compiled from.
    Source,
}

/// Measured launches.
struct Measured<'p> {
    plan: &'p Plan,
    /// The median of each.
    times: Vec<Duration>,
    /// The position of the first token, and the number of tokens.
    position: usize,
    n_tokens: usize,
    /// Memory bandwidth in bytes per second; none on a GPU.
    bandwidth: Option<f64>,
    /// What the code is for, unless it runs on a GPU.
    cpu: Option<&'p Cpu>,
}

/// The launches of one kernel.
struct Row<'p> {
    first: usize,
    n_launches: usize,
    step: &'p Step,
    time: Duration,
}

/// Shows a view of the decode step that comes next, or of the prefill of `tokens`, the sequence so far.
pub(crate) fn show(
    session: &mut Session,
    sequence: &[u32],
    n_threads: usize,
    (view, target, cpu): (View, Target, Option<&Cpu>),
) -> Result<String, String> {
    let [n_decode_repeats, n_prefill_repeats] = N_REPEATS;
    let (tokens, position, n_repeats) = match view {
        View::Plan => return Ok(session.plan().to_string()),
        View::Source => return sources(session.plan(), &target),
        View::Table => {
            let token = sequence.last().map_or(&[0][..], std::slice::from_ref);
            // The decode step needs a free position.
            (token, session.position().min(session.context() - 1), n_decode_repeats)
        }
        View::Prompt => {
            let n_tokens =
                session.pieces(sequence.len()).next().ok_or("there are no tokens to prefill again")?;
            (&sequence[..n_tokens], 0, n_prefill_repeats)
        }
    };
    let times = times(session, tokens, position, n_repeats)?;
    let plan = session.plan_of(tokens.len()).map_err(|error| error.to_string())?;
    let bandwidth = host::memory_bandwidth(n_threads, &target);
    Ok(Measured { plan, times, position, n_tokens: tokens.len(), bandwidth, cpu }.to_text(n_threads))
}

/// The source of every kernel of a plan, for a target.
pub(crate) fn sources(plan: &Plan, target: &Target) -> Result<String, String> {
    let all = || planned(plan, target)?.kernels.values().map(|kernel| source(kernel, target)).collect();
    let sources: Result<Vec<String>, Error> = all();
    Ok(sources.map_err(|error| error.to_string())?.join("\n"))
}

/// Memory traffic of one step in bytes, for `n_tokens` tokens from a position on.
pub(crate) fn bytes_of_step(plan: &Plan, position: usize, n_tokens: usize) -> f64 {
    let mut of_kernel: BTreeMap<KernelId, f64> = BTreeMap::new();
    let mut of_step = |step: &Step| {
        let bytes = || measure_launch(plan, step, position, n_tokens).work().bytes;
        *of_kernel.entry(step.kernel).or_insert_with(bytes)
    };
    plan.steps.iter().map(&mut of_step).sum()
}

/// The work of a launch for `n_tokens` tokens from a position on.
fn measure_launch(plan: &Plan, step: &Step, position: usize, n_tokens: usize) -> Measure {
    let value = |symbol: Symbol| match symbol.name.as_str() {
        TOKENS => n_tokens as i64,
        PAGES => (position + n_tokens).div_ceil(PAGE_ROWS) as i64,
        _ => symbol.near,
    };
    measure_at(&plan.kernels[step.kernel], &value)
}

/// Launches per block, of the block that occurs most often.
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

/// The median time of every launch, for tokens from a position on.
fn times(
    session: &mut Session,
    tokens: &[u32],
    position: usize,
    n_repeats: usize,
) -> Result<Vec<Duration>, String> {
    let mut all: Vec<Vec<Duration>> = Vec::new();
    for _ in 0..=n_repeats {
        session.truncate(position).map_err(|error| error.to_string())?;
        all.push(session.profile(tokens).map_err(|error| error.to_string())?);
    }
    session.truncate(position).map_err(|error| error.to_string())?;
    let median = |step: usize| {
        // The first measurement is the warm-up.
        let mut own: Vec<Duration> = all[1..].iter().map(|times| times[step]).collect();
        own.sort();
        own[own.len() / 2]
    };
    Ok((0..all[0].len()).map(median).collect())
}

/// Launches grouped by kernel, in the order of the first launch.
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
    /// The table of times, a summary line, the products without a micro-kernel, and what each row fuses.
    fn to_text(&self, n_threads: usize) -> String {
        let heads = ["step", "launches", "bytes", "us", "GB/s", "of peak", "Gflop/s", "code", "tensors"];
        let mut lines = vec![heads.map(str::to_owned)];
        let heads = ["step", "ops", "flops", "barrier after it", "kernel", "fuses"];
        let mut fused = vec![heads.map(str::to_owned)];
        let (mut n_ops, mut all, mut slow) = (0, Work::default(), Vec::new());
        for Row { first, n_launches, step, time } in rows(self.plan, &self.times) {
            let Kernel { name, skeleton, .. } = &self.plan.kernels[step.kernel];
            let work = measure_launch(self.plan, step, self.position, self.n_tokens).work();
            n_ops += step.fused.n_ops() * n_launches;
            all = all + Work { bytes: work.bytes * n_launches as f64, flops: work.flops * n_launches as f64 };
            let forms = self.forms(step);
            for form in &forms {
                if let Form::Generated(reason) = form {
                    slow.push(format!("{MARK} kernel {first}: {name} runs without a fast form: {reason}\n"));
                }
            }
            let seconds = time.as_secs_f64() / n_launches as f64;
            let [times, number] = [format!("×{n_launches}"), first.to_string()];
            let (code, skeleton) = (code(&forms), skeleton.name());
            let code = if code.is_empty() { skeleton.to_owned() } else { code };
            let tensors = name.strip_prefix(skeleton).unwrap_or(name).trim_start().to_owned();
            lines.push(self.line([number.clone(), times], work, seconds, [code, tensors]));
            let reasons: Vec<&str> = step.barriers.iter().map(|barrier| barrier.name()).collect();
            let what = [reasons.join(", "), name.clone(), step.fused.to_string()];
            fused.push(explained(number, step.fused.n_ops(), work, what));
        }
        let times = format!("×{}", self.plan.steps.len());
        let seconds = self.times.iter().sum::<Duration>().as_secs_f64();
        lines.push(self.line(["all".to_owned(), times], all, seconds, Default::default()));
        fused.push(explained("all".to_owned(), n_ops, all, Default::default()));
        let memory = self.bandwidth.map_or_else(String::new, |bandwidth| {
            format!(" memory bandwidth {:.1} GB/s with {};", bandwidth / 1e9, counted(n_threads, "thread"))
        });
        let phase = match self.n_tokens {
            1 => format!("decode at position {}", self.position),
            n => format!("prefill of {n} tokens"),
        };
        let times: String = table("rrrrrrrll", "  ", &lines).lines().map(cut).collect();
        format!(
            "{times}{} per block, {} launches per step;{memory} {phase}\n{}\n{}",
            counted(per_block(self.plan), "kernel"),
            self.plan.steps.len(),
            slow.concat(),
            table("rrrlll", "  ", &fused),
        )
    }

    /// What computes the products of a launch with weights and caches; none on a GPU.
    fn forms(&self, step: &Step) -> Vec<Form> {
        let is_stored = |param: ParamId| {
            let place = &self.plan.buffers[step.args[param.index()]].place;
            matches!(place, Place::Weight | Place::State)
        };
        let forms = |cpu: &Cpu| cpu.forms(&self.plan.kernels[step.kernel], &is_stored);
        self.cpu.map_or_else(Vec::new, forms)
    }

    /// A row: number and launches, rates, code and tensors.
    fn line(
        &self,
        [number, times]: [String; 2],
        work: Work,
        seconds: f64,
        [code, tensors]: [String; 2],
    ) -> [String; 9] {
        let rate = |n: f64| n / seconds.max(1e-9);
        [
            number,
            times,
            bytes(work.bytes),
            format!("{:.1}", seconds * 1e6),
            format!("{:.1}", rate(work.bytes) / 1e9),
            percent(rate(work.bytes), self.bandwidth),
            format!("{:.1}", rate(work.flops) / 1e9),
            code,
            tensors,
        ]
    }
}

/// A row of the second table.
fn explained(number: String, n_ops: usize, work: Work, [reasons, name, fused]: [String; 3]) -> [String; 6] {
    [number, n_ops.to_string(), count(work.flops), reasons, name, fused]
}

/// The code of a kernel in a few words; formats that share a micro-kernel stand together.
fn code(forms: &[Form]) -> String {
    let mut groups: Vec<([&str; 2], Vec<String>)> = Vec::new();
    for form in forms {
        let (what, format) = match form {
            Form::Micro { op, format, layout } => ([*op, layout.unwrap_or("")], format.to_string()),
            Form::Generated(_) => ([MARK, ""], "generated".to_owned()),
        };
        match groups.iter_mut().find(|(own, _)| *own == what) {
            Some((_, formats)) if formats.contains(&format) => {}
            Some((_, formats)) => formats.push(format),
            None => groups.push((what, vec![format])),
        }
    }
    let word = |([op, layout], formats): ([&str; 2], Vec<String>)| {
        format!("{op} {} {layout}", formats.join("+")).trim_end().to_owned()
    };
    groups.into_iter().map(word).collect::<Vec<_>>().join(", ")
}

/// A line of the table of times, cut to its width; the second table has whole names.
fn cut(line: &str) -> String {
    if line.chars().count() <= WIDTH {
        return format!("{line}\n");
    }
    line.chars().take(WIDTH - 1).chain("…\n".chars()).collect()
}

/// A share of the memory bandwidth in percent, where that was measured.
pub(crate) fn percent(rate: f64, bandwidth: Option<f64>) -> String {
    bandwidth.map_or_else(|| "-".to_owned(), |peak| format!("{:.0} %", 100.0 * host::share(rate, peak)))
}
