//! The closed set of operations.
//!
//! An [`Op`] carries attributes only; arguments stand beside it in the node, so the same type serves the graph and
//! the e-graph. Axes are names: nothing is permuted, and elementwise operations broadcast by name.
//! Softmax, norms, rotations and routing are *not* here: they are functions of `models/layers` made of these.
//! To add one, follow `docs/adding-an-op.md`; `infer.rs` gives its type and `reference/` its meaning.

use std::sync::Arc;

use crate::graph::Name;
use crate::tensor::dtype::DType;
use crate::tensor::quant::Format;
use crate::tensor::shape::{Axis, Shape, Type};
use crate::tensor::sym::Sym;

/// What a node does.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Op {
    /// A tensor the caller hands in with every replay.
    Input {
        /// The caller's name for it.
        name: Name,
        /// Its type.
        ty: Type,
    },
    /// A stored tensor; its last axis is the one its blocks run along.
    Weight {
        /// The name in the model file.
        name: Name,
        /// Its axes as they lie in storage.
        shape: Shape,
        /// How its elements are stored.
        format: Format,
    },
    /// A tensor that lives from replay to replay, as it was before this replay.
    State {
        /// Its name.
        name: Name,
        /// Its axes, laid out for their largest sizes; blocks run along the last.
        shape: Shape,
        /// How its elements are stored: what is written is rounded to that.
        format: Format,
    },
    /// One number, the same for ever.
    Const(Scalar),
    /// A short list of numbers along one axis, the same for ever.
    Table {
        /// The axis.
        axis: Axis,
        /// The numbers' bits.
        values: Arc<[u32]>,
    },
    /// 0, 1, 2, … along an axis.
    Iota {
        /// The axis.
        axis: Axis,
        /// Its size.
        len: Sym,
    },
    /// A run-time integer as a number.
    Symbolic(Sym),
    /// A function of each element.
    Unary(Unary),
    /// A function of two elements that meet by axis name.
    Binary(Binary),
    /// `if a != 0 { b } else { c }`, element by element.
    Select,
    /// The same numbers in another type.
    Cast(DType),
    /// Folds one axis away.
    Reduce {
        /// How two elements become one.
        fold: Fold,
        /// The axis that goes.
        axis: Axis,
    },
    /// One axis becomes several, the last running fastest.
    Split {
        /// The axis that goes.
        axis: Axis,
        /// The axes that come.
        into: Shape,
    },
    /// Several axes become one, the last running fastest.
    Merge {
        /// The axes that go.
        axes: Vec<Axis>,
        /// The axis that comes.
        into: Axis,
    },
    /// An axis gets another name.
    Rename {
        /// The old name.
        from: Axis,
        /// The new name.
        to: Axis,
    },
    /// A new axis along which nothing changes.
    Expand {
        /// The axis.
        axis: Axis,
        /// Its size.
        len: Sym,
    },
    /// A run of positions of one axis.
    Slice {
        /// The axis.
        axis: Axis,
        /// The first position.
        start: Sym,
        /// How many.
        len: Sym,
    },
    /// Tensors one after another along an axis.
    Concat {
        /// The axis.
        axis: Axis,
    },
    /// The product of two tensors, summed over some of the axes both have, accumulated in single precision.
    Contract {
        /// The summed axes, sorted.
        over: Vec<Axis>,
    },
    /// Rows of the first argument, picked by the second; an index out of range picks the nearest row.
    Gather {
        /// The axis of the table that the index runs over.
        axis: Axis,
    },
    /// The positions of the largest elements, largest first; of equals the lowest position comes first.
    TopK {
        /// The axis searched.
        axis: Axis,
        /// The axis of the ranks.
        into: Axis,
        /// How many.
        k: usize,
    },
    /// The second argument averaged over some axes with weights `softmax(first argument)`, in one pass. A third
    /// argument is a sink: one more score, of a value of 0.
    Attend {
        /// The axes averaged over; the first is gone through block by block.
        over: Vec<Axis>,
    },
    /// A state (first argument) with elements of the second argument put where the other arguments say: one index for
    /// each axis that is written along, all over axes that the value has and the state has not. An index out of range
    /// picks the nearest position. No two elements may have one place: the caller of a replay sees to that.
    Write {
        /// The axes of the state that indices run over.
        axes: Vec<Axis>,
    },
    /// The value itself, written to memory because the author requests it.
    Barrier,
}

