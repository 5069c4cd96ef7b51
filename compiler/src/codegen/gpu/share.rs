//! The iterations of a nest, shared by the threads of a workgroup.
//!
//! In: a nest whose block variables have values. Out: its stores.
//! Without a fold each thread takes every so manieth iteration. With one, a group of threads takes an iteration
//! together where that keeps all threads busy, or where neighbours then read neighbouring elements of memory; each
//! thread folds every so manieth element, `reduce.rs` folds what they have, and the first of the group stores.
//! Sums are so taken in another order than the text's; nothing else changes.

use std::collections::{BTreeMap, BTreeSet};

use cubecl_core::ir::Variable;

use crate::codegen::gpu::THREADS;
use crate::codegen::gpu::emit::Emitter;
use crate::codegen::gpu::wide::{Wide, wide};
use crate::codegen::gpu::writer::{Changing, Writes, constant, known};
use crate::kernel::index::{Atom, Index};
use crate::kernel::verify::types::expr_dtypes;
use crate::kernel::{Expr, ExprId, Folding, Nest, Place, VarId};
use crate::tensor::dtype::DType;
use crate::tensor::sym::Sym;

/// Folds of fewer elements are left to one thread.
const SHORT: i64 = 16;
/// So many neighbours read memory together.
const NEIGHBOURS: i64 = 32;

/// How a fold is done.
struct Plan<'n> {
    nest: &'n Nest,
    folding: &'n Folding,
    wide: Option<Wide>,
    /// Threads that take an iteration together.
    group: u32,
}

