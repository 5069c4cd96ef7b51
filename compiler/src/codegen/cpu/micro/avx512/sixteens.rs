//! Vectors rounded to 8 bits a number for products of one vector at a time: sixteen numbers have a scale.
//!
//! In: vectors in single precision. Out: rows of what `one.rs` multiplies.
//! Of the four eights of a group of 32, the even ones have a scale and the odd ones have another: so each lane of a
//! product has one scale, whether it adds up neighbours or what lies sixteen apart. Scales are whole steps of a unit,
//! which belongs to eight groups, so that products with large blocks are scaled as whole numbers.
//! A row has six pieces: the numbers; of each four groups the first halves, then the second halves; for each group the
//! scale of even eights, that of odd ones, and the sum times the scales; and a [`Large`] for each 32 groups. All but the
//! last are padded with zeros: numbers to a multiple of four groups, what groups have to one of sixteen.
//! The scales of eight groups are infinite or NaN where one of their numbers is.

use std::arch::x86_64::{
    __m512i, _CMP_GT_OQ, _mm_cvtsi128_si64, _mm256_add_epi32, _mm256_cvtepi64_epi16, _mm256_dpbusd_epi32,
    _mm256_set_m128i, _mm256_set1_epi8, _mm256_setzero_si256, _mm256_shuffle_epi32, _mm256_slli_epi32,
    _mm256_sub_epi32, _mm512_castsi512_ps, _mm512_cmp_ps_mask, _mm512_cvtepi32_epi8, _mm512_cvtss_f32,
    _mm512_maskz_div_ps, _mm512_max_epu32, _mm512_min_ps, _mm512_mul_ps, _mm512_reduce_max_epu32,
    _mm512_roundscale_ps, _mm512_setzero_si512, _mm512_shuffle_f32x4, _mm512_shuffle_i64x2,
};

use bytemuck::{Pod, Zeroable, cast, cast_slice, cast_slice_mut};

use crate::codegen::cpu::micro::avx512::round::{of_two_fours, whole};
use crate::codegen::cpu::micro::avx512::vector::{V, splat, store_quarter, zero};
use crate::codegen::cpu::micro::view::QuantiseView;
use crate::codegen::cpu::micro::{LARGE_BYTES, sixteens_bytes, sixteens_pieces};

/// Steps of the largest scale: sums of products with large blocks fit into 32 bits, whatever the blocks hold.
const STEPS: f32 = 63.0;

/// Eight groups of smaller numbers are zero: nothing divides by their unit.
const LEAST: f32 = 1e-34;

/// Upwards, without a sign of what is lost.
const UP: i32 = 0b1010;

/// Four times eight groups for products with four large blocks, in lines of 16-bit numbers but for their own.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Large {
    pub(super) blocks: [Block; 4],
    /// Of each group how many units the scale of its even eights is, and that of its odd ones.
    pub(super) even_steps: [u8; 64],
    pub(super) odd_steps: [u8; 64],
    /// The sums of what has these scales.
    pub(super) even_sums: [u8; 64],
    pub(super) odd_sums: [u8; 64],
    /// The units, each twice, in single precision.
    pub(super) units: [[[u8; 4]; 2]; 4],
    rest: [u8; 32],
}

/// Eight groups in the order in which products are packed: sixteen numbers of the first 64, sixteen of the second.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Block {
    /// The numbers again: groups 0 and 2, 1 and 3, 4 and 6, 5 and 7.
    pub(super) numbers: [[u8; 64]; 4],
    /// How many 256ths of a unit the scale of each four is.
    pub(super) steps: [[u8; 64]; 2],
    /// -32 times the sum of each eight, in the place of its first four.
    pub(super) moved: [[u8; 64]; 2],
}

const _: () = assert!(size_of::<Large>() == LARGE_BYTES);

/// A vector that lies in a row.
#[derive(Clone, Copy)]
pub(super) struct Sixteens<'a> {
    pub(super) numbers: &'a [u8],
    pub(super) halves: &'a [u8],
    pub(super) even: &'a [u8],
    pub(super) odd: &'a [u8],
    pub(super) sums: &'a [u8],
    pub(super) larges: &'a [Large],
}

