//! Quantised GEMV: rows of weights times one activation vector.
//!
//! In: rows and a vector in the layout of `quantise_gemv.rs`. Out: their products. Rows are read one after another:
//! memory bandwidth is highest with one stream. `vpdpbusd` and `vpmaddubsw` multiply unsigned by signed bytes, so
//! weights are unpacked with a zero point added; the product of the zero point and the activations' sums is subtracted
//! at the end. Blocks of 32 are scaled in single precision. K-quant blocks are scaled as 16-bit integers, which takes
//! fewer instructions.

use std::arch::x86_64::{
    __m128, __m512i, _mm_and_si128, _mm_castsi128_ps, _mm_cvtph_ps, _mm_cvtsi32_si128, _mm_fmadd_ps,
    _mm_maskz_mov_ps, _mm_movehdup_ps, _mm_mul_ps, _mm_mul_ss, _mm_set1_epi8, _mm_set1_ps, _mm_setzero_ps,
    _mm_setzero_si128, _mm_srli_epi16, _mm256_castps128_ps256, _mm256_castsi256_ps, _mm256_cvtph_ps,
    _mm256_fmadd_ps, _mm256_insertf128_ps, _mm256_mul_ps, _mm256_set_m128i, _mm256_setzero_ps,
    _mm512_broadcast_i32x4, _mm512_broadcastss_ps, _mm512_castps256_ps512, _mm512_castsi256_si512,
    _mm512_castsi512_si128, _mm512_cvtepi32_ps, _mm512_dpbusd_epi32, _mm512_inserti64x4, _mm512_madd_epi16,
    _mm512_maskz_mov_ps, _mm512_mul_ps, _mm512_mulhi_epi16, _mm512_mullo_epi16, _mm512_packs_epi32,
    _mm512_permutex2var_ps, _mm512_permutexvar_epi16, _mm512_permutexvar_epi32, _mm512_setzero_si512,
    _mm512_shuffle_epi8, _mm512_sub_ps, _mm512_unpackhi_epi8, _mm512_unpackhi_epi16, _mm512_unpacklo_epi8,
    _mm512_unpacklo_epi16, _mm512_zextps128_ps512, _mm512_zextps256_ps512,
};
use std::slice::from_ref;

use bytemuck::cast_ref;

use crate::abi::GROUP;
use crate::avx512::quantise::quantise_gemv::{GemvActivations, Large};
use crate::avx512::unpack::last_blocks::{FOUR, last_row, last_units};
use crate::avx512::unpack::unpack_blocks::{
    Order, block_scales, eight_scales, order, six_bits_of_four, sixteen_scales, unit_offsets, unit_scales,
    unpack_128, unpack_128_alternating, zero_point,
};
use crate::avx512::vector::{
    V, add, add_dot, fma, load, load_bytes, load_half, load_quarter, permute, splat, sum_each_of_4, zero,
};
use crate::layout::block_formats::{BlockRow, Storage};
use crate::prefetch::prefetch_stream;
use crate::stack_buffer::StackBuffer;
use crate::view::GemmView;

/// Rows whose accumulators are reduced together.
const ROWS: usize = 4;

/// A GEMV for each column; a unit of the format has `B` bytes.
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn gemv<const S: usize, const B: usize>(job: &GemmView<'_>) {
    for c in 0..job.n_cols {
        gemv_column::<S, B>(job, c);
    }
}

/// Column `c` with all rows.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn gemv_column<const S: usize, const B: usize>(job: &GemmView<'_>, c: usize) {
    let storage = const { Storage::ALL[S] };
    let x = &GemvActivations::new(job.x.get(c), job.k);
    let n_last = job.k / GROUP % FOUR;
    for r in (0..job.n_rows).step_by(ROWS) {
        let n = ROWS.min(job.n_rows - r);
        let mut sums = [zero(); ROWS];
        for i in 0..n {
            let (row, memory) = (&job.w.row(r + i), job.w.rows_from(r + i));
            sums[i] = match (storage, order(storage)) {
                (Storage::Q2K, _) => row_of_q2_k::<B>(row, x),
                (Storage::Q3K | Storage::Q6K, _) => row_of_sixteenths::<S, B>(row, x),
                (Storage::IQ4XS, _) => row_of_iq4_xs::<B>(row, x),
                (Storage::Q4K | Storage::Q5K, _) => row_of_k_blocks::<S, B>(row, x),
                (_, Order::SplitHalves) => row_of_nibbles::<S, B>(row, memory, x, n_last),
                (_, Order::Sequential) => row_of_bytes::<S, B>(row, memory, x, n_last),
            };
        }
        job.out.add_down(r, c, &sum_each_of_4(sums)[..n]);
    }
}

