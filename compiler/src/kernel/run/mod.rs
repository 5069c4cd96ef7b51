//! Interprets a kernel, checking every access.
//!
//! In: a kernel that verifies, the values of its symbols, and a [`Memory`] of its buffers. Out: the buffers it writes,
//! or the first [`Fault`].
//! Tasks run one after another, in the order of the grid or any other; a tile forgets its elements between them, except
//! where it is filled once for several tasks, and no element of a buffer may be written by two. Every number is rounded
//! to its type as soon as it is computed, sums included. This is what fusion and lowering are tested with, and what
//! other backends must agree with; it need not be fast. `flat.rs` prepares a part, `memory.rs` holds buffers.

use std::collections::BTreeMap;

use crate::foundation::entity::{Id, List};
use crate::foundation::random::Random;
use crate::kernel::print::place_text;
use crate::kernel::{ExprId, Kernel, ParamId, Part, Place, Tile, TileId, VarId};
use crate::reference::element;
use crate::tensor::dtype::DType;
use crate::tensor::label::Label;
use crate::tensor::quant::Format;

pub mod fault;
mod flat;
pub mod memory;

use fault::Fault;
use flat::{
    Access, FlatAtom, FlatExpr, FlatIndex, FlatNest, FlatOnce, FlatRange, FlatRows, FlatStmt, FlatVar,
    Program, Step,
};
use memory::{Memory, Number};

/// The order in which tasks run. No kernel that verifies notices it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// That of the parts, and in each of its grid.
    Forward,
    /// The last part first, and in each the last task.
    Backward,
    /// By chance, from this seed.
    Shuffled(u64),
    /// Each task twice, one after the other.
    Twice,
}

impl Order {
    /// The numbers of `n` things in this order.
    fn numbers(self, n: usize) -> Vec<usize> {
        match self {
            Self::Forward => (0..n).collect(),
            Self::Backward => (0..n).rev().collect(),
            Self::Twice => (0..n).flat_map(|number| [number; 2]).collect(),
            Self::Shuffled(seed) => {
                let (mut random, mut numbers) = (Random::new(seed), (0..n).collect::<Vec<_>>());
                for last in (1..n).rev() {
                    numbers.swap(last, random.below(last + 1));
                }
                numbers
            }
        }
    }
}

/// Runs every task of a kernel.
///
/// # Errors
/// The first fault.
pub fn run(kernel: &Kernel, symbols: &BTreeMap<Label, i64>, memory: &mut impl Memory) -> Result<(), Fault> {
    run_in(Order::Forward, kernel, symbols, memory)
}

/// The same in another order.
///
/// # Errors
/// As [`run`].
pub fn run_in(
    order: Order,
    kernel: &Kernel,
    symbols: &BTreeMap<Label, i64>,
    memory: &mut impl Memory,
) -> Result<(), Fault> {
    let mut writers = kernel.params.ids().map(|_| Vec::new()).collect();
    let mut n_before = 0;
    let parts = if order == Order::Twice { Order::Forward } else { order }.numbers(kernel.parts.len());
    for part in parts.into_iter().map(|number| &kernel.parts[number]) {
        let program = flat::flatten(kernel, part, symbols)?;
        let mut machine = Machine::new(part, &program, memory, &mut writers);
        let mut tasks: Vec<Vec<i64>> = Vec::new();
        machine.each(&part.grid, &mut |machine| {
            tasks.push(part.grid.iter().map(|var| machine.vars[*var]).collect());
            Ok(())
        })?;
        for number in order.numbers(tasks.len()) {
            machine.task = n_before + number as u32 + 1;
            for (var, value) in part.grid.iter().zip(&tasks[number]) {
                machine.vars[*var] = *value;
            }
            if let Some(routed) = &program.routed {
                machine.list_rows(routed)?;
            }
            machine.body(&program.body)?;
        }
        n_before += tasks.len() as u32;
    }
    Ok(())
}

/// Who wrote each element of each buffer: the number of the task, 0 for none.
type Writers = List<ParamId, Vec<u32>>;

/// A tile, and the task that wrote each element.
struct TileMemory {
    numbers: Vec<f64>,
    writers: Vec<u32>,
}

struct Machine<'a, M> {
    program: &'a Program,
    memory: &'a mut M,
    writers: &'a mut Writers,
    /// The number of the running task, counted from 1 over all parts.
    task: u32,
    vars: List<VarId, i64>,
    tiles: List<TileId, TileMemory>,
    /// For which values of its variables a statement was done last, by its number, and for which task.
    done: BTreeMap<usize, (Vec<i64>, u32)>,
    /// How many rows are routed to the running task.
    n_routed: i64,
    /// The value of each expression of the running nest.
    registers: Vec<f64>,
}

impl<'a, M: Memory> Machine<'a, M> {
    fn new(part: &Part, program: &'a Program, memory: &'a mut M, writers: &'a mut Writers) -> Self {
        let tile = |tile: &Tile| {
            let n = tile.dims.iter().product();
            TileMemory { numbers: vec![0.0; n], writers: vec![0; n] }
        };
        Self {
            program,
            memory,
            writers,
            task: 0,
            vars: part.vars.ids().map(|_| 0).collect(),
            tiles: part.tiles.values().map(tile).collect(),
            done: BTreeMap::new(),
            n_routed: 0,
            registers: Vec::new(),
        }
    }

