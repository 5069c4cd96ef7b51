//! This machine: threads, processor, memory, and the memory bandwidth.
//!
//! In: nothing. Out: numbers and names, or `None` where the system does not tell.
//! The memory bandwidth is measured within a moment: it is the peak that kernel tables and benchmarks compare with.

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
/// Bytes read for it: more than caches hold.
const N_BYTES: usize = 256 << 20;
/// Bytes read between two looks at the clock.
const PIECE: usize = 1 << 20;

/// The number of hardware threads.
pub fn n_threads() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// Seconds as milliseconds, rounded to the nanosecond: clocks are no finer.
pub fn milliseconds(seconds: f64) -> f64 {
    (1e9 * seconds).round() / 1e6
}

/// The name of the processor.
pub fn processor() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let names = text.lines().filter_map(|line| line.split_once(':'));
    let name = names.into_iter().find(|(key, _)| key.trim() == "model name").map(|(_, name)| name.trim());
    name.map_or_else(|| format!("{} of unknown name", std::env::consts::ARCH), str::to_owned)
}

/// Bytes of memory: total and available.
pub fn memory() -> Option<(u64, u64)> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    Some((kib_field(&text, "MemTotal")?, kib_field(&text, "MemAvailable")?))
}

/// The peak resident set size of this process in bytes, mapped files included.
pub fn peak_rss() -> Option<u64> {
    kib_field(&fs::read_to_string("/proc/self/status").ok()?, "VmHWM")
}

/// The resident set size of this process in bytes, mapped files included.
pub fn rss() -> Option<u64> {
    kib_field(&fs::read_to_string("/proc/self/status").ok()?, "VmRSS")
}

/// A field of a `/proc` file in kB, in bytes.
fn kib_field(text: &str, key: &str) -> Option<u64> {
    let mut rows = text.lines().filter_map(|line| line.split_once(':'));
    let (_, value) = rows.find(|(name, _)| *name == key)?;
    value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Memory bandwidth in bytes per second, read by `n_threads` threads together; `None` for a target that is no
/// processor.
pub fn memory_bandwidth(n_threads: usize, target: &Target) -> Option<f64> {
    target.is_processor().then(|| read_together(n_threads))
}

/// A rate as a share of the peak.
pub fn share(rate: f64, peak_rss: f64) -> f64 {
    rate / peak_rss.max(1.0)
}

fn read_together(n_threads: usize) -> f64 {
    let n_threads = n_threads.max(1);
    let (n_bytes, start_line) = (N_BYTES / n_threads, &Barrier::new(n_threads));
    each(n_threads, |_| read_by_thread(n_bytes, start_line)).iter().sum()
}

/// Bytes per second that one thread reads, starting together with the others.
fn read_by_thread(n_bytes: usize, start_line: &Barrier) -> f64 {
    let mut memory = Buffer::zeroed(n_bytes).map(Buffer::in_large_pages).ok();
    if let Some(memory) = &mut memory {
        // A page that was never written has no memory of its own.
        memory.bytes_mut().fill(1);
    }
    let (mut rates, mut sum) = (Vec::new(), 0);
    start_line.wait();
    let Some(memory) = memory else { return 0.0 };
    let start = Instant::now();
    // Pieces are short, so that the median one is read without being preempted.
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
        assert_eq!(kib_field(text, "VmHWM"), Some(12 * 1024));
        assert_eq!((kib_field(text, "VmPeak"), kib_field(text, "VmRSS")), (None, None));
    }
}
