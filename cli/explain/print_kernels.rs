//! `--print-kernels`: the kernels that run for a decode step or a prefill, with measured times.
//!
//! In: a session after a run. Out: tables of what `profile.rs` measures: launches with times and the code that computes
//! their products, totals by kind, and the operations that each fuses; its plan; or the sources of its kernels.
//! Launches of the same kernel share a row. `of peak` is the share of the memory bandwidth measured here; kernels on a
//! GPU have none, as only the processor's memory is measured.
//! A kernel whose data fit into the processor's caches can exceed 100 %.

use std::collections::BTreeMap;
use std::io::{IsTerminal, stdout};
use std::ops::Range;
use std::time::Duration;

use clap::ValueEnum;
use fusebox::Session;
use fusebox::host;
use fusebox::profile::{Launch, Profile, Total, measure_launch};
use fusebox::text::amount::{bytes, count, counted};
use fusebox::text::table::table;
use fusebox_compiler::codegen::cpu::Cpu;
use fusebox_compiler::codegen::cpu::product::form::MicroKernel;
use fusebox_compiler::codegen::source;
use fusebox_compiler::error::Error;
use fusebox_compiler::forms::Form;
use fusebox_compiler::schedule::{KernelId, Plan, Step};
use fusebox_compiler::target::{Target, Work};
use serde_json::{Value, json};

use crate::terminal::output;

/// Columns of the table of times, where no terminal has fewer.
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
    /// Both as data, with totals by kind of operation and by layer, in the object of `--json`.
    Json,
    /// The launches of a decode step with their buffers, and the arena.
    Plan,
    /// The source that each kernel is compiled from.
    Source,
}

/// A profile beside the memory bandwidth in bytes per second; none on a GPU.
struct Measured {
    profile: Profile,
    target: Target,
    bandwidth: Option<f64>,
}

/// The launches of one kernel.
struct Row<'p> {
    first: usize,
    n_launches: usize,
    launch: &'p Launch,
    time: Duration,
}

/// Shows a view of the decode step that comes next, or of the prefill of `tokens`, the sequence so far.
pub(crate) fn show(
    session: &mut Session,
    sequence: &[u32],
    n_threads: usize,
    (view, target, cpu): (View, Target, Option<&Cpu>),
) -> Result<String, String> {
    let profile = match view {
        View::Plan => return Ok(session.plan().to_string()),
        View::Source => return sources(session.plan(), &target),
        View::Json => {
            let profile = profile_json(session, sequence, n_threads, (target, cpu))?;
            return Ok(format!("{profile:#}\n"));
        }
        View::Table => Profile::of_token(session, sequence, cpu).map(Some),
        View::Prompt => Profile::of_prompt(session, sequence, cpu),
    };
    let profile = profile.map_err(|error| error.to_string())?;
    let profile = profile.ok_or("there are no tokens to prefill again")?;
    let bandwidth = host::memory_bandwidth(n_threads, &target);
    Ok(Measured { profile, target, bandwidth }.to_text(n_threads))
}

/// A decode step and a prefill of the sequence so far, or of its first chunk, as data.
pub(crate) fn profile_json(
    session: &mut Session,
    sequence: &[u32],
    n_threads: usize,
    (target, cpu): (Target, Option<&Cpu>),
) -> Result<Value, String> {
    let token = Profile::of_token(session, sequence, cpu).map_err(|error| error.to_string())?;
    let prompt = Profile::of_prompt(session, sequence, cpu).map_err(|error| error.to_string())?;
    let bandwidth = host::memory_bandwidth(n_threads, &target);
    Ok(json!({
        "threads": n_threads,
        "target": target.to_string(),
        "bandwidth_gb_s": bandwidth.map(|bandwidth| bandwidth / 1e9),
        "token": token.to_json(),
        "prompt": prompt.map(|prompt| prompt.to_json()),
    }))
}

/// The source of every kernel of a plan, for a target.
pub(crate) fn sources(plan: &Plan, target: &Target) -> Result<String, String> {
    let sources: Result<Vec<String>, Error> =
        plan.kernels.values().map(|kernel| source(kernel, target)).collect();
    Ok(sources.map_err(|error| error.to_string())?.join("\n"))
}

/// Memory traffic of one step in bytes, for tokens at these positions, over pages of this size.
pub(crate) fn bytes_of_step(plan: &Plan, page_size: usize, tokens: Range<usize>) -> f64 {
    let mut of_kernel: BTreeMap<KernelId, f64> = BTreeMap::new();
    let mut of_step = |step: &Step| {
        let bytes = || measure_launch(plan, step, page_size, tokens.clone()).work().bytes;
        *of_kernel.entry(step.kernel).or_insert_with(bytes)
    };
    plan.steps.iter().map(&mut of_step).sum()
}

