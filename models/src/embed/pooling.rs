//! Pooling: how the hidden states of a text become one vector.
//!
//! In: a row for each token. Out: one vector, or the scores of a text. Which way a model was made for is said by its
//! file: `pooling_type` in GGUF, `1_Pooling/config.json` in a folder of sentence-transformers.

use fusebox_runtime::error::{Error, Place};
use fusebox_runtime::weights::value::Value;
use fusebox_runtime::weights::{Checkpoint, Kind};
use serde::Deserialize;

use crate::naming::files;
use crate::sidecar;

/// How rows become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// Their mean.
    Mean,
    /// The first, of a token for the whole text (CLS).
    First,
    /// The last, which has seen all others.
    Last,
    /// The scores of a head that ranks texts.
    Rank,
}

/// What sentence-transformers write; one of these is true.
#[derive(Default, Deserialize)]
#[serde(expecting = "an object", default)]
struct Stated {
    pooling_mode_mean_tokens: bool,
    pooling_mode_cls_token: bool,
    pooling_mode_lasttoken: bool,
}

/// What sentence-transformers write of a projection.
#[derive(Deserialize)]
#[serde(expecting = "an object")]
struct Projection {
    #[serde(default)]
    bias: bool,
    activation_function: Option<String>,
}

/// Refuses projections of a folder that are more than a matrix, or are not there: vectors would be other ones.
fn check_projections(checkpoint: &Checkpoint) -> Result<(), Error> {
    for (idx, name) in files::PROJECTIONS.into_iter().enumerate() {
        let folder = sidecar::in_folder(checkpoint, name);
        if !folder.exists() {
            continue;
        }
        let refused = |what: &str| {
            Err(Error::Unsupported { path: folder.clone(), place: Place::Whole, what: what.to_owned() })
        };
        if idx > 1 {
            return refused("expected at most two projections behind pooling, found more");
        }
        if !folder.join(files::PROJECTION_WEIGHTS).is_file() {
            return refused("expected its weights in model.safetensors, found none");
        }
        let stated: Option<Projection> = sidecar::read_json(&folder.join(files::PROJECTION_CONFIG))?;
        let is_identity = |name: &String| name.ends_with("Identity");
        let is_linear = stated
            .is_some_and(|own| !own.bias && own.activation_function.is_none_or(|name| is_identity(&name)));
        if !is_linear {
            return refused("expected a projection without bias and activation, found another");
        }
    }
    Ok(())
}

impl Pooling {
    /// What a checkpoint says, if anything.
    ///
    /// # Errors
    /// Where the file of a folder is no JSON, or what is behind pooling is not read: vectors would be other ones.
    pub fn of(checkpoint: &Checkpoint) -> Result<Option<Self>, Error> {
        if checkpoint.kind() == Kind::Safetensors {
            check_projections(checkpoint)?;
            let stated: Option<Stated> = sidecar::read_json(&sidecar::in_folder(checkpoint, files::POOLING))?;
            return Ok(stated.and_then(|stated| {
                let each = [
                    (stated.pooling_mode_mean_tokens, Self::Mean),
                    (stated.pooling_mode_cls_token, Self::First),
                    (stated.pooling_mode_lasttoken, Self::Last),
                ];
                each.into_iter().find(|(is_so, _)| *is_so).map(|(_, pooling)| pooling)
            }));
        }
        let Some(architecture) = checkpoint.architecture() else { return Ok(None) };
        let stated =
            checkpoint.metadata().get(&format!("{architecture}.pooling_type")).and_then(Value::to_u64);
        Ok(stated.and_then(|number| match number {
            1 => Some(Self::Mean),
            2 => Some(Self::First),
            3 => Some(Self::Last),
            4 => Some(Self::Rank),
            _ => None,
        }))
    }

    /// One vector of rows of this width; nothing where there are none.
    pub fn pooled(self, rows: &[f32], width: usize) -> Vec<f32> {
        let mut rows = rows.chunks_exact(width.max(1));
        match self {
            Self::First => rows.next().unwrap_or_default().to_vec(),
            Self::Last | Self::Rank => rows.next_back().unwrap_or_default().to_vec(),
            Self::Mean => {
                let n = rows.len().max(1) as f64;
                let mut sums = vec![0.0; width];
                rows.for_each(|row| sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += f64::from(*x)));
                sums.into_iter().map(|sum| (sum / n) as f32).collect()
            }
        }
    }
}

/// A vector of length 1; one without a length stays as it is.
pub fn normalised(vector: &[f32]) -> Vec<f32> {
    let length = vector.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
    if length > 0.0 {
        vector.iter().map(|x| (f64::from(*x) / length) as f32).collect()
    } else {
        vector.to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_become_one_vector() {
        let rows = [1.0, 2.0, 3.0, 6.0];
        assert_eq!(Pooling::Mean.pooled(&rows, 2), [2.0, 4.0]);
        assert_eq!(Pooling::First.pooled(&rows, 2), [1.0, 2.0]);
        assert_eq!(Pooling::Last.pooled(&rows, 2), [3.0, 6.0]);
        assert!(Pooling::Last.pooled(&[], 2).is_empty());
        assert_eq!(normalised(&[3.0, -4.0]), [0.6, -0.8]);
        assert_eq!(normalised(&[0.0, 0.0]), [0.0, 0.0]);
    }
}
