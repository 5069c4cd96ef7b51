//! What a device offers, as far as the compiler's choices depend on it.
//!
//! A [`Target`] is a value with a name, so kernels for a GPU are made, printed and compared with none present.
//! Times are estimates for choosing between forms, never promises; every choice that rests on them is in the story.

use std::fmt;

/// Cached positions that attention takes at a time where queries are many, or tasks share positions.
pub const LEAST_POSITIONS: usize = 64;

/// A device, or rather what choices need to know of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Target {
    /// How it is asked for.
    pub name: &'static str,
    /// Bytes a second from memory, all units together.
    pub bandwidth: f64,
    /// Bytes a second that units together read from memory that is closer, what several tasks read counted for each.
    pub close_bandwidth: f64,
    /// The same for one unit with one task, which waits for most of what it asks for.
    pub close_of_unit: f64,
    /// Single-precision operations a second, all units together.
    pub flops: f64,
    /// Seconds from the end of one kernel to the start of the next.
    pub launch: f64,
    /// Units that run tasks at the same time: cores or multiprocessors.
    pub units: usize,
    /// Bytes of fast memory a task may use for its tiles.
    pub tile_bytes: usize,
    /// Tensors that a kernel may read and write.
    pub tensors_per_kernel: usize,
    /// Rows of a weight that one task multiplies.
    pub rows_per_task: usize,
    /// Vectors whose products with the matrices picked for them one task computes; one where code does not sort them.
    pub picks_per_task: usize,
    /// Tokens and rows of a weight whose products one task computes where tokens are many, the largest share first.
    pub shares_of_many: &'static [Share],
    /// Rows of a weight that one task multiplies with one of many vectors that pick among weights.
    pub rows_of_picked: usize,
    /// Elements of a row that are unpacked at a time, whole blocks of 32.
    pub unpacked_per_step: i64,
    /// Whether products that unpack a weight, or meet many rows of a state, want both factors in tiles, as matrix units
    /// do.
    pub stages: bool,
    /// Queries whose scores one task of attention keeps.
    pub queries_per_task: usize,
    /// Scores that a task of attention has at a time, but never those of fewer than [`LEAST_POSITIONS`].
    pub scores_per_step: usize,
    /// Whether products want quantised weights unpacked into a tile first; code for processors does it itself.
    pub unpacks: bool,
    /// Whether weights that are joined are computed one after another, each by tasks of its own.
    pub keeps_apart: bool,
}

/// A processor.
pub const CPU: Target = Target {
    name: "cpu",
    bandwidth: 50e9,
    // The caches of a core have all that its tasks read again.
    close_bandwidth: f64::INFINITY,
    close_of_unit: f64::INFINITY,
    // Products cost little, so what is computed again counts: operations are those of generated code.
    flops: 300e9,
    launch: 2e-6,
    units: 8,
    tile_bytes: 512 << 10,
    tensors_per_kernel: usize::MAX,
    rows_per_task: 64,
    // Unpacking wants many tokens, and attention whole squares of tiles.
    shares_of_many: &[Share { tokens: 256, rows: 32 }],
    rows_of_picked: 32,
    picks_per_task: 2048,
    unpacked_per_step: 256,
    stages: false,
    queries_per_task: 128,
    // Keys and values of one token come by turns: long pieces of both.
    scores_per_step: 512,
    unpacks: false,
    keeps_apart: true,
};

/// A GPU that Vulkan drives; the others differ from it.
pub const VULKAN: Target = Target {
    name: "vulkan",
    bandwidth: 500e9,
    close_bandwidth: 2.5e12,
    close_of_unit: 16e9,
    flops: 10e12,
    launch: 4e-6,
    units: 64,
    tile_bytes: 32 << 10,
    // Some drivers bind no more than 32 buffers; a tensor has up to two, and symbols and scratch have one each.
    tensors_per_kernel: 15,
    rows_per_task: 8,
    shares_of_many: &[Share { tokens: 16, rows: 8 }],
    rows_of_picked: 8,
    picks_per_task: 1,
    unpacked_per_step: 256,
    stages: false,
    queries_per_task: 32,
    scores_per_step: LEAST_POSITIONS,
    unpacks: true,
    keeps_apart: true,
};

