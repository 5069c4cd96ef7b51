//! From names to numbers: the values of symbols, and the nodes that have no arguments.
//!
//! In: a graph and what it is evaluated with. Out: a [`Scope`] that knows every symbol, and values of the declared
//! types and sizes, or a complaint whose place is the name of what is missing or does not fit.
//! After `Scope::new` no symbol is unknown or out of its bounds. Nothing is guessed or repaired.

use std::collections::BTreeMap;

use super::index::Frame;
use super::{Bindings, Stored};
use crate::error::{Complaint, Error};
use crate::foundation::amount::counted;
use crate::graph::print::symbols;
use crate::graph::{Graph, Name};
use crate::tensor::dtype::DType;
use crate::tensor::quant::Format;
use crate::tensor::shape::{Axis, Shape};
use crate::tensor::sym::{Sym, Symbol};
use crate::tensor::value::Value;

/// What names mean during one evaluation.
pub(super) struct Scope<'a> {
    bindings: &'a Bindings,
}

impl<'a> Scope<'a> {
    /// The scope of a graph, once every symbol has a value within its bounds.
    pub(super) fn new(graph: &Graph, bindings: &'a Bindings) -> Result<Self, Error> {
        let complaints: Vec<Complaint> =
            symbols(graph).into_iter().filter_map(|symbol| complaint(symbol, bindings)).collect();
        Error::input_if(complaints)?;
        Ok(Self { bindings })
    }

    /// The value of a run-time integer.
    pub(super) fn number(&self, sym: &Sym) -> i64 {
        sym.evaluate(|symbol| self.bindings.symbols.get(&symbol.name).copied().unwrap_or(symbol.near))
    }

    /// The value of a run-time size or position, which `infer` has proved not to be negative.
    pub(super) fn whole(&self, sym: &Sym) -> usize {
        usize::try_from(self.number(sym)).unwrap_or(0)
    }

    /// The axes of a shape with their sizes as numbers.
    pub(super) fn axes(&self, shape: &Shape) -> Vec<(Axis, usize)> {
        shape.iter().map(|(axis, size)| (*axis, self.whole(size))).collect()
    }

    /// What the caller hands in under a name.
    pub(super) fn input(&self, name: &Name, frame: &Frame) -> Result<Value, Error> {
        fitting(&self.bindings.inputs, "input", name, frame)
    }

    /// A state as it is before the replay.
    pub(super) fn state(&self, name: &Name, format: Format, frame: &Frame) -> Result<Value, Error> {
        let value = fitting(&self.bindings.states, "state", name, frame)?;
        value
            .stored_as(format)
            .ok_or_else(|| Error::input(name, format!("the state fills no blocks of {format}")))
    }

    /// A stored tensor, decoded.
    pub(super) fn weight(&self, name: &Name, format: Format, frame: &Frame) -> Result<Value, Error> {
        let stored =
            self.bindings.weights.get(name).ok_or_else(|| Error::input(name, "there is no such weight"))?;
        if stored.format != format {
            return Err(Error::input(
                name,
                format!("the weight is stored as {}, expected {format}", stored.format),
            ));
        }
        decoded(stored, frame).ok_or_else(|| {
            let (found, expected) = (counted(stored.bytes.len(), "byte"), counted(frame.len(), "element"));
            Error::input(name, format!("the weight has {found}, expected {expected} of {format}"))
        })
    }
}

fn complaint(symbol: Symbol, bindings: &Bindings) -> Option<Complaint> {
    let Symbol { name, min, max, .. } = symbol;
    match bindings.symbols.get(&name) {
        None => Some(Complaint::new(name, "the symbol has no value")),
        Some(value) if *value < min || *value > max => {
            Some(Complaint::new(name, format!("the symbol is {value}, accepted: {min} to {max}")))
        }
        Some(_) => None,
    }
}

fn fitting(values: &BTreeMap<Name, Value>, what: &str, name: &Name, frame: &Frame) -> Result<Value, Error> {
    let value = values.get(name).ok_or_else(|| Error::input(name, format!("there is no such {what}")))?;
    if value.dtype != frame.dtype || value.axes != frame.axes || value.len() != frame.len() {
        let (found, expected) = (shown(value.dtype, &value.axes), shown(frame.dtype, &frame.axes));
        return Err(Error::input(name, format!("the {what} is {found}, expected {expected}")));
    }
    Ok(value.clone())
}

fn decoded(stored: &Stored, frame: &Frame) -> Option<Value> {
    if stored.bytes.len() != stored.format.bytes_for(frame.len())? {
        return None;
    }
    if stored.format == Format::I32 {
        // The decoder gives single precision, which does not hold every whole number.
        let (words, _) = stored.bytes.as_chunks::<4>();
        return Some(Value::int(frame.axes.clone(), words.iter().copied().map(i32::from_le_bytes).collect()));
    }
    let elements = stored.format.decode_all(&stored.bytes, frame.len())?;
    Some(Value::float(frame.dtype, frame.axes.clone(), elements))
}

fn shown(dtype: DType, axes: &[(Axis, usize)]) -> String {
    let axes = axes.iter().map(|(axis, size)| (*axis, Sym::from(*size)));
    format!("{dtype}{}", Shape::new(axes).unwrap_or_default())
}
