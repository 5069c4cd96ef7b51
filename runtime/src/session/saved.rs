//! Sequences in files: a sequence is saved with its part of the KV cache, and goes on in another process.
//!
//! In: a sequence of an engine, or an empty one and a file. Out: the file, or the sequence as it was.
//!
//! ```text
//!  "FBKV"  version  identity  number of tokens  width  whether there are best tokens     all in little-endian order
//!  tokens
//!  for each state of the KV cache: the pages of the sequence in order, zero in the rows behind its end; of a block
//!    with a window those that its next token sees
//!  for each state that goes from token to token: the part of the sequence
//!  the last row of output, `width` numbers, and the tokens it belongs to, where the programs select the best
//!  checksum of all of this
//! ```
//!
//! The identity is a hash of the model and of the layout of its states. A file that does not fit is refused before
//! anything is changed. One whose checksum is wrong is refused as well, and leaves the sequence empty.

use std::fs::File;
use std::hash::{Hash, Hasher};
use std::io::{self, BufReader, Read};
use std::path::Path;

use fusebox_compiler::foundation::amount::counted;
use fusebox_compiler::foundation::entity::Id;
use fusebox_compiler::foundation::hash::StableHasher;
use fusebox_compiler::schedule::{BufferSlot, Place as Memory, Plan};
use fusebox_compiler::tensor::shape::Shape;

use crate::device::Weights;
use crate::error::{Error, Place};
use crate::files::{self, Unfinished};
use crate::session::engine::{Engine, Limits, SequenceId};
use crate::session::names::{ROWS, WINDOW_PAGES, block_of, is_carried, refused};
use crate::session::pool::PageId;
use crate::session::pool::windows::Windows;

/// How every file begins.
const MAGIC: &[u8; 4] = b"FBKV";
/// The version of the layout.
const VERSION: u32 = 1;
/// Bytes of magic, version and header.
const HEADER_BYTES: usize = 4 + 4 + 4 * 8;
/// Bytes at the start and at the end of a weight that count for the identity of a model.
const SAMPLE: usize = 64;

/// What precedes the tokens.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Header {
    identity: u64,
    n_tokens: u64,
    width: u64,
    has_best: u64,
}

/// What a sequence is, but for its states.
pub(super) struct Kept {
    /// A hash of the model and of the layout of its states.
    pub(super) identity: u64,
    pub(super) tokens: Vec<u32>,
    /// The last row of output, and the tokens it belongs to where the programs select the best.
    pub(super) row: Vec<f32>,
    pub(super) best: Option<Vec<u32>>,
}

/// A part of a state that belongs to a sequence.
pub(super) struct Part {
    pub(super) state: String,
    pub(super) offset: usize,
    pub(super) bytes: usize,
    /// Which bytes are rows behind the end of the sequence, of each run of rows.
    pub(super) unused: Vec<std::ops::Range<usize>>,
}

/// Bytes that are hashed on their way from or to a file.
pub(super) struct Hashed<T> {
    pub(super) file: T,
    pub(super) hash: StableHasher,
}

impl Hashed<Unfinished> {
    pub(super) fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hash.write(bytes);
        self.file.put(bytes)
    }
}

impl Hashed<BufReader<File>> {
    pub(super) fn get(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        self.file.read_exact(bytes)?;
        self.hash.write(bytes);
        Ok(())
    }
}

impl Header {
    fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..4].copy_from_slice(MAGIC);
        bytes[4..8].copy_from_slice(&VERSION.to_le_bytes());
        let Self { identity, n_tokens, width, has_best } = self;
        for (to, number) in
            bytes[8..].as_chunks_mut::<8>().0.iter_mut().zip([identity, n_tokens, width, has_best])
        {
            *to = number.to_le_bytes();
        }
        bytes
    }

    /// The header, or what was expected.
    fn read(bytes: &[u8; HEADER_BYTES]) -> Result<Self, String> {
        if &bytes[..4] != MAGIC {
            return Err("expected a saved sequence, which begins with FBKV".to_owned());
        }
        let version = u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
        if version != VERSION {
            return Err(format!("expected version {VERSION} of saved sequences, found {version}"));
        }
        let number = |i: usize| u64::from_le_bytes(bytes[8..].as_chunks::<8>().0[i]);
        Ok(Self { identity: number(0), n_tokens: number(1), width: number(2), has_best: number(3) })
    }

    /// The length of the whole file, if it has these parts.
    fn file_len(self, parts: &[Part]) -> u64 {
        let states: usize = parts.iter().map(|part| part.bytes).sum();
        let row = self.width * if self.has_best == 0 { 4 } else { 8 };
        (HEADER_BYTES + states + 8) as u64 + 4 * self.n_tokens + row
    }
}

