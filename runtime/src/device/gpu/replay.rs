//! A GPU as a device.
//!
//! In: plans. Out: replays: all that changes from one to the next is written at once, all launches are one submission
//! or graph, and all that comes back is read at once, behind one wait.
//! Bindings are made when a plan is loaded, and a program keeps the memory that they name. The values of symbols are
//! the only thing of a replay besides its inputs that the device is told, so a program serves every position of a text;
//! both lie in one buffer, the entry. Outputs lie in another, the exit.
//! Nothing here knows which GPU it is: `machine.rs` says what that has to do.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use fusebox_compiler::codegen::check_symbols;
use fusebox_compiler::codegen::gpu::dialect::Dialect;
use fusebox_compiler::codegen::gpu::layout::param_bytes;
use fusebox_compiler::codegen::gpu::short::shortened;
use fusebox_compiler::codegen::gpu::{Binding, Code, compile};
use fusebox_compiler::error::Error as CompilerError;
use fusebox_compiler::foundation::entity::List;
use fusebox_compiler::kernel::ParamId;
use fusebox_compiler::schedule::{BufferId, KernelId, Place, Plan, arena};
use fusebox_compiler::tensor::sym::Symbol;
use indexmap::IndexMap;

use crate::buffer::Buffer;
use crate::device::gpu::holdings::{Holdings, Tell};
use crate::device::gpu::machine::Machine;
use crate::device::gpu::numbers::Numbers;
use crate::device::{Device, Footprint, ProgramId, Weights, verified};
use crate::error::Error;

/// A GPU.
pub struct Gpu<M: Machine> {
    // Programs go before what they are made of.
    programs: List<ProgramId, Program<M>>,
    /// What sources were compiled to, by source and bytes of shared memory.
    functions: IndexMap<(String, usize), M::Function>,
    holdings: Holdings<M::Memory>,
    machine: M,
}

/// A plan that was taken in.
struct Program<M: Machine> {
    // What is made of something goes before it: the sequence, its launches, their memory.
    sequence: M::Sequence,
    launches: Vec<M::Launch>,
    /// What launches were given: a launch need not keep it.
    _pieces: Vec<M::Memory>,
    symbols: Vec<Symbol>,
    kernels: List<KernelId, Ready>,
    /// The kernel of each launch.
    steps: Vec<KernelId>,
    /// Workgroups of each launch in this replay.
    n_groups: Vec<u32>,
    entry: Mailbox<M::Memory>,
    exit: Mailbox<M::Memory>,
}

/// A kernel, and what the symbols of a replay make of it.
struct Ready {
    code: Code,
    numbers: Numbers,
}

/// Memory that this process and the device both have.
struct Mailbox<T> {
    here: Buffer,
    there: T,
    /// Where each input or output lies.
    places: Vec<Range<usize>>,
}

