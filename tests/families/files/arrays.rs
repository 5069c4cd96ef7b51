//! Whole models in files without tensor names: those of qwen3.c and of Qorus.
//!
//! In: small models with random weights in the formats of these files, written here array by array. Out: the logits of
//! the same model with its weights in single precision.

use std::fs;
use std::path::{Path, PathBuf};

use fusebox_compiler::options::Numbers;
use fusebox_compiler::tensor::quant::Format;
use fusebox_models::config::rope::{Pairing, Rope};
use support::own::path;
use support::plain::{Attention, Grouped, Plain};
use support::run::{Run, relative_error};

use crate::made::{Made, Tensor};
use crate::odd::{grouped, small};

/// Single precision, summed in another order.
const SAME: f64 = 1e-5;
/// Activations of 8 bits.
const ROUNDED: f64 = 3e-2;
/// Elements that share a scale in a qwen3.c checkpoint.
const GROUP: u32 = 32;

/// Logits after a prompt, and after one more token.
pub(crate) fn logits(file: &Path, numbers: Numbers) -> Vec<f32> {
    let mut run = Run::new(numbers);
    (run.settings.context, run.settings.chunk) = (40, 16);
    let mut session = run.open(file);
    let first = session.feed(&(1..20).collect::<Vec<u32>>()).unwrap().to_vec();
    [first, session.feed(&[11]).unwrap().to_vec()].concat()
}

/// A model for a qwen3.c checkpoint.
pub(crate) fn of_qwen3_c(tied: bool) -> Made {
    let heads = Grouped { qk_norm: true, ..grouped(4, 2, 32) };
    let own = small(Attention::Grouped(heads), Format::Int8 { group: GROUP });
    let rope = Rope { theta: 1e6, ..own.rope.clone() };
    Made::new(&Plain { eps: 1e-6, rope, tied, ..own })
}

/// A model for a Qorus file: its embeddings are not quantised.
pub(crate) fn of_qorus() -> Made {
    let own = small(Attention::Grouped(grouped(2, 1, 32)), Format::Q4Pairs);
    let rope = Rope { pairing: Pairing::Interleaved, ..own.rope.clone() };
    let mut made = Made::new(&Plain { rope, tied: false, ..own });
    for name in ["token_embd", "output"] {
        let table = made.tensors.get_mut(name).unwrap();
        *table = plain(table);
    }
    made
}

fn plain(tensor: &Tensor) -> Tensor {
    let n = tensor.shape.iter().product();
    let numbers = tensor.format.decode_all(&tensor.bytes, n).unwrap();
    let bytes = numbers.into_iter().flat_map(f32::to_le_bytes).collect();
    Tensor { shape: tensor.shape.clone(), format: Format::F32, bytes }
}

/// The same model with its weights dequantised.
pub(crate) fn dequantised(made: &Made) -> Made {
    let tensors = made.tensors.iter().map(|(name, tensor)| (name.clone(), plain(tensor))).collect();
    Made { tensors, ..made.clone() }
}

fn heads(made: &Made) -> &Grouped {
    let Attention::Grouped(heads) = &made.config.attention else { panic!("no latents") };
    heads
}

