//! Dequantises what is no block of the table: plain numbers, and groups whose scales are stored apart.
//!
//! In: the bytes of one number, or those of a group followed by its scale, and a buffer; `Format` sees to both. Out:
//! the numbers. All are little-endian.

use half::{bf16, f16};

use crate::tensor::dtype::DType;

/// A number of a plain type.
pub(super) fn plain(dtype: DType, bytes: &[u8]) -> f32 {
    match dtype {
        DType::F32 => f32::from_le_bytes(bytes_at(bytes, 0)),
        DType::F16 => f16::from_le_bytes(bytes_at(bytes, 0)).to_f32(),
        DType::BF16 => bf16::from_le_bytes(bytes_at(bytes, 0)).to_f32(),
        DType::I32 => i32::from_le_bytes(bytes_at(bytes, 0)) as f32,
    }
}

/// `qs:group d:f32`, the elements with a sign
pub(super) fn int8(block: &[u8], out: &mut [f32]) {
    let d = f32::from_le_bytes(bytes_at(block, out.len()));
    for (y, q) in out.iter_mut().zip(block) {
        *y = d * f32::from(q.cast_signed());
    }
}

fn bytes_at<const N: usize>(block: &[u8], start: usize) -> [u8; N] {
    std::array::from_fn(|i| block[start + i])
}

#[cfg(test)]
mod tests {
    use crate::tensor::quant::Format;

    #[test]
    fn plain_elements_are_little_endian() {
        let check = |format: Format, bytes: &[u8], expected: f32| {
            assert_eq!(format.decode_all(bytes, 1), Some(vec![expected]), "{format}");
        };
        check(Format::F32, &[0x00, 0x00, 0x20, 0xc1], -10.0);
        check(Format::F16, &[0x00, 0xc9], -10.0);
        check(Format::BF16, &[0x20, 0xc1], -10.0);
        check(Format::I32, &[0xfe, 0xff, 0xff, 0xff], -2.0);
        check(Format::I32, &[0x04, 0x03, 0x02, 0x01], 16_909_060.0);
    }

    #[test]
    fn bytes_have_a_sign_and_their_scales_follow_them() {
        let qs = (0..32).map(|i: i16| (i * 8 - 127) as u8);
        let bytes: Vec<u8> = qs.chain(0.3_f32.to_le_bytes()).collect();
        let expected: Vec<f32> = (0..32_u8).map(|i| 0.3 * (f32::from(i) * 8.0 - 127.0)).collect();
        assert_eq!(Format::Int8 { group: 32 }.decode_all(&bytes, 32), Some(expected));
    }
}
