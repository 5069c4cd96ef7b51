//! The plan: launches in order, and a place in memory for every value that flows between them.
//!
//! In: a [`Sequence`] of launches in an order that obeys every dependence. Out: a [`Plan`], whose steps keep that
//! order; values that live for a few steps share one arena, and a result may take the place of an argument.
//! Two values that are needed at the same time never share a byte, but for the pairs that `alias.rs` proves.
//! Nothing here knows of graphs or models. Read `lifetime.rs`, `alias.rs`, `arena.rs`; `verify/` checks a plan without
//! them, and `run/` interprets one.

use std::sync::Arc;

use crate::define_id;
use crate::error::Error;
use crate::foundation::entity::List;
use crate::fuse::barrier::Barrier;
use crate::fuse::fused::Fused;
use crate::graph::Name;
use crate::kernel::print::symbols;
use crate::kernel::{Access, Kernel, ParamId};
use crate::tensor::quant::Format;
use crate::tensor::shape::Shape;
use crate::tensor::sym::Symbol;

pub(crate) mod alias;
pub mod arena;
pub(crate) mod assemble;
pub(crate) mod lifetime;
pub mod places;
pub(crate) mod print;
pub mod run;
#[cfg(test)]
mod samples;
pub(crate) mod text;
pub mod verify;

use arena::Interval;
use lifetime::Lifetime;

define_id!(
    /// A kernel of a sequence or a plan.
    KernelId,
    "kernel"
);
define_id!(
    /// What flows between launches: a value of a sequence, and the buffer that a plan gives it.
    BufferId,
    "buffer"
);

/// The most bytes that a buffer or an arena may have.
const MOST_BYTES: usize = 1 << 46;

/// Launches that are to be planned.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Sequence {
    /// Every distinct kernel, once.
    pub kernels: List<KernelId, Kernel>,
    /// What the launches read and write.
    pub values: List<BufferId, Value>,
    /// The launches, in an order that obeys every dependence.
    pub steps: Vec<Step>,
}

/// What flows between launches.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    /// What it is called; inputs, weights, states and outputs are bound by it.
    pub name: Name,
    /// How its elements lie in bytes.
    pub format: Format,
    /// Its axes.
    pub shape: Shape,
    /// Who keeps it.
    pub home: Home,
}

/// Who keeps a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Home {
    /// The caller hands it in with every replay.
    Input,
    /// A file.
    Weight,
    /// It lives from one replay to the next.
    State,
    /// The plan itself, as words of four bytes.
    Constant(Arc<[u32]>),
    /// The caller gets it back.
    Output,
    /// Nobody: later launches read it, and then it is gone.
    Temporary,
}

/// Steps in order, with their buffers and the places of these in memory.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Plan {
    /// Every distinct kernel, once.
    pub kernels: List<KernelId, Kernel>,
    /// A buffer for each value of the sequence, in the same order.
    pub buffers: List<BufferId, BufferSlot>,
    /// What is launched, in order.
    pub steps: Vec<Step>,
    /// Bytes of the arena.
    pub arena_bytes: usize,
}

/// A buffer and where it lies.
#[derive(Clone, Debug, PartialEq)]
pub struct BufferSlot {
    /// The value it holds.
    pub name: Name,
    /// How its elements lie in bytes.
    pub format: Format,
    /// Its axes; it is laid out for their largest sizes.
    pub shape: Shape,
    /// Its size.
    pub bytes: usize,
    /// Where it lies.
    pub place: Place,
}

/// Where a buffer lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// With the caller, who fills it before the first step.
    Input,
    /// In a file.
    Weight,
    /// In memory that outlives the replay.
    State,
    /// In the plan, as words of four bytes.
    Constant(Arc<[u32]>),
    /// With the caller, who reads it after the last step.
    Output,
    /// In the arena, from this byte on.
    Arena {
        /// The first byte, a multiple of [`arena::ALIGNMENT`].
        offset: usize,
    },
}

/// One launch with its buffers.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// What runs.
    pub kernel: KernelId,
    /// A buffer for each parameter of the kernel.
    pub args: Vec<BufferId>,
    /// The use of a template that it belongs to.
    pub instance: usize,
    /// The operations of the graph that it does.
    pub fused: Fused,
    /// Why its results are stored.
    pub barriers: Vec<Barrier>,
}

