//! An RMSNorm, a projection and a residual, fused into one kernel.
//!
//! Run with `cargo run --example hello_fusion`: builds a graph, compiles it, interprets the plan, prints the kernel.

use fusebox_compiler::graph::build::Builder;
use fusebox_compiler::options::Options;
use fusebox_compiler::pipeline::compile;
use fusebox_compiler::reference::random;
use fusebox_compiler::schedule::run::run;
use fusebox_compiler::tensor::{dtype::DType, quant::Format};

#[expect(clippy::print_stdout, reason = "an example shows what it did")]
fn main() -> Result<(), fusebox_compiler::error::Error> {
    let g = Builder::new();
    let (t, d, r) = (g.dim("t", 1), g.dim("d", 64), g.dim("r", 64));
    let x = g.input("x", DType::F32, &[&t, &d]);
    let w = g.weight("w", Format::Q8_0, &[&r, &d]);
    let norm = &x * ((&x * &x).sum(&d) / 64.0 + 1e-6).rsqrt();
    let y = norm.contract(&w, [&d]) + x.rename(&d, &r);
    let graph = g.finish(&[("y", &y)])?;

    let compiled = compile(&graph, &Options::default())?;
    let results = run(&compiled.plan, &random::bindings(&graph, 1, &[]))?;
    for kernel in compiled.plan.kernels.values() {
        println!("{kernel}");
    }
    println!("y = {:?} …", &(0..4).map(|i| results.outputs["y"].number(i)).collect::<Vec<_>>());
    Ok(())
}
