//! A GPU of NVIDIA, through its driver.
//!
//! In: plans. Out: replays: one graph launch each, and one wait.
//! CubeCL writes the sources, NVRTC compiles them, and everything else is here: memory, one stream, and the graph of a
//! whole replay, captured when a plan is loaded. A graph names addresses that never move; what changes from replay to
//! replay, the inputs and the values of symbols, is copied to where its kernels read it. Grids are as large as any
//! replay may need, because a workgroup without tasks does nothing.
//! Where capture fails, launches are made one by one, and a note of that is kept.
//! Nothing of this was ever run on a GPU by its tests; `docs/gpu.md` says what to do where one is.

#![expect(unsafe_code, reason = "the driver takes addresses")]

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::sys::{CUfunction_attribute_enum, CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{
    CudaContext, CudaFunction, CudaGraph, CudaSlice, CudaStream, DevicePtr, DriverError, LaunchConfig,
    PushKernelArg,
};
use cudarc::nvrtc::{CompileOptions, compile_ptx_with_opts};
use fusebox_compiler::codegen::gpu::layout::{arranged, bytes};
use fusebox_compiler::codegen::gpu::{Binding, Code, ENTRY, Language, THREADS, compile};
use fusebox_compiler::error::{Complaint, Error as CompilerError};
use fusebox_compiler::foundation::entity::List;
use fusebox_compiler::graph::Name;
use fusebox_compiler::schedule::{BufferId, BufferSlot, KernelId, Place, Plan, verify};
use fusebox_compiler::tensor::sym::Symbol;
use indexmap::IndexMap;

use crate::buffer::Buffer as Host;
use crate::device::gpu::numbers::{Numbers, check};
use crate::device::{Device, Footprint, ProgramId, Weights, refused, weight};
use crate::error::Error;

/// Workgroups for each multiprocessor, at most: more than run at a time, so that all end together.
const GROUPS_PER_UNIT: i64 = 16;
/// Workgroups of a launch whose tiles lie in scratch memory: each has a piece of its own.
const SCRATCH_GROUPS: usize = 64;
/// Shared memory that has to be asked for.
const COMMON_SHARED_BYTES: usize = 48 << 10;
/// Where a value in a buffer of many starts.
const ALIGNMENT: usize = 256;
/// Where the headers of the toolkit lie.
const INCLUDES: [&str; 2] = ["/usr/local/cuda/include", "/usr/include"];

/// A GPU of NVIDIA.
pub struct CudaDevice {
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    name: String,
    n_units: i64,
    programs: List<ProgramId, Program>,
    states: IndexMap<Name, Memory>,
    weights: IndexMap<Name, Memory>,
    /// Memory that programs name and never move.
    kept: Vec<Memory>,
    footprint: Footprint,
    /// Why launches are made one by one, if they are.
    note: Option<String>,
}

/// Bytes on the device.
type Memory = CudaSlice<u8>;

/// A plan that was taken in.
struct Program {
    symbols: Vec<Symbol>,
    kernels: List<KernelId, Ready>,
    steps: Vec<Step>,
    inputs: Vec<(Host, Memory)>,
    outputs: Vec<(Host, Memory)>,
    /// The values of all symbols, here and there.
    numbers: (Vec<u8>, Memory),
    graph: Option<CudaGraph>,
}

/// A kernel on the device.
struct Ready {
    function: CudaFunction,
    numbers: Numbers,
    config: LaunchConfig,
}

struct Step {
    kernel: KernelId,
    /// An address for each binding.
    addresses: Vec<u64>,
}

/// What is missing to run anything on a GPU of NVIDIA.
pub fn missing() -> Option<&'static str> {
    // SAFETY: loading the library of a driver runs what its vendor runs when it is loaded, and nothing else.
    let has_driver = unsafe { cudarc::driver::sys::is_culib_present() };
    // SAFETY: as above, of the compiler that comes with the toolkit.
    let has_compiler = unsafe { cudarc::nvrtc::sys::is_culib_present() };
    match (has_driver, has_compiler) {
        (false, _) => Some("no NVIDIA driver was found"),
        (true, false) => Some("an NVIDIA driver is there, but not libnvrtc of the CUDA toolkit"),
        (true, true) => None,
    }
}

