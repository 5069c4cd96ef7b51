//! Products of matrices as calls of the micro-kernels of `fusebox_simd`.
//!
//! In: a nest that says which product it is. Out: a `Plan`: what of it a call computes, in which layout its activations
//! are quantised, and whether its columns are grouped by the expert that a number from memory selects (mixture of
//! experts).
//! Nothing is recognised here, and nothing emitted; `call.rs` does that. `boundary.rs` says what both sides agree on.

use fusebox_simd::{
    ActivationLayout, Level, activation_bytes, activation_layout, activation_layout_scattered,
};

use crate::codegen::cpu::Cpu;
use crate::codegen::cpu::product::boundary::storage;
use crate::kernel::product::activations::Columns;
use crate::kernel::product::check::Terms;
use crate::kernel::product::routing::Routing;
use crate::kernel::product::{Kind, Product};
use crate::kernel::stored::Stored;
use crate::kernel::walk::nests;
use crate::kernel::{ActivationsId, Kernel, Nest, Part, VarId};
use crate::options::Numbers;

pub(super) mod boundary;
mod call;
mod encode_call;
pub mod form;
pub(super) mod quantise_ahead;

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
    pub(super) quantised: Option<Quantised>,
}

/// Activations as products of one layout multiply them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Quantised {
    pub(super) id: ActivationsId,
    pub(super) columns: Columns,
    pub(super) layout: ActivationLayout,
}

impl Quantised {
    /// Bytes of the columns of one call.
    pub(super) fn set_bytes(&self) -> usize {
        activation_bytes(self.layout, self.columns.n_cols, self.columns.k)
    }

    /// Bytes of all.
    pub(super) fn bytes(&self) -> usize {
        self.set_bytes().saturating_mul(self.columns.n_sets)
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
            let activations = product.activations.filter(|_| cpu.numbers == Numbers::Quantised);
            plan.quantised = activations.and_then(|id| plan.quantised((kernel, part), id, cpu.level));
        }
        Some(plan)
    }

    /// How the activations of a product are quantised, if there is a layout and they fit scratch memory.
    fn quantised(
        &self,
        (kernel, part): (&Kernel, &Part),
        id: ActivationsId,
        level: Level,
    ) -> Option<Quantised> {
        let activations = &part.activations[id];
        let columns = activations.described(kernel, part).expect("verified activations have a length");
        let (storage, group) = storage(self.w.format)?;
        let layout = match &self.routing {
            Some(routing) => {
                let n_each = (routing.most / routing.n_matrices) as usize;
                activation_layout_scattered(level, storage, group, n_each)?
            }
            None => activation_layout(level, storage, group, columns.n_cols)?,
        };
        // Scores are exponents: 14-bit keys are not exact enough, and keys have no constant number of rows.
        if layout == ActivationLayout::Int14 && self.row.is_some_and(|var| part.fixed_len(var).is_none()) {
            return None;
        }
        let quantised = Quantised { id, columns, layout };
        (activations.is_ahead || quantised.bytes() <= MAX_QUANTISED_BYTES).then_some(quantised)
    }
}

/// The products of a part that functions compute.
fn plans(cpu: &Cpu, kernel: &Kernel, part: &Part) -> impl Iterator<Item = Plan> {
    nests(&part.body).filter_map(|nest| Plan::of(cpu, kernel, part, nest))
}

/// All activations that the products of a part quantise, once for each layout.
pub(super) fn quantised(cpu: &Cpu, kernel: &Kernel, part: &Part) -> Vec<Quantised> {
    let mut all: Vec<Quantised> = Vec::new();
    for quantised in plans(cpu, kernel, part).filter_map(|plan| plan.quantised) {
        if !all.contains(&quantised) {
            all.push(quantised);
        }
    }
    all
}

/// Bytes of scratch memory in which the products of a part group columns by expert, one product after another.
pub(super) fn routing_bytes(cpu: &Cpu, kernel: &Kernel, part: &Part) -> usize {
    let routing = plans(cpu, kernel, part).filter_map(|plan| plan.routing);
    let n_bytes = |own: Routing| fusebox_simd::routing_bytes(own.most as usize, own.n_matrices as usize);
    routing.map(n_bytes).max().unwrap_or(0)
}
