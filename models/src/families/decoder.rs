//! Reads the config of any decoder with grouped-query attention, by the row of its family.
//!
//! In: the hyper-parameters of a file and a row of `table.rs`. Out: a config.
//! Families with more of their own than a row can say start from [`read`], or from its parts: `gemma4.rs`, `hybrid.rs`.

use std::collections::BTreeSet;

use fusebox_runtime::error::Error;
use fusebox_runtime::weights::Kind;

use crate::config::attention::{Grouped, Temperature, Window};
use crate::config::rope::Pairing;
use crate::config::{Block, Config, Mixer};
use crate::families::config_parts::{
    backbone, check_rotary_dim, experts, grouped, n_layers, networks, recurrent_layers, rotary_dim, window,
};
use crate::families::family::{Family, LocalRope, Nope, Pairs, Windows};
use crate::families::rope::{local_rope, rope};
use crate::hparams::Hparams;
use crate::naming::hparams::{
    ALIBI, ALIBI_USED, ATTENTION_CAP, ATTENTION_SCALE, BIDIRECTIONAL, CAUSAL, CHUNK, CLAMP, HEADS, KV_HEADS,
    LAYER_HEADS, LOCAL_ROTARY_DIM, ORIGINAL_CONTEXT, POSITIONS, QK_NORM_USED, RESIDUAL_SCALE, ROPE_USED,
    SCALE_WIDTH, TEMPERATURE, TUNING, TUNING_LENGTH, TUNING_SCALE, WITH_ROPE,
};

/// What llama.cpp takes for Llama 4, which GGUF does not say: length and strength of the temperature, and the chunk.
const LLAMA4: (usize, f32, usize) = (8192, 0.1, 8192);

/// Reads the config of a file.
///
/// # Errors
/// Names the hyper-parameter that is missing or invalid.
pub(super) fn read(hparams: Hparams<'_>, family: &Family) -> Result<Config, Error> {
    let experts = experts(hparams, family)?;
    let networks = networks(hparams, family, experts.as_ref())?;
    let residual_scale = hparams.number_or_none(RESIDUAL_SCALE)?.unwrap_or(1.0) as f32;
    let mixers = mixers(hparams, family)?;
    let block =
        |(mixer, network)| Block { order: family.order, residual_scale, ..Block::new(mixer, network) };
    backbone(hparams, family, mixers.into_iter().zip(networks).map(block).collect())
}

