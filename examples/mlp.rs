//! A network that was trained elsewhere, with its weights from safetensors.
//!
//! Run with `cargo run --release --example mlp`: two hidden layers say which of two spirals a point is on.
//! `assets/spirals.py` trained it with `NumPy`, and recorded what it makes of 200 points.

use std::path::Path;

use fusebox::graph::{Builder, DType, Dim, Format, Graph, Tensor};
use fusebox::weights::Checkpoint;
use fusebox::{Error, Program, Run};

const POINTS: usize = 200;

/// `ReLU` between three layers.
fn network() -> Result<Graph, Error> {
    let g = Builder::new();
    let t = g.dim("t", POINTS);
    let [i, a, b, o] = [("i", 2), ("a", 64), ("b", 64), ("o", 2)].map(|(name, size)| g.dim(name, size));
    let layer = |x: &Tensor, n: usize, from: &Dim, to: &Dim| {
        let [w, b] = ["w", "b"].map(|name| format!("{name}{n}"));
        x.contract(&g.weight(&w, Format::F32, &[to, from]), [from]) + g.weight(&b, Format::F32, &[to])
    };
    let relu = |x: Tensor| x.maximum(&g.constant(0.0));
    let x = g.input("points", DType::F32, &[&t, &i]);
    let y = layer(&relu(layer(&relu(layer(&x, 1, &i, &a)), 2, &a, &b)), 3, &b, &o);
    Ok(g.finish(&[("scores", &y)])?)
}

#[expect(clippy::print_stdout, reason = "an example shows what it did")]
fn main() -> Result<(), Error> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/spirals.safetensors");
    let mut program = Program::new(&network()?, &path, &Run { precise: true, ..Run::auto() })?;
    let file = Checkpoint::open(&path)?;
    let recorded = |name: &str| -> Vec<f32> {
        let (numbers, _) = file.bytes(name).unwrap_or_default().as_chunks();
        numbers.iter().map(|number| f32::from_le_bytes(*number)).collect()
    };
    program.set("points", &recorded("points"))?;
    program.run()?;
    let (found, expected) = (program.output("scores")?, recorded("scores"));
    let error = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    let second = found.chunks(2).filter(|scores| scores[1] > scores[0]).count();
    println!("{second} of {POINTS} points are on the second spiral; at most {error:.1e} from NumPy");
    if found.len() != expected.len() || error > 1e-3 {
        return Err(Error::from("the scores are not those of NumPy"));
    }
    Ok(())
}
