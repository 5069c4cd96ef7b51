//! Rounds of attention that a mask hides: they are found, left out, and nothing else is.
//!
//! In: kernels as text. Out: how many comparisons hide a round; the numbers of the interpreter.

use super::*;
use crate::codegen::cpu::skip::hidden;

/// Attention of four tokens to what came before, two positions at a time.
const ATTENTION: &str = r#"symbol P in 0..4 near 2
kernel "attention" attention
  read @0 q : f32[t:4, s:8]
  read @1 v : f32[s:8, e:3]
  write @2 y : f32[t:4, e:3]
part
  tile tile0 : f32[2, 3]
  tile tile1 : f32[2]
  tile tile2 : f32[2]
  tile tile3 : f32[2, 2]
  tile tile4 : f32[2, 2]
  tile tile5 : f32[2]
  tile tile6 : f32[2]
  var t0 in blocks of 2 step 2 from 0 to 4
  var t1 within t0
  var e2 in 0..3
  var s3 in blocks of 2 step 2 from 0 to P+4
  var s4 within s3
  var t5 within t0
  grid t0
  for t1
    tile2[-t0+t1] = -3.4028235e38
  for t1
    tile1[-t0+t1] = 0.0
  for t1, e2
    tile0[-t0+t1, e2] = 0.0
  loop s3
    for t1, s4
      tile3[-t0+t1, -s3+s4] = add(@0[t1, s4], select(le(position(s4), add(position(t1), position(P))), 0.0, -inf))
    for t1
      tile5[-t0+t1] = max s4 of tile3[-t0+t1, -s3+s4] from tile2[-t0+t1]
    for t1
      tile6[-t0+t1] = exp(sub(tile2[-t0+t1], tile5[-t0+t1]))
    for t1, s4
      tile4[-t0+t1, -s3+s4] = exp(sub(tile3[-t0+t1, -s3+s4], tile5[-t0+t1]))
    for t1
      tile1[-t0+t1] = sum s4 of tile4[-t0+t1, -s3+s4] from mul(tile1[-t0+t1], tile6[-t0+t1])
    for t1, e2
      tile0[-t0+t1, e2] = sum s4 of mul(tile4[-t0+t1, -s3+s4], @1[s4, e2]) from mul(tile0[-t0+t1, e2], tile6[-t0+t1])
    for t1
      tile2[-t0+t1] = tile5[-t0+t1]
  end
  for t5, e2
    @2[t5, e2] = div(tile0[-t0+t5, e2], tile1[-t0+t5])
"#;

fn n_hidden(text: &str) -> usize {
    let kernel = parse(text).unwrap();
    let part = &kernel.parts[0];
    let bodies = part.body.iter().filter_map(|stmt| match stmt {
        Stmt::Loop { body, .. } => Some(body),
        Stmt::Nest(_) => None,
    });
    bodies.map(|body| hidden(part, body).len()).sum()
}

#[test]
fn positions_behind_all_tokens_of_a_task_are_left_out() {
    assert_eq!(n_hidden(ATTENTION), 1);
    let by_less = ATTENTION.replace("le(position(s4), add", "lt(position(s4), add");
    assert_eq!(n_hidden(&by_less), 1);
    // With fewer positions before, more are hidden; none is left out that counts.
    for position in 0..4 {
        check(ATTENTION, &[position], &inputs(ATTENTION), 1);
    }
    for position in 1..4 {
        check(&by_less, &[position], &inputs(&by_less), 1);
    }
}

#[test]
fn a_round_that_changes_anything_stays() {
    // Rounds are counted; a sum is not scaled by one; what a round leaves is read behind the loop; no mask is there.
    for (from, to) in [
        ("from mul(tile1[-t0+t1], tile6[-t0+t1])", "from add(tile1[-t0+t1], 1.0)"),
        ("tile6[-t0+t1] = exp(sub(tile2[-t0+t1], tile5[-t0+t1]))", "tile6[-t0+t1] = exp(tile2[-t0+t1])"),
        ("div(tile0[-t0+t5, e2], tile1[-t0+t5])", "div(tile0[-t0+t5, e2], tile6[-t0+t5])"),
        ("0.0, -inf)", "0.0, -1.0)"),
    ] {
        assert!(ATTENTION.contains(from), "{from}");
        assert_eq!(n_hidden(&ATTENTION.replace(from, to)), 0, "{to}");
    }
}

/// A largest number of what the mask leaves, four positions at a time.
const FOLDED: &str = r#"symbol P in 0..8 near 2
kernel "largest" row-reduction
  read @0 x : f32[g:2, s:8]
  write @1 y : f32[g:2]
part
  tile tile0 : f32[2]
  var s0 in blocks of 4 step 4 from 0 to 8
  var s1 within s0
  var g2 in 0..2
  grid
  for g2
    tile0[g2] = -3.4028235e38
  loop s0
    for g2
      tile0[g2] = max s1 of select(le(position(s1), position(P)), @0[g2, s1], -inf) from tile0[g2]
  end
  for g2
    @1[g2] = tile0[g2]
"#;

#[test]
fn a_mask_within_a_fold_hides_what_no_round_of_the_fold_sees() {
    for position in 0..8 {
        check(FOLDED, &[position], &inputs(FOLDED), 1);
    }
}
