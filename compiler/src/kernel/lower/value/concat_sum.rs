//! Splits the K axis of a contraction whose operand is a concatenation along it: one sum for each piece.
//!
//! In: the operands of a contraction, and its summed loops. Out: the sums that together are the contraction.
//! Selecting the piece element by element would be right as well, but no microkernel does that. The keys of latent
//! attention (MLA) are such a concatenation: an expanded part, and the shared rotary part in the cache.

use crate::graph::op::Op;
use crate::graph::{Node, NodeId};
use crate::kernel::VarId;
use crate::kernel::lower::nest_builder::At;
use crate::kernel::lower::part_builder::PartBuilder;
use crate::tensor::sym::Sym;

/// The loops of one sum, and the position that they give.
pub(crate) struct Sum {
    pub(crate) at: At,
    pub(crate) inner: Vec<VarId>,
}

impl PartBuilder<'_> {
    /// One sum for each piece; a single one where no operand is a concatenation along K.
    pub(crate) fn sums_of_concat(&mut self, args: &[NodeId], at: &At, inner: Vec<VarId>) -> Vec<Sum> {
        let found = args.iter().find_map(|arg| self.pieces(*arg, at, &inner));
        let Some((whole, sizes)) = found.filter(|_| self.from.target.tuning.splits_joined_weights) else {
            return vec![Sum { at: at.clone(), inner }];
        };
        let mut start = 0;
        let mut sum = |size: i64| {
            let sub_loop = self.sub_loop(whole, start, size);
            start += size;
            let at = at.replaced(&|var| sub_loop.position(var), &self.part.vars);
            Sum { at, inner: sub_loop.among(&inner) }
        };
        sizes.into_iter().map(&mut sum).collect()
    }

    /// The loop along the concatenated axis of an operand, and the length of each piece.
    fn pieces(&self, arg: NodeId, at: &At, inner: &[VarId]) -> Option<(VarId, Vec<i64>)> {
        let (factor, at) = self.look_through(arg, at);
        let Node { op: Op::Concat { axis }, args, .. } = self.node(factor) else { return None };
        if self.from.is_loadable(factor) || !self.is_view(factor) {
            return None;
        }
        let whole = at.get(*axis).single_var().filter(|var| inner.contains(var))?;
        let size = |arg: &NodeId| self.node(*arg).ty.shape.size(*axis).and_then(Sym::as_const);
        Some((whole, args.iter().map(size).collect::<Option<Vec<i64>>>()?))
    }
}
