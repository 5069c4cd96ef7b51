//! The CPU device: machine code, run by a team of threads that is entered once a replay.
//!
//! In: plans. Out: replays. Weights are read where they are mapped; states, arena, inputs and outputs belong to the
//! device.
//! All threads execute the same steps. In each step they take tasks, as `shares.rs` distributes them, and meet at a
//! barrier after it.
//! Where a thread panics, it and all others walk through the steps that are left without work, so that none waits in
//! vain; the replay is an error, and the next one works.
//! A replay allocates nothing and looks nothing up: every address is computed when a plan is loaded, and memory whose
//! address was handed out never moves.

#![expect(unsafe_code, reason = "code runs on addresses that are kept from load to replay")]

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fusebox_compiler::codegen::check_symbols;
use fusebox_compiler::codegen::cpu::jit::Code;
use fusebox_compiler::codegen::cpu::{Cpu, take_panic};
use fusebox_compiler::error::Error as CompilerError;
use fusebox_compiler::foundation::amount::counted;
use fusebox_compiler::foundation::entity::List;
use fusebox_compiler::graph::Name;
use fusebox_compiler::kernel::Kernel;
use fusebox_compiler::schedule::places::Places;
use fusebox_compiler::schedule::{BufferId, BufferSlot, KernelId, Place, Plan};
use fusebox_compiler::tensor::sym::Symbol;
use indexmap::{IndexMap, IndexSet};

use crate::buffer::{Buffer, LARGE_PAGE};
use crate::device::shares::{Shares, first};
use crate::device::{Device, Footprint, ProgramId, Weights, placed, range_of, refused, verified, weight};
use crate::error::Error;
use crate::threads::barrier::Barrier;
use crate::threads::{Team, each};

/// Alignment of the space after an arena.
const ALIGNMENT: usize = 64;

/// The CPU as a device.
pub struct CpuDevice {
    cpu: Cpu,
    team: Team,
    programs: List<ProgramId, Program>,
    states: IndexMap<Name, Buffer>,
    weights: IndexSet<Name>,
    /// The code of every kernel, once.
    codes: Vec<Arc<Code>>,
    /// Intermediate values, then the activations quantised ahead of a step. Programs share arenas, because one
    /// runs at a time and leaves nothing there.
    arenas: Vec<Buffer>,
    /// The scratch memory of each thread.
    scratch: Vec<(Buffer, Address)>,
    footprint: Footprint,
}

/// A loaded plan.
struct Program {
    symbols: Vec<Symbol>,
    kernels: List<KernelId, Ready>,
    steps: Vec<Step>,
    /// Every thread waits here after every step.
    barrier: Barrier,
    /// Which inputs say where elements are written.
    places: Places,
    inputs: Vec<Buffer>,
    outputs: Vec<Buffer>,
    /// Keeps the constants and weights that steps have addresses of.
    _kept: (Vec<Buffer>, Arc<dyn Weights>),
}

/// A kernel with its code, and its values for the current replay.
struct Ready {
    code: Arc<Code>,
    /// For each symbol of the kernel, its index among the symbols of the plan.
    symbol_idx: Vec<usize>,
    symbols: Vec<i64>,
    /// The number of tasks of each part.
    n_tasks: Vec<i64>,
    n_tasks_of_all: i64,
    /// The number of tasks that quantise activations before the others.
    n_quantise_tasks: i64,
}

/// A launch with its addresses.
struct Step {
    kernel: KernelId,
    buffers: Vec<Address>,
    /// The tasks not taken yet: those that quantise activations, and the others.
    left: [Shares; 2],
}

/// The start of memory that outlives every replay.
#[repr(transparent)]
#[derive(Clone, Copy)]
struct Address(*mut u8);

// SAFETY: an address is of a buffer that its device owns, or of a weight, which nobody writes. Threads go through it
// only in `Ready::work`, which says why they keep apart.
unsafe impl Send for Address {}
// SAFETY: as above.
unsafe impl Sync for Address {}

