//! The memory of a plan that is interpreted: one arena of bytes, and buffers of their own for what outlives it.
//!
//! In: element numbers in storage order. Out: numbers, or nothing where a buffer has no such element.
//! Two buffers that the plan puts in one place are one place here too. What nobody wrote is NaN.
//! A format of blocks is decoded once; what is stored to it comes rounded.

use crate::foundation::entity::{Id, List};
use crate::kernel::ParamId;
use crate::kernel::run::memory::{Memory, Number};
use crate::schedule::{BufferId, BufferSlot, Plan};
use crate::tensor::dtype::DType;

/// What memory holds before anything is written: NaN in every floating-point type.
const POISON: u8 = 0xff;

/// The memory of all buffers.
pub(super) struct Machine<'a> {
    plan: &'a Plan,
    arena: Vec<u8>,
    own: List<BufferId, Storage>,
}

/// Where the elements of a buffer are.
pub(super) enum Storage {
    /// In the arena, from this byte on.
    Arena(usize),
    /// In bytes of its own.
    Bytes(Vec<u8>),
    /// Decoded from a format of blocks.
    Decoded(Vec<f32>),
}

/// The buffers of one step, by parameter.
pub(super) struct StepMemory<'m, 'a> {
    pub(super) machine: &'m mut Machine<'a>,
    pub(super) args: &'m [BufferId],
}

/// Bytes that nobody wrote.
pub(super) fn poison(n_bytes: usize) -> Vec<u8> {
    vec![POISON; n_bytes]
}

impl<'a> Machine<'a> {
    pub(super) fn new(plan: &'a Plan, own: List<BufferId, Storage>) -> Self {
        Self { plan, arena: poison(plan.arena_bytes), own }
    }

    /// One element of a buffer.
    pub(super) fn load(&self, buffer: BufferId, element: usize) -> Option<Number> {
        let slot = self.plan.buffers.get(buffer)?;
        let bytes = match &self.own[buffer] {
            Storage::Decoded(elements) => return elements.get(element).copied().map(Number::Float),
            Storage::Arena(offset) => self.arena.get(*offset..)?.get(..slot.bytes)?,
            Storage::Bytes(bytes) => bytes,
        };
        let (dtype, range) = element_range(slot, element)?;
        get(dtype, bytes.get(range)?)
    }

    fn store(&mut self, buffer: BufferId, element: usize, value: Number) -> Option<()> {
        let slot = self.plan.buffers.get(buffer)?;
        let bytes = match &mut self.own[buffer] {
            Storage::Decoded(elements) => {
                let Number::Float(value) = value else { return None };
                *elements.get_mut(element)? = value;
                return Some(());
            }
            Storage::Arena(offset) => self.arena.get_mut(*offset..)?.get_mut(..slot.bytes)?,
            Storage::Bytes(bytes) => bytes,
        };
        let (dtype, range) = element_range(slot, element)?;
        put(dtype, bytes.get_mut(range)?, value)
    }
}

impl Memory for StepMemory<'_, '_> {
    fn load(&self, param: ParamId, element: usize) -> Option<Number> {
        self.machine.load(*self.args.get(param.index())?, element)
    }

    fn store(&mut self, param: ParamId, element: usize, value: Number) -> bool {
        let buffer = self.args.get(param.index()).copied();
        buffer.and_then(|buffer| self.machine.store(buffer, element, value)).is_some()
    }
}

fn element_range(slot: &BufferSlot, element: usize) -> Option<(DType, std::ops::Range<usize>)> {
    let dtype = slot.format.plain()?;
    let first = element.checked_mul(dtype.bytes())?;
    Some((dtype, first..first.checked_add(dtype.bytes())?))
}

fn get(dtype: DType, bytes: &[u8]) -> Option<Number> {
    Some(match dtype {
        DType::F32 => Number::Float(f32::from_le_bytes(bytes.try_into().ok()?)),
        DType::F16 => Number::Float(half::f16::from_le_bytes(bytes.try_into().ok()?).to_f32()),
        DType::BF16 => Number::Float(half::bf16::from_le_bytes(bytes.try_into().ok()?).to_f32()),
        DType::I32 => Number::Int(i32::from_le_bytes(bytes.try_into().ok()?)),
    })
}

/// Writes an element; nothing where it is of another type.
pub(super) fn put(dtype: DType, bytes: &mut [u8], value: Number) -> Option<()> {
    match (dtype, value) {
        (DType::F32, Number::Float(x)) => bytes.copy_from_slice(&x.to_le_bytes()),
        (DType::F16, Number::Float(x)) => bytes.copy_from_slice(&half::f16::from_f32(x).to_le_bytes()),
        (DType::BF16, Number::Float(x)) => bytes.copy_from_slice(&half::bf16::from_f32(x).to_le_bytes()),
        (DType::I32, Number::Int(x)) => bytes.copy_from_slice(&x.to_le_bytes()),
        (DType::F32 | DType::F16 | DType::BF16, Number::Int(_)) | (DType::I32, Number::Float(_)) => {
            return None;
        }
    }
    Some(())
}
