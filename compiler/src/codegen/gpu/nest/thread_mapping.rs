//! Maps the iterations of a nest to the threads of a workgroup.
//!
//! In: a nest whose block variables have values. Out: its stores.
//! Without a fold, thread t takes iterations t, t + 256, … (a workgroup-strided loop). With a fold, a group of threads
//! may share an iteration, where that keeps all 256 busy or makes their global loads coalesce:
//!
//! ```text
//!  group of 4:   lane 0      lane 1      lane 2      lane 3
//!    elements    0,4,8,…     1,5,9,…     2,6,10,…    3,7,11,…    each folds its own,
//!                └────────────── reduce.rs ──────────────┘       shuffles and shared memory do the rest, lane 0 stores
//! ```
//!
//! Loads are issued before the first is used: latency is long, and full bandwidth needs many requests in flight.
//! Only the order of sums differs from the interpreter's.

use std::collections::{BTreeMap, BTreeSet};

use cubecl_core::ir::Variable;

use crate::codegen::gpu::emit::Emitter;
use crate::codegen::gpu::nest::vector_loads::LoadedVectors;
use crate::codegen::gpu::writer::{MutableVar, Writes, constant, known};
use crate::kernel::index::{Atom, Index};
use crate::kernel::vector_loads::{VectorLoads, fold_vector_loads};
use crate::kernel::verify::types::expr_dtypes;
use crate::kernel::{Expr, ExprId, Folding, Nest, Place, VarId};
use crate::target::THREADS;
use crate::tensor::dtype::DType;
use crate::tensor::sym::Sym;

/// Shorter folds are left to one thread.
const MIN_SHARED_FOLD: i64 = 16;
/// Threads of a group whose loads coalesce.
const COALESCED_THREADS: i64 = 32;
/// The most 32-bit words of loads in flight a thread.
pub(crate) const MAX_WORDS_IN_FLIGHT: i64 = 24;
/// Unroll factor of folds that load element by element.
const SCALAR_UNROLL: i64 = 8;

/// How a fold is done.
struct FoldPlan<'n> {
    nest: &'n Nest,
    folding: &'n Folding,
    vectors: Option<VectorLoads>,
    /// Trip counts of the folded loops; of the innermost in vectors where it loads those.
    counts: Vec<Variable>,
    /// The folded loops that end early, where others say so.
    limits: Vec<Limit>,
    /// Elements, or vectors, of one iteration.
    n: Variable,
    /// Threads that share an iteration.
    group: u32,
    /// Vectors that a thread loads before it uses the first.
    in_flight: u32,
}

/// A variable that may take fewer values than are counted for it, and how many it takes; none where this depends on
/// others that are bound with it.
pub(crate) type Limit = (VarId, Option<Variable>);

/// Trip counts at their most, and the variables that may have fewer.
pub(crate) struct LoopCounts {
    pub(crate) counts: Vec<Variable>,
    pub(crate) limits: Vec<Limit>,
}

/// A vector load that was issued: the number of its iteration, and the first value of the innermost variable.
struct PendingPiece {
    i: Variable,
    base: Variable,
    fetched: Option<LoadedVectors>,
}

