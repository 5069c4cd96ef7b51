//! `fusebox doctor`: what this machine has, and what is missing.
//!
//! In: nothing. Out: the processor, memory, the program cache, devices with the rates that programs are compiled for,
//! and the default model, as text or as one JSON object.

use std::fs::{read_dir, remove_file};
use std::io;
use std::path::{Path, PathBuf};

use clap::Args;
use fusebox::devices::Device;
use fusebox::files;
use fusebox::host::{self, DataCache};
use fusebox::open::{default_model_places, environment, levels, target_of};
use fusebox::text::amount::{bytes, counted};
use fusebox::text::table::table;
use fusebox_compiler::simd::Level;
use fusebox_compiler::target::Target;
use fusebox_runtime::device::Found;
use serde_json::{Value, json};

use crate::terminal::output::print;

/// How to print it.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Print one JSON object instead of text.
    #[arg(long)]
    json: bool,
}

/// What was found.
struct Findings {
    processor: String,
    levels: Vec<&'static str>,
    level: Level,
    n_threads: usize,
    caches: Vec<DataCache>,
    memory: Option<(u64, u64)>,
    cache: Option<String>,
    files_of_cache: CacheFiles,
    /// The copy of the default model, or where the first run writes it.
    model: Option<PathBuf>,
    devices: [(Device, Result<Ready, String>); 4],
}

/// A device that is here.
struct Ready {
    adapters: Vec<Found>,
    /// What its programs are compiled for.
    target: Target,
}

/// What the folder of the program cache holds.
#[derive(Default)]
struct CacheFiles {
    n_programs: usize,
    /// CUDA kernels whose machine code is cached.
    n_kernels: usize,
    /// Size of both.
    bytes: u64,
    /// Why the folder is not writable.
    fault: Option<String>,
}

/// Prints what was found.
pub(crate) fn run(arguments: &Arguments) -> Result<(), String> {
    let (options, level) = environment()?;
    let ready = |device: Device| {
        let adapters = device.adapters()?;
        Ok(Ready { adapters, target: target_of(&options, device) })
    };
    let findings = Findings {
        // The rates of the processor are kept in the folder, which is looked into afterwards.
        devices: Device::ALL.map(|device| (device, ready(device))),
        processor: host::processor(),
        levels: levels().map(Level::name).collect(),
        level,
        n_threads: host::n_threads(),
        caches: host::caches(),
        memory: host::memory(),
        files_of_cache: options.cache.as_deref().map(cached).unwrap_or_default(),
        model: default_model_places(options.cache.as_deref()).next(),
        cache: options.cache,
    };
    print(&if arguments.json { format!("{:#}\n", findings.to_json()) } else { findings.to_text() });
    Ok(())
}

/// Counts the files of a cache folder.
fn cached(folder: &str) -> CacheFiles {
    let fault = check_writable(Path::new(folder)).err().map(|fault| fault.to_string());
    let mut files_of_cache = CacheFiles { fault, ..CacheFiles::default() };
    for file in read_dir(Path::new(folder)).into_iter().flatten().flatten() {
        let path = file.path();
        let n = match path.extension().and_then(|ending| ending.to_str()) {
            Some("program") => &mut files_of_cache.n_programs,
            Some("code") => &mut files_of_cache.n_kernels,
            Some(_) | None => continue,
        };
        let Ok(metadata) = file.metadata() else { continue };
        *n += 1;
        files_of_cache.bytes += metadata.len();
    }
    files_of_cache
}

/// Checks that a folder is writable: writes a file as the cache does, and removes it.
fn check_writable(folder: &Path) -> io::Result<()> {
    let probe = files::part_of(&folder.join("doctor"));
    files::keep(&probe, b"a program").and_then(|()| remove_file(&probe))
}

