//! Kernels as code for GPUs, made with the compilers of CubeCL.
//!
//! In: any kernel and a language. Out: [`Code`]: a source, and what must be given to it; or why there is none: the
//! kernel does not verify, or its numbers do not fit.
//! CubeCL is used as a compiler only: a kernel becomes one `KernelDefinition`, and its compilers print that as CUDA
//! C++, WGSL or Metal code on any machine. Devices bind buffers and launch by themselves.
//! What is computed is what the interpreter computes, with sums in another order.
//! `emit.rs` walks a kernel, `share.rs` gives iterations to threads, `wide.rs` reads vectors, `filling.rs` fills tiles
//! with them, `ahead.rs` asks for them a round ahead, `reduce.rs` folds over threads, `blocks.rs` rounds tiles to
//! blocks; `product.rs` finds products of tiles, `matrix.rs` multiplies them, `factor.rs` says how exact they are and
//! how their rows lie, `kept.rs` which sums stay in registers, and `short.rs` which temporaries are as exact as
//! factors; `grouped.rs` has tasks done together that pick the same matrix, `listed.rs` finds them, and `order.rs`
//! puts others in order; `along.rs` puts the loops of folds in order, and `staged.rs` vectors into tiles; `room.rs`
//! places tiles and `life.rs` says how long; `dialect.rs` says what a GPU has; `index.rs`, `scalar.rs` and `memory.rs`
//! are the leaves; `layout.rs` says how blocks lie.

use std::collections::BTreeMap;
use std::fmt;

use cubecl_core::ir::{Builtin, Id, Scope, StorageType, Type, Variable, VariableKind};
use cubecl_core::prelude::{CubeDim, ExecutionMode, KernelArg, KernelDefinition, KernelOptions, Visibility};
use cubecl_core::{Compiler, WgpuCompilationOptions};
use cubecl_cpp::MslCompiler;
use cubecl_cpp::cuda::CudaDialect;
use cubecl_cpp::cuda::mma::CudaWmmaCompiler;
use cubecl_cpp::shared::{CompilationOptions, CppCompiler};
use cubecl_wgpu::WgslCompiler;

use crate::error::Error;
use crate::foundation::entity::List;
use crate::kernel::print::symbols;
use crate::kernel::verify::verify;
use crate::kernel::{Access, Kernel, ParamId};
use crate::tensor::sym::Symbol;

mod ahead;
mod along;
mod approx;
mod blocks;
mod decode;
pub mod dialect;
mod emit;
mod factor;
mod filling;
mod grouped;
mod halves;
mod index;
mod kept;
pub mod layout;
mod life;
mod limits;
mod listed;
mod matrix;
mod memory;
mod order;
mod product;
mod reduce;
mod room;
mod scalar;
mod share;
pub mod short;
mod staged;
mod wide;
mod writer;

use along::fold_along;
use dialect::{Dialect, Language};
use emit::{Emitter, Touched};
use grouped::{Group, grouped};
use memory::{Array, declared};
use order::ordered;
use room::Room;
use staged::stage;
use wide::{read_as_vectors, vectors};
use writer::{I32, U32, Writer, builtin, constant, scalar};

/// The name of this stage in errors.
const STAGE: &str = "codegen::gpu";
/// Threads of a workgroup.
pub const THREADS: u32 = 256;
/// Workgroups that share a multiprocessor of NVIDIA, so that a thread has 64 registers. Without a word about that the
/// assembler takes as few as it can, and asks for no memory before it needs what came before; or as many as there are.
const GROUPS_AT_ONCE: u32 = 4;
/// The name that the entry of every kernel has.
pub const ENTRY: &str = "kernel";

