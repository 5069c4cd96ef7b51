//! Whole checkpoints packed by GPTQ, AWQ, `compressed-tensors` or MLX.
//!
//! In: small models whose matrices are rounded here. Out: the logits of the same model with the rounded
//! weights in single precision.

use std::path::{Path, PathBuf};

use fusebox_compiler::options::Numbers;
use fusebox_compiler::tensor::quant::Format;
use fusebox_models::config::attention::Latent;
use fusebox_models::config::network::Experts;
use fusebox_models::config::rope::{Pairing, Rope};
use fusebox_models::load::Model;
use fusebox_models::naming::tensors::Names;
use fusebox_runtime::weights::Kind;
use half::f16;
use serde_json::{Value as Json, json};
use support::own::path;
use support::packing::{self, Matrix};
use support::plain::{Attention, Grouped, Plain};
use support::run::{Run, relative_error};

use crate::made::{Made, Tensor};
use crate::odd::{experts, grouped, latent, small};

/// Single precision, summed in another order.
const SAME: f64 = 1e-5;
/// Activations of 8 bits.
const ROUNDED: f64 = 3e-2;

/// How a folder is packed.
struct Packing {
    name: &'static str,
    /// Its quantisation config.
    says: Json,
    /// What GPTQ subtracts from stored zero points.
    lacking: Option<u32>,
    /// Group size: inputs that share a scale, at most a whole row.
    group: usize,
    is_even: bool,
    /// The format that the matrices are loaded as.
    format: Format,
}

/// All variants.
fn packings() -> Vec<Packing> {
    let gptq = |name, says, group, is_even| {
        let format = if is_even { Format::Q4_0 } else { Format::Q5_0 };
        Packing { name, says, lacking: Some(1), group, is_even, format }
    };
    let mut all: Vec<Packing> = [("gptq-32", 32), ("gptq-64", 64), ("gptq-128", 128)]
        .into_iter()
        .map(|(name, group)| {
            let says = json!({"quant_method": "gptq", "bits": 4, "group_size": group, "sym": false});
            gptq(name, says, group, false)
        })
        .collect();
    let says = json!({"quant_method": "gptq", "bits": 4, "group_size": -1, "sym": true, "desc_act": false});
    all.push(gptq("gptq-rows", says, usize::MAX, true));
    // Groups chosen by activation order (`desc_act`) that are in order all the same.
    let says = json!({
        "quant_method": "gptq", "bits": 4, "group_size": 128, "sym": true, "desc_act": true,
        "static_groups": true, "checkpoint_format": "gptq",
    });
    all.push(gptq("gptq-static", says, 128, true));
    let says = json!({"quant_method": "gptq", "bits": 4, "group_size": 64, "checkpoint_format": "gptq_v2"});
    all.push(Packing { lacking: Some(0), ..gptq("gptq-v2", says, 64, false) });
    for (name, group, version) in [("awq-128", 128, json!("gemm")), ("awq-32", 32, Json::Null)] {
        let says = json!({
            "quant_method": "awq", "bits": 4, "group_size": group, "zero_point": true, "version": version,
        });
        all.push(Packing { lacking: None, ..gptq(name, says, group, false) });
    }
    all
}

impl Packing {
    /// A packed model, the same model with the rounded weights, and the number of packed matrices.
    fn written(&self, made: &Made, model_type: &str, whose: &str) -> ([PathBuf; 2], usize) {
        let [plain, packed] = ["plain", "packed"].map(|kind| path(&format!("{kind}-{whose}-{}", self.name)));
        let (mut numbers, mut pieces, mut n_packed) = (Vec::new(), Vec::new(), 0);
        for (name, own) in made.published() {
            let Some(base) = name.strip_suffix("_proj.weight") else {
                numbers.push((name.clone(), own.clone()));
                pieces.push((name, own));
                continue;
            };
            let all: Vec<f32> =
                own.bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
            let n_inputs = own.shape[1];
            let matrix = Matrix::rounded(&all, n_inputs, self.group.min(n_inputs), self.is_even);
            let bytes = matrix.numbers().into_iter().flat_map(f32::to_le_bytes).collect();
            let base = format!("{base}_proj");
            let parts = self.lacking.map_or_else(|| matrix.awq(&base), |lacking| matrix.gptq(&base, lacking));
            pieces.extend(parts.into_iter().map(stored));
            numbers.push((name, Tensor { bytes, ..own }));
            n_packed += 1;
        }
        made.folder_of(&plain, model_type, numbers);
        let mut made = made.clone();
        made.facts.insert("quantization_config".to_owned(), self.says.clone());
        made.folder_of(&packed, model_type, pieces);
        ([plain, packed], n_packed)
    }

