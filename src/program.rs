//! Graphs that are no language model, compiled for the processor.
//!
//! In: a graph, and its weights by name. Out: a [`Program`], whose inputs and outputs have names.

use std::sync::Arc;

use fusebox_compiler::codegen::cpu::Cpu;
use fusebox_compiler::graph::Graph;
use fusebox_compiler::schedule::Place;
use fusebox_compiler::tensor::quant::Format;
use fusebox_runtime::device::cpu::CpuDevice;
use fusebox_runtime::device::{Device as _, ProgramId, Weights};
use fusebox_runtime::error::Error as RuntimeError;
use fusebox_runtime::session::cache::Cache;
use fusebox_runtime::weights::Checkpoint;

use crate::devices::Device;
use crate::error::Error;
use crate::open::run::Run;
use crate::open::{environment, n_threads, target_of};

/// The tensors of a checkpoint, by their own names.
struct Tensors(Checkpoint);

impl Weights for Tensors {
    fn bytes(&self, name: &str) -> Option<&[u8]> {
        self.0.bytes(name)
    }

    fn check(&self) -> Result<(), RuntimeError> {
        self.0.check()
    }
}

/// A compiled graph on the processor.
pub struct Program {
    device: CpuDevice,
    id: ProgramId,
    weights: Arc<dyn Weights>,
    /// Inputs and outputs, in the order of the device.
    inputs: Vec<Port>,
    outputs: Vec<Port>,
}

/// An input or an output.
struct Port {
    name: String,
    format: Format,
}

impl Program {
    /// Compiles a graph, whose sizes are numbers, with the weights of a file: tensors of the same names and formats.
    ///
    /// # Errors
    /// Where the file cannot be read, the graph does not compile, or a weight is missing or has another size.
    pub fn new(graph: &Graph, weights: impl AsRef<std::path::Path>, run: &Run) -> Result<Self, Error> {
        let (mut options, level) = environment()?;
        options.rules.clone_from(&run.rules);
        options.numbers = run.numbers();
        if let Some(folder) = &run.cache {
            options.cache = Some(folder.to_string_lossy().into_owned());
        }
        options.target = target_of(&options, Device::Cpu);
        let cache = Cache::new(options.cache.clone().map(Into::into));
        let plan = cache.program(graph, &options)?.plan;
        if !plan.symbols().is_empty() {
            return Err(Error::from("the graph has symbols, expected sizes that are numbers"));
        }
        let mut device = CpuDevice::new(Cpu::at(level, options.numbers)?, n_threads(run.threads)?)?;
        let weights: Arc<dyn Weights> = Arc::new(Tensors(Checkpoint::open(weights.as_ref())?));
        let id = device.load(&plan, &weights)?;
        let ports = |place: Place| {
            let own = plan.buffers.values().filter(move |slot| slot.place == place);
            own.map(|slot| Port { name: slot.name.to_string(), format: slot.format }).collect()
        };
        Ok(Self { device, id, weights, inputs: ports(Place::Input), outputs: ports(Place::Output) })
    }

    /// Sets an input of single precision, in row-major order.
    ///
    /// # Errors
    /// Where there is no such input of single precision, or it has another size.
    pub fn set(&mut self, name: &str, values: &[f32]) -> Result<(), Error> {
        let number = index(&self.inputs, name, "input")?;
        let bytes = self.device.input(self.id, number);
        if bytes.len() != size_of_val(values) {
            let what =
                format!("the input `{name}` has {} bytes, found {} numbers", bytes.len(), values.len());
            return Err(Error::from(what));
        }
        for (to, value) in bytes.chunks_exact_mut(size_of::<f32>()).zip(values) {
            to.copy_from_slice(&value.to_le_bytes());
        }
        Ok(())
    }

    /// Runs the graph.
    ///
    /// # Errors
    /// Where the device fails, or the file of the weights has become shorter.
    pub fn run(&mut self) -> Result<(), Error> {
        self.device.replay(self.id, &[])?;
        Ok(self.weights.check()?)
    }

    /// An output of single precision, in row-major order.
    ///
    /// # Errors
    /// Where there is no such output of single precision.
    pub fn output(&self, name: &str) -> Result<Vec<f32>, Error> {
        let bytes = self.device.output(self.id, index(&self.outputs, name, "output")?);
        let number = |bytes: &[u8; 4]| f32::from_le_bytes(*bytes);
        Ok(bytes.as_chunks().0.iter().map(number).collect())
    }
}

fn index(ports: &[Port], name: &str, what: &str) -> Result<usize, Error> {
    let found = ports.iter().position(|port| port.name == name && port.format == Format::F32);
    found.ok_or_else(|| {
        let names: Vec<&str> = ports.iter().map(|port| &*port.name).collect();
        Error::from(format!("there is no {what} `{name}` in f32, the graph has {}", names.join(", ")))
    })
}
