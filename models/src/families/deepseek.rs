//! `DeepSeek` V2 and V3, GLM-4.7-Flash and Youtu-LLM: latent attention, dense blocks first, experts in all others.
//!
//! In: what a file says of its model. Out: its sizes.
//! They differ in sizes, in whether queries pass a latent too, and in how experts are chosen and weighed.
//! Read next: `layers/latent.rs` and `layers/experts.rs`.

use std::collections::BTreeSet;

use fusebox_compiler::tensor::quant::Format;
use fusebox_runtime::error::{Error, quoted};
use fusebox_runtime::weights::Kind;

use crate::config::{Attention, Config, Experts, Formats, Gate, Groups, Latent, Pairing, Rope, Scaling};
use crate::facts::Facts;
use crate::families::rotation::rope;
use crate::families::sizes::{self, backbone};
use crate::layers::rope::yarn_scale;
use crate::naming::keys::{
    GATE, HEAD, HEADS, INTERLEAVED, KEY_MLA, KV_LORA, NOPE, Q_LORA, RENORM, SELECTION, TURNED, TURNED_PART,
    VALUE, VALUE_MLA,
};

/// How many tokens GLM-4.7-Flash has.
const GLM_VOCAB: usize = 154_880;

/// The sizes of the model in a file.
///
/// # Errors
/// Names the fact that is missing or makes no sense.
pub(crate) fn read(facts: Facts<'_>) -> Result<Config, Error> {
    let sizes = latent_sizes(facts)?;
    let pairing = if facts.flag(INTERLEAVED)? == Some(false) { Pairing::Halves } else { Pairing::Neighbours };
    let rope = rope(facts, pairing, sizes.rope)?;
    let backbone = backbone(facts, Attention::Latent(sizes), rope)?;
    let gate = gate(facts, &backbone)?;
    // Published models with a sigmoid normalise their weights; GGUF states it.
    let by_default = gate == Gate::Sigmoid && facts.kind() == Kind::Safetensors;
    let found = sizes::experts(facts, gate, facts.flag(RENORM)?.unwrap_or(by_default))?;
    let Some((experts, dense)) = found else { return Ok(backbone) };
    let groups = groups(facts, &experts)?;
    Ok(Config { experts: Some(Experts { groups, ..experts }), dense, ..backbone })
}

/// The sizes of latent attention. New GGUF files tell the sizes of heads beside those of what is cached.
fn latent_sizes(facts: Facts<'_>) -> Result<Latent, Error> {
    let (n_heads, kv_lora, rope) = (facts.count(HEADS)?, facts.count(KV_LORA)?, facts.count(TURNED)?);
    sizes::turned(facts, TURNED, rope)?;
    // Only GLM reads this key.
    let part = facts.number_if(TURNED_PART)?.filter(|part| *part != 1.0);
    if let Some(part) = part.filter(|_| facts.architecture() == "glm4_moe_lite") {
        return Err(facts.refused(TURNED_PART, format!("expected 1, found {part}")));
    }
    let value = if let Some(value) = facts.count_if(VALUE_MLA)? { value } else { facts.count(VALUE)? };
    let nope = match (facts.count_if(NOPE)?, facts.count_if(KEY_MLA)?) {
        (Some(nope), _) => nope,
        (None, mla) => {
            let (key, whole) = mla.map_or((HEAD, facts.count(HEAD)), |whole| (KEY_MLA, Ok(whole)));
            let whole = whole?;
            whole.checked_sub(rope).filter(|nope| *nope > 0).ok_or_else(|| {
                facts.refused(key, format!("expected more than the {rope} elements turned, found {whole}"))
            })?
        }
    };
    // What is stored in blocks cannot be cut apart: its rows would have to be made anew.
    let n_layers = sizes::n_layers(facts)?;
    let is_joint = (0..n_layers).any(|layer| facts.has_blocks(&format!("blk.{layer}.attn_kv_b")));
    Ok(Latent { n_heads, q_lora: facts.count_or_none(Q_LORA)?, kv_lora, nope, rope, value, is_joint })
}

