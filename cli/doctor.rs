//! `fusebox doctor`: what this machine has, and what is missing.
//!
//! In: nothing. Out: the processor, memory, the folder of what is kept, devices and the default model, as text or as
//! one JSON object.

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
    kept: Kept,
    model: Result<String, String>,
}

/// What the folder of the cache holds.
#[derive(Default)]
struct Kept {
    n_programs: usize,
    /// Kernels that machine code of CUDA is kept of.
    n_kernels: usize,
    /// The bytes of both.
    bytes: u64,
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
        kept: options.cache.as_deref().map(kept).unwrap_or_default(),
        cache: options.cache,
        model: default_model().map(|path| path.display().to_string()),
    };
    print(&if arguments.json { format!("{:#}\n", findings.as_json()) } else { findings.as_text() });
    Ok(())
}

/// What a folder holds.
fn kept(folder: &str) -> Kept {
    let mut kept = Kept::default();
    for file in read_dir(Path::new(folder)).into_iter().flatten().flatten() {
        let path = file.path();
        let n = match path.extension().and_then(|ending| ending.to_str()) {
            Some("program") => &mut kept.n_programs,
            Some("code") => &mut kept.n_kernels,
            Some(_) | None => continue,
        };
        let Ok(about) = file.metadata() else { continue };
        *n += 1;
        kept.bytes += about.len();
    }
    kept
}

impl Findings {
    fn as_text(&self) -> String {
        let Kept { n_programs, n_kernels, bytes: n_bytes } = self.kept;
        let (programs, kernels) = (counted(n_programs, "program"), counted(n_kernels, "CUDA kernel"));
        let cache = self.cache.as_ref().map_or_else(
            || "none: every start compiles anew".to_owned(),
            |folder| format!("{folder}, {programs}, machine code of {kernels}, {}", bytes(n_bytes as f64)),
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
            "cache": {
                "folder": self.cache,
                "programs": self.kept.n_programs,
                "cuda_kernels": self.kept.n_kernels,
                "bytes": self.kept.bytes,
            },
            "devices": devices,
            "default_model": { "found": self.model.is_ok(), "path": self.model.as_ref().ok() },
        })
    }
}
