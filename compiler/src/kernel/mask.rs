//! Masks: which positions a comparison of positions hides (causal masks, sliding windows).
//!
//! In: a nest whose values are -∞ where a comparison is false, such as masked attention scores. Out: an index that
//! tells where it is false, or the first position at which it is not. Only sums of loop variables and symbols are
//! analysed; other comparisons hide nothing.

use crate::foundation::entity::List;
use crate::graph::op::{Binary, Scalar};
use crate::kernel::index::{Atom, Index, Vars};
use crate::kernel::{Expr, ExprId, Nest, Range, VarId};

/// An index that is above zero exactly where a comparison of positions is false.
pub(crate) fn above_zero_where_false(exprs: &List<ExprId, Expr>, test: ExprId) -> Option<Index> {
    let (a, b, more) = match &exprs[test] {
        Expr::Binary(Binary::Le, a, b) => (a, b, 0),
        Expr::Binary(Binary::Lt, a, b) => (a, b, 1),
        _ => return None,
    };
    Some(position(exprs, *a)?.minus(&position(exprs, *b)?).plus(&Index::constant(more)))
}

/// The least value of a sum, for all values of some loops.
pub(crate) fn least(sum: &Index, loops: &[VarId], vars: &Vars) -> Option<Index> {
    let mut least = Index::constant(sum.offset());
    for (atom, factor) in sum.terms() {
        let term = match atom {
            Atom::Var(var) if loops.contains(var) => end_of(*var, *factor < 0, vars),
            Atom::Var(_) | Atom::Symbols(_) => Index::atom(atom.clone()),
            _ => return None,
        };
        least = least.plus(&term.times(*factor));
    }
    Some(least)
}

/// A position below which every value of a nest is -∞, if a comparison says so: the start of a sliding window.
pub(crate) fn first_seen(nest: &Nest, along: VarId, vars: &Vars) -> Option<Index> {
    let mut tests = Vec::new();
    hiding(&nest.exprs, nest.value, &mut tests);
    let others: Vec<VarId> = nest.loops.iter().filter(|var| **var != along).copied().collect();
    tests.into_iter().find_map(|test| {
        // Where it is false, the position is smaller than this.
        let first = above_zero_where_false(&nest.exprs, test)?.plus(&Index::var(along));
        if first.uses_var(|var| var == along) { None } else { least(&first, &others, vars) }
    })
}

/// The comparisons that make a value minus infinity where they are false.
fn hiding(exprs: &List<ExprId, Expr>, value: ExprId, tests: &mut Vec<ExprId>) {
    match &exprs[value] {
        Expr::Binary(Binary::Add, a, b) => {
            hiding(exprs, *a, tests);
            hiding(exprs, *b, tests);
        }
        Expr::Select(test, seen, unseen)
            if exprs[*unseen] == Expr::Const(Scalar::float(f32::NEG_INFINITY)) =>
        {
            tests.push(*test);
            hiding(exprs, *seen, tests);
        }
        _ => {}
    }
}

/// No more than the first value of a loop, or no less than the last.
fn end_of(var: VarId, is_last: bool, vars: &Vars) -> Index {
    match &vars[var].range {
        Range::Whole { len } if is_last => Index::sym(len).minus(&Index::constant(1)),
        Range::Whole { .. } => Index::default(),
        Range::Within { of } => match vars[*of].range.blocks() {
            Some(blocks) if is_last => Index::var(*of).plus(&Index::constant(blocks.block - 1)),
            _ => Index::var(*of),
        },
        Range::Blocks(_) => Index::var(var),
    }
}

/// A scalar that is a sum of positions.
fn position(exprs: &List<ExprId, Expr>, id: ExprId) -> Option<Index> {
    match &exprs[id] {
        Expr::Position(index) => Some(index.clone()),
        Expr::Const(Scalar::I32(number)) => Some(Index::constant(i64::from(*number))),
        Expr::Binary(Binary::Add, a, b) => Some(position(exprs, *a)?.plus(&position(exprs, *b)?)),
        Expr::Binary(Binary::Sub, a, b) => Some(position(exprs, *a)?.minus(&position(exprs, *b)?)),
        _ => None,
    }
}
