//! Unpacks 128 elements of a block format into 16-bit or 8-bit integers, and their scales.
//!
//! In: the bytes of four blocks of 32, or of a block of 256. Out: integers `q` with `a` and `b`, so that `element = a *
//! q + b`, four groups of 32 at a time; of each group first the even elements, then the odd ones, since bytes widen to
//! 16 bits in place. Formats of up to 5 bits are unpacked to bytes (`unpack_int8.rs`). The formulas are those of
//! `block_formats.rs`, one instruction at a time, with these differences: 4-bit and 5-bit integers stay unsigned,
//! and `b` subtracts their zero point; 8-bit integers and values of tables stay in the upper halves of 16-bit ones;
//! integers of 3 and 6 bits are multiplied by their integer scales of sixteen.

use std::arch::x86_64::{
    __m128, __m256i, _mm_and_si128, _mm_cvtepi32_ps, _mm_cvtph_ps, _mm_cvtsi32_si128, _mm_cvtsi64_si128,
    _mm_mul_ps, _mm_or_si128, _mm_set1_epi16, _mm_set1_epi32, _mm_set1_ps, _mm_setr_epi32, _mm_setr_ps,
    _mm_slli_epi32, _mm_srli_epi16, _mm_srlv_epi32, _mm_sub_epi32, _mm_unpacklo_epi16, _mm_unpacklo_epi32,
    _mm256_and_si256, _mm256_cvtepi32_ps, _mm256_cvtepu8_epi32, _mm256_mul_ps, _mm256_mulhi_epi16,
    _mm256_or_si256, _mm256_set_m128, _mm256_set_m128i, _mm256_set1_epi8, _mm256_set1_epi16,
    _mm256_set1_epi64x, _mm256_setzero_si256, _mm256_shuffle_epi8, _mm256_slli_epi16, _mm256_srl_epi16,
    _mm256_srli_epi16, _mm256_sub_epi8, _mm256_sub_ps,
};

use fusebox_formats::{Blocks, Code, Numbers, half_e8m0};

use crate::avx2::vector::{V, load_bytes, load_half, splat, zero};
use crate::layout::block_formats::{BlockRow, DequantisedBlock, Storage, k_words};

/// 32 numbers.
pub(super) type Group = [__m256i; 2];

/// The zero point that unpacked numbers have.
pub(super) const fn zero_point(storage: Storage) -> u8 {
    match storage {
        Storage::Q5_0 => 16,
        Storage::Q4_0 | Storage::Q4Pairs => 8,
        _ => 0,
    }
}

/// Whether elements have a `b` here.
pub(super) const fn has_offsets(storage: Storage) -> bool {
    storage.has_offsets() || zero_point(storage) > 0
}

/// 128 elements of a unit: four blocks of 32, or half a super-block.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn unpack_128<const S: usize>(unit: &[u8], half: usize) -> [Group; 4] {
    let mut out = [[_mm256_setzero_si256(); 2]; 4];
    match const { Storage::ALL[S] } {
        Storage::Q6K => {
            let block: &[u8; 210] = unit.as_array().expect("a block");
            let scales = *piece(&block[192..], half);
            let bytes = k_sixth(&block[64 * half..], piece(&block[128..], half));
            for (i, bytes) in bytes.into_iter().enumerate() {
                out[i] = scaled(upper_words(bytes), scales, i);
            }
            return out;
        }
        Storage::Q3K => {
            let block: &[u8; 110] = unit.as_array().expect("a block");
            let scales = scales_of_three_bits(block, half);
            let bytes = k_third(piece(&block[32..], half), piece(block, 0), half);
            for (i, bytes) in bytes.into_iter().enumerate() {
                out[i] = scaled(upper_words(bytes), scales, i);
            }
            return out;
        }
        Storage::IQ4XS => {
            let block: &[u8; 136] = unit.as_array().expect("a block");
            for (i, out) in out.iter_mut().enumerate() {
                *out = upper_words(values::<S>(piece(&block[8..], 4 * half + i)));
            }
            return out;
        }
        _ => {}
    }
    let n_bytes = const { Storage::ALL[S].block().1 };
    for (i, out) in out.iter_mut().enumerate() {
        *out = unpack_32::<S>(&unit[i * n_bytes..][..n_bytes]);
    }
    out
}

