//! Chooses the loop of a nest to vectorise, and how many iterations at once.
//!
//! In: a nest. Out: a [`Plan`], or `None` where every loop is short, or elements are so scattered that gathering them
//! would cost more than is gained. The costs here are estimates of instructions relative to each other; they decide
//! speed, never results. `vector.rs` emits a plan.

use crate::codegen::cpu::emit::Emitter;
use crate::codegen::cpu::vector::lane_strides::{LANES, Lane, Stride};
use crate::foundation::entity::List;
use crate::graph::op::{Binary, Unary};
use crate::kernel::index::{Index, strides};
use crate::kernel::walk::needed;
use crate::kernel::{Expr, ExprId, Nest, Place, VarId};
use crate::tensor::dtype::DType;
use crate::tensor::quant::Format;

/// The largest factor of an index that is analysed here; with a larger one, lanes are computed one by one.
const LARGEST: i64 = 1 << 50;
/// The largest stride between two lanes that an instruction can encode.
const FARTHEST: i64 = 1 << 20;

/// The role of the lanes of a loop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Form {
    /// Every lane stores an element.
    Map,
    /// The lanes are folded.
    Along,
    /// Every lane folds for itself.
    Across,
}

/// A nest whose iterations are done several at a time.
pub(crate) struct Plan<'a> {
    pub(crate) nest: &'a Nest,
    pub(crate) form: Form,
    pub(crate) lane: Lane<'a>,
    /// Vectors that are processed at once.
    pub(crate) groups: i64,
    /// The cost of one of them.
    pub(crate) cost: i64,
    /// The type of the value.
    pub(crate) dtype: DType,
    /// The loops around that of the lanes: the outer ones of a map, the folded ones along the lanes.
    pub(crate) others: Vec<VarId>,
    /// The expressions that the value needs, and what it starts from unless that is a scalar.
    pub(crate) is_needed: List<ExprId, bool>,
    /// Whether an expression differs between lanes.
    pub(crate) moves: List<ExprId, bool>,
    /// The access of each load.
    pub(crate) flats: List<ExprId, Option<Flat>>,
    /// The access of the store.
    pub(crate) target: Option<Flat>,
}

/// The index of an element in storage order.
pub(crate) struct Flat {
    pub(crate) place: Place,
    pub(crate) format: Format,
    /// The terms that are the same in all lanes.
    pub(crate) still: Index,
    /// The others.
    pub(crate) moving: Index,
    pub(crate) stride: Option<Stride>,
    /// A divisor of the index of the first lane.
    pub(crate) divisor: i64,
}

impl Flat {
    /// Whether lanes are neighbours in one block of a format that is decoded in vectors.
    pub(crate) fn is_in_quads(&self) -> bool {
        let is_close = self.stride.is_some_and(|stride| stride.step == 1);
        self.format.written_steps().is_some() && is_close && self.divisor % LANES == 0
    }

    /// The cost of loading one number, and of four.
    fn costs(&self) -> (i64, i64) {
        let Some(dtype) = self.format.plain() else {
            // Numbers of less than a byte are taken apart.
            let four = if self.format.block_bytes() > self.format.block_len() { 9 } else { 13 };
            return if self.is_in_quads() { (16, four) } else { (30, 130) };
        };
        let (one, four) = match dtype {
            DType::F32 | DType::I32 => (1, 1),
            DType::F16 => (8, 8),
            DType::BF16 => (2, 2),
        };
        match self.stride {
            Some(Stride { step: 1, .. }) => (one, four),
            Some(Stride { step: 0, .. }) => (one, one + 1),
            Some(_) => (one, 4 * one + 3),
            None => (one + 3, 4 * one + 15),
        }
    }
}

