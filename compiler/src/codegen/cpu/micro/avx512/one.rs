//! A vector of 8-bit numbers with rows of quantised weights.
//!
//! In: rows and a vector that `sixteens.rs` has rounded. Out: their products. Rows go one after another: memory comes
//! fastest in one stream.
//! `vpdpbusd` and `vpmaddubsw` multiply numbers without sign by numbers with one, so weights are moved up; what this
//! adds is taken off again by the sums of the vector, which are known. Small blocks are scaled in single precision,
//! large ones as whole numbers of 16 bits, which takes fewer instructions.

use std::arch::x86_64::{
    __m128, __m512i, _mm_castsi128_ps, _mm_cvtph_ps, _mm_cvtsi32_si128, _mm_fmadd_ps, _mm_maskz_mov_ps,
    _mm_mul_ps, _mm_set1_ps, _mm_setzero_ps, _mm_setzero_si128, _mm256_castps128_ps256, _mm256_castsi256_ps,
    _mm256_cvtph_ps, _mm256_insertf128_ps, _mm256_mul_ps, _mm256_set_m128i, _mm512_broadcast_i32x4,
    _mm512_broadcastss_ps, _mm512_castps256_ps512, _mm512_castsi256_si512, _mm512_castsi512_si128,
    _mm512_cvtepi32_ps, _mm512_dpbusd_epi32, _mm512_inserti64x4, _mm512_madd_epi16, _mm512_maskz_mov_ps,
    _mm512_mul_ps, _mm512_mulhi_epi16, _mm512_mullo_epi16, _mm512_packs_epi32, _mm512_permutex2var_ps,
    _mm512_permutexvar_epi16, _mm512_permutexvar_epi32, _mm512_setzero_si512, _mm512_shuffle_epi8,
    _mm512_sub_ps, _mm512_unpackhi_epi8, _mm512_unpackhi_epi16, _mm512_unpacklo_epi8, _mm512_unpacklo_epi16,
    _mm512_zextps128_ps512,
};
use std::slice::from_ref;

use bytemuck::cast_ref;

use crate::codegen::cpu::micro::GROUP;
use crate::codegen::cpu::micro::asking::ask_ahead;
use crate::codegen::cpu::micro::avx512::fours::{
    Order, alternate, factors, factors_of_units, four, moved, offsets_of_units, order, six_bits_of_four,
};
use crate::codegen::cpu::micro::avx512::sixteens::{Large, Sixteens};
use crate::codegen::cpu::micro::avx512::tail::{FOUR, last_row, last_units};
use crate::codegen::cpu::micro::avx512::vector::{
    V, add, add_dot, chosen, fma, load, load_bytes, load_half, load_quarter, splat, totals, zero,
};
use crate::codegen::cpu::micro::room::Room;
use crate::codegen::cpu::micro::unpack::{Blocks, Storage};
use crate::codegen::cpu::micro::view::ProductView;

/// Rows whose sums are added up together.
const ROWS: usize = 4;

/// Each vector with all rows, `B` bytes of a row at a time.
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn one<const S: usize, const B: usize>(job: &ProductView<'_>) {
    for c in 0..job.n_cols {
        column::<S, B>(job, c);
    }
}

/// Vector `c` with all rows.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn column<const S: usize, const B: usize>(job: &ProductView<'_>, c: usize) {
    let storage = const { Storage::ALL[S] };
    let x = &Sixteens::new(job.x.get(c), job.k);
    let n_last = job.k / GROUP % FOUR;
    for r in (0..job.n_rows).step_by(ROWS) {
        let n = ROWS.min(job.n_rows - r);
        let mut sums = [zero(); ROWS];
        for i in 0..n {
            let (row, memory) = (&job.w.row(r + i), job.w.from_row(r + i));
            sums[i] = match (storage, order(storage)) {
                (Storage::Q6K, _) => sixes::<B>(row, x),
                (Storage::Q4K | Storage::Q5K, _) => large::<S, B>(row, x),
                (_, Order::Halves) => nibbles::<S, B>(row, memory, x, n_last),
                (_, Order::Straight) => bytes::<S, B>(row, memory, x, n_last),
            };
        }
        job.out.add_down(r, c, &totals(sums)[..n]);
    }
}