/// How much of a mailbox is taken.
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
    /// A device that holds at most so many bytes, and no more than it has, and tells how far weights were handed over.
    pub fn new(machine: M, limit: Option<usize>, tell: Tell) -> Self {
        let limit = limit.into_iter().chain(machine.size()).min();
        let holdings = Holdings::new(limit, tell);
        Self { programs: List::default(), functions: IndexMap::new(), holdings, machine }
    }

    /// What it compiles.
    pub fn dialect(&self) -> Dialect {
        self.machine.dialect()
    }

    /// Runs one kernel on buffers of the caller's, arranged as `compiler/src/codegen/gpu/layout.rs` says, and gives
    /// back what it wrote: for checks of code against other ways to run a kernel.
    ///
    /// # Errors
    /// Where the device refuses the code or has no memory.
    pub fn run(&mut self, code: &Code, buffers: &mut [Vec<u8>], symbols: &[i64]) -> Result<(), Error> {
        let machine = &mut self.machine;
        let numbers: Vec<u8> = symbols.iter().flat_map(|value| (*value as i32).to_le_bytes()).collect();
        let of = |symbol: Symbol| {
            code.symbols.iter().position(|own| *own == symbol).map_or(symbol.min, |idx| symbols[idx])
        };
        let n_groups = n_groups(machine, code, code.n_tasks(&of));
        let mut pieces = Vec::new();
        for binding in &code.bindings {
            pieces.push(match binding {
                Binding::Param(id) => lent(machine, &buffers[idx_of(*id, code)])?,
                Binding::Symbols | Binding::Lengths => lent(machine, &numbers)?,
                Binding::Scratch => {
                    let n_pieces = machine.most_groups_with_scratch() as usize;
                    machine.allocate("scratch memory", code.scratch_bytes * n_pieces)?
                }
            });
        }
        let functions = machine.functions(&[code])?;
        let launch = machine.launch(&functions[0], &pieces, n_groups)?;
        machine.run_one(&launch, n_groups)?;
        let most = buffers.iter().map(Vec::len).max().unwrap_or(0);
        let sequence = machine.sequence(&[], most)?;
        for (buffer, piece) in buffers.iter_mut().zip(&pieces) {
            machine.read(&sequence, piece, buffer)?;
        }
        Ok(())
    }

    /// Compiles those of a plan's sources that no earlier plan had; gives the number of each one's function.
    fn compiled(&mut self, codes: &[Code]) -> Result<List<KernelId, usize>, Error> {
        let missing = codes.iter().map(|code| (key(code), code));
        let missing: IndexMap<_, _> = missing.filter(|(key, _)| !self.functions.contains_key(key)).collect();
        let made = self.machine.functions(&missing.values().copied().collect::<Vec<_>>())?;
        let n_kept = made.iter().filter(|function| M::is_kept(function)).count();
        self.holdings.footprint.n_kept += n_kept;
        self.holdings.footprint.n_compiled += made.len() - n_kept;
        self.functions.extend(missing.into_keys().zip(made));
        let number = |code| self.functions.get_index_of(&key(code)).expect("it was compiled");
        Ok(codes.iter().map(number).collect())
    }

    /// A piece for every buffer of a plan; inputs and outputs lie in the mailboxes.
    fn places(
        &mut self,
        plan: &Plan,
        weights: &Arc<dyn Weights>,
        shared: &M::Memory,
        mailboxes: [(&M::Memory, &Layout); 2],
    ) -> Result<List<BufferId, M::Memory>, Error> {
        let Self { machine, holdings, .. } = self;
        holdings.hand_over(machine, plan, weights)?;
        let is_fine = machine.alignment() <= arena::ALIGNMENT;
        let [mut inputs, mut outputs] =
            mailboxes.map(|(memory, layout)| layout.places.iter().map(move |place| (memory, place.start)));
        let mut all = List::default();
        for slot in plan.buffers.values() {
            let next = |place: Option<(&M::Memory, usize)>| {
                let (memory, start) =
                    place.expect("a mailbox was laid out for all that a plan takes and gives");
                machine.piece(memory, start, slot.bytes)
            };
            all.push(match &slot.place {
                Place::Weight => holdings.weight(slot, &**weights)?,
                Place::State => holdings.state(machine, slot)?,
                Place::Arena { offset } if is_fine => machine.piece(shared, *offset, slot.bytes),
                Place::Arena { .. } => holdings.taken(machine, &slot.name, slot.bytes)?,
                Place::Input => next(inputs.next()),
                Place::Output => next(outputs.next()),
                Place::Constant(words) => {
                    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
                    holdings.filled(machine, &slot.name, &bytes)?
                }
            });
        }
        Ok(all)
    }

    /// Hands over what changes from replay to replay.
    fn enter(&mut self, program: ProgramId, symbols: &[i64]) -> Result<(), Error> {
        let Program { symbols: own, kernels, steps, n_groups: groups, entry, .. } =
            &mut self.programs[program];
        check_symbols(own, symbols)?;
        kernels.values().for_each(|ready| ready.numbers.write(symbols, entry.here.bytes_mut()));
        for (n, step) in groups.iter_mut().zip(steps) {
            let Ready { code, numbers } = &kernels[*step];
            *n = n_groups(&self.machine, code, numbers.n_tasks(code, symbols));
        }
        self.machine.write(&entry.there, entry.here.bytes())
    }
}

/// What functions are kept by.
fn key(code: &Code) -> (String, usize) {
    (code.source.clone(), code.shared_bytes)
}

