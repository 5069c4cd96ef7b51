//! Walks a kernel: tasks, parts, loops and nests become the body of one CubeCL kernel.
//!
//! In: a kernel that verifies and keeps the limits of `limits.rs`. Out: instructions. The grid is persistent: of n
//! workgroups each takes every n-th task of all parts, so any number of them does all the work. Within a task the
//! threads share the iterations of each nest; a barrier stands before a nest that reads or overwrites a tile that other
//! threads may still be using. Loops that contain barriers are uniform: all threads run the same rounds. A loop ends at
//! the bounds of its variable, such as where the causal mask hides the rest. `thread_mapping.rs` gives iterations to
//! threads, `shared_memory.rs` places tiles.

use std::collections::{BTreeMap, BTreeSet};

use cubecl_core::ir::{Builtin, Comparison, Variable};

use crate::codegen::gpu::dialect::Dialect;
use crate::codegen::gpu::tiles::shared_memory::SharedMemory;
use crate::codegen::gpu::writer::{Writer, Writes, builtin, constant, signed_constant};
use crate::foundation::entity::List;
use crate::kernel::walk::{tiles_in, tiles_read};
use crate::kernel::{Blocks, Kernel, Nest, ParamId, Part, Place, Range, Stmt, TileId, VarId};
use crate::tensor::sym::{Sym, Symbol};

/// A buffer of a kernel.
#[derive(Clone, Copy)]
pub(super) struct BufferVars {
    pub(super) list: Variable,
    /// The same buffer as vectors of words, where anything loads it so.
    pub(super) vectors: Option<Variable>,
}

/// A kernel, as far as it has been emitted.
pub(super) struct Emitter<'a> {
    pub(super) writer: Writer,
    pub(super) dialect: Dialect,
    pub(super) kernel: &'a Kernel,
    pub(super) part: &'a Part,
    pub(super) params: List<ParamId, BufferVars>,
    pub(super) memory: SharedMemory,
    /// Global scratch for tiles that shared memory cannot hold.
    pub(super) scratch: Option<Variable>,
    pub(super) symbols: BTreeMap<Symbol, Variable>,
    /// The variables that have a value here, including those of finished loops.
    pub(super) vars: BTreeMap<VarId, Variable>,
    /// Ends of blocks that run through a list of routed rows.
    pub(super) ends: BTreeMap<VarId, Variable>,
    /// The thread's index in its workgroup.
    pub(super) thread: Variable,
    /// MMA accumulator fragments that live in registers.
    pub(super) accumulators: BTreeMap<TileId, Vec<Variable>>,
    /// Tiles that were read or written since the last barrier.
    pub(super) accesses: TileAccesses,
}

/// Tiles that were read, and those that were written.
#[derive(Default)]
pub(super) struct TileAccesses {
    read: BTreeSet<TileId>,
    written: BTreeSet<TileId>,
}

impl Writes for Emitter<'_> {
    fn writer(&mut self) -> &mut Writer {
        &mut self.writer
    }
}

impl<'a> Emitter<'a> {
    /// Emits every task of every part.
    pub(super) fn kernel(&mut self) {
        let mut ends: Vec<Variable> = Vec::new();
        for part in &self.kernel.parts {
            self.part = part;
            let n_tasks = self.n_tasks();
            let end = ends.last().map_or(n_tasks, |before| self.writer.add(*before, n_tasks));
            ends.push(end);
        }
        let Some(end) = ends.last().copied() else { return };
        let [first, step] = [Builtin::CubePosX, Builtin::CubeCountX].map(builtin);
        self.counted(first, end, step, |emitter, task| {
            let parts = &emitter.kernel.parts;
            let mut start = constant(0);
            for (number, (part, end)) in parts.iter().zip(&ends).enumerate() {
                emitter.part = part;
                let own = emitter.writer.sub(task, start);
                if parts.len() == 1 {
                    emitter.task(own);
                    break;
                }
                // Tasks before its first wrap around to numbers past any end.
                let n_tasks = emitter.writer.sub(*end, start);
                let is_own = emitter.writer.below(own, n_tasks);
                emitter.when(is_own, |emitter| emitter.task(own));
                start = ends[number];
            }
        });
    }

    /// The number of tasks of the part.
    fn n_tasks(&mut self) -> Variable {
        let one = constant(1);
        self.part.grid.iter().fold(one, |n, var| {
            let own = self.n_values(*var);
            self.writer.mul(n, own)
        })
    }

