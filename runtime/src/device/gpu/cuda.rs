//! An NVIDIA GPU, through the CUDA driver.
//!
//! In: requests of `replay.rs`. Out: one CUDA graph launch for each replay, and one wait. CubeCL prints the sources,
//! NVRTC compiles them (`nvrtc.rs`), and the machine code is cached on disk (`machine_code_cache.rs`). A whole replay
//! is captured as one CUDA graph when its plan is loaded. A graph names addresses that never move; what changes from
//! replay to replay is copied to where its kernels read it. Grids are as large as any replay may need, because
//! workgroups without tasks do nothing. Where capture fails, kernels are launched one by one, and a note says why.
//! Tests run all of this against a fake driver that executes kernels on the CPU (`tests/gpu/played.sh`); `docs/gpu.md`
//! says what was measured on real GPUs.

#![expect(unsafe_code, reason = "the driver takes addresses")]

use std::ffi::{c_int, c_void};
use std::path::PathBuf;
use std::ptr;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use cudarc::driver::result;
use cudarc::driver::sys::{
    CUdevice_attribute, CUevent_flags, CUfunction_attribute_enum, CUgraphInstantiate_flags, CUresult,
    CUstreamCaptureMode, cuDriverGetVersion, is_culib_present,
};
use cudarc::driver::{
    CudaContext, CudaEvent, CudaFunction, CudaGraph, CudaSlice, CudaStream, DevicePtr, DriverError,
    LaunchConfig, PushKernelArg,
};
use cudarc::nvrtc::Ptx;
use fusebox_compiler::codegen::gpu::dialect::{Dialect, Language};
use fusebox_compiler::codegen::gpu::print::with_blocks_per_sm;
use fusebox_compiler::codegen::gpu::{Code, ENTRY};
use fusebox_compiler::error::Error as CompilerError;
use fusebox_compiler::program::Key;
use fusebox_compiler::schedule::arena;
use fusebox_compiler::target::THREADS;
use fusebox_compiler::target::{self, Target};

use crate::device::gpu::machine::{Machine, clocked, refused_by_driver};
use crate::device::gpu::machine_code_cache::{MAKER, MachineCodeCache};
use crate::device::gpu::nvrtc::Nvrtc;
use crate::device::gpu::replay::Gpu;
use crate::error::Error;
use crate::threads::each;

/// Thread blocks an SM, at most: more than are resident, so that all SMs finish together.
const BLOCKS_PER_SM: u32 = 16;
/// The same for kernels with global scratch: those that are resident where each takes many registers.
const SCRATCH_BLOCKS_PER_SM: u32 = 2;
/// The first driver whose event timer has the ABI of the CUDA 13 headers.
const EVENT_TIMES_VERSION: c_int = 12_080;
/// An upper bound for the time to enqueue a launch and an event.
const MOMENT: Duration = Duration::from_micros(10);
/// Blocks an SM in `__launch_bounds__` to try in turn where ptxas spills registers with the first.
const FALLBACK_BLOCKS_PER_SM: [u32; 3] = [3, 2, 1];
/// Bytes of local memory a thread: register spills.
const LOCAL_BYTES: CUfunction_attribute_enum = CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES;
/// Shared memory that a kernel may use without opting in to more.
const DEFAULT_SHARED_BYTES: usize = 48 << 10;
/// Alignment of a value in a buffer of many: no load is wider than 16 bytes.
const ALIGNMENT: usize = arena::ALIGNMENT;

/// An NVIDIA GPU, as a device.
pub type CudaDevice = Gpu<Cuda>;

/// An NVIDIA GPU.
pub struct Cuda {
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    driver_version: c_int,
    nvrtc: Nvrtc,
    cache: MachineCodeCache,
    name: String,
    architecture: String,
    n_sms: u32,
    is_precise: bool,
    /// Why kernels are launched one by one, if they are.
    note: Option<String>,
}

/// Device memory.
#[derive(Clone)]
pub struct Memory {
    /// Keeps the allocation alive.
    _whole: Arc<CudaSlice<u8>>,
    address: u64,
    bytes: usize,
}

/// A loaded kernel.
pub struct Function {
    loaded: CudaFunction,
    shared_bytes: u32,
    /// Whether its machine code came from the cache.
    is_from_cache: bool,
}

