//! What families read alike from files: the backbone, grouped attention and experts.
//!
//! In: the facts of a file. Out: parts of a `Config`, or one sentence with the key that is missing or makes no sense.
//! What counts have to do with each other is judged here; how positions turn is read in `rotation.rs`.

use std::collections::BTreeSet;

use fusebox_compiler::tensor::quant::Format;
use fusebox_runtime::error::{Error, quoted};
use fusebox_runtime::weights::Kind;

use crate::config::{Attention, Config, Experts, Formats, Gate, Grouped, Groups, Rope, Window};
use crate::facts::Facts;
use crate::naming::keys::{
    ACTIVATION, CAUSAL, CONTEXT, EPS, EXPERT_FF, EXPERTS, EXPERTS_SHARED, EXPERTS_USED, EXTRA_LAYERS, FF,
    GROUPS, GROUPS_USED, HEAD, HEADS, HIDDEN, KV_HEADS, Key, LAYER_TYPES, LAYERS, MORE_LAYERS, TEMPERATURE,
    TIED, TURNED, TURNED_PART, VALUE, WEIGHT_SCALE, WINDOW, WINDOW_FROM, WINDOW_PATTERN, WINDOW_USED,
};
use crate::naming::tensors::{BIAS, parts};

/// The widest head; the speeds of its pairs are a table in the graph.
const WIDEST_HEAD: usize = 1 << 12;

/// A model of this attention and rotation without experts, all other sizes as the file has them.
pub(super) fn backbone(facts: Facts<'_>, attention: Attention, rope: Rope) -> Result<Config, Error> {
    if let Some(word) = facts.word(ACTIVATION)?.filter(|word| !["silu", "swish"].contains(word)) {
        return Err(facts.refused(ACTIVATION, format!("expected silu, found {}", quoted(word))));
    }
    refuse_other_attention(facts)?;
    let n_layers = n_layers(facts)?;
    Ok(Config {
        attention,
        hidden: facts.count(HIDDEN)?,
        n_layers,
        vocab: facts.vocab()?,
        context: facts.count(CONTEXT)?,
        eps: eps(facts)? as f32,
        rope,
        ff: facts.count(FF)?,
        experts: None,
        dense: BTreeSet::new(),
        tied: is_tied(facts)?,
        biased: biased(facts, n_layers),
        formats: Formats::Uniform(Format::F32),
        cache: Format::F32,
    })
}

/// What keeps a norm from dividing by zero; GGUF always says it.
fn eps(facts: Facts<'_>) -> Result<f64, Error> {
    match facts.kind() {
        Kind::Gguf { .. } => facts.number(EPS),
        Kind::Safetensors | Kind::Ajc1 | Kind::Qorus => Ok(facts.number_if(EPS)?.unwrap_or(1e-6)),
    }
}

/// Whether the head is the token table. A head that differs from the table was trained on its own, whatever the flag
/// says.
fn is_tied(facts: Facts<'_>) -> Result<bool, Error> {
    let has_head = facts.has("output");
    let is_said = facts.flag(TIED)?.unwrap_or(!has_head);
    Ok(is_said && (!has_head || facts.are_same(["token_embd", "output"])))
}

/// Refuses attention of other kinds than families have.
fn refuse_other_attention(facts: Facts<'_>) -> Result<(), Error> {
    if facts.flag(CAUSAL)? == Some(false) {
        return Err(facts.refused(CAUSAL, "expected true, found false".to_owned()));
    }
    if let Some(scale) = facts.number_or_none(TEMPERATURE)? {
        return Err(facts.refused(TEMPERATURE, format!("expected 0, found {scale}")));
    }
    Ok(())
}

