//! Each operation with numbers small enough to check by hand.
//!
//! In: tiny graphs. Out: literal values, compared bit by bit; the edges come with their operation: nothing to sum, an
//! index out of range, ties, NaN.

use super::*;
use crate::error::Error;
use crate::graph::build::Builder;
use crate::tensor::quant::Format;
use crate::tensor::sym::{Sym, Symbol};

const INF: f32 = f32::INFINITY;
const NAN: f32 = f32::NAN;

/// A symbol from 0 to 8.
fn symbol(name: &str) -> Sym {
    Sym::from(Symbol::new(label(name), 0, 8, 4))
}

#[test]
fn leaves_are_what_they_say() {
    let g = Builder::new();
    let mut bindings = Bindings { symbols: symbols(&[("P", 5)]), ..Bindings::default() };
    let p = symbol("P");
    assert_eq!(value_of(&g.constant(1.5), &bindings), floats(&[], &[1.5]));
    assert_eq!(value_of(&g.integer(-7), &bindings), ints(&[], &[-7]));
    assert_eq!(value_of(&g.table(label("i"), &[0.5, -INF]), &bindings), floats(&[("i", 2)], &[0.5, -INF]));
    assert_eq!(value_of(&g.symbolic(p.clone() * 2 + 1), &bindings), ints(&[], &[11]));
    let iota = g.iota(&g.dim("s", p));
    assert_eq!(value_of(&iota, &bindings), ints(&[("s", 5)], &[0, 1, 2, 3, 4]));
    bindings.symbols.insert(label("P"), 0);
    assert_eq!(value_of(&iota, &bindings), ints(&[("s", 0)], &[]));
}

#[test]
fn elements_meet_by_name() {
    let g = Builder::new();
    let (t, d) = (g.dim("t", 2), g.dim("d", 3));
    let x = g.input("x", DType::F32, &[&t, &d]);
    let (row, column) = (g.input("row", DType::F32, &[&d]), g.input("column", DType::F32, &[&t]));
    let bindings = inputs(&[
        ("x", floats(&[("t", 2), ("d", 3)], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])),
        ("row", floats(&[("d", 3)], &[1.0, 0.0, -1.0])),
        ("column", floats(&[("t", 2)], &[10.0, 20.0])),
    ]);
    let check = |y: &Tensor, axes: &[(&str, usize)], data: &[f32]| {
        assert_eq!(value_of(y, &bindings), floats(axes, data));
    };
    check(&(&x * &row), &[("t", 2), ("d", 3)], &[1.0, 0.0, -3.0, 4.0, 0.0, -6.0]);
    check(&(&x - &column), &[("t", 2), ("d", 3)], &[-9.0, -8.0, -7.0, -16.0, -15.0, -14.0]);
    check(&(&row + &column), &[("d", 3), ("t", 2)], &[11.0, 21.0, 10.0, 20.0, 9.0, 19.0]);
    check(&(-&row / 2.0), &[("d", 3)], &[-0.5, 0.0, 0.5]);
    check(&(&column.rename(&t, &d) * 0.1).sqrt(), &[("d", 2)], &[1.0, 2.0_f32.sqrt()]);
    let chosen = g.select(&column.lt(&x.sum(&d)), &x, &row);
    check(&chosen, &[("t", 2), ("d", 3)], &[1.0, 0.0, -1.0, 1.0, 0.0, -1.0]);
}

#[test]
fn every_node_is_rounded_to_its_type() {
    let g = Builder::new();
    let bindings = Bindings::default();
    // 2^24 + 1 is not a number of single precision.
    let big = (g.constant(16_777_216.0) + 1.0) + 1.0;
    assert_eq!(value_of(&big, &bindings), floats(&[], &[16_777_216.0]));
    let half = (g.constant(1.0) / 3.0).cast(DType::F16);
    assert_eq!(value_of(&half, &bindings), Value::float(DType::F16, vec![], vec![0.333_251_95]));
    assert_eq!(value_of(&g.constant(-2.7).cast(DType::I32), &bindings), ints(&[], &[-2]));
    assert_eq!(value_of(&g.integer(i32::MAX).cast(DType::F32), &bindings), floats(&[], &[2_147_483_648.0]));
    // A sum is rounded at its end only.
    let sum = g.table(label("i"), &[16_777_216.0, 1.0, 1.0]).sum(label("i"));
    assert_eq!(value_of(&sum, &bindings), floats(&[], &[16_777_218.0]));
}

