//! Kernels as machine code against the interpreter.
//!
//! In: an interpreted kernel with its buffers before and after. Out: nothing, or the first element that differs.
//! Scalar code rounds where the interpreter does, so every number must be the same; only the sign of a zero and the
//! bits of what is not a number are free. Faster forms may be off by what `tolerance` argues, at every level that this
//! processor has. The tasks run all at once, and again in pieces, the last piece first, and each by itself, backwards
//! and twice. Buffers lie between pages that nobody may touch, so no access may leave them.

use std::ops::Range;
use std::slice;

use fusebox_compiler::codegen::cpu::Cpu;
use fusebox_compiler::codegen::cpu::jit::{Bytes, Code};
use fusebox_compiler::kernel::run::memory::Buffer;
use fusebox_compiler::kernel::{Access, Kernel, Part, Stmt, VarId};
use fusebox_compiler::options::Numbers;
use fusebox_compiler::reference::compare::Tolerance;
use fusebox_compiler::simd::Level;
use fusebox_compiler::tensor::quant::Format;
use half::{bf16, f16};
use support::guarded::{Edge, Guarded};

use super::Interpreted;
use super::bounds::steps;

/// Compiles a kernel, runs it on the same buffers, and compares what it stores.
pub(crate) fn compiled(run: &Interpreted<'_>) -> Result<(), String> {
    compiled_at(run, Level::host(), Numbers::Exact)?;
    for level in Level::supported() {
        for numbers in [Numbers::Single, Numbers::Quantised] {
            compiled_at(run, level, numbers).map_err(|what| format!("{level} {numbers:?}: {what}"))?;
        }
    }
    Ok(())
}

fn compiled_at(run: &Interpreted<'_>, level: Level, numbers: Numbers) -> Result<(), String> {
    let code =
        Cpu::at(level, numbers).and_then(|cpu| cpu.compile(run.kernel)).map_err(|error| error.to_string())?;
    let symbols: Vec<i64> = code.symbols().iter().map(|symbol| run.symbols[&symbol.name]).collect();
    let n_tasks = code.n_tasks(&symbols).map_err(|error| error.to_string())?;
    let (third, half) = (n_tasks / 3, n_tasks / 2);
    let each = |task| [task..task + 1, task..task + 1];
    let alone: Vec<Range<i64>> = (0..n_tasks).rev().flat_map(each).collect();
    let all = 0..n_tasks;
    let apart = [half..n_tasks, third..half, 0..third];
    let ways = [(slice::from_ref(&all), Edge::End), (&apart, Edge::Start), (&alone, Edge::End)];
    for (pieces, edge) in ways {
        let params = run.kernel.params.values().zip(run.before.0.values()).zip(&run.stored);
        let bytes = params.map(|((param, before), stored)| {
            stored.map_or_else(|| encoded(param.format, before), <[u8]>::to_vec)
        });
        let mut memory: Vec<Guarded> = bytes.map(|bytes| Guarded::new(&bytes, edge)).collect();
        let mut scratch = Guarded::new(&vec![0xa5; code.scratch_bytes()], edge);
        let mut buffers = borrowed(&code, &mut memory);
        code.run(pieces, &mut buffers, &symbols, &mut scratch).map_err(|error| error.to_string())?;
        let memory: Vec<&[u8]> = memory.iter().map(|bytes| &**bytes).collect();
        same(run, &memory, numbers)?;
    }
    Ok(())
}

/// How far an element may be off, for each unit of its size or of the typical size of the elements, if larger.
///
/// A sum of `n` terms in another order walks off like a drunkard, a function by a few units in the last place; what is
/// computed of both in the same kernel may have four times their error. A number of 8 bits is off by a 254th of the
/// largest of 32 at most, which is about three times the typical one, and by half of that on average; in a sum such
/// errors cancel as the terms do. Six times the average, four times for what is computed of it.
fn tolerance(kernel: &Kernel, format: Format, numbers: Numbers) -> f64 {
    let spacing = match format {
        Format::F16 => f16::EPSILON.to_f64(),
        Format::BF16 => bf16::EPSILON.to_f64(),
        Format::I32 => 0.0,
        _ => f64::from(f32::EPSILON),
    };
    let longest = kernel.parts.iter().map(|part| longest(part, &part.body)).max().unwrap_or(1);
    let sums = 4.0 * (4.0 + Tolerance::for_reduction(longest).relative / f64::from(f32::EPSILON));
    match numbers {
        Numbers::Exact => 0.0,
        Numbers::Single => sums * f64::from(f32::EPSILON) + 2.0 * spacing,
        Numbers::Quantised => 6.0 * 4.0 * 3.0 / 254.0 / 2.0 + 2.0 * spacing,
    }
}

