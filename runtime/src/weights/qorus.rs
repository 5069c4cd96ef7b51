//! Files of Qorus: a header of 64 bytes, then the arrays of a Llama model without names.
//!
//! In: the bytes of a file that starts with [`MAGIC`]. Out: its sizes as metadata, and its tensors. The file has no
//! names, so they get those of GGUF; shapes are `[outputs, inputs]`.
//! Every array is padded to a multiple of 64 bytes, and the token tables to a multiple of 32 rows. The file is exactly
//! as long as that implies, which is checked before the first tensor is described.

use std::path::Path;

use fusebox_compiler::tensor::quant::Format;
use indexmap::IndexMap;

use crate::error::{Error, Place};
use crate::weights::reader::Reader;
use crate::weights::value::Value;
use crate::weights::{Contents, Kind, Stored, TensorInfo};

/// How such a file begins: the number 0x514f5231, little-endian.
pub(super) const MAGIC: [u8; 4] = *b"1ROQ";

const HEADER_BYTES: usize = 64;
const MAX_LAYERS: usize = 4096;
/// Arrays are padded to a multiple of this many bytes.
const ALIGNMENT: usize = 64;
/// Token tables are padded to a multiple of this many rows.
const TABLE_ROWS: usize = 32;
/// What keeps a norm from dividing by zero, where the file does not say.
const EPS: f64 = 1e-5;

/// The whole numbers of the header, in its order.
const FIELDS: [&str; 7] =
    ["vocab_size", "dim", "hidden_dim", "n_layers", "n_heads", "n_kv_heads", "max_seq_len"];

/// What the tensors' shapes follow from.
struct Sizes {
    vocab: usize,
    dim: usize,
    hidden: usize,
    n_layers: usize,
    /// The width of all keys.
    keys: usize,
}

/// An array of the file.
struct Array {
    name: String,
    shape: Vec<usize>,
    format: Format,
    /// Padding rows.
    n_spare: usize,
}

/// Reads and checks everything but the weights themselves.
pub(super) fn read(path: &Path, bytes: &[u8]) -> Result<Contents, Error> {
    let mut reader = Reader::new(path, bytes);
    reader.take(MAGIC.len())?;
    let version = reader.u32()?;
    if !(1..=2).contains(&version) {
        let what = format!("version {version} is not supported, expected 1 or 2");
        return Err(reader.unsupported(MAGIC.len(), what));
    }
    let mut metadata = IndexMap::new();
    let sizes = sizes(path, &mut reader, &mut metadata)?;
    let theta = positive(&mut reader, "rope_freq_base", false)?;
    metadata.insert("rope_freq_base".to_owned(), Value::Float(theta.unwrap_or_default()));
    // The first version has spare bytes there.
    let eps = if version == 1 { None } else { positive(&mut reader, "rms_norm_eps", true)? };
    metadata.insert("rms_norm_eps".to_owned(), Value::Float(eps.unwrap_or(EPS)));
    reader.take(HEADER_BYTES - reader.at())?;
    let arrays = arrays(&sizes);
    check_length(path, bytes.len(), &arrays)?;
    Ok(Contents { kind: Kind::Qorus, metadata, tensors: tensors(arrays) })
}

fn sizes(path: &Path, reader: &mut Reader, metadata: &mut IndexMap<String, Value>) -> Result<Sizes, Error> {
    let mut numbers = [0; FIELDS.len()];
    for (number, field) in numbers.iter_mut().zip(FIELDS) {
        let at = reader.at();
        let found = reader.u32()?;
        let most = if field == "n_layers" { MAX_LAYERS as u32 } else { i32::MAX as u32 };
        if !(1..=most).contains(&found) {
            return Err(reader.refuse(at, format!("{field} from 1 to {most}"), found));
        }
        *number = found as usize;
        metadata.insert(field.to_owned(), Value::Unsigned(u64::from(found)));
    }
    let [vocab, dim, hidden, n_layers, n_heads, n_kv_heads, _] = numbers;
    let refuse = |key: &str, what: String| Err(Error::input(path, Place::Key(key.to_owned()), what));
    for (key, row) in [("dim", dim), ("hidden_dim", hidden)] {
        if !row.is_multiple_of(Format::Q4Pairs.block_len()) {
            return refuse(
                key,
                format!("expected a multiple of {}, found {row}", Format::Q4Pairs.block_len()),
            );
        }
    }
    if !dim.is_multiple_of(n_heads) {
        return refuse("n_heads", format!("expected a divisor of dim, which is {dim}, found {n_heads}"));
    }
    if !n_heads.is_multiple_of(n_kv_heads) {
        return refuse(
            "n_kv_heads",
            format!("expected a divisor of the {n_heads} heads, found {n_kv_heads}"),
        );
    }
    Ok(Sizes { vocab, dim, hidden, n_layers, keys: dim / n_heads * n_kv_heads })
}

