//! Operations that sum: reductions, products, attention.

use fusebox_compiler::graph::NodeId;
use fusebox_compiler::graph::op::{Fold, Op};
use fusebox_compiler::tensor::dtype::DType;
use fusebox_compiler::tensor::shape::{Axis, Shape};
use fusebox_compiler::tensor::sym::Sym;

use super::Generator;
use super::known::{Known, known};

impl Generator {
    pub(super) fn reduce(&mut self) -> Option<NodeId> {
        let x = if self.chance(5) { self.any(|g, id| g.dtype(id) == DType::I32)? } else { self.float()? };
        let (axis, size) = self.axis_of(x)?;
        let Known { least, most, exact } = self.of(x);
        if self.chance(2) {
            let is_never_empty = size.least() > 0;
            let op = Op::Reduce { fold: Fold::Max, axis };
            return is_never_empty.then(|| self.push(op, &[x], known(least, most, exact)))?;
        }
        let n = size.most() as f64;
        let exact = exact && self.dtype(x) == DType::I32;
        let made = known((least * n).min(0.0), (most * n).max(0.0), exact);
        self.push(Op::Reduce { fold: Fold::Sum, axis }, &[x], made)
    }

    /// A floating-point value that has the axis, and otherwise fits.
    pub(super) fn partner(&mut self, of: NodeId, axis: Axis, size: &Sym) -> Option<NodeId> {
        let shape = self.shape(of);
        let found = self.any(|g, id| {
            id != of
                && g.dtype(id).is_float()
                && g.shape(id).size(axis) == Some(size)
                && shape.union(&g.shape(id)).is_ok()
        });
        if found.is_some() && !self.chance(4) {
            return found;
        }
        let mut axes: Vec<(Axis, Sym)> =
            self.some_shape(false).iter().filter(|(a, _)| !shape.has(*a)).cloned().collect();
        axes.extend(shape.iter().filter(|(a, _)| *a != axis && a.as_str() < "c").cloned());
        axes.insert(self.random.below(axes.len() + 1), (axis, size.clone()));
        self.input(DType::F32, Shape::new(axes)?)
    }

    pub(super) fn contract(&mut self) -> Option<NodeId> {
        let a = self.any(|g, id| g.dtype(id).is_float() && g.shape(id).rank() > 0)?;
        let (axis, size) = self.axis_of(a)?;
        let b = self.partner(a, axis, &size)?;
        let (own, other) = (self.shape(a), self.shape(b));
        let mut over: Vec<Axis> = own.axes().filter(|x| other.has(*x)).collect();
        let keep_all = self.chance(2);
        over.retain(|x| *x == axis || keep_all);
        over.sort();
        let n: f64 = over.iter().map(|x| own.size(*x).map_or(1, Sym::most) as f64).product();
        let (x, y) = (self.of(a), self.of(b));
        let most = x.most.max(-x.least) * y.most.max(-y.least) * n;
        let args = if self.chance(2) { [a, b] } else { [b, a] };
        self.push(Op::Contract { over }, &args, known(-most, most, false))
    }

    pub(super) fn attend(&mut self) -> Option<NodeId> {
        let scores = self.any(|g, id| g.dtype(id) == DType::F32 && g.shape(id).rank() > 0)?;
        let (over, size) = self.axis_of(scores)?;
        let values = self.partner(scores, over, &size)?;
        if !self.shape(values).has(over) || self.of(scores).most - self.of(scores).least > 16.0 {
            return None;
        }
        let Known { least, most, .. } = self.of(values);
        self.push(
            Op::Attend { over: vec![over] },
            &[scores, values],
            known(least.min(0.0), most.max(0.0), false),
        )
    }
}
