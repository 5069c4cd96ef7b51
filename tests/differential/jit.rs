//! Kernels as machine code against the interpreter.
//!
//! In: an interpreted kernel with its buffers before and after. Out: nothing, or the first element that differs.
//! Exact code rounds where the interpreter does, so every number must be the same; only the sign of a zero and the
//! bits of what is not a number are free. Other code sums in another order, so numbers are compared with a tolerance.
//! The tasks run all at once, and again in pieces, the last piece first.

use fusebox_compiler::codegen::cpu::Cpu;
use fusebox_compiler::codegen::cpu::jit::{Bytes, Code};
use fusebox_compiler::codegen::cpu::level::{Level, Numbers};
use fusebox_compiler::kernel::Access;
use fusebox_compiler::kernel::run::memory::Buffer;
use fusebox_compiler::reference::compare::Tolerance;
use fusebox_compiler::tensor::dtype::DType;
use fusebox_compiler::tensor::quant::Format;
use half::{bf16, f16};

use super::Interpreted;

/// Every way to compile a kernel, and how far its numbers may be off.
fn variants() -> [(Level, Numbers, Tolerance); 3] {
    // Sums of at most so many terms, whose errors later functions may enlarge.
    let Tolerance { absolute, relative } = Tolerance::for_reduction(256);
    let tolerance = Tolerance { absolute, relative: 4.0 * relative };
    [
        (Level::host(), Numbers::Exact, Tolerance::exact()),
        (Level::host(), Numbers::Single, tolerance),
        (Level::Portable, Numbers::Single, tolerance),
    ]
}

/// Compiles a kernel in every way, runs it on the same buffers, and compares what it stores.
pub(crate) fn compiled(run: &Interpreted<'_>) -> Result<(), String> {
    for (level, numbers, tolerance) in variants() {
        let cpu = Cpu::at(level, numbers).map_err(|error| error.to_string())?;
        compiled_for(run, &cpu, tolerance).map_err(|what| format!("{level} {numbers:?}: {what}"))?;
    }
    Ok(())
}

fn compiled_for(run: &Interpreted<'_>, cpu: &Cpu, tolerance: Tolerance) -> Result<(), String> {
    let code = cpu.compile(run.kernel).map_err(|error| error.to_string())?;
    let symbols: Vec<i64> = code.symbols().iter().map(|symbol| run.symbols[&symbol.name]).collect();
    let n_tasks = code.n_tasks(&symbols).map_err(|error| error.to_string())?;
    let (third, half) = (n_tasks / 3, n_tasks / 2);
    for pieces in [vec![[0, n_tasks]], vec![[half, n_tasks], [third, half], [0, third]]] {
        let mut memory: Vec<Vec<u8>> =
            (run.kernel.params.values().zip(run.before.0.values()).zip(&run.stored))
                .map(|((param, before), stored)| {
                    stored.map_or_else(|| encoded(param.format, before), <[u8]>::to_vec)
                })
                .collect();
        let mut scratch = vec![0xa5; code.scratch_bytes()];
        for [first, end] in pieces {
            let mut buffers = borrowed(&code, &mut memory);
            code.run(first..end, &mut buffers, &symbols, &mut scratch).map_err(|error| error.to_string())?;
        }
        same(run, &memory, tolerance)?;
    }
    Ok(())
}

fn borrowed<'a>(code: &Code, memory: &'a mut [Vec<u8>]) -> Vec<Bytes<'a>> {
    let params = code.kernel().params.values().zip(memory);
    let bytes = params.map(|(param, bytes)| match param.access {
        Access::Read => Bytes::Read(bytes),
        Access::Write => Bytes::Write(bytes),
    });
    bytes.collect()
}

fn same(run: &Interpreted<'_>, memory: &[Vec<u8>], tolerance: Tolerance) -> Result<(), String> {
    for ((param, bytes), expected) in run.kernel.params.values().zip(memory).zip(run.after.0.values()) {
        if param.access == Access::Read {
            continue;
        }
        let expected = encoded(param.format, expected);
        let dtype = param.format.dtype();
        let allowed = allowed(dtype, &expected, tolerance);
        let elements = bytes.chunks(dtype.bytes()).zip(expected.chunks(dtype.bytes())).enumerate();
        for (element, (actual, expected)) in elements {
            let [a, b] = [actual, expected].map(|bytes| number(dtype, bytes));
            let is_near = (a - b).abs() <= allowed(b) && b.is_finite();
            if a != b && !(a.is_nan() && b.is_nan()) && !is_near {
                return Err(format!("code: element {element} of {} is {a:?}, not {b:?}", param.name));
            }
        }
    }
    Ok(())
}

/// How far a number of a buffer may be off; halves may be rounded to the neighbour.
fn allowed(dtype: DType, expected: &[u8], tolerance: Tolerance) -> impl Fn(f64) -> f64 {
    let numbers = expected.chunks(dtype.bytes()).map(|bytes| number(dtype, bytes));
    let squares: Vec<f64> = numbers.filter(|x| x.is_finite()).map(|x| x * x).collect();
    let typical = (squares.iter().sum::<f64>() / squares.len().max(1) as f64).sqrt();
    let spacing = match dtype {
        _ if tolerance == Tolerance::exact() => 0.0,
        DType::F32 | DType::I32 => 0.0,
        DType::F16 => f64::from(f16::EPSILON),
        DType::BF16 => f64::from(bf16::EPSILON),
    };
    let relative = if dtype == DType::I32 { 0.0 } else { tolerance.relative + spacing };
    move |x: f64| tolerance.absolute + relative * typical.max(x.abs())
}

fn encoded(format: Format, buffer: &Buffer) -> Vec<u8> {
    match buffer {
        Buffer::Int(data) => data.iter().flat_map(|x| x.to_le_bytes()).collect(),
        Buffer::Float(data) | Buffer::Stored(data) => match format.dtype() {
            DType::F16 => data.iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect(),
            DType::BF16 => data.iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes()).collect(),
            DType::F32 | DType::I32 => data.iter().flat_map(|x| x.to_le_bytes()).collect(),
        },
    }
}

fn number(dtype: DType, bytes: &[u8]) -> f64 {
    match dtype {
        DType::F32 => f64::from(f32::from_le_bytes(bytes.try_into().unwrap())),
        DType::I32 => f64::from(i32::from_le_bytes(bytes.try_into().unwrap())),
        DType::F16 => f16::from_le_bytes(bytes.try_into().unwrap()).to_f64(),
        DType::BF16 => bf16::from_le_bytes(bytes.try_into().unwrap()).to_f64(),
    }
}
