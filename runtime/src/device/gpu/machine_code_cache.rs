//! A cache of machine code on disk, so that no kernel is compiled twice.
//!
//! In: a key of everything that machine code is made of, and the code. Out: the code, where an earlier start cached it.
//! A file that is truncated, damaged or of another key counts as missing, and is replaced. A folder that cannot be
//! written costs nothing but the time of the next start. The checksum finds damage, not forgery: whoever may write into
//! the folder decides what a GPU runs.

use std::path::PathBuf;

use fusebox_compiler::program::Key;

use crate::files;

/// Who writes the cache, and chooses what a compiler makes.
pub(super) const MAKER: &str = concat!("fusebox ", env!("CARGO_PKG_VERSION"));

/// A folder of machine code, or none.
pub(super) struct MachineCodeCache {
    folder: Option<PathBuf>,
}

impl MachineCodeCache {
    /// A cache in this folder, which is made when needed; without one nothing is cached.
    pub(super) fn new(folder: Option<PathBuf>) -> Self {
        Self { folder }
    }

    /// The machine code of a key.
    pub(super) fn read(&self, key: Key) -> Option<Vec<u8>> {
        let bytes = files::kept(&self.path(key)?)?;
        // Every header is equally long.
        let (found, code) = bytes.split_at_checked(head(key, &[]).len())?;
        (found == head(key, code).as_bytes()).then(|| code.to_vec())
    }

    /// Caches machine code.
    pub(super) fn write(&self, key: Key, code: &[u8]) {
        let Some(path) = self.path(key) else { return };
        let bytes = [head(key, code).as_bytes(), code].concat();
        // Failing is no loss.
        let _ = files::keep(&path, &bytes);
    }

    fn path(&self, key: Key) -> Option<PathBuf> {
        Some(self.folder.as_ref()?.join(format!("{key}.code")))
    }
}

/// The header of a file: its maker, the key, and a checksum of the code.
fn head(key: Key, code: &[u8]) -> String {
    format!("machine code, kept by {MAKER}\nkey {key}\nsum {}\n", Key::of_bytes(code))
}

#[cfg(test)]
mod tests {
    use std::env::temp_dir;
    use std::process;

    use std::fs;

    use super::*;

    #[test]
    fn machine_code_is_found_again_and_other_bytes_are_none() {
        let folder = temp_dir().join(format!("fusebox-kept-{}", process::id()));
        let kept = MachineCodeCache::new(Some(folder.join("below")));
        let (key, other) = (Key::of_bytes(b"a source"), Key::of_bytes(b"another"));
        assert_eq!(kept.read(key), None);
        kept.write(key, b"code\n\xff\n");
        assert_eq!(kept.read(key).as_deref(), Some(&b"code\n\xff\n"[..]));
        assert_eq!(kept.read(other), None);
        let [path, path_of_other] = [key, other].map(|key| kept.path(key).unwrap());
        let bytes = fs::read(&path).unwrap();
        fs::write(&path_of_other, &bytes).unwrap();
        assert_eq!(kept.read(other), None, "it is of another source");
        for end in 0..bytes.len() {
            fs::write(&path, &bytes[..end]).unwrap();
            assert_eq!(kept.read(key), None, "{end} bytes");
        }
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            fs::write(&path, damaged).unwrap();
            assert_eq!(kept.read(key), None, "byte {at}");
        }
        kept.write(key, b"");
        assert_eq!(kept.read(key).as_deref(), Some(&b""[..]), "what is damaged is replaced");
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn without_a_folder_nothing_is_kept_and_nothing_goes_wrong() {
        let key = Key::of_bytes(b"a source");
        let file = temp_dir().join(format!("fusebox-kept-file-{}", process::id()));
        fs::write(&file, b"no folder").unwrap();
        for folder in [None, Some(file.clone())] {
            let kept = MachineCodeCache::new(folder);
            kept.write(key, b"code");
            assert_eq!(kept.read(key), None);
        }
        assert_eq!(fs::read(&file).unwrap(), b"no folder");
        fs::remove_file(&file).unwrap();
    }
}
