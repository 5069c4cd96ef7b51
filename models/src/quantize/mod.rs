//! Quantisation: converts a checkpoint to a GGUF file of another type.
//!
//! In: the path of a checkpoint, another path, and a [`Job`]. Out: the file or several, and a [`Summary`].
//! One tensor is converted at a time, a few of its rows on each thread, so memory use stays small however large the
//! model. The file gets its name when it is complete (`weights/store.rs`), and is never the one that is read.
//! Formats: `tensor_format.rs`, and what a user wants otherwise in `overrides.rs`; what columns count: `importance.rs`.
//! The plan of the new file: `draft.rs`; the origin of each tensor: `output_tensor.rs`. Adapters are added to tensors
//! by `merge.rs`; `split.rs` writes several files.

use std::ops::Range;
use std::path::Path;

use fusebox_compiler::tensor::quant::Format;
use fusebox_runtime::error::{Error, Place, quoted};
use fusebox_runtime::threads::each;
use fusebox_runtime::weights::gguf::store::{Entry, Put, may_replace};
use fusebox_runtime::weights::{Checkpoint, Stored};

use crate::adapters::Adapters;
use crate::quantize::draft::Draft;
use crate::quantize::importance::Importance;
use crate::quantize::output_tensor::OutputTensor;
use crate::quantize::overrides::Overrides;
use crate::quantize::split::Split;
use crate::quantize::types::Type;

mod convert;
mod draft;
pub mod importance;
mod lost;
mod merge;
mod metadata;
mod output_tensor;
pub mod overrides;
pub mod split;
pub mod tensor_format;
pub mod types;

/// About how many elements a thread converts at once.
const PIECE_LEN: usize = 1 << 18;
/// The largest f16: no scale of a block of smaller elements is infinite.
const MAX_F16: f32 = 65504.0;

/// What becomes of a checkpoint.
#[derive(Clone, Debug, Default)]
pub struct Job {
    /// The type; without one every tensor keeps its format.
    pub ty: Option<Type>,
    /// Formats that some tensors get instead.
    pub overrides: Overrides,
    /// What the columns of weights count.
    pub importance: Option<Importance>,
    /// LoRA adapters that are merged into the weights.
    pub adapters: Adapters,
    /// How large a file may be; all is one file.
    pub split: Option<Split>,
    /// Whether nothing is written.
    pub is_dry: bool,
    /// How many threads convert.
    pub n_threads: usize,
}

impl Job {
    /// The conversion to a type.
    pub fn to(ty: Type, n_threads: usize) -> Self {
        Self { ty: Some(ty), n_threads, ..Self::default() }
    }
}

/// A tensor of the new file.
#[derive(Clone, Debug, PartialEq)]
pub struct Converted {
    /// Its name.
    pub name: String,
    /// The sizes, outermost first.
    pub shape: Vec<usize>,
    /// Its format before and after.
    pub formats: [String; 2],
    /// Its bytes in the new file.
    pub n_bytes: u64,
}

/// What was converted.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// All tensors, in the order of the file.
    pub tensors: Vec<Converted>,
    /// How many files were written.
    pub n_files: usize,
    /// Bytes of the files read, and of the file written.
    pub bytes: [u64; 2],
    /// Elements of all tensors.
    pub n_elements: u64,
    /// The formats of the new file, each with its number of tensors and bytes, the most bytes first.
    pub formats: Vec<(String, usize, u64)>,
    /// Tensors in a fallback format, as their rows are no multiple of the block size.
    pub n_fallback: usize,
    /// Tensors that were quantised before, so that both rounding errors add up.
    pub n_requantised: usize,
}

/// Called with the number of tensors done, and of all.
pub type Progress<'a> = dyn FnMut(usize, usize) + 'a;

/// Converts a checkpoint to a GGUF file; `progress` is called before each tensor.
///
/// # Errors
/// One sentence; a single output file is then as it was before, and of several none is left.
pub fn quantize(input: &Path, output: &Path, job: &Job, progress: &mut Progress) -> Result<Summary, Error> {
    let checkpoint = Checkpoint::open(input)?;
    let mut draft = draft::draft(&checkpoint, input, job)?;
    if !job.adapters.is_empty() {
        merge::add(&mut draft.tensors, &checkpoint, input, &job.adapters)?;
    }
    let names: Vec<&str> = draft.tensors.iter().map(|tensor| tensor.entry.name.as_str()).collect();
    if let Some(pattern) = job.overrides.unmatched(&names) {
        let what = format!("expected a tensor whose name matches {}, found none", quoted(pattern));
        return Err(Error::input(input, Place::Whole, what));
    }
    if let Some(importance) = &job.importance {
        for tensor in &mut draft.tensors {
            tensor.importance = importance.of(&tensor.entry.name, &tensor.entry.shape)?.map(<[f32]>::to_vec);
        }
        if draft.tensors.iter().all(|tensor| tensor.importance.is_none()) {
            return Err(importance.of_another());
        }
    }
    let entries: Vec<Entry> = draft.tensors.iter().map(|tensor| tensor.entry.clone()).collect();
    let files = split::files(output, &draft.pairs, &entries, job.split)?;
    if job.is_dry {
        let n_bytes = files.iter().map(split::File::n_bytes).sum::<Result<u64, Error>>()?;
        return Ok(summary(&checkpoint, &draft, files.len(), n_bytes));
    }
    for file in &files {
        refuse_input(&checkpoint, &file.path)?;
    }
    let writer = Writer { checkpoint: &checkpoint, input, n_threads: job.n_threads.max(1) };
    let n_bytes = split::write(&files, |idx, put| {
        progress(idx, entries.len());
        let written = writer.tensor(&draft.tensors[idx], put);
        // What is gone of the input may have been read as zeros, or be what the system refuses to write.
        checkpoint.check()?;
        written
    })?;
    Ok(summary(&checkpoint, &draft, files.len(), n_bytes))
}

