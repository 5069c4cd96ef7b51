//! The same model as a GGUF file and as a folder.
//!
//! In: small models with random weights, one of each family, in single precision, and in bfloat16 that the GGUF file
//! stores as F32. Out: the same logits, bit for bit, after prompts of several lengths, at every precision.

use std::path::Path;

use fusebox_compiler::options::Numbers;
use fusebox_compiler::tensor::quant::Format;
use fusebox_models::config::Formats;
use fusebox_models::config::rope::{Pairing, Rope};
use support::own::path;
use support::plain::{Attention, Grouped, Plain};
use support::run::Run;

use crate::made::Made;
use crate::odd::{experts, grouped, latent, small};

/// Prompt lengths: one token, one more than some tasks take at once, one more than a chunk, and more.
const LENGTHS: [usize; 4] = [1, 5, 17, 30];

/// Logits after each prompt, and after one more token.
fn logits(file: &Path, numbers: Numbers) -> Vec<f32> {
    let mut run = Run::new(numbers);
    (run.settings.context, run.settings.chunk) = (40, 16);
    let mut session = run.open(file);
    let tokens: Vec<u32> = (0..40).map(|i| (i * 17 + 3) % 50).collect();
    let mut logits = Vec::new();
    for len in LENGTHS {
        session.truncate(0).unwrap();
        logits.extend_from_slice(session.feed(&tokens[..len]).unwrap());
        logits.extend_from_slice(session.feed(&tokens[len..=len]).unwrap());
    }
    logits
}

/// Compares a folder with a file of single precision.
fn check(name: &str, published: &Made, [model_type, architecture]: [&str; 2]) {
    let (folder, file) = (path(&format!("pair-{name}")), path(&format!("pair-{name}.gguf")));
    published.folder(&folder, model_type);
    let mut other = published.clone();
    for tensor in other.tensors.values_mut().filter(|tensor| tensor.format == Format::BF16) {
        let widened = tensor.bytes.as_chunks().0.iter().flat_map(|[a, b]| [0, 0, *a, *b]);
        (tensor.bytes, tensor.format) = (widened.collect(), Format::F32);
    }
    if let Attention::Grouped(heads) = &published.config.attention
        && architecture == "llama"
    {
        interleave_pairs(&mut other, heads);
    }
    other.gguf(&file, architecture);
    for numbers in [Numbers::Single, Numbers::Quantised] {
        assert!(logits(&folder, numbers) == logits(&file, numbers), "{name} in {numbers}");
    }
}

/// Reorders rows for interleaved RoPE pairs, as GGUF has them for Llama.
fn interleave_pairs(made: &mut Made, heads: &Grouped) {
    for (name, tensor) in &mut made.tensors {
        let part = name.strip_suffix(".bias").unwrap_or(name);
        if !part.ends_with("attn_q") && !part.ends_with("attn_k") {
            continue;
        }
        let row_bytes = tensor.bytes.len() / tensor.shape[0];
        let from = |row: usize| {
            let (head, at) = (row / heads.head, row % heads.head);
            head * heads.head + at % 2 * (heads.head / 2) + at / 2
        };
        let rows = (0..tensor.shape[0]).map(|row| &tensor.bytes[from(row) * row_bytes..][..row_bytes]);
        tensor.bytes = rows.collect::<Vec<_>>().concat();
    }
}

/// A model in one number format after another.
fn check_each(name: &str, config: &Plain, kinds: [&str; 2]) {
    for format in [Format::F32, Format::BF16] {
        let formats = Formats::Uniform(format);
        let made = Made::new(&Plain { formats, ..config.clone() });
        check(&format!("{name}-{format}"), &made, kinds);
    }
}

#[test]
fn models_of_grouped_attention_are_the_same_from_both() {
    let own = small(Attention::Grouped(grouped(4, 2, 16)), Format::F32);
    check_each("llama", &own, ["llama", "llama"]);
    let biased = ["attn_q", "attn_k", "attn_v"].map(str::to_owned).into();
    check_each("llama-biased", &Plain { biased, tied: false, ..own.clone() }, ["llama", "llama"]);
    let biased = ["attn_q", "attn_k", "attn_v"].map(str::to_owned).into();
    check_each("qwen2", &Plain { biased, ..own }, ["qwen2", "qwen2"]);
    let heads = Grouped { qk_norm: true, ..grouped(4, 2, 32) };
    check_each("qwen3", &small(Attention::Grouped(heads), Format::F32), ["qwen3", "qwen3"]);
}

#[test]
fn models_of_experts_and_latents_are_the_same_from_both() {
    let heads = Grouped { qk_norm: true, ..grouped(4, 2, 16) };
    let own = small(Attention::Grouped(heads), Format::F32);
    check_each("qwen3moe", &Plain { experts: Some(experts(6, 2)), ..own }, ["qwen3_moe", "qwen3moe"]);
    let own = small(Attention::Latent(latent(false)), Format::F32);
    let rope = Rope { pairing: Pairing::Interleaved, ..own.rope.clone() };
    check_each("deepseek", &Plain { rope, ..own }, ["deepseek_v2", "deepseek2"]);
}
