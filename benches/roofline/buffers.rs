//! What kernels read and write while they are measured.
//!
//! In: a kernel, and which of its parameters come from memory. Out: [`Copies`] of each parameter, of which every run
//! takes the next: of what comes from memory more than the caches hold.
//! Numbers are about one, for products of small ones could be so small that they take longer. Of what is small there
//! are several copies with other numbers, so that experts are not always the same.

use fusebox_compiler::foundation::random::Random;
use fusebox_compiler::kernel::{Kernel, Param};
use fusebox_compiler::tensor::dtype::DType;
use fusebox_runtime::buffer::Buffer;
use half::{bf16, f16};

/// Bytes of all copies of what comes from memory.
pub(super) const FOOTPRINT: usize = 192 << 20;

/// Bytes of what does not stay in the caches, whatever it is.
const LARGE: usize = 8 << 20;

/// Bytes of what is small, and how many of it there are.
const SMALL: usize = 64 << 10;
const N_SMALL: usize = 8;

/// Experts of every shape that has some.
const N_EXPERTS: usize = 64;

/// Where a copy may start.
const ALIGNMENT: usize = 64;

/// Copies of a parameter, one after another.
pub(super) struct Copies {
    memory: Buffer,
    n_bytes: usize,
    n: usize,
}

impl Copies {
    /// Those of every parameter of a kernel.
    pub(super) fn of_all(kernel: &Kernel, is_cold: &[bool]) -> Vec<Self> {
        let params = || kernel.params.values().zip(is_cold.iter().copied());
        let cold: usize = params().filter(|(_, is_cold)| *is_cold).map(|(param, _)| bytes(param)).sum();
        let n_cold = FOOTPRINT / cold.max(SMALL) + 1;
        params()
            .map(|(param, is_cold)| match (is_cold, bytes(param) < SMALL) {
                (true, _) => Self::new(param, n_cold),
                (false, true) => Self::new(param, N_SMALL),
                (false, false) => Self::new(param, 1),
            })
            .collect()
    }

    fn new(param: &Param, n: usize) -> Self {
        let n_bytes = bytes(param);
        let mut memory =
            Buffer::zeroed(n * n_bytes.next_multiple_of(ALIGNMENT)).expect("room").in_large_pages();
        let mut random = Random::new(1);
        let mut first = Vec::new();
        for copy in memory.bytes_mut().chunks_mut(n_bytes.next_multiple_of(ALIGNMENT)) {
            if first.is_empty() || n_bytes < SMALL {
                first = filled(param, n_bytes, &mut random);
            }
            copy[..n_bytes].copy_from_slice(&first);
        }
        Self { memory, n_bytes, n }
    }

    /// The copy for a run.
    pub(super) fn copy(&mut self, run: usize) -> &mut [u8] {
        let start = run % self.n * self.n_bytes.next_multiple_of(ALIGNMENT);
        &mut self.memory.bytes_mut()[start..][..self.n_bytes]
    }
}

/// Whether each parameter comes from memory: those that must, and those that no cache holds.
pub(super) fn from_memory(kernel: &Kernel, is_cold: &[bool]) -> Vec<bool> {
    let params = kernel.params.values().zip(is_cold);
    params.map(|(param, is_cold)| *is_cold || bytes(param) > LARGE).collect()
}

fn bytes(param: &Param) -> usize {
    param.format.bytes_for(param.shape.max_len()).expect("whole blocks")
}

fn filled(param: &Param, n_bytes: usize, random: &mut Random) -> Vec<u8> {
    let mut number = || random.below(1 << 16) as f32 / 32768.0 - 1.0;
    match param.format.plain() {
        Some(DType::F32) => (0..n_bytes / 4).flat_map(|_| number().to_le_bytes()).collect(),
        Some(DType::F16) => (0..n_bytes / 2).flat_map(|_| f16::from_f32(number()).to_le_bytes()).collect(),
        Some(DType::BF16) => (0..n_bytes / 2).flat_map(|_| bf16::from_f32(number()).to_le_bytes()).collect(),
        Some(DType::I32) => {
            (0..n_bytes / 4).flat_map(|_| (random.below(N_EXPERTS) as i32).to_le_bytes()).collect()
        }
        // Small scales and numbers: every second byte is zero.
        None => (0..n_bytes).map(|i| if i % 2 == 0 { 0 } else { (i % 32) as u8 }).collect(),
    }
}
