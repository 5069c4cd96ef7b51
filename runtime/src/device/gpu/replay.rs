//! A GPU as a device.
//!
//! In: plans. Out: replays: one upload (symbols and inputs), one submission or CUDA graph of all launches, one download
//! (outputs), one wait. Bindings are made when a plan is loaded, and a program keeps their memory alive. Apart from its
//! inputs, only the values of symbols change from replay to replay, so one program serves every position of a sequence.
//! Nothing here depends on which GPU it is: `machine.rs` is the interface to that.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use fusebox_compiler::codegen::check_symbols;
use fusebox_compiler::codegen::gpu::dialect::Dialect;
use fusebox_compiler::codegen::gpu::value::layout::{FieldRun, field_runs, param_bytes};
use fusebox_compiler::codegen::gpu::{Binding, Code, compile};
use fusebox_compiler::error::Error as CompilerError;
use fusebox_compiler::foundation::entity::List;
use fusebox_compiler::kernel::ParamId;
use fusebox_compiler::schedule::places::Places;
use fusebox_compiler::schedule::{BufferId, KernelId, Place, Plan, arena};
use fusebox_compiler::tensor::quant::Format;
use fusebox_compiler::tensor::sym::Symbol;
use indexmap::IndexMap;

use crate::buffer::Buffer;
use crate::device::gpu::device_memory::{DeviceMemory, Tell};
use crate::device::gpu::machine::Machine;
use crate::device::gpu::symbol_values::SymbolValues;
use crate::device::{Device, Footprint, ProgramId, Weights, range_of, verified};
use crate::error::Error;

/// A GPU.
pub struct Gpu<M: Machine> {
    // Drop order: programs before what they are made of.
    programs: List<ProgramId, Program<M>>,
    /// Compiled kernels, by source and bytes of shared memory.
    functions: IndexMap<(String, usize), M::Function>,
    memory: DeviceMemory<M::Memory>,
    machine: M,
}

/// A loaded plan.
struct Program<M: Machine> {
    // Drop order: the list, its launches, their memory.
    launch_list: M::LaunchList,
    launches: Vec<M::Launch>,
    /// Keeps the memory of the launches alive: a launch need not.
    _pieces: Vec<M::Memory>,
    symbols: Vec<Symbol>,
    /// Which inputs say where elements are written.
    writes: Places,
    kernels: List<KernelId, LoadedKernel>,
    /// The kernel of each launch.
    steps: Vec<KernelId>,
    /// Workgroups of each launch in this replay.
    n_workgroups: Vec<u32>,
    entry: TransferBuffer<M::Memory>,
    exit: TransferBuffer<M::Memory>,
}

/// A loaded kernel and its symbols.
struct LoadedKernel {
    code: Code,
    symbol_values: SymbolValues,
}

/// A buffer with a host copy and a device copy.
struct TransferBuffer<T> {
    host: Buffer,
    device: T,
    /// The range of each input or output.
    places: Vec<Range<usize>>,
}

/// The layout of a transfer buffer.
struct Layout {
    alignment: usize,
    n_bytes: usize,
    places: Vec<Range<usize>>,
}

impl Layout {
    fn add(&mut self, bytes: usize) {
        let start = self.n_bytes.next_multiple_of(self.alignment);
        self.n_bytes = start + bytes.next_multiple_of(4).max(4);
        self.places.push(start..start + bytes);
    }
}

impl<M: Machine> Gpu<M> {
    /// A device that allocates at most `limit` bytes, and reports how far weights are uploaded.
    pub fn new(machine: M, limit: Option<usize>, tell: Tell) -> Self {
        let limit = limit.into_iter().chain(machine.size()).min();
        let memory = DeviceMemory::new(limit, tell);
        Self { programs: List::default(), functions: IndexMap::new(), memory, machine }
    }

    /// The dialect of its sources.
    pub fn dialect(&self) -> Dialect {
        self.machine.dialect()
    }

