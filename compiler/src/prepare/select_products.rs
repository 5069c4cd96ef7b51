//! Writes down which nests are products of matrices, for devices that multiply whole rows: dot products along rows, and
//! weighted sums of rows.
//!
//! In: a kernel. Out: the same kernel; each nest that is a product says which of its loops are rows, columns and the
//! sum. What is computed is the same. Where both factors may be the weight, it is the one with fewer bytes an element,
//! or with more rows. What is found is checked by the same rules as what is claimed (`kernel/product/check.rs`); only
//! which loops to try is chosen here.

use std::cmp::Reverse;

use crate::kernel::product::check::Terms;
use crate::kernel::product::reason::Reason;
use crate::kernel::product::routing::Routing;
use crate::kernel::product::{Kind, Product, Side};
use crate::kernel::walk::each_nest;
use crate::kernel::{Kernel, Nest, Part, VarId};
use crate::options::Options;
use crate::tensor::quant::Format;

/// Fewer routed columns are not worth grouping by expert.
const MANY: i64 = 32;

pub(super) fn select_products(kernel: &Kernel, _: &Options) -> Kernel {
    let mut selected = kernel.clone();
    for (part, new) in kernel.parts.iter().zip(&mut selected.parts) {
        each_nest(&mut new.body, &mut |nest| {
            nest.product = nest.product.take().or_else(|| product(kernel, part, nest).ok());
        });
    }
    selected
}

/// The product that a nest is.
///
/// # Errors
/// The reason why it is none: of two ways to see its factors, that of the one that got further.
pub(crate) fn product(kernel: &Kernel, part: &Part, nest: &Nest) -> Result<Product, Reason> {
    let terms = Terms::of(kernel, part, nest)?;
    let checked = |product: Product| terms.check(&product).map(|()| product);
    let mut tried = Side::ALL.map(|side| checked(terms.dot_products(side))).to_vec();
    if tried.iter().all(Result::is_err) {
        tried.extend(Side::ALL.map(|side| checked(terms.mix(side))));
    }
    let reason = tried.iter().filter_map(|tried| tried.as_ref().err()).max().copied();
    let rank = |product: &Product| {
        let n_rows = product.row.map_or(1, |var| terms.most(var).unwrap_or(1));
        (terms.factors(product.weight)[0].format == Format::F32, Reverse(n_rows))
    };
    let best = tried.into_iter().flatten().min_by_key(rank);
    best.ok_or_else(|| reason.expect("what is not found has a reason"))
}

impl Terms<'_> {
    /// The loops of dot products along rows, as far as there are any.
    fn dot_products(&self, weight: Side) -> Product {
        let [w, x] = self.factors(weight);
        let (mut along, mut len) = (Vec::new(), Some(1));
        while let Some(so_far) = len {
            let follows = |var: &&VarId| !along.contains(*var) && self.is_along(w, x, **var, so_far);
            let Some(next) = self.nest.folds().iter().find(follows) else { break };
            along.push(*next);
            len = self.part.fixed_len(*next).map(|own| so_far * own);
        }
        let row = self.longest(|var| self.is_row(w, x, var));
        let columns = self.columns(weight);
        let product = Product {
            kind: Kind::Product,
            weight,
            row,
            columns,
            along,
            routed: Vec::new(),
            activations: None,
        };
        let routing = Routing::of(self, &product).filter(|routing| routing.most >= MANY);
        Product { routed: routing.map(|routing| routing.loops).unwrap_or_default(), ..product }
    }

    /// The loops of a weighted sum of rows, as far as there are any.
    fn mix(&self, weight: Side) -> Product {
        let [w, x] = self.factors(weight);
        let along = self.longest(|var| self.is_mixed(w, x, var)).into_iter().collect();
        let rows = self.nest.folds().iter().copied().filter(|var| self.is_weighted(w, x, *var));
        let row = rows.max_by_key(|var| self.most(*var));
        let columns = self.columns(weight);
        Product {
            kind: Kind::WeightedSum,
            weight,
            row,
            columns,
            along,
            routed: Vec::new(),
            activations: None,
        }
    }

    /// Of the outer loops that fit, the one with the most values.
    fn longest(&self, fits: impl Fn(VarId) -> bool) -> Option<VarId> {
        let loops = self.nest.loops.iter().copied().filter(|var| fits(*var));
        loops.max_by_key(|var| self.most(*var))
    }

    /// Of the runs of loops over columns, the one with the most values, innermost loop first.
    fn columns(&self, weight: Side) -> Vec<VarId> {
        let [w, x] = self.factors(weight);
        let fitting = || self.nest.loops.iter().copied().filter(|var| self.is_column(w, x, *var));
        let runs = fitting().map(|first| {
            let mut run = vec![first];
            while let Some(next) = run.last().and_then(|last| self.steps_after(x, *last)) {
                let follows = |var: &VarId| !run.contains(var) && self.steps(x, *var) == next;
                let Some(var) = fitting().find(follows) else { break };
                run.push(var);
            }
            run
        });
        runs.max_by_key(|run| self.most_of(run)).unwrap_or_default()
    }
}