/// Gives every value of a sequence a place.
///
/// # Errors
/// [`Error::Limit`] where a value or the arena is larger than any memory, [`Error::Bug`] where a value of a blocked
/// format is no whole number of blocks.
pub fn plan(sequence: Sequence) -> Result<Plan, Error> {
    let Sequence { kernels, values, steps } = sequence;
    let bytes = values
        .values()
        .map(|value| bytes_of(&value.name, value.format, &value.shape))
        .collect::<Result<List<BufferId, usize>, Error>>()?;
    let lifetimes = lifetime::lifetimes(&kernels, &steps, values.len());
    let is_temporary = values.values().map(|value| value.home == Home::Temporary).collect();
    let in_place_of = alias::in_place(&kernels, &steps, &lifetimes, &is_temporary);
    let (offsets, arena_bytes) = offsets(&bytes, &lifetimes, &is_temporary, &in_place_of)?;
    let buffers = values.iter().map(|(id, value)| slot_of(value, bytes[id], offsets[id])).collect();
    Ok(Plan { kernels, buffers, steps, arena_bytes })
}

impl Sequence {
    /// The values of a step with the parameters they are bound to.
    pub fn bound(&self, step: &Step) -> impl Iterator<Item = (ParamId, Access, BufferId)> {
        bound(&self.kernels, step)
    }
}

impl Plan {
    /// Every symbol of its kernels, sorted by name.
    pub fn symbols(&self) -> Vec<Symbol> {
        let mut all: Vec<Symbol> = self.kernels.values().flat_map(symbols).collect();
        all.sort();
        all.dedup();
        all
    }

    /// The buffers of a step with the parameters they are bound to.
    pub fn bound(&self, step: &Step) -> impl Iterator<Item = (ParamId, Access, BufferId)> {
        bound(&self.kernels, step)
    }
}

fn bound(kernels: &List<KernelId, Kernel>, step: &Step) -> impl Iterator<Item = (ParamId, Access, BufferId)> {
    let params = kernels[step.kernel].params.iter();
    params.zip(&step.args).map(|((id, param), buffer)| (id, param.access, *buffer))
}

fn slot_of(value: &Value, bytes: usize, offset: usize) -> BufferSlot {
    let Value { name, format, shape, home } = value.clone();
    let place = match home {
        Home::Input => Place::Input,
        Home::Weight => Place::Weight,
        Home::State => Place::State,
        Home::Constant(words) => Place::Constant(words),
        Home::Output => Place::Output,
        Home::Temporary => Place::Arena { offset },
    };
    BufferSlot { name, format, shape, bytes, place }
}

/// The first byte of every temporary, and the bytes of the arena.
fn offsets(
    bytes: &List<BufferId, usize>,
    lifetimes: &List<BufferId, Option<Lifetime>>,
    is_temporary: &List<BufferId, bool>,
    in_place_of: &List<BufferId, Option<BufferId>>,
) -> Result<(List<BufferId, usize>, usize), Error> {
    let mut intervals: Vec<Interval> = Vec::new();
    let mut interval_of: List<BufferId, Option<usize>> = bytes.ids().map(|_| None).collect();
    // A value that takes a place is written later than the one that gives it.
    let mut order: Vec<BufferId> = bytes.ids().filter(|id| is_temporary[*id]).collect();
    let lifetime = |id: BufferId| lifetimes[id].unwrap_or(Lifetime { first: 0, last: 0 });
    order.sort_by_key(|id| (lifetime(*id).first, *id));
    for id in order {
        let Lifetime { first, last } = lifetime(id);
        let shared = in_place_of[id].and_then(|giver| interval_of[giver]);
        let index = shared.unwrap_or(intervals.len());
        match intervals.get_mut(index) {
            Some(interval) => interval.last = interval.last.max(last),
            None => intervals.push(Interval { bytes: bytes[id], first, last }),
        }
        interval_of[id] = Some(index);
    }
    let packing = arena::pack(&intervals);
    limited("the arena in bytes", Some(packing.bytes))?;
    let offset = |index: &Option<usize>| index.map_or(0, |index| packing.offsets[index]);
    Ok((interval_of.values().map(offset).collect(), packing.bytes))
}

/// The size of a buffer.
fn bytes_of(name: &Name, format: Format, shape: &Shape) -> Result<usize, Error> {
    let n_elements = limited(&format!("the number of elements of `{name}`"), max_len(shape))?;
    if !n_elements.is_multiple_of(format.block_len().max(1)) {
        let what = format!("{n_elements} elements do not fill blocks of {format}");
        return Err(Error::bug("plan", name, what));
    }
    limited(&format!("the size of `{name}` in bytes"), format.bytes_for(n_elements))
}

/// The elements that storage is laid out for; nothing where no machine counts so far.
fn max_len(shape: &Shape) -> Option<usize> {
    let sizes = shape.iter().map(|(_, size)| usize::try_from(size.most().max(0)).ok());
    sizes.into_iter().try_fold(1usize, |n, size| n.checked_mul(size?))
}

fn limited(what: &str, found: Option<usize>) -> Result<usize, Error> {
    found.filter(|found| *found <= MOST_BYTES).ok_or_else(|| Error::Limit {
        what: what.to_owned(),
        found: found.map_or(u64::MAX, |found| found as u64),
        limit: MOST_BYTES as u64,
    })
}

#[cfg(test)]
mod tests;
