//! The flags that commands on models share: which model, on which device, in which precision.
//!
//! In: flags. Out: an [`OpenModel`], and sessions that run it. A bad flag is refused before a file is read, a bad file
//! before anything is compiled.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use fusebox_compiler::codegen::cpu::Cpu;
use fusebox_compiler::codegen::cpu::level::{Level, Numbers};
use fusebox_compiler::foundation::amount::{bytes, counted};
use fusebox_compiler::graph::Graph;
use fusebox_compiler::options::Options;
use fusebox_compiler::target::Target;
use fusebox_compiler::tensor::quant::Format;
use fusebox_models::layers::embed::Scored;
use fusebox_models::load::{Model, Settings};
use fusebox_runtime::device::cpu::CpuDevice;
use fusebox_runtime::device::{self as runtime, Footprint};
use fusebox_runtime::error::Error;
use fusebox_runtime::files;
use fusebox_runtime::session::Session;
use fusebox_runtime::session::cache::Cache;
use fusebox_runtime::session::classes::{Class, Form, Programs};
use fusebox_runtime::session::engine::Engine;
use serde_json::Value;

use crate::context::{ContextLimit, ContextRange};
use crate::devices::Device;
use crate::gpus;
use crate::host;
use crate::hub;
use crate::output::note;
use crate::progress::Progress;

/// The file of the default model, and what it holds.
const DEFAULT_MODEL: &str = "story.gguf";
static STORY: &[u8] = include_bytes!("../assets/story.gguf");
/// The value of `--device`, unless another is given.
const AUTO: &str = "auto";
/// The context length of a session, unless `-c` says otherwise or the model's is shorter.
const DEFAULT_CONTEXT: usize = 4096;
/// The most threads.
const MAX_THREADS: usize = 256;
/// Sizes of a prefill chunk, largest first: a smaller one is used where that leaves memory for a longer context.
const CHUNKS: [usize; 3] = [512, 128, 32];
/// The same where every token is scored: each has a row of logits.
const SCORE_ALL_CHUNK: usize = 32;

/// Which model, on which device, in which precision.
#[derive(Args)]
pub(crate) struct ModelFlags {
    /// The model: a GGUF file, a safetensors file or folder, a qwen3.c checkpoint, a Qorus file, a stored model, or
    /// owner/name on the hub [default: a small built-in story model].
    #[arg(short, long, value_name = "MODEL")]
    model: Option<PathBuf>,
    #[command(flatten)]
    device: DeviceFlags,
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
}

impl Default for DeviceFlags {
    fn default() -> Self {
        Self { device: AUTO.to_owned(), gpu_memory: None, precise: false, kv_type: None }
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
}

/// An opened model, ready to start sessions.
pub(crate) struct OpenModel {
    pub(crate) model: Model,
    path: PathBuf,
    device: Device,
    /// The programs compiled or loaded so far.
    pub(crate) cache: Cache,
    options: Options,
    level: Level,
    numbers: Numbers,
    pub(crate) kv_type: Format,
    /// Limit of GPU memory in bytes.
    gpu_memory: Option<usize>,
    /// Suppresses notes on standard error.
    is_quiet: bool,
}

impl ModelFlags {
    /// The model that `-m` names.
    pub(crate) fn path(&self) -> Option<&Path> {
        self.model.as_deref()
    }

    /// The values of the flags that say where and how it runs.
    pub(crate) fn to_json(&self) -> [(&'static str, Value); 4] {
        self.device.to_json()
    }

    /// Opens a model, by default the built-in one; a quiet one prints no notes.
    pub(crate) fn open(
        &self,
        name: Option<&Path>,
        progress: &mut Progress,
        is_quiet: bool,
    ) -> Result<OpenModel, String> {
        self.device.open(name, progress, is_quiet)
    }
}

impl NamedModel {
    /// The name of the model.
    pub(crate) fn name(&self) -> Option<&Path> {
        self.place.as_deref().or(self.flags.path())
    }

