//! Unpacks 128 elements of a block format into two registers of bytes, and their scales.
//!
//! In: the bytes of a unit: four blocks of 32, or one K-quant block of 256, of which half is unpacked at a time. Out:
//! unsigned bytes with the zero point of [`zero_point`] added, in the order of [`order`]; scales as lanes. The formulas
//! are those of `block_formats.rs`, one instruction at a time.

use std::arch::x86_64::{
    __m128, __m128i, __m256, __m512i, _mm_and_si128, _mm_castsi128_ps, _mm_cmplt_epi32_mask,
    _mm_cvtepu8_epi16, _mm_cvtepu8_epi32, _mm_cvtph_ps, _mm_cvtsi32_si128, _mm_cvtsi64_si128,
    _mm_mask_mov_epi32, _mm_or_si128, _mm_set_epi64x, _mm_set1_epi8, _mm_set1_epi16, _mm_set1_epi32,
    _mm_set1_epi64x, _mm_set1_ps, _mm_setr_epi32, _mm_setr_ps, _mm_setzero_ps, _mm_setzero_si128,
    _mm_shuffle_ps, _mm_slli_epi32, _mm_sllv_epi32, _mm_srli_epi16, _mm_srli_si128, _mm_srlv_epi32,
    _mm_srlv_epi64, _mm_sub_epi8, _mm_sub_epi32, _mm_unpacklo_epi8, _mm_unpacklo_epi32, _mm_unpacklo_epi64,
    _mm256_and_si256, _mm256_broadcastss_ps, _mm256_castps_pd, _mm256_castps128_ps256,
    _mm256_castsi128_si256, _mm256_cvtepi32_ps, _mm256_cvtepu8_epi32, _mm256_insertf128_ps,
    _mm256_inserti128_si256, _mm256_mask_blend_epi16, _mm256_mul_ps, _mm256_or_si256, _mm256_set1_epi16,
    _mm256_set1_epi32, _mm256_setr_epi32, _mm256_slli_epi32, _mm256_srlv_epi32, _mm256_sub_epi32,
    _mm512_add_epi8, _mm512_and_si512, _mm512_broadcast_i32x4, _mm512_broadcast_i64x4, _mm512_castpd_ps,
    _mm512_castps_pd, _mm512_castps256_ps512, _mm512_castsi256_si512, _mm512_castsi512_si128,
    _mm512_cvtepi8_epi32, _mm512_cvtepi32_ps, _mm512_cvtepu8_epi32, _mm512_cvtph_ps, _mm512_insertf64x4,
    _mm512_inserti64x4, _mm512_mask_add_epi8, _mm512_mul_ps, _mm512_or_si512, _mm512_permutex2var_epi16,
    _mm512_rolv_epi64, _mm512_set1_epi8, _mm512_setr_epi64, _mm512_setzero_si512, _mm512_shuffle_epi8,
    _mm512_shuffle_epi32, _mm512_sllv_epi16, _mm512_srli_epi16, _mm512_srli_epi32, _mm512_srlv_epi16,
    _mm512_srlv_epi32, _mm512_ternarylogic_epi64, _mm512_unpackhi_epi8, _mm512_unpacklo_epi8,
    _mm512_xor_si512, _mm512_zextps256_ps512, _mm512_zextsi128_si512,
};

use bytemuck::cast;

use fusebox_formats::{Blocks, Code, Numbers};

use crate::avx512::vector::{V, load_bytes, load_half, load_quarter};
use crate::layout::block_formats::{BlockRow, Storage};

/// The order of 128 elements in two registers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// One after the other.
    Sequential,
    /// The first halves of each 32, then the second halves.
    SplitHalves,
}

pub(crate) const fn order(storage: Storage) -> Order {
    match storage {
        Storage::Q4_0 | Storage::Q4_1 | Storage::Q5_0 | Storage::Q5_1 | Storage::Q4Pairs => {
            Order::SplitHalves
        }
        Storage::IQ4NL | Storage::IQ4XS | Storage::MXFP4 => Order::SplitHalves,
        _ => Order::Sequential,
    }
}

/// The zero point that unpacked numbers have.
pub(crate) const fn zero_point(storage: Storage) -> u8 {
    match storage {
        Storage::Q8_0 | Storage::Int8 | Storage::IQ4NL | Storage::IQ4XS => 128,
        // Three bits as well: so one row of products serves both.
        Storage::Q3K | Storage::Q6K => 32,
        Storage::MXFP4 => 12,
        Storage::Q5_0 => 16,
        Storage::Q4_0 | Storage::Q4Pairs => 8,
        _ => 0,
    }
}

