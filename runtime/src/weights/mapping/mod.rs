//! A file as a slice of memory, without copying it.
//!
//! In: the path of a regular file. Out: its bytes for as long as the mapping lives; pages are read when
//! touched.
//! This is the only place of file reading with `unsafe`, and nothing here looks at the bytes.
//! A file must not change while it is mapped. Where it became shorter, the system sends SIGBUS for what is gone: the
//! handler in `lost_pages.rs` puts zeros there, and [`Mapping::check`] says so. Who computes with the bytes checks
//! afterwards, so that a call fails and the process goes on.

#![expect(unsafe_code, reason = "a file is mapped by the system, outside of what the language can check")]

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use memmap2::Mmap;

use crate::error::{Error, Place};
use crate::signal_list::Entered;
use crate::weights::mapping::lost_pages::Mapped;

mod lost_pages;

/// The bytes of one file, read-only.
#[derive(Debug)]
pub(super) struct Mapping {
    /// It goes first: an address is only watched while it is mapped.
    mapped: Entered<Mapped>,
    map: Mmap,
    file: File,
    path: PathBuf,
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
        let mapped = lost_pages::watch(range.start as usize..range.end as usize);
        Ok(Self { mapped, map, file, path: path.to_owned() })
    }

    /// The bytes of the file.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// Refuses a file that has become shorter since it was mapped: what was read of it since may be zeros.
    pub(super) fn check(&self) -> Result<(), Error> {
        let is_whole = || self.file.metadata().is_ok_and(|about| about.len() >= self.map.len() as u64);
        if !self.mapped.value().has_lost.load(Ordering::Acquire) && is_whole() {
            return Ok(());
        }
        let what = "expected a file that stays as it is, found it shorter while it was read";
        Err(Error::input(&self.path, Place::Whole, what))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A mapping of three pages and more, and its file.
    fn mapping(name: &str) -> (Mapping, File, PathBuf) {
        let path = std::env::temp_dir().join(format!("fusebox-mapping-{name}-{}", std::process::id()));
        fs::write(&path, vec![7; 200_000]).unwrap();
        let file = File::options().write(true).open(&path).unwrap();
        (Mapping::open(&path).unwrap(), file, path)
    }

    #[test]
    fn a_file_that_becomes_shorter_fails_a_check_and_not_the_process() {
        let (mapping, file, path) = mapping("cut");
        assert!(mapping.check().is_ok());
        file.set_len(70_000).unwrap();
        if cfg!(unix) {
            let bytes = mapping.bytes();
            assert_eq!([bytes[0], bytes[199_999], bytes[140_000]], [7, 0, 0], "what is gone reads as zeros");
        }
        let sentence = mapping.check().unwrap_err().to_string();
        let what = "expected a file that stays as it is, found it shorter while it was read";
        assert_eq!(sentence, format!("{}: {what}", path.display()));
        fs::remove_file(&path).unwrap();
    }

    #[test]
    #[cfg(unix)]
    fn a_file_that_was_shorter_for_a_while_is_not_believed() {
        let (mapping, file, path) = mapping("regrown");
        file.set_len(0).unwrap();
        assert_eq!(mapping.bytes()[100_000], 0);
        file.set_len(200_000).unwrap();
        assert!(mapping.check().is_err());
        drop(mapping);
        let again = Mapping::open(&path).unwrap();
        assert!(again.check().is_ok(), "a new mapping starts anew");
        fs::remove_file(&path).unwrap();
    }
}
