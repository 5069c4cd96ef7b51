//! Software prefetching of weights.
//!
//! In: the piece of a stream that is being read, or where reading will start. Out: nothing; prefetching reads nothing,
//! so any address is allowed. The hardware prefetcher follows a stream within a 4 KiB page and stops at its end. So the
//! first lines of each page are prefetched one page early, and all other lines [`DISTANCE`] bytes ahead. Processors
//! without AVX-512 are slower with the early lines and get plain linear prefetching. A Zen 4 detects streams of plain
//! numbers sooner by itself, prefers prefetches into the second cache only, and overlaps page walks: there one line of
//! each of sixteen pages is prefetched at once.

use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count, _MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};
use std::sync::atomic::{AtomicBool, Ordering, fence};

/// How far ahead of the read position a stream is prefetched, in bytes; the first bytes are prefetched by
/// `prefetch_first`.
const DISTANCE: usize = 8192;

/// Bytes of a page, and how many of its first lines are prefetched a page early.
const PAGE: usize = 4096;
const LINES_EARLY: usize = 8;

/// Pages whose page walks overlap.
const PAGES_TOGETHER: usize = 16;

pub(super) const LINE: usize = 64;

/// The family number of Zen 4; Zen 3 has it, too, but no AVX-512.
const ZEN_4: u32 = 0x19;

/// Whether this is a Zen 4.
static IS_ZEN_4: AtomicBool = AtomicBool::new(false);

/// Detects the processor.
pub(super) fn prepare() {
    let signature = __cpuid(1).eax;
    let family = (signature >> 8 & 0xf) + (signature >> 20 & 0xff);
    IS_ZEN_4.store(family == ZEN_4, Ordering::Relaxed);
}

/// Reads one word of each line of a piece, at the speed of memory, and returns something that depends on all of them.
#[inline]
#[target_feature(enable = "sse")]
pub(super) fn read(piece: &[u8]) -> u64 {
    let mut sum = 0;
    for line in piece.as_chunks::<LINE>().0 {
        prefetch_row(line);
        sum ^= u64::from_le_bytes(*line.first_chunk().expect("a line has a word"));
    }
    sum
}

/// Evicts the lines of a piece from all caches; `false` where the processor has no fast instruction for that: an older
/// one, `clflush`, takes fifty times as long.
pub(super) fn evict(piece: &[u8]) -> bool {
    let has_instruction = __cpuid(0).eax >= 7 && __cpuid_count(7, 0).ebx >> 23 & 1 == 1;
    for line in piece.chunks(LINE).filter(|_| has_instruction) {
        // SAFETY: the processor has the instruction, the line is readable, and its contents stay what they are.
        unsafe { asm!("clflushopt [{}]", in(reg) line.as_ptr(), options(nostack, preserves_flags)) };
    }
    fence(Ordering::SeqCst);
    has_instruction
}

/// Prefetches ahead of a piece of a stream; called for every piece.
#[inline]
#[target_feature(enable = "sse")]
pub(super) fn prefetch_stream(piece: &[u8]) {
    stream_at(piece.as_ptr().wrapping_add(DISTANCE), piece.len());
}

#[inline]
#[target_feature(enable = "sse")]
fn stream_at(start: *const u8, n_bytes: usize) {
    if IS_ZEN_4.load(Ordering::Relaxed) {
        prefetch_lines::<_MM_HINT_T1>(start, n_bytes);
        prefetch_pages(start, n_bytes);
    } else {
        prefetch_with_page::<_MM_HINT_T0>(start, n_bytes);
    }
}

/// The same for one row of plain numbers, which unlike blocks is read strictly in order.
#[inline]
#[target_feature(enable = "sse")]
pub(super) fn prefetch_row(piece: &[u8]) {
    row_at(piece.as_ptr().wrapping_add(DISTANCE), piece.len());
}

#[inline]
#[target_feature(enable = "sse")]
fn row_at(start: *const u8, n_bytes: usize) {
    if !IS_ZEN_4.load(Ordering::Relaxed) {
        prefetch_with_page::<_MM_HINT_T0>(start, n_bytes);
    }
}

/// As [`prefetch_stream`], for rows that go on elsewhere after their end, as those of a KV cache do from page to page.
#[inline]
#[target_feature(enable = "sse")]
pub(super) fn prefetch_rows(piece: &[u8], end_and_next: (*const u8, *const u8)) {
    stream_at(ahead(piece, end_and_next), piece.len());
}

/// As [`prefetch_row`], for one of such rows.
#[inline]
#[target_feature(enable = "sse")]
pub(super) fn prefetch_one_of_rows(piece: &[u8], end_and_next: (*const u8, *const u8)) {
    row_at(ahead(piece, end_and_next), piece.len());
}

/// As [`prefetch_rows`], without the early lines of the next page.
#[inline]
#[target_feature(enable = "sse")]
pub(super) fn prefetch_rows_linear(piece: &[u8], end_and_next: (*const u8, *const u8)) {
    prefetch_lines::<_MM_HINT_T0>(ahead(piece, end_and_next), piece.len());
}