/// 128 elements of a unit: four blocks of 32, or half a super-block.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(crate) fn unpack_128<const S: usize>(unit: &[u8], half: usize) -> [__m512i; 2] {
    match const { Storage::ALL[S] } {
        Storage::Q8_0 => {
            let blocks: &[u8; 136] = unit.as_array().expect("four blocks");
            let (blocks, _) = blocks.as_chunks::<34>();
            [pair(&blocks[0], &blocks[1]), pair(&blocks[2], &blocks[3])]
        }
        Storage::Int8 => {
            let (numbers, _) = unit[..128].as_chunks::<64>();
            let sign = _mm512_set1_epi8(-128);
            [_mm512_xor_si512(load_bytes(&numbers[0]), sign), _mm512_xor_si512(load_bytes(&numbers[1]), sign)]
        }
        Storage::Q4_0 | Storage::Q4_1 => low_and_high(nibbles_128::<S>(unit, half)),
        Storage::Q5_0 => add_fifth_bits::<S, 2, 6>(unit),
        Storage::Q5_1 => add_fifth_bits::<S, 4, 8>(unit),
        Storage::Q4K => {
            let block: &[u8; 144] = unit.as_array().expect("a block");
            let (fours, _) = block[16..].as_chunks::<64>();
            k_nibbles(&fours[half])
        }
        Storage::Q5K => {
            let block: &[u8; 176] = unit.as_array().expect("a block");
            let (fours, _) = block[48..].as_chunks::<64>();
            add_bits_k::<4>(k_nibbles(&fours[half]), block[16..48].as_array().expect("32 bytes"), half)
        }
        Storage::Q6K => {
            let block: &[u8; 210] = unit.as_array().expect("a block");
            let (low, high) = (block[..128].as_chunks::<64>().0, block[128..192].as_chunks::<32>().0);
            unpack_six_bits(&low[half], &high[half])
        }
        Storage::Q4Pairs => {
            let [even, odd] = nibbles::<S, 0>(unit);
            [_mm512_unpacklo_epi8(even, odd), _mm512_unpackhi_epi8(even, odd)]
        }
        Storage::Q2K => {
            let block: &[u8; 84] = unit.as_array().expect("a block");
            bit_pairs(&block[16..80].as_chunks().0[half])
        }
        Storage::Q3K => {
            let block: &[u8; 110] = unit.as_array().expect("a block");
            let low = bit_pairs(&block[32..96].as_chunks().0[half]);
            let mut out = add_bits_k::<2>(low, block[..32].as_array().expect("32 bytes"), half);
            for out in &mut out {
                *out = _mm512_add_epi8(*out, _mm512_set1_epi8(32 - 4));
            }
            out
        }
        Storage::IQ4NL => values::<S>(words::<S>(unit, const { &word_places(Storage::ALL[S], 2, 8) })),
        Storage::IQ4XS => values::<S>(load_bytes(&unit[8..].as_chunks().0[half])),
        Storage::MXFP4 => {
            let blocks: &[u8; 68] = unit.as_array().expect("four blocks");
            let quarter = |i: usize| load_quarter(blocks[17 * i + 1..].first_chunk().expect("16 bytes"));
            let low = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(quarter(0)), quarter(1));
            let high = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(quarter(2)), quarter(3));
            values::<S>(_mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high))
        }
        Storage::F32 | Storage::F16 | Storage::BF16 => unreachable!("plain elements have no blocks"),
    }
}

#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn pair(a: &[u8; 34], b: &[u8; 34]) -> __m512i {
    let a = load_half(a[2..].as_array().expect("32 bytes"));
    let b = load_half(b[2..].as_array().expect("32 bytes"));
    _mm512_xor_si512(_mm512_inserti64x4::<1>(_mm512_castsi256_si512(a), b), _mm512_set1_epi8(-128))
}

/// Where the second of the two 64-byte loads of four blocks starts: so that it ends with the blocks, but not after byte
/// 64.
const fn second(storage: Storage) -> usize {
    let last = storage.bytes(128).saturating_sub(64);
    if last < 64 { last } else { 64 }
}

