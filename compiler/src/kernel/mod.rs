//! The kernel form: what one launch computes, as loops over tasks and tiles.
//!
//! A kernel is a list of [`Part`]s. A part is a grid of independent tasks; a task runs its body of [`Nest`]s, each one
//! loop nest that fills a [`Tile`] of the task's own memory or a piece of a buffer, perhaps folding inner loops.
//! Tasks never meet: two tasks write no element in common and read nothing that the kernel writes.
//! `lower/` makes kernels, `verify/` proves every access in bounds, `run/` interprets them.

use std::collections::BTreeSet;
use std::fmt;

use crate::define_id;
use crate::foundation::entity::List;
use crate::graph::Name;
use crate::graph::op::{Binary, Fold, Scalar, Unary};
use crate::tensor::dtype::DType;
use crate::tensor::label::Label;
use crate::tensor::quant::Format;
use crate::tensor::shape::Shape;
use crate::tensor::sym::Sym;

pub(crate) mod effects;
pub mod index;
pub mod lower;
pub(crate) mod mask;
pub mod measure;
pub mod parse;
pub mod price;
pub mod print;
pub mod product;
pub mod run;
#[cfg(test)]
pub(crate) mod samples;
pub(crate) mod stored;
#[cfg_attr(not(feature = "gpu"), allow(dead_code, reason = "only sources use pieces"))]
pub(crate) mod vector_loads;
pub mod verify;
pub mod walk;

use index::{Index, Vars};
use product::{Activations, Product};

define_id!(
    /// A buffer a kernel is given.
    ParamId,
    "@"
);
define_id!(
    /// A loop variable of a part.
    VarId,
    "v"
);
define_id!(
    /// A piece of a task's own memory.
    TileId,
    "t"
);
define_id!(
    /// Activations that are quantised.
    ActivationsId,
    "activations"
);
define_id!(
    /// A scalar expression of a nest.
    ExprId,
    "e"
);

/// One launch.
#[derive(Clone, Debug, PartialEq)]
pub struct Kernel {
    /// What it does, for people: made of the operations and weights it fuses.
    pub name: String,
    /// The pattern that its heaviest nest follows.
    pub skeleton: Skeleton,
    /// The buffers, in the order in which a plan binds them.
    pub params: List<ParamId, Param>,
    /// Independent grids that share the launch (horizontal fusion).
    pub parts: Vec<Part>,
}

/// The pattern a code generator may choose a fast form by. It never changes what is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Skeleton {
    /// Elementwise.
    Map,
    /// Reductions of rows.
    RowReduction,
    /// GEMV: a weight times at most eight vectors.
    MatrixVector,
    /// GEMM: a weight times many vectors.
    MatrixMatrix,
    /// Attention over a cache, in one pass (online softmax).
    Attention,
    /// Reduces the partial results of split attention.
    Combine,
    /// Expert routing: weights chosen by an index, times vectors.
    Experts,
    /// The positions of the largest elements.
    TopK,
}

impl Skeleton {
    /// Every skeleton, in the order of the declaration.
    pub const ALL: [Self; 8] = [
        Self::Map,
        Self::RowReduction,
        Self::MatrixVector,
        Self::MatrixMatrix,
        Self::Attention,
        Self::Combine,
        Self::Experts,
        Self::TopK,
    ];

    /// The name in text forms.
    pub fn name(self) -> &'static str {
        match self {
            Self::Map => "map",
            Self::RowReduction => "row-reduction",
            Self::MatrixVector => "matrix-vector",
            Self::MatrixMatrix => "matrix-matrix",
            Self::Attention => "attention",
            Self::Combine => "combine",
            Self::Experts => "experts",
            Self::TopK => "top-k",
        }
    }
}

impl fmt::Display for Skeleton {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A buffer as a kernel sees it, laid out in order of its axes for their largest sizes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Param {
    /// The value it holds, for people.
    pub name: Name,
    /// How its elements lie in bytes.
    pub format: Format,
    /// Its axes.
    pub shape: Shape,
    /// Whether the kernel reads or writes it; never both.
    pub access: Access,
}

/// What a kernel does with a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Access {
    /// Reads it.
    Read,
    /// Writes some or all of it.
    Write,
}

/// A grid of tasks with one body.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Part {
    /// Every loop variable.
    pub vars: List<VarId, Var>,
    /// The variables that together number the tasks, outermost first.
    pub grid: Vec<VarId>,
    /// The rows that are routed to a task, where a list of them is made before its body.
    pub routed: Option<RoutedRows>,
    /// The memory each task has for itself.
    pub tiles: List<TileId, Tile>,
    /// The activations that products multiply as quantised numbers.
    pub activations: List<ActivationsId, Activations>,
    /// What each task does, in order.
    pub body: Vec<Stmt>,
}

