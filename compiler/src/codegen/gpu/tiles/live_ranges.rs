//! Live ranges of tiles, in nests.
//!
//! In: a part. Out: for each tile the range of nests, by their numbers in the text, during which it holds a value that
//! is still needed. A tile written before a loop and accessed in it lives to the loop's end. One that only a loop
//! accesses is written anew in each round, because a verified part writes a tile before it reads it. One that is never
//! written lives throughout. Accumulators kept in registers live in memory only after their loop.

use std::collections::BTreeSet;
use std::ops::Range as Numbers;

use crate::codegen::gpu::tiles::accumulators::Accumulators;
use crate::foundation::entity::List;
use crate::kernel::walk::{tiles_in, tiles_read};
use crate::kernel::{Part, Stmt, TileId};

/// From the first nest that needs a tile to one past the last; empty where none does.
pub(crate) type LiveRanges = List<TileId, Numbers<usize>>;

/// The live ranges of the tiles of a part.
pub(crate) fn live_ranges(part: &Part, kept: &Accumulators) -> LiveRanges {
    let mut found = part.tiles.ids().map(|_| 0..0).collect();
    let mut written = BTreeSet::new();
    let end = walk((part, kept), &part.body, 0, &mut found, &mut written);
    for tile in part.tiles.ids().filter(|tile| !written.contains(tile)) {
        let is_read = !found[tile].is_empty();
        found[tile] = 0..if is_read { end } else { 0 };
    }
    found
}

/// Walks statements, the first of them numbered `start`; returns the number after the last.
fn walk(
    (part, kept): (&Part, &Accumulators),
    body: &[Stmt],
    start: usize,
    lives: &mut LiveRanges,
    all_written: &mut BTreeSet<TileId>,
) -> usize {
    let mut now = start;
    for stmt in body {
        match stmt {
            Stmt::Nest(nest) => {
                let written = nest.tile();
                let in_registers = written.filter(|tile| kept.contains_key(tile));
                for tile in
                    tiles_read(nest).into_iter().chain(written).filter(|tile| in_registers != Some(*tile))
                {
                    extend(lives, tile, now);
                }
                all_written.extend(written);
                now += 1;
            }
            Stmt::Loop { var, body } => {
                let mut read = BTreeSet::new();
                if let Some(blocks) = part.vars[*var].range.blocks() {
                    tiles_in(&blocks.start, &mut read);
                }
                for tile in read {
                    extend(lives, tile, now);
                }
                let first = now + 1;
                now = walk((part, kept), body, first, lives, all_written);
                for life in lives.values_mut().filter(|life| life.start < first && first < life.end) {
                    life.end = now;
                }
                for (tile, _) in kept.iter().filter(|(_, of)| *of == var) {
                    extend(lives, *tile, now);
                }
            }
            Stmt::Once { body, .. } => now = walk((part, kept), body, now, lives, all_written),
            Stmt::Quantise(_) => {}
        }
    }
    now
}

fn extend(lives: &mut LiveRanges, tile: TileId, now: usize) {
    let life = &mut lives[tile];
    *life = if life.end == 0 { now..now + 1 } else { life.start..now + 1 };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::parse::parse;

    const KERNEL: &str = r#"kernel "rounds" map
  read @0 x : f32[d:64]
  write @1 y : f32[d:64]
part
  tile tile0 : f32[64]
  tile tile1 : f32[16]
  tile tile2 : f32[16]
  tile tile3 : f32[16]
  var d0 in 0..64
  var d1 in blocks of 16 step 16 from 0 to 64
  var d2 within d1
  grid
  for d0
    tile0[d0] = @0[d0]
  loop d1
    for d2
      tile1[-d1+d2] = tile0[d2]
    for d2
      tile2[-d1+d2] = tile1[-d1+d2]
    for d2
      tile3[-d1+d2] = tile2[-d1+d2]
    for d2
      @1[d2] = tile3[-d1+d2]
  end
"#;

    #[test]
    fn what_comes_from_before_a_loop_is_needed_to_its_end_and_other_tiles_only_in_a_round() {
        let kernel = parse(KERNEL).unwrap();
        let lives = live_ranges(&kernel.parts[0], &Accumulators::new());
        assert_eq!(lives.values().cloned().collect::<Vec<_>>(), [0..6, 2..4, 3..5, 4..6]);
    }

    #[test]
    fn what_no_nest_writes_is_needed_throughout() {
        let mut part = parse(KERNEL).unwrap().parts.remove(0);
        let Stmt::Loop { body, .. } = &mut part.body[1] else { panic!("a loop") };
        body.remove(0);
        let lives = live_ranges(&part, &Accumulators::new());
        assert_eq!(lives.values().cloned().collect::<Vec<_>>(), [0..1, 0..5, 2..4, 3..5]);
    }
}