    /// The most values a grid variable takes, as `Part::n_values` counts.
    fn n_values(&mut self, var: VarId) -> Variable {
        match &self.part.vars[var].range {
            Range::Whole { len } => self.size(len),
            Range::Blocks(Blocks { step, end, .. }) => {
                let end = self.size(end);
                let [rest, step] = [step - 1, *step].map(constant);
                let rounded = self.writer.add(end, rest);
                self.writer.div(rounded, step)
            }
            Range::Within { .. } => unreachable!("a grid takes whole axes and blocks"),
        }
    }

    fn task(&mut self, task: Variable) {
        let part = self.part;
        self.vars.clear();
        self.ends.clear();
        self.accesses = TileAccesses::default();
        let lens: Vec<Variable> = part.grid.iter().map(|var| self.n_values(*var)).collect();
        let mut rest = task;
        let mut positions = Vec::new();
        for len in lens.iter().skip(1).rev() {
            positions.push(self.writer.rem(rest, *len));
            rest = self.writer.div(rest, *len);
        }
        positions.push(rest);
        positions.reverse();
        self.position(&part.grid, &positions, &mut |emitter| {
            if let Some(routed) = &part.routed {
                emitter.list_routed_rows(routed);
            }
            emitter.body(&part.body);
        });
        // The next task overwrites the same tiles.
        self.sync_if_accessed();
    }

    /// Binds the grid variables and runs the body, unless a variable is past its end.
    fn position(&mut self, grid: &[VarId], positions: &[Variable], body: &mut dyn FnMut(&mut Self)) {
        let part = self.part;
        let Some((var, inner)) = grid.split_first() else { return body(self) };
        let Range::Blocks(Blocks { start, step, end, .. }) = &part.vars[*var].range else {
            self.vars.insert(*var, positions[0]);
            return self.position(inner, &positions[1..], body);
        };
        let step = constant(*step);
        let offset = self.writer.mul(positions[0], step);
        let first = self.index(start);
        let value = self.writer.add(first, offset);
        self.vars.insert(*var, value);
        if start.as_const() == Some(0) {
            return self.position(inner, &positions[1..], body);
        }
        let end = self.size(end);
        let is_there = self.writer.below(value, end);
        self.when(is_there, |emitter| emitter.position(inner, &positions[1..], body));
    }

    pub(super) fn body(&mut self, body: &'a [Stmt]) {
        let mut rest = body;
        while let Some((stmt, after)) = rest.split_first() {
            let n_filled = self.load_tiles(rest);
            rest = if n_filled > 0 { &rest[n_filled..] } else { after };
            match stmt {
                Stmt::Loop { var, body } => self.emit_loop(*var, body),
                Stmt::Nest(nest) if n_filled == 0 && !self.is_accumulator_init(nest) => {
                    self.sync_before_nest(nest);
                    self.nest(nest);
                }
                // Threads that share a task fill its tiles for every task.
                Stmt::Once { body, .. } => self.body(body),
                Stmt::Nest(_) | Stmt::Quantise(_) => {}
            }
        }
    }

    /// A loop that all threads run together.
    fn emit_loop(&mut self, var: VarId, body: &'a [Stmt]) {
        self.sync_if_accessed();
        let (first, step, end) = self.loop_range(var);
        if let Some(blocks) = self.part.vars[var].range.blocks() {
            tiles_in(&blocks.start, &mut self.accesses.read);
        }
        let accumulators = self.open_accumulators(var, body);
        let step = constant(step);
        let may_double_buffer = !accumulators.is_empty() && self.part.vars[var].until.is_empty();
        let double_buffer =
            if may_double_buffer { self.begin_double_buffer((var, first), body) } else { None };
        self.counted(first, end, step, |emitter, value| {
            emitter.vars.insert(var, value);
            let Some(double_buffer) = &double_buffer else {
                emitter.body(body);
                return emitter.sync_if_accessed();
            };
            let next = emitter.writer.add(value, step);
            let is_there = emitter.writer.below(next, end);
            let next = emitter.writer.select(is_there, next, value);
            emitter.double_buffered_round(var, [value, next], double_buffer);
        });
        self.close_accumulators(accumulators);
    }

