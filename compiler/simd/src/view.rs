//! Argument structs as slices.
//!
//! In: the address of an argument struct. Out: views of the memory that it describes, with every length known. This is
//! the safety boundary: the caller promises that each element is inside its buffer, and past it every access is
//! checked. Results are written through [`Out`], one element or a few neighbours at a time, because the memory between
//! them may belong to another thread.

use std::array::from_fn;
use std::marker::PhantomData;
use std::slice;

use crate::abi::{
    Bf16Args, Column, EncodeArgs, GemmArgs, QuantiseArgs, RoutedGemmArgs, RoutedRow, WeightedSumArgs,
};
use crate::layout::block_formats::{BlockRow, Storage};
use crate::layout::int8_rows::row_bytes;
use crate::layout::sizes::{
    bf16_tiles_bytes, int8_amx_bytes, int8_gemv_bytes, int8_interleaved_bytes, int8_rows_bytes, int14_bytes,
};

/// Rows of a weight.
#[derive(Clone, Copy)]
pub(super) struct Weights<'a> {
    pub(super) storage: Storage,
    pub(super) group: usize,
    bytes: &'a [u8],
    row: usize,
    row_bytes: usize,
    scales: &'a [u8],
    scales_row: usize,
    next: *const u8,
}

impl<'a> Weights<'a> {
    /// The end of the rows, and where reading goes on.
    #[inline(always)]
    pub(super) fn end_and_next(&self) -> (*const u8, *const u8) {
        (self.bytes.as_ptr_range().end, self.next)
    }

    /// Bytes from one row to the next.
    #[inline(always)]
    pub(super) fn stride(&self) -> usize {
        self.row
    }

    /// The bytes of some rows, including the gaps between them.
    #[inline(always)]
    pub(super) fn block(&self, r: usize, n_rows: usize) -> &'a [u8] {
        &self.bytes[r * self.row..][..(n_rows - 1) * self.row + self.row_bytes]
    }

    /// Scales that are stored apart, from a row on, and the bytes from one row's scales to the next.
    #[inline(always)]
    pub(super) fn scales(&self, r: usize) -> (&'a [u8], usize) {
        (self.scales.get(r * self.scales_row..).unwrap_or_default(), self.scales_row)
    }

    /// The bytes from the start of a row to the end of all rows.
    #[inline(always)]
    pub(super) fn rows_from(&self, r: usize) -> &'a [u8] {
        &self.bytes[r * self.row..]
    }

    /// The blocks of a row, and its scales where they are stored apart.
    #[inline(always)]
    pub(super) fn row(&self, r: usize) -> BlockRow<'a> {
        let bytes = &self.bytes[r * self.row..][..self.row_bytes];
        let (scales, _) = self.scales(r);
        BlockRow { bytes, scales, group: self.group }
    }
}

/// The activations of a product, in any layout, or the factors of a weighted sum; as bytes, since their alignment is
/// unknown.
#[derive(Clone, Copy)]
pub(super) struct Vectors<'a> {
    bytes: &'a [u8],
    /// Bytes from one to the next.
    step: usize,
    /// Bytes of one.
    len: usize,
    /// The address of each where they are scattered, else empty.
    apart: &'a [Column],
}

impl<'a> Vectors<'a> {
    /// The bytes of a column.
    #[inline(always)]
    pub(super) fn get(&self, c: usize) -> &'a [u8] {
        if let Some(column) = self.apart.get(c) {
            // SAFETY: `product` was promised that each vector is there.
            return unsafe { slice::from_raw_parts(column.x, self.len) };
        }
        &self.bytes[c * self.step..][..self.len]
    }

    /// Bytes from one to the next, unless they are scattered.
    #[inline(always)]
    pub(super) fn step(&self) -> usize {
        self.step
    }

    /// The bytes of all columns, for layouts that interleave them.
    #[inline(always)]
    pub(super) fn tiles(&self) -> &'a [u8] {
        self.bytes
    }
}

/// Where results are added.
#[derive(Clone, Copy)]
pub(super) struct Out<'a> {
    start: *mut f32,
    row: usize,
    col: usize,
    n_rows: usize,
    n_cols: usize,
    /// The start of each column where they are scattered, else empty.
    apart: &'a [Column],
}

