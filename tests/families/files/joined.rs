//! The same model with other tensors: fused projections, separate experts, a matrix fused per head.
//!
//! In: one model with random weights, written several ways. Out: the same logits, bit for bit where the same kernels
//! run, and weights that are not copied.

use std::path::Path;

use fusebox_compiler::options::Numbers;
use fusebox_compiler::tensor::quant::Format;
use fusebox_compiler::tensor::sym::Sym;
use fusebox_models::binding::bind;
use fusebox_models::blocks::model;
use fusebox_models::config::network::Experts;
use fusebox_models::load::Model;
use fusebox_runtime::device::Weights;
use fusebox_runtime::weights::Checkpoint;
use support::own::path;
use support::plain::{Attention, Grouped, Plain};
use support::run::{Run, relative_error};

use crate::made::Made;
use crate::odd::{experts, grouped, small};

/// Logits after a short prompt, and after one more token.
fn logits(file: &Path, numbers: Numbers) -> Vec<f32> {
    let mut session = Run::new(numbers).open(file);
    let first = session.feed(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]).unwrap().to_vec();
    [first, session.feed(&[11]).unwrap().to_vec()].concat()
}

fn blocks(parts: &[&str], block: usize) -> Vec<String> {
    parts.iter().map(|part| format!("blk.{block}.{part}")).collect()
}

/// A model with all projections that may be fused, and biases, split and fused.
fn split_and_joined(format: Format) -> (Made, Made) {
    let all = ["attn_q", "attn_k", "attn_v", "ffn_gate", "ffn_up"];
    let config = small(Attention::Grouped(grouped(4, 2, 32)), format);
    let split = Made::new(&Plain { biased: all.map(str::to_owned).into(), ..config });
    let mut joined = split.clone();
    for block in 0..2 {
        for ending in ["", ".bias"] {
            let parts = |parts: &[&str]| -> Vec<String> {
                blocks(parts, block).into_iter().map(|name| name + ending).collect()
            };
            joined.join(&parts(&all[..3]), &format!("blk.{block}.attn_qkv{ending}"));
            joined.join(&parts(&all[3..]), &format!("blk.{block}.ffn_gate_up{ending}"));
        }
    }
    (split, joined)
}

#[test]
fn joined_projections_are_the_split_ones() {
    for (format, numbers) in [(Format::F32, Numbers::Single), (Format::Q8_0, Numbers::Quantised)] {
        let (split, joined) = split_and_joined(format);
        let files = ["split", "joined"].map(|name| path(&format!("{name}-{format}.gguf")));
        split.gguf(&files[0], "qwen2");
        joined.gguf(&files[1], "qwen2");
        assert_eq!(logits(&files[0], numbers), logits(&files[1], numbers));
    }
    let (split, joined) = split_and_joined(Format::BF16);
    let folders = ["split-hf", "joined-hf"].map(path);
    split.folder(&folders[0], "qwen2");
    joined.folder(&folders[1], "qwen2");
    assert_eq!(logits(&folders[0], Numbers::Single), logits(&folders[1], Numbers::Single));
}

#[test]
fn joined_projections_are_not_copied() {
    let (split, joined) = split_and_joined(Format::Q8_0);
    let file = path("joined-views.gguf");
    joined.gguf(&file, "qwen2");
    let graph = model(&split.config.config(), &Sym::from(1), 2).unwrap();
    let (bound, formats) = bind(&file, Checkpoint::open(&file).unwrap(), &graph).unwrap();
    assert_eq!(formats["blk.1.attn_k"], Format::Q8_0);
    let whole = bound.checkpoint.bytes("blk.1.attn_qkv.weight").unwrap().as_ptr_range();
    let parts = blocks(&["attn_q", "attn_k", "attn_v"], 1);
    let parts: Vec<_> = parts.iter().map(|part| bound.bytes(part).unwrap().as_ptr_range()).collect();
    assert_eq!((parts[0].start, parts[2].end), (whole.start, whole.end));
    assert!(parts[0].end == parts[1].start && parts[1].end == parts[2].start);
}

#[test]
fn experts_apart_are_experts_together() {
    let heads = Grouped { qk_norm: true, ..grouped(2, 1, 32) };
    let own = small(Attention::Grouped(heads), Format::F32);
    let whole = Made::new(&Plain { experts: Some(experts(6, 2)), ..own.clone() });
    let (together, apart) = (path("experts.gguf"), path("experts-apart"));
    whole.gguf(&together, "qwen3moe");
    whole.folder(&apart, "qwen3_moe");
    let expected = logits(&together, Numbers::Single);
    assert_eq!(logits(&apart, Numbers::Single), expected);

    let mut joint = whole.clone();
    joint.config = Plain { experts: Some(Experts { is_joint: true, ..experts(6, 2) }), ..own };
    for block in 0..2 {
        let parts = blocks(&["ffn_gate_exps", "ffn_up_exps"], block);
        joint.join(&parts, &format!("blk.{block}.ffn_gate_up_exps"));
    }
    let (in_gguf, in_folder) = (path("experts-joint.gguf"), path("experts-joint"));
    joint.gguf(&in_gguf, "qwen3moe");
    joint.folder(&in_folder, "qwen3_moe");
    for file in [in_gguf, in_folder] {
        assert_eq!(Model::open(&file).unwrap().config.experts(), joint.config.experts.as_ref());
        let error = relative_error(&logits(&file, Numbers::Single), &expected);
        assert!(error <= 1e-5, "{error:e} {}", file.display());
    }
}
