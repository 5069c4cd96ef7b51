//! What all commands on models share: which model, on what, how exactly.
//!
//! In: flags. Out: an [`Opened`] model, and sessions with it. A flag that makes no sense is refused before a file is
//! touched, a file before anything is compiled.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use fusebox_compiler::codegen::cpu::Cpu;
use fusebox_compiler::codegen::cpu::level::{Level, Numbers};
use fusebox_compiler::foundation::amount::{bytes, counted};
use fusebox_compiler::options::Options;
use fusebox_compiler::program::Program;
use fusebox_compiler::target::Target;
use fusebox_compiler::tensor::quant::Format;
use fusebox_models::layers::embed::Scored;
use fusebox_models::load::{Model, Settings};
use fusebox_runtime::device::cpu::CpuDevice;
use fusebox_runtime::device::{self as runtime, Footprint};
use fusebox_runtime::error::Error;
use fusebox_runtime::session::Session;
use fusebox_runtime::session::cache::Cache;

use crate::devices::Device;
use crate::gpus;
use crate::machine;
use crate::output::note;
use crate::progress::Progress;
use crate::room::Room;

/// The file of the default model.
const DEFAULT_MODEL: &str = "story.gguf";
/// The context of a session unless another is asked for, or the model's is shorter.
const DEFAULT_CONTEXT: usize = 4096;
/// The most threads that can be asked for.
const MOST_THREADS: usize = 256;
/// How many tokens a replay takes at most: fewer, where that leaves memory for a longer text.
const CHUNKS: [usize; 3] = [512, 128, 32];
/// The same where every token is scored: each has a row of scores.
const SCORED_CHUNK: usize = 32;

/// Which model, on what, how exactly.
#[derive(Args)]
pub(crate) struct Which {
    /// A GGUF file, a safetensors file or folder, a qwen3.c checkpoint or a Qorus file; the default model is a small
    /// storyteller.
    #[arg(short, long, value_name = "PATH")]
    model: Option<PathBuf>,
    /// The device to run on: auto, cpu, cuda, vulkan or metal.
    #[arg(long, value_name = "NAME", default_value = "auto")]
    device: String,
    /// The most memory of a GPU to take, in MiB [default: all that is free].
    #[arg(long, value_name = "MIB")]
    gpu_memory: Option<usize>,
    /// Compute in single precision throughout, caches included.
    #[arg(long)]
    precise: bool,
    /// How cached keys and values are stored [default: f16, with --precise f32].
    #[arg(long, value_name = "TYPE", ignore_case = true)]
    kv_type: Option<KvType>,
}

/// A type of cached keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum KvType {
    /// Single precision.
    F32,
    /// Half precision.
    F16,
    /// 8 bits a number, with a scale for every 32.
    #[value(name = "q8_0")]
    Q8_0,
}

/// A model that sessions can be made of.
pub(crate) struct Opened {
    pub(crate) model: Model,
    device: Device,
    /// The programs that were needed so far.
    pub(crate) cache: Cache,
    options: Options,
    level: Level,
    numbers: Numbers,
    pub(crate) kv_type: Format,
    /// The most bytes that a GPU may hold.
    gpu_memory: Option<usize>,
    /// Whether nothing is told on the way.
    is_quiet: bool,
}

/// How long a text may be: as long as there is memory for, within these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Context {
    least: usize,
    pub(crate) most: usize,
}

impl Context {
    /// So many tokens and no fewer.
    pub(crate) fn of(n_tokens: usize) -> Self {
        Self { least: n_tokens, most: n_tokens }
    }

    /// The same, for no fewer tokens.
    pub(crate) fn at_least(self, n_tokens: usize) -> Self {
        Self { least: self.least.max(n_tokens), most: self.most.max(n_tokens) }
    }

    /// The longest context that fits into free memory, by what the longest of all needs; the shortest where none does.
    fn fitting(self, needed: &Footprint, chunk: usize, free: usize) -> usize {
        if needed.bytes() <= free {
            return self.most;
        }
        let each = needed.state.div_ceil(self.most + chunk).max(1);
        let for_caches = free.saturating_sub(needed.bytes() - needed.state);
        (for_caches / each).saturating_sub(chunk).clamp(self.least, self.most)
    }
}

impl Which {
    /// Whether no model was named.
    pub(crate) fn is_default(&self) -> bool {
        self.model.is_none()
    }