impl CudaDevice {
    /// The first GPU.
    ///
    /// # Errors
    /// Where something is missing, or the driver refuses.
    pub fn open() -> Result<Self, Error> {
        if let Some(missing) = missing() {
            return Err(
                CompilerError::Unsupported { what: missing.to_owned(), target: "cuda".to_owned() }.into()
            );
        }
        let context = CudaContext::new(0).map_err(driver)?;
        // SAFETY: there is one stream only, so whatever uses memory does so in the order of that stream, and memory is
        // given back behind everything that was asked of the stream before.
        unsafe { context.disable_event_tracking() };
        let stream = context.new_stream().map_err(driver)?;
        let units = cudarc::driver::sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
        Ok(Self {
            name: context.name().map_err(driver)?,
            n_units: i64::from(context.attribute(units).map_err(driver)?),
            context,
            stream,
            programs: List::default(),
            states: IndexMap::new(),
            weights: IndexMap::new(),
            kept: Vec::new(),
            footprint: Footprint::default(),
            note: None,
        })
    }

    /// What it is called.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Zeros on the device.
    fn zeroed(&self, what: &str, n_bytes: usize) -> Result<Memory, Error> {
        let n_bytes = n_bytes.next_multiple_of(16).max(16);
        self.stream.alloc_zeros(n_bytes).map_err(|_| {
            let (free, _) = self.context.mem_get_info().unwrap_or_default();
            let what = format!("{what} on {} in bytes", self.name);
            CompilerError::Limit { what, found: n_bytes as u64, limit: free as u64 }.into()
        })
    }

    fn filled(&self, what: &str, bytes: &[u8]) -> Result<Memory, Error> {
        let mut memory = self.zeroed(what, bytes.len())?;
        self.stream.memcpy_htod(bytes, &mut memory).map_err(driver)?;
        // The bytes may be gone before the copy is made.
        self.stream.synchronize().map_err(driver)?;
        Ok(memory)
    }

    fn address(&self, memory: &Memory) -> u64 {
        memory.device_ptr(&self.stream).0
    }

    /// Compiles a source for the GPU that is there.
    fn function(&self, code: &Code) -> Result<CudaFunction, Error> {
        let (major, minor) = self.context.compute_capability().map_err(driver)?;
        let include_paths = INCLUDES.into_iter().filter(|path| Path::new(path).is_dir()).map(str::to_owned);
        let options = CompileOptions {
            options: vec![format!("--gpu-architecture=compute_{major}{minor}"), "--std=c++17".to_owned()],
            // A quotient within two units in the last place needs no call.
            prec_div: Some(false),
            include_paths: include_paths.collect(),
            ..CompileOptions::default()
        };
        let made = compile_ptx_with_opts(&code.source, options);
        let made = made.map_err(|fault| refused_by_driver(&code.kernel.name, &format!("{fault:?}")))?;
        let module = self.context.load_module(made).map_err(driver)?;
        let function = module.load_function(ENTRY).map_err(driver)?;
        if code.shared_bytes > COMMON_SHARED_BYTES {
            let attribute = CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            function.set_attribute(attribute, code.shared_bytes as i32).map_err(driver)?;
        }
        Ok(function)
    }

    /// Every kernel of a plan, compiled, with as many workgroups as any replay may need.
    fn emit(&self, plan: &Plan) -> Result<(Vec<Code>, Vec<CudaFunction>), Error> {
        let codes = plan.kernels.values().map(|kernel| compile(kernel, Language::Cuda));
        let codes = codes.collect::<Result<Vec<Code>, CompilerError>>()?;
        let functions = codes.iter().map(|code| self.function(code)).collect::<Result<_, Error>>()?;
        Ok((codes, functions))
    }

    fn config(&self, code: &Code) -> LaunchConfig {
        let most =
            if code.scratch_bytes > 0 { SCRATCH_GROUPS as i64 } else { GROUPS_PER_UNIT * self.n_units };
        let n_groups = code.n_tasks(&|symbol| symbol.max).clamp(1, most);
        LaunchConfig {
            grid_dim: (n_groups as u32, 1, 1),
            block_dim: (THREADS, 1, 1),
            shared_mem_bytes: code.shared_bytes as u32,
        }
    }

    /// The address of a state; states of one name are one state.
    fn state(&mut self, slot: &BufferSlot) -> Result<u64, Error> {
        let BufferSlot { name, bytes, .. } = slot;
        if let Some(state) = self.states.get(name) {
            let found = state.len();
            if found != bytes.next_multiple_of(16).max(16) {
                return Err(refused(name, format!("the state has {found} bytes, {bytes} are asked for")));
            }
            return Ok(self.address(state));
        }
        let state = self.zeroed(name, *bytes)?;
        let address = self.address(&state);
        self.states.insert(name.clone(), state);
        self.footprint.state += bytes;
        Ok(address)
    }

