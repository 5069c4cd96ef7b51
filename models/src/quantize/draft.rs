//! What a new GGUF file will hold: its pairs, and for each tensor what it is made of.
//!
//! In: a checkpoint and the type that was asked for. Out: a [`Draft`]. From a GGUF file pairs are taken over byte by
//! byte, so that their types stay; tensors keep their names and order. All others are converted by `convert.rs`.
//! Rows are brought together and decoded when they are asked for (`piece.rs`).

use std::path::Path;

use fusebox_runtime::error::{Error, Place};
use fusebox_runtime::weights::store::{Entry, pair};
use fusebox_runtime::weights::value::Value;
use fusebox_runtime::weights::{Checkpoint, Kind, Stored, TensorInfo, parts};

use crate::binding::source::Source;
use crate::quantize::choice::{Choice, Model, choose};
use crate::quantize::convert;
use crate::quantize::piece::{Order, Origin, Piece};
use crate::quantize::types::Type;

const FILE_TYPE: &str = "general.file_type";
const QUANTISATION: &str = "general.quantization_version";
/// The version of the block formats.
const QUANTISATION_VERSION: u64 = 2;
/// What does not hold for the new file: it has the usual alignment.
const ALIGNMENT: &str = "general.alignment";

/// A file that is to be written.
pub(super) struct Draft {
    pub(super) pairs: Vec<Vec<u8>>,
    pub(super) pieces: Vec<Piece>,
}

/// What a checkpoint becomes.
pub(super) fn draft(checkpoint: &Checkpoint, input: &Path, ty: Type) -> Result<Draft, Error> {
    match checkpoint.kind() {
        Kind::Gguf { .. } => {}
        Kind::Safetensors | Kind::Ajc1 | Kind::Qorus => return convert::draft(checkpoint, input, ty),
    }
    let model = model(checkpoint);
    let pieces = checkpoint.tensors().iter().map(|(name, info)| piece(input, ty, model, name, info));
    Ok(Draft { pieces: pieces.collect::<Result<_, _>>()?, pairs: pairs(checkpoint, ty)? })
}

/// What every file says of its type.
pub(super) fn own_pairs(ty: Type) -> [(&'static str, Vec<u8>); 2] {
    [
        (FILE_TYPE, pair(FILE_TYPE, &Value::Unsigned(ty.number))),
        (QUANTISATION, pair(QUANTISATION, &Value::Unsigned(QUANTISATION_VERSION))),
    ]
}

fn pairs(checkpoint: &Checkpoint, ty: Type) -> Result<Vec<Vec<u8>>, Error> {
    let own = own_pairs(ty);
    let kept = checkpoint.pairs()?.into_iter();
    let kept = kept.filter(|(key, _)| {
        *key != ALIGNMENT && !parts::KEYS.contains(key) && own.iter().all(|(own, _)| own != key)
    });
    let kept: Vec<Vec<u8>> = kept.map(|(_, bytes)| bytes.to_vec()).collect();
    Ok(kept.into_iter().chain(own.map(|(_, pair)| pair)).collect())
}

/// What the choices depend on, as the file says it.
fn model(checkpoint: &Checkpoint) -> Model {
    let architecture = checkpoint.architecture().unwrap_or_default();
    let count = |key: &str| {
        let value = checkpoint.metadata().get(&format!("{architecture}.{key}"));
        value.and_then(Value::to_u64).unwrap_or(0) as usize
    };
    Model {
        n_layers: count("block_count"),
        n_experts: count("expert_count"),
        has_head: checkpoint.tensors().contains_key("output.weight"),
    }
}

fn piece(input: &Path, ty: Type, model: Model, name: &str, info: &TensorInfo) -> Result<Piece, Error> {
    let chosen = choose(ty, model, name, &info.shape);
    let stored = match (chosen, info.stored) {
        (Some(Choice { format, .. }), Stored::As(_)) => Stored::As(format),
        (Some(_), Stored::Other(other)) => {
            let what = format!("its format {other} is not supported, so it cannot be quantised again");
            let place = Place::Tensor(name.to_owned());
            return Err(Error::Unsupported { path: input.to_owned(), place, what });
        }
        (None, stored) => stored,
    };
    let is_unfit = chosen.is_some_and(|choice| choice.is_unfit);
    let entry = Entry { name: name.to_owned(), shape: info.shape.clone(), stored };
    let whole = Source::Run { tensor: name.to_owned(), bytes: 0..info.n_bytes() };
    Ok(Piece { entry, origin: Origin::Stored(whole, info.stored), order: Order::Same, is_unfit })
}
