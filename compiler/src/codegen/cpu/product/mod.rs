//! Recognises nests that are GEMM or weighted sums, for which `micro` has kernels.
//!
//! In: a nest that sums products of two elements. Out: a `Plan` that assigns a role to each loop, or a [`Reason`] why
//! there is none. Roles follow from how the storage index of both factors depends on a loop: a loop that steps through
//! both contiguously is the reduction (`k`); one that steps only through the weight counts rows; one that steps only
//! through the other factor counts columns; all others are generated around the call. Where a number from memory
//! selects the matrix for many columns (mixture of experts), columns are grouped by it. Nothing is emitted here;
//! `product_call.rs` does that.

use std::cmp::Reverse;

use crate::codegen::cpu::Cpu;
use crate::codegen::cpu::level::Level;
use crate::codegen::cpu::micro::abi::ActivationLayout;
use crate::codegen::cpu::micro::layout::sizes::activation_bytes;
use crate::codegen::cpu::micro::{self, activation_layout, activation_layout_scattered};
use crate::codegen::cpu::product::reason::Reason;
use crate::graph::op::{Binary, Fold};
use crate::kernel::index::{Atom, Index, Vars, element_of};
use crate::kernel::{Expr, ExprId, Kernel, Nest, Part, Place, Range, VarId};
use crate::options::Numbers;
use crate::tensor::quant::Format;

mod call;
mod encode_call;
pub mod form;
pub(super) mod quantise_ahead;
pub mod reason;

/// Columns that are quantised and stored together.
pub(super) const COLUMNS: usize = 16;
/// Fewer routed rows are not worth grouping by expert.
const MANY: i64 = 32;
/// Bytes that quantised activations may take in scratch memory.
const MAX_QUANTISED_BYTES: usize = 64 << 20;

/// An element of a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stored {
    pub(super) place: Place,
    pub(super) format: Format,
    pub(super) n_elements: i64,
    /// Its index in storage order.
    pub(super) element: Index,
}

/// What the loops of a nest are for.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) kind: Kind,
    /// The weight, or the rows of a weighted sum.
    pub(super) w: Stored,
    /// The activations, or the factors of a weighted sum.
    pub(super) x: Stored,
    pub(super) out: Stored,
    /// Loops around the call.
    pub(super) around: Vec<VarId>,
    /// The loop over rows.
    pub(super) row: Option<VarId>,
    /// The loops over columns, innermost first: one run of activation vectors.
    pub(super) cols: Vec<VarId>,
    /// The reduction loops (`k`), innermost first; of a weighted sum, the loop over elements.
    pub(super) run: Vec<VarId>,
    /// The routing that selects a matrix for each column, if there is one.
    pub(super) routing: Option<Routing>,
    /// The quantised activations, unless they stay in single precision.
    pub(super) quantised: Option<Activations>,
}

/// Activation rows that are grouped by expert.
#[derive(Clone, Debug)]
pub(super) struct Routing {
    /// The index of the matrix.
    pub(super) matrix: Index,
    pub(super) n_matrices: i64,
    /// Elements from one matrix to the next.
    pub(super) step: i64,
    /// The first matrix.
    pub(super) w: Stored,
    /// The loops around the call that select it.
    pub(super) loops: Vec<VarId>,
    /// The largest number of columns.
    pub(super) most: i64,
}

impl Routing {
    /// Bytes of scratch memory for grouping.
    pub(super) fn bytes(&self) -> usize {
        micro::routing_bytes(self.most as usize, self.n_matrices as usize)
    }
}

/// Which of the two sums a nest is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// GEMM: dot products along rows.
    Product,
    /// Weighted sum: whole rows with a factor each.
    WeightedSum,
}

/// Activations that are quantised before they are multiplied. Equal descriptions are of equal numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Activations {
    /// The first element of the first column.
    pub(super) x: Stored,
    /// The loops over columns, outermost first; the last ones are those of a call.
    pub(super) dims: Vec<Dim>,
    /// The largest number of columns of a call.
    pub(super) n_cols: usize,
    /// The largest number of calls.
    pub(super) n_sets: usize,
    pub(super) k: usize,
    pub(super) layout: ActivationLayout,
    /// Whether the whole parameter is quantised ahead of the tasks (`quantise_ahead.rs`).
    pub(super) is_ahead: bool,
}

