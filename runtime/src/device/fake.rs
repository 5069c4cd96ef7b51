//! A device that interprets plans: slow, obvious, and it records every call.
//!
//! In: plans, as any device takes them. Out: what `schedule::run` computes, and a list of the calls.
//! Other devices are compared with it, and tests of sessions read its record.
//! Nothing here is meant to be fast: every replay binds everything anew.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fusebox_compiler::foundation::entity::List;
use fusebox_compiler::graph::Name;
use fusebox_compiler::reference::{Bindings, Stored};
use fusebox_compiler::schedule::{BufferSlot, Place, Plan, run};
use fusebox_compiler::tensor::dtype::DType;
use fusebox_compiler::tensor::label::Label;
use fusebox_compiler::tensor::sym::Symbol;
use fusebox_compiler::tensor::value::{Data, Value};

use crate::device::{Device, Footprint, ProgramId, Weights, placed, range_of, verified, weight};
use crate::error::Error;

/// Interprets programs.
#[derive(Default)]
pub struct FakeDevice {
    programs: List<ProgramId, Program>,
    states: BTreeMap<Name, Value>,
    /// How states are stored on other devices.
    stored: BTreeMap<Name, BufferSlot>,
    footprint: Footprint,
    /// Every call, in order.
    pub calls: Vec<Call>,
}

/// A call of the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// A plan with this many steps was loaded.
    Load(usize),
    /// A program was run with these symbols.
    Replay(ProgramId, Vec<i64>),
}

struct Program {
    plan: Plan,
    weights: BTreeMap<Name, Stored>,
    inputs: Vec<Vec<u8>>,
    outputs: Vec<Vec<u8>>,
}

impl Device for FakeDevice {
    fn describe(&self) -> String {
        "the interpreter".to_owned()
    }

    fn load(&mut self, plan: &Plan, weights: &Arc<dyn Weights>) -> Result<ProgramId, Error> {
        verified(plan)?;
        let mut stored = BTreeMap::new();
        for slot in placed(plan, |place| *place == Place::Weight) {
            let bytes = weight(slot, &**weights)?.into();
            stored.insert(slot.name.clone(), Stored { format: slot.format, bytes });
            self.footprint.weights += slot.bytes;
        }
        for slot in placed(plan, |place| *place == Place::State) {
            let most = |symbol: Symbol| symbol.max;
            let zeros = vec![0; slot.bytes];
            self.states.entry(slot.name.clone()).or_insert_with(|| value(slot, &zeros, most));
            self.stored.insert(slot.name.clone(), slot.clone());
        }
        let zeros = |wanted: Place| {
            placed(plan, move |place| *place == wanted).map(|slot| vec![0; slot.bytes]).collect()
        };
        let (inputs, outputs) = (zeros(Place::Input), zeros(Place::Output));
        self.calls.push(Call::Load(plan.steps.len()));
        Ok(self.programs.push(Program { plan: plan.clone(), weights: stored, inputs, outputs }))
    }

    fn input(&mut self, program: ProgramId, number: usize) -> &mut [u8] {
        &mut self.programs[program].inputs[number]
    }

    fn replay(&mut self, program: ProgramId, symbols: &[i64]) -> Result<(), Error> {
        self.calls.push(Call::Replay(program, symbols.to_vec()));
        let Program { plan, weights, inputs, outputs } = &mut self.programs[program];
        let all = plan.symbols();
        let of =
            |symbol| symbols[all.iter().position(|own| *own == symbol).expect("the plan lists its symbols")];
        let named = all.iter().map(|symbol| (symbol.name, of(*symbol))).collect::<BTreeMap<Label, i64>>();
        let slots = placed(plan, |place| *place == Place::Input);
        let inputs =
            slots.zip(&*inputs).map(|(slot, bytes)| (slot.name.clone(), value(slot, bytes, of))).collect();
        let bindings =
            Bindings { symbols: named, inputs, weights: weights.clone(), states: self.states.clone() };
        let results = run::run(plan, &bindings)?;
        for (slot, to) in placed(plan, |place| *place == Place::Output).zip(outputs) {
            let found = bytes(&results.outputs[&slot.name]);
            to[..found.len()].copy_from_slice(&found);
        }
        self.states.extend(results.states);
        Ok(())
    }

