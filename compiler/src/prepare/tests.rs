//! Prepared launches compute what they computed before, and a pass that lies is found out.
//!
//! In: small graphs, compiled for every target, and run by the interpreters. Out: nothing, or the pass at fault.

use super::blame::blame;
use super::*;
use crate::graph::Graph;
use crate::graph::op::Binary;
use crate::graph::parse::parse;
use crate::kernel::index::Index;
use crate::kernel::walk::{each_nest, nests};
use crate::kernel::{Expr, Nest, Place};
use crate::pipeline::launches;
use crate::reference::{Bindings, evaluate, random};
use crate::schedule::plan;
use crate::schedule::run::run;
use crate::target::{CPU, CUDA_SM90, TARGETS};
use crate::tensor::label::Label;

/// Rows of experts for many tokens, then another product of them: tensor cores multiply both.
const EXPERTS: &str = "\
symbol T in 1..70 near 70
%0 = input x : f32[t:T, d:64]
%1 = input picked : i32[t:T, k:2]
%2 = weight gate : q8_0[x:3, r:64, d:64]
%3 = gather %2 %1 along x
%4 = contract %0 %3 over [d]
%5 = barrier %4
%6 = weight w : q8_0[e:64, r:64]
%7 = contract %5 %6 over [r]
output y = %7
";

fn graph() -> Graph {
    parse(EXPERTS).unwrap()
}

/// More tokens than tensor cores take at a time, of which one expert has most.
fn bindings(tokens: i64) -> Bindings {
    random::bindings(&graph(), 5, &[(Label::new("T").unwrap(), tokens)])
}

/// Whether a sequence computes what the graph means, but for what bf16 rounds.
fn is_right(sequence: &Sequence, bindings: &Bindings) -> bool {
    let expected = evaluate(&graph(), bindings).unwrap();
    let Ok(found) = run(&plan(sequence.clone()).unwrap(), bindings) else { return false };
    let (expected, found) = (expected.outputs["y"].floats(), found.outputs["y"].floats());
    let size = expected.iter().map(|x| x.abs()).fold(0.0, f32::max);
    expected.len() == found.len() && expected.iter().zip(found).all(|(a, b)| (a - b).abs() <= 1e-2 * size)
}

#[test]
fn every_target_gets_kernels_that_compute_the_same() {
    for target in TARGETS {
        for numbers in [Numbers::Single, Numbers::Quantised] {
            let options = Options { numbers, ..Options::for_target(target) };
            let before = launches(&graph(), &options).unwrap();
            let (after, changes) = prepare(before.clone(), &options).unwrap();
            for tokens in [1, 33, 70] {
                assert!(is_right(&after, &bindings(tokens)), "{target}: {changes:?}");
            }
            let groups = changes.iter().any(|change| change.pass == "group tasks by expert");
            assert_eq!(groups, target == CUDA_SM90 && numbers == Numbers::Quantised, "{target}: {changes:?}");
            let has = |pass: &str| changes.iter().any(|change| change.pass == pass);
            let found = ["select products", "quantise activations"].map(has);
            let expected = [true, numbers == Numbers::Quantised].map(|own| own && target == CPU);
            assert_eq!(found, expected, "{target}: {changes:?}");
            assert!(after.kernels.values().all(|kernel| verify(kernel).is_empty()), "{target}");
        }
    }
}

#[test]
fn what_is_prepared_stays_as_it_is() {
    for options in [CPU, CUDA_SM90].map(Options::for_target) {
        let once = prepare(launches(&graph(), &options).unwrap(), &options).unwrap().0;
        let (again, changes) = prepare(once.clone(), &options).unwrap();
        assert_eq!((again, changes), (once, Vec::new()));
    }
}

#[test]
fn exact_numbers_are_added_as_the_text_says() {
    let options = Options { numbers: Numbers::Exact, ..Options::for_target(CPU) };
    let (after, changes) = prepare(launches(&graph(), &options).unwrap(), &options).unwrap();
    assert!(changes.iter().all(|change| change.pass == "hoist invariants"), "{changes:?}");
    let mut all = after.kernels.values().flat_map(|kernel| &kernel.parts).flat_map(|part| nests(&part.body));
    assert!(all.all(|nest| nest.product.is_none()));
}

