//! A few vectors of 8-bit numbers with rows of quantised weights, by tiles of bytes.
//!
//! In: rows and vectors in tiles of eight. Out: their products, sixteen rows and eight vectors at a time.
//! Rows of bytes go into the unit as they lie, others are unpacked to bytes. For each 32 elements the unit gives whole
//! numbers; a vector register scales those of a row and adds them up.
//! Memory is asked for sixteen rows ahead of those that are multiplied: tiles take a little of each row at a time, but
//! it comes fastest in one stream.

use std::arch::x86_64::{
    _mm512_castsi512_ps, _mm512_cvtepi32_ps, _mm512_mul_ps, _mm512_permutex2var_epi64, _mm512_set1_epi8,
    _mm512_setr_epi64, _mm512_srli_epi32, _mm512_sub_epi8,
};

use crate::codegen::cpu::micro::GROUP;
use crate::codegen::cpu::micro::asking::ask_far;
use crate::codegen::cpu::micro::avx512::amx::{Bytes, Rows, Tile};
use crate::codegen::cpu::micro::avx512::eights::{EIGHT, Eight, LINES};
use crate::codegen::cpu::micro::avx512::fours::{Order, four, k_factors, moved, order, unit_groups};
use crate::codegen::cpu::micro::avx512::vector::{
    N, Places, V, add, fma, gathered, lanes, load, load_bytes, splat, store, store_bytes, turned, wide_lower,
    zero,
};
use crate::codegen::cpu::micro::unpack::{Blocks, Storage, Unpacked};
use crate::codegen::cpu::micro::view::{ProductView, bytes_of};

/// Rows of a tile.
const ROWS: usize = 16;

/// Tiles that are multiplied at a time.
const FOUR: usize = 4;

/// All vectors with all rows, `B` bytes of a row at a time.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn product<const S: usize, const B: usize>(unit: &Bytes, job: &ProductView<'_>) {
    let mut room = Room::EMPTY;
    for r in (0..job.n_rows).step_by(ROWS) {
        let rows = Sixteen::<S, B>::new(job, r);
        for c in (0..job.n_cols).step_by(EIGHT) {
            let columns =
                turned(&rows.products(unit, Eight::new(job.x.tiles(), job.k, c / EIGHT), &mut room));
            for i in 0..EIGHT.min(job.n_cols - c) {
                // The numbers, and what they exceed.
                let both = add(columns[i], columns[EIGHT + i]);
                job.out.add_down(r, c + i, &lanes(both)[..rows.n]);
            }
        }
    }
}

/// Up to sixteen rows.
struct Sixteen<'a, const S: usize, const B: usize> {
    /// The last stands for those that are not there.
    rows: [Blocks<'a>; ROWS],
    /// How many there are.
    n: usize,
    n_groups: usize,
    /// All of them, with what lies between.
    bytes: &'a [u8],
    stride: usize,
    places: Places,
    /// Their scales, where they lie apart.
    scales: &'a [u8],
    apart: Places,
}

/// Room for what belongs to a unit.
#[repr(C, align(64))]
struct Room {
    /// Four groups of all rows.
    numbers: [[[u8; 64]; 2]; ROWS],
    /// What the unit of tiles gives for four groups: a line for each row.
    sums: [Tile; FOUR],
    /// For each group a line with the factors of all rows, and one with what is added to their elements.
    scales: [[f32; ROWS]; 8],
    offsets: [[f32; ROWS]; 8],
}

impl Room {
    const EMPTY: Self = Self {
        numbers: [[[0; 64]; 2]; ROWS],
        sums: [[[0; 64]; ROWS]; FOUR],
        scales: [[0.0; ROWS]; 8],
        offsets: [[0.0; ROWS]; 8],
    };
}

impl<'a, const S: usize, const B: usize> Sixteen<'a, S, B> {
    /// Groups of a unit, and whether rows of bytes go into the unit of tiles as they lie.
    const GROUPS: usize = unit_groups(Storage::ALL[S]);
    const LIE_SO: bool = matches!(Storage::ALL[S], Storage::Q8_0 | Storage::Int8);

    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    fn new(job: &ProductView<'a>, r: usize) -> Self {
        let n = (job.n_rows - r).min(ROWS);
        let mut rows = [job.w.row(r + n - 1); ROWS];
        for (i, row) in rows.iter_mut().enumerate().take(n) {
            *row = job.w.row(r + i);
        }
        let (bytes, stride) = (job.w.block(r, n), job.w.stride());
        let (scales, scales_stride) = job.w.scales(r);
        let (places, apart) = (Places::new(stride, n), Places::new(scales_stride, n));
        Self { rows, n, n_groups: job.k / GROUP, bytes, stride, places, scales, apart }
    }

