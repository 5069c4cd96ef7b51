//! Operations that make each element of one element of each argument.

use fusebox_compiler::graph::NodeId;
use fusebox_compiler::graph::op::{Binary, Op, Scalar, Unary};
use fusebox_compiler::tensor::dtype::DType;

use super::Generator;
use super::known::{Known, hull, known};

impl Generator {
    pub(super) fn unary(&mut self) -> Option<NodeId> {
        let f = self.pick(Unary::ALL)?;
        let x = if f == Unary::Neg && self.chance(3) {
            self.any(|g, id| g.dtype(id) == DType::I32)?
        } else {
            self.float()?
        };
        let Known { least, most, exact } = self.of(x);
        let size = most.max(-least);
        // Every function is listed, so that a new one must be given its range here.
        let made = match f {
            Unary::Neg => Some(known(-most, -least, exact)),
            Unary::Exp => (size <= 4.0).then(|| known(least.exp(), most.exp(), false)),
            Unary::Sin | Unary::Cos => (size <= 8.0).then(|| known(-1.0, 1.0, false)),
            Unary::Ln => (least >= 1.5).then(|| known(least.ln(), most.ln(), false)),
            Unary::Sqrt => (least >= 0.1).then(|| known(least.sqrt(), most.sqrt(), false)),
            Unary::Rsqrt => (least >= 0.1).then(|| known(most.sqrt().recip(), least.sqrt().recip(), false)),
            Unary::Recip => (least >= 0.1).then(|| known(most.recip(), least.recip(), false)),
        };
        let Some(made) = made else { return self.shifted(x) };
        self.push(Op::Unary(f), &[x], made)
    }

    /// A value made positive, for the functions that need that.
    pub(super) fn shifted(&mut self, x: NodeId) -> Option<NodeId> {
        let Known { least, most, .. } = self.of(x);
        let by = (2.0 - least).ceil();
        let shift = self.push(Op::Const(Scalar::float(by as f32)), &[], known(by, by, true))?;
        self.push(Op::Binary(Binary::Add), &[x, shift], known(least + by, most + by, false))
    }

    pub(super) fn binary(&mut self) -> Option<NodeId> {
        let f = self.pick(&[
            Binary::Add,
            Binary::Add,
            Binary::Sub,
            Binary::Mul,
            Binary::Mul,
            Binary::Div,
            Binary::Max,
            Binary::Min,
        ])?;
        let (a, b) = if f != Binary::Div && self.chance(5) {
            let whole = |g: &Self, id| g.dtype(id) == DType::I32;
            (self.any(whole)?, self.any(whole)?)
        } else {
            let a = self.float()?;
            (a, self.meeting(a)?)
        };
        let (x, y) = (self.of(a), self.of(b));
        let whole = self.dtype(a) == DType::I32;
        let exact = x.exact && y.exact && (whole || matches!(f, Binary::Max | Binary::Min));
        let products = [x.least * y.least, x.least * y.most, x.most * y.least, x.most * y.most];
        let made = match f {
            Binary::Add => known(x.least + y.least, x.most + y.most, exact),
            Binary::Sub => known(x.least - y.most, x.most - y.least, exact),
            Binary::Mul => {
                let (least, most) = hull(&products);
                known(least, most, exact)
            }
            Binary::Div => {
                if y.least.is_nan() || y.least < 0.1 {
                    return None;
                }
                let ends = [x.least / y.least, x.least / y.most, x.most / y.least, x.most / y.most];
                let (least, most) = hull(&ends);
                known(least, most, exact)
            }
            Binary::Max => known(x.least.max(y.least), x.most.max(y.most), exact),
            Binary::Min => known(x.least.min(y.least), x.most.min(y.most), exact),
            // Made by `comparison`.
            Binary::Lt | Binary::Le | Binary::Eq => return None,
        };
        self.push(Op::Binary(f), &[a, b], made)
    }

    /// Another value in single precision whose axes meet those of the first.
    pub(super) fn meeting(&mut self, a: NodeId) -> Option<NodeId> {
        let shape = self.shape(a);
        let b = self.any(|g, id| g.dtype(id).is_float() && shape.union(&g.shape(id)).is_ok())?;
        self.single(b)
    }

    pub(super) fn comparison(&mut self) -> Option<NodeId> {
        let f = self.pick(&[Binary::Lt, Binary::Le, Binary::Eq])?;
        let a = self.exact()?;
        let (dtype, shape) = (self.dtype(a), self.shape(a));
        let b = self.any(|g, id| {
            g.of(id).exact && g.dtype(id) == dtype && shape.union(&g.shape(id)).is_ok() && id != a
        })?;
        self.push(Op::Binary(f), &[a, b], known(0.0, 1.0, true))
    }

    pub(super) fn select(&mut self) -> Option<NodeId> {
        let condition = match self.comparison() {
            Some(made) => made,
            None => self.any(|g, id| g.dtype(id) == DType::I32)?,
        };
        let yes = self.any(|_, _| true)?;
        let dtype = self.dtype(yes);
        let no = self.any(|g, id| g.dtype(id) == dtype)?;
        let made = self.of(yes).or(self.of(no));
        self.push(Op::Select, &[condition, yes, no], made)
    }

    pub(super) fn cast(&mut self) -> Option<NodeId> {
        let dtype = self.pick(&DType::ALL)?;
        let x = if dtype == DType::I32 { self.exact()? } else { self.any(|_, _| true)? };
        let Known { least, most, exact } = self.of(x);
        let room = most.max(-least) * 0.01;
        self.push(Op::Cast(dtype), &[x], known(least - room, most + room, exact))
    }
}
