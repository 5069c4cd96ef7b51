//! Collects an importance matrix: how large the inputs of every projection are, column by column.
//!
//! In: a model, and chunks of tokens of one length. Out: for each matrix the sums of the squares of its inputs over all
//! tokens, of each expert over those that it was selected for; and a GGUF file of them as llama.cpp has it.
//! The graph is that of a run from the first token on, whose scope observes inputs. `quantize/importance.rs` reads
//! files.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use fusebox_compiler::options::Options;
use fusebox_compiler::schedule::{BufferSlot, Place};
use fusebox_compiler::tensor::quant::Format;
use fusebox_compiler::tensor::sym::Sym;
use fusebox_runtime::device::{Device, Weights};
use fusebox_runtime::error::{Error, Place as At};
use fusebox_runtime::session::cache::Cache;
use fusebox_runtime::session::names::{PAGES, inputs};
use fusebox_runtime::weights::gguf::store::{Entry, WRITTEN, pair, write};
use fusebox_runtime::weights::value::{List, Value};
use fusebox_runtime::weights::{Checkpoint, Kind, Stored};

use crate::families::hparams;
use crate::layers::embed::Scored;
use crate::layers::scope::SELECTED;
use crate::load::{Model, Settings};
use crate::naming::tensors::{Names, fused};
use crate::quantize::importance::{COUNTS, SUMS};

const TYPE: &str = "general.type";
const OWN: &str = "imatrix";

/// Called with the number of chunks done, and of all.
pub type Progress<'a> = dyn FnMut(usize, usize) + 'a;

/// The sums of a matrix, or of one for each expert.
#[derive(Clone, Debug, PartialEq)]
struct Sums {
    /// Of the squares of inputs, `[n, columns]`.
    squares: Vec<f64>,
    /// How many tokens each matrix was used for, `[n]`.
    counts: Vec<f64>,
}

/// An importance matrix in the making, by the names that tensors have in GGUF.
#[derive(Clone, Debug, PartialEq)]
pub struct Collected {
    sums: BTreeMap<String, Sums>,
    n_chunks: usize,
    chunk: usize,
}

/// Collects the inputs of all projections over chunks of the same length.
///
/// # Errors
/// Where the graph does not compile, or the device fails.
pub fn collect(
    model: &Model,
    mut device: Box<dyn Device>,
    (options, cache): (&Options, &Cache),
    chunks: &[Vec<u32>],
    progress: &mut Progress<'_>,
) -> Result<Collected, Error> {
    let n_tokens = chunks.first().map_or(1, Vec::len);
    let settings = Settings::of_one(n_tokens, n_tokens, Format::F32, Scored::Unnormed);
    let graph = model.observing(&settings, &Sym::from(n_tokens as i64))?;
    let plan = cache.program(&graph, options)?.plan;
    let weights: Arc<dyn Weights> = model.weights();
    let program = device.load(&plan, &weights)?;
    let rows = settings.cache.page_rows;
    let n_pages = n_tokens.div_ceil(rows);
    let symbols = plan.symbols();
    let symbols: Vec<i64> = symbols
        .iter()
        .map(|symbol| if symbol.name.as_str() == PAGES { n_pages as i64 } else { symbol.min })
        .collect();
    let placed = |place: Place| plan.buffers.values().filter(move |slot| slot.place == place);
    let (wanted, given): (Vec<&BufferSlot>, Vec<&BufferSlot>) =
        (placed(Place::Output).collect(), placed(Place::Input).collect());
    let mut found: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for (done, chunk) in chunks.iter().enumerate() {
        progress(done, chunks.len());
        for (number, slot) in given.iter().enumerate() {
            let value = |i: usize| match &*slot.name {
                inputs::TOKENS => chunk.get(i).copied().unwrap_or_default() as usize,
                inputs::PAGE | inputs::WINDOW_PAGE => i / rows,
                inputs::ROW => i % rows,
                inputs::SLOT | inputs::SEQUENCE => 0,
                // Positions, and the pages of the sequence in order.
                _ => i,
            };
            for (i, bytes) in device.input(program, number).as_chunks_mut::<4>().0.iter_mut().enumerate() {
                *bytes = (value(i) as i32).to_le_bytes();
            }
        }
        device.replay(program, &symbols)?;
        for (number, slot) in wanted.iter().enumerate() {
            let numbers = device.output(program, number).as_chunks::<4>().0;
            let sums = found.entry(&slot.name).or_insert_with(|| vec![0.0; numbers.len()]);
            let numbers = numbers.iter().map(|bytes| f64::from(f32::from_le_bytes(*bytes)));
            sums.iter_mut().zip(numbers).for_each(|(sum, x)| *sum += x);
        }
    }
    let all = (chunks.len() * n_tokens) as f64;
    let own = found.iter().filter(|(name, _)| **name != "hidden" && !name.ends_with(SELECTED));
    let sums = own.map(|(name, squares)| {
        let counts = found.get(format!("{name}{SELECTED}").as_str()).cloned().unwrap_or_else(|| vec![all]);
        (name_in_file(model, name), Sums { squares: squares.clone(), counts })
    });
    Ok(Collected { sums: sums.collect(), n_chunks: chunks.len(), chunk: n_tokens })
}

