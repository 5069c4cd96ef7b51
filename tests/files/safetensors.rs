//! Single safetensors files.
//!
//! In: headers as text, right and wrong. Out: what was read, or the sentence.

use fusebox_compiler::tensor::quant::Format;
use fusebox_runtime::weights::value::Value;
use fusebox_runtime::weights::{Checkpoint, Kind, Stored};
use support::own::write;

use crate::{refuses, refuses_every_truncation};

/// Two tensors and a text.
pub(super) const HEADER: &str = "{\"__metadata__\":{\"format\":\"pt\"},\
    \"b\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[8,20]},\
    \"a\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[0,8]}}   ";

/// The bytes of a file with `n_data` bytes of data.
pub(super) fn file(header: &str, n_data: u8) -> Vec<u8> {
    let data: Vec<u8> = (0..n_data).collect();
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &data].concat()
}

/// Asserts why a file with this header and 20 bytes of data is refused.
#[track_caller]
fn refuses_header(name: &str, header: &str, sentence: &str) {
    refuses(&format!("{name}.safetensors"), &file(header, 20), sentence);
}

/// A header with one tensor `a`.
fn one(dtype: &str, shape: &str, offsets: &str) -> String {
    format!("{{\"a\":{{\"dtype\":\"{dtype}\",\"shape\":{shape},\"data_offsets\":{offsets}}}}}")
}

#[test]
fn a_good_file_is_read_in_the_order_of_its_header() {
    let checkpoint = Checkpoint::open(&write("good.safetensors", &file(HEADER, 20))).unwrap();
    assert_eq!((checkpoint.kind(), checkpoint.architecture()), (Kind::Safetensors, None));
    assert_eq!(checkpoint.metadata()["format"], Value::Text("pt".to_owned()));
    assert_eq!(checkpoint.tensors().keys().collect::<Vec<_>>(), ["b", "a"]);
    let [b, a] = ["b", "a"].map(|name| &checkpoint.tensors()[name]);
    assert_eq!((&b.shape[..], b.stored), (&[2, 3][..], Stored::As(Format::BF16)));
    assert_eq!((&a.shape[..], a.stored, a.n_elements()), (&[][..], Stored::Other("i64"), 1));
    assert_eq!(checkpoint.bytes("a").unwrap(), [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(checkpoint.bytes("b").map(<[u8]>::len), Some(12));
}

#[test]
fn every_truncation_is_refused() {
    let bytes = file(HEADER, 20);
    refuses_every_truncation("cut.safetensors", &bytes, bytes.len());
}

#[test]
fn any_changed_byte_is_read_or_refused() {
    let good = file(HEADER, 20);
    for at in 0..good.len() - 20 {
        for byte in [0, b'"', b'}', b'9', 0xff] {
            let mut bytes = good.clone();
            bytes[at] = byte;
            if let Err(error) = Checkpoint::open(&write("changed.safetensors", &bytes)) {
                assert_eq!(error.to_string().lines().count(), 1, "byte {at} is {byte}: {error}");
            }
        }
    }
}

#[test]
fn absurd_lengths_of_the_header_are_refused() {
    for n in [u64::MAX, 1 << 40, 13] {
        let bytes = [&n.to_le_bytes()[..], b"{          }"].concat();
        let sentence =
            format!("byte 0: expected at most 12 bytes of header in the 12 bytes that follow, found {n}");
        refuses("length.safetensors", &bytes, &sentence);
    }
}

#[test]
fn bad_headers_are_refused() {
    refuses_header("json", "{\"a\": nil}", "byte 15: expected JSON, which this is not: expected ident");
    let sentence = "byte 8: expected JSON, which this is not: EOF while parsing an object";
    refuses_header("unended", "{", sentence);
    refuses_header("twice", "{\"a\":1,\"a\":1}", "byte 17: expected JSON of another form: `a` comes twice");
    let deep = format!("{}{}", "[".repeat(9000), "]".repeat(9000));
    let sentence = "tensor `a`: expected an object, found another value";
    refuses_header("deep", &format!("{{\"a\":{deep}}}"), sentence);
    refuses_header("list", "{\"a\":[\"F32\",[5],[0,20]]}", sentence);
    let sentence = "tensor `a`: expected JSON of another form: \
                    invalid type: sequence, expected a string";
    refuses_header("deeper", &format!("{{\"a\":{{\"dtype\":{deep}}}}}"), sentence);
    let sentence = "key `__metadata__`: expected JSON of another form: \
                    invalid type: integer `1`, expected a string";
    refuses_header("metadata", "{\"__metadata__\":{\"k\":1}}", sentence);
    let sentence = "tensor `a`: expected JSON of another form: missing field `data_offsets`";
    refuses_header("field", "{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", sentence);
    let sentence = "tensor `a`: expected JSON of another form: \
                    invalid value: integer `-1`, expected u64";
    refuses_header("negative", &one("F32", "[-1]", "[0,4]"), sentence);
}

#[test]
fn bad_tensors_are_refused() {
    let sentence = "tensor `a`: expected a known dtype, found `F31\\n`";
    refuses_header("dtype", &one("F31\\n", "[5]", "[0,20]"), sentence);
    let sentence = "tensor `a`: expected at most 8 dimensions, found 9";
    refuses_header("dims", &one("F32", "[1,1,1,1,1,1,1,1,5]", "[0,20]"), sentence);
    let sentence = "tensor `a`: expected a size that fits in memory, found [4294967296, 4294967296]";
    refuses_header("product", &one("F32", "[4294967296,4294967296]", "[0,20]"), sentence);
    let sentence = "tensor `a`: expected 16 bytes for F32 [4], found 0 to 20";
    refuses_header("bytes", &one("F32", "[4]", "[0,20]"), sentence);
    let sentence = "tensor `a`: expected 4 bytes for F32 [1], found 8 to 4";
    refuses_header("backwards", &one("F32", "[1]", "[8,4]"), sentence);
    let sentence = "tensor `a`: expected its bytes in the 20 of the data, found 0 to 24; is the file whole?";
    refuses_header("outside", &one("F32", "[6]", "[0,24]"), sentence);
    let max = u64::MAX;
    let sentence = format!("tensor `a`: expected 4 bytes for F32 [1], found {max} to 3");
    refuses_header("wraps", &one("F32", "[1]", &format!("[{max},3]")), &sentence);
}

#[test]
fn holes_and_overlaps_are_refused() {
    let tensors = |first: &str, second: &str| {
        let [first, second] = [("[2]", first), ("[2]", second)].map(|(shape, at)| one("F32", shape, at));
        format!("{},{}", first.trim_end_matches('}').to_owned() + "}", second[1..].replace("\"a\"", "\"b\""))
    };
    let sentence = "tensor `b`: expected its bytes to follow those before it at 8, found 4";
    refuses_header("overlap", &tensors("[0,8]", "[4,12]"), sentence);
    let sentence = "tensor `b`: expected its bytes to follow those before it at 8, found 12";
    refuses_header("hole", &tensors("[0,8]", "[12,20]"), sentence);
    let header = one("F32", "[4]", "[0,16]");
    let sentence =
        format!("byte {}: expected the end of the file, found 4 bytes of no tensor", 24 + header.len());
    refuses_header("rest", &header, &sentence);
}
