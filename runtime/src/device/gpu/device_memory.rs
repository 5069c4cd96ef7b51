//! The contents of device memory: weights, states (KV caches), and the arena that all programs share.
//!
//! In: the buffers of plans. Out: memory for each. Weights are repacked and uploaded once, states live on, and all
//! programs share one arena, because no two of them run at a time. Before a plan allocates anything, it is known
//! whether all of it fits: a refused plan leaves the device as it was.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;

use fusebox_compiler::codegen::gpu::value::layout::{bytes, repacked};
use fusebox_compiler::graph::Name;
use fusebox_compiler::schedule::{BufferSlot, Place, Plan};
use fusebox_compiler::tensor::quant::Format;
use indexmap::IndexMap;

use crate::device::gpu::machine::Machine;
use crate::device::{Footprint, Weights, refused, weight};
use crate::error::Error;

/// The most threads that repack weights. Each holds one tensor at a time, which bounds host memory.
const MAX_REPACK_THREADS: usize = 4;

/// Called with the uploaded bytes of a program's weights, and their total.
pub type Tell = Box<dyn FnMut(usize, usize) + Send>;

/// Ignores the progress.
pub fn silent() -> Tell {
    Box::new(|_, _| {})
}

/// A state, and how its elements are stored.
struct State<T> {
    format: Format,
    n_elements: usize,
    memory: T,
}

/// Device memory and what is in it.
pub(super) struct DeviceMemory<T> {
    /// The most bytes to allocate.
    limit: Option<usize>,
    allocated: usize,
    tell: Tell,
    states: IndexMap<Name, State<T>>,
    weights: IndexMap<Name, T>,
    /// The shared arenas, the largest last.
    shared: Vec<(usize, T)>,
    pub(super) footprint: Footprint,
}

impl<T: Clone> DeviceMemory<T> {
    pub(super) fn new(limit: Option<usize>, tell: Tell) -> Self {
        Self {
            limit,
            allocated: 0,
            tell,
            states: IndexMap::new(),
            weights: IndexMap::new(),
            shared: Vec::new(),
            footprint: Footprint::default(),
        }
    }

    /// Bytes that may still be allocated, where that is known.
    pub(super) fn free(&self, machine: &impl Machine<Memory = T>) -> Option<usize> {
        let own = self.limit.map(|limit| limit.saturating_sub(self.allocated));
        own.into_iter().chain(machine.free()).min()
    }

    /// Checks that a plan's new weights and states fit, with `besides` bytes more.
    pub(super) fn check(
        &self,
        machine: &impl Machine<Memory = T>,
        plan: &Plan,
        besides: usize,
    ) -> Result<(), Error> {
        let of_slot = |slot: &BufferSlot| match slot.place {
            Place::Weight if !self.weights.contains_key(&slot.name) => {
                bytes(slot.format, slot.shape.max_len())
            }
            Place::State if !self.states.contains_key(&slot.name) => bytes(slot.format, slot.shape.max_len()),
            Place::Weight | Place::State | Place::Arena { .. } => 0,
            Place::Input | Place::Output | Place::Constant(_) => slot.bytes,
        };
        let needed = besides + plan.buffers.values().map(of_slot).sum::<usize>();
        match self.free(machine) {
            Some(free) if free < needed => Err(Error::Memory {
                what: "a program".to_owned(),
                device: machine.describe(),
                needed,
                free: Some(free),
            }),
            Some(_) | None => Ok(()),
        }
    }

    /// Allocates zeroed memory.
    pub(super) fn allocate_zeroed(
        &mut self,
        machine: &impl Machine<Memory = T>,
        what: &str,
        n_bytes: usize,
    ) -> Result<T, Error> {
        let memory = machine.allocate(what, n_bytes)?;
        self.allocated += n_bytes;
        Ok(memory)
    }

    /// Allocates memory with these bytes.
    pub(super) fn allocate_with(
        &mut self,
        machine: &impl Machine<Memory = T>,
        what: &str,
        bytes: &[u8],
    ) -> Result<T, Error> {
        let memory = self.allocate_zeroed(machine, what, bytes.len())?;
        machine.write(&memory, bytes)?;
        Ok(memory)
    }

