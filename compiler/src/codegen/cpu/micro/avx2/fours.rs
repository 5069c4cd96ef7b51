//! 128 elements of each block format as numbers of 16 or 8 bits, and what multiplies them.
//!
//! In: the bytes of four blocks of 32, or of a block of 256. Out: numbers `q` with `a` and `b`, so that an element is
//! `a * q + b`, four groups of 32 at a time; of each group first the even elements, then the odd ones, as bytes become
//! words without leaving their places. Those of up to 5 bits are bytes in their order, too.
//! The formulas are those of `unpack.rs`, one instruction at a time; but numbers of 4 and 5 bits stay without sign, and
//! `b` takes off what they are too large by; numbers of 8 bits stay in the upper halves of words; and those of 6 bits
//! are multiplied by the scales of sixteen, which are whole numbers.

use std::arch::x86_64::{
    __m128, __m256i, _mm_cvtepi32_ps, _mm_cvtepu8_epi32, _mm_cvtph_ps, _mm_cvtsi32_si128, _mm_mul_ps,
    _mm_set1_epi16, _mm_set1_ps, _mm_setr_ps, _mm_setzero_ps, _mm_sub_ps, _mm_unpacklo_epi16,
    _mm_unpacklo_epi32, _mm256_and_si256, _mm256_cvtepu8_epi16, _mm256_mulhi_epi16, _mm256_or_si256,
    _mm256_set_m128i, _mm256_set1_epi8, _mm256_set1_epi16, _mm256_set1_epi32, _mm256_set1_epi64x,
    _mm256_setr_epi64x, _mm256_setzero_si256, _mm256_shuffle_epi8, _mm256_sign_epi8, _mm256_slli_epi16,
    _mm256_srli_epi16, _mm256_srlv_epi64, _mm256_sub_epi8,
};

use crate::codegen::cpu::micro::avx2::vector::{load_bytes, load_half, load_twice};
use crate::codegen::cpu::micro::unpack::{Blocks, Storage, Unpacked};

/// 32 numbers.
pub(super) type Group = [__m256i; 2];

/// Groups of 32 that are taken together: four small blocks, or a large one.
pub(super) const fn unit_groups(storage: Storage) -> usize {
    if storage.block().0 == 256 { 8 } else { 4 }
}

/// Bytes of so many groups.
pub(super) const fn unit_bytes(storage: Storage) -> usize {
    storage.bytes(32 * unit_groups(storage))
}

/// How far numbers are too large.
const fn moved(storage: Storage) -> u8 {
    match storage {
        Storage::Q5_0 => 16,
        Storage::Q4_0 | Storage::Q4Pairs => 8,
        _ => 0,
    }
}

/// Whether elements have a `b` here.
pub(super) const fn has_offsets(storage: Storage) -> bool {
    storage.has_offsets() || moved(storage) > 0
}

/// Bits of the numbers that are bytes here without sign; none for formats that have words alone.
pub(super) const fn byte_bits(storage: Storage) -> Option<u32> {
    match storage {
        Storage::Q4_0 | Storage::Q4_1 | Storage::Q4K | Storage::Q4Pairs => Some(4),
        Storage::Q5_0 | Storage::Q5_1 | Storage::Q5K => Some(5),
        Storage::Q8_0 | Storage::Int8 | Storage::Q6K | Storage::F32 | Storage::F16 | Storage::BF16 => None,
    }
}

/// 128 elements of a unit: all of four small blocks, or a half of a large one.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn four<const S: usize>(unit: &[u8], half: usize) -> [Group; 4] {
    let storage = const { Storage::ALL[S] };
    let mut out = [[_mm256_setzero_si256(); 2]; 4];
    match storage {
        Storage::Q4K | Storage::Q5K => {
            for (out, bytes) in out.iter_mut().zip(four_bytes::<S>(unit, half)) {
                *out = words(bytes);
            }
        }
        Storage::Q6K => {
            let block: &[u8; 210] = unit.as_array().expect("a block");
            let scales = *piece(&block[192..], half);
            for (i, bytes) in k_sixth(&block[64 * half..], piece(&block[128..], half)).into_iter().enumerate()
            {
                out[i] = scaled(upper_words(bytes), scales, i);
            }
        }
        _ => {
            let n_bytes = storage.block().1;
            for (i, out) in out.iter_mut().enumerate() {
                *out = small::<S>(&unit[i * n_bytes..][..n_bytes]);
            }
        }
    }
    out
}

