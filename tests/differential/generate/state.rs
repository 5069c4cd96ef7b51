//! Writes, and the states that they write to.

use fusebox_compiler::graph::NodeId;
use fusebox_compiler::graph::op::{Binary, Op};
use fusebox_compiler::tensor::dtype::DType;
use fusebox_compiler::tensor::quant::Format;
use fusebox_compiler::tensor::shape::{Axis, Shape, Type};
use fusebox_compiler::tensor::sym::Sym;

use super::known::{given, known};
use super::{Generator, label};

impl Generator {
    pub(super) fn state(&mut self, format: Format, shape: Shape) -> Option<NodeId> {
        self.push(Op::State { name: self.name("k"), shape, format }, &[], given(format.dtype()))
    }

    /// A state whose rows fill blocks, with other axes before them.
    pub(super) fn state_of_blocks(&mut self, rest: &Shape) -> Option<NodeId> {
        let row = self.dims[3].clone();
        let axes = rest.without(row.0).iter().cloned().chain([row]).collect::<Vec<_>>();
        self.state(self.blocks?, Shape::new(axes)?)
    }

    /// Whether a node is what the state holds in the end, so far.
    fn is_last(&self, id: NodeId) -> bool {
        let mut versions = self.graph.nodes.values().filter(|node| matches!(node.op, Op::Write { .. }));
        self.graph.state_of(id).is_some() && versions.all(|node| node.args[0] != id)
    }

    pub(super) fn write(&mut self) -> Option<NodeId> {
        let value = self.any(|g, id| g.shape(id).rank() > 0)?;
        let (from, len) = self.axis_of(value)?;
        let (dtype, own) = (self.dtype(value), self.shape(value));
        let state =
            self.any(|g, id| g.is_last(id) && g.dtype(id) == dtype && g.shape(id).rank() == own.rank());
        let state = match state {
            Some(state) if !self.chance(3) => state,
            _ => {
                let axis = self.pick(&[label("s"), label("k"), from])?;
                let shape = self.longer(&own, from, &len, axis)?;
                self.state(Format::of(dtype), shape)?
            }
        };
        let (axis, size) = self.axis_of(state)?;
        self.written(state, value, (axis, size), (from, len))
    }

    /// Writes rows that fill blocks.
    pub(super) fn write_rows(&mut self) -> Option<NodeId> {
        let (row, n) = self.dims[3].clone();
        let found = self.any(|g, id| {
            let shape = g.shape(id);
            g.dtype(id) == DType::F32 && shape.size(row) == Some(&n) && shape.rank() > 1
        });
        let value = if let Some(found) = found {
            found
        } else {
            let (tokens, rest) = (self.dims[0].clone(), self.some_shape(true));
            let others = rest.iter().filter(|(axis, _)| ![row, tokens.0].contains(axis)).cloned();
            let axes: Vec<(Axis, Sym)> =
                [tokens.clone()].into_iter().chain(others).chain([(row, n)]).collect();
            self.input(DType::F32, Shape::new(axes)?)?
        };
        let rest = self.shape(value).without(row);
        let varies = rest.iter().find(|(_, size)| size.as_const().is_none()).cloned();
        let (from, len) = varies.or_else(|| self.pick(&rest.iter().cloned().collect::<Vec<_>>()))?;
        let state = self.any(|g, id| {
            let is_stored = g.is_last(id) && g.graph.stored_format(id) == g.blocks;
            is_stored && g.shape(id).rank() == rest.rank() + 1
        });
        let state = match state {
            Some(state) if !self.chance(3) => state,
            _ => {
                let axis = self.pick(&[label("s"), label("k"), from])?;
                let shape = self.longer(&rest, from, &len, axis)?;
                self.state_of_blocks(&shape)?
            }
        };
        let axes: Vec<(Axis, Sym)> = self.shape(state).iter().cloned().collect();
        let (axis, size) = self.pick(&axes[..axes.len() - 1])?;
        self.written(state, value, (axis, size), (from, len))
    }