/// A row of a format of bytes (`Q8_0`, Int8): four blocks of 32 at a time. `n_last` blocks of the last unit belong to
/// the row, unless it is whole; `memory` starts with the row.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn row_of_bytes<const S: usize, const B: usize>(
    row: &BlockRow<'_>,
    memory: &[u8],
    x: &GemvActivations<'_>,
    n_last: usize,
) -> V {
    let units = row.bytes.as_chunks::<B>().0;
    let n = units.len() + usize::from(n_last > 0);
    let (numbers, totals) = (pieces::<128>(x.numbers, n), pieces::<16>(x.sums, n));
    let (even, odd) = (pieces::<16>(x.even, n), pieces::<16>(x.odd, n));
    let mut sums = Sums { products: [zero(); 2], corrections: _mm_setzero_ps() };
    for (at, unit) in units.iter().enumerate() {
        prefetch_stream(unit);
        let own = block_scales::<S>(unit, row, at);
        let scales = [&even[at], &odd[at], &totals[at]];
        sums = add_bytes::<S, B, 2>(sums, (unit, own), &numbers[at], scales);
    }
    if n_last > 0 {
        prefetch_stream(&row.bytes[B * units.len()..]);
        let (at, mut buffer, mut scales) = (n - 1, StackBuffer::new(), [[0; 4]; FOUR]);
        let [unit] = last_units::<B, 1>(row, memory, at, &mut buffer);
        let own = block_scales::<S>(unit, &last_row(unit, row, at, &mut scales), 0);
        let own = _mm_maskz_mov_ps((1 << n_last) - 1, own);
        let scales = [&even[at], &odd[at], &totals[at]];
        sums = if n_last <= FOUR / 2 {
            add_bytes::<S, B, 1>(sums, (unit, own), &numbers[at], scales)
        } else {
            add_bytes::<S, B, 2>(sums, (unit, own), &numbers[at], scales)
        };
    }
    let Sums { products, corrections } = sums;
    let factor = splat(-f32::from(zero_point(const { Storage::ALL[S] })));
    fma(_mm512_zextps128_ps512(corrections), factor, add(products[0], products[1]))
}

/// Accumulators: of products, and of scales times the activations' sums, which correct for the zero point.
#[derive(Clone, Copy)]
struct Sums {
    products: [V; 2],
    corrections: __m128,
}

/// Adds the products of a unit of bytes, or of its first half if `N` is one, with activations. `own` are the scales of
/// the blocks; activations have two scales for each group, for even and odd runs of eight, and a sum.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn add_bytes<const S: usize, const B: usize, const N: usize>(
    sums: Sums,
    (unit, own): (&[u8; B], __m128),
    numbers: &[u8; 128],
    [even, odd, totals]: [&[u8; 16]; 3],
) -> Sums {
    let Sums { mut products, corrections } = sums;
    let corrections = _mm_fmadd_ps(own, quarter(totals), corrections);
    let (even, odd) = (_mm_mul_ps(own, quarter(even)), _mm_mul_ps(own, quarter(odd)));
    let both = _mm256_insertf128_ps::<1>(_mm256_castps128_ps256(even), odd);
    let both = _mm512_castps256_ps512(both);
    for (i, w) in unpack_128::<S>(unit, 0).into_iter().enumerate().take(N) {
        let dots = _mm512_dpbusd_epi32(_mm512_setzero_si512(), w, load_bytes(&numbers.as_chunks().0[i]));
        products[i] = fma(_mm512_cvtepi32_ps(dots), permute(both, &LANES_OF_TWO_GROUPS[i]), products[i]);
    }
    Sums { products, corrections }
}

