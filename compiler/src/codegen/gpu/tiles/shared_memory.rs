//! Shared-memory allocation: where the tiles of a task lie.
//!
//! In: the tiles of all parts of a kernel. Out: a placement for each: shared memory, smallest tiles first, until the
//! budget is used up; larger ones spill to a global scratch buffer with one slice a workgroup.
//! Where space is tight, or MMA accumulators stay in registers, tiles with disjoint live ranges overlap; otherwise none
//! do, which saves barriers. Tiles of different parts always overlap: a workgroup runs one part at a time.
//! Shared memory is declared as one array of words, because compilers would overlap separate arrays without knowing our
//! barriers. A half-precision element takes a word, already rounded.
//! A tile that threads read piece by piece is interleaved, so that neighbouring threads read neighbouring banks:
//!
//! ```text
//!  pieces of 8:  a0 a1 a2 a3 a4 … a7 | b0 … b7 | c0 … c7      as numbered
//!                a0…a3 b0…b3 c0…c3 | a4…a7 b4…b7 c4…c7        as stored
//! ```

use std::collections::{BTreeMap, BTreeSet};

use cubecl_core::ir::Variable;

use crate::codegen::gpu::dialect::Dialect;
use crate::codegen::gpu::tiles::accumulators::{Accumulators, accumulators};
use crate::codegen::gpu::tiles::live_ranges::{LiveRanges, live_ranges};
use crate::codegen::gpu::writer::{U32, Writer, scalar};
use crate::foundation::entity::List;
use crate::kernel::product::operands::{OperandLayout, operand_layouts};
use crate::kernel::product::tiles::{TileProduct, tile_products};
use crate::kernel::vector_loads::interleaved;
use crate::kernel::{Kernel, Part, TileId};
use crate::target::THREADS;

/// Bytes of an element of a tile.
const WORD: usize = 4;

/// Where a tile lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placement {
    /// At this word of shared memory.
    Shared(usize),
    /// At this word of the workgroup's slice of the scratch buffer.
    Scratch(usize),
}

/// The placements of all tiles.
pub(crate) struct SharedMemory {
    /// For each part.
    placements: Vec<List<TileId, Placement>>,
    /// Words of each tile, with the padding of its rows.
    lens: Vec<List<TileId, usize>>,
    /// The piece length of each interleaved tile.
    pieces: Vec<BTreeMap<TileId, i64>>,
    /// The tiles that are operands of an MMA.
    operands: Vec<BTreeMap<TileId, OperandLayout>>,
    /// The accumulators that stay in registers.
    accumulators: Vec<Accumulators>,
    shared: Option<Variable>,
    /// Words of shared memory: tiles, then what `reduce.rs` exchanges.
    n_words: usize,
    exchange: usize,
    scratch_words: usize,
}

/// The placements of a part, and the words they take.
struct PartPlacement {
    placements: List<TileId, Placement>,
    n_shared: usize,
    n_scratch: usize,
}

impl SharedMemory {
    /// Places the tiles of a kernel.
    pub(crate) fn new(dialect: Dialect, kernel: &Kernel) -> Self {
        let n_exchanged = (THREADS / dialect.subgroup_size) as usize;
        let budget = dialect.language.shared_bytes() / WORD - n_exchanged;
        let products = |part| if dialect.has_tensor_cores { tile_products(kernel, part) } else { Vec::new() };
        let products: Vec<Vec<TileProduct>> = kernel.parts.iter().map(products).collect();
        let mut memory = Self {
            placements: Vec::new(),
            lens: Vec::new(),
            pieces: kernel.parts.iter().map(|part| interleaved(kernel, part)).collect(),
            operands: products.iter().map(|own| operand_layouts(own)).collect(),
            accumulators: Vec::new(),
            shared: None,
            n_words: 0,
            exchange: 0,
            scratch_words: 0,
        };
        for (number, part) in kernel.parts.iter().enumerate() {
            memory.lens.push(memory.lens_of(number, part));
            let mut kept = accumulators(part, &products[number]);
            let mut placed = memory.placed(number, part, budget, &kept);
            if placed.n_scratch > 0 && !kept.is_empty() {
                // MMA operands and accumulators must lie in shared memory.
                kept.clear();
                placed = memory.placed(number, part, budget, &kept);
            }
            memory.n_words = memory.n_words.max(placed.n_shared);
            memory.scratch_words = memory.scratch_words.max(placed.n_scratch);
            memory.placements.push(placed.placements);
            memory.accumulators.push(kept);
        }
        memory.exchange = memory.n_words;
        memory.n_words += n_exchanged;
        memory
    }

