//! What computes each product of a kernel: a micro-kernel, or generated code and why.
//!
//! In: a kernel, and which of its parameters are weights or caches. Out: a [`Form`] for each way in which one of these
//! is multiplied with activations.
//! A product is what its nest says; why another nest is none is asked again.

use crate::codegen::cpu::Cpu;
use crate::codegen::cpu::product::Plan;
use crate::graph::op::Fold;
use crate::kernel::product::Kind;
use crate::kernel::product::reason::Reason;
use crate::kernel::walk::nests;
use crate::kernel::{Expr, Kernel, Nest, ParamId, Part, Place};
use crate::options::Numbers;
use crate::recognise::product::product;
use crate::tensor::quant::Format;

/// What computes a product.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Form {
    /// A hand-written micro-kernel.
    Micro {
        /// `gemm` for many columns, `gemv` for one, `dot` where each sum is a call, `mix` for weighted sums of rows, as
        /// of values in attention.
        op: &'static str,
        /// The format of the weight or cache.
        format: Format,
        /// How activations are quantised and laid out; none for single precision.
        layout: Option<&'static str>,
    },
    /// Generated scalar or vector code.
    Generated(Reason),
}

impl Cpu {
    /// What computes the products of a kernel, each form once, in the order of the text; `is_stored` says whether a
    /// parameter is a weight or a cache.
    pub fn forms(&self, kernel: &Kernel, is_stored: &dyn Fn(ParamId) -> bool) -> Vec<Form> {
        let mut forms = Vec::new();
        for part in &kernel.parts {
            for nest in nests(&part.body).filter(|nest| is_product(nest, is_stored)) {
                let form = self.form(kernel, part, nest);
                if !forms.contains(&form) {
                    forms.push(form);
                }
            }
        }
        forms
    }

    fn form(&self, kernel: &Kernel, part: &Part, nest: &Nest) -> Form {
        let reason = || match product(kernel, part, nest) {
            _ if self.numbers == Numbers::Exact => Reason::Exact,
            Ok(_) => Reason::Unselected,
            Err(reason) => reason,
        };
        Plan::of(self, kernel, part, nest).map_or_else(|| Form::Generated(reason()), |plan| form(&plan))
    }
}

/// Whether a nest adds up what it computes of something stored, along the sum, and of something else.
fn is_product(nest: &Nest, is_stored: &dyn Fn(ParamId) -> bool) -> bool {
    let is_sum = nest.fold.as_ref().is_some_and(|folding| folding.fold == Fold::Sum);
    let mut stored = nest.reads().filter(|(_, param, at)| {
        is_stored(*param) && at.iter().any(|index| index.uses_var(|var| nest.folds().contains(&var)))
    });
    let Some((_, stored, _)) = stored.next().filter(|_| is_sum) else { return false };
    let is_other = |expr: &Expr| matches!(expr, Expr::Load { from, .. } if *from != Place::Param(stored));
    nest.exprs.values().any(is_other)
}

fn form(plan: &Plan) -> Form {
    let op = match (plan.kind, plan.row, plan.cols.first()) {
        (Kind::WeightedSum, ..) => "mix",
        // Activations grouped by expert are multiplied together.
        _ if plan.routing.is_some() => "gemm",
        (Kind::Product, _, Some(_)) => "gemm",
        (Kind::Product, Some(_), None) => "gemv",
        (Kind::Product, None, None) => "dot",
    };
    let layout = plan.quantised.as_ref().map(|quantised| quantised.layout.name());
    Form::Micro { op, format: plan.w.format, layout }
}
