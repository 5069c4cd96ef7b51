//! Families whose blocks carry a state from token to token instead of attention: Qwen3-Next, Qwen3.5, LFM2, Granite 4 H
//! and Nemotron-H.
//!
//! In: the hyper-parameters of a file. Out: which blocks, and their mixers.
//! Read next: `layers/recurrent/mod.rs`.

use fusebox_runtime::error::Error;
use fusebox_runtime::weights::Kind;

use crate::config::attention::Grouped;
use crate::config::network::Dense;
use crate::config::recurrent::{Beside, Delta, ShortConv, SpaceNorm, StateSpace};
use crate::config::{Block, Config, Mixer, Network};
use crate::families::config_parts::{activation, backbone, experts, n_layers};
use crate::families::decoder::{self, mixers};
use crate::families::family::Family;
use crate::hparams::Hparams;
use crate::naming::hparams::{
    ATTENTION_INPUT_FACTOR, ATTENTION_OUTPUT_FACTOR, FF, HEAD, KERNEL, KEY_FACTOR, Key, LEAST_STEP,
    NETWORK_FACTORS, NORM_BEFORE_GATE, SHORT_KERNEL, SPACE_FACTORS, SPACE_INPUT_FACTOR, SPACE_OUTPUT_FACTOR,
    STATE, STATE_GROUPS, STATE_HEAD, STATE_HEADS, STATE_INNER,
};

/// A gated delta rule.
///
/// # Errors
/// Names the hyper-parameter that is missing or invalid.
pub(super) fn delta(hparams: Hparams<'_>) -> Result<Mixer, Error> {
    let (n_key, n_value, key) =
        (hparams.count(STATE_GROUPS)?, hparams.count(STATE_HEADS)?, hparams.count(STATE)?);
    check_multiple(hparams, STATE_HEADS, n_value, n_key)?;
    let value = match (hparams.count_if(STATE_HEAD)?, hparams.count_if(STATE_INNER)?) {
        (Some(value), _) => value,
        (None, Some(inner)) => inner / n_value,
        (None, None) => key,
    };
    let has_joint = |layer| hparams.has(&format!("blk.{layer}.ssm_ba"));
    Ok(Mixer::Delta(Delta {
        n_key,
        n_value,
        key,
        value,
        kernel: hparams.count(KERNEL)?,
        is_tiled: hparams.kind() != Kind::Safetensors && hparams.architecture() != "qwen3next",
        is_joint: (0..n_layers(hparams)?).any(has_joint),
    }))
}

/// A state space whose steps of time have a least value, as Transformers has it: llama.cpp takes any.
///
/// # Errors
/// Names the hyper-parameter that is missing or invalid.
fn with_least_step(hparams: Hparams<'_>) -> Result<Mixer, Error> {
    let mut mixer = state_space(hparams)?;
    if let Mixer::StateSpace(sizes) = &mut mixer {
        sizes.least_step = hparams.number_or_none(LEAST_STEP)?.unwrap_or(0.0) as f32;
    }
    Ok(mixer)
}

/// A state space.
///
/// # Errors
/// Names the hyper-parameter that is missing or invalid.
pub(super) fn state_space(hparams: Hparams<'_>) -> Result<Mixer, Error> {
    let (n_heads, n_groups) = (hparams.count(STATE_HEADS)?, hparams.count(STATE_GROUPS)?);
    check_multiple(hparams, STATE_HEADS, n_heads, n_groups)?;
    let head = match hparams.count_if(STATE_HEAD)? {
        Some(head) => head,
        None => match hparams.count_if(STATE_INNER)? {
            Some(inner) => inner / n_heads,
            // In Mamba-2 there are no other heads.
            None => hparams.count(HEAD)?,
        },
    };
    let (state, kernel) = (hparams.count(STATE)?, hparams.count(KERNEL)?);
    Ok(Mixer::StateSpace(StateSpace::new(n_heads, head, n_groups, state, kernel)))
}

/// A gated short convolution.
///
/// # Errors
/// Names the hyper-parameter that is missing or invalid.
pub(super) fn short_conv(hparams: Hparams<'_>) -> Result<Mixer, Error> {
    Ok(Mixer::ShortConv(ShortConv { kernel: hparams.count(SHORT_KERNEL)? }))
}

fn check_multiple(hparams: Hparams<'_>, key: Key, n: usize, of: usize) -> Result<(), Error> {
    if n.is_multiple_of(of) {
        return Ok(());
    }
    Err(hparams.refused(key, format!("expected a multiple of the {of} groups, found {n}")))
}

/// Families that state another width than the FFN has: folders of LFM2 and dense Granite 4 H, and the first Qwen.
///
/// # Errors
/// Names the hyper-parameter that is missing or invalid.
pub(super) fn stored_width(hparams: Hparams<'_>, family: &Family) -> Result<Config, Error> {
    let mut config = decoder::read(hparams, family)?;
    for (layer, block) in config.blocks.iter_mut().enumerate() {
        let stored = hparams.stored(&format!("blk.{layer}.ffn_down")).and_then(|(_, info)| info.shape.get(1));
        if let (Network::Dense(dense), Some(width)) = (&mut block.network, stored) {
            dense.ff = *width;
        }
    }
    Ok(config)
}