/// A loop over columns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Dim {
    pub(super) range: Range,
    /// The stride from column to column in elements; or the loop itself, where there is no constant stride.
    pub(super) step: Result<i64, VarId>,
    /// The largest number of its values.
    pub(super) most: usize,
}

impl Activations {
    /// Bytes of the columns of one call.
    pub(super) fn set_bytes(&self) -> usize {
        activation_bytes(self.layout, self.n_cols, self.k)
    }

    /// Bytes of all.
    pub(super) fn bytes(&self) -> usize {
        self.set_bytes().saturating_mul(self.n_sets)
    }
}

/// An index at the start of some loops.
pub(super) fn at_start(index: &Index, loops: &[VarId], vars: &Vars) -> Index {
    let start = |var: VarId| match &vars[var].range {
        _ if !loops.contains(&var) => Index::var(var),
        Range::Within { of } => Index::var(*of),
        Range::Whole { .. } | Range::Blocks(_) => Index::default(),
    };
    index.replaced(&start, vars)
}

/// The plan of a nest, if there is a micro-kernel for it.
pub(super) fn plan(cpu: &Cpu, kernel: &Kernel, part: &Part, nest: &Nest) -> Option<Plan> {
    find(cpu, kernel, part, nest).ok()
}

/// The plan of a nest, or why there is no micro-kernel for it.
pub(super) fn find(cpu: &Cpu, kernel: &Kernel, part: &Part, nest: &Nest) -> Result<Plan, Reason> {
    if cpu.numbers == Numbers::Exact {
        return Err(Reason::Exact);
    }
    let finder = Finder::new(kernel, part, nest)?;
    let mut tried: Vec<Result<Plan, Reason>> = finder.orders().map(|(w, x)| finder.product(w, x)).into();
    if tried.iter().all(Result::is_err) {
        tried.extend(finder.orders().map(|(v, p)| finder.mix(v, p)));
    }
    let reason = tried.iter().filter_map(|tried| tried.as_ref().err()).max().copied();
    // The factor with fewer bytes an element, or with more rows, is the weight.
    let rank = |plan: &Plan| {
        let n_rows = plan.row.map_or(1, |var| finder.most(var).unwrap_or(1));
        (plan.w.format == Format::F32, Reverse(n_rows))
    };
    let plan = tried.into_iter().flatten().min_by_key(rank);
    let mut plan = plan.ok_or_else(|| reason.expect("what is not found has a reason"))?;
    if cpu.numbers == Numbers::Quantised && plan.kind == Kind::Product {
        plan.quantised = finder.quantised(&plan, cpu.level);
    }
    Ok(plan)
}

/// A nest, taken apart.
struct Finder<'a> {
    kernel: &'a Kernel,
    part: &'a Part,
    nest: &'a Nest,
    folds: &'a [VarId],
    factors: [Stored; 2],
    out: Stored,
}

impl<'a> Finder<'a> {
    fn new(kernel: &'a Kernel, part: &'a Part, nest: &'a Nest) -> Result<Self, Reason> {
        let folding = nest.fold.as_ref().filter(|folding| folding.fold == Fold::Sum).ok_or(Reason::Terms)?;
        let Expr::Binary(Binary::Mul, a, b) = &nest.exprs[nest.value] else { return Err(Reason::Terms) };
        let factor = |id: &ExprId| {
            let (place, at) = nest.loaded(*id).ok_or(Reason::Terms)?;
            Ok(stored(kernel, part, place, at))
        };
        let factors = [factor(a)?, factor(b)?];
        let folds = &folding.loops;
        if !nest.loops.iter().chain(folds).all(|var| is_simple(part, nest, *var)) {
            return Err(Reason::Bounds);
        }
        let out = stored(kernel, part, nest.target, &nest.at);
        if out.format != Format::F32 {
            return Err(Reason::Sums(out.format));
        }
        Ok(Self { kernel, part, nest, folds, factors, out })
    }

