//! Odd sizes: heads of 40 and 48, five and seven query heads per key head, rows that fill no block or tile, windows
//! shorter than a tile or a chunk, several dense first blocks, groups of experts, every scoring function.
//!
//! In: a config of each kind. Out: a session's logits, after a chunked prefill and after each decoded token, equal to
//! those of the unoptimised graph in the reference evaluator.

use std::collections::BTreeSet;

use fusebox_compiler::graph::op::Op;
use fusebox_compiler::options::Numbers;
use fusebox_compiler::reference::evaluate;
use fusebox_compiler::tensor::label::Label;
use fusebox_compiler::tensor::quant::Format;
use fusebox_compiler::tensor::sym::Sym;
use fusebox_compiler::tensor::value::{Data, Value};
use fusebox_models::blocks::part;
use fusebox_models::config::attention::Latent;
use fusebox_models::config::network::{Activation, Experts, Gate, Groups};
use fusebox_models::config::rope::{Pairing, Rope, Scaling};
use fusebox_models::config::{Config, Formats};
use fusebox_models::layers::embed::{Entry, Scored};
use fusebox_models::layers::step::Step;
use fusebox_models::load::Model;
use fusebox_runtime::session::names::{PAGES, inputs};
use support::own::path;
use support::plain::{Attention, Grouped, Plain, Window};
use support::run::{Run, relative_error};

use crate::made::Made;

/// Single precision, summed in another order.
const SAME: f64 = 1e-5;
/// Tokens of the prefill, and of the decode after it.
const N_TOKENS: [usize; 2] = [21, 4];

/// A small model with this attention.
pub(crate) fn small(attention: Attention, format: Format) -> Plain {
    Plain {
        attention,
        hidden: 64,
        n_layers: 2,
        vocab: 50,
        context: 48,
        ff: 96,
        experts: None,
        dense: BTreeSet::new(),
        tied: true,
        formats: Formats::Uniform(format),
        rope: Rope { theta: 1e4, pairing: Pairing::Halves, scaling: Scaling::None },
        eps: 1e-5,
        biased: BTreeSet::new(),
    }
}

pub(crate) fn grouped(n_heads: usize, n_kv: usize, head: usize) -> Grouped {
    Grouped::new(n_heads, n_kv, head)
}

pub(crate) fn latent(is_joint: bool) -> Latent {
    // Replaced by that of the model.
    let turn = Rope { theta: 1e4, pairing: Pairing::Interleaved, scaling: Scaling::None };
    Latent { n_heads: 3, q_lora: Some(40), kv_lora: 48, nope: 24, rope: 8, value: 40, is_joint, turn }
}

pub(crate) fn experts(n_routed: usize, top_k: usize) -> Experts {
    Experts {
        n_routed,
        top_k,
        shared_ff: 0,
        has_shared_gate: false,
        ff: 40,
        activation: Activation::Silu,
        is_gated: true,
        has_biases: false,
        weighs_input: false,
        gate: Gate::Softmax,
        router_bias: false,
        renorm: true,
        scale: 1.0,
        cap: None,
        groups: None,
        is_joint: false,
    }
}

/// The logits of every token, from the graph.
fn expected(made: &Made, config: &Config, tokens: &[u32]) -> Vec<Vec<f32>> {
    let graph = part(
        config,
        Step::Scored(Sym::from(tokens.len() as i64)),
        config.n_layers(),
        Entry::Tokens,
        Scored::Last,
    )
    .unwrap();
    let mut bindings = made.bindings();
    let rows = config.cache.page_rows;
    bindings.symbols.insert(Label::new(PAGES).unwrap(), tokens.len().div_ceil(rows) as i64);
    for node in graph.nodes.values() {
        let axes = node.ty.shape.iter().map(|(axis, size)| (*axis, size.most() as usize)).collect::<Vec<_>>();
        let len = axes.iter().map(|(_, size)| size).product();
        match &node.op {
            Op::Input { name, .. } => {
                let number = |slot: usize| match &**name {
                    inputs::TOKENS => tokens[slot] as usize,
                    inputs::PAGE | inputs::WINDOW_PAGE => slot / rows,
                    inputs::ROW => slot % rows,
                    // A run from the first token on, in pages in order.
                    _ => slot,
                };
                let numbers = (0..len).map(|slot| number(slot) as i32).collect();
                bindings.inputs.insert(name.clone(), Value::int(axes, numbers));
            }
            Op::State { name, format, .. } => {
                bindings.states.insert(name.clone(), Value::float(format.dtype(), axes, vec![0.0; len]));
            }
            _ => {}
        }
    }
    let results = evaluate(&graph, &bindings).unwrap();
    let Data::Float(logits) = &results.outputs["logits"].data else { panic!("logits are floats") };
    logits.chunks(config.vocab).map(<[f32]>::to_vec).collect()
}

