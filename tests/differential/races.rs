//! Races between tasks, planted in kernels of random graphs.
//!
//! In: kernels that lowering makes of random graphs, fused by chance. Out: that each verifies, and that a store which
//! forgets a variable of the grid is a complaint that names the kernel, the buffer and the variable.

use fusebox_compiler::foundation::entity::List;
use fusebox_compiler::fuse::hazard::protect;
use fusebox_compiler::fuse::merge::{Steering, partition};
use fusebox_compiler::kernel::index::Index;
use fusebox_compiler::kernel::lower::lower;
use fusebox_compiler::kernel::price::LoweredPrice;
use fusebox_compiler::kernel::verify::verify;
use fusebox_compiler::kernel::{Kernel, Part, Place, Range, Stmt, Var, VarId};
use fusebox_compiler::target::TARGETS;
use fusebox_compiler::tensor::sym::Sym;
use support::slow;

use super::generate::{Sample, WITH_BLOCKS, generate};

/// The kernels of a random graph, fused by chance.
fn kernels(seed: u64) -> Vec<Kernel> {
    let Sample { graph, .. } = generate(seed);
    let (graph, target) = (protect(&graph), &TARGETS[seed as usize % TARGETS.len()]);
    let steering = Steering { chaos: Some(seed), fuel: None };
    let partition = partition(&graph, &mut LoweredPrice::new(&graph, target), steering);
    let kernels = partition.regions.iter().flat_map(|roots| lower(&graph, &partition.cut, roots, target));
    kernels.flatten().map(|(kernel, _)| kernel).collect()
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
            Stmt::Nest(_) => {}
            Stmt::Loop { body, .. } => forget(body, vars, var),
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
                    let is_named = first.starts_with(&begin) && first.contains(&who);
                    assert!(is_named, "seed {seed}, {var}: {first}\n{slipped}");
                    n_planted += 1;
                }
            }
        }
    }
    assert!(n_planted > 500, "{n_planted} races were planted");
}
