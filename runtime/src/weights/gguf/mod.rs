//! GGUF files, versions 2 and 3, little-endian.
//!
//! In: the bytes of a file that starts with `GGUF`. Out: its metadata and its tensors, in the file's order.
//! A duplicate key or tensor is refused, and so are tensors that overlap, leave the file or are not aligned: no two
//! names can mean the same bytes.
//! GGUF lists the innermost size first; shapes are returned with the outermost first. The types are in `ggml.rs`.

use std::ops::Range;
use std::path::Path;

use indexmap::IndexMap;

use crate::error::{Error, Place, quoted};
use crate::weights::reader::Reader;
use crate::weights::value::{List, Value};
use crate::weights::{Checkpoint, Contents, Kind, TensorInfo};

mod ggml;
pub mod parts;
pub mod store;

/// How such a file begins.
pub(in crate::weights) const MAGIC: [u8; 4] = *b"GGUF";

/// The key of the alignment, and what holds without it.
const ALIGNMENT_KEY: &str = "general.alignment";
pub(in crate::weights) const ALIGNMENT: usize = 32;

const MAX_ALIGNMENT: u64 = 1 << 20;
const MAX_KEY_BYTES: usize = u16::MAX as usize;
const MAX_NAME_BYTES: usize = 64;
const MAX_DIMS: u32 = 4;
/// The largest numbers of keys, and of values in all lists: some times what the largest vocabulary needs.
/// A value takes several times as much memory as the file.
const MAX_KEYS: usize = 1 << 16;
const MAX_LISTED: usize = 1 << 22;
/// How deep lists may stand in lists.
const MAX_DEPTH: usize = 4;

/// The fewest bytes of a key with its value, and of a tensor's description.
const MIN_PAIR_BYTES: usize = 8 + 1 + 4 + 1;
const MIN_TENSOR_BYTES: usize = 8 + 1 + 4 + 8 + 4 + 8;

/// Reads and checks everything but the weights themselves.
pub(in crate::weights) fn read(path: &Path, bytes: &[u8]) -> Result<Contents, Error> {
    let mut reader = Reader::new(path, bytes);
    reader.take(MAGIC.len())?;
    let version = version(&mut reader)?;
    let n_tensors = reader.count("tensors", MIN_TENSOR_BYTES)?;
    let at = reader.at();
    let n_pairs = reader.count("keys", MIN_PAIR_BYTES)?;
    if n_pairs > MAX_KEYS {
        return Err(reader.refuse(at, format!("at most {MAX_KEYS} keys"), n_pairs));
    }
    let metadata = metadata(&mut reader, n_pairs)?;
    let alignment = alignment(path, &metadata)?;
    let mut tensors = IndexMap::new();
    for _ in 0..n_tensors {
        let (name, placed) = tensor(&mut reader, alignment)?;
        if tensors.insert(name.to_owned(), placed).is_some() {
            return Err(Error::input(
                path,
                Place::Tensor(name.to_owned()),
                "expected one of this name, found two",
            ));
        }
    }
    // The weights begin at the first multiple of the alignment after the header.
    let data_start = reader.at().next_multiple_of(alignment);
    let tensors = placed(path, bytes.len(), data_start, tensors)?;
    check_overlaps(path, &tensors)?;
    Ok(Contents { kind: Kind::Gguf { version }, metadata, tensors })
}

/// Every key with the bytes that a GGUF file has for it and its value; nothing for other kinds.
///
/// # Errors
/// None for a file that was opened and has not changed since.
pub fn pairs(checkpoint: &Checkpoint) -> Result<IndexMap<&str, &[u8]>, Error> {
    match (checkpoint.kind(), checkpoint.files.first()) {
        (Kind::Gguf { .. }, Some((path, mapping))) => pairs_in(path, mapping.bytes()),
        (Kind::Gguf { .. } | Kind::Safetensors | Kind::Ajc1 | Kind::Qorus, _) => Ok(IndexMap::new()),
    }
}

