//! Quantises to the formats whose numbers are sixteen values of a table.
//!
//! In: the finite elements of a block, what each counts, and a buffer for it. Out: the bytes, as llama.cpp's quantisers
//! have them. A scale is the slope of the best of several roundings; without an importance matrix each element counts
//! with its square.

use fusebox_formats::{Blocks, Code, IQ4_NL, IQ4_XS, MXFP4, half_e8m0};

use crate::tensor::quant::fit::{NOTHING, greatest, nearest};
use crate::tensor::quant::put::put_f16;

/// Elements of a group.
const GROUP: usize = 32;
/// Roundings that are tried on either side of the one that fits the largest element.
const N_TRIES: i8 = 7;

/// `d qs:16`
pub(super) fn iq4_nl(x: &[f32], block: &mut [u8]) {
    iq4_nl_weighted(x, &squares(x), block);
}

/// The same, where every element counts as it is said.
pub(super) fn iq4_nl_weighted(x: &[f32], weights: &[f32], block: &mut [u8]) {
    block.fill(0);
    let values = values(&IQ4_NL);
    let scale = slope(x, weights, values);
    put_f16(block, 0, scale);
    put_nearest(&IQ4_NL, (0, x), values, scale, block);
}

/// `d scales_h:2 scales_l:4 qs:128`
pub(super) fn iq4_xs(x: &[f32], block: &mut [u8]) {
    iq4_xs_weighted(x, &squares(x), block);
}

/// The same, where every element counts as it is said.
pub(super) fn iq4_xs_weighted(x: &[f32], weights: &[f32], block: &mut [u8]) {
    block.fill(0);
    let values = values(&IQ4_XS);
    let mut slopes = [0.0; 8];
    let groups = x.chunks_exact(GROUP).zip(weights.chunks_exact(GROUP));
    for (slope_of, (x, weights)) in slopes.iter_mut().zip(groups) {
        *slope_of = slope(x, weights, values);
    }
    let d = -greatest(&slopes) / 32.0;
    put_f16(block, 0, d);
    let by = inverse(d);
    let groups = IQ4_XS.groups.as_ref().expect("its groups have scales");
    for (group, (slope, x)) in slopes.iter().zip(x.chunks_exact(GROUP)).enumerate() {
        let scale = nearest((by * slope).clamp(-32.0, 31.0));
        groups.scales.put(block, group, (scale + 32.0) as u8);
        put_nearest(&IQ4_XS, (GROUP * group, x), values, d * scale, block);
    }
}

/// `e qs:16`: the scale is the power of two with which the largest element is at most 4 to 8 halves.
pub(super) fn mxfp4(x: &[f32], block: &mut [u8]) {
    block.fill(0);
    let most = greatest(x).abs();
    block[0] = if most > 0.0 { ((f64::from(most).log2() as f32).floor() - 2.0 + 127.0) as u8 } else { 0 };
    let scale = f32::from_bits(half_e8m0(block[0]));
    let values = values(&MXFP4);
    for (i, x) in x.iter().enumerate() {
        let loss = |bits: u8| (f32::from(values[usize::from(bits)]) * scale - x).abs();
        let best = (1..16).fold(0, |best, bits| if loss(bits) < loss(best) { bits } else { best });
        MXFP4.quanta.put(block, i, best);
    }
}

fn squares(x: &[f32]) -> Vec<f32> {
    x.iter().map(|x| x * x).collect()
}

fn values(blocks: &Blocks) -> &'static [i8; 16] {
    match blocks.quanta.code {
        Code::Table(values) => values,
        Code::From(_) | Code::Signed => unreachable!("these formats have a table"),
    }
}

/// What divides by a scale; nothing is divided by none.
fn inverse(d: f32) -> f32 {
    if d == 0.0 { 0.0 } else { 1.0 / d }
}

/// Writes the elements from a place of the block on.
fn put_nearest(
    blocks: &Blocks,
    (first, x): (usize, &[f32]),
    values: &[i8; 16],
    scale: f32,
    block: &mut [u8],
) {
    let by = inverse(scale);
    for (i, x) in x.iter().enumerate() {
        blocks.quanta.put(block, first + i, nearest_value(values, by * x));
    }
}

/// Which of sorted values is nearest; of two the larger one.
fn nearest_value(values: &[i8; 16], x: f32) -> u8 {
    let middles = values.windows(2).map(|two| f32::from(i16::from(two[0]) + i16::from(two[1])));
    middles.filter(|middle| x + x >= *middle).count() as u8
}

/// The scale of a group.
fn slope(x: &[f32], weights: &[f32], values: &[i8; 16]) -> f32 {
    let extreme = greatest(x);
    if extreme.abs() < NOTHING {
        return 0.0;
    }
    let least = f32::from(values[0]);
    let sums = |by: f32| {
        x.iter().zip(weights).fold((0.0, 0.0), |(products, squares), (x, weight)| {
            let value = f32::from(values[usize::from(nearest_value(values, by * x))]);
            (products + weight * value * x, squares + weight * value * value)
        })
    };
    let (products, squares) = sums(1.0 / (-extreme / least));
    let mut found = if squares > 0.0 { products / squares } else { 0.0 };
    let mut best = found * products;
    for step in -N_TRIES..=N_TRIES {
        let (products, squares) = sums((f32::from(step) + least) / extreme);
        if squares > 0.0 && products * products > best * squares {
            found = products / squares;
            best = found * products;
        }
    }
    found
}
