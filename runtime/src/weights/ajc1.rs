//! Checkpoints of qwen3.c: a header of 256 bytes, then arrays without names.
//!
//! In: the bytes of a file that starts with [`MAGIC`]. Out: its sizes as metadata, and its tensors. The file has no
//! names, so they get those of GGUF; shapes are `[outputs, inputs]`.
//! The file is exactly as long as its sizes imply, which is checked before the first tensor is described.
//! A quantised tensor is all its bytes followed by all its scales, layer by layer.

use std::path::Path;

use fusebox_compiler::tensor::quant::Format;
use indexmap::IndexMap;

use crate::error::{Error, Place};
use crate::weights::reader::Reader;
use crate::weights::value::Value;
use crate::weights::{Contents, Kind, Stored, TensorInfo};

/// How such a file begins: the number 0x616a6331, little-endian.
pub(super) const MAGIC: [u8; 4] = *b"1cja";

const VERSION: u64 = 1;
const HEADER_BYTES: usize = 256;
const MAX_LAYERS: usize = 4096;

/// The numbers of the header, in its order.
const FIELDS: [&str; 10] = [
    "dim",
    "hidden_dim",
    "n_layers",
    "n_heads",
    "n_kv_heads",
    "vocab_size",
    "max_seq_len",
    "head_dim",
    "shared_classifier",
    "group_size",
];

/// What the tensors' shapes follow from.
struct Sizes {
    dim: usize,
    hidden: usize,
    n_layers: usize,
    n_heads: usize,
    n_kv_heads: usize,
    vocab: usize,
    head: usize,
    is_shared: bool,
    group: usize,
}

/// An array of the file, or one for each layer.
struct Array {
    name: &'static str,
    is_per_layer: bool,
    shape: Vec<usize>,
    format: Format,
}

/// Reads and checks everything but the weights themselves.
pub(super) fn read(path: &Path, bytes: &[u8]) -> Result<Contents, Error> {
    let mut reader = Reader::new(path, bytes);
    reader.take(MAGIC.len())?;
    let version = reader.unsigned(4)?;
    if version != VERSION {
        let what = format!("version {version} is not supported, expected {VERSION}");
        return Err(reader.unsupported(MAGIC.len(), what));
    }
    let mut metadata = IndexMap::new();
    let sizes = sizes(&mut reader, &mut metadata)?;
    reader.take(HEADER_BYTES - reader.at())?;
    check_groups(path, &sizes)?;
    let arrays = arrays(&sizes);
    check_length(path, bytes.len(), &arrays, sizes.n_layers)?;
    let tensors = tensors(&arrays, sizes.n_layers);
    Ok(Contents { kind: Kind::Ajc1, metadata, tensors })
}

fn sizes(reader: &mut Reader, metadata: &mut IndexMap<String, Value>) -> Result<Sizes, Error> {
    let mut numbers = [0; FIELDS.len()];
    for (number, field) in numbers.iter_mut().zip(FIELDS) {
        let at = reader.at();
        let found = reader.unsigned(4)?;
        let (least, most) = match field {
            "shared_classifier" => (0, 1),
            "n_layers" => (1, MAX_LAYERS as u64),
            _ => (1, i32::MAX as u64),
        };
        if !(least..=most).contains(&found) {
            return Err(reader.refuse(at, format!("{field} from {least} to {most}"), found));
        }
        *number = found as usize;
        metadata.insert(field.to_owned(), Value::Unsigned(found));
    }
    let [dim, hidden, n_layers, n_heads, n_kv_heads, vocab, _, head, shared, group] = numbers;
    Ok(Sizes { dim, hidden, n_layers, n_heads, n_kv_heads, vocab, head, is_shared: shared == 1, group })
}

