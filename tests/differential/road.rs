//! Random graphs along the whole road, on every target.
//!
//! In: a graph with numbers for it. Out: nothing, or where results part. The plan of a target is stored and read again,
//! interpreted with tasks forwards, backwards and by chance, and held against the definition of the graph; where the
//! target is this processor, the device runs it too, at a level and with threads that the seed chooses.
//! Programs with exact numbers must give the interpreter's, bit for bit; others are as near as single precision lets
//! them. `races.rs` plants races, `random.rs` looks at single kernels.

use std::collections::BTreeMap;
use std::sync::Arc;

use fusebox_compiler::codegen::cpu::Cpu;
use fusebox_compiler::graph::{Graph, Name};
use fusebox_compiler::kernel::run::memory::Buffer;
use fusebox_compiler::kernel::run::{Order, run_in};
use fusebox_compiler::options::{Numbers, Options};
use fusebox_compiler::program::{Key, Program};
use fusebox_compiler::reference::compare::{Tolerance, close};
use fusebox_compiler::reference::{Bindings, Results, Stored, evaluate, random};
use fusebox_compiler::schedule::{self, BufferSlot, Place, Plan};
use fusebox_compiler::simd::Level;
use fusebox_compiler::tensor::label::Label;
use fusebox_compiler::tensor::value::Value;
use fusebox_runtime::device::cpu::CpuDevice;
use fusebox_runtime::device::{Device, Weights};

use super::jit::encoded;
use super::random::{target_of, tolerance};
use super::{Interpreted, laid_out, taken_out};

/// The order of tasks is nobody's business, nor that one runs again: bits are the same.
pub(crate) fn in_any_order(run: &Interpreted<'_>) -> Result<(), String> {
    for order in [Order::Backward, Order::Shuffled(run.kernel.name.len() as u64), Order::Twice] {
        let mut memory = run.before.clone();
        run_in(order, run.kernel, run.symbols, &mut memory).map_err(|fault| format!("{order:?}: {fault}"))?;
        for ((param, own), other) in
            run.kernel.params.values().zip(memory.0.values()).zip(run.after.0.values())
        {
            if bits(own) != bits(other) {
                return Err(format!("{order:?}: {} has other numbers", param.name));
            }
        }
    }
    Ok(())
}

fn bits(buffer: &Buffer) -> Vec<u32> {
    match buffer {
        Buffer::Float(data) | Buffer::Stored(data) => data.iter().map(|x| x.to_bits()).collect(),
        Buffer::Int(data) => data.iter().map(|x| *x as u32).collect(),
    }
}

/// Compiles a graph, and runs its plan in every way there is.
pub(crate) fn travels(graph: &Graph, symbols: &[(Label, i64)], seed: u64) -> Result<(), String> {
    let bindings = random::bindings(graph, seed, symbols);
    let expected = evaluate(graph, &bindings).map_err(|error| error.to_string())?;
    let target = target_of(seed);
    let chaos = seed.is_multiple_of(3).then_some(seed);
    let options = Options { chaos, ..Options::for_target(target) };
    let key = Key::of(graph, &options);
    let (made, _) = Program::compile(key, graph, &options).map_err(|error| error.to_string())?;
    let read = Program::from_bytes(&made.to_bytes(), key).ok_or("the program does not read back")?;
    let run = |order| schedule::run::run_in(order, &read.plan, &bindings).map_err(|error| error.to_string());
    let forward = run(Order::Forward)?;
    near(&expected, &forward, &bindings, tolerance(Tolerance::of(graph)))
        .map_err(|what| format!("{what}\n{}", read.plan))?;
    for order in [Order::Backward, Order::Shuffled(seed)] {
        near(&forward, &run(order)?, &bindings, Tolerance::exact())
            .map_err(|what| format!("{order:?}: {what}"))?;
    }
    if !target.is_processor() {
        return Ok(());
    }
    let levels: Vec<Level> = Level::supported().collect();
    let level = levels[seed as usize / 7 % levels.len()];
    let n_threads = 1 + seed as usize / 11 % 3;
    let ways = [(Numbers::Exact, Tolerance::exact()), (Numbers::Single, tolerance(Tolerance::of(graph)))];
    for (numbers, tolerance) in ways {
        let found = on_device(&read.plan, &bindings, (level, numbers, n_threads), &forward)?;
        near(&forward, &found, &bindings, tolerance)
            .map_err(|what| format!("{level} {numbers:?}, {n_threads} threads: {what}\n{}", read.plan))?;
    }
    Ok(())
}

