//! A checkpoint written again as a GGUF file, its matrices in formats of a type that was asked for.
//!
//! In: the path of a checkpoint, another path, and a [`Type`]. Out: the file, and a [`Summary`] of it.
//! One tensor is in work at a time, a few pieces of its rows on each thread, so memory stays small however large the
//! model. The file gets its name when it is whole (`weights/store.rs`), and is never the one that is read.
//! Which formats: `choice.rs`. What the new file holds: `draft.rs`; what each tensor is made of: `piece.rs`.

use std::ops::Range;
use std::path::Path;

use fusebox_compiler::tensor::quant::Format;
use fusebox_runtime::error::{Error, Place};
use fusebox_runtime::threads::each;
use fusebox_runtime::weights::store::{Entry, Put, may_replace, write};
use fusebox_runtime::weights::{Checkpoint, Stored, open};

use crate::quantize::draft::Draft;
use crate::quantize::piece::Piece;
use crate::quantize::types::Type;

mod choice;
mod convert;
mod draft;
mod metadata;
mod piece;
pub mod types;

/// About how many elements a thread takes at once.
const PIECE_LEN: usize = 1 << 18;
/// The largest number of half precision: no scale that follows from smaller elements is infinite.
const LARGEST: f32 = 65504.0;

/// What became of a checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// Bytes of the files read, and of the file written.
    pub bytes: [u64; 2],
    /// Elements of all tensors.
    pub n_elements: u64,
    /// The formats of the new file, each with how many tensors and bytes have it, the most bytes first.
    pub formats: Vec<(String, usize, u64)>,
    /// Tensors whose rows do not fit the format they should have got.
    pub n_unfit: usize,
    /// Tensors that were quantised before, so that they lost twice.
    pub n_twice: usize,
}

/// How far the work is.
pub type Progress<'a> = dyn FnMut(usize, usize) + 'a;

/// Writes a checkpoint as a GGUF file; `progress` is told of each tensor before it is begun, and how many there are.
///
/// # Errors
/// One sentence; the output is then as it was before.
pub fn quantize(
    input: &Path,
    output: &Path,
    ty: Type,
    n_threads: usize,
    progress: &mut Progress,
) -> Result<Summary, Error> {
    let checkpoint = open(input)?;
    refuse_input(&checkpoint, output)?;
    let draft = draft::draft(&checkpoint, input, ty)?;
    let writer = Writer { checkpoint: &checkpoint, input, n_threads: n_threads.max(1) };
    let entries: Vec<Entry> = draft.pieces.iter().map(|piece| piece.entry.clone()).collect();
    let n_bytes = write(output, &draft.pairs, &entries, |idx, put| {
        progress(idx, entries.len());
        writer.piece(&draft.pieces[idx], put)
    })?;
    Ok(summary(&checkpoint, &draft, n_bytes))
}

/// A file cannot be read while it is written, and nothing is written over a file that is something else.
fn refuse_input(checkpoint: &Checkpoint, output: &Path) -> Result<(), Error> {
    let Ok(output_file) = output.canonicalize() else { return Ok(()) };
    if output_file.is_dir() {
        return Err(Error::input(
            output,
            Place::Whole,
            "expected the name of a file to write, found a folder",
        ));
    }
    let is_output = |path: &Path| path.canonicalize().is_ok_and(|path| path == output_file);
    if checkpoint.files().any(|(path, _)| is_output(path)) {
        return Err(Error::input(output, Place::Whole, "expected another file than the one that is read"));
    }
    if may_replace(&output_file)? {
        return Ok(());
    }
    let what = "expected the name of a new file, or of a GGUF file to replace, found something else there";
    Err(Error::input(output, Place::Whole, what))
}

/// What writes one tensor after another.
struct Writer<'a> {
    checkpoint: &'a Checkpoint,
    input: &'a Path,
    n_threads: usize,
}

impl Writer<'_> {
    /// Hands over all bytes of a tensor.
    fn piece(&self, piece: &Piece, put: &mut Put) -> Result<(), Error> {
        if let Some(bytes) = piece.as_stored(self.checkpoint) {
            return put(bytes);
        }
        // Rows without elements are nothing to write, however many there are.
        if piece.row_len() == 0 {
            return Ok(());
        }
        let Stored::As(format) = piece.entry.stored else {
            return Err(self.refused(piece, "expected a format that can be read".to_owned()));
        };
        let n_rows = piece.n_rows();
        let n_at_once = (PIECE_LEN / piece.row_len().max(1)).max(1);
        for start in (0..n_rows).step_by(n_at_once * self.n_threads) {
            let first = |thread: usize| (start + thread * n_at_once).min(n_rows);
            let encoded =
                each(self.n_threads, |thread| self.rows(piece, format, first(thread)..first(thread + 1)));
            for bytes in encoded {
                put(&bytes?)?;
            }
        }
        Ok(())
    }

    /// Some rows of a tensor in their new format.
    fn rows(&self, piece: &Piece, format: Format, rows: Range<usize>) -> Result<Vec<u8>, Error> {
        let elements = piece.elements(self.checkpoint, rows.clone());
        let elements = elements.ok_or_else(|| self.refused(piece, "expected all its bytes".to_owned()))?;
        let is_wide = matches!(format, Format::F32 | Format::BF16);
        let fits = |x: &f32| x.is_finite() && (is_wide || x.abs() <= LARGEST);
        if let Some(at) = elements.iter().position(|x| !fits(x)) {
            let (row, found) = (rows.start + at / piece.row_len(), elements[at]);
            let most = if is_wide { f32::MAX } else { LARGEST };
            let what =
                format!("expected numbers up to {most} to store as {format}, found {found} in row {row}");
            return Err(self.refused(piece, what));
        }
        let mut bytes = vec![0; format.bytes_for(elements.len()).unwrap_or_default()];
        let done = format.encode(&elements, &mut bytes);
        done.ok_or_else(|| self.refused(piece, format!("expected numbers that become {format}")))?;
        Ok(bytes)
    }

    fn refused(&self, piece: &Piece, what: String) -> Error {
        Error::input(self.input, Place::Tensor(piece.entry.name.clone()), what)
    }
}

fn summary(checkpoint: &Checkpoint, draft: &Draft, n_bytes: u64) -> Summary {
    let mut formats: Vec<(String, usize, u64)> = Vec::new();
    for piece in &draft.pieces {
        let (name, n_bytes) = (piece.entry.stored.to_string(), piece.entry.n_bytes().unwrap_or_default());
        match formats.iter_mut().find(|(known, ..)| *known == name) {
            Some((_, n_tensors, sum)) => (*n_tensors, *sum) = (*n_tensors + 1, *sum + n_bytes as u64),
            None => formats.push((name, 1, n_bytes as u64)),
        }
    }
    formats.sort_by(|a, b| b.2.cmp(&a.2).then_with(|| a.0.cmp(&b.0)));
    let count = |is: &dyn Fn(&Piece) -> bool| draft.pieces.iter().filter(|piece| is(piece)).count();
    Summary {
        bytes: [checkpoint.files().map(|(_, n_bytes)| n_bytes as u64).sum(), n_bytes],
        n_elements: draft.pieces.iter().map(|piece| (piece.n_rows() * piece.row_len()) as u64).sum(),
        formats,
        n_unfit: count(&|piece| piece.is_unfit),
        n_twice: count(&|piece| piece.is_twice()),
    }
}
