//! Where generated code meets micro-kernels: the formats that they know, and how they are called.
//!
//! In: a format, or the addresses of a micro-kernel and of its argument struct. Out: its name among micro-kernels, or
//! a call. Generated code has no unwind tables, so no panic may pass through it: that a kernel panicked is kept for
//! the thread until [`take_panic`] asks. What the kernel should have written is not there then, so results are worth
//! nothing, but every address that generated code then uses is still one of its own.
//! A [`Planted`] panic is for tests: only code that was made with one looks for it.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

use fusebox_simd::{GROUP, Storage};

use crate::options::Planted;
use crate::tensor::quant::Format;

/// A weight format as micro-kernels know it, if they do, and the elements that share a scale where scales are stored
/// apart.
pub(crate) fn storage(format: Format) -> Option<(Storage, usize)> {
    let storage = match format {
        Format::F32 => Storage::F32,
        Format::F16 => Storage::F16,
        Format::BF16 => Storage::BF16,
        Format::I32 => return None,
        Format::Q4_0 => Storage::Q4_0,
        Format::Q4_1 => Storage::Q4_1,
        Format::Q5_0 => Storage::Q5_0,
        Format::Q5_1 => Storage::Q5_1,
        Format::Q8_0 => Storage::Q8_0,
        Format::Q2K => Storage::Q2K,
        Format::Q3K => Storage::Q3K,
        Format::Q4K => Storage::Q4K,
        Format::Q5K => Storage::Q5K,
        Format::Q6K => Storage::Q6K,
        Format::IQ4NL => Storage::IQ4NL,
        Format::IQ4XS => Storage::IQ4XS,
        Format::MXFP4 => Storage::MXFP4,
        Format::Q4Pairs => Storage::Q4Pairs,
        Format::Int8 { group } => {
            let group = group as usize;
            return (group > 0 && group.is_multiple_of(GROUP)).then_some((Storage::Int8, group));
        }
    };
    Some((storage, GROUP))
}

/// The address of an argument struct.
type Arguments = *const ();

thread_local! {
    static HAS_PANICKED: Cell<bool> = const { Cell::new(false) };
    /// The calls so far of code that was made with a planted panic.
    static N_CALLS: Cell<u64> = const { Cell::new(0) };
}

/// A planted panic as one number, for generated code.
pub(crate) fn packed(planted: Planted) -> i64 {
    i64::from(planted.thread) << 32 | i64::from(planted.call)
}

fn unpacked(packed: i64) -> Planted {
    Planted { thread: (packed >> 32) as u32, call: packed as u32 }
}

/// Counts a call of this thread, and panics where it is the one.
fn count(planted: Planted) {
    let n = N_CALLS.get() + 1;
    N_CALLS.set(n);
    // Threads of a team have their number in their name; the first is the caller's.
    let own = thread::current().name().and_then(|name| name.strip_prefix("fusebox-")?.parse().ok());
    let is_it = (own.unwrap_or(0), n) == (planted.thread, u64::from(planted.call));
    assert!(!is_it, "this panic was planted");
}

/// Calls a micro-kernel.
///
/// # Safety
/// The first address must be of a micro-kernel, the second of an argument struct that it takes.
#[expect(unsafe_code, reason = "generated code passes addresses")]
pub(crate) unsafe extern "C" fn call(function: unsafe extern "C-unwind" fn(Arguments), job: Arguments) {
    // SAFETY: the caller promises it.
    caught(|| unsafe { function(job) });
}

/// The same for code that was made with a planted panic.
///
/// # Safety
/// As [`call`].
#[expect(unsafe_code, reason = "generated code passes addresses")]
pub(crate) unsafe extern "C" fn call_planted(
    function: unsafe extern "C-unwind" fn(Arguments),
    job: Arguments,
    planted: i64,
) {
    caught(|| {
        count(unpacked(planted));
        // SAFETY: the caller promises it.
        unsafe { function(job) };
    });
}

fn caught(work: impl FnOnce()) {
    // Whoever asks for the panic throws the results away.
    if catch_unwind(AssertUnwindSafe(work)).is_err() {
        HAS_PANICKED.set(true);
    }
}

/// Whether a micro-kernel has panicked on this thread since this was asked last.
pub(crate) fn take_panic() -> bool {
    HAS_PANICKED.take()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn micro_kernels_read_the_bytes_that_the_format_has() {
        for format in Format::FIXED {
            let Some((storage, _)) = storage(format) else { continue };
            assert_eq!(storage.block(), (format.block_len(), format.block_bytes()), "{format}");
            let [theirs, own] = [storage.blocks(), format.blocks()].map(|blocks| blocks.map(|own| own.name));
            assert_eq!(theirs, own, "{format}");
        }
    }

    #[test]
    fn a_panic_ends_at_the_boundary_and_is_told_once() {
        caught(|| {});
        assert!(!take_panic());
        caught(|| panic!("planted"));
        assert!(take_panic());
        assert!(!take_panic());
    }

    #[test]
    fn a_planted_panic_is_that_of_one_call_on_one_thread() {
        let planted = Planted { thread: 1, call: 2 };
        assert_eq!(unpacked(packed(planted)), planted);
        let panics = |name: &str| {
            let calls = move || {
                let call = || {
                    caught(|| count(planted));
                    take_panic()
                };
                [call(), call(), call()]
            };
            thread::Builder::new().name(name.to_owned()).spawn(calls).unwrap().join().unwrap()
        };
        assert_eq!(panics("fusebox-1"), [false, true, false]);
        assert_eq!(panics("fusebox-2"), [false; 3]);
        assert_eq!(panics("another"), [false; 3]);
    }
}
