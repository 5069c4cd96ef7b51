//! Fetching: the files of a model, whole and with the right sums, or a sentence.
//!
//! In: a name and what the caller can run. Out: the path of the model. The architecture is read from the first bytes of
//! the file before the rest is fetched. A file that was begun goes on where it ended, in this process or in a later
//! one; two processes do not fetch the same content at once, and a disk that is too small is told before.

use std::fs::{self, File as Handle};
use std::io::{Read, Seek, SeekFrom, Write};
#[cfg(unix)]
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;
use std::{process, thread};

use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::cache::{Cache, REVISION, checked};
use crate::choose::{Chosen, File, choose};
use crate::disk::free_space;
use crate::error::Error;
use crate::gguf::{Head, head};
use crate::http::{Client, Fault};
use crate::name::Name;
use crate::settings::Settings;

/// How often a request is made again without a byte more.
const MAX_TRIES: u32 = 5;
/// The first wait between two tries; each is twice the one before.
const FIRST_WAIT: Duration = Duration::from_millis(500);
/// Bytes of the head of a file, at first and at most.
const HEAD_BYTES: [u64; 2] = [64 << 10, 32 << 20];
/// Bytes that are read at once.
const PIECE: usize = 1 << 18;
/// What stays free on the disk.
const RESERVE: u64 = 64 << 20;

/// What a caller wants to know, and decides.
pub trait Caller {
    /// Whether it can run models of an architecture, as a GGUF file or `config.json` names it; else a sentence.
    ///
    /// # Errors
    /// Says which architectures there are.
    fn check(&self, architecture: &str) -> Result<(), String>;
    /// The memory that a model may take.
    fn free_memory(&self) -> Option<u64>;
    /// A file begins, of which some bytes are here.
    fn begin(&mut self, file: &str, n_bytes: u64, n_here: u64);
    /// Bytes that came.
    fn advance(&mut self, n_bytes: u64);
    /// The file is whole.
    fn end(&mut self);
    /// Something to know.
    fn note(&mut self, text: &str);
}

/// A repository as the hub describes it.
#[derive(Deserialize)]
#[serde(expecting = "an object that describes a model")]
struct Repository {
    sha: String,
    #[serde(default)]
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Sibling {
    rfilename: String,
    #[serde(default)]
    size: Option<u64>,
    #[serde(default)]
    blob_id: Option<String>,
    #[serde(default)]
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    sha256: String,
    size: u64,
}

/// Fetches a model, or finds that it is here.
///
/// # Errors
/// One sentence that says what the hub, the network or the disk refuses.
pub fn fetch(name: &Name, settings: &Settings, caller: &mut dyn Caller) -> Result<PathBuf, Error> {
    let cache = settings.cache.clone().map(Cache::new);
    let cache = cache.ok_or_else(|| Error::new("there is no folder for models: set HF_HOME"))?;
    if settings.is_offline {
        return Err(Error::new(format!("{name} is not stored here, and HF_HUB_OFFLINE forbids to fetch it")));
    }
    let fetcher = Fetcher { client: Client::new(settings), cache, name };
    fetcher.fetch(caller).map_err(|error| Error::new(format!("{name}: {error}")))
}

/// One fetch.
struct Fetcher<'n> {
    client: Client,
    cache: Cache,
    name: &'n Name,
}