#[test]
fn whole_numbers_wrap_around() {
    let g = Builder::new();
    let bindings = Bindings::default();
    let (most, least) = (g.integer(i32::MAX), g.integer(i32::MIN));
    assert_eq!(value_of(&(&most + &g.integer(1)), &bindings), ints(&[], &[i32::MIN]));
    assert_eq!(value_of(&(&most * &most), &bindings), ints(&[], &[1]));
    assert_eq!(value_of(&-&least, &bindings), ints(&[], &[i32::MIN]));
    assert_eq!(value_of(&most.expand(&g.dim("i", 3)).sum(label("i")), &bindings), ints(&[], &[i32::MAX - 2]));
    assert_eq!(value_of(&least.lt(&most), &bindings), ints(&[], &[1]));
    assert_eq!(value_of(&least.maximum(&most), &bindings), ints(&[], &[i32::MAX]));
}

#[test]
fn a_fold_of_nothing_is_its_identity() {
    let g = Builder::new();
    let (s, d) = (g.dim("s", symbol("P")), g.dim("d", 2));
    let x = g.input("x", DType::F32, &[&s, &d]);
    let i = g.input("i", DType::I32, &[&s]);
    let mut bindings = inputs(&[("x", floats(&[("s", 0), ("d", 2)], &[])), ("i", ints(&[("s", 0)], &[]))]);
    bindings.symbols = symbols(&[("P", 0)]);
    assert_eq!(value_of(&x.sum(&s), &bindings), floats(&[("d", 2)], &[0.0, 0.0]));
    assert_eq!(value_of(&x.max(&s), &bindings), floats(&[("d", 2)], &[-INF, -INF]));
    assert_eq!(value_of(&i.max(&s), &bindings), ints(&[], &[i32::MIN]));
    assert_eq!(value_of(&x.contract(&x, [&s]), &bindings), floats(&[("d", 2)], &[0.0, 0.0]));
    assert_eq!(attended(&x, &x, "s", &bindings), floats(&[("d", 2)], &[0.0, 0.0]));
}

#[test]
fn a_max_passes_over_what_is_not_a_number() {
    let g = Builder::new();
    let max = |numbers: &[f32]| value_of(&g.table(label("i"), numbers).max(label("i")), &Bindings::default());
    assert_eq!(max(&[NAN, -3.0, -2.0]), floats(&[], &[-2.0]));
    assert_eq!(max(&[NAN]), floats(&[], &[-INF]));
}