/// Opens the file and compares a session with the reference.
#[track_caller]
fn check(name: &str, made: &Made, file: &std::path::Path) {
    let model = Model::open(file).unwrap_or_else(|error| panic!("{error}"));
    let read = Config { formats: made.config.formats.clone(), ..model.config.clone() };
    assert_eq!(read, Config { cache: read.cache, ..made.config.config() }, "{name}");
    let tokens: Vec<u32> = (0..N_TOKENS.iter().sum::<usize>() as u32).map(|i| (i * 17 + 3) % 50).collect();
    let expected = expected(made, &made.config.config(), &tokens);
    let mut run = Run::new(Numbers::Single);
    (run.settings.context, run.settings.chunk) = (40, 16);
    let mut session = run.open(file);
    let (prompt, rest) = tokens.split_at(N_TOKENS[0]);
    let error = relative_error(session.feed(prompt).unwrap(), &expected[prompt.len() - 1]);
    assert!(error <= SAME, "{name}: {error:e} after {} tokens", prompt.len());
    for (token, expected) in rest.iter().zip(&expected[prompt.len()..]) {
        let error = relative_error(session.feed(&[*token]).unwrap(), expected);
        assert!(error <= SAME, "{name}: {error:e} after {} tokens", session.position());
    }
}

fn in_gguf(name: &str, architecture: &str, config: &Plain) {
    let (made, file) = (Made::new(config), path(&format!("{name}.gguf")));
    made.gguf(&file, architecture);
    check(name, &made, &file);
}

fn in_folder(name: &str, model_type: &str, config: &Plain) {
    let (made, file) = (Made::new(config), path(name));
    made.folder(&file, model_type);
    check(name, &made, &file);
}

#[test]
fn five_query_heads_share_one_of_width_40() {
    let own = small(Attention::Grouped(grouped(5, 1, 40)), Format::F32);
    let config = Plain { hidden: 72, ff: 100, tied: false, ..own };
    let neighbours = Rope { pairing: Pairing::Interleaved, ..config.rope.clone() };
    in_gguf("head-40", "llama", &Plain { rope: neighbours, ..config.clone() });
    in_folder("head-40", "llama", &config);
}

#[test]
fn seven_query_heads_share_each_of_width_48_with_biases() {
    for format in [Format::F32, Format::Q8_0] {
        let own = small(Attention::Grouped(grouped(14, 2, 48)), format);
        let biased = ["attn_q", "attn_k", "attn_v"].map(str::to_owned).into();
        in_gguf(&format!("head-48-{format}"), "qwen2", &Plain { hidden: 96, ff: 160, biased, ..own });
    }
}

#[test]
fn windows_may_be_shorter_than_tiles_and_chunks() {
    for size in [1, 3, 18] {
        let heads = Grouped { window: Some(Window { size, full: BTreeSet::new() }), ..grouped(4, 2, 24) };
        in_folder(&format!("window-{size}"), "mistral", &small(Attention::Grouped(heads), Format::BF16));
    }
    for (name, full) in [("window-later", [0].into()), ("window-first-and-last", [1, 2].into())] {
        let heads = Grouped { window: Some(Window { size: 5, full }), qk_norm: true, ..grouped(4, 2, 24) };
        let own = small(Attention::Grouped(heads), Format::F16);
        in_folder(name, "qwen3", &Plain { n_layers: 4, ..own });
    }
}

