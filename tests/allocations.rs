//! A decode step allocates nothing, on any thread.
//!
//! In: the default model, and an allocator that counts what all threads of the process ask for. Out: a count of none
//! over many steps. It is a binary of its own because any other test would be counted as well.

#![allow(clippy::unwrap_used, reason = "a test that does not hold panics")]
#![expect(unsafe_code, reason = "an allocator is unsafe to write")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use fusebox_compiler::codegen::cpu::Cpu;
use fusebox_compiler::options::{Numbers, Options};
use fusebox_compiler::tensor::quant::Format;
use fusebox_models::layers::embed::Scored;
use fusebox_models::load::{Model, Settings};
use fusebox_runtime::device::cpu::CpuDevice;
use fusebox_runtime::session::cache::Cache;
use fusebox_runtime::session::engine::{Engine, Piece, SequenceId};
use support::given::story;

/// The system's allocator, and how often it was asked.
struct Counting(AtomicUsize);

#[global_allocator]
static ALLOCATOR: Counting = Counting(AtomicUsize::new(0));

// SAFETY: every call is handed on to the system's allocator as it came; counting touches no memory of the caller.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.0.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract, which is the system's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: `start` came from `alloc` above, which is the system's.
        unsafe { System.dealloc(start, layout) }
    }
}

#[test]
fn a_decode_step_allocates_nothing() {
    let model = Model::open(&story()).unwrap();
    for (numbers, n_threads) in [(Numbers::Single, 1), (Numbers::Quantised, 2)] {
        let device = Box::new(CpuDevice::new(Cpu::host(numbers).unwrap(), n_threads).unwrap());
        let settings = Settings::of_one(64, 8, Format::F16, Scored::Last);
        let mut session = model.session(device, &settings, &Options::default(), &Cache::default()).unwrap();
        session.feed(&[1, 2, 3]).unwrap();
        session.feed(&[4]).unwrap();
        let before = ALLOCATOR.0.load(Ordering::Relaxed);
        let mut sum = 0.0;
        for token in 5..37 {
            sum += session.feed(&[token]).unwrap()[0];
        }
        session.truncate(10).unwrap();
        session.feed(&[1, 2, 3, 4, 5, 6, 7, 8, 9]).unwrap();
        assert_eq!(ALLOCATOR.0.load(Ordering::Relaxed) - before, 0, "{n_threads} threads");
        assert!(sum.is_finite());
    }
    // In one test with the rest: another thread's would be counted as well.
    let device = Box::new(CpuDevice::new(Cpu::host(Numbers::Quantised).unwrap(), 2).unwrap());
    let settings = Settings::of_batch(4, 128, 8, Format::F16, Scored::Last);
    let mut engine = model.engine(device, &settings, &Options::default(), &Cache::default()).unwrap();
    let open: Vec<SequenceId> = (0..4).map(|_| engine.open()).collect();
    let step = |engine: &mut Engine, open: &[SequenceId]| {
        let token = [1];
        let pieces: [Piece<'_>; 4] =
            std::array::from_fn(|number| Piece::of(open[number % open.len()], &token));
        engine.step(&pieces[..open.len()]).unwrap();
    };
    step(&mut engine, &open);
    step(&mut engine, &open[..1]);
    let before = ALLOCATOR.0.load(Ordering::Relaxed);
    // Past the end of a page, with sequences that come and go.
    for number in 0..100 {
        step(&mut engine, &open[..4 - number % 4]);
    }
    assert_eq!(ALLOCATOR.0.load(Ordering::Relaxed) - before, 0, "four sequences");
}
