//! Reads RoPE and its context extension from a file.
//!
//! In: the hyper-parameters of a file. Out: a `Rope`, or one sentence with the key that is missing or invalid.
//! GGUF and `config.json` differ: GGUF stores per-pair factors as a tensor, and a tenth of YaRN's `mscale_all_dim`.
//! `layers/attention/rope.rs` has what a `Rope` means.

use fusebox_runtime::error::{Error, quoted};
use fusebox_runtime::weights::Kind;

use crate::config::rope::{Pairing, Rope, Scaling};
use crate::hparams::Hparams;
use crate::layers::attention::rope::yarn_mscale;
use crate::naming::hparams::{
    ALPHA, ATTENTION_FACTOR, BETA_FAST, BETA_SLOW, CONTEXT, HIGH_FREQ, Key, LOCAL_THETA, LONG_FACTORS,
    LOW_FREQ, MSCALE, MSCALE_ALL, ORIGINAL_CONTEXT, ROTARY_FACTOR, SCALING_FACTOR, SCALING_OBJECT,
    SCALING_TYPE, SHORT_FACTORS, THETA, TRUNCATE,
};

/// The types of context extension.
const KINDS: &str = "none, default, dynamic, linear, llama3, longrope, proportional, yarn";
/// The tensor with a frequency divisor for each pair.
const FACTORS: &str = "rope_freqs";
/// The keys of the `rope_scaling` and `rope_parameters` objects.
const ROPE_KEYS: [Key; 13] = [
    SCALING_TYPE,
    THETA,
    ROTARY_FACTOR,
    SCALING_FACTOR,
    ORIGINAL_CONTEXT,
    LOW_FREQ,
    HIGH_FREQ,
    BETA_FAST,
    BETA_SLOW,
    TRUNCATE,
    ATTENTION_FACTOR,
    MSCALE,
    MSCALE_ALL,
];
/// GGUF stores `mscale_all_dim` times this.
pub(crate) const GGUF_MSCALE_FACTOR: f64 = 0.1;

/// The tensors with those of longrope, for short contexts and for long ones.
const LONG: [&str; 2] = ["rope_factors_short", "rope_factors_long"];
/// The divisor of a pair that does not rotate.
const NEVER: f32 = 1e30;

/// Reads RoPE for `n_dims` rotary dimensions.
pub(super) fn rope(hparams: Hparams<'_>, pairing: Pairing, n_dims: usize) -> Result<Rope, Error> {
    let default = match hparams.kind() {
        Kind::Gguf { .. } | Kind::Safetensors | Kind::Qorus => 1e4,
        Kind::Ajc1 => 1e6,
    };
    let theta = hparams.number_if(THETA)?.unwrap_or(default);
    // NTK scaling by a constant is another base.
    let alpha = hparams.number_or_none(ALPHA)?.unwrap_or(1.0);
    let theta = theta * alpha.powf(n_dims as f64 / (n_dims as f64 - 2.0));
    Ok(Rope { theta, pairing, scaling: scaling(hparams, n_dims)? })
}

/// Reads the RoPE of blocks with a window, where it may be another: `config.json` has an object for each kind of block
/// or another base, GGUF another base; context extension is for full attention.
pub(super) fn local_rope(hparams: Hparams<'_>, full: &Rope, n_dims: usize, base: f64) -> Result<Rope, Error> {
    if hparams.has_rope_of("sliding_attention") {
        return rope(hparams.of_blocks("sliding_attention"), full.pairing, n_dims);
    }
    let theta = hparams.number_if(LOCAL_THETA)?.unwrap_or(base);
    Ok(Rope { theta, pairing: full.pairing, scaling: Scaling::None })
}