/// A kernel with an address for each binding; whoever has this keeps the memory alive.
pub struct Launch {
    function: CudaFunction,
    config: LaunchConfig,
    addresses: Vec<u64>,
}

/// All launches of a program as one.
pub struct Graph(CudaGraph);

// SAFETY: the handles of a graph belong to no thread, only one may use them at a time, and nobody has a second copy.
// Before each call on them the context is made the thread's.
unsafe impl Send for Graph {}

/// What is missing to run on an NVIDIA GPU.
pub fn missing() -> Option<String> {
    compiler().err()
}

/// The first NVIDIA GPU, and the versions of its driver and NVRTC.
///
/// # Errors
/// Where something is missing, or the driver refuses.
pub fn described() -> Result<String, Error> {
    let cuda = Cuda::open(false, None)?;
    Ok(format!("{}, {}", cuda.name, cuda.versions()))
}

/// The first NVIDIA GPU as a target: its kind by compute capability, its rates as the driver states them.
///
/// # Errors
/// Where the driver refuses.
pub fn target() -> Result<Target, Error> {
    result::init().map_err(driver)?;
    let device = result::device::get(0).map_err(driver)?;
    // SAFETY: the device is one that the driver gave.
    let attribute = |what| unsafe { result::device::get_attribute(device, what) }.map_err(driver);
    let major = attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    let minor = attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
    let n_sms = attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
    let kilohertz = attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE)?;
    let bits = attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH)?;
    Ok(priced((major, minor), n_sms, (kilohertz, bits)))
}

/// A GPU as a target, by its compute capability, its SMs, and the clock and width of its memory, of which each line
/// carries two bits a cycle. What is within a twentieth of the name's bandwidth counts as that, and so does nothing: a
/// driver may not tell of memory.
fn priced(capability: (c_int, c_int), n_sms: c_int, (kilohertz, bits): (c_int, c_int)) -> Target {
    let named = target::cuda(capability);
    let bandwidth = 2.0 * f64::from(kilohertz) * 1e3 * f64::from(bits) / 8.0;
    let gigabytes = match (bandwidth / 1e9).round() as usize {
        0 => named.gigabytes(),
        stated if 20 * stated.abs_diff(named.gigabytes()) <= named.gigabytes() => named.gigabytes(),
        // Two digits: no price is more exact.
        stated => {
            let unit = 10_usize.pow(stated.ilog10().saturating_sub(1));
            (stated + unit / 2) / unit * unit
        }
    };
    named.with_rates(n_sms.unsigned_abs() as usize, gigabytes)
}

/// The newest CUDA version that the driver knows: 1000 · major + 10 · minor.
fn driver_version() -> Result<c_int, Error> {
    let mut version = 0;
    // SAFETY: the address is that of a number of this type.
    unsafe { cuDriverGetVersion(&raw mut version) }.result().map_err(driver)?;
    Ok(version)
}

/// NVRTC, if there is a GPU as well; else what is missing.
fn compiler() -> Result<Nvrtc, String> {
    // SAFETY: loading the library of a driver runs what its vendor runs when it is loaded, and nothing else.
    if !unsafe { is_culib_present() } {
        return Err("no NVIDIA driver was found".to_owned());
    }
    match CudaContext::device_count() {
        Err(fault) => Err(format!("the NVIDIA driver gives no GPU: {fault}")),
        Ok(0) => Err("the NVIDIA driver gives no GPU".to_owned()),
        Ok(_) => Nvrtc::found().map_err(|missing| format!("an NVIDIA driver is there, but {missing}")),
    }
}

impl Cuda {
    /// The first GPU; a precise one computes products in single precision. Machine code is cached in the folder, if
    /// there is one.
    ///
    /// # Errors
    /// Where something is missing, or the driver refuses.
    pub fn open(is_precise: bool, folder: Option<PathBuf>) -> Result<Self, Error> {
        let nvrtc =
            compiler().map_err(|what| CompilerError::Unsupported { what, target: "cuda".to_owned() })?;
        let context = CudaContext::new(0).map_err(driver)?;
        // SAFETY: there is one stream only, so whatever uses memory does so in the order of that stream, and memory is
        // freed after everything that was enqueued on the stream before.
        unsafe { context.disable_event_tracking() };
        let stream = context.new_stream().map_err(driver)?;
        let units = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
        let n_sms = context.attribute(units).map_err(driver)?;
        let name = context.name().map_err(driver)?;
        let driver_version = driver_version()?;
        let (major, minor) = context.compute_capability().map_err(driver)?;
        let architecture = format!("sm_{major}{minor}");
        let n_sms = n_sms.unsigned_abs();
        Ok(Self {
            context,
            stream,
            driver_version,
            nvrtc,
            cache: MachineCodeCache::new(folder),
            name,
            architecture,
            n_sms,
            is_precise,
            note: None,
        })
    }