/// Shuffle indices of 16-bit words in these two loads: `n` words of each block, from byte `from` of the block on.
const fn word_places(storage: Storage, from: usize, n: usize) -> [u8; 64] {
    let mut out = [0; 64];
    let mut i = 0;
    while i < 4 * n {
        let byte = i / n * storage.bytes(32) + from + 2 * (i % n);
        let place = if byte + 2 <= 64 { byte / 2 } else { 32 + (byte - second(storage)) / 2 };
        out[2 * i] = place as u8;
        i += 1;
    }
    out
}

/// Words of four blocks.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn words<const S: usize>(blocks: &[u8], places: &[u8; 64]) -> __m512i {
    let second = const { second(Storage::ALL[S]) };
    let first = load_bytes(blocks[..64].as_array().expect("64 bytes"));
    let second = load_bytes(blocks[second..second + 64].as_array().expect("64 bytes"));
    _mm512_permutex2var_epi16(first, load_bytes(places), second)
}

#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn nibbles<const S: usize, const AT: usize>(blocks: &[u8]) -> [__m512i; 2] {
    low_and_high(words::<S>(blocks, const { &word_places(Storage::ALL[S], AT, 8) }))
}

/// Whether 128 elements are the nibbles of [`nibbles_128`].
pub(crate) const fn has_nibble_pairs(storage: Storage) -> bool {
    matches!(storage, Storage::Q4_0 | Storage::Q4_1 | Storage::Q4K)
}

/// 128 elements, two in each byte.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(crate) fn nibbles_128<const S: usize>(unit: &[u8], half: usize) -> __m512i {
    match const { Storage::ALL[S] } {
        Storage::Q4_0 => words::<S>(unit, const { &word_places(Storage::ALL[S], 2, 8) }),
        Storage::Q4_1 => words::<S>(unit, const { &word_places(Storage::ALL[S], 4, 8) }),
        Storage::Q4K => load_bytes(&unit[16..].as_chunks().0[half]),
        _ => unreachable!("`has_nibble_pairs` has no other format"),
    }
}

/// The low nibbles of bytes, and the high ones.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(crate) fn low_and_high(both: __m512i) -> [__m512i; 2] {
    let mask = _mm512_set1_epi8(15);
    [_mm512_and_si512(both, mask), _mm512_and_si512(_mm512_srli_epi16::<4>(both), mask)]
}

/// The values of low nibbles, and those of the high ones, above the zero point.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn values<const S: usize>(both: __m512i) -> [__m512i; 2] {
    let table = _mm512_broadcast_i32x4(load_quarter(const { &value_bytes(Storage::ALL[S]) }));
    let [low, high] = low_and_high(both);
    [_mm512_shuffle_epi8(table, low), _mm512_shuffle_epi8(table, high)]
}

/// The sixteen values of a format, above its zero point.
const fn value_bytes(storage: Storage) -> [u8; 16] {
    let mut out = [0; 16];
    if let Some(Blocks { quanta: Numbers { code: Code::Table(values), .. }, .. }) = storage.blocks() {
        let mut i = 0;
        while i < 16 {
            out[i] = values[i].cast_unsigned().wrapping_add(zero_point(storage));
            i += 1;
        }
    }
    out
}

/// Half a block of two bits in memory order: of each 32 bytes the bits from place 0 and 2 on, then 4 and 6.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn bit_pairs(bytes: &[u8; 32]) -> [__m512i; 2] {
    let all = _mm512_broadcast_i64x4(load_half(bytes));
    let shifts = _mm512_setr_epi64(0, 0, 0, 0, TWOS, TWOS, TWOS, TWOS);
    let (mask, low) = (_mm512_set1_epi8(3), _mm512_srlv_epi16(all, shifts));
    [_mm512_and_si512(low, mask), _mm512_and_si512(_mm512_srli_epi16::<4>(low), mask)]
}

/// Nibbles, at byte `NIBBLES` of blocks, with their fifth bits, at byte `AT`.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn add_fifth_bits<const S: usize, const AT: usize, const NIBBLES: usize>(blocks: &[u8]) -> [__m512i; 2] {
    let n_bytes = const { Storage::ALL[S].bytes(32) };
    let mut masks = [0_u64; 2];
    for (i, block) in blocks[..4 * n_bytes].chunks_exact(n_bytes).enumerate() {
        let bits = u32::from_le_bytes(*block[AT..].first_chunk().expect("32 bits"));
        masks[0] |= u64::from(bits & 0xffff) << (16 * i);
        masks[1] |= u64::from(bits >> 16) << (16 * i);
    }
    let [low, high] = nibbles::<S, NIBBLES>(blocks);
    let bit = _mm512_set1_epi8(16);
    [_mm512_mask_add_epi8(low, masks[0], low, bit), _mm512_mask_add_epi8(high, masks[1], high, bit)]
}

