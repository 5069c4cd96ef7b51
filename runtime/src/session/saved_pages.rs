//! The prefix cache in a file: what pages hold is found again by the next process.
//!
//! In: an engine and a folder. Out: a file there with the pages whose tokens are known, or an engine that knows them.
//!
//! ```text
//!  "FBPC"  version  identity  number of pages                          all in little-endian order
//!  for each page, the one used last first:
//!    which page of the file is before it, or all ones                  a page comes after the one before it
//!    number of its tokens, whether blocks with a window have it, its tokens, zeros up to a whole page
//!    for each state of the KV cache that has it: the page, zero in the rows behind its tokens
//!  checksum of all of this
//! ```
//!
//! The file is named by the identity of the model and of the layout of its states, so that several models share a
//! folder. One that does not fit is refused, and leaves the engine as it was. Pages of sequences with a salt are not
//! written: a salt has a meaning in its own process only.

use std::collections::HashMap;
use std::fs::File;
use std::hash::Hasher;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

use fusebox_compiler::foundation::amount::counted;
use fusebox_compiler::foundation::hash::StableHasher;

use crate::error::{Error, Place};
use crate::files::{self, Unfinished};
use crate::own;
use crate::session::engine::Engine;
use crate::session::kin::Kin;
use crate::session::pool::{PageId, Prefix};
use crate::session::saved::{Hashed, Unread, bytes_of, numbers};

/// How every file begins.
const MAGIC: &[u8; 4] = b"FBPC";
/// The version of the layout.
const VERSION: u32 = 2;
/// Bytes of magic, version, identity and number of pages.
const HEADER_BYTES: usize = 4 + 4 + 8 + 8;
/// Numbers before the tokens of a page.
const HEAD_NUMBERS: usize = 3;
/// In place of the page before: there is none.
const NONE: u32 = u32::MAX;

/// A page on its way to a file or from one.
struct Entry {
    page: PageId,
    /// The number of the page before it in the file.
    before: Option<usize>,
    tokens: Vec<u32>,
}

fn header(identity: u64, n_pages: u64) -> Vec<u8> {
    [&MAGIC[..], &VERSION.to_le_bytes(), &identity.to_le_bytes(), &n_pages.to_le_bytes()].concat()
}

impl Engine {
    /// The file of this engine's prefix cache in a folder.
    pub fn prefix_file(&self, folder: &Path) -> PathBuf {
        folder.join(format!("{:016x}.fbpc", self.identity()))
    }

    /// Writes the pages whose tokens are known into the folder, which is made if need be; says how many there are.
    ///
    /// # Errors
    /// Where the file cannot be written, or another one is in its place.
    pub fn save_prefixes(&mut self, folder: &Path) -> Result<usize, Error> {
        let path = self.prefix_file(folder);
        let io = |source| Error::Io { path: path.clone(), source };
        if !folder.exists() {
            // What was asked can be read in it.
            own::make_folder(folder).map_err(io)?;
        }
        files::check_replaceable(&path, MAGIC)?;
        let entries = self.entries();
        let mut to = Hashed { file: Unfinished::create(&path).map_err(io)?, hash: StableHasher::default() };
        to.put(&header(self.identity(), entries.len() as u64)).map_err(io)?;
        let page_rows = self.limits().page_rows;
        let layouts = self.page_layouts();
        let mut bytes = Vec::new();
        for Entry { page, before, tokens } in &entries {
            let n_tokens = tokens.len();
            let has_window = self.windows().is_some_and(|windows| windows.of(*page).is_some());
            let before = before.map_or(NONE, |number| number as u32);
            let numbers = [before, n_tokens as u32, u32::from(has_window)];
            let padding = vec![0; page_rows - n_tokens];
            to.put(&bytes_of(&[&numbers[..], tokens, &padding].concat())).map_err(io)?;
            for layout in &layouts {
                if let Some(part) = layout.part(*page, self.windows(), n_tokens) {
                    self.read_part(&part, &mut bytes)?;
                    to.put(&bytes).map_err(io)?;
                }
            }
        }
        let sum = to.hash.finish();
        to.put(&sum.to_le_bytes()).map_err(io)?;
        to.file.finish().map_err(io)?;
        Ok(entries.len())
    }

