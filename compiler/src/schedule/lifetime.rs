//! Lifetimes of buffers: from which step to which step their content is needed.
//!
//! In: steps in order. Out: for each buffer the first and the last step that accesses it. Several steps may write parts
//! of one buffer: it lives from the first write on, because what was written must stay. Two buffers whose lifetimes
//! share a step must not share a byte; `alias.rs` names the exceptions.

use crate::foundation::entity::List;
use crate::kernel::Kernel;
use crate::schedule::{BufferId, KernelId, Step, bound};

/// Steps from the first to the last, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Lifetime {
    /// The first step.
    pub first: usize,
    /// The last step.
    pub last: usize,
}

/// The lifetime of each of `n_buffers`; nothing for one that no step touches.
pub(crate) fn lifetimes(
    kernels: &List<KernelId, Kernel>,
    steps: &[Step],
    n_buffers: usize,
) -> List<BufferId, Option<Lifetime>> {
    let mut lifetimes: List<BufferId, Option<Lifetime>> = (0..n_buffers).map(|_| None).collect();
    for (number, step) in steps.iter().enumerate() {
        for (.., buffer) in bound(kernels, step) {
            let lifetime = lifetimes[buffer].get_or_insert(Lifetime { first: number, last: number });
            lifetime.last = number;
        }
    }
    lifetimes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::foundation::entity::Id;
    use crate::kernel::parse::parse;

    /// One kernel that reads a buffer and writes another.
    fn copy() -> List<KernelId, Kernel> {
        let text = "kernel \"copy\" map\n  read @0 x : f32[d:4]\n  write @1 y : f32[d:4]\npart\n  \
                    var d0 in 0..4\n  grid d0\n  @1[d0] = @0[d0]\n";
        [parse(text).unwrap()].into_iter().collect()
    }

    fn check(steps: &[[usize; 2]], n_buffers: usize, expected: &[Option<(usize, usize)>]) {
        let step = |args: &[usize; 2]| Step {
            kernel: KernelId::from_index(0),
            args: args.map(BufferId::from_index).to_vec(),
            instance: 0,
            fused: crate::fuse::fused::Fused::default(),
            barriers: Vec::new(),
        };
        let steps: Vec<Step> = steps.iter().map(step).collect();
        let found = lifetimes(&copy(), &steps, n_buffers);
        let expected: Vec<_> =
            expected.iter().map(|ends| ends.map(|(first, last)| Lifetime { first, last })).collect();
        assert_eq!(found.values().copied().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_buffer_lives_from_its_first_write_to_its_last_read() {
        check(&[[0, 1], [1, 2], [1, 3]], 4, &[Some((0, 0)), Some((0, 2)), Some((1, 1)), Some((2, 2))]);
    }

    #[test]
    fn a_buffer_written_in_parts_lives_from_the_first_part_on() {
        check(&[[0, 1], [2, 3], [0, 1]], 5, &[Some((0, 2)), Some((0, 2)), Some((1, 1)), Some((1, 1)), None]);
    }
}
