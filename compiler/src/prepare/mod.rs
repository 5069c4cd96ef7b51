//! Prepares kernels for a device: the stage between the launches of a model and the memory plan.
//!
//! In: a [`Sequence`] of launches, and options with a target and its numbers. Out: the same sequence with the kernels
//! that the device runs, and the [`Change`]s that led there. What runs is what is printed: no code generator and no
//! device changes a kernel or a format afterwards, and memory is planned for these kernels.
//!
//! [`PASSES`] is the list. A pass is a function of a value, applies where the target has what it is for, and is
//! verified by the kernel verifier wherever it changed something. Every change costs one unit of fuel, so
//! [`blame`](blame::blame) finds a wrong one by bisection.

use crate::error::Error;
use crate::foundation::entity::List;
use crate::kernel::Kernel;
use crate::kernel::verify::verify;
use crate::options::{Numbers, Options};
use crate::schedule::{KernelId, Sequence};

mod bf16_temporaries;
pub mod blame;
mod expert_groups;
mod fold_order;
mod grid_order;
mod hoist_invariants;
mod quantise_activations;
pub(crate) mod select_products;
mod select_tile_products;
mod stage_vectors;

use bf16_temporaries::shorten_temporaries;
use expert_groups::group_by_expert;
use fold_order::order_folds;
use grid_order::order_tasks;
use hoist_invariants::hoist_invariants;
use quantise_activations::quantise_activations;
use select_products::select_products;
use select_tile_products::select_tile_products;
use stage_vectors::stage_vectors;

/// Every pass, in order.
pub const PASSES: [Pass; 9] = [
    Pass {
        name: "group tasks by expert",
        reason: "a matrix is read once for all rows routed to it, and tensor cores multiply them",
        applies: multiplies_on_tensor_cores,
        rewrite: Rewrite::Kernel(group_by_expert),
    },
    Pass {
        name: "order tasks",
        reason: "tasks with the same rows of an expert follow each other and find them in L2",
        applies: shares_tasks,
        rewrite: Rewrite::Kernel(order_tasks),
    },
    Pass {
        name: "order folds",
        reason: "neighbouring threads load neighbouring elements",
        applies: shares_tasks,
        rewrite: Rewrite::Kernel(order_folds),
    },
    Pass {
        name: "stage vectors",
        reason: "rows of a weight meet their vector in shared memory",
        applies: shares_tasks,
        rewrite: Rewrite::Kernel(stage_vectors),
    },
    Pass {
        name: "select tile products",
        reason: "tensor cores multiply tiles of whole fragments",
        applies: multiplies_on_tensor_cores,
        rewrite: Rewrite::Kernel(select_tile_products),
    },
    Pass {
        name: "shorten temporaries",
        reason: "bf16 operands of tensor cores are all that reads them",
        applies: multiplies_on_tensor_cores,
        rewrite: Rewrite::Sequence(shorten_temporaries),
    },
    Pass {
        name: "select products",
        reason: "micro-kernels multiply whole rows",
        applies: multiplies_rows,
        rewrite: Rewrite::Kernel(select_products),
    },
    Pass {
        name: "quantise activations",
        reason: "micro-kernels multiply integers, and products of the same activations share them",
        applies: multiplies_quantised,
        rewrite: Rewrite::Kernel(quantise_activations),
    },
    Pass {
        name: "hoist invariants",
        reason: "tasks that follow each other on a thread share what is the same for them",
        applies: has_own_threads,
        rewrite: Rewrite::Kernel(hoist_invariants),
    },
];

/// A step of the preparation.
#[derive(Clone, Copy, Debug)]
pub struct Pass {
    /// What it does, in the story and in reports.
    pub name: &'static str,
    /// Why that pays.
    pub reason: &'static str,
    /// Whether a target has what it is for.
    pub applies: fn(&Options) -> bool,
    /// What it makes of its input; the input itself where there is nothing to do.
    pub rewrite: Rewrite,
}

/// What a pass rewrites.
#[derive(Clone, Copy, Debug)]
pub enum Rewrite {
    /// One kernel after another.
    Kernel(fn(&Kernel, &Options) -> Kernel),
    /// All launches together, with the formats of what flows between them.
    Sequence(fn(&Sequence, &Options) -> Sequence),
}