/// A small block.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn unpack_32<const S: usize>(block: &[u8]) -> Group {
    match const { Storage::ALL[S] } {
        Storage::Q8_0 => upper_words(load_bytes(piece(&block[2..], 0))),
        Storage::Int8 => upper_words(load_bytes(piece(block, 0))),
        Storage::IQ4NL => upper_words(values::<S>(piece(&block[2..], 0))),
        Storage::MXFP4 => upper_words(values::<S>(piece(&block[1..], 0))),
        _ => unreachable!("a large block, or no words"),
    }
}

/// The `idx`-th piece of `L` bytes.
#[inline(always)]
pub(super) fn piece<const L: usize>(bytes: &[u8], idx: usize) -> &[u8; L] {
    bytes[L * idx..].first_chunk().expect("a whole block")
}

/// Even bytes, then odd ones, each 256 times as large.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn upper_words(bytes: __m256i) -> Group {
    [_mm256_slli_epi16::<8>(bytes), _mm256_and_si256(bytes, _mm256_set1_epi16(!0xff))]
}

/// Two times 32 bytes of nibbles: the low ones of each, then their high ones.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn k_nibbles(bytes: &[u8]) -> [__m256i; 4] {
    let [a, b] = [load_bytes(piece(bytes, 0)), load_bytes(piece(bytes, 1))];
    let mask = _mm256_set1_epi8(15);
    [
        _mm256_and_si256(a, mask),
        _mm256_and_si256(_mm256_srli_epi16::<4>(a), mask),
        _mm256_and_si256(b, mask),
        _mm256_and_si256(_mm256_srli_epi16::<4>(b), mask),
    ]
}

/// 128 elements of 6 bits: four bits of each in `low`, two in `high`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn k_sixth(low: &[u8], high: &[u8; 32]) -> [__m256i; 4] {
    let ([a, c, b, d], high) = (k_nibbles(low), load_bytes(high));
    let highs =
        [_mm256_slli_epi16::<4>(high), _mm256_slli_epi16::<2>(high), high, _mm256_srli_epi16::<2>(high)];
    let mut out = [a, b, c, d];
    for (out, high) in out.iter_mut().zip(highs) {
        let both = _mm256_or_si256(*out, _mm256_and_si256(high, _mm256_set1_epi8(0x30)));
        *out = _mm256_sub_epi8(both, _mm256_set1_epi8(32));
    }
    out
}

/// The values of sixteen low nibbles, then of the high ones.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn values<const S: usize>(nibbles: &[u8; 16]) -> __m256i {
    let table = const { value_bytes(Storage::ALL[S]) };
    let table = _mm256_set_m128i(load_half(&table), load_half(&table));
    let low = load_half(nibbles);
    let both = _mm256_set_m128i(_mm_srli_epi16::<4>(low), low);
    _mm256_shuffle_epi8(table, _mm256_and_si256(both, _mm256_set1_epi8(15)))
}

/// The sixteen values of a format.
const fn value_bytes(storage: Storage) -> [u8; 16] {
    let mut out = [0; 16];
    if let Some(Blocks { quanta: Numbers { code: Code::Table(values), .. }, .. }) = storage.blocks() {
        let mut i = 0;
        while i < 16 {
            out[i] = values[i].cast_unsigned();
            i += 1;
        }
    }
    out
}