/// Whether results are as near as a tolerance asks.
fn near(
    expected: &Results,
    found: &Results,
    bindings: &Bindings,
    tolerance: Tolerance,
) -> Result<(), String> {
    // Nothing is computed of what has no elements, and a state that nothing writes to is as it was.
    let states = expected
        .states
        .iter()
        .map(|(name, value)| (name, value, found.states.get(name).or(bindings.states.get(name))));
    let outputs = expected.outputs.iter().filter(|(_, value)| !value.is_empty());
    let outputs = outputs.map(|(name, value)| (name, value, found.outputs.get(name)));
    for (name, value, own) in outputs.chain(states) {
        let own = own.ok_or(format!("`{name}` is gone"))?;
        close(value, own, tolerance).map_err(|what| format!("`{name}` {what}"))?;
    }
    Ok(())
}

/// The weights of bindings.
struct Bound(BTreeMap<Name, Stored>);

impl Weights for Bound {
    fn bytes(&self, name: &str) -> Option<&[u8]> {
        self.0.iter().find(|(own, _)| ***own == *name).map(|(_, stored)| &*stored.bytes)
    }
}

/// What the processor makes of a plan; the results have the sizes of `like`.
fn on_device(
    plan: &Plan,
    bindings: &Bindings,
    (level, numbers, n_threads): (Level, Numbers, usize),
    like: &Results,
) -> Result<Results, String> {
    let cpu = Cpu::at(level, numbers).map_err(|error| error.to_string())?;
    let mut device = CpuDevice::new(cpu, n_threads).map_err(|error| error.to_string())?;
    let weights: Arc<dyn Weights> = Arc::new(Bound(bindings.weights.clone()));
    let program = device.load(plan, &weights).map_err(|error| error.to_string())?;
    let slots = |place: Place| plan.buffers.values().filter(move |slot| slot.place == place);
    let bytes = |slot: &BufferSlot, value: &Value| encoded(slot.format, &laid_out(value, &slot.shape));
    for (number, slot) in slots(Place::Input).enumerate() {
        device.input(program, number).copy_from_slice(&bytes(slot, &bindings.inputs[&slot.name]));
    }
    for slot in slots(Place::State) {
        let own = bytes(slot, &bindings.states[&slot.name]);
        device.write_state(&slot.name, 0, &own).map_err(|error| error.to_string())?;
    }
    let symbols: Vec<i64> = plan.symbols().iter().map(|symbol| bindings.symbols[&symbol.name]).collect();
    device.replay(program, &symbols).map_err(|error| error.to_string())?;
    let mut results = Results::default();
    for (number, slot) in slots(Place::Output).enumerate() {
        let found = value(slot, device.output(program, number), &like.outputs[&slot.name])?;
        results.outputs.insert(slot.name.clone(), found);
    }
    for slot in slots(Place::State) {
        let Some(like) = like.states.get(&slot.name) else { continue };
        let mut own = vec![0; slot.bytes];
        device.read_state(&slot.name, 0, &mut own).map_err(|error| error.to_string())?;
        results.states.insert(slot.name.clone(), value(slot, &own, like)?);
    }
    Ok(results)
}

/// The value that bytes of a buffer stand for.
fn value(slot: &BufferSlot, bytes: &[u8], like: &Value) -> Result<Value, String> {
    let buffer = Buffer::stored(slot.format, bytes).ok_or("no whole blocks")?;
    let buffer = match buffer {
        Buffer::Stored(data) => Buffer::Float(data),
        other => other,
    };
    // The elements of a format of blocks fill it.
    debug_assert!(slot.format.block_len() == 1 || slot.shape.max_len() == like.len());
    Ok(taken_out(&buffer, &slot.shape, like))
}
