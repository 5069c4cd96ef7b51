//! Quantised GEMM for many columns, with packed weights.
//!
//! In: rows, and activations in the layout `Int8Rows`. Out: their products, in tiles of sixteen rows by up to four
//! columns. Rows are packed once for all columns (`pack_panels.rs`): a register holds two elements of each of eight
//! rows, and two elements of a column, broadcast, are multiplied with it (`tile_16x4.rs`). Sums are scaled every 32
//! elements. Weights of up to 5 bits and their activations are bytes, four of each row: sums of several products fit 16
//! bits, so half as many instructions suffice. The four elements of each 32 with an excess above 127 are multiplied a
//! second time.

use crate::avx2::pack_panels::{GROUPS, Group, PANEL, pack};
use crate::avx2::tile_16x4::{Column, Sums, TAIL, add_products};
use crate::avx2::unpack_int8::byte_bits;
use crate::avx2::unpack_int16::has_offsets;
use crate::layout::block_formats::Storage;
use crate::layout::int8_rows::{Int8Row, Lines};
use crate::prefetch::prefetch_line;
use crate::stack_buffer::StackBuffer;
use crate::view::GemmView;

/// All columns with all rows.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn gemm<const S: usize>(job: &GemmView<'_>) {
    let n_groups = job.k / 32;
    let mut buffer = StackBuffer::<Group, GROUPS>::new();
    let slab = buffer.open();
    for r in (0..job.n_rows).step_by(2 * PANEL) {
        let n_rows = (job.n_rows - r).min(2 * PANEL);
        for from in (0..n_groups).step_by(GROUPS) {
            let n = (n_groups - from).min(GROUPS);
            pack::<S>(slab, job, (r, n_rows), (from, n));
            let slab = &slab[..n];
            for c in (0..job.n_cols).step_by(4) {
                match job.n_cols - c {
                    4.. => tile::<S, 4>(slab, job, (r, n_rows), from, c),
                    3 => tile::<S, 3>(slab, job, (r, n_rows), from, c),
                    2 => tile::<S, 2>(slab, job, (r, n_rows), from, c),
                    _ => tile::<S, 1>(slab, job, (r, n_rows), from, c),
                }
            }
        }
    }
}

/// Adds the products of the panels of a slab with `C` columns, from `c` on. A second panel may have any content.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn tile<const S: usize, const C: usize>(
    slab: &[Group],
    job: &GemmView<'_>,
    (r, n_rows): (usize, usize),
    from: usize,
    c: usize,
) {
    let x = Int8Row::some::<C>(&job.x, c, job.k);
    let mut sums = Sums::default();
    let mut lines = [x[0].lines(from, slab.len()); 4];
    for i in 1..C {
        lines[i] = x[i].lines(from, slab.len());
    }
    match const { byte_bits(Storage::ALL[S]) } {
        Some(4) => products::<S, C, 4>(&mut sums, slab, &lines, job.x.step()),
        Some(_) => products::<S, C, 5>(&mut sums, slab, &lines, job.x.step()),
        None => products::<S, C, 16>(&mut sums, slab, &lines, job.x.step()),
    }
    sums.add_to::<C>(&job.out, (r, n_rows), c);
}

/// Adds the products of a slab, and prefetches the columns that come next, four further on.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn products<const S: usize, const C: usize, const BITS: usize>(
    sums: &mut Sums,
    slab: &[Group],
    x: &[Lines<'_>; 4],
    step: usize,
) {
    for (g, group) in slab.iter().enumerate() {
        let mut columns = [column::<BITS>(&x[0], g); 4];
        for i in 1..4 {
            columns[i] = column::<BITS>(&x[i], g);
        }
        for column in columns {
            prefetch_line(column.tail, 4 * step);
            if BITS == 16 {
                prefetch_line(column.numbers, 4 * step);
            }
        }
        if const { has_offsets(Storage::ALL[S]) } {
            add_products::<C, BITS, true, TAIL>(sums, group, columns);
        } else {
            add_products::<C, BITS, false, TAIL>(sums, group, columns);
        }
    }
}

/// The `g`-th group of a column: its bytes are followed by the tail.
#[inline(always)]
fn column<'a, const BITS: usize>(x: &Lines<'a>, g: usize) -> Column<'a, TAIL> {
    let bytes = &x.bytes[g];
    Column {
        numbers: if BITS == 16 { &x.words[g] } else { bytes },
        tail: bytes.last_chunk().expect("a tail after the bytes"),
    }
}