/// A number above zero; where zero stands for none, none.
fn positive(reader: &mut Reader, name: &str, may_be_none: bool) -> Result<Option<f64>, Error> {
    let at = reader.at();
    let found = f32::from_bits(reader.u32()?);
    match found {
        _ if found.is_finite() && found > 0.0 => Ok(Some(f64::from(found))),
        0.0 if may_be_none => Ok(None),
        _ => Err(reader.refuse(at, format!("a {name} above 0"), found)),
    }
}

/// Everything in the file, in its order.
fn arrays(sizes: &Sizes) -> Vec<Array> {
    let Sizes { vocab, dim, hidden, n_layers, keys } = *sizes;
    let plain = |name: &str, shape: Vec<usize>, n_spare| Array {
        name: format!("{name}.weight"),
        shape,
        format: Format::F32,
        n_spare,
    };
    let n_spare = vocab.next_multiple_of(TABLE_ROWS) - vocab;
    let mut arrays = vec![
        plain("token_embd", vec![vocab, dim], n_spare),
        plain("output_norm", vec![dim], 0),
        plain("output", vec![vocab, dim], n_spare),
    ];
    for layer in 0..n_layers {
        let norm = |name: &str| plain(&format!("blk.{layer}.{name}"), vec![dim], 0);
        let matrix = |name: &str, outputs, inputs| Array {
            name: format!("blk.{layer}.{name}.weight"),
            shape: vec![outputs, inputs],
            format: Format::Q4Pairs,
            n_spare: 0,
        };
        arrays.extend([
            norm("attn_norm"),
            matrix("attn_q", dim, dim),
            matrix("attn_k", keys, dim),
            matrix("attn_v", keys, dim),
            matrix("attn_output", dim, dim),
            norm("ffn_norm"),
            matrix("ffn_gate", hidden, dim),
            matrix("ffn_up", hidden, dim),
            matrix("ffn_down", dim, hidden),
        ]);
    }
    arrays
}

impl Array {
    /// The bytes of the array, and those with what fills it up; nothing where no memory holds them.
    fn n_bytes(&self) -> Option<(usize, usize)> {
        let inner = self.shape.iter().skip(1).product();
        let bytes = |rows: usize| self.format.bytes_for(rows.checked_mul(inner)?);
        let rows = self.shape.first().copied().unwrap_or(1);
        Some((bytes(rows)?, bytes(rows + self.n_spare)?.checked_next_multiple_of(ALIGNMENT)?))
    }
}

fn check_length(path: &Path, found: usize, arrays: &[Array]) -> Result<(), Error> {
    let length = arrays.iter().try_fold(HEADER_BYTES, |sum, array| sum.checked_add(array.n_bytes()?.1));
    if length == Some(found) {
        return Ok(());
    }
    let expected = length.map_or("more bytes than any file has".to_owned(), |n| format!("{n} bytes"));
    let what = format!("expected {expected} by the sizes in the header, found {found}");
    Err(Error::input(path, Place::Whole, what))
}

/// The tensors of a file whose length is right.
fn tensors(arrays: Vec<Array>) -> IndexMap<String, TensorInfo> {
    let mut start = HEADER_BYTES;
    let described = arrays.into_iter().map(|array| {
        let (n_bytes, n_filled) = array.n_bytes().expect("the length of the file was checked against it");
        let range = start..start + n_bytes;
        start += n_filled;
        (
            array.name,
            TensorInfo {
                shape: array.shape,
                stored: Stored::As(array.format),
                file_idx: 0,
                made: None,
                range,
            },
        )
    });
    described.collect()
}