#[test]
fn axes_are_split_merged_renamed_and_expanded() {
    let g = Builder::new();
    let (t, d) = (g.dim("t", 2), g.dim("d", 4));
    let (h, e) = (g.dim("h", 2), g.dim("e", 2));
    let x = g.input("x", DType::F32, &[&t, &d]);
    let bindings = inputs(&[("x", floats(&[("t", 2), ("d", 4)], &[0., 1., 2., 3., 4., 5., 6., 7.]))]);
    let check = |y: &Tensor, axes: &[(&str, usize)], data: &[f32]| {
        assert_eq!(value_of(y, &bindings), floats(axes, data));
    };
    let parts = x.split(&d, &[&h, &e]);
    let (kept, swapped) = ([0., 1., 2., 3., 4., 5., 6., 7.], [0., 2., 1., 3., 4., 6., 5., 7.]);
    check(&parts, &[("t", 2), ("h", 2), ("e", 2)], &kept);
    check(&parts.merge(&[&h, &e], &d), &[("t", 2), ("d", 4)], &kept);
    check(&parts.merge(&[&e, &h], &d), &[("t", 2), ("d", 4)], &[0., 2., 1., 3., 4., 6., 5., 7.]);
    check(&parts.merge(&[&e, &h], &e), &[("t", 2), ("e", 4)], &swapped);
    check(&parts.merge(&[&h, &t], &t), &[("t", 4), ("e", 2)], &[0., 1., 4., 5., 2., 3., 6., 7.]);
    check(&x.split(&d, &[&d.sized(2), &e]), &[("t", 2), ("d", 2), ("e", 2)], &kept);
    check(&x.rename(&d, &h), &[("t", 2), ("h", 4)], &kept);
    let row = x.slice(&t, 1, 1).merge(&[&t, &d], &d);
    check(&row.expand(&h), &[("h", 2), ("d", 4)], &[4., 5., 6., 7., 4., 5., 6., 7.]);
    check(&x.barrier(), &[("t", 2), ("d", 4)], &kept);
}

#[test]
fn runs_are_sliced_and_put_together() {
    let g = Builder::new();
    let (p, t) = (symbol("P"), symbol("T"));
    let (d, s) = (g.dim("d", 2), g.dim("s", 8));
    let x = g.input("x", DType::F32, &[&d, &s]);
    let part = |start: Sym, len: Sym| x.slice(&s, start, len);
    let zero = Sym::from(0i64);
    let joined = g.concat(&s, &[&part(zero.clone(), p.clone()), &part(Sym::from(0i64), t.clone())]);
    let data: Vec<f32> = (0..16u8).map(f32::from).collect();
    let mut bindings = inputs(&[("x", floats(&[("d", 2), ("s", 8)], &data))]);
    for (p, t, expected) in [
        (2, 1, vec![0., 1., 0., 8., 9., 8.]),
        (0, 2, vec![0., 1., 8., 9.]),
        (1, 0, vec![0., 8.]),
        (0, 0, vec![]),
    ] {
        bindings.symbols = symbols(&[("P", p), ("T", t)]);
        let size = (p + t) as usize;
        assert_eq!(value_of(&joined, &bindings), floats(&[("d", 2), ("s", size)], &expected), "{p} {t}");
    }
    let middle = part(Sym::from(3i64), Sym::from(2i64));
    assert_eq!(value_of(&middle, &bindings), floats(&[("d", 2), ("s", 2)], &[3., 4., 11., 12.]));
}

#[test]
fn parts_may_have_their_axes_in_another_order() {
    let g = Builder::new();
    let (a, b) = (g.dim("a", 2), g.dim("b", 1));
    let x = g.input("x", DType::I32, &[&a, &b]);
    let y = g.input("y", DType::I32, &[&b.sized(2), &a]);
    let bindings = inputs(&[
        ("x", ints(&[("a", 2), ("b", 1)], &[1, 2])),
        ("y", ints(&[("b", 2), ("a", 2)], &[3, 4, 5, 6])),
    ]);
    assert_eq!(
        value_of(&g.concat(&b, &[&x, &y]), &bindings),
        ints(&[("a", 2), ("b", 3)], &[1, 3, 5, 2, 4, 6])
    );
}

#[test]
fn a_contraction_sums_products_over_axes_of_both() {
    let g = Builder::new();
    let (t, d, e) = (g.dim("t", 2), g.dim("d", 2), g.dim("e", 2));
    let x = g.input("x", DType::F32, &[&t, &d]);
    let w = g.input("w", DType::F16, &[&e, &d]);
    let bindings = inputs(&[
        ("x", floats(&[("t", 2), ("d", 2)], &[1., 2., 3., 4.])),
        ("w", Value::float(DType::F16, axes(&[("e", 2), ("d", 2)]), vec![1., 0.5, -1., 2.])),
    ]);
    let product = value_of(&x.contract(&w, [&d]), &bindings);
    assert_eq!(product, floats(&[("t", 2), ("e", 2)], &[2., 3., 5., 5.]));
    assert_eq!(value_of(&x.contract(&x, [&t, &d]), &bindings), floats(&[], &[30.]));
    let batched = value_of(&x.contract(&w, []), &bindings);
    assert_eq!(batched, floats(&[("t", 2), ("d", 2), ("e", 2)], &[1., -1., 1., 4., 3., -3., 2., 8.]));
}