/// Writes a qwen3.c checkpoint, and its tokenizer of single characters.
pub(crate) fn write_qwen3_c(made: &Made, name: &str) -> PathBuf {
    let (own, heads, file) = (&made.config, heads(made), path(name));
    let numbers = [
        own.hidden,
        own.ff,
        own.n_layers,
        heads.n_heads,
        heads.n_kv,
        own.vocab,
        own.context,
        heads.head,
        usize::from(own.tied),
        GROUP as usize,
    ];
    let mut bytes = [b"1cja".to_vec(), 1u32.to_le_bytes().to_vec()].concat();
    bytes.extend(numbers.iter().flat_map(|n| (*n as u32).to_le_bytes()));
    bytes.resize(256, 0);
    let each = |part: &str| (0..own.n_layers).map(|layer| format!("blk.{layer}.{part}")).collect::<Vec<_>>();
    let mut names = [each("attn_norm"), each("ffn_norm"), vec!["output_norm".to_owned()]].concat();
    names.extend([each("attn_q_norm"), each("attn_k_norm"), vec!["token_embd".to_owned()]].concat());
    let parts = ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_down", "ffn_up"];
    names.extend(parts.into_iter().flat_map(each));
    names.extend((!own.tied).then(|| "output".to_owned()));
    bytes.extend(names.iter().flat_map(|name| made.tensors[name].bytes.clone()));
    fs::write(&file, bytes).unwrap();
    let mut tokens = [9u32, 0, 1].map(u32::to_le_bytes).concat();
    for letter in b'A'..b'A' + 50 {
        tokens.extend([(-1e6_f32).to_le_bytes(), 1u32.to_le_bytes()].concat());
        tokens.push(letter);
    }
    fs::write(format!("{}.tokenizer", file.display()), tokens).unwrap();
    file
}

/// Writes a Qorus file, and its tokenizer of five tokens.
pub(crate) fn write_qorus(made: &Made, name: &str) -> PathBuf {
    let (own, heads, file) = (&made.config, heads(made), path(name));
    let numbers = [2, own.vocab, own.hidden, own.ff, own.n_layers, heads.n_heads, heads.n_kv, own.context];
    let mut bytes = b"1ROQ".to_vec();
    bytes.extend(numbers.iter().flat_map(|n| (*n as u32).to_le_bytes()));
    bytes.extend([own.rope.theta as f32, own.eps].map(f32::to_le_bytes).concat());
    bytes.resize(64, 0);
    let mut names = ["token_embd", "output_norm", "output"].map(str::to_owned).to_vec();
    let parts = [
        "attn_norm",
        "attn_q",
        "attn_k",
        "attn_v",
        "attn_output",
        "ffn_norm",
        "ffn_gate",
        "ffn_up",
        "ffn_down",
    ];
    names.extend((0..own.n_layers).flat_map(|layer| parts.map(|part| format!("blk.{layer}.{part}"))));
    for name in names {
        let own = &made.tensors[&name];
        bytes.extend(&own.bytes);
        if name == "token_embd" || name == "output" {
            let n_spare = own.shape[0].next_multiple_of(32) - own.shape[0];
            bytes.resize(bytes.len() + n_spare * own.shape[1] * 4, 0);
        }
        bytes.resize(bytes.len().next_multiple_of(64), 0);
    }
    fs::write(&file, bytes).unwrap();
    let mut tokens = [0x5154_4b52u32, 1, 5, 1, 3, 4, u32::MAX, 0].map(u32::to_le_bytes).concat();
    for token in ["a", "b", "ab", "<s>", "</s>"] {
        tokens.push(token.len() as u8);
        tokens.extend(token.as_bytes());
    }
    tokens.extend([0u32, 1, 2].map(u32::to_le_bytes).concat());
    fs::write(format!("{}.tokenizer", file.display()), tokens).unwrap();
    file
}

/// Compares a file with the GGUF file of the same weights.
fn check(file: &Path, made: &Made, architecture: &str) {
    let other = file.with_extension("gguf");
    dequantised(made).gguf(&other, architecture);
    let expected = logits(&other, Numbers::Single);
    for (numbers, bar) in [(Numbers::Single, SAME), (Numbers::Quantised, ROUNDED)] {
        let error = relative_error(&logits(file, numbers), &expected);
        assert!(error <= bar, "{error:e} of {bar:e}: {} {numbers}", file.display());
    }
}

#[test]
fn checkpoints_of_qwen3_c_answer_as_their_numbers_do() {
    for tied in [true, false] {
        let made = of_qwen3_c(tied);
        check(&write_qwen3_c(&made, &format!("tied-{tied}.bin")), &made, "qwen3");
    }
}

#[test]
fn files_of_qorus_answer_as_their_numbers_do() {
    let made = of_qorus();
    check(&write_qorus(&made, "whole.qorus"), &made, "llama");
}
