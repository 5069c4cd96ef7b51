//! How fast the kernels of every named shape run as machine code on one thread.
//!
//! Run with `cargo bench --bench skeletons`; a word after `--` selects rows by name.
//! A row is named by its shape, the number of the kernel among those of the shape, and what the kernel fuses, its
//! skeleton first. `roofline` tells what else stands in it. A kernel that takes less than a microsecond has none.

use fusebox_compiler::options::Options;
use fusebox_compiler::pipeline::compile;
use fusebox_compiler::schedule::Place;
use fusebox_compiler::simd::Level;
use fusebox_compiler::target::CPU;

mod roofline;
mod shapes;

use roofline::{Machine, Subject};

fn main() {
    let machine = Machine::measured();
    for shape in shapes::NAMES {
        let graph = shapes::named(shape).expect("a graph that reads");
        let target = CPU;
        let plan = compile(&graph, &Options::for_target(target)).expect("a shape that compiles").plan;
        for (number, step) in plan.steps.iter().enumerate() {
            let kernel = &plan.kernels[step.kernel];
            let name = format!("{shape}.{number} {}", kernel.name);
            let is_cold = |place: &Place| matches!(place, Place::Weight | Place::State);
            let is_cold = step.args.iter().map(|buffer| is_cold(&plan.buffers[*buffer].place)).collect();
            machine.rows(&Subject { name, kernel, is_cold, levels: &Level::ALL, has_single: false });
        }
    }
}
