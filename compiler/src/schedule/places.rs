//! Places that inputs name: that no two elements of a write go to one.
//!
//! In: a plan whose kernels verify. Out: [`Places`], which a device asks before every replay, when inputs are bound.
//! `kernel::verify` proves that tasks keep apart, but for writes whose places are numbers in memory (pages, rows):
//! there it takes a [`Promise`]. Only inputs may hold such numbers, so that
//! they can be looked at before anything runs. Nothing is allocated after [`Places::of`].

use std::collections::BTreeSet;

use crate::error::{Complaint, Error};
use crate::foundation::entity::List;
use crate::graph::Name;
use crate::kernel::ParamId;
use crate::kernel::verify::disjoint::{Promise, promises};
use crate::schedule::{BufferId, KernelId, Place, Plan};
use crate::tensor::shape::Shape;
use crate::tensor::sym::{Sym, Symbol};

/// The inputs of a plan whose numbers are places of writes.
#[derive(Clone, Debug, Default)]
pub struct Places {
    groups: Vec<Group>,
    /// The place of each element, and its number.
    keys: Vec<(u64, u32)>,
}

/// Inputs of one shape whose numbers are one place together.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Group {
    /// The number of each input, its name, and what its numbers are below.
    inputs: Vec<(usize, Name, i64)>,
    /// The size of each axis, and how far apart its neighbours lie.
    axes: Vec<(Sym, usize)>,
}

/// The buffers that a plan takes promises of with what their numbers are below, and the shape of all; each set once.
///
/// The shape is the kernel's: the proof is about its elements.
fn promised(plan: &Plan) -> BTreeSet<(Vec<(BufferId, i64)>, &Shape)> {
    let of_kernels: List<KernelId, Vec<Promise>> = plan.kernels.values().map(promises).collect();
    let of_step = plan.steps.iter().flat_map(|step| {
        let bound = |param| plan.bound(step).find(|(own, ..)| *own == param).map(|(.., buffer)| buffer);
        of_kernels[step.kernel].iter().filter_map(move |Promise { indices }| {
            let shape = &plan.kernels[step.kernel].params[indices.first()?.0].shape;
            let buffer = |(param, below): &(ParamId, i64)| Some((bound(*param)?, *below));
            Some((indices.iter().filter_map(buffer).collect(), shape))
        })
    });
    of_step.collect()
}

/// Complains about places that no input holds: nobody could look at them before a replay.
pub(super) fn verify_places(plan: &Plan, complaints: &mut Vec<Complaint>) {
    for (buffer, _) in promised(plan).into_iter().flat_map(|(indices, _)| indices) {
        let slot = &plan.buffers[buffer];
        if slot.place != Place::Input {
            let what = "holds places of a write, which only an input may hold";
            complaints.push(Complaint::new(format!("{buffer} `{}`", slot.name), what));
        }
    }
}

impl Places {
    /// Those of a plan that verifies.
    pub fn of(plan: &Plan) -> Self {
        let inputs: Vec<BufferId> =
            plan.buffers.iter().filter(|(_, slot)| slot.place == Place::Input).map(|(id, _)| id).collect();
        let group = |(indices, shape): (Vec<(BufferId, i64)>, &Shape)| {
            let axes = shape.iter().map(|(_, size)| size.clone());
            let axes = axes.zip(shape.strides().into_iter().map(|stride| stride as usize)).collect();
            let input = |(buffer, below): &(BufferId, i64)| {
                let number = inputs.iter().position(|own| own == buffer)?;
                Some((number, plan.buffers[*buffer].name.clone(), *below))
            };
            Group { inputs: indices.iter().filter_map(input).collect(), axes }
        };
        let groups: Vec<Group> = promised(plan).into_iter().map(group).collect();
        let most = |group: &Group| group.axes.iter().map(|(size, _)| size.most() as usize).product();
        let keys = Vec::with_capacity(groups.iter().map(most).max().unwrap_or(0));
        Self { groups, keys }
    }

