//! How long compiling takes: every named shape, one block of each family, and one model at several depths.
//!
//! Run with `cargo bench --bench compile`; a word after `--` selects rows by name. A row has the least
//! and the median time of many. Compare rows of one run with each other; absolute times depend on the machine. `depth`
//! shows that time does not grow with the number of equal layers.

use std::env;
use std::hint::black_box;
use std::io::{Write, stdout};
use std::process::exit;
use std::time::{Duration, Instant};

use fusebox_compiler::graph::Graph;
use fusebox_compiler::options::Options;
use fusebox_compiler::pipeline::compile;
use fusebox_compiler::target::CPU;
use fusebox_compiler::tensor::sym::Sym;
use fusebox_models::blocks;

mod shapes;

/// A graph is compiled so often, and at least so long.
const N_ROUNDS: usize = 10;
const MOMENT: Duration = Duration::from_millis(500);

fn main() {
    let only = env::args().skip(1).find(|word| !word.starts_with('-')).unwrap_or_default();
    let row = |name: &str, graph: &dyn Fn() -> Graph| {
        if name.contains(&only) {
            row(name, &graph());
        }
    };
    for name in shapes::NAMES {
        row(&format!("shape {name}"), &|| shapes::named(name).expect("a graph that reads"));
    }
    let config = |name| blocks::named(name).expect("a named block");
    for name in blocks::NAMES {
        row(&format!("block {name}"), &|| {
            blocks::block(&config(name), &Sym::from(1i64)).expect("a block that fits together")
        });
    }
    // A whole decode step with this number of layers.
    for n_layers in [4, 28, 64] {
        row(&format!("depth {n_layers}"), &|| {
            blocks::model(&config("qwen3-0.6b"), &Sym::from(1i64), n_layers)
                .expect("a model that fits together")
        });
    }
}

/// Prints the times of one graph; whoever closes the pipe has read enough.
fn row(name: &str, graph: &Graph) {
    let (begin, mut times) = (Instant::now(), Vec::new());
    while times.len() < N_ROUNDS || begin.elapsed() < MOMENT {
        let start = Instant::now();
        black_box(compile(black_box(graph), &Options::for_target(CPU)).expect("a graph that compiles"));
        times.push(start.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    let [least, median] = [times[0], times[times.len() / 2]].map(|seconds| 1e3 * seconds);
    if writeln!(stdout(), "{least:9.2} ms least {median:9.2} ms median  {name}").is_err() {
        exit(0);
    }
}
