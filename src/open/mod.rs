//! Opening a model: which device, how many threads, how much context, and what of it fits into memory.
//!
//! In: a [`Run`] and a path. Out: an [`Opened`] model, and engines and sessions that run it. What is not stated is
//! chosen here, for programs and for the command alike. A device that is not there is refused before a file is read, a
//! bad file before anything is compiled.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use fusebox_compiler::codegen::cpu::Cpu;
use fusebox_compiler::error::Error as CompilerError;
use fusebox_compiler::foundation::amount::{bytes, counted};
use fusebox_compiler::graph::Graph;
use fusebox_compiler::options::{Numbers, Options, is_target_named};
use fusebox_compiler::simd::Level;
use fusebox_compiler::target::Target;
use fusebox_compiler::tensor::quant::Format;
use fusebox_models::chat::Chat as Template;
use fusebox_models::config::{KvCache, PAGE_ROWS};
use fusebox_models::draft::MOST_IN_STEP;
use fusebox_models::imatrix;
use fusebox_models::layers::embed::Scored;
use fusebox_models::load::{Model, Settings};
use fusebox_models::own::Decoder;
use fusebox_runtime::device::cpu::CpuDevice;
use fusebox_runtime::device::{self as runtime, Footprint};
use fusebox_runtime::error::Error;
use fusebox_runtime::files;
use fusebox_runtime::session::Session;
use fusebox_runtime::session::cache::Cache;
use fusebox_runtime::session::classes::{Class, Form, Programs};
use fusebox_runtime::session::engine::{Engine, Limits};
use fusebox_runtime::session::evict::{Sliding, SnapKv};

use crate::devices::{Device, gpus};
use crate::host;
use crate::open::context::{ContextLimit, ContextRange, pages_fitting};
use crate::open::run::{Evict, KvPool, Policy, Run};
use crate::watch::{Event, Watch};

pub mod context;
pub(crate) mod run;

/// The file of the default model, and what it holds.
const DEFAULT_MODEL: &str = "story.gguf";
static STORY: &[u8] = include_bytes!("../../assets/story.gguf");
/// The device, unless another is named.
pub const AUTO: &str = "auto";
/// The context length of a session, unless another is chosen or the model's is shorter.
const DEFAULT_CONTEXT: usize = 4096;
/// The most threads.
const MAX_THREADS: usize = 256;
/// The window, where none is stated.
const USUAL_WINDOW: usize = 512;
/// The shortest window: as many tokens as a draft may take back.
const LEAST_WINDOW: usize = 32;
/// How many of the last tokens choose what each head keeps.
const OBSERVED: usize = 32;
/// Tokens of a page of the KV cache: fewer would be copied and looked up one by one, more would be shared by nobody.
const PAGE_SIZES: RangeInclusive<usize> = 16..=1024;
/// The most pages of a KV cache.
const MAX_PAGES: usize = 1 << 20;
/// Sizes of a prefill chunk, largest first: a smaller one is used where that leaves memory for a longer context.
const CHUNKS: [usize; 3] = [512, 128, 32];

/// What a model is opened for.
#[derive(Clone, Copy, Debug)]
pub enum Purpose<'a> {
    /// To generate text; an encoder is refused.
    Text,
    /// For vectors or scores of texts.
    Vectors,
    /// To generate text if it can, else for vectors or scores.
    Either,
    /// With blocks of the caller's.
    Defined(&'a Decoder),
}

/// A [`Run`] whose device is there.
pub struct Ready<'a> {
    run: &'a Run,
    device: Device,
    options: Options,
    level: Level,
}

/// An opened model, ready to start sessions.
pub struct Opened {
    /// The model.
    pub model: Model,
    path: PathBuf,
    device: Device,
    /// The programs compiled or loaded so far.
    pub cache: Cache,
    options: Options,
    level: Level,
    /// The data type of the KV cache.
    pub kv_type: Format,
    /// Tokens of a page of the KV cache.
    pub page_size: usize,
    /// Whether its sessions can score every token of a step, not only the last.
    pub scores_every: bool,
    /// The most tokens that are guessed for a sequence of an engine.
    pub n_guessed: usize,
    /// Limit of GPU memory in bytes.
    gpu_memory: Option<usize>,
    /// How large the KV cache of an engine is, where that is stated.
    pub kv_pool: Option<KvPool>,
    /// Which tokens its sequences drop.
    pub evict: Option<Evict>,
    watch: Watch,
}