/// The mixer of each block.
pub(super) fn mixers(hparams: Hparams<'_>, family: &Family) -> Result<Vec<Mixer>, Error> {
    let n_layers = n_layers(hparams)?;
    let recurrent = recurrent_layers(hparams, family)?;
    let base = attention(hparams, family)?;
    let windows = if recurrent.is_empty() { window(hparams, family.windows)? } else { None };
    let all_heads = match hparams.sizes_if(HEADS)? {
        Some(all) => Some(all),
        None => hparams.sizes_if(LAYER_HEADS)?,
    };
    let all_kv = hparams.sizes_if(KV_HEADS)?;
    let has_own = |kind| family.local_rope != LocalRope::Same && hparams.has_rope_of(kind);
    let dims_of = |kind| {
        if has_own(kind) { rotary_dim(hparams.of_blocks(kind), base.head) } else { Ok(base.rotary_dim) }
    };
    let n_dims = dims_of("full_attention")?;
    let own_dims = match hparams.count_if(LOCAL_ROTARY_DIM)? {
        Some(n_dims) => n_dims,
        None => dims_of("sliding_attention")?,
    };
    check_rotary_dim(hparams, LOCAL_ROTARY_DIM, own_dims)?;
    let full_rope = if family.local_rope != LocalRope::Same && hparams.has_rope_of("full_attention") {
        rope(hparams.of_blocks("full_attention"), pairing(hparams, family), n_dims)?
    } else {
        rope(hparams, pairing(hparams, family), n_dims)?
    };
    let own_rope = match family.local_rope {
        LocalRope::Same => full_rope.clone(),
        LocalRope::Unscaled => local_rope(hparams, &full_rope, own_dims, full_rope.theta)?,
        LocalRope::Base(theta) => local_rope(hparams, &full_rope, own_dims, theta)?,
    };
    let is_causal = is_causal(hparams, family)?;
    let sliding = |size: usize| if is_causal { Window::Sliding(size) } else { Window::Around(size / 2) };
    let without = without_rope(hparams, family, n_layers, windows.as_ref().map(|(_, full)| full))?;
    let temperature = temperature(hparams, family)?;
    let chunk = match family.windows {
        Windows::Chunks => Some(hparams.count_if(CHUNK)?.unwrap_or(LLAMA4.2)),
        _ => None,
    };
    let one = |layer: usize| {
        if let Some(mixer) = family.recurrent.filter(|_| recurrent.contains(&layer)) {
            return mixer(hparams);
        }
        let size = windows.as_ref().filter(|(_, full)| !full.contains(&layer)).map(|(size, _)| *size);
        let has_rope = !without.contains(&layer);
        let own = if size.is_some() { &own_rope } else { &full_rope };
        let chunk = chunk.filter(|_| has_rope).map(Window::Chunk);
        // Llama 4 has it where there is no RoPE.
        let has_temperature = chunk.is_none();
        let n_heads = all_heads.as_ref().and_then(|all| all.get(layer).copied()).unwrap_or(base.n_heads);
        let n_kv = all_kv.as_ref().and_then(|all| all.get(layer).copied()).unwrap_or(base.n_kv);
        // It may have a state, or nothing, instead.
        if n_kv == 0 {
            return Ok(Mixer::None);
        }
        if n_heads == 0 || !n_heads.is_multiple_of(n_kv) {
            let what =
                format!("expected a divisor of the {n_heads} query heads of block {layer}, found {n_kv}");
            return Err(hparams.refused(KV_HEADS, what));
        }
        let rotary_dim = if size.is_some() { own_dims } else { n_dims };
        Ok(Mixer::Grouped(Grouped {
            n_heads,
            n_kv,
            rotary_dim,
            rope: (has_rope && base.alibi.is_none()).then(|| own.clone()),
            is_causal,
            window: size.map(sliding).or(chunk),
            temperature: temperature.filter(|_| has_temperature),
            ..base.clone()
        }))
    };
    (0..n_layers).map(one).collect()
}

/// Whether a token sees only those up to its own.
fn is_causal(hparams: Hparams<'_>, family: &Family) -> Result<bool, Error> {
    let is_bidirectional = hparams.flag(BIDIRECTIONAL)? == Some(true);
    Ok(hparams.flag(CAUSAL)?.unwrap_or(family.is_causal && !is_bidirectional))
}

/// What the attention of all blocks has in common.
fn attention(hparams: Hparams<'_>, family: &Family) -> Result<Grouped, Error> {
    let n_layers = n_layers(hparams)?;
    let has_weights = (0..n_layers).any(|layer| hparams.has(&format!("blk.{layer}.attn_q_norm")));
    let is_normed = hparams.flag(QK_NORM_USED)?.unwrap_or(true);
    let root = hparams.number_if(SCALE_WIDTH)?.map(|width| 1.0 / width.sqrt());
    let base = grouped(hparams)?;
    Ok(Grouped {
        qk_norm: family.qk_norm.filter(|_| has_weights || !family.is_qk_norm_optional).filter(|_| is_normed),
        scale: hparams.number_or_none(ATTENTION_SCALE)?.or(root).or(unsaid_scale(family, n_layers, &base)),
        cap: hparams.number_or_none(ATTENTION_CAP)?.map(|cap| cap as f32),
        has_sinks: family.has_sinks,
        gate: family.output_gate,
        has_norm: family.has_inner_norms,
        clamp: hparams.number_or_none(CLAMP)?.map(|bound| bound as f32),
        alibi: alibi(hparams, family)?,
        ..base
    })
}

