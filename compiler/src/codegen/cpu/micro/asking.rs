//! Memory that is asked for before it is needed.
//!
//! In: a piece of what is read just now, or where reading will begin. Out: nothing, but what comes later is on its way
//! to the caches. Asking reads nothing, so any address will do.
//! Rows that are read one after another are a stream. By itself the processor goes on where a few lines of a page were
//! asked for, but never into another page: so the first lines of each page are asked for earlier than all others. Those
//! without AVX-512 are slower by that, and go straight on. A Zen 4 finds plain numbers of one row sooner by itself, and
//! has blocks, and rows side by side, sooner when they are asked for as far as the second cache only. It waits where a
//! page has to be looked up, but looks up several at once: so a line of each of many pages is asked for together.

use std::arch::x86_64::{__cpuid, _MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};
use std::sync::atomic::{AtomicBool, Ordering};

/// How far ahead of what is read memory is asked for, in bytes: so many a stream begins with are asked for before.
const AHEAD: usize = 8192;

/// Bytes of a page, and how many of its lines are asked for early.
const PAGE: usize = 4096;
const FIRST: usize = 8;

/// Pages that are looked up together.
const PAGES: usize = 16;

pub(super) const LINE: usize = 64;

/// The number by which Zen 4 tells its kind; Zen 3 has it, too, but no AVX-512.
const ZEN_4: u32 = 0x19;

/// Whether this is a Zen 4: always the same for one processor.
static IS_ZEN_4: AtomicBool = AtomicBool::new(false);

/// Finds out which processor it is.
pub(super) fn prepare() {
    let signature = __cpuid(1).eax;
    let family = (signature >> 8 & 0xf) + (signature >> 20 & 0xff);
    IS_ZEN_4.store(family == ZEN_4, Ordering::Relaxed);
}

/// Reads a piece as fast as memory gives it, and gives something that depends on it: one word of each line, for a line
/// comes as a whole.
#[inline]
#[target_feature(enable = "sse")]
pub(super) fn read(piece: &[u8]) -> u64 {
    let mut sum = 0;
    for line in piece.as_chunks::<LINE>().0 {
        ask_alone(line);
        sum ^= u64::from_le_bytes(*line.first_chunk().expect("a line has a word"));
    }
    sum
}

/// Prefetches ahead of a piece; every piece of the stream does so.
#[inline]
#[target_feature(enable = "sse")]
pub(super) fn ask_ahead(piece: &[u8]) {
    let start = piece.as_ptr().wrapping_add(AHEAD);
    if IS_ZEN_4.load(Ordering::Relaxed) {
        ask_lines::<_MM_HINT_T1>(start, piece.len());
        ask_pages(start, piece.len());
    } else {
        ask::<_MM_HINT_T0>(start, piece.len());
    }
}

/// The same for plain numbers of one row: whole vectors of them are read in order, where the parts of blocks are not.
#[inline]
#[target_feature(enable = "sse")]
pub(super) fn ask_alone(piece: &[u8]) {
    if !IS_ZEN_4.load(Ordering::Relaxed) {
        ask::<_MM_HINT_T0>(piece.as_ptr().wrapping_add(AHEAD), piece.len());
    }
}

/// The same for one of several rows that are read side by side, a few lines of each at a time.
#[inline]
#[target_feature(enable = "sse")]
pub(super) fn ask_beside(piece: &[u8]) {
    if IS_ZEN_4.load(Ordering::Relaxed) {
        ask_ahead(piece);
    } else {
        ask_straight(piece);
    }
}

/// The same, no page sooner than it comes.
#[inline]
#[target_feature(enable = "sse")]
pub(super) fn ask_straight(piece: &[u8]) {
    ask_straight_of(piece.as_ptr(), piece.len());
}

/// The same where a piece is of several rows.
#[inline]
#[target_feature(enable = "sse")]
pub(super) fn ask_straight_of(start: *const u8, n_bytes: usize) {
    ask_lines::<_MM_HINT_T0>(start.wrapping_add(AHEAD), n_bytes);
}