    fn check(&self, made: &Made, model_type: &str) {
        let ([plain, packed], n_packed) = self.written(made, model_type, model_type);
        let model = Model::open(&packed).unwrap();
        let formats = model.checkpoint().tensors().values();
        let n_found = formats.filter(|info| info.stored.to_string() == self.format.to_string()).count();
        assert_eq!(n_found, n_packed, "{model_type} {}", self.name);
        let expected = logits(&plain, Numbers::Single);
        for (numbers, bar) in [(Numbers::Single, SAME), (Numbers::Quantised, ROUNDED)] {
            let error = relative_error(&logits(&packed, numbers), &expected);
            assert!(error <= bar, "{error:e} of {bar:e}: {model_type} {} {numbers}", self.name);
        }
    }
}

/// A Llama with the rounded weights, and packed.
pub(crate) fn packed_llama(name: &str) -> [PathBuf; 2] {
    let made = Made::new(&sizes(small(Attention::Grouped(grouped(4, 2, 32)), Format::F32)));
    named(name).written(&made, "llama", "pair").0
}

/// The same for a model with MLA, whose up-projections are one matrix.
pub(crate) fn packed_latents(name: &str) -> [PathBuf; 2] {
    named(name).written(&latents(), "deepseek_v2", "pair-latents").0
}

fn latents() -> Made {
    let own =
        Latent { n_heads: 2, q_lora: Some(64), kv_lora: 64, nope: 32, rope: 8, value: 32, ..latent(true) };
    let own = sizes(small(Attention::Latent(own), Format::F32));
    let rope = Rope { pairing: Pairing::Interleaved, ..own.rope.clone() };
    Made::new(&Plain { rope, ..own })
}

fn named(name: &str) -> Packing {
    packings().into_iter().find(|packing| packing.name == name).unwrap()
}

fn stored((name, kind, shape, bytes): packing::Tensor) -> (String, Tensor) {
    let format = if kind == "F16" { Format::F16 } else { Format::I32 };
    (name, Tensor { shape, format, bytes })
}

/// Logits after a prompt, and after one more token.
fn logits(file: &Path, numbers: Numbers) -> Vec<f32> {
    let mut session = Run::new(numbers).open(file);
    let first = session.feed(&(1..20).collect::<Vec<u32>>()).unwrap().to_vec();
    [first, session.feed(&[11]).unwrap().to_vec()].concat()
}

/// Rows that hold several groups of each size.
fn sizes(config: Plain) -> Plain {
    Plain { hidden: 128, ff: 256, ..config }
}

#[test]
fn packed_models_answer_as_their_numbers_do() {
    let llama = Made::new(&sizes(small(Attention::Grouped(grouped(4, 2, 32)), Format::F32)));
    let biased = ["attn_q", "attn_k", "attn_v"].map(str::to_owned).into();
    let qwen2 = Made::new(&Plain { biased, ..llama.config.clone() });
    let heads = Grouped { qk_norm: true, ..grouped(4, 2, 32) };
    let qwen3 = Made::new(&sizes(small(Attention::Grouped(heads), Format::F32)));
    for packing in packings() {
        packing.check(&llama, "llama");
    }
    for name in ["gptq-rows", "awq-128"] {
        named(name).check(&qwen2, "qwen2");
        named(name).check(&qwen3, "qwen3");
    }
}