impl CpuDevice {
    /// A device with `n_threads` threads.
    ///
    /// # Errors
    /// Where the system gives no more threads.
    pub fn new(cpu: Cpu, n_threads: usize) -> Result<Self, Error> {
        let team = Team::new(n_threads);
        let team =
            team.map_err(|error| refused("threads", format!("{n_threads} were requested: {error}")))?;
        Ok(Self {
            cpu,
            team,
            programs: List::default(),
            states: IndexMap::new(),
            weights: IndexSet::new(),
            codes: Vec::new(),
            arenas: Vec::new(),
            scratch: Vec::new(),
            footprint: Footprint::default(),
        })
    }

    /// The code of all kernels of a plan. Kernels that no earlier plan had are compiled, by all threads.
    fn emit(&mut self, plan: &Plan) -> Result<Vec<Arc<Code>>, Error> {
        let is_new = |kernel: &&Kernel| self.known(kernel).is_none();
        let kernels: Vec<&Kernel> = plan.kernels.values().filter(is_new).collect();
        let n_threads = self.team.n_threads().min(kernels.len()).max(1);
        let share = |first: usize| -> Vec<Result<Code, CompilerError>> {
            kernels.iter().skip(first).step_by(n_threads).map(|kernel| self.cpu.compile(kernel)).collect()
        };
        let made = each(n_threads, share)
            .into_iter()
            .flatten()
            .map(|code| Ok(Arc::new(code?)))
            .collect::<Result<Vec<_>, Error>>()?;
        self.footprint.n_emitted += made.len();
        self.codes.extend(made);
        Ok(plan.kernels.values().filter_map(|kernel| self.known(kernel)).cloned().collect())
    }

    /// The code of a kernel, if an earlier plan had it.
    fn known(&self, kernel: &Kernel) -> Option<&Arc<Code>> {
        self.codes.iter().find(|code| code.is_of(kernel))
    }

    /// The start of an arena of at least `bytes`, allocated if no earlier one is large enough.
    fn arena(&mut self, bytes: usize) -> Result<*mut u8, Error> {
        let fits = self.arenas.iter().position(|arena| arena.bytes().len() >= bytes);
        let idx = fits.unwrap_or(self.arenas.len());
        if fits.is_none() {
            self.arenas.push(Buffer::zeroed(bytes)?);
            self.footprint.arena += bytes;
        }
        Ok(self.arenas[idx].start())
    }

    /// Allocates the states of a plan; states of the same name are the same memory.
    fn allocate_states(&mut self, plan: &Plan) -> Result<(), Error> {
        for slot in placed(plan, |place| *place == Place::State) {
            let BufferSlot { name, bytes, .. } = slot;
            if let Some(state) = self.states.get(name) {
                let found = state.bytes().len();
                if found != *bytes {
                    return Err(refused(name, format!("the state has {found} bytes, {bytes} are needed")));
                }
                continue;
            }
            let state = Buffer::zeroed(*bytes)?;
            self.states
                .insert(name.clone(), if *bytes >= LARGE_PAGE { state.in_large_pages() } else { state });
            self.footprint.state += bytes;
        }
        Ok(())
    }

    /// Allocates scratch memory for every thread.
    fn allocate_scratch(&mut self, bytes: usize) -> Result<(), Error> {
        if self.scratch.first().is_none_or(|(scratch, _)| scratch.bytes().len() < bytes) {
            let addressed = |mut buffer: Buffer| {
                let start = Address(buffer.start());
                (buffer, start)
            };
            let all = (0..self.team.n_threads()).map(|_| Buffer::zeroed(bytes).map(addressed));
            self.scratch = all.collect::<Result<_, _>>()?;
        }
        Ok(())
    }

    /// Counts the weights of a plan that no earlier plan had.
    fn count_weights(&mut self, plan: &Plan) {
        for BufferSlot { name, bytes, .. } in placed(plan, |place| *place == Place::Weight) {
            if self.weights.insert(name.clone()) {
                self.footprint.weights += bytes;
            }
        }
    }

