//! Folders of MLX.

use fusebox_compiler::tensor::quant::Format;
use fusebox_runtime::weights::Checkpoint;
use serde_json::{Value as Json, json};
use support::packing::Tensor;

use crate::made::{becomes, dense, e2m1, e4m3, floats, folder_of, holds, rows, scales, tensor};
use crate::refusal;

const SHAPE: [usize; 2] = [6, 256];

fn config(quantization: &Json) -> Json {
    // Folders have the same twice.
    json!({"model_type": "llama", "quantization": quantization, "quantization_config": quantization})
}

/// A matrix of this name, and its numbers.
fn affine(name: &str, bits: usize, group: usize, dtype: &'static str) -> (Vec<Tensor>, Vec<f32>) {
    let [n_rows, n_columns] = SHAPE;
    let n_groups = n_columns / group;
    let codes = rows(bits as u64, SHAPE, 1 << bits);
    let part = |part: &str| format!("{name}.{part}");
    let (scale, s) = floats(&part("scales"), dtype, &[n_rows, n_groups], &scales(n_rows * n_groups));
    let biases: Vec<f32> = s.iter().rev().map(|scale| -9.0 * scale).collect();
    let (bias, b) = floats(&part("biases"), dtype, &[n_rows, n_groups], &biases);
    let words = dense(&codes, bits);
    let weight = tensor(&part("weight"), "U32", &[n_rows, words.len() / 4 / n_rows], words);
    let number = |at: usize| {
        let at_group = at / n_columns * n_groups + at % n_columns / group;
        s[at_group] * codes[at / n_columns][at % n_columns] as f32 + b[at_group]
    };
    (vec![weight, scale, bias], (0..n_rows * n_columns).map(number).collect())
}

#[test]
fn few_bits_become_blocks_with_an_offset() {
    for (bits, format) in [
        (2, Format::Q4_1),
        (3, Format::Q4_1),
        (4, Format::Q4_1),
        (5, Format::Q5_1),
        (6, Format::F32),
        (8, Format::F32),
    ] {
        for (group, dtype) in [(32, "F16"), (64, "BF16"), (128, "F16")] {
            let (tensors, numbers) = affine("a", bits, group, dtype);
            let says = json!({"group_size": group, "bits": bits});
            becomes(&folder_of("mlx", &config(&says), &tensors), SHAPE, format, &numbers);
        }
    }
    let (tensors, numbers) = affine("a", 4, 64, "F16");
    let says = json!({"model_type": "llama", "quantization_config": {"group_size": 64, "bits": 4}});
    becomes(&folder_of("mlx-one", &says, &tensors), SHAPE, Format::Q4_1, &numbers);
    let (tensors, numbers) = affine("a", 4, 64, "F32");
    let says = json!({"group_size": 64, "bits": 4, "mode": "affine"});
    becomes(&folder_of("mlx-single", &config(&says), &tensors), SHAPE, Format::F32, &numbers);
}

#[test]
fn modules_may_have_bits_of_their_own_or_none() {
    let (mut tensors, a) = affine("model.layers.0.a", 4, 64, "F16");
    let (others, b) = affine("model.layers.0.b", 8, 32, "F16");
    tensors.extend(others);
    tensors.push(tensor("lm_head.weight", "BF16", &[2, 2], vec![0; 8]));
    let says = json!({
        "group_size": 64, "bits": 4, "model.layers.0.b": {"group_size": 32, "bits": 8}, "lm_head": false,
    });
    let checkpoint = Checkpoint::open(&folder_of("mlx-own", &config(&says), &tensors)).unwrap();
    holds(&checkpoint, "model.layers.0.a.weight", &SHAPE, Format::Q4_1, &a);
    holds(&checkpoint, "model.layers.0.b.weight", &SHAPE, Format::F32, &b);
    assert_eq!(checkpoint.tensors().len(), 3);
}

#[test]
fn experts_lie_in_one_tensor() {
    let (mut tensors, numbers) = affine("a", 4, 64, "F16");
    for (_, _, shape, _) in &mut tensors {
        *shape = vec![2, 3, shape[1]];
    }
    let checkpoint =
        Checkpoint::open(&folder_of("mlx-experts", &config(&json!({"group_size": 64, "bits": 4})), &tensors));
    holds(&checkpoint.unwrap(), "a.weight", &[2, 3, 256], Format::Q4_1, &numbers);
}

#[test]
fn floats_of_few_bits_have_bytes_for_scales() {
    let [n_rows, n_columns] = SHAPE;
    let codes = rows(5, SHAPE, 16);
    let words = dense(&codes, 4);
    let weight = || tensor("a.weight", "U32", &[n_rows, n_columns / 8], words.clone());
    let code = |at: usize| e2m1(codes[at / n_columns][at % n_columns]);
    let bytes: Vec<u8> = (0..n_rows * n_columns / 16).map(|i| 0x30 + (i % 17) as u8).collect();
    let scale = tensor("a.scales", "U8", &[n_rows, n_columns / 16], bytes.clone());
    let numbers: Vec<f32> = (0..n_rows * n_columns).map(|at| code(at) * e4m3(bytes[at / 16])).collect();
    let says = json!({"group_size": 16, "bits": 4, "mode": "nvfp4"});
    let made = folder_of("mlx-nv", &config(&says), &[weight(), scale]);
    becomes(&made, SHAPE, Format::Int8 { group: 16 }, &numbers);
    let bytes: Vec<u8> = (0..n_rows * n_columns / 32).map(|i| 118 + (i % 11) as u8).collect();
    let scale = tensor("a.scales", "U8", &[n_rows, n_columns / 32], bytes.clone());
    let power = |at: usize| 2f32.powi(i32::from(bytes[at / 32]) - 127);
    let numbers: Vec<f32> = (0..n_rows * n_columns).map(|at| code(at) * power(at)).collect();
    let says = json!({"group_size": 32, "bits": 4, "mode": "mxfp4"});
    becomes(&folder_of("mlx-mx", &config(&says), &[weight(), scale]), SHAPE, Format::MXFP4, &numbers);
}

#[test]
fn what_does_not_fit_is_a_sentence() {
    let refused = |says: &Json| refusal(&folder_of("mlx-bad", &config(says), &affine("a", 4, 64, "F16").0));
    assert_eq!(
        refused(&json!({"group_size": 64, "bits": 7})),
        "key `quantization.bits`: expected 2, 3, 4, 5, 6 or 8, found `7`"
    );
    assert_eq!(
        refused(&json!({"group_size": 64, "bits": 4, "mode": "hqq"})),
        "key `quantization.mode`: expected affine or mxfp4 or nvfp4 or mxfp8, found `hqq`"
    );
    assert_eq!(
        refused(&json!({"group_size": 128, "bits": 4})),
        "tensor `a.scales`: expected the shape [6, 2], found [6, 4]"
    );
    assert_eq!(
        refused(&json!({"group_size": 96, "bits": 4})),
        "tensor `a.weight`: expected rows of whole groups of 96 codes of 4 bits, found 32 words"
    );
}
