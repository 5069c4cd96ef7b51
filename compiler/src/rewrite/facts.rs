//! The e-class analysis: what is true of a value, whichever node computes it.
//!
//! In: a node and the facts of its arguments. Out: the facts of its result: its type, a constant it equals, bounds of
//! its elements, and the bytes that must move to read it. Two nodes of one class must agree about the type, up to the
//! order of axes: an unsound rule stops here, at the rule. Facts only ever grow more precise, so they reach a fixed
//! point.

use egg::{Analysis, DidMerge, Id};

use crate::graph::infer::infer;
use crate::graph::op::{Binary, Op, Role, Scalar};
use crate::rewrite::language::{EGraph, ENode};
use crate::tensor::dtype::DType;
use crate::tensor::shape::{Axis, Type};
use crate::tensor::sym::Sym;

/// The analysis egg keeps up to date.
#[derive(Clone, Debug, Default)]
pub struct Meaning;

/// What is known about a class.
#[derive(Clone, Debug, PartialEq)]
pub struct Facts {
    /// The type; the order of axes is that of the node seen first.
    pub ty: Type,
    /// How many elements it usually has.
    pub len: f64,
    /// The number that every element is equal to.
    pub constant: Option<Scalar>,
    /// No element is below the first or above the second.
    pub bounds: Option<(Sym, Sym)>,
    /// Bytes that must move to read it once: its own, or those of what it is computed from on the way.
    pub read: f64,
    /// Whether it is a part of the model: a stored tensor, or a view of one.
    pub is_weight: bool,
    /// Axes that were folded away last, with only elementwise operations after: a reader waits for them.
    pub awaits: Vec<Axis>,
}

impl Facts {
    /// The facts of `op` applied to arguments of these facts; `ty` is the inferred type.
    pub fn of(op: &Op, args: &[&Self], ty: Type) -> Self {
        let len = near(&ty);
        Self {
            constant: constant(op, args),
            bounds: (ty.dtype == DType::I32).then(|| bounds(op, args)).flatten(),
            read: read(op, args, &ty, len),
            is_weight: is_weight(op, args),
            awaits: awaits(op, args),
            len,
            ty,
        }
    }

    /// Whether it has the axis.
    pub fn has(&self, axis: Axis) -> bool {
        self.ty.shape.has(axis)
    }

    /// Whether it has any of the axes.
    pub fn has_any(&self, axes: &[Axis]) -> bool {
        axes.iter().any(|axis| self.has(*axis))
    }

    /// Whether it has all of the axes.
    pub fn has_all(&self, axes: &[Axis]) -> bool {
        axes.iter().all(|axis| self.has(*axis))
    }

    /// Whether every element is this number.
    pub fn is_number(&self, number: f64) -> bool {
        self.constant.is_some_and(|scalar| scalar.number() == number)
    }
}

impl Analysis<ENode> for Meaning {
    type Data = Facts;

    fn make(egraph: &mut EGraph, node: &ENode, _: Id) -> Facts {
        let args: Vec<&Facts> = node.args.iter().map(|arg| &egraph[*arg].data).collect();
        let types: Vec<&Type> = args.iter().map(|facts| &facts.ty).collect();
        let ty = infer(&node.op, &types).expect("terms are checked before they are added");
        Facts::of(&node.op, &args, ty)
    }

    fn merge(&mut self, own: &mut Facts, other: Facts) -> DidMerge {
        debug_assert!(
            own.ty.dtype == other.ty.dtype && own.ty.shape.same_axes(&other.ty.shape),
            "values of types {} and {} were said to be equal",
            own.ty,
            other.ty
        );
        let mut merged = DidMerge(false, false);
        merged.0 |= own.constant.is_none() && other.constant.is_some();
        merged.1 |= own.constant.is_some() && other.constant.is_none();
        own.constant = own.constant.or(other.constant);
        merged.0 |= own.bounds.is_none() && other.bounds.is_some();
        merged.1 |= own.bounds.is_some() && other.bounds.is_none();
        own.bounds = own.bounds.take().or(other.bounds);
        merged.0 |= other.read < own.read || other.is_weight && !own.is_weight;
        merged.1 |= own.read < other.read || own.is_weight && !other.is_weight;
        own.read = own.read.min(other.read);
        own.is_weight |= other.is_weight;
        let all = union(&own.awaits, &other.awaits);
        merged.0 |= all.len() > own.awaits.len();
        merged.1 |= all.len() > other.awaits.len();
        own.awaits = all;
        merged
    }
}

/// How many elements a tensor of this type usually has.
pub(crate) fn near(ty: &Type) -> f64 {
    ty.shape.iter().map(|(_, size)| size.near() as f64).product()
}

fn constant(op: &Op, args: &[&Facts]) -> Option<Scalar> {
    match op {
        Op::Const(scalar) => Some(*scalar),
        Op::Binary(Binary::Le) => truth(args[0], args[1], false),
        Op::Binary(Binary::Lt) => truth(args[0], args[1], true),
        Op::Select => {
            let condition = args[0].constant?;
            args[if condition.number() == 0.0 { 2 } else { 1 }].constant
        }
        Op::Concat { .. } => {
            let first = args.first()?.constant?;
            args.iter().all(|part| part.constant == Some(first)).then_some(first)
        }
        _ => match op.role() {
            Role::Movement | Role::Gather => args[0].constant,
            Role::Leaf | Role::Elementwise | Role::Fold | Role::Write | Role::Barrier => None,
        },
    }
}