impl Run {
    /// How exact a device counts.
    pub(crate) fn numbers(&self) -> Numbers {
        if self.precise { Numbers::Single } else { Numbers::Quantised }
    }

    /// The data type of the KV cache.
    pub fn kv_format(&self) -> Format {
        self.kv_type.unwrap_or(if self.precise { Format::F32 } else { Format::F16 })
    }

    /// Looks whether the device is there, before a file is read.
    ///
    /// # Errors
    /// Where it is not known or not there, or a limit of GPU memory is set for the processor.
    pub fn ready(&self) -> Result<Ready<'_>, String> {
        let device = Device::named(self.device.as_deref().unwrap_or(AUTO))?;
        if device == Device::Cpu && self.gpu_memory.is_some() {
            return Err("--gpu-memory needs a GPU: --device cuda, vulkan or metal".to_owned());
        }
        if let Some(n) = self.page_size.filter(|n| !n.is_power_of_two() || !PAGE_SIZES.contains(n)) {
            let (least, most) = (PAGE_SIZES.start(), PAGE_SIZES.end());
            return Err(format!("--page-size is {n}, expected a power of two from {least} to {most}"));
        }
        let (mut options, level) = environment()?;
        if let Some(folder) = &self.cache {
            options.cache = Some(folder.to_string_lossy().into_owned());
        }
        options.target = target_of(&options, device);
        options.rules.clone_from(&self.rules);
        options.numbers = self.numbers();
        Ok(Ready { run: self, device, options, level })
    }
}

impl Ready<'_> {
    /// Opens the file of a model.
    ///
    /// # Errors
    /// Where the file is no model that runs.
    pub fn open(self, path: &Path, purpose: Purpose<'_>, watch: Watch) -> Result<Opened, String> {
        let Self { run, device, options, level } = self;
        let model = match purpose {
            Purpose::Text => Model::open(path),
            Purpose::Vectors => Model::embedder(path),
            Purpose::Either => Model::either(path),
            Purpose::Defined(decoder) => Model::define(path, decoder.clone()),
        };
        let model = match model {
            Ok(model) if !run.adapters.is_empty() => model.with_adapters(&run.adapters),
            model => model,
        };
        let model = model.map_err(|error| error.to_string())?;
        let cache = Cache::new(options.cache.clone().map(PathBuf::from));
        let (path, kv_type, gpu_memory) = (path.to_owned(), run.kv_format(), run.gpu_memory);
        Ok(Opened {
            model,
            path,
            device,
            cache,
            options,
            level,
            kv_type,
            page_size: run.page_size.unwrap_or(PAGE_ROWS),
            scores_every: false,
            n_guessed: 0,
            gpu_memory,
            kv_pool: run.kv_pool,
            evict: run.evict,
            watch,
        })
    }
}

impl Opened {
    /// The context length to use, given the value of `-c`.
    pub fn context(&self, flag: Option<usize>) -> Result<ContextRange, String> {
        let max = self.model.config.context;
        match flag {
            None => Ok(ContextRange { min: 1, max: max.min(DEFAULT_CONTEXT) }),
            Some(n) if (1..=max).contains(&n) => Ok(ContextRange::exactly(n)),
            Some(n) => Err(format!("--context is {n}, expected 1 to {max}, the model's context length")),
        }
    }

    /// The path of the model.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// An error that depends on this model, with its path.
    pub fn in_model(&self, error: impl Display) -> String {
        format!("{}: {error}", self.path.display())
    }

    /// The limit that a prompt is checked against.
    pub fn limit(&self, context: usize) -> ContextLimit {
        let model_max = self.model.config.context;
        let context = match self.evict.map(|evict| evict.policy) {
            None => context,
            // Such a sequence has no end.
            Some(Policy::Sliding) => i32::MAX as usize,
            Some(Policy::SnapKv) => model_max,
        };
        ContextLimit { context, model_max }
    }

    /// A session of one sequence, with as much context as memory allows.
    pub fn session(
        &mut self,
        n_threads: usize,
        context: ContextRange,
        scored: Scored,
    ) -> Result<Session, String> {
        let engine = self.start_engine(n_threads, context, scored, (1, None));
        engine.map(Session::of).map_err(|error| error.to_string())
    }

