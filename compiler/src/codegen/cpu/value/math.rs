//! The functions that generated code calls.
//!
//! In: a single-precision number. Out: the function of it, or the bits of a narrower number.
//! Each does exactly what the interpreter does: double precision, rounded once; a narrow number by way of the rounding
//! of `tensor::dtype`.
//! `jit.rs` gives the linker their addresses; they hold no state and may be called from any thread.

use cranelift_codegen::ir::types::{F32, I32};
use cranelift_codegen::ir::{AbiParam, InstBuilder, Signature, Value};
use cranelift_codegen::isa::CallConv;
use half::{bf16, f16};

use crate::codegen::cpu::emit::Emitter;

/// A function outside of generated code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Function {
    /// `e^x`
    Exp,
    /// The natural logarithm.
    Ln,
    /// The sine.
    Sin,
    /// The cosine.
    Cos,
    /// The bits of the nearest half-precision number.
    ToF16,
    /// The bits of the nearest number of type `BF16`.
    ToBF16,
}

impl Function {
    /// Every function.
    pub(crate) const ALL: [Self; 6] = [Self::Exp, Self::Ln, Self::Sin, Self::Cos, Self::ToF16, Self::ToBF16];

    /// The name that the linker knows it by.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Exp => "fusebox_exp",
            Self::Ln => "fusebox_ln",
            Self::Sin => "fusebox_sin",
            Self::Cos => "fusebox_cos",
            Self::ToF16 => "fusebox_to_f16",
            Self::ToBF16 => "fusebox_to_bf16",
        }
    }

    /// Its address.
    pub(crate) fn address(self) -> *const u8 {
        match self {
            Self::Exp => exp as *const u8,
            Self::Ln => ln as *const u8,
            Self::Sin => sin as *const u8,
            Self::Cos => cos as *const u8,
            Self::ToF16 => to_f16 as *const u8,
            Self::ToBF16 => to_bf16 as *const u8,
        }
    }

    /// Its signature.
    pub(crate) fn signature(self, convention: CallConv) -> Signature {
        let result = match self {
            Self::Exp | Self::Ln | Self::Sin | Self::Cos => F32,
            Self::ToF16 | Self::ToBF16 => I32,
        };
        let mut signature = Signature::new(convention);
        signature.params.push(AbiParam::new(F32));
        signature.returns.push(AbiParam::new(result));
        signature
    }
}

impl Emitter<'_, '_> {
    /// Calls a function.
    pub(crate) fn call(&mut self, function: Function, x: Value) -> Value {
        let callee = self.functions[function as usize];
        let call = self.builder.ins().call(callee, &[x]);
        self.builder.inst_results(call)[0]
    }
}

extern "C" fn exp(x: f32) -> f32 {
    f64::from(x).exp() as f32
}

extern "C" fn ln(x: f32) -> f32 {
    f64::from(x).ln() as f32
}

extern "C" fn sin(x: f32) -> f32 {
    f64::from(x).sin() as f32
}

extern "C" fn cos(x: f32) -> f32 {
    f64::from(x).cos() as f32
}

extern "C" fn to_f16(x: f32) -> u32 {
    u32::from(f16::from_f32(x).to_bits())
}

extern "C" fn to_bf16(x: f32) -> u32 {
    u32::from(bf16::from_f32(x).to_bits())
}