/// What `a <= b`, or `a < b`, is for every element, where the bounds tell.
fn truth(a: &Facts, b: &Facts, strictly: bool) -> Option<Scalar> {
    let ((a_low, a_high), (b_low, b_high)) = (a.bounds.clone()?, b.bounds.clone()?);
    let margin = i64::from(strictly);
    if (b_low - a_high).least() >= margin {
        return Some(Scalar::I32(1));
    }
    ((a_low - b_high).least() > -margin).then_some(Scalar::I32(0))
}

fn bounds(op: &Op, args: &[&Facts]) -> Option<(Sym, Sym)> {
    let of = |arg: usize| args[arg].bounds.clone();
    match op {
        Op::Const(Scalar::I32(value)) => Some((Sym::from(*value), Sym::from(*value))),
        Op::Symbolic(value) => Some((value.clone(), value.clone())),
        Op::Iota { len, .. } => Some((Sym::from(0i64), len.clone() - 1)),
        Op::TopK { axis, .. } => Some((Sym::from(0i64), args[0].ty.shape.size(*axis)?.clone() - 1)),
        Op::Binary(Binary::Add) => {
            let ((a_low, a_high), (b_low, b_high)) = (of(0)?, of(1)?);
            Some((a_low + b_low, a_high + b_high))
        }
        Op::Binary(Binary::Sub) => {
            let ((a_low, a_high), (b_low, b_high)) = (of(0)?, of(1)?);
            Some((a_low - b_high, a_high - b_low))
        }
        Op::Binary(Binary::Lt | Binary::Le | Binary::Eq) => Some((Sym::from(0i64), Sym::from(1i64))),
        Op::Concat { .. } => None,
        _ => match op.role() {
            Role::Movement | Role::Gather => of(0),
            Role::Leaf | Role::Elementwise | Role::Fold | Role::Write | Role::Barrier => None,
        },
    }
}

fn read(op: &Op, args: &[&Facts], ty: &Type, len: f64) -> f64 {
    let own = len * ty.dtype.bytes() as f64;
    match op {
        Op::Weight { format, .. } | Op::State { format, .. } => len * format.bytes_per_element(),
        Op::Const(_) | Op::Table { .. } | Op::Iota { .. } | Op::Symbolic(_) => 0.0,
        Op::Slice { .. } => args[0].read * share(len, args[0].len),
        // Rows picked twice are read once.
        Op::Gather { axis } => {
            let rows = args[0].ty.shape.size(*axis).map_or(1.0, |n| n.near() as f64);
            args[0].read * share(args[1].len, rows)
        }
        _ => match op.role() {
            Role::Elementwise => own.min(args.iter().map(|arg| arg.read).sum()),
            Role::Movement => args.iter().map(|arg| arg.read).sum(),
            Role::Leaf | Role::Fold | Role::Gather | Role::Write | Role::Barrier => own,
        },
    }
}

/// The part of the whole that is read.
fn share(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { (part / whole).min(1.0) } else { 1.0 }
}

fn is_weight(op: &Op, args: &[&Facts]) -> bool {
    match op.role() {
        Role::Leaf => matches!(op, Op::Weight { .. }),
        Role::Gather => args[0].is_weight,
        Role::Movement => args.iter().all(|arg| arg.is_weight),
        Role::Elementwise | Role::Fold | Role::Write | Role::Barrier => false,
    }
}

fn awaits(op: &Op, args: &[&Facts]) -> Vec<Axis> {
    let all = || args.iter().fold(Vec::new(), |all, arg| union(&all, &arg.awaits));
    match op {
        Op::Reduce { axis, .. } => union(&[*axis], &args[0].awaits),
        Op::Rename { from, to } => renamed(&args[0].awaits, &[*from], &[*to]),
        Op::Split { axis, into } => renamed(&args[0].awaits, &[*axis], &into.axes().collect::<Vec<_>>()),
        Op::Merge { axes, into } => renamed(&args[0].awaits, axes, &[*into]),
        _ => match op.role() {
            Role::Elementwise | Role::Movement => all(),
            Role::Leaf | Role::Fold | Role::Gather | Role::Write | Role::Barrier => Vec::new(),
        },
    }
}

/// The axes by the names they have from now on.
fn renamed(axes: &[Axis], from: &[Axis], to: &[Axis]) -> Vec<Axis> {
    let kept: Vec<Axis> = axes.iter().copied().filter(|axis| !from.contains(axis)).collect();
    if kept.len() < axes.len() { union(&kept, to) } else { kept }
}

/// The axes of both lists, sorted.
fn union(a: &[Axis], b: &[Axis]) -> Vec<Axis> {
    let mut all = [a, b].concat();
    all.sort_unstable();
    all.dedup();
    all
}
