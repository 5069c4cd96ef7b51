//! Folders whose numbers have their scales in tensors of their own: FP8 in tiles, and MXFP4.
//!
//! In: small tensors of bytes. Out: the numbers that they stand for, or the sentence.

use fusebox_compiler::tensor::quant::Format;
use fusebox_runtime::weights::{Checkpoint, Stored};
use half::bf16;
use serde_json::json;

use crate::made::{bytes, e4m3, folder, tensor};
use crate::refusal;

#[test]
fn tiles_of_fp8_share_a_scale() {
    let (rows, columns) = (5, 70);
    let numbers = bytes(rows * columns);
    let scales: Vec<f32> = (0..9).map(|i| 0.01 + 0.003 * i as f32).collect();
    let method = json!({"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [2, 32]});
    for dtype in ["F32", "BF16"] {
        let scale = |i: usize| if dtype == "F32" { scales[i] } else { bf16::from_f32(scales[i]).to_f32() };
        let stored = scales.iter().flat_map(|scale| match dtype {
            "F32" => scale.to_le_bytes().to_vec(),
            _ => bf16::from_f32(*scale).to_le_bytes().to_vec(),
        });
        let plain = tensor("b.weight", "F32", &[1], vec![0; 4]);
        let tensors = [
            tensor("a.weight", "F8_E4M3", &[rows, columns], numbers.clone()),
            tensor("a.weight_scale_inv", dtype, &[3, 3], stored.collect()),
            plain,
        ];
        let checkpoint = Checkpoint::open(&folder("fp8", &method, &tensors)).unwrap();
        let info = &checkpoint.tensors()["a.weight"];
        assert_eq!(
            (&info.shape[..], info.stored, info.n_bytes()),
            (&[rows, columns][..], Stored::As(Format::BF16), 2 * rows * columns)
        );
        let found = Format::BF16.decode_all(checkpoint.bytes("a.weight").unwrap(), rows * columns).unwrap();
        for (i, (found, bits)) in found.iter().zip(&numbers).enumerate() {
            let scale = scale(i / columns / 2 * 3 + i % columns / 32);
            assert_eq!(*found, bf16::from_f32(e4m3(*bits) * scale).to_f32(), "{i}");
        }
        assert_eq!(checkpoint.tensors().len(), 2);
    }
}

#[test]
fn blocks_of_mxfp4_take_their_scales_in() {
    let (numbers, scales) = (bytes(2 * 3 * 2 * 16), (0..12).map(|i| 120 + i).collect::<Vec<u8>>());
    let tensors = [
        tensor("e.proj_blocks", "U8", &[2, 3, 2, 16], numbers.clone()),
        tensor("e.proj_scales", "U8", &[2, 3, 2], scales.clone()),
    ];
    let checkpoint = Checkpoint::open(&folder("mxfp4", &json!({"quant_method": "mxfp4"}), &tensors)).unwrap();
    let info = &checkpoint.tensors()["e.proj"];
    assert_eq!((&info.shape[..], info.stored), (&[2, 3, 64][..], Stored::As(Format::MXFP4)));
    let found = Format::MXFP4.decode_all(checkpoint.bytes("e.proj").unwrap(), 384).unwrap();
    let values = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    for (i, found) in found.iter().enumerate() {
        let bits = usize::from(numbers[i / 2] >> (i % 2 * 4) & 15);
        let sign = if bits < 8 { 1.0 } else { -1.0 };
        let scale = 2f32.powi(i32::from(scales[i / 32]) - 127);
        assert_eq!(*found, sign * values[bits % 8] * scale, "{i}");
    }
}

#[test]
fn pairs_that_do_not_fit_are_refused() {
    let tiles = json!({"quant_method": "fp8", "weight_block_size": [128, 128]});
    let a = |shape: &[usize]| tensor("a.weight", "F8_E4M3", shape, bytes(shape.iter().product()));
    let scales = |n: usize| tensor("a.weight_scale_inv", "F32", &[1, n], vec![0; 4 * n]);
    let blocks = |n: usize| tensor("a_blocks", "U8", &[2, n], bytes(2 * n));
    let exponents = tensor("a_scales", "U8", &[2], bytes(2));
    let mx = json!({"quant_method": "mxfp4"});
    for (method, tensors, sentence) in [
        (
            &json!({"quant_method": "fp8"}),
            vec![a(&[2, 8]), scales(3)],
            "`a.weight_scale_inv`: expected one scale, one for each of 2 rows or for groups of 8 columns, or \
             `weight_block_size` in the configuration, found [1, 3]",
        ),
        (
            &tiles,
            vec![a(&[2, 8]), scales(2)],
            "`a.weight_scale_inv`: expected the shape [1, 1], found [1, 2]",
        ),
        (&tiles, vec![a(&[8]), scales(1)], "`a.weight`: expected a matrix, found [8]"),
        (&tiles, vec![scales(1)], "`a.weight`: expected a tensor, found none"),
        (
            &tiles,
            vec![tensor("a.weight", "I8", &[2, 2], bytes(4)), scales(1)],
            "`a.weight`: expected f8_e4m3, found i8 [2, 2]",
        ),
        (&mx, vec![blocks(8), exponents.clone()], "`a_blocks`: expected rows of blocks of 16 bytes"),
        (&mx, vec![exponents], "`a_blocks`: expected a tensor, found none"),
    ] {
        let found = refusal(&folder("scaled", method, &tensors));
        assert!(found.contains(sentence), "{found}");
    }
}
