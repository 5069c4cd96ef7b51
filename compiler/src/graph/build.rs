//! Lazy handles: model code that reads like mathematics and records a graph.
//!
//! In: calls on [`Builder`] and [`Tensor`]. Out: a [`Graph`] from [`Builder::finish`].
//! Nothing runs, and no operator returns a `Result`: what does not fit is recorded with the author's file and line,
//! the handle is poisoned, and `finish` reports everything at once. Equal operations of one block become one node.

use std::cell::RefCell;
use std::ops::{Add, Div, Mul, Neg, Sub};
use std::panic::Location;
use std::rc::Rc;

use indexmap::IndexMap;

use crate::error::{Complaint, Error};
use crate::graph::op::{Binary, Fold, Op, Scalar, Unary};
use crate::graph::{BlockId, Graph, Node, NodeId, Site};
use crate::tensor::dtype::DType;
use crate::tensor::label::Label;
use crate::tensor::quant::Format;
use crate::tensor::shape::{Axis, Shape, Type};
use crate::tensor::sym::Sym;

/// Records a graph.
#[derive(Clone, Default)]
pub struct Builder {
    record: Rc<RefCell<Record>>,
}

#[derive(Default)]
struct Record {
    graph: Graph,
    known: IndexMap<(Op, Vec<NodeId>, Option<BlockId>), NodeId>,
    block: Option<BlockId>,
    complaints: Vec<Complaint>,
}

/// An axis together with its size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dim {
    /// The name.
    pub axis: Axis,
    /// The size.
    pub size: Sym,
}

impl Dim {
    /// The same axis with another size.
    #[must_use]
    pub fn sized(&self, size: impl Into<Sym>) -> Self {
        Self { axis: self.axis, size: size.into() }
    }
}

impl From<&Dim> for Axis {
    fn from(dim: &Dim) -> Self {
        dim.axis
    }
}

/// A value that will be computed.
#[derive(Clone)]
pub struct Tensor {
    builder: Builder,
    /// Nothing where the value does not exist because something did not fit.
    node: Option<NodeId>,
}

impl Builder {
    /// An empty record.
    pub fn new() -> Self {
        Self::default()
    }

    /// An axis of this name and size.
    #[track_caller]
    pub fn dim(&self, name: &str, size: impl Into<Sym>) -> Dim {
        let axis = Label::new(name).unwrap_or_else(|| {
            self.complain(format!("axis `{name}` has no name of 1 to 16 bytes"));
            Label::fresh("axis", |_| false)
        });
        Dim { axis, size: size.into() }
    }

    /// A tensor the caller hands in with every replay.
    #[track_caller]
    pub fn input(&self, name: &str, dtype: DType, dims: &[&Dim]) -> Tensor {
        let ty = Type::new(dtype, self.shape(dims));
        self.node(Op::Input { name: name.into(), ty }, &[])
    }

    /// A stored tensor. Inside a block its name is prefixed by the block's.
    #[track_caller]
    pub fn weight(&self, name: &str, format: Format, dims: &[&Dim]) -> Tensor {
        let op = Op::Weight { name: self.qualified(name).into(), shape: self.shape(dims), format };
        self.node(op, &[])
    }

    /// A tensor that lives from replay to replay. Inside a block its name is prefixed by the block's.
    #[track_caller]
    pub fn state(&self, name: &str, format: Format, dims: &[&Dim]) -> Tensor {
        let op = Op::State { name: self.qualified(name).into(), shape: self.shape(dims), format };
        self.node(op, &[])
    }

    /// One number.
    #[track_caller]
    pub fn constant(&self, value: f32) -> Tensor {
        self.node(Op::Const(Scalar::float(value)), &[])
    }

    /// One whole number.
    #[track_caller]
    pub fn integer(&self, value: i32) -> Tensor {
        self.node(Op::Const(Scalar::I32(value)), &[])
    }

    /// A few constant numbers along an axis, whose size is how many there are.
    #[track_caller]
    pub fn table(&self, axis: impl Into<Axis>, values: &[f32]) -> Tensor {
        let values = values.iter().map(|x| x.to_bits()).collect();
        self.node(Op::Table { axis: axis.into(), values }, &[])
    }

    /// The positions 0, 1, 2, … of an axis.
    #[track_caller]
    pub fn iota(&self, dim: &Dim) -> Tensor {
        self.node(Op::Iota { axis: dim.axis, len: dim.size.clone() }, &[])
    }

    /// A run-time integer as a number.
    #[track_caller]
    pub fn symbolic(&self, value: impl Into<Sym>) -> Tensor {
        self.node(Op::Symbolic(value.into()), &[])
    }