impl Emitter<'_> {
    pub(crate) fn nest(&mut self, nest: &Nest) {
        if let Some(format) = nest.blocks(self.kernel) {
            return self.quantise_rows(nest, format);
        }
        let Some(folding) = &nest.fold else {
            return self.each_iteration(nest, |emitter| {
                let value = emitter.scalar(nest, nest.value);
                emitter.store(nest.target, &nest.at, value);
            });
        };
        if let Some(product) = self.tensor_core_product(nest) {
            return self.mma_product(nest, &product);
        }
        let plan = self.fold_plan(nest, folding);
        if plan.group > 1 {
            return self.fold_in_groups(&plan);
        }
        self.each_iteration(nest, |emitter| {
            let start = match folding.init {
                Some(init) => emitter.scalar(nest, init),
                None => emitter.identity(folding.fold, emitter.dtype(nest)),
            };
            let so_far = emitter.writer.mutable(start);
            emitter.fold_elements(&plan, &so_far, None);
            emitter.store(nest.target, &nest.at, so_far.value());
        });
    }

    /// Decides how a fold is done.
    fn fold_plan<'n>(&mut self, nest: &'n Nest, folding: &'n Folding) -> FoldPlan<'n> {
        let near = |var: &VarId| self.part.n_values(*var, &Sym::near).max(1);
        let vectors = fold_vector_loads(self.kernel, self.part, nest, folding);
        let (last, outer) = folding.loops.split_last().expect("a fold has loops");
        let n_last = vectors.as_ref().map_or_else(|| near(last), |vectors| vectors.n_pieces);
        let n_in = outer.iter().map(near).product::<i64>() * n_last;
        let n_out: i64 = nest.loops.iter().map(near).product();
        let threads = i64::from(THREADS);
        let idle = (threads / n_out.max(1)).max(1);
        let wanted = if reads_contiguously(nest, *last) { COALESCED_THREADS } else { 1 };
        let most =
            if n_in * vectors.as_ref().map_or(1, |vectors| vectors.len) < MIN_SHARED_FOLD { 1 } else { n_in };
        let group = idle.max(wanted).min(most).min(threads);
        let group = 1 << group.max(1).ilog2();
        let LoopCounts { mut counts, limits } = self.fold_counts(&folding.loops);
        if let (Some(vectors), Some(last)) = (&vectors, counts.last_mut()) {
            *last = constant(vectors.n_pieces);
        }
        let n = self.product(&counts);
        let in_flight = vectors.as_ref().map_or(1, |vectors| pieces_in_flight(known(n), group, vectors));
        FoldPlan { nest, folding, vectors, counts, limits, n, group, in_flight }
    }

    /// Trip counts of the loops of a fold, at their most only where they depend on each other.
    fn fold_counts(&mut self, loops: &[VarId]) -> LoopCounts {
        let (mut counts, mut limits) = (Vec::new(), Vec::new());
        for var in loops {
            if self.ends_with(*var, loops) {
                limits.push((*var, None));
                counts.push(self.most(*var));
            } else {
                counts.push(self.count(*var));
            }
        }
        LoopCounts { counts, limits }
    }

    /// Whether where a variable ends depends on other ones.
    fn ends_with(&self, var: VarId, others: &[VarId]) -> bool {
        let uses = |bound: &Index| bound.uses_var(|other| other != var && others.contains(&other));
        self.part.vars[var].until.iter().any(uses)
    }

    /// The most values of a variable.
    fn most(&mut self, var: VarId) -> Variable {
        let len = self.part.full_len(var).expect("a nest takes whole axes and positions within a block");
        self.size(&len)
    }

    /// A workgroup-strided loop over the iterations of a nest.
    pub(crate) fn each_iteration(&mut self, nest: &Nest, act: impl FnOnce(&mut Self)) {
        let LoopCounts { counts, limits } = self.loop_counts(&nest.loops);
        let n = self.product(&counts);
        self.strided(n, 1, |emitter, i| {
            emitter.bind(&nest.loops, &counts, i);
            let is_there = emitter.within_limits(&limits);
            emitter.if_present(is_there, act);
        });
    }

    /// Trip counts; constants at their most where the actual count is not known, since division by a constant is cheap.
    fn loop_counts(&mut self, loops: &[VarId]) -> LoopCounts {
        let Some((first, others)) = loops.split_first() else { return self.fixed_loop_counts(loops) };
        let LoopCounts { mut counts, mut limits } = self.limited(others, loops);
        if self.ends_with(*first, others) {
            limits.push((*first, None));
            counts.insert(0, self.most(*first));
        } else {
            // Nothing is divided by the count of the first.
            counts.insert(0, self.count(*first));
        }
        LoopCounts { counts, limits }
    }

    /// The same, with a constant for the first variable as well.
    pub(crate) fn fixed_loop_counts(&mut self, loops: &[VarId]) -> LoopCounts {
        self.limited(loops, loops)
    }

    /// The same of some of the loops that are bound together.
    fn limited(&mut self, loops: &[VarId], together: &[VarId]) -> LoopCounts {
        let (mut counts, mut limits) = (Vec::new(), Vec::new());
        for var in loops {
            if self.ends_with(*var, together) {
                limits.push((*var, None));
                counts.push(self.most(*var));
                continue;
            }
            let count = self.count(*var);
            let block = self.part.full_len(*var).and_then(|len| len.as_const());
            match block.filter(|_| known(count).is_none()) {
                Some(block) => {
                    limits.push((*var, Some(count)));
                    counts.push(constant(block));
                }
                None => counts.push(count),
            }
        }
        LoopCounts { counts, limits }
    }

    /// Whether all variables lie within their actual counts.
    fn within_limits(&mut self, limits: &[Limit]) -> Option<Variable> {
        limits.iter().fold(None, |before, (var, count)| {
            let own = self.writer.sub(self.vars[var], self.start(*var));
            let count = count.unwrap_or_else(|| self.count(*var));
            let is_below = self.writer.below(own, count);
            Some(before.map_or(is_below, |before| self.writer.select(before, is_below, before)))
        })
    }

    /// A workgroup-strided loop below `n`, `in_flight` iterations at a time: thread t is given t, t + 256 ·
    /// `in_flight`, ….
    pub(crate) fn strided(&mut self, n: Variable, in_flight: u32, act: impl FnOnce(&mut Self, Variable)) {
        let (thread, threads) = (self.thread, constant(i64::from(THREADS * in_flight)));
        match known(n) {
            Some(n) if n == THREADS * in_flight => act(self, thread),
            Some(few) if few < THREADS => {
                let is_there = if few == 1 {
                    let first = constant(0);
                    self.equals(thread, first)
                } else {
                    self.writer.below(thread, n)
                };
                self.when(is_there, |emitter| act(emitter, thread));
            }
            Some(all) if self.memory.has_mma() && all.is_multiple_of(THREADS * in_flight) => {
                self.counted(constant(0), n, threads, |emitter, round| {
                    let i = emitter.writer.add(round, thread);
                    act(emitter, i);
                });
            }
            _ => self.counted(thread, n, threads, act),
        }
    }

    /// Groups of threads share iterations.
    fn fold_in_groups(&mut self, plan: &FoldPlan<'_>) {
        let nest = plan.nest;
        let LoopCounts { counts, limits } = self.loop_counts(&nest.loops);
        let n = self.product(&counts);
        let group = constant(i64::from(plan.group));
        let n_groups = THREADS / plan.group;
        let (own, lane) = (self.writer.div(self.thread, group), self.writer.rem(self.thread, group));
        let round = |emitter: &mut Self, first: Variable| {
            let i = emitter.writer.add(first, own);
            emitter.bind(&nest.loops, &counts, i);
            let is_there = match known(n) {
                Some(n) if n.is_multiple_of(n_groups) => None,
                _ => Some(emitter.writer.below(i, n)),
            };
            let is_below = emitter.within_limits(&limits);
            let is_there = match (is_there, is_below) {
                (Some(a), Some(b)) => Some(emitter.writer.select(a, b, a)),
                (a, b) => a.or(b),
            };
            emitter.group_round(plan, lane, is_there);
        };
        let rounds = self.rounds_in_flight(plan);
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
                emitter.pipelined_rounds(plan, lane, (&counts, &limits), iterations);
            });
        }
        match known(n) {
            Some(n) if known(whole) == Some(n) => {}
            Some(n) if n <= n_groups => round(self, constant(0)),
            _ => self.counted(whole, n, constant(i64::from(n_groups)), round),
        }
    }

    /// How many iterations a group loads before it folds the first: several, where one load covers a thread's whole
    /// share.
    fn rounds_in_flight(&self, plan: &FoldPlan<'_>) -> u32 {
        let Some(vectors) =
            plan.vectors.as_ref().filter(|_| known(plan.n) == Some(plan.group * plan.in_flight))
        else {
            return 1;
        };
        let n_out: i64 =
            plan.nest.loops.iter().map(|var| self.part.n_values(*var, &Sym::near).max(1)).product();
        let n_rounds = n_out as u32 / (THREADS / plan.group);
        let most = (MAX_WORDS_IN_FLIGHT / (vectors.n_words * i64::from(plan.in_flight))) as u32;
        1 << most.min(n_rounds).max(1).ilog2()
    }

    /// One iteration for each group in each of several rounds; all loads are issued before the first fold.
    fn pipelined_rounds(
        &mut self,
        plan: &FoldPlan<'_>,
        lane: Variable,
        (counts, limits): (&[Variable], &[Limit]),
        all: Vec<Variable>,
    ) {
        let nest = plan.nest;
        let mut pending = Vec::new();
        for i in all {
            let (i, is_there, _) = self.bind_clamped(&nest.loops, (counts, limits), i);
            pending.push((i, is_there, self.issue_pieces(plan, lane)));
        }
        for (i, is_there, pieces) in pending {
            self.bind(&nest.loops, counts, i);
            let start = self.identity(plan.folding.fold, self.dtype(nest));
            let so_far = self.writer.mutable(start);
            let fixed = self.loop_invariants(nest, plan.folding);
            self.fold_pieces(plan, &fixed, &so_far, &pieces);
            self.reduce_and_store(plan, lane, &so_far, is_there);
        }
    }

    /// One iteration for each group; all threads go through it.
    fn group_round(&mut self, plan: &FoldPlan<'_>, lane: Variable, is_there: Option<Variable>) {
        let start = self.identity(plan.folding.fold, self.dtype(plan.nest));
        let so_far = self.writer.mutable(start);
        self.if_present(is_there, |emitter| emitter.fold_elements(plan, &so_far, Some(lane)));
        self.reduce_and_store(plan, lane, &so_far, is_there);
    }

    /// Reduces over the threads of each group and stores the result.
    fn reduce_and_store(
        &mut self,
        plan: &FoldPlan<'_>,
        lane: Variable,
        so_far: &MutableVar,
        is_there: Option<Variable>,
    ) {
        let (nest, folding) = (plan.nest, plan.folding);
        let value = self.reduce(folding.fold, so_far.value(), plan.group);
        let zero = constant(0);
        let is_first = self.equals(lane, zero);
        self.when(is_first, |emitter| {
            emitter.if_present(is_there, |emitter| {
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

    pub(crate) fn if_present(&mut self, is_there: Option<Variable>, act: impl FnOnce(&mut Self)) {
        match is_there {
            Some(is_there) => self.when(is_there, act),
            None => act(self),
        }
    }

    /// Folds into a variable: everything, or a lane's share.
    fn fold_elements(&mut self, plan: &FoldPlan<'_>, so_far: &MutableVar, lane: Option<Variable>) {
        let FoldPlan { nest, folding, vectors, counts, n, group, in_flight, .. } = plan;
        let fixed = self.loop_invariants(nest, folding);
        let Some(lane) = lane else {
            let singles = if vectors.is_none() && reads_per_step(nest, folding) { SCALAR_UNROLL } else { 1 };
            return self.nested_loops((&folding.loops, counts), singles, &mut |emitter, last| {
                let piece = emitter.issue_piece(plan, (last, last));
                emitter.fold_pieces(plan, &fixed, so_far, &[piece]);
            });
        };
        self.counted(lane, *n, constant(i64::from(group * in_flight)), |emitter, first| {
            let pieces = emitter.issue_pieces(plan, first);
            emitter.fold_pieces(plan, &fixed, so_far, &pieces);
        });
    }

    /// Issues as many loads as may be in flight, from a thread's first vector on.
    fn issue_pieces(&mut self, plan: &FoldPlan<'_>, first: Variable) -> Vec<PendingPiece> {
        let further = (0..plan.in_flight).map(|number| constant(i64::from(plan.group * number)));
        let mut pieces = Vec::new();
        for further in further {
            let i = self.writer.add(first, further);
            let last = self.bind(&plan.folding.loops, &plan.counts, i);
            pieces.push(self.issue_piece(plan, (i, last)));
        }
        pieces
    }

    /// Issues the load of an iteration, whose innermost variable has this number.
    fn issue_piece(&mut self, plan: &FoldPlan<'_>, (i, last): (Variable, Variable)) -> PendingPiece {
        let Some(vectors) = &plan.vectors else { return PendingPiece { i, base: last, fetched: None } };
        let base = self.writer.mul(last, constant(vectors.len));
        PendingPiece { i, base, fetched: Some(self.load_piece(vectors, base)) }
    }

    /// Folds vectors that were loaded.
    fn fold_pieces(
        &mut self,
        plan: &FoldPlan<'_>,
        fixed: &BTreeMap<ExprId, Variable>,
        so_far: &MutableVar,
        pieces: &[PendingPiece],
    ) {
        let FoldPlan { nest, folding, vectors, counts, limits, .. } = plan;
        let of = |id: ExprId| fixed.get(&id).copied();
        for PendingPiece { i, base, fetched } in pieces {
            if pieces.len() > 1 {
                self.bind(&folding.loops, counts, *i);
            }
            let after = if let Some(piece) = vectors.as_ref().zip(fetched.as_ref()) {
                self.fold_piece((nest, folding), piece, (*base, so_far.value()), &of)
            } else {
                let x = self.scalar_with(nest, nest.value, &of);
                let after = self.fold(folding.fold, so_far.value(), x);
                let is_there = self.within_limits(limits);
                is_there.map_or(after, |is_there| self.writer.select(is_there, after, so_far.value()))
            };
            self.writer.set(so_far, after);
        }
    }

    /// Nested loops, the innermost unrolled by `at_once`; passes the innermost iteration number on.
    fn nested_loops(
        &mut self,
        (loops, counts): (&[VarId], &[Variable]),
        in_flight: i64,
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
                emitter.nested_loops((inner, &counts[1..]), in_flight, act);
            }
        };
        let (mut first, n) = (constant(0), counts[0]);
        if inner.is_empty() && in_flight > 1 {
            let some = constant(in_flight);
            let n_times = self.writer.div(n, some);
            let whole = self.writer.mul(n_times, some);
            self.counted(first, whole, some, |emitter, i| {
                for further in 0..in_flight {
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

    /// The scalars that do not change within a fold.
    fn loop_invariants(&mut self, nest: &Nest, folding: &Folding) -> BTreeMap<ExprId, Variable> {
        let is_folded = |index: &Index| index.uses_var(|var| folding.loops.contains(&var));
        let mut changes: BTreeSet<ExprId> = BTreeSet::new();
        for (id, expr) in nest.exprs.iter() {
            if expr.indices().iter().any(is_folded)
                || expr.operands().iter().any(|operand| changes.contains(operand))
            {
                changes.insert(id);
            }
        }
        // Only those that changing scalars use are worth a register; constants are not.
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

    /// Binds variables to an iteration that may not exist: a thread without one computes the first and must not store.
    /// Gives the iteration, whether it exists, and the number of the last variable's value.
    pub(crate) fn bind_clamped(
        &mut self,
        loops: &[VarId],
        (counts, limits): (&[Variable], &[Limit]),
        i: Variable,
    ) -> (Variable, Option<Variable>, Variable) {
        self.bind(loops, counts, i);
        let is_there = self.within_limits(limits);
        let i = is_there.map_or(i, |is_there| self.writer.select(is_there, i, constant(0)));
        let last = self.bind(loops, counts, i);
        (i, is_there, last)
    }

    /// Binds variables to a linear iteration number, the last fastest. Gives the number of the last variable's value.
    pub(crate) fn bind(&mut self, loops: &[VarId], counts: &[Variable], i: Variable) -> Variable {
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

    pub(crate) fn product(&mut self, counts: &[Variable]) -> Variable {
        let one = constant(1);
        counts.iter().fold(one, |product, count| self.writer.mul(product, *count))
    }

    /// The element type that a nest stores or folds.
    pub(crate) fn dtype(&self, nest: &Nest) -> DType {
        let of_place = |place| match place {
            Place::Param(id) => self.kernel.params[id].format.dtype(),
            Place::Tile(id) => self.part.tiles[id].dtype,
        };
        expr_dtypes(&nest.exprs, of_place).expect("a verified nest has types")[nest.value]
    }
}

/// How many vectors a thread loads before it uses the first: a divisor of its share.
fn pieces_in_flight(n: Option<u32>, group: u32, vectors: &VectorLoads) -> u32 {
    let Some(n) = n.filter(|n| n.is_multiple_of(group)) else { return 1 };
    let most = (MAX_WORDS_IN_FLIGHT / vectors.n_words).max(1) as u32;
    (1..=most).rev().find(|some| (n / group).is_multiple_of(*some)).unwrap_or(1)
}

/// Whether each step of the innermost loop loads from a buffer.
fn reads_per_step(nest: &Nest, folding: &Folding) -> bool {
    let Some(last) = folding.loops.last() else { return false };
    nest.reads().any(|(_, _, at)| at.iter().any(|at| at.uses_var(|var| var == *last)))
}

/// Whether a step of the loop is one element further in some buffer.
fn reads_contiguously(nest: &Nest, var: VarId) -> bool {
    let is_var = |(atom, factor): &(Atom, i64)| *atom == Atom::Var(var) && *factor == 1;
    nest.reads().any(|(_, _, at)| at.last().is_some_and(|index| index.terms().iter().any(is_var)))
}
