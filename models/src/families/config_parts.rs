//! The parts of a config that families share: the backbone, grouped-query attention, sliding windows and experts.
//!
//! In: the hyper-parameters of a file. Out: parts of a `Config`, or one sentence with the key that is missing or
//! invalid.
//! Consistency between hyper-parameters is checked here; RoPE is read in `rope.rs`.

use std::collections::{BTreeMap, BTreeSet};

use fusebox_compiler::tensor::quant::Format;
use fusebox_runtime::error::{Error, quoted};
use fusebox_runtime::weights::Kind;

use crate::config::attention::Grouped;
use crate::config::network::{Activation, Dense, Experts, Gate, Groups};
use crate::config::{Added, Block, Choices, Config, Ends, Formats, KvCache, Network};
use crate::families::family::{Family, Windows};
use crate::hparams::Hparams;
use crate::naming::hparams::{
    ACTIVATION, ATTENTION_INTERVAL, CENTRED_EPS, CONTEXT, DENSE_FF, EMBEDDING_SCALE, EPS, EXPERT_FF, EXPERTS,
    EXPERTS_SHARED, EXPERTS_USED, EXTRA_LAYERS, FF, FULL_PERIOD, GATE, GROUPS, GROUPS_USED, HEAD, HEADS,
    HIDDEN, KV_HEADS, Key, LAYER_TYPES, LAYERS, LOGIT_CAP, LOGIT_SCALE, MORE_LAYERS, MULTI_QUERY,
    NEW_DECODER, RECURRENT_LAYERS, RENORM, ROTARY_DIM, ROTARY_FACTOR, ROUTER_CAP, SCALED_EMBEDDING,
    SHARED_FF, TIED, VALUE, WEIGHT_SCALE, WINDOW, WINDOW_FROM, WINDOW_PATTERN, WINDOW_USED,
};
use crate::naming::tensors::{BIAS, parts};

/// The words of `layer_types` for blocks that carry a state.
const RECURRENT: [&str; 3] = ["linear_attention", "mamba", "conv"];
/// Those for blocks with attention.
const ATTENTION: [&str; 2] = ["full_attention", "attention"];

/// The tensors by which a block is told to be in the file.
const NORMS: [&str; 4] = ["attn_norm", "attn_post_norm", "attn_output", "ffn_down"];
/// The largest head dimension; the frequencies of its pairs are a table in the graph.
const MAX_HEAD: usize = 1 << 12;

/// Families whose FFNs have four times the hidden size, where a folder does not say it.
const FOURFOLD: [&str; 5] = ["gpt2", "starcoder", "bloom", "mpt", "falcon"];

/// A config with these blocks, and all other sizes as in the file.
pub(super) fn backbone(hparams: Hparams<'_>, family: &Family, blocks: Vec<Block>) -> Result<Config, Error> {
    let hidden = hparams.count(HIDDEN)?;
    let scales_embedding = family.scales_embedding && hparams.flag(SCALED_EMBEDDING)?.unwrap_or(true);
    let root = if scales_embedding { (hidden as f32).sqrt() } else { 1.0 };
    let logit_scale = hparams.number_or_none(LOGIT_SCALE)?.unwrap_or(1.0) as f32;
    Ok(Config {
        hidden,
        vocab: hparams.vocab()?,
        context: hparams.count(CONTEXT)?,
        eps: eps(hparams, family)? as f32,
        is_centred: family.is_centred,
        embedding_scale: hparams.number_or_none(EMBEDDING_SCALE)?.map_or(root, |scale| scale as f32),
        logit_scale: if family.divides_logits { 1.0 / logit_scale } else { logit_scale },
        logit_cap: hparams.number_or_none(LOGIT_CAP)?.map(|cap| cap as f32),
        per_layer: None,
        added: Added::default(),
        ends: Ends::default(),
        tied: is_tied(hparams)?,
        biased: biased(hparams, family, blocks.len()),
        factors: BTreeMap::new(),
        ranks: BTreeMap::new(),
        choices: Choices::default(),
        steered: BTreeSet::new(),
        has_norm_weights: family.has_norm_weights,
        blocks,
        formats: Formats::Uniform(Format::F32),
        cache: KvCache::of_one(hparams.count(CONTEXT)?),
        windows: None,
    })
}

