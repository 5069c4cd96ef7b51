//! `fusebox doctor`: what this machine has, and what is missing.
//!
//! In: nothing. Out: the processor, memory, the folder of programs, devices and the default model, as text or as one
//! JSON object.

use std::fs::read_dir;
use std::path::Path;

use clap::Args;
use fusebox_compiler::codegen::cpu::level::Level;
use fusebox_compiler::foundation::amount::{bytes, counted};
use fusebox_compiler::foundation::table::table;
use serde_json::{Value, json};

use crate::devices::Device;
use crate::machine;
use crate::opening::{default_model, environment};
use crate::output::print;

/// How to tell.
#[derive(Args)]
pub(crate) struct Arguments {
    /// One JSON object instead of text.
    #[arg(long)]
    json: bool,
}

/// What was found.
struct Findings {
    processor: String,
    levels: Vec<&'static str>,
    level: Level,
    n_threads: usize,
    memory: Option<(u64, u64)>,
    cache: Option<String>,
    /// Programs in it, and their bytes.
    kept: (usize, u64),
    model: Result<String, String>,
}

/// Tells what was found.
pub(crate) fn run(arguments: &Arguments) -> Result<(), String> {
    let (options, level) = environment()?;
    let supported = Level::ALL.into_iter().filter(|level| level.is_supported());
    let findings = Findings {
        processor: machine::processor(),
        levels: supported.map(Level::name).collect(),
        level,
        n_threads: machine::n_threads(),
        memory: machine::memory(),
        kept: options.cache.as_deref().map_or((0, 0), kept),
        cache: options.cache,
        model: default_model().map(|path| path.display().to_string()),
    };
    print(&if arguments.json { format!("{:#}\n", findings.as_json()) } else { findings.as_text() });
    Ok(())
}

/// How many programs a folder holds, and their bytes.
fn kept(folder: &str) -> (usize, u64) {
    let files = read_dir(Path::new(folder)).into_iter().flatten().flatten();
    let sizes = files.filter(|file| file.path().extension().is_some_and(|ending| ending == "program"));
    let sizes = sizes.filter_map(|file| Some(file.metadata().ok()?.len()));
    sizes.fold((0, 0), |(n, sum), size| (n + 1, sum + size))
}

impl Findings {
    fn as_text(&self) -> String {
        let (n_kept, n_bytes) = self.kept;
        let cache = self.cache.as_ref().map_or_else(
            || "none: every start compiles anew".to_owned(),
            |folder| format!("{folder}, {}, {}", counted(n_kept, "program"), bytes(n_bytes as f64)),
        );
        let memory = self.memory.map_or_else(
            || "not told by this system".to_owned(),
            |(all, free)| format!("{}, {} free", bytes(all as f64), bytes(free as f64)),
        );
        let model = self.model.as_ref().map_or_else(Clone::clone, Clone::clone);
        let rows = [
            ["processor".to_owned(), self.processor.clone()],
            ["instructions".to_owned(), format!("{} (of {})", self.level, self.levels.join(", "))],
            ["threads".to_owned(), self.n_threads.to_string()],
            ["memory".to_owned(), memory],
            ["programs".to_owned(), cache],
            ["default model".to_owned(), model],
        ];
        let devices = Device::ALL.map(|device| {
            let state = device.missing().unwrap_or_else(|| device.describe());
            [format!("device {}", device.name()), state]
        });
        let rows: Vec<Vec<String>> = rows.into_iter().chain(devices).map(Vec::from).collect();
        table("ll", "  ", &rows)
    }

    fn as_json(&self) -> Value {
        let devices = Device::ALL.map(|device| {
            let missing = device.missing();
            json!({ "name": device.name(), "ready": missing.is_none(), "missing": missing })
        });
        json!({
            "processor": self.processor,
            "levels": self.levels,
            "level": self.level.name(),
            "threads": self.n_threads,
            "memory": self.memory.map(|(all, free)| json!({ "bytes": all, "free": free })),
            "cache": { "folder": self.cache, "programs": self.kept.0, "bytes": self.kept.1 },
            "devices": devices,
            "default_model": { "found": self.model.is_ok(), "path": self.model.as_ref().ok() },
        })
    }
}
