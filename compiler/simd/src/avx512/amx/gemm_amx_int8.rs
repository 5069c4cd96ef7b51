//! Quantised GEMM for 5 to 15 columns with AMX (`tdpbssd`).
//!
//! In: rows, and activations in the layout of `quantise_amx.rs`. Out: their products, 32 rows by eight columns at a
//! time. Rows become bytes, each 32 elements twice side by side, so that they meet both numbers and excess at once. The
//! tile unit gives integer sums for a group of 32; a vector register scales those of two rows, one of each tile, and
//! adds them up. The unit works on a group while the sums of an earlier one are scaled. The last groups of rows whose
//! number of groups is no multiple of four are multiplied without tiles. The next rows are prefetched as one stream.

use std::arch::x86_64::{
    __m512i, _mm512_broadcast_i64x4, _mm512_castps_si512, _mm512_castsi512_ps, _mm512_cvtepi32_ps,
    _mm512_dpbusd_epi32, _mm512_mask_blend_epi32, _mm512_mask_blend_ps, _mm512_mul_ps,
    _mm512_permutex2var_epi64, _mm512_permutexvar_epi32, _mm512_set1_epi8, _mm512_setr_epi64,
    _mm512_setzero_si512, _mm512_srli_epi32, _mm512_sub_epi8, _mm512_sub_epi32, _mm512_xor_si512,
};
use std::array::from_fn;

use bytemuck::cast_slice;

use crate::abi::GROUP;
use crate::avx512::amx::{Bytes, Tile, twice_each};
use crate::avx512::quantise::quantise_amx::{EIGHT, Eight, FOUR};
use crate::avx512::unpack::unpack_blocks::{Order, k_block_scales, order, unpack_128, zero_point};
use crate::avx512::vector::{
    N, Places, V, broadcast_4_bytes, fma, gather, lanes, load, load_bytes, load_half, splat, store,
    store_bytes, transpose_f32, wide_lower, zero,
};
use crate::layout::block_formats::{BlockRow, DequantisedBlock, Storage};
use crate::prefetch::prefetch_l2;
use crate::view::GemmView;

/// Rows of a tile, and of both.
const TILE: usize = 16;
const ROWS: usize = 2 * TILE;

/// Runs of four groups whose scales are kept: those of the previous unit, and of a super-block.
const KEPT: usize = 4;

/// All columns with all rows, `B` bytes of a row at a time.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(crate) fn gemm<const S: usize, const B: usize>(unit: &Bytes, job: &GemmView<'_>) {
    let mut scratch = Scratch::EMPTY;
    let mut rows = Both::<S, B>::new(job, 0);
    for r in (0..job.n_rows).step_by(ROWS) {
        rows = rows.moved(r);
        for c in (0..job.n_cols).step_by(EIGHT) {
            let columns = transpose_f32(&rows.products(
                unit,
                Eight::new(job.x.tiles(), job.k, c / EIGHT),
                &mut scratch,
            ));
            for i in 0..EIGHT.min(job.n_cols - c) {
                for tile in 0..rows.n.div_ceil(TILE) {
                    let n = (rows.n - TILE * tile).min(TILE);
                    job.out.add_down(r + TILE * tile, c + i, &lanes(columns[EIGHT * tile + i])[..n]);
                }
            }
        }
    }
}

/// One or two tiles of rows.
#[derive(Clone, Copy)]
struct Both<'a, const S: usize, const B: usize> {
    job: &'a GemmView<'a>,
    first: usize,
    /// How many rows there are; missing ones repeat the last.
    n: usize,
    /// Their bytes, including the gaps between rows.
    bytes: &'a [u8],
    stride: usize,
    places: [Places; 2],
    /// Their scales, where stored apart.
    scales: &'a [u8],
    apart: [Places; 2],
}

/// A value of each row: eight rows of the first tile and eight of the second, then the other eight of each.
type OfRows = [[f32; 2 * EIGHT]; 2];

/// Four groups of all rows, each of them twice.
type Numbers = [[[u8; 64]; ROWS]; FOUR];

#[repr(C, align(64))]
struct Scratch {
    numbers: Numbers,
    kept: Kept,
}

/// What the scaling of four groups needs, after the unit has multiplied them.
#[repr(C, align(64))]
struct Kept {
    /// The integer sums of a group: a line for each row of the first tile, and of the second.
    sums: [Tile; FOUR],
    /// For each group the scales and the offsets of all rows.
    scales: [[OfRows; FOUR]; KEPT],
    offsets: [[OfRows; FOUR]; KEPT],
}

