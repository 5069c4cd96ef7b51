//! The parts of a config that families share: the backbone, grouped-query attention, sliding windows and experts.
//!
//! In: the hyper-parameters of a file. Out: parts of a `Config`, or one sentence with the key that is missing or
//! invalid.
//! Consistency between hyper-parameters is checked here; RoPE is read in `rope.rs`.

use std::collections::BTreeSet;

use fusebox_compiler::tensor::quant::Format;
use fusebox_runtime::error::{Error, quoted};
use fusebox_runtime::weights::Kind;

use crate::config::{Attention, Config, Experts, Formats, Gate, Grouped, Groups, KvCache, Rope, Window};
use crate::hparams::Hparams;
use crate::naming::hparams::{
    ACTIVATION, CAUSAL, CONTEXT, EPS, EXPERT_FF, EXPERTS, EXPERTS_SHARED, EXPERTS_USED, EXTRA_LAYERS, FF,
    GROUPS, GROUPS_USED, HEAD, HEADS, HIDDEN, KV_HEADS, Key, LAYER_TYPES, LAYERS, MORE_LAYERS, ROTARY_DIM,
    ROTARY_FACTOR, TEMPERATURE, TIED, VALUE, WEIGHT_SCALE, WINDOW, WINDOW_FROM, WINDOW_PATTERN, WINDOW_USED,
};
use crate::naming::tensors::{BIAS, parts};

/// The largest head dimension; the frequencies of its pairs are a table in the graph.
const MAX_HEAD: usize = 1 << 12;

/// A config with this attention and RoPE, without experts, and with all other sizes as in the file.
pub(super) fn backbone(hparams: Hparams<'_>, attention: Attention, rope: Rope) -> Result<Config, Error> {
    if let Some(name) = hparams.string(ACTIVATION)?.filter(|name| !["silu", "swish"].contains(name)) {
        return Err(hparams.refused(ACTIVATION, format!("expected silu, found {}", quoted(name))));
    }
    refuse_other_attention(hparams)?;
    let n_layers = n_layers(hparams)?;
    Ok(Config {
        attention,
        hidden: hparams.count(HIDDEN)?,
        n_layers,
        vocab: hparams.vocab()?,
        context: hparams.count(CONTEXT)?,
        eps: eps(hparams)? as f32,
        rope,
        ff: hparams.count(FF)?,
        experts: None,
        dense: BTreeSet::new(),
        tied: is_tied(hparams)?,
        biased: biased(hparams, n_layers),
        formats: Formats::Uniform(Format::F32),
        cache: KvCache::of_one(hparams.count(CONTEXT)?),
    })
}

/// The epsilon of RMSNorm; GGUF always has it.
fn eps(hparams: Hparams<'_>) -> Result<f64, Error> {
    match hparams.kind() {
        Kind::Gguf { .. } => hparams.number(EPS),
        Kind::Safetensors | Kind::Ajc1 | Kind::Qorus => Ok(hparams.number_if(EPS)?.unwrap_or(1e-6)),
    }
}

/// Whether embeddings are tied. A head that differs from the embedding matrix is used, whatever the flag says.
fn is_tied(hparams: Hparams<'_>) -> Result<bool, Error> {
    let has_head = hparams.has("output");
    let is_stated = hparams.flag(TIED)?.unwrap_or(!has_head);
    Ok(is_stated && (!has_head || hparams.are_equal(["token_embd", "output"])))
}

/// Refuses attention that no family here has.
fn refuse_other_attention(hparams: Hparams<'_>) -> Result<(), Error> {
    if hparams.flag(CAUSAL)? == Some(false) {
        return Err(hparams.refused(CAUSAL, "expected true, found false".to_owned()));
    }
    if let Some(scale) = hparams.number_or_none(TEMPERATURE)? {
        return Err(hparams.refused(TEMPERATURE, format!("expected 0, found {scale}")));
    }
    Ok(())
}

/// The number of blocks that are used, the last of which must be in the file.
pub(super) fn n_layers(hparams: Hparams<'_>) -> Result<usize, Error> {
    let (all, extra) = (hparams.count(LAYERS)?, hparams.size_if(EXTRA_LAYERS)?.unwrap_or(0));
    if extra >= all {
        let what = format!("expected less than the {all} blocks, found {extra}");
        return Err(hparams.refused(EXTRA_LAYERS, what));
    }
    let n_layers = all - extra;
    // The graph is built block by block: an absurd count must not get that far.
    if !hparams.has(&format!("blk.{}.attn_norm", n_layers - 1)) {
        let what =
            format!("expected the number of blocks in the file, found {all}, the last of which is missing");
        return Err(hparams.refused(LAYERS, what));
    }
    let beyond = all + hparams.size_if(MORE_LAYERS)?.unwrap_or(0);
    if hparams.has(&format!("blk.{beyond}.attn_norm")) {
        let what = format!("expected the number of blocks in the file, found {all}, and there are more");
        return Err(hparams.refused(LAYERS, what));
    }
    Ok(n_layers)
}

