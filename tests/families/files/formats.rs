//! Whole models in every format of GGUF files.
//!
//! In: small models with random weights, dense and with experts, and in types that become bytes. Out: the logits of the
//! same model with its weights in single precision.

use fusebox_compiler::options::Numbers;
use fusebox_compiler::tensor::quant::Format;
use fusebox_models::config::network::Experts;
use fusebox_runtime::weights::expand::{expand, expanded};
use fusebox_runtime::weights::gguf::{self, store};
use fusebox_runtime::weights::{Checkpoint, Stored};
use support::own::path;
use support::plain::{Attention, Grouped, Plain};
use support::run::relative_error;

use crate::files::arrays::{dequantised, logits};
use crate::made::Made;
use crate::odd::{experts, grouped, small};

/// Single precision, summed in another order.
const SAME: f64 = 1e-5;
/// Activations of 8 bits.
const ROUNDED: f64 = 3e-2;

/// Rows of whole super-blocks.
fn sizes(config: Plain) -> Plain {
    Plain { hidden: 256, ff: 512, ..config }
}

fn check(made: &Made, architecture: &str, format: Format, bars: &[(Numbers, f64)]) {
    let [stored, plain] =
        ["stored", "plain"].map(|kind| path(&format!("{architecture}-{format}-{kind}.gguf")));
    made.gguf(&stored, architecture);
    dequantised(made).gguf(&plain, architecture);
    let expected = logits(&plain, Numbers::Single);
    for (numbers, bar) in bars {
        let error = relative_error(&logits(&stored, *numbers), &expected);
        assert!(error <= *bar, "{error:e} of {bar:e}: {architecture} {format} {numbers}");
    }
}

fn formats() -> impl Iterator<Item = Format> {
    Format::FIXED.into_iter().filter(|format| format.blocks().is_some() && format.ggml().is_some())
}

#[test]
fn models_in_blocks_answer_as_their_numbers_do() {
    for format in formats() {
        let made = Made::new(&sizes(small(Attention::Grouped(grouped(8, 2, 32)), format)));
        check(&made, "llama", format, &[(Numbers::Single, SAME), (Numbers::Quantised, ROUNDED)]);
    }
}

#[test]
fn experts_in_blocks_answer_as_their_numbers_do() {
    for format in formats() {
        let heads = Grouped { qk_norm: true, ..grouped(8, 2, 32) };
        let sparse = Experts { ff: 256, ..experts(4, 2) };
        let own = sizes(small(Attention::Grouped(heads), format));
        let made = Made::new(&Plain { experts: Some(sparse), ..own });
        // Rounded activations may choose other experts.
        check(&made, "qwen3moe", format, &[(Numbers::Single, SAME)]);
    }
}

/// Types of few bits, the elements and bytes of a block, and where its scale is, if it is in one place.
const FEW_BITS: [(&str, usize, usize, Option<usize>); 10] = [
    ("iq1_s", 256, 50, Some(0)),
    ("iq1_m", 256, 56, None),
    ("iq2_xxs", 256, 66, Some(0)),
    ("iq2_xs", 256, 74, Some(0)),
    ("iq2_s", 256, 82, Some(0)),
    ("iq3_xxs", 256, 98, Some(0)),
    ("iq3_s", 256, 110, Some(0)),
    ("tq1_0", 256, 54, Some(52)),
    ("tq2_0", 256, 66, Some(64)),
    ("nvfp4", 64, 36, None),
];

#[test]
fn types_of_few_bits_are_what_they_stand_for() {
    let own = small(Attention::Grouped(grouped(4, 2, 64)), Format::F32);
    let made = Made::new(&Plain { hidden: 256, ff: 256, ..own });
    let plain = path("few-bits-plain.gguf");
    made.gguf(&plain, "llama");
    let checkpoint = Checkpoint::open(&plain).unwrap();
    let pairs: Vec<Vec<u8>> = gguf::pairs(&checkpoint).unwrap().into_values().map(<[u8]>::to_vec).collect();
    for (ty, block_len, block_bytes, scale) in FEW_BITS {
        let mut seed = 1_u32;
        let mut block = || {
            let mut bytes: Vec<u8> = (0..block_bytes)
                .map(|_| {
                    seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    (seed >> 24) as u8
                })
                .collect();
            // 2^-7
            if let Some(at) = scale {
                bytes[at..at + 2].copy_from_slice(&[0x00, 0x20]);
            } else if ty == "nvfp4" {
                bytes[..4].copy_from_slice(&[0x08, 0x0c, 0x07, 0x10]);
            } else {
                for at in [49, 51, 53, 55] {
                    bytes[at] &= 0x0f;
                }
                bytes[55] |= 0x20;
            }
            bytes
        };
        let tensors: Vec<(store::Entry, Vec<u8>, Vec<u8>)> = checkpoint
            .tensors()
            .iter()
            .map(|(name, info)| {
                let (n, bytes) = (info.n_elements(), checkpoint.bytes(name).unwrap().to_vec());
                let entry = |stored| store::Entry { name: name.clone(), shape: info.shape.clone(), stored };
                if info.shape.len() < 2 {
                    return (entry(info.stored), bytes.clone(), bytes);
                }
                let few: Vec<u8> = (0..n / block_len).flat_map(|_| block()).collect();
                let numbers = expanded(ty).unwrap().decode_all(&expand(ty, &few).unwrap(), n).unwrap();
                let whole = numbers.into_iter().flat_map(f32::to_le_bytes).collect();
                (entry(Stored::Other(ty)), few, whole)
            })
            .collect();
        let [few, whole] = ["few", "whole"].map(|name| path(&format!("{ty}-{name}.gguf")));
        let entries: Vec<store::Entry> = tensors.iter().map(|(entry, ..)| entry.clone()).collect();
        store::write(&few, &pairs, &entries, |idx, put| put(&tensors[idx].1)).unwrap();
        let plain = |entry: store::Entry| store::Entry { stored: Stored::As(Format::F32), ..entry };
        let entries: Vec<store::Entry> = entries.into_iter().map(plain).collect();
        store::write(&whole, &pairs, &entries, |idx, put| put(&tensors[idx].2)).unwrap();
        for (numbers, bar) in [(Numbers::Single, SAME), (Numbers::Quantised, 2.0 * ROUNDED)] {
            let error = relative_error(&logits(&few, numbers), &logits(&whole, Numbers::Single));
            assert!(error <= bar, "{ty}: {error:e} in {numbers}");
        }
    }
}
