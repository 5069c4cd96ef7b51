//! Small files that lie beside weights: where they are, and what stands in them.
//!
//! In: a checkpoint and a name. Out: the bytes of the file or its JSON, or nothing where there is no such file.
//! No file is read beyond the most bytes that its reader asks for.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use fusebox_runtime::error::{Error, Place, printable};
use fusebox_runtime::weights::Checkpoint;
use serde::Deserialize;

/// The longest configuration that is read.
pub(crate) const MAX_CONFIG_BYTES: usize = 16 << 20;
/// The most characters of a complaint about JSON that are shown: it may quote the file.
const MAX_COMPLAINT: usize = 160;

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
    let io = |source| Error::Io { path: path.to_owned(), source };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(io(error)),
    };
    let mut bytes = Vec::new();
    file.take(max_bytes as u64 + 1).read_to_end(&mut bytes).map_err(io)?;
    if bytes.len() > max_bytes {
        return Err(Error::input(path, Place::Whole, format!("expected at most {max_bytes} bytes")));
    }
    Ok(Some(bytes))
}

/// The text of a file, if it exists.
pub(crate) fn text(path: &Path, max_bytes: usize) -> Result<Option<String>, Error> {
    let Some(bytes) = read(path, max_bytes)? else { return Ok(None) };
    String::from_utf8(bytes).map(Some).map_err(|error| {
        let at = error.utf8_error().valid_up_to() as u64;
        Error::input(path, Place::Byte(at), "expected a text in UTF-8, found other bytes")
    })
}

/// The configuration in a JSON file, if it exists.
pub(crate) fn config<T: for<'de> Deserialize<'de>>(path: &Path) -> Result<Option<T>, Error> {
    let Some(bytes) = read(path, MAX_CONFIG_BYTES)? else { return Ok(None) };
    parse(path, &bytes).map(Some)
}

/// Bytes of a file as JSON.
pub(crate) fn parse<'de, T: Deserialize<'de>>(path: &Path, bytes: &'de [u8]) -> Result<T, Error> {
    serde_json::from_slice(bytes).map_err(|error| {
        let complaint = printable(&error.to_string(), MAX_COMPLAINT);
        Error::input(path, Place::Whole, format!("expected JSON of another form, found: {complaint}"))
    })
}