    /// The values of the flags that say where and how it runs.
    pub(crate) fn to_json(&self) -> [(&'static str, Value); 4] {
        self.flags.to_json()
    }

    /// Opens the model, by default the built-in one; a quiet one prints no notes.
    pub(crate) fn open(&self, progress: &mut Progress, is_quiet: bool) -> Result<OpenModel, String> {
        self.flags.open(self.name(), progress, is_quiet)
    }

    /// Opens the model to embed or rank strings.
    pub(crate) fn open_embedder(&self, progress: &mut Progress, is_quiet: bool) -> Result<OpenModel, String> {
        self.flags.device.open_as(Model::embedder, self.name(), progress, is_quiet)
    }
}

impl DeviceFlags {
    /// The values of the flags.
    pub(crate) fn to_json(&self) -> [(&'static str, Value); 4] {
        [
            ("device", self.device.as_str().into()),
            ("gpu_memory", self.gpu_memory.into()),
            ("precise", self.precise.into()),
            ("kv_type", self.kv_format().to_string().into()),
        ]
    }

    /// Other values, as a program states them.
    pub(crate) fn set(&mut self, device: Option<&str>, precise: bool) {
        device.unwrap_or(AUTO).clone_into(&mut self.device);
        self.precise = precise;
    }

    fn kv_format(&self) -> Format {
        match self.kv_type {
            Some(KvType::F32) => Format::F32,
            None if self.precise => Format::F32,
            Some(KvType::F16) | None => Format::F16,
            Some(KvType::Q8_0) => Format::Q8_0,
        }
    }

    /// Opens a model, by default the built-in one; a quiet one prints no notes.
    pub(crate) fn open(
        &self,
        name: Option<&Path>,
        progress: &mut Progress,
        is_quiet: bool,
    ) -> Result<OpenModel, String> {
        self.open_as(Model::open, name, progress, is_quiet)
    }

    /// The same, where an encoder or a ranker is opened for vectors.
    pub(crate) fn open_either(
        &self,
        name: Option<&Path>,
        progress: &mut Progress,
        is_quiet: bool,
    ) -> Result<OpenModel, String> {
        self.open_as(Model::either, name, progress, is_quiet)
    }

    fn open_as(
        &self,
        open: fn(&Path) -> Result<Model, Error>,
        name: Option<&Path>,
        progress: &mut Progress,
        is_quiet: bool,
    ) -> Result<OpenModel, String> {
        let device = Device::named(&self.device)?;
        if device == Device::Cpu && self.gpu_memory.is_some() {
            return Err("--gpu-memory needs a GPU: --device cuda, vulkan or metal".to_owned());
        }
        let (mut options, level) = environment()?;
        if let Some(target) = device.target() {
            options = Options { target, ..options }.with_env()?;
        }
        let path = model_path(name)?;
        progress.begin("loading the model");
        let model = open(&path).map_err(|error| error.to_string())?;
        let numbers = if self.precise { Numbers::Single } else { Numbers::Quantised };
        let kv_type = self.kv_format();
        let cache = Cache::new(options.cache.clone().map(PathBuf::from));
        let gpu_memory = self.gpu_memory.map(|mebibytes| mebibytes.saturating_mul(1 << 20));
        Ok(OpenModel { model, path, device, cache, options, level, numbers, kv_type, gpu_memory, is_quiet })
    }
}

impl OpenModel {
    /// The context length to use, given the value of `-c`.
    pub(crate) fn context(&self, flag: Option<usize>) -> Result<ContextRange, String> {
        let max = self.model.config.context;
        match flag {
            None => Ok(ContextRange { min: 1, max: max.min(DEFAULT_CONTEXT) }),
            Some(n) if (1..=max).contains(&n) => Ok(ContextRange::exactly(n)),
            Some(n) => Err(format!("--context is {n}, expected 1 to {max}, the model's context length")),
        }
    }

    /// The path of the model.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Keeps compiled programs in another folder.
    pub(crate) fn keep_programs_in(&mut self, folder: &Path) {
        self.options.cache = Some(folder.to_string_lossy().into_owned());
        self.cache = Cache::new(Some(folder.to_owned()));
    }

    /// An error that depends on this model, with its path.
    pub(crate) fn in_model(&self, error: impl Display) -> String {
        format!("{}: {error}", self.path.display())
    }

