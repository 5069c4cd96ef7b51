//! The activations of products, which a processor quantises before it multiplies them.
//!
//! In: a nest that says which product it is. Out: its factor that is no weight, as columns with loops of their own
//! ([`Activations`]), and what these are whatever the loops are called (`Columns`): several products that multiply
//! equal columns share one quantisation. The layout of the numbers is not said here. It follows from the weight of a
//! product and from the instruction set; where there is none, the product is computed in single precision.

use crate::graph::op::Binary;
use crate::kernel::product::{Activations, Kind, Side};
use crate::kernel::stored::{Stored, at_start};
use crate::kernel::{Expr, Kernel, Nest, Part, Place, Range, VarId};
use crate::tensor::quant::Format;

/// Columns of a buffer that one call quantises ahead of all tasks, and that are stored together.
pub(crate) const COLUMNS: usize = 16;
/// The most elements that the columns of a call may have, as of a buffer.
const MAX_ELEMENTS: i64 = 1 << 40;

/// What activations are, whatever their loops are called. Equal descriptions are of equal numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Columns {
    /// The first element of the first column.
    pub(crate) first: Stored,
    /// The loops over columns, outermost first; the last ones are those of a call.
    pub(crate) dims: Vec<Dim>,
    /// The largest number of columns of a call.
    pub(crate) n_cols: usize,
    /// The largest number of calls.
    pub(crate) n_sets: usize,
    /// Elements of a column.
    pub(crate) k: usize,
}

/// A loop over columns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Dim {
    range: Range,
    /// The stride from column to column in elements; or the loop itself, where there is no constant stride.
    step: Result<i64, VarId>,
    /// The largest number of its values.
    pub(crate) most: usize,
}

impl Activations {
    /// Those of the dot products that a nest says it is; nothing where the weight is in single precision as well.
    pub(crate) fn of(kernel: &Kernel, part: &Part, nest: &Nest) -> Option<Self> {
        let product = nest.product.as_ref().filter(|product| product.kind == Kind::Product)?;
        let Expr::Binary(Binary::Mul, left, right) = nest.exprs[nest.value] else { return None };
        let factors = match product.weight {
            Side::Left => [left, right],
            Side::Right => [right, left],
        };
        let [(weight, w_at), (from, at)] = [nest.loaded(factors[0])?, nest.loaded(factors[1])?];
        if Stored::of(kernel, part, weight, w_at).format == Format::F32 {
            return None;
        }
        let x = Stored::of(kernel, part, from, at);
        let around = product.around(nest).into_iter().filter(|var| x.step_of(*var) != Some(0)).collect();
        let (at, columns, along) = (at.to_vec(), product.columns.clone(), product.along.clone());
        Some(Self { from, at, around, columns, along, is_ahead: false })
    }

    /// The element that they are, in storage order.
    pub(crate) fn stored(&self, kernel: &Kernel, part: &Part) -> Stored {
        Stored::of(kernel, part, self.from, &self.at)
    }

    /// All loops: those around a call, then those over its columns, outermost first, then those along a column.
    pub(crate) fn loops(&self) -> impl Iterator<Item = VarId> {
        self.around.iter().chain(self.columns.iter().rev()).chain(&self.along).copied()
    }

    /// What they are; nothing where their number has no bound, or their length varies or is nothing.
    pub(crate) fn described(&self, kernel: &Kernel, part: &Part) -> Option<Columns> {
        let x = self.stored(kernel, part);
        let lens = self.along.iter().map(|var| part.fixed_len(*var));
        let k = lens.into_iter().try_fold(1, |k: i64, len| k.checked_mul(len?))?;
        let most = |var: VarId| part.full_len(var).map(|len| len.most().max(1));
        let most_of = |loops: &[VarId]| loops.iter().try_fold(1, |n: i64, var| n.checked_mul(most(*var)?));
        let (n_cols, n_sets) = (most_of(&self.columns)?, most_of(&self.around)?);
        let n_elements = k.checked_mul(n_cols)?;
        if !(1..=MAX_ELEMENTS).contains(&n_elements) {
            return None;
        }
        let dim = |var: &VarId| {
            let (range, step) = (part.vars[*var].range.clone(), x.step_of(*var).ok_or(*var));
            Some(Dim { range, step, most: most(*var)? as usize })
        };
        let dims = self.around.iter().chain(self.columns.iter().rev()).map(dim).collect::<Option<_>>()?;
        let fixed: Vec<VarId> = self.loops().filter(|var| x.step_of(*var).is_some()).collect();
        let first = Stored { element: at_start(&x.element, &fixed, &part.vars), ..x };
        let [n_cols, n_sets, k] = [n_cols, n_sets, k].map(|n| n as usize);
        Some(Columns { first, dims, n_cols, n_sets, k })
    }

    /// Whether they may be quantised ahead: a buffer holds nothing but contiguous columns, and each call starts at a
    /// multiple of [`COLUMNS`].
    pub(crate) fn may_be_ahead(&self, kernel: &Kernel, part: &Part, columns: &Columns) -> bool {
        let Place::Param(param) = self.from else { return false };
        let x = self.stored(kernel, part);
        let shape = &kernel.params[param].shape;
        let rest: i64 = shape.iter().skip(1).map(|(_, size)| size.as_const().unwrap_or(0)).product();
        let k = columns.k as i64;
        let set = k * COLUMNS as i64;
        let starts_set = |var: &VarId| x.step_of(*var).is_some_and(|step| step % set == 0);
        rest > 0
            && rest % k == 0
            && self.columns.first().is_some_and(|var| x.step_of(*var) == Some(k))
            && self.around.iter().all(starts_set)
            && columns.first.element.is_multiple(set, &part.vars)
    }
}
