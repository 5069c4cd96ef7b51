//! GGUF files, written here piece by piece.
//!
//! In: pairs and tensors, each with whatever a hostile writer may claim. Out: what was read, or the sentence.

use fusebox_compiler::tensor::quant::Format;
use fusebox_runtime::weights::value::{List, Value};
use fusebox_runtime::weights::{Checkpoint, Kind, Stored};
use support::gguf::{LIST, TEXT, U8, U32, Writer, list, pair, tensor, text};
use support::own::write;

use crate::{refusal, refuses, refuses_every_truncation};

/// Asserts why the good file is refused after a change.
#[track_caller]
fn refuses_change(name: &str, change: impl Fn(&mut Writer), sentence: &str) {
    let mut writer = Writer::good();
    change(&mut writer);
    refuses(&format!("{name}.gguf"), &writer.bytes(), sentence);
}

/// Asserts why the good file is refused with other pairs.
#[track_caller]
fn refuses_pairs(name: &str, pairs: &[Vec<u8>], sentence: &str) {
    refuses_change(name, |writer| writer.pairs = pairs.to_vec(), sentence);
}

/// Asserts why the good file without pairs is refused with other tensors; the first stands at byte 24.
#[track_caller]
fn refuses_tensors(name: &str, tensors: &[Vec<u8>], sentence: &str) {
    let change = |writer: &mut Writer| (writer.pairs, writer.tensors) = (Vec::new(), tensors.to_vec());
    refuses_change(name, change, sentence);
}

#[test]
fn a_good_file_is_read_without_copying() {
    let writer = Writer::good();
    let path = write("good.gguf", &writer.bytes());
    let checkpoint = Checkpoint::open(&path).unwrap();
    assert_eq!((checkpoint.kind(), checkpoint.architecture()), (Kind::Gguf { version: 3 }, Some("qwen3")));
    assert_eq!(checkpoint.metadata()["qwen3.block_count"], Value::Unsigned(2));
    assert_eq!(checkpoint.metadata()["tokens"], Value::List(List::Texts(vec!["a".to_owned(); 9])));
    assert_eq!(checkpoint.tensors().keys().collect::<Vec<_>>(), ["norm", "proj"]);
    let proj = &checkpoint.tensors()["proj"];
    assert_eq!((&proj.shape[..], proj.stored), (&[2, 32][..], Stored::As(Format::Q8_0)));
    assert_eq!((proj.n_elements(), proj.n_bytes()), (64, 68));
    assert_eq!(checkpoint.bytes("norm").unwrap(), &writer.data[..12]);
    assert_eq!(checkpoint.bytes("proj").unwrap(), [7; 68]);
    assert_eq!(checkpoint.bytes("gone"), None);
}

#[test]
fn every_type_of_value_is_read() {
    let minus_two = |n_bytes: usize| [vec![254], vec![255; n_bytes - 1]].concat();
    let nested = list(LIST, 2, [list(U8, 2, [1, 2]), list(U8, 0, [])].concat());
    let cases = [
        (0, vec![254], Value::Unsigned(254)),
        (1, minus_two(1), Value::Signed(-2)),
        (2, minus_two(2), Value::Unsigned(0xfffe)),
        (3, minus_two(2), Value::Signed(-2)),
        (4, minus_two(4), Value::Unsigned(0xffff_fffe)),
        (5, minus_two(4), Value::Signed(-2)),
        (6, 0.5f32.to_le_bytes().to_vec(), Value::Float(0.5)),
        (7, vec![1], Value::Bool(true)),
        (8, text("é"), Value::Text("é".to_owned())),
        (9, nested, Value::List(List::Lists(vec![List::Unsigned(vec![1, 2]), List::Unsigned(Vec::new())]))),
        (9, list(1, 2, [254, 3]), Value::List(List::Signed(vec![-2, 3]))),
        (9, list(6, 1, 0.5f32.to_le_bytes()), Value::List(List::Floats(vec![0.5]))),
        (9, list(7, 2, [0, 1]), Value::List(List::Bools(vec![false, true]))),
        (10, u64::MAX.to_le_bytes().to_vec(), Value::Unsigned(u64::MAX)),
        (11, minus_two(8), Value::Signed(-2)),
        (12, 0.1f64.to_le_bytes().to_vec(), Value::Float(0.1)),
    ];
    let pairs = (0..).zip(&cases).map(|(n, (kind, bytes, _))| pair(&format!("k{n}"), *kind, bytes));
    let writer = Writer { pairs: pairs.collect(), ..Writer::good() };
    let checkpoint = Checkpoint::open(&write("values.gguf", &writer.bytes())).unwrap();
    let expected: Vec<&Value> = cases.iter().map(|(.., value)| value).collect();
    assert_eq!(checkpoint.metadata().values().collect::<Vec<_>>(), expected);
}

