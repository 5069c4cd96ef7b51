//! Folders whose matrices GPTQ or AWQ packed.
//!
//! In: small matrices of four bits, packed here as their makers do. Out: the same numbers as plain dequantisation
//! gives, bit for bit, or the sentence.

use std::ops::Range;

use fusebox_compiler::tensor::quant::Format;
use serde_json::{Value as Json, json};
use support::packing::{Matrix, Tensor};

use crate::made::{becomes, dense, floats, folder, rows, scales, tensor, transposed};
use crate::refusal;

const SHAPE: [usize; 2] = [16, 128];
const GROUP: usize = 64;

/// A matrix with zeros from a range.
fn random(zeros: Range<u32>) -> Matrix {
    Matrix::random(SHAPE, GROUP, zeros)
}

#[track_caller]
fn check(name: &str, method: &Json, tensors: &[Tensor], matrix: &Matrix, format: Format) {
    becomes(&folder(name, method, tensors), SHAPE, format, &matrix.numbers());
}

#[test]
fn gptq_becomes_blocks_of_the_same_numbers() {
    let matrix = random(1..17);
    let method = json!({"quant_method": "gptq", "bits": 4, "group_size": 64, "desc_act": false});
    check("gptq", &method, &matrix.gptq("a", 1), &matrix, Format::Q5_0);
    let matrix = random(0..16);
    let method = json!({"quant_method": "gptq", "bits": 4, "checkpoint_format": "gptq_v2"});
    check("gptq-v2", &method, &matrix.gptq("a", 0), &matrix, Format::Q5_0);
}

#[test]
fn matrices_without_zeros_of_their_own_need_four_bits_only() {
    let matrix = random(8..9);
    let method = json!({"quant_method": "gptq", "bits": 4, "sym": true});
    check("gptq-even", &method, &matrix.gptq("a", 1), &matrix, Format::Q4_0);
}

/// Matrices of any number of bits, with the groups of inputs in any order.
struct Gptq {
    bits: usize,
    is_symmetric: bool,
    lacking: u32,
    order: Vec<u32>,
}

impl Gptq {
    /// Its tensors, and its numbers.
    fn made(&self) -> (Vec<Tensor>, Vec<f32>) {
        let [n_outputs, n_inputs] = [32, 128];
        let (bits, n_groups) = (self.bits, n_inputs / GROUP);
        let codes = rows(1, [n_outputs, n_inputs], 1 << bits);
        let zeros = if self.is_symmetric {
            vec![vec![(1 << (bits - 1)) - self.lacking; n_outputs]; n_groups]
        } else {
            rows(2, [n_groups, n_outputs], 1 << bits)
        };
        let (scale, held) = floats("a.scales", "F16", &[n_groups, n_outputs], &scales(n_groups * n_outputs));
        // Each output is a string of bits, whose words lie a row apart.
        let down = dense(&codes, bits);
        let words: Vec<Vec<[u8; 4]>> =
            down.chunks(down.len() / n_outputs).map(|one| one.as_chunks().0.to_vec()).collect();
        let tensors = vec![
            tensor(
                "a.qweight",
                "I32",
                &[n_inputs * bits / 32, n_outputs],
                transposed(&words).concat().concat(),
            ),
            tensor("a.qzeros", "I32", &[n_groups, n_outputs * bits / 32], dense(&zeros, bits)),
            scale,
            tensor("a.g_idx", "I32", &[n_inputs], self.order.iter().flat_map(|i| i.to_le_bytes()).collect()),
        ];
        let number = |output: usize, input: usize| {
            let group = self.order[input] as usize;
            let zero = (zeros[group][output] + self.lacking) as f32;
            held[group * n_outputs + output] * (codes[output][input] as f32 - zero)
        };
        let all = (0..n_outputs).flat_map(|output| (0..n_inputs).map(move |input| (output, input)));
        (tensors, all.map(|(output, input)| number(output, input)).collect())
    }

    #[track_caller]
    fn check(&self, bits_said: usize, format: Format) {
        let (tensors, numbers) = self.made();
        let version = if self.lacking == 0 { "gptq_v2" } else { "gptq" };
        let method = json!({"quant_method": "gptq", "bits": bits_said, "checkpoint_format": version});
        becomes(&folder("gptq-bits", &method, &tensors), [32, 128], format, &numbers);
    }
}

