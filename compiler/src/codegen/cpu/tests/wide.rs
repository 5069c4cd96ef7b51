//! Rows that are left to functions of their own, against the interpreter.
//!
//! In: nests over rows of many lengths. Out: that they are left to such functions where the level has them, and that
//! these compute what is interpreted.

use super::rounds::emitted;
use super::*;

/// Nests that store elements: single-precision numbers unless they say otherwise.
const MAPS: [&str; 23] = [
    "add(@0[r0, e1], @3[r0])",
    "sub(@3[r0], @0[r0, e1])",
    "mul(@0[r0, e1], cast.f32(@2[r0, e1]))",
    "div(cast.f32(@1[e1]), @0[r0, e1])",
    "max(@0[r0, e1], @3[r0])",
    "min(@3[r0], @0[r0, e1])",
    "max(@0[r0, e1], 1.5)",
    "neg(@0[r0, e1])",
    "exp(sub(@0[r0, e1], @3[r0]))",
    "sqrt(@0[r0, e1])",
    "mul(rsqrt(@0[r0, e1]), rsqrt(@3[r0]))",
    "recip(add(exp(neg(@0[r0, e1])), 1.0))",
    "cast.f32(cast.f16(@0[r0, e1]))",
    "select(lt(@0[r0, e1], @3[r0]), @0[r0, e1], -inf)",
    "select(eq(@0[r0, e1], 1.0), 0.0, @0[r0, e1])",
    "select(le(position(3*e1), add(position(2*r0), 7)), @3[r0], @0[r0, e1])",
    "select(@4[r0, e1], @0[r0, e1], cast.f32(@4[r0, e1]))",
    "select(lt(@3[r0], 0.5), @0[r0, e1], 2.0)",
    "cast.f32(max(min(mul(@4[r0, e1], 3), position(e1)), sub(position(r0), add(@4[r0, e1], 9))))",
    "select(eq(@4[r0, e1], 2), 1.0, select(le(@0[r0, e1], 0.0), 2.0, 3.0))",
    "cast.f32(position(7*r0-3*e1))",
    "4.5",
    "@3[r0]",
];

/// A kernel with one nest over five rows of `n` elements.
pub(super) fn rows(n: usize, y: &str, nest: &str) -> String {
    format!(
        "kernel \"rows\" map\n  read @0 x : f32[r:5, e:{n}]\n  read @1 h : f16[e:{n}]\n  \
         read @2 b : bf16[r:5, e:{n}]\n  read @3 s : f32[r:5]\n  read @4 i : i32[r:5, e:{n}]\n  write @5 y : {y}\n\
         part\n  var r0 in 0..5\n  var e1 in 0..{n}\n  grid\n  {nest}\n"
    )
}

/// Whether the nest of a kernel is left to a function of its own, where the level has that.
fn is_left(text: &str) -> bool {
    let level = Level::host();
    let has_rows = matches!(level, Level::Amx | Level::Avx512Bf16 | Level::Avx512);
    !has_rows || emitted(level, text).1 == 1
}

/// Numbers for each buffer of `rows`, made of those that are given.
pub(super) fn numbers(n: usize, of: &[f32]) -> Vec<Vec<u8>> {
    let pick = |count: usize, step: usize| -> Vec<f32> {
        (0..count).map(|i| of[(i * step + i / 16) % of.len()]).collect()
    };
    let wholes: Vec<f32> = (0..5 * n).map(|i| (i % 7) as f32 - 3.0).collect();
    vec![
        encoded(Format::F32, &pick(5 * n, 1)),
        encoded(Format::F16, &pick(n, 3)),
        encoded(Format::BF16, &pick(5 * n, 5)),
        encoded(Format::F32, &[0.3, -1.0, 88.0, 1.0, f32::NAN]),
        encoded(Format::I32, &wholes),
    ]
}

#[test]
fn maps_of_rows_are_those_of_the_interpreter() {
    for (n, map) in [64, 77, 130].into_iter().flat_map(|n| MAPS.map(|map| (n, map))) {
        for (dtype, judge) in [("f32", close as Judge), ("f16", near)] {
            let nest = format!("for r0, e1\n    @5[r0, e1] = {map}");
            let text = rows(n, &format!("{dtype}[r:5, e:{n}]"), &nest);
            check_by(judge, &text, &[], &numbers(n, &FLOATS), 1);
            // What costs next to nothing stays.
            let is_cheap = !map.contains('(') || map.starts_with("neg");
            assert!(is_cheap || is_left(&text), "{text}");
        }
    }
}

#[test]
fn rows_that_are_folded_are_near_those_of_the_interpreter() {
    // All above zero, so that sums in any order are near each other.
    let own = [0.5, 1.25, 3.0, 0.001, 0.75, 2.5, 1.0];
    for (n, (fold, from)) in [64, 77, 130, 208].into_iter().flat_map(|n| {
        ["sum", "max"].into_iter().flat_map(move |f| ["", " from @3[r0]"].map(|from| (n, (f, from))))
    }) {
        for of in ["@0[r0, e1]", "mul(neg(@0[r0, e1]), cast.f32(@1[e1]))", "exp(mul(@0[r0, e1], @3[0]))"] {
            let text = rows(n, "f32[r:5]", &format!("for r0\n    @5[r0] = {fold} e1 of {of}{from}"));
            check_by(near, &text, &[], &numbers(n, &own), 1);
            assert!(is_left(&text), "{text}");
        }
        let text = rows(n, "f32[r:5]", &format!("for r0\n    @5[r0] = {fold} e1 of @0[r0, e1]{from}"));
        check_by(near, &text, &[], &numbers(n, &FLOATS), 1);
    }
}

#[test]
fn rows_go_in_pieces_where_indices_turn_back() {
    let (one, other) = ("@0[r0, (e1%64)]", "@0[r0, (e1%64)+64]");
    let turned = format!(
        "for r0, e1\n    @5[r0, e1] = select(lt(position((e1/64)), position(1)), sub({one}, {other}), mul({other}, \
         exp({one})))"
    );
    let text = rows(128, "f32[r:5, e:128]", &turned);
    check_by(close, &text, &[], &numbers(128, &FLOATS), 1);
    assert!(is_left(&text), "{text}");
}

/// Rows as long as a symbol says, behind which nothing is stored.
const SHORT: &str = r#"symbol P in 0..130 near 100
kernel "short" map
  read @0 x : f32[r:5, e:130]
  write @1 y : f32[r:5, e:130]
part
  var r0 in 0..5
  var e1 in 0..P-30
  grid
  for r0, e1
    @1[r0, e1] = exp(@0[r0, e1])
"#;

#[test]
fn rows_end_where_symbols_say() {
    assert!(is_left(SHORT), "{SHORT}");
    let data = [encoded(Format::F32, &FLOATS.repeat(41)[..650])];
    for length in [0, 7, 23, 30, 31, 46, 47, 130] {
        check_by(close, SHORT, &[length], &data, 1);
    }
}
