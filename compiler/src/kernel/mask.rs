//! Masks: which positions a comparison of positions hides (causal masks, sliding windows).
//!
//! In: a nest whose values are -∞ where a comparison is false, such as masked attention scores. Out: the first position
//! at which it is true, and bounds from which on it is not. Only sums of loop variables, symbols and numbers in memory
//! (such as the length of a sequence) are analysed; other comparisons hide nothing.

use crate::foundation::entity::List;
use crate::graph::op::{Binary, Scalar};
use crate::kernel::index::{Atom, Index, Vars};
use crate::kernel::{Expr, ExprId, Nest, Place, Range, VarId};

/// More positions than any sequence has.
pub(crate) const MAX_POSITIONS: i64 = 1 << 30;

/// An index that is above zero exactly where a comparison of positions is false.
fn above_zero_where_false(exprs: &List<ExprId, Expr>, test: ExprId) -> Option<Index> {
    let (a, b, more) = match &exprs[test] {
        Expr::Binary(Binary::Le, a, b) => (a, b, 0),
        Expr::Binary(Binary::Lt, a, b) => (a, b, 1),
        _ => return None,
    };
    Some(position(exprs, *a)?.minus(&position(exprs, *b)?).plus(&Index::constant(more)))
}

/// The least values of a sum for all values of some loops, one for each place where a loop may end.
fn least(sum: &Index, loops: &[VarId], vars: &Vars) -> Vec<Index> {
    let of = |last: fn(VarId, &Vars) -> Index| {
        let mut least = Index::constant(sum.offset());
        for (atom, factor) in sum.terms() {
            let term = match atom {
                Atom::Var(var) if !loops.contains(var) => Index::var(*var),
                Atom::Var(var) if *factor < 0 => last(*var, vars),
                Atom::Var(var) => first_of(*var, vars),
                Atom::Symbols(_) => Index::atom(atom.clone()),
                Atom::Lookup { at, .. } if !at.iter().any(|at| at.uses_var(|var| loops.contains(&var))) => {
                    Index::atom(atom.clone())
                }
                _ => return None,
            };
            least = least.plus(&term.times(*factor));
        }
        Some(least)
    };
    let mut found: Vec<Index> =
        [last_of_block as fn(VarId, &Vars) -> Index, last_of_axis].into_iter().filter_map(of).collect();
    found.dedup();
    found
}

/// Bounds of a loop from which on every value of a nest is -∞ for all values of the other loops: a causal mask. Nothing
/// where a number in memory decides that and differs along the loops over rows.
pub(crate) fn ends(
    nest: &Nest,
    along: VarId,
    (others, rows): (&[VarId], &[VarId]),
    vars: &Vars,
) -> Option<Vec<Index>> {
    let mut tests = Vec::new();
    hiding(&nest.exprs, nest.value, &mut tests);
    let others: Vec<VarId> = others.iter().filter(|var| **var != along).copied().collect();
    let positions: Vec<VarId> =
        nest.loops.iter().filter(|var| !rows.contains(var)).copied().chain([along]).collect();
    let mut ends = Vec::new();
    for hidden in tests.into_iter().filter_map(|test| above_zero_where_false(&nest.exprs, test)) {
        let least = least(&hidden, &others, vars);
        let is_of_row = |atom: &Atom| {
            let uses = |vars: &[VarId]| atom.uses_var(&|var| vars.contains(&var));
            matches!(atom, Atom::Lookup { .. }) && uses(rows) && !uses(&positions)
        };
        if least.is_empty() && hidden.terms().iter().any(|(atom, _)| is_of_row(atom)) {
            return None;
        }
        for hidden in least {
            let Some(factor) = hidden.step_of(along).filter(|factor| *factor > 0) else { continue };
            // `factor · along + rest` is above zero from here on.
            let rest = hidden.minus(&Index::var(along).times(factor));
            ends.push(rest.times(-1).div(factor, vars).plus(&Index::constant(1)));
        }
    }
    Some(ends)
}

/// A position below which every value of a nest is -∞, if a comparison says so: the start of a sliding window.
pub(crate) fn first_seen(nest: &Nest, along: VarId, vars: &Vars) -> Option<Index> {
    let mut tests = Vec::new();
    hiding(&nest.exprs, nest.value, &mut tests);
    let others: Vec<VarId> = nest.loops.iter().filter(|var| **var != along).copied().collect();
    tests.into_iter().find_map(|test| {
        let hidden = above_zero_where_false(&nest.exprs, test)?;
        let hidden = least(&hidden, &others, vars).into_iter().next()?;
        let factor = -hidden.step_of(along).filter(|factor| *factor < 0)?;
        // `rest - factor · along` is above zero below `rest / factor`, rounded up.
        let rest = hidden.plus(&Index::var(along).times(factor));
        Some(rest.plus(&Index::constant(factor - 1)).div(factor, vars))
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

/// No more than the first value of a loop.
fn first_of(var: VarId, vars: &Vars) -> Index {
    match &vars[var].range {
        Range::Whole { .. } => Index::default(),
        Range::Within { of } => Index::var(*of),
        Range::Blocks(_) => Index::var(var),
    }
}

/// No less than the last value of a loop, if the block that it runs within is full.
fn last_of_block(var: VarId, vars: &Vars) -> Index {
    match &vars[var].range {
        Range::Within { of } => {
            let block = vars[*of].range.blocks().map_or(1, |blocks| blocks.block);
            Index::var(*of).plus(&Index::constant(block - 1))
        }
        Range::Whole { .. } | Range::Blocks(_) => last_of_axis(var, vars),
    }
}

/// No less than the last value of a loop: the last position of its axis.
fn last_of_axis(var: VarId, vars: &Vars) -> Index {
    let end = vars[var].range.end(vars);
    end.map_or(Index::var(var), |end| Index::sym(end).minus(&Index::constant(1)))
}

/// A scalar that is a sum of positions.
fn position(exprs: &List<ExprId, Expr>, id: ExprId) -> Option<Index> {
    match &exprs[id] {
        Expr::Position(index) => Some(index.clone()),
        Expr::Const(Scalar::I32(number)) => Some(Index::constant(i64::from(*number))),
        Expr::Binary(Binary::Add, a, b) => Some(position(exprs, *a)?.plus(&position(exprs, *b)?)),
        Expr::Binary(Binary::Sub, a, b) => Some(position(exprs, *a)?.minus(&position(exprs, *b)?)),
        Expr::Binary(Binary::Mul, a, b) => {
            let (a, b) = (position(exprs, *a)?, position(exprs, *b)?);
            match (a.as_const(), b.as_const()) {
                (_, Some(factor)) => Some(a.times(factor)),
                (Some(factor), None) => Some(b.times(factor)),
                (None, None) => None,
            }
        }
        Expr::Load { from: from @ Place::Param(_), at } => {
            Some(Index::atom(Atom::Lookup { from: *from, at: at.clone(), below: MAX_POSITIONS }))
        }
        _ => None,
    }
}
