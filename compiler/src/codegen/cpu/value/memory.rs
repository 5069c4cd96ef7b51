//! Elements of buffers and tiles as code.
//!
//! In: a place and an index for each axis. Out: the element decoded, or stored in the type of its place.
//! No access is checked here: `verify` has proven every index inside its axis, and `jit.rs` that buffers are as long as
//! their shapes. Only parameters that a kernel does not write may be read early, or once for several uses; tiles are
//! read in program order.
//! Quantised blocks are taken apart in `decode.rs`.

use cranelift_codegen::ir::types::{F32, I16, I32};
use cranelift_codegen::ir::{InstBuilder, MemFlagsData, Type, Value};

use crate::codegen::cpu::emit::{CONSTANT, Emitter, PROVEN};
use crate::codegen::cpu::value::math::Function;
use crate::kernel::index::{Index, strides};
use crate::kernel::{Access, Place};
use crate::tensor::dtype::DType;
use crate::tensor::quant::Format;

/// Where the elements of a place lie.
pub(crate) struct Layout {
    pub(crate) format: Format,
    pub(crate) dims: Vec<i64>,
    pub(crate) base: Value,
    pub(crate) flags: MemFlagsData,
}

impl Emitter<'_, '_> {
    /// The element of a place, decoded.
    pub(crate) fn load(&mut self, from: Place, at: &[Index]) -> Value {
        let Layout { format, dims, base, flags } = self.layout(from);
        let element = self.element(at, &dims);
        let Some(dtype) = format.plain() else {
            return self.decode(format, base, element, dims.iter().product());
        };
        let address = self.address(base, element, dtype);
        self.plain(dtype, flags, address, 0)
    }

    /// The number at an address.
    pub(crate) fn plain(&mut self, dtype: DType, flags: MemFlagsData, address: Value, offset: i32) -> Value {
        match dtype {
            DType::F32 => self.builder.ins().load(F32, flags, address, offset),
            DType::I32 => self.builder.ins().load(I32, flags, address, offset),
            DType::F16 | DType::BF16 => {
                let bits = self.unsigned(I16, flags, address, offset);
                self.widened(dtype, bits)
            }
        }
    }

    /// Stores a number as an element of a place.
    pub(crate) fn store(&mut self, target: Place, at: &[Index], value: Value) {
        let Layout { format, dims, base, flags } = self.layout(target);
        let element = self.element(at, &dims);
        let dtype = format.dtype();
        let address = self.address(base, element, dtype);
        self.store_plain((dtype, flags), value, address);
    }

    /// Stores a number at an address.
    pub(crate) fn store_plain(
        &mut self,
        (dtype, flags): (DType, MemFlagsData),
        value: Value,
        address: Value,
    ) {
        let stored = match dtype {
            DType::F32 | DType::I32 => value,
            DType::F16 | DType::BF16 => {
                let bits = self.narrowed(dtype, value);
                self.builder.ins().ireduce(I16, bits)
            }
        };
        self.builder.ins().store(flags, stored, address, 0);
    }

    /// A whole number without sign, as 32 bits.
    pub(crate) fn unsigned(&mut self, ty: Type, flags: MemFlagsData, address: Value, offset: i32) -> Value {
        let bits = self.builder.ins().load(ty, flags, address, offset);
        self.builder.ins().uextend(I32, bits)
    }

    /// The 16 bits of the nearest number of a half precision.
    pub(crate) fn narrowed(&mut self, dtype: DType, value: Value) -> Value {
        let function = if dtype == DType::BF16 { Function::ToBF16 } else { Function::ToF16 };
        self.call(function, value)
    }

    /// The number that 16 bits of a half precision stand for.
    pub(crate) fn widened(&mut self, dtype: DType, bits: Value) -> Value {
        if dtype == DType::BF16 {
            let bits = self.builder.ins().ishl_imm_u(bits, 16);
            return self.builder.ins().bitcast(F32, MemFlagsData::new(), bits);
        }
        self.widened_f16(bits)
    }

    pub(crate) fn layout(&self, place: Place) -> Layout {
        let dims = self.kernel.dims(self.part, place);
        match place {
            Place::Param(id) => {
                let param = &self.kernel.params[id];
                let flags = if param.access == Access::Read { CONSTANT } else { PROVEN };
                Layout { format: param.format, dims, base: self.params[id], flags }
            }
            Place::Tile(id) => {
                let format = Format::of(self.part.tiles[id].dtype);
                Layout { format, dims, base: self.tiles[id], flags: PROVEN }
            }
        }
    }

    /// The element in storage order. Each axis is a term, so that those of outer loops are computed there.
    fn element(&mut self, at: &[Index], dims: &[i64]) -> Value {
        let mut element = self.whole(0);
        for (index, stride) in at.iter().zip(strides(dims)) {
            let index = self.index(index);
            let term = self.builder.ins().imul_imm_s(index, stride);
            element = self.builder.ins().iadd(element, term);
        }
        element
    }

    pub(crate) fn address(&mut self, base: Value, element: Value, dtype: DType) -> Value {
        let offset = self.builder.ins().imul_imm_s(element, dtype.bytes() as i64);
        self.builder.ins().iadd(base, offset)
    }
}
