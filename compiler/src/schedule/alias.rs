//! In-place results: a result that takes the buffer of an argument.
//!
//! In: the kernel form. Out: a proof that a parameter may be written where another is read, and the pairs of buffers of
//! a plan that use it. The proof: one nest alone accesses both, each iteration reads at most the element that it
//! stores, and no element is stored twice. Tasks write no element in common, so no task can see an element that was
//! replaced. A residual `y = x + W·a` qualifies; a norm that reads its row again does not.

use crate::foundation::entity::List;
use crate::kernel::index::{Atom, Index};
use crate::kernel::{Access, Expr, Kernel, Nest, Param, ParamId, Part, Place, Range, Stmt, VarId};
use crate::schedule::lifetime::Lifetime;
use crate::schedule::{BufferId, KernelId, Step, bound};

/// Whether a kernel still computes the same when the two parameters are one piece of memory.
pub(crate) fn may_share(kernel: &Kernel, read: ParamId, written: ParamId) -> bool {
    let accesses = (kernel.params[read].access, kernel.params[written].access);
    if accesses != (Access::Read, Access::Write) || !lie_alike(&kernel.params[read], &kernel.params[written])
    {
        return false;
    }
    let pair = [Place::Param(read), Place::Param(written)];
    let mut touching = Vec::new();
    for part in &kernel.parts {
        let routes = part.routed.as_ref().is_some_and(|routed| looks_up(&routed.by, pair));
        if routes || part.vars.values().any(|var| start_looks_up(&var.range, pair)) {
            return false;
        }
        collect(part, &mut touching, |nest| touches(nest, pair));
    }
    match touching.as_slice() {
        [Found { nest, is_repeated: false }] => stores_what_it_reads(nest, pair),
        _ => false,
    }
}

/// For each buffer the one whose place it takes.
///
/// Only temporaries give and take, each once: the giver in the last step that touches it, the taker in its first.
pub(super) fn in_place(
    kernels: &List<KernelId, Kernel>,
    steps: &[Step],
    lifetimes: &List<BufferId, Option<Lifetime>>,
    is_temporary: &List<BufferId, bool>,
) -> List<BufferId, Option<BufferId>> {
    let mut in_place_of: List<BufferId, Option<BufferId>> = lifetimes.ids().map(|_| None).collect();
    let mut gives: List<BufferId, bool> = lifetimes.ids().map(|_| false).collect();
    for (number, step) in steps.iter().enumerate() {
        let begins = |id: BufferId| lifetimes[id].is_some_and(|lifetime| lifetime.first == number);
        let ends = |id: BufferId| lifetimes[id].is_some_and(|lifetime| lifetime.last == number);
        let is_used_once = |id: BufferId| step.args.iter().filter(|arg| **arg == id).count() == 1;
        let may_take = |id: &BufferId| is_temporary[*id] && begins(*id) && is_used_once(*id);
        for (written, access, taker) in bound(kernels, step) {
            if access == Access::Read || !may_take(&taker) {
                continue;
            }
            let giver = bound(kernels, step).find(|(read, access, giver)| {
                *access == Access::Read
                    && is_temporary[*giver]
                    && ends(*giver)
                    && !begins(*giver)
                    && !gives[*giver]
                    && is_used_once(*giver)
                    && may_share(&kernels[step.kernel], *read, written)
            });
            if let Some((.., giver)) = giver {
                gives[giver] = true;
                in_place_of[taker] = Some(giver);
            }
        }
    }
    in_place_of
}

/// A nest of a kernel, and whether a loop of the task repeats it.
struct Found<'a> {
    nest: &'a Nest,
    is_repeated: bool,
}

/// Whether the same indices mean the same bytes.
fn lie_alike(a: &Param, b: &Param) -> bool {
    let element_bytes = |param: &Param| param.format.plain().map(|_| param.format.block_bytes());
    let dims = |param: &Param| -> Vec<i64> { param.shape.iter().map(|(_, size)| size.most()).collect() };
    element_bytes(a).is_some() && element_bytes(a) == element_bytes(b) && dims(a) == dims(b)
}

fn collect<'a>(part: &'a Part, found: &mut Vec<Found<'a>>, mut wanted: impl FnMut(&Nest) -> bool) {
    let mut pending: Vec<(&Stmt, bool)> = part.body.iter().map(|stmt| (stmt, false)).collect();
    while let Some((stmt, is_repeated)) = pending.pop() {
        match stmt {
            Stmt::Nest(nest) if wanted(nest) => found.push(Found { nest, is_repeated }),
            Stmt::Nest(_) | Stmt::Quantise(_) => {}
            Stmt::Loop { body, .. } => pending.extend(body.iter().map(|stmt| (stmt, true))),
            Stmt::Once { body, .. } => pending.extend(body.iter().map(|stmt| (stmt, is_repeated))),
        }
    }
}

fn touches(nest: &Nest, pair: [Place; 2]) -> bool {
    let loads = |expr: &Expr| matches!(expr, Expr::Load { from, .. } if pair.contains(from));
    pair.contains(&nest.target) || nest.exprs.values().any(loads) || nest_looks_up(nest, pair)
}

/// Whether a nest stores to the second place once an element, and reads of both only that element of the first.
fn stores_what_it_reads(nest: &Nest, [read, written]: [Place; 2]) -> bool {
    let is_harmless = |expr: &Expr| match expr {
        Expr::Load { from, at } if *from == read => *at == nest.at,
        Expr::Load { from, .. } => *from != written,
        Expr::Const(_)
        | Expr::Position(_)
        | Expr::Unary(..)
        | Expr::Binary(..)
        | Expr::Select(..)
        | Expr::Cast(..) => true,
    };
    nest.target == written
        && !nest_looks_up(nest, [read, written])
        && nest.exprs.values().all(is_harmless)
        && is_one_to_one(nest)
}