/// The name of a weight in GGUF: that of the model's own file, if it is one.
fn name_in_file(model: &Model, name: &str) -> String {
    let usual = || Names::common(WRITTEN).of(name).swap_remove(0);
    if !matches!(model.checkpoint().kind(), Kind::Gguf { .. }) {
        return usual();
    }
    let names = hparams(model.checkpoint()).names();
    let whole = fused(name).map(|(whole, _)| names.of(&whole)).unwrap_or_default();
    let mut all = names.of(name).into_iter().chain(whole);
    all.find(|own| model.checkpoint().tensors().contains_key(own)).unwrap_or_else(usual)
}

impl Collected {
    /// Writes it as a GGUF file; `text` is the name of what was read.
    ///
    /// # Errors
    /// As [`write()`].
    pub fn write(&self, path: &Path, text: &str) -> Result<u64, Error> {
        // A model has the same beginning.
        let is_older = || {
            Checkpoint::open(path)
                .is_ok_and(|own| own.metadata().get(TYPE).and_then(Value::as_text) == Some(OWN))
        };
        if path.exists() && !is_older() {
            let what = "expected the name of a new file, or of an importance matrix to replace";
            return Err(Error::input(path, At::Whole, what));
        }
        let pairs = [
            pair(TYPE, &Value::Text(OWN.to_owned())),
            pair("imatrix.datasets", &Value::List(List::Texts(vec![text.to_owned()]))),
            pair("imatrix.chunk_count", &Value::Unsigned(self.n_chunks as u64)),
            pair("imatrix.chunk_size", &Value::Unsigned(self.chunk as u64)),
        ];
        let tensors = self.sums.iter().flat_map(|(name, sums)| {
            let n = sums.counts.len();
            [
                (format!("{name}{SUMS}"), vec![n, sums.squares.len() / n], &sums.squares),
                (format!("{name}{COUNTS}"), vec![n, 1], &sums.counts),
            ]
        });
        let tensors: Vec<(Entry, &Vec<f64>)> = tensors
            .map(|(name, shape, numbers)| (Entry { name, shape, stored: Stored::As(Format::F32) }, numbers))
            .collect();
        let entries: Vec<Entry> = tensors.iter().map(|(entry, _)| entry.clone()).collect();
        write(path, &pairs, &entries, |idx, put| {
            let bytes: Vec<u8> = tensors[idx].1.iter().flat_map(|x| (*x as f32).to_le_bytes()).collect();
            put(&bytes)
        })
    }

    /// How many tensors it has.
    pub fn n_tensors(&self) -> usize {
        self.sums.len()
    }
}
