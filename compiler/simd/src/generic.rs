//! Kernels that all levels share, generic over the level's vector type.
//!
//! In: a level's vectors `V` of `N` numbers, and its functions. Out: `gemm_f32`, `weighted_sum` and `encode` of its
//! table, and for levels without integer kernels of their own `gemm_int8_rows` and `quantise_int8_rows`;
//! `generic/int14.rs` has products of 14-bit integers. These are macros and not functions with a trait, so that each
//! function carries the `target_feature` of its level and intrinsics are safe to call. Several rows at a time hide the
//! latency of additions; tiles of rows by columns use each loaded vector more than once.

#[cfg(target_arch = "x86_64")]
pub(super) mod int14;

/// `zero`, `splat`, `load` (of bytes), `padded` (bytes of a vector, of up to as many), `wide_f16`, `wide_bf16`,
/// `wide_i8`, `fma(a, b, c)`, `add`, `horizontal_sum`, `sum_each_of_4` (of four) and `lanes` of vectors `V`; and
/// `prefetch_stream` and, for one row that is read by itself, `prefetch_row`.
/// With up to two columns, short rows are multiplied `tall` at a time, and a weighted sum takes `wide` vectors of
/// elements at a time.
macro_rules! single_forms {
    ($(#[$attr:meta])* tile $rows:literal by $cols:literal, tall $tall:literal, wide $wide:literal) => {
        /// Elements of a row that are unpacked at a time.
        const CHUNK: usize = 1024;

        /// The largest number of columns that are multiplied with whole rows.
        const MAX_COLS_WHOLE_ROWS: usize = 16;

        /// Registers of a row in an unrolled piece.
        const PIECE: usize = 8;

        /// Elements from which rows are read one after another: memory bandwidth is highest with one stream.
        pub(super) const LONG: usize = 512;

        /// The products of `R` rows with `C` columns, with `U` accumulators each; with `prefetch` it prefetches.
        #[inline]
        $(#[$attr])*
        fn dots<const S: usize, const R: usize, const C: usize, const U: usize>(
            w: [&[u8]; R],
            x: [&[u8]; C],
            k: usize,
            prefetch: bool,
        ) -> [[f32; R]; C] {
            // Loops, as everywhere here: a closure passed to a library function might not be inlined.
            let (mut w, mut x) = (w, x);
            for w in &mut w {
                *w = &w[..n_bytes::<S>(k)];
            }
            for x in &mut x {
                *x = &x[..k * 4];
            }
            let mut sums = [[[zero(); U]; C]; R];
            let n_whole = k / (PIECE * N) * PIECE;
            for first in (0..n_whole).step_by(PIECE) {
                add_piece::<S, R, C, U, PIECE>(&mut sums, (&w, &x), first, prefetch);
            }
            // The rest of a row: two registers at a time, then one.
            let n_two = k / (2 * N) * 2;
            for first in (n_whole..n_two).step_by(2) {
                add_piece::<S, R, C, U, 2>(&mut sums, (&w, &x), first, prefetch);
            }
            if n_two < k / N {
                add_piece::<S, R, C, U, 1>(&mut sums, (&w, &x), n_two, prefetch);
            }
            if k % N > 0 {
                // The last elements, padded with zeros.
                let (done, mut w_end, mut x_end) = (k / N * N, [[0; 4 * N]; R], [[0; 4 * N]; C]);
                for (buffer, w) in w_end.iter_mut().zip(&w) {
                    *buffer = padded(&w[n_bytes::<S>(done)..]);
                }
                for (buffer, x) in x_end.iter_mut().zip(&x) {
                    *buffer = padded(&x[4 * done..]);
                }
                let (mut ws, mut xs) = (w, x);
                for (w, buffer) in ws.iter_mut().zip(&w_end) {
                    *w = buffer;
                }
                for (x, buffer) in xs.iter_mut().zip(&x_end) {
                    *x = buffer;
                }
                add_products::<S, R, C, U>(&mut sums, (&ws, &xs), 0, 0);
            }
            let mut out = [[0.0; R]; C];
            // Four at a time: a horizontal sum alone is slow.
            for first in (0..R * C).step_by(4) {
                let n = 4.min(R * C - first);
                let mut four = [zero(); 4];
                for i in 0..n {
                    let sums = &sums[(first + i) % R][(first + i) / R];
                    four[i] = sums[0];
                    for u in 1..U {
                        four[i] = add(four[i], sums[u]);
                    }
                }
                let four = if n == 1 { [horizontal_sum(four[0]), 0.0, 0.0, 0.0] } else { sum_each_of_4(four) };
                for i in 0..n {
                    out[(first + i) / R][(first + i) % R] = four[i];
                }
            }
            out
        }

        /// Adds the products of `P` registers of elements, from the `first` on; with `prefetch` it prefetches.
        #[inline]
        $(#[$attr])*
        fn add_piece<const S: usize, const R: usize, const C: usize, const U: usize, const P: usize>(
            sums: &mut [[[V; U]; C]; R],
            (w, x): (&[&[u8]; R], &[&[u8]; C]),
            first: usize,
            prefetch: bool,
        ) {
            // Slices of constant length: their bounds are checked here, and no element of them is checked again.
            let (mut ws, mut xs) = (*w, *x);
            for w in &mut ws {
                *w = &w[n_bytes::<S>(first * N)..][..n_bytes::<S>(P * N)];
            }
            for x in &mut xs {
                *x = &x[first * N * 4..][..P * N * 4];
            }
            if prefetch {
                for w in ws {
                    if R == 1 { prefetch_row(w) } else { prefetch_stream(w) }
                }
            }
            for i in 0..P {
                add_products::<S, R, C, U>(sums, (&ws, &xs), i * N, i % U);
            }
        }

        /// Adds the products of `N` elements, from `at` on, to the `u`-th sums.
        #[inline]
        $(#[$attr])*
        fn add_products<const S: usize, const R: usize, const C: usize, const U: usize>(
            sums: &mut [[[V; U]; C]; R],
            (w, x): (&[&[u8]; R], &[&[u8]; C]),
            at: usize,
            u: usize,
        ) {
            let mut xs = [zero(); C];
            for c in 0..C {
                xs[c] = load(x[c][at * 4..].first_chunk().expect("within k"));
            }
            for r in 0..R {
                let w = wide::<S>(w[r], at);
                for c in 0..C {
                    sums[r][c][u] = fma(w, xs[c], sums[r][c][u]);
                }
            }
        }

        /// Bytes of `n` elements of a row.
        const fn n_bytes<const S: usize>(n: usize) -> usize {
            let (len, n_bytes) = Storage::ALL[S].block();
            n.div_ceil(len) * n_bytes
        }

        /// `N` elements of a row, widened.
        #[inline]
        $(#[$attr])*
        fn wide<const S: usize>(w: &[u8], at: usize) -> V {
            match S {
                0 => load(w[at * 4..].first_chunk().expect("within k")),
                1 => wide_f16(w[at * 2..].first_chunk().expect("within k")),
                2 => wide_bf16(w[at * 2..].first_chunk().expect("within k")),
                _ => wide_numbers::<S>(&w[n_bytes::<S>(at / 32 * 32)..], at % 32),
            }
        }

        /// `N` elements of a block of numbers with one scale, which is its first half.
        #[inline]
        $(#[$attr])*
        pub(super) fn wide_numbers<const S: usize>(block: &[u8], at: usize) -> V {
            let block = &block[..n_bytes::<S>(32)];
            // Widened in all lanes at once, as elements are: alone it takes longer than the products.
            let scales = [[block[0], block[1]]; N];
            let scale = wide_f16(scales.as_flattened().first_chunk().expect("as many"));
            fma(wide_i8(some_numbers(const { Storage::ALL[S] }, block, at)), scale, zero())
        }

        /// One element of a row.
        #[inline]
        $(#[$attr])*
        fn element<const S: usize>(w: &[u8], i: usize) -> f32 {
            let two = |i: usize| u16::from_le_bytes([w[2 * i], w[2 * i + 1]]);
            match S {
                0 => f32::from_le_bytes([w[4 * i], w[4 * i + 1], w[4 * i + 2], w[4 * i + 3]]),
                1 => widened(two(i)),
                _ => f32::from_bits(u32::from(two(i)) << 16),
            }
        }

        /// Rows `r..r + n` of plain numbers with all columns, from element `from` on; with `prefetch` it prefetches.
        #[inline]
        $(#[$attr])*
        fn rows<const S: usize, const R: usize>(
            job: &GemmView<'_>,
            w: [&[u8]; R],
            (r, n): (usize, usize),
            (from, k): (usize, usize),
            prefetch: bool,
        ) {
            let x = |c: usize| &job.x.get(c)[from * 4..];
            let mut c = 0;
            while c < job.n_cols {
                let n_cols = (job.n_cols - c).min($cols);
                let prefetch = prefetch && c == 0;
                if n_cols == 1 && (n == 1 || k >= LONG) {
                    for (i, w) in w.iter().take(n).enumerate() {
                        let [sums] = dots::<S, 1, 1, 8>([w], [x(c)], k, prefetch);
                        job.out.add_down(r + i, c, &sums);
                    }
                } else if n_cols == 1 {
                    let [sums] = dots::<S, R, 1, 2>(w, [x(c)], k, prefetch);
                    job.out.add_down(r, c, &sums[..n]);
                } else if n_cols == 2 {
                    let sums = dots::<S, R, 2, 1>(w, [x(c), x(c + 1)], k, prefetch);
                    job.out.add_down(r, c, &sums[0][..n]);
                    job.out.add_down(r, c + 1, &sums[1][..n]);
                } else {
                    let mut xs = [x(c); $cols];
                    for i in 1..n_cols {
                        xs[i] = x(c + i);
                    }
                    let sums = dots::<S, R, $cols, 1>(w, xs, k, prefetch);
                    for (i, sums) in sums.iter().take(n_cols).enumerate() {
                        job.out.add_down(r, c + i, &sums[..n]);
                    }
                }
                c += n_cols;
            }
        }

        #[inline]
        $(#[$attr])*
        fn gemm_plain<const S: usize>(job: &GemmView<'_>) {
            if job.k < LONG && job.n_cols <= 2 {
                gemm_plain_rows::<S, $tall>(job);
            } else {
                gemm_plain_rows::<S, $rows>(job);
            }
        }

        /// Rows of plain numbers, `R` at a time.
        #[inline]
        $(#[$attr])*
        fn gemm_plain_rows<const S: usize, const R: usize>(job: &GemmView<'_>) {
            // All columns are read for every few rows: in pieces that stay in the cache.
            let chunk = if job.n_cols > MAX_COLS_WHOLE_ROWS { CHUNK } else { job.k };
            for from in (0..job.k).step_by(chunk) {
                let k = chunk.min(job.k - from);
                for r in (0..job.n_rows).step_by(R) {
                    let n = R.min(job.n_rows - r);
                    if k < LONG && job.n_cols <= $cols {
                        prefetch_rows(job.w.block(r, n), job.w.end_and_next());
                    }
                    let mut w = [&job.w.row(r).bytes[n_bytes::<S>(from)..]; R];
                    for i in 1..n {
                        w[i] = &job.w.row(r + i).bytes[n_bytes::<S>(from)..];
                    }
                    // Short rows are prefetched as blocks.
                    rows::<S, R>(job, w, (r, n), (from, k), k >= LONG);
                }
            }
        }

        /// Rows of blocks.
        #[inline]
        $(#[$attr])*
        fn gemm_blocks<const S: usize>(job: &GemmView<'_>) {
            match job.n_cols {
                1 => gemm_few_cols::<S, 1>(job),
                2..=$cols => gemm_few_cols::<S, $cols>(job),
                _ => gemm_unpacked::<S>(job),
            }
        }

        /// Each row with up to `C` columns, unpacked in registers. Prefetches the following rows.
        #[inline]
        $(#[$attr])*
        fn gemm_few_cols<const S: usize, const C: usize>(job: &GemmView<'_>) {
            let storage = const { Storage::ALL[S] };
            let n_blocks = job.k / 32;
            let mut x = [job.x.get(0).as_chunks::<128>().0; C];
            for c in 1..job.n_cols {
                x[c] = job.x.get(c).as_chunks().0;
            }
            for r in 0..job.n_rows {
                let row = &job.w.row(r);
                let mut sums = [[zero(); 32 / N]; C];
                for first in (0..n_blocks).step_by(PIECE) {
                    let end = n_blocks.min(first + PIECE);
                    let piece = &row.bytes[storage.bytes(32 * first)..storage.bytes(32 * end)];
                    prefetch_rows(piece, job.w.end_and_next());
                    for idx in first..end {
                        let w = wide_block(&row.unpack(storage, idx));
                        for c in 0..C {
                            for (i, x) in x[c][idx].as_chunks().0.iter().enumerate() {
                                sums[c][i] = fma(w[i], load(x), sums[c][i]);
                            }
                        }
                    }
                }
                for c in 0..job.n_cols {
                    let mut sum = sums[c][0];
                    for i in 1..32 / N {
                        sum = add(sum, sums[c][i]);
                    }
                    job.out.add(r, c, horizontal_sum(sum));
                }
            }
        }

        /// Rows that are unpacked once for all columns. Prefetches the following ones.
        #[inline]
        $(#[$attr])*
        fn gemm_unpacked<const S: usize>(job: &GemmView<'_>) {
            let storage = const { Storage::ALL[S] };
            let mut buffer = [[0.0; CHUNK]; $rows];
            for from in (0..job.k).step_by(CHUNK) {
                let k = CHUNK.min(job.k - from);
                for r in (0..job.n_rows).step_by($rows) {
                    let n = $rows.min(job.n_rows - r);
                    for i in 0..n {
                        let row = &job.w.row(r + i);
                        prefetch_stream(&row.bytes[storage.bytes(from)..storage.bytes(from + k)]);
                        for (idx, out) in (from / 32..).zip(buffer[i][..k].as_chunks_mut::<32>().0) {
                            let block = wide_block(&row.unpack(storage, idx));
                            for (i, out) in out.as_chunks_mut::<N>().0.iter_mut().enumerate() {
                                *out = lanes(block[i]);
                            }
                        }
                    }
                    let mut w = [cast_slice(&buffer[0]); $rows];
                    for i in 1..n {
                        w[i] = cast_slice(&buffer[i]);
                    }
                    rows::<0, $rows>(job, w, (r, n), (from, k), false);
                }
            }
        }

        /// 32 elements, widened.
        #[inline]
        $(#[$attr])*
        fn wide_block(block: &DequantisedBlock) -> [V; 32 / N] {
            let numbers: &[u8; 32] = cast_ref(&block.q);
            let mut out = [zero(); 32 / N];
            for (i, out) in out.iter_mut().enumerate() {
                let wide = wide_i8(*numbers[i * N..].first_chunk().expect("within a block"));
                *out = fma(wide, splat(block.a[i * N / 16]), splat(block.b[i * N / 16]));
            }
            out
        }

        $(#[$attr])*
        pub(super) unsafe extern "C-unwind" fn gemm_f32(job: *const GemmArgs) {
            // SAFETY: the caller passes a valid argument struct.
            let Some(job) = (unsafe { view::gemm(job, view::Layout::F32) }) else { return };
            match job.w.storage {
                Storage::F32 => gemm_plain::<0>(&job),
                Storage::F16 => gemm_plain::<1>(&job),
                Storage::BF16 => gemm_plain::<2>(&job),
                _ => for_format!(job, gemm_blocks::<S>(&job)),
            }
        }

        /// `E * N` elements from `at` on, of `C` columns; returns `C`.
        #[inline]
        $(#[$attr])*
        fn weighted_sum_tile<const S: usize, const C: usize, const E: usize>(
            job: &WeightedSumView<'_>,
            c: usize,
            at: usize,
        ) -> usize {
            let mut sums = [[zero(); E]; C];
            let mut p = [job.p.get(c); C];
            for i in 1..C {
                p[i] = job.p.get(c + i);
            }
            let rows = job.v.block(0, job.n_rows);
            // A piece of a row starts with the block that has its first element.
            let skipped = if (E * N).is_multiple_of(32) { 0 } else { at % 32 };
            let first = n_bytes::<S>(at - skipped);
            for s in 0..job.n_rows {
                let v = &rows[s * job.v.stride()..];
                if c == 0 && at == 0 {
                    prefetch_one_of_rows(&v[..n_bytes::<S>(job.n)], job.v.end_and_next());
                }
                let v = &v[first..][..n_bytes::<S>(skipped + E * N)];
                let mut vs = [zero(); E];
                for e in 0..E {
                    vs[e] = wide::<S>(v, skipped + e * N);
                }
                for i in 0..C {
                    let p = splat(f32::from_le_bytes(*p[i][s * job.p_row..].first_chunk().expect("a factor")));
                    for e in 0..E {
                        sums[i][e] = fma(p, vs[e], sums[i][e]);
                    }
                }
            }
            // Sums stay in registers: only this short loop moves them to memory.
            let mut out = [[[0.0; N]; E]; C];
            for i in 0..C {
                for e in 0..E {
                    out[i][e] = lanes(sums[i][e]);
                }
            }
            for (i, out) in out.iter().enumerate() {
                job.out.add_across(c + i, at, out.as_flattened());
            }
            C
        }

        /// `E * N` elements from `at` on, of all columns; returns how many.
        #[inline]
        $(#[$attr])*
        fn across<const S: usize, const E: usize>(job: &WeightedSumView<'_>, at: usize) -> usize {
            let mut c = 0;
            while c < job.n_cols {
                c += match job.n_cols - c {
                    4.. if E <= 4 => weighted_sum_tile::<S, 4, E>(job, c, at),
                    2.. => weighted_sum_tile::<S, 2, E>(job, c, at),
                    _ => weighted_sum_tile::<S, 1, E>(job, c, at),
                };
            }
            E * N
        }

        #[inline]
        $(#[$attr])*
        fn weighted_sum_of<const S: usize>(job: &WeightedSumView<'_>) {
            let mut at = 0;
            while at + N <= job.n {
                at += match (job.n - at) / N {
                    $wide.. if job.n_cols <= 2 => across::<S, $wide>(job, at),
                    4.. => across::<S, 4>(job, at),
                    _ => across::<S, 1>(job, at),
                };
            }
            for e in at..job.n {
                for c in 0..job.n_cols {
                    let mut sum = 0.0;
                    for s in 0..job.n_rows {
                        let p = element::<0>(&job.p.get(c)[s * job.p_row..], 0);
                        sum += p * element::<S>(job.v.row(s).bytes, e);
                    }
                    job.out.add(c, e, sum);
                }
            }
        }

        $(#[$attr])*
        pub(super) unsafe extern "C-unwind" fn weighted_sum(job: *const WeightedSumArgs) {
            // SAFETY: the caller passes a valid argument struct.
            let Some(job) = (unsafe { view::weighted_sum(job) }) else { return };
            match job.v.storage {
                Storage::F32 => weighted_sum_of::<0>(&job),
                Storage::F16 => weighted_sum_of::<1>(&job),
                Storage::BF16 => weighted_sum_of::<2>(&job),
                Storage::Q8_0 => weighted_sum_of::<{ Storage::Q8_0 as usize }>(&job),
                Storage::Q4_0 => weighted_sum_of::<{ Storage::Q4_0 as usize }>(&job),
                _ => unreachable!("no state is stored so"),
            }
        }

        $(#[$attr])*
        pub(super) unsafe extern "C-unwind" fn encode(job: *const EncodeArgs) {
            // SAFETY: the caller passes a valid argument struct.
            blocks(&mut unsafe { view::encode(job) });
        }
    };
}

/// GEMM with `Int8Rows` in terms of `blank`, `total_of` and `dot(w, x, a, sum)` of 32 numbers each, and the table of a
/// level that has only generic kernels.
macro_rules! row_forms {
    ($(#[$attr:meta])*) => {
        pub(super) const TABLE: Table = Table {
            gemm_f32,
            gemm_int8_rows,
            quantise_int8_rows,
            weighted_sum,
            encode,
            super_block_group: GROUP,
            int8_gemv: None,
            int8_interleaved: None,
            int8_amx: None,
            int14: None,
            bf16: None,
        };

        #[inline]
        $(#[$attr])*
        fn gemm_int8_of<const S: usize>(job: &GemmView<'_>) {
            let mut c = 0;
            while c < job.n_cols {
                c += match job.n_cols - c {
                    4.. => columns::<S, 4>(job, c),
                    2.. => columns::<S, 2>(job, c),
                    _ => columns::<S, 1>(job, c),
                };
            }
        }

        /// All rows with `C` columns, from `c` on; returns `C`. Unpacked weights are used for all of them.
        #[inline]
        $(#[$attr])*
        fn columns<const S: usize, const C: usize>(job: &GemmView<'_>, c: usize) -> usize {
            let storage = const { Storage::ALL[S] };
            let mut x = [Int8Row::new(job.x.get(c), job.k); C];
            for i in 1..C {
                x[i] = Int8Row::new(job.x.get(c + i), job.k);
            }
            for r in 0..job.n_rows {
                let w = job.w.row(r);
                let (mut sums, mut offsets) = ([blank(); C], [0.0; C]);
                for idx in 0..job.k / 32 {
                    let DequantisedBlock { q, a, b } = w.unpack(storage, idx);
                    for i in 0..C {
                        let scale = x[i].scale(idx);
                        sums[i] = dot(&q, x[i].wide(idx), [a[0] * scale, a[1] * scale], sums[i]);
                        if storage.has_offsets() {
                            offsets[i] += b[0] * x[i].sum(idx);
                        }
                    }
                }
                for i in 0..C {
                    job.out.add(r, c + i, total_of(sums[i]) + offsets[i]);
                }
            }
            C
        }

        $(#[$attr])*
        unsafe extern "C-unwind" fn quantise_int8_rows(job: *const QuantiseArgs) {
            // SAFETY: the caller passes a valid argument struct.
            let Some(mut job) = (unsafe { view::quantise(job, view::Layout::Int8Rows) }) else { return };
            int8_rows::quantise(&mut job);
        }

        $(#[$attr])*
        unsafe extern "C-unwind" fn gemm_int8_rows(job: *const GemmArgs) {
            // SAFETY: the caller passes a valid argument struct.
            let Some(job) = (unsafe { view::gemm(job, view::Layout::Int8Rows) }) else { return };
            for_format!(job, by 32, gemm_int8_of::<S>(&job));
        }
    };
}

/// The entries of a level's table: functions that turn the address of an argument struct into a view and do something
/// with it, unless nothing is to be done. The first piece is the attribute of the level.
#[cfg(target_arch = "x86_64")]
macro_rules! entries {
    ($attr:tt $($name:ident: $view:ident($args:ty $(, $layout:ident)?) |$job:pat_param| $done:expr;)+) => {$(
        # $attr
        unsafe extern "C-unwind" fn $name(job: *const $args) {
            // SAFETY: the caller passes a valid argument struct.
            let Some($job) = (unsafe { view::$view(job $(, view::Layout::$layout)?) }) else { return };
            $done
        }
    )+};
}

/// Up to `L` bytes, padded with zeros.
#[inline(always)]
pub(super) fn padded<const L: usize>(bytes: &[u8]) -> [u8; L] {
    let mut out = [0; L];
    out[..bytes.len()].copy_from_slice(bytes);
    out
}

#[cfg(target_arch = "x86_64")]
pub(super) use entries;
pub(super) use {row_forms, single_forms};
