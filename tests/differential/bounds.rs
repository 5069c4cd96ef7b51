//! Tolerances for numbers that are quantised in blocks.
//!
//! In: graphs with quantised states, and what such a state holds. Out: tolerances. Two results that are nearly equal
//! may be rounded to neighbouring quants, which are a 127th of the largest of their block apart in `Q8_0`, and an
//! eighth in `Q4_0`. A kernel that only loads such numbers is given the very same as the reference, so nothing of that
//! is allowed it.

use std::iter::repeat_n;

use fusebox_compiler::graph::Graph;
use fusebox_compiler::graph::op::Op;
use fusebox_compiler::reference::compare::Tolerance;
use fusebox_compiler::reference::random::Numbers;
use fusebox_compiler::tensor::quant::Format;
use half::f16;

/// For a kernel of a graph, which loads exactly what it should.
pub(super) fn of_kernels(graph: &Graph) -> Tolerance {
    Tolerance::of(&unrounded(graph))
}

/// The graph with states in single precision where they are in blocks.
pub(super) fn unrounded(graph: &Graph) -> Graph {
    let mut plain = graph.clone();
    let ids: Vec<_> = plain.nodes.ids().collect();
    for id in ids {
        if let Op::State { format, .. } = &mut plain.nodes[id].op {
            *format = Format::of(format.dtype());
        }
    }
    plain
}

/// How much farther off each of these elements may be because it was rounded with others: nothing but in blocks that
/// kernels store.
///
/// The steps themselves are numbers of half precision, and two neighbours of these are up to an eighth of a step apart
/// at the largest element, or as far as half precision goes.
pub(super) fn steps(format: Format, elements: &[f64]) -> Vec<f64> {
    let Some(steps) = format.written_steps().map(f64::from) else { return vec![0.0; elements.len()] };
    let step = |block: &[f64]| {
        let most = block.iter().fold(0.0, |most, x| f64::max(most, x.abs()));
        1.2 * most / steps + steps * f16::MIN_POSITIVE_SUBNORMAL.to_f64()
    };
    let blocks = elements.chunks(format.block_len());
    blocks.flat_map(|block| repeat_n(step(block), block.len())).collect()
}

#[test]
fn nearly_equal_rows_are_rounded_no_farther_apart_than_steps_allow() {
    const OFF: f64 = 1e-4;
    for format in [Format::Q8_0, Format::Q4_0] {
        let mut numbers = Numbers::of(1, "rows");
        let mut farthest = 0.0;
        for scale in 0..2000 {
            let scale = 2f32.powi(5 - scale % 24);
            let mut row: Vec<f32> = (0..32).map(|_| numbers.signed() * scale).collect();
            // Two of nearly the greatest size: either may have the sign.
            (row[3], row[20]) = (scale, -scale);
            let near: Vec<f32> = row.iter().map(|x| x * (1.0 + OFF as f32 * numbers.signed())).collect();
            let [row, near] = [row, near].map(|row| format.rounded(&row).unwrap());
            let [row, near] = [row, near].map(|row| row.into_iter().map(f64::from).collect::<Vec<f64>>());
            for ((a, b), step) in row.iter().zip(&near).zip(steps(format, &row)) {
                let apart = (a - b).abs() / (step + OFF * f64::from(scale));
                assert!(apart <= 1.0, "{format}: {a} and {b} are {apart} of what is allowed apart");
                farthest = f64::max(farthest, apart);
            }
        }
        assert!(farthest > 0.75, "{format}: {farthest}");
    }
}
