//! Checkpoints of qwen3.c.
//!
//! In: headers of twelve numbers, right and wrong. Out: what was read, or the sentence.

use fusebox_compiler::tensor::quant::Format;
use fusebox_runtime::weights::value::Value;
use fusebox_runtime::weights::{Checkpoint, Kind, Stored};
use support::own::write;

use crate::{refuses, refuses_every_truncation};

/// dim, hidden, layers, heads, key heads, vocabulary, length, head, shared, group.
const NUMBERS: [u32; 10] = [8, 12, 2, 2, 1, 5, 64, 4, 1, 4];

/// Bytes of the arrays that these numbers require.
const BODY: usize =
    4 * (2 * 2 * 8 + 8 + 2 * 2 * 4) + 2 * (5 * 8) + 2 * 2 * (8 * 8 + 2 * 4 * 8 + 8 * 8 + 3 * 12 * 8);

/// A file with these numbers in its header and `n_body` bytes after it.
fn file(numbers: &[u32], n_body: usize) -> Vec<u8> {
    let mut bytes = [b"1cja".to_vec(), 1u32.to_le_bytes().to_vec()].concat();
    bytes.extend(numbers.iter().flat_map(|n| n.to_le_bytes()));
    bytes.resize(256, 0);
    bytes.extend((0..n_body).map(|n| n as u8));
    bytes
}

/// Asserts why a file is refused after one number changed.
#[track_caller]
fn refuses_number(idx: usize, number: u32, sentence: &str) {
    let mut numbers = NUMBERS;
    numbers[idx] = number;
    refuses("number.bin", &file(&numbers, BODY), sentence);
}

#[test]
fn a_good_file_is_read_layer_by_layer() {
    let bytes = file(&NUMBERS, BODY);
    let checkpoint = Checkpoint::open(&write("good.bin", &bytes)).unwrap();
    assert_eq!((checkpoint.kind(), checkpoint.architecture()), (Kind::Ajc1, Some("qwen3")));
    assert_eq!(checkpoint.metadata()["hidden_dim"], Value::Unsigned(12));
    assert_eq!(checkpoint.tensors().len(), 2 * 11 + 2);
    let down = &checkpoint.tensors()["blk.1.ffn_down.weight"];
    assert_eq!((&down.shape[..], down.stored), (&[8, 12][..], Stored::As(Format::Int8 { group: 4 })));
    // The scales of a layer directly follow its numbers, before the next layer.
    let queries = 256 + 4 * 56 + 80;
    assert_eq!(checkpoint.bytes("blk.0.attn_q.weight").unwrap(), &bytes[queries..queries + 128]);
    assert_eq!(checkpoint.bytes("blk.1.attn_q.weight").unwrap(), &bytes[queries + 128..queries + 256]);
    let last = checkpoint.tensors().last().map(|(name, _)| name.as_str());
    assert_eq!(last, Some("blk.1.ffn_up.weight"));
}

#[test]
fn an_own_classifier_comes_last() {
    let numbers = [8, 12, 2, 2, 1, 5, 64, 4, 0, 4];
    let checkpoint = Checkpoint::open(&write("untied.bin", &file(&numbers, BODY + 80))).unwrap();
    assert_eq!(checkpoint.tensors()["output.weight"].shape, [5, 8]);
}

#[test]
fn every_truncation_is_refused() {
    let bytes = file(&NUMBERS, BODY);
    refuses_every_truncation("cut.bin", &bytes, bytes.len());
}

#[test]
fn the_length_must_be_exact() {
    let n = 256 + BODY;
    for wrong in [n - 1, n + 1] {
        let sentence = format!("expected {n} bytes by the sizes in the header, found {wrong}");
        refuses("length.bin", &file(&NUMBERS, wrong - 256), &sentence);
    }
    let mut huge = NUMBERS;
    (huge[0], huge[1], huge[9]) = (1 << 30, 1 << 30, 1);
    (huge[3], huge[7]) = (1 << 30, 1 << 30);
    let sentence = format!("expected more bytes than any file has by the sizes in the header, found {n}");
    refuses("huge.bin", &file(&huge, BODY), &sentence);
}

#[test]
fn bad_numbers_are_refused() {
    refuses_number(0, 0, "byte 8: expected dim from 1 to 2147483647, found 0");
    refuses_number(1, u32::MAX, "byte 12: expected hidden_dim from 1 to 2147483647, found 4294967295");
    refuses_number(2, 4097, "byte 16: expected n_layers from 1 to 4096, found 4097");
    refuses_number(8, 2, "byte 40: expected shared_classifier from 0 to 1, found 2");
    refuses_number(9, 0, "byte 44: expected group_size from 1 to 2147483647, found 0");
    let mut bytes = file(&NUMBERS, BODY);
    bytes[4] = 2;
    refuses("version.bin", &bytes, "byte 4: version 2 is not supported, expected 1");
}

#[test]
fn groups_that_do_not_end_with_a_row_are_refused() {
    refuses_number(9, 8, "key `group_size`: expected a divisor of hidden_dim, which is 12, found 8");
    refuses_number(0, 9, "key `group_size`: expected a divisor of dim, which is 9, found 4");
    refuses_number(7, 3, "key `group_size`: expected a divisor of n_heads × head_dim, which is 6, found 4");
}
