//! What the rules' tests share: a rule fires, and every form it leads to means the same.

use crate::graph::build::{Builder, Dim, Tensor};
use crate::rewrite::{Choice, Settings, improve};
use crate::target::Target;

/// A builder and axes of these names and sizes.
pub(crate) fn sizes<const N: usize>(dims: [(&str, i64); N]) -> (Builder, [Dim; N]) {
    let g = Builder::new();
    let dims = dims.map(|(name, size)| g.dim(name, size));
    (g, dims)
}

/// Asserts that a rule alone finds another form of `y`.
pub(crate) fn fires(name: &'static str, g: &Builder, y: &Tensor) {
    let graph = g.finish(&[("y", y)]).unwrap();
    let target = Target::named("cpu-avx512").unwrap();
    let settings = Settings { only: Some(name), ..Settings::new(target) };
    let (_, report) = improve(&graph, &settings);
    assert!(
        matches!(report.fired[..], [(fired, _)] if fired == name),
        "{name} did not fire: {:?}",
        report.fired
    );
    for seed in 0..8 {
        let settings = Settings { choice: Choice::Random(seed), ..settings.clone() };
        let (made, _) = improve(&graph, &settings);
        assert_eq!(made.outputs.len(), 1);
    }
}