    /// An engine for a number of sequences.
    pub fn engine(
        &mut self,
        n_threads: usize,
        context: ContextRange,
        scored: Scored,
        batch: usize,
    ) -> Result<Engine, String> {
        let engine = self.start_engine(n_threads, context, scored, (batch, self.kv_pool));
        engine.map_err(|error| error.to_string())
    }

    fn start_engine(
        &mut self,
        n_threads: usize,
        context: ContextRange,
        scored: Scored,
        (batch, pool): (usize, Option<KvPool>),
    ) -> Result<Engine, Error> {
        let device = self.open_device(n_threads)?;
        let stated = pool.map(|pool| self.n_pages(pool, context.max, scored, batch)).transpose()?;
        let settings_of = |chunk, n_pages: Option<usize>| {
            let whole = self.settings(context.max, chunk, scored, batch);
            let Some(n_pages) = n_pages else { return whole };
            // A sequence may have all pages, and no more.
            let own = self.settings(context.of_room(n_pages * self.page_size), chunk, scored, batch);
            Settings { cache: KvCache { n_pages, ..whole.cache }, ..own }
        };
        let mut settings = settings_of(CHUNKS[0], stated);
        let mut last = None;
        if let Some(free) = device.free() {
            let mut most = 0;
            for chunk in CHUNKS {
                let tried = settings_of(chunk, stated);
                let wanted = tried.cache.n_pages;
                let mut programs = self.model.programs(&tried, &self.options, &self.cache)?;
                let (needed, bytes) =
                    (memory_needed(&mut programs)?.bytes(), self.model.cache_bytes(&tried)?);
                let room = (free + bytes(wanted)).saturating_sub(needed);
                let fitting = pages_fitting(bytes, wanted, room);
                last = Some((tried, programs));
                if fitting == wanted || fitting > most {
                    // Where not even the shortest context fits, the device says so.
                    let least = tried.cache.pages_of(context.min);
                    (most, settings) = (fitting, settings_of(chunk, Some(fitting.max(least.min(wanted)))));
                }
                // Where there is room for much more than a chunk, a smaller chunk would gain little.
                if fitting == wanted || (4 * chunk..context.max).contains(&(fitting * self.page_size)) {
                    break;
                }
            }
        }
        let mut programs = match last {
            Some((tried, programs)) if tried == settings => programs,
            _ => self.model.programs(&settings, &self.options, &self.cache)?,
        };
        if self.device != Device::Cpu {
            let text = memory_in_words(&memory_needed(&mut programs)?, &settings, &*device);
            (self.watch)(Event::Note(&text));
        }
        let before = device.describe();
        let mut engine = self.model.start_engine(device, programs, &settings)?;
        if let Some(evict) = self.evict.filter(|_| has_logits(scored)) {
            set_eviction(&mut engine, evict, self.model.config.context)?;
        }
        // The device may have switched to another mode while it started.
        if engine.device() != before {
            (self.watch)(Event::Note(&engine.device()));
        }
        Ok(engine)
    }

    /// The pages of a KV cache whose size is stated.
    fn n_pages(&self, pool: KvPool, context: usize, scored: Scored, batch: usize) -> Result<usize, Error> {
        let n_pages = match pool {
            KvPool::Pages(n) => n,
            KvPool::Bytes(n) => {
                let settings = self.settings(context, CHUNKS[0], scored, batch);
                pages_fitting(self.model.cache_bytes(&settings)?, MAX_PAGES, n)
            }
        };
        if (1..=MAX_PAGES).contains(&n_pages) {
            return Ok(n_pages);
        }
        let rows = self.page_size;
        let what = format!("its memory has {n_pages} pages of {rows} tokens, expected 1 to {MAX_PAGES}");
        Err(CompilerError::input("the KV cache", what).into())
    }

