//! What this machine has, as far as the system tells.
//!
//! In: nothing. Out: numbers and names, or nothing where the system does not tell.
//! The bandwidth of memory is measured, in a moment: that is what a kernel table compares with.

use std::fs;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use fusebox_compiler::codegen::cpu;
use fusebox_compiler::target::Target;
use fusebox_runtime::buffer::Buffer;
use fusebox_runtime::threads::each;

/// How long the bandwidth is measured.
const MOMENT: Duration = Duration::from_millis(50);
/// What is read for it: more than caches hold.
const N_BYTES: usize = 256 << 20;
/// How many bytes are read between two looks at the clock.
const PIECE: usize = 1 << 20;

/// How many threads the machine runs at once.
pub(crate) fn n_threads() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// Seconds as milliseconds, to the nanosecond: clocks tell no more.
pub(crate) fn milliseconds(seconds: f64) -> f64 {
    (1e9 * seconds).round() / 1e6
}

/// The name of the processor.
pub(crate) fn processor() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let names = text.lines().filter_map(|line| line.split_once(':'));
    let name = names.into_iter().find(|(key, _)| key.trim() == "model name").map(|(_, name)| name.trim());
    name.map_or_else(|| format!("{} of unknown name", std::env::consts::ARCH), str::to_owned)
}

/// Bytes of memory, all and what is free for programs.
pub(crate) fn memory() -> Option<(u64, u64)> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    Some((kilobytes(&text, "MemTotal")?, kilobytes(&text, "MemAvailable")?))
}

/// The most bytes of memory that this process had at any time, mapped files included.
pub(crate) fn peak() -> Option<u64> {
    kilobytes(&fs::read_to_string("/proc/self/status").ok()?, "VmHWM")
}

/// A number of kilobytes in a list of the system, in bytes.
fn kilobytes(text: &str, key: &str) -> Option<u64> {
    let mut rows = text.lines().filter_map(|line| line.split_once(':'));
    let (_, value) = rows.find(|(name, _)| *name == key)?;
    value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Bytes a second that so many threads read together from the memory that programs for a target use; nothing where
/// that is not the processor's.
pub(crate) fn bandwidth(n_threads: usize, target: &Target) -> Option<f64> {
    target.is_processor().then(|| all_read(n_threads))
}

/// The share of the most that memory gives.
pub(crate) fn share(rate: f64, most: f64) -> f64 {
    rate / most.max(1.0)
}

fn all_read(n_threads: usize) -> f64 {
    let n_threads = n_threads.max(1);
    let (n_bytes, begin) = (N_BYTES / n_threads, &Barrier::new(n_threads));
    each(n_threads, |_| reads(n_bytes, begin)).iter().sum()
}

/// Bytes a second that one thread reads, beginning with the others.
fn reads(n_bytes: usize, begin: &Barrier) -> f64 {
    let mut memory = Buffer::zeroed(n_bytes).map(Buffer::in_large_pages).ok();
    if let Some(memory) = &mut memory {
        // A page that nobody wrote is not in memory yet.
        memory.bytes_mut().fill(1);
    }
    let (mut rates, mut sum) = (Vec::new(), 0);
    begin.wait();
    let Some(memory) = memory else { return 0.0 };
    let start = Instant::now();
    // Pieces are short, so that most of them are read without a pause in which others had the processor.
    for piece in memory.bytes().chunks(PIECE).cycle() {
        let before = Instant::now();
        sum ^= cpu::read(piece);
        rates.push(piece.len() as f64 / before.elapsed().as_secs_f64().max(1e-9));
        if start.elapsed() >= MOMENT {
            break;
        }
    }
    std::hint::black_box(sum);
    rates.sort_by(f64::total_cmp);
    rates.get(rates.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_no_digits_that_no_clock_tells() {
        assert_eq!(milliseconds(0.000_715_132).to_string(), "0.715132");
    }

    #[test]
    fn amounts_are_read_from_lists() {
        let text = "Name:\tx\nVmHWM:\t    12 kB\nVmPeak:\tno kB\n";
        assert_eq!(kilobytes(text, "VmHWM"), Some(12 * 1024));
        assert_eq!((kilobytes(text, "VmPeak"), kilobytes(text, "VmRSS")), (None, None));
    }
}