    /// Runs one kernel on buffers repacked as `compiler/src/codegen/gpu/value/layout.rs` says, and gives back what it
    /// wrote: for checks of code against other ways to run a kernel.
    ///
    /// # Errors
    /// Where the device refuses the code or has no memory.
    pub fn run(&mut self, code: &Code, buffers: &mut [Vec<u8>], symbols: &[i64]) -> Result<(), Error> {
        let machine = &mut self.machine;
        let symbol_values: Vec<u8> = symbols.iter().flat_map(|value| (*value as i32).to_le_bytes()).collect();
        let of = |symbol: Symbol| {
            code.symbols.iter().position(|own| *own == symbol).map_or(symbol.min, |idx| symbols[idx])
        };
        let n_workgroups = n_workgroups(machine, code, code.n_tasks(&of));
        let mut pieces = Vec::new();
        for binding in &code.bindings {
            pieces.push(match binding {
                Binding::Param(id) => lent(machine, &buffers[idx_of(*id, code)])?,
                Binding::Symbols | Binding::Lengths => lent(machine, &symbol_values)?,
                Binding::Scratch => {
                    let n_pieces = machine.max_workgroups_with_scratch() as usize;
                    machine.allocate("scratch memory", code.scratch_bytes * n_pieces)?
                }
            });
        }
        let functions = machine.functions(&[code])?;
        let launch = machine.launch(&functions[0], &pieces, n_workgroups)?;
        machine.run_one(&launch, n_workgroups)?;
        let most = buffers.iter().map(Vec::len).max().unwrap_or(0);
        let launch_list = machine.launch_list(&[], most)?;
        for (buffer, piece) in buffers.iter_mut().zip(&pieces) {
            machine.read(&launch_list, piece, buffer)?;
        }
        Ok(())
    }

    /// Compiles those of a plan's sources that no earlier plan had; gives the index of each one's kernel.
    fn compiled(&mut self, codes: &[Code]) -> Result<List<KernelId, usize>, Error> {
        let missing = codes.iter().map(|code| (key(code), code));
        let missing: IndexMap<_, _> = missing.filter(|(key, _)| !self.functions.contains_key(key)).collect();
        let made = self.machine.functions(&missing.values().copied().collect::<Vec<_>>())?;
        let n_kept = made.iter().filter(|function| M::is_from_cache(function)).count();
        self.memory.footprint.n_kept += n_kept;
        self.memory.footprint.n_compiled += made.len() - n_kept;
        self.functions.extend(missing.into_keys().zip(made));
        let number = |code| self.functions.get_index_of(&key(code)).expect("it was compiled");
        Ok(codes.iter().map(number).collect())
    }

    /// Memory for every buffer of a plan; inputs and outputs are slices of the transfer buffers.
    fn places(
        &mut self,
        plan: &Plan,
        weights: &Arc<dyn Weights>,
        shared: &M::Memory,
        transfer_buffers: [(&M::Memory, &Layout); 2],
    ) -> Result<List<BufferId, M::Memory>, Error> {
        let Self { machine, memory, .. } = self;
        memory.upload_weights(machine, plan, weights)?;
        let is_fine = machine.alignment() <= arena::ALIGNMENT;
        let [mut inputs, mut outputs] = transfer_buffers
            .map(|(memory, layout)| layout.places.iter().map(move |place| (memory, place.start)));
        let mut all = List::default();
        for slot in plan.buffers.values() {
            let next = |place: Option<(&M::Memory, usize)>| {
                let (memory, start) =
                    place.expect("a mailbox was laid out for all that a plan takes and gives");
                machine.piece(memory, start, slot.bytes)
            };
            all.push(match &slot.place {
                Place::Weight => memory.weight(slot, &**weights)?,
                Place::State => memory.state(machine, slot)?,
                Place::Arena { offset } if is_fine => machine.piece(shared, *offset, slot.bytes),
                Place::Arena { .. } => memory.allocate_zeroed(machine, &slot.name, slot.bytes)?,
                Place::Input => next(inputs.next()),
                Place::Output => next(outputs.next()),
                Place::Constant(words) => {
                    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
                    memory.allocate_with(machine, &slot.name, &bytes)?
                }
            });
        }
        Ok(all)
    }

    /// Uploads inputs and symbols, and counts workgroups.
    fn enter(&mut self, program: ProgramId, symbols: &[i64]) -> Result<(), Error> {
        let Program { symbols: own, kernels, steps, n_workgroups: groups, entry, writes, .. } =
            &mut self.programs[program];
        check_symbols(own, symbols)?;
        writes.check(own, symbols, |number| &entry.host.bytes()[entry.places[number].clone()])?;
        kernels.values().for_each(|ready| ready.symbol_values.write(symbols, entry.host.bytes_mut()));
        for (n, step) in groups.iter_mut().zip(steps) {
            let LoadedKernel { code, symbol_values } = &kernels[*step];
            *n = n_workgroups(&self.machine, code, symbol_values.n_tasks(code, symbols));
        }
        self.machine.write(&entry.device, entry.host.bytes())
    }
}

