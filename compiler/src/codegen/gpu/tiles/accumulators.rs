//! MMA accumulators that stay in registers across the K loop.
//!
//! In: a part and its products of tiles. Out: the tiles of such accumulators, each with its loop. They are zeroed
//! before the loop, one product in the loop adds to them, and nothing else accesses them until it is done. Only then
//! are they stored, so their tile needs memory from there on (`live_ranges.rs`).

use std::collections::BTreeMap;

use crate::graph::op::Scalar;
use crate::kernel::product::tiles::{Operand, Start, TileProduct};
use crate::kernel::walk::{nests, tiles_read};
use crate::kernel::{Expr, Nest, Part, Place, Stmt, TileId, VarId};

/// The loop during which a tile's sums stay in registers.
pub(crate) type Accumulators = BTreeMap<TileId, VarId>;

/// The accumulators of a part with these products of tiles.
pub(crate) fn accumulators(part: &Part, products: &[TileProduct]) -> Accumulators {
    let added = products.iter().filter(|product| product.start == Some(Start::Own));
    let kept = added
        .filter_map(|TileProduct { sum, .. }| Some((sum.tile, accumulation_loop(part, &part.body, sum)?)));
    kept.collect()
}

/// The outermost loop in which only the product accesses the sums, which are zero before it.
fn accumulation_loop(part: &Part, body: &[Stmt], sum: &Operand) -> Option<VarId> {
    let (number, var, inner) = body.iter().enumerate().find_map(|(number, stmt)| match stmt {
        Stmt::Loop { var, body } if n_accesses(body, sum.tile) > 0 => Some((number, *var, body)),
        Stmt::Loop { .. } | Stmt::Once { .. } | Stmt::Nest(_) | Stmt::Quantise(_) => None,
    })?;
    let (before, after) = (&body[..number], &body[number + 1..]);
    let is_zeroed = before.iter().filter_map(Stmt::nest).any(|nest| zeroes(nest, sum.tile));
    let is_only_read = nests(after).all(|nest| nest.target != Place::Tile(sum.tile));
    let n_others = n_accesses(&part.body, sum.tile) - n_accesses(after, sum.tile);
    let loops = body[number].loops();
    let stays = !sum.element.uses_var(|own| loops.contains(&own));
    // One nest zeroes it, and the other is the product.
    if is_zeroed && is_only_read && n_others == 2 && stays {
        return Some(var);
    }
    accumulation_loop(part, inner, sum)
}

/// Whether a nest zeroes a tile.
fn zeroes(nest: &Nest, tile: TileId) -> bool {
    let is_zero = matches!(nest.exprs[nest.value], Expr::Const(Scalar::F32(0)));
    nest.target == Place::Tile(tile) && nest.fold.is_none() && is_zero
}

/// How many nests read or write a tile.
fn n_accesses(body: &[Stmt], tile: TileId) -> usize {
    let touches = |nest: &&Nest| nest.target == Place::Tile(tile) || tiles_read(nest).contains(&tile);
    nests(body).filter(touches).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codegen::gpu::tiles::live_ranges::live_ranges;
    use crate::foundation::entity::Id;
    use crate::kernel::parse::parse;
    use crate::kernel::product::tiles::tile_products;
    use crate::kernel::samples::PRODUCT;

    fn kept_in(text: &str) -> (Part, Accumulators) {
        let kernel = parse(text).unwrap();
        let part = kernel.parts[0].clone();
        let kept = accumulators(&part, &tile_products(&kernel, &part));
        (part, kept)
    }

    #[test]
    fn accumulators_stay_in_registers_and_need_memory_after_their_loop_only() {
        let (part, kept) = kept_in(PRODUCT);
        assert_eq!(kept, Accumulators::from([(TileId::from_index(0), VarId::from_index(2))]));
        let of = |kept: &Accumulators| live_ranges(&part, kept).values().cloned().collect::<Vec<_>>();
        assert_eq!(of(&kept), [5..6, 2..5, 3..5]);
        assert_eq!(of(&Accumulators::new()), [0..6, 2..5, 3..5]);
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