/// 128 elements of 3 bits: two bits of each in `low`, the third in `high`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn k_third(low: &[u8; 32], high: &[u8; 32], half: usize) -> [__m256i; 4] {
    let low = load_bytes(low);
    let mut out =
        [low, _mm256_srli_epi16::<2>(low), _mm256_srli_epi16::<4>(low), _mm256_srli_epi16::<6>(low)];
    // The bit of the first group is at place 0.
    let high = _mm256_srl_epi16(load_bytes(high), _mm_cvtsi32_si128(4 * half as i32));
    let highs =
        [_mm256_slli_epi16::<2>(high), _mm256_slli_epi16::<1>(high), high, _mm256_srli_epi16::<1>(high)];
    for (out, high) in out.iter_mut().zip(highs) {
        let low = _mm256_and_si256(*out, _mm256_set1_epi8(3));
        let both = _mm256_or_si256(low, _mm256_and_si256(high, _mm256_set1_epi8(4)));
        *out = _mm256_sub_epi8(both, _mm256_set1_epi8(4));
    }
    out
}

/// The eight scales of half a block.
#[inline(always)]
fn scales_of_three_bits(block: &[u8; 110], half: usize) -> [u8; 8] {
    // Eight bytes have the low four bits of all, four bytes the upper two.
    let low = u64::from_le_bytes(*piece(&block[96..], 0)) >> (4 * half);
    let high = u64::from(u32::from_le_bytes(*piece(&block[104..], 0))) >> (4 * half);
    let high = (high & 0x0303_0303) | (high >> 2 & 0x0303_0303) << 32;
    let both = low & 0x0f0f_0f0f_0f0f_0f0f | high << 4;
    // From 0 to 63 in each byte: subtracts 32 without a borrow.
    let moved = (both | 0x8080_8080_8080_8080) - 0x2020_2020_2020_2020;
    (moved ^ 0x8080_8080_8080_8080).to_le_bytes()
}

/// The `i`-th group of four, which is 256 times as large, times the scales of its halves.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn scaled([even, odd]: Group, scales: [u8; 8], i: usize) -> Group {
    // Words of a scale and a zero below it: upper halves of products are the products of scales and numbers.
    let place = |half: usize| _mm_set1_epi16(0x0080 + 0x0100 * (2 * i + half) as i16);
    let places = _mm256_set_m128i(place(1), place(0));
    let scales = _mm256_shuffle_epi8(_mm256_set1_epi64x(i64::from_le_bytes(scales)), places);
    [_mm256_mulhi_epi16(even, scales), _mm256_mulhi_epi16(odd, scales)]
}

/// The `a` of four groups, the `at`-th of the row.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn factors<const S: usize>(unit: &[u8], row: &BlockRow<'_>, at: usize) -> __m128 {
    match const { Storage::ALL[S] } {
        Storage::Int8 => {
            let (a, b) = (row.scale(4 * at), row.scale(4 * at + 1));
            smaller(_mm_setr_ps(a, b, row.scale(4 * at + 2), row.scale(4 * at + 3)))
        }
        Storage::Q8_0 | Storage::IQ4NL => smaller(halves::<S>(unit, 0)),
        Storage::MXFP4 => smaller(powers_of_two(unit)),
        Storage::IQ4XS => smaller(four_scales(unit.as_array().expect("a block"), at % 2)),
        Storage::Q3K => splat_half(unit, 108),
        Storage::Q4Pairs => {
            let scale = |i: usize| f32::from_le_bytes(*piece(&unit[20 * i + 16..], 0));
            _mm_setr_ps(scale(0), scale(1), scale(2), scale(3))
        }
        Storage::Q6K => splat_half(unit, 208),
        _ => halves::<S>(unit, 0),
    }
}

/// The scales of four `MXFP4` blocks.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn powers_of_two(unit: &[u8]) -> __m128 {
    let [a, b, c, d] = [0, 17, 34, 51].map(|at| f32::from_bits(half_e8m0(unit[at])));
    _mm_setr_ps(a, b, c, d)
}