impl Out<'_> {
    /// The first element of a column.
    #[inline(always)]
    fn column(&self, c: usize) -> *mut f32 {
        self.apart.get(c).map_or_else(|| self.start.wrapping_add(c * self.col), |column| column.out)
    }

    /// Adds to the element of a row and a column.
    #[inline(always)]
    pub(super) fn add(&self, r: usize, c: usize, x: f32) {
        assert!(r < self.n_rows && c < self.n_cols, "an element that is there");
        // SAFETY: the element lies within the extents that `view` was promised are in memory.
        let element = unsafe { self.column(c).add(r * self.row) };
        // SAFETY: as above; only this task uses the element, and no slice of this module covers it.
        let so_far = unsafe { element.read_unaligned() };
        // SAFETY: as above.
        unsafe { element.write_unaligned(so_far + x) };
    }

    /// Adds to a column, from row `r` on.
    #[inline(always)]
    pub(super) fn add_down(&self, r: usize, c: usize, xs: &[f32]) {
        assert!(r + xs.len() <= self.n_rows && c < self.n_cols, "elements that are there");
        Self::add_run(self.column(c).wrapping_add(r * self.row), self.row, xs);
    }

    /// Adds to a block from row `r` and column `c` on, if rows are neighbours and columns not scattered; returns
    /// whether they are. Bounds are checked once for the block.
    #[inline(always)]
    pub(super) fn add_block<const N: usize, const P: usize, const C: usize>(
        &self,
        r: usize,
        c: usize,
        columns: &[[[f32; N]; P]; C],
    ) -> bool {
        let is_there = r + P * N <= self.n_rows && c + C <= self.n_cols;
        let fits = is_there && self.row == 1 && self.apart.is_empty();
        if fits {
            for (i, column) in columns.iter().enumerate() {
                Self::add_run(self.start.wrapping_add(r + (c + i) * self.col), 1, column.as_flattened());
            }
        }
        fits
    }

    /// Adds to a row, from column `c` on; columns must not be scattered.
    #[inline(always)]
    pub(super) fn add_across(&self, r: usize, c: usize, xs: &[f32]) {
        assert!(r < self.n_rows && c + xs.len() <= self.n_cols, "elements that are there");
        assert!(self.apart.is_empty(), "columns that lie evenly");
        Self::add_run(self.start.wrapping_add(r * self.row + c * self.col), self.col, xs);
    }

    /// Transposed: rows as columns.
    pub(super) fn turned(&self) -> Self {
        Self { row: self.col, col: self.row, n_rows: self.n_cols, n_cols: self.n_rows, ..*self }
    }

    /// The square of 32 by 32 results from an element on, if it is inside and its rows are contiguous.
    #[inline(always)]
    pub(super) fn square(&self, r: usize, c: usize) -> Option<Square<'_>> {
        let fits = r + 32 <= self.n_rows && c + 32 <= self.n_cols && self.col == 1 && self.apart.is_empty();
        let start = self.start.wrapping_add(r * self.row + c);
        fits.then_some(Square { start, line: 4 * self.row, sums: PhantomData })
    }

    #[inline(always)]
    fn add_run(first: *mut f32, step: usize, xs: &[f32]) {
        if step != 1 {
            return Self::add_each(first, step, xs);
        }
        let (eights, rest) = xs.as_chunks::<8>();
        for (i, eight) in eights.iter().enumerate() {
            let place = first.wrapping_add(8 * i).cast::<[f32; 8]>();
            // SAFETY: as for each of them.
            let so_far = unsafe { place.read_unaligned() };
            // SAFETY: as above.
            unsafe { place.write_unaligned(from_fn(|i| so_far[i] + eight[i])) };
        }
        Self::add_each(first.wrapping_add(8 * eights.len()), 1, rest);
    }

    #[inline(always)]
    fn add_each(first: *mut f32, step: usize, xs: &[f32]) {
        for (i, x) in xs.iter().enumerate() {
            // SAFETY: the element lies within the extents that `view` was promised are in memory.
            let element = unsafe { first.add(i * step) };
            // SAFETY: as above; only this task uses the element, and no slice of this module covers it.
            let so_far = unsafe { element.read_unaligned() };
            // SAFETY: as above.
            unsafe { element.write_unaligned(so_far + x) };
        }
    }
}

