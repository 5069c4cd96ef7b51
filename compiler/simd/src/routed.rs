//! GEMM with one matrix per activation row: mixture-of-experts routing.
//!
//! In: the address of a [`RoutedGemmArgs`]. Out: the product of each activation with the matrix of its expert. Rows are
//! grouped by expert with a counting sort, as linked lists through the rows themselves, and each group is one call of
//! the level's GEMM: so each weight row is unpacked once for many activations. Activations stay where they are.

use std::ptr::{null, null_mut};

use crate::abi::{Column, GemmArgs, RoutedGemmArgs};
use crate::view::{self, RoutedView};

/// Rows that are multiplied at a time.
const MOST: usize = 256;

/// The end of a list.
const END: i64 = -1;

/// # Safety
/// The address must be of a valid argument struct whose memory does not overlap its results.
pub(super) unsafe extern "C-unwind" fn routed_gemm(job: *const RoutedGemmArgs) {
    // SAFETY: the caller passes a valid argument struct.
    let RoutedView { job, rows, firsts } = unsafe { view::routed(job) };
    firsts.fill(END);
    for (idx, row) in rows.iter_mut().enumerate().rev() {
        let first = &mut firsts[row.matrix as usize];
        row.next = *first;
        *first = idx as i64;
    }
    for (matrix, first) in firsts.iter().enumerate() {
        let mut next = *first;
        while next != END {
            let mut columns = [Column { x: null(), out: null_mut() }; MOST];
            let mut n_cols = 0;
            while next != END && n_cols < MOST {
                let row = &rows[next as usize];
                columns[n_cols] = row.column;
                n_cols += 1;
                next = row.next;
            }
            let product = GemmArgs {
                w: job.product.w.wrapping_offset(matrix as isize * job.w_matrix as isize),
                scales: job.product.scales.wrapping_offset(matrix as isize * job.scales_matrix as isize),
                columns: columns.as_ptr(),
                n_cols: n_cols as i64,
                ..job.product
            };
            // SAFETY: the caller promises that every matrix is there, and every vector that it rows one for.
            unsafe { (job.function)(&raw const product) };
        }
    }
}
