//! A GGUF file that was split into several.
//!
//! In: any one of the files. Out: a checkpoint over all of them; the metadata is that of the first.
//! Each file contains its number and the number of files, and its name says the same: `NAME-00001-of-00003.gguf` is the
//! first of three. No tensor may be in two of them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use indexmap::IndexMap;

use crate::error::{Error, Place};
use crate::weights::gguf::types;
use crate::weights::mapping::Mapping;
use crate::weights::value::Value;
use crate::weights::{Checkpoint, Contents, gguf};

/// Which of the files one is, from 0.
const NUMBER: &str = "split.no";
/// How many files there are.
const COUNT: &str = "split.count";
/// How many tensors all of them have.
const N_TENSORS: &str = "split.tensors.count";

/// The keys that a file has because it is one of several.
pub const KEYS: [&str; 3] = [NUMBER, COUNT, N_TENSORS];

/// The most files of a model.
pub const MAX_PARTS: usize = 4096;

/// What the file of this number says, of so many with so many tensors; in the types that llama.cpp reads.
pub fn pairs(number: usize, count: usize, n_tensors: usize) -> [Vec<u8>; 3] {
    let pair = |key: &str, kind: u32, value: &[u8]| {
        [&(key.len() as u64).to_le_bytes()[..], key.as_bytes(), &kind.to_le_bytes(), value].concat()
    };
    [
        pair(NUMBER, types::U16, &(number as u16).to_le_bytes()),
        pair(COUNT, types::U16, &(count as u16).to_le_bytes()),
        pair(N_TENSORS, types::I32, &(n_tensors as i32).to_le_bytes()),
    ]
}

/// The path of the file of this number, of so many, for a model at this path.
pub fn path(model: &Path, number: usize, count: usize) -> PathBuf {
    let name = model.file_name().unwrap_or_default().to_string_lossy();
    let start = name.strip_suffix(".gguf").unwrap_or(&name);
    model.with_file_name(format!("{start}{}", ending(number, count)))
}

/// What the name of a file ends in.
fn ending(number: usize, count: usize) -> String {
    format!("-{:05}-of-{count:05}.gguf", number + 1)
}

/// How many files a model is in, as one of them says.
pub(in crate::weights) fn count(path: &Path, metadata: &IndexMap<String, Value>) -> Result<usize, Error> {
    let Some(value) = metadata.get(COUNT) else { return Ok(1) };
    let count = value.to_u64().filter(|count| (1..=MAX_PARTS as u64).contains(count));
    count.map(|count| count as usize).ok_or_else(|| {
        let what = format!("expected 1 to {MAX_PARTS} files, found {value}");
        Error::input(path, Place::Key(COUNT.to_owned()), what)
    })
}

/// Opens all files of a model of which one, which was read already, is at this path.
pub(in crate::weights) fn open(
    path: &Path,
    own: (Mapping, Contents),
    count: usize,
) -> Result<Checkpoint, Error> {
    let number = number(path, count, &own.1.metadata)?;
    let mut own = Some(own);
    let mut read = |other: usize| match own.take_if(|_| other == number) {
        Some((mapping, contents)) => Ok((path.to_owned(), mapping, contents)),
        None => part(name(path, number, count, other)?, other, count),
    };
    let (file, mapping, Contents { kind, metadata, tensors }) = read(0)?;
    let mut checkpoint = Checkpoint::new(kind, metadata, BTreeSet::new());
    checkpoint.add(file, mapping, tensors)?;
    for other in 1..count {
        let (file, mapping, contents) = read(other)?;
        checkpoint.add(file, mapping, contents.tensors)?;
    }
    let said = checkpoint.metadata().get(N_TENSORS).and_then(Value::to_u64);
    let n_tensors = checkpoint.tensors().len() as u64;
    match said {
        Some(said) if said != n_tensors => {
            let what = format!("expected the {n_tensors} of all files, found {said}");
            Err(Error::input(path, Place::Key(N_TENSORS.to_owned()), what))
        }
        Some(_) | None => Ok(checkpoint),
    }
}

/// Which of the files one is.
fn number(path: &Path, count: usize, metadata: &IndexMap<String, Value>) -> Result<usize, Error> {
    let value = metadata.get(NUMBER);
    let number = value.and_then(Value::to_u64).filter(|number| *number < count as u64);
    number.map(|number| number as usize).ok_or_else(|| {
        let found = value.map_or_else(|| "none".to_owned(), ToString::to_string);
        let what = format!("expected 0 to {}, found {found}", count - 1);
        Error::input(path, Place::Key(NUMBER.to_owned()), what)
    })
}

/// The name of another of the files, beside this one.
fn name(path: &Path, number: usize, count: usize, other: usize) -> Result<PathBuf, Error> {
    let ending = |number| ending(number, count);
    let own = path.file_name().and_then(|name| name.to_str());
    let Some(start) = own.and_then(|name| name.strip_suffix(&ending(number))) else {
        let what = format!(
            "expected a name that ends in {}, for it is one of {count} files of a model",
            ending(number)
        );
        return Err(Error::input(path, Place::Whole, what));
    };
    Ok(path.with_file_name(format!("{start}{}", ending(other))))
}

/// Reads the file of this number and no other.
fn part(path: PathBuf, expected: usize, n_files: usize) -> Result<(PathBuf, Mapping, Contents), Error> {
    let mapping = Mapping::open(&path)?;
    if !mapping.bytes().starts_with(&gguf::MAGIC) {
        return Err(Error::input(
            &path,
            Place::Byte(0),
            "expected GGUF, as the other files of the model are",
        ));
    }
    let contents = gguf::read(&path, mapping.bytes());
    let contents = contents.or_else(|fault| mapping.check().and(Err(fault)))?;
    let found = (number(&path, n_files, &contents.metadata)?, count(&path, &contents.metadata)?);
    if found != (expected, n_files) {
        let what = format!("expected {expected} of {n_files}, found {} of {}", found.0, found.1);
        return Err(Error::input(&path, Place::Key(NUMBER.to_owned()), what));
    }
    Ok((path, mapping, contents))
}