/// Terms of the longest sum, at most.
fn longest(part: &Part, body: &[Stmt]) -> usize {
    let of = |stmt: &Stmt| match stmt {
        Stmt::Nest(nest) => {
            let most = |var: &VarId| part.n_values(*var, &|sym| sym.most()).max(1) as usize;
            nest.fold.iter().flat_map(|folding| &folding.loops).map(most).product()
        }
        Stmt::Loop { var, body } => {
            longest(part, body) * part.n_values(*var, &|sym| sym.most()).max(1) as usize
        }
        Stmt::Once { .. } | Stmt::Quantise(_) => longest(part, stmt.inner()),
    };
    body.iter().map(of).max().unwrap_or(1)
}

fn borrowed<'a>(code: &Code, memory: &'a mut [Guarded]) -> Vec<Bytes<'a>> {
    let params = code.kernel().params.values().zip(memory);
    let bytes = params.map(|(param, bytes)| match param.access {
        Access::Read => Bytes::Read(bytes),
        Access::Write => Bytes::Write(bytes),
    });
    bytes.collect()
}

/// Fewer elements than these say nothing about the terms they were summed from: all of them may be small because large
/// terms cancel. They are compared at the scale of what the kernel reads.
const FEW: usize = 4;

/// The largest number that a kernel reads.
fn largest_read(run: &Interpreted<'_>) -> f64 {
    let params = run.kernel.params.values().zip(run.before.0.values());
    let read = params.filter(|(param, _)| param.access == Access::Read);
    read.map(|(_, buffer)| match buffer {
        Buffer::Int(_) => 0.0,
        Buffer::Float(data) | Buffer::Stored(data) => {
            data.iter().map(|x| f64::from(*x).abs()).filter(|x| x.is_finite()).fold(0.0, f64::max)
        }
    })
    .fold(0.0, f64::max)
}

pub(super) fn same(
    run: &Interpreted<'_>,
    memory: &[impl AsRef<[u8]>],
    numbers: Numbers,
) -> Result<(), String> {
    for ((param, bytes), expected) in run.kernel.params.values().zip(memory).zip(run.after.0.values()) {
        if param.access == Access::Read {
            continue;
        }
        let decoded = |bytes: &[u8]| decoded(param.format, bytes);
        let (actual, expected) = (decoded(bytes.as_ref()), decoded(&encoded(param.format, expected)));
        let finite = expected.iter().filter(|x| x.is_finite());
        let n_finite = finite.clone().count();
        let rms = (finite.map(|x| x * x).sum::<f64>() / n_finite.max(1) as f64).sqrt();
        let typical = if n_finite < FEW { rms.max(largest_read(run)) } else { rms };
        let tolerance = tolerance(run.kernel, param.format, numbers);
        let steps = steps(if numbers == Numbers::Exact { Format::F32 } else { param.format }, &expected);
        for (element, ((a, b), step)) in actual.into_iter().zip(expected).zip(steps).enumerate() {
            let is_near = (a - b).abs() <= tolerance * typical.max(b.abs()) + step;
            if a != b && !(a.is_nan() && b.is_nan()) && !is_near {
                return Err(format!("code: element {element} of {} is {a:?}, not {b:?}", param.name));
            }
        }
    }
    Ok(())
}

pub(super) fn encoded(format: Format, buffer: &Buffer) -> Vec<u8> {
    match buffer {
        Buffer::Int(data) => data.iter().flat_map(|x| x.to_le_bytes()).collect(),
        Buffer::Float(data) | Buffer::Stored(data) => {
            let mut bytes = vec![0; format.bytes_for(data.len()).expect("whole blocks")];
            format.encode(data, &mut bytes).expect("a format that kernels write");
            bytes
        }
    }
}

pub(super) fn decoded(format: Format, bytes: &[u8]) -> Vec<f64> {
    if format == Format::I32 {
        return bytes.as_chunks().0.iter().map(|word| f64::from(i32::from_le_bytes(*word))).collect();
    }
    let n_elements = bytes.len() / format.block_bytes() * format.block_len();
    let elements = format.decode_all(bytes, n_elements).expect("whole blocks");
    elements.into_iter().map(f64::from).collect()
}
