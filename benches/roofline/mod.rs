//! Kernels as machine code on one thread, each beside the least time that the machine allows.
//!
//! In: kernels, with what of them comes from memory. Out: a row for each level: the best time of many, bytes a second
//! with their share of what one thread reads, multiplications a second with their share of what the level reaches, and
//! the resource that binds, with the share of that bound.
//! Weights, states and what is larger than caches come from memory: those of a run are not those of the run before.
//! All else is in the caches, as what another kernel has just written. `peaks.rs` measures what a level reaches, and
//! `memory.rs` memory, just before and after each row, for others use it as well; `work.rs` counts what a kernel does.

use std::env;
use std::io::{Write, stdout};
use std::process::exit;
use std::slice;
use std::time::{Duration, Instant};

use fusebox_compiler::codegen::cpu::Cpu;
use fusebox_compiler::codegen::cpu::jit::{Bytes, Code};
use fusebox_compiler::kernel::{Access, Kernel};
use fusebox_compiler::options::Numbers;
use fusebox_compiler::simd::Level;

mod buffers;
mod memory;
mod peaks;
mod work;

use buffers::{Copies, FOOTPRINT, from_memory};
use memory::Memory;
use peaks::{Peaks, peaks};
use work::Work;

/// Bytes that lie in the second level of the cache.
const CACHED: usize = 256 << 10;

/// A kernel is run so often, and at least so long.
const N_ROUNDS: usize = 5;
const MOMENT: Duration = Duration::from_millis(60);

/// What takes less, in seconds, is the call rather than the kernel.
const LEAST: f64 = 1e-6;

/// What one thread of this machine reaches, and which rows are wanted.
pub(crate) struct Machine {
    only: String,
    memory: Memory,
    /// Bytes a second from the cache.
    cache: f64,
    levels: Vec<(Level, Option<Peaks>)>,
}

/// A kernel to be measured.
pub(crate) struct Subject<'a> {
    /// The name of its rows.
    pub(crate) name: String,
    /// What runs.
    pub(crate) kernel: &'a Kernel,
    /// Whether each parameter comes from memory.
    pub(crate) is_cold: Vec<bool>,
    /// The levels that it is for.
    pub(crate) levels: &'a [Level],
    /// Whether single precision is another way to do it.
    pub(crate) has_single: bool,
}

impl Machine {
    /// Measures the machine; a word of the command line chooses rows.
    pub(crate) fn measured() -> Self {
        let only = env::args().skip(1).find(|word| !word.starts_with('-')).unwrap_or_default();
        let mut levels: Vec<Level> = vec![Level::host(), Level::Avx512, Level::Avx2];
        levels.retain(|level| level.is_supported());
        levels.dedup();
        let levels: Vec<_> = levels.into_iter().map(|level| (level, peaks(level))).collect();
        let (memory, cache) = (Memory::of(FOOTPRINT), Memory::of(CACHED).bandwidth());
        let [now, cached] = [memory.bandwidth(), cache].map(|rate| rate / 1e9);
        say(&format!("one thread reads {now:.1} GB/s from memory, {cached:.0} from its cache"));
        for (level, peaks) in &levels {
            if let Some(Peaks { single, f16, bf16, blocks }) = peaks {
                let [single, f16, bf16, blocks] = [single, f16, bf16, blocks].map(|peak| peak / 1e9);
                say(&format!(
                    "{level}: {single:.0} GMAC/s with f32, {f16:.0} f16, {bf16:.0} bf16, {blocks:.0} blocks"
                ));
            }
        }
        Self { only, memory, cache, levels }
    }

    /// Whether rows of this name are wanted.
    pub(crate) fn wants(&self, name: &str) -> bool {
        name.contains(&self.only)
    }

    /// A row for each level, and one for single precision.
    pub(crate) fn rows(&self, subject: &Subject<'_>) {
        if !self.wants(&subject.name) {
            return;
        }
        let is_cold = from_memory(subject.kernel, &subject.is_cold);
        let mut memory = Copies::of_all(subject.kernel, &is_cold);
        let levels = || self.levels.iter().filter(|(level, _)| subject.levels.contains(level));
        let single = levels().next().filter(|_| subject.has_single).map(|level| (level, Numbers::Single));
        let others = levels().map(|level| (level, Numbers::Quantised));
        for ((level, peaks), numbers) in single.into_iter().chain(others) {
            let cpu = Cpu::at(*level, numbers).expect("a processor that Cranelift knows");
            let code = cpu.compile(subject.kernel).expect("a kernel that compiles");
            let work = Work::of(&code, &is_cold, (*level, numbers));
            let before = self.memory.bandwidth();
            let seconds = best(times(&code, &mut memory));
            let rates =
                Rates { memory: before.max(self.memory.bandwidth()), cache: self.cache, peaks: *peaks };
            if seconds < LEAST {
                return;
            }
            print(&format!("{:11} {numbers:9?}", level.name()), &subject.name, &work, &rates, seconds);
        }
    }
}

/// What a row is compared with.
struct Rates {
    memory: f64,
    cache: f64,
    peaks: Option<Peaks>,
}

/// Prints a line; whoever closes the pipe has read enough.
fn say(line: &str) {
    if writeln!(stdout(), "{line}").is_err() {
        exit(0);
    }
}

fn print(form: &str, name: &str, work: &Work, rates: &Rates, seconds: f64) {
    let [memory, cache] = [work.memory / rates.memory, work.cache / rates.cache];
    let multiplying = rates.peaks.map(|peaks| work.seconds(&peaks));
    let arithmetic = multiplying.unwrap_or(0.0);
    let (n_bytes, reading) = if memory > cache { (work.memory, memory) } else { (work.cache, cache) };
    let (n, unit) = work.arithmetic();
    let bounds = [(memory, "memory"), (cache, "cache"), (arithmetic, "arithmetic")];
    let (least, what) = bounds.into_iter().max_by(|a, b| a.0.total_cmp(&b.0)).expect("three of them");
    let share = |least: f64| format!("{:3.0} %", 100.0 * least / seconds);
    say(&format!(
        "{form} {:9.1} us {:6.1} GB/s {} {:6.1} {unit:6} {}  {what:10} {}  {name}",
        1e6 * seconds,
        n_bytes / seconds / 1e9,
        share(reading),
        n / seconds / 1e9,
        multiplying.map_or("    -".to_owned(), share),
        share(least),
    ));
}

/// The best of some times, but for one in a hundred: clocks of shared machines make mistakes.
fn best(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 100]
}

/// The time of each run, in seconds.
fn times(code: &Code, memory: &mut [Copies]) -> Vec<f64> {
    let kernel = code.kernel();
    let mut scratch = vec![0; code.scratch_bytes()];
    let symbols: Vec<i64> = code.symbols().iter().map(|symbol| symbol.near).collect();
    let n_tasks = code.n_tasks(&symbols).expect("symbols in their ranges");
    let (begin, mut times) = (Instant::now(), Vec::new());
    for round in 0.. {
        if round >= N_ROUNDS && begin.elapsed() >= MOMENT {
            break;
        }
        let mut buffers: Vec<Bytes<'_>> = (kernel.params.values().zip(&mut *memory))
            .map(|(param, copies)| match param.access {
                Access::Read => Bytes::Read(copies.copy(round)),
                Access::Write => Bytes::Write(copies.copy(round)),
            })
            .collect();
        let start = Instant::now();
        code.run(slice::from_ref(&(0..n_tasks)), &mut buffers, &symbols, &mut scratch)
            .expect("arguments that fit");
        times.push(start.elapsed().as_secs_f64());
    }
    times
}
