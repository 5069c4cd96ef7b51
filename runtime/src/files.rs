//! Files that people name: text files that are read, and results that are written.
//!
//! In: a path, and the most bytes to read, or the bytes to write. Out: a text, or one sentence.
//! Every read has a limit, and nothing is written over a file that is something else.

use std::ffi::{CStr, CString};
use std::fs::{self, File};
use std::io::{self, BufWriter, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::process;
use std::time::SystemTime;

use serde_json::Error as JsonError;
use serde_json::error::Category;

use crate::error::{Error, Place, printable};
use crate::own;
use crate::signal_list::{Entered, SignalList};

/// The most characters of a complaint about JSON that are shown: it may quote the file.
const MAX_COMPLAINT: usize = 160;

/// The largest file that is kept for later starts; programs and machine code have a small part of that.
const MAX_KEPT_BYTES: u64 = 64 << 20;

/// What files of one kind that are kept in a folder may have together; beyond that the oldest go.
const MAX_FOLDER_BYTES: u64 = 256 << 20;

/// The names of files in the making.
static PARTS: SignalList<CString> = SignalList::new();

/// The most links that are followed.
const MAX_LINKS: usize = 40;

/// All bytes of a file that has at most `max_bytes`.
///
/// # Errors
/// [`Error::Io`] where it cannot be read, [`Error::Input`] where it has more.
pub fn read(path: &Path, max_bytes: usize) -> Result<Vec<u8>, Error> {
    let file = File::open(path).map_err(|source| Error::Io { path: path.to_owned(), source })?;
    read_from(file, path, max_bytes)
}

/// All bytes of an open file, called `name` in errors, that has at most `max_bytes`.
fn read_from(from: impl Read, name: &Path, max_bytes: usize) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    let read = from.take(max_bytes as u64 + 1).read_to_end(&mut bytes);
    read.map_err(|source| Error::Io { path: name.to_owned(), source })?;
    if bytes.len() > max_bytes {
        let what = format!("expected at most {max_bytes} bytes, found more");
        return Err(Error::input(name, Place::Whole, what));
    }
    Ok(bytes)
}

/// The same as text.
///
/// # Errors
/// As [`read`], and [`Error::Input`] where the bytes are no text.
pub fn text(path: &Path, max_bytes: usize) -> Result<String, Error> {
    as_text(read(path, max_bytes)?, path)
}

/// The same of standard input.
///
/// # Errors
/// As [`text`].
pub fn standard_input(max_bytes: usize) -> Result<String, Error> {
    let name = Path::new("standard input");
    as_text(read_from(io::stdin().lock(), name, max_bytes)?, name)
}

fn as_text(bytes: Vec<u8>, name: &Path) -> Result<String, Error> {
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to() as u64;
        Error::input(name, Place::Byte(at), "expected a text in UTF-8, found other bytes")
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

/// All bytes of a file that was kept for later starts, or nothing where no such file of this user's is there: the path
/// may hold a link, a device or a pipe, and a file or a folder that others may write to is not believed. The file
/// counts as new from then on.
pub fn kept(path: &Path) -> Option<Vec<u8>> {
    if !fs::metadata(folder_of(path)).is_ok_and(|about| own::is_own(&about)) {
        return None;
    }
    let file = own::open(path).ok()?;
    let about = file.metadata().ok()?;
    if !about.is_file() || about.len() > MAX_KEPT_BYTES || !own::is_own(&about) {
        return None;
    }
    let mut bytes = Vec::new();
    (&file).take(MAX_KEPT_BYTES).read_to_end(&mut bytes).ok()?;
    // A folder that nothing can be written to works as well; nothing is deleted there either.
    let _ = file.set_modified(SystemTime::now());
    Some(bytes)
}

/// Keeps a file for later starts, in a folder of this user's that may have to be made. What has its name there is
/// replaced and never followed. Where files with this ending are too many for one folder, those go that were not used
/// for longest.
///
/// # Errors
/// Where it cannot be written, or others may write to the folder.
pub fn keep(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = folder_of(path);
    if !folder.exists() {
        own::make_folder(folder)?;
    }
    if !own::is_own(&fs::metadata(folder)?) {
        return Err(io::Error::new(ErrorKind::PermissionDenied, "others may write to the folder"));
    }
    let mut file = Unfinished::begin(path.to_owned(), None)?;
    file.put(bytes)?;
    file.finish()?;
    prune(path, MAX_FOLDER_BYTES);
    Ok(())
}

/// Makes sure that a file of this user's holds these bytes, in a folder of this user's that may have to be made.
///
/// # Errors
/// As [`keep`].
pub fn kept_or(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if kept(path).is_some_and(|found| found == bytes) { Ok(()) } else { keep(path, bytes) }
}

/// A folder for temporary files of this user, which [`keep`] makes.
pub fn temporary_folder() -> PathBuf {
    own::temporary_folder()
}

/// The folder that a file lies in.
fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    }
}

