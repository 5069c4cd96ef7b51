//! Products of weights and vectors in the forms that kernels have, against the interpreter.
//!
//! In: kernels as text, for every format of the weight, every level and all numbers. Out: numbers that are near enough.

use super::*;
use crate::codegen::cpu::product::boundary::storage;
use crate::codegen::cpu::product::{Plan, quantised};
use crate::kernel::Nest;
use crate::kernel::product::check::is_multiplied;
use crate::kernel::walk::nests;

/// Products as they occur: rows and vectors in blocks, many vectors of a parameter, runs of several axes, weights
/// picked by numbers from memory, for few vectors and for many, one vector for two weights, sums that are carried on,
/// weighted sums, and the columns of two loops.
const PRODUCTS: [(&str, usize); 8] = [
    (
        r#"kernel "gate and up" matrix-matrix
  read @0 x : f32[t:37, d:64]
  read @1 w : FORMAT[f:21, d:64]
  read @2 v : FORMAT[f:21, d:64]
  write @3 y : f32[t:37, f:21]
part
  tile tile0 : f32[5, 64]
  tile tile1 : f32[5, 8]
  tile tile2 : f32[5, 8]
  tile tile3 : f32[5]
  var t0 in blocks of 5 step 5 from 0 to 37
  var f1 in blocks of 8 step 8 from 0 to 21
  var t2 within t0
  var f3 within f1
  var d4 in 0..64
  grid t0, f1
  for t2, d4
    tile0[-t0+t2, d4] = mul(@0[t2, d4], 0.5)
  for t2
    tile3[-t0+t2] = sum d4 of mul(tile0[-t0+t2, d4], tile0[-t0+t2, d4])
  for t2, f3
    tile1[-t0+t2, -f1+f3] = sum d4 of mul(tile0[-t0+t2, d4], @1[f3, d4])
  for t2, f3
    tile2[-t0+t2, -f1+f3] = sum d4 of mul(@2[f3, d4], tile0[-t0+t2, d4]) from tile1[-t0+t2, -f1+f3]
  for t2, f3
    @3[t2, f3] = add(mul(tile1[-t0+t2, -f1+f3], tile3[-t0+t2]), tile2[-t0+t2, -f1+f3])
"#,
        3,
    ),
    (
        r#"symbol T in 1..70 near 53
kernel "many tokens" matrix-matrix
  read @0 x : f32[t:T, d:64]
  read @1 w : FORMAT[f:37, d:64]
  read @2 v : FORMAT[f:37, d:64]
  write @3 y : f32[t:T, f:37]
part
  tile tile0 : f32[32, 40]
  var t0 in blocks of 32 step 32 from 0 to T
  var f1 in blocks of 40 step 40 from 0 to 37
  var t2 within t0
  var f3 within f1
  var d4 in 0..64
  grid f1, t0
  for t2, f3
    tile0[-t0+t2, -f1+f3] = sum d4 of mul(@0[t2, d4], @1[f3, d4])
  for t2, f3
    @3[t2, f3] = sum d4 of mul(@2[f3, d4], @0[t2, d4]) from tile0[-t0+t2, -f1+f3]
"#,
        2,
    ),
    (
        r#"kernel "heads" matrix-vector
  read @0 x : f32[t:2, kv:2, g:2, side:2, pair:32]
  read @1 w : FORMAT[d:9, kv:2, g:2, e:64]
  write @2 y : f32[t:2, d:9]
part
  var t0 in 0..2
  var d1 in 0..9
  var e2 in 0..64
  var g3 in 0..2
  var kv4 in 0..2
  grid t0
  for d1
    @2[t0, d1] = sum e2, g3, kv4 of mul(@0[t0, kv4, g3, (e2/32), (e2%32)], @1[d1, kv4, g3, e2]) from 2.0
"#,
        1,
    ),
    (
        r#"kernel "picked" experts
  read @0 x : f32[k:3, f:64]
  read @1 ids : i32[k:3]
  read @2 w : FORMAT[x:5, d:7, f:64]
  write @3 y : f32[d:7]
part
  var d0 in 0..7
  var f1 in 0..64
  var k2 in 0..3
  grid
  for d0
    @3[d0] = sum f1, k2 of mul(@0[k2, f1], @2[lookup(@1[k2], 5), d0, f1])
"#,
        1,
    ),
    (
        r#"symbol T in 1..37 near 31
kernel "sorted" experts
  read @0 x : f32[t:T, d:64]
  read @1 ids : i32[t:T, k:3]
  read @2 w : FORMAT[x:5, f:37, d:64]
  write @3 y : f32[t:T, k:3, f:37]
part
  var t0 in blocks of 20 step 20 from 0 to T
  var f1 in blocks of 16 step 16 from 0 to 37
  var t2 within t0
  var k3 in 0..3
  var f4 within f1
  var d5 in 0..64
  grid t0, f1
  for t2, k3, f4
    @3[t2, k3, f4] = sum d5 of mul(@0[t2, d5], @2[lookup(@1[t2, k3], 5), f4, d5])
"#,
        1,
    ),
    (
        r#"kernel "sorted and added up" experts
  read @0 x : f32[t:31, k:3, f:64]
  read @1 ids : i32[k:3, t:31]
  read @2 w : FORMAT[x:5, d:7, f:64]
  write @3 y : f32[t:31, d:7]
part
  var t0 in 0..31
  var d1 in 0..7
  var f2 in 0..64
  var k3 in 0..3
  grid
  for t0, d1
    @3[t0, d1] = sum f2, k3 of mul(@0[t0, k3, f2], @2[lookup(@1[k3, t0], 5), d1, f2]) from 0.5
"#,
        1,
    ),
    (
        r#"symbol P in 0..40 near 33
kernel "mixture" attention
  read @0 p : f32[g:3, s:41]
  read @1 v : f16[s:41, e:64]
  write @2 y : f32[g:3, e:64]
part
  tile tile0 : f32[3, 64]
  var g0 in 0..3
  var e1 in 0..64
  var s2 in blocks of 16 step 16 from 0 to P+1
  var s3 within s2
  grid
  for g0, e1
    tile0[g0, e1] = 1.0
  loop s2
    for g0, e1
      tile0[g0, e1] = sum s3 of mul(@0[g0, s3], cast.f32(@1[s3, e1])) from mul(tile0[g0, e1], 0.5)
  end
  for g0, e1
    @2[g0, e1] = tile0[g0, e1]
"#,
        1,
    ),
    (
        r#"symbol T in 1..30 near 21
kernel "grouped heads" attention
  read @0 q : f32[t:T, kv:2, g:3, e:64]
  read @1 k : FORMAT[kv:2, s:21, e:64]
  read @2 v : f16[kv:2, s:21, e:64]
  write @3 y : f32[t:T, kv:2, g:3, e:64]
part
  tile tile0 : f32[8, 3, 64]
  tile tile1 : f32[8, 3, 21]
  tile tile2 : f32[8, 3, 64]
  var t0 in blocks of 8 step 8 from 0 to T
  var kv1 in 0..2
  var t2 within t0
  var g3 in 0..3
  var s4 in 0..21
  var e5 in 0..64
  grid t0, kv1
  for t2, g3, e5
    tile0[-t0+t2, g3, e5] = mul(@0[t2, kv1, g3, e5], 0.5)
  for t2, g3, s4
    tile1[-t0+t2, g3, s4] = sum e5 of mul(tile0[-t0+t2, g3, e5], @1[kv1, s4, e5])
  for t2, g3, e5
    tile2[-t0+t2, g3, e5] = sum s4 of mul(tile1[-t0+t2, g3, s4], cast.f32(@2[kv1, s4, e5]))
  for t2, g3, e5
    @3[t2, kv1, g3, e5] = tile2[-t0+t2, g3, e5]
"#,
        2,
    ),
];

