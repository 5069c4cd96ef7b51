//! Races between tasks, planted in kernels of random graphs.
//!
//! In: kernels that lowering makes of random graphs, fused by chance, as lowering makes them and as devices run them.
//! Out: that each verifies, and that a store which forgets a variable of the grid is a complaint with the kernel, the
//! buffer and the variable; that a merge which makes such a slip is found by halving fuel; and that a program forged
//! like that is not read, but compiled anew.

use std::fs;

use fusebox_compiler::foundation::entity::List;
use fusebox_compiler::fuse::hazard::protect;
use fusebox_compiler::fuse::merge::{Steering, partition};
use fusebox_compiler::graph::build::Builder;
use fusebox_compiler::graph::{Graph, NodeId};
use fusebox_compiler::kernel::index::Index;
use fusebox_compiler::kernel::lower::lower;
use fusebox_compiler::kernel::price::LoweredPrice;
use fusebox_compiler::kernel::verify::verify;
use fusebox_compiler::kernel::{Kernel, Part, Place, Range, Stmt, Var, VarId};
use fusebox_compiler::options::Options;
use fusebox_compiler::prepare::prepare_kernel;
use fusebox_compiler::program::{Key, Program};
use fusebox_compiler::target::{CPU, TARGETS, Target};
use fusebox_compiler::tensor::dtype::DType;
use fusebox_compiler::tensor::sym::Sym;
use fusebox_models::blocks;
use fusebox_runtime::session::cache::Cache;
use support::own::path;
use support::slow;

use super::generate::{Sample, WITH_BLOCKS, generate};

/// The kernels of a random graph, fused by chance, and those of them that change when they are prepared for the device.
fn kernels(seed: u64) -> Vec<Kernel> {
    let Sample { graph, .. } = generate(seed);
    let (graph, target) = (protect(&graph), &TARGETS[seed as usize % TARGETS.len()]);
    let steering = Steering { chaos: Some(seed), fuel: None };
    let partition = partition(&graph, &mut LoweredPrice::new(&graph, target), steering);
    let kernels = partition.regions.iter().flat_map(|roots| lower(&graph, &partition.cut, roots, target));
    let lowered: Vec<Kernel> = kernels.flatten().map(|(kernel, _)| kernel).collect();
    let options = Options::for_target(*target);
    let prepared = lowered.iter().map(|kernel| prepare_kernel(kernel, &options).unwrap());
    let changed: Vec<Kernel> = prepared.filter(|kernel| !lowered.contains(kernel)).collect();
    [lowered, changed].concat()
}

/// Lets every store forget a variable: of a block, each task stores to the first one.
fn forget(body: &mut [Stmt], vars: &List<VarId, Var>, var: VarId) {
    let slip = |own: VarId| match vars[own].range {
        _ if own == var => Index::default(),
        Range::Within { of } if of == var => Index::var(own).minus(&Index::var(var)),
        _ => Index::var(own),
    };
    for stmt in body {
        match stmt {
            Stmt::Nest(nest) if matches!(nest.target, Place::Param(_)) => {
                nest.at.iter_mut().for_each(|index| *index = index.replaced(&slip, vars));
            }
            Stmt::Nest(_) | Stmt::Quantise(_) => {}
            Stmt::Loop { body, .. } | Stmt::Once { body, .. } => forget(body, vars, var),
        }
    }
}

/// The variables of a grid of which there are tasks with different values.
fn deciding(part: &Part) -> Vec<VarId> {
    let n_values = |var: &VarId| part.n_values(*var, &Sym::most);
    part.grid.iter().filter(|var| n_values(var) > 1).copied().collect()
}

#[test]
fn a_store_that_forgets_a_variable_of_the_grid_is_named() {
    let n_seeds = slow::count(1000, 10_000);
    let mut n_planted = 0;
    for seed in (0..n_seeds).chain(WITH_BLOCKS..WITH_BLOCKS + n_seeds / 4) {
        for kernel in kernels(seed) {
            assert_eq!(verify(&kernel), [], "seed {seed}\n{kernel}");
            for number in 0..kernel.parts.len() {
                for var in deciding(&kernel.parts[number]) {
                    let mut slipped = kernel.clone();
                    let Part { vars, body, .. } = &mut slipped.parts[number];
                    forget(body, vars, var);
                    let who = format!("tasks that differ in {}", vars[var].name);
                    let complaints = verify(&slipped);
                    let first = complaints.first().map(ToString::to_string).unwrap_or_default();
                    let begin = format!("kernel {:?}, part {number}, @", kernel.name);
                    // Blocks that all begin at the first one may meet those of another part, too.
                    let parts = format!("of part {number}");
                    let meets_other = first.contains("tasks of part") && first.contains(&parts);
                    // Where the variable may have no value, what is left of an index may leave its buffer.
                    let leaves = first.starts_with(&format!("part {number}, @")) && first.contains(" is in ");
                    let is_named = first.starts_with(&begin) && first.contains(&who) || meets_other || leaves;
                    assert!(is_named, "seed {seed}, {var}: {first}\n{slipped}");
                    n_planted += 1;
                }
            }
        }
    }
    assert!(n_planted > 500, "{n_planted} races were planted");
}