#[test]
fn without_fuel_nothing_changes_and_with_some_only_the_first() {
    let options = Options::for_target(CUDA_SM90);
    let before = launches(&graph(), &options).unwrap();
    let (_, all) = prepare(before.clone(), &options).unwrap();
    assert!(all.len() > 1, "{all:?}");
    for fuel in 0..all.len() {
        let (after, changes) =
            prepare(before.clone(), &Options { fuel: Some(fuel), ..options.clone() }).unwrap();
        assert_eq!(changes, all[..fuel]);
        assert_eq!(after == before, fuel == 0);
    }
}

/// A kernel with a change to each of its nests.
fn edited(kernel: &Kernel, mut change: impl FnMut(&mut Nest)) -> Kernel {
    let mut new = kernel.clone();
    for part in &mut new.parts {
        each_nest(&mut part.body, &mut change);
    }
    new
}

/// Adds where a kernel multiplies: well formed, and wrong.
const LIE: Pass = Pass {
    name: "lie",
    reason: "none",
    applies: |_| true,
    rewrite: Rewrite::Kernel(|kernel, _| {
        edited(kernel, |nest| {
            if let Expr::Binary(Binary::Mul, a, b) = nest.exprs[nest.value] {
                nest.exprs[nest.value] = Expr::Binary(Binary::Add, a, b);
                nest.product = None;
            }
        })
    }),
};

/// Stores behind the end of every buffer.
const FAULT: Pass = Pass {
    name: "fault",
    reason: "none",
    applies: |_| true,
    rewrite: Rewrite::Kernel(|kernel, _| edited(kernel, |nest| nest.at.clear())),
};

/// Stores everything to the first element of its buffer: inside, and all tasks meet there.
const RACE: Pass = Pass {
    name: "race",
    reason: "none",
    applies: |_| true,
    rewrite: Rewrite::Kernel(|kernel, _| {
        edited(kernel, |nest| {
            if matches!(nest.target, Place::Param(_)) {
                nest.at.fill(Index::default());
            }
        })
    }),
};

#[test]
fn a_pass_that_makes_tasks_meet_is_refused_by_its_name() {
    let options = Options::for_target(CUDA_SM90);
    let before = launches(&graph(), &options).unwrap();
    for place in 0..=PASSES.len() {
        let mut passes = PASSES.to_vec();
        passes.insert(place, RACE);
        let refused = prepare_with(before.clone(), &passes, &options).unwrap_err().to_string();
        let is_named = refused.starts_with("this is a bug in fusebox: after `race`, kernel ");
        assert!(is_named && refused.contains("tasks that differ in "), "{place}: {refused}");
        let with_fuel =
            |n| prepare_with(before.clone(), &passes, &Options { fuel: Some(n), ..options.clone() });
        // Halving fuel finds it, too: all before it is right.
        let n_right = (0..64).take_while(|n| with_fuel(*n).is_ok()).count();
        let (_, changes) = with_fuel(n_right - 1).unwrap();
        assert!(n_right < 64 && changes.iter().all(|change| change.pass != "race"), "{place}: {changes:?}");
    }
}

#[test]
fn a_pass_that_lies_is_named_with_its_kernel() {
    let options = Options::for_target(CUDA_SM90);
    let before = launches(&graph(), &options).unwrap();
    let multiplies = |kernel: &Kernel| {
        let mut all = kernel.parts.iter().flat_map(|part| nests(&part.body));
        all.any(|nest| matches!(nest.exprs[nest.value], Expr::Binary(Binary::Mul, ..)))
    };
    let is_right = |sequence: &Sequence| is_right(sequence, &bindings(33));
    let mut passes = PASSES.to_vec();
    assert_eq!(blame(&before, &passes, &options, is_right).unwrap(), None);
    for place in [0, 2, PASSES.len()] {
        passes.insert(place, LIE);
        let found = blame(&before, &passes, &options, is_right).unwrap().expect("a wrong change");
        assert!(found.pass == "lie" && multiplies(&before.kernels[found.kernels[0]]), "{found:?}");
        passes.remove(place);
    }
}

#[test]
fn a_pass_that_makes_an_unsound_kernel_is_refused_by_its_name() {
    let options = Options::for_target(CUDA_SM90);
    let before = launches(&graph(), &options).unwrap();
    let refused = prepare_with(before, &[PASSES[2], FAULT], &options).unwrap_err().to_string();
    assert!(refused.starts_with("this is a bug in fusebox: after `fault`, part 0, "), "{refused}");
}
