//! A file as a slice of memory, without copying it.
//!
//! In: the path of a regular file. Out: its bytes for as long as the [`Mapping`] lives; pages are read when
//! touched.
//! This is the only place of file reading with `unsafe`, and nothing here looks at the bytes.
//! A file must not change while it is mapped: then reads see other bytes, or the system ends the process.

#![expect(unsafe_code, reason = "a file is mapped by the system, outside of what the language can check")]

use std::fs::{self, File};
use std::io;
use std::path::Path;

use memmap2::Mmap;

use crate::error::{Error, Place};

/// The bytes of one file, read-only.
#[derive(Debug)]
pub(super) struct Mapping {
    map: Mmap,
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
        // cannot be had from here; it is what every reader of mapped files asks of its user.
        let map = unsafe { Mmap::map(&file) }.map_err(failed)?;
        // Large pages, for what is not in memory yet: the disk is read in longer pieces, and weights are read faster.
        // A refusal costs time and nothing else.
        #[cfg(target_os = "linux")]
        let _ = map.advise(memmap2::Advice::HugePage);
        Ok(Self { map })
    }

    /// The bytes of the file.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.map
    }
}
