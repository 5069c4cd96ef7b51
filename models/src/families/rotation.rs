//! How positions turn queries and keys, as files tell it.
//!
//! In: the facts of a file. Out: a `Rope`, or one sentence with the key that is missing or makes no sense.
//! GGUF and `config.json` tell the same in different words: the first has factors of pairs as a tensor, and a tenth of
//! the strength of YaRN. What a `Rope` means is in `layers/rope.rs`.

use fusebox_runtime::error::{Error, quoted};
use fusebox_runtime::weights::Kind;

use crate::config::{Pairing, Rope, Scaling};
use crate::facts::Facts;
use crate::layers::rope::yarn_scale;
use crate::naming::keys::{
    BETA_FAST, BETA_SLOW, CONTEXT, HIGH, Key, LOW, MAGNITUDE, MSCALE, MSCALE_ALL, ORIGINAL, SCALING,
    SCALING_ITSELF, STRETCH, THETA, TRUNCATE, TURNED_PART,
};

/// The tensor with a factor for each pair.
const FACTORS: &str = "rope_freqs";
/// What an object tells of positions.
const TOLD: [Key; 13] = [
    SCALING,
    THETA,
    TURNED_PART,
    STRETCH,
    ORIGINAL,
    LOW,
    HIGH,
    BETA_FAST,
    BETA_SLOW,
    TRUNCATE,
    MAGNITUDE,
    MSCALE,
    MSCALE_ALL,
];
/// GGUF holds so much of YaRN's strength.
pub(crate) const GGUF_STRENGTH: f64 = 0.1;

/// How `n_dims` elements of a head are turned.
pub(super) fn rope(facts: Facts<'_>, pairing: Pairing, n_dims: usize) -> Result<Rope, Error> {
    let usual = match facts.kind() {
        Kind::Gguf { .. } | Kind::Safetensors | Kind::Qorus => 1e4,
        Kind::Ajc1 => 1e6,
    };
    let theta = facts.number_if(THETA)?.unwrap_or(usual);
    Ok(Rope { theta, pairing, scaling: scaling(facts, n_dims)? })
}

fn scaling(facts: Facts<'_>, n_dims: usize) -> Result<Scaling, Error> {
    facts.object_of_values(SCALING_ITSELF)?;
    facts.agree(SCALING_ITSELF, &TOLD)?;
    let kind = match facts.word(SCALING)? {
        Some(kind) => kind,
        // GGUF without the word means what was there first.
        None if facts.number_or_none(STRETCH)?.is_none() => "none",
        None if matches!(facts.kind(), Kind::Gguf { .. }) => "linear",
        None => {
            return Err(facts.refused(SCALING, "expected a word beside the factor, found none".to_owned()));
        }
    };
    match kind {
        "none" | "default" => factors(facts, n_dims),
        "linear" => linear(facts, n_dims),
        "llama3" => llama3(facts),
        "yarn" => yarn(facts),
        _ => {
            let what = format!("expected none, default, linear, llama3 or yarn, found {}", quoted(kind));
            Err(facts.refused(SCALING, what))
        }
    }
}

/// What the tensor of factors says, where there is one.
fn factors(facts: Facts<'_>, n_dims: usize) -> Result<Scaling, Error> {
    if !facts.has(FACTORS) {
        return Ok(Scaling::None);
    }
    let expected = n_dims / 2;
    match facts.numbers(FACTORS) {
        Some(factors) if factors.len() != expected => {
            let what = format!("expected the shape [{expected}], found [{}]", factors.len());
            Err(facts.refused_tensor(FACTORS, what))
        }
        Some(factors) if factors.iter().all(|factor| factor.is_finite() && *factor > 0.0) => {
            Ok(Scaling::Factors(factors))
        }
        _ => Err(facts.refused_tensor(FACTORS, "expected positive numbers in f32, found others".to_owned())),
    }
}

/// All pairs slowed down alike, on top of what a tensor says of each.
fn linear(facts: Facts<'_>, n_dims: usize) -> Result<Scaling, Error> {
    let stretch = facts.number(STRETCH)? as f32;
    let each = match factors(facts, n_dims)? {
        Scaling::Factors(factors) => factors,
        Scaling::None | Scaling::Llama3 { .. } | Scaling::Yarn { .. } => vec![1.0; n_dims / 2],
    };
    Ok(Scaling::Factors(each.into_iter().map(|factor| factor * stretch).collect()))
}

fn llama3(facts: Facts<'_>) -> Result<Scaling, Error> {
    facts.once(ORIGINAL)?;
    let (factor, original) = (facts.number(STRETCH)?, facts.number(ORIGINAL)?);
    let (low, high) = (facts.number(LOW)?, facts.number(HIGH)?);
    if low >= high {
        return Err(facts.refused(LOW, format!("expected less than the high {high}, found {low}")));
    }
    Ok(Scaling::Llama3 { factor, low, high, original })
}

fn yarn(facts: Facts<'_>) -> Result<Scaling, Error> {
    let factor = facts.number(STRETCH)?;
    if facts.has(FACTORS) {
        let what = "expected no factors of pairs beside yarn, found some";
        return Err(facts.refused_tensor(FACTORS, what.to_owned()));
    }
    if facts.flag(TRUNCATE)? == Some(false) {
        return Err(facts.refused(TRUNCATE, "expected true, found false".to_owned()));
    }
    let beta_fast = facts.number_if(BETA_FAST)?.unwrap_or(32.0);
    let beta_slow = facts.number_if(BETA_SLOW)?.unwrap_or(1.0);
    if beta_fast < beta_slow {
        let what = format!("expected at least the slow {beta_slow}, found {beta_fast}");
        return Err(facts.refused(BETA_FAST, what));
    }
    facts.once(ORIGINAL)?;
    let original = match facts.number_if(ORIGINAL)? {
        Some(original) => original,
        None => facts.count(CONTEXT)? as f64,
    };
    let (given, all) = (facts.number_or_none(MAGNITUDE)?, facts.number_or_none(MSCALE_ALL)?);
    let (magnitude, all) = match facts.kind() {
        // A factor comes on top here, and turned parts are as strong as scores are sharp.
        Kind::Gguf { .. } => {
            let all = all.map(|tenth| tenth / GGUF_STRENGTH);
            (gguf_magnitude(factor, all) * given.unwrap_or(1.0), all)
        }
        Kind::Safetensors | Kind::Ajc1 | Kind::Qorus => {
            let own = match (facts.number_or_none(MSCALE)?, all) {
                (Some(own), Some(all)) => yarn_scale(factor, own) / yarn_scale(factor, all),
                _ => yarn_scale(factor, 1.0),
            };
            (given.unwrap_or(own), all)
        }
    };
    Ok(Scaling::Yarn {
        factor,
        beta_fast,
        beta_slow,
        original,
        magnitude,
        sharpening: all.map_or(1.0, |all| yarn_scale(factor, all)),
    })
}

/// What turned queries and keys are multiplied by in GGUF, unless a factor comes on top.
pub(crate) fn gguf_magnitude(factor: f64, sharpness: Option<f64>) -> f64 {
    if sharpness.is_some() { 1.0 } else { yarn_scale(factor, 1.0) }
}