    /// The versions of the driver and NVRTC.
    fn versions(&self) -> String {
        let (of_driver, behind_point) = (self.driver_version / 1000, self.driver_version % 1000 / 10);
        let (major, minor) = self.nvrtc.version;
        format!("a driver for CUDA {of_driver}.{behind_point}, NVRTC {major}.{minor}")
    }

    /// Compiles a source for this GPU.
    fn compiled(&self, code: &Code, source: &str) -> Result<(CudaFunction, Vec<u8>), Error> {
        let made = self.nvrtc.compiled(source, &self.architecture);
        let made = made.map_err(|words| refused_by_driver(&code.kernel.name, &words))?;
        Ok((self.loaded(made.clone())?, made))
    }

    /// Loads machine code.
    fn loaded(&self, machine_code: Vec<u8>) -> Result<CudaFunction, Error> {
        let module = self.context.load_module(Ptx::from_binary(machine_code));
        let module = module.map_err(|fault| refused_by_driver(&self.versions(), &fault))?;
        module.load_function(ENTRY).map_err(driver)
    }

    /// Compiles a kernel, again with fewer blocks an SM while registers spill, and caches the result.
    fn best(&self, code: &Code, key: Key) -> Result<CudaFunction, Error> {
        let (mut function, mut machine_code) = self.compiled(code, &code.source)?;
        for n in FALLBACK_BLOCKS_PER_SM {
            if function.get_attribute(LOCAL_BYTES).map_err(driver)? == 0 {
                break;
            }
            (function, machine_code) = self.compiled(code, &with_blocks_per_sm(&code.source, n))?;
        }
        self.cache.write(key, &machine_code);
        Ok(function)
    }

    /// The cache key: everything that decides what a source compiles to.
    fn key(&self, code: &Code) -> Key {
        let (version, options) = (self.nvrtc.version, self.nvrtc.options(&self.architecture));
        let told = format!("{MAKER}\n{version:?} {options:?} {FALLBACK_BLOCKS_PER_SM:?}\n{}", code.source);
        Key::of_bytes(told.as_bytes())
    }

    /// The kernel from the cache, or compiled.
    fn function(&self, code: &Code) -> Result<Function, Error> {
        let key = self.key(code);
        // Machine code that the driver refuses is compiled again.
        let cache = self.cache.read(key).and_then(|machine_code| self.loaded(machine_code).ok());
        let is_from_cache = cache.is_some();
        let function = cache.map_or_else(|| self.best(code, key), Ok)?;
        if code.shared_bytes > DEFAULT_SHARED_BYTES {
            let attribute = CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            function.set_attribute(attribute, code.shared_bytes as i32).map_err(driver)?;
        }
        Ok(Function { loaded: function, shared_bytes: code.shared_bytes as u32, is_from_cache })
    }

    fn start(&self, launch: &Launch) -> Result<(), DriverError> {
        let mut builder = self.stream.launch_builder(&launch.function);
        for address in &launch.addresses {
            builder.arg(address);
        }
        // SAFETY: the function was made of a kernel that verifies and takes one address for each of its bindings, now
        // or by a start that kept it, which is for the owner of the folder to vouch for. At each lie the bytes of the
        // parameter's largest shape, in memory that is kept along with the launch. The plan verifies: what a step
        // writes it reads only where that is proven harmless, and steps follow each other on one stream.
        unsafe { builder.launch(launch.config) }.map(|_| ())
    }

