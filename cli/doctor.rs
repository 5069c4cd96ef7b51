//! `fusebox doctor`: what this machine has, and what is missing.
//!
//! In: nothing. Out: the processor, memory, the folder of what is kept, devices and the default model, as text or as
//! one JSON object.

use std::fs::{read_dir, remove_file};
use std::io;
use std::path::Path;

use clap::Args;
use fusebox_compiler::codegen::cpu::level::Level;
use fusebox_compiler::foundation::amount::{bytes, counted};
use fusebox_compiler::foundation::table::table;
use fusebox_runtime::device::Found;
use fusebox_runtime::files;
use serde_json::{Value, json};

use crate::devices::Device;
use crate::machine;
use crate::opening::{default_model, environment, levels};
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
    devices: [(Device, Result<Vec<Found>, String>); 4],
}

/// What the folder of the cache holds.
#[derive(Default)]
struct Kept {
    n_programs: usize,
    /// Kernels that machine code of CUDA is kept of.
    n_kernels: usize,
    /// The bytes of both.
    bytes: u64,
    /// Why nothing can be added.
    fault: Option<String>,
}

/// Tells what was found.
pub(crate) fn run(arguments: &Arguments) -> Result<(), String> {
    let (options, level) = environment()?;
    let findings = Findings {
        processor: machine::processor(),
        levels: levels().map(Level::name).collect(),
        level,
        n_threads: machine::n_threads(),
        memory: machine::memory(),
        kept: options.cache.as_deref().map(kept).unwrap_or_default(),
        cache: options.cache,
        model: default_model().map(|path| path.display().to_string()),
        devices: Device::ALL.map(|device| (device, device.adapters())),
    };
    print(&if arguments.json { format!("{:#}\n", findings.as_json()) } else { findings.as_text() });
    Ok(())
}

/// What a folder holds.
fn kept(folder: &str) -> Kept {
    let fault = written(Path::new(folder)).err().map(|fault| fault.to_string());
    let mut kept = Kept { fault, ..Kept::default() };
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

/// Writes a file into a folder as what is kept there is, and takes it away again.
fn written(folder: &Path) -> io::Result<()> {
    let own = files::part_of(&folder.join("doctor"));
    files::keep(&own, b"a program").and_then(|()| remove_file(&own))
}

impl Findings {
    fn as_text(&self) -> String {
        let Kept { n_programs, n_kernels, bytes: n_bytes, fault } = &self.kept;
        let (programs, kernels) = (counted(*n_programs, "program"), counted(*n_kernels, "CUDA kernel"));
        let fault =
            fault.as_ref().map_or_else(String::new, |fault| format!("; cannot be written to: {fault}"));
        let cache = self.cache.as_ref().map_or_else(
            || "none: every start compiles anew".to_owned(),
            |folder| {
                let n_bytes = bytes(*n_bytes as f64);
                format!("{folder}, {programs}, machine code of {kernels}, {n_bytes}{fault}")
            },
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
        let devices = self.devices.iter().map(|(device, adapters)| {
            let state = adapters.as_ref().map_or_else(Clone::clone, |adapters| ready(adapters));
            [format!("device {}", device.name()), state]
        });
        let rows: Vec<Vec<String>> = rows.into_iter().chain(devices).map(Vec::from).collect();
        table("ll", "  ", &rows)
    }

    fn as_json(&self) -> Value {
        let devices = self.devices.iter().map(|(device, adapters)| {
            let adapter = |found: &Found| json!({ "name": found.name, "software": found.is_software });
            json!({
                "name": device.name(),
                "ready": adapters.is_ok(),
                "missing": adapters.as_ref().err(),
                "adapters": adapters.iter().flatten().map(adapter).collect::<Vec<_>>(),
            })
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
                "fault": self.kept.fault,
            },
            "devices": devices.collect::<Vec<_>>(),
            "default_model": { "found": self.model.is_ok(), "path": self.model.as_ref().ok() },
        })
    }
}

/// That a device is there, and what it runs on.
fn ready(adapters: &[Found]) -> String {
    let name =
        |it: &Found| if it.is_software { format!("{}, in software", it.name) } else { it.name.clone() };
    let names: Vec<String> = adapters.iter().map(name).collect();
    if names.is_empty() { "ready".to_owned() } else { format!("ready: {}", names.join("; ")) }
}