fn scaling(hparams: Hparams<'_>, n_dims: usize) -> Result<Scaling, Error> {
    hparams.refuse_nested(SCALING_OBJECT)?;
    hparams.refuse_disagreement(SCALING_OBJECT, &ROPE_KEYS)?;
    let kind = match hparams.string(SCALING_TYPE)? {
        Some(kind) => kind,
        // Old GGUF files have a factor without a type: linear scaling, the only type at the time.
        None if hparams.number_or_none(SCALING_FACTOR)?.is_none() => "none",
        None if matches!(hparams.kind(), Kind::Gguf { .. }) => "linear",
        None => {
            return Err(hparams
                .refused(SCALING_TYPE, "expected a scaling type for the factor, found none".to_owned()));
        }
    };
    match kind {
        // Dynamic NTK scaling begins beyond the model's context.
        "none" | "default" | "dynamic" => match hparams.numbers(LONG[0]) {
            Some(_) => longrope(hparams, n_dims),
            None => factors(hparams, n_dims),
        },
        "longrope" | "su" => longrope(hparams, n_dims),
        "proportional" => proportional(hparams, n_dims),
        "linear" => linear(hparams, n_dims),
        "llama3" => llama3(hparams),
        "yarn" => yarn(hparams),
        _ => {
            let what = format!("expected one of {KINDS}, found {}", quoted(kind));
            Err(hparams.refused(SCALING_TYPE, what))
        }
    }
}

/// The per-pair divisors, where the file has that tensor.
fn factors(hparams: Hparams<'_>, n_dims: usize) -> Result<Scaling, Error> {
    if !hparams.has(FACTORS) {
        return Ok(Scaling::None);
    }
    let expected = n_dims / 2;
    match hparams.numbers(FACTORS) {
        Some(factors) if factors.len() != expected => {
            let what = format!("expected the shape [{expected}], found [{}]", factors.len());
            Err(hparams.refused_tensor(FACTORS, what))
        }
        Some(factors) if factors.iter().all(|factor| factor.is_finite() && *factor > 0.0) => {
            Ok(Scaling::Factors(factors))
        }
        _ => {
            Err(hparams.refused_tensor(FACTORS, "expected positive numbers in f32, found others".to_owned()))
        }
    }
}

/// Divisors for short contexts and for long ones.
fn longrope(hparams: Hparams<'_>, n_dims: usize) -> Result<Scaling, Error> {
    let context = hparams.count(CONTEXT)? as f64;
    let original = hparams.number_if(ORIGINAL_CONTEXT)?.unwrap_or(context);
    let extension = if original > 1.0 { context / original } else { 1.0 };
    let usual = if extension > 1.0 { (1.0 + extension.ln() / original.ln()).sqrt() } else { 1.0 };
    let is_gguf = matches!(hparams.kind(), Kind::Gguf { .. });
    let usual = if is_gguf { 1.0 } else { usual };
    let list = |key: Key, tensor: &str| {
        let found = if is_gguf { hparams.numbers(tensor) } else { hparams.numbers_of(key)? };
        let n_found = found.as_ref().map_or(0, Vec::len);
        let what = || format!("expected {} positive numbers, found {n_found}", n_dims / 2);
        let fits =
            found.filter(|all| all.len() == n_dims / 2 && all.iter().all(|x| x.is_finite() && *x > 0.0));
        fits.ok_or_else(|| {
            if is_gguf { hparams.refused_tensor(tensor, what()) } else { hparams.refused(key, what()) }
        })
    };
    Ok(Scaling::Long {
        short: list(SHORT_FACTORS, LONG[0])?,
        long: list(LONG_FACTORS, LONG[1])?,
        original: original as usize,
        attention_factor: hparams.number_or_none(ATTENTION_FACTOR)?.unwrap_or(usual),
    })
}

/// The frequencies of a whole head, of which the first part of the pairs rotates (Gemma 4).
fn proportional(hparams: Hparams<'_>, n_dims: usize) -> Result<Scaling, Error> {
    let part = hparams.number_if(ROTARY_FACTOR)?.unwrap_or(1.0);
    let n_rotated = (part * n_dims as f64 / 2.0) as usize;
    let divisor = |pair| if pair < n_rotated { 1.0 } else { NEVER };
    Ok(Scaling::Factors((0..n_dims / 2).map(divisor).collect()))
}