/// Launches grouped by kernel, in the order of the first launch.
fn rows(launches: &[Launch]) -> Vec<Row<'_>> {
    let mut rows: Vec<Row<'_>> = Vec::new();
    for (number, launch) in launches.iter().enumerate() {
        match rows.iter_mut().find(|row| row.launch.kernel == launch.kernel) {
            Some(row) => {
                row.n_launches += 1;
                row.time += launch.time;
            }
            None => rows.push(Row { first: number, n_launches: 1, launch, time: launch.time }),
        }
    }
    rows
}

impl Measured {
    /// The table of times, a summary line, the products without a micro-kernel, totals by kind, and what each row
    /// fuses.
    fn to_text(&self, n_threads: usize) -> String {
        let Profile { position, n_tokens, launches, per_block, .. } = &self.profile;
        let heads = ["step", "launches", "bytes", "us", "GB/s", "of peak", "Gflop/s", "code", "tensors"];
        let mut lines = vec![heads.map(str::to_owned)];
        let heads = ["step", "ops", "flops", "barrier after it", "kernel", "fuses"];
        let mut fused = vec![heads.map(str::to_owned)];
        let mut slow = Vec::new();
        for Row { first, n_launches, launch, time } in rows(launches) {
            let Launch { name, skeleton, n_ops, fuses, barriers, work, forms, .. } = launch;
            for form in forms {
                if let Form::Generated(reason) = form {
                    slow.push(format!("{MARK} kernel {first}: {name} runs without a fast form: {reason}\n"));
                }
            }
            let seconds = time.as_secs_f64() / n_launches as f64;
            let [times, number] = [format!("×{n_launches}"), first.to_string()];
            let code = code(forms);
            let code = if code.is_empty() { (*skeleton).to_owned() } else { code };
            let tensors = name.strip_prefix(skeleton).unwrap_or(name).trim_start().to_owned();
            lines.push(self.line([number.clone(), times], *work, seconds, [code, tensors]));
            fused.push(explained(number, *n_ops, *work, [barriers.join(", "), name.clone(), fuses.clone()]));
        }
        let (total, times) = (self.profile.total(), format!("×{}", launches.len()));
        let seconds = total.time.as_secs_f64();
        lines.push(self.line(["all".to_owned(), times], total.work, seconds, Default::default()));
        let n_ops = launches.iter().map(|launch| launch.n_ops).sum();
        fused.push(explained("all".to_owned(), n_ops, total.work, Default::default()));
        let memory = self.bandwidth.map_or_else(String::new, |bandwidth| {
            format!(" memory bandwidth {:.1} GB/s with {};", bandwidth / 1e9, counted(n_threads, "thread"))
        });
        let phase = match n_tokens {
            1 => format!("decode at position {position}"),
            n => format!("prefill of {n} tokens"),
        };
        let width = if stdout().is_terminal() { output::width().min(WIDTH) } else { WIDTH };
        let times: String = table("rrrrrrrll", "  ", &lines).lines().map(|line| cut(line, width)).collect();
        format!(
            "{times}{} per block, {} launches per step for {};{memory} {phase}\n{}\n{}\n{}",
            counted(*per_block, "kernel"),
            launches.len(),
            self.target,
            slow.concat(),
            self.kinds(),
            table("rrrlll", "  ", &fused),
        )
    }

    /// The table of totals by kind.
    fn kinds(&self) -> String {
        let all = self.profile.total().time.as_secs_f64().max(1e-9);
        let row = |(name, total): (&str, Total)| {
            let seconds = total.time.as_secs_f64();
            let rate = if total.n_launches == 0 { 0.0 } else { total.work.bytes / seconds.max(1e-9) };
            [
                name.to_owned(),
                total.n_launches.to_string(),
                format!("{:.1}", seconds * 1e6),
                format!("{:.0} %", 100.0 * seconds / all),
                bytes(total.work.bytes),
                format!("{:.1}", rate / 1e9),
            ]
        };
        let kinds = self.profile.kinds().into_iter().filter(|(_, total)| total.n_launches > 0);
        let heads = ["kind", "launches", "us", "of time", "bytes", "GB/s"].map(str::to_owned);
        let rows = [heads].into_iter().chain(kinds.map(|(kind, total)| row((kind.name(), total))));
        table("lrrrrr", "  ", &rows.collect::<Vec<_>>())
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
            Form::Micro(MicroKernel { op, format, layout }) => {
                ([*op, layout.unwrap_or("")], format.to_string())
            }
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

/// A line of the table of times, cut to a width; the last table has whole names.
fn cut(line: &str, width: usize) -> String {
    if line.chars().count() <= width {
        return format!("{line}\n");
    }
    line.chars().take(width - 1).chain("…\n".chars()).collect()
}

/// A share of the memory bandwidth in percent, where that was measured.
pub(crate) fn percent(rate: f64, bandwidth: Option<f64>) -> String {
    bandwidth.map_or_else(|| "-".to_owned(), |peak| format!("{:.0} %", 100.0 * host::share(rate, peak)))
}
