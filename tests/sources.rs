//! What GPUs are given, for a few kernels that everybody knows.
//!
//! In: kernels of a small graph and of shrunk blocks. Out: snapshots in each language, read in review as code is.

use fusebox_compiler::codegen::source;
use fusebox_compiler::graph::parse::parse;
use fusebox_compiler::options::Options;
use fusebox_compiler::pipeline::compile;
use fusebox_compiler::target::{CUDA_SM90, Target};
use fusebox_compiler::tensor::sym::Sym;
use fusebox_models::blocks;

/// A projection with its norm, and a residual: a product of quantised rows with a vector, as decoding has it.
const PROJECTION: &str = "
%0 = input x : f32[d:64]
%1 = mul %0 %0
%2 = reduce-sum %1 over d
%3 = const 64.0
%4 = div %2 %3
%5 = rsqrt %4
%6 = mul %0 %5
%7 = weight w : q8_0[e:64, d:64]
%8 = contract %6 %7 over [d]
output y = %8
";

fn sources(text: &str, target: &str) -> String {
    let target = Target::named(target).expect("a named target");
    let graph = parse(text).unwrap_or_else(|error| panic!("{error}"));
    let plan = compile(&graph, &Options::for_target(target)).expect("a graph that compiles").plan;
    let sources = plan.kernels.values().map(|kernel| source(kernel, &target).expect("a source"));
    sources.collect::<Vec<_>>().join("\n")
}

#[test]
fn a_projection_in_cuda() {
    insta::assert_snapshot!("a_projection_in_cuda", sources(PROJECTION, "cuda-sm90"));
}

#[test]
fn a_projection_in_wgsl() {
    insta::assert_snapshot!("a_projection_in_wgsl", sources(PROJECTION, "vulkan"));
}

#[test]
fn a_projection_in_metal() {
    insta::assert_snapshot!("a_projection_in_metal", sources(PROJECTION, "metal"));
}

#[test]
fn a_processor_has_the_text_of_the_kernel() {
    let text = sources(PROJECTION, "cpu");
    assert!(text.contains("kernel \"") && text.contains("q8_0"), "{text}");
}

#[test]
fn experts_of_many_tokens_are_tile_products_in_cuda() {
    let target = CUDA_SM90;
    for name in ["qwen3-30b-a3b", "deepseek-v2-lite", "glm-4.7-flash"] {
        // Eight tokens pick as many experts as there are, or fewer.
        for (tokens, expected) in [(8, false), (512, true)] {
            let config = blocks::named(name).expect("a named block");
            let graph = blocks::block(&config, &Sym::from(tokens)).expect("a block that fits together");
            let plan = compile(&graph, &Options::for_target(target)).expect("a block that compiles").plan;
            let kernels = plan.kernels.values().filter(|kernel| kernel.name.contains("_exps"));
            let source = |kernel| source(kernel, &target).expect("a source");
            let found: Vec<bool> = kernels.map(|kernel| source(kernel).contains("mma.sync")).collect();
            assert_eq!(found, [expected; 2], "{name}, {tokens} tokens");
        }
    }
}
