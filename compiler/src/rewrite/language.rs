//! The e-graph's language: operations on classes of equal values.
//!
//! In: an operation of the graph and the classes of its arguments. Out: an [`ENode`] egg can compare and hash.
//! The operands of a commutative operation are stored in the order of their classes, so no rule for commutativity is
//! needed. What is known about a class is in `facts.rs`.

use std::sync::Arc;

use egg::{Id, Language};

use crate::graph::op::Op;
use crate::rewrite::facts::Meaning;

/// Classes of values that are equal, each with everything that computes it.
pub type EGraph = egg::EGraph<ENode, Meaning>;

/// An operation on classes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ENode {
    /// What is done. Shared, as egg copies nodes freely.
    pub op: Arc<Op>,
    /// The classes it is done to.
    pub args: Vec<Id>,
}

/// The kinds of operations that rules look for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Anything without arguments.
    Leaf,
    /// A function of one element.
    Unary,
    /// A function of two.
    Binary,
    /// A choice between two.
    Select,
    /// Another type.
    Cast,
    /// An axis folded away.
    Reduce,
    /// An axis split.
    Split,
    /// Axes merged.
    Merge,
    /// An axis renamed.
    Rename,
    /// An axis added.
    Expand,
    /// A run of positions.
    Slice,
    /// Tensors put together.
    Concat,
    /// A product that is summed.
    Contract,
    /// Rows picked.
    Gather,
    /// An attention in one pass.
    Attend,
    /// What no rule looks for.
    Other,
}

impl ENode {
    /// A node whose operands stand in canonical order.
    pub fn new(op: Arc<Op>, args: Vec<Id>) -> Self {
        let mut node = Self { op, args };
        node.sort();
        node
    }

    /// The kind of the operation.
    pub fn kind(&self) -> Kind {
        match &*self.op {
            Op::Input { .. }
            | Op::Weight { .. }
            | Op::State { .. }
            | Op::Const(_)
            | Op::Table { .. }
            | Op::Iota { .. }
            | Op::Symbolic(_) => Kind::Leaf,
            Op::Unary(_) => Kind::Unary,
            Op::Binary(_) => Kind::Binary,
            Op::Select => Kind::Select,
            Op::Cast(_) => Kind::Cast,
            Op::Reduce { .. } => Kind::Reduce,
            Op::Split { .. } => Kind::Split,
            Op::Merge { .. } => Kind::Merge,
            Op::Rename { .. } => Kind::Rename,
            Op::Expand { .. } => Kind::Expand,
            Op::Slice { .. } => Kind::Slice,
            Op::Concat { .. } => Kind::Concat,
            Op::Contract { .. } => Kind::Contract,
            Op::Gather { .. } => Kind::Gather,
            Op::Attend { .. } => Kind::Attend,
            Op::TopK { .. } | Op::Write { .. } | Op::Barrier => Kind::Other,
        }
    }

    /// Whether the order of the two operands does not matter.
    pub fn is_commutative(&self) -> bool {
        match &*self.op {
            Op::Contract { .. } => true,
            Op::Binary(f) => f.is_commutative(),
            _ => false,
        }
    }

    fn sort(&mut self) {
        if self.is_commutative() {
            self.args.sort_unstable();
        }
    }
}

impl Language for ENode {
    type Discriminant = Kind;

    fn discriminant(&self) -> Kind {
        self.kind()
    }

    fn matches(&self, other: &Self) -> bool {
        self.op == other.op && self.args.len() == other.args.len()
    }

    fn children(&self) -> &[Id] {
        &self.args
    }

    fn children_mut(&mut self) -> &mut [Id] {
        &mut self.args
    }

    /// egg renumbers classes through this; the order has to follow.
    fn update_children<F: FnMut(Id) -> Id>(&mut self, mut f: F) {
        for arg in &mut self.args {
            *arg = f(*arg);
        }
        self.sort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::op::Binary;

    #[test]
    fn operands_of_a_product_stand_in_one_order_even_after_renumbering() {
        let op = Arc::new(Op::Binary(Binary::Mul));
        let node = |a: usize, b: usize| ENode::new(op.clone(), vec![Id::from(a), Id::from(b)]);
        assert_eq!(node(2, 1), node(1, 2));
        let renumbered = node(1, 2).map_children(|id| Id::from(9 - usize::from(id)));
        assert_eq!(renumbered, node(7, 8));
    }

    #[test]
    fn operands_of_a_quotient_stay_where_they_are() {
        let op = Arc::new(Op::Binary(Binary::Div));
        let node = ENode::new(op, vec![Id::from(2), Id::from(1)]);
        assert_eq!(node.args, [Id::from(2), Id::from(1)]);
    }
}