fn pairs_in<'a>(path: &'a Path, bytes: &'a [u8]) -> Result<IndexMap<&'a str, &'a [u8]>, Error> {
    let mut reader = Reader::new(path, bytes);
    reader.take(MAGIC.len())?;
    version(&mut reader)?;
    reader.count("tensors", MIN_TENSOR_BYTES)?;
    let n_pairs = reader.count("keys", MIN_PAIR_BYTES)?;
    let mut pairs = IndexMap::new();
    for _ in 0..n_pairs {
        let start = reader.at();
        let key = reader.text(MAX_KEY_BYTES)?;
        value(&mut reader)?;
        pairs.insert(key, &bytes[start..reader.at()]);
    }
    Ok(pairs)
}

/// Whether a tensor of this name and shape can be described.
pub(in crate::weights) fn fits(name: &str, shape: &[usize]) -> bool {
    (1..=MAX_NAME_BYTES).contains(&name.len()) && (1..=MAX_DIMS as usize).contains(&shape.len())
}

fn version(reader: &mut Reader) -> Result<u32, Error> {
    let at = reader.at();
    let version = reader.u32()?;
    match version {
        2 | 3 => Ok(version),
        _ if (1..=3).contains(&version.swap_bytes()) => {
            Err(reader.unsupported(at, "big-endian GGUF is not supported, expected little-endian".to_owned()))
        }
        _ => Err(reader.unsupported(at, format!("GGUF version {version} is not supported, expected 2 or 3"))),
    }
}

fn metadata(reader: &mut Reader, n_pairs: usize) -> Result<IndexMap<String, Value>, Error> {
    let mut metadata = IndexMap::new();
    for _ in 0..n_pairs {
        let at = reader.at();
        let key = reader.text(MAX_KEY_BYTES)?;
        if key.is_empty() {
            return Err(reader.refuse(at, "a key", "an empty text"));
        }
        let value = value(reader)?;
        if metadata.insert(key.to_owned(), value).is_some() {
            return Err(reader.refuse(at, "every key once", format!("{} twice", quoted(key))));
        }
    }
    Ok(metadata)
}

/// The numbers of the types of values.
pub(in crate::weights) mod types {
    pub(crate) const U8: u32 = 0;
    pub(crate) const I8: u32 = 1;
    pub(crate) const U16: u32 = 2;
    pub(crate) const I16: u32 = 3;
    pub(crate) const U32: u32 = 4;
    pub(crate) const I32: u32 = 5;
    pub(crate) const F32: u32 = 6;
    pub(crate) const BOOL: u32 = 7;
    pub(crate) const TEXT: u32 = 8;
    pub(crate) const LIST: u32 = 9;
    pub(crate) const U64: u32 = 10;
    pub(crate) const I64: u32 = 11;
    pub(crate) const F64: u32 = 12;
}

/// The type of a value.
#[derive(Clone, Copy)]
enum Type {
    Unsigned { n_bytes: usize },
    Signed { n_bytes: usize },
    Float { n_bytes: usize },
    Bool,
    Text,
    List,
}

impl Type {
    fn read(reader: &mut Reader) -> Result<Self, Error> {
        let at = reader.at();
        let number = reader.u32()?;
        match number {
            types::U8 => Ok(Self::Unsigned { n_bytes: 1 }),
            types::I8 => Ok(Self::Signed { n_bytes: 1 }),
            types::U16 => Ok(Self::Unsigned { n_bytes: 2 }),
            types::I16 => Ok(Self::Signed { n_bytes: 2 }),
            types::U32 => Ok(Self::Unsigned { n_bytes: 4 }),
            types::I32 => Ok(Self::Signed { n_bytes: 4 }),
            types::F32 => Ok(Self::Float { n_bytes: 4 }),
            types::BOOL => Ok(Self::Bool),
            types::TEXT => Ok(Self::Text),
            types::LIST => Ok(Self::List),
            types::U64 => Ok(Self::Unsigned { n_bytes: 8 }),
            types::I64 => Ok(Self::Signed { n_bytes: 8 }),
            types::F64 => Ok(Self::Float { n_bytes: 8 }),
            _ => Err(reader.refuse(at, "the type of a value, 0 to 12", number)),
        }
    }

    /// The fewest bytes that a value takes.
    fn min_bytes(self) -> usize {
        match self {
            Self::Unsigned { n_bytes } | Self::Signed { n_bytes } | Self::Float { n_bytes } => n_bytes,
            Self::Bool => 1,
            Self::Text => 8,
            Self::List => 4 + 8,
        }
    }
}