/// The activation: the family's, unless `config.json` has another.
pub(super) fn activation(hparams: Hparams<'_>, family: &Family) -> Result<Activation, Error> {
    let Some(name) = hparams.string(ACTIVATION)? else { return Ok(family.activation) };
    match (family.activation, name) {
        (own @ Activation::Clamped { .. }, "silu" | "swish") | (own @ Activation::Xielu { .. }, "xielu") => {
            Ok(own)
        }
        // Gemma says `gelu` and means its approximation.
        (Activation::GeluTanh, "gelu") if family.scales_embedding => Ok(Activation::GeluTanh),
        (Activation::Clamped { .. } | Activation::Xielu { .. }, _) => {
            Err(hparams.refused(ACTIVATION, format!("expected that of the family, found {}", quoted(name))))
        }
        (_, "silu" | "swish") => Ok(Activation::Silu),
        (_, "gelu_pytorch_tanh" | "gelu_new" | "gelu_fast") => Ok(Activation::GeluTanh),
        (_, "gelu") => Ok(Activation::Gelu),
        (_, "relu") => Ok(Activation::Relu),
        (_, "relu2") => Ok(Activation::SquaredRelu),
        (_, other) => {
            let known = "silu, gelu, gelu_pytorch_tanh, relu or relu2";
            Err(hparams.refused(ACTIVATION, format!("expected {known}, found {}", quoted(other))))
        }
    }
}

/// The epsilon of norms; GGUF always has it.
fn eps(hparams: Hparams<'_>, family: &Family) -> Result<f64, Error> {
    let key = if family.is_centred { CENTRED_EPS } else { EPS };
    match hparams.kind() {
        Kind::Gguf { .. } => hparams.number(key),
        Kind::Safetensors | Kind::Ajc1 | Kind::Qorus => {
            let usual = if family.is_centred { 1e-5 } else { 1e-6 };
            Ok(hparams.number_if(key)?.unwrap_or(usual))
        }
    }
}

/// Whether embeddings are tied. A head that differs from the embedding matrix is used, whatever the flag says.
fn is_tied(hparams: Hparams<'_>) -> Result<bool, Error> {
    let has_head = hparams.has("output");
    let is_stated = hparams.flag(TIED)?.unwrap_or(!has_head);
    Ok(is_stated && (!has_head || hparams.are_equal(["token_embd", "output"])))
}

/// The number of blocks that are used, the last of which must be in the file.
pub(super) fn n_layers(hparams: Hparams<'_>) -> Result<usize, Error> {
    let listed = hparams.strings(LAYER_TYPES)?.map(<[String]>::len);
    let all = match (hparams.count_if(LAYERS)?, listed) {
        (None, Some(all)) if all > 0 => all,
        (count, _) => count.map_or_else(|| hparams.count(LAYERS), Ok)?,
    };
    let extra = hparams.size_if(EXTRA_LAYERS)?.unwrap_or(0);
    if extra >= all {
        let what = format!("expected less than the {all} blocks, found {extra}");
        return Err(hparams.refused(EXTRA_LAYERS, what));
    }
    let n_layers = all - extra;
    // The graph is built block by block: an absurd count must not get that far.
    let has = |layer: usize| NORMS.iter().any(|norm| hparams.has(&format!("blk.{layer}.{norm}")));
    if !has(n_layers - 1) {
        let what =
            format!("expected the number of blocks in the file, found {all}, the last of which is missing");
        return Err(hparams.refused(LAYERS, what));
    }
    let beyond = all + hparams.size_if(MORE_LAYERS)?.unwrap_or(0);
    if has(beyond) {
        let what = format!("expected the number of blocks in the file, found {all}, and there are more");
        return Err(hparams.refused(LAYERS, what));
    }
    Ok(n_layers)
}

