//! Orders the loops of folds for coalesced loads.
//!
//! In: a part. Out: the same part, with the loop of the smallest stride in memory innermost, as far as one order suits
//! all buffers: then neighbouring threads load neighbouring elements, and vector loads apply. Sums have no promised
//! order.

use crate::kernel::index::{Atom, element_of};
use crate::kernel::{Kernel, Nest, Part, Place, Stmt, VarId};

/// Orders the loops of every fold by stride, the smallest innermost.
pub(super) fn order_folds(kernel: &Kernel, part: &mut Part) {
    let mut body = std::mem::take(&mut part.body);
    each_nest(&mut body, &mut |nest| {
        let step = |var: VarId| smallest_stride(kernel, part, nest, var);
        let Some(folding) = &nest.fold else { return };
        let mut loops = folding.loops.clone();
        loops.sort_by_key(|var| std::cmp::Reverse(step(*var)));
        if let Some(folding) = &mut nest.fold {
            folding.loops = loops;
        }
    });
    part.body = body;
}

/// Runs `act` on every nest.
pub(super) fn each_nest(body: &mut [Stmt], act: &mut impl FnMut(&mut Nest)) {
    for stmt in body {
        match stmt {
            Stmt::Nest(nest) => act(nest),
            Stmt::Loop { body, .. } => each_nest(body, act),
        }
    }
}

/// The smallest stride of a variable among the buffers that a nest reads.
fn smallest_stride(kernel: &Kernel, part: &Part, nest: &Nest, var: VarId) -> i64 {
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
    fn the_loop_of_the_smallest_stride_is_innermost() {
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
        order_folds(&kernel, &mut part);
        let loops = &part.body[0].nest().unwrap().fold.as_ref().unwrap().loops;
        let names: Vec<String> = loops.iter().map(|var| part.vars[*var].name.to_string()).collect();
        assert_eq!(names, ["g", "e"]);
    }
}