    /// Writes to pages and rows that inputs name, each element to a place of its own.
    pub(super) fn write_to_places(&mut self) -> Option<NodeId> {
        let (page, slot, row) = (label("page"), label("slot"), self.dims[3].0);
        let value = self.any(|g, id| {
            let shape = g.shape(id);
            let fills =
                g.dtype(id) == DType::F32 && shape.iter().last().is_some_and(|(axis, _)| *axis == row);
            shape.rank() > usize::from(g.blocks.is_some()) && (g.blocks.is_none() || fills)
        })?;
        let (dtype, own) = (self.dtype(value), self.shape(value));
        let others: Vec<(Axis, Sym)> =
            own.iter().filter(|(axis, _)| self.blocks.is_none() || *axis != row).cloned().collect();
        let (from, len) = self.pick(&others)?;
        let rows = 1 + self.random.below(4) as i64;
        let n_pages = len.most() / rows + 1 + self.random.below(2) as i64;
        let shape = own.replaced(from, [(page, Sym::from(n_pages)), (slot, Sym::from(rows))])?;
        if shape.iter().any(|(_, size)| size.as_const().is_none()) {
            return None;
        }
        let format = self.blocks.unwrap_or(Format::of(dtype));
        let state = self.state(format, shape)?;
        let made = self.of(state).or(self.of(value));
        let made = self.blocks.map_or(made, |format| made.in_blocks(format));
        let mut place = || {
            let ty = Type::new(DType::I32, Shape::new([(from, len.clone())])?);
            let op = Op::Input { name: self.name("x"), ty };
            self.push(op, &[], known(0.0, n_pages.max(rows) as f64, true))
        };
        let args = [state, value, place()?, place()?];
        self.push(Op::Write { axes: vec![page, slot] }, &args, made)
    }

    /// A shape that has room for more positions of an axis.
    fn longer(&mut self, shape: &Shape, from: Axis, len: &Sym, axis: Axis) -> Option<Shape> {
        let size = Sym::from(len.most() + self.p.most() + self.random.below(3) as i64);
        let shape = shape.replaced(from, [(axis, size)])?;
        shape.iter().all(|(_, size)| size.as_const().is_some()).then_some(shape)
    }

    fn written(
        &mut self,
        state: NodeId,
        value: NodeId,
        (axis, size): (Axis, Sym),
        (from, len): (Axis, Sym),
    ) -> Option<NodeId> {
        let starts = [self.p.clone(), Sym::from(0i64), size.clone() - len.clone()];
        let whole = size;
        let at = self.pick(&starts)?;
        if at.least() < 0 || (whole - (at.clone() + len.clone())).least() < 0 {
            return None;
        }
        let made = self.of(state).or(self.of(value));
        let rounded = self.graph.stored_format(state).filter(|format| format.block_len() > 1);
        let made = rounded.map_or(made, |format| made.in_blocks(format));
        // An index runs over an axis that the state has not.
        let (value, from) = if self.shape(state).has(from) {
            let to = label("w");
            (self.push(Op::Rename { from, to }, &[value], self.of(value))?, to)
        } else {
            (value, from)
        };
        let index = self.position_from(from, &len, &at)?;
        self.push(Op::Write { axes: vec![axis] }, &[state, value, index], made)
    }

    /// The positions of a run that begins somewhere.
    fn position_from(&mut self, axis: Axis, len: &Sym, start: &Sym) -> Option<NodeId> {
        let (first, last) = (start.least() as f64, (start.clone() + len).most() as f64);
        let iota = self.push(Op::Iota { axis, len: len.clone() }, &[], known(0.0, last, true))?;
        let start = self.push(Op::Symbolic(start.clone()), &[], known(first, last, true))?;
        self.push(Op::Binary(Binary::Add), &[iota, start], known(first, last, true))
    }
}
