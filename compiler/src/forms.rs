//! What computes each product of a kernel: a micro-kernel, or generated code and why.
//!
//! In: a processor, a kernel, and which of its parameters are weights or caches. Out: a [`Form`] for each way in which
//! one of these is multiplied with activations.

use crate::codegen::cpu::Cpu;
use crate::codegen::cpu::product::form::MicroKernel;
use crate::graph::op::Fold;
use crate::kernel::product::reason::Reason;
use crate::kernel::walk::nests;
use crate::kernel::{Expr, Kernel, Nest, ParamId, Part, Place};
use crate::options::Numbers;
use crate::prepare::select_products::product;

/// What computes a product.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Form {
    /// A hand-written micro-kernel.
    Micro(MicroKernel),
    /// Generated scalar or vector code.
    Generated(Reason),
}

/// What computes the products of a kernel, each form once, in the order of the text; `is_stored` says whether a
/// parameter is a weight or a cache.
pub fn forms(cpu: &Cpu, kernel: &Kernel, is_stored: &dyn Fn(ParamId) -> bool) -> Vec<Form> {
    let mut forms = Vec::new();
    for part in &kernel.parts {
        for nest in nests(&part.body).filter(|nest| is_product(nest, is_stored)) {
            let form = form(cpu, kernel, part, nest);
            if !forms.contains(&form) {
                forms.push(form);
            }
        }
    }
    forms
}

fn form(cpu: &Cpu, kernel: &Kernel, part: &Part, nest: &Nest) -> Form {
    let reason = || match product(kernel, part, nest) {
        _ if cpu.numbers == Numbers::Exact => Reason::Exact,
        Ok(_) => Reason::Unselected,
        Err(reason) => reason,
    };
    cpu.micro_kernel(kernel, part, nest).map_or_else(|| Form::Generated(reason()), Form::Micro)
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