/// Whether numbers are off by no more than a share of the typical size.
fn near(a: &Buffer, b: &Buffer, tolerance: f32) -> bool {
    let (Buffer::Float(a), Buffer::Float(b)) = (a, b) else { return a == b };
    let typical = (b.iter().map(|x| x * x).sum::<f32>() / b.len() as f32).sqrt();
    a.iter().zip(b).all(|(a, b)| (a - b).abs() <= tolerance * typical.max(b.abs()))
}

#[test]
fn products_are_near_what_is_interpreted() {
    let formats = ["f32", "f16", "bf16", "q8_0", "q4_0", "q5_1", "q4_pairs", "int8.g64", "int8.g32"];
    for (text, n_products) in PRODUCTS {
        for format in formats {
            // Halves need a cast where they are multiplied.
            let text = if matches!(format, "f16" | "bf16") {
                let weights = [
                    "@1[f3, d4]",
                    "@1[kv1, s4, e5]",
                    "@2[f3, d4]",
                    "@1[d1, kv4, g3, e2]",
                    "@2[lookup(@1[k2], 5), d0, f1]",
                    "@2[lookup(@1[t2, k3], 5), f4, d5]",
                    "@2[lookup(@1[k3, t0], 5), d1, f2]",
                ];
                let cast = |text: String, weight: &str| text.replace(weight, &format!("cast.f32({weight})"));
                weights.into_iter().fold(text.to_owned(), cast)
            } else {
                text.to_owned()
            };
            let text = &text.replace("FORMAT", format);
            let kernel = prepared(text);
            let values: Vec<i64> = symbols(&kernel).iter().map(|symbol| symbol.near).collect();
            for level in Level::supported() {
                let variants: [(Numbers, Judge); 2] = [
                    (Numbers::Single, |a, b| near(a, b, 1e-5)),
                    (Numbers::Quantised, |a, b| near(a, b, 0.05)),
                ];
                for (numbers, judge) in variants {
                    let cpu = Cpu::at(level, numbers).unwrap();
                    let of_nest = |nest: &Nest| Plan::of(&cpu, &kernel, &kernel.parts[0], nest);
                    assert_eq!(count(&kernel.parts[0].body, &of_nest), n_products, "{text}");
                    let is_sorted = |nest: &Nest| of_nest(nest).filter(|plan| plan.routing.is_some());
                    let n_sorted = count(&kernel.parts[0].body, &is_sorted);
                    assert_eq!(n_sorted > 0, kernel.name.starts_with("sorted"), "{text}");
                    let is_joined = |nest: &Nest| of_nest(nest).filter(|plan| plan.cols.len() == 2);
                    let n_joined = count(&kernel.parts[0].body, &is_joined);
                    assert_eq!(
                        n_joined,
                        if &*kernel.name == "grouped heads" { n_products } else { 0 },
                        "{text}"
                    );
                    for step in [1, 3, 1000] {
                        check_at((level, numbers, judge), text, &values, &inputs(text), step);
                    }
                }
            }
        }
    }
}