/// 32 lines of 32 sums, exclusively.
pub(super) struct Square<'a> {
    start: *mut f32,
    /// Bytes from one line to the next.
    line: usize,
    sums: PhantomData<&'a mut f32>,
}

impl<'a> Square<'a> {
    /// A square in memory of its own.
    pub(super) fn of(sums: &'a mut [[f32; 32]; 32]) -> Self {
        Self { start: sums.as_mut_ptr().cast(), line: 4 * 32, sums: PhantomData }
    }

    /// Its start, and the bytes from one line to the next.
    pub(super) fn lines(&mut self) -> (*mut f32, usize) {
        (self.start, self.line)
    }
}

/// The layout of the activations of a product.
#[derive(Clone, Copy)]
pub(super) enum Layout {
    F32,
    Int8Rows,
    Int8Gemv,
    Int8Interleaved,
    Int8Amx,
    Int14,
    Bf16Tiles,
}

/// A GEMM with its memory.
pub(super) struct GemmView<'a> {
    pub(super) w: Weights<'a>,
    pub(super) x: Vectors<'a>,
    pub(super) out: Out<'a>,
    pub(super) n_rows: usize,
    pub(super) n_cols: usize,
    pub(super) k: usize,
}

/// Routed rows with their memory.
pub(super) struct RoutedView<'a> {
    pub(super) job: &'a RoutedGemmArgs,
    pub(super) rows: &'a mut [RoutedRow],
    pub(super) firsts: &'a mut [i64],
}

/// Activations to be quantised, and memory for the result.
pub(super) struct QuantiseView<'a> {
    pub(super) x: &'a [u8],
    pub(super) x_col: usize,
    pub(super) n_cols: usize,
    pub(super) k: usize,
    pub(super) group: usize,
    pub(super) out: &'a mut [u8],
}

/// Activations to be rounded to bfloat16, and memory for the result.
pub(super) struct Bf16View<'a> {
    pub(super) x: &'a [u8],
    pub(super) x_col: usize,
    pub(super) n_cols: usize,
    pub(super) k: usize,
    pub(super) n_parts: usize,
    pub(super) out: &'a mut [u8],
}

/// A weighted sum with its memory.
pub(super) struct WeightedSumView<'a> {
    pub(super) v: Weights<'a>,
    /// The factors of each column.
    pub(super) p: Vectors<'a>,
    /// Bytes from the factor of one row to that of the next.
    pub(super) p_row: usize,
    /// Columns are rows here: an element of a row is a column of `Out`.
    pub(super) out: Out<'a>,
    pub(super) n_rows: usize,
    pub(super) n_cols: usize,
    pub(super) n: usize,
}

/// Numbers to be encoded, with their memory.
pub(super) struct EncodeView<'a> {
    pub(super) x: &'a [f32],
    pub(super) storage: Storage,
    pub(super) out: &'a mut [u8],
}

/// The length of `n` pieces of `len` that start `stride` apart.
fn extent(n: usize, stride: usize, len: usize) -> usize {
    (n - 1) * stride + len
}

