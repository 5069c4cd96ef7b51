//! A kernel as the body of one CubeCL kernel: tasks, parts, loops and nests.
//!
//! In: a kernel that verifies and keeps the limits of `limits.rs`. Out: instructions.
//! The threads of a workgroup do one task after another. Each of n workgroups takes every n-th task of all parts, so
//! any number of them does all the work. Within a task the threads share the iterations of each nest, and meet before
//! one reads what another has written. All threads go equally often through a loop that a barrier stands in.
//! `share.rs` gives iterations to threads, `reduce.rs` folds over several of them, `room.rs` places tiles. Rounds that
//! a mask hides are left out, as `skip.rs` finds them.

use std::collections::{BTreeMap, BTreeSet};

use cubecl_core::ir::{Builtin, Comparison, Variable};

use crate::codegen::gpu::dialect::Dialect;
use crate::codegen::gpu::grouped::Group;
use crate::codegen::gpu::memory::Array;
use crate::codegen::gpu::room::Room;
use crate::codegen::gpu::writer::{Writer, Writes, builtin, constant, signed_constant};
use crate::codegen::skip::hidden;
use crate::foundation::entity::List;
use crate::kernel::index::{Atom, Index};
use crate::kernel::{Blocks, Expr, Kernel, Nest, ParamId, Part, Place, Range, Stmt, TileId, VarId};
use crate::tensor::sym::{Sym, Symbol};

/// A kernel, as far as it has been emitted.
pub(super) struct Emitter<'a> {
    pub(super) writer: Writer,
    pub(super) dialect: Dialect,
    pub(super) kernel: &'a Kernel,
    pub(super) part: &'a Part,
    /// The parts whose tasks are done together, by their numbers.
    pub(super) groups: BTreeMap<usize, Group>,
    pub(super) params: List<ParamId, Array>,
    pub(super) room: Room,
    /// Where tiles lie that shared memory has no room for.
    pub(super) scratch: Option<Variable>,
    pub(super) symbols: BTreeMap<Symbol, Variable>,
    /// The variables that have a value here, and those of loops that are done.
    pub(super) vars: BTreeMap<VarId, Variable>,
    /// Where blocks end that end at a number found on the way.
    pub(super) ends: BTreeMap<VarId, Variable>,
    /// The number of the thread in its workgroup.
    pub(super) unit: Variable,
    /// The fragments of sums that are kept in registers here.
    pub(super) sums: BTreeMap<TileId, Vec<Variable>>,
    /// Tiles that were read, and written, since all threads last met.
    pub(super) since: Touched,
}