    fn settings(&self, context: usize, chunk: usize, scored: Scored, batch: usize) -> Settings {
        // Without a causal mask a text is one step.
        let config = &self.model.config;
        let max_chunk = if config.is_causal() { chunk.min(config.most_tokens()) } else { context };
        let settings = Settings::of_batch(batch, context, context.clamp(2, max_chunk), self.kv_type, scored);
        let settings = settings.with_pages_of(self.page_size);
        let n_guessed = if batch > 1 { (batch * self.n_guessed).min(MOST_IN_STEP) } else { 0 };
        let chooses = has_logits(scored) && self.evict.is_some_and(|evict| evict.policy == Policy::SnapKv);
        let observed = if chooses { OBSERVED } else { 0 };
        let evicts = has_logits(scored) && self.evict.is_some();
        Settings { scores_every: self.scores_every, batch: batch + n_guessed, evicts, observed, ..settings }
    }

    /// The chat template, if the model has one, with the time of now.
    pub fn chat(&self) -> Result<Option<Template>, String> {
        let template = Template::open(self.model.checkpoint()).map_err(|error| error.to_string())?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Ok(template.map(|mut template| {
            template.set_clock(now.as_secs() as i64);
            template
        }))
    }

    /// The graph of a step, from token ids to logits.
    pub fn graph(&self, class: Class) -> Result<Graph, String> {
        let context = self.context(None)?.max.max(class.most);
        let batch = if class.form == Form::Batch { class.most } else { 1 };
        let settings = self.settings(context, CHUNKS[0], Scored::Last, batch);
        self.model.graph(&settings, class).map_err(|error| self.in_model(error))
    }

    /// Collects an importance matrix over chunks of tokens, all of one length.
    pub fn importance(
        &mut self,
        n_threads: usize,
        chunks: &[Vec<u32>],
        progress: &mut imatrix::Progress<'_>,
    ) -> Result<imatrix::Collected, String> {
        let collected = self.open_device(n_threads).and_then(|device| {
            imatrix::collect(&self.model, device, (&self.options, &self.cache), chunks, progress)
        });
        collected.map_err(|error| error.to_string())
    }

    /// The target that programs are compiled for; where the environment names one of another kind, that of the device
    /// which runs them all the same.
    pub fn target(&self) -> Target {
        let (asked, own) = (self.options.target, self.device.named_target());
        if asked.capabilities.code == own.capabilities.code { asked } else { own }
    }

