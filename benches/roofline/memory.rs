//! How many bytes a second one thread reads.
//!
//! In: how many bytes are read again and again. Out: the rate of the best piece of many, found as the best time of a
//! kernel is.
//! It is read as kernels read it, ahead of what is needed where that is faster; pages are large, as those of weights
//! are.

use std::hint::black_box;
use std::time::{Duration, Instant};

use fusebox_compiler::simd;
use fusebox_runtime::buffer::Buffer;

use crate::roofline::best;

/// Bytes that are read between two looks at the clock.
const PIECE: usize = 2 << 20;

/// How long memory is read.
const MOMENT: Duration = Duration::from_millis(40);

/// A memory that is read to measure it.
pub(super) struct Memory(Buffer);

impl Memory {
    /// Memory of `n_bytes`.
    pub(super) fn of(n_bytes: usize) -> Self {
        let mut memory = Buffer::zeroed(n_bytes).expect("memory to read").in_large_pages();
        // A page that nobody wrote is not in memory yet.
        memory.bytes_mut().fill(1);
        Self(memory)
    }

    /// Bytes a second that it gives now.
    pub(super) fn bandwidth(&self) -> f64 {
        let bytes = self.0.bytes();
        let (begin, mut times) = (Instant::now(), Vec::new());
        for piece in bytes.chunks_exact(PIECE.min(bytes.len())).cycle() {
            if begin.elapsed() >= MOMENT {
                break;
            }
            let start = Instant::now();
            black_box(simd::read(piece));
            times.push(start.elapsed().as_secs_f64());
        }
        PIECE.min(bytes.len()) as f64 / best(times)
    }
}
