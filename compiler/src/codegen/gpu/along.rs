//! Folds along what lies together.
//!
//! In: a part. Out: the same part, whose folds take the elements of what they read from memory in the order in which
//! these lie, as far as one order suits them: then threads read neighbours, and pieces of several elements.
//! Of a sum nobody has promised an order.

use crate::kernel::index::{Atom, element_of};
use crate::kernel::{Kernel, Nest, Part, Place, Stmt, VarId};

/// Puts the loops of every fold in order, the one that takes the smallest steps in memory last.
pub(super) fn fold_along(kernel: &Kernel, part: &mut Part) {
    let mut body = std::mem::take(&mut part.body);
    each_nest(&mut body, &mut |nest| {
        let step = |var: VarId| step(kernel, part, nest, var);
        let Some(folding) = &nest.fold else { return };
        let mut loops = folding.loops.clone();
        loops.sort_by_key(|var| std::cmp::Reverse(step(*var)));
        if let Some(folding) = &mut nest.fold {
            folding.loops = loops;
        }
    });
    part.body = body;
}

/// Does something with every nest.
pub(super) fn each_nest(body: &mut [Stmt], act: &mut impl FnMut(&mut Nest)) {
    for stmt in body {
        match stmt {
            Stmt::Nest(nest) => act(nest),
            Stmt::Loop { body, .. } => each_nest(body, act),
        }
    }
}

/// The smallest step in memory of what a nest reads there, with each step of a variable.
fn step(kernel: &Kernel, part: &Part, nest: &Nest, var: VarId) -> i64 {
    let steps = nest.reads().filter_map(|(_, param, at)| {
        let element = element_of(&kernel.dims(part, Place::Param(param)), at);
        element.terms().iter().find(|(atom, _)| *atom == Atom::Var(var)).map(|(_, factor)| factor.abs())
    });
    steps.min().unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::parse::parse;

    #[test]
    fn what_takes_the_smallest_steps_is_folded_last() {
        let text = r#"kernel "matvec w" matrix-vector
  read @0 x : f32[g:2, e:64]
  read @1 w : q8_0[r:8, g:2, e:64]
  write @2 y : f32[r:8]
part
  var r0 in 0..8
  var e1 in 0..64
  var g2 in 0..2
  grid
  for r0
    @2[r0] = sum e1, g2 of mul(@0[g2, e1], @1[r0, g2, e1])
"#;
        let kernel = parse(text).unwrap();
        let mut part = kernel.parts[0].clone();
        fold_along(&kernel, &mut part);
        let loops = &part.body[0].nest().unwrap().fold.as_ref().unwrap().loops;
        let names: Vec<String> = loops.iter().map(|var| part.vars[*var].name.to_string()).collect();
        assert_eq!(names, ["g", "e"]);
    }
}
