//! Finished code, and the one place where it is called.
//!
//! In: a verified kernel. Out: [`Code`], which runs any range of its tasks on buffers of the caller's.
//! Code trusts its arguments, so each call checks them first: that every buffer is there, is for what the kernel does
//! with it and has the bytes of its largest shape; that every symbol is in its range; that the scratch memory
//! suffices. All else has been proven of the kernel.
//! `emit.rs` says what the code takes.

use std::mem;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use cranelift_codegen::Context;
use cranelift_codegen::ir::UserFuncName;
use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext};
use cranelift_jit::{JITBuilder, JITMemoryProvider, JITModule, SystemMemoryProvider};
use cranelift_module::{FuncId, Linkage, Module, default_libcall_names};
use fusebox_simd::{Level, activation_bytes, prefetch_first, quantise_activations};

use crate::codegen::check_symbols;
use crate::codegen::cpu::emit::{emit, signature};
use crate::codegen::cpu::first_reads::{Stream, streams};
use crate::codegen::cpu::product::quantise_ahead::{Ahead, ahead, ahead_bytes};
use crate::codegen::cpu::value::math::Function;
use crate::codegen::cpu::wide::evex::ALIGNMENT as ALIGNMENT_OF_CODE;
use crate::codegen::cpu::{ALIGNMENT, Cpu, STAGE, bug, limits, take_panic};
use crate::error::Error;
use crate::foundation::entity::Id;
use crate::kernel::print::symbols;
use crate::kernel::product::activations::COLUMNS;
use crate::kernel::verify::verify;
use crate::kernel::{Access, Kernel, Param, Part};
use crate::tensor::sym::{Sym, Symbol};

/// The code of a part, of the signature that `emit::signature` gives.
type Entry = unsafe extern "C" fn(*const *mut u8, *const i64, i64, i64, *mut u8, i64);

/// A kernel that can be run.
pub struct Code {
    kernel: Kernel,
    symbols: Vec<Symbol>,
    /// The code of each part.
    entries: Vec<Entry>,
    scratch_bytes: usize,
    /// The activations that are quantised before the first task.
    ahead: Vec<Ahead>,
    /// What the tasks of each part read first.
    streams: Vec<Option<Stream>>,
    level: Level,
    /// Owns the memory of the code until the end; locked by nobody.
    module: Mutex<Option<JITModule>>,
}

