//! Results on disk: one JSON file a run of `fusebox bench --save`, for pictures and comparisons made later.
//!
//! In: a folder, and what was measured. Out: a file named for the time, with the commit, the command line, the model,
//! the machine and every test. No file is ever replaced.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use fusebox::files;
use fusebox::host;
use fusebox::open::Opened;
use fusebox::template::strftime;
use serde_json::{Map, Value, json};

use crate::explain::inspect;

/// The version of the keys.
const SCHEMA: u64 = 1;
/// How every such file begins.
const BEGIN: &[u8] = b"{\n  \"";
/// The most files of one second.
const MAX_FILES: usize = 1000;

/// What a file says about where it comes from.
pub(crate) struct Run<'r> {
    pub(crate) opened: &'r Opened,
    /// The device in words, as it describes itself.
    pub(crate) device: String,
    /// The values of all flags, those that were not typed too.
    pub(crate) flags: Value,
}

/// The commit that this program is built from; none where that is unknown. A `+` after it stands for changed files.
pub(crate) fn commit() -> Option<&'static str> {
    Some(env!("FUSEBOX_COMMIT")).filter(|commit| !commit.is_empty())
}

/// Writes a file into a folder; `more` are the results.
pub(crate) fn save(folder: &Path, run: &Run<'_>, more: Map<String, Value>) -> Result<PathBuf, String> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() as i64;
    let mut object = run.to_json(now);
    object.extend(more);
    let path = free_name(folder, now)?;
    let text = format!("{:#}\n", Value::Object(object));
    files::write(&path, BEGIN, text.as_bytes()).map_err(|error| error.to_string())?;
    Ok(path)
}

/// The name of a file that is not there yet.
fn free_name(folder: &Path, now: i64) -> Result<PathBuf, String> {
    // Colons are no part of a name on every system.
    let time = strftime::format(now, "%Y-%m-%dT%H-%M-%SZ");
    let name = |n: usize| if n == 0 { format!("{time}.json") } else { format!("{time}-{n}.json") };
    let mut paths = (0..MAX_FILES).map(|n| folder.join(name(n)));
    paths.find(|path| !path.exists()).ok_or_else(|| format!("{}: too many files", folder.display()))
}

impl Run<'_> {
    fn to_json(&self, now: i64) -> Map<String, Value> {
        let checkpoint = self.opened.model.checkpoint();
        let formats = inspect::totals(checkpoint).into_iter();
        let formats = formats.map(|total| json!({ "format": total.format, "bytes": total.n_bytes }));
        let arguments = std::env::args_os().skip(1).map(|argument| argument.to_string_lossy().into_owned());
        let head = [
            ("schema", json!(SCHEMA)),
            ("date", json!(strftime::format(now, "%Y-%m-%dT%H:%M:%SZ"))),
            ("version", json!(env!("CARGO_PKG_VERSION"))),
            ("commit", json!(commit())),
            ("command", arguments.collect()),
            ("flags", self.flags.clone()),
            (
                "model",
                json!({
                    "path": self.opened.path().to_string_lossy(),
                    "architecture": checkpoint.architecture(),
                    "bytes": inspect::n_bytes(checkpoint),
                    "formats": formats.collect::<Vec<_>>(),
                }),
            ),
            ("device", json!(self.device)),
            (
                "machine",
                json!({
                    "system": std::env::consts::OS,
                    "architecture": std::env::consts::ARCH,
                    "processor": host::processor(),
                    "threads": host::n_threads(),
                    "memory": host::memory().map(|(total, _)| total),
                }),
            ),
            ("memory", json!({ "rss": host::rss(), "peak_rss": host::peak_rss() })),
        ];
        head.map(|(key, value)| (key.to_owned(), value)).into_iter().collect()
    }
}
