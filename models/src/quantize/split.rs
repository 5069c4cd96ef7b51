//! The files of a new model: one, or several as llama.cpp splits them.
//!
//! In: the name of a file, metadata and tensors, and how large a file may be. Out: the files, such as
//! `NAME-00001-of-00003.gguf`. The first has the metadata; every one has its number, how many there are, and how many
//! tensors. `runtime/src/weights/gguf/parts.rs` reads them.

use std::fs;
use std::path::{Path, PathBuf};

use fusebox_runtime::error::{Error, Place};
use fusebox_runtime::weights::gguf::parts;
use fusebox_runtime::weights::gguf::store::{self, Entry, Put};

/// How large a file may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// Bytes of tensors at most, unless a single one is larger.
    Bytes(u64),
    /// Tensors at most.
    Tensors(usize),
}

/// A file to write.
pub(super) struct File {
    pub(super) path: PathBuf,
    pairs: Vec<Vec<u8>>,
    entries: Vec<Entry>,
}

impl File {
    /// How many bytes it takes.
    pub(super) fn n_bytes(&self) -> Result<u64, Error> {
        store::n_bytes(&self.path, &self.pairs, &self.entries)
    }
}

/// The files for these tensors.
pub(super) fn files(
    output: &Path,
    pairs: &[Vec<u8>],
    entries: &[Entry],
    split: Option<Split>,
) -> Result<Vec<File>, Error> {
    let groups = groups(entries, split);
    let count = groups.len();
    if count <= 1 {
        let (path, pairs, entries) = (output.to_owned(), pairs.to_vec(), entries.to_vec());
        return Ok(vec![File { path, pairs, entries }]);
    }
    if count > parts::MAX_PARTS {
        let what = format!("expected at most {} files, found {count}", parts::MAX_PARTS);
        return Err(Error::input(output, Place::Whole, what));
    }
    let files = groups.into_iter().enumerate().map(|(number, entries_of)| {
        let kept = if number == 0 { pairs } else { &[] };
        let own = parts::pairs(number, count, entries.len());
        File {
            path: parts::path(output, number, count),
            pairs: kept.iter().cloned().chain(own).collect(),
            entries: entries_of,
        }
    });
    Ok(files.collect())
}

/// The tensors of each file, in order.
fn groups(entries: &[Entry], split: Option<Split>) -> Vec<Vec<Entry>> {
    let mut groups: Vec<Vec<Entry>> = vec![Vec::new()];
    let mut n_bytes = 0;
    for entry in entries {
        let own = entry.n_bytes().unwrap_or_default() as u64;
        let is_empty = groups.last().is_none_or(Vec::is_empty);
        let is_full = match split {
            None => false,
            Some(Split::Bytes(most)) => n_bytes + own > most,
            Some(Split::Tensors(most)) => groups.last().is_some_and(|group| group.len() >= most),
        };
        if is_full && !is_empty {
            groups.push(Vec::new());
            n_bytes = 0;
        }
        n_bytes += own;
        if let Some(group) = groups.last_mut() {
            group.push(entry.clone());
        }
    }
    groups
}

/// Writes all files; `fill` hands over the bytes of the tensor of each index, over all of them. Where one fails, those
/// before it go away.
pub(super) fn write(
    files: &[File],
    mut fill: impl FnMut(usize, &mut Put) -> Result<(), Error>,
) -> Result<u64, Error> {
    let (mut first, mut n_bytes) = (0, 0);
    for (number, File { path, pairs, entries }) in files.iter().enumerate() {
        match store::write(path, pairs, entries, |idx, put| fill(first + idx, put)) {
            Ok(n) => n_bytes += n,
            Err(error) => {
                // What cannot be deleted is no worse than what could not be written.
                files[..number].iter().for_each(|file| drop(fs::remove_file(&file.path)));
                return Err(error);
            }
        }
        first += entries.len();
    }
    Ok(n_bytes)
}