    fn orders(&self) -> [(&Stored, &Stored); 2] {
        let [a, b] = &self.factors;
        [(a, b), (b, a)]
    }

    /// The largest number of values of a loop.
    fn most(&self, var: VarId) -> Option<i64> {
        self.part.full_len(var).map(|len| len.most().max(1))
    }

    fn product(&self, w: &Stored, x: &Stored) -> Result<Plan, Reason> {
        if micro::storage(w.format).is_none() || x.format != Format::F32 {
            return Err(Reason::Formats(w.format, x.format));
        }
        let (run, k) = self.run(w, x).ok_or(Reason::Strides)?;
        let block = w.format.block_len() as i64;
        if block > 1 && k.is_none_or(|k| k % block != 0) {
            return Err(Reason::Rows(k, w.format));
        }
        let is_row = |var: &VarId| {
            let is_whole = w.element.step_of(*var).is_some_and(|step| step > 0 && step % block == 0);
            is_whole
                && !self.bounds_another(*var)
                && x.element.step_of(*var) == Some(0)
                && self.moves_out(*var)
        };
        let is_col = |var: &VarId| {
            let moves = x.element.step_of(*var).is_some_and(|step| step > 0);
            moves && !self.bounds_another(*var) && w.element.step_of(*var) == Some(0) && self.moves_out(*var)
        };
        let (row, cols) = (self.longest(&is_row), self.columns(x, &is_col));
        let inner: Vec<VarId> = run.iter().chain(&row).chain(&cols).copied().collect();
        let first = at_start(&w.element, &inner, &self.part.vars);
        if !first.is_multiple(block, &self.part.vars) {
            return Err(Reason::Start(w.format));
        }
        let all = self.folds.iter().chain(&self.nest.loops);
        let around: Vec<VarId> = all.filter(|var| !inner.contains(var)).copied().collect();
        let routing = self.routing(w, x, &around);
        let (w, x, out) = (w.clone(), x.clone(), self.out.clone());
        Ok(Plan { kind: Kind::Product, w, x, out, around, row, cols, run, routing, quantised: None })
    }

    /// The routing that selects a matrix of the weight by loops around the call, if it has enough rows to group.
    fn routing(&self, w: &Stored, x: &Stored, around: &[VarId]) -> Option<Routing> {
        let is_lookup = |(atom, _): &&(Atom, i64)| matches!(atom, Atom::Lookup { .. });
        let (atom, step) = w.element.terms().iter().find(is_lookup)?;
        let Atom::Lookup { below, .. } = atom else { return None };
        let matrix = Index::atom(atom.clone());
        let first = Stored { element: w.element.minus(&matrix.times(*step)), ..w.clone() };
        let routing = |var: &&VarId| matrix.uses_var(|own| own == **var);
        let loops: Vec<VarId> = around.iter().filter(routing).copied().collect();
        let lies_evenly = |var: &VarId| {
            let steps = [x, &self.out].map(|stored| stored.element.step_of(*var));
            steps.iter().all(Option::is_some) && !first.element.uses_var(|own| own == *var)
        };
        let most = self.most_of(&loops)?;
        let pays = *step > 0 && most >= MANY && loops.iter().all(lies_evenly);
        let (n_matrices, step) = (*below, *step);
        pays.then_some(Routing { matrix, n_matrices, step, w: first, loops, most })
    }

