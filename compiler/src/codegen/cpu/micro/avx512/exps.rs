//! Exponentials, sixteen at a time.
//!
//! In: rows of numbers, and one number for each row that is taken from all of its numbers. Out: `e` to the power of the
//! differences, within a few units in the last place, by the polynomial that generated code has as well.

use std::arch::x86_64::{
    _mm512_castsi512_ps, _mm512_fmadd_ps, _mm512_fnmadd_ps, _mm512_max_ps, _mm512_min_ps, _mm512_mul_ps,
    _mm512_roundscale_ps, _mm512_scalef_ps, _mm512_setzero_si512, _mm512_sub_ps,
};

use crate::codegen::cpu::micro::avx512::vector::{N, V, add, lanes, load, splat};
use crate::codegen::cpu::micro::view::ExpsView;
use crate::codegen::polynomials::{EXP, LN_2};

#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn exps(job: &ExpsView<'_>) {
    for r in 0..job.n_rows {
        let a = &job.a[r * job.a_row..][..4 * job.n];
        let b = splat(f32::from_le_bytes(*job.b[r * job.b_row..].first_chunk().expect("one of each row")));
        let (whole, rest) = a.as_chunks::<64>();
        for (i, a) in whole.iter().enumerate() {
            job.out.put_across(r, i * N, &lanes(exp(_mm512_sub_ps(load(a), b))));
        }
        if !rest.is_empty() {
            let mut padded = [0; 64];
            padded[..rest.len()].copy_from_slice(rest);
            let all = lanes(exp(_mm512_sub_ps(load(&padded), b)));
            job.out.put_across(r, whole.len() * N, &all[..rest.len() / 4]);
        }
    }
}

/// What is not a number stays; below the normal numbers bits are lost gradually.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn exp(x: V) -> V {
    // Of two numbers, one of them none, the second is taken.
    let x = _mm512_max_ps(splat(-104.5), _mm512_min_ps(splat(88.8), x));
    let n = _mm512_roundscale_ps::<0>(_mm512_mul_ps(x, splat(std::f32::consts::LOG2_E)));
    let r = _mm512_fnmadd_ps(n, splat(LN_2[1]), _mm512_fnmadd_ps(n, splat(LN_2[0]), x));
    let mut p = _mm512_castsi512_ps(_mm512_setzero_si512());
    for factor in EXP {
        p = _mm512_fmadd_ps(p, r, splat(factor));
    }
    let p = _mm512_fmadd_ps(p, _mm512_mul_ps(r, r), r);
    _mm512_scalef_ps(add(p, splat(1.0)), n)
}
