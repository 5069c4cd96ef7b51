//! Models run on the processor, and how far their logits are off.
//!
//! In: a file. Out: a session, set up as most tests want it.

use std::path::Path;

use fusebox_compiler::codegen::cpu::Cpu;
use fusebox_compiler::options::{Numbers, Options};
use fusebox_compiler::simd::Level;
use fusebox_compiler::tensor::quant::Format;
use fusebox_models::layers::embed::Scored;
use fusebox_models::load::{Model, Settings};
use fusebox_runtime::device::cpu::CpuDevice;
use fusebox_runtime::session::Session;
use fusebox_runtime::session::cache::Cache;

/// How a model is run in a test.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// The instructions that are used.
    pub level: Level,
    /// How exactly it is computed.
    pub numbers: Numbers,
    /// How many threads share the work.
    pub n_threads: usize,
    /// What the session is made for.
    pub settings: Settings,
}

impl Run {
    /// With the best instructions of this processor, on two threads.
    pub fn new(numbers: Numbers) -> Self {
        let settings = Settings::of_one(256, 64, Format::F32, Scored::Last);
        Self { level: Level::host(), numbers, n_threads: 2, settings }
    }

    /// A session with the model of a file.
    pub fn open(self, path: &Path) -> Session {
        let model = Model::open(path).unwrap_or_else(|error| panic!("{error}"));
        let cpu = Cpu::at(self.level, self.numbers).unwrap();
        let device = Box::new(CpuDevice::new(cpu, self.n_threads).unwrap());
        model.session(device, &self.settings, &Options::default(), &Cache::default()).unwrap()
    }
}

/// `√(mean (a - b)²) / std b`
pub fn relative_error(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    let n = b.len() as f64;
    let mean = b.iter().map(|x| f64::from(*x)).sum::<f64>() / n;
    let variance = b.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / n;
    let square = a.iter().zip(b).map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2)).sum::<f64>() / n;
    (square / variance).sqrt()
}
