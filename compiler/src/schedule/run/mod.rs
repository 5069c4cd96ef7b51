//! Interprets a plan: every kernel in order, over one arena of bytes.
//!
//! In: a plan, and what its symbols, inputs, weights and states are. Out: the outputs, and the states written.
//! All temporaries lie in one piece of memory, where the plan put them, so two that overlap while both are needed
//! give wrong numbers. Symbolic sizes keep the layout of the largest ones.
//! `kernel::run` does the arithmetic, `memory.rs` holds the bytes; this is what backends must agree with.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::error::Error;
use crate::foundation::entity::List;
use crate::graph::Name;
use crate::kernel::Access;
use crate::kernel::run::fault::Fault;
use crate::kernel::run::memory::Number;
use crate::kernel::run::{self as interpreter, Order};
use crate::reference::{Bindings, Results, Stored};
use crate::schedule::{BufferId, BufferSlot, Place, Plan};
use crate::tensor::label::Label;
use crate::tensor::shape::{Axis, Shape};
use crate::tensor::sym::Sym;
use crate::tensor::value::{Data, Value};

mod memory;

use memory::{Machine, StepMemory, Storage, poison, put};

/// Does one step of a model.
///
/// # Errors
/// [`Error::Input`] where a binding is missing or does not fit, with its name as the place; [`Error::Bug`] where a
/// kernel goes wrong.
pub fn run(plan: &Plan, bindings: &Bindings) -> Result<Results, Error> {
    run_in(Order::Forward, plan, bindings)
}

/// The same with the tasks of every kernel in another order.
///
/// # Errors
/// As [`run`].
pub fn run_in(order: Order, plan: &Plan, bindings: &Bindings) -> Result<Results, Error> {
    let own = plan.buffers.values().map(|slot| storage(slot, bindings));
    let mut machine = Machine::new(plan, own.collect::<Result<List<BufferId, Storage>, Error>>()?);
    for (number, step) in plan.steps.iter().enumerate() {
        let kernel = &plan.kernels[step.kernel];
        let mut memory = StepMemory { machine: &mut machine, args: &step.args };
        interpreter::run_in(order, kernel, &bindings.symbols, &mut memory)
            .map_err(|fault| failed(format_args!("step {number}, {}", kernel.name), &fault))?;
    }
    results(plan, &machine, &bindings.symbols)
}

/// What a buffer holds before the first step.
fn storage(slot: &BufferSlot, bindings: &Bindings) -> Result<Storage, Error> {
    let BufferSlot { name, place, bytes, .. } = slot;
    match place {
        Place::Input => padded(slot, found(&bindings.inputs, "input", name)?, &bindings.symbols),
        Place::State => padded(slot, found(&bindings.states, "state", name)?, &bindings.symbols),
        Place::Weight => stored(slot, found(&bindings.weights, "weight", name)?),
        Place::Constant(words) => {
            let words: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            if words.len() == *bytes {
                Ok(Storage::Bytes(words))
            } else {
                Err(misfit(name, "constant", slot))
            }
        }
        Place::Output => Ok(Storage::Bytes(poison(*bytes))),
        Place::Arena { offset } => Ok(Storage::Arena(*offset)),
    }
}

fn stored(slot: &BufferSlot, weight: &Stored) -> Result<Storage, Error> {
    let BufferSlot { name, format, bytes, .. } = slot;
    if weight.format != *format || weight.bytes.len() != *bytes {
        return Err(misfit(name, "weight", slot));
    }
    if format.plain().is_some() {
        return Ok(Storage::Bytes(weight.bytes.to_vec()));
    }
    let elements = format.decode_all(&weight.bytes, slot.shape.max_len());
    elements.map(Storage::Decoded).ok_or_else(|| misfit(name, "weight", slot))
}

/// A value in the layout of its largest sizes.
fn padded(slot: &BufferSlot, value: &Value, symbols: &BTreeMap<Label, i64>) -> Result<Storage, Error> {
    let BufferSlot { name, shape, bytes, .. } = slot;
    let axes = sizes(name, shape, symbols)?;
    if slot.format.plain().is_none() && axes == value.axes {
        let rounded = value.stored_as(slot.format).ok_or_else(|| misfit(name, "value", slot))?;
        return Ok(Storage::Decoded(rounded.floats().to_vec()));
    }
    let dtype = slot.format.plain().filter(|dtype| *dtype == value.dtype && axes == value.axes);
    let dtype = dtype.ok_or_else(|| misfit(name, "value", slot))?;
    let mut storage = poison(*bytes);
    for (index, element) in elements(&axes, shape).enumerate() {
        let number = match &value.data {
            Data::Float(data) => Number::Float(data[index]),
            Data::Int(data) => Number::Int(data[index]),
        };
        let piece = storage.get_mut(element * dtype.bytes()..(element + 1) * dtype.bytes());
        piece.and_then(|piece| put(dtype, piece, number)).ok_or_else(|| misfit(name, "value", slot))?;
    }
    Ok(Storage::Bytes(storage))
}

