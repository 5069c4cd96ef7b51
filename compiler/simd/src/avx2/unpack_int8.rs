//! Unpacks two rows of weights of up to 5 bits into bytes, side by side.
//!
//! In: the bytes of four blocks of 32, or of a block of 256, of each row. Out: unsigned bytes, 32 elements of both rows
//! at a time:
//!
//! ```text
//! [row 0: e0..e16 | row 1: e0..e16], [row 0: e16..e32 | row 1: e16..e32]
//! ```
//!
//! So no sum crosses the halves of a register. Scales are those of `unpack_int16.rs`.

use std::arch::x86_64::{
    __m256i, _mm_cvtsi32_si128, _mm_set1_epi32, _mm256_and_si256, _mm256_or_si256, _mm256_set_m128i,
    _mm256_set1_epi8, _mm256_set1_epi64x, _mm256_setr_epi64x, _mm256_shuffle_epi8, _mm256_sign_epi8,
    _mm256_slli_epi16, _mm256_srl_epi16, _mm256_srli_epi16, _mm256_unpackhi_epi8, _mm256_unpacklo_epi8,
};

use crate::avx2::unpack_int16::piece;
use crate::avx2::vector::load_both;
use crate::layout::block_formats::Storage;

/// 32 elements of two rows.
pub(super) type Pair = [__m256i; 2];

/// Bits of numbers that are unpacked to bytes; none for formats that are unpacked to 16 bits.
pub(super) const fn byte_bits(storage: Storage) -> Option<u32> {
    match storage {
        Storage::Q4_0 | Storage::Q4_1 | Storage::Q4K | Storage::Q4Pairs => Some(4),
        Storage::Q5_0 | Storage::Q5_1 | Storage::Q5K => Some(5),
        Storage::Q8_0
        | Storage::Int8
        | Storage::Q2K
        | Storage::Q3K
        | Storage::Q6K
        | Storage::IQ4NL
        | Storage::IQ4XS
        | Storage::MXFP4
        | Storage::F32
        | Storage::F16
        | Storage::BF16 => None,
    }
}

/// The `g`-th group of four small blocks, or of a half of a large one.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn unpack_pair<const S: usize>([a, b]: [&[u8]; 2], half: usize, g: usize) -> Pair {
    let storage = const { Storage::ALL[S] };
    let n_bytes = storage.block().1;
    match storage {
        Storage::Q4K => large([&a[16 + 64 * half..], &b[16 + 64 * half..]], g),
        Storage::Q5K => {
            let low = large([&a[48 + 64 * half..], &b[48 + 64 * half..]], g);
            large_fifth(low, [&a[16..], &b[16..]], half, g)
        }
        _ => unpack_32::<S>([&a[n_bytes * g..][..n_bytes], &b[n_bytes * g..][..n_bytes]]),
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn unpack_32<const S: usize>([a, b]: [&[u8]; 2]) -> Pair {
    match const { Storage::ALL[S] } {
        Storage::Q4_0 => nibbles([&a[2..], &b[2..]]),
        Storage::Q4_1 => nibbles([&a[4..], &b[4..]]),
        Storage::Q5_0 => fifth(nibbles([&a[6..], &b[6..]]), [&a[2..], &b[2..]]),
        Storage::Q5_1 => fifth(nibbles([&a[8..], &b[8..]]), [&a[4..], &b[4..]]),
        // Nibbles that are neighbours.
        Storage::Q4Pairs => {
            let [even, odd] = nibbles([a, b]);
            [_mm256_unpacklo_epi8(even, odd), _mm256_unpackhi_epi8(even, odd)]
        }
        _ => unreachable!("a large block, or no bytes"),
    }
}

/// Low nibbles first, then high ones.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn nibbles([a, b]: [&[u8]; 2]) -> Pair {
    let both = load_both(piece(a, 0), piece(b, 0));
    [low_nibbles(both), low_nibbles(_mm256_srli_epi16::<4>(both))]
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn low_nibbles(bytes: __m256i) -> __m256i {
    _mm256_and_si256(bytes, _mm256_set1_epi8(15))
}

/// With the fifth bits.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn fifth(low: Pair, [a, b]: [&[u8]; 2]) -> Pair {
    // Every eight bytes get a byte of bits; each then keeps its own, of which the last is a sign: what takes this one
    // over has the other sign.
    let own = _mm256_set1_epi64x(i64::from_le_bytes([1, 2, 4, 8, 16, 32, 64, 128]));
    let bit = _mm256_set1_epi64x(i64::from_le_bytes([16, 16, 16, 16, 16, 16, 16, 240]));
    let [a, b] = [i32::from_le_bytes(*piece(a, 0)), i32::from_le_bytes(*piece(b, 0))];
    let bits = _mm256_set_m128i(_mm_set1_epi32(b), _mm_set1_epi32(a));
    let mut out = low;
    for (out, first) in out.iter_mut().zip([0, 0x0202_0202_0202_0202]) {
        let second = first + 0x0101_0101_0101_0101;
        let places = _mm256_setr_epi64x(first, second, first, second);
        let bits = _mm256_and_si256(_mm256_shuffle_epi8(bits, places), own);
        *out = _mm256_or_si256(*out, _mm256_sign_epi8(bit, bits));
    }
    out
}

/// The `g`-th group of nibbles of large blocks, of which two share 32 bytes: the low ones, and the high ones.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn large([a, b]: [&[u8]; 2], g: usize) -> Pair {
    let mut out = sixteens([&a[32 * (g / 2)..], &b[32 * (g / 2)..]]);
    for out in &mut out {
        *out = low_nibbles(if g.is_multiple_of(2) { *out } else { _mm256_srli_epi16::<4>(*out) });
    }
    out
}

/// 32 bytes of both rows.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn sixteens([a, b]: [&[u8]; 2]) -> Pair {
    [load_both(piece(a, 0), piece(b, 0)), load_both(piece(a, 1), piece(b, 1))]
}

/// With the fifth bits: those of a block's `i`-th group are the bits `i` of 32 bytes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn large_fifth(low: Pair, bits: [&[u8]; 2], half: usize, g: usize) -> Pair {
    let mut out = low;
    for (out, bits) in out.iter_mut().zip(sixteens(bits)) {
        // The bit of the first group is at place 4.
        let bits = if half == 0 { _mm256_slli_epi16::<4>(bits) } else { bits };
        let bits = _mm256_srl_epi16(bits, _mm_cvtsi32_si128(g as i32));
        *out = _mm256_or_si256(*out, _mm256_and_si256(bits, _mm256_set1_epi8(16)));
    }
    out
}