/// How scores fall with the distance.
fn alibi(hparams: Hparams<'_>, family: &Family) -> Result<Option<f32>, Error> {
    // Baichuan of 7B has RoPE instead.
    let has_rope = family.gguf == "baichuan" && n_layers(hparams)? == 32;
    if family.alibi.is_none() || has_rope || hparams.flag(ALIBI_USED)? == Some(false) {
        return Ok(None);
    }
    let usual = family.alibi.filter(|alibi| *alibi > 0.0);
    Ok(hparams.number_or_none(ALIBI)?.map(|alibi| alibi as f32).or(usual))
}

/// Gemma 2 and 3 of 27B and Jais scale scores otherwise, which GGUF does not say.
fn unsaid_scale(family: &Family, n_layers: usize, heads: &Grouped) -> Option<f64> {
    let width = match (family.gguf, n_layers, heads.n_heads, heads.head) {
        ("gemma2", 46, 32, 128) => 144.0_f64,
        ("gemma3", 62, 32, 128) => 168.0,
        // Not the root.
        ("jais", ..) => (heads.head as f64).powi(2),
        _ => return None,
    };
    Some(1.0 / width.sqrt())
}

/// Which elements RoPE rotates together.
pub(super) fn pairing(hparams: Hparams<'_>, family: &Family) -> Pairing {
    match (family.pairs, hparams.kind()) {
        (Pairs::Halves, _) | (Pairs::Reordered, Kind::Safetensors | Kind::Ajc1) => Pairing::Halves,
        (Pairs::Interleaved, _) | (Pairs::Reordered, Kind::Gguf { .. } | Kind::Qorus) => Pairing::Interleaved,
    }
}

/// The blocks without RoPE.
fn without_rope(
    hparams: Hparams<'_>,
    family: &Family,
    n_layers: usize,
    full: Option<&BTreeSet<usize>>,
) -> Result<BTreeSet<usize>, Error> {
    let has_none = match hparams.kind() {
        Kind::Safetensors => hparams.string(POSITIONS)? == Some("nope"),
        Kind::Gguf { .. } => family.recurrent.is_some() && hparams.flag(ROPE_USED)? == Some(false),
        Kind::Ajc1 | Kind::Qorus => false,
    };
    let listed = match family.nope {
        Nope::LastOf(_) => hparams.flags(WITH_ROPE)?.filter(|flags| flags.len() >= n_layers),
        Nope::Stated | Nope::FullAttention => None,
    };
    Ok(match (family.nope, listed) {
        _ if has_none => (0..n_layers).collect(),
        (Nope::Stated, _) => BTreeSet::new(),
        (Nope::FullAttention, _) => full.cloned().unwrap_or_default(),
        (Nope::LastOf(_), Some(flags)) => (0..n_layers).filter(|layer| !flags[*layer]).collect(),
        (Nope::LastOf(period), None) => (0..n_layers).filter(|layer| layer % period == period - 1).collect(),
    })
}

/// The factor on queries that grows with the position.
fn temperature(hparams: Hparams<'_>, family: &Family) -> Result<Option<Temperature>, Error> {
    let stated = hparams.number_or_none(TEMPERATURE)?;
    if !family.has_temperature {
        return match stated {
            Some(scale) => Err(hparams.refused(TEMPERATURE, format!("expected 0, found {scale}"))),
            None => Ok(None),
        };
    }
    if family.windows == Windows::Chunks {
        if hparams.flag(TUNING)? == Some(false) {
            return Ok(None);
        }
        let length = hparams.count_if(TUNING_LENGTH)?.unwrap_or(LLAMA4.0);
        let strength = hparams.number_if(TUNING_SCALE)?.map_or(LLAMA4.1, |scale| scale as f32);
        return Ok(Some(Temperature { length, strength, offset: 1 }));
    }
    let Some(strength) = stated else { return Ok(None) };
    Ok(Some(Temperature { length: hparams.count(ORIGINAL_CONTEXT)?, strength: strength as f32, offset: 0 }))
}
