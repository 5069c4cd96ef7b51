//! This machine: threads, processor, caches, memory, and the memory bandwidth.
//!
//! In: nothing. Out: numbers and names, or `None` where the system does not tell.
//! The memory bandwidth is measured within a moment: it is the peak that kernel tables and benchmarks compare with, and
//! a shorter probe of it is what programs are compiled for (`devices/rates.rs`).

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::Path;
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
/// How long a probe takes.
const PROBE: Duration = Duration::from_millis(20);
/// The most bytes that a probe has to read from.
const MAX_PROBED_BYTES: usize = 1 << 30;
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
    // The system makes this list as it is read, and the first of many processors is enough.
    let lines =
        File::open("/proc/cpuinfo").into_iter().flat_map(|file| BufReader::new(file).lines()).flatten();
    let mut names = lines.filter_map(|line| {
        line.split_once(':')
            .filter(|(key, _)| key.trim() == "model name")
            .map(|(_, name)| name.trim().to_owned())
    });
    names.next().unwrap_or_else(|| format!("{} of unknown name", std::env::consts::ARCH))
}

/// A cache for data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataCache {
    /// 1 is the nearest to a core.
    pub level: usize,
    /// Its size.
    pub bytes: usize,
    /// The hardware threads that share it.
    pub n_sharing: usize,
}

/// The caches that the first processor has for data, the nearest first; none where the system does not tell.
pub fn caches() -> Vec<DataCache> {
    caches_in(Path::new("/sys/devices/system/cpu/cpu0/cache"))
}

fn caches_in(folder: &Path) -> Vec<DataCache> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let cache = |path: &Path| {
        let text = |name: &str| Some(fs::read_to_string(path.join(name)).ok()?.trim().to_owned());
        let kibibytes: usize = text("size")?.strip_suffix('K')?.parse().ok()?;
        (text("type")? != "Instruction").then_some(DataCache {
            level: text("level")?.parse().ok()?,
            bytes: kibibytes.checked_mul(1024)?,
            n_sharing: n_listed(&text("shared_cpu_list")?)?,
        })
    };
    let mut caches: Vec<DataCache> = entries.filter_map(|path| cache(&path)).collect();
    caches.sort_by_key(|cache| cache.level);
    caches
}

/// How many numbers a list such as `0-3,8` has.
fn n_listed(list: &str) -> Option<usize> {
    let n_of = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        last.parse::<usize>().ok()?.checked_add(1)?.checked_sub(first.parse().ok()?)
    };
    list.split(',').map(n_of).sum()
}

/// Bytes of memory: total and available.
pub fn memory() -> Option<(u64, u64)> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    Some((kib_field(&text, "MemTotal")?, kib_field(&text, "MemAvailable")?))
}

/// Bytes of memory that are available.
pub fn available_memory() -> Option<u64> {
    memory().map(|(_, available)| available)
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
    target.is_processor().then(|| read_together(n_threads, N_BYTES, MOMENT))
}

/// The memory bandwidth in bytes per second, read for some 20 ms.
pub fn probe(n_threads: usize) -> f64 {
    let available = [memory().map(|(_, available)| available), group_limit()].into_iter().flatten().min();
    read_together(n_threads, probed_bytes(n_threads, caches().last().copied(), available), PROBE)
}

/// Four times what the last caches hold together, so that what is read again has left them; but no more than an eighth
/// of the available memory.
fn probed_bytes(n_threads: usize, last: Option<DataCache>, available: Option<u64>) -> usize {
    let of_caches = last.map_or(0, |DataCache { bytes, n_sharing, .. }| {
        bytes.saturating_mul(4).saturating_mul(n_threads.div_ceil(n_sharing.max(1)))
    });
    let share = available.and_then(|bytes| usize::try_from(bytes / 8).ok()).unwrap_or(usize::MAX);
    of_caches.clamp(N_BYTES, MAX_PROBED_BYTES).min(share)
}

/// The memory that this process's group of processes may use, as in a container; none where it has no limit.
fn group_limit() -> Option<u64> {
    fs::read_to_string("/sys/fs/cgroup/memory.max").ok()?.trim().parse().ok()
}

/// A rate as a share of the peak.
pub fn share(rate: f64, peak_rss: f64) -> f64 {
    rate / peak_rss.max(1.0)
}

fn read_together(n_threads: usize, n_bytes: usize, time: Duration) -> f64 {
    let n_threads = n_threads.max(1);
    let (n_bytes, start_line) = (n_bytes / n_threads, &Barrier::new(n_threads));
    each(n_threads, |_| read_by_thread(n_bytes, time, start_line)).iter().sum()
}

/// Bytes per second that one thread reads, starting together with the others.
fn read_by_thread(n_bytes: usize, time: Duration, start_line: &Barrier) -> f64 {
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
        if start.elapsed() >= time {
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
    fn a_probe_reads_more_than_the_last_caches_hold() {
        let last =
            |mebibytes: usize, n_sharing| Some(DataCache { level: 3, bytes: mebibytes << 20, n_sharing });
        assert_eq!([probed_bytes(2, last(32, 2), None), probed_bytes(2, None, None)], [N_BYTES; 2]);
        assert_eq!(probed_bytes(2, last(260, 2), None), 1 << 30);
        assert_eq!(probed_bytes(64, last(32, 16), Some(64 << 30)), 512 << 20);
        assert_eq!(probed_bytes(256, last(96, 16), Some(u64::MAX)), 1 << 30);
        assert_eq!(probed_bytes(2, last(100, 0), None), 800 << 20);
        assert_eq!(probed_bytes(2, last(32, 2), Some(512 << 20)), 64 << 20);
    }

    #[test]
    fn threads_that_share_a_cache_are_counted() {
        assert_eq!(["0", "0-1", "0-3,8", "0,4"].map(n_listed), [Some(1), Some(2), Some(5), Some(2)]);
        assert_eq!(["", "a", "3-1", "0-"].map(n_listed), [None; 4]);
        assert!(caches_in(Path::new("no-such-folder")).is_empty());
    }

    #[test]
    fn amounts_are_read_from_lists() {
        let text = "Name:\tx\nVmHWM:\t    12 kB\nVmPeak:\tno kB\n";
        assert_eq!(kib_field(text, "VmHWM"), Some(12 * 1024));
        assert_eq!((kib_field(text, "VmPeak"), kib_field(text, "VmRSS")), (None, None));
    }
}
