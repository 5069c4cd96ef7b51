//! The right-hand side of a rule: a small tree of operations over classes.
//!
//! In: classes that exist and operations to apply. Out: a [`Term`], which `saturate.rs` checks and adds.
//! A term is plain data, so rules only read the e-graph and never change it.
//! The rules under `rules/` build terms with the functions below.

use std::sync::Arc;

use egg::Id;

use crate::graph::infer::infer;
use crate::graph::op::{Binary, Op};
use crate::rewrite::facts::Facts;
use crate::rewrite::language::{EGraph, ENode};
use crate::tensor::shape::{Axis, Type};
use crate::tensor::sym::Sym;

/// A value described by how it is computed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Term {
    /// A value that exists.
    Class(Id),
    /// An operation on others.
    Node(Arc<Op>, Vec<Self>),
}

impl From<Id> for Term {
    fn from(class: Id) -> Self {
        Self::Class(class)
    }
}

impl Term {
    /// `op` applied to `args`.
    pub fn node(op: Op, args: Vec<Self>) -> Self {
        Self::Node(Arc::new(op), args)
    }

    /// The operation of a node that exists, applied to other arguments.
    pub fn like(node: &ENode, args: Vec<Self>) -> Self {
        Self::Node(node.op.clone(), args)
    }

    /// The type of the value; nothing where an operation does not take its arguments.
    pub fn ty(&self, egraph: &EGraph) -> Option<Type> {
        match self {
            Self::Class(id) => Some(egraph[*id].data.ty.clone()),
            Self::Node(op, args) => {
                let types: Option<Vec<Type>> = args.iter().map(|arg| arg.ty(egraph)).collect();
                infer(op, &types?.iter().collect::<Vec<_>>()).ok()
            }
        }
    }

    /// Adds what is missing and returns the class of the value.
    pub fn add(&self, egraph: &mut EGraph) -> Id {
        match self {
            Self::Class(id) => egraph.find(*id),
            Self::Node(op, args) => {
                let args = args.iter().map(|arg| arg.add(egraph)).collect();
                egraph.add(ENode::new(op.clone(), args))
            }
        }
    }
}

/// `f(a, b)`
pub fn binary(f: Binary, a: impl Into<Term>, b: impl Into<Term>) -> Term {
    Term::node(Op::Binary(f), vec![a.into(), b.into()])
}

/// `a * b`
pub fn mul(a: impl Into<Term>, b: impl Into<Term>) -> Term {
    binary(Binary::Mul, a, b)
}

/// The product of `a` and `b`, summed over `over`, which need not be sorted.
pub fn contract(mut over: Vec<Axis>, a: impl Into<Term>, b: impl Into<Term>) -> Term {
    over.sort();
    Term::node(Op::Contract { over }, vec![a.into(), b.into()])
}

/// `x` with the axis `from` called `to`; `x` itself where that changes nothing.
pub fn rename(x: impl Into<Term>, from: Axis, to: Axis) -> Term {
    if from == to { x.into() } else { Term::node(Op::Rename { from, to }, vec![x.into()]) }
}

/// `len` positions of `axis` from `start`.
pub fn slice(x: impl Into<Term>, axis: Axis, start: Sym, len: Sym) -> Term {
    Term::node(Op::Slice { axis, start, len }, vec![x.into()])
}

/// The facts of a class.
pub fn facts(egraph: &EGraph, class: Id) -> &Facts {
    &egraph[class].data
}