    /// The address of a weight, handed over unless an earlier plan had it.
    fn weight(&mut self, slot: &BufferSlot, weights: &dyn Weights) -> Result<u64, Error> {
        let stored = weight(slot, weights)?;
        if let Some(memory) = self.weights.get(&slot.name) {
            return Ok(self.address(memory));
        }
        let memory = self.filled(&slot.name, &arranged(slot.format, stored))?;
        let address = self.address(&memory);
        self.weights.insert(slot.name.clone(), memory);
        self.footprint.weights += bytes(slot.format, slot.shape.max_len());
        Ok(address)
    }

    /// An address for every buffer of a plan, with the memory that the caller fills and reads.
    fn places(&mut self, plan: &Plan, weights: &dyn Weights) -> Result<Places, Error> {
        let arena = self.zeroed("the arena", plan.arena_bytes)?;
        let start = self.address(&arena);
        self.kept.push(arena);
        self.footprint.arena += plan.arena_bytes;
        let mut places = Places::default();
        for slot in plan.buffers.values() {
            let address = match &slot.place {
                Place::Weight => self.weight(slot, weights)?,
                Place::State => self.state(slot)?,
                Place::Arena { offset } => start + *offset as u64,
                Place::Input | Place::Output => {
                    let memory = self.zeroed(&slot.name, slot.bytes)?;
                    let address = self.address(&memory);
                    let list =
                        if slot.place == Place::Input { &mut places.inputs } else { &mut places.outputs };
                    list.push((Host::zeroed(slot.bytes)?, memory));
                    address
                }
                Place::Constant(words) => {
                    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
                    let memory = self.filled(&slot.name, &bytes)?;
                    let address = self.address(&memory);
                    self.kept.push(memory);
                    address
                }
            };
            places.addresses.push(address);
        }
        Ok(places)
    }

    /// Hands over what changes from replay to replay.
    fn enter(&mut self, program: ProgramId, symbols: &[i64]) -> Result<(), Error> {
        let Program { symbols: own, kernels, numbers, inputs, .. } = &mut self.programs[program];
        check(own, symbols)?;
        let (here, there) = numbers;
        kernels.values().for_each(|ready| ready.numbers.write(symbols, here));
        self.stream.memcpy_htod(&*here, there).map_err(driver)?;
        for (host, memory) in inputs {
            self.stream.memcpy_htod(host.bytes(), memory).map_err(driver)?;
        }
        Ok(())
    }

    /// Reads what a replay left for the caller, once it is done.
    fn leave(&mut self, program: ProgramId) -> Result<(), Error> {
        for (host, memory) in &mut self.programs[program].outputs {
            self.stream.memcpy_dtoh(&*memory, host.bytes_mut()).map_err(driver)?;
            self.footprint.returned += memory.len();
        }
        self.stream.synchronize().map_err(driver)
    }

    fn launch(&self, program: &Program, step: &Step) -> Result<(), DriverError> {
        let Ready { function, config, .. } = &program.kernels[step.kernel];
        let mut launch = self.stream.launch_builder(function);
        for address in &step.addresses {
            launch.arg(address);
        }
        // SAFETY: the function was made of a kernel that verifies and takes one address for each of its bindings. At
        // each lie the bytes of the parameter's largest shape, which live as long as the device. The plan verifies:
        // what a step writes it reads only where that is proven harmless, and steps follow each other on one stream.
        unsafe { launch.launch(*config) }.map(|_| ())
    }

    /// The graph of all steps; nothing runs meanwhile.
    fn captured(&self, program: &Program) -> Result<CudaGraph, String> {
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        self.stream.begin_capture(mode).map_err(|fault| fault.to_string())?;
        let launched = program.steps.iter().try_for_each(|step| self.launch(program, step));
        // A capture is ended whatever happened inside it: else the stream would be lost.
        let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        let ended = self.stream.end_capture(flags).map_err(|fault| fault.to_string());
        launched.map_err(|fault| fault.to_string())?;
        ended?.ok_or_else(|| "the driver gave no graph".to_owned())
    }
}

/// Where the buffers of a plan lie.
#[derive(Default)]
struct Places {
    addresses: List<BufferId, u64>,
    inputs: Vec<(Host, Memory)>,
    outputs: Vec<(Host, Memory)>,
}

