//! What the rules' tests share: a rule fires, and every form it leads to means the same.
//!
//! In: the name of a rule and a value it applies to. Out: nothing, or the form that differs with its numbers.

use crate::graph::build::{Builder, Dim, Tensor};
use crate::rewrite::check::check_on;
use crate::rewrite::rules::all;

/// A builder and axes of these names and sizes.
pub(crate) fn sizes<const N: usize>(dims: [(&str, i64); N]) -> (Builder, [Dim; N]) {
    let g = Builder::new();
    let dims = dims.map(|(name, size)| g.dim(name, size));
    (g, dims)
}

/// Asserts that a rule alone finds another form of `y`, and that every choice means the same: of the numbers that the
/// rule holds for, and with empty axes.
pub(crate) fn fires(name: &'static str, g: &Builder, y: &Tensor) {
    let graph = g.finish(&[("y", y)]).unwrap();
    let rule = all().into_iter().find(|rule| rule.name() == name).unwrap();
    if let Err(error) = check_on(&rule, &graph) {
        panic!("{error}");
    }
}
