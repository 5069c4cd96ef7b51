//! Encoders, which read a text and write none: BERT and its successors, and decoders made into embedding models.
//!
//! In: the hyper-parameters of a file. Out: a config.
//! What is in front of the first block and behind the last is seen by tensors. Read next: `layers/embed.rs`.

use fusebox_runtime::error::{Error, quoted};
use fusebox_runtime::weights::Kind;

use crate::config::{Added, Config, Ends, Mixer, Order, Pooler, Positions, Ranking};
use crate::families::decoder;
use crate::families::family::Family;
use crate::hparams::Hparams;
use crate::naming::hparams::{ARCHITECTURES, HEAD_ACTIVATION, HEAD_POOLING, PARALLEL};
use crate::naming::tensors::PROJECTIONS;

/// Rows of the table of positions of `RoBERTa` that no position has; converters to GGUF drop them.
const ROBERTA_FIRST: usize = 2;
/// What the names of classes in Transformers end in that score texts.
const SCORES_TEXTS: &str = "ForSequenceClassification";
const ROBERTA: [&str; 4] = ["roberta", "xlm-roberta", "camembert", "xlm-roberta-xl"];

/// Reads the config of a file.
///
/// # Errors
/// Names the hyper-parameter that is missing or invalid.
pub(super) fn read(hparams: Hparams<'_>, family: &Family) -> Result<Config, Error> {
    let mut config = decoder::read(hparams, family)?;
    let rows = |name: &str| hparams.stored(name).and_then(|(_, info)| info.shape.first().copied());
    let is_roberta = hparams.kind() == Kind::Safetensors && ROBERTA.contains(&hparams.architecture());
    let first = if is_roberta { ROBERTA_FIRST } else { 0 };
    if let Some(rows) = rows("position_embd") {
        if rows <= first {
            let what = format!("expected more than {first} positions, found {rows}");
            return Err(hparams.refused_tensor("position_embd", what));
        }
        config.added.positions = Some(Positions { rows, first });
        config.context = config.context.min(rows - first);
        for block in &mut config.blocks {
            if let Mixer::Grouped(heads) = &mut block.mixer {
                heads.rope = None;
            }
        }
    }
    config.added = Added {
        n_kinds: rows("token_types").unwrap_or(0),
        has_norm: hparams.has("token_embd_norm"),
        ..config.added
    };
    config.ends.has_norm = hparams.has("output_norm");
    for (layer, block) in config.blocks.iter_mut().enumerate() {
        if block.order == Order::Before && !hparams.has(&format!("blk.{layer}.attn_norm")) {
            block.order = Order::BeforeNetwork;
        }
    }
    Ok(config)
}

/// A decoder whose halves read the same where blocks have one norm (`StableLM`, Falcon).
///
/// # Errors
/// Names the hyper-parameter that is missing or invalid.
pub(super) fn parallel_where_one_norm(hparams: Hparams<'_>, family: &Family) -> Result<Config, Error> {
    let mut config = decoder::read(hparams, family)?;
    for (layer, block) in config.blocks.iter_mut().enumerate() {
        let [own, other] =
            ["attn_norm", "ffn_norm"].map(|norm| hparams.stored(&format!("blk.{layer}.{norm}")));
        if other.is_none() || own.map(|(name, _)| name) == other.map(|(name, _)| name) {
            block.order = Order::Parallel;
        }
    }
    Ok(config)
}

/// A decoder whose halves read the same, each through a norm, unless the file says otherwise (GPT-NeoX).
///
/// # Errors
/// Names the hyper-parameter that is missing or invalid.
pub(super) fn parallel_unless_stated(hparams: Hparams<'_>, family: &Family) -> Result<Config, Error> {
    let is_parallel = hparams.flag(PARALLEL)?.unwrap_or(true);
    let order = if is_parallel { Order::ParallelNorms } else { Order::Before };
    decoder::read(hparams, &Family { order, ..*family })
}

/// What embedding models and rankers of any family have behind the final norm.
///
/// # Errors
/// Where the head that ranks is none that is known.
pub(super) fn ends(hparams: Hparams<'_>, ends: &Ends) -> Result<Ends, Error> {
    let rows = |name: &str| hparams.stored(name).and_then(|(_, info)| info.shape.first().copied());
    let ranking = rows("cls.output").map(|n_labels| ranking(hparams, n_labels)).transpose()?;
    let projections = PROJECTIONS.into_iter().map_while(rows).collect();
    Ok(Ends { projections, ranking: ranking.flatten(), ..ends.clone() })
}

/// The head that ranks; none where the matrix is the head of another task.
fn ranking(hparams: Hparams<'_>, n_labels: usize) -> Result<Option<Ranking>, Error> {
    let classes = hparams.strings(ARCHITECTURES)?.unwrap_or_default();
    if !classes.is_empty() && !classes.iter().any(|class| class.ends_with(SCORES_TEXTS)) {
        return Ok(None);
    }
    let pooler = match (hparams.has("cls"), hparams.has("cls.norm")) {
        (false, _) => Pooler::None,
        (true, false) => Pooler::Tanh,
        (true, true) => Pooler::GeluNormed,
    };
    let is_modern = pooler == Pooler::GeluNormed;
    if let Some(name) = hparams.string(HEAD_ACTIVATION)?.filter(|name| is_modern && *name != "gelu") {
        return Err(hparams.refused(HEAD_ACTIVATION, format!("expected gelu, found {}", quoted(name))));
    }
    let reads_mean = match hparams.string(HEAD_POOLING)? {
        Some("mean") => true,
        Some("cls") => false,
        Some(other) => {
            let what = format!("expected cls or mean, found {}", quoted(other));
            return Err(hparams.refused(HEAD_POOLING, what));
        }
        // GGUF does not say it.
        None => is_modern && hparams.kind() != Kind::Safetensors,
    };
    Ok(Some(Ranking { n_labels, reads_mean, pooler }))
}