#[test]
fn packed_experts_are_brought_together() {
    let heads = Grouped { qk_norm: true, ..grouped(4, 2, 32) };
    let own = sizes(small(Attention::Grouped(heads), Format::F32));
    let sparse = Experts { ff: 64, ..experts(4, 2) };
    let made = Made::new(&Plain { experts: Some(sparse), ..own });
    for name in ["gptq-64", "awq-32"] {
        named(name).check(&made, "qwen3_moe");
    }
}

#[test]
fn packed_latents_are_expanded_by_one_matrix() {
    for name in ["gptq-64", "awq-32"] {
        named(name).check(&latents(), "deepseek_v2");
    }
}

/// A way to quantise a matrix: what it is made of, by name, type, shape and bytes, and what it then stands for.
type Quantise = fn(&str, &[f32], &[usize]) -> (Vec<(String, String, Vec<usize>, Vec<u8>)>, Vec<f32>);

/// Bytes with a sign, and a scale in single precision for each row.
fn bytes_by_row(base: &str, numbers: &[f32], shape: &[usize]) -> (Vec<Piece>, Vec<f32>) {
    let (mut codes, mut scales, mut rounded) = (Vec::new(), Vec::new(), Vec::new());
    for row in numbers.chunks_exact(shape[1]) {
        let scale = row.iter().fold(1e-6_f32, |most, x| most.max(x.abs())) / 127.0;
        let row: Vec<f32> = row.iter().map(|x| (x / scale).round()).collect();
        codes.extend(row.iter().map(|q| (*q as i8).cast_unsigned()));
        rounded.extend(row.iter().map(|q| q * scale));
        scales.extend(scale.to_le_bytes());
    }
    let of = |part: &str, dtype: &str, shape: &[usize], bytes: Vec<u8>| {
        (format!("{base}.{part}"), dtype.to_owned(), shape.to_vec(), bytes)
    };
    (vec![of("weight", "I8", shape, codes), of("weight_scale", "F32", &[shape[0], 1], scales)], rounded)
}

/// Four bits with a scale and a bias for each 32.
fn with_biases(base: &str, numbers: &[f32], shape: &[usize]) -> (Vec<Piece>, Vec<f32>) {
    let (mut words, mut rounded) = (Vec::new(), Vec::new());
    let (mut scales, mut biases) = (Vec::new(), Vec::new());
    for group in numbers.chunks_exact(32) {
        let [least, most] = [f32::min, f32::max].map(|pick| group.iter().copied().reduce(pick).unwrap());
        let [scale, bias] = [((most - least) / 15.0).max(1e-4), least].map(f16::from_f32);
        let codes = group.iter().map(|x| ((x - bias.to_f32()) / scale.to_f32()).round().clamp(0.0, 15.0));
        let codes: Vec<f32> = codes.collect();
        rounded.extend(codes.iter().map(|q| q * scale.to_f32() + bias.to_f32()));
        words.extend(codes.chunks(2).map(|two| two[0] as u8 | (two[1] as u8) << 4));
        scales.extend(scale.to_le_bytes());
        biases.extend(bias.to_le_bytes());
    }
    let (outer, columns) = shape.split_at(shape.len() - 1);
    let of = |part: &str, dtype: &str, width: usize, bytes: Vec<u8>| {
        (format!("{base}.{part}"), dtype.to_owned(), [outer, &[columns[0] / width]].concat(), bytes)
    };
    let parts =
        [of("weight", "U32", 8, words), of("scales", "F16", 32, scales), of("biases", "F16", 32, biases)];
    (parts.into(), rounded)
}

/// Name, type, shape and bytes of a tensor.
type Piece = (String, String, Vec<usize>, Vec<u8>);

