//! Rounds of attention that a mask hides: they are found, left out, and nothing else is.
//!
//! In: kernels as text. Out: how many comparisons hide a round; the numbers of the interpreter.

use super::*;
use crate::codegen::samples::MASKED;
use crate::codegen::skip::hidden;

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
    assert_eq!(n_hidden(MASKED), 1);
    let by_less = MASKED.replace("le(position(s4), add", "lt(position(s4), add");
    assert_eq!(n_hidden(&by_less), 1);
    // With fewer positions before, more are hidden; none is left out that counts.
    for position in 0..4 {
        check(MASKED, &[position], &inputs(MASKED), 1);
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
        assert!(MASKED.contains(from), "{from}");
        assert_eq!(n_hidden(&MASKED.replace(from, to)), 0, "{to}");
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
