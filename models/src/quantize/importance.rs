//! Importance matrices: how much each column of a weight counts, by the inputs that it was multiplied with.
//!
//! In: a file that llama.cpp or `fusebox imatrix` has written, GGUF (`NAME.in_sum2`, `NAME.counts`) or the older kind.
//! Out: for a tensor the mean square of each of its inputs, of each expert. What was never used counts 1.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use fusebox_runtime::error::{Error, Place};
use fusebox_runtime::files;
use fusebox_runtime::weights::{Checkpoint, Stored};

/// The endings of tensors in GGUF.
pub(crate) const SUMS: &str = ".in_sum2";
pub(crate) const COUNTS: &str = ".counts";
/// The largest file of the older kind.
const MAX_BYTES: usize = 1 << 32;

/// An importance matrix.
#[derive(Clone, Debug, Default)]
pub struct Importance {
    path: PathBuf,
    columns: BTreeMap<String, Vec<f32>>,
}

impl Importance {
    /// Reads a file.
    ///
    /// # Errors
    /// One sentence.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let begins = files::begins(path, b"GGUF")?;
        let columns = if begins { of_gguf(path, &Checkpoint::open(path)?)? } else { of_older(path)? };
        if let Some((name, _)) =
            columns.iter().find(|(_, own)| own.iter().any(|x| !x.is_finite() || *x < 0.0))
        {
            let what = "expected finite numbers of at least 0, found others";
            return Err(Error::input(path, Place::Tensor(name.clone()), what));
        }
        Ok(Self { path: path.to_owned(), columns })
    }

    /// What the columns of a tensor count, of one matrix after another; nothing where it is not in the file.
    pub(super) fn of(&self, name: &str, shape: &[usize]) -> Result<Option<&[f32]>, Error> {
        let Some(found) = self.columns.get(name) else { return Ok(None) };
        let (columns, rows) = shape.split_last().map_or((1, shape), |(last, rest)| (*last, rest));
        let n_matrices: usize = rows.iter().rev().skip(1).product();
        if found.len() == n_matrices * columns {
            return Ok(Some(found));
        }
        // The embedding matrix may have that of the head.
        if name == "token_embd.weight" {
            return Ok(None);
        }
        let what = format!(
            "expected {} numbers for the tensor of this model, found {}",
            n_matrices * columns,
            found.len()
        );
        Err(Error::input(&self.path, Place::Tensor(name.to_owned()), what))
    }

    /// The error where it is for no tensor of a model.
    pub(super) fn of_another(&self) -> Error {
        let what = "expected sums for tensors of this model, found those of another";
        Error::input(&self.path, Place::Whole, what)
    }
}

fn of_gguf(path: &Path, checkpoint: &Checkpoint) -> Result<BTreeMap<String, Vec<f32>>, Error> {
    let refused = |name: &str, what: &str| Error::input(path, Place::Tensor(name.to_owned()), what);
    let numbers = |name: &str| {
        let info = checkpoint.tensors().get(name)?;
        let Stored::As(format) = info.stored else { return None };
        format.decode_all(checkpoint.bytes(name)?, info.n_elements())
    };
    let mut all = BTreeMap::new();
    for name in checkpoint.tensors().keys() {
        let Some(own) = name.strip_suffix(SUMS) else { continue };
        let counts = numbers(&format!("{own}{COUNTS}"));
        let counts = counts.filter(|counts| !counts.is_empty());
        let counts = counts.ok_or_else(|| refused(name, "expected its .counts as well, found none"))?;
        let mut columns = numbers(name).ok_or_else(|| refused(name, "expected plain numbers"))?;
        if columns.is_empty() || !columns.len().is_multiple_of(counts.len()) {
            return Err(refused(name, "expected as many sums for each of its counts"));
        }
        let n_columns = columns.len() / counts.len();
        for (columns, count) in columns.chunks_mut(n_columns).zip(&counts) {
            if *count > 0.0 {
                for sum in columns {
                    *sum /= count;
                }
            } else {
                columns.fill(1.0);
            }
        }
        all.insert(own.to_owned(), columns);
    }
    if all.is_empty() {
        return Err(Error::input(path, Place::Whole, "expected tensors NAME.in_sum2, found none"));
    }
    Ok(all)
}

/// The bytes of the older kind that were not read yet.
struct Older<'a> {
    path: &'a Path,
    rest: &'a [u8],
}

impl<'a> Older<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8], Error> {
        let (taken, rest) = self.rest.split_at_checked(n).ok_or_else(|| self.fault())?;
        self.rest = rest;
        Ok(taken)
    }

    fn count(&mut self) -> Result<usize, Error> {
        let word = self.take(4)?.first_chunk().map_or(-1, |word| i32::from_le_bytes(*word));
        usize::try_from(word).map_err(|_| self.fault())
    }

    fn fault(&self) -> Error {
        let what = "expected an importance matrix: GGUF, or a number of entries with names and sums";
        Error::input(self.path, Place::Whole, what)
    }
}

/// The older kind: the number of entries, and for each its name, how often it was called, and its sums.
fn of_older(path: &Path) -> Result<BTreeMap<String, Vec<f32>>, Error> {
    let bytes = files::read(path, MAX_BYTES)?;
    let mut older = Older { path, rest: &bytes };
    let mut all = BTreeMap::new();
    for _ in 0..older.count()? {
        let len = older.count()?;
        let name = String::from_utf8(older.take(len)?.to_vec()).map_err(|_| older.fault())?;
        let (n_calls, n) = (older.count()?, older.count()?);
        let sums = older.take(n.checked_mul(4).ok_or_else(|| older.fault())?)?;
        let sums = sums.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
        let columns = sums.map(|sum| if n_calls > 0 { sum / n_calls as f32 } else { sum });
        all.insert(name, columns.collect());
    }
    if all.is_empty() { Err(older.fault()) } else { Ok(all) }
}
