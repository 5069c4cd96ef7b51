//! Stores temporaries as bf16 where only bf16 MMA operands read them.
//!
//! In: a plan. Out: the same plan, with half the bytes for temporaries whose readers all copy them into bf16 operand
//! tiles. They are rounded once where they are stored instead of each time they are loaded, so no result changes.

use std::borrow::Cow;
use std::collections::BTreeSet;

use crate::codegen::gpu::dialect::Dialect;
use crate::codegen::gpu::fold_order::each_nest;
use crate::codegen::gpu::mma_operands::mma_operands;
use crate::codegen::gpu::transformed;
use crate::codegen::gpu::vector_loads::fill_vector_loads;
use crate::error::Error;
use crate::kernel::walk::nests;
use crate::kernel::{Access, Expr, Kernel, ParamId, Place};
use crate::schedule::{self, BufferId, KernelId, Plan};
use crate::tensor::dtype::DType;
use crate::tensor::quant::Format;

/// The plan with bf16 temporaries; unchanged where none qualifies.
///
/// # Errors
/// As where the plan was made.
pub fn with_bf16_temporaries(plan: &Plan, dialect: impl Into<Dialect>) -> Result<Cow<'_, Plan>, Error> {
    let dialect: Dialect = dialect.into();
    let (params, buffers) =
        if dialect.has_tensor_cores { bf16_candidates(plan, dialect) } else { Default::default() };
    if buffers.is_empty() {
        return Ok(Cow::Borrowed(plan));
    }
    let mut sequence = plan.sequence();
    for (kernel, param) in params {
        store_as_bf16(&mut sequence.kernels[kernel], param);
    }
    for buffer in buffers {
        sequence.values[buffer].format = Format::BF16;
    }
    schedule::plan(sequence).map(Cow::Owned)
}

/// Parameters and buffers that may be bf16: in every step, such parameters are bound to such buffers only.
fn bf16_candidates(plan: &Plan, dialect: Dialect) -> (BTreeSet<(KernelId, ParamId)>, BTreeSet<BufferId>) {
    let able = |(id, kernel)| bf16_params(dialect, kernel).into_iter().map(move |param| (id, param));
    let mut params: BTreeSet<(KernelId, ParamId)> = plan.kernels.iter().flat_map(able).collect();
    let is_temporary = |id: &BufferId| matches!(plan.buffers[*id].place, schedule::Place::Arena { .. });
    let mut buffers: BTreeSet<BufferId> = plan.buffers.ids().filter(is_temporary).collect();
    let mut n_before = usize::MAX;
    while n_before != params.len() + buffers.len() {
        n_before = params.len() + buffers.len();
        for step in &plan.steps {
            for (param, _, buffer) in plan.bound(step) {
                let param = (step.kernel, param);
                if !(params.contains(&param) && buffers.contains(&buffer)) {
                    params.remove(&param);
                    buffers.remove(&buffer);
                }
            }
        }
    }
    let is_bound = |buffer: &BufferId| plan.steps.iter().any(|step| step.args.contains(buffer));
    buffers.retain(is_bound);
    (params, buffers)
}

/// The parameters that a kernel could as well read, or write, as bf16.
fn bf16_params(dialect: Dialect, kernel: &Kernel) -> Vec<ParamId> {
    let (own, _) = transformed(dialect, kernel);
    let (copied, read) = copied_and_read(&own);
    let able = kernel.params.iter().filter(|(id, param)| {
        param.format == Format::F32
            && match param.access {
                Access::Read => copied.contains(id) && !read.contains(id),
                Access::Write => is_stored_directly(kernel, *id),
            }
    });
    able.map(|(id, _)| id).collect()
}

/// The parameters that nests copy into bf16 tiles, and those that nests read otherwise.
fn copied_and_read(kernel: &Kernel) -> (BTreeSet<ParamId>, BTreeSet<ParamId>) {
    let (mut copied, mut read) = (BTreeSet::new(), BTreeSet::new());
    for part in &kernel.parts {
        let factors = mma_operands(kernel, part);
        for nest in nests(&part.body) {
            let is_bf16 = |tile| factors.get(&tile).is_some_and(|factor| factor.per_word == 2);
            let fills_bf16 = matches!(nest.target, Place::Tile(tile) if is_bf16(tile));
            let copies = fills_bf16 && fill_vector_loads(kernel, part, nest).is_some();
            for (id, param, _) in nest.reads() {
                if copies && id == nest.value {
                    copied.insert(param)
                } else {
                    read.insert(param)
                };
            }
        }
    }
    (copied, read)
}

