//! Targets: what the compiler's choices depend on, as numbers.
//!
//! In: nothing. Out: a [`Target`]: what code may be made for a kind of device (capabilities), how fast one such device
//! is (rates), and how work is cut for its kind (tuning). It is a value with a name, so kernels for a GPU are made,
//! printed and compared with none present. Times are roofline estimates for choosing between forms, never promises;
//! every choice that rests on them is in the story. `named.rs` has the targets with names, and how a name states rates.

mod named;

pub use named::{CPU, CUDA_SM80, CUDA_SM89, CUDA_SM90, METAL, NAMED, TARGETS, VULKAN, accepted, cuda};

/// Cached positions that attention takes at a time where queries are many, or where tasks split the positions.
pub const MIN_POSITIONS_PER_STEP: usize = 64;

/// Threads of a workgroup (thread block), which share the iterations of a nest.
pub const THREADS: u32 = 256;

/// A device as the compiler sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Target {
    /// The name that users give.
    pub name: &'static str,
    /// What code may be made.
    pub capabilities: Capabilities,
    /// How fast it is.
    pub rates: Rates,
    /// How work is cut for it.
    pub tuning: Tuning,
}

/// What code may be made for a kind of device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// What kernels become.
    pub code: Code,
    /// Bytes of fast memory a task may use for its tiles: shared memory of a GPU.
    pub tile_bytes: usize,
    /// Bytes of memory that the threads of a task share: shared memory of a GPU; none where a task has one thread.
    pub shared_bytes: usize,
    /// Whether products of tiles may run on tensor cores.
    pub has_tensor_cores: bool,
    /// Buffers that a kernel may bind.
    pub tensors_per_kernel: usize,
    /// Whether weights are dequantised into tiles before a GEMM; the CPU's microkernels do it themselves.
    pub dequantises_to_tiles: bool,
}

/// What kernels become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// Machine code of the processor that runs it.
    Machine,
    /// CUDA C++.
    Cuda,
    /// The WebGPU shading language.
    Wgsl,
    /// The Metal shading language.
    Msl,
}

/// How fast a device is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Compute units: cores of a processor, SMs of a GPU.
    pub compute_units: usize,
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
}

/// How work is cut for a kind of device: found by measuring, and right with any number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
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
    /// Whether weights that were concatenated to one projection are computed by separate nests or parts, one for each
    /// weight.
    pub splits_joined_weights: bool,
}

impl Target {
    /// Whether code generated for processors runs on it.
    pub fn is_processor(&self) -> bool {
        self.capabilities.code == Code::Machine
    }

    /// The largest GEMM tile that leaves a task for every second compute unit, else the smallest: data reuse within a
    /// task is worth more than some idle units.
    pub fn gemm_tile(&self, n_tasks: impl Fn(GemmTile) -> i64) -> GemmTile {
        let is_enough = |share: &GemmTile| 2 * n_tasks(*share) >= self.rates.compute_units as i64;
        let [.., least] = self.tuning.gemm_tiles else { unreachable!("a target has shares") };
        self.tuning.gemm_tiles.iter().copied().find(is_enough).unwrap_or(*least)
    }
}

impl Rates {
    /// The roofline: the slower of moving the bytes and doing the operations.
    pub fn roofline(&self, work: Work) -> f64 {
        (work.bytes / self.bandwidth).max(work.flops / self.flops)
    }
}

impl Tuning {
    /// Cached positions that attention takes at a time with `n_queries` queries.
    pub fn positions_per_step(&self, n_queries: usize) -> usize {
        (self.scores_per_step / n_queries.max(1)).max(MIN_POSITIONS_PER_STEP) / MIN_POSITIONS_PER_STEP
            * MIN_POSITIONS_PER_STEP
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
    fn tasks_have_as_many_products_as_leave_work_for_others() {
        let of = |target: &Target, tokens: i64, rows: i64| {
            target.gemm_tile(|share| (tokens / share.tokens).max(1) * (rows / share.rows).max(1))
        };
        assert_eq!(of(&CUDA_SM90, 512, 4096), GemmTile { tokens: 128, rows: 128 });
        assert_eq!(of(&CUDA_SM90, 512, 1024), GemmTile { tokens: 64, rows: 64 });
        assert_eq!(of(&CUDA_SM90, 16, 128), GemmTile { tokens: 16, rows: 32 });
        assert_eq!(of(&CUDA_SM90.with_rates(30, 400), 512, 1024), GemmTile { tokens: 128, rows: 128 });
    }

    #[test]
    fn the_slower_of_bytes_and_operations_counts() {
        assert_eq!(CPU.rates.roofline(Work { bytes: 50e9, flops: 1.0 }), 1.0);
        assert_eq!(CPU.rates.roofline(Work { bytes: 1.0, flops: 600e9 }), 2.0);
    }
}