impl Scratch {
    const EMPTY: Self = Self {
        numbers: [[[0; 64]; ROWS]; FOUR],
        kept: Kept {
            sums: [[[0; 64]; TILE]; FOUR],
            scales: [[[[0.0; 2 * EIGHT]; 2]; FOUR]; KEPT],
            offsets: [[[[0.0; 2 * EIGHT]; 2]; FOUR]; KEPT],
        },
    };
}

/// The row whose factor is in a lane of a half.
fn row_of(half: usize, lane: usize) -> usize {
    EIGHT * half + lane % EIGHT + lane / EIGHT * TILE
}

impl<'a, const S: usize, const B: usize> Both<'a, S, B> {
    /// Fours of groups of a unit.
    const FOURS: usize = Storage::ALL[S].unit_groups() / FOUR;

    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    fn new(job: &'a GemmView<'a>, first: usize) -> Self {
        let n = (job.n_rows - first).min(ROWS);
        let (bytes, stride) = (job.w.block(first, n), job.w.stride());
        let (scales, scales_stride) = job.w.scales(first);
        let rows = |half| from_fn(|lane| row_of(half, lane).min(n - 1));
        let places = [0, 1].map(|half| Places::new(stride, &rows(half)));
        let apart = [0, 1].map(|half| Places::new(scales_stride, &rows(half)));
        Self { job, first, n, bytes, stride, places, scales, apart }
    }

    /// Those from another row on.
    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    fn moved(self, first: usize) -> Self {
        let (job, n) = (self.job, (self.job.n_rows - first).min(ROWS));
        if n < self.n {
            return Self::new(job, first);
        }
        Self { first, bytes: job.w.block(first, n), scales: job.w.scales(first).0, ..self }
    }