    /// Tensors one after another along an axis.
    #[track_caller]
    pub fn concat(&self, axis: impl Into<Axis>, parts: &[&Tensor]) -> Tensor {
        self.node(Op::Concat { axis: axis.into() }, parts)
    }

    /// `if condition != 0 { yes } else { no }`, element by element.
    #[track_caller]
    pub fn select(&self, condition: &Tensor, yes: &Tensor, no: &Tensor) -> Tensor {
        self.node(Op::Select, &[condition, yes, no])
    }

    /// Everything `body` records belongs to the part of this name: one layer, mostly.
    /// Equal parts are compiled once.
    pub fn block<R>(&self, name: &str, body: impl FnOnce(&Self) -> R) -> R {
        let outer = {
            let mut record = self.record.borrow_mut();
            let id = record.graph.blocks.push(name.into());
            record.block.replace(id)
        };
        let result = body(self);
        self.record.borrow_mut().block = outer;
        result
    }

    /// The graph whose results are these, or everything that did not fit.
    pub fn finish(&self, outputs: &[(&str, &Tensor)]) -> Result<Graph, Error> {
        let record = self.record.borrow();
        Error::input_if(record.complaints.clone())?;
        let mut graph = record.graph.clone();
        graph.outputs = outputs.iter().filter_map(|(name, t)| Some(((*name).into(), t.node?))).collect();
        Ok(graph)
    }

    #[track_caller]
    fn node(&self, op: Op, args: &[&Tensor]) -> Tensor {
        let poisoned = || Tensor { builder: self.clone(), node: None };
        if args.iter().any(|arg| !Rc::ptr_eq(&arg.builder.record, &self.record)) {
            self.complain(format!("`{}` mixes tensors of two graphs", op.name()));
            return poisoned();
        }
        let Some(args) = args.iter().map(|arg| arg.node).collect::<Option<Vec<NodeId>>>() else {
            return poisoned();
        };
        let inferred = self.record.borrow().graph.infer(&op, &args);
        match inferred {
            Ok(ty) => Tensor { builder: self.clone(), node: Some(self.record(op, args, ty)) },
            Err(misfit) => {
                self.complain(format!("`{}`: {misfit}", op.name()));
                poisoned()
            }
        }
    }

    #[track_caller]
    fn record(&self, op: Op, args: Vec<NodeId>, ty: Type) -> NodeId {
        let at = Location::caller();
        let mut record = self.record.borrow_mut();
        let block = record.block;
        let key = (op.clone(), args.clone(), block);
        if let Some(id) = record.known.get(&key) {
            return *id;
        }
        let site = Some(Site { file: at.file(), line: at.line() });
        let id = record.graph.push(Node { op, args, ty, block, site });
        record.known.insert(key, id);
        id
    }

    #[track_caller]
    fn shape(&self, dims: &[&Dim]) -> Shape {
        Shape::new(dims.iter().map(|dim| (dim.axis, dim.size.clone()))).unwrap_or_else(|| {
            let names: Vec<&str> = dims.iter().map(|dim| dim.axis.as_str()).collect();
            self.complain(format!("an axis stands twice in [{}]", names.join(", ")));
            Shape::scalar()
        })
    }

    /// The name as the graph has it: inside a block, prefixed by the block's.
    pub fn qualified(&self, name: &str) -> String {
        let record = self.record.borrow();
        record.block.map_or_else(|| name.to_owned(), |block| format!("{}.{name}", record.graph.blocks[block]))
    }

    #[track_caller]
    fn complain(&self, what: String) {
        let at = Location::caller();
        self.record
            .borrow_mut()
            .complaints
            .push(Complaint::new(format!("{}:{}", at.file(), at.line()), what));
    }
}

