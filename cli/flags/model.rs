//! The flags that commands on models share: which model, on which device, in which precision.
//!
//! In: flags. Out: a model that the library has opened, with notes and bars for people.

use std::io::{IsTerminal, stderr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::{Args, ValueEnum};
use fusebox::graph::Format;
use fusebox::open::{self, AUTO, Opened, Purpose};
use fusebox::text::amount::bytes;
use fusebox::watch::{Event, Watch, unwatched};
use fusebox::{KvPool, Run};
use serde_json::Value;

use crate::flags::adapters::AdapterFlags;
#[cfg(feature = "hub")]
use crate::flags::fetch;
use crate::terminal::output::note;
use crate::terminal::progress::{Progress, overwrite};

/// From this size on, an upload of weights is noted even where standard error is no terminal.
const LARGE_UPLOAD: usize = 1 << 30;

/// Which model, on which device, in which precision.
#[derive(Args)]
pub(crate) struct ModelFlags {
    /// The model: a GGUF file, a safetensors file or folder, a qwen3.c checkpoint, a Qorus file, a stored model, or
    /// owner/name on the hub [default: a small built-in story model].
    #[arg(short, long, value_name = "MODEL")]
    model: Option<PathBuf>,
    #[command(flatten)]
    device: DeviceFlags,
    #[command(flatten)]
    adapters: AdapterFlags,
}

/// The same, with the model as the first argument or behind `-m`.
#[derive(Args)]
pub(crate) struct NamedModel {
    /// The model, as -m names it.
    #[arg(value_name = "MODEL", conflicts_with = "model")]
    place: Option<PathBuf>,
    #[command(flatten)]
    flags: ModelFlags,
}

/// On which device, in which precision.
#[derive(Args, Clone)]
pub(crate) struct DeviceFlags {
    /// Device to run on: auto, cpu, cuda, vulkan or metal.
    #[arg(long, value_name = "NAME", default_value = AUTO)]
    device: String,
    /// Limit of GPU memory to use, in MiB [default: all that is free].
    #[arg(long, value_name = "MIB")]
    gpu_memory: Option<usize>,
    /// Compute in single precision (f32) throughout, KV cache included.
    #[arg(long)]
    precise: bool,
    /// Data type of the KV cache [default: f16, with --precise f32].
    #[arg(long, value_name = "TYPE", ignore_case = true)]
    kv_type: Option<KvType>,
    /// Tokens of a page of the KV cache, a power of two from 16 to 1024 [default: 64].
    #[arg(long, value_name = "N", alias = "block-size")]
    page_size: Option<usize>,
}

impl Default for DeviceFlags {
    fn default() -> Self {
        Self { device: AUTO.to_owned(), gpu_memory: None, precise: false, kv_type: None, page_size: None }
    }
}

/// How large the KV cache is that many sequences share.
#[derive(Args, Clone, Copy)]
pub(crate) struct KvPoolFlags {
    /// Memory of the KV cache that all sequences share, in MiB [default: the whole context of each; on a GPU as much of
    /// it as fits].
    #[arg(long, value_name = "MIB", alias = "kv-cache-memory", conflicts_with = "kv_pages")]
    kv_memory: Option<usize>,
    /// The same in pages.
    #[arg(long, value_name = "N", alias = "num-gpu-blocks-override")]
    kv_pages: Option<usize>,
}

impl KvPoolFlags {
    /// What is stated.
    pub(crate) fn pool(self) -> Option<KvPool> {
        let bytes = self.kv_memory.map(|mebibytes| KvPool::Bytes(mebibytes.saturating_mul(1 << 20)));
        bytes.or(self.kv_pages.map(KvPool::Pages))
    }
}

/// Which model, for commands that run none.
#[derive(Args)]
pub(crate) struct ModelName {
    /// The model: a GGUF file, a safetensors file or folder, a qwen3.c checkpoint, a Qorus file, a stored model, or
    /// owner/name on the hub [default: a small built-in story model].
    #[arg(value_name = "MODEL", conflicts_with = "model")]
    place: Option<PathBuf>,
    /// The same.
    #[arg(short, long, value_name = "MODEL")]
    model: Option<PathBuf>,
}

impl ModelName {
    /// The path of the model.
    pub(crate) fn path(&self) -> Result<PathBuf, String> {
        model_path(self.place.as_deref().or(self.model.as_deref()))
    }
}

/// A data type of the KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum KvType {
    /// Single precision.
    F32,
    /// Half precision.
    F16,
    /// 8-bit integers with a scale for every 32.
    #[value(name = "q8_0")]
    Q8_0,
    /// 4-bit integers with a scale for every 32.
    #[value(name = "q4_0")]
    Q4_0,
}

impl ModelFlags {
    /// The model that `-m` names.
    pub(crate) fn path(&self) -> Option<&Path> {
        self.model.as_deref()
    }