impl<'a> Sixteens<'a> {
    #[inline(always)]
    pub(super) fn new(bytes: &'a [u8], k: usize) -> Self {
        let [numbers, halves, even, odd, sums, larges] = sixteens_pieces(k);
        let (numbers, rest) = bytes.split_at(numbers);
        let (halves, rest) = rest.split_at(halves);
        let (even, rest) = rest.split_at(even);
        let (odd, rest) = rest.split_at(odd);
        let (sums, rest) = rest.split_at(sums);
        Self { numbers, halves, even, odd, sums, larges: cast_slice(&rest[..larges]) }
    }
}

/// A row that is being filled.
struct Row<'a> {
    numbers: &'a mut [[[u8; 16]; 2]],
    halves: &'a mut [[[[u8; 16]; 4]; 2]],
    even: &'a mut [[u8; 4]],
    odd: &'a mut [[u8; 4]],
    sums: &'a mut [[u8; 4]],
    larges: &'a mut [Large],
}

impl<'a> Row<'a> {
    #[inline(always)]
    fn new(bytes: &'a mut [u8], k: usize) -> Self {
        let [numbers, halves, even, odd, sums, larges] = sixteens_pieces(k);
        let (numbers, rest) = bytes.split_at_mut(numbers);
        let (halves, rest) = rest.split_at_mut(halves);
        let (even, rest) = rest.split_at_mut(even);
        let (odd, rest) = rest.split_at_mut(odd);
        let (sums, rest) = rest.split_at_mut(sums);
        Self {
            numbers: numbers.as_chunks_mut().0.as_chunks_mut().0,
            halves: halves.as_chunks_mut().0.as_chunks_mut().0.as_chunks_mut().0,
            even: even.as_chunks_mut().0,
            odd: odd.as_chunks_mut().0,
            sums: sums.as_chunks_mut().0,
            larges: cast_slice_mut(&mut rest[..larges]),
        }
    }

    /// Fills what belongs to no group with zeros.
    #[inline(always)]
    fn clear_from(&mut self, n: usize) {
        self.numbers[n..].fill([[0; 16]; 2]);
        for idx in n..n.next_multiple_of(4) {
            for half in &mut self.halves[idx / 4] {
                half[idx % 4] = [0; 16];
            }
        }
        for scales in [&mut *self.even, &mut *self.odd, &mut *self.sums] {
            scales[n..].fill([0; 4]);
        }
    }
}

#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn round(job: &mut QuantiseView<'_>) {
    let k = job.k;
    for (c, row) in job.out.chunks_exact_mut(sixteens_bytes(1, k)).enumerate().take(job.n_cols) {
        let x = job.x[c * job.x_col..][..4 * k].as_chunks::<128>().0;
        let mut row = Row::new(row, k);
        for large in &mut *row.larges {
            // Those of blocks that are not there as well.
            large.units = Zeroable::zeroed();
        }
        for (at, groups) in x.chunks(8).enumerate() {
            round_eight(&mut row, at, groups);
        }
        row.clear_from(x.len());
    }
}