/// What a kernel's code is given, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binding {
    /// A buffer, arranged as `layout.rs` says; perhaps twice, the second time for what reads vectors of it.
    Param(ParamId),
    /// The values of the symbols, as whole numbers of four bytes; one of any value where there is no symbol.
    Symbols,
    /// Memory that is nobody else's, [`Code::scratch_bytes`] for each workgroup.
    Scratch,
    /// What CubeCL keeps the lengths of buffers in and no kernel reads: any address will do.
    Lengths,
}

/// A kernel as source code.
#[derive(Clone, Debug)]
pub struct Code {
    /// What it was made of.
    pub kernel: Kernel,
    /// The language of the source.
    pub language: Language,
    /// The source.
    pub source: String,
    /// What it is given.
    pub bindings: Vec<Binding>,
    /// The symbols it wants values for, in this order.
    pub symbols: Vec<Symbol>,
    /// Shared memory of a workgroup, in bytes.
    pub shared_bytes: usize,
    /// Scratch memory of a workgroup, in bytes.
    pub scratch_bytes: usize,
}

impl Code {
    /// How many tasks there are, over all parts; any number of workgroups does them.
    pub fn n_tasks(&self, of: &impl Fn(Symbol) -> i64) -> i64 {
        self.kernel.parts.iter().map(|part| part.n_tasks(&|sym| sym.evaluate(of))).sum()
    }
}

/// The source behind a line that says what it is given.
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

/// Code for a kernel.
///
/// # Errors
/// [`Error::Bug`] where the kernel does not verify, [`Error::Limit`] where its numbers do not fit 32 bits.
pub fn compile(kernel: &Kernel, dialect: impl Into<Dialect>) -> Result<Code, Error> {
    let dialect: Dialect = dialect.into();
    let language = dialect.language;
    Error::bug_if(STAGE, verify(kernel))?;
    limits::check(kernel)?;
    let symbols = symbols(kernel);
    let (own, groups) = arranged(dialect, kernel);
    let mut room = Room::new(dialect, &own);
    let mut writer = Writer { scope: Scope::root(false) };
    room.declare(&mut writer);
    let mut given = Given::default();
    let mut params: List<ParamId, Array> = List::default();
    for (id, param) in kernel.params.iter() {
        let list = given.buffer(Binding::Param(id), declared(language, param), param.access);
        params.push(Array { list, vectors: None });
    }
    for id in read_as_vectors(&own) {
        params[id].vectors = Some(given.buffer(Binding::Param(id), vectors(), Access::Read));
    }
    let list = given.buffer(Binding::Symbols, scalar(I32), Access::Read);
    let scratch = room.spills().then(|| given.buffer(Binding::Scratch, scalar(U32), Access::Write));
    let mut values = BTreeMap::new();
    for (number, symbol) in symbols.iter().enumerate() {
        let number = constant(number as i64);
        let value = writer.load(list, number);
        values.insert(*symbol, writer.unsigned(value));
    }
    let mut unit = builtin(Builtin::UnitPos);
    if room.has_factors() {
        // Compilers do not know how many threads there are, and take the bits of its number for those of a round. Who
        // knows it asks for more at once, for which kernels of few tokens have no registers.
        unit = writer.and(unit, THREADS - 1);
    }
    let Some(part) = own.parts.first() else { return Err(bug("a kernel without parts")) };
    let mut emitter = Emitter {
        writer,
        dialect,
        kernel: &own,
        part,
        groups,
        params,
        room,
        scratch,
        symbols: values,
        vars: BTreeMap::new(),
        ends: BTreeMap::new(),
        unit,
        sums: BTreeMap::new(),
        since: Touched::default(),
    };
    emitter.kernel();
    let Emitter { writer, room, .. } = emitter;
    // Nothing is bound in WGSL to what nothing reads.
    given.bindings.extend(Some(Binding::Lengths).filter(|_| language != Language::Wgsl));
    Ok(Code {
        kernel: kernel.clone(),
        language,
        source: printed(language, definition(given.args, writer.scope))?,
        bindings: given.bindings,
        symbols,
        shared_bytes: room.shared_bytes(),
        scratch_bytes: 4 * room.scratch_words(),
    })
}