fn value(reader: &mut Reader) -> Result<Value, Error> {
    match Type::read(reader)? {
        Type::Unsigned { n_bytes } => reader.unsigned(n_bytes).map(Value::Unsigned),
        Type::Signed { n_bytes } => signed(reader, n_bytes).map(Value::Signed),
        Type::Float { n_bytes } => float(reader, n_bytes).map(Value::Float),
        Type::Bool => truth(reader).map(Value::Bool),
        Type::Text => text(reader).map(Value::Text),
        Type::List => list(reader, 1).map(Value::List),
    }
}

fn list(reader: &mut Reader, depth: usize) -> Result<List, Error> {
    if depth > MAX_DEPTH {
        let at = reader.at();
        return Err(reader.refuse(at, format!("lists at most {MAX_DEPTH} deep"), "one more"));
    }
    let element = Type::read(reader)?;
    let (at, n) = (reader.at(), reader.count("elements", element.min_bytes())?);
    match element {
        Type::Unsigned { n_bytes } => many(reader, (at, n), |r| r.unsigned(n_bytes)).map(List::Unsigned),
        Type::Signed { n_bytes } => many(reader, (at, n), |r| signed(r, n_bytes)).map(List::Signed),
        Type::Float { n_bytes } => many(reader, (at, n), |r| float(r, n_bytes)).map(List::Floats),
        Type::Bool => many(reader, (at, n), truth).map(List::Bools),
        Type::Text => many(reader, (at, n), text).map(List::Texts),
        Type::List => many(reader, (at, n), |r| list(r, depth + 1)).map(List::Lists),
    }
}

fn many<'a, T>(
    reader: &mut Reader<'a>,
    (at, n): (usize, usize),
    read: impl Fn(&mut Reader<'a>) -> Result<T, Error>,
) -> Result<Vec<T>, Error> {
    let mut values = reader.room(at, n, MAX_LISTED)?;
    for _ in 0..n {
        values.push(read(reader)?);
    }
    Ok(values)
}

fn signed(reader: &mut Reader, n_bytes: usize) -> Result<i64, Error> {
    let unused_bits = 64 - 8 * n_bytes;
    Ok((reader.unsigned(n_bytes)? << unused_bits) as i64 >> unused_bits)
}

fn float(reader: &mut Reader, n_bytes: usize) -> Result<f64, Error> {
    let bits = reader.unsigned(n_bytes)?;
    Ok(if n_bytes == 4 { f64::from(f32::from_bits(bits as u32)) } else { f64::from_bits(bits) })
}

fn truth(reader: &mut Reader) -> Result<bool, Error> {
    let at = reader.at();
    match reader.unsigned(1)? {
        0 => Ok(false),
        1 => Ok(true),
        byte => Err(reader.refuse(at, "0 or 1 for a truth", byte)),
    }
}

fn text(reader: &mut Reader) -> Result<String, Error> {
    let at = reader.at();
    let text = reader.text(usize::MAX)?;
    let mut own = String::new();
    let reserved = own.try_reserve_exact(text.len());
    reserved.map_err(|_| reader.refuse(at, "a text that fits in memory", format!("{} bytes", text.len())))?;
    own.push_str(text);
    Ok(own)
}

fn alignment(path: &Path, metadata: &IndexMap<String, Value>) -> Result<usize, Error> {
    let Some(value) = metadata.get(ALIGNMENT_KEY) else { return Ok(ALIGNMENT) };
    match value {
        Value::Unsigned(n) if n.is_power_of_two() && *n <= MAX_ALIGNMENT => Ok(*n as usize),
        _ => {
            let what = format!("expected a power of two up to {MAX_ALIGNMENT}, found {value}");
            Err(Error::input(path, Place::Key(ALIGNMENT_KEY.to_owned()), what))
        }
    }
}

