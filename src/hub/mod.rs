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
    let Some(name) = Name::parse(text) else { return Ok(None) };
    let path = fetch(&name, &settings, caller);
    caller.end();
    Ok(Some(path.map_err(|error| error.to_string())?))
}
