//! `DeepSeek` V2 and V3, GLM-4.7-Flash and Youtu-LLM: MLA, first blocks dense, MoE in all others.
//!
//! In: the hyper-parameters of a file. Out: a config.
//! They differ in sizes, in whether queries have a low-rank projection too, and in the routing of experts.
//! Read next: `layers/attention/latent.rs` and `layers/experts.rs`.

use fusebox_runtime::error::{Error, quoted};
use fusebox_runtime::weights::Kind;

use crate::config::attention::Latent;
use crate::config::network::{Experts, Gate, Groups};
use crate::config::rope::Pairing;
use crate::config::{Block, Config, Mixer};
use crate::families::config_parts::{self, backbone, networks};
use crate::families::decoder::pairing;
use crate::families::family::Family;
use crate::families::rope::rope as config_rope;
use crate::hparams::Hparams;
use crate::naming::hparams::{
    GATE, HEAD, HEADS, HIDDEN, INTERLEAVED, KEY_MLA, KV_LORA, NOPE, Q_LORA, ROTARY_DIM, ROTARY_FACTOR,
    SELECTION, TEMPERATURE, VALUE, VALUE_MLA,
};

/// The vocabulary size of GLM-4.7-Flash.
pub(super) const GLM_VOCAB: usize = 154_880;

/// Reads the config of a file.
///
/// # Errors
/// Names the hyper-parameter that is missing or invalid.
pub(super) fn read(hparams: Hparams<'_>, family: &Family) -> Result<Config, Error> {
    if let Some(scale) = hparams.number_or_none(TEMPERATURE)? {
        return Err(hparams.refused(TEMPERATURE, format!("expected 0, found {scale}")));
    }
    let sizes = latent_sizes(hparams, family)?;
    let gate = gate(hparams)?;
    // Published models with a sigmoid router normalise the routing weights; GGUF states it.
    let family = Family { gate, renorm: [gate == Gate::Sigmoid, false], ..*family };
    let experts = match config_parts::experts(hparams, &family)? {
        Some(experts) => Some(Experts { groups: groups(hparams, &experts)?, ..experts }),
        None => None,
    };
    let networks = networks(hparams, &family, experts.as_ref())?;
    let block = |network| Block::new(Mixer::Latent(sizes.clone()), network);
    backbone(hparams, &family, networks.into_iter().map(block).collect())
}

/// The sizes of MLA. New GGUF files have the head dimensions besides those of the cached latent.
fn latent_sizes(hparams: Hparams<'_>, family: &Family) -> Result<Latent, Error> {
    let (n_heads, kv_lora, rope) =
        (hparams.count(HEADS)?, hparams.count(KV_LORA)?, hparams.count(ROTARY_DIM)?);
    config_parts::check_rotary_dim(hparams, ROTARY_DIM, rope)?;
    // Only GLM reads this key.
    let factor = hparams.number_if(ROTARY_FACTOR)?.filter(|factor| *factor != 1.0);
    if let Some(factor) = factor.filter(|_| hparams.architecture() == "glm4_moe_lite") {
        return Err(hparams.refused(ROTARY_FACTOR, format!("expected 1, found {factor}")));
    }
    let value = match (hparams.count_if(VALUE_MLA)?, hparams.count_if(VALUE)?) {
        (Some(value), _) | (None, Some(value)) => value,
        // Files of MiniCPM 3 do not say it.
        (None, None) => hparams.count(HIDDEN)? / n_heads,
    };
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
    let pairing =
        if hparams.flag(INTERLEAVED)? == Some(false) { Pairing::Halves } else { pairing(hparams, family) };
    let turn = config_rope(hparams, pairing, rope)?;
    let q_lora = hparams.count_or_none(Q_LORA)?;
    Ok(Latent { n_heads, q_lora, kv_lora, nope, rope, value, is_joint, turn })
}

/// The scoring function of the router, where the file does not say it.
fn gate(hparams: Hparams<'_>) -> Result<Gate, Error> {
    if hparams.kind() == Kind::Safetensors {
        let is_v2 = hparams.architecture() == "deepseek_v2";
        let is_softmax = is_v2 && hparams.string(GATE)?.is_none() || hparams.string(GATE)? == Some("softmax");
        return Ok(if is_softmax { Gate::Softmax } else { Gate::Sigmoid });
    }
    // Early GGUF files of GLM-4.7-Flash do not state it.
    let is_glm = [47, 48].contains(&config_parts::n_layers(hparams)?) && hparams.vocab()? == GLM_VOCAB;
    let stated = hparams.size_if(GATE)?.unwrap_or(0);
    Ok(if stated == 2 || stated == 0 && is_glm { Gate::Sigmoid } else { Gate::Softmax })
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