    /// Lists the rows that are routed to the task.
    fn list_rows(&mut self, routed: &FlatRows) -> Result<(), Fault> {
        let (mut row, mut n_listed) = (0i64, 0);
        self.each(&routed.rows, &mut |machine| {
            if machine.index(&routed.by)? == machine.vars[routed.expert] {
                let tile = &mut machine.tiles[routed.list];
                tile.numbers[n_listed] = row as f64;
                tile.writers[n_listed] = machine.task;
                n_listed += 1;
            }
            row += 1;
            Ok(())
        })?;
        self.n_routed = n_listed as i64;
        Ok(())
    }

    /// Does something for every combination of values of some variables, the last running fastest.
    fn each(
        &mut self,
        vars: &[VarId],
        act: &mut impl FnMut(&mut Self) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let Some((var, inner)) = vars.split_first() else { return act(self) };
        let (mut value, step, end) = self.values(*var)?;
        while value < end {
            self.vars[*var] = value;
            self.each(inner, act)?;
            value = value.saturating_add(step);
        }
        Ok(())
    }

    /// The first value of a variable, the step, and one past the last.
    fn values(&self, var: VarId) -> Result<(i64, i64, i64), Fault> {
        let FlatVar { range, until } = &self.program.vars[var];
        let (start, step, end) = match range {
            FlatRange::Whole { len } => (0, 1, *len),
            FlatRange::Blocks { start, step, end } => (self.index(start)?, *step, *end),
            FlatRange::Within { of, block, end } => {
                let base = self.vars[*of];
                (base, 1, base.saturating_add(*block).min(*end))
            }
        };
        let end = until.iter().try_fold(end, |end, bound| Ok(end.min(self.index(bound)?)))?;
        let along = self.program.routed.as_ref().map(|routed| routed.along);
        let is_listed =
            along == Some(var) || matches!(range, FlatRange::Within { of, .. } if along == Some(*of));
        Ok((start, step, if is_listed { end.min(self.n_routed) } else { end }))
    }

    fn body(&mut self, body: &[FlatStmt]) -> Result<(), Fault> {
        for stmt in body {
            match stmt {
                FlatStmt::Nest(nest) => self.nest(nest)?,
                FlatStmt::Loop { var, body } => self.each(&[*var], &mut |machine| machine.body(body))?,
                FlatStmt::Once(once) => self.once(once)?,
            }
        }
        Ok(())
    }

    /// Does what no task has done yet for these values, or takes over the tiles of the last one for which it was done.
    fn once(&mut self, once: &FlatOnce) -> Result<(), Fault> {
        let values: Vec<i64> = once.per.iter().map(|var| self.vars[*var]).collect();
        match self.done.get(&once.number) {
            Some((before, task)) if *before == values => {
                for tile in &once.tiles {
                    let writers = self.tiles[*tile].writers.iter_mut();
                    writers.filter(|writer| **writer == *task).for_each(|writer| *writer = self.task);
                }
            }
            _ => self.body(&once.body)?,
        }
        self.done.insert(once.number, (values, self.task));
        Ok(())
    }

    fn nest(&mut self, nest: &FlatNest) -> Result<(), Fault> {
        self.registers.clear();
        self.registers.resize(nest.n_exprs, 0.0);
        let mut block = Vec::new();
        self.each(&nest.loops, &mut |machine| {
            let value = machine.value(nest)?;
            let Some(format) = nest.blocks else { return machine.store(&nest.target, value) };
            block.push(value as f32);
            if block.len() < format.block_len() {
                return Ok(());
            }
            machine.store_block(&nest.target, format, &std::mem::take(&mut block))
        })
    }

    /// Stores a block, of which the place of the last element is known.
    fn store_block(&mut self, target: &Access, format: Format, block: &[f32]) -> Result<(), Fault> {
        let last = self.element(target)?;
        let (Place::Param(id), Some(rounded)) = (target.place, format.rounded(block)) else {
            return Err(self.out_of_bounds(target));
        };
        for (back, value) in rounded.into_iter().rev().enumerate() {
            self.store_to_buffer(id, target.dtype, last.saturating_sub(back), f64::from(value))?;
        }
        Ok(())
    }

    fn value(&mut self, nest: &FlatNest) -> Result<f64, Fault> {
        let Some(folding) = &nest.fold else { return self.scalar(&nest.exprs, nest.value) };
        let mut sum = match &folding.init {
            Some((steps, init)) => self.scalar(steps, *init)?,
            None => element::identity(folding.fold, nest.dtype),
        };
        self.each(&folding.loops, &mut |machine| {
            let value = machine.scalar(&nest.exprs, nest.value)?;
            sum = element::round(nest.dtype, element::fold(folding.fold, nest.dtype, sum, value));
            Ok(())
        })?;
        Ok(sum)
    }