/// The kernel with its tasks as code does them, together where matrix units pay for that and in the best order; and the
/// parts whose tasks are done together.
fn arranged(dialect: Dialect, kernel: &Kernel) -> (Kernel, BTreeMap<usize, Group>) {
    let (mut own, mut groups) = (kernel.clone(), BTreeMap::new());
    for (number, part) in own.parts.iter_mut().enumerate() {
        let together = if dialect.has_matrices { grouped(kernel, part) } else { None };
        if let Some((new, group)) = together {
            *part = new;
            groups.insert(number, group);
        } else {
            part.grid = ordered(part);
            fold_along(kernel, part);
            stage(dialect.language, kernel, part);
        }
    }
    (own, groups)
}

/// What a kernel is given, so far.
#[derive(Default)]
struct Given {
    bindings: Vec<Binding>,
    args: Vec<KernelArg>,
}

impl Given {
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

/// The source of a definition.
fn printed(language: Language, definition: KernelDefinition) -> Result<String, Error> {
    let (mode, address) = (ExecutionMode::Unchecked, StorageType::Scalar(U32));
    let source = match language {
        Language::Cuda => {
            let mut compiler = CppCompiler::<CudaDialect<CudaWmmaCompiler>>::default();
            let options = CompilationOptions::default();
            let source = compiler.compile(definition, &options, mode, address).map_err(bug)?.to_string();
            let source = source.replace(&format!("__launch_bounds__({THREADS})"), &bounds(GROUPS_AT_ONCE));
            // It has fragments that nobody sees into; ours are registers.
            source.replace("#include <mma.h>\n", "")
        }
        Language::Msl => {
            let options = CompilationOptions::default();
            MslCompiler::default().compile(definition, &options, mode, address).map_err(bug)?.to_string()
        }
        Language::Wgsl => {
            let options = WgpuCompilationOptions::default();
            WgslCompiler::default().compile(definition, &options, mode, address).map_err(bug)?.to_string()
        }
    };
    Ok(in_one_order(&source))
}

/// A source in CUDA C++, with another word about workgroups that share a multiprocessor.
pub fn with_groups(source: &str, n: u32) -> String {
    source.replace(&bounds(GROUPS_AT_ONCE), &bounds(n))
}

fn bounds(n: u32) -> String {
    format!("__launch_bounds__({THREADS}, {n})")
}

/// CubeCL declares variables and types in any order: in one order a kernel has one source.
fn in_one_order(source: &str) -> String {
    let is_declaration = |line: &str| {
        let words = line.strip_suffix(';').map(|line| line.split(' ').collect::<Vec<_>>());
        matches!(words.as_deref(), Some([_, name] | ["var", name, _]) if name.starts_with("l_mut_"))
    };
    let mut lines: Vec<&str> = source.lines().collect();
    lines.chunk_by_mut(|a, b| is_declaration(a) && is_declaration(b)).for_each(<[&str]>::sort_unstable);
    let is_type = |line: &str| line.starts_with("struct __align__(");
    let Some(first) = lines.iter().position(|line| is_type(line)) else { return lines.join("\n") };
    let n = lines[first..]
        .split_inclusive(|line| *line == "};")
        .take_while(|own| is_type(own[0]))
        .map(<[_]>::len)
        .sum::<usize>();
    let (head, rest) = lines.split_at(first);
    let (types, behind) = rest.split_at(n);
    let mut types: Vec<&[&str]> = types.split_inclusive(|line| *line == "};").collect();
    types.sort_unstable();
    [head, &types.concat(), behind].concat().join("\n")
}

/// What CubeCL refuses of a verified kernel is our fault.
fn bug(what: impl fmt::Debug) -> Error {
    Error::bug(STAGE, "cubecl", format!("{what:?}"))
}

#[cfg(test)]
mod tests;
