//! The iterations of a nest, shared by the threads of a workgroup.
//!
//! In: a nest whose block variables have values. Out: its stores.
//! Without a fold each of n threads takes every n-th iteration. With one, a group of threads takes an iteration
//! together where that keeps all threads busy, or where neighbours then read neighbouring elements of memory. Each of
//! the n threads of a group folds every n-th element, `reduce.rs` folds what they have, and the first one stores.
//! So sums are taken in another order than the text's; nothing else changes.

use std::collections::{BTreeMap, BTreeSet};

use cubecl_core::ir::Variable;

use crate::codegen::gpu::THREADS;
use crate::codegen::gpu::emit::Emitter;
use crate::codegen::gpu::wide::{Fetched, Wide, wide};
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
/// At most so many words are on their way to a thread: latency is long, and full bandwidth needs many requests.
pub(super) const MOST_WORDS: i64 = 24;
/// Elements that a thread asks for at once, where it takes them one by one.
const SINGLES: i64 = 8;

/// How a fold is done.
struct Plan<'n> {
    nest: &'n Nest,
    folding: &'n Folding,
    wide: Option<Wide>,
    /// How many values the variables of the fold have, pieces of the innermost where it reads such.
    counts: Vec<Variable>,
    /// Elements or pieces of an iteration, of all of them.
    n: Variable,
    /// Threads that take an iteration together.
    group: u32,
    /// Pieces that a thread asks for before it needs the first.
    at_once: u32,
}

/// How many values variables may have, and how many those have that may have fewer.
pub(super) struct Sizes {
    pub(super) counts: Vec<Variable>,
    pub(super) limits: Vec<(VarId, Variable)>,
}

/// A piece that memory was asked for: the number of its iteration, and the first value of the innermost variable.
struct Asked {
    i: Variable,
    base: Variable,
    fetched: Option<Fetched>,
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
    fn plan<'n>(&mut self, nest: &'n Nest, folding: &'n Folding) -> Plan<'n> {
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
        let group = 1 << group.max(1).ilog2();
        let mut counts: Vec<Variable> = folding.loops.iter().map(|var| self.count(*var)).collect();
        if let (Some(wide), Some(last)) = (&wide, counts.last_mut()) {
            *last = constant(wide.n_pieces);
        }
        let n = self.product(&counts);
        let at_once = wide.as_ref().map_or(1, |wide| at_once(known(n), group, wide));
        Plan { nest, folding, wide, counts, n, group, at_once }
    }

    /// Each of n threads takes every n-th iteration.
    pub(super) fn each(&mut self, nest: &Nest, act: impl FnOnce(&mut Self)) {
        let Sizes { counts, limits } = self.sizes(&nest.loops);
        let n = self.product(&counts);
        self.each_of_so_many(n, 1, |emitter, i| {
            emitter.bind(&nest.loops, &counts, i);
            let is_there = emitter.are_below(&limits);
            emitter.where_there(is_there, act);
        });
    }

    /// How many values variables have, or may have where a number that is known makes it easier to tell them apart.
    fn sizes(&mut self, loops: &[VarId]) -> Sizes {
        let Some((first, others)) = loops.split_first() else { return self.sizes_of_all(loops) };
        // Nothing is divided by how many values the first has.
        let Sizes { mut counts, limits } = self.sizes_of_all(others);
        counts.insert(0, self.count(*first));
        Sizes { counts, limits }
    }

    /// The same, but for the first variable as well.
    pub(super) fn sizes_of_all(&mut self, loops: &[VarId]) -> Sizes {
        let (mut counts, mut limits) = (Vec::new(), Vec::new());
        for var in loops {
            let count = self.count(*var);
            let block = self.part.full_len(*var).and_then(|len| len.as_const());
            match block.filter(|_| known(count).is_none()) {
                Some(block) => {
                    limits.push((*var, count));
                    counts.push(constant(block));
                }
                None => counts.push(count),
            }
        }
        Sizes { counts, limits }
    }