/// Declares methods that record an operation on `self`.
macro_rules! unary_methods {
    ($($(#[$doc:meta])* $method:ident = $f:ident;)*) => {
        $($(#[$doc])*
        #[must_use]
        #[track_caller]
        pub fn $method(&self) -> Self {
            self.builder.node(Op::Unary(Unary::$f), &[self])
        })*
    };
}

/// Declares methods that record an operation on `self` and another tensor.
macro_rules! binary_methods {
    ($($(#[$doc:meta])* $method:ident = $f:ident;)*) => {
        $($(#[$doc])*
        #[must_use]
        #[track_caller]
        pub fn $method(&self, other: &Self) -> Self {
            self.builder.node(Op::Binary(Binary::$f), &[self, other])
        })*
    };
}

impl Tensor {
    /// The type, unless something did not fit.
    pub fn ty(&self) -> Option<Type> {
        let record = self.builder.record.borrow();
        Some(record.graph.nodes[self.node?].ty.clone())
    }

    /// The builder that records this tensor.
    pub fn builder(&self) -> &Builder {
        &self.builder
    }

    unary_methods! {
        /// `e^x`
        exp = Exp;
        /// The natural logarithm.
        ln = Ln;
        /// The sine.
        sin = Sin;
        /// The cosine.
        cos = Cos;
        /// The square root.
        sqrt = Sqrt;
        /// `1/√x`
        rsqrt = Rsqrt;
        /// `1/x`
        recip = Recip;
    }

    binary_methods! {
        /// The larger of two.
        maximum = Max;
        /// The smaller of two.
        minimum = Min;
        /// 1 where it is less than the other.
        lt = Lt;
        /// 1 where it is at most the other.
        le = Le;
        /// 1 where both are equal.
        equals = Eq;
    }

    /// The same numbers in another type; the value itself where it has that type already.
    #[must_use]
    #[track_caller]
    pub fn cast(&self, dtype: DType) -> Self {
        if self.ty().is_some_and(|ty| ty.dtype == dtype) {
            return self.clone();
        }
        self.builder.node(Op::Cast(dtype), &[self])
    }

    /// The same numbers in single precision, as a value of its own even where that is their type: what is stored in
    /// fewer bits may then be decoded once for all that reads it.
    #[must_use]
    #[track_caller]
    pub fn widened(&self) -> Self {
        self.builder.node(Op::Cast(DType::F32), &[self])
    }

    /// The sum along an axis.
    #[must_use]
    #[track_caller]
    pub fn sum(&self, axis: impl Into<Axis>) -> Self {
        self.builder.node(Op::Reduce { fold: Fold::Sum, axis: axis.into() }, &[self])
    }

    /// The largest along an axis.
    #[must_use]
    #[track_caller]
    pub fn max(&self, axis: impl Into<Axis>) -> Self {
        self.builder.node(Op::Reduce { fold: Fold::Max, axis: axis.into() }, &[self])
    }

    /// The product with another tensor, summed over axes that both have.
    #[must_use]
    #[track_caller]
    pub fn contract<const N: usize>(&self, other: &Self, over: [&Dim; N]) -> Self {
        let mut over: Vec<Axis> = over.iter().map(|dim| dim.axis).collect();
        over.sort();
        self.builder.node(Op::Contract { over }, &[self, other])
    }

    /// One axis becomes several, the last running fastest.
    #[must_use]
    #[track_caller]
    pub fn split(&self, axis: impl Into<Axis>, into: &[&Dim]) -> Self {
        self.builder.node(Op::Split { axis: axis.into(), into: self.builder.shape(into) }, &[self])
    }

    /// Several axes become one, the last running fastest.
    #[must_use]
    #[track_caller]
    pub fn merge(&self, axes: &[&Dim], into: impl Into<Axis>) -> Self {
        let axes = axes.iter().map(|dim| dim.axis).collect();
        self.builder.node(Op::Merge { axes, into: into.into() }, &[self])
    }

    /// An axis gets another name.
    #[must_use]
    #[track_caller]
    pub fn rename(&self, from: impl Into<Axis>, to: impl Into<Axis>) -> Self {
        self.builder.node(Op::Rename { from: from.into(), to: to.into() }, &[self])
    }

    /// A new axis along which nothing changes.
    #[must_use]
    #[track_caller]
    pub fn expand(&self, dim: &Dim) -> Self {
        self.builder.node(Op::Expand { axis: dim.axis, len: dim.size.clone() }, &[self])
    }

    /// `len` positions of an axis from `start`.
    #[must_use]
    #[track_caller]
    pub fn slice(&self, axis: impl Into<Axis>, start: impl Into<Sym>, len: impl Into<Sym>) -> Self {
        self.builder.node(Op::Slice { axis: axis.into(), start: start.into(), len: len.into() }, &[self])
    }

    /// Rows of this table: `index` says which position of `axis` each takes.
    #[must_use]
    #[track_caller]
    pub fn gather(&self, axis: impl Into<Axis>, index: &Self) -> Self {
        self.builder.node(Op::Gather { axis: axis.into() }, &[self, index])
    }

    /// The positions of the largest elements along an axis, ranked along `ranks`.
    #[must_use]
    #[track_caller]
    pub fn top_k(&self, axis: impl Into<Axis>, ranks: &Dim) -> Self {
        let Some(k) = ranks.size.as_const().and_then(|k| usize::try_from(k).ok()) else {
            self.builder.complain(format!("`top-k` needs a fixed number of ranks, got {}", ranks.size));
            return Self { builder: self.builder.clone(), node: None };
        };
        self.builder.node(Op::TopK { axis: axis.into(), into: ranks.axis, k }, &[self])
    }

    /// This state with `value` written to it: along each axis, to the positions that its index holds.
    #[must_use]
    #[track_caller]
    pub fn write(&self, places: &[(&Dim, &Self)], value: &Self) -> Self {
        let op = Op::Write { axes: places.iter().map(|(dim, _)| dim.axis).collect() };
        let args: Vec<&Self> =
            [self, value].into_iter().chain(places.iter().map(|(_, index)| *index)).collect();
        self.builder.node(op, &args)
    }

    /// This state with `value` written along an axis from position `start`; `run` is the value's axis that runs there.
    #[must_use]
    #[track_caller]
    pub fn write_run(&self, along: &Dim, start: impl Into<Sym>, value: &Self, run: &Dim) -> Self {
        let index = self.builder.iota(run) + self.builder.symbolic(start);
        self.write(&[(along, &index)], value)
    }

    /// The value itself, kept out of larger kernels.
    #[must_use]
    #[track_caller]
    pub fn barrier(&self) -> Self {
        self.builder.node(Op::Barrier, &[self])
    }
}

/// Implements an operator between tensors and numbers, by value and by reference.
macro_rules! operator {
    ($trait:ident, $method:ident) => {
        impl $trait<&Tensor> for &Tensor {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: &Tensor) -> Tensor {
                self.builder.node(Op::Binary(Binary::$trait), &[self, other])
            }
        }

        impl $trait<Tensor> for &Tensor {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: Tensor) -> Tensor {
                $trait::$method(self, &other)
            }
        }

        impl $trait<&Tensor> for Tensor {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: &Tensor) -> Tensor {
                $trait::$method(&self, other)
            }
        }

        impl $trait<Tensor> for Tensor {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: Tensor) -> Tensor {
                $trait::$method(&self, &other)
            }
        }

        impl $trait<f32> for &Tensor {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: f32) -> Tensor {
                $trait::$method(self, &self.builder.constant(other))
            }
        }

        impl $trait<f32> for Tensor {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: f32) -> Tensor {
                $trait::$method(&self, other)
            }
        }
    };
}