#[test]
fn a_part_of_each_head_may_be_turned() {
    let heads = Grouped { rotary_dim: 8, ..grouped(4, 2, 24) };
    let config = small(Attention::Grouped(heads), Format::F32);
    let neighbours = Rope { pairing: Pairing::Interleaved, ..config.rope.clone() };
    in_gguf("part-turned", "llama", &Plain { rope: neighbours, ..config.clone() });
    in_gguf("part-turned-halves", "qwen2", &config);
    let heads = Grouped { rotary_dim: 12, qk_norm: true, ..grouped(4, 2, 16) };
    in_folder("part-turned", "qwen3", &small(Attention::Grouped(heads), Format::F32));
}

#[test]
fn experts_may_be_of_any_number() {
    let heads = Grouped { qk_norm: true, ..grouped(3, 3, 16) };
    let own = small(Attention::Grouped(heads), Format::F32);
    let config = Plain { hidden: 40, experts: Some(experts(7, 3)), tied: false, ..own };
    in_gguf("experts-7", "qwen3moe", &config);
    in_folder("experts-7", "qwen3_moe", &config);
}

#[test]
fn several_blocks_may_be_dense_before_experts_in_groups() {
    let groups = Some(Groups { n_groups: 4, top_k: 2, score_top_k: 2 });
    let sparse = Experts {
        shared_ff: 40,
        gate: Gate::Sigmoid,
        router_bias: true,
        scale: 1.8,
        groups,
        ..experts(12, 4)
    };
    let own = small(Attention::Latent(latent(false)), Format::F32);
    let rope = Rope { pairing: Pairing::Interleaved, ..own.rope.clone() };
    let config = Plain { n_layers: 4, dense: [0, 1, 2].into(), experts: Some(sparse), rope, ..own };
    in_gguf("dense-3", "deepseek2", &config);
    in_folder("dense-3", "deepseek_v3", &config);
}

#[test]
fn dense_blocks_and_those_with_experts_may_take_turns() {
    let heads = Grouped { qk_norm: true, ..grouped(2, 1, 16) };
    let own = small(Attention::Grouped(heads), Format::F32);
    let config = Plain { n_layers: 4, dense: [0, 2].into(), experts: Some(experts(4, 2)), ..own };
    in_gguf("turns", "qwen3moe", &config);
    in_folder("turns", "qwen3_moe", &config);
}

#[test]
fn every_gate_weighs_as_its_formula_says() {
    for gate in [Gate::Softmax, Gate::Sigmoid, Gate::SoftmaxAfterTopK, Gate::SqrtSoftplus] {
        let groups =
            Some(Groups { n_groups: 2, top_k: 1, score_top_k: if gate == Gate::Softmax { 1 } else { 2 } });
        let sparse = Experts { gate, groups, renorm: gate == Gate::Sigmoid, scale: 2.5, ..experts(6, 2) };
        let sizes = Latent { q_lora: None, ..latent(false) };
        let own = small(Attention::Latent(sizes), Format::F32);
        let rope = Rope { pairing: Pairing::Interleaved, ..own.rope.clone() };
        let config = Plain { n_layers: 1, experts: Some(sparse), rope, tied: false, ..own };
        in_gguf(&format!("gate-{gate:?}"), "deepseek2", &config);
    }
}

#[test]
fn all_blocks_of_latent_attention_may_be_dense() {
    let sizes = Latent { q_lora: Some(64), kv_lora: 64, nope: 32, rope: 8, value: 32, ..latent(false) };
    let own = small(Attention::Latent(sizes.clone()), Format::Q8_0);
    let rope = Rope { pairing: Pairing::Interleaved, ..own.rope.clone() };
    let config = Plain { attention: Attention::Latent(sizes.clone()), rope, ..own };
    in_gguf("youtu", "deepseek2", &config);
    // The up-projections of keys and values in one matrix, as older files have it.
    let joint = Latent { is_joint: true, ..sizes };
    in_gguf("youtu-joint", "deepseek2", &Plain { attention: Attention::Latent(joint), ..config });
}
