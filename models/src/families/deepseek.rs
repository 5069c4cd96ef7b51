//! `DeepSeek` V2 and V3, GLM-4.7-Flash and Youtu-LLM: MLA, first blocks dense, MoE in all others.
//!
//! In: the hyper-parameters of a file. Out: a config.
//! They differ in sizes, in whether queries have a low-rank projection too, and in the routing of experts.
//! Read next: `layers/latent.rs` and `layers/experts.rs`.

use std::collections::BTreeSet;

use fusebox_compiler::tensor::quant::Format;
use fusebox_runtime::error::{Error, quoted};
use fusebox_runtime::weights::Kind;

use crate::config::{
    Attention, Config, Experts, Formats, Gate, Groups, KvCache, Latent, Pairing, Rope, Scaling,
};
use crate::families::config_parts::{self, backbone};
use crate::families::rope::rope;
use crate::hparams::Hparams;
use crate::layers::rope::yarn_mscale;
use crate::naming::hparams::{
    GATE, HEAD, HEADS, INTERLEAVED, KEY_MLA, KV_LORA, NOPE, Q_LORA, RENORM, ROTARY_DIM, ROTARY_FACTOR,
    SELECTION, VALUE, VALUE_MLA,
};

/// The vocabulary size of GLM-4.7-Flash.
const GLM_VOCAB: usize = 154_880;

/// Reads the config of a file.
///
/// # Errors
/// Names the hyper-parameter that is missing or invalid.
pub(crate) fn read(hparams: Hparams<'_>) -> Result<Config, Error> {
    let sizes = latent_sizes(hparams)?;
    let pairing =
        if hparams.flag(INTERLEAVED)? == Some(false) { Pairing::Halves } else { Pairing::Interleaved };
    let rope = rope(hparams, pairing, sizes.rope)?;
    let backbone = backbone(hparams, Attention::Latent(sizes), rope)?;
    let gate = gate(hparams, &backbone)?;
    // Published models with a sigmoid router normalise the routing weights; GGUF states it.
    let by_default = gate == Gate::Sigmoid && hparams.kind() == Kind::Safetensors;
    let found = config_parts::experts(hparams, gate, hparams.flag(RENORM)?.unwrap_or(by_default))?;
    let Some((experts, dense)) = found else { return Ok(backbone) };
    let groups = groups(hparams, &experts)?;
    Ok(Config { experts: Some(Experts { groups, ..experts }), dense, ..backbone })
}

/// The sizes of MLA. New GGUF files have the head dimensions besides those of the cached latent.
fn latent_sizes(hparams: Hparams<'_>) -> Result<Latent, Error> {
    let (n_heads, kv_lora, rope) =
        (hparams.count(HEADS)?, hparams.count(KV_LORA)?, hparams.count(ROTARY_DIM)?);
    config_parts::check_rotary_dim(hparams, ROTARY_DIM, rope)?;
    // Only GLM reads this key.
    let factor = hparams.number_if(ROTARY_FACTOR)?.filter(|factor| *factor != 1.0);
    if let Some(factor) = factor.filter(|_| hparams.architecture() == "glm4_moe_lite") {
        return Err(hparams.refused(ROTARY_FACTOR, format!("expected 1, found {factor}")));
    }
    let value = if let Some(value) = hparams.count_if(VALUE_MLA)? { value } else { hparams.count(VALUE)? };
    let nope = match (hparams.count_if(NOPE)?, hparams.count_if(KEY_MLA)?) {
        (Some(nope), _) => nope,
        (None, mla) => {
            let (key, whole) = mla.map_or((HEAD, hparams.count(HEAD)), |whole| (KEY_MLA, Ok(whole)));
            let whole = whole?;
            whole.checked_sub(rope).filter(|nope| *nope > 0).ok_or_else(|| {
                hparams
                    .refused(key, format!("expected more than the {rope} rotary dimensions, found {whole}"))
            })?
        }
    };
    // Block-quantised rows cannot be split across the matrix: they would have to be quantised again.
    let n_layers = config_parts::n_layers(hparams)?;
    let is_joint = (0..n_layers).any(|layer| hparams.is_block_quantised(&format!("blk.{layer}.attn_kv_b")));
    Ok(Latent { n_heads, q_lora: hparams.count_or_none(Q_LORA)?, kv_lora, nope, rope, value, is_joint })
}