    /// Whether all variables have values that they take.
    fn are_below(&mut self, limits: &[(VarId, Variable)]) -> Option<Variable> {
        limits.iter().fold(None, |before, (var, count)| {
            let own = self.writer.sub(self.vars[var], self.start(*var));
            let is_below = self.writer.below(own, *count);
            Some(before.map_or(is_below, |before| self.writer.select(before, is_below, before)))
        })
    }

    /// Shares the numbers below `n` among all threads: each takes every [`THREADS`]-th, `at_once` of them at a time,
    /// and is told the first of these.
    pub(super) fn each_of_so_many(
        &mut self,
        n: Variable,
        at_once: u32,
        act: impl FnOnce(&mut Self, Variable),
    ) {
        let (unit, threads) = (self.unit, constant(i64::from(THREADS * at_once)));
        match known(n) {
            Some(n) if n == THREADS * at_once => act(self, unit),
            Some(few) if few < THREADS => {
                let is_there = if few == 1 {
                    let first = constant(0);
                    self.equals(unit, first)
                } else {
                    self.writer.below(unit, n)
                };
                self.when(is_there, |emitter| act(emitter, unit));
            }
            Some(all) if self.room.has_factors() && all.is_multiple_of(THREADS * at_once) => {
                self.counted(constant(0), n, threads, |emitter, round| {
                    let i = emitter.writer.add(round, unit);
                    act(emitter, i);
                });
            }
            _ => self.counted(unit, n, threads, act),
        }
    }