    #[inline(always)]
    fn row(&self, i: usize) -> BlockRow<'a> {
        self.job.w.row(self.first + i.min(self.n - 1))
    }

    /// The products of all rows with eight columns; a register has those of a row of the first tile, and of the second.
    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    fn products(&self, unit: &Bytes, x: Eight<'_>, scratch: &mut Scratch) -> [V; TILE] {
        let Scratch { numbers, kept } = scratch;
        let mut out = [zero(); TILE];
        let n_units = self.job.k / GROUP / FOUR / Self::FOURS;
        self.copy(0, numbers);
        for at in 0..n_units {
            self.scales(at, kept);
            for half in 0..Self::FOURS {
                if !self.are_copied() {
                    self.unpack(at, half, numbers);
                }
                match at * Self::FOURS + half {
                    0 => self.four::<false>(unit, numbers, x, 0, &mut out, kept),
                    four => self.four::<true>(unit, numbers, x, four, &mut out, kept),
                }
            }
        }
        if let Some(last) = (n_units * Self::FOURS).checked_sub(1) {
            unit.odd_sums(&mut kept.sums[FOUR - 1]);
            for i in 0..FOUR {
                out = Self::scale(out, x, (last, i), kept);
            }
        }
        for idx in n_units * Self::FOURS * FOUR..self.job.k / GROUP {
            self.rest(&mut out, x, idx);
        }
        out
    }

    /// Issues the tile products of four groups, and scales the sums of the previous four, if there are any.
    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    fn four<const ANY: bool>(
        &self,
        unit: &Bytes,
        numbers: &mut Numbers,
        x: Eight<'_>,
        four: usize,
        out: &mut [V; TILE],
        kept: &mut Kept,
    ) {
        let (vectors, mut own) = (&x.numbers[four], *out);
        for i in [0, 2] {
            self.prepare(four * FOUR + i, numbers);
            unit.dots::<0>(&numbers[i], &vectors[i], &mut kept.sums[(i + FOUR - 1) % FOUR]);
            if ANY {
                own = Self::scale(own, x, (four - 1, i), kept);
            }
            self.prepare(four * FOUR + i + 1, numbers);
            unit.dots::<1>(&numbers[i + 1], &vectors[i + 1], &mut kept.sums[i]);
            if ANY {
                own = Self::scale(own, x, (four - 1, i + 1), kept);
            }
        }
        *out = own;
    }

    /// Prefetches a piece of the following rows, and copies the next group if rows are bytes.
    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    fn prepare(&self, idx: usize, numbers: &mut Numbers) {
        let piece = const { ROWS * B / Storage::ALL[S].unit_groups() };
        prefetch_l2(self.bytes.as_ptr().wrapping_add(ROWS * self.stride + idx * piece), piece);
        self.copy(idx + 1, numbers);
    }

    /// Whether groups are copied, each just before it is multiplied.
    #[inline(always)]
    fn are_copied(&self) -> bool {
        matches!(Storage::ALL[S], Storage::Q8_0 | Storage::Int8) && self.n == ROWS
    }

    /// A group of all rows, if there is one, twice.
    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    fn copy(&self, idx: usize, numbers: &mut Numbers) {
        if !self.are_copied() {
            return;
        }
        let from = (idx + 1) * (B / FOUR) - GROUP;
        if self.bytes.len() >= from + (ROWS - 1) * self.stride + GROUP {
            twice_each(&self.bytes[from..], self.stride, &mut numbers[idx % FOUR]);
        }
    }

    /// Scales and adds the tile products of one group of four.
    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    fn scale(mut out: [V; TILE], x: Eight<'_>, (four, i): (usize, usize), kept: &Kept) -> [V; TILE] {
        let (scales, own) = (load(&x.scales[four][i]), &kept.scales[four % KEPT][i]);
        for (row, sums) in kept.sums[i].iter().enumerate() {
            let sum = _mm512_mul_ps(_mm512_cvtepi32_ps(load_bytes(sums)), scales);
            out[row] = fma(sum, of_row(own, row), out[row]);
        }
        if const { Storage::ALL[S].has_offsets() } {
            let (total, own) = (load(&x.sums[four][i]), &kept.offsets[four % KEPT][i]);
            for row in 0..TILE {
                out[row] = fma(total, of_row(own, row), out[row]);
            }
        }
        out
    }

    /// The scales and offsets of the `at`-th unit.
    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    fn scales(&self, at: usize, out: &mut Kept) {
        for half in 0..2 {
            if Self::FOURS == 2 {
                let mut rows = [zero(); N];
                for (lane, factors) in rows.iter_mut().enumerate() {
                    *factors = k_block_scales::<S>(&self.row(row_of(half, lane)).bytes[at * B..][..B]);
                }
                for (i, line) in transpose_f32(&rows).into_iter().enumerate() {
                    let four = (2 * at + i / FOUR % 2) % KEPT;
                    match i {
                        ..8 => store(line, &mut out.scales[four][i % FOUR][half]),
                        // These are subtracted.
                        _ => store(_mm512_mul_ps(line, splat(-1.0)), &mut out.offsets[four][i % FOUR][half]),
                    }
                }
                continue;
            }
            for i in 0..FOUR {
                let block = at * B + i * (B / FOUR);
                let scales = match const { Storage::ALL[S] } {
                    Storage::Int8 => {
                        let scale = (FOUR * at + i) * GROUP / self.job.w.row(self.first).group;
                        _mm512_castsi512_ps(gather(self.scales, 4 * scale, &self.apart[half]))
                    }
                    Storage::Q4Pairs => {
                        _mm512_castsi512_ps(gather(self.bytes, block + 16, &self.places[half]))
                    }
                    storage => {
                        let both = gather(self.bytes, block, &self.places[half]);
                        if storage.has_offsets() {
                            let upper = wide_lower(_mm512_srli_epi32::<16>(both));
                            store(upper, &mut out.offsets[at % KEPT][i][half]);
                        }
                        wide_lower(both)
                    }
                };
                store(scales, &mut out.scales[at % KEPT][i][half]);
            }
        }
    }

    /// Four groups of each row as bytes. Missing rows are not written.
    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    fn unpack(&self, at: usize, half: usize, numbers: &mut Numbers) {
        for i in 0..self.n {
            let unit = &self.row(i).bytes[at * B..][..B];
            for (group, lines) in twice::<S, B>(unit, half).into_iter().zip(&mut *numbers) {
                store_bytes(group, &mut lines[i]);
            }
        }
    }

    /// Adds the products of a group that belongs to no unit, without tiles. Weights have the zero point 128, because
    /// `vpdpbusd` takes one side unsigned; accumulators start from the value that cancels it.
    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    fn rest(&self, out: &mut [V; TILE], x: Eight<'_>, idx: usize) {
        let (four, at) = (idx / FOUR, idx % FOUR);
        let (scales, sums) = (load(&x.scales[four][at]), load(&x.sums[four][at]));
        let by = _mm512_set1_epi8(-128);
        // Numbers, then their excess: four of each column, for the row in each half of the lanes.
        let (mut vectors, mut start) = ([_mm512_setzero_si512(); 2 * EIGHT], _mm512_setzero_si512());
        let halves = x.numbers[four][at].as_flattened().as_chunks().0;
        for (vectors, half) in vectors.iter_mut().zip(halves) {
            *vectors = _mm512_broadcast_i64x4(load_half(half));
            start = _mm512_dpbusd_epi32(start, by, *vectors);
        }
        start = _mm512_sub_epi32(_mm512_setzero_si512(), start);
        for (i, out) in out.iter_mut().enumerate() {
            let first = self.row(i).unpack(const { Storage::ALL[S] }, idx);
            let second = self.row(i + TILE).unpack(const { Storage::ALL[S] }, idx);
            let mut dots = start;
            for step in 0..EIGHT {
                let [low, high] = [four_of(&first, step), four_of(&second, step)];
                let both = _mm512_xor_si512(_mm512_mask_blend_epi32(UPPER, low, high), by);
                dots = _mm512_dpbusd_epi32(dots, both, vectors[step]);
                dots = _mm512_dpbusd_epi32(dots, both, vectors[EIGHT + step]);
            }
            let factors = _mm512_mask_blend_ps(UPPER, splat(first.a[0]), splat(second.a[0]));
            *out = fma(_mm512_mul_ps(_mm512_cvtepi32_ps(dots), scales), factors, *out);
            if const { Storage::ALL[S].has_offsets() } {
                *out = fma(sums, _mm512_mask_blend_ps(UPPER, splat(first.b[0]), splat(second.b[0])), *out);
            }
        }
    }
}

