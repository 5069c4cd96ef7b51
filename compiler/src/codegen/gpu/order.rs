//! The order of tasks that pick matrices.
//!
//! In: a part. Out: the variables that number its tasks, the slowest first.
//! Tasks run about in the order of their numbers. Where many pick matrices and multiply some rows of them, those that
//! take the same rows follow each other: so few rows of all matrices are read by many tasks, from memory that is near,
//! and not all rows of a matrix by one task after another.

use std::collections::BTreeSet;

use crate::kernel::index::{Atom, Index};
use crate::kernel::{Nest, Part, Range, Stmt, VarId};
use crate::tensor::sym::Sym;

/// At most so many tasks of the same rows are few: most matrices have one at most.
const FEW: i64 = 64;

/// The variables of a part's grid, so that tasks follow each other that pick matrices for the same rows.
pub(super) fn ordered(part: &Part) -> Vec<VarId> {
    let rows: BTreeSet<VarId> =
        part.body.iter().filter_map(Stmt::nest).flat_map(|nest| rows_of_picked(part, nest)).collect();
    let (own, others): (Vec<VarId>, Vec<VarId>) =
        part.grid.iter().copied().partition(|var| rows.contains(var));
    let n: i64 = others.iter().map(|var| part.n_values(*var, &Sym::most).max(1)).product();
    let is_free = |var: &VarId| match &part.vars[*var].range {
        Range::Blocks(blocks) => blocks.start.as_const().is_some(),
        Range::Whole { .. } | Range::Within { .. } => true,
    };
    if rows.is_empty() || n <= FEW || !part.grid.iter().all(is_free) {
        return part.grid.clone();
    }
    [own, others].concat()
}

/// What says which rows a nest folds of matrices that are looked up.
fn rows_of_picked(part: &Part, nest: &Nest) -> BTreeSet<VarId> {
    let mut found = BTreeSet::new();
    for (_, _, at) in nest.reads().filter(|_| nest.fold.is_some()) {
        let atoms = || at.iter().flat_map(Index::terms).map(|(atom, _)| atom);
        let is_pick = |atom: &&Atom| matches!(atom, Atom::Lookup { .. });
        if !atoms().any(|atom| is_pick(&atom)) {
            continue;
        }
        for atom in atoms().filter(|atom| !is_pick(atom)) {
            Index::atom(atom.clone()).any(&mut |atom| {
                if let Atom::Var(var) = atom {
                    found.insert(match part.vars[*var].range {
                        Range::Within { of } => of,
                        Range::Whole { .. } | Range::Blocks(_) => *var,
                    });
                }
                false
            });
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::parse::parse;

    /// Sums of what rows of the experts of a token give.
    const KERNEL: &str = r#"symbol T in 1..65 near 64
kernel "experts down" experts
  read @0 x : f32[t:T, k:2, f:64]
  read @1 picked : i32[t:T, k:2]
  read @2 down : q8_0[x:8, d:32, f:64]
  write @3 y : f32[t:T, d:32]
part
  var t0 in 0..T
  var d1 in blocks of 8 step 8 from 0 to 32
  var d2 within d1
  var k3 in 0..2
  var f4 in 0..64
  grid t0, d1
  for d2
    @3[t0, d2] = sum k3, f4 of mul(@0[t0, k3, f4], @2[lookup(@1[t0, k3], 8), d2, f4])
"#;

    #[test]
    fn many_tasks_that_take_the_same_rows_follow_each_other() {
        let order = |text: &str| {
            let part = parse(text).unwrap().parts.remove(0);
            let names = ordered(&part).into_iter().map(|var| part.vars[var].name.to_string());
            names.collect::<Vec<_>>()
        };
        assert_eq!(order(KERNEL), ["d", "t"]);
        assert_eq!(order(&KERNEL.replace("1..65", "1..64")), ["t", "d"]);
        assert_eq!(order(&KERNEL.replace("lookup(@1[t0, k3], 8)", "7")), ["t", "d"]);
    }
}