impl Fetcher<'_> {
    fn fetch(&self, caller: &mut dyn Caller) -> Result<PathBuf, Error> {
        let path = format!("/api/models/{}/revision/{REVISION}?blobs=true", self.name.repository());
        let text = patiently(caller, &mut || self.client.text(&path))?;
        let described: Repository = serde_json::from_str(&text)
            .map_err(|error| Error::new(format!("the hub's description is not as expected: {error}")))?;
        let commit = checked(&described.sha).ok_or_else(|| Error::new("the hub names no commit"))?;
        let files: Vec<File> = described.siblings.into_iter().filter_map(file).collect();
        let chosen = choose(&files, self.name.quant.as_deref(), caller.free_memory())?;
        self.check_architecture(&chosen, commit, caller)?;
        self.check_space(&chosen)?;
        let repository = self.cache.repository(self.name);
        let snapshot = repository.join("snapshots").join(commit);
        for file in &chosen.files {
            let blob = self.fetch_file(file, commit, caller)?;
            link(&blob, &snapshot.join(&file.path), &repository)?;
        }
        write(&repository.join("refs").join(REVISION), commit)?;
        Ok(if chosen.is_folder { snapshot } else { snapshot.join(&chosen.files[0].path) })
    }

    /// The address of a file.
    fn address(&self, file: &File, commit: &str) -> String {
        let path: String = file.path.bytes().map(percent_encoded).collect();
        format!("/{}/resolve/{commit}/{path}", self.name.repository())
    }

    /// Refuses a model that the caller cannot run, before it is fetched.
    fn check_architecture(
        &self,
        chosen: &Chosen,
        commit: &str,
        caller: &mut dyn Caller,
    ) -> Result<(), Error> {
        let address = self.address(&chosen.files[0], commit);
        if chosen.is_folder {
            let text = patiently(caller, &mut || self.client.text(&address))?;
            let config: serde_json::Value = serde_json::from_str(&text).map_err(|error| {
                Error::new(format!("config.json: expected JSON, which this is not: {error}"))
            })?;
            let found = config["model_type"].as_str().unwrap_or("none");
            return caller.check(found).map_err(Error::new);
        }
        let [mut n_bytes, most] = HEAD_BYTES;
        loop {
            let bytes = patiently(caller, &mut || self.client.head(&address, n_bytes))?;
            match head(&bytes) {
                Head::Known(found) => {
                    return caller.check(found.as_deref().unwrap_or("none")).map_err(Error::new);
                }
                Head::Other => return Err(Error::new(format!("{} is no GGUF file", chosen.files[0].path))),
                Head::NeedsMore if n_bytes < most && bytes.len() as u64 == n_bytes => n_bytes *= 8,
                Head::NeedsMore => {
                    return Err(Error::new(format!("{} has no whole head", chosen.files[0].path)));
                }
            }
        }
    }

    /// Refuses files that the disk has no room for.
    fn check_space(&self, chosen: &Chosen) -> Result<(), Error> {
        let blobs = self.cache.repository(self.name).join("blobs");
        let is_here = |file: &File| {
            let size = |path: PathBuf| fs::metadata(path).map_or(0, |about| about.len());
            size(blobs.join(blob_name(file))).max(size(partial(&blobs, file)))
        };
        let missing: u64 = chosen.files.iter().map(|file| file.size.saturating_sub(is_here(file))).sum();
        fs::create_dir_all(&blobs).map_err(|error| Error::at(&blobs, error))?;
        match free_space(&blobs) {
            Some(free) if missing > 0 && missing.saturating_add(RESERVE) > free => {
                let [missing, free] = [missing, free].map(|n| n as f64 / 1e9);
                let folder = self.cache.folder().display();
                Err(Error::new(format!(
                    "{missing:.2} GB are to be fetched, but {folder} has room for {free:.2} GB"
                )))
            }
            _ => Ok(()),
        }
    }

    /// The content of a file, fetched where it is not here.
    fn fetch_file(&self, file: &File, commit: &str, caller: &mut dyn Caller) -> Result<PathBuf, Error> {
        let repository = self.cache.repository(self.name);
        let blobs = repository.join("blobs");
        let blob = blobs.join(blob_name(file));
        let is_whole = || fs::metadata(&blob).is_ok_and(|about| about.len() == file.size);
        if is_whole() {
            return Ok(blob);
        }
        let _lock = self.lock(file, caller)?;
        if is_whole() {
            return Ok(blob);
        }
        let part = partial(&blobs, file);
        let mut handle = open_here(&part);
        let handle = handle.as_mut().map_err(|error| Error::at(&part, error))?;
        for is_second in [false, true] {
            let sum = self.fill(handle, &part, file, commit, caller)?;
            if file.sha256.as_ref().is_none_or(|expected| expected.eq_ignore_ascii_case(&sum)) {
                handle.sync_all().map_err(|error| Error::at(&part, error))?;
                fs::rename(&part, &blob).map_err(|error| Error::at(&blob, error))?;
                return Ok(blob);
            }
            // What was fetched by an earlier process may have been damaged: all of it comes again, once.
            handle.set_len(0).map_err(|error| Error::at(&part, error))?;
            if is_second {
                let _ = fs::remove_file(&part);
                let expected = file.sha256.as_deref().unwrap_or_default();
                return Err(Error::new(format!(
                    "{}: expected the SHA-256 {expected}, found {sum}",
                    file.path
                )));
            }
            caller.note(&format!("{}: the sum is wrong, it is fetched again", file.path));
        }
        unreachable!("the second round returns")
    }

    /// Fetches what a part lacks; returns the sum of all.
    fn fill(
        &self,
        handle: &mut Handle,
        part: &Path,
        file: &File,
        commit: &str,
        caller: &mut dyn Caller,
    ) -> Result<String, Error> {
        let address = self.address(file, commit);
        let at = |error: std::io::Error| Error::at(part, error);
        let mut n_here = handle.metadata().map_err(at)?.len();
        if n_here > file.size {
            handle.set_len(0).map_err(at)?;
            n_here = 0;
        }
        let mut sum = Sha256::new();
        handle.rewind().map_err(at)?;
        feed_existing(handle, n_here, &mut sum).map_err(at)?;
        caller.begin(&file.path, file.size, n_here);
        let (mut n_tries, mut wait) = (0, FIRST_WAIT);
        while n_here < file.size {
            let fault = match self.client.content(&address, n_here) {
                Ok(content) => {
                    if content.from != n_here {
                        // The server sends all of it.
                        handle.set_len(0).map_err(at)?;
                        (n_here, sum) = (0, Sha256::new());
                        caller.begin(&file.path, file.size, 0);
                    }
                    if content.from > n_here {
                        return Err(Error::new(format!("{}: the server sends another part", file.path)));
                    }
                    handle.seek(SeekFrom::Start(n_here)).map_err(at)?;
                    let before = n_here;
                    let mut reader = content.body.into_reader().take(file.size - n_here);
                    let end = copy(&mut reader, handle, &mut sum, &mut n_here, caller).map_err(at)?;
                    if n_here > before {
                        (n_tries, wait) = (0, FIRST_WAIT);
                    }
                    let cut = end.map_or_else(|| "the line was cut".to_owned(), |error| error.to_string());
                    Fault::Passing(Error::new(format!("{}: {cut}", file.path)), None)
                }
                Err(fault) => fault,
            };
            if n_here < file.size {
                n_tries += 1;
                wait = again(fault, n_tries, wait, caller)?;
            }
        }
        caller.end();
        Ok(format!("{:x}", sum.finalize()))
    }

    /// Waits until no other process fetches this content.
    fn lock(&self, file: &File, caller: &mut dyn Caller) -> Result<Handle, Error> {
        let folder = self.cache.folder().join(".locks").join(self.name.folder());
        fs::create_dir_all(&folder).map_err(|error| Error::at(&folder, error))?;
        let path = folder.join(format!("{}.lock", blob_name(file)));
        let lock = open_here(&path).map_err(|error| Error::at(&path, error))?;
        if lock.try_lock().is_err() {
            caller.note(&format!("{}: another process fetches it; waiting", file.path));
            lock.lock().map_err(|error| Error::at(&path, error))?;
        }
        Ok(lock)
    }
}