impl Emitter<'_> {
    pub(super) fn nest(&mut self, nest: &Nest) {
        if let Some(format) = nest.blocks(self.kernel) {
            return self.blocks(nest, format);
        }
        let Some(folding) = &nest.fold else {
            return self.each(nest, |emitter| {
                let value = emitter.scalar(nest, nest.value);
                emitter.store(nest.target, &nest.at, value);
            });
        };
        if let Some(product) = self.product_of_tiles(nest, folding) {
            return self.multiplied(nest, &product);
        }
        let plan = self.plan(nest, folding);
        if plan.group > 1 {
            return self.together(&plan);
        }
        self.each(nest, |emitter| {
            let start = match folding.init {
                Some(init) => emitter.scalar(nest, init),
                None => emitter.identity(folding.fold, emitter.dtype(nest)),
            };
            let so_far = emitter.writer.changing(start);
            emitter.folded(&plan, &so_far, None);
            emitter.store(nest.target, &nest.at, so_far.value());
        });
    }

    /// How a fold is done.
    fn plan<'n>(&self, nest: &'n Nest, folding: &'n Folding) -> Plan<'n> {
        let near = |var: &VarId| self.part.n_values(*var, &Sym::near).max(1);
        let wide = wide(self.kernel, self.part, nest, folding);
        let (last, outer) = folding.loops.split_last().expect("a fold has loops");
        let n_last = wide.as_ref().map_or_else(|| near(last), |wide| wide.n_pieces);
        let n_in = outer.iter().map(near).product::<i64>() * n_last;
        let n_out: i64 = nest.loops.iter().map(near).product();
        let threads = i64::from(THREADS);
        let idle = (threads / n_out.max(1)).max(1);
        let wanted = if reads_along(nest, *last) { NEIGHBOURS } else { 1 };
        let most = if n_in * wide.as_ref().map_or(1, |wide| wide.len) < SHORT { 1 } else { n_in };
        let group = idle.max(wanted).min(most).min(threads);
        Plan { nest, folding, wide, group: 1 << group.max(1).ilog2() }
    }

    /// Each thread takes every so manieth iteration.
    pub(super) fn each(&mut self, nest: &Nest, act: impl FnOnce(&mut Self)) {
        let counts: Vec<Variable> = nest.loops.iter().map(|var| self.count(*var)).collect();
        let n = self.product(&counts);
        let (unit, threads) = (self.unit, constant(i64::from(THREADS)));
        match known(n) {
            Some(n) if n == THREADS => self.bound(nest, &counts, unit, act),
            Some(few) if few < THREADS => {
                let is_there = if few == 1 {
                    let first = constant(0);
                    self.equals(unit, first)
                } else {
                    self.writer.below(unit, n)
                };
                self.when(is_there, |emitter| emitter.bound(nest, &counts, unit, act));
            }
            _ => self.counted(unit, n, threads, |emitter, i| emitter.bound(nest, &counts, i, act)),
        }
    }

    /// A group of threads takes an iteration together.
    fn together(&mut self, plan: &Plan<'_>) {
        let nest = plan.nest;
        let counts: Vec<Variable> = nest.loops.iter().map(|var| self.count(*var)).collect();
        let n = self.product(&counts);
        let group = constant(i64::from(plan.group));
        let n_groups = THREADS / plan.group;
        let (own, lane) = (self.writer.div(self.unit, group), self.writer.rem(self.unit, group));
        let round = |emitter: &mut Self, first: Variable| {
            let i = emitter.writer.add(first, own);
            emitter.bind(&nest.loops, &counts, i);
            let is_there = match known(n) {
                Some(n) if n.is_multiple_of(n_groups) => None,
                _ => Some(emitter.writer.below(i, n)),
            };
            emitter.round(plan, lane, is_there);
        };
        let [first, step] = [0, i64::from(n_groups)].map(constant);
        match known(n) {
            Some(0) => {}
            Some(n) if n <= n_groups => round(self, first),
            _ => self.counted(first, n, step, round),
        }
    }

    /// One iteration for each group; all threads go through it.
    fn round(&mut self, plan: &Plan<'_>, lane: Variable, is_there: Option<Variable>) {
        let (nest, folding) = (plan.nest, plan.folding);
        let start = self.identity(folding.fold, self.dtype(nest));
        let so_far = self.writer.changing(start);
        self.where_there(is_there, |emitter| emitter.folded(plan, &so_far, Some(lane)));
        let value = self.reduced(folding.fold, so_far.value(), plan.group);
        let zero = constant(0);
        let is_first = self.equals(lane, zero);
        self.when(is_first, |emitter| {
            emitter.where_there(is_there, |emitter| {
                let value = match folding.init {
                    Some(init) => {
                        let start = emitter.scalar(nest, init);
                        emitter.fold(folding.fold, start, value)
                    }
                    None => value,
                };
                emitter.store(nest.target, &nest.at, value);
            });
        });
    }

    fn where_there(&mut self, is_there: Option<Variable>, act: impl FnOnce(&mut Self)) {
        match is_there {
            Some(is_there) => self.when(is_there, act),
            None => act(self),
        }
    }

    /// Folds elements into a variable: all of them, or those that are a thread's share.
    fn folded(&mut self, plan: &Plan<'_>, so_far: &Changing, lane: Option<Variable>) {
        let Plan { nest, folding, wide, group } = plan;
        let fixed = self.fixed(nest, folding);
        let mut counts: Vec<Variable> = folding.loops.iter().map(|var| self.count(*var)).collect();
        if let (Some(wide), Some(last)) = (wide, counts.last_mut()) {
            *last = constant(wide.n_pieces);
        }
        let step = constant(i64::from(*group));
        let mut act = |emitter: &mut Self, last: Variable| {
            let of = |id: ExprId| fixed.get(&id).copied();
            let after = if let Some(wide) = wide {
                emitter.fold_piece((nest, folding), wide, (last, so_far.value()), &of)
            } else {
                let x = emitter.scalar_with(nest, nest.value, &of);
                emitter.fold(folding.fold, so_far.value(), x)
            };
            emitter.writer.set(so_far, after);
        };
        match lane {
            None => self.nested(&folding.loops, &counts, &mut act),
            Some(lane) => {
                let n = self.product(&counts);
                self.counted(lane, n, step, |emitter, i| {
                    let last = emitter.bind(&folding.loops, &counts, i);
                    act(emitter, last);
                });
            }
        }
    }

    /// Loops one inside the other, with the number of the innermost one's iteration.
    fn nested(&mut self, loops: &[VarId], counts: &[Variable], act: &mut dyn FnMut(&mut Self, Variable)) {
        let Some((var, inner)) = loops.split_first() else { return };
        let start = self.start(*var);
        let [zero, one] = [0, 1].map(constant);
        self.counted(zero, counts[0], one, |emitter, i| {
            let value = emitter.writer.add(start, i);
            emitter.vars.insert(*var, value);
            if inner.is_empty() { act(emitter, i) } else { emitter.nested(inner, &counts[1..], act) }
        });
    }

    /// The scalars of a fold that are the same for all that is folded.
    fn fixed(&mut self, nest: &Nest, folding: &Folding) -> BTreeMap<ExprId, Variable> {
        let is_folded = |index: &Index| index.uses_var(|var| folding.loops.contains(&var));
        let mut changes: BTreeSet<ExprId> = BTreeSet::new();
        for (id, expr) in nest.exprs.iter() {
            let own = match expr {
                Expr::Position(index) => is_folded(index),
                Expr::Load { at, .. } => at.iter().any(is_folded),
                Expr::Const(_) | Expr::Unary(..) | Expr::Binary(..) | Expr::Select(..) | Expr::Cast(..) => {
                    false
                }
            };
            if own || expr.operands().iter().any(|operand| changes.contains(operand)) {
                changes.insert(id);
            }
        }
        // Only what changing scalars use of the others is worth a register, and constants are not.
        let mut found = BTreeMap::new();
        let used = nest.exprs.iter().filter(|(id, _)| changes.contains(id));
        let used: BTreeSet<ExprId> = used.flat_map(|(_, expr)| expr.operands()).collect();
        for id in used.into_iter().chain([nest.value]) {
            if !changes.contains(&id) && !matches!(nest.exprs[id], Expr::Const(_)) {
                found.insert(id, self.scalar(nest, id));
            }
        }
        found
    }

    /// Gives the variables of the outer loops their values and goes on.
    fn bound(&mut self, nest: &Nest, counts: &[Variable], i: Variable, act: impl FnOnce(&mut Self)) {
        self.bind(&nest.loops, counts, i);
        act(self);
    }

    /// Gives variables the values of a combination of theirs, by its number; the last runs fastest. Says which number
    /// the last one's value has.
    pub(super) fn bind(&mut self, loops: &[VarId], counts: &[Variable], i: Variable) -> Variable {
        let (mut rest, mut last) = (i, i);
        for (number, (var, count)) in loops.iter().zip(counts).enumerate().rev() {
            let own = if number == 0 { rest } else { self.writer.rem(rest, *count) };
            rest = if number == 0 { rest } else { self.writer.div(rest, *count) };
            let value = self.writer.add(self.start(*var), own);
            self.vars.insert(*var, value);
            if number + 1 == loops.len() {
                last = own;
            }
        }
        last
    }

    pub(super) fn product(&mut self, counts: &[Variable]) -> Variable {
        let one = constant(1);
        counts.iter().fold(one, |product, count| self.writer.mul(product, *count))
    }

    /// The type of what a nest stores or folds.
    pub(super) fn dtype(&self, nest: &Nest) -> DType {
        let of_place = |place| match place {
            Place::Param(id) => self.kernel.params[id].format.dtype(),
            Place::Tile(id) => self.part.tiles[id].dtype,
        };
        expr_dtypes(&nest.exprs, of_place).expect("a verified nest has types")[nest.value]
    }
}

/// Whether a step of a loop is a step in memory of something that the nest reads.
fn reads_along(nest: &Nest, var: VarId) -> bool {
    let is_var = |(atom, factor): &(Atom, i64)| *atom == Atom::Var(var) && *factor == 1;
    nest.exprs.values().any(|expr| match expr {
        Expr::Load { from: Place::Param(_), at } => {
            at.last().is_some_and(|index: &Index| index.terms().iter().any(is_var))
        }
        _ => false,
    })
}