impl Device for CudaDevice {
    fn describe(&self) -> String {
        match &self.note {
            None => self.name.clone(),
            Some(note) => format!("{}, with launches one by one: {note}", self.name),
        }
    }

    fn load(&mut self, plan: &Plan, weights: &Arc<dyn Weights>) -> Result<ProgramId, Error> {
        let complaints = verify::verify(plan);
        if !complaints.is_empty() {
            return Err(CompilerError::Bug { stage: "load", complaints }.into());
        }
        let (codes, functions) = self.emit(plan)?;
        let Places { addresses, inputs, outputs } = self.places(plan, &**weights)?;
        let (numbers, n_bytes) = Numbers::placed(plan, &codes, ALIGNMENT);
        let there = self.zeroed("symbols", n_bytes)?;
        let of_numbers = self.address(&there);
        let scratch = codes.iter().map(|code| code.scratch_bytes).max().unwrap_or(0) * SCRATCH_GROUPS;
        let scratch = self.zeroed("scratch memory", scratch)?;
        let of_scratch = self.address(&scratch);
        self.kept.push(scratch);
        let step = |step: &fusebox_compiler::schedule::Step| {
            let idx = plan.kernels.ids().position(|id| id == step.kernel);
            let idx = idx.expect("a step runs a kernel of its plan");
            let args = codes[idx].kernel.params.ids().zip(&step.args);
            let args: Vec<_> = args.collect();
            let address = |binding: &Binding| match binding {
                Binding::Param(id) => {
                    let arg = args.iter().find(|(own, _)| own == id);
                    addresses[*arg.expect("a step has an argument for each parameter").1]
                }
                Binding::Symbols | Binding::Lengths => of_numbers + numbers[idx].offset as u64,
                Binding::Scratch => of_scratch,
            };
            Step { kernel: step.kernel, addresses: codes[idx].bindings.iter().map(address).collect() }
        };
        let steps = plan.steps.iter().map(step).collect();
        self.footprint.n_emitted += codes.len();
        let ready = |((code, function), numbers): ((&Code, _), _)| Ready {
            function,
            numbers,
            config: self.config(code),
        };
        let kernels = codes.iter().zip(functions).zip(numbers).map(ready).collect();
        let (symbols, numbers) = (plan.symbols(), (vec![0; n_bytes], there));
        let mut program = Program { symbols, kernels, steps, inputs, outputs, numbers, graph: None };
        self.stream.synchronize().map_err(driver)?;
        match self.captured(&program) {
            Ok(graph) => program.graph = Some(graph),
            Err(why) => self.note = Some(why),
        }
        Ok(self.programs.push(program))
    }

    fn input(&mut self, program: ProgramId, number: usize) -> &mut [u8] {
        self.programs[program].inputs[number].0.bytes_mut()
    }

    fn replay(&mut self, program: ProgramId, symbols: &[i64]) -> Result<(), Error> {
        self.enter(program, symbols)?;
        let own = &self.programs[program];
        match &own.graph {
            Some(graph) => graph.launch().map_err(driver)?,
            None => own.steps.iter().try_for_each(|step| self.launch(own, step)).map_err(driver)?,
        }
        self.leave(program)
    }

    fn profile(&mut self, program: ProgramId, symbols: &[i64]) -> Result<Vec<Duration>, Error> {
        self.enter(program, symbols)?;
        self.stream.synchronize().map_err(driver)?;
        let own = &self.programs[program];
        let mut times = Vec::with_capacity(own.steps.len());
        for step in &own.steps {
            let start = Instant::now();
            self.launch(own, step).map_err(driver)?;
            self.stream.synchronize().map_err(driver)?;
            times.push(start.elapsed());
        }
        self.leave(program)?;
        Ok(times)
    }

    fn output(&self, program: ProgramId, number: usize) -> &[u8] {
        self.programs[program].outputs[number].0.bytes()
    }

    fn footprint(&self) -> Footprint {
        self.footprint
    }
}

/// What the driver says went wrong.
fn driver(fault: DriverError) -> Error {
    refused_by_driver("the NVIDIA driver", &fault)
}

fn refused_by_driver(place: &str, fault: &dyn fmt::Display) -> Error {
    let complaints = vec![Complaint::new(place, fault.to_string())];
    CompilerError::Bug { stage: "device::gpu", complaints }.into()
}