    /// Runs all steps. `passed` is called with the number of finished steps: at the start by the first thread, then by
    /// the last thread to finish each step.
    fn run(
        &mut self,
        program: ProgramId,
        symbols: &[i64],
        passed: &(dyn Fn(usize) + Sync),
    ) -> Result<(), Error> {
        let Program { symbols: own, kernels, steps, places, inputs, .. } = &mut self.programs[program];
        check_symbols(own, symbols)?;
        places.check(own, symbols, |number| inputs[number].bytes())?;
        for ready in kernels.values_mut() {
            ready.set(symbols)?;
        }
        for Step { kernel, left: [quantise_shares, tasks], .. } in steps {
            quantise_shares.deal(kernels[*kernel].n_quantise_tasks);
            tasks.deal(kernels[*kernel].n_tasks_of_all);
        }
        let (program, scratch) = (&self.programs[program], &self.scratch);
        let n_threads = self.team.n_threads();
        let has_panicked = AtomicBool::new(false);
        let guarded = |work: &dyn Fn()| {
            if !has_panicked.load(Ordering::Relaxed)
                && (catch_unwind(AssertUnwindSafe(work)).is_err() || take_panic())
            {
                has_panicked.store(true, Ordering::Relaxed);
            }
        };
        self.team.run(&|thread| {
            if thread == 0 {
                guarded(&|| passed(0));
            }
            for (number, step) in program.steps.iter().enumerate() {
                let ready = &program.kernels[step.kernel];
                if ready.n_quantise_tasks > 0 {
                    guarded(&|| ready.quantise(step, thread));
                    program.barrier.wait();
                }
                guarded(&|| {
                    ready.work(step, thread, scratch[thread].1);
                    if let Some(next) = program.steps.get(number + 1) {
                        program.kernels[next.kernel].ask_first(next, thread, n_threads);
                    }
                });
                if program.barrier.wait() {
                    guarded(&|| passed(number + 1));
                }
            }
        });
        if has_panicked.into_inner() {
            return Err(CompilerError::bug("replay", "a thread", "panicked; the results are lost").into());
        }
        Ok(())
    }
}

impl Ready {
    fn new(plan: &Plan, kernel: KernelId, code: Arc<Code>) -> Self {
        let all = plan.symbols();
        let of_plan = |symbol| all.iter().position(|own| *own == symbol);
        let idx = |symbol: &_| of_plan(*symbol).expect("the plan lists the symbols of all its kernels");
        let symbol_idx: Vec<usize> = code.symbols().iter().map(idx).collect();
        let symbols = vec![0; symbol_idx.len()];
        let n_tasks = vec![0; plan.kernels[kernel].parts.len()];
        Self { code, symbol_idx, symbols, n_tasks, n_tasks_of_all: 0, n_quantise_tasks: 0 }
    }

    /// Sets the values of the plan's symbols.
    fn set(&mut self, symbols: &[i64]) -> Result<(), Error> {
        for (own, idx) in self.symbols.iter_mut().zip(&self.symbol_idx) {
            *own = symbols[*idx];
        }
        self.n_tasks_of_all = self.code.n_tasks(&self.symbols)?;
        self.n_quantise_tasks = self.code.n_quantise_tasks(&self.symbols);
        for (part, n_tasks) in self.n_tasks.iter_mut().enumerate() {
            *n_tasks = self.code.n_tasks_of_part(part, &self.symbols);
        }
        Ok(())
    }

    /// Quantises the activations that all tasks of a step need, until no task is left.
    fn quantise(&self, step: &Step, thread: usize) {
        while let Some(tasks) = step.left[0].take(thread) {
            let buffers = step.buffers.as_ptr().cast::<*mut u8>();
            // SAFETY: as in `enter`; `load` gave the step an address with as many bytes as its kernel needs.
            unsafe { self.code.quantise(tasks, buffers, &self.symbols) };
        }
    }

    /// Runs tasks of a step until none is left.
    fn work(&self, step: &Step, thread: usize, scratch: Address) {
        let mut before = None;
        while let Some(tasks) = step.left[1].take(thread) {
            for (part, own) in self.of_parts(tasks) {
                self.prefetch(part, own.start, step);
                self.enter(part, own, step, scratch, before == Some(part));
                before = Some(part);
            }
        }
    }

    /// Prefetches what a thread reads first in a step.
    fn ask_first(&self, step: &Step, thread: usize, n_threads: usize) {
        let task = first(thread, n_threads, self.n_tasks_of_all);
        if let Some((part, own)) = self.of_parts(task..task + 1).next() {
            self.prefetch(part, own.start, step);
        }
    }