/// Refuses to overwrite the input, or a file that is no GGUF file.
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

/// Writes one tensor after another.
struct Writer<'a> {
    checkpoint: &'a Checkpoint,
    input: &'a Path,
    n_threads: usize,
}

impl Writer<'_> {
    /// Writes all bytes of a tensor.
    fn tensor(&self, tensor: &OutputTensor, put: &mut Put) -> Result<(), Error> {
        if let Some(bytes) = tensor.as_stored(self.checkpoint) {
            return put(bytes);
        }
        // Without elements there is nothing to write, however many rows there are.
        if tensor.row_len() == 0 {
            return Ok(());
        }
        let Stored::As(format) = tensor.entry.stored else {
            return Err(self.refused(tensor, "expected a format that can be read".to_owned()));
        };
        let n_rows = tensor.n_rows();
        let n_at_once = (PIECE_LEN / tensor.row_len().max(1)).max(1);
        for start in (0..n_rows).step_by(n_at_once * self.n_threads) {
            let first = |thread: usize| (start + thread * n_at_once).min(n_rows);
            let encoded =
                each(self.n_threads, |thread| self.rows(tensor, format, first(thread)..first(thread + 1)));
            for bytes in encoded {
                put(&bytes?)?;
            }
        }
        Ok(())
    }

    /// Encodes some rows of a tensor in their new format.
    fn rows(&self, tensor: &OutputTensor, format: Format, rows: Range<usize>) -> Result<Vec<u8>, Error> {
        let elements = tensor.elements(self.checkpoint, rows.clone());
        let elements = elements.ok_or_else(|| self.refused(tensor, "expected all its bytes".to_owned()))?;
        let is_wide = matches!(format, Format::F32 | Format::BF16);
        let fits = |x: &f32| x.is_finite() && (is_wide || x.abs() <= MAX_F16);
        if let Some(at) = elements.iter().position(|x| !fits(x)) {
            let (row, found) = (rows.start + at / tensor.row_len(), elements[at]);
            let max = if is_wide { f32::MAX } else { MAX_F16 };
            let what =
                format!("expected numbers up to {max} to store as {format}, found {found} in row {row}");
            return Err(self.refused(tensor, what));
        }
        let mut bytes = vec![0; format.bytes_for(elements.len()).unwrap_or_default()];
        let done = match &tensor.importance {
            None => format.encode(&elements, &mut bytes),
            Some(all) => {
                // Each matrix has its own; a run of rows may be of several.
                let (len, row_bytes) = (tensor.row_len(), (bytes.len() / rows.len().max(1)).max(1));
                let matrix_rows = (tensor.n_rows() * len / all.len().max(1)).max(1);
                let each = rows.zip(elements.chunks_exact(len)).zip(bytes.chunks_exact_mut(row_bytes));
                each.map(|((row, x), bytes)| {
                    let weights = all.get(row / matrix_rows * len..)?.get(..len)?;
                    format.encode_weighted(x, weights, bytes)
                })
                .collect()
            }
        };
        done.ok_or_else(|| self.refused(tensor, format!("expected numbers that become {format}")))?;
        Ok(bytes)
    }

    fn refused(&self, tensor: &OutputTensor, what: String) -> Error {
        Error::input(self.input, Place::Tensor(tensor.entry.name.clone()), what)
    }
}

fn summary(checkpoint: &Checkpoint, draft: &Draft, n_files: usize, n_bytes: u64) -> Summary {
    let mut formats: Vec<(String, usize, u64)> = Vec::new();
    for tensor in &draft.tensors {
        let (name, n_bytes) = (tensor.entry.stored.to_string(), tensor.entry.n_bytes().unwrap_or_default());
        match formats.iter_mut().find(|(known, ..)| *known == name) {
            Some((_, n_tensors, sum)) => (*n_tensors, *sum) = (*n_tensors + 1, *sum + n_bytes as u64),
            None => formats.push((name, 1, n_bytes as u64)),
        }
    }
    formats.sort_by(|a, b| b.2.cmp(&a.2).then_with(|| a.0.cmp(&b.0)));
    let count = |is: &dyn Fn(&OutputTensor) -> bool| draft.tensors.iter().filter(|tensor| is(tensor)).count();
    let tensors = draft.tensors.iter().map(|tensor| Converted {
        name: tensor.entry.name.clone(),
        shape: tensor.entry.shape.clone(),
        formats: [tensor.origin.format(), tensor.entry.stored.to_string()],
        n_bytes: tensor.entry.n_bytes().unwrap_or_default() as u64,
    });
    Summary {
        tensors: tensors.collect(),
        n_files,
        bytes: [checkpoint.files().map(|(_, n_bytes)| n_bytes as u64).sum(), n_bytes],
        n_elements: draft.tensors.iter().map(|tensor| (tensor.n_rows() * tensor.row_len()) as u64).sum(),
        formats,
        n_fallback: count(&|tensor| tensor.is_fallback),
        n_requantised: count(&|tensor| tensor.is_requantised()),
    }
}