/// A row of small blocks of bytes, four at a time; `n_last` of the last unit are its own, if it is not whole. `memory`
/// begins with the row.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn bytes<const S: usize, const B: usize>(
    row: &Blocks<'_>,
    memory: &[u8],
    x: &Sixteens<'_>,
    n_last: usize,
) -> V {
    let units = row.bytes.as_chunks::<B>().0;
    let n = units.len() + usize::from(n_last > 0);
    let (numbers, totals) = (pieces::<128>(x.numbers, n), pieces::<16>(x.sums, n));
    let (even, odd) = (pieces::<16>(x.even, n), pieces::<16>(x.odd, n));
    let mut sums = Sums { products: [zero(); 2], others: _mm_setzero_ps() };
    for (at, unit) in units.iter().enumerate() {
        ask_ahead(unit);
        let own = factors::<S>(unit, row, at);
        let scales = [&even[at], &odd[at], &totals[at]];
        sums = add_bytes::<S, B, 2>(sums, (unit, own), &numbers[at], scales);
    }
    if n_last > 0 {
        ask_ahead(&row.bytes[B * units.len()..]);
        let (at, mut room, mut scales) = (n - 1, Room::new(), [[0; 4]; FOUR]);
        let [unit] = last_units::<B, 1>(row, memory, at, &mut room);
        let own = factors::<S>(unit, &last_row(unit, row, at, &mut scales), 0);
        let own = _mm_maskz_mov_ps((1 << n_last) - 1, own);
        let scales = [&even[at], &odd[at], &totals[at]];
        sums = if n_last <= FOUR / 2 {
            add_bytes::<S, B, 1>(sums, (unit, own), &numbers[at], scales)
        } else {
            add_bytes::<S, B, 2>(sums, (unit, own), &numbers[at], scales)
        };
    }
    let Sums { products, others } = sums;
    let factor = splat(-f32::from(moved(const { Storage::ALL[S] })));
    fma(_mm512_zextps128_ps512(others), factor, add(products[0], products[1]))
}

/// Sums of products, and of what multiplies the sums of the vector.
#[derive(Clone, Copy)]
struct Sums {
    products: [V; 2],
    others: __m128,
}

/// Adds the products of a unit of bytes, or of its first half if `N` is one, with numbers that have scales, those of
/// even eights and of odd ones, and sums. Blocks have their own factors.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn add_bytes<const S: usize, const B: usize, const N: usize>(
    sums: Sums,
    (unit, own): (&[u8; B], __m128),
    numbers: &[u8; 128],
    [even, odd, totals]: [&[u8; 16]; 3],
) -> Sums {
    let Sums { mut products, others } = sums;
    let others = _mm_fmadd_ps(own, quarter(totals), others);
    let (even, odd) = (_mm_mul_ps(own, quarter(even)), _mm_mul_ps(own, quarter(odd)));
    let both = _mm256_insertf128_ps::<1>(_mm256_castps128_ps256(even), odd);
    let both = _mm512_castps256_ps512(both);
    for (i, w) in four::<S>(unit, 0).into_iter().enumerate().take(N) {
        let dots = _mm512_dpbusd_epi32(_mm512_setzero_si512(), w, load_bytes(&numbers.as_chunks().0[i]));
        products[i] = fma(_mm512_cvtepi32_ps(dots), chosen(both, &TWOS[i]), products[i]);
    }
    Sums { products, others }
}