    /// Splits a range of all tasks into ranges of each part.
    fn of_parts(&self, tasks: Range<i64>) -> impl Iterator<Item = (usize, Range<i64>)> {
        let mut before = 0;
        let own = move |(part, n_tasks): (usize, &i64)| {
            let [start, end] = [tasks.start, tasks.end].map(|task| (task - before).clamp(0, *n_tasks));
            before += n_tasks;
            (part, start..end)
        };
        self.n_tasks.iter().enumerate().map(own).filter(|(_, own)| !own.is_empty())
    }

    fn prefetch(&self, part: usize, task: i64, step: &Step) {
        let buffers = step.buffers.as_ptr().cast::<*mut u8>();
        // SAFETY: `load` gave every parameter an address.
        unsafe { self.code.prefetch(part, task, self.n_tasks[part], buffers) }
    }

    fn enter(&self, part: usize, tasks: Range<i64>, step: &Step, scratch: Address, continues: bool) {
        // An address is what it wraps.
        let buffers = step.buffers.as_ptr().cast::<*mut u8>();
        // SAFETY: `load` gave every parameter a buffer of its largest shape, which lives as long as the program. The
        // plan and its kernels verify: what a step writes it reads only where that is proven harmless, no two tasks of
        // a kernel store to the same element, given places that `run` has checked, and no other step runs until all
        // threads have passed the barrier. `set` has checked the symbols, `Shares` gives no task twice, and each thread
        // has scratch memory of its own, as large as the largest kernel needs it; it continues only after a call for
        // the same part in the same step.
        unsafe { self.code.enter(part, tasks, buffers, &self.symbols, scratch.0, continues) }
    }
}

impl Device for CpuDevice {
    fn describe(&self) -> String {
        format!("{}, {}", self.cpu, counted(self.team.n_threads(), "thread"))
    }

    fn load(&mut self, plan: &Plan, weights: &Arc<dyn Weights>) -> Result<ProgramId, Error> {
        verified(plan)?;
        let codes = self.emit(plan)?;
        self.allocate_states(plan)?;
        self.allocate_scratch(codes.iter().map(|code| code.scratch_bytes()).max().unwrap_or(0))?;
        // Steps follow each other, so they share the memory for quantised activations.
        let ahead_bytes = codes.iter().map(|code| code.ahead_bytes()).max().unwrap_or(0);
        let ahead_at = plan.arena_bytes.next_multiple_of(ALIGNMENT);
        let arena = self.arena(ahead_at + ahead_bytes)?;
        let ahead = Address(arena.wrapping_add(ahead_at));
        let (mut inputs, mut outputs, mut constants) = (Vec::new(), Vec::new(), Vec::new());
        let mut starts: List<BufferId, Address> = List::default();
        for slot in plan.buffers.values() {
            let own = |buffers: &mut Vec<Buffer>| -> Result<*mut u8, Error> {
                buffers.push(Buffer::zeroed(slot.bytes)?);
                Ok(buffers.last_mut().expect("it was pushed").start())
            };
            starts.push(Address(match &slot.place {
                Place::Weight => weight(slot, &**weights)?.as_ptr().cast_mut(),
                Place::State => self.states.get_mut(&slot.name).expect("it was allocated").start(),
                Place::Arena { offset } => arena.wrapping_add(*offset),
                Place::Input => own(&mut inputs)?,
                Place::Output => own(&mut outputs)?,
                Place::Constant(words) => {
                    let start = own(&mut constants)?;
                    let bytes = constants.last_mut().expect("it was pushed").bytes_mut().iter_mut();
                    bytes
                        .zip(words.iter().flat_map(|word| word.to_le_bytes()))
                        .for_each(|(to, byte)| *to = byte);
                    start
                }
            }));
        }
        let n_threads = self.team.n_threads();
        let step = |step: &fusebox_compiler::schedule::Step| Step {
            kernel: step.kernel,
            buffers: step.args.iter().map(|arg| starts[*arg]).chain([ahead]).collect(),
            left: [n_threads; 2].map(Shares::new),
        };
        let steps = plan.steps.iter().map(step).collect();
        let ready = |(kernel, code)| Ready::new(plan, kernel, code);
        let kernels = plan.kernels.ids().zip(codes).map(ready).collect();
        self.count_weights(plan);
        let all = [&inputs, &outputs, &constants].into_iter().flatten();
        self.footprint.arena += all.map(|buffer| buffer.bytes().len()).sum::<usize>();
        let barrier = Barrier::new(n_threads);
        let kept = (constants, Arc::clone(weights));
        let (symbols, places) = (plan.symbols(), Places::of(plan));
        let program = Program { symbols, kernels, steps, barrier, places, inputs, outputs, _kept: kept };
        Ok(self.programs.push(program))
    }