/// Which rows belong to a task, by a number in memory: a router's choice of experts.
///
/// Rows are numbered by some variables, the last running fastest. Those whose `by` is the task's `expert` have their
/// numbers in `list`, in order, and `along` ends where the list does.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RoutedRows {
    /// The variables that number all rows, outermost first.
    pub rows: Vec<VarId>,
    /// The expert of a row.
    pub by: Index,
    /// The variable of the grid that numbers experts.
    pub expert: VarId,
    /// The tile of the numbers of rows, with room for all.
    pub list: TileId,
    /// The blocks of positions in the list.
    pub along: VarId,
}

/// A loop variable.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Var {
    /// The axis it runs along, for people.
    pub name: Label,
    /// The values it takes.
    pub range: Range,
    /// Bounds that end it early: it takes only values below each of them. They may depend on outer variables, and on
    /// numbers in memory, such as the length of a sequence.
    pub until: Vec<Index>,
}

impl Var {
    /// A variable that takes every value of a range.
    pub fn new(name: Label, range: Range) -> Self {
        Self { name, range, until: Vec::new() }
    }
}

/// The values of a loop variable.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Range {
    /// Every position `0..len`.
    Whole {
        /// One past the last.
        len: Sym,
    },
    /// The starts of blocks: `start, start + step, …` below `end`.
    Blocks(Blocks),
    /// Every position of the block that starts at another variable.
    Within {
        /// A variable whose range is `Blocks`.
        of: VarId,
    },
}

impl Range {
    /// The blocks whose starts these are.
    pub fn blocks(&self) -> Option<&Blocks> {
        match self {
            Self::Blocks(blocks) => Some(blocks),
            Self::Whole { .. } | Self::Within { .. } => None,
        }
    }

    /// How many positions these are, where they are those of a whole axis.
    pub(crate) fn whole_len(&self) -> Option<&Sym> {
        match self {
            Self::Whole { len } => Some(len),
            Self::Blocks(_) | Self::Within { .. } => None,
        }
    }

    /// One past the last position, whatever the other variables are.
    pub(crate) fn end<'a>(&'a self, vars: &'a Vars) -> Option<&'a Sym> {
        match self {
            Self::Whole { len: end } | Self::Blocks(Blocks { end, .. }) => Some(end),
            Self::Within { of } => vars[*of].range.blocks().map(|blocks| &blocks.end),
        }
    }
}

/// Blocks of positions, one after another.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Blocks {
    /// The first start; may depend on variables of the grid.
    pub start: Index,
    /// From one start to the next.
    pub step: i64,
    /// Positions in a block; the last block may have fewer.
    pub block: i64,
    /// One past the last position.
    pub end: Sym,
}

impl Blocks {
    /// How many positions every block has, where none is shorter, whatever symbols are.
    pub fn whole(&self) -> Option<i64> {
        let (start, end) = (self.start.as_const()?, self.end.as_const()?);
        let are_whole = end >= start && self.step == self.block && (end - start) % self.block == 0;
        are_whole.then_some(self.block)
    }
}

/// Task-local memory.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Tile {
    /// The type of an element.
    pub dtype: DType,
    /// Sizes, outermost first; none for a single number.
    pub dims: Vec<usize>,
}

/// One thing a task does.
#[derive(Clone, Debug, PartialEq)]
pub enum Stmt {
    /// Fills a tile or a piece of a buffer.
    Nest(Nest),
    /// Repeats statements for each value of a variable, in order.
    Loop {
        /// The variable.
        var: VarId,
        /// What is repeated.
        body: Vec<Stmt>,
    },
    /// Does what is the same for all tasks that differ in the inner variables of the grid only. A task may skip it
    /// where the task before has done it and the memory of that task is still there. Stands in the body of a part only.
    Once {
        /// The outer variables of the grid, which it depends on.
        per: Vec<VarId>,
        /// What is done.
        body: Vec<Stmt>,
    },
    /// Quantises activations for the products that name them. What is computed, and interpreted, are the numbers
    /// before.
    Quantise(ActivationsId),
}

impl Stmt {
    /// The nest, unless it repeats others.
    pub fn nest(&self) -> Option<&Nest> {
        match self {
            Self::Nest(nest) => Some(nest),
            Self::Loop { .. } | Self::Once { .. } | Self::Quantise(_) => None,
        }
    }

    /// The statements inside.
    pub fn inner(&self) -> &[Self] {
        match self {
            Self::Nest(_) | Self::Quantise(_) => &[],
            Self::Loop { body, .. } | Self::Once { body, .. } => body,
        }
    }