#[test]
fn rows_are_gathered_within_the_table_and_along_shared_axes() {
    let g = Builder::new();
    let (b, r, d, k) = (g.dim("b", 2), g.dim("r", 3), g.dim("d", 2), g.dim("k", 2));
    let table = g.input("table", DType::F32, &[&b, &r, &d]);
    let index = g.input("index", DType::I32, &[&k, &b]);
    let bindings = inputs(&[
        (
            "table",
            floats(&[("b", 2), ("r", 3), ("d", 2)], &[0., 1., 2., 3., 4., 5., 10., 11., 12., 13., 14., 15.]),
        ),
        ("index", ints(&[("k", 2), ("b", 2)], &[1, -5, 9, 2])),
    ]);
    let rows = value_of(&table.gather(&r, &index), &bindings);
    assert_eq!(rows, floats(&[("k", 2), ("b", 2), ("d", 2)], &[2., 3., 10., 11., 4., 5., 14., 15.]));
    let one = value_of(&table.gather(&r, &g.integer(1)), &bindings);
    assert_eq!(one, floats(&[("b", 2), ("d", 2)], &[2., 3., 12., 13.]));
    let empty = table.slice(&r, 0, 0).gather(&r, &g.integer(1));
    assert_eq!(value_of(&empty, &bindings), floats(&[("b", 2), ("d", 2)], &[0.; 4]));
}

#[test]
fn the_largest_come_first_and_ties_go_to_the_lowest_position() {
    let g = Builder::new();
    let (e, t) = (g.dim("e", 5), g.dim("t", 2));
    let x = g.input("x", DType::F32, &[&e, &t]);
    let columns = [[1.0, 3.0, NAN, 3.0, -1.0], [NAN, -INF, NAN, 7.0, INF]];
    let data: Vec<f32> = (0..5).flat_map(|i| columns.map(|column| column[i])).collect();
    let bindings = inputs(&[("x", floats(&[("e", 5), ("t", 2)], &data))]);
    let four = value_of(&x.top_k(&e, &g.dim("rank", 4)), &bindings);
    assert_eq!(four, ints(&[("rank", 4), ("t", 2)], &[1, 4, 3, 3, 0, 0, 4, 1]));
    let all = value_of(&x.top_k(&e, &e), &bindings);
    assert_eq!(all, ints(&[("e", 5), ("t", 2)], &[1, 4, 3, 3, 0, 0, 4, 1, 2, 2]));
}

#[test]
fn attend_averages_with_softmax_weights() {
    let g = Builder::new();
    let (t, s, e) = (g.dim("t", 3), g.dim("s", 2), g.dim("e", 1));
    let (scores, values) = (g.input("p", DType::F32, &[&t, &s]), g.input("v", DType::F32, &[&s, &e]));
    let ln3 = 3.0_f32.ln();
    let bindings = inputs(&[
        ("p", floats(&[("t", 3), ("s", 2)], &[100.0, 100.0 + ln3, -INF, 5.0, -INF, -INF])),
        ("v", floats(&[("s", 2), ("e", 1)], &[4.0, 8.0])),
    ]);
    let result = attended(&scores, &values, "s", &bindings);
    assert_eq!(result.axes, axes(&[("t", 3), ("e", 1)]));
    // Weights 1/4 and 3/4; all weight on the second; no weight anywhere.
    for (index, expected) in [7.0, 8.0, 0.0].into_iter().enumerate() {
        assert!((result.number(index) - expected).abs() < 1e-5, "{result:?}");
    }
    let broken = inputs(&[
        ("p", floats(&[("t", 3), ("s", 2)], &[NAN, -INF, INF, 0.0, NAN, NAN])),
        ("v", floats(&[("s", 2), ("e", 1)], &[4.0, 8.0])),
    ]);
    let result = attended(&scores, &values, "s", &broken);
    assert!((0..3).all(|index| result.number(index).is_nan()), "{result:?}");
}