/// Deletes the oldest files beside this one with its ending, until the others have no more bytes than that.
fn prune(path: &Path, most_bytes: u64) {
    let Some(files) = path.parent().and_then(|folder| fs::read_dir(folder).ok()) else { return };
    let alike = files.flatten().map(|file| file.path()).filter(|other| other.extension() == path.extension());
    let about = |path: PathBuf| fs::metadata(&path).and_then(|own| Ok((own.modified()?, own.len(), path)));
    let mut files: Vec<(SystemTime, u64, PathBuf)> = alike.flat_map(about).collect();
    files.sort();
    let mut n_bytes: u64 = files.iter().map(|(_, n, _)| n).sum();
    for (_, n, other) in files {
        if n_bytes <= most_bytes {
            break;
        }
        // Another start may have deleted it before.
        let _ = fs::remove_file(other);
        n_bytes -= n;
    }
}

/// Writes a file. One that is there already is replaced only where it begins as all of its kind do: so it is an older
/// result, and no model or text that somebody named by mistake.
///
/// # Errors
/// [`Error::Io`] where it cannot be written, [`Error::Input`] where another file is in its place.
pub fn write(path: &Path, begin: &[u8], bytes: &[u8]) -> Result<(), Error> {
    let io = |source| Error::Io { path: path.to_owned(), source };
    check_replaceable(path, begin)?;
    if path.exists() && !path.is_file() {
        return fs::write(path, bytes).map_err(io);
    }
    put(path, bytes).map_err(io)
}

/// Refuses to replace a file that does not begin as all of its kind do.
///
/// # Errors
/// As [`write()`].
pub(crate) fn check_replaceable(path: &Path, begin: &[u8]) -> Result<(), Error> {
    // Anything else, a pipe say, holds nothing that could be lost.
    if path.is_file() && !begins(path, begin)? {
        let what =
            "expected the name of a new file, or of an older result to replace, found another file there";
        return Err(Error::input(path, Place::Whole, what));
    }
    Ok(())
}

/// Puts a file in its place whole, or not at all: nobody ever reads half of one, and what was there stays if the
/// new file does not fit the disk.
fn put(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = Unfinished::create(path)?;
    file.put(bytes)?;
    file.finish().map(|_| ())
}

/// A file in the making: it has another name until it is whole, and goes away unless it is finished. What is replaced
/// keeps its permissions, and a link to it goes on to lead there.
pub struct Unfinished {
    to: BufWriter<File>,
    part: PathBuf,
    path: PathBuf,
    n_written: u64,
    is_finished: bool,
    _entered: Entered<CString>,
}

impl Unfinished {
    /// Begins a file.
    ///
    /// # Errors
    /// Where it cannot be written, or one that is there may not be replaced.
    pub fn create(path: &Path) -> io::Result<Self> {
        let path = link_target(path);
        let before = fs::metadata(&path).ok().map(|about| about.permissions());
        if before.as_ref().is_some_and(fs::Permissions::readonly) {
            return Err(ErrorKind::PermissionDenied.into());
        }
        Self::begin(path, before)
    }

    /// Begins a file that takes the place of whatever has its name.
    fn begin(path: PathBuf, before: Option<fs::Permissions>) -> io::Result<Self> {
        let part = part_of(&path);
        let name = CString::new(part.as_os_str().as_encoded_bytes())?;
        let entered = PARTS.add(name);
        let create = || File::options().write(true).create_new(true).open(&part);
        let file = create().or_else(|error| {
            // A process that had our number has left it, or somebody has put a link there.
            if error.kind() != ErrorKind::AlreadyExists {
                return Err(error);
            }
            fs::remove_file(&part)?;
            create()
        })?;
        let own = Self {
            to: BufWriter::with_capacity(1 << 20, file),
            part,
            path,
            n_written: 0,
            is_finished: false,
            _entered: entered,
        };
        if let Some(before) = before {
            fs::set_permissions(&own.part, before)?;
        }
        Ok(own)
    }

    /// Writes the next bytes.
    ///
    /// # Errors
    /// Where the system refuses.
    pub fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.n_written += bytes.len() as u64;
        self.to.write_all(bytes)
    }

    /// How many bytes were written.
    pub fn n_written(&self) -> u64 {
        self.n_written
    }

    /// Waits until a power cut would leave all of it.
    ///
    /// # Errors
    /// Where the system refuses.
    pub fn sync(&mut self) -> io::Result<()> {
        self.to.flush()?;
        self.to.get_ref().sync_all()
    }

    /// Gives the file its name, and returns its length.
    ///
    /// # Errors
    /// Where the system refuses.
    pub fn finish(mut self) -> io::Result<u64> {
        self.to.flush()?;
        fs::rename(&self.part, &self.path)?;
        self.is_finished = true;
        Ok(self.n_written)
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if !self.is_finished {
            // The error that led here is reported; a second one about the partial file would not help.
            let _ = fs::remove_file(&self.part);
        }
    }
}

