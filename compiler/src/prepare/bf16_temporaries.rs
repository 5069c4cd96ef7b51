//! Stores temporaries as bf16 where only bf16 MMA operands read them.
//!
//! In: a sequence of launches. Out: the same sequence, with half the bytes for temporaries whose readers all copy them
//! into bf16 operand tiles. They are rounded once where they are stored instead of each time they are loaded, so no
//! result changes.

use std::collections::BTreeSet;

use crate::kernel::product::MmaType;
use crate::kernel::product::tiles::{TileProduct, tile_products};
use crate::kernel::walk::{each_nest, nests};
use crate::kernel::{Access, Expr, Kernel, ParamId, Place, TileId};
use crate::options::Options;
use crate::schedule::{BufferId, Home, KernelId, Sequence};
use crate::tensor::dtype::DType;
use crate::tensor::quant::Format;

/// The sequence with bf16 temporaries.
pub(super) fn shorten_temporaries(sequence: &Sequence, _: &Options) -> Sequence {
    let (params, values) = candidates(sequence);
    let mut new = sequence.clone();
    for (kernel, param) in params {
        store_as_bf16(&mut new.kernels[kernel], param);
    }
    for value in values {
        new.values[value].format = Format::BF16;
    }
    new
}

/// Parameters and values that may be bf16: in every step, such parameters are bound to such values only.
fn candidates(sequence: &Sequence) -> (BTreeSet<(KernelId, ParamId)>, BTreeSet<BufferId>) {
    let launched: BTreeSet<KernelId> = sequence.steps.iter().map(|step| step.kernel).collect();
    let able = |id| bf16_params(&sequence.kernels[id]).into_iter().map(move |param| (id, param));
    let mut params: BTreeSet<(KernelId, ParamId)> = launched.into_iter().flat_map(able).collect();
    let is_temporary = |id: &BufferId| sequence.values[*id].home == Home::Temporary;
    let mut values: BTreeSet<BufferId> = sequence.values.ids().filter(is_temporary).collect();
    let mut n_before = usize::MAX;
    while n_before != params.len() + values.len() {
        n_before = params.len() + values.len();
        for step in &sequence.steps {
            for (param, _, value) in sequence.bound(step) {
                let param = (step.kernel, param);
                if !(params.contains(&param) && values.contains(&value)) {
                    params.remove(&param);
                    values.remove(&value);
                }
            }
        }
    }
    let is_bound = |value: &BufferId| sequence.steps.iter().any(|step| step.args.contains(value));
    values.retain(is_bound);
    (params, values)
}

/// The parameters that a kernel could as well read, or write, as bf16.
fn bf16_params(kernel: &Kernel) -> Vec<ParamId> {
    let (copied, read) = copied_and_read(kernel);
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
        let products = tile_products(kernel, part);
        let pairs = products.iter().filter(|product| product.mma == MmaType::Bf16);
        let pairs: BTreeSet<TileId> = pairs.flat_map(TileProduct::operands).map(|own| own.tile).collect();
        for nest in nests(&part.body) {
            let fills_pairs = matches!(nest.target, Place::Tile(tile) if pairs.contains(&tile));
            for (id, param, _) in nest.reads() {
                if fills_pairs && id == nest.value {
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
    use crate::graph::parse::parse;
    use crate::options::{Numbers, Options};
    use crate::pipeline::compile;
    use crate::reference::random;
    use crate::schedule::run::run;
    use crate::schedule::{Place as Storage, Plan};
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

    /// A plan in single precision, one with tensor cores, and the formats of its temporaries.
    fn plans(text: &str) -> (Plan, Plan, Vec<Format>) {
        let plan = |numbers| {
            let options = Options { numbers, ..Options::for_target(CUDA_SM90) };
            compile(&parse(text).unwrap(), &options).unwrap().plan
        };
        let short = plan(Numbers::Quantised);
        let temporaries = short.buffers.values().filter(|slot| matches!(slot.place, Storage::Arena { .. }));
        let formats = temporaries.map(|slot| slot.format).collect();
        (plan(Numbers::Single), short, formats)
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
        for text in [read, exact] {
            let (plan, short, formats) = plans(&text);
            assert!(!formats.is_empty() && formats.iter().all(|format| *format == Format::F32), "{text}");
            assert_eq!(short.buffers, plan.buffers);
        }
    }
}
