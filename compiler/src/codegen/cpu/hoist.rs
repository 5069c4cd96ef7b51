//! What the tasks of one call need to do only once, or once for several of them.
//!
//! In: a part. Out: its body as [`Step`]s, each with the number of outer variables of the grid that it depends on.
//! Tasks of a call run in order and share the tiles' memory, so a tile that depends on no variable of the grid is
//! filled by the first task and there for all. A step runs again when a variable that it depends on has moved on.
//! Steps that fill one tile piece by piece, and those that read it in between, run again together.

use std::collections::{BTreeMap, BTreeSet};
use std::slice::from_ref;

use crate::codegen::cpu::Cpu;
use crate::codegen::cpu::product::{Activations, Plan};
use crate::kernel::index::{Atom, Index};
use crate::kernel::product::routing::Routing;
use crate::kernel::walk::nests;
use crate::kernel::{Expr, Kernel, Nest, Part, Place, Range, Stmt, TileId, Var, VarId};

/// Something that a task does.
pub(super) struct Step<'a> {
    pub(super) what: What<'a>,
    /// The number of grid variables, from the outermost on, that it depends on.
    pub(super) depth: usize,
}

/// What is done.
pub(super) enum What<'a> {
    /// A statement, with the activations that are quantised before it.
    Stmt(&'a Stmt, Vec<usize>),
    /// The activations of a product are quantised.
    Round(Box<Plan>, usize),
}

/// Memory that outlives a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Memory {
    Tile(TileId),
    Slot(usize),
}

/// What a step depends on, and what depends on it.
#[derive(Default)]
struct Effects {
    reads: BTreeSet<Memory>,
    writes: BTreeSet<Memory>,
    vars: BTreeSet<VarId>,
    is_final: bool,
}

/// All activations that the products of a part quantise, each once.
pub(super) fn quantised(cpu: &Cpu, kernel: &Kernel, part: &Part) -> Vec<Activations> {
    let mut all: Vec<Activations> = Vec::new();
    for quantised in plans(cpu, kernel, part).filter_map(|plan| plan.quantised) {
        if !all.contains(&quantised) {
            all.push(quantised);
        }
    }
    all
}

/// Bytes of scratch memory in which the products of a part group columns by expert, one product after another.
pub(super) fn routing_bytes(cpu: &Cpu, kernel: &Kernel, part: &Part) -> usize {
    let routing = plans(cpu, kernel, part).filter_map(|plan| plan.routing);
    let n_bytes = |own: Routing| fusebox_simd::routing_bytes(own.most as usize, own.n_matrices as usize);
    routing.map(n_bytes).max().unwrap_or(0)
}

/// The products of a part that functions compute.
fn plans(cpu: &Cpu, kernel: &Kernel, part: &Part) -> impl Iterator<Item = Plan> {
    nests(&part.body).filter_map(|nest| Plan::of(cpu, kernel, part, nest))
}

/// The body of a part, step by step.
pub(super) fn steps<'a>(cpu: &Cpu, kernel: &Kernel, part: &'a Part, slots: &[Activations]) -> Vec<Step<'a>> {
    let slot_of = |nest: &Nest| {
        let plan = Plan::of(cpu, kernel, part, nest)?;
        let quantised = plan.quantised.as_ref()?;
        let slot = slots.iter().position(|slot| slot == quantised)?;
        Some((plan, slot))
    };
    let mut steps = Vec::new();
    let mut all = Vec::new();
    let mut valid: BTreeSet<usize> = BTreeSet::new();
    for stmt in &part.body {
        let mut effects = Effects::of(from_ref(stmt), part);
        let loops = stmt.loops();
        let mut found = Vec::new();
        for nest in nests(from_ref(stmt)) {
            let Some((plan, slot)) = slot_of(nest).filter(|(_, slot)| !slots[*slot].is_ahead) else {
                continue;
            };
            let quantising = Effects::of_quantising(&plan, slot, part);
            if quantising.vars.is_disjoint(&loops) && quantising.reads.is_disjoint(&effects.writes) {
                if valid.insert(slot) {
                    all.push(quantising);
                    steps.push(What::Round(Box::new(plan), slot));
                }
                effects.reads.insert(Memory::Slot(slot));
                found.push(slot);
            } else {
                // Each iteration of a loop has others.
                effects.writes.insert(Memory::Slot(slot));
            }
        }
        // Activations quantised from a tile that changes, or whose memory is used again, are no longer valid.
        valid.retain(|slot| {
            let source = match slots[*slot].x.place {
                Place::Tile(tile) => effects.writes.contains(&Memory::Tile(tile)),
                Place::Param(_) => false,
            };
            !source && !effects.writes.contains(&Memory::Slot(*slot))
        });
        all.push(effects);
        steps.push(What::Stmt(stmt, found));
    }
    let depths = depths(&all, part);
    steps.into_iter().zip(depths).map(|(what, depth)| Step { what, depth }).collect()
}

/// The number of grid variables that each step depends on.
fn depths(all: &[Effects], part: &Part) -> Vec<usize> {
    let of_var = |var: &VarId| part.grid.iter().position(|own| own == var).map_or(0, |position| position + 1);
    let own = |effects: &Effects| {
        let vars = effects.vars.iter().map(of_var).max().unwrap_or(0);
        if effects.is_final { part.grid.len() } else { vars }
    };
    let mut depths: Vec<usize> = all.iter().map(own).collect();
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
    fn of(body: &[Stmt], part: &Part) -> Self {
        let mut effects = Self::default();
        effects.body(body, part);
        effects
    }

    /// Quantising reads what the product reads, and depends on less: the weight has no part in it.
    fn of_quantising(plan: &Plan, slot: usize, part: &Part) -> Self {
        let mut effects = Self::default();
        effects.place(plan.x.place);
        effects.index(&plan.x.element);
        for var in plan.around.iter().chain(&plan.cols).chain(&plan.run) {
            if plan.x.element.uses_var(|own| own == *var) {
                effects.range(*var, part);
            }
        }
        effects.writes.insert(Memory::Slot(slot));
        effects
    }

    fn body(&mut self, body: &[Stmt], part: &Part) {
        for stmt in body {
            match stmt {
                Stmt::Nest(nest) => self.nest(nest, part),
                Stmt::Loop { var, body } => {
                    self.range(*var, part);
                    self.body(body, part);
                }
            }
        }
    }

    fn nest(&mut self, nest: &Nest, part: &Part) {
        match nest.target {
            Place::Tile(tile) => {
                self.writes.insert(Memory::Tile(tile));
            }
            Place::Param(_) => self.is_final = true,
        }
        nest.indices().for_each(|index| self.index(index));
        nest.loops.iter().chain(nest.folds()).for_each(|var| self.range(*var, part));
        for expr in nest.exprs.values() {
            if let Expr::Load { from, .. } = expr {
                self.place(*from);
            }
        }
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
