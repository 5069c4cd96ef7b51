//! Where the tiles of a task lie.
//!
//! In: the tiles of all parts of a kernel. Out: a place for each, in shared memory as long as that lasts, the smallest
//! first; what is too large lies in a scratch buffer, of which every workgroup has a piece of its own.
//! Parts never run at the same time in one workgroup, so their tiles lie over each other.
//! Numbers of half precisions take four bytes here, already rounded.

use std::collections::BTreeMap;

use cubecl_core::ir::{ElemType, Variable};

use crate::codegen::gpu::writer::{F32, I32, Writer, scalar};
use crate::codegen::gpu::{Language, THREADS};
use crate::foundation::entity::List;
use crate::kernel::{Kernel, Part, TileId};

/// Bytes of an element of a tile.
const WORD: usize = 4;

/// Where a tile lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spot {
    /// From this element on in the shared array of its type.
    Shared(usize),
    /// From this word on in the workgroup's piece of the scratch buffer.
    Scratch(usize),
}

/// The places of all tiles.
pub(super) struct Room {
    /// For each part.
    spots: Vec<List<TileId, Spot>>,
    shared: BTreeMap<ElemType, Variable>,
    exchanges: BTreeMap<ElemType, Variable>,
    /// Elements of each shared array.
    lens: [usize; 2],
    scratch_words: usize,
}

impl Room {
    /// Places the tiles of a kernel.
    pub(super) fn new(language: Language, kernel: &Kernel) -> Self {
        let exchanged = 2 * THREADS as usize * WORD;
        let budget = (language.shared_bytes() - exchanged) / WORD;
        let mut room = Self {
            spots: Vec::new(),
            shared: BTreeMap::new(),
            exchanges: BTreeMap::new(),
            lens: [0; 2],
            scratch_words: 0,
        };
        // Whole numbers are few: they take a quarter at most, so that the two arrays fit together.
        for part in &kernel.parts {
            let spots = room.placed(part, [budget - budget / 4, budget / 4]);
            room.spots.push(spots);
        }
        room
    }

    fn placed(&mut self, part: &Part, budgets: [usize; 2]) -> List<TileId, Spot> {
        let mut order: Vec<TileId> = part.tiles.ids().collect();
        let len = |tile: TileId| part.tiles[tile].dims.iter().product::<usize>();
        order.sort_by_key(|tile| (len(*tile), *tile));
        let (mut taken, mut spilled) = ([0; 2], 0);
        let mut spots: List<TileId, Spot> = part.tiles.ids().map(|_| Spot::Shared(0)).collect();
        for tile in order {
            let kind = usize::from(!part.tiles[tile].dtype.is_float());
            let end = taken[kind] + len(tile);
            if end <= budgets[kind] {
                spots[tile] = Spot::Shared(taken[kind]);
                taken[kind] = end;
            } else {
                spots[tile] = Spot::Scratch(spilled);
                spilled += len(tile);
            }
        }
        self.lens = [0, 1].map(|kind| self.lens[kind].max(taken[kind]));
        self.scratch_words = self.scratch_words.max(spilled);
        spots
    }

    /// Declares the shared arrays.
    pub(super) fn declare(&mut self, writer: &mut Writer) {
        for (elem, len) in [F32, I32].into_iter().zip(self.lens).filter(|(_, len)| *len > 0) {
            self.shared.insert(elem, *writer.scope.create_shared_array(scalar(elem), len, None));
        }
    }

    /// Where a tile lies.
    pub(super) fn spot(&self, part: usize, tile: TileId) -> Spot {
        self.spots[part][tile]
    }

    /// The shared array of a type.
    pub(super) fn shared(&self, elem: ElemType) -> Variable {
        self.shared[&elem]
    }

    /// A shared array through which threads exchange numbers.
    pub(super) fn exchange(&mut self, writer: &mut Writer, elem: ElemType, len: usize) -> Variable {
        let made = self.exchanges.entry(elem);
        *made.or_insert_with(|| *writer.scope.create_shared_array(scalar(elem), len, None))
    }

    /// Bytes of shared memory that everything takes.
    pub(super) fn shared_bytes(&self, language: Language) -> usize {
        let exchanged = self.exchanges.len() * (THREADS / language.plane()) as usize;
        (self.lens.iter().sum::<usize>() + exchanged) * WORD
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
