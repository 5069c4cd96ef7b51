//! Operations that move elements and change none.

use fusebox_compiler::graph::NodeId;
use fusebox_compiler::graph::op::Op;
use fusebox_compiler::tensor::shape::{Axis, Shape};
use fusebox_compiler::tensor::sym::Sym;

use super::Generator;
use super::known::{Known, known};

impl Generator {
    pub(super) fn split(&mut self) -> Option<NodeId> {
        let x = self.any(|g, id| g.shape(id).rank() > 0)?;
        let (axis, size) = self.axis_of(x)?;
        let (outer, inner) = (self.free(x)?, self.free(x)?);
        let inner = if inner == outer { axis } else { inner };
        let parts = match size.as_const() {
            Some(n) => {
                let divisors: Vec<i64> = (1..=n).filter(|k| n % k == 0).collect();
                let k = self.pick(&divisors)?;
                [(outer, Sym::from(n / k)), (inner, Sym::from(k))]
            }
            None => [(outer, size), (inner, Sym::from(1i64))],
        };
        let known = self.of(x);
        self.push(Op::Split { axis, into: Shape::new(parts)? }, &[x], known)
    }

    pub(super) fn merge(&mut self) -> Option<NodeId> {
        let x = self.any(|g, id| g.shape(id).rank() > 1)?;
        let (first, second) = (self.axis_of(x)?.0, self.axis_of(x)?.0);
        let into = if self.chance(2) { first } else { self.free(x)? };
        let known = self.of(x);
        let axes = if self.chance(8) { vec![first] } else { vec![first, second] };
        self.push(Op::Merge { axes, into }, &[x], known)
    }

    pub(super) fn rename(&mut self) -> Option<NodeId> {
        let x = self.any(|g, id| g.shape(id).rank() > 0)?;
        let (from, size) = self.axis_of(x)?;
        let alike: Vec<Axis> =
            self.dims.iter().filter(|(_, own)| *own == size).map(|(axis, _)| *axis).collect();
        let to = if self.chance(2) { self.pick(&alike)? } else { self.free(x)? };
        let known = self.of(x);
        self.push(Op::Rename { from, to }, &[x], known)
    }

    pub(super) fn expand(&mut self) -> Option<NodeId> {
        let x = self.any(|_, _| true)?;
        let (axis, len) = self.pick(&self.dims.clone())?;
        let known = self.of(x);
        self.push(Op::Expand { axis, len }, &[x], known)
    }

    pub(super) fn slice(&mut self) -> Option<NodeId> {
        let x = self.any(|g, id| g.shape(id).rank() > 0)?;
        let (axis, size) = self.axis_of(x)?;
        let (start, len) = self.run_of(&size);
        let known = self.of(x);
        self.push(Op::Slice { axis, start, len }, &[x], known)
    }

    /// A run of positions of an axis.
    pub(super) fn run_of(&mut self, size: &Sym) -> (Sym, Sym) {
        let (t, p, none) = (self.t.clone(), self.p.clone(), Sym::from(0i64));
        let mut runs = vec![
            (p.clone(), t.clone()),
            (none.clone(), p.clone() + t.clone()),
            (none.clone(), p.clone()),
            (none.clone(), t.clone()),
            (size.clone() - 1, Sym::from(1i64)),
            (p.clone() + t.clone() - 1, Sym::from(1i64)),
        ];
        if let Some(n) = size.as_const().filter(|n| *n > 0) {
            for _ in 0..12 {
                let start = self.random.below(n as usize) as i64;
                let len = 1 + self.random.below((n - start) as usize) as i64;
                runs.push((Sym::from(start), Sym::from(len)));
            }
            runs.push((Sym::from(n / 2), none));
        }
        let fits = |(start, len): &(Sym, Sym)| {
            start.least() >= 0 && (size.clone() - start.clone() - len.clone()).least() >= 0
        };
        runs.retain(fits);
        self.pick(&runs).unwrap_or((Sym::from(0i64), size.clone()))
    }

    pub(super) fn concat(&mut self) -> Option<NodeId> {
        let first = self.any(|g, id| g.shape(id).rank() > 0)?;
        let (axis, _) = self.axis_of(first)?;
        let mut parts = vec![first];
        let (dtype, rest) = (self.dtype(first), self.shape(first).without(axis));
        for _ in 0..=self.random.below(2) {
            let part = self.any(|g, id| {
                let shape = g.shape(id);
                g.dtype(id) == dtype && shape.has(axis) && shape.without(axis).same_axes(&rest)
            })?;
            let size = self.shape(part).size(axis)?.clone();
            let part = if self.chance(2) {
                let (start, len) = self.run_of(&size);
                let known = self.of(part);
                self.push(Op::Slice { axis, start, len }, &[part], known)?
            } else {
                part
            };
            parts.push(part);
        }
        if self.chance(2) {
            parts.swap(0, 1);
        }
        let all: Vec<Known> = parts.iter().map(|part| self.of(*part)).collect();
        let least = all.iter().map(|k| k.least).fold(f64::INFINITY, f64::min);
        let most = all.iter().map(|k| k.most).fold(f64::NEG_INFINITY, f64::max);
        self.push(Op::Concat { axis }, &parts, known(least, most, all.iter().all(|k| k.exact)))
    }
}
