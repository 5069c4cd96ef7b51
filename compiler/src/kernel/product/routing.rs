//! Routed products: columns that are multiplied with the matrix of their expert (mixture of experts).
//!
//! In: a product of rows. Out: a [`Routing`]: how a number from memory selects its matrix, and by which loops.

use crate::kernel::VarId;
use crate::kernel::index::{Atom, Index};
use crate::kernel::product::Product;
use crate::kernel::product::check::Terms;
use crate::kernel::stored::Stored;

/// How the matrix of a column is selected.
#[derive(Clone, Debug)]
pub(crate) struct Routing {
    /// The index of the matrix.
    pub(crate) matrix: Index,
    pub(crate) n_matrices: i64,
    /// Elements from one matrix to the next.
    pub(crate) step: i64,
    /// The first matrix.
    pub(crate) w: Stored,
    /// The loops around the call that select it, outermost first.
    pub(crate) loops: Vec<VarId>,
    /// The largest number of columns.
    pub(crate) most: i64,
}

impl Routing {
    /// The routing of a product whose columns lie evenly in memory, whatever their matrix is.
    pub(crate) fn of(terms: &Terms<'_>, product: &Product) -> Option<Self> {
        let [w, x] = terms.factors(product.weight);
        let is_lookup = |(atom, _): &&(Atom, i64)| matches!(atom, Atom::Lookup { .. });
        let (atom, step) = w.element.terms().iter().find(is_lookup)?;
        let Atom::Lookup { below, .. } = atom else { return None };
        let matrix = Index::atom(atom.clone());
        let first = Stored { element: w.element.minus(&matrix.times(*step)), ..w.clone() };
        let mut loops = product.around(terms.nest);
        loops.retain(|var| matrix.uses_var(|own| own == *var));
        let lies_evenly = |var: &VarId| {
            let steps = [x, &terms.out].map(|stored| stored.step_of(*var));
            steps.iter().all(Option::is_some) && !first.element.uses_var(|own| own == *var)
        };
        let most = terms.most_of(&loops)?;
        let is_even = *step > 0 && loops.iter().all(lies_evenly);
        is_even.then_some(Self { matrix, n_matrices: *below, step: *step, w: first, loops, most })
    }
}