/// A row of a format of 4 or 5 bits: four units (512 elements) at a time share the arithmetic of scales. `n_last`
/// blocks of the last unit belong to the row, unless it is whole; `memory` starts with the row.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn row_of_nibbles<const S: usize, const B: usize>(
    row: &BlockRow<'_>,
    memory: &[u8],
    x: &GemvActivations<'_>,
    n_last: usize,
) -> V {
    let storage = const { Storage::ALL[S] };
    let units = row.bytes.as_chunks::<B>().0;
    let numbers = pieces::<128>(x.halves, units.len() + usize::from(n_last > 0));
    let (fours, ones) = units.as_chunks::<4>();
    let n = fours.len();
    let (four_numbers, one_numbers) = (numbers[..4 * n].as_chunks::<4>().0, &numbers[4 * n..]);
    let (even, odd, totals) = (pieces::<64>(x.even, n), pieces::<64>(x.odd, n), pieces::<64>(x.sums, n));
    let mut sums = NibbleSums { products: [zero(); 2], corrections: zero() };
    for (at, units) in fours.iter().enumerate() {
        prefetch_stream(units.as_flattened());
        let scales = [load(&even[at]), load(&odd[at]), load(&totals[at])];
        sums = add_units::<S, B, 4>(sums, units, &four_numbers[at], scales, u16::MAX);
    }
    prefetch_stream(&row.bytes[4 * B * n..]);
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
            0 => add_last_units::<S, B, 1>(sums, row, memory, x, n_last),
            1 => add_last_units::<S, B, 2>(sums, row, memory, x, n_last),
            2 => add_last_units::<S, B, 3>(sums, row, memory, x, n_last),
            _ => add_last_units::<S, B, 4>(sums, row, memory, x, n_last),
        };
    }
    let NibbleSums { products, corrections } = sums;
    let factor = splat(if storage.has_offsets() { 1.0 } else { -f32::from(zero_point(storage)) });
    fma(corrections, factor, add(products[0], products[1]))
}

/// Adds the products of the last `N` units of a row of nibbles, of which the last has `n_last` blocks.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn add_last_units<const S: usize, const B: usize, const N: usize>(
    sums: NibbleSums,
    row: &BlockRow<'_>,
    memory: &[u8],
    x: &GemvActivations<'_>,
    n_last: usize,
) -> NibbleSums {
    let (at, mut buffer) = (row.bytes.len() / B / 4, StackBuffer::new());
    let units = last_units::<B, N>(row, memory, 4 * at, &mut buffer);
    let numbers = x.halves.as_chunks().0[4 * at..].first_chunk().expect("numbers for each unit");
    let mut scales = [zero(); 3];
    for (scales, all) in scales.iter_mut().zip([x.even, x.odd, x.sums]) {
        *scales = load(&all.as_chunks().0[at]);
    }
    let own = (1 << (FOUR * (N - 1) + n_last)) - 1;
    add_units::<S, B, N>(sums, units, numbers, scales, own)
}

/// Accumulators: of products, and of scales times the activations' sums, which correct for the zero point.
#[derive(Clone, Copy)]
struct NibbleSums {
    products: [V; 2],
    corrections: V,
}

/// Adds the products of up to four units of nibbles, of which the mask `own_blocks` selects the blocks that count.
/// Activations have two scales for each group, for even and odd runs of eight, and a sum. A zero point is an offset,
/// too.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn add_units<const S: usize, const B: usize, const N: usize>(
    sums: NibbleSums,
    units: &[[u8; B]; N],
    numbers: &[[u8; 128]; N],
    [even, odd, totals]: [V; 3],
    own_blocks: u16,
) -> NibbleSums {
    let NibbleSums { mut products, corrections } = sums;
    let own = _mm512_maskz_mov_ps(own_blocks, unit_scales::<S, B, N>(units));
    let [even, odd] = [_mm512_mul_ps(own, even), _mm512_mul_ps(own, odd)];
    for i in 0..N {
        let (w, (x, _)) = (unpack_128::<S>(&units[i], 0), numbers[i].as_chunks());
        let first = _mm512_dpbusd_epi32(_mm512_setzero_si512(), w[0], load_bytes(&x[0]));
        let both = _mm512_dpbusd_epi32(first, w[1], load_bytes(&x[1]));
        let factors = _mm512_permutex2var_ps(even, load_bytes(&LANES_OF_FOUR_GROUPS[i]), odd);
        products[i % 2] = fma(_mm512_cvtepi32_ps(both), factors, products[i % 2]);
    }
    let offsets = if const { Storage::ALL[S].has_offsets() } {
        _mm512_maskz_mov_ps(own_blocks, unit_offsets::<S, B, N>(units))
    } else {
        own
    };
    NibbleSums { products, corrections: fma(offsets, totals, corrections) }
}

