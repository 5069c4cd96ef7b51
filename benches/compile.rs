//! How long compiling takes: every named shape, one block of each family, and one model at several depths.
//!
//! Run with `cargo bench --bench compile`. Compare rows of one run with each other; absolute times depend on the
//! machine. `depth` shows that time does not grow with the number of equal layers.

use divan::{Bencher, black_box};
use fusebox_compiler::options::Options;
use fusebox_compiler::pipeline::compile;
use fusebox_compiler::target::CPU;
use fusebox_compiler::tensor::sym::Sym;
use fusebox_models::blocks;

mod shapes;

fn main() {
    divan::main();
}

fn options() -> Options {
    Options::for_target(CPU)
}

/// A shape that the other benches run.
#[divan::bench(args = shapes::NAMES)]
fn shape(bencher: Bencher<'_, '_>, name: &str) {
    let graph = shapes::named(name).expect("a graph that reads");
    bencher.bench(|| compile(black_box(&graph), &options()));
}

/// One decoder block, decoding.
#[divan::bench(args = blocks::NAMES)]
fn block(bencher: Bencher<'_, '_>, name: &str) {
    let config = blocks::named(name).expect("a named block");
    let graph = blocks::block(&config, &Sym::from(1i64)).expect("a block that fits together");
    bencher.bench(|| compile(black_box(&graph), &options()));
}

/// A whole decoding step of Qwen3-0.6B with so many layers.
#[divan::bench(args = [4, 28, 64])]
fn depth(bencher: Bencher<'_, '_>, n_layers: usize) {
    let config = blocks::named("qwen3-0.6b").expect("a named block");
    let graph = blocks::model(&config, &Sym::from(1i64), n_layers).expect("a model that fits together");
    bencher.bench(|| compile(black_box(&graph), &options()));
}