/// One tensor's description; its range still starts at the start of the data.
fn tensor<'a>(reader: &mut Reader<'a>, alignment: usize) -> Result<(&'a str, TensorInfo), Error> {
    let name_at = reader.at();
    let name = reader.text(MAX_NAME_BYTES)?;
    if name.is_empty() {
        return Err(reader.refuse(name_at, "the name of a tensor", "an empty text"));
    }
    let (shape_at, shape) = (reader.at(), shape(reader)?);
    let type_at = reader.at();
    let number = reader.u32()?;
    let row = ggml::of_number(number)
        .ok_or_else(|| reader.refuse(type_at, "the number of a tensor type", number))?;
    let n_bytes = n_bytes(&shape, row).map_err(|(expected, found)| {
        reader.refuse(shape_at, format!("{expected} in tensor {}", quoted(name)), found)
    })?;
    let offset_at = reader.at();
    let offset = reader.u64()?;
    let start = usize::try_from(offset).ok().filter(|start| start.is_multiple_of(alignment));
    let range = start.and_then(|start| Some(start..start.checked_add(n_bytes)?));
    let range = range.ok_or_else(|| {
        let expected = format!("an offset that is a multiple of {alignment} for tensor {}", quoted(name));
        reader.refuse(offset_at, expected, offset)
    })?;
    Ok((name, TensorInfo { shape, stored: row.stored, file_idx: 0, made: None, range }))
}

/// The sizes of a tensor, outermost first.
fn shape(reader: &mut Reader) -> Result<Vec<usize>, Error> {
    let at = reader.at();
    let n_dims = reader.u32()?;
    if !(1..=MAX_DIMS).contains(&n_dims) {
        return Err(reader.refuse(at, format!("1 to {MAX_DIMS} dimensions"), n_dims));
    }
    let mut shape = Vec::new();
    for _ in 0..n_dims {
        let at = reader.at();
        let size = reader.u64()?;
        let fits = usize::try_from(size).ok().filter(|size| i64::try_from(*size).is_ok());
        shape.push(fits.ok_or_else(|| reader.refuse(at, "a size below 2^63", size))?);
    }
    shape.reverse();
    Ok(shape)
}

/// The bytes of a tensor, or what was expected of its shape instead of what was found.
pub(in crate::weights) fn n_bytes(shape: &[usize], row: ggml::Type) -> Result<usize, (String, String)> {
    let product = shape.iter().try_fold(1usize, |product, size| product.checked_mul(*size));
    let innermost = shape.last().copied().unwrap_or(1);
    if !innermost.is_multiple_of(row.block_len) {
        return Err((format!("rows of whole blocks of {}", row.block_len), innermost.to_string()));
    }
    let n_bytes = product.and_then(|n| (n / row.block_len).checked_mul(row.block_bytes));
    n_bytes.ok_or_else(|| ("a size that fits in memory".to_owned(), format!("{shape:?}")))
}

/// Adds the offset of the data to that of every tensor, and checks that it ends inside the file.
fn placed(
    path: &Path,
    file_bytes: usize,
    data_start: usize,
    mut tensors: IndexMap<String, TensorInfo>,
) -> Result<IndexMap<String, TensorInfo>, Error> {
    for (name, tensor) in &mut tensors {
        let moved = |offset: usize| offset.checked_add(data_start).filter(|at| *at <= file_bytes);
        let (start, end) = (moved(tensor.range.start), moved(tensor.range.end));
        let (Some(start), Some(end)) = (start, end) else {
            let Range { start, end } = tensor.range.clone();
            let n_data = file_bytes.saturating_sub(data_start);
            let what = format!(
                "expected its bytes in the {n_data} of the data, found {start} to {end}; is the file whole?"
            );
            return Err(Error::input(path, Place::Tensor(name.clone()), what));
        };
        tensor.range = start..end;
    }
    Ok(tensors)
}

fn check_overlaps(path: &Path, tensors: &IndexMap<String, TensorInfo>) -> Result<(), Error> {
    let mut sorted: Vec<_> = tensors.iter().filter(|(_, tensor)| !tensor.range.is_empty()).collect();
    sorted.sort_by_key(|(_, tensor)| tensor.range.start);
    for pair in sorted.windows(2) {
        let [(before, first), (name, second)] = pair else { continue };
        if second.range.start < first.range.end {
            let what = format!("expected bytes of its own, found bytes of tensor {}", quoted(before));
            return Err(Error::input(path, Place::Tensor((*name).clone()), what));
        }
    }
    Ok(())
}
