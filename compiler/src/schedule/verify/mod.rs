//! Proves that a plan is sound, without asking how it was made.
//!
//! In: any plan of kernels that verify. Out: one complaint for each thing that does not fit; none means that it may be
//! launched.
//! The steps are gone through in order, over ranges of bytes: whatever is read was written before, and nothing wrote
//! over it since. A kernel that may replace an argument by its result is checked again, see `alias::may_share`.
//! What a kernel does inside is proven by `kernel::verify`; places of writes that it takes on trust are inputs.

use crate::error::Complaint;
use crate::foundation::amount::counted;
use crate::foundation::entity::List;
use crate::kernel::{Access, Param, ParamId};
use crate::schedule::places::verify_places;
use crate::schedule::{BufferId, BufferSlot, Place, Plan, Step, alias, arena, max_len};
use crate::tensor::shape::Shape;

/// Everything that does not fit: buffers first, then steps in order.
pub fn verify(plan: &Plan) -> Vec<Complaint> {
    let content = |slot: &BufferSlot| match slot.place {
        Place::Input | Place::Weight | Place::State | Place::Constant(_) => Content::Whole,
        Place::Output | Place::Arena { .. } => Content::Nothing,
    };
    let contents = plan.buffers.values().map(content).collect();
    let mut checker = Checker { plan, contents, place: String::new(), complaints: Vec::new() };
    for (id, slot) in plan.buffers.iter() {
        checker.place = format!("{id} `{}`", slot.name);
        checker.slot(slot);
    }
    for (number, step) in plan.steps.iter().enumerate() {
        checker.place = format!("step {number}");
        if checker.args_fit(step) {
            checker.step(number, step);
        }
    }
    checker.outputs();
    // Promises are of buffers that are bound.
    if checker.complaints.is_empty() {
        verify_places(plan, &mut checker.complaints);
    }
    checker.complaints
}

/// What a buffer holds.
#[derive(Clone, Copy)]
enum Content {
    /// Nobody has written to it.
    Nothing,
    /// What was last written to it.
    Whole,
    /// What a step wrote to another buffer.
    Lost { step: usize, to: BufferId },
}

struct Checker<'a> {
    plan: &'a Plan,
    contents: List<BufferId, Content>,
    /// Where complaints point to.
    place: String,
    complaints: Vec<Complaint>,
}

