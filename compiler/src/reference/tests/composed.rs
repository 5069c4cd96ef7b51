//! Norms, softmax, attention and caches, held to plain loops over arrays.
//!
//! In: graphs recorded as a model author would. Out: agreement with loops in double precision that know nothing of
//! axes, nodes or rounding.
//! The loops must stay so plain that nobody doubts them.

use super::*;
use crate::graph::build::{Builder, Dim};
use crate::reference::compare::{Tolerance, close};
use crate::reference::index::numbers;
use crate::reference::random;
use crate::tensor::quant::Format;
use crate::tensor::sym::{Sym, Symbol};

fn softmax(x: &Tensor, over: &Dim) -> Tensor {
    let e = (x - x.max(over)).exp();
    &e / e.sum(over)
}

fn rms_norm(x: &Tensor, over: &Dim, len: u8) -> Tensor {
    let mean = (x * x).sum(over) / f32::from(len);
    x * (mean + 1e-6).rsqrt()
}

/// One attention head over a norm: [t, d] -> [t, e].
struct Head {
    g: Builder,
    normed: Tensor,
    scores: Tensor,
    values: Tensor,
    mixed: Tensor,
}

const T: usize = 5;
const D: usize = 8;
const E: usize = 4;

fn head() -> Head {
    let g = Builder::new();
    let (t, s, d, e) = (g.dim("t", T), g.dim("s", T), g.dim("d", D), g.dim("e", E));
    let x = g.input("x", DType::F32, &[&t, &d]);
    let project = |x: &Tensor, name: &str| x.contract(&g.weight(name, Format::F32, &[&e, &d]), [&d]);
    let normed = rms_norm(&x, &d, 8);
    let (k, v) = (project(&normed, "k").rename(&t, &s), project(&normed, "v").rename(&t, &s));
    let scores = project(&normed, "q").contract(&k, [&e]) * 0.5;
    let allowed = g.iota(&s).le(&g.iota(&t));
    let scores = g.select(&allowed, &scores, &g.constant(f32::NEG_INFINITY));
    let mixed = softmax(&scores, &s).contract(&v, [&s]);
    Head { g, normed, scores, values: v, mixed }
}

/// The same in loops: the norm [T][D] and the result [T][E].
fn head_in_loops(x: &[f64], q: &[f64], k: &[f64], v: &[f64]) -> (Vec<f64>, Vec<f64>) {
    let mut normed = vec![0.0; T * D];
    for t in 0..T {
        let squares: f64 = (0..D).map(|d| x[t * D + d] * x[t * D + d]).sum();
        for d in 0..D {
            normed[t * D + d] = x[t * D + d] / (squares / D as f64 + 1e-6).sqrt();
        }
    }
    let project =
        |w: &[f64], t: usize, e: usize| (0..D).map(|d| normed[t * D + d] * w[e * D + d]).sum::<f64>();
    let mut mixed = vec![0.0; T * E];
    for t in 0..T {
        let mut total = 0.0;
        for s in 0..=t {
            let score: f64 = (0..E).map(|e| project(q, t, e) * project(k, s, e)).sum();
            let weight = (score * 0.5).exp();
            total += weight;
            for e in 0..E {
                mixed[t * E + e] += weight * project(v, s, e);
            }
        }
        for e in 0..E {
            mixed[t * E + e] /= total;
        }
    }
    (normed, mixed)
}

fn assert_near(value: &Value, expected: &[f64]) {
    assert_eq!(value.len(), expected.len());
    for (a, b) in numbers(value).iter().zip(expected) {
        assert!((a - b).abs() < 1e-5, "{a} {b}");
    }
}

#[test]
fn a_norm_and_an_attention_head_agree_with_loops() {
    let head = head();
    let graph = head.g.finish(&[("normed", &head.normed), ("mixed", &head.mixed)]).unwrap();
    let bindings = random::bindings(&graph, 1, &[]);
    let weight = |name: &str, len| {
        let elements = Format::F32.decode_all(&bindings.weights[name].bytes, len).unwrap();
        elements.into_iter().map(f64::from).collect::<Vec<f64>>()
    };
    let [q, k, v] = ["q", "k", "v"].map(|name| weight(name, E * D));
    let (normed, mixed) = head_in_loops(&numbers(&bindings.inputs["x"]), &q, &k, &v);
    let results = evaluate(&graph, &bindings).unwrap();
    assert_near(&results.outputs["normed"], &normed);
    assert_near(&results.outputs["mixed"], &mixed);
}

