//! Folders whose matrices GPTQ or AWQ packed.
//!
//! In: small matrices of four bits, packed here as their makers do. Out: the same numbers as plain dequantisation
//! gives, bit for bit, or the sentence.

use std::fs;
use std::ops::Range;
use std::path::PathBuf;

use fusebox_compiler::tensor::quant::Format;
use fusebox_runtime::weights::{Checkpoint, Stored, open};
use serde_json::{Map, json};
use support::own::path;
use support::packing::{Matrix, Tensor};

use crate::refusal;

const SHAPE: [usize; 2] = [16, 128];
const GROUP: usize = 64;

/// A matrix with zeros from a range.
fn random(zeros: Range<u32>) -> Matrix {
    Matrix::random(SHAPE, GROUP, zeros)
}

/// A folder with these tensors, and a configuration that says how they are packed.
pub(super) fn folder(name: &str, method: &serde_json::Value, tensors: &[Tensor]) -> PathBuf {
    let folder = path(name);
    fs::create_dir_all(&folder).unwrap();
    let (mut header, mut data) = (Map::new(), Vec::new());
    for (name, dtype, shape, bytes) in tensors {
        let offsets = [data.len(), data.len() + bytes.len()];
        header.insert(name.clone(), json!({"dtype": dtype, "shape": shape, "data_offsets": offsets}));
        data.extend(bytes);
    }
    let header = serde_json::Value::Object(header).to_string();
    let file = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &data].concat();
    fs::write(folder.join("model.safetensors"), file).unwrap();
    let config = json!({"model_type": "llama", "quantization_config": method}).to_string();
    fs::write(folder.join("config.json"), config).unwrap();
    folder
}

#[track_caller]
fn check(checkpoint: &Checkpoint, matrix: &Matrix, format: Format) {
    assert_eq!(checkpoint.tensors().keys().collect::<Vec<_>>(), ["a.weight"]);
    let info = &checkpoint.tensors()["a.weight"];
    assert_eq!((&info.shape[..], info.stored), (&SHAPE[..], Stored::As(format)));
    let bytes = checkpoint.bytes("a.weight").unwrap();
    assert_eq!(bytes.len(), info.n_bytes());
    let found = format.decode_all(bytes, info.n_elements()).unwrap();
    assert!(found.iter().zip(matrix.numbers()).all(|(a, b)| *a == b));
}

#[test]
fn gptq_becomes_blocks_of_the_same_numbers() {
    let matrix = random(1..17);
    let method = json!({"quant_method": "gptq", "bits": 4, "group_size": 64, "desc_act": false});
    check(&open(&folder("gptq", &method, &matrix.gptq("a", 1))).unwrap(), &matrix, Format::Q5_0);
    let matrix = random(0..16);
    let method = json!({"quant_method": "gptq", "bits": 4, "checkpoint_format": "gptq_v2"});
    check(&open(&folder("gptq-v2", &method, &matrix.gptq("a", 0))).unwrap(), &matrix, Format::Q5_0);
}

#[test]
fn matrices_without_zeros_of_their_own_need_four_bits_only() {
    let matrix = random(8..9);
    let method = json!({"quant_method": "gptq", "bits": 4, "sym": true});
    check(&open(&folder("gptq-even", &method, &matrix.gptq("a", 1))).unwrap(), &matrix, Format::Q4_0);
}

#[test]
fn awq_becomes_blocks_of_the_same_numbers() {
    let matrix = random(0..16);
    let method = json!({"quant_method": "awq", "bits": 4, "zero_point": true, "version": "gemm"});
    check(&open(&folder("awq", &method, &matrix.awq("a"))).unwrap(), &matrix, Format::Q5_0);
}

#[test]
fn what_cannot_be_brought_there_exactly_is_a_sentence() {
    let good = || random(1..17).gptq("a", 1);
    let method = json!({"quant_method": "gptq", "bits": 4});
    let refused =
        |method: &serde_json::Value, tensors: &[Tensor]| refusal(&folder("bad-packed", method, tensors));
    let change = |idx: usize, shape: &[usize], n_bytes: usize| {
        let mut tensors = good();
        tensors[idx].2 = shape.to_vec();
        tensors[idx].3.truncate(n_bytes);
        refused(&method, &tensors)
    };
    let mut shuffled = good();
    shuffled[3].3[0] = 1;
    assert_eq!(
        refused(&method, &shuffled),
        "tensor `a.g_idx`: expected inputs in the order of their groups, found another order (desc_act) at input 0"
    );
    assert!(
        change(3, &[64], 256).starts_with("tensor `a.g_idx`: expected 128 numbers of i32, found i32 [64]")
    );
    assert!(
        change(2, &[2, 8], 32).starts_with("tensor `a.scales`: expected the shape [2, 16], found [2, 8]")
    );
    assert!(change(2, &[0, 16], 0).starts_with("tensor `a.scales`: expected groups of a multiple of 32"));
    // Nothing at all, in more groups than anyone waits for.
    let mut empty = good();
    empty.truncate(3);
    for (tensor, n_rows) in empty.iter_mut().zip([1 << 38, 1 << 36, 1 << 36]) {
        (tensor.2, tensor.3) = (vec![n_rows, 0], Vec::new());
    }
    assert!(refused(&method, &empty).starts_with("tensor `a.scales`: expected groups of a multiple of 32"));
    assert!(change(1, &[1, 2], 8).starts_with("tensor `a.qzeros`: expected the shape [2, 2], found [1, 2]"));
    assert!(change(0, &[15, 16], 960).starts_with("tensor `a.scales`: expected groups"));
    assert!(refused(&method, &good()[..2]).starts_with("tensor `a.scales`: expected a tensor, found none"));
    for (method, sentence) in [
        (json!({"quant_method": "gptq", "bits": 3}), "key `quantization_config.bits`: expected 4, found 3"),
        (json!({"quant_method": "awq"}), "key `quantization_config.bits`: expected 4, found none"),
        (
            json!({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}),
            "key `quantization_config.checkpoint_format`: expected gptq or gptq_v2, found `marlin`",
        ),
        (
            json!({"quant_method": "awq", "bits": 4, "version": "gemv"}),
            "key `quantization_config.version`: expected gemm, found `gemv`",
        ),
        (
            json!({"quant_method": "bitsandbytes", "bits": 8}),
            "key `quantization_config.quant_method`: expected gptq, awq, fp8 or mxfp4, found `bitsandbytes`",
        ),
    ] {
        assert_eq!(refused(&method, &good()), sentence);
    }
}
