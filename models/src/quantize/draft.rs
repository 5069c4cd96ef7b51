//! The plan of a new GGUF file: its metadata, and the origin of each tensor.
//!
//! In: a checkpoint and what becomes of it. Out: a [`Draft`]. From a GGUF file, metadata is copied byte by byte, so
//! that types stay; tensors keep their names and order. All other checkpoints are converted by `convert.rs`.
//! Rows are gathered and decoded later, on demand (`output_tensor.rs`).

use std::path::Path;

use fusebox_runtime::error::{Error, Place};
use fusebox_runtime::weights::gguf::store::{Entry, pair};
use fusebox_runtime::weights::gguf::{self, parts};
use fusebox_runtime::weights::value::{List, Value};
use fusebox_runtime::weights::{Checkpoint, Kind, Stored, TensorInfo};

use crate::binding::source::Source;
use crate::quantize::output_tensor::{Order, Origin, OutputTensor};
use crate::quantize::tensor_format::{Choice, Model};
use crate::quantize::types::Type;
use crate::quantize::{Job, convert};

const FILE_TYPE: &str = "general.file_type";
const QUANTISATION: &str = "general.quantization_version";
/// The version of the block formats.
const QUANTISATION_VERSION: u64 = 2;
/// Not copied: the new file has the default alignment.
const ALIGNMENT: &str = "general.alignment";

/// The plan of a file.
pub(super) struct Draft {
    pub(super) pairs: Vec<Vec<u8>>,
    pub(super) tensors: Vec<OutputTensor>,
}

/// Plans the new file of a checkpoint.
pub(super) fn draft(checkpoint: &Checkpoint, input: &Path, job: &Job) -> Result<Draft, Error> {
    match checkpoint.kind() {
        Kind::Gguf { .. } => {}
        Kind::Safetensors | Kind::Ajc1 | Kind::Qorus => return convert::draft(checkpoint, input, job),
    }
    let model = Model { has_importance: job.importance.is_some(), ..model(checkpoint) };
    let tensors = checkpoint.tensors().iter().map(|(name, info)| tensor(input, job, model, name, info));
    Ok(Draft { tensors: tensors.collect::<Result<_, _>>()?, pairs: pairs(checkpoint, job.ty)? })
}

/// The metadata that every new file gets.
pub(super) fn own_pairs(ty: Option<Type>) -> Vec<(&'static str, Vec<u8>)> {
    let ty = ty.map(|ty| (FILE_TYPE, pair(FILE_TYPE, &Value::Unsigned(ty.number))));
    let version = pair(QUANTISATION, &Value::Unsigned(QUANTISATION_VERSION));
    ty.into_iter().chain([(QUANTISATION, version)]).collect()
}

fn pairs(checkpoint: &Checkpoint, ty: Option<Type>) -> Result<Vec<Vec<u8>>, Error> {
    // Where every tensor keeps its format, the file says what it has said.
    let own = if ty.is_some() { own_pairs(ty) } else { Vec::new() };
    let kept = gguf::pairs(checkpoint)?.into_iter();
    let kept = kept.filter(|(key, _)| {
        *key != ALIGNMENT && !parts::KEYS.contains(key) && own.iter().all(|(own, _)| own != key)
    });
    let kept: Vec<Vec<u8>> = kept.map(|(_, bytes)| bytes.to_vec()).collect();
    Ok(kept.into_iter().chain(own.into_iter().map(|(_, pair)| pair)).collect())
}

/// The properties of the model, as the file states them.
fn model(checkpoint: &Checkpoint) -> Model {
    let architecture = checkpoint.architecture().unwrap_or_default();
    let count = |key: &str| {
        let value = checkpoint.metadata().get(&format!("{architecture}.{key}"));
        value.and_then(first_count).unwrap_or(0) as usize
    };
    let n_values = count("attention.head_count_kv");
    Model {
        n_layers: count("block_count"),
        n_experts: count("expert_count"),
        has_head: checkpoint.tensors().contains_key("output.weight"),
        has_importance: false,
        n_queries_per_value: count("attention.head_count").checked_div(n_values).unwrap_or(0),
    }
}

/// A count, or the first of one for each block.
fn first_count(value: &Value) -> Option<u64> {
    match value {
        Value::List(List::Unsigned(all)) => all.first().copied(),
        Value::List(List::Signed(all)) => all.first().and_then(|first| u64::try_from(*first).ok()),
        other => other.to_u64(),
    }
}

fn tensor(
    input: &Path,
    job: &Job,
    model: Model,
    name: &str,
    info: &TensorInfo,
) -> Result<OutputTensor, Error> {
    let chosen = job.overrides.choose(job.ty, model, name, &info.shape);
    let stored = match (chosen, info.stored) {
        (Some(Choice { format, .. }), Stored::As(_)) => Stored::As(format),
        (Some(_), Stored::Other(other)) => {
            let what = format!("its format {other} is not supported, so it cannot be quantised again");
            let place = Place::Tensor(name.to_owned());
            return Err(Error::Unsupported { path: input.to_owned(), place, what });
        }
        (None, stored) => stored,
    };
    let is_fallback = chosen.is_some_and(|choice| choice.is_fallback);
    let entry = Entry { name: name.to_owned(), shape: info.shape.clone(), stored };
    let whole = Source::Run { tensor: name.to_owned(), bytes: 0..info.n_bytes() };
    Ok(OutputTensor {
        entry,
        origin: Origin::Stored(whole, info.stored),
        order: Order::Same,
        is_fallback,
        added: Vec::new(),
        importance: None,
    })
}
