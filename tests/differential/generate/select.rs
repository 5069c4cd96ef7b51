//! Operations that choose positions: rows by number, and the numbers of the largest.

use fusebox_compiler::graph::NodeId;
use fusebox_compiler::graph::op::Op;
use fusebox_compiler::tensor::dtype::DType;
use fusebox_compiler::tensor::shape::Shape;
use fusebox_compiler::tensor::sym::Sym;

use super::Generator;
use super::known::{Known, known};

impl Generator {
    pub(super) fn gather(&mut self) -> Option<NodeId> {
        let table = self.any(|g, id| g.shape(id).rank() > 0)?;
        let (axis, _) = self.axis_of(table)?;
        let shape = self.shape(table);
        let index = self.any(|g, id| {
            let own = g.shape(id);
            g.dtype(id) == DType::I32 && !own.has(axis) && own.union(&shape.without(axis)).is_ok()
        });
        let index = if let Some(index) = index {
            index
        } else {
            let shape = Shape::new([(self.free(table)?, Sym::from(3i64))])?;
            self.input(DType::I32, shape)?
        };
        let Known { least, most, exact } = self.of(table);
        self.push(Op::Gather { axis }, &[table, index], known(least.min(0.0), most.max(0.0), exact))
    }

    pub(super) fn top_k(&mut self) -> Option<NodeId> {
        let x = self.any(|g, id| g.of(id).exact && g.dtype(id) == DType::F32 && g.shape(id).rank() > 0)?;
        let (axis, size) = self.axis_of(x)?;
        let into = if self.chance(3) { axis } else { self.free(x)? };
        let most = size.least().min(6);
        if most < 1 {
            return None;
        }
        let k = 1 + self.random.below(most as usize);
        self.push(Op::TopK { axis, into, k }, &[x], known(0.0, size.most() as f64, true))
    }
}