    /// Captures all launches as a graph; nothing runs meanwhile.
    fn captured(&self, launches: &[Launch]) -> Result<Graph, String> {
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        self.stream.begin_capture(mode).map_err(|fault| fault.to_string())?;
        let launched = launches.iter().try_for_each(|launch| self.start(launch));
        // The capture must end whatever happened inside it: else the stream is lost.
        let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        let ended = self.stream.end_capture(flags).map_err(|fault| fault.to_string());
        launched.map_err(|fault| fault.to_string())?;
        ended?.map(Graph).ok_or_else(|| "the driver gave no graph".to_owned())
    }

    /// Blocks the stream for a while, so that launches queue up.
    fn pause(&self, time: Duration) -> Result<(), DriverError> {
        unsafe extern "C" fn sleep(n_micros: *mut c_void) {
            thread::sleep(Duration::from_micros(n_micros.addr() as u64));
        }
        let n_micros = ptr::without_provenance_mut(time.as_micros() as usize);
        // SAFETY: the stream is this machine's, and what is called reads no memory at the number that it is given.
        unsafe { result::stream::launch_host_function(self.stream.cu_stream(), sleep, n_micros) }
    }

    fn wait(&self) -> Result<(), Error> {
        self.stream.synchronize().map_err(driver)
    }
}

impl Machine for Cuda {
    type Memory = Memory;
    type Function = Function;
    type Launch = Launch;
    /// Nothing where kernels are launched one by one.
    type LaunchList = Option<Graph>;

    fn describe(&self) -> String {
        match &self.note {
            None => self.name.clone(),
            Some(note) => format!("{}, with launches one by one: {note}", self.name),
        }
    }

    fn dialect(&self) -> Dialect {
        Dialect { has_tensor_cores: !self.is_precise, ..Language::Cuda.into() }
    }

    fn alignment(&self) -> usize {
        ALIGNMENT
    }

    fn max_workgroups(&self) -> u32 {
        BLOCKS_PER_SM * self.n_sms
    }

    fn max_workgroups_with_scratch(&self) -> u32 {
        SCRATCH_BLOCKS_PER_SM * self.n_sms
    }

    fn size(&self) -> Option<usize> {
        self.context.mem_get_info().ok().map(|(_, all)| all)
    }

    fn free(&self) -> Option<usize> {
        self.context.mem_get_info().ok().map(|(free, _)| free)
    }

    fn allocate(&self, what: &str, bytes: usize) -> Result<Memory, Error> {
        let needed = bytes.next_multiple_of(16).max(16);
        let whole = self.stream.alloc_zeros(needed).map_err(|fault| {
            if fault.0 != CUresult::CUDA_ERROR_OUT_OF_MEMORY {
                return driver(fault);
            }
            Error::Memory { what: what.to_owned(), device: self.name.clone(), needed, free: self.free() }
        })?;
        let address = whole.device_ptr(&self.stream).0;
        Ok(Memory { _whole: Arc::new(whole), address, bytes })
    }

    fn piece(&self, of: &Memory, offset: usize, bytes: usize) -> Memory {
        Memory { address: of.address + offset as u64, bytes, ..of.clone() }
    }

    fn write(&self, to: &Memory, bytes: &[u8]) -> Result<(), Error> {
        let n_bytes = bytes.len().min(to.bytes);
        self.context.bind_to_thread().map_err(driver)?;
        let stream = self.stream.cu_stream();
        // SAFETY: the piece lies in memory that it keeps and has as many bytes. Of memory that the driver does not
        // know, it makes a copy before it returns, so the bytes may change after this.
        unsafe { result::memcpy_htod_async(to.address, &bytes[..n_bytes], stream) }.map_err(driver)
    }

    fn functions(&self, codes: &[&Code]) -> Result<Vec<Function>, Error> {
        let n_threads = thread::available_parallelism().map_or(1, usize::from).min(codes.len()).max(1);
        let n_each = codes.len().div_ceil(n_threads);
        let made = each(n_threads, |thread| -> Result<Vec<Function>, Error> {
            codes.iter().skip(thread * n_each).take(n_each).map(|code| self.function(code)).collect()
        });
        Ok(made.into_iter().collect::<Result<Vec<_>, Error>>()?.into_iter().flatten().collect())
    }

    fn is_from_cache(function: &Function) -> bool {
        function.is_from_cache
    }