#[test]
fn weights_decode_by_their_format() {
    let g = Builder::new();
    let d = g.dim("d", 32);
    let (a, b) = (g.weight("a", Format::Q4_0, &[&d]), g.weight("b", Format::Q8_0, &[&d]));
    let ids = g.weight("ids", Format::I32, &[&g.dim("i", 2)]);
    // A scale of 0.5, then nibbles of which all say 0x9: (9 - 8) / 2.
    let nibbles = [&[0x00, 0x38][..], &[0x99; 16]].concat();
    // A scale of 0.25, then -3 everywhere.
    let bytes = [&[0x00, 0x34][..], &[0xfd; 32]].concat();
    let mut bindings = Bindings::default();
    bindings.weights.insert("a".into(), stored(Format::Q4_0, &nibbles));
    bindings.weights.insert("b".into(), stored(Format::Q8_0, &bytes));
    // A whole number that single precision does not hold.
    bindings.weights.insert("ids".into(), stored(Format::I32, &[1, 0, 0, 1, 0xff, 0xff, 0xff, 0xff]));
    assert_eq!(value_of(&a, &bindings), floats(&[("d", 32)], &[0.5; 32]));
    assert_eq!(value_of(&(&a + &b), &bindings), floats(&[("d", 32)], &[-0.25; 32]));
    assert_eq!(value_of(&ids, &bindings), ints(&[("i", 2)], &[16_777_217, -1]));
}

#[test]
fn what_is_missing_or_does_not_fit_is_named() {
    let g = Builder::new();
    let (t, d) = (g.dim("t", symbol("T")), g.dim("d", 32));
    let x = g.input("x", DType::F32, &[&t]);
    let w = g.weight("w", Format::Q4_0, &[&d]);
    let s = g.state("s", Format::F16, &[&d]);
    let graph = g.finish(&[("x", &x), ("w", &w), ("s", &s)]).unwrap();
    let mut bindings = Bindings::default();
    let mut complains = |expected: &str, repair: &dyn Fn(&mut Bindings)| {
        let error = evaluate(&graph, &bindings).unwrap_err();
        assert!(matches!(error, Error::Input { .. }));
        assert_eq!(error.to_string(), expected);
        repair(&mut bindings);
    };
    complains("T: the symbol has no value", &|b| b.symbols = symbols(&[("T", 9)]));
    complains("T: the symbol is 9, accepted: 0 to 8", &|b| b.symbols = symbols(&[("T", 1)]));
    complains("x: there is no such input", &|b| {
        b.inputs = inputs(&[("x", floats(&[("t", 2)], &[0.; 2]))]).inputs;
    });
    complains("x: the input is f32[t:2], expected f32[t:1]", &|b| {
        b.inputs = inputs(&[("x", floats(&[("t", 1)], &[0.]))]).inputs;
    });
    let weight = |b: &mut Bindings, format, n_bytes| {
        b.weights.insert("w".into(), stored(format, &vec![0; n_bytes]));
    };
    complains("w: there is no such weight", &|b| weight(b, Format::Q8_0, 34));
    complains("w: the weight is stored as q8_0, expected q4_0", &|b| weight(b, Format::Q4_0, 17));
    complains("w: the weight has 17 bytes, expected 32 elements of q4_0", &|b| weight(b, Format::Q4_0, 18));
    complains("s: there is no such state", &|b| {
        b.states.insert("s".into(), floats(&[("d", 32)], &[0.; 32]));
    });
    complains("s: the state is f32[d:32], expected f16[d:32]", &|_| {});
}