/// The file that a path names after links are followed; it need not exist.
fn link_target(path: &Path) -> PathBuf {
    let mut path = path.to_owned();
    for _ in 0..MAX_LINKS {
        let Ok(target) = fs::read_link(&path) else { break };
        path = path.parent().unwrap_or(Path::new("")).join(target);
    }
    path
}

/// The files that are being written, for the handler of a signal that ends the process.
pub fn parts() -> impl Iterator<Item = &'static CStr> {
    PARTS.iter().map(CString::as_c_str)
}

/// The name of a file until it is complete.
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
    #[cfg(unix)]
    fn links_lead_where_they_did_and_permissions_stay() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let folder = std::env::temp_dir().join(format!("fusebox-files-links-{}", process::id()));
        fs::create_dir_all(&folder).unwrap();
        let [file, link, other] = ["file", "link", "other"].map(|name| folder.join(name));
        symlink("file", &link).unwrap();
        symlink(&link, &other).unwrap();
        write(&other, b"# ", b"# one").unwrap();
        assert_eq!(text(&file, 5).unwrap(), "# one", "the file of a link that led nowhere is made");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o660)).unwrap();
        write(&link, b"# ", b"# two").unwrap();
        assert_eq!(text(&file, 5).unwrap(), "# two");
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o660);
        assert!(link.is_symlink() && other.is_symlink());
        fs::set_permissions(&file, fs::Permissions::from_mode(0o444)).unwrap();
        assert!(write(&link, b"# ", b"# three").is_err() && text(&file, 5).unwrap() == "# two");
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 3, "no parts are left");
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    #[cfg(unix)]
    fn what_is_kept_takes_the_place_of_a_link_and_follows_none() {
        use std::os::unix::fs::symlink;
        let folder = std::env::temp_dir().join(format!("fusebox-files-planted-{}", process::id()));
        let [precious, link] = ["precious", "a.program"].map(|name| folder.join(name));
        keep(&precious, b"precious").unwrap();
        symlink(&precious, &link).unwrap();
        symlink(&precious, part_of(&link)).unwrap();
        assert_eq!(kept(&link), None, "a link is not followed");
        keep(&link, b"a program").unwrap();
        assert_eq!(fs::read(&precious).unwrap(), b"precious");
        assert!(!link.is_symlink());
        assert_eq!(kept(&link).as_deref(), Some(&b"a program"[..]));
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 2, "no parts are left");
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    #[cfg(unix)]
    fn only_what_is_this_users_alone_is_believed() {
        use std::os::unix::fs::PermissionsExt;
        let folder = std::env::temp_dir().join(format!("fusebox-files-own-{}", process::id()));
        let path = folder.join("deep").join("a.program");
        let set = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        keep(&path, b"a program").unwrap();
        let deep = path.parent().unwrap();
        assert_eq!(fs::metadata(deep).unwrap().permissions().mode() & 0o777, 0o700);
        assert!(kept(&path).is_some());
        set(&path, 0o666);
        assert_eq!(kept(&path), None, "others may have written the file");
        set(&path, 0o644);
        set(deep, 0o777);
        assert_eq!(kept(&path), None, "others may have put it there");
        assert_eq!(keep(&path, b"x").unwrap_err().to_string(), "others may write to the folder");
        set(deep, 0o755);
        assert!(kept(&path).is_some());
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn of_files_that_are_too_many_the_oldest_go() {
        let folder = std::env::temp_dir().join(format!("fusebox-files-many-{}", process::id()));
        let paths: Vec<PathBuf> = (0..4).map(|n| folder.join(format!("{n}.program"))).collect();
        for (age, path) in paths.iter().enumerate().rev() {
            keep(path, &[0; 10]).unwrap();
            let then = SystemTime::now() - std::time::Duration::from_secs(60 * (age as u64 + 1));
            File::options().append(true).open(path).unwrap().set_modified(then).unwrap();
        }
        keep(&folder.join("a.code"), &[0; 100]).unwrap();
        kept(&paths[3]).unwrap();
        prune(&paths[0], 25);
        let left: Vec<bool> = paths.iter().map(|path| path.exists()).collect();
        assert_eq!(left, [true, false, false, true], "the one that was read counts as new");
        assert!(folder.join("a.code").exists());
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn only_a_file_of_a_size_that_programs_have_was_kept() {
        let folder = std::env::temp_dir().join(format!("fusebox-files-kept-{}", process::id()));
        let path = folder.join("a.program");
        keep(&path, b"a program").unwrap();
        assert_eq!(kept(&path).as_deref(), Some(&b"a program"[..]));
        File::options().write(true).open(&path).unwrap().set_len(MAX_KEPT_BYTES + 1).unwrap();
        assert_eq!(kept(&path), None);
        fs::remove_dir_all(&folder).unwrap();
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