/// The outputs, and the states that some step writes.
fn results(plan: &Plan, machine: &Machine<'_>, symbols: &BTreeMap<Label, i64>) -> Result<Results, Error> {
    let all = plan.steps.iter().flat_map(|step| plan.bound(step));
    let written: BTreeSet<BufferId> =
        all.filter(|(_, access, _)| *access == Access::Write).map(|(.., buffer)| buffer).collect();
    let mut results = Results::default();
    for (id, slot) in plan.buffers.iter() {
        let into = match slot.place {
            Place::Output => &mut results.outputs,
            Place::State if written.contains(&id) => &mut results.states,
            Place::State | Place::Input | Place::Weight | Place::Constant(_) | Place::Arena { .. } => {
                continue;
            }
        };
        into.insert(slot.name.clone(), unpadded(id, slot, machine, symbols)?);
    }
    Ok(results)
}

fn unpadded(
    id: BufferId,
    slot: &BufferSlot,
    machine: &Machine<'_>,
    symbols: &BTreeMap<Label, i64>,
) -> Result<Value, Error> {
    let BufferSlot { name, format, shape, .. } = slot;
    let axes = sizes(name, shape, symbols)?;
    let numbers = elements(&axes, shape).map(|element| machine.load(id, element));
    let (mut floats, mut whole) = (Vec::new(), Vec::new());
    for number in numbers {
        match number.ok_or_else(|| misfit(name, "result", slot))? {
            Number::Float(x) => floats.push(x),
            Number::Int(x) => whole.push(x),
        }
    }
    let dtype = format.dtype();
    Ok(if dtype.is_float() { Value::float(dtype, axes, floats) } else { Value::int(axes, whole) })
}

/// The axes of a shape with their sizes as numbers.
fn sizes(name: &Name, shape: &Shape, symbols: &BTreeMap<Label, i64>) -> Result<Vec<(Axis, usize)>, Error> {
    let size = |size: &Sym| -> Result<usize, Error> {
        let missing = size.symbols().into_iter().find(|symbol| !symbols.contains_key(&symbol.name));
        if let Some(symbol) = missing {
            return Err(Error::input(name, format!("symbol {} has no value, one is needed", symbol.name)));
        }
        let value = size.evaluate(|symbol| symbols.get(&symbol.name).copied().unwrap_or(symbol.near));
        let fits = usize::try_from(value).ok().filter(|_| value <= size.most());
        fits.ok_or_else(|| {
            Error::input(name, format!("a size is {value}, at most {} is possible", size.most()))
        })
    };
    shape.iter().map(|(axis, sym)| Ok((*axis, size(sym)?))).collect()
}

/// Where the elements of a value lie in the layout of the largest sizes, in storage order.
fn elements(axes: &[(Axis, usize)], shape: &Shape) -> impl Iterator<Item = usize> {
    let n: usize = axes.iter().map(|(_, size)| size).product();
    let steps: Vec<(usize, usize)> =
        axes.iter().map(|(_, size)| *size).zip(shape.strides().into_iter().map(|s| s as usize)).collect();
    (0..n).map(move |index| {
        let mut rest = index;
        let mut element = 0;
        for (size, stride) in steps.iter().rev() {
            element += rest % size * stride;
            rest /= size;
        }
        element
    })
}

fn found<'a, T>(values: &'a BTreeMap<Name, T>, what: &str, name: &Name) -> Result<&'a T, Error> {
    values.get(name).ok_or_else(|| Error::input(name, format!("there is no such {what}")))
}

fn failed(place: impl fmt::Display, fault: &Fault) -> Error {
    match fault {
        Fault::MissingSymbol { .. } | Fault::SymbolOutside { .. } => Error::input(place, fault),
        _ => Error::bug("plan", place, fault),
    }
}

fn misfit(name: &Name, what: &str, slot: &BufferSlot) -> Error {
    Error::input(name, format!("the {what} does not fit, expected {}{}", slot.format, slot.shape))
}

#[cfg(test)]
mod tests;