/// 64 bytes of nibbles: the low ones of 32 bytes, then their high ones.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn k_nibbles(bytes: &[u8; 64]) -> [__m512i; 2] {
    let shifts = _mm512_setr_epi64(0, 0, 0, 0, FOURS, FOURS, FOURS, FOURS);
    let (halves, _) = bytes.as_chunks::<32>();
    let (mut out, mask) = ([_mm512_setzero_si512(); 2], _mm512_set1_epi8(15));
    for (out, half) in out.iter_mut().zip(halves) {
        let both = _mm512_broadcast_i64x4(load_half(half));
        *out = _mm512_and_si512(_mm512_srlv_epi16(both, shifts), mask);
    }
    out
}

/// Half a `Q4_K` or `Q5_K` block in memory order: groups 0 and 2, then 1 and 3.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(crate) fn unpack_128_alternating<const S: usize>(unit: &[u8], half: usize) -> [__m512i; 2] {
    match const { Storage::ALL[S] } {
        Storage::Q4K => low_and_high(load_bytes(&unit[16..].as_chunks().0[half])),
        Storage::Q5K => {
            let mut out = low_and_high(load_bytes(&unit[48..].as_chunks().0[half]));
            let bits = _mm512_broadcast_i64x4(load_half(unit[16..48].as_array().expect("32 bytes")));
            for (i, out) in out.iter_mut().enumerate() {
                // Bits `g` and `g + 2` come to place 4.
                let g = (4 * half + i) as i64;
                let by = _mm512_setr_epi64(68 - g, 68 - g, 68 - g, 68 - g, 66 - g, 66 - g, 66 - g, 66 - g);
                *out = or_masked::<16>(*out, _mm512_rolv_epi64(bits, by));
            }
            out
        }
        _ => unreachable!("only these have two groups in each byte"),
    }
}

/// Four 16-bit lanes of one number.
const TWOS: i64 = 0x0002_0002_0002_0002;
const FOURS: i64 = 2 * TWOS;

/// With a further bit at place `TO`: those of group `g` are the bits `g` of 32 bytes.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn add_bits_k<const TO: i64>(low: [__m512i; 2], bits: &[u8; 32], half: usize) -> [__m512i; 2] {
    let bits = _mm512_broadcast_i64x4(load_half(bits));
    let mut out = low;
    for (i, out) in out.iter_mut().enumerate() {
        // Bits `g` and `g + 1` come to that place.
        let by = 64 + TO - (4 * half + 2 * i) as i64;
        let by = _mm512_setr_epi64(by, by, by, by, by - 1, by - 1, by - 1, by - 1);
        let bits = _mm512_rolv_epi64(bits, by);
        // `low | bits & 1 << TO`
        *out = _mm512_ternarylogic_epi64::<0b1111_1000>(*out, bits, _mm512_set1_epi8(1 << TO));
    }
    out
}

/// `low | high & MASK`
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn or_masked<const MASK: i8>(low: __m512i, high: __m512i) -> __m512i {
    _mm512_ternarylogic_epi64::<0b1111_1000>(low, high, _mm512_set1_epi8(MASK))
}

/// 128 elements of 6 bits: four bits of each in `low`, two in `high`.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn unpack_six_bits(low: &[u8; 64], high: &[u8; 32]) -> [__m512i; 2] {
    let (low, high) = (load_bytes(low), _mm512_broadcast_i64x4(load_half(high)));
    let fifteen = _mm512_set1_epi8(15);
    let up = _mm512_setr_epi64(FOURS, FOURS, FOURS, FOURS, TWOS, TWOS, TWOS, TWOS);
    let down = _mm512_setr_epi64(0, 0, 0, 0, TWOS, TWOS, TWOS, TWOS);
    let above = _mm512_and_si512(_mm512_srli_epi16::<4>(low), fifteen);
    [
        or_masked::<0x30>(_mm512_and_si512(low, fifteen), _mm512_sllv_epi16(high, up)),
        or_masked::<0x30>(above, _mm512_srlv_epi16(high, down)),
    ]
}

