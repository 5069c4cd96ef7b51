//! The box that a nest reads: for each axis, where it starts and how it is run through.
//!
//! In: the position that a nest reads along an axis. Out: a [`Span`], which is known outside the nest, and the
//! position relative to its start. A span may be wider than what is read, never narrower.

use crate::kernel::index::{Atom, Index, Vars};
use crate::kernel::{Range, VarId};
use crate::tensor::shape::Axis;
use crate::tensor::sym::Sym;

/// Where one axis of a tile starts, and how many positions it holds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Span {
    pub(super) axis: Axis,
    pub(super) base: Index,
    pub(super) len: i64,
    /// How the positions are run through.
    pub(super) run: Run,
}

impl Span {
    /// All positions of an axis.
    pub(super) fn whole(axis: Axis, size: &Sym) -> Self {
        Self { axis, base: Index::default(), len: size.most(), run: Run::Whole(size.clone()) }
    }

    /// One position, known outside the nest.
    pub(super) fn point(axis: Axis, base: Index) -> Self {
        Self { axis, base, len: 1, run: Run::Point }
    }
}

/// How a fill runs through a span.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Run {
    /// One position, known outside the nest.
    Point,
    /// The positions of the block that starts at a variable.
    Block(VarId),
    /// The first so many positions.
    Whole(Sym),
    /// The same, read at other positions too where what is read there is not used: the tile starts as zeros.
    Padded(Sym),
}

/// A position taken apart: what is known outside the nest, and what its loops add.
struct Parts {
    base: Index,
    local: Index,
    n_local: usize,
    /// How the loops run, where that is a simple way.
    run: Option<Run>,
}

/// What a nest with loops `locals` reads of one axis: where it starts outside the nest, and the position relative to
/// that; no position where it reads just one.
pub(super) fn span_of(
    axis: Axis,
    size: &Sym,
    index: &Index,
    locals: &[VarId],
    vars: &Vars,
) -> (Span, Option<Index>) {
    let Parts { base, local, n_local, mut run } = taken_apart(index, locals, vars);
    if n_local == 0 {
        return (Span::point(axis, base), None);
    }
    let (low, high) = local.bounds(vars);
    let len = high - low + 1;
    if n_local > 1 || run.is_none() {
        // The last block of an uneven division has fewer positions: the box would leave the axis.
        let (first, last) = base.bounds(vars);
        let leaves = first + low < 0 || last + high >= size.most();
        if leaves || len >= size.most() || size.as_const().is_none() {
            let mut whole = Span::whole(axis, size);
            if size.as_const().is_none() {
                whole.run = Run::Padded(size.clone());
            }
            return (whole, Some(index.clone()));
        }
        run = Some(Run::Whole(Sym::from(len)));
    }
    let base = base.plus(&Index::constant(low));
    let relative = local.minus(&Index::constant(low));
    (Span { axis, base, len, run: run.unwrap_or(Run::Point) }, Some(relative))
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
                parts.run = (*factor == 1).then_some(Run::Block(*of));
                term.minus(&Index::var(*of))
            }
            Some(Range::Whole { len }) => {
                parts.run = (*factor == 1).then(|| Run::Whole(len.clone()));
                term
            }
            _ => term,
        };
        parts.local = parts.local.plus(&own.times(*factor));
    }
    parts
}

/// The sizes of a tile: of every axis that is not a single known position.
pub(super) fn dims(spans: &[Span]) -> Vec<usize> {
    spans.iter().filter(|span| !matches!(span.run, Run::Point)).map(|span| span.len.max(1) as usize).collect()
}