    fn scalar(&mut self, steps: &[Step], root: ExprId) -> Result<f64, Fault> {
        for step in steps {
            self.registers[step.to.index()] = self.expr(&step.expr)?;
        }
        Ok(self.registers[root.index()])
    }

    fn expr(&self, expr: &FlatExpr) -> Result<f64, Fault> {
        let register = |id: &ExprId| self.registers[id.index()];
        Ok(match expr {
            FlatExpr::Const(number) => *number,
            FlatExpr::Position(index) => element::wrapped(self.index(index)?),
            FlatExpr::Load(access) => self.load(access)?,
            FlatExpr::Unary(f, dtype, a) => element::round(*dtype, element::unary(*f, register(a))),
            FlatExpr::Binary(f, dtype, a, b) => {
                element::round(*dtype, element::binary(*f, *dtype, register(a), register(b)))
            }
            FlatExpr::Select(a, b, c) => {
                if register(a) == 0.0 {
                    register(c)
                } else {
                    register(b)
                }
            }
            FlatExpr::Cast(dtype, a) => element::cast(*dtype, register(a)),
        })
    }

    fn index(&self, index: &FlatIndex) -> Result<i64, Fault> {
        let vars = index.vars.iter().map(|(var, factor)| self.vars[*var].saturating_mul(*factor));
        let mut sum = vars.fold(index.constant, i64::saturating_add);
        for (atom, factor) in &index.others {
            sum = sum.saturating_add(self.atom(atom)?.saturating_mul(*factor));
        }
        Ok(sum)
    }

    fn atom(&self, atom: &FlatAtom) -> Result<i64, Fault> {
        Ok(match atom {
            FlatAtom::Div(inner, by) => self.index(inner)?.div_euclid(*by),
            FlatAtom::Rem(inner, by) => self.index(inner)?.rem_euclid(*by),
            FlatAtom::Min(inner, most) => self.index(inner)?.min(*most),
            FlatAtom::Max(inner, least) => self.index(inner)?.max(*least),
            FlatAtom::Lookup(access, below) => (self.load(access)? as i64).clamp(0, below - 1),
        })
    }

    /// The element in storage order.
    fn element(&self, access: &Access) -> Result<usize, Fault> {
        let mut element = 0i64;
        for (index, dim) in &access.at {
            let index = self.index(index)?;
            if index < 0 || index >= *dim {
                return Err(self.out_of_bounds(access));
            }
            element = element.saturating_mul(*dim).saturating_add(index);
        }
        Ok(element as usize)
    }

    fn out_of_bounds(&self, access: &Access) -> Fault {
        // The lookups of these indices have just been read, or are the fault that is reported.
        let index = access.at.iter().map(|(index, _)| self.index(index)).collect();
        let dims = access.at.iter().map(|(_, dim)| *dim).collect();
        match index {
            Ok(index) => Fault::OutOfBounds { place: place_text(access.place), index, dims },
            Err(fault) => fault,
        }
    }

    fn load(&self, access: &Access) -> Result<f64, Fault> {
        let element = self.element(access)?;
        let place = || place_text(access.place);
        match access.place {
            Place::Tile(id) => {
                let tile = &self.tiles[id];
                let is_written = tile.writers[element] == self.task;
                if is_written {
                    Ok(tile.numbers[element])
                } else {
                    Err(Fault::Unwritten { place: place(), element })
                }
            }
            Place::Param(id) => match (self.memory.load(id, element), access.dtype.is_float()) {
                (Some(Number::Float(x)), true) => Ok(f64::from(x)),
                (Some(Number::Int(x)), false) => Ok(f64::from(x)),
                (Some(found), _) => Err(Fault::Mismatch { place: place(), found, expected: access.dtype }),
                (None, _) => Err(Fault::NoElement { place: place(), element, access: "loaded" }),
            },
        }
    }

    fn store(&mut self, access: &Access, value: f64) -> Result<(), Fault> {
        let element = self.element(access)?;
        let value = element::round(access.dtype, value);
        match access.place {
            Place::Tile(id) => {
                let tile = &mut self.tiles[id];
                tile.numbers[element] = value;
                tile.writers[element] = self.task;
                Ok(())
            }
            Place::Param(id) => self.store_to_buffer(id, access.dtype, element, value),
        }
    }

    fn store_to_buffer(
        &mut self,
        id: ParamId,
        dtype: DType,
        element: usize,
        value: f64,
    ) -> Result<(), Fault> {
        let number = if dtype.is_float() { Number::Float(value as f32) } else { Number::Int(value as i32) };
        // Only now is the element known to exist, so that the list of writers cannot outgrow the buffer.
        if !self.memory.store(id, element, number) {
            return Err(Fault::NoElement { place: id.to_string(), element, access: "stored" });
        }
        let writers = &mut self.writers[id];
        if writers.len() <= element {
            writers.resize(element + 1, 0);
        }
        let writer = std::mem::replace(&mut writers[element], self.task);
        if writer == 0 || writer == self.task {
            return Ok(());
        }
        Err(Fault::TwoWriters { place: id.to_string(), element })
    }
}

#[cfg(test)]
mod tests;