#[test]
fn attend_is_the_composed_softmax_in_one() {
    let head = head();
    let graph = head.g.finish(&[("mixed", &head.mixed)]).unwrap();
    let bindings = random::bindings(&graph, 2, &[]);
    let attended = attended(&head.scores, &head.values, "s", &bindings);
    close(&value_of(&head.mixed, &bindings), &attended, Tolerance::of(&graph)).unwrap();
    close(&value_of(&head.mixed, &bindings), &attended, Tolerance::for_reduction(T)).unwrap();
}

/// A cache of 4 positions in half precision, and a step that appends T positions at P.
struct Cache {
    g: Builder,
    written: Tensor,
    sum_of_old: Tensor,
    sum_of_new: Tensor,
}

fn cache() -> Cache {
    let g = Builder::new();
    let p = Sym::from(Symbol::new(label("P"), 0, 2, 1));
    let t = Sym::from(Symbol::new(label("T"), 0, 2, 1));
    let (h, s, row) = (g.dim("h", 2), g.dim("s", 4), g.dim("t", t.clone()));
    let state = g.state("k", Format::F16, &[&h, &s]);
    let value = g.input("new", DType::F32, &[&row, &h]);
    let written = state.write_run(&s, p.clone(), &value.cast(DType::F16), &row);
    let sum = |cache: &Tensor, len: Sym| cache.slice(&s, 0, len).cast(DType::F32).sum(&s);
    let (sum_of_old, sum_of_new) = (sum(&state, p.clone()), sum(&written, p + t));
    Cache { g, written, sum_of_old, sum_of_new }
}

fn halves(of: &[(&str, usize)], data: &[f32]) -> Value {
    Value::float(DType::F16, axes(of), data.to_vec())
}

#[test]
fn a_decode_step_appends_to_a_state() {
    let cache = cache();
    let graph = cache.g.finish(&[("old", &cache.sum_of_old), ("new", &cache.sum_of_new)]).unwrap();
    let before = halves(&[("h", 2), ("s", 4)], &[1., 2., 9., 9., 3., 4., 9., 9.]);
    let mut bindings = inputs(&[("new", floats(&[("t", 1), ("h", 2)], &[5.0, 6.0]))]);
    bindings.states.insert("k".into(), before);
    bindings.symbols = symbols(&[("P", 2), ("T", 1)]);
    let results = evaluate(&graph, &bindings).unwrap();
    assert_eq!(results.outputs["old"], floats(&[("h", 2)], &[3.0, 7.0]));
    assert_eq!(results.outputs["new"], floats(&[("h", 2)], &[8.0, 13.0]));
    assert_eq!(results.states["k"], halves(&[("h", 2), ("s", 4)], &[1., 2., 5., 9., 3., 4., 6., 9.]));
}

#[test]
fn an_empty_cache_and_an_empty_step_are_fine() {
    let cache = cache();
    let graph = cache.g.finish(&[("old", &cache.sum_of_old), ("new", &cache.sum_of_new)]).unwrap();
    let before = halves(&[("h", 2), ("s", 4)], &[9.0; 8]);
    let mut bindings = inputs(&[("new", floats(&[("t", 0), ("h", 2)], &[]))]);
    bindings.states.insert("k".into(), before.clone());
    bindings.symbols = symbols(&[("P", 0), ("T", 0)]);
    let results = evaluate(&graph, &bindings).unwrap();
    assert_eq!(results.outputs["old"], floats(&[("h", 2)], &[0.0, 0.0]));
    assert_eq!(results.outputs["new"], floats(&[("h", 2)], &[0.0, 0.0]));
    assert_eq!(results.states["k"], before);
}

#[test]
fn every_write_of_a_step_reaches_the_state_and_others_stay_out() {
    let cache = cache();
    let row = cache.g.dim("u", 1);
    let value = cache.g.table(label("h"), &[7.0, 8.0]).cast(DType::F16).expand(&row);
    let idle = cache.g.state("idle", Format::I32, &[&row]);
    let both = cache.written.write_run(&cache.g.dim("s", 4), 3, &value, &row);
    let mut bindings = inputs(&[("new", floats(&[("t", 1), ("h", 2)], &[5.0, 6.0]))]);
    bindings.states.insert("k".into(), halves(&[("h", 2), ("s", 4)], &[0.0; 8]));
    bindings.states.insert("idle".into(), ints(&[("u", 1)], &[3]));
    bindings.symbols = symbols(&[("P", 1), ("T", 1)]);
    let results = step(&both, &bindings);
    let after = halves(&[("h", 2), ("s", 4)], &[0., 5., 0., 7., 0., 6., 0., 8.]);
    assert_eq!((&results.outputs["out"], &results.states["k"]), (&after, &after));
    assert_eq!((results.states.len(), value_of(&idle, &bindings)), (1, ints(&[("u", 1)], &[3])));
}
