//! Values that are stored as they will be multiplied.
//!
//! In: a plan. Out: the same, but temporaries hold bfloat16 numbers where all their readers only copy them into factors
//! of such numbers. What is rounded each time it is read is rounded once, where it is stored, so no result changes, and
//! half as many bytes are written and read.

use std::borrow::Cow;
use std::collections::BTreeSet;

use crate::codegen::gpu::along::each_nest;
use crate::codegen::gpu::arranged;
use crate::codegen::gpu::dialect::Dialect;
use crate::codegen::gpu::factor::factors;
use crate::codegen::gpu::wide::wide_fill;
use crate::error::Error;
use crate::kernel::walk::nests;
use crate::kernel::{Access, Expr, Kernel, ParamId, Place};
use crate::schedule::{self, BufferId, KernelId, Plan};
use crate::tensor::dtype::DType;
use crate::tensor::quant::Format;

/// A plan with temporaries as they will be multiplied; the same where none is.
///
/// # Errors
/// As where it was made.
pub fn shortened(plan: &Plan, dialect: impl Into<Dialect>) -> Result<Cow<'_, Plan>, Error> {
    let dialect: Dialect = dialect.into();
    let (params, buffers) = if dialect.has_matrices { short(plan, dialect) } else { Default::default() };
    if buffers.is_empty() {
        return Ok(Cow::Borrowed(plan));
    }
    let mut sequence = plan.sequence();
    for (kernel, param) in params {
        shorten(&mut sequence.kernels[kernel], param);
    }
    for buffer in buffers {
        sequence.values[buffer].format = Format::BF16;
    }
    schedule::plan(sequence).map(Cow::Owned)
}

/// The parameters and the buffers that may be short, because each is bound to such in every step.
fn short(plan: &Plan, dialect: Dialect) -> (BTreeSet<(KernelId, ParamId)>, BTreeSet<BufferId>) {
    let able = |(id, kernel)| able_params(dialect, kernel).into_iter().map(move |param| (id, param));
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

/// The parameters that a kernel could as well read, or write, as bfloat16 numbers.
fn able_params(dialect: Dialect, kernel: &Kernel) -> Vec<ParamId> {
    let (own, _) = arranged(dialect, kernel);
    let (copied, read) = copied_and_read(&own);
    let able = kernel.params.iter().filter(|(id, param)| {
        param.format == Format::F32
            && match param.access {
                Access::Read => copied.contains(id) && !read.contains(id),
                Access::Write => is_stored(kernel, *id),
            }
    });
    able.map(|(id, _)| id).collect()
}

/// The parameters that nests of a kernel copy into pairs, and those that nests read otherwise.
fn copied_and_read(kernel: &Kernel) -> (BTreeSet<ParamId>, BTreeSet<ParamId>) {
    let (mut copied, mut read) = (BTreeSet::new(), BTreeSet::new());
    for part in &kernel.parts {
        let factors = factors(kernel, part);
        for nest in nests(&part.body) {
            let is_pairs = |tile| factors.get(&tile).is_some_and(|factor| factor.per_word == 2);
            let fills_pairs = matches!(nest.target, Place::Tile(tile) if is_pairs(tile));
            let copies = fills_pairs && wide_fill(kernel, part, nest).is_some();
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

/// Whether a kernel stores a parameter as it is computed, and not as sums.
fn is_stored(kernel: &Kernel, param: ParamId) -> bool {
    let mut all = kernel.parts.iter().flat_map(|part| nests(&part.body));
    all.all(|nest| nest.target != Place::Param(param) || nest.fold.is_none())
}

/// Makes a parameter short.
fn shorten(kernel: &mut Kernel, param: ParamId) {
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

    /// Two products one behind the other.
    const GRAPH: &str = "\
%0 = input x : f32[t:64, d:64]
%1 = weight a : f16[f:2048, d:64]
%2 = contract %0 %1 over [d]
%3 = exp %2
%4 = weight b : q8_0[e:64, f:2048]
%5 = contract %3 %4 over [f]
output y = %5
";

    /// A plan and the same with what is short, and the formats of its temporaries.
    fn plans(text: &str) -> (Plan, Plan, Vec<Format>) {
        let options = Options::for_target(CUDA_SM90);
        let plan = compile(&parse(text).unwrap(), &options).unwrap().plan;
        let short = shortened(&plan, Language::Cuda).unwrap().into_owned();
        assert!(verify(&short).is_empty());
        let temporaries =
            short.buffers.values().filter(|slot| matches!(slot.place, schedule::Place::Arena { .. }));
        let formats = temporaries.map(|slot| slot.format).collect();
        (plan, short, formats)
    }

    #[test]
    fn what_only_pairs_are_made_of_is_stored_as_such() {
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
    fn what_others_read_as_well_stays_as_exact_as_it_is() {
        let read = GRAPH.replace("output y", "%6 = reduce-max %3 over f\noutput z = %6\noutput y");
        let exact = GRAPH.replace("b : q8_0", "b : f16");
        let single = Dialect { has_matrices: false, ..Language::Cuda.into() };
        for text in [read, exact] {
            let (plan, short, formats) = plans(&text);
            assert!(!formats.is_empty() && formats.iter().all(|format| *format == Format::F32), "{text}");
            assert_eq!(short, plan);
        }
        let (plan, ..) = plans(GRAPH);
        assert_eq!(*shortened(&plan, single).unwrap(), plan);
    }
}
