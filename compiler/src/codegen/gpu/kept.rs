//! Sums of products that stay in registers while a loop adds to them.
//!
//! In: a part, and its factors. Out: the tiles of such sums, each with its loop. A nest before the loop puts zeros
//! there, one product in the loop adds to them, and nothing else touches them until the loop is done. Then they are
//! stored, and only from then on is there need for memory: `life.rs` counts so.

use std::collections::BTreeMap;

use crate::codegen::gpu::emit::tiles_read;
use crate::codegen::gpu::factor::Factor;
use crate::codegen::gpu::product::{Operand, Product, Start, product};
use crate::graph::op::Scalar;
use crate::kernel::walk::nests;
use crate::kernel::{Expr, Kernel, Nest, Part, Place, Stmt, TileId, VarId};

/// The loop during which the sums of a tile are kept.
pub(super) type Kept = BTreeMap<TileId, VarId>;

/// The sums of a part that are kept, where these tiles are factors.
pub(super) fn kept(kernel: &Kernel, part: &Part, factors: &BTreeMap<TileId, Factor>) -> Kept {
    let mut found = Kept::new();
    for sum in nests(&part.body).filter_map(|nest| sum_of_factors(kernel, part, nest, factors)) {
        if let Some(var) = loop_of(part, &part.body, &sum) {
            found.insert(sum.tile, var);
        }
    }
    found
}

/// What a nest adds to, where it is a product of factors that adds to what is there.
fn sum_of_factors(
    kernel: &Kernel,
    part: &Part,
    nest: &Nest,
    factors: &BTreeMap<TileId, Factor>,
) -> Option<Operand> {
    let Product { left, right, sum, start, .. } = product(kernel, part, nest, nest.fold.as_ref()?)?;
    let are_factors = [left, right].iter().all(|operand| factors.contains_key(&operand.tile));
    (are_factors && start == Some(Start::Own)).then_some(sum)
}

/// The outermost loop of a body during which nothing but its product touches a sum that is zero before.
fn loop_of(part: &Part, body: &[Stmt], sum: &Operand) -> Option<VarId> {
    let (number, var, inner) = body.iter().enumerate().find_map(|(number, stmt)| match stmt {
        Stmt::Loop { var, body } if n_touching(body, sum.tile) > 0 => Some((number, *var, body)),
        Stmt::Loop { .. } | Stmt::Nest(_) => None,
    })?;
    let (before, behind) = (&body[..number], &body[number + 1..]);
    let is_emptied = before.iter().filter_map(Stmt::nest).any(|nest| empties(nest, sum.tile));
    let is_only_read = nests(behind).all(|nest| nest.target != Place::Tile(sum.tile));
    let n_others = n_touching(&part.body, sum.tile) - n_touching(behind, sum.tile);
    let loops = body[number].loops();
    let stays = !sum.element.uses_var(|own| loops.contains(&own));
    // One nest puts zeros there, and another is the product.
    if is_emptied && is_only_read && n_others == 2 && stays {
        return Some(var);
    }
    loop_of(part, inner, sum)
}

/// Whether a nest puts zeros into a tile.
fn empties(nest: &Nest, tile: TileId) -> bool {
    let is_zero = matches!(nest.exprs[nest.value], Expr::Const(Scalar::F32(0)));
    nest.target == Place::Tile(tile) && nest.fold.is_none() && is_zero
}

/// How many nests of a body read or write a tile.
fn n_touching(body: &[Stmt], tile: TileId) -> usize {
    let touches = |nest: &&Nest| nest.target == Place::Tile(tile) || tiles_read(nest).contains(&tile);
    nests(body).filter(touches).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codegen::gpu::factor::factors;
    use crate::codegen::gpu::life::lives;
    use crate::codegen::samples::PRODUCT;
    use crate::foundation::entity::Id;
    use crate::kernel::parse::parse;

    fn kept_in(text: &str) -> (Part, Kept) {
        let kernel = parse(text).unwrap();
        let part = kernel.parts[0].clone();
        let kept = kept(&kernel, &part, &factors(&kernel, &part));
        (part, kept)
    }

    #[test]
    fn a_sum_that_is_zero_before_its_loop_is_kept_and_needs_memory_behind_it_only() {
        let (part, kept) = kept_in(PRODUCT);
        assert_eq!(kept, Kept::from([(TileId::from_index(0), VarId::from_index(2))]));
        let of = |kept: &Kept| lives(&part, kept).values().cloned().collect::<Vec<_>>();
        assert_eq!(of(&kept), [5..6, 2..5, 3..5]);
        assert_eq!(of(&Kept::new()), [0..6, 2..5, 3..5]);
    }

    #[test]
    fn a_sum_is_stored_in_every_round_where_something_else_touches_it() {
        let not_empty = PRODUCT.replace("tile0[t0, r1] = 0.0", "tile0[t0, r1] = 1.0");
        let read = "    for t0, r1\n      @2[t0, r1] = tile0[t0, r1]\n  end";
        let is_read = PRODUCT.replace("  end", read);
        let no_start = PRODUCT.replace(" from tile0[t0, r1]", "");
        for text in [not_empty, is_read, no_start] {
            assert!(kept_in(&text).1.is_empty(), "{text}");
        }
    }
}