/// Groups end with the rows: qwen3.c writes files where they do not, and then reads them wrongly.
fn check_groups(path: &Path, sizes: &Sizes) -> Result<(), Error> {
    // Both are below 2^31.
    let queries = sizes.n_heads as u64 * sizes.head as u64;
    for (name, row) in
        [("dim", sizes.dim as u64), ("hidden_dim", sizes.hidden as u64), ("n_heads × head_dim", queries)]
    {
        if !row.is_multiple_of(sizes.group as u64) {
            let what = format!("expected a divisor of {name}, which is {row}, found {}", sizes.group);
            return Err(Error::input(path, Place::Key("group_size".to_owned()), what));
        }
    }
    Ok(())
}

/// Everything in the file, in its order.
fn arrays(sizes: &Sizes) -> Vec<Array> {
    let Sizes { dim, hidden, head, vocab, .. } = *sizes;
    let queries = sizes.n_heads.saturating_mul(head);
    let keys = sizes.n_kv_heads.saturating_mul(head);
    let group = sizes.group as u32;
    let plain = |name, is_per_layer, len| Array { name, is_per_layer, shape: vec![len], format: Format::F32 };
    let quantised = |name, is_per_layer, outputs, inputs| Array {
        name,
        is_per_layer,
        shape: vec![outputs, inputs],
        format: Format::Int8 { group },
    };
    let mut arrays = vec![
        plain("attn_norm.weight", true, dim),
        plain("ffn_norm.weight", true, dim),
        plain("output_norm.weight", false, dim),
        plain("attn_q_norm.weight", true, head),
        plain("attn_k_norm.weight", true, head),
        quantised("token_embd.weight", false, vocab, dim),
        quantised("attn_q.weight", true, queries, dim),
        quantised("attn_k.weight", true, keys, dim),
        quantised("attn_v.weight", true, keys, dim),
        quantised("attn_output.weight", true, dim, queries),
        quantised("ffn_gate.weight", true, hidden, dim),
        quantised("ffn_down.weight", true, dim, hidden),
        quantised("ffn_up.weight", true, hidden, dim),
    ];
    if !sizes.is_shared {
        arrays.push(quantised("output.weight", false, vocab, dim));
    }
    arrays
}

impl Array {
    /// How often the array is in the file.
    fn n_times(&self, n_layers: usize) -> usize {
        if self.is_per_layer { n_layers } else { 1 }
    }

    /// The bytes of one; nothing where no memory holds them.
    fn n_bytes(&self) -> Option<usize> {
        let n_elements = self.shape.iter().try_fold(1usize, |product, size| product.checked_mul(*size))?;
        self.format.bytes_for(n_elements)
    }
}

fn check_length(path: &Path, found: usize, arrays: &[Array], n_layers: usize) -> Result<(), Error> {
    let length = arrays.iter().try_fold(HEADER_BYTES, |sum, array| {
        sum.checked_add(array.n_bytes()?.checked_mul(array.n_times(n_layers))?)
    });
    if length == Some(found) {
        return Ok(());
    }
    let expected = length.map_or("more bytes than any file has".to_owned(), |n| format!("{n} bytes"));
    Err(Error::input(
        path,
        Place::Whole,
        format!("expected {expected} by the sizes in the header, found {found}"),
    ))
}

/// The tensors of a file whose length is right.
fn tensors(arrays: &[Array], n_layers: usize) -> IndexMap<String, TensorInfo> {
    let (mut tensors, mut start) = (IndexMap::new(), HEADER_BYTES);
    for array in arrays {
        for layer in 0..array.n_times(n_layers) {
            let name = if array.is_per_layer {
                format!("blk.{layer}.{}", array.name)
            } else {
                array.name.to_owned()
            };
            let end = start + array.n_bytes().expect("the length of the file was checked against it");
            let (shape, stored) = (array.shape.clone(), Stored::As(array.format));
            tensors.insert(name, TensorInfo { shape, stored, file_idx: 0, made: None, range: start..end });
            start = end;
        }
    }
    tensors
}
