//! Quantises blocks where some elements count more than others, as an importance matrix says.
//!
//! In: the elements of a block, how much the inputs that they are multiplied with count, the mean square of the row,
//! and a buffer. Out: the bytes that llama.cpp writes with an importance matrix. What an element counts grows with its
//! size as well. The searches are those of `fit.rs`; the scales of groups are fitted, too, where they are else only
//! rounded.

use fusebox_formats::{Blocks, Q2_K, Q3_K, Q4_K, Q5_K};

use crate::tensor::quant::Format;
use crate::tensor::quant::codebook::{iq4_nl_weighted, iq4_xs_weighted};
use crate::tensor::quant::fit::{Fit, Loss, Search, line, slope, slope_from_zero};
use crate::tensor::quant::put::{put_f16, put_quanta};
use crate::tensor::quant::superblock::{groups, put_on_lines, put_q3_k, q6_k_weighted};

/// Writes the elements of a block; `size` is the mean square of its row.
type Encode = fn(x: &[f32], importance: &[f32], size: f32, block: &mut [u8]);

/// What writes blocks of a format; nothing for those that are written as ever.
pub(super) fn encoder(format: Format) -> Option<Encode> {
    let encode: Encode = match format {
        Format::Q4_0 => |x, importance, size, block| around_zero(x, importance, size, 4, block),
        Format::Q4_1 => |x, importance, size, block| from_least(x, importance, size, 4, block),
        Format::Q5_0 => |x, importance, size, block| around_zero(x, importance, size, 5, block),
        Format::Q5_1 => |x, importance, size, block| from_least(x, importance, size, 5, block),
        Format::Q2K => |x, importance, _, block| {
            lines::<16, 16>(&Q2_K, (x, importance), 1.0, [3, 15], block);
        },
        Format::Q3K => |x, importance, _, block| q3_k(x, importance, block),
        Format::Q4K => |x, importance, _, block| {
            lines::<32, 8>(&Q4_K, (x, importance), 2.0, [15, 63], block);
        },
        Format::Q5K => |x, importance, _, block| {
            lines::<32, 8>(&Q5_K, (x, importance), 2.0, [31, 63], block);
        },
        Format::Q6K => |x, importance, _, block| q6_k_weighted(x, importance, block),
        Format::IQ4NL => |x, importance, _, block| {
            // The factor is rounded before it is used.
            iq4_nl_weighted(x, &counted(x, importance, sum_of_squares(x) * (2.0 / 32.0)), block);
        },
        Format::IQ4XS => |x, importance, _, block| {
            iq4_xs_weighted(x, &counted(x, importance, sum_of_squares(x) * (2.0 / 256.0)), block);
        },
        _ => return None,
    };
    Some(encode)
}

/// The mean of the squares of a row.
pub(super) fn mean_square(row: &[f32]) -> f32 {
    sum_of_squares(row) / row.len() as f32
}

fn sum_of_squares(x: &[f32]) -> f32 {
    x.iter().fold(0.0, |sum, x| sum + x * x)
}

/// What elements count: more if they are larger than `size`, a mean square.
fn counted(x: &[f32], importance: &[f32], size: f32) -> Vec<f32> {
    x.iter().zip(importance).map(|(x, importance)| importance * (size + x * x).sqrt()).collect()
}

/// `d qs`, with a fifth bit `d qh qs`
fn around_zero(x: &[f32], importance: &[f32], size: f32, n_bits: u32, block: &mut [u8]) {
    let weights = counted(x, importance, size);
    let (Some(x), Some(weights)) = (x.first_chunk::<32>(), weights.first_chunk()) else { return };
    let (scale, quanta) = slope(x, weights, 1 << (n_bits - 1));
    put_f16(block, 0, scale);
    put_quanta(&mut block[2..], n_bits, |i| f32::from(quanta[i]));
}

/// `d m qs`, with a fifth bit `d m qh qs`
fn from_least(x: &[f32], importance: &[f32], size: f32, n_bits: u32, block: &mut [u8]) {
    let weights = counted(x, importance, size);
    let (Some(x), Some(weights)) = (x.first_chunk::<32>(), weights.first_chunk()) else { return };
    let Fit { scale, offset, quanta } = line(x, *weights, &search((1 << n_bits) - 1));
    put_f16(block, 0, scale);
    put_f16(block, 2, -offset);
    put_quanta(&mut block[4..], n_bits, |i| f32::from(quanta[i]));
}

const fn search(most: u8) -> Search {
    Search { most, first: -0.9, step: 0.05, n_steps: 37, loss: Loss::Square }
}

