//! Interval analysis of one axis: which positions a nest reads.
//!
//! In: the index of a nest along an axis. Out: an [`AxisSpan`]: the base, known outside the nest, the length, and how
//! it is looped over; and the index relative to the base. A span may be wider than what is read, never narrower.

use crate::kernel::index::{Atom, Index, Vars};
use crate::kernel::{Range, VarId};
use crate::tensor::shape::Axis;
use crate::tensor::sym::Sym;

/// The interval of an axis that a tile holds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct AxisSpan {
    pub(super) axis: Axis,
    pub(super) base: Index,
    pub(super) len: i64,
    /// How to loop over it.
    pub(super) run: SpanLoop,
}

impl AxisSpan {
    /// All positions of an axis.
    pub(super) fn whole(axis: Axis, size: &Sym) -> Self {
        Self { axis, base: Index::default(), len: size.most(), run: SpanLoop::Whole(size.clone()) }
    }

    /// One position, known outside the nest.
    pub(super) fn point(axis: Axis, base: Index) -> Self {
        Self { axis, base, len: 1, run: SpanLoop::Point }
    }
}

/// How a nest loops over a span.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum SpanLoop {
    /// One position, known outside the nest.
    Point,
    /// The positions of a block, whose start is a variable.
    Block(VarId),
    /// This many positions from the base.
    Whole(Sym),
    /// The same, where positions beyond them may be read but not used: the tile starts as zeros.
    Padded(Sym),
}

/// An index, split into what is known outside the nest and what the nest's loops add.
struct Parts {
    base: Index,
    local: Index,
    n_local: usize,
    /// How the loops run, where that is a single loop.
    run: Option<SpanLoop>,
}

/// The span of what a nest with loops `locals` reads along an axis, and the index relative to its base; none for a
/// single position.
pub(super) fn axis_span(
    axis: Axis,
    size: &Sym,
    index: &Index,
    locals: &[VarId],
    vars: &Vars,
) -> (AxisSpan, Option<Index>) {
    let Parts { base, local, n_local, mut run } = taken_apart(index, locals, vars);
    if n_local == 0 {
        return (AxisSpan::point(axis, base), None);
    }
    let (low, high) = local.bounds(vars);
    let len = high - low + 1;
    if n_local > 1 || run.is_none() {
        // The last block of an uneven division is shorter: the box could leave the axis.
        let (first, last) = base.bounds(vars);
        let leaves = first + low < 0 || last + high >= size.most();
        if leaves || len >= size.most() || size.as_const().is_none() {
            let mut whole = AxisSpan::whole(axis, size);
            if size.as_const().is_none() {
                whole.run = SpanLoop::Padded(size.clone());
            }
            return (whole, Some(index.clone()));
        }
        run = Some(SpanLoop::Whole(Sym::from(len)));
    }
    let base = base.plus(&Index::constant(low));
    let relative = local.minus(&Index::constant(low));
    (AxisSpan { axis, base, len, run: run.unwrap_or(SpanLoop::Point) }, Some(relative))
}

fn taken_apart(index: &Index, locals: &[VarId], vars: &Vars) -> Parts {
    let is_local = |var: VarId| locals.contains(&var);
    let base = Index::constant(index.offset());
    let mut parts = Parts { base, local: Index::default(), n_local: 0, run: None };
    for (atom, factor) in index.terms() {
        let term = Index::atom(atom.clone());
        if !term.uses_var(is_local) {
            parts.base = parts.base.plus(&term.times(*factor));
            continue;
        }
        parts.n_local += 1;
        let range = if let Atom::Var(var) = atom { Some(&vars[*var].range) } else { None };
        let own = match range {
            Some(Range::Within { of }) if !is_local(*of) => {
                parts.base = parts.base.plus(&Index::var(*of).times(*factor));
                parts.run = (*factor == 1).then_some(SpanLoop::Block(*of));
                term.minus(&Index::var(*of))
            }
            Some(Range::Whole { len }) => {
                parts.run = (*factor == 1).then(|| SpanLoop::Whole(len.clone()));
                term
            }
            _ => term,
        };
        parts.local = parts.local.plus(&own.times(*factor));
    }
    parts
}

/// The sizes of a tile: the spans' lengths, single positions left out.
pub(super) fn dims(spans: &[AxisSpan]) -> Vec<usize> {
    spans
        .iter()
        .filter(|span| !matches!(span.run, SpanLoop::Point))
        .map(|span| span.len.max(1) as usize)
        .collect()
}