/// The key of a compiled kernel.
fn key(code: &Code) -> (String, usize) {
    (code.source.clone(), code.shared_bytes)
}

/// Workgroups of a launch with `n_tasks` tasks.
fn n_workgroups(machine: &impl Machine, code: &Code, n_tasks: i64) -> u32 {
    let most =
        if code.scratch_bytes > 0 { machine.max_workgroups_with_scratch() } else { machine.max_workgroups() };
    u32::try_from(n_tasks).unwrap_or(most).min(most)
}

/// Memory with these bytes, for one run.
fn lent<M: Machine>(machine: &M, bytes: &[u8]) -> Result<M::Memory, Error> {
    let memory = machine.allocate("a buffer", bytes.len())?;
    machine.write(&memory, bytes)?;
    Ok(memory)
}

fn idx_of(id: ParamId, code: &Code) -> usize {
    let place = code.kernel.params.ids().position(|own| own == id);
    place.expect("code is given the parameters of its kernel")
}

/// The fields of a run of blocks, the memory of each, and its bytes.
type StatePieces<T> = Vec<(FieldRun, T, usize)>;

impl<M: Machine> Gpu<M> {
    /// The format of a state, and where each field of a run of its bytes lies, with how many bytes it has there.
    fn state_pieces(
        &self,
        name: &str,
        offset: usize,
        len: usize,
    ) -> Result<(Format, StatePieces<M::Memory>), Error> {
        let state = self.memory.stored_state(name);
        let stored = state.and_then(|(format, n_elements, _)| format.bytes_for(n_elements));
        let range = range_of(name, stored, offset, len)?;
        let (format, n_elements, memory) = state.expect("a state without bytes is refused");
        let (first, n_blocks) = (range.start / format.block_bytes(), range.len() / format.block_bytes());
        let piece = |run: FieldRun| {
            let n_bytes = n_blocks * run.bytes;
            (run, self.machine.piece(memory, run.start, n_bytes), n_bytes)
        };
        Ok((format, field_runs(format, n_elements, first).into_iter().map(piece).collect()))
    }
}

impl<M: Machine> Device for Gpu<M> {
    fn describe(&self) -> String {
        self.machine.describe()
    }

    fn free(&self) -> Option<usize> {
        self.memory.free(&self.machine)
    }

    fn load(&mut self, plan: &Plan, weights: &Arc<dyn Weights>) -> Result<ProgramId, Error> {
        verified(plan)?;
        let dialect = self.machine.dialect();
        let codes = plan.kernels.values().map(|kernel| compile(kernel, dialect));
        let codes = codes.collect::<Result<Vec<Code>, CompilerError>>()?;
        let functions = self.compiled(&codes)?;
        let alignment = self.machine.alignment();
        let (symbol_values, n_bytes) = SymbolValues::placed(plan, &codes, alignment);
        let mut entry = Layout { alignment, n_bytes, places: Vec::new() };
        let mut exit = Layout { alignment, n_bytes: 0, places: Vec::new() };
        for slot in plan.buffers.values() {
            match slot.place {
                Place::Input => entry.add(slot.bytes),
                Place::Output => exit.add(slot.bytes),
                Place::Weight | Place::State | Place::Arena { .. } | Place::Constant(_) => {}
            }
        }
        let arena_bytes = plan.arena_bytes.next_multiple_of(alignment);
        let n_pieces = self.machine.max_workgroups_with_scratch() as usize;
        let scratch_bytes = n_pieces * codes.iter().map(|code| code.scratch_bytes).max().unwrap_or(0);
        let n_shared = arena_bytes + scratch_bytes;
        self.memory.check(&self.machine, plan, self.memory.missing(n_shared))?;
        let shared = self.memory.shared(&self.machine, n_shared)?;
        let entered = self.memory.allocate_zeroed(&self.machine, "inputs", entry.n_bytes)?;
        let left = self.memory.allocate_zeroed(&self.machine, "outputs", exit.n_bytes)?;
        let places = self.places(plan, weights, &shared, [(&entered, &entry), (&left, &exit)])?;
        let scratch = self.machine.piece(&shared, arena_bytes, scratch_bytes);
        self.memory.footprint.n_emitted += codes.len();
        let ready = |(code, symbol_values)| LoadedKernel { code, symbol_values };
        let kernels: List<KernelId, LoadedKernel> = codes.into_iter().zip(symbol_values).map(ready).collect();
        let (mut launches, mut kept) = (Vec::new(), Vec::new());
        for step in &plan.steps {
            let LoadedKernel { code, symbol_values } = &kernels[step.kernel];
            let piece = |binding: &Binding| match binding {
                Binding::Param(id) => {
                    let bytes = param_bytes(&code.kernel.params[*id]);
                    self.machine.piece(&places[step.args[idx_of(*id, code)]], 0, bytes)
                }
                Binding::Symbols | Binding::Lengths => {
                    self.machine.piece(&entered, symbol_values.offset, symbol_values.bytes)
                }
                Binding::Scratch => scratch.clone(),
            };
            let pieces: Vec<M::Memory> = code.bindings.iter().map(piece).collect();
            let most = n_workgroups(&self.machine, code, code.n_tasks(&|symbol| symbol.max));
            launches.push(self.machine.launch(&self.functions[functions[step.kernel]], &pieces, most)?);
            kept.extend(pieces);
        }
        let launch_list = self.machine.launch_list(&launches, exit.n_bytes)?;
        let transfer_buffer = |layout: Layout, device| {
            Ok::<_, Error>(TransferBuffer {
                host: Buffer::zeroed(layout.n_bytes)?,
                device,
                places: layout.places,
            })
        };
        Ok(self.programs.push(Program {
            symbols: plan.symbols(),
            writes: Places::of(plan),
            kernels,
            steps: plan.steps.iter().map(|step| step.kernel).collect(),
            n_workgroups: vec![0; launches.len()],
            launch_list,
            launches,
            _pieces: kept,
            entry: transfer_buffer(entry, entered)?,
            exit: transfer_buffer(exit, left)?,
        }))
    }

