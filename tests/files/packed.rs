//! Folders whose matrices GPTQ or AWQ packed.
//!
//! In: small matrices of four bits, packed here as their makers do. Out: the same numbers as plain dequantisation
//! gives, bit for bit, or the sentence.

use std::fs;
use std::path::PathBuf;

use fusebox_compiler::foundation::random::Random;
use fusebox_compiler::tensor::quant::Format;
use fusebox_runtime::weights::{Checkpoint, Stored, open};
use half::f16;
use serde_json::{Map, json};

use crate::files::{path, refusal};

const N_INPUTS: usize = 128;
const N_OUTPUTS: usize = 16;
const GROUP: usize = 64;
/// Which of eight neighbours AWQ puts where, from the lowest bits on.
const AWQ_ORDER: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];

/// A matrix before it is packed.
struct Matrix {
    /// By input, then output.
    q: Vec<u32>,
    /// By group, then output.
    zeros: Vec<u32>,
    scales: Vec<f16>,
}

impl Matrix {
    /// One with zeros from a range.
    fn new(zeros: std::ops::Range<u32>) -> Self {
        let mut random = Random::new(9);
        let n_groups = N_INPUTS / GROUP;
        let mut below = |n: u32| random.below(n as usize) as u32;
        let q = (0..N_INPUTS * N_OUTPUTS).map(|_| below(16)).collect();
        let spread = zeros.end - zeros.start;
        let zeros = (0..n_groups * N_OUTPUTS).map(|_| zeros.start + below(spread)).collect();
        let scales = (0..n_groups * N_OUTPUTS).map(|_| f16::from_f32(below(1000) as f32 / 7e4 + 1e-3));
        Self { q, zeros, scales: scales.collect() }
    }

    /// What it stands for, by output, then input.
    fn numbers(&self) -> Vec<f32> {
        let number = |at: usize| {
            let (output, input) = (at / N_INPUTS, at % N_INPUTS);
            let group = input / GROUP * N_OUTPUTS + output;
            let q = self.q[input * N_OUTPUTS + output] as f32 - self.zeros[group] as f32;
            self.scales[group].to_f32() * q
        };
        (0..N_INPUTS * N_OUTPUTS).map(number).collect()
    }
}

/// Eight inputs in a word.
fn down(q: &[u32]) -> Vec<u32> {
    let word = |at: usize| {
        let (row, output) = (at / N_OUTPUTS * 8, at % N_OUTPUTS);
        (0..8).fold(0, |word, i| word | q[(row + i) * N_OUTPUTS + output] << (4 * i))
    };
    (0..q.len() / 8).map(word).collect()
}

/// Eight outputs in a word, in an order.
fn across(q: &[u32], order: [usize; 8]) -> Vec<u32> {
    let word = |eight: &[u32]| (0..8).fold(0, |word, i| word | eight[order[i]] << (4 * i));
    q.chunks_exact(8).map(word).collect()
}

/// A tensor of a folder: name, type, shape and bytes.
type Tensor = (&'static str, &'static str, Vec<usize>, Vec<u8>);

fn words(name: &'static str, shape: [usize; 2], words: &[u32]) -> Tensor {
    (name, "I32", shape.to_vec(), words.iter().flat_map(|word| word.to_le_bytes()).collect())
}

fn scales(matrix: &Matrix) -> Tensor {
    let bytes = matrix.scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
    ("a.scales", "F16", vec![N_INPUTS / GROUP, N_OUTPUTS], bytes)
}

/// The tensors of GPTQ; the stored zeros lack so much.
fn gptq(matrix: &Matrix, lacking: u32) -> Vec<Tensor> {
    let zeros: Vec<u32> = matrix.zeros.iter().map(|zero| zero - lacking).collect();
    let order: Vec<u32> = (0..N_INPUTS).map(|input| (input / GROUP) as u32).collect();
    let index = words("a.g_idx", [N_INPUTS, 1], &order);
    vec![
        words("a.qweight", [N_INPUTS / 8, N_OUTPUTS], &down(&matrix.q)),
        words("a.qzeros", [N_INPUTS / GROUP, N_OUTPUTS / 8], &across(&zeros, [0, 1, 2, 3, 4, 5, 6, 7])),
        scales(matrix),
        (index.0, index.1, vec![N_INPUTS], index.3),
    ]
}

