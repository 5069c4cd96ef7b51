//! Whole models in every format of GGUF files.
//!
//! In: small models with random weights, dense and with experts. Out: the logits of the same model with its weights in
//! single precision.

use fusebox_compiler::options::Numbers;
use fusebox_compiler::tensor::quant::Format;
use fusebox_models::config::Experts;
use support::own::path;
use support::plain::{Attention, Grouped, Plain};
use support::run::relative_error;

use crate::arrays::{dequantised, logits};
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