/// Tiles that were touched.
#[derive(Default)]
pub(super) struct Touched {
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
                // Before its start a part has numbers beyond any end.
                let n_tasks = emitter.writer.sub(*end, start);
                let is_own = emitter.writer.below(own, n_tasks);
                emitter.when(is_own, |emitter| emitter.task(own));
                start = ends[number];
            }
        });
    }

    /// How many tasks the part has.
    fn n_tasks(&mut self) -> Variable {
        let one = constant(1);
        self.part.grid.iter().fold(one, |n, var| {
            let own = self.n_values(*var);
            self.writer.mul(n, own)
        })
    }

    /// How many values a variable of the grid takes at most, as `Part::n_values` counts.
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
        self.since = Touched::default();
        let lens: Vec<Variable> = part.grid.iter().map(|var| self.n_values(*var)).collect();
        let mut rest = task;
        let mut positions = Vec::new();
        for len in lens.iter().skip(1).rev() {
            positions.push(self.writer.rem(rest, *len));
            rest = self.writer.div(rest, *len);
        }
        positions.push(rest);
        positions.reverse();
        let group = self.groups.get(&self.part_number()).cloned();
        self.position(&part.grid, &positions, &mut |emitter| {
            if let Some(group) = &group {
                emitter.listed(group);
            }
            emitter.body(&part.body);
        });
        // The next task writes the same tiles.
        self.meet();
    }

    /// Gives the variables of the grid their values and runs the body, but where a variable is past its end.
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
        while let Some((stmt, behind)) = rest.split_first() {
            let n_filled = self.filled(rest);
            rest = if n_filled > 0 { &rest[n_filled..] } else { behind };
            match stmt {
                Stmt::Loop { var, body } => self.repeated(*var, body),
                Stmt::Nest(nest) if n_filled == 0 && !self.is_emptying(nest) => {
                    self.wait_for(nest);
                    self.nest(nest);
                }
                Stmt::Nest(_) => {}
            }
        }
    }

    /// A loop that all threads go through together.
    fn repeated(&mut self, var: VarId, body: &'a [Stmt]) {
        self.meet();
        let (first, step, end) = self.values(var);
        if let Some(blocks) = self.part.vars[var].range.blocks() {
            tiles_in(&blocks.start, &mut self.since.read);
        }
        let kept = self.opened(var, body);
        let step = constant(step);
        let hidden = hidden(self.part, body);
        let is_ahead = !kept.is_empty() && hidden.is_empty();
        let ahead = if is_ahead { self.begun_ahead((var, first), body) } else { None };
        self.counted(first, end, step, |emitter, value| {
            emitter.vars.insert(var, value);
            let Some(ahead) = &ahead else { return emitter.unless(&hidden, body) };
            let next = emitter.writer.add(value, step);
            let is_there = emitter.writer.below(next, end);
            let next = emitter.writer.select(is_there, next, value);
            emitter.round_ahead(var, [value, next], ahead);
        });
        self.closed(kept);
    }

    /// Runs a body, but where one of some indices is above zero; they are the same for all threads.
    fn unless(&mut self, hidden: &[Index], body: &'a [Stmt]) {
        let Some((index, others)) = hidden.split_first() else {
            self.body(body);
            return self.meet();
        };
        let index = self.index(index);
        let index = self.writer.signed(index);
        let is_seen = self.writer.compare(Comparison::LowerEqual, index, signed_constant(0));
        self.when(is_seen, |emitter| emitter.unless(others, body));
    }

    /// The first value of a variable, what lies between two, and one past the last.
    fn values(&mut self, var: VarId) -> (Variable, i64, Variable) {
        match &self.part.vars[var].range {
            Range::Whole { len } => (constant(0), 1, self.size(len)),
            Range::Blocks(Blocks { start, step, end, .. }) => (self.index(start), *step, self.end(var, end)),
            Range::Within { .. } => {
                let (start, count) = (self.start(var), self.count(var));
                (start, 1, self.writer.add(start, count))
            }
        }
    }

    /// One past the last position of a variable's blocks.
    fn end(&mut self, var: VarId, end: &Sym) -> Variable {
        self.ends.get(&var).copied().unwrap_or_else(|| self.size(end))
    }

    /// The first value of a variable of a nest.
    pub(super) fn start(&self, var: VarId) -> Variable {
        match &self.part.vars[var].range {
            Range::Within { of } => self.vars[of],
            Range::Whole { .. } | Range::Blocks(_) => constant(0),
        }
    }

    /// How many values a variable of a nest takes, one after another.
    pub(super) fn count(&mut self, var: VarId) -> Variable {
        let part = self.part;
        let of = match &part.vars[var].range {
            Range::Whole { len } => return self.size(len),
            Range::Within { of } => *of,
            Range::Blocks(_) => unreachable!("a nest takes whole axes and positions within a block"),
        };
        let blocks = part.vars[of].range.blocks();
        let Blocks { start, step, block, end } = blocks.expect("a variable runs within one of blocks");
        let whole = constant(*block);
        if let (Some(start), Some(end), None) = (start.as_const(), end.as_const(), self.ends.get(&of))
            && block <= step
            && (end - start) % step == 0
        {
            return whole;
        }
        let (end, base) = (self.end(of, end), self.vars[&of]);
        let left = self.writer.sub(end, base);
        let is_less = self.writer.below(left, whole);
        self.writer.select(is_less, left, whole)
    }

    /// All threads meet where something was touched since they last did.
    pub(super) fn meet(&mut self) {
        if !self.since.read.is_empty() || !self.since.written.is_empty() {
            self.barrier();
        }
    }

    /// All threads meet.
    pub(super) fn barrier(&mut self) {
        self.writer.barrier(self.room.spills());
        self.since = Touched::default();
    }

    /// All threads meet where the nest reads what was written, or writes what others may still read.
    pub(super) fn wait_for(&mut self, nest: &Nest) {
        let read = tiles_read(nest);
        let written = match nest.target {
            Place::Tile(tile) => Some(tile),
            Place::Param(_) => None,
        };
        self.wait_to(read, written);
    }

    /// All threads meet where they are about to read what was written, or to write what others may still read.
    pub(super) fn wait_to(&mut self, read: BTreeSet<TileId>, written: Option<TileId>) {
        let Touched { read: before, written: stored } = &self.since;
        let is_stale = |tile: &TileId| stored.contains(tile);
        let is_in_use = |tile: &TileId| before.union(stored).any(|other| self.lie_together(*tile, *other));
        if read.iter().any(is_stale) || written.as_ref().is_some_and(is_in_use) {
            self.barrier();
        }
        self.since.read.extend(read);
        self.since.written.extend(written);
    }

    /// Where a comparison holds of two whole numbers without a sign.
    pub(super) fn equals(&mut self, a: Variable, b: Variable) -> Variable {
        self.writer.compare(Comparison::Equal, a, b)
    }
}

/// The tiles that a nest reads, in its scalars or its indices.
pub(super) fn tiles_read(nest: &Nest) -> BTreeSet<TileId> {
    let mut found = BTreeSet::new();
    nest.indices().for_each(|index| tiles_in(index, &mut found));
    for expr in nest.exprs.values() {
        if let Expr::Load { from: Place::Tile(tile), .. } = expr {
            found.insert(*tile);
        }
    }
    found
}

/// The tiles that an index looks something up in.
pub(super) fn tiles_in(index: &Index, found: &mut BTreeSet<TileId>) {
    index.any(&mut |atom| {
        if let Atom::Lookup { from: Place::Tile(tile), .. } = atom {
            found.insert(*tile);
        }
        false
    });
}
