//! Sums over an axis along which a factor is put together of parts that lie apart: each part is summed by itself.
//!
//! In: the factors of a contraction, and the loops it sums over. Out: the sums that together are the contraction.
//! A nest that chooses the part element by element is right as well, but processors have no product for it. Keys of
//! latent attention are such: some of their elements are expanded, the others lie in the cache.

use crate::graph::op::Op;
use crate::graph::{Node, NodeId};
use crate::kernel::VarId;
use crate::kernel::lower::nest::At;
use crate::kernel::lower::part::PartBuilder;
use crate::tensor::sym::Sym;

/// What a nest sums over, and the position that its loops give.
pub(super) struct Sum {
    pub(super) at: At,
    pub(super) inner: Vec<VarId>,
}

impl PartBuilder<'_> {
    /// A sum for each part; one where no factor is put together so.
    pub(super) fn sums_of_pieces(&mut self, args: &[NodeId], at: &At, inner: Vec<VarId>) -> Vec<Sum> {
        let found = args.iter().find_map(|arg| self.pieces(*arg, at, &inner));
        let Some((whole, sizes)) = found.filter(|_| self.from.target.keeps_apart) else {
            return vec![Sum { at: at.clone(), inner }];
        };
        let mut start = 0;
        let mut sum = |size: i64| {
            let stretch = self.stretch(whole, start, size);
            start += size;
            let at = at.replaced(&|var| stretch.position(var), &self.part.vars);
            Sum { at, inner: stretch.among(&inner) }
        };
        sizes.into_iter().map(&mut sum).collect()
    }

    /// The loop along which a factor is read from several places, and how many elements each of them has.
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
