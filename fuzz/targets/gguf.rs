//! GGUF: a whole small model with tokenizer and template, taken apart and put together with faults.
//! [`Parts`] are those of any file; `beside.rs` has files that belong to a model.

use std::fs;
use std::path::{Path, PathBuf};

use fusebox_compiler::foundation::random::Random;
use fusebox_models::load::Model;
use fusebox_runtime::weights::Checkpoint;
use support::gguf::{BOOL, F32, LIST, TEXT, U8, U32, Writer, list, pair, tensor, text};

use crate::mutate::{self, NUMBERS, chance, one};
use crate::targets::target::{Target, read_text_side};

/// Sizes of the model.
const WIDTH: u64 = 32;
const INNER: u64 = 64;
/// Bytes of a block of `Q8_0`, which has 32 elements.
const Q8_0_BYTES: usize = 34;
const Q8_0: u32 = 8;

/// A file of its own for each run.
pub(crate) struct Gguf {
    path: PathBuf,
}

impl Gguf {
    pub(crate) fn new(folder: &Path) -> Self {
        Self { path: folder.join("m.gguf") }
    }
}

/// A key with a type and a value.
pub(super) type Pair = (String, u32, Vec<u8>);
/// A tensor's name, its sizes with the innermost first, and its type.
pub(super) type Tensor = (String, Vec<u64>, u32);

/// What a file is made of.
pub(super) struct Parts {
    pub(super) pairs: Vec<Pair>,
    pub(super) tensors: Vec<Tensor>,
}

/// The keys of the model.
fn pairs() -> Vec<Pair> {
    let number = |key: &str, n: u32| (format!("qwen3.{key}"), U32, n.to_le_bytes().to_vec());
    let float = |key: &str, x: f32| (format!("qwen3.{key}"), F32, x.to_le_bytes().to_vec());
    let own = |key: &str, kind: u32, value: Vec<u8>| (format!("tokenizer.{key}"), kind, value);
    let tokens = tokens();
    let texts = |all: &[&str]| list(TEXT, all.len() as u64, all.iter().flat_map(text).collect::<Vec<u8>>());
    let kinds: Vec<u8> = tokens
        .iter()
        .flat_map(|t| u32::from(t.starts_with("<|")).wrapping_mul(2).max(1).to_le_bytes())
        .collect();
    vec![
        ("general.architecture".to_owned(), TEXT, text("qwen3")),
        number("block_count", 1),
        number("context_length", 64),
        number("embedding_length", WIDTH as u32),
        number("feed_forward_length", INNER as u32),
        number("attention.head_count", 2),
        number("attention.head_count_kv", 1),
        number("attention.key_length", 16),
        number("attention.value_length", 16),
        float("attention.layer_norm_rms_epsilon", 1e-6),
        float("rope.freq_base", 1e4),
        own("ggml.model", TEXT, text("gpt2")),
        // Without regular expressions, which take longer to compile than all else.
        own("ggml.pre", TEXT, text("whole")),
        own("ggml.tokens", LIST, texts(&tokens)),
        own("ggml.token_type", LIST, list(U32, tokens.len() as u64, kinds)),
        own("ggml.merges", LIST, texts(&["a b", "ab c"])),
        own("ggml.eos_token_id", U32, 5u32.to_le_bytes().to_vec()),
        own("ggml.add_bos_token", BOOL, vec![0]),
        own("chat_template", TEXT, text("{% for m in messages %}{{ m.content }}{% endfor %}")),
    ]
}

fn tokens() -> Vec<&'static str> {
    vec!["a", "b", "c", "ab", "abc", "<|im_end|>", "Ġ", "Ċ"]
}

/// The tensors of the model.
fn tensors() -> Vec<Tensor> {
    let block = |name: &str, sizes: &[u64], kind: u32| (format!("blk.0.{name}.weight"), sizes.to_vec(), kind);
    vec![
        ("token_embd.weight".to_owned(), vec![WIDTH, tokens().len() as u64], Q8_0),
        ("output_norm.weight".to_owned(), vec![WIDTH], 0),
        block("attn_norm", &[WIDTH], 0),
        block("attn_q", &[WIDTH, 32], Q8_0),
        block("attn_k", &[WIDTH, 16], Q8_0),
        block("attn_v", &[WIDTH, 16], Q8_0),
        block("attn_q_norm", &[16], 0),
        block("attn_k_norm", &[16], 0),
        block("attn_output", &[32, WIDTH], Q8_0),
        block("ffn_norm", &[WIDTH], 0),
        block("ffn_gate", &[WIDTH, INNER], Q8_0),
        block("ffn_up", &[WIDTH, INNER], Q8_0),
        block("ffn_down", &[INNER, WIDTH], Q8_0),
    ]
}

/// The bytes of a tensor that is as it should be.
fn n_bytes(sizes: &[u64], kind: u32) -> usize {
    let n = sizes.iter().product::<u64>() as usize;
    if kind == Q8_0 { n / 32 * Q8_0_BYTES } else { 4 * n }
}

/// Names and values that mean something elsewhere.
const WORDS: [&str; 23] = [
    "qwen2",
    "llama",
    "qwen3moe",
    "gemma3",
    "deepseek2",
    "gpt-oss",
    "bert",
    "t5",
    "mamba",
    "general.alignment",
    "split.count",
    "split.no",
    "tokenizer.ggml.scores",
    "tokenizer.ggml.bos_token_id",
    "tokenizer.ggml.precompiled_charsmap",
    "qwen3.expert_count",
    "qwen3.rope.scaling.type",
    "qwen3.attention.sliding_window",
    "yarn",
    "llama-bpe",
    "output.weight",
    "blk.1.attn_q.weight",
    "rope_freqs.weight",
];

