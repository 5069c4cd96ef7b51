//! Devices: memory and replay behind one trait.
//!
//! In: a plan and the weights it names; then, for every replay, inputs and the values of symbols. Out: outputs.
//! A device owns all buffers of a plan. States (KV caches) stay from replay to replay, and programs that name the same
//! state share it. Whatever can be checked is checked when a program is loaded; a replay looks nothing up. A program
//! may be loaded at any time, also between replays of others.
//! `cpu.rs` runs machine code, `gpu/` has the GPUs, `fake.rs` interprets and records its calls.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use fusebox_compiler::define_id;
use fusebox_compiler::error::Error as CompilerError;
use fusebox_compiler::schedule::{BufferSlot, Place, Plan, verify};

use crate::error::Error;

pub mod cpu;
pub mod fake;
#[cfg(feature = "gpu")]
pub mod gpu;
mod shares;

define_id!(
    /// A program that a device has loaded.
    ProgramId,
    "program"
);

/// The stored tensors that plans name.
pub trait Weights: Send + Sync {
    /// The bytes of a tensor, where they lie.
    fn bytes(&self, name: &str) -> Option<&[u8]>;

    /// Refuses what was read since the weights were opened, where it may not have been their bytes.
    ///
    /// # Errors
    /// Where a file has become shorter.
    fn check(&self) -> Result<(), Error> {
        Ok(())
    }
}

/// Runs programs, on any thread, one at a time.
pub trait Device: Send {
    /// What it is, for people.
    fn describe(&self) -> String;

    /// Takes a plan in: emits its code, gives its values a place, and finds its weights.
    ///
    /// # Errors
    /// Where a weight is missing or has another length than the plan needs, a state has another size than in an
    /// earlier program, or the device cannot hold or do it.
    fn load(&mut self, plan: &Plan, weights: &Arc<dyn Weights>) -> Result<ProgramId, Error>;

    /// The bytes of an input, to be written before a replay; inputs are numbered in the order of the plan's buffers.
    fn input(&mut self, program: ProgramId, number: usize) -> &mut [u8];

    /// Runs all steps, with a value for each symbol in the order of [`Plan::symbols`].
    ///
    /// # Errors
    /// Where there is no value for each symbol, or one is outside of its range.
    fn replay(&mut self, program: ProgramId, symbols: &[i64]) -> Result<(), Error>;

    /// As `replay`, and says how long each step took.
    ///
    /// # Errors
    /// As `replay`.
    fn profile(&mut self, program: ProgramId, symbols: &[i64]) -> Result<Vec<Duration>, Error>;

    /// The bytes of an output, as the last replay left them; numbered as inputs are.
    fn output(&self, program: ProgramId, number: usize) -> &[u8];

    /// Reads bytes of a state, in the layout of its format.
    ///
    /// # Errors
    /// Where no program has such a state, or it has fewer bytes.
    fn read_state(&mut self, name: &str, offset: usize, to: &mut [u8]) -> Result<(), Error>;

    /// Writes bytes of a state.
    ///
    /// # Errors
    /// As [`Device::read_state`].
    fn write_state(&mut self, name: &str, offset: usize, bytes: &[u8]) -> Result<(), Error>;

    /// What it holds.
    fn footprint(&self) -> Footprint;

    /// Bytes of memory of its own that it may still take, where it has such and knows.
    fn free(&self) -> Option<usize>;
}

/// A GPU as it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// What it calls itself.
    pub name: String,
    /// Whether it is a program that runs on the processor.
    pub is_software: bool,
}

/// What a device holds, in bytes, and how much code it made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Footprint {
    /// The weights that programs read, each once, where they lie.
    pub weights: usize,
    /// What flows inside replays, in and out of them.
    pub arena: usize,
    /// What lives from one replay to the next, at its largest.
    pub state: usize,
    /// What replays have copied from memory of the device's own to that of this process, so far.
    pub returned: usize,
    /// How many kernels code was made for.
    pub n_emitted: usize,
    /// How many sources the compiler of a GPU has made code of, each once.
    pub n_compiled: usize,
    /// How many sources had machine code on disk instead.
    pub n_kept: usize,
}

impl Footprint {
    /// What programs need that share weights, states and an arena, as plans lay it out.
    pub fn of(plans: &[&Plan]) -> Self {
        let mut seen = BTreeSet::new();
        let mut all = Self::default();
        for plan in plans {
            for BufferSlot { name, place, bytes, .. } in plan.buffers.values() {
                match place {
                    Place::Weight if seen.insert(name) => all.weights += bytes,
                    Place::State if seen.insert(name) => all.state += bytes,
                    Place::Weight | Place::State | Place::Arena { .. } => {}
                    Place::Input | Place::Output | Place::Constant(_) => all.arena += bytes,
                }
            }
        }
        all.arena += plans.iter().map(|plan| plan.arena_bytes).max().unwrap_or(0);
        all
    }

    /// All of its bytes.
    pub fn bytes(&self) -> usize {
        self.weights + self.arena + self.state
    }
}

/// A plan that does not verify is never loaded.
fn verified(plan: &Plan) -> Result<(), Error> {
    Ok(CompilerError::bug_if("load", verify::verify(plan))?)
}

/// The buffers of a plan that lie in a place, in order.
fn placed<'p>(
    plan: &'p Plan,
    wanted: impl Fn(&Place) -> bool + 'p,
) -> impl Iterator<Item = &'p BufferSlot> + 'p {
    plan.buffers.values().filter(move |slot| wanted(&slot.place))
}

/// The bytes of a weight, of the length that the plan needs.
fn weight<'w>(slot: &BufferSlot, weights: &'w dyn Weights) -> Result<&'w [u8], Error> {
    let BufferSlot { name, format, shape, bytes, .. } = slot;
    let found = weights.bytes(name);
    let found =
        found.ok_or_else(|| refused(name, format!("there is no such weight, {format}{shape} is needed")))?;
    if found.len() == *bytes {
        return Ok(found);
    }
    Err(refused(name, format!("the weight has {} bytes, {format}{shape} needs {bytes}", found.len())))
}

/// The range of a state's bytes.
fn range_of(name: &str, found: Option<usize>, offset: usize, len: usize) -> Result<Range<usize>, Error> {
    match found {
        Some(found) if offset.checked_add(len).is_some_and(|end| end <= found) => Ok(offset..offset + len),
        Some(found) => {
            Err(refused(name, format!("the state has {found} bytes, {len} from {offset} on are asked for")))
        }
        None => Err(refused(name, "no program has such a state")),
    }
}

fn refused(place: impl fmt::Display, what: impl fmt::Display) -> Error {
    CompilerError::input(place, what).into()
}