/// Writes a model twice, rounded and quantised, and compares what both answer.
fn check_made(
    made: &Made,
    pieces: Vec<(String, Tensor)>,
    name: &str,
    says: (&str, Json),
    quantise: Quantise,
) {
    let (key, says) = says;
    let [plain, quantised] = ["plain", "made"].map(|kind| path(&format!("{kind}-{name}")));
    let (mut rounded, mut parts) = (Vec::new(), Vec::new());
    for (full, own) in pieces {
        let is_matrix = own.shape.len() > 1 && own.shape[own.shape.len() - 1].is_multiple_of(32);
        let is_router = full.contains(".mlp.gate.");
        let base = full.strip_suffix(".weight").filter(|_| is_matrix && !is_router);
        let Some(base) = base else {
            parts.push((
                full.clone(),
                own.format.name().to_uppercase(),
                own.shape.clone(),
                own.bytes.clone(),
            ));
            rounded.push((full, own));
            continue;
        };
        let numbers = own.format.decode_all(&own.bytes, own.shape.iter().product()).unwrap();
        let (made, numbers) = quantise(base, &numbers, &own.shape);
        parts.extend(made);
        let bytes = numbers.into_iter().flat_map(f32::to_le_bytes).collect();
        rounded.push((full, Tensor { bytes, format: Format::F32, ..own }));
    }
    let model_type = name.split('-').next().unwrap();
    made.folder_of(&plain, model_type, rounded);
    let mut made = made.clone();
    made.facts.insert(key.to_owned(), says);
    made.folder_with(&quantised, model_type, parts);
    let expected = logits(&plain, Numbers::Single);
    for (numbers, bar) in [(Numbers::Single, SAME), (Numbers::Quantised, ROUNDED)] {
        let error = relative_error(&logits(&quantised, numbers), &expected);
        assert!(error <= bar, "{error:e} of {bar:e}: {name} {numbers}");
    }
}

fn mixture() -> Made {
    let heads = Grouped { qk_norm: true, ..grouped(4, 2, 32) };
    let own = sizes(small(Attention::Grouped(heads), Format::F32));
    Made::new(&Plain { experts: Some(Experts { ff: 64, ..experts(4, 2) }), ..own })
}

fn joint() -> Made {
    let mut made = Made::new(&sizes(small(Attention::Grouped(grouped(4, 2, 32)), Format::F32)));
    for block in 0..2 {
        let of_block = |parts: &[&str]| -> Vec<String> {
            parts.iter().map(|part| format!("blk.{block}.{part}")).collect()
        };
        made.join(&of_block(&["attn_q", "attn_k", "attn_v"]), &format!("blk.{block}.attn_qkv"));
        made.join(&of_block(&["ffn_gate", "ffn_up"]), &format!("blk.{block}.ffn_gate_up"));
    }
    made
}

#[test]
fn scales_behind_all_numbers_stay_with_their_rows() {
    let says = || {
        let weights = json!({"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": true});
        let groups = json!({"a": {"targets": ["Linear"], "weights": weights}});
        let method = "compressed-tensors";
        let all = json!({"quant_method": method, "format": "int-quantized", "config_groups": groups});
        ("quantization_config", all)
    };
    for (made, name) in
        [(joint(), "llama-bytes"), (mixture(), "qwen3_moe-bytes"), (latents(), "deepseek_v2-bytes")]
    {
        check_made(&made, made.published(), name, says(), bytes_by_row);
    }
}

#[test]
fn all_matrices_of_mlx_are_quantised() {
    let says = || ("quantization", json!({"group_size": 32, "bits": 4}));
    for (made, name) in [(joint(), "llama-mlx"), (latents(), "deepseek_v2-mlx")] {
        check_made(&made, made.published(), name, says(), with_biases);
    }
    // Experts are one tensor.
    let made = mixture();
    let of_experts = |name: &String| name.contains(".experts.");
    let mut pieces: Vec<_> = made.published().into_iter().filter(|(name, _)| !of_experts(name)).collect();
    for (name, own) in made.tensors.iter().filter(|(name, _)| name.ends_with("_exps")) {
        let names = Names::common(Kind::Safetensors).of(name);
        let name =
            names.into_iter().find(|name| name.contains("model.layers") && name.contains("switch_mlp"));
        pieces.push((name.unwrap(), own.clone()));
    }
    check_made(&made, pieces, "qwen3_moe-mlx", says(), with_biases);
}