/// The memory of a GEMM; `None` where there is nothing to add.
///
/// # Safety
/// The address must be of a valid argument struct whose memory does not overlap its results.
pub(super) unsafe fn gemm<'a>(job: *const GemmArgs, layout: Layout) -> Option<GemmView<'a>> {
    // SAFETY: the caller promises a valid argument struct.
    let job = unsafe { &*job };
    let [n_rows, n_cols, k] = [job.n_rows, job.n_cols, job.k].map(|n| n.max(0) as usize);
    if n_rows == 0 || n_cols == 0 || k == 0 {
        return None;
    }
    let w = Raw { w: job.w, scales: job.scales, row: job.w_row, scales_row: job.scales_row, next: job.next };
    // SAFETY: the caller promises that the rows are there.
    let w = unsafe { weights(w, Storage::ALL[job.storage as usize], job.group as usize, n_rows, k) };
    let x_col = job.x_col as usize * 4;
    let (step, len, n_bytes) = match layout {
        Layout::F32 => (x_col, 4 * k, extent(n_cols, x_col, 4 * k)),
        Layout::Int8Rows => (row_bytes(k), row_bytes(k), int8_rows_bytes(n_cols, k)),
        Layout::Int8Gemv => (int8_gemv_bytes(1, k), int8_gemv_bytes(1, k), int8_gemv_bytes(n_cols, k)),
        Layout::Int8Interleaved => (0, 0, int8_interleaved_bytes(n_cols, k)),
        Layout::Int8Amx => (0, 0, int8_amx_bytes(n_cols, k)),
        Layout::Int14 => (int14_bytes(1, k), int14_bytes(1, k), int14_bytes(n_cols, k)),
        Layout::Bf16Tiles => (0, 0, bf16_tiles_bytes(n_cols, k, job.n_parts as usize)),
    };
    let (bytes, apart): (&[u8], &[Column]) = if job.columns.is_null() {
        // SAFETY: the caller promises that the vectors are there.
        (unsafe { slice::from_raw_parts(job.x, n_bytes) }, &[])
    } else {
        // SAFETY: the caller promises a description of each vector.
        (&[], unsafe { slice::from_raw_parts(job.columns, n_cols) })
    };
    let x = Vectors { bytes, step, len, apart };
    let (row, col) = (job.out_row as usize, job.out_col as usize);
    let out = Out { start: job.out, row, col, n_rows, n_cols, apart };
    Some(GemmView { w, x, out, n_rows, n_cols, k })
}

/// The memory of routed rows.
///
/// # Safety
/// The address must be of a valid argument struct.
pub(super) unsafe fn routed<'a>(job: *const RoutedGemmArgs) -> RoutedView<'a> {
    // SAFETY: the caller promises a valid argument struct.
    let job = unsafe { &*job };
    // SAFETY: the caller promises that the rows are there, for this task alone.
    let rows = unsafe { slice::from_raw_parts_mut(job.rows, job.n_rows.max(0) as usize) };
    // SAFETY: the caller promises that the room is there, for this task alone.
    let firsts = unsafe { slice::from_raw_parts_mut(job.firsts, job.n_matrices.max(0) as usize) };
    RoutedView { job, rows, firsts }
}

/// The memory of activations to be quantised; `None` where there are none.
///
/// # Safety
/// The address must be of a valid argument struct whose memory does not overlap its results.
pub(super) unsafe fn quantise<'a>(job: *const QuantiseArgs, layout: Layout) -> Option<QuantiseView<'a>> {
    // SAFETY: the caller promises a valid argument struct.
    let job = unsafe { &*job };
    let [n_cols, k] = [job.n_cols, job.k].map(|n| n.max(0) as usize);
    if n_cols == 0 || k == 0 {
        return None;
    }
    let x_col = job.x_col as usize * 4;
    let n_bytes = match layout {
        Layout::Int8Gemv => int8_gemv_bytes(n_cols, k),
        Layout::Int8Interleaved => int8_interleaved_bytes(n_cols, k),
        Layout::Int8Amx => int8_amx_bytes(n_cols, k),
        Layout::Int14 => int14_bytes(n_cols, k),
        _ => int8_rows_bytes(n_cols, k),
    };
    // SAFETY: the caller promises that the vectors are there.
    let x = unsafe { slice::from_raw_parts(job.x.cast::<u8>(), extent(n_cols, x_col, 4 * k)) };
    // SAFETY: the caller promises that the room is there and apart.
    let out = unsafe { slice::from_raw_parts_mut(job.out, n_bytes) };
    Some(QuantiseView { x, x_col, n_cols, k, group: job.group as usize, out })
}

