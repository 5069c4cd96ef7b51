//! What the symbols of a replay make of its launches, for devices with memory of their own.
//!
//! In: the values of a plan's symbols. Out: words for the device to read, and how many tasks each kernel has.
//! Each kernel has its symbols in a piece of one buffer, so that a replay hands all of them over at once.

use fusebox_compiler::codegen::gpu::Code;
use fusebox_compiler::schedule::Plan;
use fusebox_compiler::tensor::sym::Symbol;

/// The symbols of a kernel among those of its plan.
pub(super) struct Numbers {
    /// Which of the plan's symbols each of the kernel's is.
    of_plan: Vec<usize>,
    /// Its first byte in the buffer of all symbols.
    pub(super) offset: usize,
    /// Its bytes there.
    pub(super) bytes: usize,
}

impl Numbers {
    /// Gives every kernel a piece of one buffer, from multiples of an alignment on; also says how large that is.
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

    /// Writes the values of a kernel's symbols into the bytes of all symbols.
    pub(super) fn write(&self, symbols: &[i64], all: &mut [u8]) {
        let own = all[self.offset..self.offset + self.bytes].as_chunks_mut::<4>().0;
        for (word, idx) in own.iter_mut().zip(&self.of_plan) {
            *word = (symbols[*idx] as i32).to_le_bytes();
        }
    }

    /// How many tasks a kernel has.
    pub(super) fn n_tasks(&self, code: &Code, symbols: &[i64]) -> i64 {
        code.n_tasks(&|symbol| {
            let idx = code.symbols.iter().position(|own| *own == symbol);
            symbols[self.of_plan[idx.expect("every symbol of a kernel is in its list")]]
        })
    }
}
