//! How fast the kernels of a block run as machine code on one thread.
//!
//! Run with `cargo bench --bench micro`. Each kernel of a block of Qwen3-0.6B, for one token and for many, with every
//! kind of numbers: the best time of several, bytes read a second, and multiplications a second. The weights of a run
//! are not those of the run before, so they come from memory.

use std::time::Instant;

use fusebox_compiler::codegen::cpu::Cpu;
use fusebox_compiler::codegen::cpu::jit::Bytes;
use fusebox_compiler::codegen::cpu::level::{Level, Numbers};
use fusebox_compiler::kernel::{Access, Kernel};
use fusebox_compiler::options::Options;
use fusebox_compiler::pipeline::compile;
use fusebox_compiler::target::Target;
use fusebox_compiler::tensor::sym::Sym;
use fusebox_models::blocks;

/// Bytes of all copies of what a kernel reads.
const FOOTPRINT: usize = 192 << 20;

fn main() {
    for tokens in [1, 512] {
        let config = blocks::named("qwen3-0.6b").expect("a named block");
        let graph = blocks::block(&config, &Sym::from(tokens)).expect("a block that fits together");
        let target = Target::named("cpu-avx512").expect("a named target");
        let compiled = compile(&graph, &Options::for_target(target)).expect("a block that compiles");
        for kernel in compiled.plan.kernels.values() {
            for (level, numbers) in [
                (Level::host(), Numbers::Single),
                (Level::host(), Numbers::Quantised),
                (Level::Avx2, Numbers::Quantised),
            ] {
                if level.is_supported() {
                    measure(kernel, level, numbers, tokens);
                }
            }
        }
    }
}

#[expect(clippy::print_stdout, reason = "a table for people")]
fn measure(kernel: &Kernel, level: Level, numbers: Numbers, tokens: i64) {
    let cpu = Cpu::at(level, numbers).expect("a processor that Cranelift knows");
    let code = cpu.compile(kernel).expect("a kernel that compiles");
    let n_bytes = |access: Access| -> usize {
        let params = kernel.params.values().filter(|param| param.access == access);
        params.map(|param| param.format.bytes_for(param.shape.max_len()).unwrap_or(0)).sum()
    };
    let n_copies = if tokens == 1 { FOOTPRINT / n_bytes(Access::Read).max(1) + 1 } else { 1 };
    let mut copies: Vec<Vec<Vec<u8>>> = Vec::new();
    for _ in 0..n_copies {
        let bytes = kernel.params.values().map(|param| {
            // Small scales and numbers: every second byte is zero or small.
            let n = param.format.bytes_for(param.shape.max_len()).expect("whole blocks");
            (0..n).map(|i| if i % 2 == 0 { 0 } else { (i % 32) as u8 }).collect()
        });
        copies.push(bytes.collect());
    }
    let mut scratch = vec![0; code.scratch_bytes()];
    let symbols: Vec<i64> = code.symbols().iter().map(|symbol| symbol.near).collect();
    let n_tasks = code.n_tasks(&symbols).expect("symbols in their ranges");
    let mut best = f64::INFINITY;
    let n_rounds = if tokens == 1 { 3 * n_copies } else { 3 };
    for round in 0..n_rounds {
        let memory = &mut copies[round % n_copies];
        let mut buffers: Vec<Bytes<'_>> = (kernel.params.values().zip(memory))
            .map(|(param, bytes)| match param.access {
                Access::Read => Bytes::Read(bytes),
                Access::Write => Bytes::Write(bytes),
            })
            .collect();
        let start = Instant::now();
        code.run(0..n_tasks, &mut buffers, &symbols, &mut scratch).expect("arguments that fit");
        best = best.min(start.elapsed().as_secs_f64());
    }
    let weights = kernel.params.values().filter(|param| param.format.plain().is_none());
    let (mut n_weights, mut n_weight_bytes) = (0, 0);
    for param in weights {
        n_weights += param.shape.max_len();
        n_weight_bytes += param.format.bytes_for(param.shape.max_len()).unwrap_or(0);
    }
    let (gb, gmac) = (n_weight_bytes as f64 / best / 1e9, n_weights as f64 * tokens as f64 / best / 1e9);
    let name = &kernel.name;
    println!(
        "T={tokens:3} {level:8} {numbers:9?} {:9.1} us  {gb:6.1} GB/s of weights  {gmac:7.1} GMAC/s  {name}",
        1e6 * best
    );
}
