//! Families with scales or gates that their files do not state as such: `MiniCPM`, Command A MoE, Laguna.
//!
//! In: the hyper-parameters of a file. Out: a config.
//! Read next: `decoder.rs`, from which all of them start.

use fusebox_runtime::error::{Error, quoted};

use crate::config::attention::OutputGate;
use crate::config::{Config, Mixer, Network};
use crate::families::config_parts::n_layers;
use crate::families::family::Family;
use crate::families::{decoder, deepseek};
use crate::hparams::Hparams;
use crate::naming::hparams::{
    BASE_WIDTH, DEPTH_SCALE, EMBEDDING_SCALE, EPS, EXPERT_MEAN, LOGIT_SCALE, RESIDUAL_SCALE,
};

/// What `MiniCPM` was published with, where a file does not say it: the factor on embeddings, the sum of all factors on
/// residuals, and the width for which logits are not scaled.
const MINICPM: (f32, f64, f64) = (12.0, 1.4, 256.0);

/// `MiniCPM`, which scales embeddings, residuals and logits by its sizes.
///
/// # Errors
/// Names the hyper-parameter that is missing or invalid.
pub(super) fn minicpm(hparams: Hparams<'_>, family: &Family) -> Result<Config, Error> {
    let config = decoder::read(hparams, family)?;
    scaled(hparams, config)
}

/// `MiniCPM` 3, with latent attention.
///
/// # Errors
/// Names the hyper-parameter that is missing or invalid.
pub(super) fn minicpm3(hparams: Hparams<'_>, family: &Family) -> Result<Config, Error> {
    let config = deepseek::read(hparams, family)?;
    scaled(hparams, config)
}

fn scaled(hparams: Hparams<'_>, mut config: Config) -> Result<Config, Error> {
    let (embedding, depth, width) = MINICPM;
    if hparams.number_or_none(EMBEDDING_SCALE)?.is_none() {
        config.embedding_scale = embedding;
    }
    if hparams.number_or_none(RESIDUAL_SCALE)?.is_none() {
        let depth = hparams.number_or_none(DEPTH_SCALE)?.unwrap_or(depth);
        let scale = depth / (config.n_layers() as f64).sqrt();
        config.blocks.iter_mut().for_each(|block| block.residual_scale = scale as f32);
    }
    if hparams.number_or_none(LOGIT_SCALE)?.is_none() {
        let width = hparams.number_or_none(BASE_WIDTH)?.unwrap_or(width);
        config.logit_scale = (width / config.hidden as f64) as f32;
    }
    Ok(config)
}

/// Command A MoE: the mean of routed and shared experts, either kind of norm, and RoPE in dense blocks.
///
/// # Errors
/// Names the hyper-parameter that is missing or invalid.
pub(super) fn cohere2_moe(hparams: Hparams<'_>, family: &Family) -> Result<Config, Error> {
    let is_centred = hparams.number_or_none(EPS)?.is_none();
    let mut config = decoder::read(hparams, &Family { is_centred, ..*family })?;
    let is_mean = match hparams.string(EXPERT_MEAN)? {
        None | Some("average") => true,
        Some("sum") => false,
        Some(other) => {
            let what = format!("expected average or sum, found {}", quoted(other));
            return Err(hparams.refused(EXPERT_MEAN, what));
        }
    };
    let rope = config.rope().cloned();
    for block in &mut config.blocks {
        match (&mut block.network, &mut block.mixer) {
            (Network::Sparse(experts), _) if is_mean && experts.shared_ff > 0 => experts.scale *= 0.5,
            (Network::Dense(_), Mixer::Grouped(heads)) => heads.rope.clone_from(&rope),
            _ => {}
        }
    }
    if is_mean {
        config.factors.insert("ffn_down_shexp".to_owned(), 0.5);
    }
    Ok(config)
}

/// Laguna, whose gates are of elements or of heads, as their tensors say.
///
/// # Errors
/// Names the hyper-parameter that is missing or invalid.
pub(super) fn laguna(hparams: Hparams<'_>, family: &Family) -> Result<Config, Error> {
    let mut config = decoder::read(hparams, family)?;
    for layer in 0..n_layers(hparams)? {
        let rows = hparams.stored(&format!("blk.{layer}.attn_gate")).and_then(|(_, info)| info.shape.first());
        if let Mixer::Grouped(heads) = &mut config.blocks[layer].mixer {
            let is_of_heads = rows.is_none_or(|rows| *rows == heads.n_heads);
            heads.gate =
                Some(if is_of_heads { OutputGate::SoftplusHead } else { OutputGate::SoftplusElement });
        }
    }
    Ok(config)
}
