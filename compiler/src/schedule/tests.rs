//! What planning promises: order, places, sizes and limits.

use super::*;
use crate::graph::build::Builder;
use crate::schedule::samples::{everywhere, layers, residual};
use crate::tensor::dtype::DType;
use crate::tensor::label::Label;
use crate::tensor::sym::Sym;

fn value(format: Format, sizes: &[i64]) -> Sequence {
    let names = ["a", "b", "c"].map(|name| Label::new(name).unwrap());
    let shape = Shape::new(names.into_iter().zip(sizes.iter().map(|size| Sym::from(*size)))).unwrap();
    let value = Value { name: "x".into(), format, shape, home: Home::Temporary };
    Sequence { values: [value].into_iter().collect(), ..Sequence::default() }
}

#[test]
fn steps_keep_the_order_and_the_reasons_of_launches() {
    let sequence = layers(3);
    let plan = plan(sequence.clone()).unwrap();
    assert_eq!(plan.steps, sequence.steps);
    for (slot, value) in plan.buffers.values().zip(sequence.values.values()) {
        assert_eq!((&slot.name, slot.format, &slot.shape), (&value.name, value.format, &value.shape));
    }
}

#[test]
fn the_same_sequence_gives_the_same_plan() {
    assert_eq!(plan(layers(9)).unwrap(), plan(layers(9)).unwrap());
}

#[test]
fn the_arena_does_not_grow_with_depth() {
    let bytes = |n| plan(layers(n)).unwrap().arena_bytes;
    assert_eq!([1, 2, 28].map(bytes), [768; 3]);
}

#[test]
fn a_residual_takes_the_place_of_what_it_adds_to() {
    let plan = plan(residual()).unwrap();
    let place = |step: usize, wanted: Access| {
        let mut own = plan.bound(&plan.steps[step]).filter(|(_, access, _)| *access == wanted);
        plan.buffers[own.next().unwrap().2].place.clone()
    };
    assert_eq!(place(0, Access::Write), place(2, Access::Write));
    assert_ne!(place(1, Access::Write), place(2, Access::Write));
}

#[test]
fn a_value_that_is_read_later_keeps_its_place() {
    let g = Builder::new();
    let d = g.dim("d", 16);
    let x = g.input("x", DType::F32, &[&d]);
    let h = &x * 2.0;
    let y = h.exp();
    let z = &y * &h;
    let graph = g.finish(&[("out", &(&z + 1.0))]).unwrap();
    let plan = plan(everywhere(&graph)).unwrap();
    assert_eq!(plan.arena_bytes, 2 * 64);
}

#[test]
fn sizes_beyond_any_memory_are_a_limit() {
    let message = |sequence| plan(sequence).unwrap_err().to_string();
    let limit = "at most 70368744177664 is possible";
    let n = 1 << 45;
    assert_eq!(message(value(Format::F32, &[n])), format!("the size of `x` in bytes is {}, {limit}", n * 4));
    let many = i64::MAX / 2;
    let found = u64::MAX;
    let expected = format!("the number of elements of `x` is {found}, {limit}");
    assert_eq!(message(value(Format::F32, &[many, many, many])), expected);
    let mut several = value(Format::F32, &[1 << 44]);
    let copy = several.values.values().next().unwrap().clone();
    several.values.push(copy);
    assert_eq!(message(several), format!("the arena in bytes is {}, {limit}", 1u64 << 47));
}

#[test]
fn pieces_of_blocks_are_a_bug() {
    let error = plan(value(Format::Q8_0, &[48])).unwrap_err().to_string();
    assert!(error.ends_with("x: 48 elements do not fill blocks of q8_0"), "{error}");
}