/// The weight matrices that have a bias, in some block or outside of them, and the LayerNorms.
fn biased(hparams: Hparams<'_>, family: &Family, n_layers: usize) -> BTreeSet<String> {
    let has = |name: String| hparams.has(&name) && hparams.has(&format!("{name}{BIAS}"));
    let has_bias = |part: &&str| (0..n_layers).any(|layer| has(format!("blk.{layer}.{part}")));
    // A head that is the embedding matrix may have a bias of its own.
    let is_end = |name: &&str| match *name {
        "output" => hparams.has(&format!("{name}{BIAS}")),
        _ => has((*name).to_owned()),
    };
    let ends = ["token_embd_norm", "output_norm", "output", "cls", "cls.norm", "cls.output"]
        .into_iter()
        .filter(is_end);
    let may_have = |part: &&str| family.is_centred || !part.ends_with("norm");
    parts().filter(has_bias).chain(ends).filter(may_have).map(str::to_owned).collect()
}

/// Grouped-query attention without RoPE, as the file says it of all blocks.
pub(super) fn grouped(hparams: Hparams<'_>) -> Result<Grouped, Error> {
    let hidden = hparams.count(HIDDEN)?;
    // Where blocks differ, those without attention have 0.
    let most = |all: Vec<usize>| all.into_iter().max().filter(|n| *n > 0);
    let n_heads = match hparams.sizes_if(HEADS)?.and_then(most) {
        Some(n_heads) => n_heads,
        None => hparams.count(HEADS)?,
    };
    let is_grouped = hparams.flag(NEW_DECODER)? == Some(true);
    let n_kv = match (hparams.sizes_if(KV_HEADS)?.and_then(most), hparams.flag(MULTI_QUERY)?) {
        (Some(n_kv), _) => n_kv,
        (None, Some(is_multi_query)) if !is_grouped => {
            if is_multi_query {
                1
            } else {
                n_heads
            }
        }
        (None, _) => hparams.count_if(KV_HEADS)?.unwrap_or(n_heads),
    };
    check_divisor(hparams, KV_HEADS, n_kv, n_heads, "query heads")?;
    let head = if let Some(head) = hparams.count_if(HEAD)? {
        head
    } else {
        check_divisor(hparams, HEADS, n_heads, hidden, "elements of the residual stream")?;
        hidden / n_heads
    };
    check_rotary_dim(hparams, HEAD, head)?;
    if let Some(found) = hparams.count_if(VALUE)?.filter(|found| *found != head) {
        return Err(hparams.refused(VALUE, format!("expected {head} like the keys, found {found}")));
    }
    Ok(Grouped { rotary_dim: rotary_dim(hparams, head)?, ..Grouped::new(n_heads, n_kv, head) })
}

/// The rotary dimension: a number in GGUF, a fraction of the head dimension in `config.json`.
pub(super) fn rotary_dim(hparams: Hparams<'_>, head: usize) -> Result<usize, Error> {
    let (key, n) = match (hparams.count_if(ROTARY_DIM)?, hparams.number_if(ROTARY_FACTOR)?) {
        (Some(n), _) => (ROTARY_DIM, n),
        (None, Some(factor)) => (ROTARY_FACTOR, (head as f64 * factor) as usize),
        (None, None) => return Ok(head),
    };
    if n > head {
        return Err(
            hparams.refused(key, format!("expected at most the {head} elements of a head, found {n}"))
        );
    }
    check_rotary_dim(hparams, key, n)?;
    Ok(n)
}

/// RoPE needs pairs.
pub(super) fn check_rotary_dim(hparams: Hparams<'_>, key: Key, n: usize) -> Result<(), Error> {
    if n > 0 && n.is_multiple_of(2) && n <= MAX_HEAD {
        return Ok(());
    }
    Err(hparams.refused(key, format!("expected an even number up to {MAX_HEAD}, found {n}")))
}

