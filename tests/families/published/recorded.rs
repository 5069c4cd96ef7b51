//! Small models of every family, compared with what Transformers computes from the same weights.
//!
//! In: models whose weights follow from their names, and `tests/fixtures/families.json`, which the script next to it
//! recorded from the folders that the test here writes. Out: the same logits of every token, with the prompt fed at
//! once and token by token, in single precision and with rounded activations.
//! To record again: run the test, which writes all folders before it reads any, then the script.

use std::collections::BTreeSet;
use std::fs::read_to_string;
use std::path::Path;

use fusebox_compiler::options::Numbers;
use fusebox_compiler::tensor::quant::Format;
use fusebox_models::config::attention::Latent;
use fusebox_models::config::network::{Experts, Gate, Groups};
use fusebox_models::config::rope::{Pairing, Rope, Scaling};
use fusebox_runtime::session::Session;
use serde_json::{Value as Json, json};
use support::given::fixture;
use support::own::path;
use support::plain::{Attention, Grouped, Plain, Window};
use support::run::{Run, relative_error};

use crate::made::{Made, Tensor};
use crate::odd::{experts, grouped, latent, small};

/// Single precision, summed in another order, at any token; recorded with six digits.
const SAME: f64 = 2e-5;
/// Activations in bfloat16, at most tokens: rounding may select another expert for some.
const ROUNDED: f64 = 3e-2;
const VOCAB: usize = 32;

/// A model that Transformers has, too.
#[derive(Clone)]
struct Case {
    name: &'static str,
    model_type: &'static str,
    config: Plain,
    /// Further hyper-parameters of the folder.
    facts: Json,
}

/// The config of a model, with this attention.
fn sizes(attention: Attention) -> Plain {
    let own = small(attention, Format::BF16);
    Plain { vocab: VOCAB, eps: 1e-6, tied: false, rope: Rope { theta: 500.0, ..own.rope.clone() }, ..own }
}

fn plain() -> Plain {
    sizes(Attention::Grouped(grouped(4, 2, 16)))
}

/// GQA with QK norm; all heads together need not be as wide as the residual stream.
fn normed(window: Option<Window>) -> Plain {
    sizes(Attention::Grouped(Grouped { window, qk_norm: true, ..grouped(4, 2, 24) }))
}

/// Experts in every block, with the FFN width of a dense block.
pub(crate) fn mixtral() -> Plain {
    Plain { ff: 48, experts: Some(Experts { ff: 48, ..experts(6, 2) }), ..plain() }
}

/// MLA; experts after one dense block, if there are any.
fn latents(q_lora: Option<usize>, experts: Option<Experts>) -> Plain {
    let own = sizes(Attention::Latent(Latent { n_heads: 4, q_lora, ..latent(true) }));
    let dense = if experts.is_some() { [0].into() } else { BTreeSet::new() };
    let rope = Rope { pairing: Pairing::Interleaved, ..own.rope.clone() };
    Plain { n_layers: 3, experts, dense, rope, ..own }
}