/// A row of small blocks of nibbles, four units at a time, which share what is done to scales; `n_last` blocks of the
/// last unit are its own, if it is not whole. `memory` begins with the row.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn nibbles<const S: usize, const B: usize>(
    row: &Blocks<'_>,
    memory: &[u8],
    x: &Sixteens<'_>,
    n_last: usize,
) -> V {
    let storage = const { Storage::ALL[S] };
    let units = row.bytes.as_chunks::<B>().0;
    let numbers = pieces::<128>(x.halves, units.len() + usize::from(n_last > 0));
    let (fours, ones) = units.as_chunks::<4>();
    let n = fours.len();
    let (four_numbers, one_numbers) = (numbers[..4 * n].as_chunks::<4>().0, &numbers[4 * n..]);
    let (even, odd, totals) = (pieces::<64>(x.even, n), pieces::<64>(x.odd, n), pieces::<64>(x.sums, n));
    let mut sums = NibbleSums { products: [zero(); 2], others: zero() };
    for (at, units) in fours.iter().enumerate() {
        ask_ahead(units.as_flattened());
        let scales = [load(&even[at]), load(&odd[at]), load(&totals[at])];
        sums = add_units::<S, B, 4>(sums, units, &four_numbers[at], scales, u16::MAX);
    }
    ask_ahead(&row.bytes[4 * B * n..]);
    if n_last == 0 {
        for (i, (unit, numbers)) in ones.iter().zip(one_numbers).enumerate() {
            let scales = [x.even, x.odd, x.sums];
            let scales = scales.map(|all| _mm512_zextps128_ps512(quarter(&all.as_chunks().0[4 * n + i])));
            let (unit, numbers) =
                (from_ref(unit).as_array().expect("one"), from_ref(numbers).as_array().expect("one"));
            sums = add_units::<S, B, 1>(sums, unit, numbers, scales, u16::MAX);
        }
    } else {
        sums = match ones.len() {
            0 => add_last::<S, B, 1>(sums, row, memory, x, n_last),
            1 => add_last::<S, B, 2>(sums, row, memory, x, n_last),
            2 => add_last::<S, B, 3>(sums, row, memory, x, n_last),
            _ => add_last::<S, B, 4>(sums, row, memory, x, n_last),
        };
    }
    let NibbleSums { products, others } = sums;
    let factor = splat(if storage.has_offsets() { 1.0 } else { -f32::from(moved(storage)) });
    fma(others, factor, add(products[0], products[1]))
}

/// Adds the products of the last `N` units of a row of nibbles, of which the last has `n_last` blocks.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn add_last<const S: usize, const B: usize, const N: usize>(
    sums: NibbleSums,
    row: &Blocks<'_>,
    memory: &[u8],
    x: &Sixteens<'_>,
    n_last: usize,
) -> NibbleSums {
    let (at, mut room) = (row.bytes.len() / B / 4, Room::new());
    let units = last_units::<B, N>(row, memory, 4 * at, &mut room);
    let numbers = x.halves.as_chunks().0[4 * at..].first_chunk().expect("numbers for each unit");
    let mut scales = [zero(); 3];
    for (scales, all) in scales.iter_mut().zip([x.even, x.odd, x.sums]) {
        *scales = load(&all.as_chunks().0[at]);
    }
    let own = (1 << (FOUR * (N - 1) + n_last)) - 1;
    add_units::<S, B, N>(sums, units, numbers, scales, own)
}

/// Sums of products, and of what multiplies the sums of the vector.
#[derive(Clone, Copy)]
struct NibbleSums {
    products: [V; 2],
    others: V,
}

/// Adds the products of up to four units of nibbles, of which some blocks are their own; `scales` are those of even
/// eights and of odd ones, and sums. What weights are moved up by is an offset as well.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn add_units<const S: usize, const B: usize, const N: usize>(
    sums: NibbleSums,
    units: &[[u8; B]; N],
    numbers: &[[u8; 128]; N],
    [even, odd, totals]: [V; 3],
    are_own: u16,
) -> NibbleSums {
    let NibbleSums { mut products, others } = sums;
    let own = _mm512_maskz_mov_ps(are_own, factors_of_units::<S, B, N>(units));
    let [even, odd] = [_mm512_mul_ps(own, even), _mm512_mul_ps(own, odd)];
    for i in 0..N {
        let (w, (x, _)) = (four::<S>(&units[i], 0), numbers[i].as_chunks());
        let first = _mm512_dpbusd_epi32(_mm512_setzero_si512(), w[0], load_bytes(&x[0]));
        let both = _mm512_dpbusd_epi32(first, w[1], load_bytes(&x[1]));
        let factors = _mm512_permutex2var_ps(even, load_bytes(&FOURS[i]), odd);
        products[i % 2] = fma(_mm512_cvtepi32_ps(both), factors, products[i % 2]);
    }
    let offsets = if const { Storage::ALL[S].has_offsets() } {
        _mm512_maskz_mov_ps(are_own, offsets_of_units::<S, B, N>(units))
    } else {
        own
    };
    NibbleSums { products, others: fma(offsets, totals, others) }
}