/// A number with an exact identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scalar {
    /// A single-precision number, by its bits.
    F32(u32),
    /// A whole number.
    I32(i32),
}

impl Scalar {
    /// The scalar of a single-precision number.
    pub fn float(value: f32) -> Self {
        Self::F32(value.to_bits())
    }

    /// The type of the number.
    pub fn dtype(self) -> DType {
        match self {
            Self::F32(_) => DType::F32,
            Self::I32(_) => DType::I32,
        }
    }

    /// The number.
    pub fn number(self) -> f64 {
        match self {
            Self::F32(bits) => f64::from(f32::from_bits(bits)),
            Self::I32(value) => f64::from(value),
        }
    }
}

/// Declares an enum of named functions with the list of all of them and a look-up by name.
macro_rules! named_functions {
    ($(#[$doc:meta])* $name:ident { $($(#[$case_doc:meta])* $case:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name {
            $($(#[$case_doc])* $case,)*
        }

        impl $name {
            /// Every one, in the order of the declaration.
            pub const ALL: &'static [Self] = &[$(Self::$case,)*];

            /// The name in text forms.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$case => $text,)*
                }
            }

            /// The one of this name.
            pub fn named(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|f| f.name() == name)
            }
        }
    };
}

named_functions! {
    /// Functions of one element.
    Unary {
        /// `-x`
        Neg = "neg",
        /// `e^x`
        Exp = "exp",
        /// The natural logarithm.
        Ln = "ln",
        /// The sine of an angle in radians.
        Sin = "sin",
        /// The cosine of an angle in radians.
        Cos = "cos",
        /// `√x`
        Sqrt = "sqrt",
        /// `1/√x`
        Rsqrt = "rsqrt",
        /// `1/x`
        Recip = "recip",
    }
}

named_functions! {
    /// Functions of two elements.
    Binary {
        /// `a + b`
        Add = "add",
        /// `a - b`
        Sub = "sub",
        /// `a * b`
        Mul = "mul",
        /// `a / b`, of floating-point numbers only.
        Div = "div",
        /// The larger.
        Max = "max",
        /// The smaller.
        Min = "min",
        /// 1 where `a < b`, else 0.
        Lt = "lt",
        /// 1 where `a <= b`, else 0.
        Le = "le",
        /// 1 where `a == b`, else 0.
        Eq = "eq",
    }
}

named_functions! {
    /// Ways to make one element of many.
    Fold {
        /// The sum; of none, 0.
        Sum = "sum",
        /// The largest; of none, -∞ (for whole numbers the smallest there is).
        Max = "max",
    }
}

impl Binary {
    /// Whether the order of the arguments does not matter.
    pub fn is_commutative(self) -> bool {
        matches!(self, Self::Add | Self::Mul | Self::Max | Self::Min | Self::Eq)
    }

    /// Whether the result is a truth value.
    pub fn is_comparison(self) -> bool {
        matches!(self, Self::Lt | Self::Le | Self::Eq)
    }
}

/// What operations do with elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Has elements of its own, and no arguments.
    Leaf,
    /// Makes every element of one element of each argument.
    Elementwise,
    /// Only renames, cuts or repeats positions.
    Movement,
    /// Makes one element of many.
    Fold,
    /// Picks rows by numbers.
    Gather,
    /// Makes a later version of a state.
    Write,
    /// Stores what it has as it is.
    Barrier,
}

