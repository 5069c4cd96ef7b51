//! Products, attention and experts on tensor cores, against the interpreter.
//!
//! In: graphs with sizes that end in the middle of tasks, blocks and fragments. Out: the expected number of MMA loops
//! in the source and, where there is an NVIDIA GPU, errors within TF32 precision (ten mantissa bits).

use std::cell::RefCell;

use fusebox_compiler::codegen::source;
use fusebox_compiler::fuse::merge::Steering;
use fusebox_compiler::graph::parse::parse;
use fusebox_compiler::kernel::{Access, Kernel, Param};
use fusebox_compiler::options::Options;
use fusebox_compiler::pipeline::compile;
use fusebox_compiler::reference::{Bindings, random};
use fusebox_compiler::target::{CUDA_SM90, Target};
use fusebox_compiler::tensor::dtype::DType;
use fusebox_compiler::tensor::label::Label;
use fusebox_compiler::tensor::value::Data;
use fusebox_runtime::device::gpu::cuda::CudaDevice;
use support::run::relative_error;

use super::{cuda, in_dialect};
use crate::bounds::of_kernels;
use crate::jit::{decoded, encoded};
use crate::{Interpreted, Witness, check_by};

/// The relative error, as for logits.
const MOST: f64 = 1e-3;

/// The same with low-precision weights, which are multiplied in bf16.
const MOST_OF_PAIRS: f64 = 8e-3;

thread_local! {
    static CUDA: RefCell<Option<CudaDevice>> = RefCell::new(cuda(false));
}

/// Checks a graph with `n` products; inputs may be changed before.
fn check(text: &str, symbols: &[(&str, i64)], n_products: usize, change: impl FnOnce(&mut Bindings)) {
    let target = CUDA_SM90;
    let graph = parse(text).unwrap();
    let plan = compile(&graph, &Options::for_target(target)).unwrap().plan;
    let n_found: usize = plan.kernels.values().map(|kernel| n_products_of(kernel, &target)).sum();
    assert_eq!(n_found, n_products, "{text}");
    let symbols: Vec<(Label, i64)> =
        symbols.iter().map(|(name, value)| (Label::new(name).unwrap(), *value)).collect();
    let mut bindings = random::bindings(&graph, 11, &symbols);
    change(&mut bindings);
    let checks = (of_kernels(&graph), Some(by_matrix_units as Witness));
    check_by(&graph, &bindings, &target, Steering::default(), checks).unwrap_or_else(|what| panic!("{what}"));
}

/// The number of products in a kernel's source: a loop for each.
fn n_products_of(kernel: &Kernel, target: &Target) -> usize {
    let source = source(kernel, target).unwrap();
    source.split("\nfor (").skip(1).filter(|body| body.contains("\n__mma_m16n8k")).count()
}

fn by_matrix_units(run: &Interpreted<'_>) -> Result<(), String> {
    CUDA.with_borrow_mut(|device| {
        let Some(device) = device else { return Ok(()) };
        let dialect = device.dialect();
        in_dialect(run, device, dialect, |memory| near(run, memory))
    })
}

fn near(run: &Interpreted<'_>, memory: &[Vec<u8>]) -> Result<(), String> {
    for ((param, bytes), after) in run.kernel.params.values().zip(memory).zip(run.after.0.values()) {
        if param.access == Access::Read {
            continue;
        }
        let found = decoded(param.format, bytes);
        let expected = decoded(param.format, &encoded(param.format, after));
        let mut pairs = found.iter().zip(&expected);
        if let Some(element) = pairs.position(|(a, b)| a.is_nan() != b.is_nan()) {
            let (a, b) = (found[element], expected[element]);
            return Err(format!("element {element} of {} is {a}, not {b}", param.name));
        }
        let numbers = |of: &[f64]| of.iter().filter(|x| !x.is_nan()).map(|x| *x as f32).collect::<Vec<f32>>();
        let error = relative_error(&numbers(&found), &numbers(&expected));
        let has_few_bits = |param: &Param| matches!(param.format.plain(), None | Some(DType::BF16));
        let most = if run.kernel.params.values().any(has_few_bits) { MOST_OF_PAIRS } else { MOST };
        if error > most {
            return Err(format!("{} has a relative error of {error:.1e}", param.name));
        }
    }
    Ok(())
}

/// The elements of an input.
fn floats<'b>(bindings: &'b mut Bindings, name: &str) -> &'b mut [f32] {
    match &mut bindings.inputs.get_mut(name).unwrap().data {
        Data::Float(numbers) => numbers,
        Data::Int(_) => panic!("{name} has whole numbers"),
    }
}

fn product(format: &str, [tokens, rows, elements]: [usize; 3], change: impl FnOnce(&mut Bindings)) {
    let text = format!(
        "\
%0 = input x : f32[t:{tokens}, d:{elements}]
%1 = weight w : {format}[r:{rows}, d:{elements}]
%2 = contract %0 %1 over [d]
output y = %2
"
    );
    check(&text, &[], 1, change);
}