fn awq(matrix: &Matrix) -> Vec<Tensor> {
    vec![
        words("a.qweight", [N_INPUTS, N_OUTPUTS / 8], &across(&matrix.q, AWQ_ORDER)),
        words("a.qzeros", [N_INPUTS / GROUP, N_OUTPUTS / 8], &across(&matrix.zeros, AWQ_ORDER)),
        scales(matrix),
    ]
}

/// A folder with these tensors, and a configuration that says how they are packed.
fn folder(name: &str, method: &serde_json::Value, tensors: &[Tensor]) -> PathBuf {
    let folder = path(name);
    fs::create_dir_all(&folder).unwrap();
    let (mut header, mut data) = (Map::new(), Vec::new());
    for (name, dtype, shape, bytes) in tensors {
        let offsets = [data.len(), data.len() + bytes.len()];
        header.insert((*name).to_owned(), json!({"dtype": dtype, "shape": shape, "data_offsets": offsets}));
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
    assert_eq!((&info.shape[..], info.stored), (&[N_OUTPUTS, N_INPUTS][..], Stored::As(format)));
    let bytes = checkpoint.bytes("a.weight").unwrap();
    assert_eq!(bytes.len(), info.n_bytes());
    let found = format.decode_all(bytes, info.n_elements()).unwrap();
    assert!(found.iter().zip(matrix.numbers()).all(|(a, b)| *a == b));
}

#[test]
fn gptq_becomes_blocks_of_the_same_numbers() {
    let matrix = Matrix::new(1..17);
    let method = json!({"quant_method": "gptq", "bits": 4, "group_size": 64, "desc_act": false});
    check(&open(&folder("gptq", &method, &gptq(&matrix, 1))).unwrap(), &matrix, Format::Q5_0);
    let matrix = Matrix::new(0..16);
    let method = json!({"quant_method": "gptq", "bits": 4, "checkpoint_format": "gptq_v2"});
    check(&open(&folder("gptq-v2", &method, &gptq(&matrix, 0))).unwrap(), &matrix, Format::Q5_0);
}

#[test]
fn matrices_without_zeros_of_their_own_need_four_bits_only() {
    let matrix = Matrix::new(8..9);
    let method = json!({"quant_method": "gptq", "bits": 4, "sym": true});
    check(&open(&folder("gptq-even", &method, &gptq(&matrix, 1))).unwrap(), &matrix, Format::Q4_0);
}

#[test]
fn awq_becomes_blocks_of_the_same_numbers() {
    let matrix = Matrix::new(0..16);
    let method = json!({"quant_method": "awq", "bits": 4, "zero_point": true, "version": "gemm"});
    check(&open(&folder("awq", &method, &awq(&matrix))).unwrap(), &matrix, Format::Q5_0);
}

#[test]
fn what_cannot_be_brought_there_exactly_is_a_sentence() {
    let good = || gptq(&Matrix::new(1..17), 1);
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
    assert!(change(1, &[1, 2], 8).starts_with("tensor `a.qzeros`: expected the shape [2, 2], found [1, 2]"));
    assert!(change(0, &[15, 16], 960).starts_with("tensor `a.scales`: expected groups"));
    assert!(refused(&method, &good()[..2]).starts_with("tensor `a.scales`: expected a tensor, found none"));
    for (method, sentence) in [
        (json!({"quant_method": "gptq", "bits": 3}), "key `quantization_config.bits`: expected 4, found 3"),
        (json!({"quant_method": "awq"}), "key `quantization_config.bits`: expected 4, found none"),
        (
            json!({"quant_method": "awq", "bits": 4, "version": "gemv"}),
            "key `quantization_config.version`: expected gemm, found `gemv`",
        ),
        (
            json!({"quant_method": "fp8", "bits": 8}),
            "key `quantization_config.quant_method`: expected gptq or awq, found `fp8`",
        ),
    ] {
        assert_eq!(refused(&method, &good()), sentence);
    }
}