    fn input(&mut self, program: ProgramId, number: usize) -> &mut [u8] {
        let TransferBuffer { host, places, .. } = &mut self.programs[program].entry;
        &mut host.bytes_mut()[places[number].clone()]
    }

    fn replay(&mut self, program: ProgramId, symbols: &[i64]) -> Result<(), Error> {
        self.enter(program, symbols)?;
        let Program { launch_list, launches, n_workgroups, exit, .. } = &mut self.programs[program];
        let TransferBuffer { host, device, .. } = exit;
        self.memory.footprint.returned += host.bytes().len();
        self.machine.run(launch_list, launches, n_workgroups, (device, host.bytes_mut()))
    }

    fn profile(&mut self, program: ProgramId, symbols: &[i64]) -> Result<Vec<Duration>, Error> {
        self.enter(program, symbols)?;
        let Program { launch_list, launches, n_workgroups, exit, .. } = &mut self.programs[program];
        let times = self.machine.times(launches, n_workgroups)?;
        self.machine.read(launch_list, &exit.device, exit.host.bytes_mut())?;
        Ok(times)
    }

    fn output(&self, program: ProgramId, number: usize) -> &[u8] {
        let TransferBuffer { host, places, .. } = &self.programs[program].exit;
        &host.bytes()[places[number].clone()]
    }

    fn read_state(&mut self, name: &str, offset: usize, to: &mut [u8]) -> Result<(), Error> {
        let (format, pieces) = self.state_pieces(name, offset, to.len())?;
        let blocks = format.block_bytes();
        for (FieldRun { from, bytes, .. }, piece, n_bytes) in pieces {
            let staging = self.machine.launch_list(&[], n_bytes)?;
            let mut field = vec![0; n_bytes];
            self.machine.read(&staging, &piece, &mut field)?;
            let stored = to.chunks_exact_mut(blocks).zip(field.chunks_exact(bytes));
            stored.for_each(|(block, field)| block[from..from + bytes].copy_from_slice(field));
        }
        Ok(())
    }

    fn write_state(&mut self, name: &str, offset: usize, new: &[u8]) -> Result<(), Error> {
        let (format, pieces) = self.state_pieces(name, offset, new.len())?;
        for (FieldRun { from, bytes, .. }, piece, _) in pieces {
            let blocks = new.chunks_exact(format.block_bytes());
            let field: Vec<u8> = blocks.flat_map(|block| &block[from..from + bytes]).copied().collect();
            self.machine.write(&piece, &field)?;
        }
        Ok(())
    }

    fn footprint(&self) -> Footprint {
        self.memory.footprint
    }
}

#[cfg(test)]
mod tests;