    fn mix(&self, v: &Stored, p: &Stored) -> Result<Plan, Reason> {
        if !v.format.is_written() || !v.format.dtype().is_float() || p.format != Format::F32 {
            return Err(Reason::Formats(v.format, p.format));
        }
        let block = v.format.block_len() as i64;
        let step = |stored: &Stored, var: VarId| stored.element.step_of(var);
        let is_element = |var: &VarId| {
            step(v, *var) == Some(1) && step(p, *var) == Some(0) && step(&self.out, *var) == Some(1)
        };
        let is_row = |var: &&VarId| {
            let is_whole = step(v, **var).is_some_and(|step| step > 0 && step % block == 0);
            is_whole && !self.bounds_another(**var) && step(p, **var).is_some_and(|step| step >= 0)
        };
        let is_col = |var: &VarId| {
            let moves = step(p, *var).is_some_and(|step| step > 0);
            moves && !self.bounds_another(*var) && step(v, *var) == Some(0) && self.moves_out(*var)
        };
        let element = self.longest(&is_element).ok_or(Reason::Strides)?;
        let rows = self.folds.iter().filter(is_row);
        let row = rows.max_by_key(|var| self.most(**var)).copied().ok_or(Reason::Strides)?;
        let cols = self.columns(p, &is_col);
        let inner: Vec<VarId> = cols.iter().copied().chain([element, row]).collect();
        let first = at_start(&v.element, &inner, &self.part.vars);
        let n = self.part.fixed_len(element);
        if block > 1 && n.is_none_or(|n| n % block != 0) {
            return Err(Reason::Rows(n, v.format));
        }
        if !first.is_multiple(block, &self.part.vars) {
            return Err(Reason::Start(v.format));
        }
        let all = self.folds.iter().chain(&self.nest.loops);
        let around = all.filter(|var| !inner.contains(var)).copied().collect();
        let (w, x, out, run) = (v.clone(), p.clone(), self.out.clone(), vec![element]);
        let row = Some(row);
        Ok(Plan {
            kind: Kind::WeightedSum,
            w,
            x,
            out,
            around,
            row,
            cols,
            run,
            routing: None,
            quantised: None,
        })
    }

    fn bounds_another(&self, var: VarId) -> bool {
        bounds_another(self.part, self.nest, var)
    }

    fn moves_out(&self, var: VarId) -> bool {
        self.out.element.step_of(var).is_some_and(|step| step > 0)
    }

    /// Of the outer loops that fit, the one with the most values.
    fn longest(&self, fits: &dyn Fn(&VarId) -> bool) -> Option<VarId> {
        let loops = self.nest.loops.iter().filter(|var| fits(var));
        loops.max_by_key(|var| self.most(**var)).copied()
    }

    /// Of the runs of loops that fit, the one with the most values, innermost loop first: in `x` and in the result each
    /// loop steps over all values of those before.
    fn columns(&self, x: &Stored, fits: &dyn Fn(&VarId) -> bool) -> Vec<VarId> {
        let steps = |var: VarId| [x, &self.out].map(|stored| stored.element.step_of(var));
        let fitting = || self.nest.loops.iter().copied().filter(|var| fits(var));
        let runs = fitting().map(|first| {
            let (mut run, mut next) = (vec![first], steps(first));
            while let Some(len) = run.last().and_then(|last| self.part.fixed_len(*last)) {
                next = next.map(|step| step.and_then(|step| step.checked_mul(len)));
                let follows = |var: &VarId| !run.contains(var) && steps(*var) == next;
                let Some(var) = fitting().find(follows) else { break };
                run.push(var);
            }
            run
        });
        runs.max_by_key(|run| self.most_of(run)).unwrap_or_default()
    }

    /// The largest number of values of some loops together.
    fn most_of(&self, loops: &[VarId]) -> Option<i64> {
        loops.iter().try_fold(1, |n: i64, var| n.checked_mul(self.most(*var)?))
    }

    /// The reduction loops that are contiguous in both factors, innermost first, and their length if it is constant.
    fn run(&self, w: &Stored, x: &Stored) -> Option<(Vec<VarId>, Option<i64>)> {
        let mut run = Vec::new();
        let mut len = Some(1);
        while let Some(so_far) = len {
            let follows = |var: &&VarId| {
                let steps = [w, x].map(|stored| stored.element.step_of(**var));
                !run.contains(*var) && !self.bounds_another(**var) && steps == [Some(so_far); 2]
            };
            let Some(next) = self.folds.iter().find(follows) else { break };
            run.push(*next);
            len = self.part.fixed_len(*next).map(|own| so_far * own);
        }
        (!run.is_empty()).then_some((run, len))
    }

