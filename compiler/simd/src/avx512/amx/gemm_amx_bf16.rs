//! GEMM and weighted sums of bfloat16 numbers with AMX (`tdpbf16ps`).
//!
//! In: rows of weights in any format, and activations in the layout of `bf16_tiles.rs`; or rows of a state and their
//! factors. Out: products added to what is in `out`, 32 columns by 32 rows at a time. Numbers in two parts are
//! multiplied three times: first by first, and first by second both ways; second by second is smaller than the rounding
//! error.

use std::array::from_fn;

use crate::avx512::amx::bf16_tiles::{LINES, STEP, Vectors, joined, loaded, split};
use crate::avx512::amx::{Run, SQUARE, Unit};
use crate::avx512::unpack::pack_bf16::{Panels, pairs, unpack};
use crate::avx512::unpack::pack_int8::Group;
use crate::avx512::vector::store_bytes;
use crate::stack_buffer::StackBuffer;
use crate::view::{GemmView, Out, Square, WeightedSumView};

/// All columns, of `P` parts, with all rows, of which a unit has `B` bytes; `N` steps of elements are packed at a time,
/// through a slab of `G` groups.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(crate) fn gemm<const S: usize, const B: usize, const P: usize, const N: usize, const G: usize>(
    unit: &Unit,
    job: &GemmView<'_>,
) {
    let n_steps = job.k.div_ceil(STEP);
    let vectors = Vectors::<P>::new(job.x.tiles(), job.k);
    let (mut panels, mut slab) = (StackBuffer::<Panels<N>, P>::new(), StackBuffer::<Group, G>::new());
    let (panels, slab) = (panels.open(), slab.open());
    for r in (0..job.n_rows).step_by(SQUARE) {
        let n_rows = (job.n_rows - r).min(SQUARE);
        for from in (0..n_steps).step_by(N) {
            let n = (n_steps - from).min(N);
            unpack::<S, B, N>(panels, slab, job, (r, n_rows), (from, n));
            for c in (0..job.n_cols).step_by(SQUARE) {
                let n_cols = (job.n_cols - c).min(SQUARE);
                let upper = c / LINES;
                let lower = if n_cols > LINES { upper + 1 } else { upper };
                let parts = from_fn::<_, P, _>(|part| {
                    let x = [upper, lower].map(|block| vectors.steps(block, part, (from, n)));
                    Run { vectors: x, rows: &panels[part].steps[..n] }
                });
                add(unit, &job.out.turned(), [(c, n_cols), (r, n_rows)], parts);
            }
        }
    }
}

/// Steps of 32 rows that are mixed at a time.
const MIXED: usize = 4;

/// All columns of a weighted sum of F16, `Q8_0` or `Q4_0` rows, whose factors are contiguous.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(crate) fn weighted_sum<const S: usize>(unit: &Unit, job: &WeightedSumView<'_>) {
    let mut panels = [Panels::<MIXED>::EMPTY; 2];
    let mut factors = [[[[[0; 64]; LINES]; MIXED]; SQUARE / LINES]; 2];
    for s in (0..job.n_rows).step_by(MIXED * STEP) {
        let n_rows = (job.n_rows - s).min(MIXED * STEP);
        let n_steps = n_rows.div_ceil(STEP);
        for c in (0..job.n_cols).step_by(SQUARE) {
            let n_cols = (job.n_cols - c).min(SQUARE);
            for i in 0..n_cols {
                let p = &job.p.get(c + i)[4 * s..][..4 * n_rows];
                for step in 0..n_steps {
                    let (halves, rests) = split(loaded(&p[4 * STEP * step..]));
                    let place = (i / LINES, i % LINES);
                    store_bytes(joined(halves), &mut factors[0][place.0][step][place.1]);
                    store_bytes(joined(split(rests).0), &mut factors[1][place.0][step][place.1]);
                }
            }
            for e in (0..job.n).step_by(SQUARE) {
                let n = (job.n - e).min(SQUARE);
                pairs::<S, MIXED>(&mut panels, job, (s, n_rows), (e, n));
                let parts = [0, 1].map(|part| {
                    let p = [0, 1].map(|block| &factors[part][block][..n_steps]);
                    Run { vectors: p, rows: &panels[part].steps[..n_steps] }
                });
                add(unit, &job.out, [(c, n_cols), (e, n)], parts);
            }
        }
    }
}

/// Adds products to some lines and columns, in place if they fill a square.
#[inline(always)]
fn add<const P: usize>(
    unit: &Unit,
    out: &Out<'_>,
    [(line, n_lines), (column, n)]: [(usize, usize); 2],
    parts: [Run<'_>; P],
) {
    if n_lines == SQUARE
        && n == SQUARE
        && let Some(mut square) = out.square(line, column)
    {
        return unit.add(&mut square, parts);
    }
    let mut sums = [[0.0; SQUARE]; SQUARE];
    unit.add(&mut Square::of(&mut sums), parts);
    for (i, sums) in sums.iter().enumerate().take(n_lines) {
        out.add_across(line + i, column, &sums[..n]);
    }
}
