//! Writes, and the states that they write to.

use fusebox_compiler::graph::NodeId;
use fusebox_compiler::graph::op::Op;
use fusebox_compiler::tensor::quant::Format;
use fusebox_compiler::tensor::shape::Shape;
use fusebox_compiler::tensor::sym::Sym;

use super::known::{given, known};
use super::{Generator, label};

impl Generator {
    pub(super) fn state(&mut self, format: Format, shape: Shape) -> Option<NodeId> {
        self.push(Op::State { name: self.name("k"), shape, format }, &[], given(format.dtype()))
    }

    pub(super) fn write(&mut self) -> Option<NodeId> {
        let is_last = |g: &Self, id: NodeId| {
            let versions = g.graph.nodes.values().filter(|node| matches!(node.op, Op::Write { .. }));
            g.graph.state_of(id).is_some() && versions.into_iter().all(|node| node.args[0] != id)
        };
        let value = self.any(|g, id| g.shape(id).rank() > 0)?;
        let (from, len) = self.axis_of(value)?;
        let (dtype, own) = (self.dtype(value), self.shape(value));
        let state =
            self.any(|g, id| is_last(g, id) && g.dtype(id) == dtype && g.shape(id).rank() == own.rank());
        let state = match state {
            Some(state) if !self.chance(3) => state,
            _ => {
                let axis = self.pick(&[label("s"), label("k"), from])?;
                let size = Sym::from(len.most() + self.p.most() + self.random.below(3) as i64);
                let shape = own.replaced(from, [(axis, size)])?;
                let is_fixed = shape.iter().all(|(_, size)| size.as_const().is_some());
                if is_fixed { self.state(Format::of(dtype), shape)? } else { return None }
            }
        };
        let (axis, size) = self.axis_of(state)?;
        let starts = [self.p.clone(), Sym::from(0i64), size - len];
        let at = self.pick(&starts)?;
        let (x, y) = (self.of(state), self.of(value));
        let made = known(x.least.min(y.least), x.most.max(y.most), x.exact && y.exact);
        self.push(Op::Write { axis, from, at }, &[state, value], made)
    }
}