fn check_divisor(hparams: Hparams<'_>, key: Key, n: usize, of: usize, what: &str) -> Result<(), Error> {
    if of.is_multiple_of(n) {
        return Ok(());
    }
    Err(hparams.refused(key, format!("expected a divisor of the {of} {what}, found {n}")))
}

/// The size of the sliding window, and the blocks without it. A file may have a size and not use it, unless its family
/// always does.
pub(super) fn window(
    hparams: Hparams<'_>,
    windows: Windows,
) -> Result<Option<(usize, BTreeSet<usize>)>, Error> {
    let full = full_attention_layers(hparams)?;
    let is_used = match windows {
        Windows::InGguf => hparams.kind() != Kind::Safetensors,
        Windows::All => true,
        Windows::AllButLastOf(_) | Windows::AllButFirstOf(_) => hparams.flag(WINDOW_USED)?.unwrap_or(true),
        Windows::From(_) => hparams.flag(WINDOW_USED)?.unwrap_or(full.is_some()),
        Windows::Listed => full.is_some() || hparams.strings(LAYER_TYPES)?.is_some(),
        Windows::Chunks => false,
    };
    let Some(size) = hparams.count_or_none(WINDOW)?.filter(|_| is_used) else { return Ok(None) };
    if let Some(full) = full {
        return Ok(Some((size, full)));
    }
    let n_layers = n_layers(hparams)?;
    if let Some(types) = hparams.strings(LAYER_TYPES)? {
        let known = ["full_attention", "sliding_attention"];
        if let Some(ty) = types.iter().find(|ty| !known.contains(&ty.as_str())) {
            let what = format!("expected {}, found {}", known.join(" or "), quoted(ty));
            return Err(hparams.refused(LAYER_TYPES, what));
        }
        return Ok(Some((size, (0..types.len()).filter(|layer| types[*layer] == known[0]).collect())));
    }
    let full = match windows {
        Windows::AllButLastOf(period) => (0..n_layers).filter(|layer| layer % period == period - 1).collect(),
        Windows::AllButFirstOf(usual) => {
            let period = hparams.count_if(FULL_PERIOD)?.unwrap_or(usual);
            (0..n_layers).step_by(period).collect()
        }
        Windows::From(usual) if usual > 0 => {
            (0..hparams.size_if(WINDOW_FROM)?.unwrap_or(usual).min(n_layers)).collect()
        }
        Windows::From(_) | Windows::InGguf | Windows::All | Windows::Listed | Windows::Chunks => {
            BTreeSet::new()
        }
    };
    Ok(Some((size, full)))
}

/// The blocks with full attention, where a GGUF file states them: one by one, or as the last of every period.
pub(super) fn full_attention_layers(hparams: Hparams<'_>) -> Result<Option<BTreeSet<usize>>, Error> {
    let n_layers = n_layers(hparams)?;
    if let Some(flags) = hparams.flags(WINDOW_PATTERN)? {
        if flags.len() < n_layers {
            let what = format!("expected a boolean for each of the {n_layers} blocks, found {}", flags.len());
            return Err(hparams.refused(WINDOW_PATTERN, what));
        }
        return Ok(Some((0..n_layers).filter(|layer| !flags[*layer]).collect()));
    }
    let period = hparams.size_if(WINDOW_PATTERN)?;
    Ok(period
        .map(|period| (0..n_layers).filter(|layer| period > 0 && layer % period == period - 1).collect()))
}