    /// The products of all rows with eight vectors, each of which has two lanes.
    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    fn products(&self, unit: &Bytes, x: Eight<'_>, room: &mut Room) -> [V; ROWS] {
        let mut out = [zero(); ROWS];
        let n_units = self.n_groups / Self::GROUPS;
        let piece = self.bytes.len() / n_units.max(1);
        for at in 0..n_units {
            ask_far(&self.bytes[at * piece..][..piece], ROWS * self.stride);
            self.factors(at, room);
            for quad in 0..Self::GROUPS / FOUR {
                let rows = if Self::LIE_SO && self.n == ROWS {
                    let head = B / FOUR - GROUP;
                    Rows { bytes: &self.bytes[at * B + head..], stride: self.stride, step: B / FOUR }
                } else {
                    self.unpack(at, quad, &mut room.numbers);
                    Rows { bytes: room.numbers.as_flattened().as_flattened(), stride: 128, step: GROUP }
                };
                let first = at * Self::GROUPS + quad * FOUR;
                unit.dots(rows, &x.numbers[LINES * first..], &mut room.sums);
                for (i, sums) in room.sums.iter().enumerate() {
                    let scales = load(&x.scales[first + i]);
                    let own = &room.scales[FOUR * quad + i];
                    for i in 0..ROWS {
                        let sum = _mm512_mul_ps(_mm512_cvtepi32_ps(load_bytes(&sums[i])), scales);
                        out[i] = fma(sum, splat(own[i]), out[i]);
                    }
                    if const { Storage::ALL[S].has_offsets() } {
                        let (total, own) = (load(&x.sums[first + i]), &room.offsets[FOUR * quad + i]);
                        for i in 0..ROWS {
                            out[i] = fma(total, splat(own[i]), out[i]);
                        }
                    }
                }
            }
        }
        if n_units * Self::GROUPS < self.n_groups {
            self.rest(&mut out, x, n_units * Self::GROUPS);
        }
        out
    }

    /// What belongs to the `at`-th unit.
    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    fn factors(&self, at: usize, out: &mut Room) {
        if Self::GROUPS == 8 {
            let mut rows = [zero(); ROWS];
            for i in 0..ROWS {
                rows[i] = k_factors::<S>(&self.rows[i].bytes[at * B..][..B]);
            }
            for (i, line) in turned(&rows).into_iter().enumerate() {
                match i {
                    ..8 => store(line, &mut out.scales[i]),
                    // These are taken off.
                    _ => store(_mm512_mul_ps(line, splat(-1.0)), &mut out.offsets[i - 8]),
                }
            }
            return;
        }
        for i in 0..FOUR {
            let block = at * B + i * (B / FOUR);
            let scales = match const { Storage::ALL[S] } {
                Storage::Int8 => {
                    let scale = (FOUR * at + i) * GROUP / self.rows[0].group;
                    _mm512_castsi512_ps(gathered(self.scales, 4 * scale, &self.apart))
                }
                Storage::Q4Pairs => _mm512_castsi512_ps(gathered(self.bytes, block + 16, &self.places)),
                storage => {
                    let both = gathered(self.bytes, block, &self.places);
                    if storage.has_offsets() {
                        store(wide_lower(_mm512_srli_epi32::<16>(both)), &mut out.offsets[i]);
                    }
                    wide_lower(both)
                }
            };
            store(scales, &mut out.scales[i]);
        }
    }

    /// Four groups of each row as bytes.
    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    fn unpack(&self, at: usize, half: usize, numbers: &mut [[[u8; 64]; 2]; ROWS]) {
        let by = _mm512_set1_epi8(const { moved(Storage::ALL[S]).cast_signed() });
        for (row, lines) in self.rows.iter().zip(numbers) {
            let [a, b] = four::<S>(&row.bytes[at * B..][..B], half);
            let (a, b) = (_mm512_sub_epi8(a, by), _mm512_sub_epi8(b, by));
            let both = match order(const { Storage::ALL[S] }) {
                Order::Straight => [a, b],
                Order::Halves => [
                    _mm512_permutex2var_epi64(a, _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11), b),
                    _mm512_permutex2var_epi64(a, _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15), b),
                ],
            };
            for (both, line) in both.into_iter().zip(lines) {
                store_bytes(both, line);
            }
        }
    }

    /// The groups that fill no unit.
    #[cold]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    fn rest(&self, out: &mut [V; ROWS], x: Eight<'_>, from: usize) {
        for idx in from..self.n_groups {
            let (scales, sums) = (load(&x.scales[idx]), load(&x.sums[idx]));
            for (out, row) in out.iter_mut().zip(&self.rows) {
                let Unpacked { q, a, b } = row.unpack(const { Storage::ALL[S] }, idx);
                let mut columns = [0.0; N];
                for (i, q) in q.into_iter().enumerate() {
                    let line = x.numbers[LINES * idx + i / 4].as_chunks::<4>().0;
                    for (column, x) in columns.iter_mut().zip(line) {
                        *column += f32::from(q) * f32::from(x[i % 4].cast_signed());
                    }
                }
                let columns = load(bytes_of(&columns).as_array().expect("a line"));
                *out = fma(_mm512_mul_ps(columns, scales), splat(a[0]), *out);
                *out = fma(sums, splat(b), *out);
            }
        }
    }
}