/// The weight matrices that have a bias in some block.
fn biased(hparams: Hparams<'_>, n_layers: usize) -> BTreeSet<String> {
    let has = |name: String| hparams.has(&name) && hparams.has(&format!("{name}{BIAS}"));
    let has_bias = |part: &&str| (0..n_layers).any(|layer| has(format!("blk.{layer}.{part}")));
    parts().filter(has_bias).map(str::to_owned).collect()
}

/// The sizes of grouped-query attention.
pub(super) fn grouped(hparams: Hparams<'_>, qk_norm: bool) -> Result<Grouped, Error> {
    let (n_heads, hidden) = (hparams.count(HEADS)?, hparams.count(HIDDEN)?);
    let n_kv = hparams.count_if(KV_HEADS)?.unwrap_or(n_heads);
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
    Ok(Grouped { rotary_dim: rotary_dim(hparams, head)?, qk_norm, ..Grouped::new(n_heads, n_kv, head) })
}

/// The rotary dimension: a number in GGUF, a fraction of the head dimension in `config.json`.
fn rotary_dim(hparams: Hparams<'_>, head: usize) -> Result<usize, Error> {
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

/// The sliding window. A file may have a window size and not use it, unless its family always does (`is_always`).
/// `from` is the family's first block with a window, which a file may override.
pub(super) fn window(
    hparams: Hparams<'_>,
    is_always: bool,
    from: Option<usize>,
) -> Result<Option<Window>, Error> {
    let full = full_attention_layers(hparams)?;
    if !is_always && !hparams.flag(WINDOW_USED)?.unwrap_or(full.is_some()) {
        return Ok(None);
    }
    let Some(size) = hparams.count_or_none(WINDOW)? else { return Ok(None) };
    if let Some(full) = full {
        return Ok(Some(Window { size, full }));
    }
    let Some(types) = hparams.strings(LAYER_TYPES)? else {
        let from = match from {
            Some(usual) => hparams.size_if(WINDOW_FROM)?.unwrap_or(usual),
            None => 0,
        };
        return Ok(Some(Window { size, full: (0..from.min(n_layers(hparams)?)).collect() }));
    };
    let known = ["full_attention", "sliding_attention"];
    if let Some(ty) = types.iter().find(|ty| !known.contains(&ty.as_str())) {
        return Err(
            hparams.refused(LAYER_TYPES, format!("expected {}, found {}", known.join(" or "), quoted(ty)))
        );
    }
    let full = (0..types.len()).filter(|layer| types[*layer] == known[0]).collect();
    Ok(Some(Window { size, full }))
}

/// The blocks with full attention, where a GGUF file states them: one by one, or as the last of every period.
fn full_attention_layers(hparams: Hparams<'_>) -> Result<Option<BTreeSet<usize>>, Error> {
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

/// The experts, if there are any, and the dense blocks. What families differ in is passed in: the scoring function and
/// the normalisation of routing weights; the groups are added later. Which blocks have experts is seen by their
/// tensors, so the many ways to state it need not be known.
pub(super) fn experts(
    hparams: Hparams<'_>,
    gate: Gate,
    renorm: bool,
) -> Result<Option<(Experts, BTreeSet<usize>)>, Error> {
    let Some(n_routed) = hparams.count_or_none(EXPERTS)? else { return Ok(None) };
    let has_router = |layer: &usize| hparams.has(&format!("blk.{layer}.ffn_gate_inp"));
    let (sparse, dense): (BTreeSet<usize>, BTreeSet<usize>) = (0..n_layers(hparams)?).partition(has_router);
    let Some(first) = sparse.first() else { return Ok(None) };
    let top_k = hparams.count(EXPERTS_USED)?;
    if top_k > n_routed {
        let what = format!("expected at most the {n_routed} experts, found {top_k}");
        return Err(hparams.refused(EXPERTS_USED, what));
    }
    let ff = match hparams.count_if(EXPERT_FF)? {
        Some(ff) => ff,
        None => (hparams.count(FF)? / top_k).max(1),
    };
    let at = |part: &str| format!("blk.{first}.{part}");
    let experts = Experts {
        n_routed,
        top_k,
        n_shared: hparams.size_if(EXPERTS_SHARED)?.unwrap_or(0),
        ff,
        gate,
        router_bias: hparams.has(&at(&format!("exp_probs_b{BIAS}"))),
        renorm,
        scale: hparams.number_or_none(WEIGHT_SCALE)?.unwrap_or(1.0) as f32,
        groups: None,
        is_joint: hparams.has(&at("ffn_gate_up_exps")),
    };
    Ok(Some((experts, dense)))
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
