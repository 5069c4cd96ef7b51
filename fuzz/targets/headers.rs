//! Checkpoints without names, of qwen3.c and Qorus, and the tokenizer beside one.

use std::fs;
use std::path::{Path, PathBuf};

use fusebox_compiler::foundation::random::Random;
use fusebox_models::load::Model;
use fusebox_runtime::weights::Checkpoint;

use crate::mutate::{self, chance};
use crate::targets::target::{Target, is_sample, read_text_side};

/// What varies.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Qwen3c,
    Vocabulary,
    Qorus,
}

/// A checkpoint, with a tokenizer beside it.
pub(crate) struct Headers {
    kind: Kind,
    path: PathBuf,
}

impl Headers {
    pub(crate) fn new(folder: &Path, kind: Kind) -> Self {
        let name = if kind == Kind::Qorus { "m.qorus" } else { "m.bin" };
        Self { kind, path: folder.join(name) }
    }

    fn tokenizer(&self) -> PathBuf {
        let mut path = self.path.clone().into_os_string();
        path.push(".tokenizer");
        path.into()
    }
}

/// A header of little-endian numbers, zeros to its end, and as many bytes as the arrays take.
fn file(magic: &[u8], numbers: &[u32], header: usize, n_body: usize) -> Vec<u8> {
    let mut bytes = magic.to_vec();
    bytes.extend(numbers.iter().flat_map(|n| n.to_le_bytes()));
    bytes.resize(header, 0);
    bytes.extend((0..n_body).map(|n| n as u8));
    bytes
}

/// Version; width, inner width, blocks, heads, heads of keys, tokens, length, head, whether tied, group.
fn qwen3c() -> Vec<u8> {
    let n_body =
        4 * (2 * 2 * 8 + 8 + 2 * 2 * 4) + 2 * (5 * 8) + 2 * 2 * (8 * 8 + 2 * 4 * 8 + 8 * 8 + 3 * 12 * 8);
    file(b"1cja", &[1, 8, 12, 2, 2, 1, 5, 64, 4, 1, 4], 256, n_body)
}

/// Version, tokens, width, inner width, blocks, heads, heads of keys, length, base of RoPE, epsilon.
fn qorus() -> Vec<u8> {
    let n_body = 2 * 32 * 64 * 4 + 64 * 4 + 2 * 64 * 4 + (64 * 64 * 2 + 32 * 64 * 2 + 64 * 96 * 3) / 32 * 20;
    let numbers = [2, 5, 64, 96, 1, 2, 1, 16, 1e4f32.to_bits(), 1e-6f32.to_bits()];
    file(b"1ROQ", &numbers, 64, n_body)
}

/// Longest token, two ids, then a score, a length and the bytes of each token.
fn vocabulary() -> Vec<u8> {
    let mut bytes = [8u32, 4, 4].iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<u8>>();
    for (score, text) in [(-1e6, "a"), (-1e6, "b"), (0.0, "ab"), (-1.0, "abab"), (-1e6, "<|e|>")] {
        bytes.extend(f32::to_le_bytes(score));
        bytes.extend((text.len() as u32).to_le_bytes());
        bytes.extend(text.as_bytes());
    }
    bytes
}

impl Target for Headers {
    fn input(&self, random: &mut Random) -> Vec<u8> {
        let (mut bytes, header) = match self.kind {
            Kind::Qwen3c => (qwen3c(), 48),
            Kind::Qorus => (qorus(), 44),
            Kind::Vocabulary => (vocabulary(), usize::MAX),
        };
        if header < bytes.len() && chance(random, 7, 8) {
            for _ in 0..=random.below(2) {
                let at = 4 * random.below(header / 4);
                let number = mutate::number(random) as u32;
                bytes[at..at + 4].copy_from_slice(&number.to_le_bytes());
            }
        } else {
            mutate::bytes(random, &mut bytes);
        }
        bytes
    }

    fn run(&mut self, input: &[u8]) -> Result<bool, String> {
        let put = |path: &Path, bytes: &[u8]| fs::write(path, bytes).map_err(|error| error.to_string());
        let (own, tokens) = match self.kind {
            Kind::Vocabulary => (qwen3c(), input.to_vec()),
            Kind::Qwen3c | Kind::Qorus => (input.to_vec(), vocabulary()),
        };
        put(&self.path, &own)?;
        put(&self.tokenizer(), &tokens)?;
        let Ok(checkpoint) = Checkpoint::open(&self.path) else { return Ok(false) };
        let reads_text = self.kind == Kind::Vocabulary || is_sample(input);
        let has_tokenizer = reads_text && read_text_side(&checkpoint);
        Ok(if self.kind == Kind::Vocabulary { has_tokenizer } else { Model::open(&self.path).is_ok() })
    }
}