fn grouped_cases() -> Vec<Case> {
    let case = |name, model_type, config, facts| Case { name, model_type, config, facts };
    let stretched = |scaling| Plain { rope: Rope { scaling, ..plain().rope }, ..plain() };
    let window = |size, full: &[usize]| Some(Window { size, full: full.iter().copied().collect() });
    let yarn = json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 12});
    let more = |more: Json| {
        let mut scaling = yarn.clone();
        scaling.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"rope_scaling": scaling})
    };
    let llama3 = Scaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original: 32.0 };
    let near = Attention::Grouped(Grouped { window: window(5, &[]), ..grouped(4, 2, 16) });
    let biased = ["attn_q", "attn_k", "attn_v"].map(str::to_owned).into();
    let seven = Plain { experts: Some(experts(7, 3)), n_layers: 3, dense: [1].into(), ..normed(None) };
    let unweighed = Experts { renorm: false, ..experts(8, 2) };
    vec![
        case("llama", "llama", Plain { tied: true, ..plain() }, json!({})),
        case("llama-llama3", "llama", stretched(llama3), json!({})),
        case("mistral-window", "mistral", sizes(near), json!({})),
        case("mixtral", "mixtral", mixtral(), json!({})),
        case("qwen2-biases", "qwen2", Plain { biased, ..plain() }, json!({})),
        case("qwen3", "qwen3", Plain { tied: true, ..normed(None) }, json!({})),
        case("qwen3-window", "qwen3", normed(window(4, &[0])), json!({})),
        case(
            "qwen3-linear",
            "qwen3",
            normed(None),
            json!({"rope_scaling": {"rope_type": "linear", "factor": 2.5}}),
        ),
        case("qwen3-yarn", "qwen3", normed(None), more(json!({"beta_fast": 4.0, "beta_slow": 0.5}))),
        case("qwen3-yarn-factor", "qwen3", normed(None), more(json!({"attention_factor": 1.5}))),
        case("qwen3-moe", "qwen3_moe", seven, json!({})),
        case(
            "qwen3-moe-unweighed",
            "qwen3_moe",
            Plain { experts: Some(unweighed), ..normed(None) },
            json!({}),
        ),
    ]
}

fn latent_cases() -> Vec<Case> {
    let case = |name, model_type, config, facts| Case { name, model_type, config, facts };
    let yarn = |method, mscale, mscale_all_dim| {
        json!({"topk_method": method, "rope_scaling": {
            "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 12, "beta_fast": 4.0,
            "beta_slow": 0.5, "mscale": mscale, "mscale_all_dim": mscale_all_dim,
        }})
    };
    let v2 = Experts { shared_ff: 80, renorm: false, scale: 1.5, ..experts(8, 3) };
    let in_groups = Experts { groups: Some(Groups { n_groups: 4, top_k: 2, score_top_k: 1 }), ..v2.clone() };
    let v3 = Experts {
        shared_ff: 40,
        gate: Gate::Sigmoid,
        router_bias: true,
        scale: 2.5,
        groups: Some(Groups { n_groups: 4, top_k: 2, score_top_k: 2 }),
        ..experts(8, 3)
    };
    let glm = Experts { groups: None, scale: 1.8, ..v3.clone() };
    let ungrouped = json!({"n_group": 1, "topk_group": 1, "topk_method": "noaux_tc"});
    let halves = latents(Some(40), Some(v3.clone()));
    let halves = Plain { rope: Rope { pairing: Pairing::Halves, ..halves.rope.clone() }, ..halves };
    vec![
        case("deepseek-v2-groups", "deepseek_v2", latents(None, Some(in_groups)), json!({})),
        case("deepseek-v2-yarn", "deepseek_v2", latents(Some(40), Some(v2)), yarn("greedy", 0.7, 0.7)),
        case("deepseek-v3-yarn", "deepseek_v3", latents(Some(40), Some(v3)), yarn("noaux_tc", 1.0, 0.5)),
        case("deepseek-v3-halves", "deepseek_v3", halves, json!({})),
        case("glm4-moe-lite", "glm4_moe_lite", latents(Some(40), Some(glm)), ungrouped),
        case("youtu", "youtu", Plain { tied: true, ..latents(Some(40), None) }, json!({})),
    ]
}

/// Weights that make every part of a model matter: norms and embeddings are about one, and queries and keys are large.
/// Factors are powers of two, so nothing is rounded.
fn emphasised(name: &str, own: &Tensor) -> Tensor {
    let part = name.rsplit('.').next().unwrap_or(name);
    let (offset, factor) = match part {
        _ if part.ends_with("norm") => (1.0, 1.0),
        "token_embd" => (0.0, 8.0),
        "attn_q" | "attn_k" | "attn_q_b" | "attn_kv_a_mqa" => (0.0, 4.0),
        _ => (0.0, 2.0),
    };
    let n = own.shape.iter().product();
    let numbers = own.format.decode_all(&own.bytes, n).unwrap().into_iter().map(|x| offset + x * factor);
    let bytes = match own.format {
        Format::F32 => numbers.flat_map(f32::to_le_bytes).collect(),
        Format::BF16 => numbers.flat_map(|x| ((x.to_bits() >> 16) as u16).to_le_bytes()).collect(),
        other => panic!("no weights in {other} here"),
    };
    Tensor { bytes, ..own.clone() }
}