/// How many blocks are used, the last of which must be there.
pub(super) fn n_layers(facts: Facts<'_>) -> Result<usize, Error> {
    let (all, extra) = (facts.count(LAYERS)?, facts.size_if(EXTRA_LAYERS)?.unwrap_or(0));
    if extra >= all {
        let what = format!("expected less than the {all} blocks, found {extra}");
        return Err(facts.refused(EXTRA_LAYERS, what));
    }
    let n_layers = all - extra;
    // The graph is recorded block by block: a count that is absurd must not get that far.
    if !facts.has(&format!("blk.{}.attn_norm", n_layers - 1)) {
        let what = format!("expected the number of blocks there are, found {all}, whose last is missing");
        return Err(facts.refused(LAYERS, what));
    }
    let beyond = all + facts.size_if(MORE_LAYERS)?.unwrap_or(0);
    if facts.has(&format!("blk.{beyond}.attn_norm")) {
        let what =
            format!("expected the number of blocks there are, found {all}, behind which there are more");
        return Err(facts.refused(LAYERS, what));
    }
    Ok(n_layers)
}

/// The matrices of blocks that have a bias; a block need not have all of them.
fn biased(facts: Facts<'_>, n_layers: usize) -> BTreeSet<String> {
    let has = |name: String| facts.has(&name) && facts.has(&format!("{name}{BIAS}"));
    let is_biased = |part: &&str| (0..n_layers).any(|layer| has(format!("blk.{layer}.{part}")));
    parts().filter(is_biased).map(str::to_owned).collect()
}

/// The sizes of grouped attention.
pub(super) fn grouped(facts: Facts<'_>, qk_norm: bool) -> Result<Grouped, Error> {
    let (n_heads, hidden) = (facts.count(HEADS)?, facts.count(HIDDEN)?);
    let n_kv = facts.count_if(KV_HEADS)?.unwrap_or(n_heads);
    divides(facts, KV_HEADS, n_kv, n_heads, "query heads")?;
    let head = if let Some(head) = facts.count_if(HEAD)? {
        head
    } else {
        divides(facts, HEADS, n_heads, hidden, "elements of the residual stream")?;
        hidden / n_heads
    };
    turned(facts, HEAD, head)?;
    if let Some(found) = facts.count_if(VALUE)?.filter(|found| *found != head) {
        return Err(facts.refused(VALUE, format!("expected {head} like the keys, found {found}")));
    }
    Ok(Grouped { turned: turned_of(facts, head)?, qk_norm, ..Grouped::new(n_heads, n_kv, head) })
}

/// How many elements of a head are turned: as many as a GGUF file says, or such a part as a folder says.
fn turned_of(facts: Facts<'_>, head: usize) -> Result<usize, Error> {
    let (key, n) = match (facts.count_if(TURNED)?, facts.number_if(TURNED_PART)?) {
        (Some(n), _) => (TURNED, n),
        (None, Some(part)) => (TURNED_PART, (head as f64 * part) as usize),
        (None, None) => return Ok(head),
    };
    if n > head {
        return Err(facts.refused(key, format!("expected at most the {head} elements of a head, found {n}")));
    }
    turned(facts, key, n)?;
    Ok(n)
}

/// Elements are turned in pairs.
pub(super) fn turned(facts: Facts<'_>, key: Key, n: usize) -> Result<(), Error> {
    if n > 0 && n.is_multiple_of(2) && n <= WIDEST_HEAD {
        return Ok(());
    }
    Err(facts.refused(key, format!("expected an even number up to {WIDEST_HEAD}, found {n}")))
}

fn divides(facts: Facts<'_>, key: Key, n: usize, of: usize, what: &str) -> Result<(), Error> {
    if of.is_multiple_of(n) {
        return Ok(());
    }
    Err(facts.refused(key, format!("expected a divisor of the {of} {what}, found {n}")))
}

/// How far back tokens see. A file may have a window and not use it, unless its family always does.
/// `from` is the first block that has one, where a file may say another.
pub(super) fn window(
    facts: Facts<'_>,
    is_always: bool,
    from: Option<usize>,
) -> Result<Option<Window>, Error> {
    let full = without_window(facts)?;
    if !is_always && !facts.flag(WINDOW_USED)?.unwrap_or(full.is_some()) {
        return Ok(None);
    }
    let Some(size) = facts.count_or_none(WINDOW)? else { return Ok(None) };
    if let Some(full) = full {
        return Ok(Some(Window { size, full }));
    }
    let Some(words) = facts.words(LAYER_TYPES)? else {
        let from = match from {
            Some(usual) => facts.size_if(WINDOW_FROM)?.unwrap_or(usual),
            None => 0,
        };
        return Ok(Some(Window { size, full: (0..from.min(n_layers(facts)?)).collect() }));
    };
    let known = ["full_attention", "sliding_attention"];
    if let Some(word) = words.iter().find(|word| !known.contains(&word.as_str())) {
        return Err(
            facts.refused(LAYER_TYPES, format!("expected {}, found {}", known.join(" or "), quoted(word)))
        );
    }
    let full = (0..words.len()).filter(|layer| words[*layer] == known[0]).collect();
    Ok(Some(Window { size, full }))
}