/// Workgroups of a launch of so many tasks.
fn n_groups(machine: &impl Machine, code: &Code, n_tasks: i64) -> u32 {
    let most =
        if code.scratch_bytes > 0 { machine.most_groups_with_scratch() } else { machine.most_groups() };
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

impl<M: Machine> Device for Gpu<M> {
    fn describe(&self) -> String {
        self.machine.describe()
    }

    fn free(&self) -> Option<usize> {
        self.holdings.free(&self.machine)
    }

    fn load(&mut self, plan: &Plan, weights: &Arc<dyn Weights>) -> Result<ProgramId, Error> {
        verified(plan)?;
        let dialect = self.machine.dialect();
        let plan = &*shortened(plan, dialect)?;
        let codes = plan.kernels.values().map(|kernel| compile(kernel, dialect));
        let codes = codes.collect::<Result<Vec<Code>, CompilerError>>()?;
        let functions = self.compiled(&codes)?;
        let alignment = self.machine.alignment();
        let (numbers, n_bytes) = Numbers::placed(plan, &codes, alignment);
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
        let n_pieces = self.machine.most_groups_with_scratch() as usize;
        let scratch_bytes = n_pieces * codes.iter().map(|code| code.scratch_bytes).max().unwrap_or(0);
        let n_shared = arena_bytes + scratch_bytes;
        self.holdings.check(&self.machine, plan, self.holdings.missing(n_shared))?;
        let shared = self.holdings.shared(&self.machine, n_shared)?;
        let entered = self.holdings.taken(&self.machine, "inputs", entry.n_bytes)?;
        let left = self.holdings.taken(&self.machine, "outputs", exit.n_bytes)?;
        let places = self.places(plan, weights, &shared, [(&entered, &entry), (&left, &exit)])?;
        let scratch = self.machine.piece(&shared, arena_bytes, scratch_bytes);
        self.holdings.footprint.n_emitted += codes.len();
        let ready = |(code, numbers)| Ready { code, numbers };
        let kernels: List<KernelId, Ready> = codes.into_iter().zip(numbers).map(ready).collect();
        let (mut launches, mut kept) = (Vec::new(), Vec::new());
        for step in &plan.steps {
            let Ready { code, numbers } = &kernels[step.kernel];
            let piece = |binding: &Binding| match binding {
                Binding::Param(id) => {
                    let bytes = param_bytes(&code.kernel.params[*id]);
                    self.machine.piece(&places[step.args[idx_of(*id, code)]], 0, bytes)
                }
                Binding::Symbols | Binding::Lengths => {
                    self.machine.piece(&entered, numbers.offset, numbers.bytes)
                }
                Binding::Scratch => scratch.clone(),
            };
            let pieces: Vec<M::Memory> = code.bindings.iter().map(piece).collect();
            let most = n_groups(&self.machine, code, code.n_tasks(&|symbol| symbol.max));
            launches.push(self.machine.launch(&self.functions[functions[step.kernel]], &pieces, most)?);
            kept.extend(pieces);
        }
        let sequence = self.machine.sequence(&launches, exit.n_bytes)?;
        let mailbox = |layout: Layout, there| {
            Ok::<_, Error>(Mailbox { here: Buffer::zeroed(layout.n_bytes)?, there, places: layout.places })
        };
        Ok(self.programs.push(Program {
            symbols: plan.symbols(),
            kernels,
            steps: plan.steps.iter().map(|step| step.kernel).collect(),
            n_groups: vec![0; launches.len()],
            sequence,
            launches,
            _pieces: kept,
            entry: mailbox(entry, entered)?,
            exit: mailbox(exit, left)?,
        }))
    }

    fn input(&mut self, program: ProgramId, number: usize) -> &mut [u8] {
        let Mailbox { here, places, .. } = &mut self.programs[program].entry;
        &mut here.bytes_mut()[places[number].clone()]
    }

    fn replay(&mut self, program: ProgramId, symbols: &[i64]) -> Result<(), Error> {
        self.enter(program, symbols)?;
        let Program { sequence, launches, n_groups, exit, .. } = &mut self.programs[program];
        let Mailbox { here, there, .. } = exit;
        self.holdings.footprint.returned += here.bytes().len();
        self.machine.run(sequence, launches, n_groups, (there, here.bytes_mut()))
    }

    fn profile(&mut self, program: ProgramId, symbols: &[i64]) -> Result<Vec<Duration>, Error> {
        self.enter(program, symbols)?;
        let Program { sequence, launches, n_groups, exit, .. } = &mut self.programs[program];
        let times = self.machine.times(launches, n_groups)?;
        self.machine.read(sequence, &exit.there, exit.here.bytes_mut())?;
        Ok(times)
    }

    fn output(&self, program: ProgramId, number: usize) -> &[u8] {
        let Mailbox { here, places, .. } = &self.programs[program].exit;
        &here.bytes()[places[number].clone()]
    }

    fn footprint(&self) -> Footprint {
        self.holdings.footprint
    }
}

#[cfg(test)]
mod tests;
