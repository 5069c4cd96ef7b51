//! Prints a CubeCL kernel as a source.
//!
//! In: the definition of a kernel, and a language. Out: its source, the same for the same kernel: CubeCL declares
//! variables and types in hash order, so they are sorted here.

use cubecl_core::ir::StorageType;
use cubecl_core::prelude::{ExecutionMode, KernelDefinition};
use cubecl_core::{Compiler, WgpuCompilationOptions};
use cubecl_cpp::MslCompiler;
use cubecl_cpp::cuda::CudaDialect;
use cubecl_cpp::cuda::mma::CudaWmmaCompiler;
use cubecl_cpp::shared::{CompilationOptions, CppCompiler};
use cubecl_wgpu::WgslCompiler;

use crate::codegen::gpu::bug;
use crate::codegen::gpu::dialect::Language;
use crate::codegen::gpu::writer::U32;
use crate::error::Error;
use crate::target::THREADS;

/// `__launch_bounds__(256, 4)`: four thread blocks an SM, which caps a thread at 64 registers. Without it ptxas either
/// takes so few registers that loads wait for each other, or too many for full occupancy.
const BLOCKS_PER_SM: u32 = 4;

/// The source of a definition.
pub(super) fn printed(language: Language, definition: KernelDefinition) -> Result<String, Error> {
    let (mode, address) = (ExecutionMode::Unchecked, StorageType::Scalar(U32));
    let source = match language {
        Language::Cuda => {
            let mut compiler = CppCompiler::<CudaDialect<CudaWmmaCompiler>>::default();
            let options = CompilationOptions::default();
            let source = compiler.compile(definition, &options, mode, address).map_err(bug)?.to_string();
            let source =
                source.replace(&format!("__launch_bounds__({THREADS})"), &launch_bounds(BLOCKS_PER_SM));
            // `mma.h` has opaque fragments; `mma.rs` keeps its own in registers.
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
    Ok(sorted_declarations(&source))
}

/// A CUDA source with another number of thread blocks an SM in its launch bounds.
pub fn with_blocks_per_sm(source: &str, n: u32) -> String {
    source.replace(&launch_bounds(BLOCKS_PER_SM), &launch_bounds(n))
}

fn launch_bounds(n: u32) -> String {
    format!("__launch_bounds__({THREADS}, {n})")
}

/// CubeCL declares variables and types in hash order: they are sorted, so that a kernel has one source.
fn sorted_declarations(source: &str) -> String {
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
    let (types, after) = rest.split_at(n);
    let mut types: Vec<&[&str]> = types.split_inclusive(|line| *line == "};").collect();
    types.sort_unstable();
    [head, &types.concat(), after].concat().join("\n")
}