/// A GPU that CUDA drives, of the ninth generation.
pub const CUDA_SM90: Target = Target {
    name: "cuda-sm90",
    bandwidth: 4.8e12,
    close_bandwidth: 12e12,
    close_of_unit: 36e9,
    flops: 60e12,
    launch: 1.5e-6,
    units: 132,
    shares_of_many: &[
        Share { tokens: 128, rows: 128 },
        Share { tokens: 128, rows: 64 },
        Share { tokens: 64, rows: 64 },
        Share { tokens: 64, rows: 32 },
        Share { tokens: 32, rows: 32 },
        Share { tokens: 16, rows: 32 },
    ],
    rows_of_picked: 64,
    unpacked_per_step: 64,
    stages: true,
    tile_bytes: 200 << 10,
    ..VULKAN
};

/// A GPU that Metal drives.
pub const METAL: Target = Target { name: "metal", bandwidth: 400e9, launch: 3e-6, units: 40, ..VULKAN };

/// Every target that has a name.
pub const TARGETS: [Target; 4] = [CPU, CUDA_SM90, VULKAN, METAL];

impl Target {
    /// Whether it runs what code for processors is made of.
    pub fn is_processor(&self) -> bool {
        self.name == CPU.name
    }

    /// The target of this name.
    pub fn named(name: &str) -> Option<Self> {
        TARGETS.into_iter().find(|target| target.name == name)
    }

    /// The largest share of the products of many tokens that leaves a task for every second unit, or the smallest: what
    /// a task reads for each product is worth more than some units that wait.
    pub fn share_of_many(&self, n_tasks: impl Fn(Share) -> i64) -> Share {
        let is_enough = |share: &Share| 2 * n_tasks(*share) >= self.units as i64;
        let [.., least] = self.shares_of_many else { unreachable!("a target has shares") };
        self.shares_of_many.iter().copied().find(is_enough).unwrap_or(*least)
    }

    /// Cached positions that attention takes at a time with so many queries.
    pub fn positions_per_step(&self, n_queries: usize) -> usize {
        (self.scores_per_step / n_queries.max(1)).max(LEAST_POSITIONS) / LEAST_POSITIONS * LEAST_POSITIONS
    }

    /// Seconds that `work` takes on its own, started and finished.
    pub fn seconds(&self, work: Work) -> f64 {
        self.launch + self.roofline(work)
    }

    /// Seconds that `work` takes at best once started: the slower of moving its bytes and doing its operations.
    pub fn roofline(&self, work: Work) -> f64 {
        (work.bytes / self.bandwidth).max(work.flops / self.flops)
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Tokens and rows of a weight whose products one task computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// How many tokens.
    pub tokens: i64,
    /// How many rows.
    pub rows: i64,
}

/// An amount of work.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Default)]
pub struct Work {
    /// Bytes moved to or from memory.
    pub bytes: f64,
    /// Operations on numbers.
    pub flops: f64,
}

impl std::ops::Add for Work {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self { bytes: self.bytes + other.bytes, flops: self.flops + other.flops }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_found() {
        for target in TARGETS {
            assert_eq!(Target::named(target.name), Some(target));
        }
        assert_eq!(Target::named("gpu"), None);
    }

    #[test]
    fn tasks_have_as_many_products_as_leave_work_for_others() {
        let target = CUDA_SM90;
        let of = |tokens: i64, rows: i64| {
            target.share_of_many(|share| (tokens / share.tokens).max(1) * (rows / share.rows).max(1))
        };
        assert_eq!(of(512, 4096), Share { tokens: 128, rows: 128 });
        assert_eq!(of(512, 1024), Share { tokens: 64, rows: 64 });
        assert_eq!(of(16, 128), Share { tokens: 16, rows: 32 });
    }

    #[test]
    fn the_slower_of_bytes_and_operations_counts() {
        let target = CPU;
        assert_eq!(target.roofline(Work { bytes: 50e9, flops: 1.0 }), 1.0);
        assert_eq!(target.roofline(Work { bytes: 1.0, flops: 600e9 }), 2.0);
    }
}