/// Whether a kernel stores a parameter directly and not as a sum.
fn is_stored_directly(kernel: &Kernel, param: ParamId) -> bool {
    let mut all = kernel.parts.iter().flat_map(|part| nests(&part.body));
    all.all(|nest| nest.target != Place::Param(param) || nest.fold.is_none())
}

/// Changes the format of a parameter to bf16.
fn store_as_bf16(kernel: &mut Kernel, param: ParamId) {
    kernel.params[param].format = Format::BF16;
    for part in &mut kernel.parts {
        each_nest(&mut part.body, &mut |nest| {
            let place = Place::Param(param);
            let is_load = matches!(nest.exprs[nest.value], Expr::Load { from, .. } if from == place);
            if is_load {
                nest.value = nest.exprs.push(Expr::Cast(DType::F32, nest.value));
            }
            if nest.target == place {
                nest.value = nest.exprs.push(Expr::Cast(DType::BF16, nest.value));
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codegen::gpu::dialect::Language;
    use crate::graph::parse::parse;
    use crate::options::Options;
    use crate::pipeline::compile;
    use crate::reference::random;
    use crate::schedule::run::run;
    use crate::schedule::verify::verify;
    use crate::target::CUDA_SM90;
    use crate::tensor::value::Data;

    /// Two products in sequence.
    const GRAPH: &str = "\
%0 = input x : f32[t:64, d:64]
%1 = weight a : f16[f:2048, d:64]
%2 = contract %0 %1 over [d]
%3 = exp %2
%4 = weight b : q8_0[e:64, f:2048]
%5 = contract %3 %4 over [f]
output y = %5
";

    /// A plan, the same with bf16 temporaries, and the formats of those.
    fn plans(text: &str) -> (Plan, Plan, Vec<Format>) {
        let options = Options::for_target(CUDA_SM90);
        let plan = compile(&parse(text).unwrap(), &options).unwrap().plan;
        let short = with_bf16_temporaries(&plan, Language::Cuda).unwrap().into_owned();
        assert!(verify(&short).is_empty());
        let temporaries =
            short.buffers.values().filter(|slot| matches!(slot.place, schedule::Place::Arena { .. }));
        let formats = temporaries.map(|slot| slot.format).collect();
        (plan, short, formats)
    }

    #[test]
    fn temporaries_that_only_bf16_operands_read_are_bf16() {
        let (plan, short, formats) = plans(GRAPH);
        assert_eq!(formats, [Format::BF16]);
        assert!(short.arena_bytes < plan.arena_bytes);
        let bindings = random::bindings(&parse(GRAPH).unwrap(), 3, &[]);
        let numbers = |plan: &Plan| match run(plan, &bindings).unwrap().outputs["y"].data.clone() {
            Data::Float(numbers) => numbers,
            Data::Int(_) => panic!("whole numbers"),
        };
        let (own, exact) = (numbers(&short), numbers(&plan));
        let size = exact.iter().map(|x| x.abs()).fold(0.0, f32::max);
        let most = own.iter().zip(&exact).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(most > 0.0 && most < 0.01 * size, "{most} of {size}");
    }

    #[test]
    fn temporaries_that_others_read_as_well_stay_f32() {
        let read = GRAPH.replace("output y", "%6 = reduce-max %3 over f\noutput z = %6\noutput y");
        let exact = GRAPH.replace("b : q8_0", "b : f16");
        let single = Dialect { has_tensor_cores: false, ..Language::Cuda.into() };
        for text in [read, exact] {
            let (plan, short, formats) = plans(&text);
            assert!(!formats.is_empty() && formats.iter().all(|format| *format == Format::F32), "{text}");
            assert_eq!(short, plan);
        }
        let (plan, ..) = plans(GRAPH);
        assert_eq!(*with_bf16_temporaries(&plan, single).unwrap(), plan);
    }
}