/// The scales of half an `IQ4_XS` block.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn four_scales(block: &[u8; 136], half: usize) -> __m128 {
    // Even groups have the low nibbles of bytes, odd ones the high ones.
    let two = i32::from(u16::from_le_bytes(*piece(&block[4..], half)));
    let low = _mm_srlv_epi32(_mm_set1_epi32(two), _mm_setr_epi32(0, 4, 8, 12));
    let low = _mm_and_si128(low, _mm_set1_epi32(15));
    let high = _mm_srlv_epi32(_mm_set1_epi32(i32::from(block[2 + half])), _mm_setr_epi32(0, 2, 4, 6));
    let high = _mm_slli_epi32::<4>(_mm_and_si128(high, _mm_set1_epi32(3)));
    let whole = _mm_sub_epi32(_mm_or_si128(low, high), _mm_set1_epi32(32));
    _mm_mul_ps(_mm_cvtepi32_ps(whole), splat_half(block, 0))
}

/// For numbers that are 256 times as large.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn smaller(factors: __m128) -> __m128 {
    _mm_mul_ps(factors, _mm_set1_ps(1.0 / 256.0))
}

/// The same for two rows, one in each half.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn pair_scales<const S: usize>(
    units: [&[u8]; 2],
    half: usize,
    rows: [&BlockRow<'_>; 2],
    at: usize,
) -> V {
    match const { Storage::ALL[S] } {
        Storage::Q4K | Storage::Q5K => {
            let [[a, _], [b, _]] = [k_words(units[0], half), k_words(units[1], half)];
            k_factors(units, 0, [a, b])
        }
        _ => {
            let a = factors::<S>(units[0], rows[0], at);
            _mm256_set_m128(factors::<S>(units[1], rows[1], at), a)
        }
    }
}

/// The `b` of four groups of two rows, whose `a` are known.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn pair_offsets<const S: usize>(units: [&[u8]; 2], half: usize, factors: V) -> V {
    let storage = const { Storage::ALL[S] };
    match storage {
        Storage::Q4_1 | Storage::Q5_1 => _mm256_set_m128(halves::<S>(units[1], 2), halves::<S>(units[0], 2)),
        Storage::Q4K | Storage::Q5K => {
            let [[_, a], [_, b]] = [k_words(units[0], half), k_words(units[1], half)];
            _mm256_sub_ps(zero(), k_factors(units, 2, [a, b]))
        }
        _ => _mm256_mul_ps(factors, splat(-f32::from(zero_point(storage)))),
    }
}

/// The `a` and the `b` of a small block.
#[inline(always)]
pub(super) fn scale_and_offset<const S: usize>(row: &BlockRow<'_>, idx: usize) -> (f32, f32) {
    let storage = const { Storage::ALL[S] };
    let DequantisedBlock { a: [a, _], b: [b, _], .. } = row.unpack(storage, idx);
    let is_in_upper = matches!(storage, Storage::Q8_0 | Storage::Int8 | Storage::IQ4NL | Storage::MXFP4);
    let a = if is_in_upper { a / 256.0 } else { a };
    (a, b - f32::from(zero_point(storage)) * a)
}

/// The half-precision number at byte `at` of each of four blocks.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn halves<const S: usize>(unit: &[u8], at: usize) -> __m128 {
    let n_bytes = const { Storage::ALL[S].block().1 };
    // Those of two blocks are loaded with the bytes after them, so that none goes through a general register.
    let from = |i: usize| load_half(piece(&unit[i * n_bytes + at..], 0));
    let [a, b] = [_mm_unpacklo_epi16(from(0), from(1)), _mm_unpacklo_epi16(from(2), from(3))];
    _mm_cvtph_ps(_mm_unpacklo_epi32(a, b))
}

/// Four numbers of 6 bits of each row, times the half-precision number at a place of its large block.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn k_factors(units: [&[u8]; 2], at: usize, [a, b]: [u32; 2]) -> V {
    let eight = _mm_cvtsi64_si128((u64::from(b) << 32 | u64::from(a)).cast_signed());
    let by = _mm256_set_m128(splat_half(units[1], at), splat_half(units[0], at));
    _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(eight)), by)
}

/// The half-precision number at a place.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn splat_half(unit: &[u8], at: usize) -> __m128 {
    _mm_cvtph_ps(_mm_set1_epi16(i16::from_le_bytes(*piece(&unit[at..], 0))))
}