/// The scoring function of the router.
fn gate(hparams: Hparams<'_>, backbone: &Config) -> Result<Gate, Error> {
    if hparams.kind() == Kind::Safetensors {
        return match hparams.string(GATE)? {
            None if hparams.architecture() == "deepseek_v2" => Ok(Gate::Softmax),
            None | Some("sigmoid") => Ok(Gate::Sigmoid),
            Some("softmax") => Ok(Gate::Softmax),
            Some(other) => {
                Err(hparams.refused(GATE, format!("expected softmax or sigmoid, found {}", quoted(other))))
            }
        };
    }
    // Early GGUF files of GLM-4.7-Flash do not state it.
    let is_glm = [47, 48].contains(&backbone.n_layers) && backbone.vocab == GLM_VOCAB;
    match hparams.size_if(GATE)?.unwrap_or(0) {
        0 if is_glm => Ok(Gate::Sigmoid),
        0 | 1 => Ok(Gate::Softmax),
        2 => Ok(Gate::Sigmoid),
        3 => Ok(Gate::SoftmaxAfterTopK),
        4 => Ok(Gate::SqrtSoftplus),
        other => Err(hparams.refused(GATE, format!("expected 1 to 4, found {other}"))),
    }
}

/// Group-limited routing: V2 scores a group by its best expert, all later models by its two best.
fn groups(hparams: Hparams<'_>, experts: &Experts) -> Result<Option<Groups>, Error> {
    let score_top_k = match hparams.string(SELECTION)? {
        Some("greedy") => return Ok(None),
        Some("group_limited_greedy") => 1,
        None if hparams.architecture() == "deepseek_v2" => return Ok(None),
        None if experts.gate == Gate::Softmax => 1,
        Some("noaux_tc") | None => 2,
        Some(other) => {
            let what = format!("expected greedy, group_limited_greedy or noaux_tc, found {}", quoted(other));
            return Err(hparams.refused(SELECTION, what));
        }
    };
    config_parts::groups(hparams, experts, score_top_k)
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
            pairing: Pairing::Interleaved,
            scaling: Scaling::Yarn {
                factor: 40.0,
                beta_fast: 32.0,
                beta_slow: 1.0,
                original: 4096.0,
                attention_factor: 1.0,
                mscale: yarn_mscale(40.0, 0.707),
            },
        },
        ff: 10_944,
        experts: Some(Experts {
            n_routed: 64,
            top_k: 6,
            n_shared: 2,
            ff: 1408,
            gate: Gate::Softmax,
            router_bias: false,
            renorm: false,
            scale: 1.0,
            groups: None,
            is_joint: false,
        }),
        dense: [0].into(),
        tied: false,
        biased: BTreeSet::new(),
        formats: Formats::Uniform(Format::Q8_0),
        cache: KvCache::of_one(4096),
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
        rope: Rope { theta: 1e6, pairing: Pairing::Interleaved, scaling: Scaling::None },
        ff: 10_240,
        experts: Some(Experts {
            n_routed: 64,
            top_k: 4,
            n_shared: 1,
            ff: 1536,
            gate: Gate::Sigmoid,
            router_bias: true,
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
    fn scores_are_scaled_by_the_head_dimension_and_yarns_mscale() {
        let check = |config: &Config, expected: f64| {
            let m = Scope::new(config, &(&Sym::from(1)).into());
            let Attention::Latent(sizes) = &config.attention else { panic!("not latent") };
            assert!((scale(&m, sizes) - expected).abs() < 1e-6);
        };
        check(&deepseek_v2_lite(), 0.114_721);
        check(&glm_4_7_flash(), 0.0625);
    }
}
