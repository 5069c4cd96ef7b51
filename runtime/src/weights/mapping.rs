//! A file as a slice of memory, without copying it.
//!
//! In: the path of a regular file. Out: its bytes for as long as the mapping lives; pages are read when
//! touched.
//! This is the only place of file reading with `unsafe`, and nothing here looks at the bytes.
//! A file must not change while it is mapped: then reads see other bytes. Where it became shorter, the system sends
//! SIGBUS, which ends the process unless the program handles it; [`file_at`] tells such a handler which file it was.

#![expect(unsafe_code, reason = "a file is mapped by the system, outside of what the language can check")]

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::path::Path;

use memmap2::Mmap;

use crate::error::{Error, Place, printable};
use crate::signal_list::{Entered, SignalList};

/// The most characters of a path that are told.
const MAX_PATH: usize = 4096;

/// The files that are mapped.
static MAPPED: SignalList<(Range<usize>, String)> = SignalList::new();

/// The file that is mapped at an address. A signal may ask at any time.
pub fn file_at(address: usize) -> Option<&'static str> {
    MAPPED.iter().find(|(range, _)| range.contains(&address)).map(|(_, name)| name.as_str())
}

/// The bytes of one file, read-only.
#[derive(Debug)]
pub(super) struct Mapping {
    map: Mmap,
    _entered: Entered,
}

impl Mapping {
    /// Maps a regular file; pipes and devices are refused before they are opened, as opening may block.
    pub(super) fn open(path: &Path) -> Result<Self, Error> {
        let failed = |source: io::Error| Error::Io { path: path.to_owned(), source };
        if !fs::metadata(path).map_err(failed)?.is_file() {
            return Err(Error::input(
                path,
                Place::Whole,
                "expected a file or a folder, found something else",
            ));
        }
        let file = File::open(path).map_err(failed)?;
        // SAFETY: the file stays open for as long as it is mapped, and the map is handed out as `&[u8]` only,
        // so this process never writes to it. That no other process shortens or rewrites the file meanwhile
        // cannot be had from here; every reader of mapped files requires it of its user.
        let map = unsafe { Mmap::map(&file) }.map_err(failed)?;
        // Large pages, for what is not in memory yet: the disk is read in longer pieces, and weights are read faster.
        // A refusal costs time and nothing else.
        #[cfg(target_os = "linux")]
        let _ = map.advise(memmap2::Advice::HugePage);
        let range = map.as_ptr_range();
        let name = printable(&path.display().to_string(), MAX_PATH);
        let entered = MAPPED.add((range.start as usize..range.end as usize, name));
        Ok(Self { map, _entered: entered })
    }

    /// The bytes of the file.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.map
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_of_an_address_is_known_while_it_is_mapped() {
        let path = std::env::temp_dir().join(format!("fusebox-mapping-{}", std::process::id()));
        fs::write(&path, "weights").unwrap();
        let mapping = Mapping::open(&path).unwrap();
        let last = mapping.bytes().as_ptr_range().end as usize - 1;
        assert_eq!(file_at(last), path.to_str());
        drop(mapping);
        assert_eq!(file_at(last), None);
        fs::remove_file(&path).unwrap();
    }
}
