//! Files of Qorus.
//!
//! In: headers of nine numbers, right and wrong, and a whole small model. Out: what was read, or the sentence.

use std::fs;
use std::path::PathBuf;

use fusebox_compiler::tensor::quant::Format;
use fusebox_models::config::rope::{Pairing, Scaling};
use fusebox_models::load::Model;
use fusebox_models::tokenizer::Tokenizer;
use fusebox_runtime::weights::value::Value;
use fusebox_runtime::weights::{Checkpoint, Kind, Stored};
use support::own::{path, write};

use crate::{refuses, refuses_every_truncation};

/// Version, vocabulary, width, inner width, blocks, heads, key heads, length.
const NUMBERS: [u32; 8] = [2, 5, 64, 96, 1, 2, 1, 16];

/// Bytes of the arrays that these numbers ask for: tables of 32 rows, norms, and blocks of 20 bytes for 32 elements.
const BODY: usize =
    2 * 32 * 64 * 4 + 64 * 4 + 2 * 64 * 4 + (64 * 64 * 2 + 32 * 64 * 2 + 64 * 96 * 3) / 32 * 20;

/// A file with these numbers in its header and `n_body` bytes after it.
fn file(numbers: &[u32; 8], theta: f32, eps: f32, n_body: usize) -> Vec<u8> {
    let mut bytes = b"1ROQ".to_vec();
    bytes.extend(numbers.iter().flat_map(|n| n.to_le_bytes()));
    bytes.extend([theta, eps].map(f32::to_le_bytes).concat());
    bytes.resize(64, 0);
    bytes.extend((0..n_body).map(|n| n as u8));
    bytes
}

/// Asserts why a file is refused after one number changed.
#[track_caller]
fn refuses_number(idx: usize, number: u32, sentence: &str) {
    let mut numbers = NUMBERS;
    numbers[idx] = number;
    refuses("number.qorus", &file(&numbers, 1e4, 1e-6, BODY), sentence);
}

#[test]
fn a_good_file_is_read_in_its_order() {
    let bytes = file(&NUMBERS, 1e4, 1e-6, BODY);
    let checkpoint = Checkpoint::open(&write("good.qorus", &bytes)).unwrap();
    assert_eq!((checkpoint.kind(), checkpoint.architecture()), (Kind::Qorus, Some("llama")));
    assert_eq!(checkpoint.metadata()["hidden_dim"], Value::Unsigned(96));
    assert_eq!(checkpoint.metadata()["rms_norm_eps"], Value::Float(f64::from(1e-6_f32)));
    assert_eq!(checkpoint.tensors().len(), 3 + 9);
    // A table has rows that only fill it up.
    assert_eq!(checkpoint.tensors()["token_embd.weight"].shape, [5, 64]);
    assert_eq!(checkpoint.bytes("token_embd.weight").unwrap(), &bytes[64..64 + 5 * 64 * 4]);
    let norm = 64 + 32 * 64 * 4;
    assert_eq!(checkpoint.bytes("output_norm.weight").unwrap(), &bytes[norm..norm + 64 * 4]);
    let key = &checkpoint.tensors()["blk.0.attn_k.weight"];
    assert_eq!((&key.shape[..], key.stored), (&[32, 64][..], Stored::As(Format::Q4Pairs)));
    let down = checkpoint.bytes("blk.0.ffn_down.weight").unwrap();
    assert_eq!(down, &bytes[bytes.len() - 64 * 96 / 32 * 20..]);
}

#[test]
fn the_first_version_has_no_epsilon() {
    let numbers = [1, 5, 64, 96, 1, 2, 1, 16];
    let checkpoint = Checkpoint::open(&write("first.qorus", &file(&numbers, 1e4, -1.0, BODY))).unwrap();
    assert_eq!(checkpoint.metadata()["rms_norm_eps"], Value::Float(1e-5));
    let none = Checkpoint::open(&write("none.qorus", &file(&NUMBERS, 1e4, 0.0, BODY))).unwrap();
    assert_eq!(none.metadata()["rms_norm_eps"], Value::Float(1e-5));
}

#[test]
fn every_truncation_is_refused() {
    let numbers = [2, 1, 32, 32, 1, 1, 1, 4];
    let body = 2 * 32 * 32 * 4 + 3 * 128 + 7 * 32 * 20;
    let bytes = file(&numbers, 1e4, 1e-6, body);
    assert!(Checkpoint::open(&write("small.qorus", &bytes)).is_ok());
    let short = [&bytes[..200], &[]].concat();
    refuses_every_truncation("cut.qorus", &short, usize::MAX);
    let sentence = format!("expected {} bytes by the sizes in the header, found {}", 64 + body, 63 + body);
    refuses("cut.qorus", &bytes[..bytes.len() - 1], &sentence);
}

#[test]
fn bad_numbers_are_refused() {
    refuses_number(0, 3, "byte 4: version 3 is not supported, expected 1 or 2");
    refuses_number(1, 0, "byte 8: expected vocab_size from 1 to 2147483647, found 0");
    refuses_number(4, 4097, "byte 20: expected n_layers from 1 to 4096, found 4097");
    refuses_number(2, 48, "key `dim`: expected a multiple of 32, found 48");
    refuses_number(3, 100, "key `hidden_dim`: expected a multiple of 32, found 100");
    refuses_number(5, 3, "key `n_heads`: expected a divisor of dim, which is 64, found 3");
    refuses_number(6, 3, "key `n_kv_heads`: expected a divisor of the 2 heads, found 3");
    let whole = 64 + BODY;
    let huge = format!("expected more bytes than any file has by the sizes in the header, found {whole}");
    let numbers = [2, i32::MAX as u32, 1 << 30, 1 << 30, 4096, 2, 1, 16];
    refuses("huge.qorus", &file(&numbers, 1e4, 1e-6, BODY), &huge);
    for (theta, eps, sentence) in [
        (f32::NAN, 1e-6, "byte 36: expected a rope_freq_base above 0, found NaN"),
        (0.0, 1e-6, "byte 36: expected a rope_freq_base above 0, found 0"),
        (1e4, -1.0, "byte 40: expected a rms_norm_eps above 0, found -1"),
    ] {
        refuses("number.qorus", &file(&NUMBERS, theta, eps, BODY), sentence);
    }
}

#[test]
fn a_whole_file_is_a_llama_with_its_tokenizer() {
    let model = path("llama.qorus");
    fs::write(&model, file(&NUMBERS, 1e4, 1e-6, BODY)).unwrap();
    let mut vocabulary = [0x5154_4b52u32, 1, 5, 1, 3, 4, u32::MAX, 0].map(u32::to_le_bytes).concat();
    for token in ["a", "b", "ab", "<s>", "</s>"] {
        vocabulary.push(token.len() as u8);
        vocabulary.extend(token.as_bytes());
    }
    vocabulary.extend([0u32, 1, 2].map(u32::to_le_bytes).concat());
    fs::write(PathBuf::from(format!("{}.tokenizer", model.display())), vocabulary).unwrap();
    let config = Model::open(&model).unwrap().config;
    assert_eq!((config.vocab, config.context, config.tied), (5, 16, false));
    let rope = config.rope().unwrap();
    assert_eq!((rope.pairing, &rope.scaling), (Pairing::Interleaved, &Scaling::None));
    let tokenizer = Tokenizer::open(&Checkpoint::open(&model).unwrap()).unwrap();
    assert_eq!(tokenizer.encode("abb</s>", true).unwrap(), [3, 2, 1, 4]);
    assert_eq!((tokenizer.eos(), tokenizer.decode(&[2, 0], false)), (&[4][..], "aba".to_owned()));
}
