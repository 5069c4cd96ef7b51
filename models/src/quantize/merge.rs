//! Merging: LoRA adapters become part of the weights of a new file.
//!
//! In: the tensors of the file, and adapters. Out: the same tensors, with what is added to the elements of each.
//! Names, rows and their order are those of GGUF, as the file has them.

use std::collections::BTreeMap;
use std::path::Path;

use fusebox_runtime::error::{Error, Place};
use fusebox_runtime::weights::gguf::store::WRITTEN;
use fusebox_runtime::weights::{Checkpoint, Stored};

use crate::adapters::Adapters;
use crate::adapters::adapted::{Base, EMBEDDING, Target};
use crate::adapters::lora::Product;
use crate::families::{self, hparams, read};
use crate::hparams::Hparams;
use crate::quantize::output_tensor::OutputTensor;

const WEIGHT: &str = ".weight";

/// Adds adapters to tensors.
pub(super) fn add(
    tensors: &mut [OutputTensor],
    checkpoint: &Checkpoint,
    input: &Path,
    adapters: &Adapters,
) -> Result<(), Error> {
    let own = Hparams::architecture_of(checkpoint).unwrap_or("none");
    let config = read(own, hparams(checkpoint))?.ok_or_else(|| Error::Unsupported {
        path: input.to_owned(),
        place: Place::Whole,
        what: format!("the architecture {own} {}", families::unsupported(own)),
    })?;
    let matrices = tensors.iter().filter(|tensor| tensor.entry.shape.len() > 1);
    let targets = matrices.filter_map(|tensor| {
        let name = tensor.entry.name.strip_suffix(WEIGHT)?.to_owned();
        Some(Target { name, sizes: tensor.entry.shape.clone() })
    });
    let base = Base {
        config: &config,
        checkpoint,
        targets: targets.collect(),
        layout: WRITTEN,
        has_own_names: true,
    };
    let mut products: BTreeMap<String, Vec<Product>> = adapters.products(&base)?;
    let has_head = base.targets.iter().any(|target| target.name == "output");
    for tensor in tensors {
        let Some(name) = tensor.entry.name.strip_suffix(WEIGHT) else { continue };
        let Some(all) = products.remove(name) else { continue };
        let [(path, adapter), _] = all[0].from.clone();
        if name == EMBEDDING && !has_head {
            let what =
                "it changes embeddings that are the output head as well: load it instead of merging it";
            return Err(Error::input(&path, Place::Tensor(adapter), what));
        }
        let is_written = matches!(tensor.entry.stored, Stored::As(format) if format.is_encoded());
        if !is_written {
            let what =
                format!("its weight stays {}, which is not written; choose a type", tensor.entry.stored);
            return Err(Error::input(&path, Place::Tensor(adapter), what));
        }
        tensor.added = if name == EMBEDDING { all.iter().map(Product::transposed).collect() } else { all };
        let (product, shape) = (&tensor.added[0], &tensor.entry.shape);
        if shape.last() != Some(&product.columns) {
            let what =
                format!("expected {shape:?}, found {} columns: is it for this model?", product.columns);
            return Err(Error::input(&path, Place::Tensor(adapter), what));
        }
    }
    Ok(())
}
