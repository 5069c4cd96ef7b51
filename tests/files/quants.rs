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

/// So many that each code of each table occurs.
const N_BLOCKS: usize = 512;

#[test]
fn formats_of_few_bits_become_the_same_numbers() {
    let path = fixture("expanded.json");
    let recorded: Json = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let recorded = recorded.as_object().unwrap();
    assert_eq!(recorded.len(), 10);
    for (name, sum) in recorded {
        // Where its scale is, of 16 bits.
        let (n_bytes, scale) = match name.as_str() {
            "iq2_xxs" => (66, Some(0)),
            "iq2_xs" => (74, Some(0)),
            "iq2_s" => (82, Some(0)),
            "iq3_xxs" => (98, Some(0)),
            "iq3_s" => (110, Some(0)),
            "iq1_s" => (50, Some(0)),
            "iq1_m" => (56, None),
            "tq1_0" => (54, Some(52)),
            "nvfp4" => (36, None),
            _ => (66, Some(64)),
        };
        let mut random = Random::new(7);
        let mut blocks: Vec<u8> = (0..N_BLOCKS * n_bytes).map(|_| random.below(256) as u8).collect();
        for block in blocks.chunks_mut(n_bytes) {
            if let Some(at) = scale {
                block[at..at + 2].copy_from_slice(&0xb5ec_u16.to_le_bytes());
            } else if name == "iq1_m" {
                block[55] &= 0xbf;
            }
        }
        let n = N_BLOCKS * if name == "nvfp4" { 64 } else { 256 };
        let found = expand(name, &blocks).unwrap();
        let found = expanded(name).unwrap().decode_all(&found, n).unwrap();
        let bits = found.iter().map(|number| u64::from(number.to_bits()));
        let found = (1_u64..).zip(bits).fold(0_u64, |sum, (at, bits)| sum.wrapping_add(at * bits));
        assert_eq!(Some(found), sum.as_u64(), "{name}");
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