#[inline]
#[target_feature(enable = "sse")]
fn ask_lines<const HINT: i32>(start: *const u8, n_bytes: usize) {
    for line in 0..n_bytes.div_ceil(LINE) {
        _mm_prefetch::<HINT>(start.wrapping_add(LINE * line).cast());
    }
}

/// Asks for a piece that comes so much later that the nearest cache would not hold it.
#[inline]
#[target_feature(enable = "sse")]
pub(super) fn ask_far(start: *const u8, n_bytes: usize) {
    ask::<_MM_HINT_T1>(start, n_bytes);
}

/// Asks for a piece of a stream, and if a page begins in it, for the first lines of the next one.
#[inline]
#[target_feature(enable = "sse")]
fn ask<const HINT: i32>(start: *const u8, n_bytes: usize) {
    ask_lines::<HINT>(start, n_bytes);
    let from_page = start.addr() % PAGE;
    if from_page < n_bytes {
        for line in 0..FIRST {
            // Not as far as the nearest cache, which is small.
            _mm_prefetch::<_MM_HINT_T1>(start.wrapping_add(PAGE - from_page + LINE * line).cast());
        }
    }
}

/// Asks for a line of each of the pages behind a piece in which so many pages begin.
#[inline]
#[target_feature(enable = "sse")]
fn ask_pages(start: *const u8, n_bytes: usize) {
    let from = start.addr() % (PAGES * PAGE);
    if from < n_bytes {
        let first = start.wrapping_sub(from);
        for page in 1..=PAGES {
            _mm_prefetch::<_MM_HINT_T1>(first.wrapping_add(PAGE * page).cast());
        }
    }
}

/// Asks for the beginning of a stream: memory gives it while vectors are rounded.
#[inline]
#[target_feature(enable = "sse")]
pub(super) fn ask_from(start: *const u8) {
    for n_bytes in (0..AHEAD).step_by(LINE) {
        _mm_prefetch::<_MM_HINT_T1>(start.wrapping_add(n_bytes).cast());
    }
}

/// Bytes from a piece of some rows to what is unpacked next: the piece behind it, or the first one of the next rows.
/// A piece is bytes `from..from + n` of each row, the next rows are `next` bytes further on.
#[inline(always)]
pub(super) fn to_next((from, n): (usize, usize), row_bytes: usize, next: usize) -> usize {
    if from + n < row_bytes { n } else { next.wrapping_sub(from) }
}

/// Asks for the memory so many bytes behind the start of a piece, which is needed later.
#[inline]
#[target_feature(enable = "sse")]
pub(super) fn ask_for(piece: &[u8], n_bytes: usize) {
    ask_lines::<_MM_HINT_T1>(piece.as_ptr().wrapping_add(n_bytes), LINE);
}

/// The share of some vectors in rows that are unpacked later: each vector asks for some of them, line by line while it
/// is multiplied, for lines asked for at once keep what is nearer from coming.
#[derive(Clone, Copy)]
pub(super) struct Share {
    start: *const u8,
    stride: usize,
    n_rows: usize,
}

impl Share {
    /// Of so many rows, so far apart, what vectors `c..c + n` of `n_cols` ask for.
    #[inline(always)]
    pub(super) fn new(
        start: *const u8,
        (n_rows, stride): (usize, usize),
        (c, n): (usize, usize),
        n_cols: usize,
    ) -> Self {
        let [first, end] = [c, c + n].map(|c| n_rows * c / n_cols);
        Self { start: start.wrapping_add(first * stride), stride, n_rows: end - first }
    }

    /// Asks for the line at such a byte of each row.
    #[inline]
    #[target_feature(enable = "sse")]
    pub(super) fn ask(&self, at: usize) {
        for row in 0..self.n_rows {
            ask_lines::<_MM_HINT_T1>(self.start.wrapping_add(row * self.stride + at), LINE);
        }
    }
}
