//! Samples run against literal numbers, one kernel for each fault, and sources with random mistakes.

use super::*;
use crate::foundation::entity::List;
use crate::kernel::Kernel;
use crate::kernel::parse::parse;
use crate::kernel::run::memory::{Buffer, Buffers};
use crate::kernel::samples;
use crate::kernel::verify::verify;
use crate::tensor::quant::Format;
use crate::tensor::sym::Sym;
use proptest::prelude::*;

fn float(data: &[f32]) -> Buffer {
    Buffer::Float(data.to_vec())
}

fn int(data: &[i32]) -> Buffer {
    Buffer::Int(data.to_vec())
}

fn symbols(values: &[(&str, i64)]) -> BTreeMap<Label, i64> {
    values.iter().map(|(name, value)| (Label::new(name).unwrap(), *value)).collect()
}

/// Runs a text and gives back its last buffer.
fn result(text: &str, values: &[(&str, i64)], buffers: &[Buffer]) -> Result<Buffer, Fault> {
    let mut buffers = Buffers(buffers.iter().cloned().collect());
    run(&parse(text).unwrap(), &symbols(values), &mut buffers)?;
    Ok(buffers.0.values().last().unwrap().clone())
}

#[test]
fn an_expert_takes_the_rows_that_are_routed_to_it() {
    let ids = int(&[1, 3, 3, 0, 9, 3]);
    let x = float(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let scales = float(&[1.0, 10.0, 100.0, 1000.0]);
    // The fifth is clamped to the last; three rows of one expert are more than a block. The last token is not there.
    let y = float(&[10.0, 2000.0, 3000.0, 4.0, 0.0, 0.0]);
    assert_eq!(
        result(samples::ROUTED, &[("T", 2)], &[x.clone(), ids.clone(), scales.clone(), float(&[0.0; 6])]),
        Ok(y)
    );
    let y = float(&[10.0, 2000.0, 3000.0, 4.0, 5000.0, 6000.0]);
    assert_eq!(result(samples::ROUTED, &[("T", 3)], &[x, ids, scales, float(&[0.0; 6])]), Ok(y));
}

#[test]
fn what_is_done_once_is_taken_over_by_the_tasks_that_share_it() {
    let x: Vec<f32> = (0..96).map(|i| (i / 32) as f32).collect();
    let run = |text: &str, order: Order| {
        let w = Buffer::Float(vec![1.0; 192]);
        let mut buffers = Buffers([float(&x), w, float(&[0.0; 18])].into_iter().collect());
        run_in(order, &parse(text).unwrap(), &symbols(&[]), &mut buffers)?;
        Ok::<_, Fault>(buffers.0.values().last().unwrap().clone())
    };
    let y: Vec<f32> = (0..18).map(|i| 16.0 * (i / 6) as f32).collect();
    for order in [Order::Forward, Order::Backward, Order::Shuffled(3), Order::Twice] {
        assert_eq!(run(samples::SHARED, order), Ok(float(&y)));
    }
    // Were it done once for all tasks, all would have the activations of the first.
    let once = samples::SHARED.replace("once per t0", "once");
    assert_eq!(run(&once, Order::Forward), Ok(float(&[0.0; 18])));
}

#[test]
fn a_map_reaches_every_element_of_a_ragged_block() {
    let x: Vec<f32> = (0..13).map(|i| i as f32).collect();
    let y: Vec<f32> = (0..13).map(|i| 2.0 * i as f32 + 0.5).collect();
    assert_eq!(result(samples::MAP, &[], &[float(&x), float(&[0.0; 13])]), Ok(float(&y)));
    // 2 * 1024 + 0.5 lies between two half-precision numbers.
    let x = [1024.0; 13];
    assert_eq!(result(samples::MAP, &[], &[float(&x), float(&[0.0; 13])]), Ok(float(&[2048.0; 13])));
}

#[test]
fn what_is_stored_in_blocks_is_rounded_for_each_block() {
    let x: Vec<f32> = (0..128).map(|i| [127.0, -0.6, 1.5, 0.0][i % 4] * [1.0, 2.0][i / 32 % 2]).collect();
    let y: Vec<f32> = (0..128).map(|i| [-127.0, 1.0, -2.0, 0.0][i % 4] * [1.0, 2.0][i / 32 % 2]).collect();
    assert_eq!(result(samples::BLOCKS, &[], &[float(&x), float(&[0.0; 128])]), Ok(float(&y)));
}

#[test]
fn rows_that_are_not_there_stay_as_they_are() {
    let x = float(&[1.0, 2.0, 2.0, 0.0, 3.0, 0.0, 9.0, 9.0, 9.0, 9.0, 9.0, 9.0]);
    let y = || float(&[-1.0; 4]);
    let run = |t| result(samples::ROW_REDUCTION, &[("T", t)], &[x.clone(), y()]).unwrap();
    assert_eq!(run(2), float(&[3.0, 3.0, -1.0, -1.0]));
    assert_eq!(run(0), y());
}

#[test]
fn quantised_weights_are_decoded() {
    let mut bytes = Vec::new();
    for row in 1..=3u8 {
        bytes.extend([0x00, 0x38]);
        bytes.extend([row; 32]);
    }
    let w = Buffer::stored(Format::Q8_0, &bytes).unwrap();
    let x: Vec<f32> = (0..32).map(|i| i as f32).collect();
    // The sum of 0..32 is 496, and every scale is a half.
    let y = result(samples::MATRIX_VECTOR, &[], &[float(&x), w, float(&[0.0; 3])]);
    assert_eq!(y, Ok(float(&[248.0, 496.0, 744.0])));
}

#[test]
fn softmax_is_carried_from_block_to_block() {
    // Weights 1 : 2 : 4 after the shift, so the average of 7, 0, 0 is 1.
    let ln2 = 2f32.ln();
    let scores = float(&[0.0, ln2, 2.0 * ln2, 50.0, 50.0, 50.0, 50.0, 50.0]);
    let mut v = [100.0; 16];
    v[..6].copy_from_slice(&[7.0, 0.0, 0.0, 7.0, 0.0, 0.0]);
    let out = result(samples::ATTENTION, &[("P", 2)], &[scores, float(&v), float(&[0.0; 2])]).unwrap();
    let Buffer::Float(out) = out else { unreachable!() };
    assert!((out[0] - 1.0).abs() < 1e-6 && (out[1] - 2.0).abs() < 1e-6, "{out:?}");
}

#[test]
fn a_lookup_is_brought_into_range() {
    let table = float(&[0.0, 1.0, 10.0, 11.0, 20.0, 21.0, 30.0, 31.0]);
    let y = result(samples::GATHER, &[("T", 3)], &[int(&[2, -5, 99]), table, float(&[0.0; 6])]);
    assert_eq!(y, Ok(float(&[20.0, 21.0, 0.0, 1.0, 30.0, 31.0])));
}

#[test]
fn parts_share_a_launch() {
    let x = float(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let mut buffers = Buffers([x, float(&[0.0; 6]), int(&[0; 6])].into_iter().collect());
    run(&parse(samples::TWO_PARTS).unwrap(), &BTreeMap::new(), &mut buffers).unwrap();
    let [_, y, z] = [0, 1, 2].map(|i| buffers.0[ParamId::from_index(i)].clone());
    assert_eq!(y, float(&[4.0, 4.0, 4.0, 10.0, 10.0, 10.0]));
    // The transpose is 1, 4, 2, 5, 3, 6; what is not below 2.5 becomes c - min(10 c, 30).
    assert_eq!(z, int(&[1, -9, 2, -27, -26, -25]));
}

#[test]
fn every_fault_is_found() {
    let (x, y) = (float(&[1.0; 13]), float(&[0.0; 13]));
    let fault = |text: &str, buffers: &[Buffer]| result(text, &[], buffers).unwrap_err().to_string();
    let map =
        |piece: &str, with: &str| fault(&samples::MAP.replacen(piece, with, 1), &[x.clone(), y.clone()]);
    assert_eq!(map("@0[d1]", "@0[d1+1]"), "element [13] of @0, which has [13] elements");
    assert_eq!(map("@0[d1]", "@0[d1-1]"), "element [-1] of @0, which has [13] elements");
    assert_eq!(map("step 4", "step 3"), "element 3 of @1 is written by two tasks");
    assert_eq!(map("0.5", "1"), "e4: add of f32 and i32, one type is needed");
    assert_eq!(
        fault(samples::MAP, &[float(&[1.0; 5]), y.clone()]),
        "@0 has no element 5 that could be loaded"
    );
    assert_eq!(
        fault(samples::MAP, &[x.clone(), float(&[1.0; 5])]),
        "@1 has no element 5 that could be stored"
    );
    assert_eq!(fault(samples::MAP, &[int(&[1; 13]), y.clone()]), "@0 holds Int(1), f32 is needed");
    let rows = [x, y];
    assert_eq!(fault(samples::ROW_REDUCTION, &rows), "symbol T has no value, one is needed");
    let outside = result(samples::ROW_REDUCTION, &[("T", 5)], &rows).unwrap_err();
    assert_eq!(outside.to_string(), "symbol T is 5, it must be in 0..4");
}

#[test]
fn a_tile_is_forgotten_between_tasks() {
    let vector = samples::MATRIX_VECTOR;
    let buffers = [float(&[1.0; 32]), Buffer::stored(Format::Q8_0, &[0; 102]).unwrap(), float(&[0.0; 3])];
    let half = vector.replacen("var d2 in 0..32", "var d2 in 0..32\n  var d3 in 0..16", 1);
    let half = half.replacen("for d2\n    tile0[d2] = @0[d2]", "for d3\n    tile0[d3] = @0[d3]", 1);
    let fault = result(&half, &[], &buffers).unwrap_err();
    assert_eq!(fault.to_string(), "element 16 of tile0 is read before this task wrote it");
    // The first task fills the tile wholly, the second only one element.
    let once = vector.replacen(
        "var d2 in 0..32",
        "var d2 in 0..32\n  var d3 in blocks of 32 step 1 from 16*e0 to 32\n  var d4 within d3",
        1,
    );
    let once = once.replacen(
        "for d2\n    tile0[d2] = @0[d2]",
        "loop d3\n    for d4\n      tile0[d4] = @0[d4]\n  end",
        1,
    );
    let fault = result(&once, &[], &buffers).unwrap_err();
    assert_eq!(fault.to_string(), "element 0 of tile0 is read before this task wrote it");
}

#[test]
fn sums_are_rounded_at_every_step() {
    let text = samples::ROW_REDUCTION.replacen("mul(%0, %0)", "%0", 1);
    let x = float(&[16_777_216.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
    let text = text.replacen("div(tile0[], 3.0)", "tile0[]", 1);
    let y = result(&text, &[("T", 1)], &[x, float(&[0.0; 4])]);
    assert_eq!(y, Ok(float(&[16_777_216.0, 0.0, 0.0, 0.0])));
}

#[test]
fn the_example_of_the_docs_is_sound() {
    let docs = include_str!("../../../../docs/kernel.md");
    let example = docs.split("```kernel\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let kernel = parse(example).unwrap();
    assert_eq!(verify(&kernel), []);
    run(&kernel, &largest(&kernel), &mut zeros(&kernel).unwrap()).unwrap();
}

#[test]
fn odd_names_run() {
    let x = int(&(0..24).collect::<Vec<i32>>());
    let y = result(samples::ODD_NAMES, &[("P0", 1), ("b", 0)], &[x, float(&[0.0; 8])]);
    // Row r takes the largest of row max(r - 2, 0), which ends in 2.
    assert_eq!(y, Ok(float(&[2.0, 2.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])));
}

/// How often innermost loops may run at most, from the sizes of all ranges.
fn work(kernel: &Kernel, values: &BTreeMap<Label, i64>) -> f64 {
    let of = |sym: &Sym| sym.evaluate(|symbol| values[&symbol.name]);
    let work = |part: &Part| {
        let n_values = part.vars.ids().map(|id| part.n_values(id, &of).max(1) as f64);
        let tiles = part.tiles.values().map(|tile| tile.dims.iter().product::<usize>() as f64);
        n_values.product::<f64>() + tiles.sum::<f64>()
    };
    kernel.parts.iter().map(work).sum()
}

/// Every symbol of a text at its largest value.
fn largest(kernel: &Kernel) -> BTreeMap<Label, i64> {
    crate::kernel::print::all_symbols(kernel).iter().map(|symbol| (symbol.name, symbol.max)).collect()
}

fn zeros(kernel: &Kernel) -> Option<Buffers> {
    let buffer = |param: &crate::kernel::Param| {
        let n = param.shape.max_len();
        (n <= 1 << 16).then(|| Buffer::zeros(param.format.dtype(), n))
    };
    kernel.params.values().map(buffer).collect::<Option<List<_, _>>>().map(Buffers)
}

/// Pieces that a slip puts into a text.
const PIECES: [&str; 24] = [
    "0",
    "1",
    "7",
    "-",
    "+",
    "*",
    "99999999999",
    "1099511627776",
    "tile0",
    "d1",
    "[",
    "]",
    "(",
    ")",
    ", ",
    "\n",
    "end\n",
    "loop s0\n",
    "sum d1 of ",
    "%0",
    "q4_k",
    "\"",
    "lookup(",
    "\u{e9}",
];

/// The kernel a broken text still describes goes through all companions; none of them may panic.
fn survive(text: &str) {
    let Ok(kernel) = parse(text) else { return };
    let printed = kernel.to_string();
    assert_eq!(parse(&printed).map(|again| again.to_string()), Ok(printed));
    if !verify(&kernel).is_empty() {
        return;
    }
    let values = largest(&kernel);
    let Some(mut buffers) = zeros(&kernel) else { return };
    if work(&kernel, &values) < 1e5 {
        let outcome = run(&kernel, &values, &mut buffers);
        let is_disproved = |fault: &Fault| {
            matches!(fault, Fault::OutOfBounds { .. } | Fault::Untyped { .. } | Fault::TwoWriters { .. })
        };
        assert!(!outcome.as_ref().is_err_and(is_disproved), "{outcome:?}\n{text}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn slips_never_make_anything_panic(
        sample in 0..samples::ALL.len(),
        slips in prop::collection::vec((any::<prop::sample::Index>(), 0usize..6, 0..PIECES.len()), 1..4),
    ) {
        let mut text: Vec<char> = samples::ALL[sample].chars().collect();
        for (at, n_removed, piece) in slips {
            let at = at.index(text.len());
            let end = (at + n_removed).min(text.len());
            text.splice(at..end, PIECES[piece].chars());
        }
        survive(&text.into_iter().collect::<String>());
    }

    #[test]
    fn other_numbers_never_make_anything_panic(
        sample in 0..samples::ALL.len(),
        slips in prop::collection::vec((any::<prop::sample::Index>(), 0i64..12), 1..4),
    ) {
        let mut text = samples::ALL[sample].to_owned();
        for (at, number) in slips {
            let digits: Vec<usize> = text.char_indices().filter(|(_, c)| c.is_ascii_digit()).map(|(i, _)| i).collect();
            let at = digits[at.index(digits.len())];
            text.replace_range(at..=at, &number.to_string());
        }
        survive(&text);
    }
}
