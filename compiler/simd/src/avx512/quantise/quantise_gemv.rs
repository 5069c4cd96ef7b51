//! The activation layout `Int8Gemv`: 8-bit integers for GEMV, with a scale for each sixteen elements.
//!
//! In: columns in single precision. Out: rows for `gemv.rs`. Of the four runs of eight elements in a group of 32, the
//! even ones share a scale and the odd ones share another. So each 32-bit lane of a dot product has one scale, whether
//! its sum is of neighbours or of elements sixteen apart. Scales are multiples (1 to 63) of a unit that eight groups
//! share, so that products with K-quants can be scaled as integers. The scales of eight groups are infinite or NaN
//! where one of their numbers is.
//!
//! ```text
//! row = [numbers: i8 * k][halves: i8 * k][even: f32 * k/32][odd: f32 * k/32][sums: f32 * k/32][Large * k/1024]
//! even, odd: the two scales of each group
//! halves: for each 128 elements the first sixteen of each group, then the second sixteen of each
//! sums:   for each group the sum of its numbers times their scales
//! ```
//!
//! All pieces but the last are padded with zeros to a multiple of four groups. [`Large`] repeats four times eight
//! groups in the order in which K-quants are multiplied.

use std::arch::x86_64::{
    __m512i, _CMP_GT_OQ, _mm_cvtsi128_si64, _mm256_add_epi32, _mm256_cvtepi64_epi16, _mm256_dpbusd_epi32,
    _mm256_set_m128i, _mm256_set1_epi8, _mm256_setzero_si256, _mm256_shuffle_epi32, _mm256_slli_epi32,
    _mm256_sub_epi32, _mm512_castsi512_ps, _mm512_cmp_ps_mask, _mm512_cvtepi32_epi8, _mm512_cvtss_f32,
    _mm512_maskz_div_ps, _mm512_max_epu32, _mm512_min_ps, _mm512_mul_ps, _mm512_reduce_max_epu32,
    _mm512_roundscale_ps, _mm512_setzero_si512, _mm512_shuffle_f32x4, _mm512_shuffle_i64x2,
};

use bytemuck::{Pod, Zeroable, cast, cast_slice, cast_slice_mut};

use crate::avx512::quantise::quantise_rows::{of_two_fours, whole};
use crate::avx512::vector::{V, splat, store_quarter, zero};
use crate::layout::sizes::{SUPER_BLOCK_ACTIVATION_BYTES, int8_gemv_bytes, int8_gemv_pieces};
use crate::view::QuantiseView;

/// Steps of the largest scale: sums of products with large blocks fit into 32 bits, whatever the blocks hold.
const STEPS: f32 = 63.0;

/// Eight groups of smaller numbers are zero: nothing divides by their unit.
const LEAST: f32 = 1e-34;

/// Rounding upwards, without exceptions.
const UP: i32 = 0b1010;

/// Activations for four super-blocks; lines of 16-bit numbers, except `blocks` and `units`.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Large {
    pub(crate) blocks: [Block; 4],
    /// The two scales of each group as multiples of its unit: of even and of odd runs of eight.
    pub(crate) even_steps: [u8; 64],
    pub(crate) odd_steps: [u8; 64],
    /// The sums of the numbers with these scales.
    pub(crate) even_sums: [u8; 64],
    pub(crate) odd_sums: [u8; 64],
    /// The units, each twice, in single precision.
    pub(crate) units: [[[u8; 4]; 2]; 4],
    rest: [u8; 32],
}

/// Eight groups in the order of `dot_16_bits` in `gemv.rs`.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Block {
    /// The numbers once more: groups 0 and 2, 1 and 3, 4 and 6, 5 and 7.
    pub(crate) numbers: [[u8; 64]; 4],
    /// The scale of each four, in 256ths of a unit.
    pub(crate) steps: [[u8; 64]; 2],
    /// -32 times the sum of each eight, at its first four: cancels the zero point of `Q6_K`.
    pub(crate) moved: [[u8; 64]; 2],
}

const _: () = assert!(size_of::<Large>() == SUPER_BLOCK_ACTIVATION_BYTES);

/// A quantised column.
#[derive(Clone, Copy)]
pub(crate) struct GemvActivations<'a> {
    pub(crate) numbers: &'a [u8],
    pub(crate) halves: &'a [u8],
    pub(crate) even: &'a [u8],
    pub(crate) odd: &'a [u8],
    pub(crate) sums: &'a [u8],
    pub(crate) larges: &'a [Large],
}

impl<'a> GemvActivations<'a> {
    #[inline(always)]
    pub(crate) fn new(bytes: &'a [u8], k: usize) -> Self {
        let [numbers, halves, even, odd, sums, larges] = int8_gemv_pieces(k);
        let (numbers, rest) = bytes.split_at(numbers);
        let (halves, rest) = rest.split_at(halves);
        let (even, rest) = rest.split_at(even);
        let (odd, rest) = rest.split_at(odd);
        let (sums, rest) = rest.split_at(sums);
        Self { numbers, halves, even, odd, sums, larges: cast_slice(&rest[..larges]) }
    }
}

/// A row that is being written.
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
        let [numbers, halves, even, odd, sums, larges] = int8_gemv_pieces(k);
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

    /// Pads with zeros from group `n` on.
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
pub(crate) fn quantise(job: &mut QuantiseView<'_>) {
    let k = job.k;
    for (c, row) in job.out.chunks_exact_mut(int8_gemv_bytes(1, k)).enumerate().take(job.n_cols) {
        let x = job.x[c * job.x_col..][..4 * k].as_chunks::<128>().0;
        let mut row = Row::new(row, k);
        for large in &mut *row.larges {
            // Missing blocks included.
            large.units = Zeroable::zeroed();
        }
        for (at, groups) in x.chunks(8).enumerate() {
            quantise_eight_groups(&mut row, at, groups);
        }
        row.clear_from(x.len());
    }
}

/// Quantises the `at`-th eight groups; the last may be fewer.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn quantise_eight_groups(row: &mut Row<'_>, at: usize, groups: &[[u8; 128]]) {
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

/// The largest absolute values of a group, as bits: of the even runs of eight in the first half of the lanes, of the
/// odd ones in the second.
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

/// A quantised group.
struct Group {
    halves: [[u8; 16]; 2],
    /// The sum of each run of eight.
    eights: [i16; 4],
    /// -32 times these sums.
    moved: [i16; 4],
}

/// Numbers times the inverses of their scales.
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
