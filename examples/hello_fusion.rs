//! An RMSNorm, a projection and a residual, fused into one kernel.
//!
//! Run with `cargo run --example hello_fusion`: builds a graph, compiles it, and prints what the compiler did and why.

#![expect(clippy::print_stdout, reason = "an example shows what it did")]

use fusebox_compiler::tensor::{dtype::DType, quant::Format};
use fusebox_compiler::{graph::build::Builder, options::Options, pipeline::compile};

fn main() -> Result<(), fusebox_compiler::error::Error> {
    let g = Builder::new();
    let (t, d, r) = (g.dim("t", 1), g.dim("d", 64), g.dim("r", 64));
    let (x, w) = (g.input("x", DType::F32, &[&t, &d]), g.weight("w", Format::Q8_0, &[&r, &d]));
    let norm = &x * ((&x * &x).sum(&d) / 64.0 + 1e-6).rsqrt();
    let y = norm.contract(&w, [&d]) + x.rename(&d, &r);
    println!("{}", compile(&g.finish(&[("y", &y)])?, &Options::default())?.story);
    Ok(())
}