impl<'a> Emitter<'a, '_> {
    /// The best plan of a nest, if one is faster than scalar code.
    pub(crate) fn plan<'n>(&self, nest: &'n Nest) -> Option<Plan<'n>>
    where
        'a: 'n,
    {
        let folds = nest.folds();
        let outer = if folds.is_empty() { Form::Map } else { Form::Across };
        let along = folds.iter().rev().map(|var| (*var, Form::Along));
        let candidates = along.chain(nest.loops.iter().rev().map(|var| (*var, outer)));
        let plans = candidates.filter_map(|(var, form)| self.candidate(nest, var, form));
        plans.min_by_key(|plan| plan.cost)
    }

    /// The usual number of values of a loop.
    pub(crate) fn usual(&self, var: VarId) -> Option<i64> {
        self.part.full_len(var).map(|len| len.near())
    }

    fn candidate<'n>(&self, nest: &'n Nest, var: VarId, form: Form) -> Option<Plan<'n>>
    where
        'a: 'n,
    {
        let vars = &self.part.vars;
        let usual = self.usual(var).filter(|usual| *usual >= LANES)?;
        if nest.bounds_another(self.part, var) {
            return None;
        }
        let folding = nest.fold.as_ref();
        let around = if form == Form::Along { &folding?.loops } else { &nest.loops };
        let init = nest.init().filter(|_| form != Form::Along);
        let roots: Vec<ExprId> = [nest.value].into_iter().chain(init).collect();
        let mut plan = Plan {
            nest,
            form,
            lane: Lane { vars, var, rounds: LANES, group: LANES },
            groups: 1,
            cost: 0,
            dtype: self.dtype(nest),
            others: around.iter().copied().filter(|other| *other != var).collect(),
            is_needed: needed(&nest.exprs, &roots, |_| false),
            moves: List::default(),
            flats: List::default(),
            target: None,
        };
        self.locate(&mut plan)?;
        if form != Form::Along && plan.target.as_ref()?.stride?.step != 1 {
            return None;
        }
        let (one, four) = costs(&plan);
        // A sum waits for the one before it; sums of lanes are joined at the end.
        let (one, four) = match form {
            Form::Along => (one + 4, four + 1 + 160 / usual),
            Form::Map | Form::Across => (one + 1, four + 1),
        };
        if four >= 3 * one {
            return None;
        }
        plan.groups = groups(&plan, four, usual);
        plan.lane.rounds = plan.groups * LANES;
        self.locate(&mut plan)?;
        plan.cost = four;
        Some(plan)
    }

    /// Finds which expressions move with the lanes, and the access of each load and store.
    fn locate(&self, plan: &mut Plan<'_>) -> Option<()> {
        let lane = plan.lane;
        let (mut moves, mut flats) = (List::<ExprId, bool>::default(), List::default());
        for (id, expr) in plan.nest.exprs.iter() {
            let (is_moving, flat) = match expr {
                Expr::Load { from, at } if plan.is_needed[id] => {
                    (at.iter().any(|index| lane.moves(index)), Some(self.flat(&lane, *from, at)?))
                }
                Expr::Position(index) => (lane.moves(index), None),
                _ => (expr.operands().into_iter().any(|operand| moves[operand]), None),
            };
            moves.push(is_moving);
            flats.push(flat);
        }
        (plan.moves, plan.flats) = (moves, flats);
        if plan.form != Form::Along {
            plan.target = Some(self.flat(&lane, plan.nest.target, &plan.nest.at)?);
        }
        Some(())
    }

    /// The index of an element; none where the sum could leave 64 bits.
    fn flat(&self, lane: &Lane<'_>, place: Place, at: &[Index]) -> Option<Flat> {
        let layout = self.layout(place);
        let mut sum = Index::default();
        for (index, stride) in at.iter().zip(strides(&layout.dims)) {
            let numbers = index.terms().iter().map(|(_, factor)| *factor).chain([index.offset()]);
            for number in numbers {
                number.checked_mul(stride).filter(|product| product.abs() < LARGEST)?;
            }
            sum = sum.plus(&index.times(stride));
        }
        let (moving, still): (Vec<_>, Vec<_>) = (sum.terms().iter())
            .map(|(atom, factor)| Index::atom(atom.clone()).times(*factor))
            .partition(|term| lane.moves(term));
        let start = Index::constant(sum.offset());
        let is_near = |stride: &Stride| stride.step.abs() < FARTHEST;
        Some(Flat {
            place,
            format: layout.format,
            still: still.iter().fold(start, |sum, term| sum.plus(term)),
            moving: moving.iter().fold(Index::default(), |sum, term| sum.plus(term)),
            stride: lane.stride(&sum).filter(is_near),
            divisor: lane.divisor(&sum),
        })
    }
}

/// The cost of an iteration alone, and of four in lanes.
fn costs(plan: &Plan<'_>) -> (i64, i64) {
    let folds = plan.nest.folds();
    let is_folded = |index: &Index| index.uses_var(|var| folds.contains(&var));
    let (mut sum, mut repeats) = ((0, 0), List::<ExprId, bool>::default());
    for (id, expr) in plan.nest.exprs.iter() {
        let is_repeated = expr.indices().iter().any(is_folded)
            || expr.operands().into_iter().any(|operand| repeats[operand]);
        repeats.push(is_repeated);
        let (one, four) = match (plan.is_needed[id], plan.moves[id]) {
            (true, true) => costs_of(plan, id),
            // A scalar of each iteration of the fold, broadcast.
            (true, false) if is_repeated && plan.form == Form::Across => {
                let (one, _) = costs_of(plan, id);
                (one, one + 1)
            }
            _ => (0, 0),
        };
        sum = (sum.0 + one, sum.1 + four);
    }
    sum
}

fn costs_of(plan: &Plan<'_>, id: ExprId) -> (i64, i64) {
    match &plan.nest.exprs[id] {
        Expr::Load { .. } => plan.flats[id].as_ref().map_or((0, 0), Flat::costs),
        Expr::Const(_) => (0, 0),
        Expr::Position(index) => match plan.lane.stride(index) {
            Some(_) => (1, 2),
            None => (3, 16),
        },
        Expr::Unary(Unary::Exp | Unary::Ln | Unary::Sin | Unary::Cos, _) => (22, 22),
        Expr::Unary(Unary::Rsqrt, _) => (8, 8),
        Expr::Unary(Unary::Sqrt | Unary::Recip, _)
        | Expr::Binary(Binary::Div | Binary::Max | Binary::Min, ..) => (4, 4),
        Expr::Select(..) => (2, 3),
        Expr::Cast(DType::F16 | DType::BF16, _) => (12, 30),
        Expr::Unary(Unary::Neg, _) | Expr::Binary(..) | Expr::Cast(DType::F32 | DType::I32, _) => (1, 1),
    }
}

/// The number of vectors at once: several of cheap ones, and where the length is known, a number that divides it.
fn groups(plan: &Plan<'_>, cost: i64, usual: i64) -> i64 {
    let is_block = |flat: &Flat| flat.is_in_quads();
    let n_blocks = plan.flats.values().flatten().filter(|flat| is_block(flat)).count();
    let length = plan.lane.length_divisor();
    if n_blocks == 1 && cost < 16 && length % 32 == 0 {
        return 8;
    }
    let wanted = match (plan.form, cost) {
        (Form::Across, ..=8) | (Form::Along | Form::Map, ..=5) => 4,
        (Form::Across, ..=16) | (Form::Along | Form::Map, ..=10) => 2,
        _ => 1,
    };
    let mut groups = if length % LANES == 0 { wanted } else { wanted.min(2) };
    while groups > 1 && (usual < groups * LANES || length % LANES == 0 && length % (groups * LANES) != 0) {
        groups /= 2;
    }
    groups
}
