//! Which micro-kernel computes a product.
//!
//! In: a nest. Out: a [`MicroKernel`], where the nest says which product it is.

use crate::codegen::cpu::Cpu;
use crate::codegen::cpu::product::Plan;
use crate::kernel::product::Kind;
use crate::kernel::{Kernel, Nest, Part};
use crate::tensor::quant::Format;

/// A hand-written micro-kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MicroKernel {
    /// `gemm` for many columns, `gemv` for one, `dot` where each sum is a call, `mix` for weighted sums of rows, as of
    /// values in attention.
    pub op: &'static str,
    /// The format of the weight or cache.
    pub format: Format,
    /// How activations are quantised and laid out; none for single precision.
    pub layout: Option<&'static str>,
}

impl Cpu {
    /// The micro-kernel that computes a nest, if one does.
    pub(crate) fn micro_kernel(&self, kernel: &Kernel, part: &Part, nest: &Nest) -> Option<MicroKernel> {
        let plan = Plan::of(self, kernel, part, nest)?;
        let op = match (plan.row, plan.cols.first()) {
            _ if plan.kind == Kind::WeightedSum => "mix",
            // Activations grouped by expert are multiplied together.
            _ if plan.routing.is_some() => "gemm",
            (_, Some(_)) => "gemm",
            (Some(_), None) => "gemv",
            (None, None) => "dot",
        };
        let layout = plan.quantised.as_ref().map(|quantised| quantised.layout.name());
        Some(MicroKernel { op, format: plan.w.format, layout })
    }
}