/// The `at`-th eight groups, or the last ones, which may be fewer.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn round_eight(row: &mut Row<'_>, at: usize, groups: &[[u8; 128]]) {
    let (mut largest, mut all) = ([_mm512_setzero_si512(); 8], _mm512_setzero_si512());
    for (largest, x) in largest.iter_mut().zip(groups) {
        *largest = of_eights(x);
        all = _mm512_max_epu32(all, *largest);
    }
    let most = f32::from_bits(_mm512_reduce_max_epu32(all));
    let (unit, by) = if most < LEAST { (0.0, 0.0) } else { (most / (127.0 * STEPS), STEPS / most) };
    if let Some(large) = row.larges.get_mut(at / 4) {
        large.units[at % 4] = [unit.to_le_bytes(); 2];
    }
    for (i, (largest, x)) in largest.iter().zip(groups).enumerate() {
        let steps = _mm512_roundscale_ps::<UP>(_mm512_mul_ps(_mm512_castsi512_ps(*largest), splat(by)));
        // The minimum of NaN and another number is the second operand.
        let steps = _mm512_min_ps(steps, splat(STEPS));
        let scales = _mm512_mul_ps(steps, splat(unit));
        let [even_scale, odd_scale] = even_and_odd(scales);
        let are_scales = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(scales, zero());
        let Group { halves, eights, moved } = group(x, _mm512_maskz_div_ps(are_scales, splat(1.0), scales));
        let [even_sum, odd_sum] = [eights[0] + eights[2], eights[1] + eights[3]];
        let idx = 8 * at + i;
        row.numbers[idx] = halves;
        let [firsts, seconds] = &mut row.halves[idx / 4];
        [firsts[idx % 4], seconds[idx % 4]] = halves;
        row.even[idx] = even_scale.to_le_bytes();
        row.odd[idx] = odd_scale.to_le_bytes();
        row.sums[idx] = (f32::from(even_sum) * even_scale + f32::from(odd_sum) * odd_scale).to_le_bytes();
        if let Some(large) = row.larges.get_mut(at / 4) {
            let [even, odd] = even_and_odd(steps).map(|steps| steps as i16);
            let place = 8 * (at % 4) + i;
            large.even_steps.as_chunks_mut().0[place] = even.to_le_bytes();
            large.odd_steps.as_chunks_mut().0[place] = odd.to_le_bytes();
            large.even_sums.as_chunks_mut().0[place] = even_sum.to_le_bytes();
            large.odd_sums.as_chunks_mut().0[place] = odd_sum.to_le_bytes();
            let block = &mut large.blocks[at % 4];
            block.numbers[i / 4 * 2 + i % 2].as_chunks_mut().0[i / 2 % 2] = cast::<_, [u8; 32]>(halves);
            let [even, odd] = [even, odd].map(|steps| steps << 8);
            for (half, [first, second]) in moved.as_chunks().0.iter().enumerate() {
                let place = 4 * (i % 2) + 2 * half + i / 2 % 2;
                block.steps[i / 4].as_chunks_mut::<8>().0[place] = cast([even, even, odd, odd]);
                block.moved[i / 4].as_chunks_mut::<8>().0[place] = cast([*first, 0, *second, 0]);
            }
        }
    }
}

/// The largest sizes of a group, as bits: that of the even eights in the first half of the lanes, that of the odd ones
/// in the second.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn of_eights(x: &[u8; 128]) -> __m512i {
    let fours = of_two_fours(x);
    _mm512_max_epu32(fours, _mm512_shuffle_i64x2::<0b10_11_00_01>(fours, fours))
}

/// The first lane of each half.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn even_and_odd(a: V) -> [f32; 2] {
    [_mm512_cvtss_f32(a), _mm512_cvtss_f32(_mm512_shuffle_f32x4::<0b10_10_10_10>(a, a))]
}

/// A group that is rounded.
struct Group {
    halves: [[u8; 16]; 2],
    /// The sum of each eight.
    eights: [i16; 4],
    /// -32 times these.
    moved: [i16; 4],
}

/// Numbers times what their scales are the inverse of.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn group(x: &[u8; 128], by: V) -> Group {
    let (x, _) = x.as_chunks::<64>();
    let first = _mm512_cvtepi32_epi8(whole(&x[0], by));
    let second = _mm512_cvtepi32_epi8(whole(&x[1], by));
    let mut halves = [[0; 16]; 2];
    store_quarter(first, &mut halves[0]);
    store_quarter(second, &mut halves[1]);
    let ones = _mm256_set1_epi8(1);
    let fours = _mm256_dpbusd_epi32(_mm256_setzero_si256(), ones, _mm256_set_m128i(second, first));
    // Each in both words of a quarter.
    let eights = _mm256_add_epi32(fours, _mm256_shuffle_epi32::<0b10_11_00_01>(fours));
    let moved = _mm256_slli_epi32::<5>(_mm256_sub_epi32(_mm256_setzero_si256(), eights));
    let [eights, moved] = [eights, moved].map(|lanes| _mm_cvtsi128_si64(_mm256_cvtepi64_epi16(lanes)));
    Group { halves, eights: cast(eights), moved: cast(moved) }
}
