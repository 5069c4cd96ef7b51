//! What all commands on models share: which model, on what, how exactly.
//!
//! In: flags. Out: an [`Opened`] model, and sessions with it. A flag that makes no sense is refused before a file is
//! touched, a file before anything is compiled.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use fusebox_compiler::codegen::cpu::Cpu;
use fusebox_compiler::codegen::cpu::level::{Level, Numbers};
use fusebox_compiler::options::Options;
use fusebox_compiler::program::Program;
use fusebox_compiler::target::Target;
use fusebox_compiler::tensor::dtype::DType;
use fusebox_models::layers::embed::Scored;
use fusebox_models::load::{Model, Settings};
use fusebox_runtime::device as runtime;
use fusebox_runtime::device::cpu::CpuDevice;
use fusebox_runtime::device::gpu::cuda::CudaDevice;
use fusebox_runtime::device::gpu::driver::Driver;
use fusebox_runtime::device::gpu::graphics::GraphicsDevice;
use fusebox_runtime::error::Error;
use fusebox_runtime::session::Session;
use fusebox_runtime::session::cache::Cache;

use crate::devices::Device;
use crate::machine;
use crate::progress::Progress;

/// The file of the default model.
const DEFAULT_MODEL: &str = "story.gguf";
/// The context of a session unless another is asked for, or the model's is shorter.
const DEFAULT_CONTEXT: usize = 4096;
/// The most threads that can be asked for.
const MOST_THREADS: usize = 256;
/// How many tokens a replay takes at most.
const CHUNK: usize = 512;
/// The same where every token is scored: each has a row of scores.
const SCORED_CHUNK: usize = 32;

/// Which model, on what, how exactly.
#[derive(Args)]
pub(crate) struct Which {
    /// A GGUF file, a safetensors file or folder, or a qwen3.c checkpoint; the default model is a small storyteller.
    #[arg(short, long, value_name = "PATH")]
    model: Option<PathBuf>,
    /// The device to run on: auto, cpu, cuda, vulkan or metal.
    #[arg(long, value_name = "NAME", default_value = "auto")]
    device: String,
    /// Compute in single precision throughout, caches included.
    #[arg(long)]
    precise: bool,
    /// How cached keys and values are stored [default: f16, with --precise f32].
    #[arg(long, value_name = "TYPE")]
    kv_type: Option<KvType>,
}

/// A type of cached keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum KvType {
    /// Single precision.
    F32,
    /// Half precision.
    F16,
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
    kv_type: DType,
}

impl Which {
    /// Whether no model was named.
    pub(crate) fn is_default(&self) -> bool {
        self.model.is_none()
    }

    /// Opens the model.
    pub(crate) fn open(&self, progress: &mut Progress) -> Result<Opened, String> {
        let device = Device::named(&self.device)?;
        let (mut options, level) = environment()?;
        if let Some(target) = device.target() {
            options = Options { target, ..options }.with_env()?;
        }
        let path = model_path(self.model.as_deref())?;
        progress.begin("opening");
        let model = Model::open(&path).map_err(|error| error.to_string())?;
        let numbers = if self.precise { Numbers::Single } else { Numbers::Quantised };
        let kv_type = match self.kv_type {
            Some(KvType::F32) => DType::F32,
            None if self.precise => DType::F32,
            Some(KvType::F16) | None => DType::F16,
        };
        let cache = Cache::new(options.cache.clone().map(PathBuf::from));
        Ok(Opened { model, device, cache, options, level, numbers, kv_type })
    }
}

impl Opened {
    /// The context to use where one may be asked for.
    pub(crate) fn context(&self, asked: Option<usize>) -> Result<usize, String> {
        let most = self.model.config.context;
        match asked {
            None => Ok(most.min(DEFAULT_CONTEXT)),
            Some(asked) if (1..=most).contains(&asked) => Ok(asked),
            Some(asked) => Err(format!("--context is {asked}; this model has 1 to {most}")),
        }
    }

    /// A session at the start of a text.
    pub(crate) fn session(
        &mut self,
        n_threads: usize,
        context: usize,
        scored: Scored,
    ) -> Result<Session, String> {
        let settings = self.settings(context, scored);
        let device = self.started(n_threads).map_err(|error| error.to_string())?;
        let session = self.model.session(device, &settings, &self.options, &mut self.cache);
        session.map_err(|error| error.to_string())
    }

    fn settings(&self, context: usize, scored: Scored) -> Settings {
        let most = match scored {
            Scored::Last | Scored::Unnormed | Scored::Normed => CHUNK,
            Scored::All => SCORED_CHUNK,
        };
        Settings { context, chunk: context.clamp(2, most), cache: self.kv_type, scored }
    }

    /// The device that programs are compiled for.
    pub(crate) fn target(&self) -> Target {
        self.options.target
    }

    /// The programs of a session on another device.
    pub(crate) fn programs(&mut self, context: usize, target: Target) -> Result<[Program; 2], String> {
        let options = Options { target, ..self.options.clone() };
        let graphs = self.model.graphs(&self.settings(context, Scored::Last));
        let [decode, prefill] = graphs.map_err(|error| error.to_string())?;
        let mut program = |graph| self.cache.program(graph, &options).map_err(|error| error.to_string());
        Ok([program(&decode)?, program(&prefill)?])
    }

    fn started(&self, n_threads: usize) -> Result<Box<dyn runtime::Device>, Error> {
        match (self.device, self.device.interface()) {
            (_, Some(interface)) => Ok(Box::new(GraphicsDevice::new(Driver::open(interface)?))),
            (Device::Cuda, None) => Ok(Box::new(CudaDevice::open()?)),
            (Device::Cpu | Device::Vulkan | Device::Metal, None) => {
                Ok(Box::new(CpuDevice::new(Cpu::at(self.level, self.numbers)?, n_threads)?))
            }
        }
    }
}

/// What the environment asks for: options, for the target that fits the level of instructions.
pub(crate) fn environment() -> Result<(Options, Level), String> {
    let options = Options::from_env()?;
    let level = match &options.level {
        None => Level::host(),
        Some(name) => Level::named(name).map_err(|error| format!("FUSEBOX_LEVEL: {error}"))?,
    };
    let target = match level {
        Level::Amx => "cpu-amx",
        Level::Avx512Bf16 | Level::Avx512 => "cpu-avx512",
        Level::Avx2 | Level::Portable => "cpu-avx2",
        Level::Neon => "cpu-neon",
    };
    let target = Target::named(target).expect("every level has its target");
    Ok((Options { target, ..options }.with_env()?, level))
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
    asked.map_or_else(default_model, |path| Ok(path.to_owned()))
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
        format!("the default model {DEFAULT_MODEL} is in none of {}; name a model with -m", places.join(", "))
    })
}