/// The blocks that have no window, where a GGUF file says which: one by one, or the last of every so many.
fn without_window(facts: Facts<'_>) -> Result<Option<BTreeSet<usize>>, Error> {
    let n_layers = n_layers(facts)?;
    if let Some(flags) = facts.flags(WINDOW_PATTERN)? {
        if flags.len() < n_layers {
            let what = format!("expected a truth for each of the {n_layers} blocks, found {}", flags.len());
            return Err(facts.refused(WINDOW_PATTERN, what));
        }
        return Ok(Some((0..n_layers).filter(|layer| !flags[*layer]).collect()));
    }
    let period = facts.size_if(WINDOW_PATTERN)?;
    Ok(period
        .map(|period| (0..n_layers).filter(|layer| period > 0 && layer % period == period - 1).collect()))
}

/// The experts, if there are any, and the blocks that have none. The file is asked for all but what families differ in:
/// how weights are made, and in which groups experts come. Which blocks have experts is seen by what they store, so the
/// many ways to say it need not be known.
pub(super) fn experts(
    facts: Facts<'_>,
    gate: Gate,
    renorm: bool,
) -> Result<Option<(Experts, BTreeSet<usize>)>, Error> {
    let Some(n) = facts.count_or_none(EXPERTS)? else { return Ok(None) };
    let has_router = |layer: &usize| facts.has(&format!("blk.{layer}.ffn_gate_inp"));
    let (sparse, dense): (BTreeSet<usize>, BTreeSet<usize>) = (0..n_layers(facts)?).partition(has_router);
    let Some(first) = sparse.first() else { return Ok(None) };
    let n_used = facts.count(EXPERTS_USED)?;
    if n_used > n {
        return Err(facts.refused(EXPERTS_USED, format!("expected at most the {n} experts, found {n_used}")));
    }
    let ff = match facts.count_if(EXPERT_FF)? {
        Some(ff) => ff,
        None => (facts.count(FF)? / n_used).max(1),
    };
    let at = |part: &str| format!("blk.{first}.{part}");
    let experts = Experts {
        n,
        n_used,
        n_shared: facts.size_if(EXPERTS_SHARED)?.unwrap_or(0),
        ff,
        gate,
        is_biased: facts.has(&at(&format!("exp_probs_b{BIAS}"))),
        renorm,
        scale: facts.number_or_none(WEIGHT_SCALE)?.unwrap_or(1.0) as f32,
        groups: None,
        is_joint: facts.has(&at("ffn_gate_up_exps")),
    };
    Ok(Some((experts, dense)))
}

/// The groups of experts, if a token uses some of them only; each is as good as its `n_best` together.
pub(super) fn groups(facts: Facts<'_>, experts: &Experts, n_best: usize) -> Result<Option<Groups>, Error> {
    let n = facts.count_or_none(GROUPS)?.unwrap_or(1);
    let n_used = facts.count_or_none(GROUPS_USED)?.unwrap_or(n);
    divides(facts, GROUPS, n, experts.n, "experts")?;
    if n_used > n {
        return Err(facts.refused(GROUPS_USED, format!("expected at most the {n} groups, found {n_used}")));
    }
    if experts.n_used > n_used * (experts.n / n) {
        let what = format!("expected enough for {} experts, found {n_used} of {n}", experts.n_used);
        return Err(facts.refused(GROUPS_USED, what));
    }
    let n_best = n_best.min(experts.n / n);
    Ok((n_used < n).then_some(Groups { n, n_used, n_best }))
}