impl Engine {
    /// Saves a sequence. A file that is there is replaced where it holds a saved sequence.
    ///
    /// # Errors
    /// Where there is no such sequence, it was extended by vectors, or the file cannot be written.
    pub fn save(&mut self, id: SequenceId, path: &Path) -> Result<(), Error> {
        files::check_replaceable(path, MAGIC)?;
        let Kept { identity, tokens, row, best } = self.kept(id, "a sequence to save")?;
        let header = Header {
            identity,
            n_tokens: tokens.len() as u64,
            width: row.len() as u64,
            has_best: u64::from(best.is_some()),
        };
        let io = |source| Error::Io { path: path.to_owned(), source };
        let mut to = Hashed { file: Unfinished::create(path).map_err(io)?, hash: StableHasher::default() };
        to.put(&header.to_bytes()).map_err(io)?;
        to.put(&bytes_of(&tokens)).map_err(io)?;
        let mut bytes = Vec::new();
        for part in self.parts_of(id)? {
            self.read_part(&part, &mut bytes)?;
            to.put(&bytes).map_err(io)?;
        }
        to.put(bytemuck::cast_slice(&row)).map_err(io)?;
        to.put(&bytes_of(&best.unwrap_or_default())).map_err(io)?;
        let sum = to.hash.finish();
        to.put(&sum.to_le_bytes()).map_err(io)?;
        to.file.finish().map(|_| ()).map_err(io)
    }

    /// Extends an empty sequence to one that was saved. Its last row of output is there again if the programs of this
    /// engine return as many numbers.
    ///
    /// # Errors
    /// Where there is no such sequence or it is not empty, the file holds no whole sequence of this model, cache type
    /// and page size, the sequence is longer than the context, or there are too few free pages; then the sequence is
    /// empty.
    pub fn restore(&mut self, id: SequenceId, path: &Path) -> Result<(), Error> {
        if self.len(id)? > 0 {
            return Err(refused("a sequence to restore", "it has tokens already".to_owned()));
        }
        let io = |source| Error::Io { path: path.to_owned(), source };
        let fault = |what: String| Error::input(path, Place::Whole, what);
        let file = File::open(path).map_err(io)?;
        let found = file.metadata().map_err(io)?.len();
        let mut from = Hashed { file: BufReader::new(file), hash: StableHasher::default() };
        let mut bytes = [0; HEADER_BYTES];
        let begins = from.get(&mut bytes);
        begins.map_err(|_| fault("expected a saved sequence, found less than its header".to_owned()))?;
        let header = Header::read(&bytes).map_err(fault)?;
        if header.identity != self.identity_of(id)? {
            let what = "it was saved with another model, other adapters, another type of KV cache or size of its pages";
            return Err(fault(what.to_owned()));
        }
        let Limits { context, n_vocab, .. } = self.limits();
        if header.n_tokens > context as u64 {
            let held = counted(context, "token");
            return Err(fault(format!("it has {} tokens, the context holds {held}", header.n_tokens)));
        }
        if header.width > n_vocab.max(self.width()) as u64 || header.has_best > 1 {
            return Err(fault("its row of output has more numbers than the model returns".to_owned()));
        }
        self.grow(id, header.n_tokens as usize)?;
        let restored = self.read_rest(id, &mut from, header, found).map_err(|error| match error {
            Unread::Device(error) => error,
            Unread::File(what) => fault(what),
        });
        if restored.is_err() {
            self.truncate(id, 0)?;
        }
        restored
    }