/// Writes a folder with Mixtral's names.
pub(crate) fn write_mixtral(made: &Made, folder: &Path) {
    let mut made = made.clone();
    made.facts
        .insert("num_local_experts".to_owned(), json!(made.config.experts.as_ref().map(|own| own.n_routed)));
    for other in ["num_experts", "moe_intermediate_size", "norm_topk_prob"] {
        made.facts.insert(other.to_owned(), Json::Null);
    }
    made.folder_of(folder, "mixtral", made.published_as_mixtral());
}

impl Case {
    /// Writes the folder of the model, with the names of Transformers.
    fn write(&self, folder: &Path) {
        let mut made = Made::new(&self.config);
        for (name, own) in &mut made.tensors {
            *own = emphasised(name, own);
        }
        made.facts.extend(self.facts.as_object().unwrap().clone());
        if let Attention::Latent(own) = &self.config.attention {
            made.facts.insert("num_key_value_heads".to_owned(), json!(own.n_heads));
            if let Some(experts) = &self.config.experts {
                made.facts.insert("num_experts".to_owned(), Json::Null);
                made.facts.insert("n_routed_experts".to_owned(), json!(experts.n_routed));
                made.facts.insert("first_k_dense_replace".to_owned(), json!(self.config.dense.len()));
            }
        }
        if self.model_type == "mixtral" {
            write_mixtral(&made, folder);
        } else {
            made.folder(folder, self.model_type);
        }
    }
}

/// The logits of every token, with `at_once` tokens per step.
fn rows(session: &mut Session, tokens: &[u32], at_once: usize) -> Vec<Vec<f32>> {
    let mut rows = Vec::new();
    session.truncate(0).unwrap();
    for tokens in tokens.chunks(at_once) {
        session.score(tokens, &mut |row| rows.push(row.to_vec())).unwrap();
    }
    rows
}

#[test]
fn every_family_answers_as_transformers_does() {
    let cases = [grouped_cases(), latent_cases()].concat();
    for case in &cases {
        case.write(&path(case.name));
    }
    let fixture = fixture("families.json");
    let recorded: Json = serde_json::from_str(&read_to_string(fixture).unwrap()).unwrap();
    let list = |value: &Json| value.as_array().unwrap().clone();
    let tokens: Vec<u32> = list(&recorded["tokens"]).iter().map(|id| id.as_u64().unwrap() as u32).collect();
    let mut wrong = Vec::new();
    for case in &cases {
        let numbers = |row: &Json| list(row).iter().map(|x| x.as_f64().unwrap() as f32).collect::<Vec<_>>();
        let expected: Vec<Vec<f32>> = list(&recorded["logits"][case.name]).iter().map(numbers).collect();
        for (numbers, bar) in [(Numbers::Single, SAME), (Numbers::Quantised, ROUNDED)] {
            let mut run = Run::new(numbers);
            (run.settings.context, run.settings.chunk, run.settings.scores_every) = (40, 16, true);
            let mut session = run.open(&path(case.name));
            for at_once in [tokens.len(), 1] {
                let found = rows(&mut session, &tokens, at_once);
                assert_eq!(found.len(), expected.len(), "{}", case.name);
                let pairs = found.iter().zip(&expected);
                let mut errors: Vec<f64> = pairs.map(|(a, b)| relative_error(a, b)).collect();
                errors.sort_by(f64::total_cmp);
                let is_exact = numbers == Numbers::Single;
                let error = errors[if is_exact { errors.len() - 1 } else { errors.len() / 2 }];
                let text = format!("{error:.2e} of {bar:e}: {} {numbers}, {at_once} at once", case.name);
                println!("{text}");
                if error.is_nan() || error > bar {
                    wrong.push(text);
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
