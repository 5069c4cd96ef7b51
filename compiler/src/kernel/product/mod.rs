//! Products in the kernel form: which loops of a nest number rows, columns and the terms of a sum.
//!
//! In: a nest. Out: the [`Product`] that it says it is. A product says nothing that the expressions of its nest do not:
//! run as it stands, the nest computes the same. `prepare/` finds products and writes them down, `check.rs` (rows) and
//! `tiles.rs` (tiles) prove them for `verify/`, and code generators take them as they are.

use crate::kernel::index::Index;
use crate::kernel::{ActivationsId, Nest, Place, VarId};

pub mod activations;
pub(crate) mod check;
pub(crate) mod fragments;
#[cfg_attr(not(feature = "gpu"), allow(dead_code, reason = "only sources pad rows"))]
pub(crate) mod operands;
pub mod reason;
#[cfg_attr(not(feature = "cpu"), allow(dead_code, reason = "only machine code groups columns"))]
pub(crate) mod routing;
pub(crate) mod tiles;

/// What a nest computes as a whole.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Product {
    /// Which kind of sum it is.
    pub kind: Kind,
    /// The factor that is the weight, has the rows of a weighted sum, or is the second operand of MMAs.
    pub weight: Side,
    /// The loop over rows: of a weighted sum, one that is folded.
    pub row: Option<VarId>,
    /// The loops over columns, innermost first: one run of activation vectors.
    pub columns: Vec<VarId>,
    /// The reduction loops (`k`), innermost first; of a weighted sum, the loop over elements.
    pub along: Vec<VarId>,
    /// The loops around it that select the matrix of an expert, outermost first, where columns are grouped by expert.
    pub routed: Vec<VarId>,
    /// The factor that is no weight, where it is quantised before.
    pub activations: Option<ActivationsId>,
}

/// Which kind of sum a nest is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// GEMM: dot products along rows.
    Product,
    /// Weighted sum: whole rows with a factor each, as of values in attention.
    WeightedSum,
    /// GEMM of two tiles on tensor cores, whose elements are rounded to a type.
    Mma(MmaType),
}

/// What the operands of an MMA are rounded to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MmaType {
    /// Ten mantissa bits, in a word.
    Tf32,
    /// Seven, two elements in a word.
    Bf16,
}

/// One of the two factors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// The first.
    Left,
    /// The second.
    Right,
}

/// Columns that are quantised together.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Activations {
    /// Where they are stored in single precision.
    pub from: Place,
    /// The element.
    pub at: Vec<Index>,
    /// The loops around the call of a micro-kernel that move to other columns, outermost first.
    pub around: Vec<VarId>,
    /// The loops over the columns of a call, innermost first.
    pub columns: Vec<VarId>,
    /// The loops along a column, innermost first.
    pub along: Vec<VarId>,
    /// Whether all threads quantise the whole buffer before the first task. If not, each task does where it says so.
    pub is_ahead: bool,
}

impl Kind {
    /// All.
    pub const ALL: [Self; 4] =
        [Self::Product, Self::WeightedSum, Self::Mma(MmaType::Tf32), Self::Mma(MmaType::Bf16)];

    /// The name in text forms.
    pub fn name(self) -> &'static str {
        match self {
            Self::Product => "product",
            Self::WeightedSum => "mix",
            Self::Mma(MmaType::Tf32) => "mma.tf32",
            Self::Mma(MmaType::Bf16) => "mma.bf16",
        }
    }
}

impl Side {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Left, Self::Right];

    /// The name in text forms.
    pub fn name(self) -> &'static str {
        match self {
            Self::Left => "left",
            Self::Right => "right",
        }
    }
}

impl Product {
    /// The loops inside: all that the product has a use for.
    pub fn inner(&self) -> impl Iterator<Item = VarId> {
        self.along.iter().chain(&self.row).chain(&self.columns).copied()
    }

    /// The loops around it, outermost first.
    pub fn around(&self, nest: &Nest) -> Vec<VarId> {
        let all = nest.folds().iter().chain(&nest.loops);
        all.filter(|var| !self.inner().any(|inner| inner == **var)).copied().collect()
    }
}