/// The network of each block. Which blocks have experts is seen by their tensors, so the many ways to state it need not
/// be known.
pub(super) fn networks(
    hparams: Hparams<'_>,
    family: &Family,
    experts: Option<&Experts>,
) -> Result<Vec<Network>, Error> {
    let activation = activation(hparams, family)?;
    let n_layers = n_layers(hparams)?;
    let widths = hparams.sizes_if(FF)?.filter(|widths| widths.len() >= n_layers);
    let is_fourfold = hparams.kind() == Kind::Safetensors && FOURFOLD.contains(&family.gguf);
    let dense = |layer: usize| {
        let ff = match (&widths, hparams.count_if(DENSE_FF)?) {
            (Some(widths), _) => widths[layer],
            (None, Some(ff)) => ff,
            (None, None) => match hparams.count_or_none(FF)? {
                Some(ff) => ff,
                None if is_fourfold => 4 * hparams.count(HIDDEN)?,
                None => hparams.count(FF)?,
            },
        };
        let &Family { is_gated, has_inner_norms: has_norm, .. } = family;
        // A width of 0 says that a block has none.
        Ok(if ff == 0 { Network::None } else { Network::Dense(Dense { ff, activation, is_gated, has_norm }) })
    };
    let one = |layer: usize| match experts.filter(|_| hparams.has(&format!("blk.{layer}.ffn_gate_inp"))) {
        Some(experts) => Ok(Network::Sparse(experts.clone())),
        None => dense(layer),
    };
    (0..n_layers).map(one).collect()
}

/// The experts, if there are any.
pub(super) fn experts(hparams: Hparams<'_>, family: &Family) -> Result<Option<Experts>, Error> {
    let Some(n_routed) = hparams.count_or_none(EXPERTS)? else { return Ok(None) };
    let has_router = |layer: &usize| hparams.has(&format!("blk.{layer}.ffn_gate_inp"));
    let Some(first) = (0..n_layers(hparams)?).find(has_router) else { return Ok(None) };
    let top_k = hparams.count(EXPERTS_USED)?;
    if top_k > n_routed {
        let what = format!("expected at most the {n_routed} experts, found {top_k}");
        return Err(hparams.refused(EXPERTS_USED, what));
    }
    // Hunyuan has a number, or a list of them, that is not used.
    let stated =
        if hparams.architecture() == "hunyuan_v1_moe" { None } else { hparams.count_if(EXPERT_FF)? };
    let ff = match stated {
        Some(ff) => ff,
        None if family.is_expert_ff_shared => hparams.count(FF)?,
        None => (hparams.count(FF)? / top_k).max(1),
    };
    let n_shared = hparams.size_if(EXPERTS_SHARED)?;
    let at = |part: &str| format!("blk.{first}.{part}");
    let shared_ff = match (hparams.size_if(SHARED_FF)?, n_shared) {
        // GGUF files of ERNIE have a number that is none.
        (Some(_), Some(n_shared)) if family.gguf == "ernie4_5-moe" => n_shared * ff,
        (Some(shared_ff), _) => shared_ff,
        (None, Some(n_shared)) => n_shared * ff,
        // Llama 4 has one, and does not say it.
        (None, None) if hparams.has(&at("ffn_up_shexp")) => ff,
        (None, None) => 0,
    };
    let renorm = hparams.flag(RENORM)?;
    let [in_folder, in_gguf] = family.renorm;
    let usual = if hparams.kind() == Kind::Safetensors { in_folder } else { in_gguf };
    let experts = Experts {
        n_routed,
        top_k,
        shared_ff,
        has_shared_gate: hparams.has(&at("ffn_gate_inp_shexp")),
        ff,
        activation: activation(hparams, family)?,
        is_gated: family.is_gated,
        has_biases: hparams.has(&at(&format!("ffn_up_exps{BIAS}"))),
        gate: gate(hparams, family.gate)?,
        router_bias: hparams.has(&at(&format!("exp_probs_b{BIAS}"))),
        renorm: renorm.unwrap_or(usual),
        scale: hparams.number_or_none(WEIGHT_SCALE)?.unwrap_or(1.0) as f32,
        cap: hparams.number_or_none(ROUTER_CAP)?.map(|cap| cap as f32),
        weighs_input: family.weighs_input,
        groups: None,
        is_joint: hparams.has(&at("ffn_gate_up_exps")),
    };
    // A group's score is that of its best expert, or of its two best.
    let groups = groups(hparams, &experts, if experts.gate == Gate::Softmax { 1 } else { 2 })?;
    Ok(Some(Experts { groups, ..experts }))
}

