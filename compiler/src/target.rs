//! Targets: what the compiler's choices depend on, as numbers.
//!
//! A [`Target`] is a named value, so kernels for a GPU are made, printed and compared with none present. Times are
//! roofline estimates for choosing between forms, never promises; every choice that rests on them is in the story.

use std::fmt;

/// Cached positions that attention takes at a time where queries are many, or where tasks split the positions.
pub const MIN_POSITIONS_PER_STEP: usize = 64;

/// A device as the compiler sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Target {
    /// The name that users give.
    pub name: &'static str,
    /// Bytes a second from DRAM, of the whole device.
    pub bandwidth: f64,
    /// Bytes a second from the L2 cache, of the whole device; what several tasks read counts for each.
    pub l2_bandwidth: f64,
    /// Bytes a second from L2 of one compute unit that runs one task: latency-bound.
    pub l2_bandwidth_per_unit: f64,
    /// Single-precision operations a second, of the whole device.
    pub flops: f64,
    /// Seconds from the end of one kernel to the start of the next.
    pub launch: f64,
    /// Compute units: cores of a processor, SMs of a GPU.
    pub compute_units: usize,
    /// Bytes of fast memory a task may use for its tiles: shared memory of a GPU.
    pub tile_bytes: usize,
    /// Bytes of memory that the threads of a task share: shared memory of a GPU; none where a task has one thread.
    pub shared_bytes: usize,
    /// Whether products of tiles may run on tensor cores.
    pub has_tensor_cores: bool,
    /// Buffers that a kernel may bind.
    pub tensors_per_kernel: usize,
    /// Rows of a weight that one task of a GEMV multiplies.
    pub rows_per_task: usize,
    /// Rows of tokens routed to experts that one task multiplies; 1 where the kernel does not group them by expert.
    pub routed_rows_per_task: usize,
    /// Tiles (tokens × rows of the weight) that one task of a GEMM may compute, the largest first.
    pub gemm_tiles: &'static [GemmTile],
    /// Rows of an expert's matrix that one task multiplies, where tokens are many.
    pub expert_rows_per_task: usize,
    /// Elements along K that a GEMM dequantises at a time, whole blocks of 32.
    pub k_step: i64,
    /// Whether GEMMs with a dequantised weight, and those with many rows of a state, want both operands in tiles, as
    /// tensor cores do.
    pub stages_operands: bool,
    /// Queries whose scores one task of attention keeps.
    pub queries_per_task: usize,
    /// Scores that a task of attention has at a time, but never those of fewer than [`MIN_POSITIONS_PER_STEP`]
    /// positions.
    pub scores_per_step: usize,
    /// Whether weights are dequantised into tiles before a GEMM; the CPU's microkernels do it themselves.
    pub dequantises_to_tiles: bool,
    /// Whether weights that were concatenated to one projection are computed by separate nests or parts, one for each
    /// weight.
    pub splits_joined_weights: bool,
}

/// A processor.
pub const CPU: Target = Target {
    name: "cpu",
    bandwidth: 50e9,
    // A core's caches hold all that its tasks read again.
    l2_bandwidth: f64::INFINITY,
    l2_bandwidth_per_unit: f64::INFINITY,
    // Products run in fast microkernels, so what counts is recomputation: this is the rate of generated code.
    flops: 300e9,
    launch: 2e-6,
    compute_units: 8,
    tile_bytes: 512 << 10,
    shared_bytes: 0,
    has_tensor_cores: false,
    tensors_per_kernel: usize::MAX,
    rows_per_task: 64,
    // Unpacking pays for many tokens only, and attention wants whole squares of tiles.
    gemm_tiles: &[GemmTile { tokens: 256, rows: 32 }],
    expert_rows_per_task: 32,
    routed_rows_per_task: 2048,
    k_step: 256,
    stages_operands: false,
    queries_per_task: 128,
    // Keys and values alternate in memory token by token: long pieces of both.
    scores_per_step: 512,
    dequantises_to_tiles: false,
    splits_joined_weights: true,
};

