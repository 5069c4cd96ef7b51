//! Products of short rows of F32, F16 or BF16 with few columns: scores of attention, one key a row.
//!
//! In: rows of fewer than [`LONG`] elements, and columns in single precision. Out: products added to what is in `out`.
//! Sixteen sums are kept in registers, of as many rows as there is room for with one to four columns, and added up
//! together at the end of the rows: rows are so short that adding up each sum alone would take longer than products.

use crate::avx512::gemm_f32::widened;
use crate::avx512::vector::{N, V, fma, lanes, load, padded, sum_each_of_16, zero};
use crate::layout::block_formats::Storage;
use crate::prefetch::prefetch_rows;
use crate::view::GemmView;

/// All columns with all rows. Prefetches the following rows.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn gemm<const S: usize>(job: &GemmView<'_>) {
    let mut c = 0;
    while c < job.n_cols {
        c += match job.n_cols - c {
            4.. => rows::<S, 4, 4>(job, c),
            3 => rows::<S, 5, 3>(job, c),
            2 => rows::<S, 8, 2>(job, c),
            _ => rows::<S, 8, 1>(job, c),
        };
    }
}

/// All rows, `R` at a time, with `C` columns from `c` on; returns `C`.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn rows<const S: usize, const R: usize, const C: usize>(job: &GemmView<'_>, c: usize) -> usize {
    for r in (0..job.n_rows).step_by(R) {
        let n = R.min(job.n_rows - r);
        if c == 0 {
            prefetch_rows(job.w.block(r, n), job.w.end_and_next());
        }
        let sums = lanes(sum_each_of_16(&products::<S, R, C>(job, r, c)));
        for i in 0..C {
            job.out.add_down(r, c + i, &sums[i * R..][..n]);
        }
    }
    C
}

/// The products of `R` rows from `r` on with `C` columns from `c` on, lane by lane: those of one column side by side.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn products<const S: usize, const R: usize, const C: usize>(
    job: &GemmView<'_>,
    r: usize,
    c: usize,
) -> [V; 16] {
    let storage = const { Storage::ALL[S] };
    let mut w = [job.w.row(r).bytes; R];
    for i in 1..R {
        w[i] = job.w.row((r + i).min(job.n_rows - 1)).bytes;
    }
    let mut x = [job.x.get(c); C];
    for i in 1..C {
        x[i] = job.x.get(c + i);
    }
    let mut sums = [zero(); 16];
    let n_whole = job.k / N;
    for step in 0..n_whole {
        let mut xs = [zero(); C];
        for i in 0..C {
            xs[i] = load(x[i][4 * N * step..].first_chunk().expect("within k"));
        }
        for i in 0..R {
            let row = widened::<S>(w[i], N * step);
            for j in 0..C {
                sums[j * R + i] = fma(row, xs[j], sums[j * R + i]);
            }
        }
    }
    if n_whole * N < job.k {
        for j in 0..C {
            let x = load(&padded(&x[j][4 * N * n_whole..]));
            for i in 0..R {
                let row = widened::<S>(&padded(&w[i][storage.bytes(N * n_whole)..]), 0);
                sums[j * R + i] = fma(row, x, sums[j * R + i]);
            }
        }
    }
    sums
}
