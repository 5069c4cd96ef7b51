//! Files that other programs wrote, where this machine has them.
//!
//! In: every GGUF file, every folder of Transformers and every qwen3.c checkpoint among the oracles. Out:
//! tensors whose bytes are there and decode to numbers.

use std::fs;
use std::path::{Path, PathBuf};

use fusebox_runtime::weights::{Checkpoint, Stored};
use support::oracles;

use crate::is_whole;

/// How many tensors of a file are decoded.
const N_DECODED: usize = 6;

/// Every checkpoint below a folder, sorted.
fn checkpoints(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("the folder of the oracles is readable");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("a readable entry").path()).collect();
    paths.sort();
    let below = |path: PathBuf| {
        let is_folder = path.is_dir() && !path.ends_with("hf");
        if is_folder { checkpoints(&path) } else { vec![path] }
    };
    let is_checkpoint =
        |path: &PathBuf| path.ends_with("hf") || path.extension().is_some_and(|e| e == "gguf" || e == "bin");
    paths.into_iter().flat_map(below).filter(is_checkpoint).collect()
}

#[test]
fn files_of_other_programs_are_read() {
    let Some(folder) = oracles::folder() else { return };
    let paths = checkpoints(&folder);
    for kind in ["gguf", "hf", "bin"] {
        assert!(paths.iter().any(|path| path.to_string_lossy().ends_with(kind)), "no {kind}");
    }
    for path in paths {
        let checkpoint = Checkpoint::open(&path).unwrap_or_else(|error| panic!("{error}"));
        assert!(checkpoint.architecture().is_some(), "{}", path.display());
        assert!(!checkpoint.tensors().is_empty() && is_whole(&checkpoint), "{}", path.display());
        for (name, tensor) in checkpoint.tensors().iter().take(N_DECODED) {
            let Stored::As(format) = tensor.stored else { panic!("{}: {name}", path.display()) };
            let bytes = checkpoint.bytes(name).expect("the checkpoint is whole");
            let numbers = format.decode_all(bytes, tensor.n_elements()).expect("the bytes are enough");
            assert!(numbers.iter().all(|x| x.is_finite()), "{}: {name}", path.display());
            assert!(
                numbers.iter().any(|x| *x != 0.0) || name.ends_with("bias"),
                "{}: {name}",
                path.display()
            );
        }
    }
}
