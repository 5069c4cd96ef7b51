//! How many bytes a second one thread reads.
//!
//! In: how many bytes are read again and again. Out: the rate of the best piece of many, found as the best time of a
//! kernel is.
//! One word of each line is looked at, for a line comes as a whole; pages are large, as those of weights are. Lines are
//! asked for 8 KiB ahead, as kernels do: without that a thread gets less.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
use std::hint::black_box;
use std::time::{Duration, Instant};

use fusebox_runtime::buffer::Buffer;

use crate::roofline::best;

/// Words of a line.
const LINE: usize = 8;

/// Words that a line is asked for ahead.
const AHEAD: usize = 1024;

/// Words that are read between two looks at the clock.
const PIECE: usize = (2 << 20) / size_of::<u64>();

/// How long memory is read.
const MOMENT: Duration = Duration::from_millis(40);

/// A memory that is read to measure it.
pub(super) struct Memory(Buffer);

impl Memory {
    /// So many bytes.
    pub(super) fn of(n_bytes: usize) -> Self {
        let mut memory = Buffer::zeroed(n_bytes).expect("room for what is read").in_large_pages();
        // A page that nobody wrote is not in memory yet.
        memory.bytes_mut().fill(1);
        Self(memory)
    }

    /// Bytes a second that it gives now.
    pub(super) fn bandwidth(&self) -> f64 {
        let (words, _) = self.0.bytes().as_chunks::<8>();
        let (begin, mut times) = (Instant::now(), Vec::new());
        for piece in words.chunks_exact(PIECE.min(words.len())).cycle() {
            if begin.elapsed() >= MOMENT {
                break;
            }
            let start = Instant::now();
            let mut sum = 0;
            for word in piece.iter().step_by(LINE) {
                ask_ahead(word);
                sum ^= u64::from_ne_bytes(*word);
            }
            black_box(sum);
            times.push(start.elapsed().as_secs_f64());
        }
        size_of::<u64>() as f64 * PIECE.min(words.len()) as f64 / best(times)
    }
}

fn ask_ahead(word: &[u8; 8]) {
    let ahead = (&raw const *word).wrapping_add(AHEAD);
    #[cfg(target_arch = "x86_64")]
    // SAFETY: all of these processors have the instruction, and it reads nothing.
    unsafe {
        _mm_prefetch::<_MM_HINT_T0>(ahead.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = ahead;
}
