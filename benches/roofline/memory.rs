//! How many bytes a second one thread reads.
//!
//! In: how many bytes are read again and again. Out: the best of many passes.
//! One word of each line is looked at, for a line comes as a whole; pages are large, as those of weights are.

use std::hint::black_box;
use std::time::{Duration, Instant};

use fusebox_runtime::buffer::Buffer;

/// Words of a line.
const LINE: usize = 8;

/// How long memory is read.
const MOMENT: Duration = Duration::from_millis(500);

/// Bytes a second of a memory that holds so many.
pub(crate) fn bandwidth(n_bytes: usize) -> f64 {
    let mut memory = Buffer::zeroed(n_bytes).expect("room for what is read").in_large_pages();
    // A page that nobody wrote is not in memory yet.
    memory.bytes_mut().fill(1);
    let (words, _) = memory.bytes().as_chunks::<8>();
    let (begin, mut best) = (Instant::now(), f64::INFINITY);
    while begin.elapsed() < MOMENT {
        let start = Instant::now();
        let lines = words.iter().step_by(LINE);
        black_box(lines.fold(0, |sum, word| sum ^ u64::from_ne_bytes(*word)));
        best = best.min(start.elapsed().as_secs_f64());
    }
    n_bytes as f64 / best
}