#[test]
fn the_rare_but_legal_is_read() {
    let aligned = Writer {
        version: 2,
        pairs: vec![pair("general.alignment", U32, 8u32.to_le_bytes())],
        tensors: vec![tensor("a", &[1], 0, 0), tensor("b", &[256], 10, 8), tensor("empty", &[0, 5], 0, 88)],
        alignment: 8,
        data: vec![0; 92],
        ..Writer::good()
    };
    let checkpoint = Checkpoint::open(&write("aligned.gguf", &aligned.bytes())).unwrap();
    assert_eq!(checkpoint.kind(), Kind::Gguf { version: 2 });
    assert_eq!(checkpoint.tensors()["b"].stored, Stored::As(Format::Q2K));
    assert_eq!(checkpoint.bytes("empty").unwrap(), [0; 0]);
    let empty = Writer { pairs: Vec::new(), tensors: Vec::new(), data: Vec::new(), ..aligned };
    assert!(Checkpoint::open(&write("nothing.gguf", &empty.bytes())).unwrap().tensors().is_empty());
}

#[test]
fn every_truncation_is_refused() {
    let bytes = Writer::good().bytes();
    refuses_every_truncation("cut.gguf", &bytes, bytes.len());
}

#[test]
fn any_changed_byte_is_read_or_refused() {
    let good = Writer::good().bytes();
    for at in 0..good.len() {
        for byte in [0, 1, 0x7f, 0xff, good[at].wrapping_add(1)] {
            let mut bytes = good.clone();
            bytes[at] = byte;
            if let Err(error) = Checkpoint::open(&write("changed.gguf", &bytes)) {
                assert_eq!(error.to_string().lines().count(), 1, "byte {at} is {byte}: {error}");
            }
        }
    }
}

#[test]
fn other_versions_are_named() {
    for version in [0, 1, 4, 99] {
        let sentence = format!("byte 4: GGUF version {version} is not supported, expected 2 or 3");
        refuses_change("version", |writer| writer.version = version, &sentence);
    }
    let sentence = "byte 4: big-endian GGUF is not supported, expected little-endian";
    refuses_change("endian", |writer| writer.version = 3u32.swap_bytes(), sentence);
}

#[test]
fn absurd_counts_are_refused_before_anything_is_reserved() {
    let n_bytes = Writer::good().bytes().len();
    for n in [u64::MAX, 1 << 40, 1 << 63] {
        let left = n_bytes - 16;
        let sentence = format!(
            "byte 8: expected at most {} tensors in the {left} bytes that follow, found {n}",
            left / 33
        );
        refuses_change("tensors", |writer| writer.n_tensors = Some(n), &sentence);
        let left = n_bytes - 24;
        let sentence = format!(
            "byte 16: expected at most {} keys in the {left} bytes that follow, found {n}",
            left / 14
        );
        refuses_change("keys", |writer| writer.n_pairs = Some(n), &sentence);
        let only = |pair: Vec<u8>| Writer {
            pairs: vec![pair],
            n_tensors: Some(0),
            tensors: Vec::new(),
            alignment: 1,
            data: vec![0; 80],
            ..Writer::good()
        };
        let long_key = only(n.to_le_bytes().to_vec()).bytes();
        let sentence =
            format!("byte 24: expected at most 80 bytes of text in the 80 bytes that follow, found {n}");
        refuses("long-key.gguf", &long_key, &sentence);
        let long_list = only(pair("k", LIST, list(TEXT, n, []))).bytes();
        let sentence =
            format!("byte 41: expected at most 10 elements in the 80 bytes that follow, found {n}");
        refuses("long-list.gguf", &long_list, &sentence);
    }
}

#[test]
fn metadata_beyond_what_any_vocabulary_needs_is_refused() {
    let n = (1 << 21) + 1;
    let half = |key: &str| pair(key, LIST, list(U8, n as u64, vec![0; n]));
    let at = 41 + 8 + n + 17;
    let sentence = format!("byte {at}: expected at most 4194304 values in all lists, found more");
    refuses_pairs("many-values", &[half("a"), half("b")], &sentence);
    let keys: Vec<Vec<u8>> = (0..=1 << 16).map(|n| pair(&format!("k{n}"), U8, [1])).collect();
    refuses_pairs("many-keys", &keys, "byte 16: expected at most 65536 keys, found 65537");
}

#[test]
fn bad_pairs_are_refused() {
    refuses_pairs("empty-key", &[pair("", U8, [1])], "byte 24: expected a key, found an empty text");
    let twice = [pair("k", U8, [1]), pair("k", U8, [2])];
    refuses_pairs("twice", &twice, "byte 38: expected every key once, found `k` twice");
    let sentence = "byte 33: expected the type of a value, 0 to 12, found 13";
    refuses_pairs("type", &[pair("k", 13, [1])], sentence);
    let sentence = "byte 37: expected the type of a value, 0 to 12, found 4294967295";
    refuses_pairs("element", &[pair("k", LIST, list(u32::MAX, 1, [1]))], sentence);
    refuses_pairs("bool", &[pair("k", 7, [2])], "byte 37: expected 0 or 1 for a truth, found 2");
    let sentence = "byte 46: expected a text in UTF-8, found other bytes";
    refuses_pairs("utf8", &[pair("k", TEXT, text(b"a\xff"))], sentence);
    let sentence = "byte 24: expected a string of at most 65535 bytes, found 65536";
    refuses_pairs("key", &[pair(&"k".repeat(65536), U8, [1])], sentence);
    let deep = (0..100).fold(list(U8, 1, [1]), |inner, _| list(LIST, 1, inner));
    let sentence = "byte 85: expected lists at most 4 deep, found one more";
    refuses_pairs("deep", &[pair("k", LIST, deep)], sentence);
}