    fn launch(&self, function: &Function, pieces: &[Memory], max_workgroups: u32) -> Result<Launch, Error> {
        let config = LaunchConfig {
            grid_dim: (max_workgroups.max(1), 1, 1),
            block_dim: (THREADS, 1, 1),
            shared_mem_bytes: function.shared_bytes,
        };
        let addresses = pieces.iter().map(|piece| piece.address).collect();
        Ok(Launch { function: function.loaded.clone(), config, addresses })
    }

    fn launch_list(&mut self, launches: &[Launch], _: usize) -> Result<Option<Graph>, Error> {
        if launches.is_empty() {
            return Ok(None);
        }
        self.wait()?;
        match self.captured(launches) {
            Ok(graph) => Ok(Some(graph)),
            Err(why) => {
                self.note = Some(why);
                Ok(None)
            }
        }
    }

    fn run(
        &self,
        graph: &Option<Graph>,
        launches: &[Launch],
        _: &[u32],
        (from, to): (&Memory, &mut [u8]),
    ) -> Result<(), Error> {
        match graph {
            Some(graph) => graph.0.launch().map_err(driver)?,
            None => launches.iter().try_for_each(|launch| self.start(launch)).map_err(driver)?,
        }
        self.read(graph, from, to)
    }

    fn run_one(&self, launch: &Launch, _: u32) -> Result<(), Error> {
        self.start(launch).map_err(driver)?;
        self.wait()
    }

    fn times(&self, launches: &[Launch], n_workgroups: &[u32]) -> Result<Vec<Duration>, Error> {
        if self.driver_version < EVENT_TIMES_VERSION {
            return clocked(self, launches, n_workgroups);
        }
        let event = |_| self.context.new_event(Some(CUevent_flags::CU_EVENT_DEFAULT));
        let events: Result<Vec<CudaEvent>, DriverError> = (0..=launches.len()).map(event).collect();
        let events = events.map_err(driver)?;
        self.pause(MOMENT * launches.len() as u32).map_err(driver)?;
        events[0].record(&self.stream).map_err(driver)?;
        for (launch, event) in launches.iter().zip(&events[1..]) {
            self.start(launch).map_err(driver)?;
            event.record(&self.stream).map_err(driver)?;
        }
        let between = |pair: &[CudaEvent]| pair[0].elapsed_ms(&pair[1]).map_err(driver);
        let time = |pair| Ok(Duration::from_secs_f32(between(pair)?.max(0.0) / 1e3));
        events.windows(2).map(time).collect()
    }

    fn read(&self, _: &Option<Graph>, from: &Memory, to: &mut [u8]) -> Result<(), Error> {
        let n_bytes = to.len().min(from.bytes);
        self.context.bind_to_thread().map_err(driver)?;
        let stream = self.stream.cu_stream();
        // SAFETY: the piece lies in memory that it keeps and has as many bytes, and the wait below is over before
        // anybody else has these.
        unsafe { result::memcpy_dtoh_async(&mut to[..n_bytes], from.address, stream) }.map_err(driver)?;
        self.wait()
    }
}

/// An error of the driver.
fn driver(fault: DriverError) -> Error {
    refused_by_driver("the NVIDIA driver", &fault)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_priced_by_what_their_drivers_state() {
        let told = |capability, n_sms, memory| priced(capability, n_sms, memory).to_string();
        // H200, H100, A100 with 80 GB, RTX 4090, RTX 3060, RTX 5090.
        assert_eq!(told((9, 0), 132, (3_201_000, 6144)), "cuda-sm90");
        assert_eq!(told((9, 0), 132, (2_619_000, 5120)), "cuda-sm90:132:3400");
        assert_eq!(told((8, 0), 108, (1_593_000, 5120)), "cuda-sm80");
        assert_eq!(told((8, 9), 128, (10_501_000, 384)), "cuda-sm89");
        assert_eq!(told((8, 6), 28, (7_501_000, 192)), "cuda-sm89:28:360");
        assert_eq!(told((12, 0), 170, (14_001_000, 512)), "cuda-sm89:170:1800");
        // A driver that tells nothing of memory, and one of a GPU with a few lines of it.
        assert_eq!(told((9, 0), 66, (0, 0)), "cuda-sm90:66:4800");
        assert_eq!(told((9, 0), 0, (8000, 8)), "cuda-sm90:1:4800");
        assert_eq!(told((8, 7), 8, (800_000, 64)), "cuda-sm89:8:13");
    }
}