/// Makes a request until it is answered.
fn patiently<T>(caller: &mut dyn Caller, ask: &mut dyn FnMut() -> Result<T, Fault>) -> Result<T, Error> {
    let (mut n_tries, mut wait) = (0, FIRST_WAIT);
    loop {
        match ask() {
            Ok(answer) => return Ok(answer),
            Err(fault) => {
                n_tries += 1;
                wait = again(fault, n_tries, wait, caller)?;
            }
        }
    }
}

/// Waits before another try, or gives up; returns the next wait.
fn again(fault: Fault, n_tries: u32, wait: Duration, caller: &mut dyn Caller) -> Result<Duration, Error> {
    match fault {
        Fault::Passing(error, asked) if n_tries < MAX_TRIES => {
            let pause = asked.unwrap_or(wait);
            caller.note(&format!("{error}; trying again in {:.1} s", pause.as_secs_f64()));
            thread::sleep(pause);
            Ok(wait * 2)
        }
        fault => Err(fault.into_error()),
    }
}

/// Feeds the bytes that are here to the sum.
fn feed_existing(from: &mut Handle, n_bytes: u64, sum: &mut Sha256) -> std::io::Result<()> {
    let mut piece = vec![0; PIECE];
    let mut left = from.take(n_bytes);
    loop {
        match left.read(&mut piece)? {
            0 => return Ok(()),
            n => sum.update(&piece[..n]),
        }
    }
}

/// Copies a body to a file; the end of the body may be an error of the line, one of the file is returned as such.
fn copy(
    from: &mut impl Read,
    to: &mut Handle,
    sum: &mut Sha256,
    n_here: &mut u64,
    caller: &mut dyn Caller,
) -> std::io::Result<Option<std::io::Error>> {
    let mut piece = vec![0; PIECE];
    loop {
        match from.read(&mut piece) {
            Ok(0) => return Ok(None),
            Ok(n) => {
                to.write_all(&piece[..n])?;
                sum.update(&piece[..n]);
                *n_here += n as u64;
                caller.advance(n as u64);
            }
            Err(error) => return Ok(Some(error)),
        }
    }
}