    fn input(&mut self, program: ProgramId, number: usize) -> &mut [u8] {
        self.programs[program].inputs[number].bytes_mut()
    }

    fn replay(&mut self, program: ProgramId, symbols: &[i64]) -> Result<(), Error> {
        self.run(program, symbols, &|_| {})
    }

    fn profile(&mut self, program: ProgramId, symbols: &[i64]) -> Result<Vec<Duration>, Error> {
        let n_steps = self.programs[program].steps.len();
        let passed: Vec<AtomicU64> = (0..=n_steps).map(|_| AtomicU64::new(0)).collect();
        let start = Instant::now();
        self.run(program, symbols, &|step| {
            passed[step].store(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
        })?;
        let passed: Vec<u64> = passed.into_iter().map(AtomicU64::into_inner).collect();
        Ok(passed.windows(2).map(|pair| Duration::from_nanos(pair[1].saturating_sub(pair[0]))).collect())
    }

    fn output(&self, program: ProgramId, number: usize) -> &[u8] {
        self.programs[program].outputs[number].bytes()
    }

    fn read_state(&mut self, name: &str, offset: usize, to: &mut [u8]) -> Result<(), Error> {
        let state = self.states.get(name).map(Buffer::bytes);
        let range = range_of(name, state.map(<[u8]>::len), offset, to.len())?;
        to.copy_from_slice(&state.unwrap_or_default()[range]);
        Ok(())
    }

    fn write_state(&mut self, name: &str, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        let state = self.states.get_mut(name).map(Buffer::bytes_mut);
        let range = range_of(name, state.as_ref().map(|state| state.len()), offset, bytes.len())?;
        state.unwrap_or_default()[range].copy_from_slice(bytes);
        Ok(())
    }

    fn footprint(&self) -> Footprint {
        self.footprint
    }

    fn free(&self) -> Option<usize> {
        None
    }
}

#[cfg(test)]
mod tests {
    use fusebox_compiler::graph::parse::parse;
    use fusebox_compiler::options::{Numbers, Options, Planted};
    use fusebox_compiler::pipeline::compile;

    use super::*;

    struct NoWeights;

    impl Weights for NoWeights {
        fn bytes(&self, _: &str) -> Option<&[u8]> {
            None
        }
    }

    #[test]
    fn a_replay_has_a_value_in_range_for_every_symbol() {
        let text = "symbol T in 1..4 near 2\n%0 = input x : f32[t:T]\n%1 = neg %0\noutput y = %1\n";
        let plan = compile(&parse(text).unwrap(), &Options::default()).unwrap().plan;
        let mut device = CpuDevice::new(Cpu::host(Numbers::Single).unwrap(), 1).unwrap();
        let program = device.load(&plan, &(Arc::new(NoWeights) as Arc<dyn Weights>)).unwrap();
        let mut refusal = |symbols: &[i64]| device.replay(program, symbols).unwrap_err().to_string();
        for (symbols, expected) in [
            (&[][..], "symbols: 0 given, 1 are needed"),
            (&[1, 1], "symbols: 2 given, 1 are needed"),
            (&[5], "symbol T: is 5, it must be in 1..4"),
        ] {
            assert!(refusal(symbols).contains(expected), "{}", refusal(symbols));
        }
    }