/// Super-blocks of `G` groups of `N` with scales and offsets; elements have quanta up to the first of `most`, scales up
/// to the second.
fn lines<const N: usize, const G: usize>(
    blocks: &Blocks,
    (x, importance): (&[f32], &[f32]),
    factor: f32,
    [most, most_scale]: [u8; 2],
    block: &mut [u8],
) {
    block.fill(0);
    let weights = counted(x, importance, factor * sum_of_squares(x) / 256.0);
    let (mut scales, mut offsets, mut sums) = ([0.0; G], [0.0; G], [0.0; G]);
    let mut fits: Vec<Fit<N>> = Vec::with_capacity(G);
    let groups_of = x.as_chunks::<N>().0.iter().zip(weights.as_chunks::<N>().0);
    for (i, (x, weights)) in groups_of.enumerate() {
        let fit = line(x, *weights, &search(most));
        (scales[i], offsets[i], sums[i]) = (fit.scale, fit.offset, weights.iter().sum());
        fits.push(fit);
    }
    let (scale, scales) = slope_from_zero(&scales, &sums, most_scale);
    let (offset, offsets) = slope_from_zero(&offsets, &sums, most_scale);
    put_f16(block, blocks.scale.at, scale);
    let groups = groups(blocks);
    if let (Some(at), Some(numbers)) = (blocks.offset, &groups.offsets) {
        put_f16(block, at.at, offset);
        offsets.iter().enumerate().for_each(|(group, offset)| numbers.put(block, group, *offset));
    }
    scales.iter().enumerate().for_each(|(group, scale)| groups.scales.put(block, group, *scale));
    put_on_lines(blocks, (x, &fits), most, block);
}

/// `qh:32 qs:64 scales:12 d`
fn q3_k(x: &[f32], importance: &[f32], block: &mut [u8]) {
    block.fill(0);
    let weights = counted(x, importance, 2.0 * sum_of_squares(x) / 256.0);
    let (mut slopes, mut sums) = ([0.0; 16], [0.0; 16]);
    let mut fits = Vec::with_capacity(16);
    for (i, (x, weights)) in x.as_chunks().0.iter().zip(weights.as_chunks().0).enumerate() {
        let fit: (f32, [u8; 16]) = slope(x, weights, 4);
        (slopes[i], sums[i]) = (fit.0, weights.iter().sum());
        fits.push(fit);
    }
    let (scale, scales) = slope(&slopes, &sums, 32);
    put_f16(block, Q3_K.scale.at, scale);
    scales.iter().enumerate().for_each(|(group, scale)| groups(&Q3_K).scales.put(block, group, *scale));
    put_q3_k(x, &fits, block);
}

#[cfg(test)]
mod tests {
    use crate::foundation::random::Random;
    use crate::tensor::quant::Format;

    const WEIGHTED: [Format; 11] = [
        Format::Q4_0,
        Format::Q4_1,
        Format::Q5_0,
        Format::Q5_1,
        Format::Q2K,
        Format::Q3K,
        Format::Q4K,
        Format::Q5K,
        Format::Q6K,
        Format::IQ4NL,
        Format::IQ4XS,
    ];

    #[test]
    fn what_counts_is_kept_better() {
        let mut random = Random::new(9);
        let mut number = || random.below(1 << 20) as f32 / (1 << 19) as f32 - 1.0;
        let x: Vec<f32> = (0..4 * 512).map(|_| number()).collect();
        // One column in four counts.
        let weights: Vec<f32> = (0..512).map(|i| if i % 4 == 0 { 100.0 } else { 0.01 }).collect();
        for format in WEIGHTED {
            let mut bytes =
                [vec![0; format.bytes_for(x.len()).unwrap()], vec![0; format.bytes_for(x.len()).unwrap()]];
            format.encode(&x, &mut bytes[0]).unwrap();
            format.encode_weighted(&x, &weights, &mut bytes[1]).unwrap();
            let [plain, weighted] = bytes.map(|bytes| {
                let decoded = format.decode_all(&bytes, x.len()).unwrap();
                let pairs = decoded.iter().zip(&x).zip(weights.iter().cycle());
                pairs.map(|((a, b), weight)| f64::from(weight * (a - b) * (a - b))).sum::<f64>()
            });
            assert!(weighted < plain, "{format}: {weighted} and {plain}");
        }
    }

    #[test]
    fn rows_are_whole_and_zeros_stay() {
        for format in WEIGHTED {
            let mut bytes = vec![0xaa; format.bytes_for(512).unwrap()];
            assert!(format.encode_weighted(&[0.0; 512], &[1.0; 256], &mut bytes).is_some(), "{format}");
            let decoded = format.decode_all(&bytes, 512).unwrap();
            assert!(decoded.iter().all(|x| *x == 0.0), "{format}");
            assert!(format.encode_weighted(&[0.0; 512], &[0.0; 512], &mut bytes).is_some(), "{format}");
            assert!(format.encode_weighted(&[0.0; 512], &[1.0; 384], &mut bytes).is_none(), "{format}");
        }
    }
}
