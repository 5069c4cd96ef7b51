//! Makes a fingerprint of the compiler's own sources: programs of another compiler are never taken from a cache.
//! Block formats and micro-kernels are part of it; a package, which is without them, wants exactly one version of each.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::{fs, io};

fn main() -> io::Result<()> {
    let mut files = BTreeMap::new();
    for sources in ["src", "formats/src", "simd/src"] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(sources);
        if folder.exists() {
            println!("cargo::rerun-if-changed={sources}");
            collect(&folder, sources, &mut files)?;
        }
    }
    let mut hasher = DefaultHasher::new();
    files.hash(&mut hasher);
    println!("cargo::rustc-env=FUSEBOX_COMPILER={:016x}", hasher.finish());
    Ok(())
}

/// The contents of all files below a folder, by their names below it.
fn collect(folder: &Path, below: &str, files: &mut BTreeMap<String, Vec<u8>>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = format!("{below}/{}", entry.file_name().to_string_lossy());
        if entry.file_type()?.is_dir() {
            collect(&entry.path(), &name, files)?;
        } else {
            files.insert(name, fs::read(entry.path())?);
        }
    }
    Ok(())
}
