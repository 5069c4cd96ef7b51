//! Models by name: those that are stored, and those of the hub, in the cache that other tools share.
//!
//! In: `owner/name` with or without a quantisation, or the name of a stored model, and who hears of what is fetched.
//! Out: the path of a file.

use std::path::{Path, PathBuf};

use fusebox_hub::cache::Cache;
use fusebox_hub::fetch::{Caller, fetch};
use fusebox_hub::name::Name;
use fusebox_hub::settings::Settings;
use fusebox_models::load::check_architecture;

use crate::host;

/// Hears of nothing.
struct Silent;

impl Caller for Silent {
    fn check(&self, architecture: &str) -> Result<(), String> {
        check_architecture(architecture)
    }

    fn free_memory(&self) -> Option<u64> {
        host::memory().map(|(_, free)| free)
    }

    fn begin(&mut self, _: &str, _: u64, _: u64) {}

    fn advance(&mut self, _: u64) {}

    fn end(&mut self) {}

    fn note(&mut self, _: &str) {}
}

/// The path of the model of this name: one that is stored, or, for `owner/name`, one that is fetched now.
pub(crate) fn path_of(name: &Path) -> Result<Option<PathBuf>, String> {
    find(name, &mut Silent)
}

/// Whether a name is rather that of a file: by its ending, its beginning, or a folder that is there.
fn is_path(text: &str) -> bool {
    let lower = text.to_ascii_lowercase();
    let ends_so = [".gguf", ".safetensors"].iter().any(|ending| lower.ends_with(ending));
    let begins_so = ["/", "./", "../", "~"].iter().any(|beginning| text.starts_with(beginning));
    let folder = text.split_once('/').map(|(folder, _)| folder);
    ends_so || begins_so || folder.is_some_and(|folder| Path::new(folder).is_dir())
}

/// The same, and a caller hears of what is fetched.
///
/// # Errors
/// Where the name fits several stored models, or the model cannot be fetched.
pub fn find(name: &Path, caller: &mut dyn Caller) -> Result<Option<PathBuf>, String> {
    let Some(text) = name.to_str() else { return Ok(None) };
    let settings = Settings::from_env();
    let stored = match &settings.cache {
        Some(cache) => Cache::new(cache.clone()).find(text).map_err(|error| error.to_string())?,
        None => None,
    };
    if let Some(stored) = stored {
        return Ok(Some(stored.path));
    }
    if is_path(text) {
        return Ok(None);
    }
    let Some(name) = Name::parse(text) else { return Ok(None) };
    let path = fetch(&name, &settings, caller);
    caller.end();
    Ok(Some(path.map_err(|error| error.to_string())?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_looks_like_a_file_is_not_asked_for() {
        for text in ["x/y.gguf", "x/y.safetensors", "./x", "../x/y", "/x/y", "~/x", "src/nothing", "X/Y.GGUF"]
        {
            assert!(is_path(text), "{text}");
        }
        for text in ["Qwen/Qwen3-0.6B-GGUF:Q8_0", "owner/name", "hf.co/owner/name", "stored"] {
            assert!(!is_path(text), "{text}");
        }
    }
}