    /// Reads what follows the header into the pages of a sequence.
    fn read_rest(
        &mut self,
        id: SequenceId,
        from: &mut Hashed<BufReader<File>>,
        header: Header,
        found: u64,
    ) -> Result<(), Unread> {
        let parts = self.parts_of(id)?;
        let expected = header.file_len(&parts);
        if found != expected {
            return Err(Unread::File(format!("expected {expected} bytes, found {found}")));
        }
        let io = |error: io::Error| Unread::File(error.to_string());
        let mut bytes = vec![0; 4 * header.n_tokens as usize];
        from.get(&mut bytes).map_err(io)?;
        let tokens = numbers(&bytes);
        for part in parts {
            bytes.resize(part.bytes, 0);
            from.get(&mut bytes).map_err(io)?;
            self.device_mut().write_state(&part.state, part.offset, &bytes)?;
        }
        let mut row = vec![0; 4 * header.width as usize];
        from.get(&mut row).map_err(io)?;
        let mut best = vec![0; row.len() * header.has_best as usize];
        from.get(&mut best).map_err(io)?;
        let sum = from.hash.finish();
        let mut last = [0; 8];
        from.get(&mut last).map_err(io)?;
        let n_vocab = self.limits().n_vocab;
        let is_known = |token: &u32| (*token as usize) < n_vocab;
        let (best, row) = (numbers(&best), numbers(&row).into_iter().map(f32::from_bits).collect());
        if u64::from_le_bytes(last) != sum || !tokens.iter().chain(&best).all(is_known) {
            return Err(Unread::File("its checksum is wrong: it is damaged".to_owned()));
        }
        self.restored(id, &tokens, (row, best))?;
        Ok(())
    }

    /// What a sequence is, but for its states; `place` is what a refusal calls it.
    ///
    /// # Errors
    /// Where there is no such sequence, it was extended by vectors, or some of it was evicted.
    pub(super) fn kept(&self, id: SequenceId, place: &str) -> Result<Kept, Error> {
        self.check_states(id)?;
        let tokens = self.tokens(id)?.to_vec();
        if tokens.len() != self.len(id)? {
            let what = "it has vectors in place of tokens, which are not kept";
            return Err(refused(place, what.to_owned()));
        }
        let n_evicted = self.n_evicted(id)?;
        if n_evicted > 0 {
            let what =
                format!("{} of it were evicted: there is nothing to go on from", counted(n_evicted, "token"));
            return Err(refused(place, what));
        }
        let row = self.logits(id).unwrap_or_default().to_vec();
        let best = self.best(id).ok().flatten();
        let best = best.map(|best| best[best.len() - row.len()..].to_vec());
        Ok(Kept { identity: self.identity_of(id)?, tokens, row, best })
    }

    /// A hash of the weights and of the layout of the states.
    pub(super) fn identity(&self) -> u64 {
        let mut hash = StableHasher::default();
        let limits = self.limits();
        limits.page_rows.hash(&mut hash);
        for slot in self.plan().buffers.values() {
            match slot.place {
                Memory::State => {
                    (slot.name.as_ref(), slot.format, part_len(slot)).hash(&mut hash);
                    // Of a block with a window fewer rows are saved.
                    if let Some(windows) = limits.windows.filter(|_| is_windowed(slot)) {
                        windows.reach.hash(&mut hash);
                    }
                }
                Memory::Weight => hash_weight(slot, self.weights(), &mut hash),
                _ => {}
            }
        }
        hash.finish()
    }

    /// The same for a sequence, with its factors on adapters.
    pub(super) fn identity_of(&self, id: SequenceId) -> Result<u64, Error> {
        let scales = self.scales(id)?;
        if scales.is_empty() {
            return Ok(self.identity());
        }
        let mut hash = StableHasher::default();
        (self.identity(), bytemuck::cast_slice::<f32, u32>(scales)).hash(&mut hash);
        Ok(hash.finish())
    }

    /// The parts of all states that belong to a sequence.
    pub(super) fn parts_of(&self, id: SequenceId) -> Result<Vec<Part>, Error> {
        let (len, page_rows) = (self.len(id)?, self.limits().page_rows);
        let (pages, own) = self.places(id)?;
        let mut parts = Vec::new();
        for slot in states(self.plan()) {
            if is_carried(&slot.name) {
                let (state, bytes) = (slot.name.to_string(), part_len(slot));
                parts.extend(own.map(|own| Part { state, offset: own * bytes, bytes, unused: Vec::new() }));
                continue;
            }
            let layout = PageLayout::of(slot, page_rows);
            let first = if layout.is_windowed { pages.len() - self.n_covered(len) } else { 0 };
            for (number, page) in pages.iter().enumerate().skip(first) {
                let n_used = (len - number * page_rows).min(page_rows);
                parts.extend(layout.part(*page, self.windows(), n_used));
            }
        }
        Ok(parts)
    }

    /// Reads a part of a state, with zero in the rows after the end of its sequence: they may be another's.
    pub(super) fn read_part(&mut self, part: &Part, bytes: &mut Vec<u8>) -> Result<(), Error> {
        bytes.resize(part.bytes, 0);
        self.device_mut().read_state(&part.state, part.offset, bytes)?;
        part.unused.iter().for_each(|unused| bytes[unused.clone()].fill(0));
        Ok(())
    }

