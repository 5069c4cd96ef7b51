//! A single safetensors file.
//!
//! In: the bytes of a file with a JSON header. Out: its tensors in the header's order, and its own metadata, which is
//! all strings.
//! The tensors fill the file after the header without gaps and without overlap, as the format demands: nothing can hide
//! between them.
//! A folder of such files is read by `folder.rs`.

use std::ops::Range;
use std::path::Path;

use fusebox_compiler::foundation::amount::counted;
use fusebox_compiler::tensor::quant::Format;
use indexmap::IndexMap;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::error::{Error, Place, quoted};
use crate::weights::json::{self, Entries};
use crate::weights::reader::Reader;
use crate::weights::value::Value;
use crate::weights::{Contents, Kind, Stored, TensorInfo};

pub(in crate::weights) mod folder;

/// The longest header that the format allows.
const MAX_HEADER_BYTES: usize = 100_000_000;
const MAX_DIMS: usize = 8;

/// The name in the header that is no tensor.
const METADATA: &str = "__metadata__";

/// What a header says of one tensor.
#[derive(Deserialize)]
#[serde(expecting = "an object")]
struct Entry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

/// Reads and checks everything but the weights themselves, of the file with this place in the checkpoint.
pub(in crate::weights) fn read(path: &Path, bytes: &[u8]) -> Result<Contents, Error> {
    let mut reader = Reader::new(path, bytes);
    let n_bytes = reader.count("bytes of header", 1)?;
    if n_bytes > MAX_HEADER_BYTES {
        return Err(reader.refuse(0, format!("a header of at most {MAX_HEADER_BYTES} bytes"), n_bytes));
    }
    let header_at = reader.at() as u64;
    let Entries::<&RawValue>(header) = json::parse(reader.take(n_bytes)?)
        .map_err(|(at, what)| Error::input(path, Place::Byte(header_at + at), what))?;
    let data_start = reader.at();
    let mut contents =
        Contents { kind: Kind::Safetensors, metadata: IndexMap::new(), tensors: IndexMap::new() };
    for (name, json) in header {
        if name == METADATA {
            contents.metadata = metadata(path, json)?;
        } else {
            let tensor = tensor(json, data_start..bytes.len());
            let tensor = tensor.map_err(|what| Error::input(path, Place::Tensor(name.clone()), what))?;
            contents.tensors.insert(name, tensor);
        }
    }
    check_coverage(path, data_start..bytes.len(), &contents.tensors)?;
    Ok(contents)
}

fn metadata(path: &Path, json: &RawValue) -> Result<IndexMap<String, Value>, Error> {
    let Entries::<String>(texts) = json::parse(json.get().as_bytes())
        .map_err(|(_, what)| Error::input(path, Place::Key(METADATA.to_owned()), what))?;
    Ok(texts.into_iter().map(|(key, text)| (key, Value::Text(text))).collect())
}

/// One tensor, or what is wrong with it.
fn tensor(json: &RawValue, data: Range<usize>) -> Result<TensorInfo, String> {
    // A list of the three values would read as well, but the format does not allow it.
    if !json.get().starts_with('{') {
        return Err("expected an object, found another value".to_owned());
    }
    let Entry { dtype, shape, data_offsets: [start, end] } =
        json::parse(json.get().as_bytes()).map_err(|(_, what)| what)?;
    let (stored, element_bytes) =
        stored(&dtype).ok_or_else(|| format!("expected a known dtype, found {}", quoted(&dtype)))?;
    if shape.len() > MAX_DIMS {
        return Err(format!("expected at most {MAX_DIMS} dimensions, found {}", shape.len()));
    }
    let n_elements = shape.iter().try_fold(1u64, |product, size| product.checked_mul(*size));
    let n_bytes = n_elements.and_then(|n| n.checked_mul(element_bytes));
    let n_bytes = n_bytes.ok_or_else(|| format!("expected a size that fits in memory, found {shape:?}"))?;
    if start.checked_add(n_bytes) != Some(end) {
        return Err(format!("expected {n_bytes} bytes for {dtype} {shape:?}, found {start} to {end}"));
    }
    if end > data.len() as u64 {
        return Err(format!(
            "expected its bytes in the {} of the data, found {start} to {end}; is the file whole?",
            data.len()
        ));
    }
    let shape = shape.into_iter().map(usize::try_from).collect::<Result<_, _>>();
    let shape = shape.map_err(|_| "expected sizes that fit in memory, found larger ones".to_owned())?;
    let range = data.start + start as usize..data.start + end as usize;
    Ok(TensorInfo { shape, stored, file_idx: 0, made: None, range })
}

/// How elements of this type are stored, and in how many bytes each.
fn stored(dtype: &str) -> Option<(Stored, u64)> {
    let row = match dtype {
        "F32" => (Stored::As(Format::F32), 4),
        "F16" => (Stored::As(Format::F16), 2),
        "BF16" => (Stored::As(Format::BF16), 2),
        "I32" => (Stored::As(Format::I32), 4),
        "F64" => (Stored::Other("f64"), 8),
        "I64" => (Stored::Other("i64"), 8),
        "U64" => (Stored::Other("u64"), 8),
        "U32" => (Stored::Other("u32"), 4),
        "I16" => (Stored::Other("i16"), 2),
        "U16" => (Stored::Other("u16"), 2),
        "I8" => (Stored::Other("i8"), 1),
        "U8" => (Stored::Other("u8"), 1),
        "BOOL" => (Stored::Other("bool"), 1),
        "F8_E4M3" => (Stored::Other("f8_e4m3"), 1),
        "F8_E5M2" => (Stored::Other("f8_e5m2"), 1),
        "F8_E8M0" => (Stored::Other("f8_e8m0"), 1),
        "C64" => (Stored::Other("c64"), 8),
        _ => return None,
    };
    Some(row)
}

/// The tensors, sorted, follow each other from the first byte of the data to the last.
fn check_coverage(
    path: &Path,
    data: Range<usize>,
    tensors: &IndexMap<String, TensorInfo>,
) -> Result<(), Error> {
    let mut sorted: Vec<_> = tensors.iter().collect();
    sorted.sort_by_key(|(_, tensor)| (tensor.range.start, tensor.range.end));
    let mut end = data.start;
    for (name, tensor) in sorted {
        if tensor.range.start != end {
            let (expected, found) = (end - data.start, tensor.range.start - data.start);
            let what = format!("expected its bytes to follow those before it at {expected}, found {found}");
            return Err(Error::input(path, Place::Tensor(name.clone()), what));
        }
        end = tensor.range.end;
    }
    if end != data.end {
        let left = counted(data.end - end, "byte");
        let what = format!("expected the end of the file, found {left} of no tensor");
        return Err(Error::input(path, Place::Byte(end as u64), what));
    }
    Ok(())
}
