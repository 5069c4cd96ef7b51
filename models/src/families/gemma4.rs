//! Gemma 4: two kinds of attention with heads of different widths, shared KV caches, per-layer embeddings, and experts
//! beside a dense FFN.
//!
//! In: the hyper-parameters of a file. Out: a config.
//! What a block has is seen by its tensors where files say it in several ways.

use std::collections::BTreeSet;

use fusebox_runtime::error::Error;
use fusebox_runtime::weights::Kind;

use crate::config::attention::{Grouped, QkNorm, Values, Window};
use crate::config::network::Dense;
use crate::config::rope::Rope;
use crate::config::{Block, Config, Mixer, Network};
use crate::families::config_parts::{activation, backbone, check_rotary_dim, experts, n_layers, window};
use crate::families::decoder::pairing;
use crate::families::family::{Family, LocalRope};
use crate::families::rope::{local_rope, rope};
use crate::hparams::Hparams;
use crate::naming::hparams::{
    DOUBLE_WIDE, FF, GLOBAL_HEAD, GLOBAL_KV_HEADS, HEAD, HEADS, KV_HEADS, LOCAL_HEAD, LOCAL_ROTARY_DIM,
    PER_LAYER, SHARING, WINDOW,
};

/// Reads the config of a file.
///
/// # Errors
/// Names the hyper-parameter that is missing or invalid.
pub(super) fn read(hparams: Hparams<'_>, family: &Family) -> Result<Config, Error> {
    let activation = activation(hparams, family)?;
    let n_layers = n_layers(hparams)?;
    let n_sharing = hparams.size_if(SHARING)?.unwrap_or(0);
    if n_sharing >= n_layers {
        let what = format!("expected less than the {n_layers} blocks, found {n_sharing}");
        return Err(hparams.refused(SHARING, what));
    }
    let Some((size, full)) = window(hparams, family.windows)? else {
        return Err(hparams.refused(WINDOW, "expected the size of a window, found none".to_owned()));
    };
    let n_own = n_layers - n_sharing;
    let kinds = Kinds::new(hparams, family, size, full)?;
    let sparse = experts(hparams, family)?;
    let has = |layer: usize, part: &str| hparams.has(&format!("blk.{layer}.{part}"));
    let one = |layer: usize| {
        let dense = Dense {
            ff: width(hparams, layer, layer >= n_own)?,
            activation,
            is_gated: family.is_gated,
            has_norm: false,
        };
        let network = match &sparse {
            Some(sparse) if has(layer, "ffn_gate_inp") => Network::Both(dense, sparse.clone()),
            _ => Network::Dense(dense),
        };
        let mut heads = kinds.heads(hparams, layer)?;
        if layer >= n_own {
            heads.shares = (0..n_own).rev().find(|other| kinds.is_full(*other) == kinds.is_full(layer));
            if heads.shares.is_none() {
                let what = format!("expected an earlier block to share with block {layer}, found none");
                return Err(hparams.refused(SHARING, what));
            }
        } else if !has(layer, "attn_v") {
            heads.values = Values::Keys;
        }
        let has_output_scale = has(layer, "layer_output_scale");
        let block = Block::new(Mixer::Grouped(heads), network);
        Ok(Block { order: family.order, has_output_scale, ..block })
    };
    let blocks = (0..n_layers).map(one).collect::<Result<_, Error>>()?;
    Ok(Config { per_layer: hparams.count_or_none(PER_LAYER)?, ..backbone(hparams, family, blocks)? })
}

/// The FFN width of a block.
fn width(hparams: Hparams<'_>, layer: usize, is_sharing: bool) -> Result<usize, Error> {
    if let Some(width) = hparams.sizes_if(FF)?.and_then(|widths| widths.get(layer).copied()) {
        return Ok(width);
    }
    let is_double = is_sharing && hparams.flag(DOUBLE_WIDE)? == Some(true);
    Ok(hparams.count(FF)? * if is_double { 2 } else { 1 })
}

/// The two kinds of attention.
struct Kinds {
    window: usize,
    full: BTreeSet<usize>,
    /// The head dimensions with full attention and with a window.
    head: [usize; 2],
    rope: [Rope; 2],
}

impl Kinds {
    fn new(
        hparams: Hparams<'_>,
        family: &Family,
        window: usize,
        full: BTreeSet<usize>,
    ) -> Result<Self, Error> {
        let head = match hparams.kind() {
            Kind::Safetensors => {
                let local = hparams.count(HEAD)?;
                let first = full.first().copied().unwrap_or(0);
                let of_block = hparams.count_of_block(first, "head_dim");
                let global = match of_block {
                    Some(head) => head,
                    None => hparams.count_if(GLOBAL_HEAD)?.unwrap_or(local),
                };
                [global, local]
            }
            Kind::Gguf { .. } | Kind::Ajc1 | Kind::Qorus => {
                let global = hparams.count(HEAD)?;
                [global, hparams.count_if(LOCAL_HEAD)?.unwrap_or(global)]
            }
        };
        for (key, n) in [(HEAD, head[0]), (LOCAL_HEAD, head[1])] {
            check_rotary_dim(hparams, key, n)?;
        }
        if let Some(found) = hparams.count_if(LOCAL_ROTARY_DIM)?.filter(|found| *found != head[1]) {
            return Err(hparams.refused(LOCAL_ROTARY_DIM, format!("expected {}, found {found}", head[1])));
        }
        let pairing = pairing(hparams, family);
        let global = if hparams.has_rope_of("full_attention") {
            rope(hparams.of_blocks("full_attention"), pairing, head[0])?
        } else {
            rope(hparams, pairing, head[0])?
        };
        let base = if let LocalRope::Base(base) = family.local_rope { base } else { global.theta };
        let local = local_rope(hparams, &global, head[1], base)?;
        Ok(Self { window, full, head, rope: [global, local] })
    }

    fn is_full(&self, layer: usize) -> bool {
        self.full.contains(&layer)
    }

    /// The attention of a block.
    fn heads(&self, hparams: Hparams<'_>, layer: usize) -> Result<Grouped, Error> {
        let n_heads = hparams.count(HEADS)?;
        let listed = hparams.sizes_if(KV_HEADS)?.and_then(|all| all.get(layer).copied());
        let of_block = hparams.count_of_block(layer, "num_key_value_heads");
        let global = if self.is_full(layer) { hparams.count_if(GLOBAL_KV_HEADS)? } else { None };
        let n_kv = match listed.or(of_block).or(global) {
            Some(n_kv) => n_kv,
            None => hparams.count_if(KV_HEADS)?.unwrap_or(n_heads),
        };
        if n_kv == 0 || !n_heads.is_multiple_of(n_kv) {
            let what = format!("expected a divisor of the {n_heads} query heads, found {n_kv}");
            return Err(hparams.refused(KV_HEADS, what));
        }
        let kind = usize::from(!self.is_full(layer));
        Ok(Grouped {
            rope: Some(self.rope[kind].clone()),
            qk_norm: Some(QkNorm::Head),
            window: (kind == 1).then_some(Window::Sliding(self.window)),
            scale: Some(1.0),
            values: Values::Normalised,
            ..Grouped::new(n_heads, n_kv, self.head[kind])
        })
    }
}