/// The bytes of a buffer, as the kernel uses it.
#[derive(Debug)]
pub enum Bytes<'a> {
    /// Of a buffer that is read.
    Read(&'a [u8]),
    /// Of a buffer that is written.
    Write(&'a mut [u8]),
}

impl Cpu {
    /// Code for every part of a kernel.
    ///
    /// # Errors
    /// [`Error::Bug`] where the kernel does not verify, [`Error::Limit`] where its indices could overflow.
    pub fn compile(&self, kernel: &Kernel) -> Result<Code, Error> {
        Error::bug_if(STAGE, verify(kernel))?;
        limits::check(kernel)?;
        link(self, kernel)
    }
}

/// Makes code of a kernel that verifies and keeps the limits of `limits.rs`.
fn link(cpu: &Cpu, kernel: &Kernel) -> Result<Code, Error> {
    link_in(Box::new(SystemMemoryProvider::new()), cpu, kernel)
}

/// The same in memory that need not be near any other.
pub(super) fn link_in(
    memory: Box<dyn JITMemoryProvider + Send>,
    cpu: &Cpu,
    kernel: &Kernel,
) -> Result<Code, Error> {
    let mut builder = JITBuilder::with_isa(cpu.isa.clone(), default_libcall_names());
    builder.memory_provider(memory);
    for function in Function::ALL {
        builder.symbol(function.name(), function.address());
    }
    let mut module = JITModule::new(builder);
    let symbols = symbols(kernel);
    let (mut ids, mut scratch_bytes) = (Vec::new(), 0);
    for (idx, part) in kernel.parts.iter().enumerate() {
        let (id, own) =
            define(&mut module, &format!("{} part {idx}", kernel.name), (cpu, kernel, part), &symbols)?;
        ids.push(id);
        scratch_bytes = own.max(scratch_bytes);
    }
    module.finalize_definitions().map_err(bug)?;
    let entries = ids.into_iter().map(|id| entry(&module, id)).collect();
    Ok(Code {
        kernel: kernel.clone(),
        symbols,
        entries,
        scratch_bytes: scratch_bytes + ALIGNMENT - 1,
        ahead: ahead(cpu, kernel),
        streams: streams(kernel),
        level: cpu.level,
        module: Mutex::new(Some(module)),
    })
}

/// The function of a part, and the bytes of scratch memory that it takes.
fn define(
    module: &mut JITModule,
    name: &str,
    part: (&Cpu, &Kernel, &Part),
    symbols: &[Symbol],
) -> Result<(FuncId, usize), Error> {
    let config = module.target_config();
    let mut context = Context::new();
    context.func.signature = signature(config.default_call_conv);
    let id = module.declare_function(name, Linkage::Export, &context.func.signature).map_err(bug)?;
    context.func.name = UserFuncName::user(0, id.as_u32());
    let mut functions = Vec::new();
    for function in Function::ALL {
        let signature = function.signature(config.default_call_conv);
        let id = module.declare_function(function.name(), Linkage::Import, &signature).map_err(bug)?;
        functions.push(module.declare_func_in_func(id, &mut context.func));
    }
    let mut buffers = FunctionBuilderContext::new();
    let builder = FunctionBuilder::new(&mut context.func, &mut buffers);
    let emitted = emit(builder, module, part, symbols, functions);
    module.define_function(id, &mut context).map_err(bug)?;
    for (id, bytes) in emitted.functions {
        module.define_function_bytes(id, ALIGNMENT_OF_CODE, &bytes, &[]).map_err(bug)?;
    }
    Ok((id, emitted.scratch_bytes))
}

#[expect(unsafe_code, reason = "an address becomes a function")]
fn entry(module: &JITModule, id: FuncId) -> Entry {
    let address = module.get_finalized_function(id);
    // SAFETY: the module is finalised, and `define` gave the function the signature that `Entry` spells out, in the
    // calling convention that `extern "C"` means on this processor.
    unsafe { mem::transmute::<*const u8, Entry>(address) }
}

impl Code {
    /// What it was made of.
    pub fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    /// Whether this is the code of a kernel: of an equal one whose symbols have the same ranges. Symbols compare equal
    /// by name alone.
    pub fn is_of(&self, kernel: &Kernel) -> bool {
        let ranges = |all: &[Symbol]| all.iter().map(|symbol| (symbol.min, symbol.max)).collect::<Vec<_>>();
        self.kernel == *kernel && ranges(&self.symbols) == ranges(&symbols(kernel))
    }

    /// The symbols that need values, in this order.
    pub fn symbols(&self) -> &[Symbol] {
        &self.symbols
    }

    /// The scratch memory that a run needs, in bytes.
    pub fn scratch_bytes(&self) -> usize {
        self.scratch_bytes
    }

    /// The number of tasks of all parts.
    ///
    /// # Errors
    /// [`Error::Input`] for symbols that are missing or outside of their ranges.
    pub fn n_tasks(&self, symbols: &[i64]) -> Result<i64, Error> {
        check_symbols(&self.symbols, symbols)?;
        Ok(self.kernel.parts.iter().map(|part| self.n_tasks_of(part, symbols)).sum())
    }

    /// Runs some of the tasks, range after range, numbered over all parts; the results of other tasks stay as they are.
    ///
    /// # Errors
    /// [`Error::Input`] for buffers, symbols, tasks or scratch memory that are not those of the kernel.
    #[expect(unsafe_code, reason = "this is where generated code runs, after every check")]
    pub fn run(
        &self,
        pieces: &[Range<i64>],
        buffers: &mut [Bytes<'_>],
        symbols: &[i64],
        scratch: &mut [u8],
    ) -> Result<(), Error> {
        let n_tasks = self.n_tasks(symbols)?;
        if let Some(tasks) = pieces.iter().find(|tasks| tasks.start < 0 || tasks.end > n_tasks) {
            return Err(Error::input("tasks", format!("{tasks:?} given, 0..{n_tasks} is possible")));
        }
        if scratch.len() < self.scratch_bytes {
            let what = format!("{} bytes given, {} are needed", scratch.len(), self.scratch_bytes);
            return Err(Error::input("scratch memory", what));
        }
        let mut pointers = self.pointers(buffers)?;
        let mut ahead = vec![0; self.ahead_bytes() + ALIGNMENT];
        let start = ahead.as_ptr().align_offset(ALIGNMENT);
        pointers.push(ahead[start..].as_mut_ptr());
        // SAFETY: all is checked above, and `ahead` has the bytes that are needed.
        unsafe { self.quantise(0..self.n_quantise_tasks(symbols), pointers.as_ptr(), symbols) };
        let mut before = 0;
        for (idx, part) in self.kernel.parts.iter().enumerate() {
            let n_tasks = self.n_tasks_of(part, symbols);
            let mut continues = false;
            for tasks in pieces {
                let [first, end] = [tasks.start, tasks.end].map(|task| (task - before).clamp(0, n_tasks));
                if first >= end {
                    continue;
                }
                let (pointers, scratch) = (pointers.as_ptr(), scratch.as_mut_ptr());
                // SAFETY: the lengths of all buffers and of the scratch memory, the symbols and the tasks are checked
                // above. What is written was borrowed mutably, so it is apart from all else. It continues after a call
                // for the same part only.
                unsafe { self.enter(idx, first..end, pointers, symbols, scratch, continues) };
                continues = true;
            }
            before += n_tasks;
        }
        if take_panic() { Err(bug("a micro-kernel panicked")) } else { Ok(()) }
    }

    /// The number of tasks of a part; the symbols are not checked.
    pub fn n_tasks_of_part(&self, part: usize, symbols: &[i64]) -> i64 {
        self.n_tasks_of(&self.kernel.parts[part], symbols)
    }

    /// Prefetches the memory that a task of a part reads first; the part has `n_tasks`.
    ///
    /// # Safety
    /// The addresses must be those of the parameters; nothing is read there.
    #[expect(unsafe_code, reason = "addresses are handed on without checks")]
    pub unsafe fn prefetch(&self, part: usize, task: i64, n_tasks: i64, buffers: *const *mut u8) {
        let Some(stream) = self.streams[part] else { return };
        // SAFETY: the caller promises an address for each parameter.
        let place = unsafe { buffers.add(stream.param.index()) };
        // SAFETY: as above.
        let start = unsafe { *place };
        prefetch_first(start.wrapping_add(stream.offset(task, n_tasks)));
    }

    /// The bytes of the memory for activations that are quantised before the first task; it starts at a multiple of 64.
    pub fn ahead_bytes(&self) -> usize {
        ahead_bytes(&self.ahead)
    }

    /// The number of tasks that quantise activations before the first task; the symbols are not checked.
    pub fn n_quantise_tasks(&self, symbols: &[i64]) -> i64 {
        let of = |sym: &Sym| sym.evaluate(|symbol| self.value(symbol, symbols));
        self.ahead.iter().map(|own| own.n_tasks(&of)).sum()
    }

    /// Quantises some of the activations that are quantised before the first task.
    ///
    /// # Safety
    /// As [`Code::enter`]; the address after those of the parameters is that of [`Code::ahead_bytes`] bytes.
    #[expect(unsafe_code, reason = "addresses are handed on without checks")]
    pub unsafe fn quantise(&self, tasks: Range<i64>, buffers: *const *mut u8, symbols: &[i64]) {
        let of = |sym: &Sym| sym.evaluate(|symbol| self.value(symbol, symbols));
        let mut before = 0;
        for own in &self.ahead {
            let n_tasks = own.n_tasks(&of);
            let [first, end] =
                [tasks.start, tasks.end].map(|task| (task - before).clamp(0, n_tasks) as usize);
            before += n_tasks;
            let [first, end] = [first, end].map(|task| (task * COLUMNS).min(own.n_columns(&of)));
            let offset = own.offset + first / COLUMNS * activation_bytes(own.layout, COLUMNS, own.k);
            let places = [own.param.index(), self.kernel.params.len()].map(|idx| buffers.wrapping_add(idx));
            // SAFETY: the caller promises the addresses.
            let [from, to] = places.map(|place| unsafe { *place });
            let from = from.wrapping_add(4 * first * own.k);
            // SAFETY: the parameter has the columns, and the memory a place for each.
            unsafe {
                quantise_activations(
                    self.level,
                    own.layout,
                    (from, to.wrapping_add(offset)),
                    (end - first, own.k),
                );
            }
        }
    }

    /// Runs some tasks of a part without checks: for callers that keep the arguments ready between runs.
    /// Where it continues the previous call, it reuses what that call left in the scratch memory.
    ///
    /// # Safety
    /// `buffers` points to an address for each parameter, and to that of the memory that [`Code::quantise`] has filled,
    /// if it has any bytes. At each address are the bytes of the parameter's largest shape. Memory that is
    /// written may be read by the kernel only where `schedule::alias` allows it, and nobody else touches it meanwhile
    /// except other tasks of the kernel, whose writes are disjoint as `verify` has proven. `symbols` has passed
    /// [`Code::n_tasks`], and the tasks are among those of the part. `scratch` has [`Code::scratch_bytes`] bytes that
    /// are this call's alone; where it continues, the previous call with this memory was for the same part, buffers and
    /// symbols, and nobody has written to it since.
    /// Where a micro-kernel panicked, [`take_panic`] says so afterwards, and the results are worth nothing.
    #[expect(unsafe_code, reason = "this is where generated code runs, without checks")]
    pub unsafe fn enter(
        &self,
        part: usize,
        tasks: Range<i64>,
        buffers: *const *mut u8,
        symbols: &[i64],
        scratch: *mut u8,
        continues: bool,
    ) {
        let entry = self.entries[part];
        // The scratch memory is long enough to start at a multiple of the alignment.
        let scratch = scratch.wrapping_add(scratch.align_offset(ALIGNMENT));
        // SAFETY: `verify` has proven, and `limits` guarded, that with the symbols and tasks that the caller promises
        // every access lies within the largest shape of its buffer or within a tile.
        unsafe { entry(buffers, symbols.as_ptr(), tasks.start, tasks.end, scratch, i64::from(continues)) }
    }

    fn n_tasks_of(&self, part: &Part, symbols: &[i64]) -> i64 {
        part.n_tasks(&|sym: &Sym| sym.evaluate(|symbol| self.value(symbol, symbols)))
    }

    fn value(&self, symbol: Symbol, symbols: &[i64]) -> i64 {
        let idx = self.symbols.iter().position(|own| *own == symbol);
        symbols[idx.expect("every symbol of a kernel is in its list")]
    }

    /// The address of each buffer, if it has the size and access of its parameter.
    fn pointers(&self, buffers: &mut [Bytes<'_>]) -> Result<Vec<*mut u8>, Error> {
        let n_params = self.kernel.params.len();
        if buffers.len() != n_params {
            return Err(Error::input("buffers", format!("{} given, {n_params} are needed", buffers.len())));
        }
        let params = self.kernel.params.values().zip(buffers);
        params.map(|(param, buffer)| pointer(param, buffer)).collect()
    }
}

fn pointer(param: &Param, buffer: &mut Bytes<'_>) -> Result<*mut u8, Error> {
    let place = || format!("buffer {}", param.name);
    let (access, n_bytes) = match buffer {
        Bytes::Read(bytes) => (Access::Read, bytes.len()),
        Bytes::Write(bytes) => (Access::Write, bytes.len()),
    };
    let n_needed = param.format.bytes_for(param.shape.max_len()).expect("a verified buffer has whole blocks");
    if access != param.access {
        return Err(Error::input(place(), format!("is given as {access:?}, {:?} is needed", param.access)));
    }
    if n_bytes < n_needed {
        return Err(Error::input(place(), format!("has {n_bytes} bytes, {n_needed} are needed")));
    }
    Ok(match buffer {
        Bytes::Read(bytes) => bytes.as_ptr().cast_mut(),
        Bytes::Write(bytes) => bytes.as_mut_ptr(),
    })
}

impl Drop for Code {
    #[expect(unsafe_code, reason = "the memory of the code goes with it")]
    fn drop(&mut self) {
        let module = self.module.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(module) = module.take() {
            // SAFETY: `run` borrows `self`, which is now owned alone, so no code of the module is running; the
            // entries are private and end with it.
            unsafe { module.free_memory() };
        }
    }
}