operator!(Add, add);
operator!(Sub, sub);
operator!(Mul, mul);
operator!(Div, div);

impl Neg for &Tensor {
    type Output = Tensor;
    #[track_caller]
    fn neg(self) -> Tensor {
        self.builder.node(Op::Unary(Unary::Neg), &[self])
    }
}

impl Neg for Tensor {
    type Output = Tensor;
    #[track_caller]
    fn neg(self) -> Tensor {
        -&self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_operations_become_one_node() {
        let g = Builder::new();
        let d = g.dim("d", 4);
        let x = g.input("x", DType::F32, &[&d]);
        let y = (&x * &x) + (&x * &x);
        assert_eq!(g.finish(&[("y", &y)]).unwrap().nodes.len(), 3);
    }

    #[test]
    fn all_that_does_not_fit_is_reported_at_once_with_the_authors_line() {
        let g = Builder::new();
        let (t, d) = (g.dim("t", 2), g.dim("d", 4));
        let x = g.input("x", DType::F32, &[&t, &d]);
        let w = g.input("w", DType::F32, &[&d.sized(5)]);
        let line = line!() + 1;
        let bad = &x * &w;
        let worse = x.sum(&g.dim("q", 1));
        let error = g.finish(&[("y", &(bad + worse))]).unwrap_err().to_string();
        let lines: Vec<&str> = error.lines().collect();
        assert_eq!(lines.len(), 2, "{error}");
        assert!(lines[0].contains(&format!("build.rs:{line}")), "{error}");
        assert!(lines[0].ends_with("`mul`: axis d has two sizes: [t:2, d:4] meets [d:5]"), "{error}");
        assert!(lines[1].ends_with("axis q is not in [t:2, d:4]"), "{error}");
    }

    #[test]
    fn a_block_prefixes_its_weights() {
        let g = Builder::new();
        let d = g.dim("d", 4);
        let w = g.block("blk.3", |g| g.weight("attn_norm", Format::F32, &[&d]));
        let graph = g.finish(&[("w", &w)]).unwrap();
        let (_, node) = graph.nodes.iter().next().unwrap();
        assert!(matches!(&node.op, Op::Weight { name, .. } if &**name == "blk.3.attn_norm"));
    }
}
