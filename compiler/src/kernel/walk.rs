//! Visitors: the nests, loops, indices, reads and operands in a piece of a kernel.
//!
//! In: a piece of a kernel. Out: what it contains, in the order of the text.

use std::collections::BTreeSet;
use std::slice::from_ref;

use crate::foundation::entity::List;
use crate::kernel::index::{Atom, Index};
use crate::kernel::{Expr, ExprId, Nest, ParamId, Part, Place, Range, Stmt, TileId, VarId};
use crate::tensor::dtype::DType;

/// The nests of a body, those of its loops as well.
pub fn nests(body: &[Stmt]) -> impl Iterator<Item = &Nest> {
    let mut pending: Vec<&Stmt> = body.iter().rev().collect();
    std::iter::from_fn(move || {
        loop {
            let stmt = pending.pop()?;
            if let Stmt::Nest(nest) = stmt {
                return Some(nest);
            }
            pending.extend(stmt.inner().iter().rev());
        }
    })
}

/// Runs `act` on every nest of a body, those of its loops as well.
pub(crate) fn each_nest(body: &mut [Stmt], act: &mut impl FnMut(&mut Nest)) {
    for stmt in body {
        match stmt {
            Stmt::Nest(nest) => act(nest),
            Stmt::Loop { body, .. } | Stmt::Once { body, .. } => each_nest(body, act),
            Stmt::Quantise(_) => {}
        }
    }
}

/// The tiles that a nest reads, in scalars or indices.
pub(crate) fn tiles_read(nest: &Nest) -> BTreeSet<TileId> {
    let mut found = BTreeSet::new();
    nest.indices().for_each(|index| tiles_in(index, &mut found));
    for expr in nest.exprs.values() {
        if let Expr::Load { from: Place::Tile(tile), .. } = expr {
            found.insert(*tile);
        }
    }
    found
}

/// The tiles that an index looks up.
pub(crate) fn tiles_in(index: &Index, found: &mut BTreeSet<TileId>) {
    index.any(&mut |atom| {
        if let Atom::Lookup { from: Place::Tile(tile), .. } = atom {
            found.insert(*tile);
        }
        false
    });
}

/// Marks the scalars that `roots` depend on, themselves included; one that is known depends on nothing.
pub(crate) fn needed(
    exprs: &List<ExprId, Expr>,
    roots: &[ExprId],
    is_known: impl Fn(ExprId) -> bool,
) -> List<ExprId, bool> {
    let mut is_needed: List<ExprId, bool> = exprs.ids().map(|id| roots.contains(&id)).collect();
    for id in exprs.ids().rev() {
        if is_needed[id] && !is_known(id) {
            exprs[id].operands().into_iter().for_each(|operand| is_needed[operand] = true);
        }
    }
    is_needed
}

impl Nest {
    /// The loops that it folds, outermost first.
    pub fn folds(&self) -> &[VarId] {
        self.fold.as_ref().map_or(&[], |folding| &folding.loops)
    }

    /// The tile that it fills, if it does not store to a buffer.
    pub(crate) fn tile(&self) -> Option<TileId> {
        match self.target {
            Place::Tile(tile) => Some(tile),
            Place::Param(_) => None,
        }
    }

    /// What its fold starts from, where it does not start from nothing.
    pub(crate) fn init(&self) -> Option<ExprId> {
        self.fold.as_ref()?.init
    }

    /// Whether the range of a loop is known before its other loops are.
    pub(crate) fn is_simple(&self, part: &Part, var: VarId) -> bool {
        match &part.vars[var].range {
            Range::Whole { .. } => true,
            Range::Blocks(_) => false,
            Range::Within { of } => !self.loops.contains(of) && !self.folds().contains(of),
        }
    }

    /// Whether another of its loops ends at a bound that depends on this one, so that it has to run inside.
    pub(crate) fn bounds_another(&self, part: &Part, var: VarId) -> bool {
        let mut others = self.loops.iter().chain(self.folds());
        others.any(|other| part.vars[*other].until.iter().any(|bound| bound.uses_var(|own| own == var)))
    }

    /// The element that a scalar is, if it is one, perhaps widened.
    pub fn loaded(&self, id: ExprId) -> Option<(Place, &[Index])> {
        let load = match &self.exprs[id] {
            Expr::Cast(DType::F32, inner) => &self.exprs[*inner],
            other => other,
        };
        if let Expr::Load { from, at } = load { Some((*from, at)) } else { None }
    }

    /// What it reads from memory.
    pub fn reads(&self) -> impl Iterator<Item = (ExprId, ParamId, &[Index])> {
        self.exprs.iter().filter_map(|(id, expr)| match expr {
            Expr::Load { from: Place::Param(param), at } => Some((id, *param, &at[..])),
            Expr::Load { from: Place::Tile(_), .. }
            | Expr::Const(_)
            | Expr::Position(_)
            | Expr::Unary(..)
            | Expr::Binary(..)
            | Expr::Select(..)
            | Expr::Cast(..) => None,
        })
    }

    /// Every index: where it stores, and those of its scalars.
    pub(crate) fn indices(&self) -> impl Iterator<Item = &Index> {
        self.at.iter().chain(self.exprs.values().flat_map(Expr::indices))
    }
}

impl Expr {
    /// The indices of its own.
    pub(crate) fn indices(&self) -> &[Index] {
        match self {
            Self::Position(index) => from_ref(index),
            Self::Load { at, .. } => at,
            Self::Const(_) | Self::Unary(..) | Self::Binary(..) | Self::Select(..) | Self::Cast(..) => &[],
        }
    }

    /// The expressions it is computed from, in order.
    pub(crate) fn operands(&self) -> Vec<ExprId> {
        match self {
            Self::Const(_) | Self::Position(_) | Self::Load { .. } => Vec::new(),
            Self::Unary(_, a) | Self::Cast(_, a) => vec![*a],
            Self::Binary(_, a, b) => vec![*a, *b],
            Self::Select(a, b, c) => vec![*a, *b, *c],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::parse::parse;
    use crate::kernel::samples::ATTENTION;

    #[test]
    fn nests_of_loops_come_where_the_loops_stand() {
        let kernel = parse(ATTENTION).unwrap();
        let n_indices: Vec<usize> = nests(&kernel.parts[0].body).map(|nest| nest.indices().count()).collect();
        assert_eq!(n_indices, [0, 0, 1, 0, 1, 1, 5, 2]);
    }
}
