//! Does once for several tasks what is the same for them.
//!
//! In: a kernel whose tasks have one thread each. Out: a kernel that computes the same. Such a thread runs tasks one
//! after another in the order of the grid, so a tile that depends on outer variables of the grid only is filled by the
//! first of several tasks, and is there for the others.

use std::slice::from_ref;

use crate::kernel::effects::depths;
use crate::kernel::{Kernel, Part, Stmt};
use crate::options::Options;

pub(super) fn hoist_invariants(kernel: &Kernel, _: &Options) -> Kernel {
    let parts = kernel.parts.iter().map(|part| Part { body: hoisted(part), ..part.clone() });
    Kernel { parts: parts.collect(), ..kernel.clone() }
}

/// A statement, or those that are done once already.
fn apart(stmt: &Stmt) -> &[Stmt] {
    if let Stmt::Once { body, .. } = stmt { body } else { from_ref(stmt) }
}

/// The body of a part; neighbours that depend on the same variables are done together.
fn hoisted(part: &Part) -> Vec<Stmt> {
    let statements: Vec<(&Stmt, usize)> = part.body.iter().flat_map(apart).map(|stmt| (stmt, 0)).collect();
    let mut all: Vec<Stmt> = Vec::new();
    for ((stmt, _), depth) in statements.iter().zip(depths(part, &statements)) {
        let vars = &part.grid[..depth];
        match all.last_mut() {
            _ if depth == part.grid.len() => all.push((*stmt).clone()),
            Some(Stmt::Once { per, body }) if per == vars => body.push((*stmt).clone()),
            _ => all.push(Stmt::Once { per: vars.to_vec(), body: vec![(*stmt).clone()] }),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::parse::parse;
    use crate::kernel::samples::SHARED;
    use crate::target::CPU;

    #[test]
    fn what_depends_on_outer_variables_is_done_once_for_the_inner_ones() {
        let options = Options::for_target(CPU);
        let shared = parse(SHARED).unwrap();
        let apart = parse(&SHARED.replace("  once per t0\n", "").replace("  end\n", "")).unwrap();
        assert_ne!(apart, shared);
        assert_eq!(hoist_invariants(&apart, &options), shared);
        assert_eq!(hoist_invariants(&shared, &options), shared);
    }

    #[test]
    fn what_reads_a_tile_is_repeated_with_what_fills_it() {
        let options = Options::for_target(CPU);
        // The second filling depends on the rows, so that the first is needed again for each task.
        let fill = "    quantise activations0\n  end\n";
        let again =
            "  for d3\n    tile0[d3] = mul(@0[t0, d3], cast.f32(position(e1)))\n  quantise activations0\n";
        let kernel = parse(&SHARED.replace("  once per t0\n", "").replace(fill, again)).unwrap();
        assert_eq!(hoist_invariants(&kernel, &options), kernel);
    }
}
