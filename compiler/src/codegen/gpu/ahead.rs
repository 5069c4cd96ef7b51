//! Tiles that memory is asked for a round ahead.
//!
//! In: a loop that fills tiles with vectors of memory and multiplies them. Out: the same loop, where each thread asks
//! for its pieces of the next round before the products of this one, and has them in registers meanwhile.
//! The last round asks once more for its own, so that all rounds are alike.

use std::collections::BTreeSet;

use cubecl_core::ir::Variable;

use crate::codegen::gpu::emit::{Emitter, tiles_read};
use crate::codegen::gpu::filling::Filling;
use crate::codegen::gpu::wide::{Fetched, Words};
use crate::codegen::gpu::writer::Changing;
use crate::kernel::walk::nests;
use crate::kernel::{Place, Stmt, TileId, VarId};

/// Words that a thread may have of the next round.
const MOST_AHEAD: i64 = 32;

/// What a thread has of the next round.
pub(super) struct Ahead<'n> {
    fillings: Vec<Held<'n>>,
    /// What comes behind the tiles that are filled.
    rest: &'n [Stmt],
}

/// Pieces of a tile, whose words are variables.
struct Held<'n> {
    filling: Filling<'n>,
    pieces: Vec<Fetched>,
    words: Vec<Changing>,
}

impl<'a> Emitter<'a> {
    /// Asks for what the first round of a loop fills, where tiles may be asked for ahead.
    pub(super) fn begun_ahead(
        &mut self,
        (var, first): (VarId, Variable),
        body: &'a [Stmt],
    ) -> Option<Ahead<'a>> {
        let written: BTreeSet<TileId> = nests(body)
            .filter_map(|nest| match nest.target {
                Place::Tile(tile) => Some(tile),
                Place::Param(_) => None,
            })
            .collect();
        let fillings = self.fillings(body);
        let rest = &body[fillings.len()..];
        let is_apart = fillings.iter().all(|own| tiles_read(own.nest).is_disjoint(&written));
        let n_words: i64 = fillings.iter().map(Filling::n_words).sum();
        let are_whole = fillings.iter().all(Filling::is_one_round);
        if fillings.is_empty() || !is_apart || !are_whole || n_words > MOST_AHEAD {
            return None;
        }
        self.vars.insert(var, first);
        let held = fillings.into_iter().map(|filling| {
            let (mut pieces, mut words) = (self.asked_for(&filling, self.unit), Vec::new());
            for word in pieces.iter_mut().flat_map(words_of) {
                let held = self.writer.changing(*word);
                *word = held.value();
                words.push(held);
            }
            Held { filling, pieces, words }
        });
        let fillings = held.collect();
        Some(Ahead { fillings, rest })
    }

    /// A round of such a loop, and what it asks for the next.
    pub(super) fn round_ahead(&mut self, var: VarId, [own, next]: [Variable; 2], ahead: &Ahead<'a>) {
        for held in &ahead.fillings {
            self.wait_for(held.filling.nest);
        }
        for held in &ahead.fillings {
            self.put(&held.filling, self.unit, &held.pieces);
        }
        self.vars.insert(var, next);
        for held in &ahead.fillings {
            let mut pieces = self.asked_for(&held.filling, self.unit);
            for (held, word) in held.words.iter().zip(pieces.iter_mut().flat_map(words_of)) {
                self.writer.set(held, *word);
            }
        }
        self.vars.insert(var, own);
        self.body(ahead.rest);
        self.meet();
    }
}

/// The words of a piece, in order.
fn words_of(piece: &mut Fetched) -> impl Iterator<Item = &mut Variable> {
    piece.values_mut().flat_map(Words::all_mut)
}
