//! Orders the loops of folds for coalesced loads.
//!
//! In: a kernel. Out: the same kernel, with the loop of the smallest stride in memory innermost, as far as one order
//! suits all buffers: then neighbouring threads load neighbouring elements, and vector loads apply. Sums have no
//! promised order.

use std::cmp::Reverse;

use crate::kernel::index::{Atom, element_of};
use crate::kernel::walk::each_nest;
use crate::kernel::{Kernel, Nest, Part, Place, VarId};
use crate::options::Options;

/// The kernel, with the loops of every fold ordered by stride, the smallest innermost.
pub(super) fn order_folds(kernel: &Kernel, _: &Options) -> Kernel {
    let mut new = kernel.clone();
    for (part, own) in new.parts.iter_mut().zip(&kernel.parts) {
        each_nest(&mut part.body, &mut |nest| {
            let mut loops = nest.folds().to_vec();
            loops.sort_by_key(|var| Reverse(smallest_stride(kernel, own, nest, *var)));
            if let Some(folding) = &mut nest.fold {
                folding.loops = loops;
            }
        });
    }
    new
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
    use crate::target::VULKAN;

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
        let kernel = order_folds(&kernel, &Options::for_target(VULKAN));
        let part = &kernel.parts[0];
        let loops = &part.body[0].nest().unwrap().fold.as_ref().unwrap().loops;
        let names: Vec<String> = loops.iter().map(|var| part.vars[*var].name.to_string()).collect();
        assert_eq!(names, ["g", "e"]);
    }
}
