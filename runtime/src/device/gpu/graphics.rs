//! A GPU that Vulkan or Metal drives, as a device.
//!
//! In: plans. Out: replays: one submission each, whose launches wait for each other where memory says so.
//! Weights are arranged and handed over once; states live on; what flows between launches lies in one arena. Bindings
//! are made when a plan is loaded. The values of symbols are the only thing of a replay besides its inputs that the
//! device is told, so a program serves every position of a text.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fusebox_compiler::codegen::gpu::layout::{arranged, bytes, param_bytes};
use fusebox_compiler::codegen::gpu::{Binding, Code, Language, compile};
use fusebox_compiler::error::Error as CompilerError;
use fusebox_compiler::foundation::entity::List;
use fusebox_compiler::graph::Name;
use fusebox_compiler::schedule::{BufferId, BufferSlot, KernelId, Place, Plan, verify};
use fusebox_compiler::tensor::sym::Symbol;
use indexmap::IndexMap;
use wgpu::{BindGroup, Buffer};

use crate::buffer::Buffer as Host;
use crate::device::gpu::driver::{Dispatch, Driver, Piece, Pipeline};
use crate::device::gpu::numbers::{Numbers, check};
use crate::device::{Device, Footprint, ProgramId, Weights, refused, weight};
use crate::error::Error;

/// Workgroups of a launch whose tiles lie in scratch memory: each has a piece of its own.
const SCRATCH_GROUPS: usize = 64;

/// A GPU.
pub struct GraphicsDevice {
    driver: Driver,
    programs: List<ProgramId, Program>,
    states: IndexMap<Name, Region>,
    weights: IndexMap<Name, Arc<Buffer>>,
    footprint: Footprint,
}

/// A plan that was taken in.
struct Program {
    symbols: Vec<Symbol>,
    kernels: List<KernelId, Ready>,
    steps: Vec<Step>,
    inputs: Vec<(Host, Region)>,
    outputs: Vec<(Host, Region)>,
    /// The values of all symbols, here and there.
    numbers: (Vec<u8>, Arc<Buffer>),
    staging: Buffer,
}

/// A kernel on the device.
struct Ready {
    code: Code,
    pipeline: Pipeline,
    numbers: Numbers,
}

struct Step {
    kernel: KernelId,
    bound: BindGroup,
}

/// A piece of memory on the device.
#[derive(Clone)]
struct Region {
    buffer: Arc<Buffer>,
    offset: usize,
    bytes: usize,
}

impl Region {
    fn piece(&self) -> Piece<'_> {
        Piece { buffer: &self.buffer, offset: self.offset, bytes: self.bytes }
    }
}

impl GraphicsDevice {
    /// A device of its own.
    pub fn new(driver: Driver) -> Self {
        Self {
            driver,
            programs: List::default(),
            states: IndexMap::new(),
            weights: IndexMap::new(),
            footprint: Footprint::default(),
        }
    }

    /// Runs one kernel on buffers of the caller's, arranged as `layout.rs` says, and gives back what it wrote: for
    /// checks of code against other ways to run a kernel.
    ///
    /// # Errors
    /// Where the device refuses the code or has no memory.
    pub fn run(&self, code: &Code, buffers: &mut [Vec<u8>], symbols: &[i64]) -> Result<(), Error> {
        let pipeline = self.driver.pipeline(code)?;
        let numbers: Vec<u8> = symbols.iter().flat_map(|value| (*value as i32).to_le_bytes()).collect();
        let of = |symbol: Symbol| {
            code.symbols.iter().position(|own| *own == symbol).map_or(symbol.min, |idx| symbols[idx])
        };
        let n_groups = self.n_groups(code, code.n_tasks(&of));
        let mut regions = Vec::new();
        for binding in &code.bindings {
            let region = match binding {
                Binding::Param(id) => self.filled(&buffers[id_index(*id, code)])?,
                Binding::Symbols | Binding::Lengths => self.filled(&numbers)?,
                Binding::Scratch => self.region("scratch memory", code.scratch_bytes * SCRATCH_GROUPS)?,
            };
            regions.push(region);
        }
        let pieces: Vec<Piece<'_>> = regions.iter().map(Region::piece).collect();
        let bound = self.driver.bound(&pipeline, &pieces)?;
        let params = &pieces[..buffers.len()];
        let n_bytes = params.iter().map(|piece| piece.bytes.next_multiple_of(4)).sum();
        let staging = self.driver.staging(n_bytes)?;
        let dispatch = Dispatch { pipeline: &pipeline, bound: &bound, n_groups };
        self.driver.submit(&[dispatch], params, &staging);
        self.driver.read(&staging, |bytes| {
            let mut start = 0;
            for buffer in buffers {
                let len = buffer.len();
                buffer.copy_from_slice(&bytes[start..start + len]);
                start += len.next_multiple_of(4);
            }
        })
    }