/// A row of `Q4_K` or `Q5_K`: four blocks (1024 elements) at a time share the arithmetic of scales.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn row_of_k_blocks<const S: usize, const B: usize>(row: &BlockRow<'_>, x: &GemvActivations<'_>) -> V {
    let (fours, rest) = row.bytes.as_chunks::<B>().0.as_chunks::<4>();
    let mut sums = [zero(); 2];
    for (units, x) in fours.iter().zip(&x.larges[..fours.len()]) {
        add_k_blocks::<S, B>(units, x, &mut sums);
    }
    if !rest.is_empty() {
        add_k_blocks::<S, B>(rest, &x.larges[fours.len()], &mut sums);
    }
    _mm512_sub_ps(sums[0], sums[1])
}

/// Adds the products of up to four blocks, and their offsets times the activations' sums.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn add_k_blocks<const S: usize, const B: usize>(
    units: &[[u8; B]],
    x: &Large,
    [sums, corrections]: &mut [V; 2],
) {
    let mut heads = [_mm_setzero_si128(); 4];
    for (head, unit) in heads.iter_mut().zip(units) {
        *head = load_quarter(unit.first_chunk().expect("16 bytes"));
    }
    let [low, high] = [_mm256_set_m128i(heads[1], heads[0]), _mm256_set_m128i(heads[3], heads[2])];
    let heads = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high);
    // `d` and `dmin` of each block, times the unit of the activations' scales.
    let firsts = _mm512_castsi512_si128(_mm512_permutexvar_epi32(load_bytes(&HEAD_LANES), heads));
    let own = _mm256_mul_ps(_mm256_cvtph_ps(firsts), _mm256_castsi256_ps(load_half(cast_ref(&x.units))));
    let own = _mm512_castps256_ps512(own);

    let (six, nothing) = (six_bits_of_four(heads), _mm512_setzero_si512());
    let steps = [load_bytes(&x.even_steps), load_bytes(&x.odd_steps)];
    // Offsets times the sums of even and of odd runs of eight.
    let offsets = _mm512_unpackhi_epi8(six, nothing);
    let offsets = [_mm512_mullo_epi16(offsets, steps[0]), _mm512_mullo_epi16(offsets, steps[1])];
    let total = _mm512_madd_epi16(offsets[0], load_bytes(&x.even_sums));
    let total = add_dot(total, offsets[1], load_bytes(&x.odd_sums));
    *corrections = fma(_mm512_cvtepi32_ps(total), permute(own, &OFFSET_SCALE_LANES), *corrections);

    // Two scales for each group: for even and for odd runs of eight.
    let scales = _mm512_unpacklo_epi8(six, nothing);
    let [even, odd] = [_mm512_mullo_epi16(scales, steps[0]), _mm512_mullo_epi16(scales, steps[1])];
    let scales = [_mm512_unpacklo_epi16(even, odd), _mm512_unpackhi_epi16(even, odd)];
    for (i, (unit, x)) in units.iter().zip(&x.blocks).enumerate() {
        prefetch_stream(unit);
        let mut dots = nothing;
        for (half, x) in x.numbers.as_chunks::<2>().0.iter().enumerate() {
            let scales = _mm512_permutexvar_epi16(load_bytes(&GROUP_SCALE_WORDS[i]), scales[half]);
            dots = add_dot(dots, dot_16_bits(unpack_128_alternating::<S>(unit, half), x), scales);
        }
        *sums = fma(_mm512_cvtepi32_ps(dots), permute(own, &SCALE_LANES[i]), *sums);
    }
}

/// A row of `Q3_K` or `Q6_K`.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn row_of_sixteenths<const S: usize, const B: usize>(row: &BlockRow<'_>, x: &GemvActivations<'_>) -> V {
    let units = row.bytes.as_chunks::<B>().0;
    let numbers = pieces::<256>(x.numbers, units.len());
    let blocks =
        x.larges.iter().flat_map(|row_of_k_blocks| row_of_k_blocks.blocks.iter().zip(&row_of_k_blocks.units));
    let mut sums = zero();
    for ((unit, numbers), (block, [own, _])) in units.iter().zip(numbers).zip(blocks) {
        prefetch_stream(unit);
        let (scales, d) = sixteen_scales::<S>(unit);
        let scales = _mm512_broadcast_i32x4(scales);
        let mut dots = _mm512_setzero_si512();
        for (half, x) in numbers.as_chunks::<64>().0.as_chunks::<2>().0.iter().enumerate() {
            let scales = _mm512_shuffle_epi8(scales, load_bytes(&SIXTEENTH_SCALE_BYTES[half]));
            let scales = _mm512_mulhi_epi16(scales, load_bytes(&block.steps[half]));
            dots = add_dot(dots, scales, load_bytes(&block.moved[half]));
            dots = add_dot(dots, dot_16_bits(unpack_128::<S>(unit, half), x), scales);
        }
        let d = _mm_cvtph_ps(_mm_cvtsi32_si128(d.into()));
        let d = _mm_mul_ps(d, _mm_set1_ps(f32::from_le_bytes(*own)));
        sums = fma(_mm512_cvtepi32_ps(dots), _mm512_broadcastss_ps(d), sums);
    }
    sums
}

