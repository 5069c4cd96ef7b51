//! What statements read and write, and which variables of the grid they depend on.
//!
//! In: statements of a part. Out: their [`Effects`], and for each how many variables of the grid, from the outermost
//! on, its results depend on: what does not depend on all of them is the same for several tasks.

use std::collections::{BTreeMap, BTreeSet};

use crate::kernel::index::{Atom, Index};
use crate::kernel::{ActivationsId, Expr, Nest, Part, Place, Range, Stmt, TileId, Var, VarId};

/// Memory of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Memory {
    /// A tile.
    Tile(TileId),
    /// Quantised activations.
    Activations(ActivationsId),
}

/// What a statement depends on, and what depends on it.
#[derive(Debug, Default)]
pub(crate) struct Effects {
    /// What it reads of the task's memory.
    pub(crate) reads: BTreeSet<Memory>,
    /// What it writes of the task's memory.
    pub(crate) writes: BTreeSet<Memory>,
    /// The variables that it depends on, its own among them.
    pub(crate) vars: BTreeSet<VarId>,
    /// Whether it stores to a buffer.
    stores: bool,
}

/// The number of variables of the grid that statements depend on at least, each with such a number to begin with.
///
/// Statements that write one memory, and those between them that read it, depend on the same number: they run again
/// together.
pub(crate) fn depths(part: &Part, statements: &[(&Stmt, usize)]) -> Vec<usize> {
    let all: Vec<Effects> = statements.iter().map(|(stmt, _)| Effects::of(stmt, part)).collect();
    let of_var = |var: &VarId| part.grid.iter().position(|own| own == var).map_or(0, |position| position + 1);
    // The list of routed rows is made anew for each task.
    let list = part.routed.as_ref().map(|routed| Memory::Tile(routed.list));
    let own = |(effects, (_, least)): (&Effects, &(&Stmt, usize))| {
        let vars = effects.vars.iter().map(of_var).max().unwrap_or(0);
        let is_of_task = effects.stores || list.is_some_and(|list| effects.reads.contains(&list));
        if is_of_task { part.grid.len() } else { vars.max(*least) }
    };
    let mut depths: Vec<usize> = all.iter().zip(statements).map(own).collect();
    let mut writers: BTreeMap<Memory, (usize, usize)> = BTreeMap::new();
    for (idx, effects) in all.iter().enumerate() {
        for memory in &effects.writes {
            writers.entry(*memory).or_insert((idx, idx)).1 = idx;
        }
    }
    loop {
        let before = depths.clone();
        for (memory, (first, last)) in &writers {
            let touches = |idx: &usize| all[*idx].reads.contains(memory) || all[*idx].writes.contains(memory);
            let group: Vec<usize> = (*first..=*last).filter(touches).collect();
            let depth = group.iter().map(|idx| depths[*idx]).max().unwrap_or(0);
            for idx in group {
                depths[idx] = depth;
            }
            for (idx, effects) in all.iter().enumerate() {
                if effects.reads.contains(memory) {
                    depths[idx] = depths[idx].max(depth);
                }
            }
        }
        if depths == before {
            return depths;
        }
    }
}

impl Effects {
    /// Those of a statement.
    pub(crate) fn of(stmt: &Stmt, part: &Part) -> Self {
        let mut effects = Self::default();
        effects.stmt(stmt, part);
        effects
    }

    /// Those of quantising activations: what their products read, without the weight.
    pub(crate) fn of_quantising(id: ActivationsId, part: &Part) -> Self {
        let mut effects = Self::default();
        effects.quantising(id, part);
        effects
    }

    fn stmt(&mut self, stmt: &Stmt, part: &Part) {
        match stmt {
            Stmt::Nest(nest) => self.nest(nest, part),
            Stmt::Loop { var, body } => {
                self.range(*var, part);
                self.body(body, part);
            }
            Stmt::Once { body, .. } => self.body(body, part),
            Stmt::Quantise(id) => self.quantising(*id, part),
        }
    }

    fn body(&mut self, body: &[Stmt], part: &Part) {
        for stmt in body {
            self.stmt(stmt, part);
        }
    }

    fn quantising(&mut self, id: ActivationsId, part: &Part) {
        let own = &part.activations[id];
        self.place(own.from);
        own.at.iter().for_each(|index| self.index(index));
        let moves = |var: &VarId| own.at.iter().any(|index| index.uses_var(|own| own == *var));
        own.loops().filter(moves).for_each(|var| self.range(var, part));
        self.writes.insert(Memory::Activations(id));
    }

    fn nest(&mut self, nest: &Nest, part: &Part) {
        match nest.target {
            Place::Tile(tile) => {
                self.writes.insert(Memory::Tile(tile));
            }
            Place::Param(_) => self.stores = true,
        }
        nest.indices().for_each(|index| self.index(index));
        nest.loops.iter().chain(nest.folds()).for_each(|var| self.range(*var, part));
        for expr in nest.exprs.values() {
            if let Expr::Load { from, .. } = expr {
                self.place(*from);
            }
        }
        let activations = nest.product.as_ref().and_then(|product| product.activations);
        self.reads.extend(activations.map(Memory::Activations));
    }

    fn place(&mut self, place: Place) {
        if let Place::Tile(tile) = place {
            self.reads.insert(Memory::Tile(tile));
        }
    }

    fn index(&mut self, index: &Index) {
        index.any(&mut |atom| {
            match atom {
                Atom::Var(var) => {
                    self.vars.insert(*var);
                }
                Atom::Lookup { from, .. } => self.place(*from),
                Atom::Symbols(_) | Atom::Div(..) | Atom::Rem(..) | Atom::Min(..) | Atom::Max(..) => {}
            }
            false
        });
    }

    /// What a loop's values depend on.
    fn range(&mut self, var: VarId, part: &Part) {
        let Var { range, until, .. } = &part.vars[var];
        for bound in until {
            self.index(bound);
        }
        let list = part.routed.as_ref().filter(|_| part.ends_with_list(var)).map(|routed| routed.list);
        self.reads.extend(list.map(Memory::Tile));
        match range {
            Range::Whole { .. } => {}
            Range::Blocks(blocks) => self.index(&blocks.start),
            Range::Within { of } => {
                self.vars.insert(*of);
                self.range(*of, part);
            }
        }
    }
}
