//! GEMM of half-precision or bfloat16 weights with 14-bit integers: what the levels that have it share.
//!
//! In: rows, and activations in single precision. Out: activations in the layout `Int14` (`int14_rows.rs`), and their
//! products with rows, which are quantised in the same way. Rows are packed once for all columns, into panels with two
//! elements of each row side by side; a level multiplies panels with columns. A macro, as in `generic.rs`.

/// In terms of vectors `V` of `N` numbers and `I` of as many integers: `load`, `wide_f16`, `wide_bf16`, `splat`,
/// `first_lane`; `bits` and `numbers`, which change the type alone; `none` (zeros), `size` (absolute values as bits,
/// which compare in the same order: NaN counts as the largest), `larger`, `largest` (of all lanes), `scaled(a, b)`,
/// `inverse` (of scales: [`MOST`] by numbers, zero for those below [`LEAST`]), `rounded(x, by)`, `paired` (the lower
/// halves of two vectors side by side), `transposed`, `store_bytes`, `put_words` (the lower halves of sixteen numbers);
/// and `columns`, which multiplies the first groups of a slab with all columns.
///
/// [`MOST`]: crate::layout::int14_rows::MOST
/// [`LEAST`]: crate::layout::int14_rows::LEAST
macro_rules! int14_forms {
    ($(#[$attr:meta])*) => {
        /// Steps of rows that are quantised at a time.
        const STEPS: usize = 16;

        #[inline]
        $(#[$attr])*
        pub(super) fn quantise(job: &mut QuantiseView<'_>) {
            for (c, out) in job.out.chunks_exact_mut(int14_bytes(1, job.k)).enumerate() {
                let x = &job.x[c * job.x_col..][..4 * job.k];
                let (steps, scales) = out.split_at_mut(2 * STEP * job.k.div_ceil(STEP));
                let (scales, _) = scales.as_chunks_mut::<4>();
                for (idx, (step, scale)) in steps.chunks_exact_mut(2 * STEP).zip(scales).enumerate() {
                    let mut buffer = [0; 4 * STEP];
                    let (x, _) = padded(&x[4 * STEP * idx..], &mut buffer).as_chunks();
                    let mut most = none();
                    for x in x {
                        most = larger(most, size(load(x)));
                    }
                    let (own, by) = scale_of(splat(f32::from_bits(largest(most))));
                    *scale = first_lane(own).to_le_bytes();
                    for (x, out) in x.as_chunks().0.iter().zip(step.as_chunks_mut().0) {
                        put_words(x, by, out);
                    }
                }
            }
        }

        /// The scales of groups with these largest numbers, and the inverse of each.
        #[inline]
        $(#[$attr])*
        fn scale_of(most: V) -> (V, V) {
            (scaled(most, splat(1.0 / MOST)), inverse(most))
        }

        /// All columns with all rows.
        #[inline]
        $(#[$attr])*
        pub(super) fn gemm<const S: usize>(job: &GemmView<'_>) {
            let n_steps = job.k.div_ceil(STEP);
            let mut buffer = StackBuffer::<Group, STEPS>::new();
            let slab = buffer.open();
            for r in (0..job.n_rows).step_by(2 * PANEL) {
                let n_rows = (job.n_rows - r).min(2 * PANEL);
                for from in (0..n_steps).step_by(STEPS) {
                    let n = (n_steps - from).min(STEPS);
                    // Packing takes as long as reading: the next steps are prefetched while these are packed.
                    let piece = (2 * STEP * from, 2 * STEP * n);
                    let ahead = distance_to_next(piece, 2 * STEP * n_steps, 2 * PANEL * job.w.stride());
                    for (step, group) in slab[..n].iter_mut().enumerate() {
                        for (p, panel) in group.panels.iter_mut().enumerate().take(n_rows.div_ceil(PANEL)) {
                            pack::<S>(panel, job, r + p * PANEL, from + step, ahead);
                        }
                    }
                    columns(&slab[..n], job, (r, n_rows), from);
                }
            }
        }

        /// Packs a step of the rows of a panel, from `r` on; missing rows repeat the last. Prefetches `ahead` bytes
        /// ahead.
        #[inline]
        $(#[$attr])*
        fn pack<const S: usize>(panel: &mut Panel, job: &GemmView<'_>, r: usize, step: usize, ahead: usize) {
            let mut rows = [[none(); PANEL]; STEP / N];
            for i in 0..PANEL {
                let row = &job.w.row((r + i).min(job.n_rows - 1)).bytes[2 * STEP * step..];
                prefetch_line(row, ahead);
                let mut buffer = [0; 2 * STEP];
                let (pieces, _) = padded(row, &mut buffer).as_chunks();
                for (rows, piece) in rows.iter_mut().zip(pieces) {
                    rows[i] = bits(match const { Storage::ALL[S] } {
                        Storage::F16 => wide_f16(piece),
                        _ => wide_bf16(piece),
                    });
                }
            }
            let mut most = none();
            for rows in &mut rows {
                *rows = transposed(rows);
                for column in rows {
                    most = larger(most, size(numbers(*column)));
                }
            }
            let (factors, by) = scale_of(numbers(most));
            store_bytes(bits(factors), &mut panel.factors);
            for (two, pair) in rows.as_flattened().as_chunks::<2>().0.iter().zip(&mut panel.numbers) {
                store_bytes(paired(rounded(numbers(two[0]), by), rounded(numbers(two[1]), by)), pair);
            }
        }
    };
}
pub(crate) use int14_forms;
