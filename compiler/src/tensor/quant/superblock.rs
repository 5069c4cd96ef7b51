//! Quantises K-quant super-blocks of 256: groups with scales of their own, and one scale for these scales.
//!
//! In: 256 finite elements and a buffer for a block. Out: the bytes, as llama.cpp's reference quantisers have
//! them. First each group is fitted on its own (`fit.rs`); then the scales are rounded to what the block stores, and
//! the elements are quantised with the rounded ones.

use half::f16;

use crate::tensor::quant::decode::k_scale_and_offset;
use crate::tensor::quant::encode::put_f16;
use crate::tensor::quant::fit::{Line, Search, line, nearest, slope};

/// The greatest scale or offset of 6 bits.
const MOST: f32 = 63.0;
/// A scale that is less than this is none.
const NO_SCALE: f32 = 1e-15;

/// `d dmin scales:12 qs:128`
pub(super) fn q4_k(x: &[f32], block: &mut [u8]) {
    let search = Search { most: 15, first: -1.0, n_steps: 21 };
    let quanta = put_lines(x, &search, block);
    put_nibbles(&quanta, &mut block[16..]);
}

/// `d dmin scales:12 qh:32 qs:128`
pub(super) fn q5_k(x: &[f32], block: &mut [u8]) {
    let search = Search { most: 31, first: -0.5, n_steps: 16 };
    let quanta = put_lines(x, &search, block);
    put_nibbles(&quanta, &mut block[48..]);
    for (i, q) in quanta.iter().enumerate() {
        block[16 + i % 32] |= (q >> 4) << (i / 32);
    }
}

/// `ql:128 qh:64 scales:16 d`, the scales with a sign
pub(super) fn q6_k(x: &[f32], block: &mut [u8]) {
    block.fill(0);
    let mut slopes = [0.0; 16];
    for (slope_of, group) in slopes.iter_mut().zip(x.chunks_exact(16)) {
        *slope_of = slope(group, 32);
    }
    let steepest = slopes.iter().fold(0.0, |found: f32, s| if s.abs() > found.abs() { *s } else { found });
    if steepest.abs() < NO_SCALE {
        return;
    }
    let inverse = -128.0 / steepest;
    put_f16(block, 208, 1.0 / inverse);
    let d = f16::from_le_bytes([block[208], block[209]]).to_f32();
    for (group, slope) in slopes.iter().enumerate() {
        let scale = nearest(inverse * slope).min(127.0);
        block[192 + group] = (scale as i8).cast_unsigned();
        let scale = d * scale;
        if scale == 0.0 {
            continue;
        }
        for (i, x) in (0..).zip(x).skip(group * 16).take(16) {
            let q = nearest((x / scale).clamp(-32.0, 31.0));
            put_six_bits(block, i, (q + 32.0) as u8);
        }
    }
}

/// Writes a quantum of 6 bits where `q6_k` of `decode.rs` reads it.
fn put_six_bits(block: &mut [u8], i: usize, q: u8) {
    let (half, row, column) = (i / 128, i / 32 % 4, i % 32);
    block[half * 64 + row % 2 * 32 + column] |= (q & 15) << (row / 2 * 4);
    block[128 + half * 32 + column] |= (q >> 4) << (row * 2);
}

/// Fits the eight groups, writes their scales and offsets, and quantises with what was written.
fn put_lines(x: &[f32], search: &Search, block: &mut [u8]) -> [u8; 256] {
    block.fill(0);
    let mut lines = [Line::default(); 8];
    for (fit, group) in lines.iter_mut().zip(x.as_chunks().0) {
        *fit = line(group, search);
    }
    // Not `f32::max`, which may give either zero of 0.0 and -0.0.
    let largest = |most: f32, own: f32| if own > most { own } else { most };
    let scale = lines.iter().map(|line| line.scale).fold(0.0, largest);
    let offset = lines.iter().map(|line| line.offset).fold(0.0, largest);
    put_f16(block, 0, scale / MOST);
    put_f16(block, 2, offset / MOST);
    let per = |most: f32| if most > 0.0 { MOST / most } else { 0.0 };
    let (per_scale, per_offset) = (per(scale), per(offset));
    let six_bits = |x: f32| nearest(x.min(MOST)) as u8;
    for (group, line) in lines.iter().enumerate() {
        put_group(
            &mut block[4..16],
            group,
            six_bits(per_scale * line.scale),
            six_bits(per_offset * line.offset),
        );
    }
    let mut quanta = [0; 256];
    for (group, (quanta, x)) in quanta.chunks_exact_mut(32).zip(x.chunks_exact(32)).enumerate() {
        let (scale, offset) = k_scale_and_offset(block, group);
        // A group without a scale is its offset, whatever the quanta.
        if scale == 0.0 {
            continue;
        }
        for (q, x) in quanta.iter_mut().zip(x) {
            *q = nearest(((x + offset) / scale).clamp(0.0, f32::from(search.most))) as u8;
        }
    }
    quanta
}

/// Writes a scale and an offset of 6 bits where `k_scale_and_offset` reads them.
fn put_group(s: &mut [u8], group: usize, scale: u8, offset: u8) {
    if group < 4 {
        s[group] |= scale;
        s[group + 4] |= offset;
    } else {
        s[group + 4] |= scale & 15 | (offset & 15) << 4;
        s[group - 4] |= scale >> 4 << 6;
        s[group] |= offset >> 4 << 6;
    }
}

/// Writes the low four bits: groups by pairs share 32 bytes.
fn put_nibbles(quanta: &[u8; 256], qs: &mut [u8]) {
    for (i, q) in quanta.iter().enumerate() {
        qs[i / 64 * 32 + i % 32] |= (q & 15) << (i / 32 % 2 * 4);
    }
}