    /// How the rows of all states of the KV cache lie in a page.
    pub(super) fn page_layouts(&self) -> Vec<PageLayout> {
        let paged = states(self.plan()).filter(|slot| !is_carried(&slot.name));
        paged.map(|slot| PageLayout::of(slot, self.limits().page_rows)).collect()
    }
}

/// Why the rest of a file was not read.
pub(super) enum Unread {
    /// The file is not what it should be.
    File(String),
    Device(Error),
}

impl From<Error> for Unread {
    fn from(error: Error) -> Self {
        Self::Device(error)
    }
}

fn states(plan: &Plan) -> impl Iterator<Item = &BufferSlot> {
    plan.buffers.values().filter(|slot| slot.place == Memory::State)
}

/// Bytes of a page, or of a sequence: the first axis of a state numbers them.
fn part_len(slot: &BufferSlot) -> usize {
    slot.bytes / sizes(&slot.shape).first().copied().unwrap_or(1).max(1)
}

/// Whether a state has the pages of a block with a window.
fn is_windowed(slot: &BufferSlot) -> bool {
    slot.shape.axes().next().is_some_and(|axis| axis.as_str() == WINDOW_PAGES)
}

fn sizes(shape: &Shape) -> Vec<usize> {
    shape.iter().map(|(_, size)| size.most().max(0) as usize).collect()
}

/// How the rows of a state of the KV cache lie in a page.
pub(super) struct PageLayout {
    pub(super) state: String,
    /// The bytes of a page.
    pub(super) bytes: usize,
    /// Whether it has the window pages of pages.
    pub(super) is_windowed: bool,
    /// Runs of rows: one for each head, or for all heads together.
    pub(super) n_runs: usize,
    page_rows: usize,
    row_bytes: usize,
}

impl PageLayout {
    fn of(slot: &BufferSlot, page_rows: usize) -> Self {
        let at = slot.shape.axes().position(|axis| axis.as_str() == ROWS).unwrap_or(1);
        let n_runs: usize = sizes(&slot.shape)[1..at].iter().product();
        let bytes = part_len(slot);
        let row_bytes = bytes / (n_runs * page_rows).max(1);
        let is_windowed = is_windowed(slot);
        Self { state: slot.name.to_string(), bytes, is_windowed, n_runs, page_rows, row_bytes }
    }

    /// The number of a page in this state, if it is there.
    pub(super) fn place(&self, page: PageId, windows: Option<&Windows>) -> Option<usize> {
        if self.is_windowed { Some(windows?.of(page)?.index()) } else { Some(page.index()) }
    }

    /// The part that a page is, if it is there; `n_used` of its rows are used.
    pub(super) fn part(&self, page: PageId, windows: Option<&Windows>, n_used: usize) -> Option<Part> {
        let offset = self.place(page, windows)? * self.bytes;
        let unused = self.unused_rows(n_used);
        Some(Part { state: self.state.clone(), offset, bytes: self.bytes, unused })
    }

    /// The block that the state belongs to.
    pub(super) fn block(&self) -> &str {
        block_of(&self.state)
    }

    /// Where a row of a run lies, of some pages side by side.
    pub(super) fn row(&self, page: usize, run: usize, row: usize) -> std::ops::Range<usize> {
        let first = page * self.bytes + (run * self.page_rows + row) * self.row_bytes;
        first..first + self.row_bytes
    }

    /// Where the rows of a page lie that are not used.
    fn unused_rows(&self, n_used: usize) -> Vec<std::ops::Range<usize>> {
        let run_bytes = self.page_rows * self.row_bytes;
        let of_run = |run| run * run_bytes + n_used * self.row_bytes..(run + 1) * run_bytes;
        (0..self.n_runs).map(of_run).collect()
    }
}

/// Of a weight its name, format and size, and some of its bytes: to read all would take as long as a prompt.
fn hash_weight(slot: &BufferSlot, weights: &dyn Weights, hash: &mut StableHasher) {
    (slot.name.as_ref(), slot.format, slot.bytes).hash(hash);
    let bytes = weights.bytes(&slot.name).unwrap_or_default();
    bytes[..SAMPLE.min(bytes.len())].hash(hash);
    bytes[bytes.len().saturating_sub(SAMPLE)..].hash(hash);
}

pub(super) fn bytes_of(numbers: &[u32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

pub(super) fn numbers(bytes: &[u8]) -> Vec<u32> {
    bytes.as_chunks::<4>().0.iter().map(|number| u32::from_le_bytes(*number)).collect()
}