    /// The limit that a prompt is checked against.
    pub(crate) fn limit(&self, context: usize) -> ContextLimit {
        ContextLimit { context, model_max: self.model.config.context }
    }

    /// A session of one sequence, with as much context as memory allows.
    pub(crate) fn session(
        &mut self,
        n_threads: usize,
        context: ContextRange,
        scored: Scored,
    ) -> Result<Session, String> {
        self.engine(n_threads, context, scored, 1).map(Session::of)
    }

    /// An engine for a number of sequences.
    pub(crate) fn engine(
        &mut self,
        n_threads: usize,
        context: ContextRange,
        scored: Scored,
        batch: usize,
    ) -> Result<Engine, String> {
        self.start_engine(n_threads, context, scored, batch).map_err(|error| error.to_string())
    }

    fn start_engine(
        &mut self,
        n_threads: usize,
        context: ContextRange,
        scored: Scored,
        batch: usize,
    ) -> Result<Engine, Error> {
        let device = self.open_device(n_threads)?;
        let mut settings = self.settings(context.max, CHUNKS[0], scored, batch);
        let mut last = None;
        if let Some(free) = device.free() {
            let mut longest = 0;
            for chunk in CHUNKS {
                let tried = self.settings(context.max, chunk, scored, batch);
                let mut programs = self.model.programs(&tried, &self.options, &self.cache)?;
                let needed = memory_needed(&mut programs)?;
                let (fitting, fits_all) = (context.fitting(&needed, free), needed.bytes() <= free);
                last = Some((tried, programs));
                if fits_all || fitting > longest {
                    (longest, settings) = (fitting, self.settings(fitting, chunk, scored, batch));
                }
                // Where the context is much longer than the chunk, a smaller chunk would gain little.
                if fits_all || (4 * chunk..context.max).contains(&longest) {
                    break;
                }
            }
        }
        let mut programs = match last {
            Some((tried, programs)) if tried == settings => programs,
            _ => self.model.programs(&settings, &self.options, &self.cache)?,
        };
        if self.device != Device::Cpu && !self.is_quiet {
            note_memory(&memory_needed(&mut programs)?, settings.context, &*device);
        }
        let before = device.describe();
        let engine = self.model.start_engine(device, programs, &settings)?;
        // The device may have switched to another mode while it started.
        if engine.device() != before {
            note(&engine.device());
        }
        Ok(engine)
    }

    fn settings(&self, context: usize, chunk: usize, scored: Scored, batch: usize) -> Settings {
        let max_chunk = match scored {
            // Without a causal mask a text is one step.
            _ if !self.model.config.is_causal() => context,
            Scored::Last
            | Scored::TopK(_)
            | Scored::Unnormed
            | Scored::Normed
            | Scored::Embedded
            | Scored::Ranked => chunk.min(self.model.config.most_tokens()),
            Scored::All => chunk.min(SCORE_ALL_CHUNK),
        };
        Settings::of_batch(batch, context, context.clamp(2, max_chunk), self.kv_type, scored)
    }

    /// The graph of a step, from token ids to logits.
    pub(crate) fn graph(&self, class: Class) -> Result<Graph, String> {
        let context = self.context(None)?.max.max(class.most);
        let batch = if class.form == Form::Batch { class.most } else { 1 };
        let settings = self.settings(context, CHUNKS[0], Scored::Last, batch);
        self.model.graph(&settings, class).map_err(|error| self.in_model(error))
    }

    /// The target of the device itself, even where the environment names another to compile for.
    pub(crate) fn target(&self) -> Target {
        self.device.target().unwrap_or(Options::default().target)
    }

    /// The programs of all classes of token counts, for another target.
    pub(crate) fn programs(
        &self,
        context: ContextRange,
        scored: Scored,
        target: Target,
    ) -> Result<Programs, String> {
        let options = Options { target, ..self.options.clone() };
        let settings = self.settings(context.max, CHUNKS[0], scored, 1);
        self.model.programs(&settings, &options, &self.cache).map_err(|error| error.to_string())
    }

    /// The processor that code is compiled for; none where a GPU runs it.
    pub(crate) fn cpu(&self) -> Result<Option<Cpu>, String> {
        let cpu = || Cpu::at(self.level, self.numbers).map_err(|error| error.to_string());
        (self.device == Device::Cpu).then(cpu).transpose()
    }