    /// The pages that are written: the one used last first, each after the one before it.
    fn entries(&self) -> Vec<Entry> {
        if self.is_forward_only() {
            return Vec::new();
        }
        let mut known: Vec<_> = self.pool().known().collect();
        // Of pages that were used at the same time, those are first that others follow.
        known.sort_by_key(|known| (std::cmp::Reverse(known.used), known.after.is_none(), known.page));
        let mut places: HashMap<Prefix, Option<usize>> =
            HashMap::from([(self.pool().empty(&Kin::default()), None)]);
        let mut entries: Vec<Entry> = Vec::new();
        // A page that is used may come before the one that it follows: then it is found in another round.
        while let Some(at) = known.iter().position(|known| places.contains_key(&known.before)) {
            let known = known.remove(at);
            if let Some(after) = known.after {
                places.insert(after, Some(entries.len()));
            }
            let before = places.get(&known.before).copied().flatten();
            entries.push(Entry { page: known.page, before, tokens: known.tokens.to_vec() });
        }
        entries
    }

    /// Takes in the pages that were written into the folder, as many as nobody uses here, and says how many; none where
    /// no file is there.
    ///
    /// # Errors
    /// Where the file holds no whole prefix cache of this model, cache type and page size; then nothing is taken in.
    pub fn load_prefixes(&mut self, folder: &Path) -> Result<usize, Error> {
        let path = self.prefix_file(folder);
        let io = |source| Error::Io { path: path.clone(), source };
        let fault = |what: String| Error::input(&path, Place::Whole, what);
        let file = match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
            file => file.map_err(io)?,
        };
        let found = file.metadata().map_err(io)?.len();
        let mut from = Hashed { file: BufReader::new(file), hash: StableHasher::default() };
        let mut bytes = [0; HEADER_BYTES];
        let begins = from.get(&mut bytes);
        begins.map_err(|_| fault("expected a prefix cache, found less than its header".to_owned()))?;
        let n_pages = self.check_header(&bytes, found).map_err(fault)?;
        let mut entries = Vec::new();
        let read = self.read_pages(&mut from, n_pages, &mut entries).map_err(|error| match error {
            Unread::Device(error) => error,
            Unread::File(what) => fault(what),
        });
        let n_taken = entries.len();
        self.take_in(&entries, read.is_ok());
        read.map(|()| n_taken)
    }

    /// How many pages a file has, or what was expected of it.
    fn check_header(&self, bytes: &[u8; HEADER_BYTES], found: u64) -> Result<u64, String> {
        let number = |i: usize| u64::from_le_bytes(bytes[8..].as_chunks::<8>().0[i]);
        let version = u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
        if &bytes[..4] != MAGIC {
            return Err("expected a prefix cache, which begins with FBPC".to_owned());
        }
        if version != VERSION {
            return Err(format!("expected version {VERSION} of a prefix cache, found {version}"));
        }
        if number(0) != self.identity() {
            let what = "it was saved with another model, type of KV cache or size of its pages";
            return Err(what.to_owned());
        }
        // Blocks with a window have some of the pages, or all.
        let sizes = |windowed: bool| {
            let layouts = self.page_layouts().into_iter().filter(|own| windowed || !own.is_windowed);
            let states: usize = layouts.map(|own| own.bytes).sum();
            let page = (4 * (HEAD_NUMBERS + self.limits().page_rows) + states) as u64;
            number(1).checked_mul(page).and_then(|n| n.checked_add(HEADER_BYTES as u64 + 8))
        };
        if !(sizes(false).is_some_and(|least| least <= found) && sizes(true).is_none_or(|most| found <= most))
        {
            let pages = counted(usize::try_from(number(1)).unwrap_or(usize::MAX), "page");
            return Err(format!("its header says {pages}, which are not {found} bytes"));
        }
        Ok(number(1))
    }

    /// Reads pages, the first ones into pages of this engine.
    fn read_pages(
        &mut self,
        from: &mut Hashed<BufReader<File>>,
        n_pages: u64,
        entries: &mut Vec<Entry>,
    ) -> Result<(), Unread> {
        let io = |error: io::Error| {
            let is_short = error.kind() == io::ErrorKind::UnexpectedEof;
            let what =
                if is_short { "it ends before its last page: it is damaged" } else { &error.to_string() };
            Unread::File(what.to_owned())
        };
        let page_rows = self.limits().page_rows;
        let n_vocab = self.limits().n_vocab;
        let mut head = vec![0; 4 * (HEAD_NUMBERS + page_rows)];
        let layouts = self.page_layouts();
        let mut bytes = Vec::new();
        // Whether each page of the file is full.
        let mut full = Vec::new();
        for number in 0..n_pages as usize {
            from.get(&mut head).map_err(io)?;
            let numbers = numbers(&head);
            let (before, n_tokens, has_window) = (numbers[0], numbers[1] as usize, numbers[2] == 1);
            let tokens: Vec<u32> = numbers[HEAD_NUMBERS..].iter().copied().take(n_tokens).collect();
            let follows = before == NONE || full.get(before as usize).is_some_and(|is_full| *is_full);
            let are_known = tokens.iter().all(|token| (*token as usize) < n_vocab);
            if !(1..=page_rows).contains(&n_tokens) || !follows || !are_known {
                return Err(Unread::File(format!("its page {number} cannot be: it is damaged")));
            }
            full.push(n_tokens == page_rows);
            // What does not fit is read for the checksum.
            let page = if entries.len() == number { self.take_unknown(has_window) } else { None };
            let before = (before != NONE).then_some(before as usize);
            entries.extend(page.map(|page| Entry { page, before, tokens }));
            for layout in layouts.iter().filter(|own| has_window || !own.is_windowed) {
                bytes.resize(layout.bytes, 0);
                from.get(&mut bytes).map_err(io)?;
                if let Some(part) = page.and_then(|page| layout.part(page, self.windows(), n_tokens)) {
                    self.device_mut().write_state(&part.state, part.offset, &bytes)?;
                }
            }
        }
        let sum = from.hash.finish();
        let mut last = [0; 8];
        from.get(&mut last).map_err(io)?;
        let is_end = from.file.fill_buf().map_err(io)?.is_empty();
        if u64::from_le_bytes(last) != sum || !is_end {
            return Err(Unread::File("its checksum is wrong: it is damaged".to_owned()));
        }
        Ok(())
    }

    /// A page that holds nothing, with a window page if there is an empty one for it.
    fn take_unknown(&mut self, has_window: bool) -> Option<PageId> {
        let page = self.pool_mut().take_unknown()?;
        if let Some(windows) = self.windows_mut() {
            windows.detach(page);
            if has_window && windows.has_empty() {
                windows.attach(page);
            }
        }
        Some(page)
    }

    /// Records what pages hold that were read, if all is well, and gives them back: the one used last goes last.
    fn take_in(&mut self, entries: &[Entry], is_well: bool) {
        let page_rows = self.limits().page_rows;
        let pool = self.pool_mut();
        let mut after: Vec<Option<Prefix>> = Vec::new();
        for Entry { page, before, tokens } in entries.iter().filter(|_| is_well) {
            let before = match before {
                None => Some(pool.empty(&Kin::default())),
                Some(number) => after[*number],
            };
            let known = before.and_then(|before| {
                if tokens.len() == page_rows {
                    return Some(pool.fill(*page, before, tokens));
                }
                pool.note(*page, before, tokens);
                None
            });
            after.push(known);
        }
        for Entry { page, .. } in entries.iter().rev() {
            self.pool_mut().give_back(*page);
            if let Some(windows) = self.windows_mut().filter(|windows| windows.of(*page).is_some()) {
                windows.cover(*page);
                windows.leave(*page);
            }
        }
    }
}
