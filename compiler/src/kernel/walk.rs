//! What statements, nests and scalars hold.
//!
//! In: a piece of a kernel. Out: the nests, the indices or the operands in it, in the order of the text.
//! Who only looks at all of them need not know how they lie.

use std::slice::from_ref;

use crate::kernel::index::Index;
use crate::kernel::{Expr, ExprId, Nest, Stmt};

/// The nests of a body, those of its loops as well.
pub(crate) fn nests(body: &[Stmt]) -> impl Iterator<Item = &Nest> {
    let mut pending: Vec<&Stmt> = body.iter().rev().collect();
    std::iter::from_fn(move || {
        loop {
            match pending.pop()? {
                Stmt::Nest(nest) => return Some(nest),
                Stmt::Loop { body, .. } => pending.extend(body.iter().rev()),
            }
        }
    })
}

impl Nest {
    /// Every index: where it stores, and those of its scalars.
    pub(crate) fn indices(&self) -> impl Iterator<Item = &Index> {
        self.at.iter().chain(self.exprs.values().flat_map(Expr::indices))
    }
}

impl Expr {
    /// The indices of its own.
    pub(crate) fn indices(&self) -> &[Index] {
        match self {
            Self::Position(index) => from_ref(index),
            Self::Load { at, .. } => at,
            Self::Const(_) | Self::Unary(..) | Self::Binary(..) | Self::Select(..) | Self::Cast(..) => &[],
        }
    }

    /// The expressions it is computed from, in order.
    pub(crate) fn operands(&self) -> Vec<ExprId> {
        match self {
            Self::Const(_) | Self::Position(_) | Self::Load { .. } => Vec::new(),
            Self::Unary(_, a) | Self::Cast(_, a) => vec![*a],
            Self::Binary(_, a, b) => vec![*a, *b],
            Self::Select(a, b, c) => vec![*a, *b, *c],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::parse::parse;
    use crate::kernel::samples::ATTENTION;

    #[test]
    fn nests_of_loops_come_where_the_loops_stand() {
        let kernel = parse(ATTENTION).unwrap();
        let n_indices: Vec<usize> = nests(&kernel.parts[0].body).map(|nest| nest.indices().count()).collect();
        assert_eq!(n_indices, [0, 0, 1, 0, 1, 1, 5, 2]);
    }
}