/// A row of large blocks of four or five bits, four units at a time, which share what is done to scales.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn large<const S: usize, const B: usize>(row: &Blocks<'_>, x: &Sixteens<'_>) -> V {
    let (fours, rest) = row.bytes.as_chunks::<B>().0.as_chunks::<4>();
    let mut sums = [zero(); 2];
    for (units, x) in fours.iter().zip(&x.larges[..fours.len()]) {
        add_larges::<S, B>(units, x, &mut sums);
    }
    if !rest.is_empty() {
        add_larges::<S, B>(rest, &x.larges[fours.len()], &mut sums);
    }
    _mm512_sub_ps(sums[0], sums[1])
}

/// Adds the products of up to four units, and their offsets times the sums of the vector.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn add_larges<const S: usize, const B: usize>(units: &[[u8; B]], x: &Large, [sums, others]: &mut [V; 2]) {
    let mut heads = [_mm_setzero_si128(); 4];
    for (head, unit) in heads.iter_mut().zip(units) {
        *head = load_quarter(unit.first_chunk().expect("16 bytes"));
    }
    let [low, high] = [_mm256_set_m128i(heads[1], heads[0]), _mm256_set_m128i(heads[3], heads[2])];
    let heads = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high);
    // Of each block what multiplies its scales, and what multiplies its offsets, times the vector's unit.
    let firsts = _mm512_castsi512_si128(_mm512_permutexvar_epi32(load_bytes(&HEADS), heads));
    let own = _mm256_mul_ps(_mm256_cvtph_ps(firsts), _mm256_castsi256_ps(load_half(cast_ref(&x.units))));
    let own = _mm512_castps256_ps512(own);

    let (six, nothing) = (six_bits_of_four(heads), _mm512_setzero_si512());
    let steps = [load_bytes(&x.even_steps), load_bytes(&x.odd_steps)];
    // Offsets meet the sums of even eights and of odd ones.
    let offsets = _mm512_unpackhi_epi8(six, nothing);
    let offsets = [_mm512_mullo_epi16(offsets, steps[0]), _mm512_mullo_epi16(offsets, steps[1])];
    let total = _mm512_madd_epi16(offsets[0], load_bytes(&x.even_sums));
    let total = add_dot(total, offsets[1], load_bytes(&x.odd_sums));
    *others = fma(_mm512_cvtepi32_ps(total), chosen(own, &LEAST), *others);

    // Scales become two for each group, of even eights and of odd ones.
    let scales = _mm512_unpacklo_epi8(six, nothing);
    let [even, odd] = [_mm512_mullo_epi16(scales, steps[0]), _mm512_mullo_epi16(scales, steps[1])];
    let scales = [_mm512_unpacklo_epi16(even, odd), _mm512_unpackhi_epi16(even, odd)];
    for (i, (unit, x)) in units.iter().zip(&x.blocks).enumerate() {
        ask_ahead(unit);
        let mut dots = nothing;
        for (half, x) in x.numbers.as_chunks::<2>().0.iter().enumerate() {
            let scales = _mm512_permutexvar_epi16(load_bytes(&GROUPS[i]), scales[half]);
            dots = add_dot(dots, packed(alternate::<S>(unit, half), x), scales);
        }
        *sums = fma(_mm512_cvtepi32_ps(dots), chosen(own, &OWN[i]), *sums);
    }
}

