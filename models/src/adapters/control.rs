//! Control vectors: a direction that is added to the result of each block.
//!
//! In: GGUF files with tensors `direction.N`, their scales, and the blocks that they may change. Out: the sum of all
//! directions of each block. `direction.N` is for block N counted from 0, and none is for block 0, as in llama.cpp.

use std::collections::BTreeMap;
use std::path::PathBuf;

use fusebox_runtime::error::{Error, Place, quoted};
use fusebox_runtime::weights::value::Value;
use fusebox_runtime::weights::{Checkpoint, Stored};

use crate::adapters::adapted::{Base, refused};
use crate::naming::tensors::DIRECTION;

const ARCHITECTURE: &str = "general.architecture";
const OWN: &str = "controlvector";
const HINT: &str = "controlvector.model_hint";

/// The direction of a block, and the file and the tensor that it comes from first.
pub(super) type Direction = (Vec<f32>, (PathBuf, String));

/// Reads all files.
pub(super) fn read(
    files: &[(PathBuf, f32)],
    layers: Option<[usize; 2]>,
    base: &Base<'_>,
) -> Result<BTreeMap<usize, Direction>, Error> {
    let (n_layers, hidden) = (base.config.n_layers(), base.config.hidden);
    let mut directions: BTreeMap<usize, Direction> = BTreeMap::new();
    for (path, strength) in files {
        let checkpoint = Checkpoint::open(path)?;
        let text = |key: &str| checkpoint.metadata().get(key).and_then(Value::as_text);
        if text(ARCHITECTURE).is_some_and(|found| found != OWN) || checkpoint.architecture().is_none() {
            let found = text(ARCHITECTURE).map_or("none".to_owned(), quoted);
            let what = format!("expected {}, found {found}", quoted(OWN));
            return Err(refused(path, Place::Key(ARCHITECTURE.to_owned()), what));
        }
        if let Some(hint) = text(HINT).filter(|hint| *hint != base.architecture()) {
            let what = format!("expected {}, found {}", quoted(base.architecture()), quoted(hint));
            return Err(refused(path, Place::Key(HINT.to_owned()), what));
        }
        if checkpoint.tensors().is_empty() {
            return Err(refused(path, Place::Whole, "expected tensors direction.N, found none"));
        }
        for (name, info) in checkpoint.tensors() {
            let refused = |what: String| refused(path, Place::Tensor(name.clone()), what);
            let number = name.strip_prefix(DIRECTION).and_then(|rest| rest.strip_prefix('.'));
            let layer = number.and_then(|number| number.parse().ok()).filter(|layer| *layer > 0);
            let Some(layer) = layer.filter(|layer| *layer < n_layers) else {
                return Err(refused(format!("expected direction.N with N from 1 to {}", n_layers - 1)));
            };
            let numbers = match info.stored {
                Stored::As(format) if info.shape == [hidden] => {
                    format.decode_all(checkpoint.bytes(name).unwrap_or_default(), hidden)
                }
                _ => None,
            };
            let numbers = numbers.ok_or_else(|| {
                refused(format!("expected {hidden} numbers, found {:?} of {}", info.shape, info.stored))
            })?;
            let (sum, _) =
                directions.entry(layer).or_insert_with(|| (vec![0.0; hidden], (path.clone(), name.clone())));
            sum.iter_mut().zip(numbers).for_each(|(sum, x)| *sum += strength * x);
        }
    }
    if let Some([first, last]) = layers {
        directions.retain(|layer, _| (first..=last).contains(layer));
    }
    Ok(directions)
}