#[test]
fn gptq_has_two_three_or_eight_bits_too() {
    let order: Vec<u32> = (0..128).map(|input| input / GROUP as u32).collect();
    for lacking in [0, 1] {
        for (bits, is_symmetric, format) in [
            (2, true, Format::Q4_0),
            (2, false, Format::Q4_0),
            (3, true, Format::Q4_0),
            (3, false, Format::Q4_0),
            (8, true, Format::Q8_0),
            (8, false, Format::F32),
        ] {
            Gptq { bits, is_symmetric, lacking, order: order.clone() }.check(bits, format);
        }
    }
    // A module with bits of its own.
    Gptq { bits: 8, is_symmetric: true, lacking: 1, order }.check(4, Format::Q8_0);
}

#[test]
fn inputs_may_be_in_another_order_than_their_groups() {
    let order: Vec<u32> = (0..128).map(|input| input * 5 % 128 / GROUP as u32).collect();
    for bits in [2, 3, 4, 8] {
        Gptq { bits, is_symmetric: false, lacking: 1, order: order.clone() }.check(bits, Format::F32);
    }
}

#[test]
fn what_auto_round_writes_is_one_of_both() {
    let matrix = random(1..17);
    let method = json!({"quant_method": "auto-round", "bits": 4, "packing_format": "auto_round:auto_gptq"});
    check("auto-gptq", &method, &matrix.gptq("a", 1), &matrix, Format::Q5_0);
    let matrix = random(0..16);
    let method = json!({"quant_method": "auto-round", "bits": 4, "packing_format": "auto_round:auto_awq"});
    check("auto-awq", &method, &matrix.awq("a"), &matrix, Format::Q5_0);
}

#[test]
fn awq_becomes_blocks_of_the_same_numbers() {
    let matrix = random(0..16);
    let method = json!({"quant_method": "awq", "bits": 4, "zero_point": true, "version": "gemm"});
    check("awq", &method, &matrix.awq("a"), &matrix, Format::Q5_0);
}

#[test]
fn what_cannot_be_brought_there_exactly_is_a_sentence() {
    let good = || random(1..17).gptq("a", 1);
    let method = json!({"quant_method": "gptq", "bits": 4});
    let refused = |method: &Json, tensors: &[Tensor]| refusal(&folder("bad-packed", method, tensors));
    let change = |idx: usize, shape: &[usize], n_bytes: usize| {
        let mut tensors = good();
        tensors[idx].2 = shape.to_vec();
        tensors[idx].3.truncate(n_bytes);
        refused(&method, &tensors)
    };
    let mut beyond = good();
    beyond[3].3[4] = 2;
    assert_eq!(refused(&method, &beyond), "tensor `a.g_idx`: expected groups below 2, found 2 at input 1");
    assert!(
        change(3, &[64], 256).starts_with("tensor `a.g_idx`: expected 128 numbers of i32, found i32 [64]")
    );
    assert!(
        change(2, &[2, 8], 32).starts_with("tensor `a.scales`: expected the shape [2, 16], found [2, 8]")
    );
    assert!(change(2, &[0, 16], 0).starts_with("tensor `a.scales`: expected groups of a number of inputs"));
    // Nothing at all, in more groups than anyone waits for.
    let mut empty = good();
    empty.truncate(3);
    for (tensor, n_rows) in empty.iter_mut().zip([1 << 38, 1 << 36, 1 << 36]) {
        (tensor.2, tensor.3) = (vec![n_rows, 0], Vec::new());
    }
    assert!(refused(&method, &empty).starts_with("tensor `a.scales`: expected groups of a number of inputs"));
    assert!(change(1, &[1, 2], 8).starts_with("tensor `a.qzeros`: expected the shape [2, 2], found [1, 2]"));
    assert!(change(0, &[15, 16], 960).starts_with("tensor `a.g_idx`: expected 120 numbers of i32"));
    assert!(refused(&method, &good()[..2]).starts_with("tensor `a.scales`: expected a tensor, found none"));
    for (method, sentence) in [
        (
            json!({"quant_method": "gptq", "bits": 5}),
            "key `quantization_config.bits`: expected 2, 3, 4 or 8, found 5",
        ),
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
            json!({"quant_method": "auto-round", "bits": 4, "packing_format": "itrex"}),
            "key `quantization_config.packing_format`: expected auto_round:auto_gptq or auto_round:auto_awq, found \
             `itrex`",
        ),
    ] {
        assert_eq!(refused(&method, &good()), sentence);
    }
}
