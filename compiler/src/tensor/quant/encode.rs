//! Quantises blocks, format by format: the way back from decoding.
//!
//! In: exactly the elements of one block, all finite, and a buffer of its bytes; `Format` sees to both. Out: the
//! bytes. The choices are those of llama.cpp's reference quantisers, rounding and order of the sums included, so that
//! the bytes are equal. Super-blocks of 256 are in `superblock.rs`, numbers of a table in `codebook.rs`; where it is
//! known what each element counts, `weighted.rs`.

use half::bf16;

use crate::tensor::quant::fit::greatest;
use crate::tensor::quant::put::{put_f16, put_quanta};
use crate::tensor::quant::{Format, codebook, superblock};

/// Writes the elements of a block.
type Encode = fn(elements: &[f32], block: &mut [u8]);

/// What writes blocks of a format; nothing for those that no tensor is put into.
pub(super) fn encoder(format: Format) -> Option<Encode> {
    let encode: Encode = match format {
        Format::F32 => plain_f32,
        Format::F16 => |x, block| put_f16(block, 0, x[0]),
        Format::BF16 => |x, block| block.copy_from_slice(&bf16::from_f32(x[0]).to_le_bytes()),
        Format::Q4_0 => |x, block| around_zero(x, 4, block),
        Format::Q4_1 => |x, block| from_least(x, 4, block),
        Format::Q5_0 => |x, block| around_zero(x, 5, block),
        Format::Q5_1 => |x, block| from_least(x, 5, block),
        Format::Q8_0 => q8_0,
        Format::Q2K => superblock::q2_k,
        Format::Q3K => superblock::q3_k,
        Format::Q4K => superblock::q4_k,
        Format::Q5K => superblock::q5_k,
        Format::Q6K => superblock::q6_k,
        Format::IQ4NL => codebook::iq4_nl,
        Format::IQ4XS => codebook::iq4_xs,
        Format::MXFP4 => codebook::mxfp4,
        Format::I32 | Format::Q4Pairs | Format::Int8 { .. } => return None,
    };
    Some(encode)
}

fn plain_f32(x: &[f32], block: &mut [u8]) {
    block.copy_from_slice(&x[0].to_le_bytes());
}

/// `d qs`, with a fifth bit `d qh qs`: the element of greatest size becomes the least quantum, whatever its sign.
fn around_zero(x: &[f32], n_bits: u32, block: &mut [u8]) {
    let half = (1 << (n_bits - 1)) as f32;
    let d = greatest(x) / -half;
    let inverse = inverse(d);
    put_f16(block, 0, d);
    put_quanta(&mut block[2..], n_bits, |i| x[i] * inverse + (half + 0.5));
}

/// `d m qs`, with a fifth bit `d m qh qs`: the quanta count from the least element to the greatest.
fn from_least(x: &[f32], n_bits: u32, block: &mut [u8]) {
    let (least, most) = x.iter().fold((f32::MAX, f32::MIN), |(a, b), x| (a.min(*x), b.max(*x)));
    let d = (most - least) / ((1 << n_bits) - 1) as f32;
    let inverse = inverse(d);
    put_f16(block, 0, d);
    put_f16(block, 2, least);
    put_quanta(&mut block[4..], n_bits, |i| (x[i] - least) * inverse + 0.5);
}

/// `d qs:32`, the elements with a sign.
fn q8_0(x: &[f32], block: &mut [u8]) {
    let d = greatest(x).abs() / 127.0;
    let inverse = inverse(d);
    put_f16(block, 0, d);
    for (q, x) in block[2..].iter_mut().zip(x) {
        *q = ((x * inverse).round() as i8).cast_unsigned();
    }
}

/// What divides by a scale; nothing is divided by none.
fn inverse(d: f32) -> f32 {
    if d == 0.0 { 0.0 } else { 1.0 / d }
}

#[cfg(test)]
mod tests {
    use crate::foundation::random::Random;
    use crate::tensor::quant::Format;

    const ENCODED: [Format; 16] = [
        Format::F32,
        Format::F16,
        Format::BF16,
        Format::Q4_0,
        Format::Q4_1,
        Format::Q5_0,
        Format::Q5_1,
        Format::Q8_0,
        Format::Q2K,
        Format::Q3K,
        Format::Q4K,
        Format::Q5K,
        Format::Q6K,
        Format::IQ4NL,
        Format::IQ4XS,
        Format::MXFP4,
    ];

    /// Twelve blocks of 256 numbers: even ones, ones with few large among them, one-sided ones, and zeros.
    fn numbers() -> Vec<f32> {
        let mut random = Random::new(4);
        let mut numbers = Vec::new();
        for block in 0..12 {
            for i in 0..256 {
                let x = random.below(1 << 20) as f32 / (1 << 19) as f32 - 1.0;
                numbers.push(match block {
                    0..4 => x,
                    4..8 => x * x * x * if i % 37 == 0 { 8.0 } else { 0.25 },
                    8 => x + 2.0,
                    9 => x * 0.001 - 3.0,
                    10 if i < 128 => x,
                    _ => 0.0,
                });
            }
        }
        numbers
    }

    fn encoded(format: Format, elements: &[f32]) -> Vec<u8> {
        let mut bytes = vec![0xaa; format.bytes_for(elements.len()).unwrap()];
        format.encode(elements, &mut bytes).unwrap();
        bytes
    }

    /// The root of the mean square of what is lost.
    fn loss(format: Format, elements: &[f32]) -> f64 {
        let decoded = format.decode_all(&encoded(format, elements), elements.len()).unwrap();
        let squares = decoded.iter().zip(elements).map(|(a, b)| f64::from(a - b) * f64::from(a - b));
        (squares.sum::<f64>() / elements.len() as f64).sqrt()
    }

    #[test]
    fn what_is_decoded_and_encoded_again_stays() {
        for format in [Format::F32, Format::F16, Format::BF16, Format::Q8_0] {
            let once = encoded(format, &numbers());
            let decoded = format.decode_all(&once, numbers().len()).unwrap();
            assert_eq!(encoded(format, &decoded), once, "{format}");
        }
    }

    #[test]
    fn more_bits_lose_less_and_zeros_lose_nothing() {
        let by_loss = [Format::Q4_0, Format::Q4K, Format::Q5K, Format::Q6K, Format::Q8_0, Format::F16];
        let losses = by_loss.map(|format| loss(format, &numbers()[..1024]));
        assert!(losses.windows(2).all(|pair| pair[1] < pair[0] * 0.9), "{losses:?}");
        for format in ENCODED {
            assert_eq!(loss(format, &[0.0; 512]), 0.0, "{format}");
            assert_eq!(loss(format, &[-0.0; 512]), 0.0, "{format}");
        }
    }

    #[test]
    fn only_whole_blocks_and_their_bytes_are_encoded() {
        for format in ENCODED {
            let (len, n_bytes) = (format.block_len(), format.block_bytes());
            let x = vec![1.0; 2 * len];
            assert!(format.encode(&x, &mut vec![0; 2 * n_bytes]).is_some(), "{format}");
            assert!(format.encode(&x, &mut vec![0; 2 * n_bytes - 1]).is_none(), "{format}");
            assert!(format.encode(&x, &mut vec![0; 2 * n_bytes + 1]).is_none(), "{format}");
            assert!(len == 1 || format.encode(&x[1..], &mut vec![0; 2 * n_bytes]).is_none(), "{format}");
        }
        assert!(Format::I32.encode(&[1.0], &mut [0; 4]).is_none());
    }
}