/// The same as bytes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn four_bytes<const S: usize>(unit: &[u8], half: usize) -> [__m256i; 4] {
    let storage = const { Storage::ALL[S] };
    match storage {
        Storage::Q4K => {
            let block: &[u8; 144] = unit.as_array().expect("a block");
            k_nibbles(&block[16 + 64 * half..])
        }
        Storage::Q5K => {
            let block: &[u8; 176] = unit.as_array().expect("a block");
            k_fifth(k_nibbles(&block[48 + 64 * half..]), piece(&block[16..], 0), half)
        }
        _ => {
            let (mut out, n_bytes) = ([_mm256_setzero_si256(); 4], storage.block().1);
            for (i, out) in out.iter_mut().enumerate() {
                *out = small_bytes::<S>(&unit[i * n_bytes..][..n_bytes]);
            }
            out
        }
    }
}

/// A small block.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn small<const S: usize>(block: &[u8]) -> Group {
    match const { Storage::ALL[S] } {
        Storage::Q8_0 => upper_words(load_bytes(piece(&block[2..], 0))),
        Storage::Int8 => upper_words(load_bytes(piece(block, 0))),
        Storage::Q4Pairs => pairs(block),
        _ => words(small_bytes::<S>(block)),
    }
}

/// The same as bytes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn small_bytes<const S: usize>(block: &[u8]) -> __m256i {
    match const { Storage::ALL[S] } {
        Storage::Q4_0 => nibbles(&block[2..]),
        Storage::Q4_1 => nibbles(&block[4..]),
        Storage::Q5_0 => fifth(nibbles(&block[6..]), &block[2..]),
        Storage::Q5_1 => fifth(nibbles(&block[8..]), &block[4..]),
        Storage::Q4Pairs => {
            let [even, odd] = pairs(block);
            _mm256_or_si256(even, _mm256_slli_epi16::<8>(odd))
        }
        Storage::Q4K | Storage::Q5K | Storage::Q6K => unreachable!("a large block"),
        Storage::Q8_0 | Storage::Int8 => unreachable!("bytes with a sign"),
        Storage::F32 | Storage::F16 | Storage::BF16 => unreachable!("plain elements have no blocks"),
    }
}

/// Nibbles that are neighbours.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn pairs(block: &[u8]) -> Group {
    let pairs = _mm256_cvtepu8_epi16(load_half(piece(block, 0)));
    [_mm256_and_si256(pairs, _mm256_set1_epi16(15)), _mm256_srli_epi16::<4>(pairs)]
}

/// The `idx`-th piece of so many bytes.
#[inline(always)]
fn piece<const L: usize>(bytes: &[u8], idx: usize) -> &[u8; L] {
    bytes[L * idx..].first_chunk().expect("a whole block")
}

/// Even bytes, then odd ones.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn words(bytes: __m256i) -> Group {
    [_mm256_and_si256(bytes, _mm256_set1_epi16(0xff)), _mm256_srli_epi16::<8>(bytes)]
}

/// Even bytes, then odd ones, each 256 times as large.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn upper_words(bytes: __m256i) -> Group {
    [_mm256_slli_epi16::<8>(bytes), _mm256_and_si256(bytes, _mm256_set1_epi16(!0xff))]
}

/// Low nibbles first, then high ones.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn nibbles(bytes: &[u8]) -> __m256i {
    let shifts = _mm256_setr_epi64x(0, 0, 4, 4);
    let both = _mm256_srlv_epi64(load_twice(piece(bytes, 0)), shifts);
    _mm256_and_si256(both, _mm256_set1_epi8(15))
}

/// With the fifth bits.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn fifth(low: __m256i, bits: &[u8]) -> __m256i {
    // Every eight bytes get a byte of bits; each then keeps its own, of which the last is a sign: what takes this one
    // over has the other sign.
    let places = _mm256_setr_epi64x(0, 0x0101_0101_0101_0101, 0x0202_0202_0202_0202, 0x0303_0303_0303_0303);
    let own = _mm256_set1_epi64x(i64::from_le_bytes([1, 2, 4, 8, 16, 32, 64, 128]));
    let bit = _mm256_set1_epi64x(i64::from_le_bytes([16, 16, 16, 16, 16, 16, 16, 240]));
    let bits = _mm256_set1_epi32(i32::from_le_bytes(*piece(bits, 0)));
    let bits = _mm256_and_si256(_mm256_shuffle_epi8(bits, places), own);
    _mm256_or_si256(low, _mm256_sign_epi8(bit, bits))
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