    fn filled(&self, bytes: &[u8]) -> Result<Region, Error> {
        let region = self.region("a buffer", bytes.len())?;
        self.driver.write(&region.buffer, bytes)?;
        Ok(region)
    }

    fn region(&self, what: &str, bytes: usize) -> Result<Region, Error> {
        let bytes = bytes.next_multiple_of(4).max(4);
        Ok(Region { buffer: Arc::new(self.driver.buffer(what, bytes)?), offset: 0, bytes })
    }

    fn n_groups(&self, code: &Code, n_tasks: i64) -> u32 {
        let most = if code.scratch_bytes > 0 { SCRATCH_GROUPS as u32 } else { self.driver.most_groups() };
        u32::try_from(n_tasks).unwrap_or(most).min(most)
    }

    /// Gives every state of a plan a memory; states of one name are one state.
    fn state(&mut self, slot: &BufferSlot) -> Result<Region, Error> {
        let BufferSlot { name, bytes, .. } = slot;
        if let Some(state) = self.states.get(name) {
            let found = state.bytes;
            if found != bytes.next_multiple_of(4) {
                return Err(refused(name, format!("the state has {found} bytes, {bytes} are asked for")));
            }
            return Ok(state.clone());
        }
        let state = self.region(name, *bytes)?;
        self.states.insert(name.clone(), state.clone());
        self.footprint.state += bytes;
        Ok(state)
    }

    /// A weight, handed over unless an earlier plan had it.
    fn weight(&mut self, slot: &BufferSlot, weights: &dyn Weights) -> Result<Region, Error> {
        let n_bytes = bytes(slot.format, slot.shape.max_len());
        let stored = weight(slot, weights)?;
        if let Some(buffer) = self.weights.get(&slot.name) {
            return Ok(Region { buffer: Arc::clone(buffer), offset: 0, bytes: n_bytes });
        }
        let region = self.filled(&arranged(slot.format, stored))?;
        self.weights.insert(slot.name.clone(), Arc::clone(&region.buffer));
        self.footprint.weights += n_bytes;
        Ok(region)
    }

    /// A place for every buffer of a plan, with those that the caller fills and reads.
    fn places(&mut self, plan: &Plan, weights: &dyn Weights) -> Result<Places, Error> {
        let arena = self.region("the arena", plan.arena_bytes)?;
        self.footprint.arena += plan.arena_bytes;
        let is_fine = self.driver.alignment() <= fusebox_compiler::schedule::arena::ALIGNMENT;
        let mut places = Places::default();
        for slot in plan.buffers.values() {
            let region = match &slot.place {
                Place::Weight => self.weight(slot, weights)?,
                Place::State => self.state(slot)?,
                Place::Arena { offset } if is_fine => {
                    Region { buffer: Arc::clone(&arena.buffer), offset: *offset, bytes: slot.bytes }
                }
                Place::Arena { .. } | Place::Input | Place::Output => self.region(&slot.name, slot.bytes)?,
                Place::Constant(words) => {
                    self.filled(&words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>())?
                }
            };
            match slot.place {
                Place::Input => places.inputs.push((Host::zeroed(slot.bytes)?, region.clone())),
                Place::Output => places.outputs.push((Host::zeroed(slot.bytes)?, region.clone())),
                Place::Weight | Place::State | Place::Arena { .. } | Place::Constant(_) => {}
            }
            places.all.push(region);
        }
        Ok(places)
    }

    /// The codes of all kernels, and room for what their workgroups cannot share.
    fn emit(&self, plan: &Plan) -> Result<(Vec<Code>, Region), Error> {
        let compiled: Result<Vec<Code>, CompilerError> =
            plan.kernels.values().map(|kernel| compile(kernel, Language::Wgsl)).collect();
        let codes = compiled?;
        let most = codes.iter().map(|code| code.scratch_bytes).max().unwrap_or(0);
        Ok((codes, self.region("scratch memory", most * SCRATCH_GROUPS)?))
    }

    /// Hands over what changes from replay to replay.
    fn enter(&mut self, program: ProgramId, symbols: &[i64]) -> Result<(), Error> {
        let Program { symbols: own, kernels, numbers, inputs, .. } = &mut self.programs[program];
        check(own, symbols)?;
        let (here, there) = numbers;
        kernels.values().for_each(|ready| ready.numbers.write(symbols, here));
        self.driver.write(there, here)?;
        inputs.iter().try_for_each(|(host, region)| self.driver.write(&region.buffer, host.bytes()))
    }

