//! How long the tiles of a task are needed.
//!
//! In: a part. Out: for each tile the nests from the first that touches it to the last, by their numbers in the text.
//! What is written before a loop and touched in it is needed to the loop's end. What only a loop touches is written
//! anew in each round, for a verified part writes a tile before it reads it. What some nests read and none writes is
//! there from the beginning and needed to the end. Sums that are kept in registers while a loop goes on need no memory
//! before it is done.

use std::collections::BTreeSet;
use std::ops::Range as Numbers;

use crate::codegen::gpu::emit::{tiles_in, tiles_read};
use crate::codegen::gpu::kept::Kept;
use crate::foundation::entity::List;
use crate::kernel::{Part, Place, Stmt, TileId};

/// The first nest that needs a tile, and one past the last; none where nothing does.
pub(super) type Lives = List<TileId, Numbers<usize>>;

/// The lives of the tiles of a part.
pub(super) fn lives(part: &Part, kept: &Kept) -> Lives {
    let mut found = part.tiles.ids().map(|_| 0..0).collect();
    let mut written = BTreeSet::new();
    let end = walk((part, kept), &part.body, 0, &mut found, &mut written);
    for tile in part.tiles.ids().filter(|tile| !written.contains(tile)) {
        let is_read = !found[tile].is_empty();
        found[tile] = 0..if is_read { end } else { 0 };
    }
    found
}

/// Goes through statements from a number on, to the number behind them.
fn walk(
    (part, kept): (&Part, &Kept),
    body: &[Stmt],
    start: usize,
    lives: &mut Lives,
    all_written: &mut BTreeSet<TileId>,
) -> usize {
    let mut now = start;
    for stmt in body {
        match stmt {
            Stmt::Nest(nest) => {
                let written = match nest.target {
                    Place::Tile(tile) => Some(tile),
                    Place::Param(_) => None,
                };
                let in_registers = written.filter(|tile| kept.contains_key(tile));
                for tile in
                    tiles_read(nest).into_iter().chain(written).filter(|tile| in_registers != Some(*tile))
                {
                    touch(lives, tile, now);
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
                    touch(lives, tile, now);
                }
                let first = now + 1;
                now = walk((part, kept), body, first, lives, all_written);
                for life in lives.values_mut().filter(|life| life.start < first && first < life.end) {
                    life.end = now;
                }
                for (tile, _) in kept.iter().filter(|(_, of)| *of == var) {
                    touch(lives, *tile, now);
                }
            }
        }
    }
    now
}

fn touch(lives: &mut Lives, tile: TileId, now: usize) {
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
        let lives = lives(&kernel.parts[0], &Kept::new());
        assert_eq!(lives.values().cloned().collect::<Vec<_>>(), [0..6, 2..4, 3..5, 4..6]);
    }

    #[test]
    fn what_no_nest_writes_is_needed_throughout() {
        let mut part = parse(KERNEL).unwrap().parts.remove(0);
        let Stmt::Loop { body, .. } = &mut part.body[1] else { panic!("a loop") };
        body.remove(0);
        let lives = lives(&part, &Kept::new());
        assert_eq!(lives.values().cloned().collect::<Vec<_>>(), [0..1, 0..5, 2..4, 3..5]);
    }
}
