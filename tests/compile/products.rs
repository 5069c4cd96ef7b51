//! Products of weights and caches have micro-kernels, at every level of this processor.
//!
//! In: two layers and the output of the named models, in the program classes of a session, with weights and caches of
//! several formats. Out: the products that generated code computes, all for a reason of [`is_right`].
//! `--print-kernels` shows the same to users, with a mark.

use std::collections::BTreeSet;

use fusebox_compiler::codegen::cpu::Cpu;
use fusebox_compiler::forms::{self, Form};
use fusebox_compiler::foundation::entity::Id;
use fusebox_compiler::kernel::ParamId;
use fusebox_compiler::kernel::product::reason::Reason;
use fusebox_compiler::options::{Numbers, Options};
use fusebox_compiler::pipeline::compile;
use fusebox_compiler::schedule::{Place, Plan, Step};
use fusebox_compiler::simd::Level;
use fusebox_compiler::target::Target;
use fusebox_compiler::tensor::quant::Format;
use fusebox_models::blocks;
use fusebox_models::config::Formats;
use fusebox_models::layers::step;
use fusebox_runtime::session::classes::Class;
use support::plain::with_micro_kernels;

/// Weights with caches.
const FORMATS: [(Format, Format); 5] = [
    (Format::Q8_0, Format::F16),
    (Format::Q4K, Format::Q8_0),
    (Format::Q4_0, Format::F32),
    (Format::Q8_0, Format::Q4_0),
    (Format::BF16, Format::F16),
];

/// Whether a product may do without a micro-kernel.
fn is_right(reason: Reason) -> bool {
    match reason {
        // No file has such rows: quantisers fall back to blocks of 32 there.
        Reason::Rows(Some(n), format) => n % format.block_len() as i64 != 0,
        _ => false,
    }
}

fn forms(cpu: &Cpu, plan: &Plan, step: &Step) -> Vec<Form> {
    let is_stored =
        |param: ParamId| matches!(plan.buffers[step.args[param.index()]].place, Place::Weight | Place::State);
    forms::forms(cpu, &plan.kernels[step.kernel], &is_stored)
}

/// The number of products of a plan, and the kernels with generated ones.
fn products(cpu: &Cpu, plan: &Plan) -> (usize, Vec<String>) {
    let (mut n_products, mut generated) = (0, Vec::new());
    for step in &plan.steps {
        let forms = forms(cpu, plan, step);
        n_products += forms.len();
        let reasons = forms.into_iter().filter_map(|form| match form {
            Form::Generated(reason) if !is_right(reason) => Some(reason),
            Form::Generated(_) | Form::Micro(_) => None,
        });
        generated.extend(reasons.map(|reason| format!("{}: {reason}", plan.kernels[step.kernel].name)));
    }
    (n_products, generated)
}

#[test]
fn every_product_of_a_named_model_has_a_micro_kernel() {
    let levels = Level::ALL.into_iter();
    let cpus: Vec<Cpu> = levels.filter_map(|level| Cpu::at(level, Numbers::Quantised).ok()).collect();
    let exact = Cpu::host(Numbers::Exact).unwrap();
    let options = Options::for_target(Target::named("cpu").unwrap());
    let mut found = BTreeSet::new();
    for (name, (weights, cache)) in
        with_micro_kernels().into_iter().flat_map(|name| FORMATS.map(|own| (name, own)))
    {
        let mut config = blocks::named(name).unwrap();
        (config.formats, config.cache.format) = (Formats::Uniform(weights), cache);
        for class in [Class::runs(512), Class::batches(64)].concat() {
            let graph = blocks::model(&config, step::Step::of(class), 2).unwrap();
            let plan = compile(&graph, &options).unwrap().plan;
            for cpu in &cpus {
                let (n_products, generated) = products(cpu, &plan);
                assert!(n_products >= 7, "{name} {weights}: {n_products} products");
                found.extend(
                    generated.into_iter().map(|kernel| format!("{name} {weights} {cache}: {kernel}")),
                );
            }
            // Exact numbers have no micro-kernels, so this would be noticed.
            assert!(!products(&exact, &plan).1.is_empty());
        }
    }
    assert!(found.is_empty(), "{found:#?}");
}
