//! Exponentials of differences, left to a function of `micro` that has wider vectors than generated code.
//!
//! In: a nest that stores `exp(a - b)`, where neighbours in `a` are stored as neighbours and share a `b`. Out: calls,
//! or `false` where the nest or the level is another, and nothing was emitted.
//! That is the form in which attention weighs scores: `a` the scores of a query, `b` the largest of them.

use crate::codegen::cpu::emit::Emitter;
use crate::codegen::cpu::level::Numbers;
use crate::codegen::cpu::product::{Stored, factor, is_simple, step_of, stored};
use crate::graph::op::{Binary, Unary};
use crate::kernel::{Expr, Nest, Place, VarId};
use crate::tensor::quant::Format;

/// What the loops of a nest are for.
struct Plan {
    a: Stored,
    b: Stored,
    out: Stored,
    /// The loop over neighbours, and one over rows of them.
    lane: VarId,
    row: Option<VarId>,
    around: Vec<VarId>,
}

impl Emitter<'_, '_> {
    /// Emits a nest as calls of `micro`, if it is of this form.
    pub(super) fn exponentials(&mut self, nest: &Nest) -> bool {
        let (Some(function), Some(plan)) = (self.table.exps, self.plan_of_exps(nest)) else { return false };
        let inner: Vec<VarId> = [plan.lane].into_iter().chain(plan.row).collect();
        self.each(&plan.around, &mut |emitter| {
            let fields = [
                emitter.place_of(&plan.a, &inner).0,
                emitter.place_of(&plan.b, &inner).0,
                emitter.place_of(&plan.out, &inner).0,
                emitter.step(&plan.a, plan.row),
                emitter.step(&plan.b, plan.row),
                emitter.step(&plan.out, plan.row),
                emitter.n(plan.row),
                emitter.n(Some(plan.lane)),
            ];
            emitter.call_micro(function as *const u8, &fields);
        });
        true
    }

    fn plan_of_exps(&self, nest: &Nest) -> Option<Plan> {
        let Expr::Unary(Unary::Exp, of) = &nest.exprs[nest.value] else { return None };
        let Expr::Binary(Binary::Sub, a, b) = &nest.exprs[*of] else { return None };
        // A buffer may take the place of another; tiles are apart.
        let is_tile = matches!(nest.target, Place::Tile(_));
        let is_plain = is_tile && nest.fold.is_none() && self.cpu.numbers != Numbers::Exact;
        if !is_plain || !nest.loops.iter().all(|var| is_simple(self.part, nest, *var)) {
            return None;
        }
        let of_load = |id| {
            let (place, at) = factor(nest, id)?;
            let stored = stored(self.kernel, self.part, place, at);
            (stored.format == Format::F32 && place != nest.target).then_some(stored)
        };
        let (a, b) = (of_load(*a)?, of_load(*b)?);
        let out = stored(self.kernel, self.part, nest.target, &nest.at);
        let steps = |var: VarId| [&a, &b, &out].map(|stored| step_of(&stored.element, var));
        let lane = nest.loops.iter().copied().find(|var| steps(*var) == [Some(1), Some(0), Some(1)])?;
        let is_row =
            |var: &VarId| *var != lane && steps(*var).iter().all(|step| step.is_some_and(|n| n >= 0));
        let row = nest.loops.iter().copied().rev().find(is_row);
        let around = nest.loops.iter().copied().filter(|var| *var != lane && Some(*var) != row).collect();
        (out.format == Format::F32).then_some(Plan { a, b, out, lane, row, around })
    }
}
