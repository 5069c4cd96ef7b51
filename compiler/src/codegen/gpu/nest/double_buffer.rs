//! Double buffering: global loads of the next K-step overlap the products of this one.
//!
//! In: a loop that fills tiles by vector loads and multiplies them. Out: the same loop, software-pipelined; the second
//! buffer is in registers:
//!
//! ```text
//!  before the loop   regs = load(step 0)
//!  step i            barrier; tiles = regs; barrier; regs = load(step i + 1); mma(tiles)
//! ```
//!
//! The last step loads its own operands once more, so that all steps are alike.

use std::collections::BTreeSet;

use cubecl_core::ir::Variable;

use crate::codegen::gpu::emit::Emitter;
use crate::codegen::gpu::nest::tile_loads::TileLoad;
use crate::codegen::gpu::nest::vector_loads::{LoadedVectors, PackedWords};
use crate::codegen::gpu::writer::MutableVar;
use crate::kernel::walk::{nests, tiles_read};
use crate::kernel::{Place, Stmt, TileId, VarId};

/// The most words a thread prefetches.
const MAX_PREFETCHED_WORDS: i64 = 32;

/// What a thread has prefetched.
pub(crate) struct DoubleBuffer<'n> {
    tile_loads: Vec<PrefetchedTile<'n>>,
    /// The statements after the leading tile loads.
    rest: &'n [Stmt],
}

/// A prefetched tile, whose words are mutable variables.
struct PrefetchedTile<'n> {
    tile_load: TileLoad<'n>,
    pieces: Vec<LoadedVectors>,
    words: Vec<MutableVar>,
}

impl<'a> Emitter<'a> {
    /// Loads the first step, if the loop can be double-buffered.
    pub(crate) fn begin_double_buffer(
        &mut self,
        (var, first): (VarId, Variable),
        body: &'a [Stmt],
    ) -> Option<DoubleBuffer<'a>> {
        let written: BTreeSet<TileId> = nests(body)
            .filter_map(|nest| match nest.target {
                Place::Tile(tile) => Some(tile),
                Place::Param(_) => None,
            })
            .collect();
        let tile_loads = self.tile_loads(body);
        let rest = &body[tile_loads.len()..];
        let is_apart = tile_loads.iter().all(|own| tiles_read(own.nest).is_disjoint(&written));
        let n_words: i64 = tile_loads.iter().map(TileLoad::n_words).sum();
        let are_whole = tile_loads.iter().all(TileLoad::is_one_round);
        if tile_loads.is_empty() || !is_apart || !are_whole || n_words > MAX_PREFETCHED_WORDS {
            return None;
        }
        self.vars.insert(var, first);
        let prefetched = tile_loads.into_iter().map(|tile_load| {
            let (mut pieces, mut words) = (self.issue_loads(&tile_load, self.thread), Vec::new());
            for word in pieces.iter_mut().flat_map(words_mut) {
                let prefetched = self.writer.mutable(*word);
                *word = prefetched.value();
                words.push(prefetched);
            }
            PrefetchedTile { tile_load, pieces, words }
        });
        let tile_loads = prefetched.collect();
        Some(DoubleBuffer { tile_loads, rest })
    }

    /// One step: stores what was prefetched, and prefetches the next.
    pub(crate) fn double_buffered_round(
        &mut self,
        var: VarId,
        [own, next]: [Variable; 2],
        buffer: &DoubleBuffer<'a>,
    ) {
        for prefetched in &buffer.tile_loads {
            self.sync_before_nest(prefetched.tile_load.nest);
        }
        for prefetched in &buffer.tile_loads {
            self.store_pieces(&prefetched.tile_load, self.thread, &prefetched.pieces);
        }
        self.vars.insert(var, next);
        for prefetched in &buffer.tile_loads {
            let mut pieces = self.issue_loads(&prefetched.tile_load, self.thread);
            for (prefetched, word) in prefetched.words.iter().zip(pieces.iter_mut().flat_map(words_mut)) {
                self.writer.set(prefetched, *word);
            }
        }
        self.vars.insert(var, own);
        self.body(buffer.rest);
        self.sync_if_accessed();
    }
}

/// The words of a piece, in order.
fn words_mut(piece: &mut LoadedVectors) -> impl Iterator<Item = &mut Variable> {
    piece.values_mut().flat_map(PackedWords::all_mut)
}