/// A row of large blocks of six bits.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn sixes<const B: usize>(row: &Blocks<'_>, x: &Sixteens<'_>) -> V {
    let units = row.bytes.as_chunks::<B>().0;
    let numbers = pieces::<256>(x.numbers, units.len());
    let blocks = x.larges.iter().flat_map(|large| large.blocks.iter().zip(&large.units));
    let mut sums = zero();
    for ((unit, numbers), (block, [own, _])) in units.iter().zip(numbers).zip(blocks) {
        ask_ahead(unit);
        let unit: &[u8; 210] = unit.as_array().expect("a block");
        let scales = _mm512_broadcast_i32x4(load_quarter(unit[192..208].as_array().expect("16 bytes")));
        let mut dots = _mm512_setzero_si512();
        for (half, x) in numbers.as_chunks::<64>().0.as_chunks::<2>().0.iter().enumerate() {
            let scales = _mm512_shuffle_epi8(scales, load_bytes(&SIXTEENS[half]));
            let scales = _mm512_mulhi_epi16(scales, load_bytes(&block.steps[half]));
            dots = add_dot(dots, scales, load_bytes(&block.moved[half]));
            dots = add_dot(dots, packed(four::<{ Storage::Q6K as usize }>(unit, half), x), scales);
        }
        let d = _mm_cvtph_ps(_mm_cvtsi32_si128(u16::from_le_bytes([unit[208], unit[209]]).into()));
        let d = _mm_mul_ps(d, _mm_set1_ps(f32::from_le_bytes(*own)));
        sums = fma(_mm512_cvtepi32_ps(dots), _mm512_broadcastss_ps(d), sums);
    }
    sums
}

/// What each four of 128 numbers give, as 16 bits: of each sixteen of the first 64 and then of the others.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn packed(w: [__m512i; 2], x: &[[u8; 64]; 2]) -> __m512i {
    let first = _mm512_dpbusd_epi32(_mm512_setzero_si512(), w[0], load_bytes(&x[0]));
    let second = _mm512_dpbusd_epi32(_mm512_setzero_si512(), w[1], load_bytes(&x[1]));
    _mm512_packs_epi32(first, second)
}

/// What belongs to each of so many units: slices of one length, so that it is checked once.
#[inline(always)]
pub(super) fn pieces<const L: usize>(of: &[u8], n: usize) -> &[[u8; L]] {
    &of.as_chunks::<L>().0[..n]
}

/// Where the factors of four groups of four lanes lie, those of odd eights in a second vector: of groups from the
/// `4 * i`-th on.
const FOURS: [[u8; 64]; 4] =
    [places(0, 4, 1, 16), places(4, 4, 1, 16), places(8, 4, 1, 16), places(12, 4, 1, 16)];

/// Where the factors of two groups of eight lanes lie, from the `2 * i`-th on.
const TWOS: [[u8; 64]; 2] = [places(0, 8, 1, 4), places(2, 8, 1, 4)];

/// Where the factors of four large blocks lie, two each: in the first word of each quarter. Then where the second one
/// of each lies for a quarter, and the first one of the `i`-th for all.
const HEADS: [u8; 64] = places(0, 1, 4, 0);
const LEAST: [u8; 64] = places(1, 4, 2, 0);
const OWN: [[u8; 64]; 4] =
    [places(0, 16, 0, 0), places(2, 16, 0, 0), places(4, 16, 0, 0), places(6, 16, 0, 0)];

/// Places for groups of so many lanes, from one on and so far apart; those of odd eights lie further on.
const fn places(first: usize, n_lanes: usize, step: usize, to_odd: usize) -> [u8; 64] {
    let mut out = [0; 64];
    let mut lane = 0;
    while lane < 16 {
        out[4 * lane] = (first + lane / n_lanes * step + lane / 2 % 2 * to_odd) as u8;
        lane += 1;
    }
    out
}

/// Where the factors of half of the `i`-th of four large blocks lie, as words: two for each group, of even and of odd
/// eights, in the order of [`packed`].
const GROUPS: [[u8; 64]; 4] = [groups(0), groups(1), groups(2), groups(3)];

const fn groups(block: usize) -> [u8; 64] {
    let mut out = [0; 64];
    let mut word = 0;
    while word < 32 {
        out[2 * word] = (8 * block + word / 16 * 4 + word % 8 / 2) as u8;
        word += 1;
    }
    out
}

/// Where the factors of each half of a large block lie, one for sixteen elements, in the same order: they become the
/// upper bytes of words.
const SIXTEENS: [[u8; 64]; 2] = [sixteens(0), sixteens(1)];

const fn sixteens(half: usize) -> [u8; 64] {
    // What has the highest bit becomes zero.
    let mut out = [0x80; 64];
    let mut word = 0;
    while word < 32 {
        out[2 * word + 1] = (8 * half + word / 8 + word % 8 / 4 * 4) as u8;
        word += 1;
    }
    out
}

#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn quarter(x: &[u8; 16]) -> __m128 {
    _mm_castsi128_ps(load_quarter(x))
}
