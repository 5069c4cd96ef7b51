//! GPU code generation: CUDA C++, WGSL and Metal sources, printed by the compilers of CubeCL.
//!
//! In: any kernel and a dialect. Out: [`Code`]: a source and its bindings; or an error: the kernel does not verify, or
//! an index does not fit 32 bits. CubeCL is only a printer: a kernel becomes one `KernelDefinition`, and no device is
//! needed. Devices in the runtime bind buffers and launch. The result is that of the interpreter, with sums in another
//! order.
//!
//! ```text
//!  kernel ──► SharedMemory ──────────────► Emitter ──► CubeCL ──► source
//!             tiles: shared or scratch     emit.rs walks parts, loops, nests
//!             live_ranges, accumulators
//! ```
//!
//! Kernels come as `prepare/` made them: nothing here changes a grid, a loop or a tile.
//!
//! | task | files |
//! |---|---|
//! | tasks, parts, loops | `emit.rs` |
//! | iterations of threads | `nest/`: `thread_mapping.rs`, `reduce.rs` (across subgroups), `routed_rows.rs` (experts) |
//! | global memory | `nest/`: `vector_loads.rs` (16-byte loads), `tile_loads.rs`, `double_buffer.rs`, `quantise.rs` |
//! | tensor cores | `mma.rs` |
//! | numbers | `value/`: `index.rs`, `scalar.rs`, `memory.rs`, `layout.rs` (repacked weights), `decode.rs` |
//! | tiles | `tiles/`: `shared_memory.rs`, `live_ranges.rs`, `accumulators.rs` |
//! | text | `writer.rs` (CubeCL instructions), `dialect.rs`, `print.rs` (sources) |

use std::collections::BTreeMap;
use std::fmt;

use cubecl_core::ir::{Builtin, Id, Scope, Type, Variable, VariableKind};
use cubecl_core::prelude::{CubeDim, KernelArg, KernelDefinition, KernelOptions, Visibility};

use crate::error::Error;
use crate::foundation::entity::List;
use crate::kernel::print::symbols;
use crate::kernel::vector_loads::read_as_vectors;
use crate::kernel::verify::verify;
use crate::kernel::{Access, Kernel, ParamId};
use crate::target::THREADS;
use crate::tensor::sym::Symbol;

pub mod dialect;
mod emit;
mod limits;
mod mma;
mod nest;
pub mod print;
mod tiles;
pub mod value;
mod writer;

use dialect::{Dialect, Language};
use emit::{BufferVars, Emitter, TileAccesses};
use nest::vector_loads::vector_type;
use print::printed;
use tiles::shared_memory::SharedMemory;
use value::memory::declared;
use writer::{I32, U32, Writer, builtin, constant, scalar};

/// The name of this stage in errors.
const STAGE: &str = "codegen::gpu";
/// The entry point of every source.
pub const ENTRY: &str = "kernel";

/// What a kernel is bound to, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binding {
    /// A buffer, repacked as `layout.rs` says; bound a second time as 16-byte vectors where something reads it so.
    Param(ParamId),
    /// The values of the symbols as `i32`; a dummy where there is none.
    Symbols,
    /// Global scratch for tiles that shared memory cannot hold: [`Code::scratch_bytes`] for each workgroup.
    Scratch,
    /// Buffer lengths, a parameter of CubeCL's that no kernel reads: any address will do.
    Lengths,
}

/// A kernel as source code.
#[derive(Clone, Debug)]
pub struct Code {
    /// The kernel it computes.
    pub kernel: Kernel,
    /// The language of the source.
    pub language: Language,
    /// The source.
    pub source: String,
    /// What it is bound to.
    pub bindings: Vec<Binding>,
    /// The symbols whose values it takes, in this order.
    pub symbols: Vec<Symbol>,
    /// Shared memory of a workgroup, in bytes.
    pub shared_bytes: usize,
    /// Scratch memory of a workgroup, in bytes.
    pub scratch_bytes: usize,
}

impl Code {
    /// How many tasks there are, over all parts; any number of workgroups shares them.
    pub fn n_tasks(&self, of: &impl Fn(Symbol) -> i64) -> i64 {
        self.kernel.parts.iter().map(|part| part.n_tasks(&|sym| sym.evaluate(of))).sum()
    }
}

