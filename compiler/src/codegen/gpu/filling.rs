//! Tiles that are filled with vectors of memory.
//!
//! In: nests one behind the other. Out: for those that fill tiles with elements along buffers, what each thread does:
//! it asks for its pieces of several tiles before it needs the first, because memory is far.

use cubecl_core::ir::Variable;

use crate::codegen::gpu::THREADS;
use crate::codegen::gpu::emit::{Emitter, tiles_read};
use crate::codegen::gpu::share::{MOST_WORDS, Sizes};
use crate::codegen::gpu::wide::{Fetched, Wide, wide_fill};
use crate::codegen::gpu::writer::{constant, known};
use crate::kernel::{Nest, Place, Stmt, VarId};

/// A tile that is being filled.
pub(super) struct Filling<'n> {
    pub(super) nest: &'n Nest,
    wide: Wide,
    /// How many values its variables have, pieces of the last, and those that may have fewer.
    counts: Vec<Variable>,
    limits: Vec<(VarId, Variable)>,
    /// Pieces of all threads.
    n: Variable,
    /// Pieces that a thread asks for at once.
    at_once: u32,
}

impl Filling<'_> {
    /// Words that a thread asks for at once.
    pub(super) fn n_words(&self) -> i64 {
        self.wide.n_words * i64::from(self.at_once)
    }

    /// Whether that is all that a thread does.
    pub(super) fn is_one_round(&self) -> bool {
        known(self.n) == Some(THREADS * self.at_once)
    }
}

/// Where a piece is.
struct PieceAt {
    i: Variable,
    is_there: Option<Variable>,
    /// The first value of the last variable.
    base: Variable,
}

impl Emitter<'_> {
    /// Fills the tiles that the first nests of a body fill so, and says how many nests these are.
    pub(super) fn filled(&mut self, body: &[Stmt]) -> usize {
        let fillings = self.fillings(body);
        let n = fillings.len();
        let mut together: Vec<Filling<'_>> = Vec::new();
        for filling in fillings {
            if !self.goes_with(&together, &filling) {
                self.filled_together(&together);
                together.clear();
            }
            together.push(filling);
        }
        self.filled_together(&together);
        n
    }

    /// The first nests of a body, as far as they fill tiles with vectors.
    pub(super) fn fillings<'n>(&mut self, body: &'n [Stmt]) -> Vec<Filling<'n>> {
        let wide = |stmt: &'n Stmt| {
            let nest = stmt.nest()?;
            Some((nest, wide_fill(self.kernel, self.part, nest)?))
        };
        let nests: Vec<(&Nest, Wide)> = body.iter().map_while(wide).collect();
        nests.into_iter().map(|(nest, wide)| self.filling(nest, wide)).collect()
    }

    /// Whether a tile may be asked for together with others: all in one round, few words, nothing read of theirs, and
    /// nothing put where they still read.
    fn goes_with(&self, others: &[Filling<'_>], filling: &Filling<'_>) -> bool {
        let all = || others.iter().chain([filling]);
        let own = filling.nest;
        let is_apart = |other: &Filling<'_>| {
            let meets = |nest: &Nest, read: &Nest| {
                let Place::Tile(tile) = nest.target else { return false };
                tiles_read(read).into_iter().any(|other| self.lie_together(tile, other))
            };
            !meets(other.nest, own) && !meets(own, other.nest)
        };
        all().all(Filling::is_one_round)
            && all().map(Filling::n_words).sum::<i64>() <= MOST_WORDS
            && others.iter().all(is_apart)
    }

    fn filling<'n>(&mut self, nest: &'n Nest, wide: Wide) -> Filling<'n> {
        let Sizes { mut counts, limits } = self.sizes_of_all(&nest.loops);
        if let Some(last) = counts.last_mut() {
            *last = constant(wide.n_pieces);
        }
        let n = self.product(&counts);
        let n_rounds = known(n).filter(|n| n.is_multiple_of(THREADS)).map_or(1, |n| n / THREADS);
        let most = (MOST_WORDS / wide.n_words.max(1)).max(1) as u32;
        let at_once = (1..=most).rev().find(|some| n_rounds.is_multiple_of(*some)).unwrap_or(1);
        Filling { nest, wide, counts, limits, n, at_once }
    }

    /// Fills tiles: one, or several of one round each.
    fn filled_together(&mut self, fillings: &[Filling<'_>]) {
        for filling in fillings {
            self.wait_for(filling.nest);
        }
        let Some(first) = fillings.first() else { return };
        self.each_of_so_many(first.n, first.at_once, |emitter, i| {
            let asked: Vec<Vec<Fetched>> =
                fillings.iter().map(|filling| emitter.asked_for(filling, i)).collect();
            for (filling, pieces) in fillings.iter().zip(asked) {
                emitter.put(filling, i, &pieces);
            }
        });
    }

    /// Where a thread's pieces are, from its first on.
    fn piece_at(&mut self, filling: &Filling<'_>, first: Variable, number: usize) -> PieceAt {
        let Filling { nest, wide, counts, limits, .. } = filling;
        let i = self.writer.add(first, constant(i64::from(THREADS) * number as i64));
        let (i, is_there, piece) = self.bound(&nest.loops, (counts, limits), i);
        let start = nest.loops.last().map_or(constant(0), |var| self.start(*var));
        let further = self.writer.mul(piece, constant(wide.len));
        PieceAt { i, is_there, base: self.writer.add(start, further) }
    }

    /// Asks for a thread's pieces, from its first on.
    pub(super) fn asked_for(&mut self, filling: &Filling<'_>, first: Variable) -> Vec<Fetched> {
        let numbers = 0..filling.at_once as usize;
        let pieces = numbers.map(|number| {
            let PieceAt { base, .. } = self.piece_at(filling, first, number);
            self.ask(&filling.wide, base)
        });
        pieces.collect()
    }

    /// Puts a thread's pieces into their tile, from its first on.
    pub(super) fn put(&mut self, filling: &Filling<'_>, first: Variable, pieces: &[Fetched]) {
        for (number, fetched) in pieces.iter().enumerate() {
            let PieceAt { i, is_there, base } = self.piece_at(filling, first, number);
            self.where_there(is_there, |emitter| {
                emitter.bind(&filling.nest.loops, &filling.counts, i);
                emitter.filled_piece(filling.nest, &filling.wide, base, fetched);
            });
        }
    }
}
