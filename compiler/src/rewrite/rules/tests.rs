//! What the rules' tests share: a rule fires, and every form it leads to means the same.
//!
//! In: the name of a rule and a value it applies to. Out: nothing, or the seed of the form that differs.

use crate::graph::build::{Builder, Dim, Tensor};
use crate::rewrite::tests::{cpu, means_the_same};
use crate::rewrite::{Choice, Settings, improve};

/// A builder and axes of these names and sizes.
pub(crate) fn sizes<const N: usize>(dims: [(&str, i64); N]) -> (Builder, [Dim; N]) {
    let g = Builder::new();
    let dims = dims.map(|(name, size)| g.dim(name, size));
    (g, dims)
}

/// Asserts that a rule alone finds another form of `y`, and that every choice means the same.
pub(crate) fn fires(name: &'static str, g: &Builder, y: &Tensor) {
    let graph = g.finish(&[("y", y)]).unwrap();
    let settings = Settings { only: Some(name), ..Settings::new(cpu()) };
    let (made, report) = improve(&graph, &settings);
    assert!(matches!(report.fired[..], [(fired, _)] if fired == name), "{name} did not fire on\n{graph}");
    means_the_same(&graph, &made).unwrap();
    for seed in 0..8 {
        let (made, _) = improve(&graph, &Settings { choice: Choice::Random(seed), ..settings.clone() });
        means_the_same(&graph, &made).unwrap_or_else(|error| panic!("{name}, seed {seed}: {error}\n{made}"));
    }
}