    #[test]
    fn a_panic_on_any_thread_is_an_error_of_its_replay_and_of_no_other() {
        // A product, which a micro-kernel computes, and a step behind it.
        let text = "%0 = input x : f32[t:64, k:256]\n%1 = input w : f32[n:512, k:256]\n%2 = contract %0 %1 over [k]\n\
                    %3 = reduce-sum %2 over n\n%4 = mul %2 %3\noutput y = %4\n";
        let plan = compile(&parse(text).unwrap(), &Options::default()).unwrap().plan;
        for (n_threads, thread) in [(1, 0), (2, 0), (2, 1), (3, 2)] {
            let cpu = Cpu::host(Numbers::Single).unwrap();
            let cpu = cpu.with_planted(Some(Planted { thread, call: 2 }));
            let mut device = CpuDevice::new(cpu, n_threads).unwrap();
            let program = device.load(&plan, &(Arc::new(NoWeights) as Arc<dyn Weights>)).unwrap();
            for input in 0..2 {
                let words = device.input(program, input).chunks_exact_mut(4);
                words.for_each(|word| word.copy_from_slice(&1f32.to_le_bytes()));
            }
            // Calls of a test before this one may have been counted on this thread, so one on another is the caller.
            std::thread::scope(|scope| {
                let replays = scope.spawn(|| {
                    // A thread whose tasks the others took has not made its call yet.
                    let failed = (0..1000).find_map(|_| device.replay(program, &[]).err());
                    let refusal = failed.expect("a call of the thread").to_string();
                    assert!(refusal.contains("a thread: panicked"), "{n_threads} {thread}: {refusal}");
                    for _ in 0..3 {
                        device.replay(program, &[]).unwrap();
                        let all = device.output(program, 0).chunks_exact(4);
                        let expected = 256f32 * (256f32 * 512f32);
                        assert!(
                            all.map(|word| f32::from_le_bytes(word.try_into().unwrap()))
                                .all(|y| y == expected)
                        );
                    }
                });
                replays.join().unwrap();
            });
        }
    }

    #[test]
    fn a_panic_between_steps_lets_all_threads_come_to_the_end() {
        let text = "%0 = input x : f32[t:64, d:512]\n%1 = neg %0\n%2 = reduce-sum %1 over d\n%3 = mul %1 %2\n\
                    output y = %3\n";
        let plan = compile(&parse(text).unwrap(), &Options::default()).unwrap().plan;
        let mut device = CpuDevice::new(Cpu::host(Numbers::Single).unwrap(), 3).unwrap();
        let program = device.load(&plan, &(Arc::new(NoWeights) as Arc<dyn Weights>)).unwrap();
        for at in 0..=plan.steps.len() {
            let failed = device.run(program, &[], &|step| assert!(step != at, "planted"));
            assert!(failed.is_err(), "{at}");
            device.replay(program, &[]).unwrap();
        }
    }

    #[test]
    fn places_of_a_write_are_looked_at_before_anything_runs() {
        let text = "%0 = input x : f32[t:64, d:512]\n%1 = input slot : i32[t:64]\n%2 = state k : f32[s:64, d:512]\n\
                    %3 = write %2 %0 %1 along [s]\noutput y = %3\n";
        let plan = compile(&parse(text).unwrap(), &Options::default()).unwrap().plan;
        let mut device = CpuDevice::new(Cpu::host(Numbers::Single).unwrap(), 2).unwrap();
        let program = device.load(&plan, &(Arc::new(NoWeights) as Arc<dyn Weights>)).unwrap();
        let slot =
            placed(&plan, |place| *place == Place::Input).position(|slot| &*slot.name == "slot").unwrap();
        let refusal = device.replay(program, &[]).unwrap_err().to_string();
        assert!(refusal.contains("input slot: elements 0 and 1 would be written to one place"), "{refusal}");
        (0..64).for_each(|at| device.input(program, slot)[4 * at] = at as u8);
        device.replay(program, &[]).unwrap();
    }

    #[test]
    fn kernels_whose_symbols_have_other_ranges_have_code_of_their_own() {
        let mut device = CpuDevice::new(Cpu::host(Numbers::Single).unwrap(), 1).unwrap();
        let weights: Arc<dyn Weights> = Arc::new(NoWeights);
        let mut load = |range: &str| {
            let text =
                format!("symbol T in {range} near 4\n%0 = input x : f32[t:T]\n%1 = neg %0\noutput y = %1\n");
            let plan = compile(&parse(&text).unwrap(), &Options::default()).unwrap().plan;
            device.load(&plan, &weights).unwrap()
        };
        let [few, many, again] = ["1..4", "4..9", "4..9"].map(&mut load);
        assert_eq!(device.footprint().n_emitted, 2);
        for (program, n) in [(few, 4), (many, 9), (again, 5)] {
            device.replay(program, &[n]).unwrap();
        }
    }
}