/// A row of `Q2_K`: scales multiply dot products, offsets multiply the sums that cancel a zero point of 32.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn row_of_q2_k<const B: usize>(row: &BlockRow<'_>, x: &GemvActivations<'_>) -> V {
    let units = row.bytes.as_chunks::<B>().0;
    let numbers = pieces::<256>(x.numbers, units.len());
    let blocks =
        x.larges.iter().flat_map(|row_of_k_blocks| row_of_k_blocks.blocks.iter().zip(&row_of_k_blocks.units));
    let mut sums = [zero(); 2];
    for ((unit, numbers), (block, [own, _])) in units.iter().zip(numbers).zip(blocks) {
        prefetch_stream(unit);
        let unit: &[u8; 84] = unit.as_array().expect("a block");
        let both = load_quarter(unit[..16].as_array().expect("16 bytes"));
        let four_bits = _mm_set1_epi8(15);
        let scales = _mm512_broadcast_i32x4(_mm_and_si128(both, four_bits));
        let offsets = _mm512_broadcast_i32x4(_mm_and_si128(_mm_srli_epi16::<4>(both), four_bits));
        let (mut dots, mut taken_off) = (_mm512_setzero_si512(), _mm512_setzero_si512());
        for (half, x) in numbers.as_chunks::<64>().0.as_chunks::<2>().0.iter().enumerate() {
            let places = load_bytes(&SIXTEENTH_SCALE_BYTES[half]);
            let steps = load_bytes(&block.steps[half]);
            let scales = _mm512_mulhi_epi16(_mm512_shuffle_epi8(scales, places), steps);
            let offsets = _mm512_mulhi_epi16(_mm512_shuffle_epi8(offsets, places), steps);
            taken_off = add_dot(taken_off, offsets, load_bytes(&block.moved[half]));
            let w = unpack_128::<{ Storage::Q2K as usize }>(unit, half);
            dots = add_dot(dots, dot_16_bits(w, x), scales);
        }
        let factors =
            _mm_cvtph_ps(_mm_cvtsi32_si128(i32::from_le_bytes([unit[80], unit[81], unit[82], unit[83]])));
        let factors = _mm_mul_ps(factors, _mm_set1_ps(f32::from_le_bytes(*own)));
        let offset = _mm_mul_ss(_mm_movehdup_ps(factors), _mm_set1_ps(1.0 / 32.0));
        sums[0] = fma(_mm512_cvtepi32_ps(dots), _mm512_broadcastss_ps(factors), sums[0]);
        sums[1] = fma(_mm512_cvtepi32_ps(taken_off), _mm512_broadcastss_ps(offset), sums[1]);
    }
    add(sums[0], sums[1])
}

/// A row of `IQ4_XS`.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn row_of_iq4_xs<const B: usize>(row: &BlockRow<'_>, x: &GemvActivations<'_>) -> V {
    let units = row.bytes.as_chunks::<B>().0;
    let n = units.len();
    let numbers = pieces::<256>(x.halves, n);
    let (even, odd, totals) = (pieces::<32>(x.even, n), pieces::<32>(x.odd, n), pieces::<32>(x.sums, n));
    let (mut products, mut corrections) = ([zero(); 2], _mm256_setzero_ps());
    for (at, (unit, numbers)) in units.iter().zip(numbers).enumerate() {
        prefetch_stream(unit);
        let own = eight_scales(unit);
        let eight = |of: &[u8; 32]| _mm256_castsi256_ps(load_half(of));
        corrections = _mm256_fmadd_ps(own, eight(&totals[at]), corrections);
        let [even, odd] = [eight(&even[at]), eight(&odd[at])];
        let even = _mm512_castps256_ps512(_mm256_mul_ps(own, even));
        let odd = _mm512_castps256_ps512(_mm256_mul_ps(own, odd));
        for (half, x) in numbers.as_chunks::<64>().0.as_chunks::<2>().0.iter().enumerate() {
            let w = unpack_128::<{ Storage::IQ4XS as usize }>(unit, half);
            let first = _mm512_dpbusd_epi32(_mm512_setzero_si512(), w[0], load_bytes(&x[0]));
            let both = _mm512_dpbusd_epi32(first, w[1], load_bytes(&x[1]));
            let factors = _mm512_permutex2var_ps(even, load_bytes(&LANES_OF_FOUR_GROUPS[half]), odd);
            products[half] = fma(_mm512_cvtepi32_ps(both), factors, products[half]);
        }
    }
    let factor = splat(-f32::from(zero_point(Storage::IQ4XS)));
    fma(_mm512_zextps256_ps512(corrections), factor, add(products[0], products[1]))
}

