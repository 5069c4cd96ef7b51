//! Machine code kept on disk, so that what was compiled once is not compiled again.
//!
//! In: the key of all that machine code is made of, and once it was made, the code. Out: the code, where an earlier
//! start kept it. A file that is cut off, damaged or not what it says is as good as none, and is replaced.
//! A folder that cannot be written changes nothing but the time the next start takes.
//! A sum finds damage and no forgery: whoever may write into the folder says what a GPU runs.

use std::path::PathBuf;

use fusebox_compiler::program::Key;

use crate::files;

/// What keeps machine code, and chooses among what a compiler makes.
pub(super) const MAKER: &str = concat!("fusebox ", env!("CARGO_PKG_VERSION"));

/// A folder of machine code, or none.
pub(super) struct Kept {
    folder: Option<PathBuf>,
}

impl Kept {
    /// What is kept in this folder, which is made when it is needed; without one nothing is.
    pub(super) fn new(folder: Option<PathBuf>) -> Self {
        Self { folder }
    }

    /// The machine code of this key.
    pub(super) fn read(&self, key: Key) -> Option<Vec<u8>> {
        let bytes = files::kept(&self.path(key)?)?;
        // Every head is as long as any other.
        let (found, code) = bytes.split_at_checked(head(key, &[]).len())?;
        (found == head(key, code).as_bytes()).then(|| code.to_vec())
    }

    /// Keeps machine code.
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

/// What stands above machine code: who kept it, what it was made of, and the sum of what follows.
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
        let kept = Kept::new(Some(folder.join("below")));
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
            let kept = Kept::new(folder);
            kept.write(key, b"code");
            assert_eq!(kept.read(key), None);
        }
        assert_eq!(fs::read(&file).unwrap(), b"no folder");
        fs::remove_file(&file).unwrap();
    }
}
