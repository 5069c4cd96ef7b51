//! The activation layout `Bf16Tiles`: bfloat16 numbers in tiles.
//!
//! In: columns in single precision. Out: tiles of sixteen columns by 32 elements, all tiles of sixteen columns one
//! after another; elements past the end are zeros. With two parts, `x = first + second`: the tiles of the second part,
//! the rounding error of the first, follow those of the first.

use std::arch::x86_64::{
    __m512i, _mm512_add_epi32, _mm512_and_si512, _mm512_castps_si512, _mm512_castsi512_ps, _mm512_or_si512,
    _mm512_permutex2var_epi16, _mm512_set1_epi32, _mm512_srli_epi32, _mm512_sub_ps,
};

use crate::avx512::amx::Tile;
use crate::avx512::vector::{V, load, load_bytes, store_bytes};
use crate::layout::int14_rows::padded;
use crate::view::Bf16View;

/// Elements of a line of a tile.
pub(crate) const STEP: usize = 32;

/// Columns of a tile.
pub(crate) const LINES: usize = 16;

/// Tiles of columns of `P` parts.
#[derive(Clone, Copy)]
pub(crate) struct Vectors<'a, const P: usize> {
    tiles: &'a [Tile],
    n_steps: usize,
}

impl<'a, const P: usize> Vectors<'a, P> {
    /// The tiles of columns of `k` elements.
    pub(crate) fn new(bytes: &'a [u8], k: usize) -> Self {
        Self { tiles: bytes.as_chunks().0.as_chunks().0, n_steps: k.div_ceil(STEP) }
    }

    /// Some steps of one part of sixteen columns.
    #[inline(always)]
    pub(crate) fn steps(&self, sixteen: usize, part: usize, (from, n): (usize, usize)) -> &'a [Tile] {
        &self.tiles[(sixteen * P + part) * self.n_steps + from..][..n]
    }
}

#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(crate) fn convert(job: &mut Bf16View<'_>) {
    let k = job.k;
    let n_steps = k.div_ceil(STEP);
    let tiles: &mut [Tile] = job.out.as_chunks_mut().0.as_chunks_mut().0;
    for c in 0..job.n_cols {
        let x = &job.x[c * job.x_col..][..4 * k];
        let at = c / LINES * job.n_parts * n_steps;
        for step in 0..n_steps {
            let (halves, rests) = split(loaded(&x[4 * STEP * step..]));
            store_bytes(joined(halves), &mut tiles[at + step][c % LINES]);
            if job.n_parts == 2 {
                store_bytes(joined(split(rests).0), &mut tiles[at + n_steps + step][c % LINES]);
            }
        }
    }
}

/// The next 32 numbers, padded with zeros.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(crate) fn loaded(x: &[u8]) -> [V; 2] {
    let mut room = [0; 128];
    let (two, _) = padded(x, &mut room).as_chunks();
    [load(&two[0]), load(&two[1])]
}

/// Numbers rounded to bfloat16, in the upper halves of words, and their rounding errors.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(crate) fn split(numbers: [V; 2]) -> ([__m512i; 2], [V; 2]) {
    let (mut halves, mut rests) = ([_mm512_castps_si512(numbers[0]); 2], numbers);
    for i in 0..2 {
        let raised = _mm512_add_epi32(_mm512_castps_si512(numbers[i]), _mm512_set1_epi32(0x8000));
        halves[i] = _mm512_and_si512(raised, _mm512_set1_epi32(0xffff_0000_u32.cast_signed()));
        rests[i] = _mm512_sub_ps(numbers[i], _mm512_castsi512_ps(halves[i]));
    }
    (halves, rests)
}

/// The upper halves of the words of two vectors, one vector after the other.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(crate) fn joined(halves: [__m512i; 2]) -> __m512i {
    const PLACES: [u8; 64] = {
        let mut out = [0; 64];
        let mut i = 0;
        while i < 32 {
            out[2 * i] = (2 * i + 1) as u8;
            i += 1;
        }
        out
    };
    _mm512_permutex2var_epi16(halves[0], load_bytes(&PLACES), halves[1])
}

/// The upper halves of the words of two vectors, side by side in each word.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(crate) fn paired(halves: [__m512i; 2]) -> __m512i {
    _mm512_or_si512(_mm512_srli_epi32::<16>(halves[0]), halves[1])
}