/// Falcon-H1: attention and a state space side by side in every block, and factors on most projections, which GGUF has
/// in its weights.
///
/// # Errors
/// Names the hyper-parameter that is missing or invalid.
pub(super) fn falcon_h1(hparams: Hparams<'_>, family: &Family) -> Result<Config, Error> {
    let mut config = decoder::read(hparams, family)?;
    let Mixer::StateSpace(space) = state_space(hparams)? else { return Ok(config) };
    let factor = |key: Key| -> Result<f32, Error> {
        Ok(hparams.number_or_none(key)?.map_or(1.0, |factor| factor as f32))
    };
    let list = |key: Key, n: usize| match hparams.numbers_of(key)? {
        Some(all) if all.len() != n => {
            Err(hparams.refused(key, format!("expected {n} numbers, found {}", all.len())))
        }
        all => Ok(all.unwrap_or_else(|| vec![1.0; n])),
    };
    let is_before = hparams.flag(NORM_BEFORE_GATE)? == Some(true);
    let norm = match hparams.has("blk.0.ssm_norm") {
        true if is_before => SpaceNorm::BeforeGate,
        true => SpaceNorm::AfterGate,
        false => SpaceNorm::None,
    };
    let of_space = list(SPACE_FACTORS, 5)?;
    let space = StateSpace { norm, factors: std::array::from_fn(|part| of_space[part]), ..space };
    let of_keys = factor(KEY_FACTOR)?;
    let inputs = [factor(ATTENTION_INPUT_FACTOR)?, factor(SPACE_INPUT_FACTOR)?];
    for block in &mut config.blocks {
        if let Mixer::Grouped(heads) = block.mixer.clone() {
            let scale = heads.scale.unwrap_or(1.0 / (heads.head as f64).sqrt());
            let scale = (of_keys != 1.0).then_some(scale * f64::from(of_keys)).or(heads.scale);
            let heads = Grouped { scale, ..heads };
            block.mixer = Mixer::Beside(Beside { heads, space: space.clone(), inputs });
        }
    }
    let of_network = list(NETWORK_FACTORS, 2)?;
    let all = [
        ("attn_output", factor(ATTENTION_OUTPUT_FACTOR)?),
        ("ssm_out", factor(SPACE_OUTPUT_FACTOR)?),
        ("ffn_gate", of_network[0]),
        ("ffn_down", of_network[1]),
    ];
    let all = all.into_iter().filter(|(_, factor)| *factor != 1.0);
    config.factors = all.map(|(name, factor)| (name.to_owned(), factor)).collect();
    Ok(config)
}

/// Mamba-2: a state space and no network in every block.
///
/// # Errors
/// Names the hyper-parameter that is missing or invalid.
pub(super) fn mamba2(hparams: Hparams<'_>, family: &Family) -> Result<Config, Error> {
    let mixer = state_space(hparams)?;
    let block = Block::new(mixer, Network::None);
    backbone(hparams, family, vec![block; n_layers(hparams)?])
}

/// Nemotron-H: every block is a mixer or a network, which is seen by its tensors.
///
/// # Errors
/// Names the hyper-parameter that is missing or invalid.
pub(super) fn nemotron_h(hparams: Hparams<'_>, family: &Family) -> Result<Config, Error> {
    let sparse = experts(hparams, family)?;
    let has = |layer: usize, part: &str| hparams.has(&format!("blk.{layer}.{part}"));
    let one = |layer: usize, mixer: Mixer| {
        if has(layer, "attn_q") || has(layer, "ssm_in") {
            return Ok(Block::new(mixer, Network::None));
        }
        let network = match &sparse {
            Some(sparse) if has(layer, "ffn_gate_inp") => Network::Sparse(sparse.clone()),
            _ => {
                let widths = hparams.sizes_if(FF)?.and_then(|widths| widths.get(layer).copied());
                let ff = match widths {
                    Some(ff) => ff,
                    None => hparams.count(FF)?,
                };
                let &Family { is_gated, .. } = family;
                Network::Dense(Dense {
                    ff,
                    activation: activation(hparams, family)?,
                    is_gated,
                    has_norm: false,
                })
            }
        };
        Ok(Block::new(Mixer::None, network))
    };
    let mut mixers = mixers(hparams, &Family { recurrent: None, ..*family })?;
    for (layer, mixer) in mixers.iter_mut().enumerate() {
        if has(layer, "ssm_in") {
            *mixer = with_least_step(hparams)?;
        } else if let Mixer::Grouped(heads) = mixer {
            heads.rope = None;
        }
    }
    let blocks = mixers.into_iter().enumerate().map(|(layer, mixer)| one(layer, mixer));
    backbone(hparams, family, blocks.collect::<Result<_, Error>>()?)
}