    /// Opens the model; a quiet one tells nothing on the way.
    pub(crate) fn open(&self, progress: &mut Progress, is_quiet: bool) -> Result<Opened, String> {
        let device = Device::named(&self.device)?;
        if device == Device::Cpu && self.gpu_memory.is_some() {
            return Err("--gpu-memory needs a GPU: --device cuda, vulkan or metal".to_owned());
        }
        let (mut options, level) = environment()?;
        if let Some(target) = device.target() {
            options = Options { target, ..options }.with_env()?;
        }
        let path = model_path(self.model.as_deref())?;
        progress.begin("opening");
        let model = Model::open(&path).map_err(|error| error.to_string())?;
        let numbers = if self.precise { Numbers::Single } else { Numbers::Quantised };
        let kv_type = match self.kv_type {
            Some(KvType::F32) => Format::F32,
            None if self.precise => Format::F32,
            Some(KvType::F16) | None => Format::F16,
            Some(KvType::Q8_0) => Format::Q8_0,
        };
        let cache = Cache::new(options.cache.clone().map(PathBuf::from));
        let gpu_memory = self.gpu_memory.map(|mebibytes| mebibytes.saturating_mul(1 << 20));
        Ok(Opened { model, device, cache, options, level, numbers, kv_type, gpu_memory, is_quiet })
    }
}

impl Opened {
    /// The context to use where one may be asked for.
    pub(crate) fn context(&self, asked: Option<usize>) -> Result<Context, String> {
        let most = self.model.config.context;
        match asked {
            None => Ok(Context { least: 1, most: most.min(DEFAULT_CONTEXT) }),
            Some(asked) if (1..=most).contains(&asked) => Ok(Context::of(asked)),
            Some(asked) => Err(format!("--context is {asked}; this model has 1 to {most}")),
        }
    }

    /// How many tokens a text may have in a context of so many.
    pub(crate) fn room(&self, context: usize) -> Room {
        Room { context, most: self.model.config.context }
    }

    /// A session at the start of a text, which may be as long as there is memory for.
    pub(crate) fn session(
        &mut self,
        n_threads: usize,
        context: Context,
        scored: Scored,
    ) -> Result<Session, String> {
        self.session_of_texts(n_threads, context, scored, 1)
    }

    /// A session at the start of several texts.
    pub(crate) fn session_of_texts(
        &mut self,
        n_threads: usize,
        context: Context,
        scored: Scored,
        n_texts: usize,
    ) -> Result<Session, String> {
        // Texts that are gone on with together are scored as one replay, and none has its best chosen.
        let scored = match scored {
            Scored::Best(_) if n_texts > 1 => Scored::Last,
            asked => asked,
        };
        self.fitting(n_threads, context, scored, n_texts).map_err(|error| error.to_string())
    }

    fn fitting(
        &mut self,
        n_threads: usize,
        context: Context,
        scored: Scored,
        n_texts: usize,
    ) -> Result<Session, Error> {
        let device = self.started(n_threads)?;
        let mut settings = self.settings(context.most, CHUNKS[0], scored);
        let mut last = None;
        if let Some(free) = device.free() {
            let mut longest = 0;
            for chunk in CHUNKS {
                let tried = self.settings(context.most, chunk, scored);
                let programs = self.model.programs(&tried, &self.options, &mut self.cache)?;
                let needed = needs(&programs, n_texts);
                let (fits, is_all) = (context.fitting(&needed, tried.chunk, free), needed.bytes() <= free);
                last = Some((tried, programs));
                if is_all || fits > longest {
                    (longest, settings) = (fits, self.settings(fits, chunk, scored));
                }
                // Beside a text that is much longer, a shorter chunk would leave little more.
                if is_all || (4 * chunk..context.most).contains(&longest) {
                    break;
                }
            }
        }
        let programs = match last {
            Some((tried, programs)) if tried == settings => programs,
            _ => self.model.programs(&settings, &self.options, &mut self.cache)?,
        };
        let needed = needs(&programs, n_texts);
        if self.device != Device::Cpu && !self.is_quiet {
            tell_needs(&needed, settings.context, &*device);
        }
        let together = self.model.together(&settings, n_texts, &self.options, &mut self.cache)?;
        let before = device.describe();
        let session = self.model.start(device, programs, together, &settings)?;
        // A device may find out only now that it has to work in another way.
        if session.device() != before {
            note(&session.device());
        }
        Ok(session)
    }

    fn settings(&self, context: usize, chunk: usize, scored: Scored) -> Settings {
        let most = match scored {
            Scored::Last | Scored::Best(_) | Scored::Unnormed | Scored::Normed => chunk,
            Scored::All => chunk.min(SCORED_CHUNK),
        };
        Settings { context, chunk: context.clamp(2, most), cache: self.kv_type, scored }
    }

    /// The device that programs run on, whichever it is that the environment has them made for.
    pub(crate) fn target(&self) -> Target {
        self.device.target().unwrap_or(Options::default().target)
    }