/// The upper half of sixteen lanes.
const UPPER: u16 = 0xff00;

/// The `step`-th four of 32 elements, in every lane.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn four_of(elements: &DequantisedBlock, step: usize) -> __m512i {
    broadcast_4_bytes(cast_slice::<_, u8>(&elements.q).as_chunks().0[step])
}

/// Four groups of a unit, each of them twice.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn twice<const S: usize, const B: usize>(unit: &[u8], half: usize) -> [__m512i; FOUR] {
    if const { matches!(Storage::ALL[S], Storage::Q8_0 | Storage::Int8) } {
        return from_fn(|i| {
            let group = unit[(i + 1) * (B / FOUR) - GROUP..].first_chunk().expect("32 bytes");
            _mm512_broadcast_i64x4(load_half(group))
        });
    }
    let by = _mm512_set1_epi8(const { zero_point(Storage::ALL[S]).cast_signed() });
    let [a, b] = unpack_128::<S>(unit, half).map(|numbers| _mm512_sub_epi8(numbers, by));
    let groups = match order(const { Storage::ALL[S] }) {
        Order::Sequential => [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]],
        Order::SplitHalves => [[0, 1, 8, 9], [2, 3, 10, 11], [4, 5, 12, 13], [6, 7, 14, 15]],
    };
    groups.map(|[i, j, k, l]| _mm512_permutex2var_epi64(a, _mm512_setr_epi64(i, j, k, l, i, j, k, l), b))
}

/// The value of a row of the first tile in the lower lanes, and of a row of the second in the upper ones.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn of_row(all: &OfRows, i: usize) -> V {
    let own = load(cast_slice(&all[i / EIGHT]).as_array().expect("a line"));
    // In assembly: the compiler would split this shuffle in two.
    _mm512_castsi512_ps(_mm512_permutexvar_epi32(load_bytes(&PLACES[i % EIGHT]), _mm512_castps_si512(own)))
}

/// The lanes of the first, the second, ... of eight rows of each tile.
const PLACES: [[u8; 64]; EIGHT] = {
    let mut places = [[0; 64]; EIGHT];
    let mut at = 0;
    while at < EIGHT * N {
        let (row, lane) = (at / N, at % N);
        places[row][4 * lane] = (row + lane / EIGHT * EIGHT) as u8;
        at += 1;
    }
    places
};

/// The products of up to 32 rows with eight columns, all groups without tiles.
#[cfg(test)]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(crate) fn without_tiles<const S: usize, const B: usize>(job: &GemmView<'_>) -> [[f32; N]; TILE] {
    let (rows, mut sums) = (Both::<S, B>::new(job, 0), [zero(); TILE]);
    for idx in 0..job.k / GROUP {
        rows.rest(&mut sums, Eight::new(job.x.tiles(), job.k, 0), idx);
    }
    let mut out = [[0.0; N]; TILE];
    for (out, sums) in out.iter_mut().zip(sums) {
        *out = lanes(sums);
    }
    out
}