#[test]
fn bad_alignments_are_refused() {
    for n in [0u32, 3, 13, 1 << 21, u32::MAX] {
        let sentence = format!("key `general.alignment`: expected a power of two up to 1048576, found {n}");
        refuses_pairs("alignment", &[pair("general.alignment", U32, n.to_le_bytes())], &sentence);
    }
    let sentence = "key `general.alignment`: expected a power of two up to 1048576, found 32\\n";
    refuses_pairs("alignment-type", &[pair("general.alignment", TEXT, text("32\n"))], sentence);
}

#[test]
fn bad_shapes_are_refused() {
    refuses_tensors(
        "no-name",
        &[tensor("", &[1], 0, 0)],
        "byte 24: expected the name of a tensor, found an empty text",
    );
    let sentence = "byte 24: expected a string of at most 64 bytes, found 65";
    refuses_tensors("name", &[tensor(&"n".repeat(65), &[1], 0, 0)], sentence);
    refuses_tensors("5d", &[tensor("a", &[1; 5], 0, 0)], "byte 33: expected 1 to 4 dimensions, found 5");
    refuses_tensors("0d", &[tensor("a", &[], 0, 0)], "byte 33: expected 1 to 4 dimensions, found 0");
    let sentence = format!("byte 37: expected a size below 2^63, found {}", u64::MAX);
    refuses_tensors("size", &[tensor("a", &[u64::MAX], 0, 0)], &sentence);
    let sentence =
        "byte 33: expected a size that fits in memory in tensor `a`, found [4294967296, 4294967296]";
    refuses_tensors("product", &[tensor("a", &[1 << 32, 1 << 32], 0, 0)], sentence);
    let sentence = "byte 33: expected a size that fits in memory in tensor `a`, found [4611686018427387904]";
    refuses_tensors("bytes", &[tensor("a", &[1 << 62], 0, 0)], sentence);
    let sentence = "byte 33: expected rows of whole blocks of 32 in tensor `a`, found 48";
    refuses_tensors("blocks", &[tensor("a", &[48, 2], 2, 0)], sentence);
    for kind in [4, 31, 38, u32::MAX] {
        let sentence = format!("byte 45: expected the number of a tensor type, found {kind}");
        refuses_tensors("kind", &[tensor("a", &[1], kind, 0)], &sentence);
    }
}

#[test]
fn bad_places_are_refused() {
    let sentence = "byte 49: expected an offset that is a multiple of 32 for tensor `a`, found 4";
    refuses_tensors("offset", &[tensor("a", &[1], 0, 4)], sentence);
    let sentence =
        "tensor `a`: expected its bytes in the 100 of the data, found 96 to 116; is the file whole?";
    refuses_tensors("outside", &[tensor("a", &[5], 0, 96)], sentence);
    let sentence =
        "tensor `a`: expected its bytes in the 100 of the data, found 0 to 4398046511104; is the file whole?";
    refuses_tensors("huge", &[tensor("a", &[1 << 40], 0, 0)], sentence);
    let far = u64::MAX - 31;
    let sentence = format!(
        "tensor `a`: expected its bytes in the 100 of the data, found {far} to {}; is the file whole?",
        far + 4
    );
    refuses_tensors("far", &[tensor("a", &[1], 0, far)], &sentence);
    let sentence =
        format!("byte 49: expected an offset that is a multiple of 32 for tensor `a`, found {far}");
    refuses_tensors("wraps", &[tensor("a", &[8], 0, far)], &sentence);
    let overlapping = [tensor("b", &[9], 0, 0), tensor("a", &[1], 0, 32)];
    let sentence = "tensor `a`: expected bytes of its own, found bytes of tensor `b`";
    refuses_tensors("overlap", &overlapping, sentence);
    let same = [tensor("a", &[1], 0, 0), tensor("a", &[1], 0, 32)];
    refuses_tensors("same", &same, "tensor `a`: expected one of this name, found two");
}

#[test]
fn names_cannot_break_the_line() {
    let writer = Writer {
        tensors: vec![tensor("a\n\u{1b}[2J", &[1 << 20], 0, 0)],
        pairs: Vec::new(),
        ..Writer::good()
    };
    let sentence = refusal(&write("newline.gguf", &writer.bytes()));
    assert!(sentence.starts_with("tensor `a\\n\\u{1b}[2J`: "), "{sentence}");
}
