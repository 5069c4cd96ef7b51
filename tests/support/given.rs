//! Files of the repository that tests read.

use std::path::PathBuf;

use tree::root;

/// The default model.
pub fn story() -> PathBuf {
    root().join("assets/story.gguf")
}

/// What was recorded, by the name of its file.
pub fn fixture(name: &str) -> PathBuf {
    root().join("tests/fixtures").join(name)
}