/// The scoring function of the router.
fn gate(hparams: Hparams<'_>, usual: Gate) -> Result<Gate, Error> {
    if hparams.kind() == Kind::Safetensors {
        return match hparams.string(GATE)? {
            None => Ok(usual),
            Some("sigmoid") => Ok(Gate::Sigmoid),
            Some("softmax") => Ok(Gate::Softmax),
            Some(other) => {
                Err(hparams.refused(GATE, format!("expected softmax or sigmoid, found {}", quoted(other))))
            }
        };
    }
    match hparams.size_if(GATE)?.unwrap_or(0) {
        0 => Ok(usual),
        1 => Ok(Gate::Softmax),
        2 => Ok(Gate::Sigmoid),
        3 => Ok(Gate::SoftmaxAfterTopK),
        4 => Ok(Gate::SqrtSoftplus),
        other => Err(hparams.refused(GATE, format!("expected 1 to 4, found {other}"))),
    }
}

/// Group-limited routing, if a token uses some of the groups only; a group's score sums its `score_top_k` best experts.
pub(super) fn groups(
    hparams: Hparams<'_>,
    experts: &Experts,
    score_top_k: usize,
) -> Result<Option<Groups>, Error> {
    let n_groups = hparams.count_or_none(GROUPS)?.unwrap_or(1);
    let top_k = hparams.count_or_none(GROUPS_USED)?.unwrap_or(n_groups);
    check_divisor(hparams, GROUPS, n_groups, experts.n_routed, "experts")?;
    if top_k > n_groups {
        let what = format!("expected at most the {n_groups} groups, found {top_k}");
        return Err(hparams.refused(GROUPS_USED, what));
    }
    let group_len = experts.n_routed / n_groups;
    if experts.top_k > top_k * group_len {
        let what = format!("expected enough for {} experts, found {top_k} of {n_groups}", experts.top_k);
        return Err(hparams.refused(GROUPS_USED, what));
    }
    let score_top_k = score_top_k.min(group_len);
    Ok((top_k < n_groups).then_some(Groups { n_groups, top_k, score_top_k }))
}

/// The blocks that carry a state.
pub(super) fn recurrent_layers(hparams: Hparams<'_>, family: &Family) -> Result<BTreeSet<usize>, Error> {
    let n_layers = n_layers(hparams)?;
    if family.recurrent.is_none() {
        return Ok(BTreeSet::new());
    }
    if let Some(types) = hparams.strings(LAYER_TYPES)? {
        let known = [&RECURRENT[..], &ATTENTION[..], &["moe", "mlp"]].concat();
        if let Some(ty) = types.iter().find(|ty| !known.contains(&ty.as_str())) {
            let what = format!("expected one of {}, found {}", known.join(", "), quoted(ty));
            return Err(hparams.refused(LAYER_TYPES, what));
        }
        let is_recurrent =
            |layer: &usize| types.get(*layer).is_some_and(|ty| RECURRENT.contains(&ty.as_str()));
        return Ok((0..n_layers).filter(is_recurrent).collect());
    }
    if let Some(flags) = hparams.flags(RECURRENT_LAYERS)? {
        return Ok((0..n_layers).filter(|layer| flags.get(*layer) == Some(&true)).collect());
    }
    if let Some(n_kv) = hparams.sizes_if(KV_HEADS)? {
        return Ok((0..n_layers).filter(|layer| n_kv.get(*layer) == Some(&0)).collect());
    }
    let has_state = |layer: &usize| hparams.has(&format!("blk.{layer}.ssm_in"));
    let seen: BTreeSet<usize> = (0..n_layers).filter(has_state).collect();
    if hparams.count_if(ATTENTION_INTERVAL)?.is_none() && !seen.is_empty() {
        return Ok(seen);
    }
    let period = hparams.count_if(ATTENTION_INTERVAL)?.unwrap_or(4);
    Ok((0..n_layers).filter(|layer| (layer + 1) % period != 0).collect())
}
