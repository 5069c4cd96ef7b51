//! What a new GGUF file will hold: its pairs, and for each tensor what it is made of.
//!
//! In: a checkpoint and the type that was asked for. Out: a [`Draft`]. From a GGUF file pairs are taken over byte by
//! byte, so that their types stay; tensors keep their names and order.
//! Nothing is converted here: rows are decoded when they are asked for.

use std::ops::Range;
use std::path::Path;

use fusebox_runtime::error::{Error, Place};
use fusebox_runtime::weights::store::{Entry, pair};
use fusebox_runtime::weights::value::Value;
use fusebox_runtime::weights::{Checkpoint, Kind, Stored, TensorInfo};

use crate::quantize::choice::{self, Model};
use crate::quantize::types::Type;

const FILE_TYPE: &str = "general.file_type";
const QUANTISATION: &str = "general.quantization_version";
/// The version of the block formats.
const QUANTISATION_VERSION: u64 = 2;
/// Pairs that do not hold for the new file: it is one, and aligned as files are that do not say how.
const DROPPED: [&str; 4] = ["general.alignment", "split.no", "split.count", "split.tensors.count"];

/// A file that is to be written.
pub(super) struct Draft {
    pub(super) pairs: Vec<Vec<u8>>,
    pub(super) pieces: Vec<Piece>,
}

/// A tensor that is to be written.
pub(super) struct Piece {
    pub(super) entry: Entry,
    /// The tensor of the checkpoint that it is.
    pub(super) origin: String,
    /// Whether its rows are no whole blocks of the format that it should have got.
    pub(super) is_unfit: bool,
}

/// What a checkpoint becomes.
pub(super) fn draft(checkpoint: &Checkpoint, input: &Path, ty: Type) -> Result<Draft, Error> {
    if !matches!(checkpoint.kind(), Kind::Gguf { .. }) {
        let what = format!("a {} cannot be quantised, expected a GGUF file", checkpoint.kind());
        return Err(Error::Unsupported { path: input.to_owned(), place: Place::Whole, what });
    }
    let model = model(checkpoint);
    let pieces = checkpoint.tensors().iter().map(|(name, info)| piece(input, ty, model, name, info));
    Ok(Draft { pieces: pieces.collect::<Result<_, _>>()?, pairs: pairs(checkpoint, ty)? })
}

fn pairs(checkpoint: &Checkpoint, ty: Type) -> Result<Vec<Vec<u8>>, Error> {
    let own = [
        (FILE_TYPE, pair(FILE_TYPE, &Value::Unsigned(ty.number))),
        (QUANTISATION, pair(QUANTISATION, &Value::Unsigned(QUANTISATION_VERSION))),
    ];
    let kept = checkpoint.pairs()?.into_iter();
    let kept = kept.filter(|(key, _)| !DROPPED.contains(key) && own.iter().all(|(own, _)| own != key));
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
    let chosen = choice::format(ty, model, name, &info.shape);
    let stored = match (chosen, info.stored) {
        (Some(format), Stored::As(_)) => Stored::As(format),
        (Some(_), Stored::Other(other)) => {
            let what = format!("its format {other} is not supported, so it cannot be quantised again");
            let place = Place::Tensor(name.to_owned());
            return Err(Error::Unsupported { path: input.to_owned(), place, what });
        }
        (None, stored) => stored,
    };
    let is_unfit = chosen.is_some_and(|format| choice::is_unfit(ty, model, name, format));
    let entry = Entry { name: name.to_owned(), shape: info.shape.clone(), stored };
    Ok(Piece { entry, origin: name.to_owned(), is_unfit })
}

impl Piece {
    pub(super) fn row_len(&self) -> usize {
        self.entry.shape.last().copied().unwrap_or(1)
    }

    pub(super) fn n_rows(&self) -> usize {
        self.entry.shape.iter().rev().skip(1).product()
    }

    /// The bytes of the checkpoint, where nothing is to be changed.
    pub(super) fn as_stored<'a>(&self, checkpoint: &'a Checkpoint) -> Option<&'a [u8]> {
        let info = checkpoint.tensors().get(&self.origin)?;
        (info.stored == self.entry.stored).then(|| checkpoint.bytes(&self.origin))?
    }

    /// The numbers of some rows.
    pub(super) fn elements(&self, checkpoint: &Checkpoint, rows: Range<usize>) -> Option<Vec<f32>> {
        let info = checkpoint.tensors().get(&self.origin)?;
        let Stored::As(format) = info.stored else { return None };
        let row_bytes = format.bytes_for(self.row_len())?;
        let bytes = checkpoint.bytes(&self.origin)?.get(rows.start * row_bytes..rows.end * row_bytes)?;
        format.decode_all(bytes, rows.len() * self.row_len())
    }

    /// Whether the tensor was quantised before and is now quantised again.
    pub(super) fn is_twice(&self, checkpoint: &Checkpoint) -> bool {
        let is_quantised = |stored: Stored| matches!(stored, Stored::As(format) if format.plain().is_none());
        let before = checkpoint.tensors().get(&self.origin).map(|info| info.stored);
        before.is_some_and(|before| before != self.entry.stored && is_quantised(before))
    }
}
