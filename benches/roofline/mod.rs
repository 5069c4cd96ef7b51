//! Kernels as machine code on one thread, each beside the least time that the machine allows.
//!
//! In: kernels, with what of them comes from memory. Out: a row for each level: the best time of many, bytes a second
//! with their share of what one thread reads, multiplications a second with their share of what the level reaches, and
//! the resource that binds, with the share of that bound.
//! Weights and states come from memory: those of a run are not those of the run before. All else is in the caches, as
//! what another kernel has just written. The rates are measured first, by `memory.rs` and `peaks.rs`; `work.rs` counts
//! what a kernel does.

use std::env;
use std::slice;
use std::time::{Duration, Instant};

use fusebox_compiler::codegen::cpu::Cpu;
use fusebox_compiler::codegen::cpu::jit::{Bytes, Code};
use fusebox_compiler::codegen::cpu::level::{Level, Numbers};
use fusebox_compiler::kernel::{Access, Kernel};

mod buffers;
mod memory;
mod peaks;
mod work;

use buffers::{Copies, FOOTPRINT};
use memory::bandwidth;
use peaks::{Peaks, peaks};
use work::Work;

/// Bytes that lie in the second level of the cache.
const CACHED: usize = 256 << 10;

/// A kernel is run so often, and at least so long.
const N_ROUNDS: usize = 3;
const MOMENT: Duration = Duration::from_millis(50);

/// What one thread of this machine reaches, and which rows are wanted.
pub(crate) struct Machine {
    only: String,
    /// Bytes a second.
    memory: f64,
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
    #[expect(clippy::print_stdout, reason = "a table for people")]
    pub(crate) fn measured() -> Self {
        let only = env::args().skip(1).find(|word| !word.starts_with('-')).unwrap_or_default();
        let mut levels: Vec<Level> = vec![Level::host(), Level::Avx512, Level::Avx2];
        levels.retain(|level| level.is_supported());
        levels.dedup();
        let levels: Vec<_> = levels.into_iter().map(|level| (level, peaks(level))).collect();
        let (memory, cache) = (bandwidth(FOOTPRINT), bandwidth(CACHED));
        println!("one thread reads {:.1} GB/s from memory, {:.0} from its cache", memory / 1e9, cache / 1e9);
        for (level, peaks) in &levels {
            if let Some(Peaks { single, f16, bf16, blocks }) = peaks {
                let [single, f16, bf16, blocks] = [single, f16, bf16, blocks].map(|peak| peak / 1e9);
                println!(
                    "{level}: {single:.0} GMAC/s with f32, {f16:.0} f16, {bf16:.0} bf16, {blocks:.0} blocks"
                );
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
        let mut memory = Copies::of_all(subject.kernel, &subject.is_cold);
        let levels = || self.levels.iter().filter(|(level, _)| subject.levels.contains(level));
        let single = levels().next().filter(|_| subject.has_single).map(|level| (level, Numbers::Single));
        let others = levels().map(|level| (level, Numbers::Quantised));
        for ((level, peaks), numbers) in single.into_iter().chain(others) {
            let cpu = Cpu::at(*level, numbers).expect("a processor that Cranelift knows");
            let code = cpu.compile(subject.kernel).expect("a kernel that compiles");
            let work = Work::of(subject.kernel, &subject.is_cold, code.symbols(), numbers);
            let seconds = best(&code, &mut memory);
            self.print(subject, &format!("{level:11} {numbers:9?}"), &work, peaks.as_ref(), seconds);
        }
    }

    #[expect(clippy::print_stdout, reason = "a table for people")]
    fn print(&self, subject: &Subject<'_>, form: &str, work: &Work, peaks: Option<&Peaks>, seconds: f64) {
        let [memory, cache] = [work.memory / self.memory, work.cache / self.cache];
        let arithmetic = peaks.map_or(0.0, |peaks| work.seconds(peaks));
        let (n_bytes, reading) = if memory > cache { (work.memory, memory) } else { (work.cache, cache) };
        let (n, unit) = work.arithmetic();
        let bounds = [(memory, "memory"), (cache, "cache"), (arithmetic, "arithmetic")];
        let (least, what) = bounds.into_iter().max_by(|a, b| a.0.total_cmp(&b.0)).expect("three of them");
        let share = |least: f64| 100.0 * least / seconds;
        println!(
            "{form} {:9.1} us {:6.1} GB/s {:3.0} % {:6.1} {unit:6} {:3.0} %  {what:10} {:3.0} %  {}",
            1e6 * seconds,
            n_bytes / seconds / 1e9,
            share(reading),
            n / seconds / 1e9,
            share(arithmetic),
            share(least),
            subject.name,
        );
    }
}

/// The best time of many, in seconds.
fn best(code: &Code, memory: &mut [Copies]) -> f64 {
    let kernel = code.kernel();
    let mut scratch = vec![0; code.scratch_bytes()];
    let symbols: Vec<i64> = code.symbols().iter().map(|symbol| symbol.near).collect();
    let n_tasks = code.n_tasks(&symbols).expect("symbols in their ranges");
    let (begin, mut best) = (Instant::now(), f64::INFINITY);
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
        best = best.min(start.elapsed().as_secs_f64());
    }
    best
}
