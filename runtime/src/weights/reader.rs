//! A cursor over the bytes of a file of others.
//!
//! In: all bytes of the file. Out: little-endian numbers, strings and counts, or an error that names the byte.
//! A count is refused if the rest of the file could not hold as many things, so that the file alone never decides how
//! much is allocated or repeated.

use std::fmt::Display;
use std::path::Path;

use crate::error::{Error, Place};

/// A position in the bytes of a file.
pub(super) struct Reader<'a> {
    path: &'a Path,
    bytes: &'a [u8],
    at: usize,
    /// How many values all lists so far have.
    n_listed: usize,
}

impl<'a> Reader<'a> {
    /// Starts at the first byte.
    pub(super) fn new(path: &'a Path, bytes: &'a [u8]) -> Self {
        Self { path, bytes, at: 0, n_listed: 0 }
    }

    /// The offset of the next byte.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    fn n_left(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// The next bytes.
    pub(super) fn take(&mut self, n_bytes: usize) -> Result<&'a [u8], Error> {
        let rest = &self.bytes[self.at..];
        let taken = rest.get(..n_bytes);
        let taken = taken.ok_or_else(|| self.refuse(self.at, count(n_bytes, "more byte"), self.n_left()))?;
        self.at += n_bytes;
        Ok(taken)
    }

    /// The next bytes as a whole number, at most eight of them.
    pub(super) fn unsigned(&mut self, n_bytes: usize) -> Result<u64, Error> {
        let mut word = [0; 8];
        for (to, from) in word.iter_mut().zip(self.take(n_bytes)?) {
            *to = *from;
        }
        Ok(u64::from_le_bytes(word))
    }

    /// The next four bytes as a whole number.
    pub(super) fn u32(&mut self) -> Result<u32, Error> {
        Ok(self.unsigned(4)? as u32)
    }

    /// The next eight bytes as a whole number.
    pub(super) fn u64(&mut self) -> Result<u64, Error> {
        self.unsigned(8)
    }

    /// The next eight bytes as the number of things that follow, each of at least `min_bytes` bytes.
    pub(super) fn count(&mut self, things: &str, min_bytes: usize) -> Result<usize, Error> {
        let at = self.at;
        let found = self.u64()?;
        let most = self.n_left() / min_bytes;
        let fits = usize::try_from(found).ok().filter(|n| *n <= most);
        fits.ok_or_else(|| {
            let expected = format!("at most {most} {things} in the {} bytes that follow", self.n_left());
            self.refuse(at, expected, found)
        })
    }

    /// An empty list with capacity for `n` values, a count read at `at`; all lists together may have `most` values.
    pub(super) fn room<T>(&mut self, at: usize, n: usize, most: usize) -> Result<Vec<T>, Error> {
        self.n_listed = self.n_listed.saturating_add(n);
        if self.n_listed > most {
            return Err(self.refuse(at, format!("at most {most} values in all lists"), "more"));
        }
        let mut room = Vec::new();
        let reserved = room.try_reserve_exact(n);
        reserved.map_err(|_| self.refuse(at, "a list that fits in memory", format!("{n} values")))?;
        Ok(room)
    }

    /// A string: a length of eight bytes, then that many bytes of UTF-8.
    pub(super) fn text(&mut self, max_bytes: usize) -> Result<&'a str, Error> {
        let at = self.at;
        let n_bytes = self.count("bytes of text", 1)?;
        if n_bytes > max_bytes {
            return Err(self.refuse(at, format!("a string of at most {max_bytes} bytes"), n_bytes));
        }
        let start = self.at;
        std::str::from_utf8(self.take(n_bytes)?)
            .map_err(|error| self.refuse(start + error.valid_up_to(), "a text in UTF-8", "other bytes"))
    }

    /// The error that a place of the file is not as it should be.
    pub(super) fn refuse(&self, at: usize, expected: impl Display, found: impl Display) -> Error {
        let what = format!("expected {expected}, found {found}");
        Error::input(self.path, Place::Byte(at as u64), what)
    }

    /// The error that a place of the file is as nothing here reads it.
    pub(super) fn unsupported(&self, at: usize, what: String) -> Error {
        Error::Unsupported { path: self.path.to_owned(), place: Place::Byte(at as u64), what }
    }
}

/// A number of things: `1 more byte`, `2 more bytes`.
fn count(n: usize, thing: &str) -> String {
    let plural = if n == 1 { "" } else { "s" };
    format!("{n} {thing}{plural}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reader(bytes: &[u8]) -> Reader<'_> {
        Reader::new(Path::new("f"), bytes)
    }

    #[test]
    fn numbers_are_little_endian() {
        let mut reader = reader(&[1, 2, 0, 0, 0, 255, 254]);
        assert_eq!(reader.u32().unwrap(), 513);
        assert_eq!((reader.unsigned(1).unwrap(), reader.unsigned(2).unwrap(), reader.at()), (0, 65279, 7));
    }

    #[test]
    fn the_end_of_the_file_is_a_sentence_and_moves_nothing() {
        let mut reader = reader(&[1, 2, 3]);
        let error = reader.u32().unwrap_err().to_string();
        assert_eq!(error, "f: byte 0: expected 4 more bytes, found 3");
        assert_eq!(reader.take(3).unwrap(), [1, 2, 3]);
        assert_eq!(reader.take(1).unwrap_err().to_string(), "f: byte 3: expected 1 more byte, found 0");
        assert!(reader.take(usize::MAX).is_err());
    }

    #[test]
    fn a_count_must_fit_the_rest_of_the_file() {
        let with = |n: u64| [&n.to_le_bytes()[..], &[0; 10]].concat();
        assert_eq!(reader(&with(2)).count("keys", 5).unwrap(), 2);
        let error = reader(&with(3)).count("keys", 5).unwrap_err().to_string();
        assert_eq!(error, "f: byte 0: expected at most 2 keys in the 10 bytes that follow, found 3");
        assert!(reader(&with(u64::MAX)).count("keys", 1).is_err());
    }

    #[test]
    fn texts_are_bounded_and_utf8() {
        let with = |bytes: &[u8]| [&(bytes.len() as u64).to_le_bytes()[..], bytes].concat();
        assert_eq!(reader(&with("é".as_bytes())).text(2).unwrap(), "é");
        let long = reader(&with(b"abc")).text(2).unwrap_err().to_string();
        assert_eq!(long, "f: byte 0: expected a string of at most 2 bytes, found 3");
        let bad = reader(&with(b"a\xff")).text(9).unwrap_err().to_string();
        assert_eq!(bad, "f: byte 9: expected a text in UTF-8, found other bytes");
    }
}
