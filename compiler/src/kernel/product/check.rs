//! Proves that a nest is the product that it says it is.
//!
//! In: a nest and a [`Product`]. Out: nothing, or the [`Reason`] why it is none.
//! What a loop is for follows from how the storage index of both factors depends on it: one that steps through both
//! contiguously is the reduction (`k`); one that steps only through the weight counts rows; one that steps only through
//! the other factor counts columns; all others run around the product.

use crate::graph::op::{Binary, Fold};
use crate::kernel::product::reason::Reason;
use crate::kernel::product::routing::Routing;
use crate::kernel::product::{Kind, Product, Side};
use crate::kernel::stored::{Stored, at_start};
use crate::kernel::{Expr, Kernel, Nest, Part, VarId};
use crate::tensor::quant::Format;

/// Int8 weights have a scale for each group; micro-kernels take groups that are multiples of this many elements.
const GROUP: u32 = 32;

/// A nest that sums products of two elements, taken apart.
pub(crate) struct Terms<'a> {
    pub(crate) part: &'a Part,
    pub(crate) nest: &'a Nest,
    factors: [Stored; 2],
    pub(crate) out: Stored,
}

impl<'a> Terms<'a> {
    /// The parts of a nest, if it is such a sum in single precision.
    pub(crate) fn of(kernel: &'a Kernel, part: &'a Part, nest: &'a Nest) -> Result<Self, Reason> {
        let folding = nest.fold.as_ref().filter(|folding| folding.fold == Fold::Sum).ok_or(Reason::Terms)?;
        let Expr::Binary(Binary::Mul, a, b) = nest.exprs[nest.value] else { return Err(Reason::Terms) };
        let factor = |id| {
            let (place, at) = nest.loaded(id).ok_or(Reason::Terms)?;
            Ok(Stored::of(kernel, part, place, at))
        };
        let factors = [factor(a)?, factor(b)?];
        if !nest.loops.iter().chain(&folding.loops).all(|var| nest.is_simple(part, *var)) {
            return Err(Reason::Bounds);
        }
        let out = Stored::of(kernel, part, nest.target, &nest.at);
        if out.format != Format::F32 {
            return Err(Reason::Sums(out.format));
        }
        Ok(Self { part, nest, factors, out })
    }

    /// The weight and the other factor.
    pub(crate) fn factors(&self, weight: Side) -> [&Stored; 2] {
        let [left, right] = &self.factors;
        match weight {
            Side::Left => [left, right],
            Side::Right => [right, left],
        }
    }

    /// Whether the nest is this product.
    pub(crate) fn check(&self, product: &Product) -> Result<(), Reason> {
        let [w, x] = self.factors(product.weight);
        let is_single = x.format == Format::F32;
        let is_mixed = w.format.is_written() && w.format.dtype().is_float();
        let len = match product.kind {
            Kind::Product if is_single && is_multiplied(w.format) => {
                self.check_dot_products(product, w, x)?
            }
            Kind::WeightedSum if is_single && is_mixed => self.check_weighted_sum(product, w, x)?,
            Kind::Product | Kind::WeightedSum | Kind::Mma(_) => {
                return Err(Reason::Formats(w.format, x.format));
            }
        };
        let is_column = |var: &VarId| self.nest.loops.contains(var) && self.is_column(w, x, *var);
        if !product.columns.iter().all(is_column) || !self.follow_each_other(x, &product.columns) {
            return Err(Reason::Strides);
        }
        let block = w.format.block_len() as i64;
        if block > 1 && len.is_none_or(|len| len % block != 0) {
            return Err(Reason::Rows(len, w.format));
        }
        if !product.routed.is_empty() {
            let routing = Routing::of(self, product).filter(|_| product.kind == Kind::Product);
            routing.filter(|routing| routing.loops == product.routed).ok_or(Reason::Routing)?;
        }
        let inner: Vec<VarId> = product.inner().collect();
        let first = at_start(&w.element, &inner, &self.part.vars);
        first.is_multiple(block, &self.part.vars).then_some(()).ok_or(Reason::Start(w.format))
    }

    /// Checks rows and the sum of dot products; says how many terms they have, where that is always the same.
    fn check_dot_products(&self, product: &Product, w: &Stored, x: &Stored) -> Result<Option<i64>, Reason> {
        let is_row = |var: VarId| self.nest.loops.contains(&var) && self.is_row(w, x, var);
        let are_folded = product.along.iter().all(|var| self.nest.folds().contains(var));
        if product.along.is_empty() || !are_folded || !product.row.is_none_or(is_row) {
            return Err(Reason::Strides);
        }
        let mut len = Some(1);
        for var in &product.along {
            let so_far = len.filter(|so_far| self.is_along(w, x, *var, *so_far)).ok_or(Reason::Strides)?;
            len = self.part.fixed_len(*var).map(|own| so_far * own);
        }
        Ok(len)
    }

