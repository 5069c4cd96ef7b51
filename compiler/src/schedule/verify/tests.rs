//! Every complaint, planted in a plan that is sound.
//!
//! The plan is that of `samples::residual`: h = 2·x, a = sin h, y = h + W·a in place of h, out = 3·y.

use super::*;
use crate::foundation::entity::Id;
use crate::schedule::samples::{everywhere, hazard_graph, residual};
use crate::schedule::{KernelId, plan};
use crate::tensor::quant::Format;

fn good() -> Plan {
    plan(residual()).unwrap()
}

/// The buffer that a step binds to its first parameter of this access.
fn arg(plan: &Plan, step: usize, wanted: Access) -> BufferId {
    plan.bound(&plan.steps[step]).find(|(_, access, _)| *access == wanted).unwrap().2
}

/// Binds the first parameter of this access to another buffer.
fn rebind(plan: &mut Plan, step: usize, wanted: Access, buffer: BufferId) {
    let param = plan.bound(&plan.steps[step]).find(|(_, access, _)| *access == wanted).unwrap().0;
    plan.steps[step].args[param.index()] = buffer;
}

fn check(plant: impl FnOnce(&mut Plan), complaint: &str) {
    let mut plan = good();
    assert_eq!(verify(&plan), []);
    plant(&mut plan);
    let complaints: Vec<String> = verify(&plan).iter().map(Complaint::to_string).collect();
    assert!(complaints.iter().any(|found| found == complaint), "{complaints:#?}\n{plan}");
}

fn offset(plan: &mut Plan, buffer: BufferId) -> &mut usize {
    match &mut plan.buffers[buffer].place {
        Place::Arena { offset } => offset,
        other => panic!("{other:?} is not in the arena"),
    }
}

#[test]
fn a_size_that_does_not_follow_from_the_shape() {
    check(
        |plan| plan.buffers[BufferId::from_index(1)].bytes = 4,
        "buffer1 `x`: has 4 bytes, f32[d:96] needs 384 bytes",
    );
}

#[test]
fn an_offset_that_is_not_aligned() {
    let plant = |plan: &mut Plan| {
        let h = arg(plan, 0, Access::Write);
        *offset(plan, h) += 4;
    };
    check(plant, "buffer0 `mul%2`: lies at 4, a multiple of 64 is needed");
}

#[test]
fn a_buffer_beyond_the_arena() {
    check(|plan| plan.arena_bytes = 64, "buffer0 `mul%2`: reaches beyond the 64 bytes of the arena");
    let far = |plan: &mut Plan| {
        let h = arg(plan, 0, Access::Write);
        *offset(plan, h) = usize::MAX - 63;
    };
    check(far, "buffer0 `mul%2`: reaches beyond the 768 bytes of the arena");
}

#[test]
fn ids_of_another_plan() {
    check(|plan| plan.steps[0].kernel = KernelId::from_index(9), "step 0: there is no kernel9");
    check(|plan| plan.steps[0].args[0] = BufferId::from_index(99), "step 0: there is no buffer99");
}

#[test]
fn too_few_buffers() {
    check(|plan| plan.steps[0].args.truncate(1), "step 0: binds 1 buffer, the kernel has 2");
}

#[test]
fn a_buffer_of_another_type() {
    check(
        |plan| {
            plan.buffers[BufferId::from_index(1)].format = Format::I32;
        },
        "step 0: @1 is bound to x, which is i32[d:96], f32[d:96] is needed",
    );
    check(
        |plan| {
            let w = plan.buffers.iter().find(|(_, slot)| slot.place == Place::Weight).unwrap().0;
            rebind(plan, 1, Access::Read, w);
        },
        "step 1: @1 is bound to w, which is q8_0[d:96, e:96], f32[d:96] is needed",
    );
}

#[test]
fn a_write_to_an_input() {
    check(
        |plan| {
            let x = arg(plan, 0, Access::Read);
            rebind(plan, 1, Access::Write, x);
        },
        "step 1: writes x, which may only be read",
    );
}

#[test]
fn a_read_before_any_write() {
    check(|plan| plan.steps.swap(0, 1), "step 0: reads mul%2, which no step has written");
}

#[test]
fn a_read_of_what_was_overwritten() {
    check(
        |plan| {
            let (h, a) = (arg(plan, 0, Access::Write), arg(plan, 1, Access::Write));
            *offset(plan, a) = *offset(plan, h);
        },
        "step 2: reads mul%2, which step 1 has overwritten with sin%3",
    );
}

#[test]
fn two_results_in_one_place() {
    let graph = hazard_graph();
    let mut plan = plan(everywhere(&graph)).unwrap();
    let out = plan.buffers.iter().find(|(_, slot)| slot.place == Place::Output).unwrap().0;
    let step = plan.steps.iter().position(|step| arg_is_output(&plan, step, out)).unwrap();
    let mut twice = plan.kernels[plan.steps[step].kernel].clone();
    let param = twice.params.values().find(|param| param.access == Access::Write).unwrap().clone();
    twice.params.push(param);
    plan.steps[step].kernel = plan.kernels.push(twice);
    plan.steps[step].args.push(out);
    let complaints = verify(&plan);
    assert_eq!(
        complaints,
        [Complaint::new(format!("step {step}"), "writes before and before to the same bytes")]
    );
}

fn arg_is_output(plan: &Plan, step: &Step, out: BufferId) -> bool {
    plan.bound(step).any(|(_, access, buffer)| access == Access::Write && buffer == out)
}

#[test]
fn a_result_over_an_argument_that_is_still_needed() {
    check(
        |plan| {
            let (y, a) = (arg(plan, 2, Access::Write), arg(plan, 1, Access::Write));
            *offset(plan, y) = *offset(plan, a);
        },
        "step 2: reads sin%3 while it writes add%7 to the same bytes",
    );
    // The places must be the same, not merely overlap.
    check(
        |plan| {
            let h = arg(plan, 0, Access::Write);
            let y = arg(plan, 2, Access::Write);
            plan.arena_bytes += 64;
            *offset(plan, y) = *offset(plan, h) + 64;
        },
        "step 2: reads mul%2 while it writes add%7 to the same bytes",
    );
}

#[test]
fn a_state_that_is_read_and_written_by_one_step() {
    check(
        |plan| {
            let h = arg(plan, 0, Access::Write);
            plan.buffers[h].place = Place::State;
            rebind(plan, 1, Access::Write, h);
        },
        "step 1: reads mul%2 while it writes mul%2 to the same bytes",
    );
}

#[test]
fn an_output_that_nobody_writes() {
    check(|plan| plan.steps.truncate(3), "buffer5 `out`: no step writes this output");
}