/// Dot products of each four of 128 numbers, as 16 bits: of each sixteen of the first 64, then of the others.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn dot_16_bits(w: [__m512i; 2], x: &[[u8; 64]; 2]) -> __m512i {
    let first = _mm512_dpbusd_epi32(_mm512_setzero_si512(), w[0], load_bytes(&x[0]));
    let second = _mm512_dpbusd_epi32(_mm512_setzero_si512(), w[1], load_bytes(&x[1]));
    _mm512_packs_epi32(first, second)
}

/// `n` chunks of `L` bytes, one for each unit: with one length for all slices, bounds are checked once.
#[inline(always)]
pub(super) fn pieces<const L: usize>(of: &[u8], n: usize) -> &[[u8; L]] {
    &of.as_chunks::<L>().0[..n]
}

/// Shuffle indices of the scales of four groups of four lanes, from group `4 * i` on; scales of odd runs of eight are
/// in a second register.
const LANES_OF_FOUR_GROUPS: [[u8; 64]; 4] =
    [places(0, 4, 1, 16), places(4, 4, 1, 16), places(8, 4, 1, 16), places(12, 4, 1, 16)];

/// Shuffle indices of the scales of two groups of eight lanes, from group `2 * i` on.
const LANES_OF_TWO_GROUPS: [[u8; 64]; 2] = [places(0, 8, 1, 4), places(2, 8, 1, 4)];

/// Shuffle indices of `d` and `dmin` of four super-blocks: in the first word of each quarter; then of `dmin` of each
/// for a quarter of the lanes; then of `d` of the `i`-th for all lanes.
const HEAD_LANES: [u8; 64] = places(0, 1, 4, 0);
const OFFSET_SCALE_LANES: [u8; 64] = places(1, 4, 2, 0);
const SCALE_LANES: [[u8; 64]; 4] =
    [places(0, 16, 0, 0), places(2, 16, 0, 0), places(4, 16, 0, 0), places(6, 16, 0, 0)];

/// Shuffle indices for groups of `n_lanes` lanes, from index `first` on in steps; those of odd runs of eight are
/// `to_odd` later.
const fn places(first: usize, n_lanes: usize, step: usize, to_odd: usize) -> [u8; 64] {
    let mut out = [0; 64];
    let mut lane = 0;
    while lane < 16 {
        out[4 * lane] = (first + lane / n_lanes * step + lane / 2 % 2 * to_odd) as u8;
        lane += 1;
    }
    out
}

/// Shuffle indices of the scales of half of the `i`-th of four super-blocks, as 16-bit words: two for each group, of
/// even and odd runs of eight, in the order of [`dot_16_bits`].
const GROUP_SCALE_WORDS: [[u8; 64]; 4] =
    [group_scale_words(0), group_scale_words(1), group_scale_words(2), group_scale_words(3)];

const fn group_scale_words(block: usize) -> [u8; 64] {
    let mut out = [0; 64];
    let mut word = 0;
    while word < 32 {
        out[2 * word] = (8 * block + word / 16 * 4 + word % 8 / 2) as u8;
        word += 1;
    }
    out
}

/// Shuffle indices of the scales of each half of a `Q6_K` block, one for sixteen elements, in the same order, as the
/// upper bytes of words.
const SIXTEENTH_SCALE_BYTES: [[u8; 64]; 2] = [sixteenth_scale_bytes(0), sixteenth_scale_bytes(1)];

const fn sixteenth_scale_bytes(half: usize) -> [u8; 64] {
    // `vpshufb` writes zero where the highest bit is set.
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
