//! What takes no arguments: inputs, weights of any format, states, numbers.

use fusebox_compiler::graph::NodeId;
use fusebox_compiler::graph::op::{Op, Scalar};
use fusebox_compiler::tensor::dtype::DType;
use fusebox_compiler::tensor::quant::Format;
use fusebox_compiler::tensor::shape::{Axis, Shape, Type};
use fusebox_compiler::tensor::sym::Sym;

use super::known::{given, known};
use super::{Generator, label};

/// Formats of weights; single precision counts twice.
fn stored() -> Vec<Format> {
    Format::FIXED.into_iter().chain([Format::F32, Format::Int8 { group: 16 }]).collect()
}

impl Generator {
    pub(super) fn input(&mut self, dtype: DType, shape: Shape) -> Option<NodeId> {
        self.push(Op::Input { name: self.name("x"), ty: Type::new(dtype, shape) }, &[], given(dtype))
    }

    pub(super) fn weight(&mut self) -> Option<NodeId> {
        let format = self.pick(&stored())?;
        let block = format.block_len();
        let mut axes: Vec<(Axis, Sym)> = self.some_shape(true).iter().cloned().collect();
        if block > 1 {
            axes.retain(|(axis, _)| *axis != label("q"));
            let len = if block == 256 { 256 } else { self.dims[3].1.as_const()? };
            axes.push((label("q"), Sym::from(len)));
        }
        let row = axes.last().map_or(1, |(_, size)| size.most());
        let most = if format == Format::I32 { 7.0 } else { 2.2 / (row as f64).sqrt() };
        let shape = Shape::new(axes)?;
        self.push(Op::Weight { name: self.name("w"), shape, format }, &[], known(-most, most, true))
    }

    pub(super) fn leaf(&mut self) -> Option<NodeId> {
        match self.random.below(16) {
            0..6 => {
                let dtype =
                    self.pick(&[DType::F32, DType::F32, DType::F32, DType::F16, DType::BF16, DType::I32])?;
                let shape = self.some_shape(false);
                self.input(dtype, shape)
            }
            6..9 => self.weight(),
            9..11 if self.blocks.is_some() => {
                let rest = self.some_shape(true);
                self.state_of_blocks(&rest)
            }
            9..11 => {
                let dtype = self.pick(&[DType::F32, DType::F16, DType::BF16, DType::I32])?;
                let shape = self.some_shape(true);
                self.state(Format::of(dtype), shape)
            }
            11..13 => {
                if self.chance(3) {
                    let value = self.random.below(9) as i32 - 2;
                    let at = f64::from(value);
                    return self.push(Op::Const(Scalar::I32(value)), &[], known(at, at, true));
                }
                let value = self.pick(&[0.0f32, 0.5, 1.0, -1.0, 2.0, 0.125, 1.5])?;
                let at = f64::from(value);
                self.push(Op::Const(Scalar::float(value)), &[], known(at, at, true))
            }
            13 => {
                let (axis, len) = self.pick(&self.dims.clone())?;
                let len = len.as_const()?.min(16);
                let values = (0..len).map(|i| (0.25 + (i as f32 * 0.7).sin()).to_bits()).collect();
                self.push(Op::Table { axis, values }, &[], known(-0.75, 1.25, true))
            }
            14 => {
                let (axis, len) = self.pick(&self.dims.clone())?;
                let most = len.most() as f64;
                self.push(Op::Iota { axis, len }, &[], known(0.0, most, true))
            }
            _ => {
                let value =
                    self.pick(&[self.t.clone(), self.p.clone(), self.t.clone() + self.p.clone() * 2])?;
                let bounds = known(value.least() as f64, value.most() as f64, true);
                self.push(Op::Symbolic(value), &[], bounds)
            }
        }
    }
}
