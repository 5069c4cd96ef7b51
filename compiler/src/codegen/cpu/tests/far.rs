//! Functions of one kernel that lie farther apart than a near call reaches.
//!
//! In: a memory that puts every piece of code behind a gap of its own. Out: that code is linked and computes the same.
//! Between two pieces the system may place whatever else a process maps, such as caches of gigabytes.

#![expect(unsafe_code, reason = "giving memory back is unsafe by its declaration")]

use std::io;

use cranelift_jit::{ArenaMemoryProvider, BranchProtection, JITMemoryKind, JITMemoryProvider};
use cranelift_module::ModuleResult;

use super::wide::{numbers, rows};
use super::*;
use crate::codegen::cpu::jit::link_in;

/// Twice what 32 bits reach in one direction; it is reserved and never touched.
const GAP: usize = 4 << 30;

/// A region for each piece, which lies at its start.
#[derive(Default)]
struct Far(Vec<ArenaMemoryProvider>);

impl JITMemoryProvider for Far {
    fn allocate(&mut self, size: usize, align: u64, kind: JITMemoryKind) -> io::Result<*mut u8> {
        let mut region = ArenaMemoryProvider::new_with_size(GAP + size).map_err(io::Error::other)?;
        let place = region.allocate(size, align, kind)?;
        self.0.push(region);
        Ok(place)
    }

    unsafe fn free_memory(&mut self) {
        for region in &mut self.0 {
            // SAFETY: the caller promises that no code in it runs any more.
            unsafe { JITMemoryProvider::free_memory(region) }
        }
    }

    #[expect(clippy::result_large_err, reason = "the error is that of the trait")]
    fn finalize(&mut self, protection: BranchProtection) -> ModuleResult<()> {
        self.0.iter_mut().try_for_each(|region| JITMemoryProvider::finalize(region, protection))
    }
}

#[test]
fn functions_may_lie_gigabytes_apart() {
    let nest = "for r0, e1\n    @5[r0, e1] = exp(sub(@0[r0, e1], @3[r0]))";
    let text = rows(64, "f32[r:5, e:64]", nest);
    let own = [0.5, 1.25, 3.0, 0.001, 0.75, 2.5, 1.0];
    for level in [Level::host(), Level::Portable] {
        let cpu = Cpu::at(level, Numbers::Single).unwrap();
        let code = link_in(Box::new(Far::default()), &cpu, &parse(&text).unwrap()).unwrap();
        check_code(&code, "far apart", near, &[], &numbers(64, &own), 1);
    }
}