    fn dispatch<'p>(&self, program: &'p Program, step: &'p Step, symbols: &[i64]) -> Dispatch<'p> {
        let ready = &program.kernels[step.kernel];
        let n_groups = self.n_groups(&ready.code, ready.numbers.n_tasks(&ready.code, symbols));
        Dispatch { pipeline: &ready.pipeline, bound: &step.bound, n_groups }
    }

    /// Reads what a replay left for the caller.
    fn leave(&mut self, program: ProgramId) -> Result<(), Error> {
        let Program { outputs, staging, .. } = &mut self.programs[program];
        self.driver.read(staging, |bytes| {
            let mut start = 0;
            for (host, region) in outputs {
                let len = host.bytes().len();
                host.bytes_mut().copy_from_slice(&bytes[start..start + len]);
                start += region.bytes.next_multiple_of(4);
            }
            self.footprint.returned += start;
        })
    }
}

/// Where the buffers of a plan lie.
#[derive(Default)]
struct Places {
    all: List<BufferId, Region>,
    inputs: Vec<(Host, Region)>,
    outputs: Vec<(Host, Region)>,
}

fn id_index(id: fusebox_compiler::kernel::ParamId, code: &Code) -> usize {
    let place = code.kernel.params.ids().position(|own| own == id);
    place.expect("code is given the parameters of its kernel")
}

impl Device for GraphicsDevice {
    fn describe(&self) -> String {
        let found = self.driver.adapter();
        let kind = if found.is_software { ", in software" } else { "" };
        format!("{}{kind}", found.name)
    }

    fn load(&mut self, plan: &Plan, weights: &Arc<dyn Weights>) -> Result<ProgramId, Error> {
        let complaints = verify::verify(plan);
        if !complaints.is_empty() {
            return Err(CompilerError::Bug { stage: "load", complaints }.into());
        }
        let (codes, scratch) = self.emit(plan)?;
        let Places { all, inputs, outputs } = self.places(plan, &**weights)?;
        let (numbers, n_bytes) = Numbers::placed(plan, &codes, self.driver.alignment());
        let own = self.region("symbols", n_bytes)?;
        let mut kernels: List<KernelId, Ready> = List::default();
        self.footprint.n_emitted += codes.len();
        for (code, numbers) in codes.into_iter().zip(numbers) {
            let pipeline = self.driver.pipeline(&code)?;
            kernels.push(Ready { code, pipeline, numbers });
        }
        let mut steps = Vec::new();
        for step in &plan.steps {
            let ready = &kernels[step.kernel];
            let piece = |binding: &Binding| match binding {
                Binding::Param(id) => {
                    let region = &all[step.args[id_index(*id, &ready.code)]];
                    Piece { bytes: param_bytes(&ready.code.kernel.params[*id]), ..region.piece() }
                }
                Binding::Symbols | Binding::Lengths => {
                    let Numbers { offset, bytes, .. } = ready.numbers;
                    Piece { buffer: &own.buffer, offset, bytes }
                }
                Binding::Scratch => scratch.piece(),
            };
            let pieces: Vec<Piece<'_>> = ready.code.bindings.iter().map(piece).collect();
            steps.push(Step { kernel: step.kernel, bound: self.driver.bound(&ready.pipeline, &pieces)? });
        }
        let staging = self.driver.staging(outputs.iter().map(|(_, region)| region.bytes).sum())?;
        let symbols = plan.symbols();
        let numbers = (vec![0; n_bytes], own.buffer);
        Ok(self.programs.push(Program { symbols, kernels, steps, inputs, outputs, numbers, staging }))
    }

    fn input(&mut self, program: ProgramId, number: usize) -> &mut [u8] {
        self.programs[program].inputs[number].0.bytes_mut()
    }

    fn replay(&mut self, program: ProgramId, symbols: &[i64]) -> Result<(), Error> {
        self.enter(program, symbols)?;
        let own = &self.programs[program];
        let dispatches: Vec<Dispatch<'_>> =
            own.steps.iter().map(|step| self.dispatch(own, step, symbols)).collect();
        let copies: Vec<Piece<'_>> = own.outputs.iter().map(|(_, region)| region.piece()).collect();
        self.driver.submit(&dispatches, &copies, &own.staging);
        self.leave(program)
    }

    fn profile(&mut self, program: ProgramId, symbols: &[i64]) -> Result<Vec<Duration>, Error> {
        self.enter(program, symbols)?;
        self.driver.wait()?;
        let own = &self.programs[program];
        let mut times = Vec::with_capacity(own.steps.len());
        for step in &own.steps {
            let start = Instant::now();
            self.driver.submit(&[self.dispatch(own, step, symbols)], &[], &own.staging);
            self.driver.wait()?;
            times.push(start.elapsed());
        }
        let copies: Vec<Piece<'_>> = own.outputs.iter().map(|(_, region)| region.piece()).collect();
        self.driver.submit(&[], &copies, &own.staging);
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