    /// The programs of a session on another device.
    pub(crate) fn programs(
        &mut self,
        context: Context,
        scored: Scored,
        target: Target,
    ) -> Result<[Program; 2], String> {
        let options = Options { target, ..self.options.clone() };
        let settings = self.settings(context.most, CHUNKS[0], scored);
        self.model.programs(&settings, &options, &mut self.cache).map_err(|error| error.to_string())
    }

    fn started(&self, n_threads: usize) -> Result<Box<dyn runtime::Device>, Error> {
        match self.device {
            Device::Cpu => Ok(Box::new(CpuDevice::new(Cpu::at(self.level, self.numbers)?, n_threads)?)),
            Device::Gpu(gpu) => {
                let folder = self.options.cache.clone().map(PathBuf::from);
                gpus::started(gpu, self.numbers, folder, self.gpu_memory, self.is_quiet)
            }
        }
    }
}

/// What programs take of a device's memory, with states for each text.
fn needs(programs: &[Program; 2], n_texts: usize) -> Footprint {
    let needed = Footprint::of(&programs.each_ref().map(|program| &program.plan));
    Footprint { state: needed.state.saturating_mul(n_texts), ..needed }
}

/// Says what is about to be taken of a device's memory.
fn tell_needs(needed: &Footprint, context: usize, device: &dyn runtime::Device) {
    let [weights, arena, state] = [needed.weights, needed.arena, needed.state].map(|n| bytes(n as f64));
    let free = device.free().map_or_else(String::new, |free| format!("; {} free", bytes(free as f64)));
    let (tokens, device) = (counted(context, "token"), device.describe());
    note(&format!("{device}: weights {weights}, caches of {tokens} {state}, arena {arena}{free}"));
}

/// What the environment asks for: options, and a level of instructions.
pub(crate) fn environment() -> Result<(Options, Level), String> {
    let options = Options::from_env()?;
    let level = match &options.level {
        None => Level::host(),
        Some(name) => Level::named(name).map_err(|_| {
            let there = levels().map(Level::name).collect::<Vec<_>>().join(", ");
            format!("FUSEBOX_LEVEL is `{name}`, expected what this processor has, one of {there}")
        })?,
    };
    Ok((options, level))
}

/// The levels of instructions that this processor has.
pub(crate) fn levels() -> impl Iterator<Item = Level> {
    Level::ALL.into_iter().filter(|level| level.is_supported())
}

/// How many threads to run on.
pub(crate) fn n_threads(asked: Option<usize>) -> Result<usize, String> {
    match asked {
        None => Ok(machine::n_threads().min(MOST_THREADS)),
        Some(asked) if (1..=MOST_THREADS).contains(&asked) => Ok(asked),
        Some(asked) => Err(format!("--threads is {asked}; 1 to {MOST_THREADS} is possible")),
    }
}

/// The path of the model to open.
pub(crate) fn model_path(asked: Option<&Path>) -> Result<PathBuf, String> {
    let missing = |fault| format!("the default model {fault}; name a model with -m");
    asked.map_or_else(|| default_model().map_err(missing), |path| Ok(path.to_owned()))
}

/// The default model: beside the program, where an installation puts what programs come with, or in the folder that
/// the program was built from.
pub(crate) fn default_model() -> Result<PathBuf, String> {
    let mut places = Vec::new();
    if let Ok(program) = std::env::current_exe()
        && let Some(folder) = program.parent()
    {
        places.push(folder.join("assets"));
        places.push(folder.join("../share/fusebox"));
    }
    places.push(Path::new(env!("CARGO_MANIFEST_DIR")).join("assets"));
    let found = places.iter().map(|folder| folder.join(DEFAULT_MODEL)).find(|path| path.is_file());
    found.ok_or_else(|| {
        let places: Vec<String> = places.iter().map(|place| place.display().to_string()).collect();
        format!("{DEFAULT_MODEL} is in none of {}", places.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_is_as_long_as_memory_lets_it_be() {
        // A cache of 100 tokens and a chunk of 28 takes 10 bytes each.
        let needed = Footprint { weights: 5000, arena: 1000, state: 1280, ..Footprint::default() };
        let context = Context { least: 1, most: 100 };
        assert_eq!(context.fitting(&needed, 28, 7280), 100);
        assert_eq!(context.fitting(&needed, 28, 7279), 99);
        assert_eq!(context.fitting(&needed, 28, 6000 + 280 + 70), 7);
        assert_eq!(context.fitting(&needed, 28, 6000), 1);
        assert_eq!(context.at_least(40).fitting(&needed, 28, 0), 40);
        assert_eq!(Context::of(100).fitting(&needed, 28, 0), 100);
    }
}