    /// The values of the flags that say where and how it runs.
    pub(crate) fn to_json(&self) -> [(&'static str, Value); 5] {
        self.device.to_json()
    }

    /// Opens a model, by default the built-in one; a quiet one prints no notes.
    pub(crate) fn open(
        &self,
        name: Option<&Path>,
        progress: &mut Progress,
        is_quiet: bool,
    ) -> Result<Opened, String> {
        self.open_as(Purpose::Text, name, progress, is_quiet)
    }

    /// Opens another model in the same way, without the adapters of the first.
    pub(crate) fn open_other(&self, name: &Path, is_quiet: bool) -> Result<Opened, String> {
        self.device.open(Some(name), &mut Progress::new(1), is_quiet)
    }

    /// Opens the same model for another device.
    pub(crate) fn open_on(
        &self,
        device: &str,
        name: Option<&Path>,
        is_quiet: bool,
    ) -> Result<Opened, String> {
        let device = DeviceFlags { device: device.to_owned(), ..self.device.clone() };
        open_as(&self.run_on(&device)?, Purpose::Text, name, &mut Progress::new(1), is_quiet)
    }

    fn open_as(
        &self,
        purpose: Purpose<'_>,
        name: Option<&Path>,
        progress: &mut Progress,
        is_quiet: bool,
    ) -> Result<Opened, String> {
        open_as(&self.run_on(&self.device)?, purpose, name, progress, is_quiet)
    }

    fn run_on(&self, device: &DeviceFlags) -> Result<Run, String> {
        Ok(Run { adapters: self.adapters.adapters()?, ..device.run() })
    }
}

impl NamedModel {
    /// The name of the model.
    pub(crate) fn name(&self) -> Option<&Path> {
        self.place.as_deref().or(self.flags.path())
    }

    /// The values of the flags that say where and how it runs.
    pub(crate) fn to_json(&self) -> [(&'static str, Value); 5] {
        self.flags.to_json()
    }

    /// Opens the model, by default the built-in one; a quiet one prints no notes.
    pub(crate) fn open(&self, progress: &mut Progress, is_quiet: bool) -> Result<Opened, String> {
        self.flags.open(self.name(), progress, is_quiet)
    }

    /// Opens the model to score strings for a query: with a head for that, or as a decoder that is asked.
    pub(crate) fn open_ranker(&self, progress: &mut Progress, is_quiet: bool) -> Result<Opened, String> {
        self.flags.open_as(Purpose::Either, self.name(), progress, is_quiet)
    }

    /// Opens the model to embed strings, or to score each.
    pub(crate) fn open_embedder(&self, progress: &mut Progress, is_quiet: bool) -> Result<Opened, String> {
        self.flags.open_as(Purpose::Vectors, self.name(), progress, is_quiet)
    }
}

impl DeviceFlags {
    /// The values of the flags.
    pub(crate) fn to_json(&self) -> [(&'static str, Value); 5] {
        [
            ("device", self.device.as_str().into()),
            ("gpu_memory", self.gpu_memory.into()),
            ("precise", self.precise.into()),
            ("kv_type", self.run().kv_format().to_string().into()),
            ("page_size", self.page_size.into()),
        ]
    }

    /// How a model runs by these flags.
    pub(crate) fn run(&self) -> Run {
        let format = |kind| match kind {
            KvType::F32 => Format::F32,
            KvType::F16 => Format::F16,
            KvType::Q8_0 => Format::Q8_0,
            KvType::Q4_0 => Format::Q4_0,
        };
        Run {
            device: Some(self.device.clone()),
            gpu_memory: self.gpu_memory.map(|mebibytes| mebibytes.saturating_mul(1 << 20)),
            precise: self.precise,
            kv_type: self.kv_type.map(format),
            page_size: self.page_size,
            ..Run::auto()
        }
    }

    /// Opens a model, by default the built-in one; a quiet one prints no notes.
    pub(crate) fn open(
        &self,
        name: Option<&Path>,
        progress: &mut Progress,
        is_quiet: bool,
    ) -> Result<Opened, String> {
        open_as(&self.run(), Purpose::Text, name, progress, is_quiet)
    }
}

fn open_as(
    run: &Run,
    purpose: Purpose<'_>,
    name: Option<&Path>,
    progress: &mut Progress,
    is_quiet: bool,
) -> Result<Opened, String> {
    let ready = run.ready()?;
    let path = model_path(name)?;
    progress.begin("loading the model");
    ready.open(&path, purpose, if is_quiet { unwatched() } else { watched() })
}

/// The path of the model of this name, with bars of what is fetched; without a name the default model.
pub(crate) fn model_path(name: Option<&Path>) -> Result<PathBuf, String> {
    #[cfg(feature = "hub")]
    let find = fetch::path_of;
    #[cfg(not(feature = "hub"))]
    let find = |_: &Path| Ok(None);
    open::model_path(name, find)
}

/// Prints notes, and the progress of uploads.
fn watched() -> Watch {
    let is_terminal = stderr().is_terminal();
    let is_noted = AtomicBool::new(false);
    Arc::new(move |event| match event {
        Event::Note(text) => note(text),
        Event::Uploading { done, all } if is_terminal => {
            let amount = |n: usize| bytes(n as f64);
            let line = format!("uploading weights: {} of {}", amount(done), amount(all));
            overwrite(if done == all { "" } else { &line });
        }
        Event::Uploading { all, .. } => {
            if all >= LARGE_UPLOAD && !is_noted.swap(true, Ordering::Relaxed) {
                note(&format!("uploading {} of weights", bytes(all as f64)));
            }
        }
    })
}
