//! Sidecar files: the small files next to the weights, such as `config.json` or a tokenizer.
//!
//! In: a checkpoint and a name. Out: the bytes, text or JSON of the file, or `None` where it does not exist.
//! No file is read beyond the size limit that its reader sets.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use fusebox_runtime::error::{Error, Place};
use fusebox_runtime::files;
use fusebox_runtime::weights::Checkpoint;
use serde::Deserialize;

/// The largest JSON configuration that is read.
pub(crate) const MAX_CONFIG_BYTES: usize = 16 << 20;

/// The path of the first weight file of a checkpoint.
pub(crate) fn weights_path(checkpoint: &Checkpoint) -> &Path {
    checkpoint.files().next().map_or(Path::new(""), |(path, _)| path)
}

/// The path of a file in the folder of the weights.
pub(crate) fn in_folder(checkpoint: &Checkpoint, name: &str) -> PathBuf {
    weights_path(checkpoint).with_file_name(name)
}

/// The path of the weights with a suffix appended.
pub(crate) fn with_suffix(checkpoint: &Checkpoint, suffix: &str) -> PathBuf {
    let mut name = weights_path(checkpoint).as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// All bytes of a file, if it exists.
pub(crate) fn read(path: &Path, max_bytes: usize) -> Result<Option<Vec<u8>>, Error> {
    check_is_file(path)?;
    if_found(files::read(path, max_bytes))
}

/// All bytes of a file that must exist; `what` names it in the error.
pub(crate) fn read_required(path: &Path, max_bytes: usize, what: &str) -> Result<Vec<u8>, Error> {
    let missing = || Error::input(path, Place::Whole, format!("expected {what}, found no file"));
    read(path, max_bytes)?.ok_or_else(missing)
}

/// The little-endian u32 at a byte offset.
pub(crate) fn read_u32(path: &Path, bytes: &[u8], at: usize) -> Result<u32, Error> {
    let word = bytes.get(at..).and_then(|rest| rest.first_chunk());
    let missing = || Error::input(path, Place::Byte(at as u64), "expected 4 more bytes, found the end");
    word.copied().map(u32::from_le_bytes).ok_or_else(missing)
}

/// The text of a file, if it exists.
pub(crate) fn read_text(path: &Path, max_bytes: usize) -> Result<Option<String>, Error> {
    check_is_file(path)?;
    if_found(files::text(path, max_bytes))
}

/// Refuses what exists but is no regular file: reading a pipe would block.
fn check_is_file(path: &Path) -> Result<(), Error> {
    if path.is_file() || !path.exists() {
        return Ok(());
    }
    Err(Error::input(path, Place::Whole, "expected a file, found something else"))
}

/// The result of a read, `None` where the file does not exist.
fn if_found<T>(read: Result<T, Error>) -> Result<Option<T>, Error> {
    match read {
        Ok(found) => Ok(Some(found)),
        Err(Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// A JSON file, if it exists.
pub(crate) fn read_json<T: for<'de> Deserialize<'de>>(path: &Path) -> Result<Option<T>, Error> {
    let Some(bytes) = read(path, MAX_CONFIG_BYTES)? else { return Ok(None) };
    parse_json(path, &bytes).map(Some)
}

/// Bytes of a file as JSON.
pub(crate) fn parse_json<'de, T: Deserialize<'de>>(path: &Path, bytes: &'de [u8]) -> Result<T, Error> {
    let json = serde_json::from_slice(bytes);
    json.map_err(|error| Error::input(path, Place::Whole, files::fault_of_json(&error)))
}