impl Checker<'_> {
    fn complain(&mut self, what: impl Into<String>) {
        self.complaints.push(Complaint::new(&self.place, what.into()));
    }

    fn slot(&mut self, slot: &BufferSlot) {
        let needed = max_len(&slot.shape).and_then(|n| slot.format.bytes_for(n));
        if needed != Some(slot.bytes) {
            let needed = needed.map_or("no size".to_owned(), |needed| format!("{needed} bytes"));
            let (bytes, format, shape) = (slot.bytes, slot.format, &slot.shape);
            self.complain(format!("has {bytes} bytes, {format}{shape} needs {needed}"));
        }
        let Place::Arena { offset } = slot.place else { return };
        let most = self.plan.arena_bytes;
        if offset % arena::ALIGNMENT != 0 {
            self.complain(format!("lies at {offset}, a multiple of {} is needed", arena::ALIGNMENT));
        }
        if offset.checked_add(slot.bytes).is_none_or(|end| end > most) {
            self.complain(format!("reaches beyond the {most} bytes of the arena"));
        }
    }

    /// Whether a step has a fitting buffer for each parameter; only then is the rest worth looking at.
    fn args_fit(&mut self, step: &Step) -> bool {
        let Some(kernel) = self.plan.kernels.get(step.kernel) else {
            self.complain(format!("there is no {}", step.kernel));
            return false;
        };
        if let Some(missing) = step.args.iter().find(|arg| self.plan.buffers.get(**arg).is_none()) {
            self.complain(format!("there is no {missing}"));
            return false;
        }
        if kernel.params.len() != step.args.len() {
            let (found, needed) = (step.args.len(), kernel.params.len());
            self.complain(format!("binds {}, the kernel has {needed}", counted(found, "buffer")));
            return false;
        }
        let n_complaints = self.complaints.len();
        for ((id, param), arg) in kernel.params.iter().zip(&step.args) {
            self.arg(id, param, *arg);
        }
        self.complaints.len() == n_complaints
    }

    fn arg(&mut self, id: ParamId, param: &Param, arg: BufferId) {
        let slot = &self.plan.buffers[arg];
        let sizes = |shape: &Shape| -> Vec<i64> { shape.iter().map(|(_, size)| size.most()).collect() };
        if slot.format != param.format || sizes(&slot.shape) != sizes(&param.shape) {
            let (found, needed) =
                (format!("{}{}", slot.format, slot.shape), format!("{}{}", param.format, param.shape));
            self.complain(format!("{id} is bound to {}, which is {found}, {needed} is needed", slot.name));
        }
        let is_fixed = match slot.place {
            Place::Input | Place::Weight | Place::Constant(_) => true,
            Place::State | Place::Output | Place::Arena { .. } => false,
        };
        if param.access == Access::Write && is_fixed {
            self.complain(format!("writes {}, which may only be read", slot.name));
        }
    }

    fn step(&mut self, number: usize, step: &Step) {
        let all: Vec<(ParamId, Access, BufferId)> = self.plan.bound(step).collect();
        let of = |wanted: Access| all.iter().filter(move |(_, access, _)| *access == wanted);
        for (.., buffer) in of(Access::Read) {
            self.read(*buffer);
        }
        for (index, (written, _, buffer)) in of(Access::Write).enumerate() {
            for (.., other) in of(Access::Write).take(index) {
                self.written_apart(*buffer, *other);
            }
            for (read, _, other) in of(Access::Read) {
                self.read_apart(step, (*read, *other), (*written, *buffer));
            }
        }
        for (.., buffer) in of(Access::Write) {
            self.write(number, *buffer);
        }
    }

    fn read(&mut self, buffer: BufferId) {
        let name = &self.plan.buffers[buffer].name;
        match self.contents[buffer] {
            Content::Whole => {}
            Content::Nothing => self.complain(format!("reads {name}, which no step has written")),
            Content::Lost { step, to } => {
                let to = &self.plan.buffers[to].name;
                self.complain(format!("reads {name}, which step {step} has overwritten with {to}"));
            }
        }
    }

    fn written_apart(&mut self, a: BufferId, b: BufferId) {
        if self.overlap(a, b) {
            let (a, b) = (&self.plan.buffers[a].name, &self.plan.buffers[b].name);
            self.complain(format!("writes {a} and {b} to the same bytes"));
        }
    }

    fn read_apart(&mut self, step: &Step, read: (ParamId, BufferId), written: (ParamId, BufferId)) {
        if !self.overlap(read.1, written.1) {
            return;
        }
        let [a, b] = [read.1, written.1].map(|id| &self.plan.buffers[id]);
        let is_state = a.place == Place::State;
        let is_same = (&a.place, a.bytes) == (&b.place, b.bytes);
        if is_state || !is_same || !alias::may_share(&self.plan.kernels[step.kernel], read.0, written.0) {
            let (a, b) = (&a.name, &b.name);
            self.complain(format!("reads {a} while it writes {b} to the same bytes"));
        }
    }

    fn write(&mut self, number: usize, buffer: BufferId) {
        for other in self.plan.buffers.ids() {
            let holds = matches!(self.contents[other], Content::Whole);
            if other != buffer && holds && self.overlap(buffer, other) {
                self.contents[other] = Content::Lost { step: number, to: buffer };
            }
        }
        self.contents[buffer] = Content::Whole;
    }

    /// Whether two buffers have a byte in common.
    fn overlap(&self, a: BufferId, b: BufferId) -> bool {
        let [x, y] = [a, b].map(|id| &self.plan.buffers[id]);
        match (&x.place, &y.place) {
            (Place::Arena { offset: from }, Place::Arena { offset: to }) => {
                *from < to.saturating_add(y.bytes) && *to < from.saturating_add(x.bytes)
            }
            _ => a == b,
        }
    }

    fn outputs(&mut self) {
        for (id, slot) in self.plan.buffers.iter() {
            let is_missing = slot.place == Place::Output && matches!(self.contents[id], Content::Nothing);
            if is_missing {
                self.place = format!("{id} `{}`", slot.name);
                self.complain("no step writes this output");
            }
        }
    }
}

#[cfg(test)]
mod tests;