/// A GPU driven through Vulkan; the others differ from it.
pub const VULKAN: Target = Target {
    name: "vulkan",
    bandwidth: 500e9,
    l2_bandwidth: 2.5e12,
    l2_bandwidth_per_unit: 16e9,
    flops: 10e12,
    launch: 4e-6,
    compute_units: 64,
    tile_bytes: 32 << 10,
    shared_bytes: 32 << 10,
    has_tensor_cores: false,
    // Some drivers bind no more than 32 buffers; a tensor has up to two, and symbols and scratch have one each.
    tensors_per_kernel: 15,
    rows_per_task: 8,
    gemm_tiles: &[GemmTile { tokens: 16, rows: 8 }],
    expert_rows_per_task: 8,
    routed_rows_per_task: 1,
    k_step: 256,
    stages_operands: false,
    queries_per_task: 32,
    scores_per_step: MIN_POSITIONS_PER_STEP,
    dequantises_to_tiles: true,
    splits_joined_weights: true,
};

/// An NVIDIA GPU of compute capability 9.0 (Hopper).
pub const CUDA_SM90: Target = Target {
    name: "cuda-sm90",
    bandwidth: 4.8e12,
    l2_bandwidth: 12e12,
    l2_bandwidth_per_unit: 36e9,
    flops: 60e12,
    launch: 1.5e-6,
    compute_units: 132,
    gemm_tiles: &[
        GemmTile { tokens: 128, rows: 128 },
        GemmTile { tokens: 128, rows: 64 },
        GemmTile { tokens: 64, rows: 64 },
        GemmTile { tokens: 64, rows: 32 },
        GemmTile { tokens: 32, rows: 32 },
        GemmTile { tokens: 16, rows: 32 },
    ],
    expert_rows_per_task: 64,
    k_step: 64,
    stages_operands: true,
    tile_bytes: 200 << 10,
    // Every NVIDIA GPU since 2020 has it; more than 48 KiB is opted into at launch.
    shared_bytes: 96 << 10,
    has_tensor_cores: true,
    ..VULKAN
};

/// An Apple GPU.
pub const METAL: Target =
    Target { name: "metal", bandwidth: 400e9, launch: 3e-6, compute_units: 40, ..VULKAN };

/// Every named target.
pub const TARGETS: [Target; 4] = [CPU, CUDA_SM90, VULKAN, METAL];

impl Target {
    /// Whether code generated for processors runs on it.
    pub fn is_processor(&self) -> bool {
        self.name == CPU.name
    }

    /// The target of this name.
    pub fn named(name: &str) -> Option<Self> {
        TARGETS.into_iter().find(|target| target.name == name)
    }

    /// The largest GEMM tile that leaves a task for every second compute unit, else the smallest: data reuse within a
    /// task is worth more than some idle units.
    pub fn gemm_tile(&self, n_tasks: impl Fn(GemmTile) -> i64) -> GemmTile {
        let is_enough = |share: &GemmTile| 2 * n_tasks(*share) >= self.compute_units as i64;
        let [.., least] = self.gemm_tiles else { unreachable!("a target has shares") };
        self.gemm_tiles.iter().copied().find(is_enough).unwrap_or(*least)
    }

    /// Cached positions that attention takes at a time with `n_queries` queries.
    pub fn positions_per_step(&self, n_queries: usize) -> usize {
        (self.scores_per_step / n_queries.max(1)).max(MIN_POSITIONS_PER_STEP) / MIN_POSITIONS_PER_STEP
            * MIN_POSITIONS_PER_STEP
    }

    /// Seconds that `work` takes as a kernel of its own, launch included.
    pub fn seconds(&self, work: Work) -> f64 {
        self.launch + self.roofline(work)
    }

    /// The roofline: the slower of moving the bytes and doing the operations.
    pub fn roofline(&self, work: Work) -> f64 {
        (work.bytes / self.bandwidth).max(work.flops / self.flops)
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// The tile of a GEMM that one task computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GemmTile {
    /// Tokens.
    pub tokens: i64,
    /// Rows of the weight.
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
            target.gemm_tile(|share| (tokens / share.tokens).max(1) * (rows / share.rows).max(1))
        };
        assert_eq!(of(512, 4096), GemmTile { tokens: 128, rows: 128 });
        assert_eq!(of(512, 1024), GemmTile { tokens: 64, rows: 64 });
        assert_eq!(of(16, 128), GemmTile { tokens: 16, rows: 32 });
    }

    #[test]
    fn the_slower_of_bytes_and_operations_counts() {
        let target = CPU;
        assert_eq!(target.roofline(Work { bytes: 50e9, flops: 1.0 }), 1.0);
        assert_eq!(target.roofline(Work { bytes: 1.0, flops: 600e9 }), 2.0);
    }
}