/// Whether no two iterations of the outer loops store to one element: every loop has an axis of its own.
fn is_one_to_one(nest: &Nest) -> bool {
    nest.loops.iter().all(|var| nest.at.iter().any(|index| steps_with(index, *var, &nest.loops)))
}

/// Whether an index changes with a variable by a fixed step, and with no other of the loops.
fn steps_with(index: &Index, var: VarId, loops: &[VarId]) -> bool {
    let Some(step) = index.step_of(var).filter(|step| *step != 0) else { return false };
    !index.minus(&Index::var(var).times(step)).uses_var(|other| loops.contains(&other))
}

fn nest_looks_up(nest: &Nest, pair: [Place; 2]) -> bool {
    nest.indices().any(|index| looks_up(index, pair))
}

fn start_looks_up(range: &Range, pair: [Place; 2]) -> bool {
    match range {
        Range::Blocks(blocks) => looks_up(&blocks.start, pair),
        Range::Whole { .. } | Range::Within { .. } => false,
    }
}

fn looks_up(index: &Index, pair: [Place; 2]) -> bool {
    index.any(&mut |atom| matches!(atom, Atom::Lookup { from, .. } if pair.contains(from)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::foundation::entity::Id;
    use crate::kernel::parse::parse;

    /// Whether `@0` may be written as `@2`; `@1` is read too.
    fn shares(x: &str, y: &str, body: &str) -> bool {
        let text = format!(
            "kernel \"k\" map\n  read @0 x : {x}\n  read @1 w : f32[d:4, e:4]\n  write @2 y : {y}\npart\n{body}"
        );
        let kernel = parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        let complaints = crate::kernel::verify::verify(&kernel);
        assert!(complaints.is_empty(), "{complaints:?}");
        may_share(&kernel, ParamId::from_index(0), ParamId::from_index(2))
    }

    const VARS: &str = "  var d0 in 0..4\n  var e1 in 0..4\n";

    #[test]
    fn a_residual_added_to_a_product_is_in_place() {
        let body = format!(
            "{VARS}  tile tile0 : f32[]\n  grid d0\n  tile0[] = sum e1 of @1[d0, e1]\n  @2[d0] = add(@0[d0], tile0[])\n"
        );
        assert!(shares("f32[d:4]", "f32[d:4]", &tiles_first(&body)));
        let folded = format!("{VARS}  grid\n  for d0\n    @2[d0] = sum e1 of mul(@0[d0], @1[d0, e1])\n");
        assert!(shares("f32[d:4]", "f32[d:4]", &folded));
    }

    #[test]
    fn other_layouts_do_not_share() {
        let body = format!("{VARS}  grid d0\n  @2[d0] = cast.f16(@0[d0])\n");
        assert!(!shares("f32[d:4]", "f16[d:4]", &body));
        let body = format!("{VARS}  grid d0\n  for e1\n    @2[d0, e1] = @0[d0, e1]\n");
        assert!(shares("f32[d:4, e:4]", "f32[d:4, e:4]", &body));
        assert!(!shares("f32[d:4, e:5]", "f32[d:4, e:4]", &body));
    }

    #[test]
    fn an_element_read_elsewhere_is_not_replaced() {
        let reversed = format!("{VARS}  grid d0\n  @2[d0] = @0[-d0+3]\n");
        assert!(!shares("f32[d:4]", "f32[d:4]", &reversed));
        let folded = format!("{VARS}  grid d0\n  @2[d0] = sum e1 of mul(@0[e1], @1[d0, e1])\n");
        assert!(!shares("f32[d:4]", "f32[d:4]", &folded));
    }

    #[test]
    fn an_element_read_again_is_not_replaced() {
        let norm = format!(
            "{VARS}  tile tile0 : f32[]\n  grid d0\n  tile0[] = sum e1 of @0[e1]\n  @2[d0] = mul(@0[d0], tile0[])\n"
        );
        assert!(!shares("f32[d:4]", "f32[d:4]", &tiles_first(&norm)));
        let parts =
            format!("{VARS}  grid d0\n  @2[d0] = @0[d0]\npart\n{VARS}  grid d0\n  tile0[] = @0[d0]\n");
        let parts = parts.replacen("part\n", "part\n  tile tile0 : f32[]\n", 1);
        assert!(!shares("f32[d:4]", "f32[d:4]", &parts));
    }

    #[test]
    fn an_element_stored_again_and_again_is_not_replaced() {
        let inner = format!("{VARS}  grid d0\n  for e1\n    @2[d0] = add(@0[d0], @1[d0, e1])\n");
        assert!(!shares("f32[d:4]", "f32[d:4]", &inner));
        let outer = format!("{VARS}  grid d0\n  loop e1\n    @2[d0] = add(@0[d0], @1[d0, e1])\n  end\n");
        assert!(!shares("f32[d:4]", "f32[d:4]", &outer));
        let halves = format!("{VARS}  grid\n  for d0\n    @2[(d0/2)] = add(@0[(d0/2)], 1.0)\n");
        assert!(!shares("f32[d:4]", "f32[d:4]", &halves));
    }

    #[test]
    fn a_position_looked_up_is_not_replaced() {
        let body = format!("{VARS}  grid d0\n  @2[d0] = add(@0[d0], position(lookup(@0[d0], 4)))\n");
        assert!(!shares("i32[d:4]", "i32[d:4]", &body));
    }

    /// Tiles are declared before variables.
    fn tiles_first(body: &str) -> String {
        let (tiles, rest): (Vec<&str>, Vec<&str>) =
            body.lines().partition(|line| line.starts_with("  tile "));
        [tiles, rest, vec![""]].concat().join("\n")
    }
}
