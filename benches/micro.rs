//! How fast kernels run as machine code on one thread.
//!
//! Run with `cargo bench --bench micro`; a word behind `--` chooses the rows whose names have it.
//! First products of each format with one vector and with several, `product_q8_0_t1` and so on; then each kernel of a
//! block of Qwen3-0.6B, for one token and for many. A row has the best time of several, bytes of weights a second with
//! their share of what memory gives one thread, measured first, and multiplications a second. For one token the
//! weights of a run are not those of the run before, so they come from memory; for several they stay in the caches.

use std::env;
use std::hint::black_box;
use std::slice;
use std::time::Instant;

use fusebox_compiler::codegen::cpu::Cpu;
use fusebox_compiler::codegen::cpu::jit::Bytes;
use fusebox_compiler::codegen::cpu::level::{Level, Numbers};
use fusebox_compiler::kernel::parse::parse;
use fusebox_compiler::kernel::{Access, Kernel, Param};
use fusebox_compiler::options::Options;
use fusebox_compiler::pipeline::compile;
use fusebox_compiler::target::Target;
use fusebox_compiler::tensor::dtype::DType;
use fusebox_compiler::tensor::sym::Sym;
use fusebox_models::blocks;

/// Bytes of all copies of what a kernel reads.
const FOOTPRINT: usize = 192 << 20;

/// Rows of the weight of a product.
const N_ROWS: usize = 1024;

const FORMATS: [&str; 12] =
    ["q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q4_k", "q5_k", "q6_k", "int8.g64", "f16", "bf16", "f32"];

fn main() {
    let only = env::args().skip(1).find(|word| !word.starts_with('-')).unwrap_or_default();
    let bandwidth = bandwidth();
    for format in FORMATS {
        for tokens in [1, 4, 16, 64, 256] {
            let name = format!("product_{format}_t{tokens}");
            let kernel = parse(&product(&name, format, tokens)).expect("a kernel that reads");
            run(&name, &only, &kernel, tokens, bandwidth);
        }
    }
    for tokens in [1, 512] {
        let config = blocks::named("qwen3-0.6b").expect("a named block");
        let graph = blocks::block(&config, &Sym::from(tokens)).expect("a block that fits together");
        let target = Target::named("cpu").expect("a named target");
        let compiled = compile(&graph, &Options::for_target(target)).expect("a block that compiles");
        for kernel in compiled.plan.kernels.values() {
            run(&format!("block_t{tokens} {}", kernel.name), &only, kernel, tokens, bandwidth);
        }
    }
}

/// Rows of 1024 elements with so many vectors.
fn product(name: &str, format: &str, tokens: i64) -> String {
    format!(
        r#"kernel "{name}" matrix-vector
  read @0 x : f32[t:{tokens}, d:1024]
  read @1 w : {format}[e:{N_ROWS}, d:1024]
  write @2 y : f32[t:{tokens}, e:{N_ROWS}]
part
  var t0 in 0..{tokens}
  var e1 in blocks of 32 step 32 from 0 to {N_ROWS}
  var e2 within e1
  var d3 in 0..1024
  grid e1
  for t0, e2
    @2[t0, e2] = sum d3 of mul(@0[t0, d3], {})
"#,
        match format {
            "f16" | "bf16" => "cast.f32(@1[e2, d3])",
            _ => "@1[e2, d3]",
        }
    )
}

fn run(name: &str, only: &str, kernel: &Kernel, tokens: i64, bandwidth: f64) {
    for (level, numbers) in [
        (Level::host(), Numbers::Single),
        (Level::host(), Numbers::Quantised),
        (Level::Avx512, Numbers::Quantised),
        (Level::Avx2, Numbers::Quantised),
    ] {
        if level.is_supported() && name.contains(only) {
            measure((name, kernel), (level, numbers), tokens, bandwidth);
        }
    }
}

/// Bytes a second that memory gives one thread: the best of several passes.
fn bandwidth() -> f64 {
    let words = vec![1u64; FOOTPRINT / 8];
    let mut best = f64::INFINITY;
    for _ in 0..5 {
        let start = Instant::now();
        black_box(words.iter().fold(0, |sum, word| sum ^ word));
        best = best.min(start.elapsed().as_secs_f64());
    }
    FOOTPRINT as f64 / best
}

#[expect(clippy::print_stdout, reason = "a table for people")]
fn measure((name, kernel): (&str, &Kernel), (level, numbers): (Level, Numbers), tokens: i64, bandwidth: f64) {
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
            // Small scales and numbers: every second byte is zero or small. Numbers in single precision are about
            // one: products of smaller ones could be so small that they take longer.
            let n = param.format.bytes_for(param.shape.max_len()).expect("whole blocks");
            let is_single = param.format.plain() == Some(DType::F32);
            let byte = |i| match i % 4 {
                0 | 2 => 0,
                3 if is_single => 63,
                _ => (i % 32) as u8,
            };
            (0..n).map(byte).collect()
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
        code.run(slice::from_ref(&(0..n_tasks)), &mut buffers, &symbols, &mut scratch)
            .expect("arguments that fit");
        best = best.min(start.elapsed().as_secs_f64());
    }
    // What is quantised is a weight, and so is what is named one.
    let is_weight = |param: &&Param| {
        param.access == Access::Read && (param.format.plain().is_none() || &*param.name == "w")
    };
    let (mut n_weights, mut n_weight_bytes) = (0, 0);
    for param in kernel.params.values().filter(is_weight) {
        n_weights += param.shape.max_len();
        n_weight_bytes += param.format.bytes_for(param.shape.max_len()).unwrap_or(0);
    }
    let (rate, gmac) = (n_weight_bytes as f64 / best, n_weights as f64 * tokens as f64 / best / 1e9);
    println!(
        "{level:8} {numbers:9?} {:9.1} us  {:6.1} GB/s of weights ({:3.0} %)  {gmac:7.1} GMAC/s  {name}",
        1e6 * best,
        rate / 1e9,
        100.0 * rate / bandwidth
    );
}