/// With the fifth bits: those of group `g` are the bits `g` of 32 bytes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn k_fifth(low: [__m256i; 4], bits: &[u8; 32], half: usize) -> [__m256i; 4] {
    let bits = load_bytes(bits);
    // The bit of the next group is at place 4.
    let mut bits = if half == 0 { _mm256_slli_epi16::<4>(bits) } else { bits };
    let mut out = low;
    for out in &mut out {
        *out = _mm256_or_si256(*out, _mm256_and_si256(bits, _mm256_set1_epi8(16)));
        bits = _mm256_srli_epi16::<1>(bits);
    }
    out
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
pub(super) fn factors<const S: usize>(unit: &[u8], half: usize, row: &Blocks<'_>, at: usize) -> __m128 {
    match const { Storage::ALL[S] } {
        Storage::Int8 => {
            let (a, b) = (row.scale(4 * at), row.scale(4 * at + 1));
            smaller(_mm_setr_ps(a, b, row.scale(4 * at + 2), row.scale(4 * at + 3)))
        }
        Storage::Q8_0 => smaller(halves::<S>(unit, 0)),
        Storage::Q4Pairs => {
            let scale = |i: usize| f32::from_le_bytes(*piece(&unit[20 * i + 16..], 0));
            _mm_setr_ps(scale(0), scale(1), scale(2), scale(3))
        }
        Storage::Q4K | Storage::Q5K => k_factors(unit, 0, k_words(unit, half)[0]),
        Storage::Q6K => splat_half(unit, 208),
        _ => halves::<S>(unit, 0),
    }
}

/// For numbers that are 256 times as large.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn smaller(factors: __m128) -> __m128 {
    _mm_mul_ps(factors, _mm_set1_ps(1.0 / 256.0))
}

/// The `b` of four groups, whose `a` are known.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn offsets<const S: usize>(unit: &[u8], half: usize, factors: __m128) -> __m128 {
    let storage = const { Storage::ALL[S] };
    match storage {
        Storage::Q4_1 | Storage::Q5_1 => halves::<S>(unit, 2),
        Storage::Q4K | Storage::Q5K => {
            _mm_sub_ps(_mm_setzero_ps(), k_factors(unit, 2, k_words(unit, half)[1]))
        }
        _ => _mm_mul_ps(factors, _mm_set1_ps(-f32::from(moved(storage)))),
    }
}

/// The `a` and the `b` of a small block.
#[inline(always)]
pub(super) fn factor_and_offset<const S: usize>(row: &Blocks<'_>, idx: usize) -> (f32, f32) {
    let storage = const { Storage::ALL[S] };
    let Unpacked { a: [a, _], b, .. } = row.unpack(storage, idx);
    let a = if matches!(storage, Storage::Q8_0 | Storage::Int8) { a / 256.0 } else { a };
    (a, b - f32::from(moved(storage)) * a)
}

/// The half-precision number at a place of each of four small blocks.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn halves<const S: usize>(unit: &[u8], at: usize) -> __m128 {
    let n_bytes = const { Storage::ALL[S].block().1 };
    // Those of two blocks are taken with what stands behind them, so that none goes through another register.
    let from = |i: usize| load_half(piece(&unit[i * n_bytes + at..], 0));
    let [a, b] = [_mm_unpacklo_epi16(from(0), from(1)), _mm_unpacklo_epi16(from(2), from(3))];
    _mm_cvtph_ps(_mm_unpacklo_epi32(a, b))
}

/// Four numbers of 6 bits, times the half-precision number at a place of a large block.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn k_factors(unit: &[u8], at: usize, four: u32) -> __m128 {
    let four = _mm_cvtepu8_epi32(_mm_cvtsi32_si128(four.cast_signed()));
    _mm_mul_ps(_mm_cvtepi32_ps(four), splat_half(unit, at))
}

/// The half-precision number at a place.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn splat_half(unit: &[u8], at: usize) -> __m128 {
    _mm_cvtph_ps(_mm_set1_epi16(i16::from_le_bytes(*piece(&unit[at..], 0))))
}

/// The numbers of 6 bits of half a large block: four that multiply, and four that tell what is taken off.
#[inline(always)]
fn k_words(unit: &[u8], half: usize) -> [u32; 2] {
    let word = |idx: usize| u32::from_le_bytes(*piece(&unit[4..], idx));
    let two_bits = |word: u32| (word >> 6 & 0x0303_0303) << 4;
    if half == 0 {
        return [word(0) & 0x3f3f_3f3f, word(1) & 0x3f3f_3f3f];
    }
    [word(2) & 0x0f0f_0f0f | two_bits(word(0)), word(2) >> 4 & 0x0f0f_0f0f | two_bits(word(1))]
}
