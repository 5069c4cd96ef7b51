//! Whole models from files, run on the processor, or on a GPU in `gpu.rs`, and held against what others recorded.
//!
//! In: checkpoints with the logits and tokens of Transformers, of exact arithmetic on the same weights, or of the
//! program whose format it is. Out: errors below the bars that stand beside each test.
//! `recorded.rs` compares; `session.rs` looks at what holds for every session, `generate.rs` at what holds for answers,
//! `best.rs` at where tokens are chosen.

use std::path::Path;

use fusebox_compiler::codegen::cpu::Cpu;
use fusebox_compiler::codegen::cpu::level::{Level, Numbers};
use fusebox_compiler::options::Options;
use fusebox_compiler::tensor::quant::Format;
use fusebox_models::layers::embed::Scored;
use fusebox_models::load::{Model, Settings};
use fusebox_runtime::device::cpu::CpuDevice;
use fusebox_runtime::session::Session;
use fusebox_runtime::session::cache::Cache;

mod best;
mod generate;
mod gpu;
mod recorded;
mod session;

/// How a model is run in a test.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    level: Level,
    numbers: Numbers,
    n_threads: usize,
    pub(crate) settings: Settings,
}

impl Run {
    pub(crate) fn new(numbers: Numbers) -> Self {
        let settings = Settings { context: 256, chunk: 64, cache: Format::F32, scored: Scored::Last };
        Self { level: Level::host(), numbers, n_threads: 2, settings }
    }

    pub(crate) fn open(self, path: &Path) -> Session {
        let model = Model::open(path).unwrap_or_else(|error| panic!("{error}"));
        let cpu = Cpu::at(self.level, self.numbers).unwrap();
        let device = Box::new(CpuDevice::new(cpu, self.n_threads).unwrap());
        model.session(device, &self.settings, &Options::default(), &mut Cache::default()).unwrap()
    }
}

/// The tokens that a session goes on with, each the likeliest, the logits of the first included.
fn greedy(session: &mut Session, prompt: &[u32], n: usize) -> (Vec<f32>, Vec<u32>) {
    let first = session.feed(prompt).unwrap().to_vec();
    let mut tokens = vec![likeliest(&first)];
    while tokens.len() < n {
        let logits = session.feed(&[tokens[tokens.len() - 1]]).unwrap();
        tokens.push(likeliest(logits));
    }
    (first, tokens)
}

fn likeliest(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (token, logit) in logits.iter().enumerate() {
        if *logit > logits[best] {
            best = token;
        }
    }
    best as u32
}

/// `√(mean (a - b)²) / std b`
pub(crate) fn relative_error(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    let n = b.len() as f64;
    let mean = b.iter().map(|x| f64::from(*x)).sum::<f64>() / n;
    let variance = b.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / n;
    let square = a.iter().zip(b).map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2)).sum::<f64>() / n;
    (square / variance).sqrt()
}
