//! `fusebox story --time`: the kernels of a graph, timed without a model.
//!
//! In: a plan for a processor and its story. Out: the time of each launch beside the estimate that fusion decided by.
//! Weights, states and inputs are zeros, which changes the time of no product. A size that may vary has the value that
//! estimates are made for; the length of a context that is an input is zero too, and attention over it is short.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use fusebox::open::environment;
use fusebox::text::amount::{bytes, counted};
use fusebox::text::table::table;
use fusebox_compiler::codegen::cpu::Cpu;
use fusebox_compiler::options::Numbers;
use fusebox_compiler::pipeline::Compiled;
use fusebox_compiler::schedule::{BufferSlot, Place, Plan};
use fusebox_runtime::buffer::Buffer;
use fusebox_runtime::device::cpu::CpuDevice;
use fusebox_runtime::device::{Device, Weights};
use fusebox_runtime::error::Error;
use serde_json::{Value, json};

/// Measurements of each launch, after one that is not counted.
const N_REPEATS: usize = 9;

/// A launch.
struct Launch {
    name: String,
    /// Bytes moved, and microseconds, as they were estimated.
    bytes: f64,
    estimate: f64,
    /// Microseconds.
    time: f64,
}

/// The times of a graph.
pub(crate) struct Timed {
    launches: Vec<Launch>,
    n_threads: usize,
}

/// Zeros for every weight of a plan.
struct Zeros(BTreeMap<String, Buffer>);

impl Weights for Zeros {
    fn bytes(&self, name: &str) -> Option<&[u8]> {
        self.0.get(name).map(Buffer::bytes)
    }
}

impl Zeros {
    fn of(plan: &Plan) -> Result<Self, Error> {
        let weights = plan.buffers.values().filter(|buffer| buffer.place == Place::Weight);
        let zeros = |buffer: &BufferSlot| Ok((buffer.name.to_string(), Buffer::zeroed(buffer.bytes)?));
        Ok(Self(weights.map(zeros).collect::<Result<_, Error>>()?))
    }
}

impl Timed {
    /// Runs a compiled graph on this processor.
    pub(crate) fn of(compiled: &Compiled, n_threads: usize) -> Result<Self, String> {
        let times = measure(&compiled.plan, n_threads)?;
        let launches = compiled.story.launches().zip(times).map(|(kernel, time)| Launch {
            name: kernel.name.clone(),
            bytes: kernel.bytes_read + kernel.bytes_written,
            estimate: kernel.microseconds,
            time: time.as_nanos() as f64 / 1e3,
        });
        Ok(Self { launches: launches.collect(), n_threads })
    }

    /// A row for each launch.
    pub(crate) fn to_text(&self) -> String {
        let row = |number: String, Launch { name, bytes: moved, estimate, time }: &Launch| {
            let rate = moved / time.max(1e-3) / 1e3;
            let [time, estimate, rate] = [*time, *estimate, rate].map(|number| format!("{number:.1}"));
            [number, bytes(*moved), estimate, time, rate, name.clone()]
        };
        let sum = |value: &dyn Fn(&Launch) -> f64| self.launches.iter().map(value).sum::<f64>();
        let all = Launch {
            name: String::new(),
            bytes: sum(&|launch| launch.bytes),
            estimate: sum(&|launch| launch.estimate),
            time: sum(&|launch| launch.time),
        };
        let heads = ["step", "bytes", "estimate us", "us", "GB/s", "kernel"].map(str::to_owned);
        let mut rows = vec![heads];
        rows.extend(self.launches.iter().enumerate().map(|(step, launch)| row(step.to_string(), launch)));
        rows.push(row("all".to_owned(), &all));
        format!("{}with {}\n", table("rrrrrl", "  ", &rows), counted(self.n_threads, "thread"))
    }

    /// The same for machines.
    pub(crate) fn to_json(&self) -> Value {
        let launch = |launch: &Launch| {
            let Launch { name, estimate, time, .. } = launch;
            json!({ "kernel": name, "us": time, "estimate_us": estimate })
        };
        json!({
            "threads": self.n_threads,
            "steps": self.launches.iter().map(launch).collect::<Vec<_>>(),
        })
    }
}

/// The median time of every launch.
fn measure(plan: &Plan, n_threads: usize) -> Result<Vec<Duration>, String> {
    let (_, level) = environment()?;
    let run = || -> Result<Vec<Vec<Duration>>, Error> {
        let mut device = CpuDevice::new(Cpu::at(level, Numbers::Quantised)?, n_threads)?;
        let weights: Arc<dyn Weights> = Arc::new(Zeros::of(plan)?);
        let program = device.load(plan, &weights)?;
        let symbols: Vec<i64> = plan.symbols().iter().map(|symbol| symbol.near).collect();
        (0..=N_REPEATS).map(|_| device.profile(program, &symbols)).collect()
    };
    let all = run().map_err(|error| error.to_string())?;
    let median = |step: usize| {
        let mut own: Vec<Duration> = all[1..].iter().map(|times| times[step]).collect();
        own.sort();
        own[own.len() / 2]
    };
    Ok((0..all[0].len()).map(median).collect())
}
