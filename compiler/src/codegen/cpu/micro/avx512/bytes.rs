//! A few vectors of 8-bit numbers with rows of quantised weights, by tiles of bytes.
//!
//! In: rows and vectors in tiles of eight. Out: their products, two tiles of rows and eight vectors at a time.
//! Rows of bytes go into the unit as they lie, others are unpacked to bytes. For each 32 elements the unit gives whole
//! numbers; a vector register scales those of two rows, one of each tile, and adds them up.
//! The unit works on a group while the sums of those before are scaled.
//! Memory is asked for as many rows ahead as are multiplied: tiles take a little of each row at a time, but it comes
//! fastest in one stream.

use std::arch::x86_64::{
    _mm512_castps_si512, _mm512_castsi512_ps, _mm512_cvtepi32_ps, _mm512_mul_ps, _mm512_permutex2var_epi64,
    _mm512_permutexvar_epi32, _mm512_set1_epi8, _mm512_setr_epi64, _mm512_srli_epi32, _mm512_sub_epi8,
};
use std::array::from_fn;

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

/// Rows of a tile, and of both.
const TILE: usize = 16;
const ROWS: usize = 2 * TILE;

/// Groups that are unpacked at a time.
const FOUR: usize = 4;

/// Groups after which sums are scaled.
const LAG: usize = 3;

/// Groups whose factors are kept.
const KEPT: usize = 16;

/// All vectors with all rows, `B` bytes of a row at a time.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn product<const S: usize, const B: usize>(unit: &Bytes, job: &ProductView<'_>) {
    let mut room = Room::EMPTY;
    for r in (0..job.n_rows).step_by(ROWS) {
        let rows = Both::<S, B>::new(job, r);
        for c in (0..job.n_cols).step_by(EIGHT) {
            let columns =
                turned(&rows.products(unit, Eight::new(job.x.tiles(), job.k, c / EIGHT), &mut room));
            for i in 0..EIGHT.min(job.n_cols - c) {
                for tile in 0..rows.n.div_ceil(TILE) {
                    let n = (rows.n - TILE * tile).min(TILE);
                    job.out.add_down(r + TILE * tile, c + i, &lanes(columns[EIGHT * tile + i])[..n]);
                }
            }
        }
    }
}

/// Up to two tiles of rows.
struct Both<'a, const S: usize, const B: usize> {
    job: &'a ProductView<'a>,
    first: usize,
    /// How many there are; the last stands for others.
    n: usize,
    /// All of them, with what lies between.
    bytes: &'a [u8],
    stride: usize,
    /// As many of them as there are groups.
    piece: usize,
    places: [Places; 2],
    /// Their scales, where they lie apart.
    scales: &'a [u8],
    apart: [Places; 2],
}

/// Something of each row: eight rows of the first tile and as many of the second, then the other eight of each.
type OfRows = [[f32; 2 * EIGHT]; 2];

/// Four groups of all rows.
type Numbers = [[[u8; 64]; 2]; ROWS];

#[repr(C, align(64))]
struct Room {
    numbers: Numbers,
    kept: Kept,
}

/// What is kept of some groups until their sums are scaled.
#[repr(C, align(64))]
struct Kept {
    /// What the unit of tiles gives for a group: a line for each row of the first tile, and of the second.
    sums: [Tile; FOUR],
    /// For each group the factors of all rows, and what is added to their elements.
    scales: [OfRows; KEPT],
    offsets: [OfRows; KEPT],
}

impl Room {
    const EMPTY: Self = Self {
        numbers: [[[0; 64]; 2]; ROWS],
        kept: Kept {
            sums: [[[0; 64]; TILE]; FOUR],
            scales: [[[0.0; 2 * EIGHT]; 2]; KEPT],
            offsets: [[[0.0; 2 * EIGHT]; 2]; KEPT],
        },
    };
}

/// The row whose factor is in a lane of a half.
fn row_of(half: usize, lane: usize) -> usize {
    EIGHT * half + lane % EIGHT + lane / EIGHT * TILE
}

