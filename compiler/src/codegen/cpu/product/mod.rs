//! Products of matrices as calls of the micro-kernels of `fusebox_simd`.
//!
//! In: a nest that says which product it is. Out: a `Plan`: what of it a call computes, how its activations are
//! quantised, and whether its columns are grouped by the expert that a number from memory selects (mixture of experts).
//! Nothing is recognised here, and nothing emitted; `call.rs` does that. `boundary.rs` says what both sides agree on.

use fusebox_simd::{
    ActivationLayout, Level, activation_bytes, activation_layout, activation_layout_scattered,
};

use crate::codegen::cpu::Cpu;
use crate::codegen::cpu::product::boundary::storage;
use crate::kernel::product::check::Terms;
use crate::kernel::product::routing::Routing;
use crate::kernel::product::{Kind, Product};
use crate::kernel::stored::{Stored, at_start};
use crate::kernel::{Kernel, Nest, Part, Place, Range, VarId};
use crate::options::Numbers;

pub(super) mod boundary;
mod call;
mod encode_call;
pub mod form;
pub(super) mod quantise_ahead;

/// Columns that are quantised and stored together.
pub(super) const COLUMNS: usize = 16;
/// Bytes that quantised activations may take in scratch memory.
const MAX_QUANTISED_BYTES: usize = 64 << 20;

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
    /// The routing that selects a matrix for each column, where these are grouped by expert.
    pub(super) routing: Option<Routing>,
    /// The quantised activations, unless they stay in single precision.
    pub(super) quantised: Option<Activations>,
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

impl Plan {
    /// How the product that a nest says it is is computed; nothing where it says none, or numbers are exact.
    pub(super) fn of(cpu: &Cpu, kernel: &Kernel, part: &Part, nest: &Nest) -> Option<Self> {
        let is_called =
            |product: &&Product| cpu.numbers != Numbers::Exact && !matches!(product.kind, Kind::Mma(_));
        let product = nest.product.as_ref().filter(is_called)?;
        let terms = Terms::of(kernel, part, nest).expect("a verified product has two factors");
        let [w, x] = terms.factors(product.weight).map(Clone::clone);
        let (kind, row, out) = (product.kind, product.row, terms.out.clone());
        let (cols, run, around) = (product.columns.clone(), product.along.clone(), product.around(nest));
        let mut plan = Self { kind, w, x, out, around, row, cols, run, routing: None, quantised: None };
        if kind == Kind::Product {
            plan.routing = Routing::of(&terms, product).filter(|_| !product.routed.is_empty());
            if cpu.numbers == Numbers::Quantised {
                plan.quantised = plan.quantised(kernel, &terms, cpu.level);
            }
        }
        Some(plan)
    }

    /// How the activations of a product are quantised, if they fit scratch memory.
    fn quantised(&self, kernel: &Kernel, terms: &Terms<'_>, level: Level) -> Option<Activations> {
        let part = terms.part;
        let n_cols = terms.most_of(&self.cols)? as usize;
        let (storage, group) = storage(self.w.format)?;
        let layout = match &self.routing {
            Some(routing) => {
                let n_each = (routing.most / routing.n_matrices) as usize;
                activation_layout_scattered(level, storage, group, n_each)?
            }
            None => activation_layout(level, storage, group, n_cols)?,
        };
        // Scores are exponents: 14-bit keys are not exact enough, and keys have no constant number of rows.
        if layout == ActivationLayout::Int14 && self.row.is_some_and(|var| part.fixed_len(var).is_none()) {
            return None;
        }
        let lens = self.run.iter().map(|var| part.fixed_len(*var));
        let k = lens.into_iter().try_fold(1, |k, len| len.map(|len| k * len))?;
        let step = |var: VarId| self.x.step_of(var);
        let moves = |var: &&VarId| step(**var) != Some(0);
        let mut loops: Vec<VarId> = self.around.iter().filter(moves).copied().collect();
        let n_sets = terms.most_of(&loops)? as usize;
        loops.extend(self.cols.iter().rev());
        let mut dims = Vec::new();
        for var in &loops {
            let range = part.vars[*var].range.clone();
            dims.push(Dim { range, step: step(*var).ok_or(*var), most: terms.most(*var)? as usize });
        }
        let known = |var: &VarId| step(*var).is_some();
        let fixed: Vec<VarId> = loops.iter().chain(&self.run).copied().filter(known).collect();
        let x = Stored { element: at_start(&self.x.element, &fixed, &part.vars), ..self.x.clone() };
        let is_ahead = self.is_ahead(kernel, part, (&x, &loops), k);
        let quantised = Activations { x, dims, n_cols, n_sets, k: k as usize, layout, is_ahead };
        (is_ahead || quantised.bytes() <= MAX_QUANTISED_BYTES).then_some(quantised)
    }

    /// Whether a parameter holds nothing but contiguous columns, and each call starts at a multiple of [`COLUMNS`].
    fn is_ahead(&self, kernel: &Kernel, part: &Part, (first, loops): (&Stored, &[VarId]), k: i64) -> bool {
        let Place::Param(param) = first.place else { return false };
        let shape = &kernel.params[param].shape;
        let rest: i64 = shape.iter().skip(1).map(|(_, size)| size.as_const().unwrap_or(0)).product();
        let is_near = |var: &VarId| self.x.step_of(*var) == Some(k);
        let set = k * COLUMNS as i64;
        let starts_set =
            |var: &VarId| self.cols.contains(var) || self.x.step_of(*var).is_some_and(|step| step % set == 0);
        rest > 0
            && rest % k == 0
            && self.cols.first().is_some_and(is_near)
            && loops.iter().all(starts_set)
            && first.element.is_multiple(set, &part.vars)
    }
}