    fn profile(&mut self, program: ProgramId, symbols: &[i64]) -> Result<Vec<Duration>, Error> {
        let start = Instant::now();
        self.replay(program, symbols)?;
        let n_steps = self.programs[program].plan.steps.len();
        // The interpreter does not time single steps.
        Ok(vec![start.elapsed() / n_steps.max(1) as u32; n_steps])
    }

    fn output(&self, program: ProgramId, number: usize) -> &[u8] {
        &self.programs[program].outputs[number]
    }

    fn read_state(&mut self, name: &str, offset: usize, to: &mut [u8]) -> Result<(), Error> {
        let state = self.state_bytes(name);
        let range = range_of(name, state.as_ref().map(Vec::len), offset, to.len())?;
        to.copy_from_slice(&state.unwrap_or_default()[range]);
        Ok(())
    }

    fn write_state(&mut self, name: &str, offset: usize, new: &[u8]) -> Result<(), Error> {
        let state = self.state_bytes(name);
        let range = range_of(name, state.as_ref().map(Vec::len), offset, new.len())?;
        let mut all = state.unwrap_or_default();
        all[range].copy_from_slice(new);
        let slot = &self.stored[name];
        self.states.insert(slot.name.clone(), value(slot, &all, |symbol| symbol.max));
        Ok(())
    }

    fn footprint(&self) -> Footprint {
        self.footprint
    }

    fn free(&self) -> Option<usize> {
        None
    }
}

impl FakeDevice {
    /// A state as other devices store it.
    fn state_bytes(&self, name: &str) -> Option<Vec<u8>> {
        let (value, slot) = (self.states.get(name)?, self.stored.get(name)?);
        let mut all = bytes(value);
        if let (Data::Float(elements), None) = (&value.data, slot.format.plain()) {
            all = vec![0; slot.bytes];
            slot.format.encode(elements, &mut all).expect("a plan has whole blocks");
        }
        Some(all)
    }
}

/// The value stored in some bytes, which are laid out for its largest sizes.
fn value(slot: &BufferSlot, bytes: &[u8], of: impl Fn(Symbol) -> i64) -> Value {
    let axes: Vec<_> = slot.shape.iter().map(|(axis, size)| (*axis, size.evaluate(&of) as usize)).collect();
    let most: Vec<usize> = slot.shape.iter().map(|(_, size)| size.most() as usize).collect();
    let n_elements: usize = most.iter().product();
    let dtype = slot.format.dtype();
    let elements = if dtype == DType::I32 {
        let words = bytes.as_chunks::<4>().0.iter();
        Data::Int(words.take(n_elements).map(|word| i32::from_le_bytes(*word)).collect())
    } else {
        let n_bytes = slot.format.bytes_for(n_elements).expect("a plan has whole blocks");
        let elements = slot.format.decode_all(&bytes[..n_bytes], n_elements);
        Data::Float(elements.expect("there are as many bytes"))
    };
    let sizes: Vec<usize> = axes.iter().map(|(_, size)| *size).collect();
    match elements {
        Data::Int(all) => Value::int(axes, cropped(&all, &most, &sizes)),
        Data::Float(all) => Value::float(dtype, axes, cropped(&all, &most, &sizes)),
    }
}

/// The first positions of each axis.
fn cropped<T: Copy>(all: &[T], from: &[usize], to: &[usize]) -> Vec<T> {
    let ([from, inner @ ..], [to, sizes @ ..]) = (from, to) else { return all.to_vec() };
    let rows = all.chunks_exact((all.len() / from.max(&1)).max(1)).take(*to);
    rows.flat_map(|row| cropped(row, inner, sizes)).collect()
}

/// The elements of a value, one after another.
fn bytes(value: &Value) -> Vec<u8> {
    let mut bytes = Vec::new();
    match &value.data {
        Data::Int(data) => bytes.extend(data.iter().flat_map(|x| x.to_le_bytes())),
        Data::Float(data) => data.iter().for_each(|x| value.dtype.append(*x, &mut bytes)),
    }
    bytes
}