    fn lens_of(&self, number: usize, part: &Part) -> List<TileId, usize> {
        let operands = &self.operands[number];
        let len = |tile: TileId| {
            let len = len_with_counts(part, tile);
            let padded = operands.get(&tile).map_or(len, |operand| operand.padded_len(len as i64) as usize);
            // Fragments, and so tiles, start at a multiple of 32 bytes.
            padded.next_multiple_of(8)
        };
        part.tiles.ids().map(len).collect()
    }

    fn placed(&self, number: usize, part: &Part, budget: usize, kept: &Accumulators) -> PartPlacement {
        let lens = &self.lens[number];
        let is_tight = lens.values().sum::<usize>() > budget || !kept.is_empty();
        let lives = is_tight.then(|| live_ranges(part, kept));
        let meet = |one: TileId, other: TileId| {
            let overlap = |lives: &LiveRanges| {
                let (one, other) = (&lives[one], &lives[other]);
                one.start < other.end && other.start < one.end
            };
            lives.as_ref().is_none_or(overlap)
        };
        let mut order: Vec<TileId> = part.tiles.ids().collect();
        order.sort_by_key(|tile| (lens[*tile], *tile));
        let placements = part.tiles.ids().map(|_| Placement::Shared(0)).collect();
        let mut placed = PartPlacement { placements, n_shared: 0, n_scratch: 0 };
        // Tiles placed in shared memory so far, by their first word.
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
                placed.placements[tile] = Placement::Shared(start);
                taken.insert((start, tile));
                placed.n_shared = placed.n_shared.max(end);
            } else {
                placed.placements[tile] = Placement::Scratch(placed.n_scratch);
                placed.n_scratch += lens[tile];
            }
        }
        placed
    }

    /// Declares shared memory.
    pub(crate) fn declare(&mut self, writer: &mut Writer) {
        self.shared = Some(*writer.scope.create_shared_array(scalar(U32), self.n_words, Some(8 * WORD)));
    }

    /// Where a tile lies.
    pub(crate) fn placement(&self, part: usize, tile: TileId) -> Placement {
        self.placements[part][tile]
    }

    /// Words of a tile, with the padding of its rows.
    pub(crate) fn len(&self, part: usize, tile: TileId) -> usize {
        self.lens[part][tile]
    }

    /// Whether two tiles overlap.
    pub(crate) fn overlap(&self, part: usize, one: TileId, other: TileId) -> bool {
        let (placements, lens) = (&self.placements[part], &self.lens[part]);
        match (placements[one], placements[other]) {
            (Placement::Shared(start), Placement::Shared(other_start)) => {
                start < other_start + lens[other] && other_start < start + lens[one]
            }
            (Placement::Scratch(_), Placement::Scratch(_)) => one == other,
            (Placement::Shared(_), Placement::Scratch(_)) | (Placement::Scratch(_), Placement::Shared(_)) => {
                false
            }
        }
    }

    /// The piece length, where a tile is interleaved.
    pub(crate) fn piece(&self, part: usize, tile: TileId) -> Option<i64> {
        self.pieces[part].get(&tile).copied()
    }

    /// The layout of a tile that is an operand of an MMA.
    pub(crate) fn operand_layout(&self, part: usize, tile: TileId) -> Option<OperandLayout> {
        self.operands[part].get(&tile).copied()
    }

    /// Whether the kernel uses tensor cores.
    pub(crate) fn has_mma(&self) -> bool {
        self.operands.iter().any(|own| !own.is_empty())
    }

    /// The accumulators that a part keeps in registers.
    pub(crate) fn accumulators(&self, part: usize) -> &Accumulators {
        &self.accumulators[part]
    }

    /// Shared memory, as words.
    pub(crate) fn shared(&self) -> Variable {
        self.shared.expect("shared memory is declared before anything is emitted")
    }

    /// The first word of the exchange area.
    pub(crate) fn exchange(&self) -> usize {
        self.exchange
    }

    /// Bytes of shared memory.
    pub(crate) fn shared_bytes(&self) -> usize {
        self.n_words * WORD
    }

    /// Whether any tile spills to the scratch buffer.
    pub(crate) fn spills(&self) -> bool {
        self.scratch_words > 0
    }

    /// Words of a workgroup's slice of the scratch buffer.
    pub(crate) fn scratch_words(&self) -> usize {
        self.scratch_words
    }
}

/// Elements of a tile of a part, with room for a count of each thread behind a list of rows.
fn len_with_counts(part: &Part, tile: TileId) -> usize {
    let len = part.tiles[tile].dims.iter().product::<usize>();
    let is_list = part.routed.as_ref().is_some_and(|routed| routed.list == tile);
    if is_list { len + THREADS as usize } else { len }
}
