//! How many bytes a second one thread reads.
//!
//! In: how many bytes are read again and again. Out: the rate of the best piece of many, for kernels take the best time
//! of many as well.
//! One word of each line is looked at, for a line comes as a whole; pages are large, as those of weights are.

use std::hint::black_box;
use std::time::{Duration, Instant};

use fusebox_runtime::buffer::Buffer;

/// Words of a line.
const LINE: usize = 8;

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
        let (begin, mut best) = (Instant::now(), 0.0f64);
        for piece in words.chunks(PIECE).cycle().take_while(|_| begin.elapsed() < MOMENT) {
            let start = Instant::now();
            let lines = piece.iter().step_by(LINE);
            black_box(lines.fold(0, |sum, word| sum ^ u64::from_ne_bytes(*word)));
            best = best.max(size_of_val(piece) as f64 / start.elapsed().as_secs_f64());
        }
        best
    }
}
