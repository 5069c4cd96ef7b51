//! Small files that lie beside weights: where they are, and what stands in them.
//!
//! In: a checkpoint and a name. Out: the bytes of the file or its JSON, or nothing where there is no such file.
//! No file is read beyond the most bytes that its reader asks for.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use fusebox_runtime::error::{Error, Place};
use fusebox_runtime::files;
use fusebox_runtime::weights::Checkpoint;
use serde::Deserialize;

/// The longest configuration that is read.
pub(crate) const MAX_CONFIG_BYTES: usize = 16 << 20;

/// The first file of a checkpoint.
pub(crate) fn weights(checkpoint: &Checkpoint) -> &Path {
    checkpoint.files().next().map_or(Path::new(""), |(path, _)| path)
}

/// A file of this name in the folder of the weights.
pub(crate) fn in_folder(checkpoint: &Checkpoint, name: &str) -> PathBuf {
    weights(checkpoint).with_file_name(name)
}

/// The file whose name is that of the weights and this ending.
pub(crate) fn with_ending(checkpoint: &Checkpoint, ending: &str) -> PathBuf {
    let mut name = weights(checkpoint).as_os_str().to_owned();
    name.push(ending);
    PathBuf::from(name)
}

/// All bytes of a file, if it exists.
pub(crate) fn read(path: &Path, max_bytes: usize) -> Result<Option<Vec<u8>>, Error> {
    is_file(path)?;
    there(files::read(path, max_bytes))
}

/// All bytes of a file that must be there, being `what`.
pub(crate) fn needed(path: &Path, max_bytes: usize, what: &str) -> Result<Vec<u8>, Error> {
    let missing = || Error::input(path, Place::Whole, format!("expected {what}, found no file"));
    read(path, max_bytes)?.ok_or_else(missing)
}

/// The number in the four bytes from a place on.
pub(crate) fn word(path: &Path, bytes: &[u8], at: usize) -> Result<u32, Error> {
    let word = bytes.get(at..).and_then(|rest| rest.first_chunk());
    let missing = || Error::input(path, Place::Byte(at as u64), "expected 4 more bytes, found the end");
    word.copied().map(u32::from_le_bytes).ok_or_else(missing)
}

/// The text of a file, if it exists.
pub(crate) fn text(path: &Path, max_bytes: usize) -> Result<Option<String>, Error> {
    is_file(path)?;
    there(files::text(path, max_bytes))
}

/// Refuses what is there and no file: a pipe would be waited for.
fn is_file(path: &Path) -> Result<(), Error> {
    if path.is_file() || !path.exists() {
        return Ok(());
    }
    Err(Error::input(path, Place::Whole, "expected a file, found something else"))
}

/// What was read, if there was something to read.
fn there<T>(read: Result<T, Error>) -> Result<Option<T>, Error> {
    match read {
        Ok(found) => Ok(Some(found)),
        Err(Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The configuration in a JSON file, if it exists.
pub(crate) fn config<T: for<'de> Deserialize<'de>>(path: &Path) -> Result<Option<T>, Error> {
    let Some(bytes) = read(path, MAX_CONFIG_BYTES)? else { return Ok(None) };
    parse(path, &bytes).map(Some)
}

/// Bytes of a file as JSON.
pub(crate) fn parse<'de, T: Deserialize<'de>>(path: &Path, bytes: &'de [u8]) -> Result<T, Error> {
    let json = serde_json::from_slice(bytes);
    json.map_err(|error| Error::input(path, Place::Whole, files::fault_of_json(&error)))
}
