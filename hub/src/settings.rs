//! Where the hub is and where its cache lies: the variables that Hugging Face's tools read.
//!
//! In: the environment. Out: settings. `HF_ENDPOINT` is the server, `HF_TOKEN` or the file `token` who asks,
//! `HF_HUB_CACHE`, `HF_HOME` or `XDG_CACHE_HOME` where files lie, and `HF_HUB_OFFLINE` forbids the network.

use std::path::PathBuf;
use std::{env, fs};

/// The server, unless `HF_ENDPOINT` names another.
const ENDPOINT: &str = "https://huggingface.co";

/// The settings.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The address of the server, without a slash at its end.
    pub endpoint: String,
    /// The token of the user, which only that server sees.
    pub token: Option<String>,
    /// The folder of all repositories.
    pub cache: Option<PathBuf>,
    /// Whether the network is forbidden.
    pub is_offline: bool,
}

impl Settings {
    /// The settings of this process.
    #[expect(clippy::disallowed_methods, reason = "these are no knobs of ours")]
    pub fn from_env() -> Self {
        let text = |name: &str| {
            env::var(name).ok().map(|text| text.trim().to_owned()).filter(|text| !text.is_empty())
        };
        let folder = |name: &str| text(name).map(PathBuf::from).filter(|folder| folder.is_absolute());
        let caches = || {
            folder("XDG_CACHE_HOME")
                .or_else(|| Some(folder("HOME").or_else(|| folder("USERPROFILE"))?.join(".cache")))
        };
        let home = folder("HF_HOME").or_else(|| Some(caches()?.join("huggingface")));
        let kept_token = || fs::read_to_string(home.as_ref()?.join("token")).ok();
        let token = text("HF_TOKEN").or_else(kept_token).map(|token| token.trim().to_owned());
        let is_on = |name: &str| {
            text(name)
                .is_some_and(|text| ["1", "on", "yes", "true"].contains(&text.to_ascii_lowercase().as_str()))
        };
        let endpoint = text("HF_ENDPOINT").unwrap_or_else(|| ENDPOINT.to_owned());
        Self {
            endpoint: endpoint.trim_end_matches('/').to_owned(),
            token: token.filter(|token| !token.is_empty()),
            cache: folder("HF_HUB_CACHE").or_else(|| Some(home?.join("hub"))),
            is_offline: is_on("HF_HUB_OFFLINE"),
        }
    }
}