    /// The programs of all classes of token counts, for another target.
    pub fn programs(
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
    pub fn cpu(&self) -> Result<Option<Cpu>, String> {
        let cpu = || self.host_cpu().map_err(|error| error.to_string());
        (self.device == Device::Cpu).then(cpu).transpose()
    }

    fn host_cpu(&self) -> Result<Cpu, CompilerError> {
        let cpu = Cpu::at(self.level, self.options.numbers);
        cpu.map(|cpu| cpu.with_planted(self.options.panic))
    }

    fn open_device(&self, n_threads: usize) -> Result<Box<dyn runtime::Device>, Error> {
        match self.device {
            Device::Cpu => Ok(Box::new(CpuDevice::new(self.host_cpu()?, n_threads)?)),
            Device::Gpu(gpu) => {
                let folder = self.options.cache.clone().map(PathBuf::from);
                gpus::open(gpu, self.options.numbers, folder, self.gpu_memory, &self.watch)
            }
        }
    }
}

/// Whether a step returns logits: its sequences may be long.
fn has_logits(scored: Scored) -> bool {
    matches!(scored, Scored::Last | Scored::TopK(_))
}

/// Has sequences drop tokens; `longest` is how many the model was trained for.
fn set_eviction(engine: &mut Engine, evict: Evict, longest: usize) -> Result<(), Error> {
    let Evict { policy, keep_first, window, evict_below: below } = evict;
    let Limits { context, page_rows, .. } = engine.limits();
    let pages = |n: usize| n.div_ceil(page_rows).saturating_mul(page_rows);
    // A page is filled while another is dropped.
    let (beside, least_window) = match policy {
        Policy::Sliding => (pages(keep_first).saturating_add(2 * page_rows), LEAST_WINDOW),
        Policy::SnapKv => (2 * page_rows, keep_first.saturating_add(2 * OBSERVED)),
    };
    let most = context.saturating_sub(beside) / page_rows * page_rows;
    let window = window.unwrap_or(USUAL_WINDOW.min(most.max(least_window)));
    if window < least_window {
        let what = format!("its window is {window}, expected at least {least_window}");
        return Err(CompilerError::input("eviction", what).into());
    }
    let least = beside.saturating_add(pages(window));
    if least > context {
        let what = format!(
            "{keep_first} first tokens and a window of {window} need a context of {least}, found {context}"
        );
        return Err(CompilerError::input("eviction", what).into());
    }
    let (first, available) = (keep_first, host::available_memory);
    engine.set_eviction(match policy {
        Policy::Sliding => Box::new(Sliding { first, window, below, available }),
        Policy::SnapKv => Box::new(SnapKv { first, observed: OBSERVED, window, longest, below, available }),
    })
}

/// The device memory that programs need: that of the smallest and the largest of each form, as the others fit into the
/// arena of the largest.
fn memory_needed(programs: &mut Programs) -> Result<Footprint, Error> {
    let classes = programs.classes();
    let last = |form| classes.iter().rposition(|class| class.form == form);
    let largest: Vec<usize> = Form::ALL.into_iter().filter_map(last).collect();
    let mut plans = vec![programs.program(0)?.plan.clone()];
    for class in largest {
        plans.push(programs.program(class)?.plan.clone());
    }
    Ok(Footprint::of(&plans.iter().collect::<Vec<_>>()))
}

/// The device memory that will be used.
fn memory_in_words(needed: &Footprint, settings: &Settings, device: &dyn runtime::Device) -> String {
    let [weights, arena, state] = [needed.weights, needed.arena, needed.state].map(|n| bytes(n as f64));
    let free = device.free().map_or_else(String::new, |free| format!("; {} free", bytes(free as f64)));
    let KvCache { n_pages, page_rows, .. } = settings.cache;
    let n_tokens = (n_pages * page_rows).min(settings.batch * settings.context);
    let (tokens, device) = (counted(n_tokens, "token"), device.describe());
    let of = if settings.batch == 1 { String::new() } else { format!(" of {} sequences", settings.batch) };
    format!("{device}: weights {weights}, KV cache for {tokens}{of} {state}, activations {arena}{free}")
}

/// What programs of a device are compiled for: the device that is here, unless the environment names a target.
pub fn target_of(options: &Options, device: Device) -> Target {
    if is_target_named() {
        return options.target;
    }
    device.target(options.cache.as_deref().map(Path::new))
}

/// Options and instruction set, from the environment.
pub fn environment() -> Result<(Options, Level), String> {
    let options = Options::from_env()?;
    let level = match &options.level {
        None => Level::host(),
        Some(name) => Level::named(name).ok_or_else(|| {
            let supported = levels().map(Level::name).collect::<Vec<_>>().join(", ");
            format!(
                "FUSEBOX_LEVEL is `{name}`, expected an instruction set of this processor, one of {supported}"
            )
        })?,
    };
    Ok((options, level))
}

/// The instruction sets of this processor.
pub fn levels() -> impl Iterator<Item = Level> {
    Level::supported()
}

/// The number of threads, given the value of `-t`.
pub fn n_threads(flag: Option<usize>) -> Result<usize, String> {
    match flag {
        None => Ok(host::n_threads().min(MAX_THREADS)),
        Some(n) if (1..=MAX_THREADS).contains(&n) => Ok(n),
        Some(n) => Err(format!("--threads is {n}, expected 1 to {MAX_THREADS}")),
    }
}

/// The path of a model, given its name: a path, a stored name, or what the hub has; without one the default model.
/// `find` finds what is no path.
pub fn model_path(
    name: Option<&Path>,
    find: impl FnOnce(&Path) -> Result<Option<PathBuf>, String>,
) -> Result<PathBuf, String> {
    let missing = |fault| format!("the default model {fault}; choose a model with -m");
    let Some(name) = name else { return default_model().map_err(missing) };
    // A path that is there is meant as a path.
    if name.exists() {
        return Ok(name.to_owned());
    }
    let missing = || {
        format!(
            "{}: no such file or folder, and no stored model; expected a GGUF file, a safetensors file or folder, a \
             qwen3.c checkpoint, a Qorus file, a stored model, or owner/name on the hub",
            name.display()
        )
    };
    find(name)?.ok_or_else(missing)
}

/// Where copies of the default model may lie, which is part of this program: in the folder of the program cache, or
/// in that for temporary files.
pub fn default_model_places(cache: Option<&str>) -> impl Iterator<Item = PathBuf> + use<> {
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