    /// Checks the rows of a weighted sum; says how many elements they have, where that is always the same.
    fn check_weighted_sum(&self, product: &Product, w: &Stored, x: &Stored) -> Result<Option<i64>, Reason> {
        let ([element], Some(row)) = (&product.along[..], product.row) else { return Err(Reason::Strides) };
        let are_loops = self.nest.loops.contains(element) && self.nest.folds().contains(&row);
        let is_mix = are_loops && self.is_mixed(w, x, *element) && self.is_weighted(w, x, row);
        if is_mix { Ok(self.part.fixed_len(*element)) } else { Err(Reason::Strides) }
    }

    /// Whether a loop follows loops along the sum that have that many values together: contiguous in both factors.
    pub(crate) fn is_along(&self, w: &Stored, x: &Stored, var: VarId, so_far: i64) -> bool {
        !self.bounds_another(var) && [w, x].map(|stored| stored.step_of(var)) == [Some(so_far); 2]
    }

    /// Whether a loop steps over rows of the weight only.
    pub(crate) fn is_row(&self, w: &Stored, x: &Stored, var: VarId) -> bool {
        let block = w.format.block_len() as i64;
        w.step_of(var).is_some_and(|step| step > 0 && step % block == 0)
            && !self.bounds_another(var)
            && x.step_of(var) == Some(0)
            && self.moves_out(var)
    }

    /// Whether a loop steps over columns of the other factor only.
    pub(crate) fn is_column(&self, w: &Stored, x: &Stored, var: VarId) -> bool {
        let moves = x.step_of(var).is_some_and(|step| step > 0);
        moves && !self.bounds_another(var) && w.step_of(var) == Some(0) && self.moves_out(var)
    }

    /// Whether a loop steps through the elements of a row that is mixed.
    pub(crate) fn is_mixed(&self, w: &Stored, x: &Stored, var: VarId) -> bool {
        [w, x, &self.out].map(|stored| stored.step_of(var)) == [Some(1), Some(0), Some(1)]
    }

    /// Whether a loop steps over the rows that are mixed, and over their factors.
    pub(crate) fn is_weighted(&self, w: &Stored, x: &Stored, var: VarId) -> bool {
        let block = w.format.block_len() as i64;
        let is_whole = w.step_of(var).is_some_and(|step| step > 0 && step % block == 0);
        is_whole && !self.bounds_another(var) && x.step_of(var).is_some_and(|step| step >= 0)
    }

    /// Whether each loop steps over all values of those before, in the other factor and in the result.
    fn follow_each_other(&self, x: &Stored, columns: &[VarId]) -> bool {
        let mut next = columns.first().map(|first| self.steps(x, *first));
        columns.iter().all(|var| {
            let follows = next == Some(self.steps(x, *var));
            next = self.steps_after(x, *var);
            follows
        })
    }

    /// The steps of a loop that follows a loop over columns.
    pub(crate) fn steps_after(&self, x: &Stored, var: VarId) -> Option<[Option<i64>; 2]> {
        let len = self.part.fixed_len(var)?;
        Some(self.steps(x, var).map(|step| step.and_then(|step| step.checked_mul(len))))
    }

    /// The steps of a loop in the other factor and in the result.
    pub(crate) fn steps(&self, x: &Stored, var: VarId) -> [Option<i64>; 2] {
        [x, &self.out].map(|stored| stored.step_of(var))
    }

    /// The largest number of values of a loop.
    pub(crate) fn most(&self, var: VarId) -> Option<i64> {
        self.part.full_len(var).map(|len| len.most().max(1))
    }

    /// The largest number of values of some loops together.
    pub(crate) fn most_of(&self, loops: &[VarId]) -> Option<i64> {
        loops.iter().try_fold(1, |n: i64, var| n.checked_mul(self.most(*var)?))
    }

    fn bounds_another(&self, var: VarId) -> bool {
        self.nest.bounds_another(self.part, var)
    }

    fn moves_out(&self, var: VarId) -> bool {
        self.out.step_of(var).is_some_and(|step| step > 0)
    }
}

/// Whether rows of a format are multiplied as a whole.
pub(crate) fn is_multiplied(format: Format) -> bool {
    match format {
        Format::Int8 { group } => group > 0 && group % GROUP == 0,
        _ => format.dtype().is_float(),
    }
}
