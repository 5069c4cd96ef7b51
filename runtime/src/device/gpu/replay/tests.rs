//! A GPU on a machine that computes nothing and knows which of its memory is still kept.
//!
//! In: plans. Out: the requests to the machine, and an error where a launch finds its memory gone.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

use fusebox_compiler::codegen::gpu::dialect::Language;
use fusebox_compiler::graph::Name;
use fusebox_compiler::graph::parse::parse;
use fusebox_compiler::options::Options;
use fusebox_compiler::pipeline::compile;
use fusebox_compiler::target::CUDA_SM90;

use super::*;
use crate::device::gpu::device_memory::silent;

/// Something lies in between, and something comes with the plan.
const GRAPH: &str = "
%0 = input x : f32[t:2, d:2]
%1 = exp %0
%2 = barrier %1
%3 = table d [1.0, 2.0]
%4 = mul %2 %3
output y = %4
";

/// All bytes of its memory, as far as it says.
const SIZE: usize = 1 << 30;

/// A machine whose memory may start at multiples of this, and how many sources it has compiled.
struct Fake(usize, Arc<AtomicUsize>);

impl Fake {
    fn new(alignment: usize) -> Self {
        Self(alignment, Arc::default())
    }
}

impl Machine for Fake {
    type Memory = Arc<()>;
    type Function = ();
    /// Names its memory, and does not keep it.
    type Launch = Vec<Weak<()>>;
    type LaunchList = ();

    fn describe(&self) -> String {
        "a fake".to_owned()
    }

    fn dialect(&self) -> Dialect {
        Language::Cuda.into()
    }

    fn alignment(&self) -> usize {
        self.0
    }

    fn max_workgroups(&self) -> u32 {
        16
    }

    fn max_workgroups_with_scratch(&self) -> u32 {
        4
    }

    fn size(&self) -> Option<usize> {
        Some(SIZE)
    }

    fn free(&self) -> Option<usize> {
        None
    }

    fn allocate(&self, _: &str, _: usize) -> Result<Arc<()>, Error> {
        Ok(Arc::new(()))
    }

    fn piece(&self, of: &Arc<()>, _: usize, _: usize) -> Arc<()> {
        Arc::clone(of)
    }

    fn write(&self, _: &Arc<()>, _: &[u8]) -> Result<(), Error> {
        Ok(())
    }

    fn functions(&self, codes: &[&Code]) -> Result<Vec<()>, Error> {
        self.1.fetch_add(codes.len(), Ordering::Relaxed);
        Ok(vec![(); codes.len()])
    }

    fn launch(&self, (): &(), pieces: &[Arc<()>], _: u32) -> Result<Vec<Weak<()>>, Error> {
        Ok(pieces.iter().map(Arc::downgrade).collect())
    }

    fn launch_list(&mut self, _: &[Vec<Weak<()>>], _: usize) -> Result<(), Error> {
        Ok(())
    }

    fn run(
        &self,
        (): &(),
        launches: &[Vec<Weak<()>>],
        _: &[u32],
        _: (&Arc<()>, &mut [u8]),
    ) -> Result<(), Error> {
        launches.iter().try_for_each(|launch| self.run_one(launch, 1))
    }

    fn run_one(&self, launch: &Vec<Weak<()>>, _: u32) -> Result<(), Error> {
        let n_gone = launch.iter().filter(|piece| piece.strong_count() == 0).count();
        if n_gone == 0 {
            return Ok(());
        }
        let what = format!("{n_gone} pieces of memory are gone");
        Err(CompilerError::Unsupported { what, target: "fake".to_owned() }.into())
    }

    fn read(&self, (): &(), _: &Arc<()>, _: &mut [u8]) -> Result<(), Error> {
        Ok(())
    }
}

struct Nothing;

impl Weights for Nothing {
    fn bytes(&self, _: &str) -> Option<&[u8]> {
        None
    }
}

fn weights() -> Arc<dyn Weights> {
    Arc::new(Nothing)
}