impl Op {
    /// The name in text forms; for families such as `unary`, the function's.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Input { .. } => "input",
            Self::Weight { .. } => "weight",
            Self::State { .. } => "state",
            Self::Const(_) => "const",
            Self::Table { .. } => "table",
            Self::Iota { .. } => "iota",
            Self::Symbolic(_) => "symbolic",
            Self::Unary(f) => f.name(),
            Self::Binary(f) => f.name(),
            Self::Select => "select",
            Self::Cast(_) => "cast",
            Self::Reduce { fold, .. } => fold.reduce_name(),
            Self::Split { .. } => "split",
            Self::Merge { .. } => "merge",
            Self::Rename { .. } => "rename",
            Self::Expand { .. } => "expand",
            Self::Slice { .. } => "slice",
            Self::Concat { .. } => "concat",
            Self::Contract { .. } => "contract",
            Self::Gather { .. } => "gather",
            Self::TopK { .. } => "top-k",
            Self::Attend { .. } => "attend",
            Self::Write { .. } => "write",
            Self::Barrier => "barrier",
        }
    }

    /// What it does with elements.
    pub fn role(&self) -> Role {
        match self {
            Self::Input { .. }
            | Self::Weight { .. }
            | Self::State { .. }
            | Self::Const(_)
            | Self::Table { .. }
            | Self::Iota { .. }
            | Self::Symbolic(_) => Role::Leaf,
            Self::Unary(_) | Self::Binary(_) | Self::Select | Self::Cast(_) => Role::Elementwise,
            Self::Split { .. }
            | Self::Merge { .. }
            | Self::Rename { .. }
            | Self::Expand { .. }
            | Self::Slice { .. }
            | Self::Concat { .. } => Role::Movement,
            Self::Reduce { .. } | Self::Contract { .. } | Self::TopK { .. } | Self::Attend { .. } => {
                Role::Fold
            }
            Self::Gather { .. } => Role::Gather,
            Self::Write { .. } => Role::Write,
            Self::Barrier => Role::Barrier,
        }
    }

    /// Whether it is index arithmetic in any kernel.
    pub fn is_movement(&self) -> bool {
        self.role() == Role::Movement
    }

    /// Whether every element of the result comes from one element of each argument.
    pub fn is_elementwise(&self) -> bool {
        self.role() == Role::Elementwise
    }

    /// Whether it makes one element of many.
    pub fn is_fold(&self) -> bool {
        self.role() == Role::Fold
    }

    /// Whether it has no arguments.
    pub fn is_leaf(&self) -> bool {
        self.role() == Role::Leaf
    }

    /// How many arguments it takes; nothing where any number will do.
    pub fn n_args(&self) -> Option<usize> {
        match self {
            Self::Input { .. }
            | Self::Weight { .. }
            | Self::State { .. }
            | Self::Const(_)
            | Self::Table { .. }
            | Self::Iota { .. }
            | Self::Symbolic(_) => Some(0),
            Self::Unary(_)
            | Self::Cast(_)
            | Self::Reduce { .. }
            | Self::Split { .. }
            | Self::Merge { .. }
            | Self::Rename { .. }
            | Self::Expand { .. }
            | Self::Slice { .. }
            | Self::TopK { .. }
            | Self::Barrier => Some(1),
            Self::Binary(_) | Self::Contract { .. } | Self::Gather { .. } => Some(2),
            Self::Write { axes } => Some(2 + axes.len()),
            Self::Select => Some(3),
            Self::Concat { .. } | Self::Attend { .. } => None,
        }
    }
}

impl Fold {
    /// What folding starts from.
    pub fn identity(self, dtype: DType) -> Scalar {
        match (self, dtype.is_float()) {
            (Self::Sum, true) => Scalar::float(0.0),
            (Self::Sum, false) => Scalar::I32(0),
            (Self::Max, true) => Scalar::float(f32::NEG_INFINITY),
            (Self::Max, false) => Scalar::I32(i32::MIN),
        }
    }

    fn reduce_name(self) -> &'static str {
        match self {
            Self::Sum => "reduce-sum",
            Self::Max => "reduce-max",
        }
    }
}
