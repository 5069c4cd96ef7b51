//! Blocks as llama.cpp's reference quantisers write them.
//!
//! In: numbers that a seed determines, and `tests/fixtures/quants.json`, which the script beside it made of the same
//! numbers. Out: the same bytes, told by a sum for each 256 numbers. Blocks alone are decoded as in their tensor.

use std::fs;

use fusebox_compiler::foundation::random::Random;
use fusebox_compiler::tensor::quant::Format;
use fusebox_runtime::weights::expand::{expand, expanded};
use serde_json::Value as Json;
use support::given::fixture;

/// Twelve blocks of 256 numbers: even ones, ones with few large among them, one-sided ones, and zeros.
fn numbers() -> Vec<f32> {
    let mut random = Random::new(4);
    let mut numbers = Vec::new();
    for block in 0..12 {
        for i in 0..256 {
            let x = random.below(1 << 20) as f32 / (1 << 19) as f32 - 1.0;
            numbers.push(match block {
                0..4 => x,
                4..8 => x * x * x * if i % 37 == 0 { 8.0 } else { 0.25 },
                8 => x + 2.0,
                9 => x * 0.001 - 3.0,
                10 if i < 128 => x,
                _ => 0.0,
            });
        }
    }
    numbers
}

#[test]
fn blocks_are_those_of_llama_cpp() {
    let path = fixture("quants.json");
    let recorded: Json = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let recorded = recorded.as_object().unwrap();
    assert_eq!(recorded.len(), 13);
    for (name, sums) in recorded {
        let format = Format::named(name).unwrap();
        let mut bytes = vec![0; format.bytes_for(12 * 256).unwrap()];
        format.encode(&numbers(), &mut bytes).unwrap();
        let found: Vec<u64> = bytes
            .chunks_exact(bytes.len() / 12)
            .map(|block| (1..).zip(block).fold(0, |sum, (at, byte)| sum + at * u64::from(*byte)))
            .collect();
        let sums: Vec<u64> = sums.as_array().unwrap().iter().map(|sum| sum.as_u64().unwrap()).collect();
        assert_eq!(found, sums, "{name}");
    }
}

#[test]
fn with_an_importance_matrix_blocks_are_those_of_llama_cpp() {
    let path = fixture("quants_weighted.json");
    let recorded: Json = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let recorded = recorded.as_object().unwrap();
    assert_eq!(recorded.len(), 11);
    let mut random = Random::new(5);
    let weights: Vec<f32> = (0..512).map(|_| random.below(1024) as f32 / 128.0).collect();
    for (name, sums) in recorded {
        let format = Format::named(name).unwrap();
        let mut bytes = vec![0; format.bytes_for(12 * 256).unwrap()];
        format.encode_weighted(&numbers(), &weights, &mut bytes).unwrap();
        let found: Vec<u64> = bytes
            .chunks_exact(bytes.len() / 12)
            .map(|block| (1..).zip(block).fold(0, |sum, (at, byte)| sum + at * u64::from(*byte)))
            .collect();
        let sums: Vec<u64> = sums.as_array().unwrap().iter().map(|sum| sum.as_u64().unwrap()).collect();
        assert_eq!(found, sums, "{name}");
    }
}

#[test]
fn formats_of_few_bits_become_the_same_numbers() {
    let path = fixture("expanded.json");
    let recorded: Json = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let recorded = recorded.as_object().unwrap();
    assert_eq!(recorded.len(), 9);
    let bytes = |json: &Json| {
        let text = json.as_str().unwrap();
        (0..text.len() / 2).map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap()).collect()
    };
    for (name, own) in recorded {
        let (block, numbers): (Vec<u8>, Vec<u8>) = (bytes(&own["block"]), bytes(&own["numbers"]));
        // Two blocks, so that all numbers are before all scales.
        let found = expand(name, &block.repeat(2)).unwrap();
        let found = expanded(name).unwrap().decode_all(&found, 512).unwrap();
        let expected = numbers.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes).to_bits());
        let expected: Vec<u32> = expected.collect();
        let found: Vec<u32> = found.into_iter().map(f32::to_bits).collect();
        assert!(found == expected.repeat(2), "{name}");
    }
    assert!(expand("q8_1", &[0; 36]).is_none() && expanded("q8_k").is_none());
}

#[test]
fn some_blocks_are_decoded_as_in_the_whole() {
    let bits = |numbers: Vec<f32>| numbers.into_iter().map(f32::to_bits).collect::<Vec<_>>();
    for format in Format::FIXED.into_iter().chain([Format::Int8 { group: 64 }]) {
        let (len, n) = (format.block_len(), 4 * format.block_len());
        let bytes: Vec<u8> = (0..format.bytes_for(n).unwrap()).map(|i| (i * 37 % 251) as u8).collect();
        let all = bits(format.decode_all(&bytes, n).unwrap());
        for (first, end) in [(0, 1), (1, 3), (3, 4), (2, 2)] {
            let some = format.decode_some(&bytes, n, first * len..end * len).unwrap();
            assert_eq!(bits(some), all[first * len..end * len], "{format}");
        }
        assert_eq!(format.decode_some(&bytes, n, 0..n + len), None, "{format}");
        assert_eq!(format.decode_some(&bytes[1..], n, 0..len), None, "{format}");
        assert_eq!(format.decode_some(&bytes, n, 1..n).is_some(), len == 1, "{format}");
    }
}