fn plan() -> Plan {
    let options = Options::for_target(CUDA_SM90);
    let plan = compile(&parse(GRAPH).unwrap(), &options).unwrap().plan;
    let has = |wanted: fn(&Place) -> bool| plan.buffers.values().any(|slot| wanted(&slot.place));
    assert!(has(|place| matches!(place, Place::Arena { .. })), "{plan}");
    assert!(has(|place| matches!(place, Place::Constant(_))), "{plan}");
    plan
}

#[test]
fn a_program_keeps_the_memory_of_its_launches() {
    for alignment in [arena::ALIGNMENT, 4 * arena::ALIGNMENT] {
        let mut device = Gpu::new(Fake::new(alignment), None, silent());
        let program = device.load(&plan(), &weights()).unwrap();
        device.replay(program, &[]).unwrap();
        device.profile(program, &[]).unwrap();
    }
}

#[test]
fn no_more_is_free_than_there_is() {
    for (limit, free) in [(None, SIZE), (Some(5), 5), (Some(usize::MAX), SIZE)] {
        let device = Gpu::new(Fake::new(arena::ALIGNMENT), limit, silent());
        assert_eq!(device.free(), Some(free));
    }
}

#[test]
fn a_source_is_compiled_once() {
    let machine = Fake::new(arena::ALIGNMENT);
    let n_compiled = Arc::clone(&machine.1);
    let mut device = Gpu::new(machine, None, silent());
    let plan = plan();
    device.load(&plan, &weights()).unwrap();
    assert_eq!(n_compiled.load(Ordering::Relaxed), plan.kernels.len());
    device.load(&plan, &weights()).unwrap();
    assert_eq!(n_compiled.load(Ordering::Relaxed), plan.kernels.len());
    let told = device.footprint();
    assert_eq!(
        (told.n_emitted, told.n_compiled, told.n_kept),
        (2 * plan.kernels.len(), n_compiled.load(Ordering::Relaxed), 0)
    );
}

/// Tensors of as many blocks of 34 bytes as their names say, up to one that is missing.
struct Blocks(Vec<u8>, Option<Name>);

impl Weights for Blocks {
    fn bytes(&self, name: &str) -> Option<&[u8]> {
        let n_blocks: usize = name.strip_prefix('w')?.parse().ok()?;
        (self.1.as_deref() != Some(name)).then(|| &self.0[..34 * n_blocks])
    }
}

/// The progress that is reported while the weights of a plan are uploaded, and the error.
fn told(plan: &Plan, missing: Option<Name>) -> (Vec<(usize, usize)>, Option<String>) {
    let told = Arc::new(Mutex::new(Vec::new()));
    let own = Arc::clone(&told);
    let tell = Box::new(move |done, all| own.lock().unwrap().push((done, all)));
    let weights: Arc<dyn Weights> = Arc::new(Blocks(vec![0; 34 * 10], missing));
    let loaded = Gpu::new(Fake::new(arena::ALIGNMENT), None, tell).load(plan, &weights);
    let told = told.lock().unwrap().clone();
    (told, loaded.err().map(|error| error.to_string()))
}

#[test]
fn weights_are_handed_over_in_order_until_one_is_missing() {
    let product = |n: usize| {
        let (w, y) = (2 * n - 1, 2 * n);
        format!(
            "%{w} = weight w{n} : q8_0[r:{n}, d:32]\n%{y} = contract %0 %{w} over [d]\noutput y{n} = %{y}\n"
        )
    };
    let text = format!("%0 = input x : f32[d:32]\n{}", (1..=10).map(product).collect::<Vec<_>>().concat());
    let options = Options::for_target(CUDA_SM90);
    let plan = compile(&parse(&text).unwrap(), &options).unwrap().plan;
    let slots: Vec<_> = plan.buffers.values().filter(|slot| slot.place == Place::Weight).collect();
    let sum = |n: usize| slots[..n].iter().map(|slot| slot.bytes).sum::<usize>();
    let expected = |n: usize| (1..=n).map(|n| (sum(n), sum(10))).collect::<Vec<_>>();
    assert_eq!(told(&plan, None), (expected(10), None));
    for (n, slot) in slots.iter().enumerate() {
        let (told, error) = told(&plan, Some(slot.name.clone()));
        assert_eq!(told, expected(n));
        let error = error.expect("a weight is missing");
        assert!(error.contains(&format!("{}: there is no such weight", slot.name)), "{error}");
    }
}