    /// How the activations of a product are quantised, if they fit scratch memory.
    fn quantised(&self, plan: &Plan, level: Level) -> Option<Activations> {
        let n_cols = self.most_of(&plan.cols)? as usize;
        let layout = match &plan.routing {
            Some(routing) => activation_layout_scattered(
                level,
                plan.w.format,
                (routing.most / routing.n_matrices) as usize,
            )?,
            None => activation_layout(level, plan.w.format, n_cols)?,
        };
        // Scores are exponents: 14-bit keys are not exact enough, and keys have no constant number of rows.
        if layout == ActivationLayout::Int14 && plan.row.is_some_and(|var| self.part.fixed_len(var).is_none())
        {
            return None;
        }
        let lens = plan.run.iter().map(|var| self.part.fixed_len(*var));
        let k = lens.into_iter().try_fold(1, |k, len| len.map(|len| k * len))?;
        let step = |var: VarId| plan.x.element.step_of(var);
        let moves = |var: &&VarId| step(**var) != Some(0);
        let mut loops: Vec<VarId> = plan.around.iter().filter(moves).copied().collect();
        let n_sets = self.most_of(&loops)? as usize;
        loops.extend(plan.cols.iter().rev());
        let mut dims = Vec::new();
        for var in &loops {
            let range = self.part.vars[*var].range.clone();
            dims.push(Dim { range, step: step(*var).ok_or(*var), most: self.most(*var)? as usize });
        }
        let known = |var: &VarId| step(*var).is_some();
        let fixed: Vec<VarId> = loops.iter().chain(&plan.run).copied().filter(known).collect();
        let x = Stored { element: at_start(&plan.x.element, &fixed, &self.part.vars), ..plan.x.clone() };
        let is_ahead = self.is_ahead(plan, &x, &loops, k);
        let quantised = Activations { x, dims, n_cols, n_sets, k: k as usize, layout, is_ahead };
        (is_ahead || quantised.bytes() <= MAX_QUANTISED_BYTES).then_some(quantised)
    }

    /// Whether a parameter holds nothing but contiguous columns, and each call starts at a multiple of [`COLUMNS`].
    fn is_ahead(&self, plan: &Plan, first: &Stored, loops: &[VarId], k: i64) -> bool {
        let Place::Param(param) = first.place else { return false };
        let shape = &self.kernel.params[param].shape;
        let rest: i64 = shape.iter().skip(1).map(|(_, size)| size.as_const().unwrap_or(0)).product();
        let is_near = |var: &VarId| plan.x.element.step_of(*var) == Some(k);
        let set = k * COLUMNS as i64;
        let starts_set = |var: &VarId| {
            let step = plan.x.element.step_of(*var);
            plan.cols.contains(var) || step.is_some_and(|step| step % set == 0)
        };
        rest > 0
            && rest % k == 0
            && plan.cols.first().is_some_and(is_near)
            && loops.iter().all(starts_set)
            && first.element.is_multiple(set, &self.part.vars)
    }
}

/// Whether the range of a loop is known before the loops around a call are.
pub(super) fn is_simple(part: &Part, nest: &Nest, var: VarId) -> bool {
    match &part.vars[var].range {
        Range::Whole { .. } => true,
        Range::Blocks(_) => false,
        Range::Within { of } => !nest.loops.contains(of) && !nest.folds().contains(of),
    }
}

/// Whether another loop of a nest ends at a bound that depends on this one, so that it has to run inside.
pub(super) fn bounds_another(part: &Part, nest: &Nest, var: VarId) -> bool {
    let mut others = nest.loops.iter().chain(nest.folds());
    others.any(|other| part.vars[*other].until.iter().any(|bound| bound.uses_var(|own| own == var)))
}

pub(super) fn stored(kernel: &Kernel, part: &Part, place: Place, at: &[Index]) -> Stored {
    let format = match place {
        Place::Param(id) => kernel.params[id].format,
        Place::Tile(id) => Format::of(part.tiles[id].dtype),
    };
    let dims = kernel.dims(part, place);
    Stored { place, format, n_elements: dims.iter().product(), element: element_of(&dims, at) }
}