    /// A group of threads takes an iteration together.
    fn together(&mut self, plan: &Plan<'_>) {
        let nest = plan.nest;
        let Sizes { counts, limits } = self.sizes(&nest.loops);
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
            let is_below = emitter.are_below(&limits);
            let is_there = match (is_there, is_below) {
                (Some(a), Some(b)) => Some(emitter.writer.select(a, b, a)),
                (a, b) => a.or(b),
            };
            emitter.round(plan, lane, is_there);
        };
        let rounds = self.rounds_at_once(plan);
        let batch = constant(i64::from(n_groups * rounds));
        let whole = if rounds > 1 {
            let n_batches = self.writer.div(n, batch);
            self.writer.mul(n_batches, batch)
        } else {
            constant(0)
        };
        if known(whole) != Some(0) {
            self.counted(constant(0), whole, batch, |emitter, first| {
                let first = emitter.writer.add(first, own);
                let further = (0..rounds).map(|round| constant(i64::from(n_groups * round)));
                let iterations = further.map(|further| emitter.writer.add(first, further)).collect();
                emitter.batch(plan, lane, (&counts, &limits), iterations);
            });
        }
        match known(n) {
            Some(n) if known(whole) == Some(n) => {}
            Some(n) if n <= n_groups => round(self, constant(0)),
            _ => self.counted(whole, n, constant(i64::from(n_groups)), round),
        }
    }

    /// How many rounds are asked for before the first is folded: several, where each thread has one share of each.
    fn rounds_at_once(&self, plan: &Plan<'_>) -> u32 {
        let Some(wide) = plan.wide.as_ref().filter(|_| known(plan.n) == Some(plan.group * plan.at_once))
        else {
            return 1;
        };
        let n_out: i64 =
            plan.nest.loops.iter().map(|var| self.part.n_values(*var, &Sym::near).max(1)).product();
        let n_rounds = n_out as u32 / (THREADS / plan.group);
        let most = (MOST_WORDS / (wide.n_words * i64::from(plan.at_once))) as u32;
        1 << most.min(n_rounds).max(1).ilog2()
    }

    /// Iterations of all groups, one in each of several rounds.
    fn batch(
        &mut self,
        plan: &Plan<'_>,
        lane: Variable,
        (counts, limits): (&[Variable], &[(VarId, Variable)]),
        all: Vec<Variable>,
    ) {
        let nest = plan.nest;
        let mut asked = Vec::new();
        for i in all {
            let (i, is_there, _) = self.bound(&nest.loops, (counts, limits), i);
            asked.push((i, is_there, self.asked(plan, lane)));
        }
        for (i, is_there, pieces) in asked {
            self.bind(&nest.loops, counts, i);
            let start = self.identity(plan.folding.fold, self.dtype(nest));
            let so_far = self.writer.changing(start);
            let fixed = self.fixed(nest, plan.folding);
            self.taken(plan, &fixed, &so_far, &pieces);
            self.finished(plan, lane, &so_far, is_there);
        }
    }

    /// One iteration for each group; all threads go through it.
    fn round(&mut self, plan: &Plan<'_>, lane: Variable, is_there: Option<Variable>) {
        let start = self.identity(plan.folding.fold, self.dtype(plan.nest));
        let so_far = self.writer.changing(start);
        self.where_there(is_there, |emitter| emitter.folded(plan, &so_far, Some(lane)));
        self.finished(plan, lane, &so_far, is_there);
    }

    /// Folds what the threads of each group have, and stores it.
    fn finished(&mut self, plan: &Plan<'_>, lane: Variable, so_far: &Changing, is_there: Option<Variable>) {
        let (nest, folding) = (plan.nest, plan.folding);
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

    pub(super) fn where_there(&mut self, is_there: Option<Variable>, act: impl FnOnce(&mut Self)) {
        match is_there {
            Some(is_there) => self.when(is_there, act),
            None => act(self),
        }
    }

    /// Folds elements into a variable: all of them, or those that are a thread's share.
    fn folded(&mut self, plan: &Plan<'_>, so_far: &Changing, lane: Option<Variable>) {
        let Plan { nest, folding, wide, counts, n, group, at_once } = plan;
        let fixed = self.fixed(nest, folding);
        let Some(lane) = lane else {
            let singles = if wide.is_none() && reads_with(nest, folding) { SINGLES } else { 1 };
            return self.nested((&folding.loops, counts), singles, &mut |emitter, last| {
                let piece = emitter.piece_of(plan, (last, last));
                emitter.taken(plan, &fixed, so_far, &[piece]);
            });
        };
        self.counted(lane, *n, constant(i64::from(group * at_once)), |emitter, first| {
            let pieces = emitter.asked(plan, first);
            emitter.taken(plan, &fixed, so_far, &pieces);
        });
    }

    /// Asks memory for as many pieces of a thread as may be on their way, from its first iteration on.
    fn asked(&mut self, plan: &Plan<'_>, first: Variable) -> Vec<Asked> {
        let further = (0..plan.at_once).map(|number| constant(i64::from(plan.group * number)));
        let mut pieces = Vec::new();
        for further in further {
            let i = self.writer.add(first, further);
            let last = self.bind(&plan.folding.loops, &plan.counts, i);
            pieces.push(self.piece_of(plan, (i, last)));
        }
        pieces
    }

    /// Asks for the piece of an iteration, whose innermost variable has this number.
    fn piece_of(&mut self, plan: &Plan<'_>, (i, last): (Variable, Variable)) -> Asked {
        let Some(wide) = &plan.wide else { return Asked { i, base: last, fetched: None } };
        let base = self.writer.mul(last, constant(wide.len));
        Asked { i, base, fetched: Some(self.ask(wide, base)) }
    }

    /// Folds pieces that were asked for.
    fn taken(
        &mut self,
        plan: &Plan<'_>,
        fixed: &BTreeMap<ExprId, Variable>,
        so_far: &Changing,
        pieces: &[Asked],
    ) {
        let Plan { nest, folding, wide, counts, .. } = plan;
        let of = |id: ExprId| fixed.get(&id).copied();
        for Asked { i, base, fetched } in pieces {
            if pieces.len() > 1 {
                self.bind(&folding.loops, counts, *i);
            }
            let after = if let Some(piece) = wide.as_ref().zip(fetched.as_ref()) {
                self.fold_piece((nest, folding), piece, (*base, so_far.value()), &of)
            } else {
                let x = self.scalar_with(nest, nest.value, &of);
                self.fold(folding.fold, so_far.value(), x)
            };
            self.writer.set(so_far, after);
        }
    }

    /// Loops one inside the other, with the number of the innermost one's iteration, of which so many are done at once.
    fn nested(
        &mut self,
        (loops, counts): (&[VarId], &[Variable]),
        at_once: i64,
        act: &mut dyn FnMut(&mut Self, Variable),
    ) {
        let Some((var, inner)) = loops.split_first() else { return };
        let start = self.start(*var);
        let mut step = |emitter: &mut Self, i: Variable| {
            let value = emitter.writer.add(start, i);
            emitter.vars.insert(*var, value);
            if inner.is_empty() {
                act(emitter, i);
            } else {
                emitter.nested((inner, &counts[1..]), at_once, act);
            }
        };
        let (mut first, n) = (constant(0), counts[0]);
        if inner.is_empty() && at_once > 1 {
            let some = constant(at_once);
            let n_times = self.writer.div(n, some);
            let whole = self.writer.mul(n_times, some);
            self.counted(first, whole, some, |emitter, i| {
                for further in 0..at_once {
                    let i = emitter.writer.add(i, constant(further));
                    step(emitter, i);
                }
            });
            first = whole;
        }
        if known(first) != known(n) || known(n).is_none() {
            self.counted(first, n, constant(1), step);
        }
    }

    /// The scalars of a fold that are the same for all that is folded.
    fn fixed(&mut self, nest: &Nest, folding: &Folding) -> BTreeMap<ExprId, Variable> {
        let is_folded = |index: &Index| index.uses_var(|var| folding.loops.contains(&var));
        let mut changes: BTreeSet<ExprId> = BTreeSet::new();
        for (id, expr) in nest.exprs.iter() {
            if expr.indices().iter().any(is_folded)
                || expr.operands().iter().any(|operand| changes.contains(operand))
            {
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

    /// Gives variables the values of an iteration that may not exist; a thread without one takes the first and stores
    /// nothing. Says which it is, whether the one asked for exists, and which number the last one's value has.
    pub(super) fn bound(
        &mut self,
        loops: &[VarId],
        (counts, limits): (&[Variable], &[(VarId, Variable)]),
        i: Variable,
    ) -> (Variable, Option<Variable>, Variable) {
        self.bind(loops, counts, i);
        let is_there = self.are_below(limits);
        let i = is_there.map_or(i, |is_there| self.writer.select(is_there, i, constant(0)));
        let last = self.bind(loops, counts, i);
        (i, is_there, last)
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

/// How many pieces a thread asks for before it needs the first, where a group has so many: a divisor of its share.
fn at_once(n: Option<u32>, group: u32, wide: &Wide) -> u32 {
    let Some(n) = n.filter(|n| n.is_multiple_of(group)) else { return 1 };
    let most = (MOST_WORDS / wide.n_words).max(1) as u32;
    (1..=most).rev().find(|some| (n / group).is_multiple_of(*some)).unwrap_or(1)
}

/// Whether a fold reads memory anew with each step of its innermost loop.
fn reads_with(nest: &Nest, folding: &Folding) -> bool {
    let Some(last) = folding.loops.last() else { return false };
    nest.reads().any(|(_, _, at)| at.iter().any(|at| at.uses_var(|var| var == *last)))
}

/// Whether a step of a loop is a step in memory of something that the nest reads.
fn reads_along(nest: &Nest, var: VarId) -> bool {
    let is_var = |(atom, factor): &(Atom, i64)| *atom == Atom::Var(var) && *factor == 1;
    nest.reads().any(|(_, _, at)| at.last().is_some_and(|index| index.terms().iter().any(is_var)))
}
