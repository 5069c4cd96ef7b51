//! Fragments: the pieces of a product that one MMA takes, and how warps share them.
//!
//! In: the rows and columns of a sum. Out: a [`WarpTiling`], or nothing where they are not whole fragments.

use std::cmp::Reverse;

use crate::target::THREADS;

/// M of an MMA: rows of a fragment of sums.
pub(crate) const MMA_M: i64 = 16;
/// N: its columns.
pub(crate) const MMA_N: i64 = 8;
/// K of a TF32 MMA.
pub(crate) const MMA_K: i64 = 8;
/// K of a bf16 MMA.
pub(crate) const MMA_K_BF16: i64 = 2 * MMA_K;
/// Accumulator fragments that a warp keeps in registers, at most.
const MAX_FRAGMENTS_PER_WARP: i64 = 16;
/// Threads of a warp.
pub(crate) const WARP: u32 = 32;

/// How warps share the fragments of a sum. With n warps along the rows, each computes every n-th row of fragments;
/// columns likewise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WarpTiling {
    /// Warps along the rows, and along the columns.
    pub(crate) warps: [i64; 2],
    /// Rows and columns of fragments that a warp computes.
    pub(crate) per_warp: [i64; 2],
}

impl WarpTiling {
    /// The tiling that uses the most warps, and among those the one that loads the least; none if none fits.
    pub(crate) fn of(n_rows: i64, n_columns: i64) -> Option<Self> {
        if n_rows % MMA_M != 0 || n_columns % MMA_N != 0 {
            return None;
        }
        let (rows, columns) = (n_rows / MMA_M, n_columns / MMA_N);
        let most = i64::from(THREADS / WARP);
        let shared = |n: i64| (1..=most).filter(move |warps| n > 0 && n % warps == 0);
        let all = shared(rows).flat_map(|along| shared(columns).map(move |across| [along, across]));
        let all = all.filter(|[along, across]| along * across <= most);
        let all = all.map(|warps| Self { warps, per_warp: [rows / warps[0], columns / warps[1]] });
        let best = all.min_by_key(|own| {
            let [along, across] = own.per_warp;
            // Warps whose rows are all past the end are idle: many warps with few rows each are better.
            (Reverse(own.n_warps()), along * MMA_M + across * MMA_N, along)
        })?;
        (best.per_warp[0] * best.per_warp[1] <= MAX_FRAGMENTS_PER_WARP).then_some(best)
    }

    /// Warps that have fragments.
    pub(crate) fn n_warps(self) -> i64 {
        self.warps[0] * self.warps[1]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fragment_is_computed_once() {
        let mut n_shared = 0;
        for rows in 1..9 {
            for columns in 1..17 {
                let Some(WarpTiling { warps, per_warp }) = WarpTiling::of(rows * MMA_M, columns * MMA_N)
                else {
                    continue;
                };
                n_shared += 1;
                let own = |axis: usize, warp: i64| (0..per_warp[axis]).map(move |i| warp + i * warps[axis]);
                let mut found: Vec<(i64, i64)> = Vec::new();
                for (row, column) in (0..warps[0]).flat_map(|r| (0..warps[1]).map(move |c| (r, c))) {
                    found.extend(own(0, row).flat_map(|row| own(1, column).map(move |column| (row, column))));
                }
                found.sort_unstable();
                let all: Vec<_> = (0..rows).flat_map(|row| (0..columns).map(move |c| (row, c))).collect();
                assert_eq!(found, all, "{rows} by {columns}");
            }
        }
        assert!(n_shared > 100 && WarpTiling::of(8, 16).is_none() && WarpTiling::of(16, 12).is_none());
        // Too many fragments for the warps that can share them.
        assert!(WarpTiling::of(11 * MMA_M, 13 * MMA_N).is_none());
    }

    #[test]
    fn warps_share_fragments_so_that_each_loads_few() {
        let of = |rows: i64, columns: i64| WarpTiling::of(rows, columns).unwrap();
        assert_eq!(of(128, 64), WarpTiling { warps: [4, 2], per_warp: [2, 4] });
        assert_eq!(of(64, 64), WarpTiling { warps: [4, 2], per_warp: [1, 4] });
        assert_eq!(of(64, 32), WarpTiling { warps: [4, 2], per_warp: [1, 2] });
        assert_eq!(of(16, 128), WarpTiling { warps: [1, 8], per_warp: [1, 2] });
        assert_eq!(of(128, 128).per_warp, [2, 8]);
    }
}
