//! Where the tiles of a task lie.
//!
//! In: the tiles of all parts of a kernel. Out: a place for each, in shared memory as long as that lasts, the smallest
//! first; what is too large lies in a scratch buffer, of which every workgroup has a piece of its own. Where there is
//! not room for all, or sums are kept in registers, those that are never needed at the same time lie over each other;
//! else threads need not meet between them.
//! Shared memory is one array of words, because compilers lay arrays over each other as they see fit and know nothing
//! of what keeps our threads apart. Parts never run at the same time in one workgroup, so their tiles do lie over each
//! other. Numbers of half precisions take a word, already rounded.
//! Memory serves neighbours at once only where they want neighbouring words. So a tile whose pieces are read by a
//! thread each is interleaved: the first four elements of every piece, then the next four of every piece.

use std::collections::{BTreeMap, BTreeSet};

use cubecl_core::ir::Variable;

use crate::codegen::gpu::THREADS;
use crate::codegen::gpu::dialect::Dialect;
use crate::codegen::gpu::factor::{Factor, factors};
use crate::codegen::gpu::kept::{Kept, kept};
use crate::codegen::gpu::life::{Lives, lives};
use crate::codegen::gpu::wide::interleaved;
use crate::codegen::gpu::writer::{U32, Writer, scalar};
use crate::foundation::entity::List;
use crate::kernel::{Kernel, Part, TileId};

/// Bytes of an element of a tile.
const WORD: usize = 4;

/// Where a tile lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spot {
    /// From this word of shared memory on.
    Shared(usize),
    /// From this word on in the workgroup's piece of the scratch buffer.
    Scratch(usize),
}

/// The places of all tiles.
pub(super) struct Room {
    /// For each part.
    spots: Vec<List<TileId, Spot>>,
    /// The words of each tile, with what lies between its rows.
    lens: Vec<List<TileId, usize>>,
    /// The elements of a piece of each interleaved tile.
    pieces: Vec<BTreeMap<TileId, i64>>,
    /// The tiles that matrix units multiply.
    factors: Vec<BTreeMap<TileId, Factor>>,
    /// The sums that are kept in registers.
    kept: Vec<Kept>,
    shared: Option<Variable>,
    /// Words of shared memory: tiles, and behind them what threads exchange.
    n_words: usize,
    exchange: usize,
    scratch_words: usize,
}

/// Where the tiles of a part lie, and how many words that takes.
struct Placed {
    spots: List<TileId, Spot>,
    n_shared: usize,
    n_scratch: usize,
}

impl Room {
    /// Places the tiles of a kernel.
    pub(super) fn new(dialect: Dialect, kernel: &Kernel) -> Self {
        let n_exchanged = (THREADS / dialect.plane) as usize;
        let budget = dialect.language.shared_bytes() / WORD - n_exchanged;
        let factors_of = |part| if dialect.has_matrices { factors(kernel, part) } else { BTreeMap::new() };
        let mut room = Self {
            spots: Vec::new(),
            lens: Vec::new(),
            pieces: kernel.parts.iter().map(|part| interleaved(kernel, part)).collect(),
            factors: kernel.parts.iter().map(factors_of).collect(),
            kept: Vec::new(),
            shared: None,
            n_words: 0,
            exchange: 0,
            scratch_words: 0,
        };
        for (number, part) in kernel.parts.iter().enumerate() {
            room.lens.push(room.lens_of(number, part));
            let mut kept = kept(kernel, part, &room.factors[number]);
            let mut placed = room.placed(number, part, budget, &kept);
            if placed.n_scratch > 0 && !kept.is_empty() {
                // Matrix units multiply only what is near, and they alone keep sums.
                kept.clear();
                placed = room.placed(number, part, budget, &kept);
            }
            room.n_words = room.n_words.max(placed.n_shared);
            room.scratch_words = room.scratch_words.max(placed.n_scratch);
            room.spots.push(placed.spots);
            room.kept.push(kept);
        }
        room.exchange = room.n_words;
        room.n_words += n_exchanged;
        room
    }

    fn lens_of(&self, number: usize, part: &Part) -> List<TileId, usize> {
        let factors = &self.factors[number];
        let len = |tile: TileId| {
            let len = part.tiles[tile].dims.iter().product::<usize>();
            let padded = factors.get(&tile).map_or(len, |factor| factor.padded_len(len as i64) as usize);
            // A fragment starts at a multiple of 32 bytes, and a tile like that.
            padded.next_multiple_of(8)
        };
        part.tiles.ids().map(len).collect()
    }