    /// The first value of a variable, the step, and one past the last.
    fn loop_range(&mut self, var: VarId) -> (Variable, i64, Variable) {
        let (first, step, end) = match &self.part.vars[var].range {
            Range::Whole { len } => (constant(0), 1, self.size(len)),
            Range::Blocks(Blocks { start, step, end, .. }) => (self.index(start), *step, self.end(var, end)),
            Range::Within { .. } => {
                let (start, count) = (self.start(var), self.count(var));
                return (start, 1, self.writer.add(start, count));
            }
        };
        (first, step, self.ended(var, end))
    }

    /// The smaller of an end and the bounds that end a variable early; they are the same for all threads.
    fn ended(&mut self, var: VarId, mut end: Variable) -> Variable {
        for bound in &self.part.vars[var].until {
            let bound = self.index(bound);
            let bound = self.writer.signed(bound);
            let is_above = self.writer.compare(Comparison::GreaterEqual, bound, signed_constant(0));
            let bound = self.writer.unsigned(bound);
            let bound = self.writer.select(is_above, bound, constant(0));
            let is_less = self.writer.below(bound, end);
            end = self.writer.select(is_less, bound, end);
        }
        end
    }

    /// One past the last position of a variable's blocks.
    fn end(&mut self, var: VarId, end: &Sym) -> Variable {
        self.ends.get(&var).copied().unwrap_or_else(|| self.size(end))
    }

    /// The first value of a nest's variable.
    pub(super) fn start(&self, var: VarId) -> Variable {
        match &self.part.vars[var].range {
            Range::Within { of } => self.vars[of],
            Range::Whole { .. } | Range::Blocks(_) => constant(0),
        }
    }

    /// How many values a nest's variable takes.
    pub(super) fn count(&mut self, var: VarId) -> Variable {
        let part = self.part;
        let of = match &part.vars[var].range {
            Range::Whole { len } => {
                let len = self.size(len);
                return self.ended(var, len);
            }
            Range::Within { of } => *of,
            Range::Blocks(_) => unreachable!("a nest takes whole axes and positions within a block"),
        };
        let blocks = part.vars[of].range.blocks();
        let Blocks { start, step, block, end } = blocks.expect("a variable runs within one of blocks");
        let whole = constant(*block);
        if let (Some(start), Some(end), None) = (start.as_const(), end.as_const(), self.ends.get(&of))
            && part.vars[var].until.is_empty()
            && block <= step
            && (end - start) % step == 0
        {
            return whole;
        }
        let (end, base) = (self.end(of, end), self.vars[&of]);
        let end = self.ended(var, end);
        let left = self.writer.sub(end, base);
        let is_less = self.writer.below(left, whole);
        self.writer.select(is_less, left, whole)
    }

    /// A barrier, where any tile was accessed since the last one.
    pub(super) fn sync_if_accessed(&mut self) {
        if !self.accesses.read.is_empty() || !self.accesses.written.is_empty() {
            self.barrier();
        }
    }

    /// A barrier of the workgroup: `__syncthreads()`.
    pub(super) fn barrier(&mut self) {
        self.writer.barrier(self.memory.spills());
        self.accesses = TileAccesses::default();
    }

    /// A barrier where the nest would race with earlier accesses to its tiles: read after write, write after read.
    pub(super) fn sync_before_nest(&mut self, nest: &Nest) {
        let read = tiles_read(nest);
        let written = match nest.target {
            Place::Tile(tile) => Some(tile),
            Place::Param(_) => None,
        };
        self.sync_before(read, written);
    }

    /// A barrier where these accesses would race with earlier ones.
    pub(super) fn sync_before(&mut self, read: BTreeSet<TileId>, written: Option<TileId>) {
        let TileAccesses { read: before, written: stored } = &self.accesses;
        let is_stale = |tile: &TileId| stored.contains(tile);
        let is_in_use = |tile: &TileId| before.union(stored).any(|other| self.overlap(*tile, *other));
        if read.iter().any(is_stale) || written.as_ref().is_some_and(is_in_use) {
            self.barrier();
        }
        self.accesses.read.extend(read);
        self.accesses.written.extend(written);
    }

    /// Whether two unsigned numbers are equal.
    pub(super) fn equals(&mut self, a: Variable, b: Variable) -> Variable {
        self.writer.compare(Comparison::Equal, a, b)
    }
}