#[test]
fn products_of_tiles() {
    for format in ["f16", "f32", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1"] {
        product(format, [64, 96, 192], |_| {});
        // Tokens and rows that end in the middle of a task.
        product(format, [80, 48, 64], |_| {});
        product(format, [100, 70, 128], |_| {});
    }
    for format in ["q4_k", "q5_k", "q6_k"] {
        product(format, [80, 96, 512], |_| {});
    }
}

#[test]
fn rounding_carries_nothing_into_the_sign_of_what_is_no_number() {
    for format in ["f16", "q8_0"] {
        product(format, [80, 48, 64], |bindings| {
            floats(bindings, "x")[79 * 64] = f32::from_bits(0x7fff_ffff);
        });
    }
}

/// Both sizes are symbols, as in programs. The usual position is near zero, so that one kernel goes through all
/// positions.
fn attention(before: i64, tokens: i64, room: i64, elements: i64) {
    let most = room - tokens;
    // The cache is widened where it is multiplied or, as in models, before anything is computed with it.
    for (keys, values) in [("%2", "%4"), ("%5", "%6")] {
        let text = format!(
            "\
symbol P in 0..{most} near 0
symbol T in 1..{tokens} near {tokens}
%0 = input q : f32[t:T, g:2, d:{elements}]
%1 = state k : f16[s:{room}, d:{elements}]
%2 = slice %1 s at 0 len P+T
%3 = state v : f16[s:{room}, d:{elements}]
%4 = slice %3 s at 0 len P+T
%5 = cast %2 f32
%6 = cast %4 f32
%7 = contract %0 {keys} over [d]
%8 = attend %7 {values} over [s]
output y = %8
"
        );
        check(&text, &[("P", before), ("T", tokens)], 2, |_| {});
    }
}

#[test]
fn attention_of_many_tokens() {
    attention(32, 32, 64, 64);
    // Rows that end in the middle of a block, and tokens in the middle of a task.
    attention(13, 40, 64, 128);
    // Several blocks of rows, the last of which ends in the middle of a fragment.
    attention(101, 40, 192, 128);
    attention(150, 32, 192, 64);
    // Five and six columns of fragments, for eight warps.
    attention(13, 40, 64, 80);
    attention(32, 32, 64, 96);
}

/// Fewer tokens than the program takes at most. Columns are scaled first, as by norms.
fn experts(format: &str, [tokens, room, per_token]: [i64; 3], experts: i32, [rows, elements]: [i64; 2]) {
    let text = format!(
        "\
symbol T in 1..{room} near {room}
%0 = input x : f32[t:T, d:{elements}]
%1 = input scale : f32[d:{elements}]
%2 = mul %0 %1
%3 = input indices : i32[t:T, k:{per_token}]
%4 = weight gate : {format}[x:{experts}, r:{rows}, d:{elements}]
%5 = gather %4 %3 along x
%6 = contract %2 %5 over [d]
%7 = weight up : {format}[x:{experts}, r:{rows}, d:{elements}]
%8 = gather %7 %3 along x
%9 = contract %2 %8 over [d]
%10 = mul %6 %9
output y = %10
"
    );
    check(&text, &[("T", tokens)], 2, |bindings| route(bindings, experts));
}

/// The same, summed over the experts of a token.
fn sums_of_experts(
    format: &str,
    [tokens, room, per_token]: [i64; 3],
    experts: i32,
    [rows, elements]: [i64; 2],
) {
    let text = format!(
        "\
symbol T in 1..{room} near {room}
%0 = input x : f32[t:T, k:{per_token}, d:{elements}]
%1 = input before : f32[t:T, r:{rows}]
%2 = input indices : i32[t:T, k:{per_token}]
%3 = weight down : {format}[x:{experts}, r:{rows}, d:{elements}]
%4 = gather %3 %2 along x
%5 = contract %0 %4 over [d, k]
%6 = add %1 %5
output y = %6
"
    );
    check(&text, &[("T", tokens)], 1, |bindings| route(bindings, experts));
}

/// Indices beyond the last expert, and below the first, are clamped; nothing is routed to the second.
fn route(bindings: &mut Bindings, experts: i32) {
    let Data::Int(indices) = &mut bindings.inputs.get_mut("indices").unwrap().data else {
        panic!("no indices")
    };
    for index in indices {
        *index = (*index % (experts + 2)) - 1;
        *index = if *index == 1 { experts - 1 } else { *index };
    }
}

#[test]
fn experts_with_many_routed_rows_or_few_or_none() {
    for format in ["f16", "q8_0"] {
        // Rows that end in the middle of a task.
        experts(format, [300, 300, 2], 4, [70, 128]);
        experts(format, [5, 64, 3], 8, [64, 96]);
        sums_of_experts(format, [300, 300, 2], 4, [70, 128]);
        sums_of_experts(format, [5, 64, 3], 8, [64, 96]);
    }
}