/// The memory of activations to be rounded to bfloat16; `None` where there are none.
///
/// # Safety
/// The address must be of a valid argument struct whose memory does not overlap its results.
pub(super) unsafe fn bf16<'a>(job: *const Bf16Args) -> Option<Bf16View<'a>> {
    // SAFETY: the caller promises a valid argument struct.
    let job = unsafe { &*job };
    let [n_cols, k] = [job.n_cols, job.k].map(|n| n.max(0) as usize);
    if n_cols == 0 || k == 0 {
        return None;
    }
    let (x_col, n_parts) = (job.x_col as usize * 4, job.n_parts as usize);
    // SAFETY: the caller promises that the vectors are there.
    let x = unsafe { slice::from_raw_parts(job.x.cast::<u8>(), extent(n_cols, x_col, 4 * k)) };
    // SAFETY: the caller promises that the room is there and apart.
    let out = unsafe { slice::from_raw_parts_mut(job.out, bf16_tiles_bytes(n_cols, k, n_parts)) };
    Some(Bf16View { x, x_col, n_cols, k, n_parts, out })
}

/// The memory of a weighted sum; `None` where there is nothing to add.
///
/// # Safety
/// The address must be of a valid argument struct whose memory does not overlap its results.
pub(super) unsafe fn weighted_sum<'a>(job: *const WeightedSumArgs) -> Option<WeightedSumView<'a>> {
    // SAFETY: the caller promises a valid argument struct.
    let job = unsafe { &*job };
    let [n_rows, n_cols, n] = [job.n_rows, job.n_cols, job.n].map(|n| n.max(0) as usize);
    if n_rows == 0 || n_cols == 0 || n == 0 {
        return None;
    }
    let v = Raw { w: job.v, scales: job.v, row: job.v_row, scales_row: 0, next: job.next };
    // SAFETY: the caller promises that the rows are there.
    let v = unsafe { weights(v, Storage::ALL[job.storage as usize], 0, n_rows, n) };
    let (p_col, p_row) = (job.p_col as usize * 4, job.p_row as usize * 4);
    let len = extent(n_rows, p_row, 4);
    // SAFETY: the caller promises that the factors are there.
    let bytes = unsafe { slice::from_raw_parts(job.p.cast::<u8>(), extent(n_cols, p_col, len)) };
    let p = Vectors { bytes, step: p_col, len, apart: &[] };
    let row = job.out_col as usize;
    let out = Out { start: job.out, row, col: 1, n_rows: n_cols, n_cols: n, apart: &[] };
    Some(WeightedSumView { v, p, p_row, out, n_rows, n_cols, n })
}

/// The memory of numbers to be encoded.
///
/// # Safety
/// The address must be of a valid argument struct whose memory does not overlap its results.
pub(super) unsafe fn encode<'a>(job: *const EncodeArgs) -> EncodeView<'a> {
    // SAFETY: the caller promises a valid argument struct.
    let job = unsafe { &*job };
    let (n, storage) = (job.n.max(0) as usize, Storage::ALL[job.storage as usize]);
    // SAFETY: the caller promises that the numbers are there, in a tile, which starts at a multiple of 64 bytes.
    let x = unsafe { slice::from_raw_parts(job.x, n) };
    // SAFETY: the caller promises that the blocks are there, for this task alone.
    let out = unsafe { slice::from_raw_parts_mut(job.out, storage.bytes(n)) };
    EncodeView { x, storage, out }
}

/// Addresses and strides of rows.
#[derive(Clone, Copy)]
struct Raw {
    w: *const u8,
    scales: *const u8,
    row: i64,
    scales_row: i64,
    next: *const u8,
}

/// # Safety
/// The number of rows must be right, each with `k` elements and its scales.
unsafe fn weights<'a>(raw: Raw, storage: Storage, group: usize, n_rows: usize, k: usize) -> Weights<'a> {
    let (row, scales_row) = (raw.row as usize, raw.scales_row as usize);
    let row_bytes = storage.bytes(k);
    let n_scales = if storage == Storage::Int8 { extent(n_rows, scales_row, k / group * 4) } else { 0 };
    // SAFETY: the caller promises that the rows are there.
    let bytes = unsafe { slice::from_raw_parts(raw.w, extent(n_rows, row, row_bytes)) };
    // SAFETY: the caller promises that the scales are there.
    let scales = unsafe { slice::from_raw_parts(raw.scales, n_scales) };
    Weights { storage, group, bytes, row, row_bytes, scales, scales_row, next: raw.next }
}
