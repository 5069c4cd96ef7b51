//! Quantises K-quant super-blocks of 256: groups with scales of their own, and one scale for these scales.
//!
//! In: 256 finite elements and a buffer for a block. Out: the bytes, as llama.cpp's reference quantisers have
//! them. First each group is fitted on its own (`fit.rs`); then the scales are rounded to what the block stores, and
//! the elements are quantised with the rounded ones. Where the bits go is a row of `fusebox_formats`.

use fusebox_formats::{Blocks, Groups, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K};

use crate::tensor::quant::fit::{Fit, Loss, Search, greatest, line, nearest, slope, slope_by_one};
use crate::tensor::quant::put::put_f16;

/// A scale that is less than this is none.
const NO_SCALE: f32 = 1e-15;

/// `scales:16 qs:64 d dmin`
pub(super) fn q2_k(x: &[f32], block: &mut [u8]) {
    let search = Search { most: 3, first: -0.5, step: 0.1, n_steps: 16, loss: Loss::Absolute };
    let weights = |x: &[f32; 16]| x.map(f32::abs);
    put_lines(&Q2_K, (x, weights), &search, 15.0, block);
}

/// `qh:32 qs:64 scales:12 d`
pub(super) fn q3_k(x: &[f32], block: &mut [u8]) {
    block.fill(0);
    let fits: Vec<(f32, [u8; 16])> =
        x.as_chunks::<16>().0.iter().map(|group| slope_by_one(group, 4)).collect();
    let slopes: Vec<f32> = fits.iter().map(|(slope, _)| *slope).collect();
    let steepest = greatest(&slopes);
    if steepest != 0.0 {
        let inverse = -32.0 / steepest;
        put_f16(block, 108, 1.0 / inverse);
        for (group, slope) in slopes.iter().enumerate() {
            let scale = nearest((inverse * slope).clamp(-32.0, 31.0));
            groups(&Q3_K).scales.put(block, group, (scale + 32.0) as u8);
        }
    }
    put_q3_k(x, &fits, block);
}

/// Puts elements into a block whose scales are there.
pub(super) fn put_q3_k(x: &[f32], fits: &[(f32, [u8; 16])], block: &mut [u8]) {
    for (group, (x, (_, quanta))) in x.chunks_exact(16).zip(fits).enumerate() {
        let (scale, _) = Q3_K.scale_and_offset(block, group);
        for (i, (x, fitted)) in x.iter().zip(quanta).enumerate() {
            let rounded = || (nearest((x / scale).clamp(-4.0, 3.0)) + 4.0) as u8;
            let q = if scale == 0.0 { *fitted } else { rounded() };
            Q3_K.quanta.put(block, group * 16 + i, q);
        }
    }
}

/// `d dmin scales:12 qs:128`
pub(super) fn q4_k(x: &[f32], block: &mut [u8]) {
    let search = Search { most: 15, first: -1.0, step: 0.1, n_steps: 21, loss: Loss::Square };
    put_lines(&Q4_K, (x, around_the_mean), &search, 63.0, block);
}

/// `d dmin scales:12 qh:32 qs:128`
pub(super) fn q5_k(x: &[f32], block: &mut [u8]) {
    let search = Search { most: 31, first: -0.5, step: 0.1, n_steps: 16, loss: Loss::Square };
    put_lines(&Q5_K, (x, around_the_mean), &search, 63.0, block);
}

/// `ql:128 qh:64 scales:16 d`, the scales with a sign
pub(super) fn q6_k(x: &[f32], block: &mut [u8]) {
    let weights: Vec<f32> = x.iter().map(|x| x * x).collect();
    q6_k_weighted(x, &weights, block);
}

/// The same, where every element counts as it is said.
pub(super) fn q6_k_weighted(x: &[f32], weights: &[f32], block: &mut [u8]) {
    block.fill(0);
    let mut slopes = [0.0; 16];
    let groups_of = x.as_chunks::<16>().0.iter().zip(weights.as_chunks::<16>().0);
    for (slope_of, (group, weights)) in slopes.iter_mut().zip(groups_of) {
        *slope_of = slope(group, weights, 32).0;
    }
    let steepest = greatest(&slopes);
    if steepest.abs() < NO_SCALE {
        return;
    }
    let inverse = -128.0 / steepest;
    put_f16(block, 208, 1.0 / inverse);
    for (group, slope) in slopes.iter().enumerate() {
        let scale = nearest(inverse * slope).min(127.0);
        groups(&Q6_K).scales.put(block, group, (scale as i8).cast_unsigned());
        let (scale, _) = Q6_K.scale_and_offset(block, group);
        if scale == 0.0 {
            continue;
        }
        for (i, x) in (0..).zip(x).skip(group * 16).take(16) {
            let q = nearest((x / scale).clamp(-32.0, 31.0));
            Q6_K.quanta.put(block, i, (q + 32.0) as u8);
        }
    }
}

pub(super) fn groups(blocks: &Blocks) -> &Groups {
    blocks.groups.as_ref().expect("super-blocks have groups")
}

/// Each element counts with its size and the mean of all.
fn around_the_mean(x: &[f32; 32]) -> [f32; 32] {
    let size = (x.iter().fold(0.0, |sum, x| sum + x * x) / 32.0).sqrt();
    x.map(|x| size + x.abs())
}

/// Fits groups of `N` with a weight for each element, writes their scales and offsets, which are at most `most`, and
/// quantises with what was written.
fn put_lines<const N: usize>(
    blocks: &Blocks,
    (x, weights): (&[f32], impl Fn(&[f32; N]) -> [f32; N]),
    search: &Search,
    most: f32,
    block: &mut [u8],
) {
    block.fill(0);
    let fits: Vec<Fit<N>> = x.as_chunks().0.iter().map(|group| line(group, weights(group), search)).collect();
    // Not `f32::max`, which may give either zero of 0.0 and -0.0.
    let largest = |most: f32, own: f32| if own > most { own } else { most };
    let scale = fits.iter().map(|fit| fit.scale).fold(0.0, largest);
    let offset = fits.iter().map(|fit| fit.offset).fold(0.0, largest);
    put_f16(block, blocks.scale.at, scale / most);
    put_f16(block, blocks.offset.expect("lines have offsets").at, offset / most);
    let per = |largest: f32| if largest > 0.0 { most / largest } else { 0.0 };
    let (per_scale, per_offset) = (per(scale), per(offset));
    let Groups { scales, offsets, .. } = groups(blocks);
    for (group, fit) in fits.iter().enumerate() {
        let rounded = |x: f32| nearest(x.min(most)) as u8;
        scales.put(block, group, rounded(per_scale * fit.scale));
        offsets.as_ref().expect("as above").put(block, group, rounded(per_offset * fit.offset));
    }
    put_on_lines(blocks, (x, &fits), search.most, block);
}

/// Puts elements into a block whose scales and offsets are there.
pub(super) fn put_on_lines<const N: usize>(
    blocks: &Blocks,
    (x, fits): (&[f32], &[Fit<N>]),
    most: u8,
    block: &mut [u8],
) {
    for (group, (fit, x)) in fits.iter().zip(x.chunks_exact(N)).enumerate() {
        let (scale, offset) = blocks.scale_and_offset(block, group);
        let offset = offset.expect("as above");
        for (i, x) in x.iter().enumerate() {
            // A group without a scale is its offset, whatever the quanta.
            let rounded = || nearest(((x + offset) / scale).clamp(0.0, f32::from(most))) as u8;
            let q = if scale == 0.0 { fit.quanta[i] } else { rounded() };
            blocks.quanta.put(block, group * N + i, q);
        }
    }
}