/// The first slip of a pass that forgets a variable in every kernel which does more than one thing.
fn slipped(graph: &Graph, target: &Target, fuel: usize) -> Option<String> {
    let steering = Steering { chaos: None, fuel: Some(fuel) };
    let partition = partition(graph, &mut LoweredPrice::new(graph, target), steering);
    for roots in &partition.regions {
        let is_computed = |id: &&NodeId| !graph.nodes[**id].op.is_leaf();
        let is_merged = partition.cut.cone(graph, roots).iter().filter(is_computed).count() > 1;
        for (mut kernel, _) in lower(graph, &partition.cut, roots, target).unwrap() {
            let first = deciding(&kernel.parts[0]).first().copied().filter(|_| is_merged);
            if let Some(var) = first {
                let Part { vars, body, .. } = &mut kernel.parts[0];
                forget(body, vars, var);
            }
            if let Some(complaint) = verify(&kernel).first() {
                return Some(complaint.to_string());
            }
        }
    }
    None
}

#[test]
fn a_merge_that_makes_a_race_is_found_by_halving_fuel() {
    let g = Builder::new();
    let (t, d) = (g.dim("t", 64), g.dim("d", 4096));
    let x = g.input("x", DType::F32, &[&t, &d]);
    let graph = protect(&g.finish(&[("y", &((&x * 2.0).exp() + 1.0))]).unwrap());
    let (mut right, mut wrong) = (0, 8);
    assert_eq!(slipped(&graph, &CPU, right), None);
    assert!(slipped(&graph, &CPU, wrong).is_some());
    while right + 1 < wrong {
        let middle = usize::midpoint(right, wrong);
        if slipped(&graph, &CPU, middle).is_some() { wrong = middle } else { right = middle }
    }
    let complaint = slipped(&graph, &CPU, wrong).unwrap();
    assert!(complaint.contains("tasks that differ in") && complaint.contains("kernel \""), "{complaint}");
    assert_eq!(slipped(&graph, &CPU, wrong - 1), None, "the merge before is right");
}

#[test]
fn a_forged_program_that_races_is_compiled_anew() {
    let folder = path("programs");
    let mut n_forged = 0;
    for (number, name) in blocks::NAMES.into_iter().enumerate() {
        let options = Options::for_target(TARGETS[number % TARGETS.len()]);
        let graph = blocks::model(&blocks::named(name).unwrap().shrunk(), &Sym::from(3i64), 2).unwrap();
        let key = Key::of(&graph, &options);
        let honest = Program::compile(key, &graph, &options).unwrap().0;
        assert_eq!(Program::from_bytes(&honest.to_bytes(), key).map(|program| program.key), Some(key));
        let mut last = None;
        for id in honest.plan.kernels.ids() {
            for part in 0..honest.plan.kernels[id].parts.len() {
                for var in deciding(&honest.plan.kernels[id].parts[part]) {
                    let mut forged = honest.clone();
                    let Part { vars, body, .. } = &mut forged.plan.kernels[id].parts[part];
                    forget(body, vars, var);
                    let bytes = forged.to_bytes();
                    assert_eq!(Program::from_bytes(&bytes, key), None, "{name}, {id}, part {part}, {var}");
                    last = Some(bytes);
                    n_forged += 1;
                }
            }
        }
        // In the folder of programs it counts as none, and is replaced.
        let cache = Cache::new(Some(folder.clone()));
        cache.program(&graph, &options).unwrap();
        let file = folder.join(format!("{key}.program"));
        fs::write(&file, last.unwrap()).unwrap();
        let again = Cache::new(Some(folder.clone()));
        assert_eq!(again.program(&graph, &options).unwrap().plan.steps.len(), honest.plan.steps.len());
        assert_eq!(again.counts().n_from_cache, 0, "{name}");
        assert!(Program::from_bytes(&fs::read(&file).unwrap(), key).is_some(), "{name}");
    }
    assert!(n_forged > 100, "{n_forged} programs were forged");
}