    fn open_device(&self, n_threads: usize) -> Result<Box<dyn runtime::Device>, Error> {
        match self.device {
            Device::Cpu => Ok(Box::new(CpuDevice::new(Cpu::at(self.level, self.numbers)?, n_threads)?)),
            Device::Gpu(gpu) => {
                let folder = self.options.cache.clone().map(PathBuf::from);
                gpus::open(gpu, self.numbers, folder, self.gpu_memory, self.is_quiet)
            }
        }
    }
}

/// The device memory that programs need: that of the smallest and the largest of each form, as the others fit into the
/// arena of the largest.
fn memory_needed(programs: &mut Programs) -> Result<Footprint, Error> {
    let classes = programs.classes();
    let last = |form| classes.iter().rposition(|class| class.form == form);
    let largest: Vec<usize> = [Form::Run, Form::Batch].into_iter().filter_map(last).collect();
    let mut plans = vec![programs.program(0)?.plan.clone()];
    for class in largest {
        plans.push(programs.program(class)?.plan.clone());
    }
    Ok(Footprint::of(&plans.iter().collect::<Vec<_>>()))
}

/// Prints the device memory that will be used.
fn note_memory(needed: &Footprint, context: usize, device: &dyn runtime::Device) {
    let [weights, arena, state] = [needed.weights, needed.arena, needed.state].map(|n| bytes(n as f64));
    let free = device.free().map_or_else(String::new, |free| format!("; {} free", bytes(free as f64)));
    let (tokens, device) = (counted(context, "token"), device.describe());
    note(&format!("{device}: weights {weights}, KV cache for {tokens} {state}, activations {arena}{free}"));
}

/// Options and instruction set, from the environment.
pub(crate) fn environment() -> Result<(Options, Level), String> {
    let options = Options::from_env()?;
    let level = match &options.level {
        None => Level::host(),
        Some(name) => Level::named(name).map_err(|_| {
            let supported = levels().map(Level::name).collect::<Vec<_>>().join(", ");
            format!(
                "FUSEBOX_LEVEL is `{name}`, expected an instruction set of this processor, one of {supported}"
            )
        })?,
    };
    Ok((options, level))
}

/// The instruction sets of this processor.
pub(crate) fn levels() -> impl Iterator<Item = Level> {
    Level::ALL.into_iter().filter(|level| level.is_supported())
}

/// The number of threads, given the value of `-t`.
pub(crate) fn n_threads(flag: Option<usize>) -> Result<usize, String> {
    match flag {
        None => Ok(host::n_threads().min(MAX_THREADS)),
        Some(n) if (1..=MAX_THREADS).contains(&n) => Ok(n),
        Some(n) => Err(format!("--threads is {n}, expected 1 to {MAX_THREADS}")),
    }
}

/// The path of the model, given its name: a path, a stored name, or what the hub has.
pub(crate) fn model_path(flag: Option<&Path>) -> Result<PathBuf, String> {
    let missing = |fault| format!("the default model {fault}; choose a model with -m");
    let Some(name) = flag else { return default_model().map_err(missing) };
    // A path that is there is meant as a path.
    let found = if name.exists() { None } else { hub::path_of(name)? };
    Ok(found.unwrap_or_else(|| name.to_owned()))
}

/// Where copies of the default model may lie, which is part of this program: in the folder of the program cache, or
/// in that for temporary files.
pub(crate) fn default_model_places(cache: Option<&str>) -> impl Iterator<Item = PathBuf> + use<> {
    let folders = cache.map(PathBuf::from).into_iter().chain([files::temporary_folder()]);
    folders.map(|folder| folder.join(DEFAULT_MODEL))
}

/// The path of the default model, for which its copy may have to be written.
fn default_model() -> Result<PathBuf, String> {
    let mut fault = String::new();
    for path in default_model_places(Options::from_env()?.cache.as_deref()) {
        match files::kept_or(&path, STORY) {
            Ok(()) => return Ok(path),
            Err(error) => fault = format!("{}: {error}", path.display()),
        }
    }
    Err(format!("cannot be written to {fault}"))
}