/// The first four bytes of each of four small blocks.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(crate) fn block_heads<const S: usize>(unit: &[u8]) -> __m128i {
    _mm512_castsi512_si128(words::<S>(unit, const { &word_places(Storage::ALL[S], 0, 2) }))
}

/// The scales of the four blocks of the `at`-th unit of a row.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(crate) fn block_scales<const S: usize>(unit: &[u8], row: &BlockRow<'_>, at: usize) -> __m128 {
    match const { Storage::ALL[S] } {
        Storage::Int8 => {
            // Loaded as a vector: separate stores followed by one load would stall.
            match row.group {
                32 => _mm_castsi128_ps(load_quarter(&row.scales.as_chunks().0[at])),
                64 => {
                    let two = _mm_cvtsi64_si128(i64::from_le_bytes(row.scales.as_chunks().0[at]));
                    _mm_castsi128_ps(_mm_unpacklo_epi32(two, two))
                }
                group if group % 128 == 0 => _mm_set1_ps(row.scale(4 * at)),
                _ => separate_scales(row, at),
            }
        }
        Storage::Q4Pairs => pair_factors(unit),
        Storage::MXFP4 => powers_of_two(unit),
        _ => halves::<S>(unit, 0),
    }
}

/// The same for up to four units of nibbles, four lanes each; other lanes are zero.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(crate) fn unit_scales<const S: usize, const B: usize, const N: usize>(units: &[[u8; B]; N]) -> V {
    let mut fours = [_mm_setzero_ps(); 4];
    for i in 0..N {
        fours[i] = match const { Storage::ALL[S] } {
            Storage::Q4Pairs => pair_factors(&units[i]),
            Storage::MXFP4 => powers_of_two(&units[i]),
            _ => return halves_of_units::<S, B, N, 0>(units),
        };
    }
    let low = _mm256_insertf128_ps::<1>(_mm256_castps128_ps256(fours[0]), fours[1]);
    let high = _mm256_insertf128_ps::<1>(_mm256_castps128_ps256(fours[2]), fours[3]);
    let (low, high) = (_mm512_castps_pd(_mm512_castps256_ps512(low)), _mm256_castps_pd(high));
    _mm512_castpd_ps(_mm512_insertf64x4::<1>(low, high))
}

/// The scales of four `Q4Pairs` blocks.
#[inline]
#[target_feature(enable = "sse")]
fn pair_factors(unit: &[u8]) -> __m128 {
    let scale = |i: usize| f32::from_le_bytes(*unit[20 * i + 16..].first_chunk().expect("four bytes"));
    _mm_setr_ps(scale(0), scale(1), scale(2), scale(3))
}

/// The scales of four `MXFP4` blocks, as `half_e8m0` has them.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn powers_of_two(unit: &[u8]) -> __m128 {
    let e = _mm_cvtepu8_epi32(_mm_cvtsi32_si128(i32::from_le_bytes([unit[0], unit[17], unit[34], unit[51]])));
    let normal = _mm_slli_epi32::<23>(_mm_sub_epi32(e, _mm_set1_epi32(1)));
    let small = _mm_sllv_epi32(_mm_set1_epi32(0x0020_0000), e);
    let is_small = _mm_cmplt_epi32_mask(e, _mm_set1_epi32(2));
    _mm_castsi128_ps(_mm_mask_mov_epi32(normal, is_small, small))
}

/// The offsets of the blocks of up to four units of nibbles.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(crate) fn unit_offsets<const S: usize, const B: usize, const N: usize>(units: &[[u8; B]; N]) -> V {
    halves_of_units::<S, B, N, 2>(units)
}

#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn halves_of_units<const S: usize, const B: usize, const N: usize, const AT: usize>(
    units: &[[u8; B]; N],
) -> V {
    let mut all = [_mm_setzero_si128(); 4];
    for i in 0..N {
        // The nibbles are taken from the same loads.
        let words = words::<S>(&units[i], const { &word_places(Storage::ALL[S], AT, 1) });
        all[i] = _mm512_castsi512_si128(words);
    }
    let [low, high] = [_mm_unpacklo_epi64(all[0], all[1]), _mm_unpacklo_epi64(all[2], all[3])];
    _mm512_cvtph_ps(_mm256_inserti128_si256::<1>(_mm256_castsi128_si256(low), high))
}