/// A file of the hub's description, unless its name leads elsewhere.
fn file(sibling: Sibling) -> Option<File> {
    let path = Path::new(&sibling.rfilename);
    if !path.components().all(|part| matches!(part, Component::Normal(_))) || sibling.rfilename.contains('\\')
    {
        return None;
    }
    let (sha256, size) = match sibling.lfs {
        Some(lfs) => (Some(lfs.sha256), lfs.size),
        None => (None, sibling.size?),
    };
    let blob = sha256.clone().or(sibling.blob_id)?;
    checked(&blob)?;
    Some(File { path: sibling.rfilename, size, sha256, blob })
}

/// The name of a content.
fn blob_name(file: &File) -> &str {
    &file.blob
}

/// Where a content grows.
fn partial(blobs: &Path, file: &File) -> PathBuf {
    blobs.join(format!("{}.incomplete", blob_name(file)))
}

/// A byte of a path in an address.
fn percent_encoded(byte: u8) -> String {
    let c = char::from(byte);
    if c.is_ascii_alphanumeric() || "-._~/".contains(c) { c.to_string() } else { format!("%{byte:02X}") }
}

/// Makes a file of a snapshot: a link to its content, or that itself where there are no links. It is made beside its
/// place and moved there, so that another process may do the same.
fn link(blob: &Path, path: &Path, repository: &Path) -> Result<(), Error> {
    let folder = path.parent().unwrap_or(path);
    fs::create_dir_all(folder).map_err(|error| Error::at(folder, error))?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let made = &folder.join(format!(".{name}.{}", process::id()));
    let at = |error| Error::at(path, error);
    // One that was left by a process of the same number.
    let _ = fs::remove_file(made);
    #[cfg(unix)]
    {
        let below = folder.strip_prefix(repository).unwrap_or(folder);
        let up: PathBuf = below.components().map(|_| "..").collect();
        let target = up.join("blobs").join(blob.file_name().unwrap_or_default());
        std::os::unix::fs::symlink(target, made).map_err(at)?;
    }
    #[cfg(not(unix))]
    {
        let _ = repository;
        fs::hard_link(blob, made).or_else(|_| fs::copy(blob, made).map(|_| ())).map_err(at)?;
    }
    fs::rename(made, path).map_err(at)
}

/// Writes a small file whole, in the place of what has its name.
fn write(path: &Path, text: &str) -> Result<(), Error> {
    let folder = path.parent().unwrap_or(path);
    fs::create_dir_all(folder).map_err(|error| Error::at(folder, error))?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let made = &folder.join(format!(".{name}.{}", process::id()));
    // One that was left by a process of the same number.
    let _ = fs::remove_file(made);
    let written = Handle::create_new(made).and_then(|mut handle| handle.write_all(text.as_bytes()));
    written.and_then(|()| fs::rename(made, path)).map_err(|error| Error::at(path, error))
}

/// Opens a file of the cache, or makes it; a link in its place is refused, as it may lead anywhere.
fn open_here(path: &Path) -> std::io::Result<Handle> {
    let mut options = Handle::options();
    options.read(true).write(true).create(true).truncate(false);
    #[cfg(unix)]
    options.custom_flags(libc::O_NOFOLLOW);
    options.open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(unix)]
    fn links_in_the_cache_lead_to_nothing_that_is_written() {
        use std::os::unix::fs::symlink;
        let folder = std::env::temp_dir().join(format!("fusebox-hub-links-{}", process::id()));
        fs::create_dir_all(&folder).unwrap();
        let [precious, link] = ["precious", "link"].map(|name| folder.join(name));
        fs::write(&precious, "precious").unwrap();
        symlink(&precious, &link).unwrap();
        assert!(open_here(&link).is_err());
        symlink(&precious, folder.join(format!(".link.{}", process::id()))).unwrap();
        write(&link, "a commit").unwrap();
        assert_eq!(fs::read_to_string(&precious).unwrap(), "precious");
        assert_eq!(fs::read_to_string(&link).unwrap(), "a commit");
        assert!(!link.is_symlink());
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 2);
        fs::remove_dir_all(&folder).unwrap();
    }
}
