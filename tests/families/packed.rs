//! Whole checkpoints packed by GPTQ or AWQ.
//!
//! In: small models whose matrices are rounded to four bits here. Out: the logits of the same model with the rounded
//! weights in single precision.

use std::path::{Path, PathBuf};

use fusebox_compiler::options::Numbers;
use fusebox_compiler::tensor::quant::Format;
use fusebox_models::config::{Experts, Latent, Pairing, Rope};
use fusebox_models::load::Model;
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