/// Scales that are stored apart, for groups of any length.
#[inline]
#[target_feature(enable = "sse")]
fn separate_scales(row: &BlockRow<'_>, at: usize) -> __m128 {
    let [a, b, c, d] = [0, 1, 2, 3].map(|i| row.scale(4 * at + i));
    _mm_setr_ps(a, b, c, d)
}

/// The same with shuffles instead of scalar loads.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(crate) fn block_scales_shuffled<const S: usize>(unit: &[u8], row: &BlockRow<'_>, at: usize) -> __m128 {
    match const { Storage::ALL[S] } {
        Storage::Int8 | Storage::Q4Pairs | Storage::MXFP4 => block_scales::<S>(unit, row, at),
        _ => halves_of_four::<S, 0>(unit),
    }
}

/// The offsets of four blocks.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(crate) fn block_offsets_shuffled<const S: usize>(unit: &[u8]) -> __m128 {
    halves_of_four::<S, 2>(unit)
}

#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn halves_of_four<const S: usize, const AT: usize>(unit: &[u8]) -> __m128 {
    let words = words::<S>(unit, const { &word_places(Storage::ALL[S], AT, 1) });
    _mm_cvtph_ps(_mm512_castsi512_si128(words))
}

/// The half-precision number at byte `at` of each of four blocks.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn halves<const S: usize>(unit: &[u8], at: usize) -> __m128 {
    let n_bytes = const { Storage::ALL[S].bytes(32) };
    let half = |i: usize| -> u64 {
        let bytes = unit[i * n_bytes + at..].first_chunk().expect("within the unit");
        u16::from_le_bytes(*bytes).into()
    };
    // Combined as one integer: inserting them into a register one by one takes the shuffle port.
    let all = half(0) | half(1) << 16 | half(2) << 32 | half(3) << 48;
    _mm_cvtph_ps(_mm_cvtsi64_si128(all.cast_signed()))
}

/// The scales and offsets of the eight groups of a `Q4_K` or `Q5_K` block, the sixteen scales of a `Q3_K` or `Q6_K`
/// block, or the eight of an `IQ4_XS` block.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(crate) fn k_block_scales<const S: usize>(unit: &[u8]) -> V {
    match const { Storage::ALL[S] } {
        Storage::Q4K | Storage::Q5K => scales_and_offsets(unit[..16].as_array().expect("16 bytes")),
        Storage::Q3K | Storage::Q6K => {
            let (scales, d) = sixteen_scales::<S>(unit);
            let d = _mm512_cvtph_ps(_mm256_set1_epi16(d.cast_signed()));
            _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(scales)), d)
        }
        Storage::IQ4XS => _mm512_zextps256_ps512(eight_scales(unit)),
        _ => unreachable!("a block of 32 has one factor"),
    }
}

/// The whole scales of sixteen elements each, as signed bytes, and the half-precision number that multiplies them.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(crate) fn sixteen_scales<const S: usize>(unit: &[u8]) -> (__m128i, u16) {
    if const { matches!(Storage::ALL[S], Storage::Q6K) } {
        let block: &[u8; 210] = unit.as_array().expect("a block");
        let scales = load_quarter(block[192..208].as_array().expect("16 bytes"));
        return (scales, u16::from_le_bytes([block[208], block[209]]));
    }
    let block: &[u8; 110] = unit.as_array().expect("a block");
    // Eight bytes have the low four bits of all, four bytes the upper two.
    let low = i64::from_le_bytes(*block[96..].first_chunk().expect("8 bytes"));
    let high = i32::from_le_bytes(*block[104..].first_chunk().expect("4 bytes"));
    let low = _mm_srlv_epi64(_mm_set1_epi64x(low), _mm_set_epi64x(4, 0));
    let high = _mm_srlv_epi32(_mm_set1_epi32(high), _mm_setr_epi32(0, 2, 4, 6));
    let high = _mm_slli_epi32::<4>(_mm_and_si128(high, _mm_set1_epi8(3)));
    let both = _mm_or_si128(_mm_and_si128(low, _mm_set1_epi8(15)), high);
    (_mm_sub_epi8(both, _mm_set1_epi8(32)), u16::from_le_bytes([block[108], block[109]]))
}

