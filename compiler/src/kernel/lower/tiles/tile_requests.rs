//! Merges overlapping tiles of one value, so that it is computed once.
//!
//! In: every box that the nests of a part ask for. Out: for each, the box to fill instead: the hull of those that touch
//! or overlap. Rotary embedding needs the two halves of a row, and a norm for all of it: without this the row would
//! be multiplied out twice. Only boxes at constant offsets from each other are compared.

use indexmap::IndexMap;

use crate::graph::NodeId;
use crate::kernel::index::Index;
use crate::kernel::lower::axis_span::{AxisSpan, SpanLoop};
use crate::tensor::sym::Sym;

/// First position and length along each axis.
type Region = Vec<(i64, i64)>;

/// What boxes must agree on to be compared: the node, and each axis up to a constant offset.
type RegionClass = (NodeId, Vec<(Index, Option<SpanLoop>)>);

/// The requested boxes, by class.
#[derive(Default)]
pub(crate) struct TileRequests {
    classes: IndexMap<RegionClass, Vec<Region>>,
}

impl TileRequests {
    /// Records a box.
    pub(crate) fn record(&mut self, node: NodeId, spans: &[AxisSpan]) {
        let (class, extent) = classified(node, spans);
        let extents = self.classes.entry(class).or_default();
        if !extents.contains(&extent) {
            extents.push(extent);
        }
    }

    /// Merges boxes whose hull is no larger than both; gives whether any were merged.
    pub(crate) fn merge(&mut self) -> bool {
        let mut joined = false;
        for extents in self.classes.values_mut() {
            while let Some((first, second)) = mergeable(extents) {
                let other = extents.swap_remove(second);
                extents[first] = hull(&extents[first], &other);
                joined = true;
            }
        }
        joined
    }

    /// The box to fill instead.
    pub(crate) fn widened(&self, node: NodeId, spans: &[AxisSpan]) -> Vec<AxisSpan> {
        let (class, own) = classified(node, spans);
        let found =
            self.classes.get(&class).and_then(|all| all.iter().find(|wide| hull(wide, &own) == **wide));
        let Some(wide) = found else { return spans.to_vec() };
        let mut widened = spans.to_vec();
        for (span, (own, wide)) in widened.iter_mut().zip(own.iter().zip(wide)) {
            if own.1 != wide.1 {
                let base = span.base.plus(&Index::constant(wide.0 - own.0));
                *span =
                    AxisSpan { axis: span.axis, base, len: wide.1, run: SpanLoop::Whole(Sym::from(wide.1)) };
            }
        }
        widened
    }
}

fn classified(node: NodeId, spans: &[AxisSpan]) -> (RegionClass, Region) {
    let mut axes = Vec::with_capacity(spans.len());
    let mut extent = Vec::with_capacity(spans.len());
    for span in spans {
        let is_movable = match &span.run {
            SpanLoop::Point => true,
            SpanLoop::Block(_) => false,
            SpanLoop::Whole(len) | SpanLoop::Padded(len) => len.as_const().is_some(),
        };
        let offset = if is_movable { span.base.offset() } else { 0 };
        let base = span.base.minus(&Index::constant(offset));
        axes.push((base, (!is_movable).then(|| span.run.clone())));
        extent.push((offset, span.len));
    }
    ((node, axes), extent)
}

fn mergeable(extents: &[Region]) -> Option<(usize, usize)> {
    let pairs = (0..extents.len()).flat_map(|a| (a + 1..extents.len()).map(move |b| (a, b)));
    pairs.into_iter().find(|(a, b)| {
        let (a, b) = (&extents[*a], &extents[*b]);
        volume(&hull(a, b)) <= volume(a) + volume(b)
    })
}

fn hull(a: &Region, b: &Region) -> Region {
    let merge = |((first, len), (other, other_len)): (&(i64, i64), &(i64, i64))| {
        let start = *first.min(other);
        (start, (first + len).max(other + other_len) - start)
    };
    a.iter().zip(b).map(merge).collect()
}

fn volume(extent: &Region) -> i64 {
    extent.iter().map(|(_, len)| *len).product()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boxes_that_touch_become_one_and_distant_ones_stay() {
        let mut extents = vec![vec![(0, 64)], vec![(64, 64)], vec![(300, 64)]];
        let (a, b) = mergeable(&extents).unwrap();
        extents[a] = hull(&extents[a].clone(), &extents[b].clone());
        extents.remove(b);
        assert_eq!(extents, [vec![(0, 128)], vec![(300, 64)]]);
        assert_eq!(mergeable(&extents), None);
    }
}