/// How a router's outputs become weights.
fn gate(facts: Facts<'_>, backbone: &Config) -> Result<Gate, Error> {
    if facts.kind() == Kind::Safetensors {
        return match facts.word(GATE)? {
            None if facts.architecture() == "deepseek_v2" => Ok(Gate::Softmax),
            None | Some("sigmoid") => Ok(Gate::Sigmoid),
            Some("softmax") => Ok(Gate::Softmax),
            Some(word) => {
                Err(facts.refused(GATE, format!("expected softmax or sigmoid, found {}", quoted(word))))
            }
        };
    }
    // Early GGUF files of GLM-4.7-Flash do not say.
    let is_glm = [47, 48].contains(&backbone.n_layers) && backbone.vocab == GLM_VOCAB;
    match facts.size_if(GATE)?.unwrap_or(0) {
        0 if is_glm => Ok(Gate::Sigmoid),
        0 | 1 => Ok(Gate::Softmax),
        2 => Ok(Gate::Sigmoid),
        3 => Ok(Gate::SoftmaxOfSelected),
        4 => Ok(Gate::RootOfSoftplus),
        other => Err(facts.refused(GATE, format!("expected 1 to 4, found {other}"))),
    }
}

/// The groups of experts: V2 takes those with the best expert, all after it those with the two best together.
fn groups(facts: Facts<'_>, experts: &Experts) -> Result<Option<Groups>, Error> {
    let n_best = match facts.word(SELECTION)? {
        Some("greedy") => return Ok(None),
        Some("group_limited_greedy") => 1,
        None if facts.architecture() == "deepseek_v2" => return Ok(None),
        None if experts.gate == Gate::Softmax => 1,
        Some("noaux_tc") | None => 2,
        Some(other) => {
            let what = format!("expected greedy, group_limited_greedy or noaux_tc, found {}", quoted(other));
            return Err(facts.refused(SELECTION, what));
        }
    };
    sizes::groups(facts, experts, n_best)
}

/// DeepSeek-V2-Lite.
pub(crate) fn deepseek_v2_lite() -> Config {
    Config {
        attention: Attention::Latent(Latent {
            n_heads: 16,
            q_lora: None,
            kv_lora: 512,
            nope: 128,
            rope: 64,
            value: 128,
            is_joint: false,
        }),
        hidden: 2048,
        n_layers: 27,
        vocab: 102_400,
        context: 4096,
        eps: 1e-6,
        rope: Rope {
            theta: 1e4,
            pairing: Pairing::Neighbours,
            scaling: Scaling::Yarn {
                factor: 40.0,
                beta_fast: 32.0,
                beta_slow: 1.0,
                original: 4096.0,
                magnitude: 1.0,
                sharpening: yarn_scale(40.0, 0.707),
            },
        },
        ff: 10_944,
        experts: Some(Experts {
            n: 64,
            n_used: 6,
            n_shared: 2,
            ff: 1408,
            gate: Gate::Softmax,
            is_biased: false,
            renorm: false,
            scale: 1.0,
            groups: None,
            is_joint: false,
        }),
        dense: [0].into(),
        tied: false,
        biased: BTreeSet::new(),
        formats: Formats::Uniform(Format::Q8_0),
        cache: Format::F32,
    }
}

/// GLM-4.7-Flash.
pub(crate) fn glm_4_7_flash() -> Config {
    Config {
        attention: Attention::Latent(Latent {
            n_heads: 20,
            q_lora: Some(768),
            kv_lora: 512,
            nope: 192,
            rope: 64,
            value: 256,
            is_joint: false,
        }),
        n_layers: 47,
        vocab: GLM_VOCAB,
        eps: 1e-5,
        rope: Rope { theta: 1e6, pairing: Pairing::Neighbours, scaling: Scaling::None },
        ff: 10_240,
        experts: Some(Experts {
            n: 64,
            n_used: 4,
            n_shared: 1,
            ff: 1536,
            gate: Gate::Sigmoid,
            is_biased: true,
            renorm: true,
            scale: 1.8,
            groups: None,
            is_joint: false,
        }),
        ..deepseek_v2_lite()
    }
}

#[cfg(test)]
mod tests {
    use fusebox_compiler::tensor::sym::Sym;

    use super::*;
    use crate::layers::latent::scale;
    use crate::layers::scope::Scope;

    #[test]
    fn scores_are_scaled_by_the_whole_key_and_sharpened_by_yarn() {
        let check = |config: &Config, expected: f64| {
            let m = Scope::new(config, &Sym::from(1));
            let Attention::Latent(sizes) = &config.attention else { panic!("not latent") };
            assert!((scale(&m, sizes) - expected).abs() < 1e-6);
        };
        check(&deepseek_v2_lite(), 0.114_721);
        check(&glm_4_7_flash(), 0.0625);
    }
}
