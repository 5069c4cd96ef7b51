//! Decoders of before Llama: Falcon, MPT and `StarCoder`, whose folders say in several ways what they have.
//!
//! In: the hyper-parameters of a file. Out: a config, or one sentence where a folder has what GGUF files of the family
//! never have.

use fusebox_runtime::error::Error;

use crate::config::{Config, Order};
use crate::families::encoder;
use crate::families::family::Family;
use crate::hparams::Hparams;
use crate::naming::hparams::{ALIBI_USED, Key, MULTI_QUERY, NEW_DECODER, PARALLEL_ATTENTION};

/// Falcon: halves read the same, through one norm or two, unless a folder says otherwise.
///
/// # Errors
/// Names the hyper-parameter that is missing or invalid.
pub(super) fn falcon(hparams: Hparams<'_>, family: &Family) -> Result<Config, Error> {
    // Its distances are scaled as scores are.
    expect(hparams, ALIBI_USED, false)?;
    let is_new = hparams.flag(NEW_DECODER)? == Some(true);
    let mut config = encoder::parallel_where_one_norm(hparams, family)?;
    if !is_new && hparams.flag(PARALLEL_ATTENTION)? == Some(false) {
        config.blocks.iter_mut().for_each(|block| block.order = Order::Before);
    }
    Ok(config)
}

/// MPT: positions are a table, or scores fall with the distance.
///
/// # Errors
/// Names the hyper-parameter that is missing or invalid.
pub(super) fn mpt(hparams: Hparams<'_>, family: &Family) -> Result<Config, Error> {
    if !hparams.has("position_embd") {
        expect(hparams, ALIBI_USED, true)?;
    }
    encoder::read(hparams, family)
}

/// `StarCoder`: all query heads share a key and a value.
///
/// # Errors
/// Names the hyper-parameter that is missing or invalid.
pub(super) fn starcoder(hparams: Hparams<'_>, family: &Family) -> Result<Config, Error> {
    // Else they lie beside each other for each head.
    expect(hparams, MULTI_QUERY, true)?;
    encoder::read(hparams, family)
}

fn expect(hparams: Hparams<'_>, key: Key, expected: bool) -> Result<(), Error> {
    match hparams.flag(key)? {
        Some(found) if found != expected => {
            Err(hparams.refused(key, format!("expected {expected}, found {found}")))
        }
        _ => Ok(()),
    }
}
