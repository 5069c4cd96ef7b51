//! The named blocks, shrunk: as written, improved, improved at random, and fused at random.

use std::collections::BTreeSet;

use fusebox_compiler::fuse::merge::Steering;
use fusebox_compiler::graph::Graph;
use fusebox_compiler::reference::compare::{Tolerance, close};
use fusebox_compiler::reference::{evaluate, random};
use fusebox_compiler::rewrite::{Choice, Settings, improve};
use fusebox_compiler::target::{CPU, TARGETS};
use fusebox_compiler::tensor::sym::Sym;
use fusebox_models::blocks;

use super::bounds::of_kernels;
use super::jit::compiled;
use super::{Witness, check, check_by};

/// Different extractions, and different partitions, of each block.
const N_CHAOS: u64 = 32;

pub(super) fn shrunk(name: &str, tokens: i64) -> Graph {
    let config = blocks::named(name).expect("a named block").shrunk();
    blocks::block(&config, &Sym::from(tokens)).expect("a block that fits together")
}

fn same_results(name: &str, asked: &Graph, made: &Graph, seed: u64) {
    let bindings = random::bindings(asked, seed, &[]);
    let (expected, actual) = (evaluate(asked, &bindings).unwrap(), evaluate(made, &bindings).unwrap());
    for (output, value) in expected.outputs.iter().chain(&expected.states) {
        let own = actual.outputs.get(output).or(actual.states.get(output));
        let own = own.unwrap_or_else(|| panic!("{name}: `{output}` is gone"));
        close(value, own, Tolerance::of(asked))
            .unwrap_or_else(|what| panic!("{name}: `{output}` {what}\n{made}"));
    }
}

#[test]
fn every_kernel_of_every_block_computes_what_it_stands_for() {
    for name in blocks::NAMES {
        for tokens in [1, 3] {
            let asked = shrunk(name, tokens);
            for target in TARGETS {
                let (graph, _) = improve(&asked, &Settings::new(target));
                same_results(name, &asked, &graph, 7);
                let bindings = random::bindings(&graph, 7, &[]);
                check(&graph, &bindings, &target, Steering::default())
                    .unwrap_or_else(|what| panic!("{name} T={tokens} {target}: {what}"));
            }
        }
    }
}

#[test]
fn a_block_as_written_is_fused_right() {
    for name in blocks::NAMES {
        let graph = shrunk(name, 2);
        let bindings = random::bindings(&graph, 11, &[]);
        let target = CPU;
        check(&graph, &bindings, &target, Steering::default())
            .unwrap_or_else(|what| panic!("{name}: {what}"));
    }
}

#[test]
fn any_extraction_of_a_block_means_the_same() {
    for name in blocks::NAMES {
        let asked = shrunk(name, 2);
        let mut forms = BTreeSet::new();
        // A seed may hit on a form that was tried before.
        for seed in 0..2 * N_CHAOS {
            let target = TARGETS[seed as usize % TARGETS.len()];
            let settings = Settings { choice: Choice::Random(seed), ..Settings::new(target) };
            let (graph, _) = improve(&asked, &settings);
            if forms.insert(graph.to_string()) {
                same_results(name, &asked, &graph, seed);
            }
        }
        // A block with a short convolution is small.
        let is_small = blocks::named(name).is_some_and(|config| config.is_recurrent());
        let wanted = if is_small { N_CHAOS / 2 } else { 3 * N_CHAOS / 4 };
        assert!(forms.len() >= wanted as usize, "{name}: only {} different forms", forms.len());
    }
}

#[test]
fn any_legal_fusion_of_a_block_computes_the_same() {
    for name in blocks::NAMES {
        for seed in 0..4 {
            let target = TARGETS[seed as usize % TARGETS.len()];
            let (graph, _) = improve(&shrunk(name, 2), &Settings::new(target));
            let bindings = random::bindings(&graph, seed, &[]);
            let steering = Steering { chaos: Some(seed), fuel: None };
            check(&graph, &bindings, &target, steering)
                .unwrap_or_else(|what| panic!("{name} seed {seed} {target}: {what}"));
        }
    }
}

#[test]
fn every_kernel_of_every_block_is_compiled_right() {
    for name in blocks::NAMES {
        for tokens in [1, 3] {
            for target in TARGETS {
                let (graph, _) = improve(&shrunk(name, tokens), &Settings::new(target));
                let bindings = random::bindings(&graph, 13, &[]);
                let checks = (of_kernels(&graph), Some(compiled as Witness));
                check_by(&graph, &bindings, &target, Steering::default(), checks)
                    .unwrap_or_else(|what| panic!("{name} T={tokens} {target}: {what}"));
            }
        }
    }
}