    /// The variables of what it repeats, those of loops inside as well.
    pub fn loops(&self) -> BTreeSet<VarId> {
        let own = if let Self::Loop { var, .. } = self { Some(*var) } else { None };
        self.inner().iter().flat_map(Self::loops).chain(own).collect()
    }
}

/// A loop nest that stores one value per iteration of its outer loops.
#[derive(Clone, Debug, PartialEq)]
pub struct Nest {
    /// Where it stores.
    pub target: Place,
    /// The element it stores to.
    pub at: Vec<Index>,
    /// The outer loops, outermost first.
    pub loops: Vec<VarId>,
    /// The inner loops, whose values are folded into one.
    pub fold: Option<Folding>,
    /// Scalar expressions; each refers to earlier ones only.
    pub exprs: List<ExprId, Expr>,
    /// The value stored, or folded.
    pub value: ExprId,
    /// The product of matrices that it is, where that is said.
    pub product: Option<Product>,
}

/// The inner loops of a nest.
#[derive(Clone, Debug, PartialEq)]
pub struct Folding {
    /// How two values become one.
    pub fold: Fold,
    /// The loops, outermost first.
    pub loops: Vec<VarId>,
    /// What the fold starts from, instead of the fold's own start. May read the element that is stored to.
    pub init: Option<ExprId>,
}

/// A memory that is read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// A buffer.
    Param(ParamId),
    /// A tile.
    Tile(TileId),
}

/// A scalar.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Expr {
    /// A number.
    Const(Scalar),
    /// A position, as an `I32`.
    Position(Index),
    /// An element, decoded.
    Load {
        /// Where from.
        from: Place,
        /// Which, one index for each axis.
        at: Vec<Index>,
    },
    /// A function of one scalar.
    Unary(Unary, ExprId),
    /// A function of two.
    Binary(Binary, ExprId, ExprId),
    /// `if a != 0 { b } else { c }`; all three are evaluated.
    Select(ExprId, ExprId, ExprId),
    /// The same number in another type.
    Cast(DType, ExprId),
}

impl Kernel {
    /// The sizes that a place of a part is laid out for.
    pub fn dims(&self, part: &Part, place: Place) -> Vec<i64> {
        match place {
            Place::Param(id) => self.params[id].shape.iter().map(|(_, size)| size.most()).collect(),
            Place::Tile(id) => part.tiles[id].dims.iter().map(|dim| *dim as i64).collect(),
        }
    }
}

impl Nest {
    /// The format of what it stores to, where that is one of blocks: such a nest copies whole blocks from a tile.
    pub fn blocks(&self, kernel: &Kernel) -> Option<Format> {
        let Place::Param(param) = self.target else { return None };
        kernel.params.get(param).map(|param| param.format).filter(|format| format.block_len() > 1)
    }
}

impl Part {
    /// How many tasks there are when symbols have the values that `of` gives them.
    pub fn n_tasks(&self, of: &impl Fn(&Sym) -> i64) -> i64 {
        self.grid.iter().map(|var| self.n_values(*var, of)).product()
    }

    /// How many values a variable takes; of blocks whose first start depends on other variables, the most.
    pub fn n_values(&self, var: VarId, of: &impl Fn(&Sym) -> i64) -> i64 {
        match &self.vars[var].range {
            Range::Whole { len } => of(len).max(0),
            Range::Blocks(Blocks { step, end, .. }) => (of(end).max(0) + step - 1) / step,
            Range::Within { of: base } => {
                self.vars[*base].range.blocks().map_or(0, |blocks| of(&blocks.end).clamp(0, blocks.block))
            }
        }
    }

    /// How many values a loop of a nest takes, where it runs within a block that is full.
    pub fn full_len(&self, var: VarId) -> Option<Sym> {
        match &self.vars[var].range {
            Range::Whole { len } => Some(len.clone()),
            Range::Within { of } => self.vars[*of].range.blocks().map(|blocks| blocks.block.into()),
            Range::Blocks(_) => None,
        }
    }

    /// Whether a variable ends where a list of routed rows does.
    pub(crate) fn ends_with_list(&self, var: VarId) -> bool {
        let along = self.routed.as_ref().map(|routed| routed.along);
        along == Some(var) || matches!(self.vars[var].range, Range::Within { of } if along == Some(of))
    }

    /// How many values a loop of a nest takes, where this is always the same.
    pub fn fixed_len(&self, var: VarId) -> Option<i64> {
        let Var { range, until, .. } = &self.vars[var];
        match range {
            _ if !until.is_empty() || self.ends_with_list(var) => None,
            Range::Whole { len } => len.as_const(),
            Range::Within { of } => self.vars[*of].range.blocks()?.whole(),
            Range::Blocks(_) => None,
        }
    }
}