impl Findings {
    fn to_text(&self) -> String {
        let CacheFiles { n_programs, n_kernels, bytes: n_bytes, fault } = &self.files_of_cache;
        let (programs, kernels) =
            (counted(*n_programs, "program"), counted(*n_kernels, "compiled CUDA kernel"));
        let fault = fault.as_ref().map_or_else(String::new, |fault| format!("; not writable: {fault}"));
        let cache = self.cache.as_ref().map_or_else(
            || "off: every start compiles again".to_owned(),
            |folder| {
                let n_bytes = bytes(*n_bytes as f64);
                format!("{folder}, {programs}, {kernels}, {n_bytes}{fault}")
            },
        );
        let memory = self.memory.map_or_else(
            || "unknown on this system".to_owned(),
            |(all, free)| format!("{}, {} free", bytes(all as f64), bytes(free as f64)),
        );
        let place =
            self.model.as_ref().map_or_else(String::new, |path| format!(", mapped from {}", path.display()));
        let model = format!("part of this program{place}");
        let rows = [
            ["processor".to_owned(), self.processor.clone()],
            ["instruction set".to_owned(), format!("{} (supported: {})", self.level, self.levels.join(", "))],
            ["threads".to_owned(), self.n_threads.to_string()],
            ["caches".to_owned(), caches_in_words(&self.caches)],
            ["memory".to_owned(), memory],
            ["program cache".to_owned(), cache],
            ["default model".to_owned(), model],
        ];
        let devices = self.devices.iter().map(|(device, ready)| {
            let state = ready.as_ref().map_or_else(Clone::clone, Ready::in_words);
            [format!("device {}", device.name()), state]
        });
        let rows: Vec<Vec<String>> = rows.into_iter().chain(devices).map(Vec::from).collect();
        table("ll", "  ", &rows)
    }

    fn to_json(&self) -> Value {
        let devices = self.devices.iter().map(|(device, ready)| {
            let found = ready.as_ref().ok();
            let target = found.map(|ready| ready.target);
            let adapter = |found: &Found| json!({ "name": found.name, "software": found.is_software });
            json!({
                "name": device.name(),
                "ready": ready.is_ok(),
                "missing": ready.as_ref().err(),
                "adapters": found.iter().flat_map(|ready| &ready.adapters).map(adapter).collect::<Vec<_>>(),
                "target": target.map(|target| target.to_string()),
                "compute_units": target.map(|target| target.rates.compute_units),
                "bandwidth_gb_s": target.map(|target| target.gigabytes()),
            })
        });
        let cache = |cache: &DataCache| {
            let DataCache { level, bytes, n_sharing } = cache;
            json!({ "level": level, "bytes": bytes, "threads": n_sharing })
        };
        json!({
            "processor": self.processor,
            "levels": self.levels,
            "level": self.level.name(),
            "threads": self.n_threads,
            "caches": self.caches.iter().map(cache).collect::<Vec<_>>(),
            "memory": self.memory.map(|(all, free)| json!({ "bytes": all, "free": free })),
            "cache": {
                "folder": self.cache,
                "programs": self.files_of_cache.n_programs,
                "cuda_kernels": self.files_of_cache.n_kernels,
                "bytes": self.files_of_cache.bytes,
                "fault": self.files_of_cache.fault,
            },
            "devices": devices.collect::<Vec<_>>(),
            "default_model": { "found": true, "path": self.model },
        })
    }
}

impl Ready {
    /// The adapters, and what is compiled for.
    fn in_words(&self) -> String {
        let name =
            |it: &Found| if it.is_software { format!("{}, in software", it.name) } else { it.name.clone() };
        let names: Vec<String> = self.adapters.iter().map(name).collect();
        let names = if names.is_empty() { String::new() } else { format!(": {}", names.join("; ")) };
        let units = counted(self.target.rates.compute_units, "compute unit");
        let gigabytes = self.target.gigabytes();
        format!("ready{names}; compiled for {} ({units}, {gigabytes} GB/s)", self.target)
    }
}

/// The caches of a thread, the nearest first.
fn caches_in_words(caches: &[DataCache]) -> String {
    if caches.is_empty() {
        return "unknown on this system".to_owned();
    }
    let words = |cache: &DataCache| format!("L{} {}", cache.level, bytes(cache.bytes as f64));
    caches.iter().map(words).collect::<Vec<_>>().join(", ")
}
