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
    let loops = loops_of(inner).into_iter().chain([var]).collect::<Vec<_>>();
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

/// The loops of a body, those in others as well.
fn loops_of(body: &[Stmt]) -> Vec<VarId> {
    let mut found = Vec::new();
    for stmt in body {
        if let Stmt::Loop { var, body } = stmt {
            found.push(*var);
            found.extend(loops_of(body));
        }
    }
    found
}
