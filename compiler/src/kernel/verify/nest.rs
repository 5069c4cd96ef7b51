//! Proves one nest: its loops, its scalars, and the element it stores.
//!
//! In: a nest with the variables and tiles known before it. Out: complaints.
//! A nest never reads the place it writes, except that its fold may start from exactly the element it stores.
//! What a fold starts from knows nothing of the folded loops. Types are computed in `types.rs`.

use std::collections::BTreeSet;

use crate::foundation::entity::{Id, List};
use crate::kernel::index::Index;
use crate::kernel::print::{access_text, place_text};
use crate::kernel::product::Kind;
use crate::kernel::product::check::Terms;
use crate::kernel::product::reason::Reason;
use crate::kernel::product::tiles::TileProduct;
use crate::kernel::verify::Checker;
use crate::kernel::verify::types::expr_dtypes;
use crate::kernel::{Access, Blocks, Expr, ExprId, Folding, Nest, Place, Range, VarId};
use crate::tensor::dtype::DType;

impl Checker<'_> {
    /// Checks a nest and notes the tile it writes.
    pub(super) fn nest(&mut self, nest: &Nest) {
        let (n_bound, n_complaints) = (self.bound.len(), self.complaints.len());
        let part = self.place.clone();
        self.place = format!("{part}, {}", access_text(nest.target, &nest.at, &self.part.vars));
        self.loops(&nest.loops);
        if self.ids_fit(nest) && self.complaints.len() == n_complaints {
            self.store(nest);
            self.starts(nest);
            self.fold_loops(nest);
            self.scalars(nest);
            self.types(nest);
            if self.complaints.len() == n_complaints {
                self.product(nest);
            }
        }
        self.bound.truncate(n_bound);
        self.place = part;
        if let Some(tile) = nest.tile() {
            self.forget_quantised(tile);
            if !self.written.contains(&tile) {
                self.written.push(tile);
            }
        }
    }

    pub(super) fn loops(&mut self, loops: &[VarId]) {
        for var in loops {
            let range = self.part.vars.get(*var).map(|var| &var.range);
            let is_allowed = !matches!(range, Some(Range::Blocks(_)));
            self.bind(*var, "a nest", is_allowed, "whole axes and positions within a block");
        }
    }

    fn fold_loops(&mut self, nest: &Nest) {
        let Some(folding) = &nest.fold else { return };
        if folding.loops.is_empty() {
            self.complain("folds over no loop, one or more are needed");
        }
        self.loops(&folding.loops);
    }

    /// Whether every expression refers to earlier ones, and the nest to some.
    fn ids_fit(&mut self, nest: &Nest) -> bool {
        let n_complaints = self.complaints.len();
        for (id, expr) in nest.exprs.iter() {
            for operand in expr.operands().into_iter().filter(|operand| *operand >= id) {
                self.complain(format!("{id} refers to {operand}, which must come earlier"));
            }
        }
        for root in
            [nest.value].into_iter().chain(nest.init()).filter(|root| root.index() >= nest.exprs.len())
        {
            self.complain(format!("there is no {root}"));
        }
        self.complaints.len() == n_complaints
    }

    fn store(&mut self, nest: &Nest) {
        if let Place::Param(id) = nest.target
            && self.kernel.params.get(id).is_some_and(|param| param.access == Access::Read)
        {
            self.complain(format!("stores to {}, which is for reading", place_text(nest.target)));
        }
        let n_complaints = self.complaints.len();
        self.element(nest.target, &nest.at, Some(nest.target));
        // Only of indices that are sound can more be asked.
        if self.complaints.len() == n_complaints
            && let Some(format) = nest.blocks(self.kernel)
            && !self.fills_blocks(nest, format.block_len() as i64)
        {
            let place = place_text(nest.target);
            self.complain(format!(
                "stores to {place} other than by copying whole blocks of {format} from a tile"
            ));
        }
    }

    /// Whether the innermost loop runs through neighbours in both places, and through whole blocks of the target.
    fn fills_blocks(&self, nest: &Nest, block: i64) -> bool {
        let (Some(var), None) = (nest.loops.last(), &nest.fold) else { return false };
        let Expr::Load { from: Place::Tile(_), at } = &nest.exprs[nest.value] else { return false };
        let vars = &self.part.vars;
        let (first, is_whole) = match &vars[*var].range {
            Range::Whole { len } => (Index::default(), len.as_const().is_some_and(|len| len % block == 0)),
            Range::Within { of } => {
                let Some(Blocks { start, step, block: len, end }) = vars[*of].range.blocks() else {
                    return false;
                };
                let ends = [Some(*step), Some(*len), end.as_const(), start.as_const()];
                let divides = |number: &Option<i64>| number.is_some_and(|number| number % block == 0);
                (Index::var(*of), ends.iter().all(divides))
            }
            Range::Blocks(_) => return false,
        };
        let runs = |at: &[Index]| {
            let Some((last, outer)) = at.split_last() else { return false };
            let rest = last.minus(&Index::var(*var));
            !rest.uses_var(|own| own == *var) && !outer.iter().any(|index| index.uses_var(|own| own == *var))
        };
        let starts = |at: &[Index]| {
            let last = at.last().cloned().unwrap_or_default();
            last.minus(&Index::var(*var)).plus(&first).is_multiple(block, vars)
        };
        is_whole && runs(&nest.at) && runs(at) && starts(&nest.at)
    }

    /// Checks what the fold starts from, before the folded loops have values.
    fn starts(&mut self, nest: &Nest) {
        let Some(Folding { init: Some(init), .. }) = nest.fold else { return };
        for id in reached(&nest.exprs, init) {
            match &nest.exprs[id] {
                Expr::Load { from, at } if (*from, at) == (nest.target, &nest.at) => {
                    self.load(*from, at, None);
                }
                expr => self.scalar(expr, nest.target),
            }
        }
    }

    /// Checks every expression that is not only what the fold starts from.
    fn scalars(&mut self, nest: &Nest) {
        let starts = nest.init().map(|init| reached(&nest.exprs, init)).unwrap_or_default();
        let values = reached(&nest.exprs, nest.value);
        for (id, expr) in nest.exprs.iter() {
            // What only the start uses has been checked by `starts`, and there it may read the target.
            if values.contains(&id) || !starts.contains(&id) {
                self.scalar(expr, nest.target);
            }
        }
    }

    fn scalar(&mut self, expr: &Expr, target: Place) {
        match expr {
            Expr::Load { from, at } => self.load(*from, at, Some(target)),
            Expr::Position(index) => {
                self.index(index, Some(target));
            }
            Expr::Const(_) | Expr::Unary(..) | Expr::Binary(..) | Expr::Select(..) | Expr::Cast(..) => {}
        }
    }

    /// Checks the product that a nest is said to be: code generators rely on it.
    fn product(&mut self, nest: &Nest) {
        let Some(product) = &nest.product else { return };
        let checked = match product.kind {
            Kind::Product | Kind::WeightedSum => {
                Terms::of(self.kernel, self.part, nest).and_then(|terms| terms.check(product))
            }
            Kind::Mma(_) => {
                TileProduct::of(self.kernel, self.part, nest).map(|_| ()).ok_or(Reason::Fragments)
            }
        };
        match (checked, product.activations) {
            (Err(reason), _) => {
                self.complain(format!("is no {} as it says: {reason}", product.kind.name()));
            }
            (Ok(()), Some(id)) => self.product_of(nest, id),
            (Ok(()), None) => {}
        }
    }

    fn types(&mut self, nest: &Nest) {
        // A place that does not exist has its complaint already.
        let of_place = |place| self.dtype(place).unwrap_or(DType::F32);
        let dtypes = match expr_dtypes(&nest.exprs, of_place) {
            Ok(dtypes) => dtypes,
            Err(misfit) => return self.complain(misfit),
        };
        let (target, value) = (of_place(nest.target), dtypes[nest.value]);
        if target.is_float() != value.is_float() {
            self.complain(format!("stores {value} to {}, which holds {target}", place_text(nest.target)));
        }
        if let Some(Folding { init: Some(init), .. }) = nest.fold
            && dtypes[init] != value
        {
            self.complain(format!("folds {value} from {}, one type is needed", dtypes[init]));
        }
    }
}

/// An expression and everything it is computed from.
fn reached(exprs: &List<ExprId, Expr>, root: ExprId) -> BTreeSet<ExprId> {
    let mut reached = BTreeSet::from([root]);
    for id in exprs.ids().rev() {
        if reached.contains(&id) {
            reached.extend(exprs[id].operands());
        }
    }
    reached
}