/// Kernels that a pass changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The name of the pass.
    pub pass: &'static str,
    /// Why it pays.
    pub reason: &'static str,
    /// The kernels: one, or all of a sequence that had to change together.
    pub kernels: Vec<KernelId>,
}

/// The launches as a device runs them, and what was changed for that.
///
/// # Errors
/// [`Error::Bug`] with the name of a pass that made a kernel which does not verify.
pub fn prepare(sequence: Sequence, options: &Options) -> Result<(Sequence, Vec<Change>), Error> {
    prepare_with(sequence, &PASSES, options)
}

/// The same with other passes.
///
/// # Errors
/// As [`prepare`].
pub fn prepare_with(
    mut sequence: Sequence,
    passes: &[Pass],
    options: &Options,
) -> Result<(Sequence, Vec<Change>), Error> {
    let mut changes: Vec<Change> = Vec::new();
    for pass in passes.iter().filter(|pass| (pass.applies)(options)) {
        let mut accept = |kernels: Vec<(KernelId, &Kernel)>| {
            if kernels.is_empty() || options.fuel.is_some_and(|fuel| changes.len() >= fuel) {
                return Ok(false);
            }
            Error::bug_if(pass.name, kernels.iter().flat_map(|(_, kernel)| verify(kernel)).collect())?;
            let kernels = kernels.into_iter().map(|(id, _)| id).collect();
            changes.push(Change { pass: pass.name, reason: pass.reason, kernels });
            Ok::<bool, Error>(true)
        };
        match pass.rewrite {
            Rewrite::Kernel(rewrite) => {
                let ids: Vec<KernelId> = sequence.kernels.ids().collect();
                for id in ids {
                    let new = rewrite(&sequence.kernels[id], options);
                    if new != sequence.kernels[id] && accept(vec![(id, &new)])? {
                        sequence.kernels[id] = new;
                    }
                }
            }
            Rewrite::Sequence(rewrite) => {
                let new = rewrite(&sequence, options);
                if accept(changed(&sequence.kernels, &new.kernels))? {
                    sequence = new;
                }
            }
        }
    }
    Ok((sequence, changes))
}

/// A kernel by itself as a device runs it, without what depends on other launches.
///
/// # Errors
/// As [`prepare`].
pub fn prepare_kernel(kernel: &Kernel, options: &Options) -> Result<Kernel, Error> {
    let sequence = Sequence { kernels: List::from_iter([kernel.clone()]), ..Sequence::default() };
    let (sequence, _) = prepare(sequence, options)?;
    Ok(sequence.kernels.into_entries().map(|(_, kernel)| kernel).next().unwrap_or_else(|| kernel.clone()))
}

/// The kernels that are not what they were.
fn changed<'k>(
    before: &List<KernelId, Kernel>,
    after: &'k List<KernelId, Kernel>,
) -> Vec<(KernelId, &'k Kernel)> {
    after.iter().filter(|(id, kernel)| before[*id] != **kernel).collect()
}

/// Whether products of tiles run on tensor cores, which round their operands.
fn multiplies_on_tensor_cores(options: &Options) -> bool {
    options.target.capabilities.has_tensor_cores && options.numbers == Numbers::Quantised
}

/// Whether one thread runs a task, and may add in an order of its own: products of rows are calls of micro-kernels.
fn multiplies_rows(options: &Options) -> bool {
    has_own_threads(options) && options.numbers != Numbers::Exact
}

/// Whether these micro-kernels may round activations.
fn multiplies_quantised(options: &Options) -> bool {
    has_own_threads(options) && options.numbers == Numbers::Quantised
}

/// Whether one thread runs a task, and tasks one after another.
fn has_own_threads(options: &Options) -> bool {
    !shares_tasks(options)
}

/// Whether several threads share a task, and the memory of its tiles.
fn shares_tasks(options: &Options) -> bool {
    options.target.capabilities.shared_bytes > 0
}

#[cfg(test)]
mod tests;