/// The scales of the eight groups of an `IQ4_XS` block.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(crate) fn eight_scales(unit: &[u8]) -> __m256 {
    let head: [u8; 8] = *unit[..8].as_array().expect("8 bytes");
    let both = _mm_cvtsi32_si128(i32::from_le_bytes([head[4], head[5], head[6], head[7]]));
    // Even groups have the low nibbles of bytes, odd ones the high ones.
    let low = _mm_unpacklo_epi8(both, _mm_srli_epi16::<4>(both));
    let low = _mm256_cvtepu8_epi32(_mm_and_si128(low, _mm_set1_epi8(15)));
    let high = _mm256_set1_epi32(i32::from(u16::from_le_bytes([head[2], head[3]])));
    let high = _mm256_srlv_epi32(high, _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14));
    let high = _mm256_slli_epi32::<4>(_mm256_and_si256(high, _mm256_set1_epi32(3)));
    let whole = _mm256_sub_epi32(_mm256_or_si256(low, high), _mm256_set1_epi32(32));
    let d = _mm_cvtph_ps(_mm_set1_epi16(i16::from_le_bytes([head[0], head[1]])));
    _mm256_mul_ps(_mm256_cvtepi32_ps(whole), _mm256_broadcastss_ps(d))
}

/// The same for a block with offsets, which stay integers: eight scales, the integer offsets of two groups in each of
/// four lanes, and `dmin`.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(crate) fn k_block_scales_and_steps(unit: &[u8]) -> V {
    let head = load_quarter(unit[..16].as_array().expect("16 bytes"));
    let six = six_bits(head);
    let d = _mm_cvtph_ps(head);
    let scales = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(six));
    let scales = _mm256_mul_ps(scales, _mm256_broadcastss_ps(d));
    let steps = _mm_cvtepu8_epi16(_mm_srli_si128::<8>(six));
    let step = _mm_shuffle_ps::<0b01_01_01_01>(d, d);
    let rest = _mm256_insertf128_ps::<1>(_mm256_castps128_ps256(_mm_castsi128_ps(steps)), step);
    let (scales, rest) = (_mm512_castps_pd(_mm512_castps256_ps512(scales)), _mm256_castps_pd(rest));
    _mm512_castpd_ps(_mm512_insertf64x4::<1>(scales, rest))
}

/// Bits of four bytes.
const SIX_BITS: i32 = 0x3f3f_3f3f;
const FOUR_BITS: i32 = 0x0f0f_0f0f;

/// The eight 6-bit scales and eight 6-bit offsets of a block.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn six_bits(words: __m128i) -> __m128i {
    _mm512_castsi512_si128(six_bits_of_four(_mm512_zextsi128_si512(words)))
}

/// The same for four blocks.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(crate) fn six_bits_of_four(words: __m512i) -> __m512i {
    // After `d` and `dmin` come three 32-bit words. The low six bits of each byte of the first word are scales 0 to 3,
    // those of the second offsets 0 to 3. Scales and offsets 4 to 7 have their low four bits in the third word, and
    // their upper two in the top bits of the first and the second.
    let in_all = |words: [i32; 4]| _mm512_broadcast_i32x4(cast(words));
    let low = _mm512_shuffle_epi32::<0b11_10_11_01>(words);
    let low = _mm512_srlv_epi32(low, in_all([0, 0, 0, 4]));
    let low = _mm512_and_si512(low, in_all([SIX_BITS, FOUR_BITS, SIX_BITS, FOUR_BITS]));
    let high = _mm512_srli_epi32::<2>(_mm512_shuffle_epi32::<0b10_10_01_01>(words));
    let high = _mm512_and_si512(high, in_all([0, SIX_BITS ^ FOUR_BITS, 0, SIX_BITS ^ FOUR_BITS]));
    _mm512_or_si512(low, high)
}

#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn scales_and_offsets(head: &[u8; 16]) -> V {
    let d = _mm256_set1_epi16(i16::from_le_bytes([head[0], head[1]]));
    let least = _mm256_set1_epi16(i16::from_le_bytes([head[2], head[3]]));
    let factors = _mm512_cvtph_ps(_mm256_mask_blend_epi16(0xff00, d, least));
    _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(six_bits(load_quarter(head)))), factors)
}

/// Moves the zero point of numbers to 128, in formats that have one, or an offset for each sixteen.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(crate) fn to_zero_point_128<const S: usize>(numbers: __m512i) -> __m512i {
    let has_none = const { zero_point(Storage::ALL[S]) == 0 && !Storage::ALL[S].has_two_offsets() };
    let by = const { 128 - zero_point(Storage::ALL[S]) };
    if has_none || by == 0 { numbers } else { _mm512_add_epi8(numbers, _mm512_set1_epi8(by.cast_signed())) }
}