fn spoil_pair(random: &mut Random, pairs: &mut Vec<Pair>) {
    let at = random.below(pairs.len());
    match random.below(9) {
        0 => {
            pairs.remove(at);
        }
        1 => {
            let (_, kind, value) = one(random, pairs).clone();
            (pairs[at].1, pairs[at].2) = (kind, value);
        }
        2 => pairs[at].1 = random.below(15) as u32,
        3 => {
            let key = (*one(random, &WORDS)).to_owned();
            let extra = match random.below(3) {
                0 => (key, U32, (mutate::number(random) as u32).to_le_bytes().to_vec()),
                1 => (key, TEXT, text(one(random, &WORDS))),
                _ => (key, LIST, list(U8, 40, [7; 40])),
            };
            pairs.insert(at, extra);
        }
        4 => (pairs[at].1, pairs[at].2) = (TEXT, text(one(random, &WORDS))),
        5 => {
            let mut nested = list(U32, 1, [0; 4]);
            for _ in 0..*one(random, &[1, 3, 4, 5, 400]) {
                nested = list(LIST, 1, nested);
            }
            (pairs[at].1, pairs[at].2) = (LIST, nested);
        }
        6 => {
            let (kind, width) = *one(random, &[(U8, 1), (U32, 4), (TEXT, 8), (BOOL, 1), (LIST, 12)]);
            let n = if chance(random, 1, 200) { 1 << 22 } else { *one(random, &[0, 1, 255, 70_000]) };
            let said = if chance(random, 1, 4) { mutate::number(random) } else { n as u64 };
            (pairs[at].1, pairs[at].2) = (LIST, list(kind, said, vec![0; n * width]));
        }
        _ => mutate::bytes(random, &mut pairs[at].2),
    }
}

/// What is wrong with a tensor's description.
fn spoil_tensor(random: &mut Random, (name, sizes, kind): &mut Tensor, offset: &mut u64) {
    match random.below(6) {
        0 => sizes[0] = mutate::number(random),
        1 => sizes.push(*one(random, &NUMBERS)),
        2 => *kind = random.below(45) as u32,
        3 => *offset = mutate::number(random),
        4 => (*one(random, &WORDS)).clone_into(name),
        _ => *offset = offset.saturating_sub(32),
    }
}

impl Parts {
    /// Those of the model.
    pub(super) fn of_model() -> Self {
        Self { pairs: pairs(), tensors: tensors() }
    }

    /// A file of them; `spoil` may change a tensor, by its number, and its place before they are written.
    pub(super) fn writer(self, spoil: &mut dyn FnMut(usize, &mut Tensor, &mut u64)) -> Writer {
        let (mut described, mut data) = (Vec::new(), Vec::new());
        for (number, mut own) in self.tensors.into_iter().enumerate() {
            let n = n_bytes(&own.1, own.2);
            let mut offset = data.len() as u64;
            data.resize(data.len() + n, 1);
            data.resize(data.len().next_multiple_of(32), 0);
            spoil(number, &mut own, &mut offset);
            let (name, sizes, kind) = own;
            described.push(tensor(&name, &sizes, kind, offset));
        }
        let pairs = self.pairs.iter().map(|(key, kind, value)| pair(key, *kind, value)).collect();
        Writer { pairs, tensors: described, data, ..Writer::good() }
    }

    /// The same with faults.
    pub(super) fn spoilt(mut self, random: &mut Random) -> Vec<u8> {
        for _ in 0..random.below(3).min(self.pairs.len()) {
            spoil_pair(random, &mut self.pairs);
        }
        let n = self.tensors.len();
        let wrong = if chance(random, 1, 2) { random.below(n) } else { n };
        if n > 1 && chance(random, 1, 8) {
            let at = random.below(n);
            self.tensors.remove(at);
        }
        let mut writer = self.writer(&mut |number, own, offset| {
            if number == wrong {
                spoil_tensor(random, own, offset);
            }
        });
        match random.below(24) {
            0 => writer.n_tensors = Some(mutate::number(random)),
            1 => writer.n_pairs = Some(mutate::number(random)),
            2 => writer.version = mutate::number(random) as u32,
            3 => writer.alignment = *one(random, &[1, 8, 4096]),
            _ => {}
        }
        let mut bytes = writer.bytes();
        if chance(random, 1, 4) {
            mutate::bytes(random, &mut bytes);
        }
        bytes
    }
}

impl Target for Gguf {
    fn input(&self, random: &mut Random) -> Vec<u8> {
        Parts::of_model().spoilt(random)
    }

    fn run(&mut self, input: &[u8]) -> Result<bool, String> {
        fs::write(&self.path, input).map_err(|error| error.to_string())?;
        let Ok(checkpoint) = Checkpoint::open(&self.path) else { return Ok(false) };
        for (name, info) in checkpoint.tensors() {
            let n = checkpoint.bytes(name).map_or(0, <[u8]>::len);
            if n != info.n_bytes() {
                return Err(format!("{name} has {n} bytes, {} were promised", info.n_bytes()));
            }
        }
        checkpoint.metadata().values().for_each(|value| drop(value.to_string()));
        read_text_side(&checkpoint);
        Ok(Model::open(&self.path).is_ok())
    }
}