    /// How much of a shared arena of `n_bytes` would have to be allocated.
    pub(super) fn missing(&self, n_bytes: usize) -> usize {
        if self.shared.last().is_some_and(|(len, _)| *len >= n_bytes) { 0 } else { n_bytes }
    }

    /// The shared arena, of at least `n_bytes`.
    pub(super) fn shared(&mut self, machine: &impl Machine<Memory = T>, n_bytes: usize) -> Result<T, Error> {
        if self.missing(n_bytes) > 0 || self.shared.is_empty() {
            let memory = self.allocate_zeroed(machine, "the arena", n_bytes)?;
            self.footprint.arena += n_bytes;
            self.shared.push((n_bytes, memory));
        }
        let (_, memory) = self.shared.last().expect("it was just made sure that there is one");
        Ok(memory.clone())
    }

    /// The memory of a state; states of one name are one state.
    pub(super) fn state(
        &mut self,
        machine: &impl Machine<Memory = T>,
        slot: &BufferSlot,
    ) -> Result<T, Error> {
        let BufferSlot { name, format, shape, .. } = slot;
        let (n_elements, needed) = (shape.max_len(), bytes(*format, shape.max_len()));
        if let Some(state) = self.states.get(name) {
            let found = bytes(state.format, state.n_elements);
            if found != needed {
                return Err(refused(name, format!("the state has {found} bytes, {needed} are needed")));
            }
            return Ok(state.memory.clone());
        }
        let memory = self.allocate_zeroed(machine, name, needed)?;
        self.states.insert(name.clone(), State { format: *format, n_elements, memory: memory.clone() });
        self.footprint.state += needed;
        Ok(memory)
    }

    /// The format, the elements and the memory of a state that a program has.
    pub(super) fn stored_state(&self, name: &str) -> Option<(Format, usize, &T)> {
        self.states.get(name).map(|state| (state.format, state.n_elements, &state.memory))
    }

    /// Uploads the weights of a plan that no earlier plan had.
    pub(super) fn upload_weights(
        &mut self,
        machine: &impl Machine<Memory = T>,
        plan: &Plan,
        weights: &Arc<dyn Weights>,
    ) -> Result<(), Error> {
        let is_new =
            |slot: &&BufferSlot| slot.place == Place::Weight && !self.weights.contains_key(&slot.name);
        let mut slots: Vec<&BufferSlot> = plan.buffers.values().filter(is_new).collect();
        let all = slots.iter().map(|slot| slot.bytes).sum();
        let mut seen = BTreeSet::new();
        slots.retain(|slot| seen.insert(&slot.name));
        let n_threads = thread::available_parallelism().map_or(1, usize::from).min(MAX_REPACK_THREADS);
        let repack = |slot: &&BufferSlot| Ok::<_, Error>(repacked(slot.format, weight(slot, &**weights)?));
        thread::scope(|scope| {
            // Each of n threads repacks every n-th tensor, and waits until it is uploaded before it takes the next.
            let line = |first| {
                let (sender, receiver) = sync_channel(0);
                let mut own = slots.iter().skip(first).step_by(n_threads).map(repack);
                // A closed channel means that an upload failed: then there is nothing left to do.
                scope.spawn(move || own.try_for_each(|tensor| sender.send(tensor)));
                receiver
            };
            let lines: Vec<Receiver<_>> = (0..n_threads).map(line).collect();
            let mut done = 0;
            for (slot, line) in slots.iter().zip(lines.iter().cycle()) {
                let tensor = line.recv().expect("a thread goes on until all of its tensors are taken")?;
                let memory = self.allocate_with(machine, &slot.name, &tensor)?;
                self.weights.insert(slot.name.clone(), memory);
                self.footprint.weights += bytes(slot.format, slot.shape.max_len());
                done += slot.bytes;
                (self.tell)(done, all);
            }
            Ok(())
        })
    }

    /// The memory of an uploaded weight.
    pub(super) fn weight(&self, slot: &BufferSlot, weights: &dyn Weights) -> Result<T, Error> {
        weight(slot, weights)?;
        let memory = self.weights.get(&slot.name);
        Ok(memory.expect("the weights of a plan are handed over first").clone())
    }
}
