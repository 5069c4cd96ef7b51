//! This machine: threads, processor, caches, memory, and the memory bandwidth.
//!
//! In: nothing. Out: numbers and names, or `None` where the system does not tell.
//! The memory bandwidth is measured within a moment: it is the peak that kernel tables and benchmarks compare with, and
//! a shorter probe of it is what programs are compiled for (`devices/rates.rs`).

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::sync::{Barrier, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use fusebox_compiler::simd;
use fusebox_compiler::target::Target;
use fusebox_runtime::buffer::Buffer;
use fusebox_runtime::threads::each;

/// How long the bandwidth is measured.
const MOMENT: Duration = Duration::from_millis(50);
/// Bytes read for it: more than caches hold.
const N_BYTES: usize = 256 << 20;
/// Bytes that a thread of a probe reads in each of its rounds, where caches can be told to give them up.
const N_PROBED_BYTES: usize = 8 << 20;
/// Rounds of a probe.
const N_ROUNDS: usize = 4;
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

/// Bytes of memory that are available, or were so a moment ago: the system takes longer to tell than a step may wait.
pub fn available_memory() -> Option<u64> {
    static TOLD: Mutex<Option<(Instant, Option<u64>)>> = Mutex::new(None);
    let mut told = TOLD.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((at, available)) = *told
        && at.elapsed() < MOMENT
    {
        return available;
    }
    let available = memory().map(|(_, available)| available);
    *told = Some((Instant::now(), available));
    available
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

/// The memory bandwidth in bytes per second, measured within some 20 ms: most of a larger buffer would be spent on
/// making its pages, so a small one is evicted from the caches before each round.
pub fn probe(n_threads: usize) -> f64 {
    let n_threads = n_threads.max(1);
    let n_bytes = if simd::evict(&[]) { N_PROBED_BYTES } else { N_BYTES / n_threads };
    let start_line = &Barrier::new(n_threads);
    each(n_threads, |_| probed_by_thread(n_bytes, start_line)).iter().sum()
}

/// Bytes per second that one thread reads from memory, starting each round together with the others.
fn probed_by_thread(n_bytes: usize, start_line: &Barrier) -> f64 {
    let memory = written(n_bytes);
    let mut rates = Vec::new();
    for _ in 0..N_ROUNDS {
        let bytes = memory.as_ref().map_or(&[][..], Buffer::bytes);
        simd::evict(bytes);
        start_line.wait();
        rates.extend(bytes.chunks(PIECE).map(read_piece));
    }
    median(rates)
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
    let memory = written(n_bytes);
    let mut rates = Vec::new();
    start_line.wait();
    let Some(memory) = memory else { return 0.0 };
    let start = Instant::now();
    for piece in memory.bytes().chunks(PIECE).cycle() {
        rates.push(read_piece(piece));
        if start.elapsed() >= time {
            break;
        }
    }
    median(rates)
}

/// Memory of its own: a page that was never written has none.
fn written(n_bytes: usize) -> Option<Buffer> {
    let mut memory = Buffer::zeroed(n_bytes).map(Buffer::in_large_pages).ok()?;
    memory.bytes_mut().fill(1);
    Some(memory)
}

/// Bytes per second at which a piece is read.
fn read_piece(piece: &[u8]) -> f64 {
    let start = Instant::now();
    std::hint::black_box(simd::read(piece));
    piece.len() as f64 / start.elapsed().as_secs_f64().max(1e-9)
}

/// The median: pieces are short, so that the median one is read without being preempted.
fn median(mut rates: Vec<f64>) -> f64 {
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
    fn a_probe_of_any_number_of_threads_finds_a_rate() {
        for n_threads in [0, 1, 3] {
            let rate = probe(n_threads);
            assert!(rate > 1e6 && rate.is_finite(), "{rate} with {n_threads} threads");
        }
    }

    #[test]
    fn the_median_has_as_many_below_as_above() {
        assert_eq!([median(vec![3.0, 1.0, 2.0]), median(Vec::new())], [2.0, 0.0]);
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