/// What is read [`DISTANCE`] bytes after a piece of rows, which go on elsewhere after their end.
#[inline(always)]
fn ahead(piece: &[u8], (end, next): (*const u8, *const u8)) -> *const u8 {
    let left = end.addr() - piece.as_ptr().addr();
    if left > DISTANCE { piece.as_ptr().wrapping_add(DISTANCE) } else { next.wrapping_add(DISTANCE - left) }
}

/// The same for one of several rows that are read alternately, a few lines of each.
#[inline]
#[target_feature(enable = "sse")]
pub(super) fn prefetch_interleaved(piece: &[u8]) {
    if IS_ZEN_4.load(Ordering::Relaxed) {
        prefetch_stream(piece);
    } else {
        prefetch_linear(piece);
    }
}

/// The same without the early lines of the next page.
#[inline]
#[target_feature(enable = "sse")]
pub(super) fn prefetch_linear(piece: &[u8]) {
    prefetch_linear_at(piece.as_ptr(), piece.len());
}

/// The same for a piece given by its address and length.
#[inline]
#[target_feature(enable = "sse")]
pub(super) fn prefetch_linear_at(start: *const u8, n_bytes: usize) {
    prefetch_lines::<_MM_HINT_T0>(start.wrapping_add(DISTANCE), n_bytes);
}

#[inline]
#[target_feature(enable = "sse")]
fn prefetch_lines<const HINT: i32>(start: *const u8, n_bytes: usize) {
    for line in 0..n_bytes.div_ceil(LINE) {
        _mm_prefetch::<HINT>(start.wrapping_add(LINE * line).cast());
    }
}

/// Prefetches a piece into the second cache: it is needed too late for the first.
#[inline]
#[target_feature(enable = "sse")]
pub(super) fn prefetch_l2(start: *const u8, n_bytes: usize) {
    prefetch_with_page::<_MM_HINT_T1>(start, n_bytes);
}

/// Prefetches a piece of a stream, and where a page starts in it, the first lines of the next page.
#[inline]
#[target_feature(enable = "sse")]
fn prefetch_with_page<const HINT: i32>(start: *const u8, n_bytes: usize) {
    prefetch_lines::<HINT>(start, n_bytes);
    let from_page = start.addr() % PAGE;
    if from_page < n_bytes {
        for line in 0..LINES_EARLY {
            // Into the second cache: the first is small.
            _mm_prefetch::<_MM_HINT_T1>(start.wrapping_add(PAGE - from_page + LINE * line).cast());
        }
    }
}

/// Prefetches a line of each of the next pages, where a run of that many pages starts in the piece.
#[inline]
#[target_feature(enable = "sse")]
fn prefetch_pages(start: *const u8, n_bytes: usize) {
    let from = start.addr() % (PAGES_TOGETHER * PAGE);
    if from < n_bytes {
        let first = start.wrapping_sub(from);
        for page in 1..=PAGES_TOGETHER {
            _mm_prefetch::<_MM_HINT_T1>(first.wrapping_add(PAGE * page).cast());
        }
    }
}

/// Prefetches the first bytes of a stream, while activations are still being quantised.
#[inline]
#[target_feature(enable = "sse")]
pub(super) fn prefetch_first(start: *const u8) {
    for n_bytes in (0..DISTANCE).step_by(LINE) {
        _mm_prefetch::<_MM_HINT_T1>(start.wrapping_add(n_bytes).cast());
    }
}

/// Bytes from a piece of some rows to the piece that is unpacked next: the following one, or the first of the next
/// rows. A piece is bytes `from..from + n` of each row; the next rows start `next` bytes later.
#[inline(always)]
pub(super) fn distance_to_next((from, n): (usize, usize), row_bytes: usize, next: usize) -> usize {
    if from + n < row_bytes { n } else { next.wrapping_sub(from) }
}

/// Prefetches the line `n_bytes` after the start of a piece.
#[inline]
#[target_feature(enable = "sse")]
pub(super) fn prefetch_line(piece: &[u8], n_bytes: usize) {
    prefetch_lines::<_MM_HINT_T1>(piece.as_ptr().wrapping_add(n_bytes), LINE);
}

/// The rows of the next panel that some columns prefetch: each tile of columns prefetches its share line by line while
/// it is multiplied, since a burst of prefetches would delay closer data.
#[derive(Clone, Copy)]
pub(super) struct PrefetchShare {
    start: *const u8,
    stride: usize,
    n_rows: usize,
}

impl PrefetchShare {
    /// The share of columns `c..c + n` of `n_cols` in a number of rows with a stride.
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

    /// Prefetches the line at a byte of each row.
    #[inline]
    #[target_feature(enable = "sse")]
    pub(super) fn prefetch(&self, at: usize) {
        for row in 0..self.n_rows {
            prefetch_lines::<_MM_HINT_T1>(self.start.wrapping_add(row * self.stride + at), LINE);
        }
    }
}
