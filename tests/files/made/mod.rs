//! Quantised folders: tensors that are made of several others.
//!
//! In: small tensors, packed here as the makers of such folders do. Out: the numbers that they stand for, or the
//! sentence.
//! Codes are packed as strings of bits here, one bit after another, and never as the reader takes them apart.

use std::fs;
use std::path::{Path, PathBuf};

use fusebox_compiler::foundation::random::Random;
use fusebox_compiler::tensor::quant::Format;
use fusebox_runtime::weights::{Checkpoint, Stored};
use half::{bf16, f16};
use serde_json::{Map, Value as Json, json};
use support::own::path;
use support::packing::Tensor;

mod bitsandbytes;
mod compressed;
mod mlx;
mod packed;
mod scaled;

/// A folder with these tensors and a configuration.
fn folder_of(name: &str, config: &Json, tensors: &[Tensor]) -> PathBuf {
    let folder = path(name);
    fs::create_dir_all(&folder).unwrap();
    let (mut header, mut data) = (Map::new(), Vec::new());
    for (name, dtype, shape, bytes) in tensors {
        let offsets = [data.len(), data.len() + bytes.len()];
        header.insert(name.clone(), json!({"dtype": dtype, "shape": shape, "data_offsets": offsets}));
        data.extend(bytes);
    }
    let header = Json::Object(header).to_string();
    let file = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &data].concat();
    fs::write(folder.join("model.safetensors"), file).unwrap();
    fs::write(folder.join("config.json"), config.to_string()).unwrap();
    folder
}

/// A folder whose configuration says so of quantisation.
fn folder(name: &str, method: &Json, tensors: &[Tensor]) -> PathBuf {
    folder_of(name, &json!({"model_type": "llama", "quantization_config": method}), tensors)
}

fn tensor(name: &str, dtype: &'static str, shape: &[usize], bytes: Vec<u8>) -> Tensor {
    (name.to_owned(), dtype, shape.to_vec(), bytes)
}

/// Numbers as a tensor of a type that is all floats, and as it holds them.
fn floats(name: &str, dtype: &'static str, shape: &[usize], numbers: &[f32]) -> (Tensor, Vec<f32>) {
    let one = |x: &f32| match dtype {
        "F32" => (x.to_le_bytes().to_vec(), *x),
        "BF16" => (bf16::from_f32(*x).to_le_bytes().to_vec(), bf16::from_f32(*x).to_f32()),
        _ => (f16::from_f32(*x).to_le_bytes().to_vec(), f16::from_f32(*x).to_f32()),
    };
    let (bytes, held): (Vec<_>, Vec<_>) = numbers.iter().map(one).unzip();
    (tensor(name, dtype, shape, bytes.concat()), held)
}

/// Codes of so many bits as words: each row one string of bits, from the lowest of its first word on.
fn dense(rows: &[Vec<u32>], bits: usize) -> Vec<u8> {
    let row = |codes: &Vec<u32>| {
        let string: Vec<bool> =
            codes.iter().flat_map(|code| (0..bits).map(move |i| code >> i & 1 == 1)).collect();
        let word = |bits: &[bool]| bits.iter().enumerate().map(|(i, bit)| u32::from(*bit) << i).sum::<u32>();
        string.chunks(32).flat_map(|bits| word(bits).to_le_bytes()).collect::<Vec<u8>>()
    };
    rows.iter().flat_map(row).collect()
}

/// The same with as many whole codes in each word as fit.
fn by_words(rows: &[Vec<u32>], bits: usize) -> Vec<u8> {
    let word = |codes: &[u32]| codes.iter().enumerate().map(|(i, code)| code << (i * bits)).sum::<u32>();
    rows.iter().flat_map(|row| row.chunks(32 / bits).flat_map(|codes| word(codes).to_le_bytes())).collect()
}

/// Columns as rows.
fn transposed<T: Copy>(rows: &[Vec<T>]) -> Vec<Vec<T>> {
    (0..rows[0].len()).map(|column| rows.iter().map(|row| row[column]).collect()).collect()
}

/// Random rows of numbers below a bound.
fn rows(seed: u64, [n_rows, n_columns]: [usize; 2], below: u32) -> Vec<Vec<u32>> {
    let mut random = Random::new(seed);
    let mut row = || (0..n_columns).map(|_| random.below(below as usize) as u32).collect();
    (0..n_rows).map(|_| row()).collect()
}

/// Scales of sizes that weights have, each another.
fn scales(n: usize) -> Vec<f32> {
    let mut random = Random::new(17);
    (0..n).map(|_| random.below(1000) as f32 / 7e4 + 1e-3).collect()
}

/// Bytes, none of which is E4M3 without a value.
fn bytes(n: usize) -> Vec<u8> {
    let mut random = Random::new(3);
    (0..n).map(|_| random.below(256) as u8).map(|byte| if byte & 0x7f == 0x7f { 0 } else { byte }).collect()
}

/// E4M3 by the bits of single precision; numbers below the normal ones are a mantissa times `2^-9`.
fn e4m3(bits: u8) -> f32 {
    let (sign, rest) = (u32::from(bits >> 7) << 31, u32::from(bits & 0x7f));
    if rest < 8 {
        return f32::from_bits(sign | (rest as f32 / 512.0).to_bits());
    }
    f32::from_bits(sign | ((rest << 20) + (120 << 23)))
}

/// The numbers of E2M1.
fn e2m1(code: u32) -> f32 {
    let sizes = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    if code < 8 { sizes[code as usize] } else { -sizes[code as usize - 8] }
}

/// Asserts that a tensor has this shape and format, and exactly these numbers.
#[track_caller]
fn holds(checkpoint: &Checkpoint, name: &str, shape: &[usize], format: Format, expected: &[f32]) {
    let info = &checkpoint.tensors()[name];
    assert_eq!((&info.shape[..], info.stored), (shape, Stored::As(format)));
    let bytes = checkpoint.bytes(name).unwrap();
    assert_eq!(bytes.len(), info.n_bytes());
    let found = format.decode_all(bytes, info.n_elements()).unwrap();
    let differs = found.iter().zip(expected).position(|(a, b)| a != b);
    assert_eq!(differs.map(|at| (at, found[at], expected[at])), None, "{name}");
    assert_eq!(found.len(), expected.len());
}

/// Asserts that a folder has nothing but a matrix `a.weight` of these numbers.
#[track_caller]
fn becomes(folder: &Path, shape: [usize; 2], format: Format, expected: &[f32]) {
    let checkpoint = Checkpoint::open(folder).unwrap();
    assert_eq!(checkpoint.tensors().keys().collect::<Vec<_>>(), ["a.weight"]);
    holds(&checkpoint, "a.weight", &shape, format, expected);
}

#[test]
fn a_method_that_is_not_known_is_refused_by_its_name() {
    let tensors = [tensor("a.weight", "F32", &[1], vec![0; 4])];
    let sentence = crate::refusal(&folder("unknown", &json!({"quant_method": "quip"}), &tensors));
    assert_eq!(
        sentence,
        "key `quantization_config.quant_method`: expected gptq, awq, auto-round, compressed-tensors, fp8, fbgemm_fp8, \
         modelopt, mxfp4, bitsandbytes or MLX's, found `quip`"
    );
}