/// Linear scaling: divides all frequencies, on top of any per-pair divisors.
fn linear(hparams: Hparams<'_>, n_dims: usize) -> Result<Scaling, Error> {
    let factor = hparams.number(SCALING_FACTOR)? as f32;
    let each = match factors(hparams, n_dims)? {
        Scaling::Factors(factors) => factors,
        Scaling::None | Scaling::Long { .. } | Scaling::Llama3 { .. } | Scaling::Yarn { .. } => {
            vec![1.0; n_dims / 2]
        }
    };
    Ok(Scaling::Factors(each.into_iter().map(|own| own * factor).collect()))
}

fn llama3(hparams: Hparams<'_>) -> Result<Scaling, Error> {
    hparams.refuse_conflict(ORIGINAL_CONTEXT)?;
    let (factor, original) = (hparams.number(SCALING_FACTOR)?, hparams.number(ORIGINAL_CONTEXT)?);
    let (low, high) = (hparams.number(LOW_FREQ)?, hparams.number(HIGH_FREQ)?);
    if low >= high {
        return Err(
            hparams.refused(LOW_FREQ, format!("expected less than high_freq_factor {high}, found {low}"))
        );
    }
    Ok(Scaling::Llama3 { factor, low, high, original })
}

fn yarn(hparams: Hparams<'_>) -> Result<Scaling, Error> {
    let factor = hparams.number(SCALING_FACTOR)?;
    if hparams.has(FACTORS) {
        let what = "expected no per-pair factors together with yarn, found some";
        return Err(hparams.refused_tensor(FACTORS, what.to_owned()));
    }
    let is_rounded = hparams.flag(TRUNCATE)?.unwrap_or(true);
    let beta_fast = hparams.number_if(BETA_FAST)?.unwrap_or(32.0);
    let beta_slow = hparams.number_if(BETA_SLOW)?.unwrap_or(1.0);
    if beta_fast < beta_slow {
        let what = format!("expected at least beta_slow {beta_slow}, found {beta_fast}");
        return Err(hparams.refused(BETA_FAST, what));
    }
    hparams.refuse_conflict(ORIGINAL_CONTEXT)?;
    let original = match hparams.number_if(ORIGINAL_CONTEXT)? {
        Some(original) => original,
        None => hparams.count(CONTEXT)? as f64,
    };
    let (given, mscale_all) =
        (hparams.number_or_none(ATTENTION_FACTOR)?, hparams.number_or_none(MSCALE_ALL)?);
    let (attention_factor, mscale_all) = match hparams.kind() {
        // GGUF's factor comes on top, and `attention_factor` balances `mscale`.
        Kind::Gguf { .. } => {
            let all = mscale_all.map(|tenth| tenth / GGUF_MSCALE_FACTOR);
            (gguf_attention_factor(factor, all) * given.unwrap_or(1.0), all)
        }
        Kind::Safetensors | Kind::Ajc1 | Kind::Qorus => {
            let own = match (hparams.number_or_none(MSCALE)?, mscale_all) {
                (Some(own), Some(all)) => yarn_mscale(factor, own) / yarn_mscale(factor, all),
                _ => yarn_mscale(factor, 1.0),
            };
            (given.unwrap_or(own), mscale_all)
        }
    };
    Ok(Scaling::Yarn {
        factor,
        beta_fast,
        beta_slow,
        original,
        is_rounded,
        attention_factor,
        mscale: mscale_all.map_or(1.0, |all| yarn_mscale(factor, all)),
    })
}

/// The factor on cos and sin that readers of GGUF assume, before `attn_factor` is applied.
pub(crate) fn gguf_attention_factor(factor: f64, mscale_all: Option<f64>) -> f64 {
    if mscale_all.is_some() { 1.0 } else { yarn_mscale(factor, 1.0) }
}
