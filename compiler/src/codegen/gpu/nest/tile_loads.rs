//! Global-to-shared copies: tiles filled by vectorised loads.
//!
//! In: consecutive nests. Out: for those that fill tiles along the elements of buffers, the loads and stores of each
//! thread. The loads of several tiles are issued before the first is stored, to hide memory latency.

use cubecl_core::ir::Variable;

use crate::codegen::gpu::emit::Emitter;
use crate::codegen::gpu::nest::thread_mapping::{Limit, LoopCounts, MAX_WORDS_IN_FLIGHT};
use crate::codegen::gpu::nest::vector_loads::LoadedVectors;
use crate::codegen::gpu::writer::{constant, known};
use crate::kernel::vector_loads::{VectorLoads, fill_vector_loads};
use crate::kernel::walk::tiles_read;
use crate::kernel::{Nest, Place, Stmt};
use crate::target::THREADS;

/// A tile that is filled by vector loads.
pub(crate) struct TileLoad<'n> {
    pub(crate) nest: &'n Nest,
    vectors: VectorLoads,
    /// Trip counts (the last in pieces), and the variables that may have fewer.
    counts: Vec<Variable>,
    limits: Vec<Limit>,
    /// Pieces of all threads.
    n: Variable,
    /// Pieces that a thread loads at once.
    in_flight: u32,
}

impl TileLoad<'_> {
    /// Words that a thread has in flight.
    pub(crate) fn n_words(&self) -> i64 {
        self.vectors.n_words * i64::from(self.in_flight)
    }

    /// Whether the threads fill the tile in one round.
    pub(crate) fn is_one_round(&self) -> bool {
        known(self.n) == Some(THREADS * self.in_flight)
    }
}

/// The position of a piece.
struct PiecePosition {
    i: Variable,
    is_there: Option<Variable>,
    /// The first value of the last variable.
    base: Variable,
}

impl Emitter<'_> {
    /// Fills the tiles of the leading nests, and gives how many nests these are.
    pub(crate) fn load_tiles(&mut self, body: &[Stmt]) -> usize {
        let loads_of_tiles = self.tile_loads(body);
        let n = loads_of_tiles.len();
        let mut together: Vec<TileLoad<'_>> = Vec::new();
        for tile_load in loads_of_tiles {
            if !self.may_load_with(&together, &tile_load) {
                self.load_together(&together);
                together.clear();
            }
            together.push(tile_load);
        }
        self.load_together(&together);
        n
    }

    /// The leading nests that fill tiles by vector loads.
    pub(crate) fn tile_loads<'n>(&mut self, body: &'n [Stmt]) -> Vec<TileLoad<'n>> {
        let vectors = |stmt: &'n Stmt| {
            let nest = stmt.nest()?;
            Some((nest, fill_vector_loads(self.kernel, self.part, nest)?))
        };
        let nests: Vec<(&Nest, VectorLoads)> = body.iter().map_while(vectors).collect();
        nests.into_iter().map(|(nest, vectors)| self.tile_load(nest, vectors)).collect()
    }

    /// Whether a tile may be loaded together with others: each in one round, few words in flight, and no tile is
    /// overwritten that another of the nests still reads.
    fn may_load_with(&self, others: &[TileLoad<'_>], tile_load: &TileLoad<'_>) -> bool {
        let all = || others.iter().chain([tile_load]);
        let own = tile_load.nest;
        let is_apart = |other: &TileLoad<'_>| {
            let meets = |nest: &Nest, read: &Nest| {
                let Place::Tile(tile) = nest.target else { return false };
                tiles_read(read).into_iter().any(|other| self.overlap(tile, other))
            };
            !meets(other.nest, own) && !meets(own, other.nest)
        };
        all().all(TileLoad::is_one_round)
            && all().map(TileLoad::n_words).sum::<i64>() <= MAX_WORDS_IN_FLIGHT
            && others.iter().all(is_apart)
    }

    fn tile_load<'n>(&mut self, nest: &'n Nest, vectors: VectorLoads) -> TileLoad<'n> {
        let LoopCounts { mut counts, limits } = self.fixed_loop_counts(&nest.loops);
        if let Some(last) = counts.last_mut() {
            *last = constant(vectors.n_pieces);
        }
        let n = self.product(&counts);
        let n_rounds = known(n).filter(|n| n.is_multiple_of(THREADS)).map_or(1, |n| n / THREADS);
        let most = (MAX_WORDS_IN_FLIGHT / vectors.n_words.max(1)).max(1) as u32;
        let in_flight = (1..=most).rev().find(|some| n_rounds.is_multiple_of(*some)).unwrap_or(1);
        TileLoad { nest, vectors, counts, limits, n, in_flight }
    }

    /// Fills one tile, or several of one round each.
    fn load_together(&mut self, loads_of_tiles: &[TileLoad<'_>]) {
        for tile_load in loads_of_tiles {
            self.sync_before_nest(tile_load.nest);
        }
        let Some(first) = loads_of_tiles.first() else { return };
        self.strided(first.n, first.in_flight, |emitter, i| {
            let asked: Vec<Vec<LoadedVectors>> =
                loads_of_tiles.iter().map(|tile_load| emitter.issue_loads(tile_load, i)).collect();
            for (tile_load, pieces) in loads_of_tiles.iter().zip(asked) {
                emitter.store_pieces(tile_load, i, &pieces);
            }
        });
    }

    /// The position of a thread's piece, counted from its first.
    fn piece_position(&mut self, tile_load: &TileLoad<'_>, first: Variable, number: usize) -> PiecePosition {
        let TileLoad { nest, vectors, counts, limits, .. } = tile_load;
        let i = self.writer.add(first, constant(i64::from(THREADS) * number as i64));
        let (i, is_there, piece) = self.bind_clamped(&nest.loops, (counts, limits), i);
        let start = nest.loops.last().map_or(constant(0), |var| self.start(*var));
        let further = self.writer.mul(piece, constant(vectors.len));
        PiecePosition { i, is_there, base: self.writer.add(start, further) }
    }

    /// Issues the loads of a thread, from its first piece on.
    pub(crate) fn issue_loads(&mut self, tile_load: &TileLoad<'_>, first: Variable) -> Vec<LoadedVectors> {
        let numbers = 0..tile_load.in_flight as usize;
        let pieces = numbers.map(|number| {
            let PiecePosition { base, .. } = self.piece_position(tile_load, first, number);
            self.load_piece(&tile_load.vectors, base)
        });
        pieces.collect()
    }

    /// Stores a thread's loaded pieces to the tile.
    pub(crate) fn store_pieces(
        &mut self,
        tile_load: &TileLoad<'_>,
        first: Variable,
        pieces: &[LoadedVectors],
    ) {
        for (number, fetched) in pieces.iter().enumerate() {
            let PiecePosition { i, is_there, base } = self.piece_position(tile_load, first, number);
            self.if_present(is_there, |emitter| {
                emitter.bind(&tile_load.nest.loops, &tile_load.counts, i);
                emitter.store_piece(tile_load.nest, &tile_load.vectors, base, fetched);
            });
        }
    }
}
