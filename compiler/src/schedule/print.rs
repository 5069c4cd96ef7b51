//! The listing of a plan: its steps, then the buffers of the arena with their lifetimes.
//!
//! In: a plan. Out: two tables for people. A buffer in the arena is written `name@offset`.
//! Lifetimes and shared places are worked out from the plan again, so a plan made by hand prints as well.
//! [`Plan::summary`] is the short form: totals, and how often each kernel is launched.

use std::collections::BTreeMap;
use std::fmt;

use crate::foundation::amount::counted;
use crate::foundation::entity::List;
use crate::foundation::table::table;
use crate::fuse::barrier::Barrier;
use crate::kernel::Access;
use crate::schedule::lifetime::{Lifetime, lifetimes};
use crate::schedule::{BufferId, BufferSlot, KernelId, Place, Plan, Step};

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.totals())?;
        let heads = ["step", "instance", "kernel", "reads", "writes", "stored because"];
        let mut rows = vec![heads.map(str::to_owned)];
        rows.extend(self.steps.iter().enumerate().map(|(number, step)| self.step_row(number, step)));
        write!(f, "{}", table("llllll", "  ", &rows))?;
        let rows = self.arena_rows();
        if rows.is_empty() {
            return Ok(());
        }
        let mut all = vec![["offset", "bytes", "steps", "buffer"].map(str::to_owned)];
        all.extend(rows);
        write!(f, "\n{}", table("llll", "  ", &all))
    }
}

impl Plan {
    /// Totals, and a line for each kernel.
    pub fn summary(&self) -> String {
        let mut launches: BTreeMap<KernelId, usize> = BTreeMap::new();
        for step in &self.steps {
            *launches.entry(step.kernel).or_default() += 1;
        }
        let row =
            |(kernel, times): (KernelId, usize)| [format!("{times} ×"), self.kernels[kernel].name.clone()];
        let rows: Vec<[String; 2]> = launches.into_iter().map(row).collect();
        format!("{}\n{}", self.totals(), table("ll", "  ", &rows))
    }

    fn totals(&self) -> String {
        let temporary = |slot: &&_| in_arena(slot).is_some();
        let all = self.buffers.values().filter(temporary);
        let (n, bytes) = all.fold((0, 0usize), |(n, sum), slot| (n + 1, sum.saturating_add(slot.bytes)));
        format!(
            "plan: {} of {}; arena of {} for {} of {}",
            counted(self.steps.len(), "step"),
            counted(self.kernels.len(), "kernel"),
            counted(self.arena_bytes, "byte"),
            counted(n, "buffer"),
            counted(bytes, "byte"),
        )
    }

    fn step_row(&self, number: usize, step: &Step) -> [String; 6] {
        let args = |wanted: Access| {
            let own = self.bound(step).filter(|(_, access, _)| *access == wanted);
            own.map(|(.., buffer)| self.buffer_text(buffer)).collect::<Vec<_>>().join(", ")
        };
        let reasons: Vec<String> = step.barriers.iter().map(Barrier::to_string).collect();
        [
            number.to_string(),
            step.instance.to_string(),
            self.kernels[step.kernel].name.clone(),
            args(Access::Read),
            args(Access::Write),
            reasons.join(", "),
        ]
    }

    fn buffer_text(&self, buffer: BufferId) -> String {
        let slot = &self.buffers[buffer];
        in_arena(slot).map_or_else(|| slot.name.to_string(), |offset| format!("{}@{offset}", slot.name))
    }

    /// The buffers of the arena by offset, then by the step they begin with.
    fn arena_rows(&self) -> Vec<[String; 4]> {
        let lifetimes = lifetimes(&self.kernels, &self.steps, self.buffers.len());
        let mut rows: Vec<(usize, Option<Lifetime>, BufferId)> = self
            .buffers
            .iter()
            .filter_map(|(id, slot)| in_arena(slot).map(|offset| (offset, lifetimes[id], id)))
            .collect();
        rows.sort();
        let row = |(offset, lifetime, id): &(usize, Option<Lifetime>, BufferId)| {
            let slot = &self.buffers[*id];
            let giver = self.giver(*id, &lifetimes).map(|giver| &self.buffers[giver].name);
            let note = giver.map_or_else(String::new, |giver| format!(", in place of {giver}"));
            let steps = lifetime.map_or("none".to_owned(), |l| format!("{}..={}", l.first, l.last));
            [offset.to_string(), slot.bytes.to_string(), steps, format!("{}{note}", slot.name)]
        };
        rows.iter().map(row).collect()
    }

    /// The buffer that is read last by the step that writes this one first, in the same place.
    fn giver(&self, taker: BufferId, lifetimes: &List<BufferId, Option<Lifetime>>) -> Option<BufferId> {
        let first = lifetimes[taker]?.first;
        let reads = self.bound(&self.steps[first]).filter(|(_, access, _)| *access == Access::Read);
        let mut buffers = reads.map(|(.., buffer)| buffer);
        buffers.find(|buffer| {
            let is_same = self.buffers[*buffer].place == self.buffers[taker].place;
            *buffer != taker && is_same && self.buffers[*buffer].bytes > 0
        })
    }
}

fn in_arena(slot: &BufferSlot) -> Option<usize> {
    match slot.place {
        Place::Arena { offset } => Some(offset),
        Place::Input | Place::Weight | Place::State | Place::Constant(_) | Place::Output => None,
    }
}

#[cfg(test)]
mod tests {
    use crate::schedule::plan;
    use crate::schedule::samples::{layers, residual};

    #[test]
    fn a_plan_lists_its_steps_and_its_arena() {
        insta::assert_snapshot!(plan(residual()).unwrap(), @r"
        plan: 4 steps of 4 kernels; arena of 768 bytes for 3 buffers of 1152 bytes
        step  instance  kernel           reads                  writes     stored because
        0     0         map mul          x                      mul%2@0    not tried
        1     0         map sin          mul%2@0                sin%3@384  not tried
        2     0         matrix-vector w  mul%2@0, w, sin%3@384  add%7@0    not tried
        3     0         map mul          add%7@0                out        output

        offset  bytes  steps  buffer
        0       384    0..=2  mul%2
        0       384    2..=3  add%7, in place of mul%2
        384     384    1..=2  sin%3
        ");
    }

    #[test]
    fn a_summary_counts_launches() {
        insta::assert_snapshot!(plan(layers(28)).unwrap().summary(), @r"
        plan: 58 steps of 4 kernels; arena of 768 bytes for 57 buffers of 21888 bytes
        1 ×   map mul
        28 ×  map sin
        28 ×  matrix-vector w
        1 ×   map mul
        ");
    }
}
