//! Boxes of one value that are better filled as one.
//!
//! In: every box that the nests of a part ask for. Out: for each, the box to fill instead: the smallest that holds
//! several which touch or overlap. A rotation asks for the two halves of a row and a norm for all of it; without this
//! the row would be multiplied out twice.
//! Only boxes that lie at fixed distances from each other are compared.

use indexmap::IndexMap;

use crate::graph::NodeId;
use crate::kernel::index::Index;
use crate::kernel::lower::span::{Run, Span};
use crate::tensor::sym::Sym;

/// First position and number of positions of each axis.
type Extent = Vec<(i64, i64)>;

/// What boxes must agree on to be compared: the node, and each axis up to a fixed distance.
type Class = (NodeId, Vec<(Index, Option<Run>)>);

/// The boxes asked for, by class.
#[derive(Default)]
pub(super) struct Boxes {
    classes: IndexMap<Class, Vec<Extent>>,
}

impl Boxes {
    /// Notes that a box is asked for.
    pub(super) fn note(&mut self, node: NodeId, spans: &[Span]) {
        let (class, extent) = classified(node, spans);
        let extents = self.classes.entry(class).or_default();
        if !extents.contains(&extent) {
            extents.push(extent);
        }
    }

    /// Joins boxes whose hull is no larger than both; whether any were joined.
    pub(super) fn join(&mut self) -> bool {
        let mut joined = false;
        for extents in self.classes.values_mut() {
            while let Some((first, second)) = touching(extents) {
                let other = extents.swap_remove(second);
                extents[first] = hull(&extents[first], &other);
                joined = true;
            }
        }
        joined
    }

    /// The box to fill instead of one asked for.
    pub(super) fn widened(&self, node: NodeId, spans: &[Span]) -> Vec<Span> {
        let (class, own) = classified(node, spans);
        let found =
            self.classes.get(&class).and_then(|all| all.iter().find(|wide| hull(wide, &own) == **wide));
        let Some(wide) = found else { return spans.to_vec() };
        let mut widened = spans.to_vec();
        for (span, (own, wide)) in widened.iter_mut().zip(own.iter().zip(wide)) {
            if own.1 != wide.1 {
                let base = span.base.plus(&Index::constant(wide.0 - own.0));
                *span = Span { axis: span.axis, base, len: wide.1, run: Run::Whole(Sym::from(wide.1)) };
            }
        }
        widened
    }
}

fn classified(node: NodeId, spans: &[Span]) -> (Class, Extent) {
    let mut axes = Vec::with_capacity(spans.len());
    let mut extent = Vec::with_capacity(spans.len());
    for span in spans {
        let is_movable = match &span.run {
            Run::Point => true,
            Run::Block(_) => false,
            Run::Whole(len) | Run::Padded(len) => len.as_const().is_some(),
        };
        let offset = if is_movable { span.base.offset() } else { 0 };
        let base = span.base.minus(&Index::constant(offset));
        axes.push((base, (!is_movable).then(|| span.run.clone())));
        extent.push((offset, span.len));
    }
    ((node, axes), extent)
}

fn touching(extents: &[Extent]) -> Option<(usize, usize)> {
    let pairs = (0..extents.len()).flat_map(|a| (a + 1..extents.len()).map(move |b| (a, b)));
    pairs.into_iter().find(|(a, b)| {
        let (a, b) = (&extents[*a], &extents[*b]);
        volume(&hull(a, b)) <= volume(a) + volume(b)
    })
}

fn hull(a: &Extent, b: &Extent) -> Extent {
    let join = |((first, len), (other, other_len)): (&(i64, i64), &(i64, i64))| {
        let start = *first.min(other);
        (start, (first + len).max(other + other_len) - start)
    };
    a.iter().zip(b).map(join).collect()
}

fn volume(extent: &Extent) -> i64 {
    extent.iter().map(|(_, len)| *len).product()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boxes_that_touch_become_one_and_distant_ones_stay() {
        let mut extents = vec![vec![(0, 64)], vec![(64, 64)], vec![(300, 64)]];
        let (a, b) = touching(&extents).unwrap();
        extents[a] = hull(&extents[a].clone(), &extents[b].clone());
        extents.remove(b);
        assert_eq!(extents, [vec![(0, 128)], vec![(300, 64)]]);
        assert_eq!(touching(&extents), None);
    }
}