    fn placed(&self, number: usize, part: &Part, budget: usize, kept: &Kept) -> Placed {
        let lens = &self.lens[number];
        let is_tight = lens.values().sum::<usize>() > budget || !kept.is_empty();
        let lives = is_tight.then(|| lives(part, kept));
        let meet = |one: TileId, other: TileId| {
            let overlap = |lives: &Lives| {
                let (one, other) = (&lives[one], &lives[other]);
                one.start < other.end && other.start < one.end
            };
            lives.as_ref().is_none_or(overlap)
        };
        let mut order: Vec<TileId> = part.tiles.ids().collect();
        order.sort_by_key(|tile| (lens[*tile], *tile));
        let spots = part.tiles.ids().map(|_| Spot::Shared(0)).collect();
        let mut placed = Placed { spots, n_shared: 0, n_scratch: 0 };
        // What lies in shared memory so far, by where it starts.
        let mut taken: BTreeSet<(usize, TileId)> = BTreeSet::new();
        for tile in order {
            let mut start = 0;
            for (other_start, other) in taken.iter().filter(|(_, other)| meet(tile, *other)) {
                if start + lens[tile] > *other_start {
                    start = start.max(other_start + lens[*other]);
                }
            }
            let end = start + lens[tile];
            if end <= budget {
                placed.spots[tile] = Spot::Shared(start);
                taken.insert((start, tile));
                placed.n_shared = placed.n_shared.max(end);
            } else {
                placed.spots[tile] = Spot::Scratch(placed.n_scratch);
                placed.n_scratch += lens[tile];
            }
        }
        placed
    }

    /// Declares shared memory.
    pub(super) fn declare(&mut self, writer: &mut Writer) {
        self.shared = Some(*writer.scope.create_shared_array(scalar(U32), self.n_words, Some(8 * WORD)));
    }

    /// Where a tile lies.
    pub(super) fn spot(&self, part: usize, tile: TileId) -> Spot {
        self.spots[part][tile]
    }

    /// Words of a tile, with what lies between its rows.
    pub(super) fn len(&self, part: usize, tile: TileId) -> usize {
        self.lens[part][tile]
    }

    /// Whether two tiles have memory in common.
    pub(super) fn lie_together(&self, part: usize, one: TileId, other: TileId) -> bool {
        let (spots, lens) = (&self.spots[part], &self.lens[part]);
        match (spots[one], spots[other]) {
            (Spot::Shared(start), Spot::Shared(other_start)) => {
                start < other_start + lens[other] && other_start < start + lens[one]
            }
            (Spot::Scratch(_), Spot::Scratch(_)) => one == other,
            (Spot::Shared(_), Spot::Scratch(_)) | (Spot::Scratch(_), Spot::Shared(_)) => false,
        }
    }

    /// The elements of a piece, where a tile is interleaved.
    pub(super) fn piece(&self, part: usize, tile: TileId) -> Option<i64> {
        self.pieces[part].get(&tile).copied()
    }

    /// How a tile's rows lie, where matrix units multiply it.
    pub(super) fn factor(&self, part: usize, tile: TileId) -> Option<Factor> {
        self.factors[part].get(&tile).copied()
    }

    /// Whether matrix units multiply anything in the kernel.
    pub(super) fn has_factors(&self) -> bool {
        self.factors.iter().any(|own| !own.is_empty())
    }

    /// The sums that a part keeps in registers.
    pub(super) fn kept(&self, part: usize) -> &Kept {
        &self.kept[part]
    }

    /// Shared memory, as words.
    pub(super) fn shared(&self) -> Variable {
        self.shared.expect("shared memory is declared before anything is emitted")
    }

    /// The first word of what threads exchange.
    pub(super) fn exchange(&self) -> usize {
        self.exchange
    }

    /// Bytes of shared memory.
    pub(super) fn shared_bytes(&self) -> usize {
        self.n_words * WORD
    }

    /// Whether tiles lie in a scratch buffer.
    pub(super) fn spills(&self) -> bool {
        self.scratch_words > 0
    }

    /// Words of a workgroup's piece of the scratch buffer.
    pub(super) fn scratch_words(&self) -> usize {
        self.scratch_words
    }
}
