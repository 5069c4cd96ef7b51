//! Vectors that a matrix is picked for: each matrix is multiplied with all of its vectors at once.
//!
//! In: the address of a [`Picked`]. Out: the products of each vector with the matrix that is picked for it.
//! Picks are sorted by counting, as lists through the picks themselves; products are those of a level, which so unpack
//! each row once for many vectors. Vectors stay where they are.

use std::ptr::{null, null_mut};

use crate::codegen::cpu::micro::view::{self, PickedView};
use crate::codegen::cpu::micro::{Column, Picked, Product};

/// Vectors that are multiplied at a time.
const MOST: usize = 256;

/// The end of a list.
const END: i64 = -1;

/// # Safety
/// The address must be of a description whose memory is there, and apart from its results.
pub(super) unsafe extern "C" fn picked(job: *const Picked) {
    // SAFETY: generated code promises what the view asks for.
    let PickedView { job, picks, firsts } = unsafe { view::picked(job) };
    firsts.fill(END);
    for (idx, pick) in picks.iter_mut().enumerate().rev() {
        let first = &mut firsts[pick.matrix as usize];
        pick.next = *first;
        *first = idx as i64;
    }
    for (matrix, first) in firsts.iter().enumerate() {
        let mut next = *first;
        while next != END {
            let mut columns = [Column { x: null(), out: null_mut() }; MOST];
            let mut n_cols = 0;
            while next != END && n_cols < MOST {
                let pick = &picks[next as usize];
                columns[n_cols] = pick.column;
                n_cols += 1;
                next = pick.next;
            }
            let product = Product {
                w: job.product.w.wrapping_offset(matrix as isize * job.w_matrix as isize),
                scales: job.product.scales.wrapping_offset(matrix as isize * job.scales_matrix as isize),
                columns: columns.as_ptr(),
                n_cols: n_cols as i64,
                ..job.product
            };
            // SAFETY: generated code promises that every matrix is there, and every vector that it picks one for.
            unsafe { (job.function)(&raw const product) };
        }
    }
}
