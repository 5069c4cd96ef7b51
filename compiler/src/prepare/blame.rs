//! Finds the pass that changed what a model computes.
//!
//! In: launches that come out wrong when they are prepared, and a judge. Out: the first change that made them wrong.

use crate::error::Error;
use crate::foundation::bisect::first_wrong;
use crate::options::Options;
use crate::prepare::{Change, Pass, prepare_with};
use crate::schedule::Sequence;

/// The change that made the first wrong sequence; nothing where all are right.
///
/// # Errors
/// As [`prepare`](crate::prepare::prepare): a change that a verifier refuses is named by that.
pub fn blame(
    sequence: &Sequence,
    passes: &[Pass],
    options: &Options,
    is_right: impl Fn(&Sequence) -> bool,
) -> Result<Option<Change>, Error> {
    let made = |fuel| prepare_with(sequence.clone(), passes, &Options { fuel, ..options.clone() });
    let (_, changes) = made(options.fuel)?;
    let all_right = |fuel| made(Some(fuel)).is_ok_and(|(sequence, _)| is_right(&sequence));
    Ok(first_wrong(changes.len(), all_right).and_then(|number| changes.into_iter().nth(number)))
}
