//! The grid order of tasks with routed matrices, for L2 reuse.
//!
//! In: a kernel. Out: the same with the variables of grids in another order, the slowest first. Tasks run roughly in
//! the order of their numbers. With many routed vectors, tasks with the same rows follow each other: then the rows of
//! all experts that are in use fit in L2 and are read by many tasks.

use std::collections::BTreeSet;

use crate::kernel::index::{Atom, Index};
use crate::kernel::{Kernel, Nest, Part, Range, Stmt, VarId};
use crate::options::Options;
use crate::tensor::sym::Sym;

/// Up to this many routed vectors the order stays: most experts have one vector at most.
const FEW_ROUTED_ROWS: i64 = 64;

/// The kernel, with tasks that read the same rows of routed matrices one after another.
pub(super) fn order_tasks(kernel: &Kernel, _: &Options) -> Kernel {
    let parts = kernel.parts.iter().map(|part| Part { grid: grid_order(part), ..part.clone() });
    Kernel { parts: parts.collect(), ..kernel.clone() }
}

/// The grid of a part, with the variables that number rows of routed matrices first.
fn grid_order(part: &Part) -> Vec<VarId> {
    let rows: BTreeSet<VarId> =
        part.body.iter().filter_map(Stmt::nest).flat_map(|nest| routed_row_vars(part, nest)).collect();
    let (own, others): (Vec<VarId>, Vec<VarId>) =
        part.grid.iter().copied().partition(|var| rows.contains(var));
    let n: i64 = others.iter().map(|var| part.n_values(*var, &Sym::most).max(1)).product();
    let is_free = |var: &VarId| match &part.vars[*var].range {
        Range::Blocks(blocks) => blocks.start.as_const().is_some(),
        Range::Whole { .. } | Range::Within { .. } => true,
    };
    if rows.is_empty() || n <= FEW_ROUTED_ROWS || !part.grid.iter().all(is_free) {
        return part.grid.clone();
    }
    [own, others].concat()
}

/// The variables that number the rows of routed matrices in a fold.
fn routed_row_vars(part: &Part, nest: &Nest) -> BTreeSet<VarId> {
    let mut found = BTreeSet::new();
    for (_, _, at) in nest.reads().filter(|_| nest.fold.is_some()) {
        let atoms = || at.iter().flat_map(Index::terms).map(|(atom, _)| atom);
        let is_lookup = |atom: &&Atom| matches!(atom, Atom::Lookup { .. });
        if !atoms().any(|atom| is_lookup(&atom)) {
            continue;
        }
        for atom in atoms().filter(|atom| !is_lookup(atom)) {
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

    /// Sums of products with rows of each token's experts.
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
    fn many_tasks_with_the_same_rows_follow_each_other() {
        let order = |text: &str| {
            let part = parse(text).unwrap().parts.remove(0);
            let names = grid_order(&part).into_iter().map(|var| part.vars[var].name.to_string());
            names.collect::<Vec<_>>()
        };
        assert_eq!(order(KERNEL), ["d", "t"]);
        assert_eq!(order(&KERNEL.replace("1..65", "1..64")), ["t", "d"]);
        assert_eq!(order(&KERNEL.replace("lookup(@1[t0, k3], 8)", "7")), ["t", "d"]);
    }
}