    /// Whether all places differ, for values of the plan's symbols and the bytes of each input.
    ///
    /// # Errors
    /// [`Error::Input`] with the first two elements that would go to one place.
    pub fn check<'b>(
        &mut self,
        symbols: &[Symbol],
        values: &[i64],
        input: impl Fn(usize) -> &'b [u8],
    ) -> Result<(), Error> {
        let value = |symbol: Symbol| {
            let given = symbols.iter().position(|own| *own == symbol).and_then(|at| values.get(at));
            given.copied().unwrap_or(symbol.near)
        };
        for group in &self.groups {
            let len = |size: &Sym| size.evaluate(value).max(0) as usize;
            let n: usize = group.axes.iter().map(|(size, _)| len(size)).product();
            if n < 2 {
                continue;
            }
            self.keys.clear();
            for element in 0..n {
                let mut rest = element;
                let mut at = 0;
                for (size, stride) in group.axes.iter().rev() {
                    at += rest % len(size) * stride;
                    rest /= len(size);
                }
                let number = |number: usize| {
                    let bytes = input(number).as_chunks().0.get(at).copied().unwrap_or_default();
                    i64::from(i32::from_le_bytes(bytes))
                };
                let key = group.inputs.iter().fold(0u64, |key, (input, _, below)| {
                    key * below.unsigned_abs() + number(*input).clamp(0, below - 1).unsigned_abs()
                });
                self.keys.push((key, element as u32));
            }
            self.keys.sort_unstable();
            if let Some(pair) = self.keys.windows(2).find(|pair| pair[0].0 == pair[1].0) {
                let names: Vec<&str> = group.inputs.iter().map(|(_, name, _)| &**name).collect();
                let what = format!(
                    "elements {} and {} would be written to one place, expected places that differ",
                    pair[0].1, pair[1].1
                );
                return Err(Error::input(format!("input {}", names.join(", ")), what));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::parse::parse;
    use crate::options::Options;
    use crate::pipeline::compile;
    use crate::schedule::BufferSlot;

    /// Rows of a state of pages, at places of their own, written by several tasks.
    const PAGED: &str = "symbol T in 1..64 near 32
%0 = input x : f32[t:T, d:512]
%1 = input page : i32[t:T]
%2 = input row : i32[t:T]
%3 = state k : f32[p:16, r:8, d:512]
%4 = write %3 %0 %1 %2 along [p, r]
output y = %4
";

    fn refusal(page: [i32; 4], row: [i32; 4], n: i64) -> Option<String> {
        let plan = compile(&parse(PAGED).unwrap(), &Options::default()).unwrap().plan;
        let named = |slot: &BufferSlot| -> Vec<u8> {
            let numbers = if &*slot.name == "page" { page } else { row };
            let mut bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
            bytes.resize(slot.bytes, 0);
            bytes
        };
        let is_input = |slot: &&BufferSlot| slot.place == Place::Input;
        let inputs: Vec<Vec<u8>> = plan.buffers.values().filter(is_input).map(named).collect();
        let mut places = Places::of(&plan);
        assert_eq!(places.groups.len(), 1);
        places.check(&plan.symbols(), &[n], |number| &inputs[number]).err().map(|error| error.to_string())
    }

    #[test]
    fn two_elements_of_a_write_have_two_places() {
        assert_eq!(refusal([0, 0, 1, 2], [0, 1, 1, 0], 4), None);
        let expected =
            "input page, row: elements 1 and 2 would be written to one place, expected places that differ";
        assert_eq!(refusal([0, 1, 1, 2], [0, 1, 1, 0], 4).as_deref(), Some(expected));
        // Elements behind the last token are no places.
        assert_eq!(refusal([0, 1, 1, 2], [0, 1, 1, 0], 2), None);
        // Numbers that are too large or too small go to the last or the first position.
        let clamped = refusal([15, 19, 0, 1], [0, 0, 0, 0], 4).unwrap();
        assert!(clamped.contains("elements 0 and 1"), "{clamped}");
        assert!(refusal([0, -1, 1, 2], [0, 0, 0, 0], 4).unwrap().contains("elements 0 and 1"));
    }
}