impl<'a, const S: usize, const B: usize> Both<'a, S, B> {
    /// Groups of a unit, and whether rows of bytes go into the unit of tiles as they lie.
    const GROUPS: usize = unit_groups(Storage::ALL[S]);
    const LIE_SO: bool = matches!(Storage::ALL[S], Storage::Q8_0 | Storage::Int8);

    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    fn new(job: &'a ProductView<'a>, first: usize) -> Self {
        let n = (job.n_rows - first).min(ROWS);
        let (bytes, stride) = (job.w.block(first, n), job.w.stride());
        let (scales, scales_stride) = job.w.scales(first);
        let rows = |half| from_fn(|lane| row_of(half, lane).min(n - 1));
        let places = [0, 1].map(|half| Places::new(stride, &rows(half)));
        let apart = [0, 1].map(|half| Places::new(scales_stride, &rows(half)));
        let piece = bytes.len() / (job.k / GROUP).max(1);
        Self { job, first, n, bytes, stride, piece, places, scales, apart }
    }

    #[inline(always)]
    fn row(&self, i: usize) -> Blocks<'a> {
        self.job.w.row(self.first + i.min(self.n - 1))
    }

    /// The products of all rows with eight vectors: in a register those of a row of the first tile, and of the second.
    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    fn products(&self, unit: &Bytes, x: Eight<'_>, room: &mut Room) -> [V; TILE] {
        let Room { numbers, kept } = room;
        let mut out = [zero(); TILE];
        let n_groups = self.job.k / GROUP;
        let n_units = n_groups / Self::GROUPS;
        for at in 0..n_units {
            self.factors(at, kept);
            for quad in 0..Self::GROUPS / FOUR {
                let rows = if Self::LIE_SO && self.n == ROWS {
                    let head = B / FOUR - GROUP;
                    Rows { bytes: &self.bytes[at * B + head..], stride: self.stride, step: B / FOUR }
                } else {
                    self.unpack(at, quad, numbers);
                    Rows { bytes: numbers.as_flattened().as_flattened(), stride: 128, step: GROUP }
                };
                let first = at * Self::GROUPS + quad * FOUR;
                for i in [0, 2] {
                    out = self.step::<0>(unit, rows.skip(i), x, first + i, out, kept);
                    out = self.step::<1>(unit, rows.skip(i + 1), x, first + i + 1, out, kept);
                }
            }
        }
        let n = n_units * Self::GROUPS;
        if n > 0 {
            unit.odd_sums(&mut kept.sums[(n - 1) % FOUR]);
        }
        for before in n.saturating_sub(LAG)..n {
            out = Self::scale(out, x, before, kept);
        }
        for idx in n..n_groups {
            out = self.rest(out, x, idx);
        }
        out
    }

    /// Gives the unit of tiles a group, scales the sums of another, and asks for a piece of the rows to come.
    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    #[expect(clippy::large_types_passed_by_value, reason = "they stay in registers")]
    fn step<const ODD: usize>(
        &self,
        unit: &Bytes,
        rows: Rows<'_>,
        x: Eight<'_>,
        idx: usize,
        out: [V; TILE],
        kept: &mut Kept,
    ) -> [V; TILE] {
        ask_far(&self.bytes[idx * self.piece..][..self.piece], ROWS * self.stride);
        let vectors = x.numbers[LINES * idx..].first_chunk().expect("a tile for each group");
        unit.dots::<ODD>(rows, vectors, &mut kept.sums[(idx + FOUR - 1) % FOUR]);
        match idx.checked_sub(LAG) {
            Some(before) => Self::scale(out, x, before, kept),
            None => out,
        }
    }

    /// Adds the products of a group, whose sums the unit of tiles has given.
    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    fn scale(mut out: [V; TILE], x: Eight<'_>, idx: usize, kept: &Kept) -> [V; TILE] {
        let (scales, own) = (load(&x.scales[idx]), &kept.scales[idx % KEPT]);
        for (i, sums) in kept.sums[idx % FOUR].iter().enumerate() {
            let sum = _mm512_mul_ps(_mm512_cvtepi32_ps(load_bytes(sums)), scales);
            out[i] = fma(sum, of_row(own, i), out[i]);
        }
        if const { Storage::ALL[S].has_offsets() } {
            let (total, own) = (load(&x.sums[idx]), &kept.offsets[idx % KEPT]);
            for i in 0..TILE {
                out[i] = fma(total, of_row(own, i), out[i]);
            }
        }
        out
    }

    /// What belongs to the `at`-th unit.
    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    fn factors(&self, at: usize, out: &mut Kept) {
        for half in 0..2 {
            if Self::GROUPS == 8 {
                let mut rows = [zero(); N];
                for (lane, factors) in rows.iter_mut().enumerate() {
                    *factors = k_factors::<S>(&self.row(row_of(half, lane)).bytes[at * B..][..B]);
                }
                for (i, line) in turned(&rows).into_iter().enumerate() {
                    let idx = (8 * at + i % 8) % KEPT;
                    match i {
                        ..8 => store(line, &mut out.scales[idx][half]),
                        // These are taken off.
                        _ => store(_mm512_mul_ps(line, splat(-1.0)), &mut out.offsets[idx][half]),
                    }
                }
                continue;
            }
            for i in 0..FOUR {
                let idx = (FOUR * at + i) % KEPT;
                let block = at * B + i * (B / FOUR);
                let scales = match const { Storage::ALL[S] } {
                    Storage::Int8 => {
                        let scale = (FOUR * at + i) * GROUP / self.job.w.row(self.first).group;
                        _mm512_castsi512_ps(gathered(self.scales, 4 * scale, &self.apart[half]))
                    }
                    Storage::Q4Pairs => {
                        _mm512_castsi512_ps(gathered(self.bytes, block + 16, &self.places[half]))
                    }
                    storage => {
                        let both = gathered(self.bytes, block, &self.places[half]);
                        if storage.has_offsets() {
                            let upper = wide_lower(_mm512_srli_epi32::<16>(both));
                            store(upper, &mut out.offsets[idx][half]);
                        }
                        wide_lower(both)
                    }
                };
                store(scales, &mut out.scales[idx][half]);
            }
        }
    }

    /// Four groups of each row as bytes.
    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    fn unpack(&self, at: usize, half: usize, numbers: &mut Numbers) {
        let by = _mm512_set1_epi8(const { moved(Storage::ALL[S]).cast_signed() });
        for (i, lines) in numbers.iter_mut().enumerate() {
            let [a, b] = four::<S>(&self.row(i).bytes[at * B..][..B], half);
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

    /// A group that belongs to no unit.
    #[cold]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    fn rest(&self, mut out: [V; TILE], x: Eight<'_>, idx: usize) -> [V; TILE] {
        let (scales, sums) = (lanes(load(&x.scales[idx])), lanes(load(&x.sums[idx])));
        for (i, out) in out.iter_mut().enumerate() {
            let mut products = [0.0; N];
            for (tile, products) in products.as_chunks_mut::<EIGHT>().0.iter_mut().enumerate() {
                let Unpacked { q, a, b } = self.row(i + TILE * tile).unpack(const { Storage::ALL[S] }, idx);
                for (c, product) in products.iter_mut().enumerate() {
                    let mut sum = 0.0;
                    for (e, q) in q.into_iter().enumerate() {
                        let line = x.numbers[LINES * idx + e / 4].as_chunks::<4>().0;
                        // The number, and what it exceeds.
                        for part in [c, EIGHT + c] {
                            sum += f32::from(q) * f32::from(line[part][e % 4].cast_signed());
                        }
                    }
                    *product = sum * scales[c] * a[0] + sums[c] * b;
                }
            }
            *out = add(*out, load(bytes_of(&products).as_array().expect("a line")));
        }
        out
    }
}

/// What belongs to a row of the first tile, in the lower lanes, and to one of the second.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn of_row(all: &OfRows, i: usize) -> V {
    let own = load(bytes_of(&all[i / EIGHT]).as_array().expect("a line"));
    // The compiler makes two shuffles of one that it takes for a permutation of numbers.
    _mm512_castsi512_ps(_mm512_permutexvar_epi32(load_bytes(&PLACES[i % EIGHT]), _mm512_castps_si512(own)))
}

/// Which lanes of eight rows of each tile are those of the first, the second, and so on.
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