/// The source below a header that lists the buffers.
impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.bindings.iter().map(|binding| match binding {
            Binding::Param(id) => self.kernel.params[*id].name.to_string(),
            Binding::Symbols => "symbols".to_owned(),
            Binding::Scratch => "scratch".to_owned(),
            Binding::Lengths => "lengths".to_owned(),
        });
        let names: Vec<String> = names.collect();
        writeln!(f, "// kernel {:?} as {}: {THREADS} threads", self.kernel.name, self.language)?;
        writeln!(f, "// buffers: {}", names.join(", "))?;
        writeln!(
            f,
            "// bytes of a workgroup: {} shared, {} of scratch",
            self.shared_bytes, self.scratch_bytes
        )?;
        writeln!(f, "{}", self.source.trim())
    }
}

/// Compiles a kernel to a source.
///
/// # Errors
/// [`Error::Bug`] where the kernel does not verify, [`Error::Limit`] where its numbers do not fit 32 bits.
pub fn compile(kernel: &Kernel, dialect: impl Into<Dialect>) -> Result<Code, Error> {
    let dialect: Dialect = dialect.into();
    let language = dialect.language;
    Error::bug_if(STAGE, verify(kernel))?;
    limits::check(kernel)?;
    let symbols = symbols(kernel);
    let mut memory = SharedMemory::new(dialect, kernel);
    let mut writer = Writer { scope: Scope::root(false) };
    memory.declare(&mut writer);
    let mut given = KernelArgs::default();
    let mut params: List<ParamId, BufferVars> = List::default();
    for (id, param) in kernel.params.iter() {
        let list = given.buffer(Binding::Param(id), declared(language, param), param.access);
        params.push(BufferVars { list, vectors: None });
    }
    for id in read_as_vectors(kernel) {
        params[id].vectors = Some(given.buffer(Binding::Param(id), vector_type(), Access::Read));
    }
    let list = given.buffer(Binding::Symbols, scalar(I32), Access::Read);
    let scratch = memory.spills().then(|| given.buffer(Binding::Scratch, scalar(U32), Access::Write));
    let mut values = BTreeMap::new();
    for (number, symbol) in symbols.iter().enumerate() {
        let number = constant(number as i64);
        let value = writer.load(list, number);
        values.insert(*symbol, writer.unsigned(value));
    }
    let mut thread = builtin(Builtin::UnitPos);
    if memory.has_mma() {
        // Tells the compiler that the thread number has eight bits, which never carry into those of a round. Only for
        // tensor cores: with this knowledge compilers keep more loads in flight than other kernels have registers for.
        thread = writer.and(thread, THREADS - 1);
    }
    let Some(part) = kernel.parts.first() else { return Err(bug("a kernel without parts")) };
    let mut emitter = Emitter {
        writer,
        dialect,
        kernel,
        part,
        params,
        memory,
        scratch,
        symbols: values,
        vars: BTreeMap::new(),
        ends: BTreeMap::new(),
        thread,
        accumulators: BTreeMap::new(),
        accesses: TileAccesses::default(),
    };
    emitter.kernel();
    let Emitter { writer, memory, .. } = emitter;
    // WGSL binds only buffers that are read.
    given.bindings.extend(Some(Binding::Lengths).filter(|_| language != Language::Wgsl));
    Ok(Code {
        kernel: kernel.clone(),
        language,
        source: printed(language, definition(given.args, writer.scope))?,
        bindings: given.bindings,
        symbols,
        shared_bytes: memory.shared_bytes(),
        scratch_bytes: 4 * memory.scratch_words(),
    })
}

/// The parameters of a kernel, so far.
#[derive(Default)]
struct KernelArgs {
    bindings: Vec<Binding>,
    args: Vec<KernelArg>,
}

impl KernelArgs {
    fn buffer(&mut self, binding: Binding, ty: Type, access: Access) -> Variable {
        let id = self.args.len() as Id;
        let (visibility, kind) = match access {
            Access::Read => (Visibility::Read, VariableKind::GlobalInputArray(id)),
            Access::Write => (Visibility::ReadWrite, VariableKind::GlobalOutputArray(id)),
        };
        self.bindings.push(binding);
        self.args.push(KernelArg { id, visibility, ty, size: None, has_extended_meta: false });
        Variable::new(kind, ty)
    }
}

fn definition(buffers: Vec<KernelArg>, body: Scope) -> KernelDefinition {
    KernelDefinition {
        buffers,
        tensor_maps: Vec::new(),
        scalars: Vec::new(),
        cube_dim: CubeDim::new_1d(THREADS),
        body,
        options: KernelOptions { kernel_name: ENTRY.to_owned(), ..KernelOptions::default() },
    }
}

/// CubeCL refusing a verified kernel is our bug.
fn bug(what: impl fmt::Debug) -> Error {
    Error::bug(STAGE, "cubecl", format!("{what:?}"))
}

#[cfg(test)]
mod tests;
