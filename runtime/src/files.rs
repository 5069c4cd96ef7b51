//! Files that people name: texts that are read whole, and results that are written.
//!
//! In: a path, and how many bytes are read at most, or the bytes to write. Out: a text, or one sentence.
//! Nothing is read without a bound, and nothing is written over a file that is something else.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process;

use serde_json::Error as JsonError;
use serde_json::error::Category;

use crate::error::{Error, Place, printable};

/// The most characters of a complaint about JSON that are shown: it may quote the file.
const MAX_COMPLAINT: usize = 160;

/// The largest file that is kept for later starts; programs and machine code have a small part of that.
const MAX_KEPT_BYTES: u64 = 64 << 20;

/// All bytes of a file that has no more than so many.
///
/// # Errors
/// [`Error::Io`] where it cannot be read, [`Error::Input`] where it has more.
pub fn read(path: &Path, max_bytes: usize) -> Result<Vec<u8>, Error> {
    let io = |source| Error::Io { path: path.to_owned(), source };
    let mut bytes = Vec::new();
    File::open(path).map_err(io)?.take(max_bytes as u64 + 1).read_to_end(&mut bytes).map_err(io)?;
    if bytes.len() > max_bytes {
        return Err(Error::input(
            path,
            Place::Whole,
            format!("expected at most {max_bytes} bytes, found more"),
        ));
    }
    Ok(bytes)
}

/// The same as text.
///
/// # Errors
/// As [`read`], and [`Error::Input`] where the bytes are no text.
pub fn text(path: &Path, max_bytes: usize) -> Result<String, Error> {
    String::from_utf8(read(path, max_bytes)?).map_err(|error| {
        let at = error.utf8_error().valid_up_to() as u64;
        Error::input(path, Place::Byte(at), "expected a text in UTF-8, found other bytes")
    })
}

/// What is wrong with bytes that should be JSON.
pub fn fault_of_json(error: &JsonError) -> String {
    let complaint = printable(&error.to_string(), MAX_COMPLAINT);
    match error.classify() {
        Category::Data => format!("expected JSON of another form: {complaint}"),
        Category::Io | Category::Syntax | Category::Eof => {
            format!("expected JSON, which this is not: {complaint}")
        }
    }
}

/// All bytes of a file that was kept for later starts, or nothing where no such file is there: anybody may have put
/// there what never ends, or never begins.
pub fn kept(path: &Path) -> Option<Vec<u8>> {
    let about = fs::metadata(path).ok()?;
    if about.is_file() && about.len() <= MAX_KEPT_BYTES { fs::read(path).ok() } else { None }
}

/// Keeps a file for later starts, in a folder that may have to be made.
///
/// # Errors
/// Where it cannot be written.
pub fn keep(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if let Some(folder) = path.parent().filter(|folder| !folder.exists()) {
        fs::create_dir_all(folder)?;
    }
    put(path, bytes)
}

/// Writes a file. One that is there already is replaced only where it begins as all of its kind do: so it is an older
/// result, and no model or text that somebody named by mistake.
///
/// # Errors
/// [`Error::Io`] where it cannot be written, [`Error::Input`] where another file is in its place.
pub fn write(path: &Path, begin: &[u8], bytes: &[u8]) -> Result<(), Error> {
    let io = |source| Error::Io { path: path.to_owned(), source };
    // Anything else, a pipe say, holds nothing that could be lost.
    if path.is_file() && !begins(path, begin)? {
        let what =
            "expected the name of a new file, or of an older result to replace, found another file there";
        return Err(Error::input(path, Place::Whole, what));
    }
    if path.exists() && !path.is_file() {
        return fs::write(path, bytes).map_err(io);
    }
    put(path, bytes).map_err(io)
}

/// Puts a file in its place whole, or not at all: nobody ever reads half of one, and what was there stays where there
/// is no room for what comes.
///
/// # Errors
/// Where it cannot be written.
pub fn put(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let part = part_of(path);
    fs::write(&part, bytes).and_then(|()| fs::rename(&part, path)).inspect_err(|_| {
        // The error that led here is told; that a part is left behind would not help.
        let _ = fs::remove_file(&part);
    })
}

/// What a file is called until it is whole.
pub fn part_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}.part", process::id()));
    PathBuf::from(name)
}

/// Whether a file begins so, or is empty.
///
/// # Errors
/// [`Error::Io`] where it cannot be read.
pub fn begins(path: &Path, begin: &[u8]) -> Result<bool, Error> {
    let mut before = Vec::new();
    let file = File::open(path).and_then(|file| file.take(begin.len() as u64).read_to_end(&mut before));
    file.map_err(|source| Error::Io { path: path.to_owned(), source })?;
    Ok(before.is_empty() || before == begin)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_begins_alike_is_replaced() {
        let folder = std::env::temp_dir().join(format!("fusebox-files-{}", process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("a");
        let written = |begin: &str, text: &str| write(&path, begin.as_bytes(), text.as_bytes()).is_ok();
        assert!(written("# ", "# one") && written("# ", "# two"));
        assert!(!written("GGUF", "GGUF 3") && text(&path, 5).unwrap() == "# two");
        fs::write(&path, "#").unwrap();
        assert!(!written("# ", "# one"), "it is too short to be one");
        fs::write(&path, "").unwrap();
        assert!(written("# ", "# one"), "an empty file has nothing to lose");
        assert!(write(&folder, b"", b"x").is_err());
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn only_a_file_of_a_size_that_programs_have_was_kept() {
        let path = std::env::temp_dir().join(format!("fusebox-files-kept-{}", process::id()));
        fs::write(&path, "a program").unwrap();
        assert_eq!(kept(&path).as_deref(), Some(&b"a program"[..]));
        File::options().write(true).open(&path).unwrap().set_len(MAX_KEPT_BYTES + 1).unwrap();
        assert_eq!(kept(&path), None);
        fs::remove_file(&path).unwrap();
        assert_eq!(kept(&path), None);
    }

    #[test]
    fn a_file_without_an_end_is_a_sentence() {
        let endless = Path::new("/dev/zero");
        if endless.exists() {
            assert_eq!(kept(endless), None);
            let sentence = "/dev/zero: expected at most 100 bytes, found more";
            assert_eq!(read(endless, 100).unwrap_err().to_string(), sentence);
        }
    }
}
