//! Symbol values of a replay, for devices with memory of their own.
//!
//! In: the values of a plan's symbols. Out: their words as kernels read them, and the number of tasks of each kernel.
//! Each kernel has its symbols in a slice of one buffer, so that a replay uploads all of them at once.

use fusebox_compiler::codegen::gpu::Code;
use fusebox_compiler::schedule::Plan;
use fusebox_compiler::tensor::sym::Symbol;

/// The symbols of a kernel among those of its plan.
pub(super) struct SymbolValues {
    /// The index of each in the plan's symbols.
    of_plan: Vec<usize>,
    /// The kernel's first byte in the buffer of all symbols.
    pub(super) offset: usize,
    /// Its bytes there.
    pub(super) bytes: usize,
}

impl SymbolValues {
    /// Gives every kernel an aligned slice of one buffer, and gives the buffer's size.
    pub(super) fn placed(plan: &Plan, codes: &[Code], alignment: usize) -> (Vec<Self>, usize) {
        let all = plan.symbols();
        let of_plan = |symbol: &Symbol| {
            let place = all.iter().position(|own| own == symbol);
            place.expect("the plan lists the symbols of all its kernels")
        };
        let mut offset = 0;
        let mut place = |code: &Code| {
            let bytes = 4 * code.symbols.len().max(1);
            let own = Self { of_plan: code.symbols.iter().map(of_plan).collect(), offset, bytes };
            offset = (offset + bytes).next_multiple_of(alignment.max(4));
            own
        };
        let placed = codes.iter().map(&mut place).collect();
        (placed, offset)
    }

    /// Writes the values of a kernel's symbols into the buffer of all symbols.
    pub(super) fn write(&self, symbols: &[i64], all: &mut [u8]) {
        let own = all[self.offset..self.offset + self.bytes].as_chunks_mut::<4>().0;
        for (word, idx) in own.iter_mut().zip(&self.of_plan) {
            *word = (symbols[*idx] as i32).to_le_bytes();
        }
    }

    /// The number of tasks of a kernel.
    pub(super) fn n_tasks(&self, code: &Code, symbols: &[i64]) -> i64 {
        code.n_tasks(&|symbol| {
            let idx = code.symbols.iter().position(|own| *own == symbol);
            symbols[self.of_plan[idx.expect("every symbol of a kernel is in its list")]]
        })
    }
}