/// How many nests have a plan.
fn count(body: &[Stmt], plan: &dyn Fn(&Nest) -> Option<Plan>) -> usize {
    nests(body).filter(|nest| plan(nest).is_some()).count()
}

#[test]
fn every_weight_of_a_product_has_a_micro_kernel() {
    // A product that verifies is called without another look at its format.
    let int8 = [0, 3, 32, 64].map(|group| Format::Int8 { group });
    for format in Format::FIXED.into_iter().chain(int8) {
        assert_eq!(is_multiplied(format), storage(format).is_some(), "{format}");
    }
}

#[test]
fn what_tasks_have_in_common_is_done_once_for_them() {
    let kernel = prepared(&PRODUCTS[0].0.replace("FORMAT", "q8_0"));
    let cpu = Cpu::host(Numbers::Quantised).unwrap();
    let part = &kernel.parts[0];
    // The tile and its squares go with the tokens, and so do its 8-bit integers, which both weights share.
    let Stmt::Once { per, body } = &part.body[0] else { panic!("{kernel}") };
    assert_eq!((per, body.len(), part.body.len()), (&part.grid[..1].to_vec(), 3, 4), "{kernel}");
    assert_eq!((part.activations.len(), quantised(&cpu, &kernel, part).len()), (1, 1), "{kernel}");
}

#[test]
fn vectors_of_a_parameter_are_rounded_ahead_of_all_tasks() {
    let kernel = prepared(&PRODUCTS[1].0.replace("FORMAT", "q8_0"));
    let cpu = Cpu::host(Numbers::Quantised).unwrap();
    let code = cpu.compile(&kernel).unwrap();
    // Both products share them, and tasks neither round nor keep any.
    assert_eq!((code.n_quantise_tasks(&[53]), code.n_quantise_tasks(&[16])), (4, 1));
    assert!(code.ahead_bytes() > 0 && code.scratch_bytes() < 32 * 40 * 4 + 128);
}
