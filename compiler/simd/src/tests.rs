//! Every function of every level of this processor, at odd sizes: quantised activations against the bytes of
//! `layout/activations.rs`, products against double precision, with the same rounded numbers on both sides.

use std::iter::repeat_n;

use fusebox_formats::{Factor, FactorKind};
use half::{bf16, f16};

use super::abi::*;
use super::dispatch::int8_rows_layout;
use super::layout::activations::{Number, Writer, bytes, of_words, parts, rounded};
use super::layout::block_formats::{BlockRow, DequantisedBlock};
use super::layout::int8_rows::Int8Row;
use super::*;

/// Numbers that look random, the same each time.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    fn float(&mut self) -> f32 {
        (self.next() % 4001) as f32 / 1000.0 - 2.0
    }
}

/// A weight format, and its elements that share a scale where scales are stored apart.
type Format = (Storage, usize);

/// Elements of a block with its scales.
fn block_len((storage, group): Format) -> usize {
    if storage == Storage::Int8 { group } else { storage.block().0 }
}

/// Bytes of `n` elements with all scales.
fn bytes_for((storage, group): Format, n: usize) -> usize {
    storage.bytes(n) + if storage == Storage::Int8 { n / group * 4 } else { 0 }
}

/// Bytes of a weight whose numbers are of a reasonable size.
fn weight(format: Format, n: usize, noise: &mut Noise) -> Vec<u8> {
    match format.0 {
        Storage::F32 => (0..n).flat_map(|_| noise.float().to_le_bytes()).collect(),
        Storage::F16 => (0..n).flat_map(|_| f16::from_f32(noise.float()).to_le_bytes()).collect(),
        Storage::BF16 => (0..n).flat_map(|_| bf16::from_f32(noise.float()).to_le_bytes()).collect(),
        storage => {
            let mut bytes: Vec<u8> = (0..bytes_for(format, n)).map(|_| noise.next() as u8).collect();
            let Some(blocks) = storage.blocks() else {
                for scale in bytes[n..].chunks_mut(4) {
                    scale.copy_from_slice(&(noise.float() / 100.0).to_le_bytes());
                }
                return bytes;
            };
            for block in bytes.chunks_mut(blocks.bytes) {
                for Factor { at, kind } in [Some(blocks.scale), blocks.offset].into_iter().flatten() {
                    let scale = noise.float() / 100.0;
                    match kind {
                        FactorKind::F16 => {
                            block[at..at + 2].copy_from_slice(&f16::from_f32(scale).to_le_bytes());
                        }
                        FactorKind::F32 => block[at..at + 4].copy_from_slice(&scale.to_le_bytes()),
                        FactorKind::HalfE8M0 => block[at] = 116 + block[at] % 8,
                    }
                }
            }
            bytes
        }
    }
}

/// What the bytes of `n` elements stand for.
pub(crate) fn decoded((storage, group): Format, bytes: &[u8], n: usize) -> Vec<f32> {
    let single = |bytes: &[u8]| f32::from_le_bytes(*bytes.first_chunk().unwrap());
    let two = |bytes: &[u8]| *bytes.first_chunk::<2>().unwrap();
    match storage {
        Storage::F32 => bytes.chunks(4).map(single).collect(),
        Storage::F16 => bytes.chunks(2).map(|x| f16::from_le_bytes(two(x)).to_f32()).collect(),
        Storage::BF16 => bytes.chunks(2).map(|x| bf16::from_le_bytes(two(x)).to_f32()).collect(),
        Storage::Int8 => {
            let scale = |i: usize| single(&bytes[n + i / group * 4..]);
            bytes[..n].iter().enumerate().map(|(i, q)| scale(i) * f32::from(q.cast_signed())).collect()
        }
        blocks => {
            let blocks = blocks.blocks().unwrap();
            let mut out = vec![0.0; n];
            for (block, out) in bytes.chunks(blocks.bytes).zip(out.chunks_mut(blocks.len)) {
                blocks.decode(block, out);
            }
            out
        }
    }
}

/// What a product may be off, of the sum of its magnitudes: the rounding of sums in single precision.
pub(crate) const TOLERANCE: f64 = 12.0 * f32::EPSILON as f64;

/// The numbers of a row or a column that are multiplied, in one or two parts.
pub(crate) struct Factors(Vec<Vec<f64>>);

impl Factors {
    /// Sums of two bfloat16 numbers, or the first of them.
    fn of_bf16(numbers: &[f32], n_parts: usize) -> Self {
        Self((0..n_parts).map(|part| numbers.iter().map(|x| parts(*x)[part].into()).collect()).collect())
    }

    /// What a column is rounded to.
    pub(crate) fn of_column(rounding: Option<ActivationLayout>, n_cols: usize, x: &[f32]) -> Self {
        match rounding {
            None => Self(vec![x.iter().map(|x| f64::from(*x)).collect()]),
            Some(ActivationLayout::Bf16Tiles { n_parts }) => Self::of_bf16(x, n_parts as usize),
            Some(layout) => {
                Self(vec![rounded(layout, n_cols, x).iter().map(|number| number.value()).collect()])
            }
        }
    }

    /// What a row is rounded to for such columns; `decoded` is what it stands for.
    pub(crate) fn of_row(
        rounding: Option<ActivationLayout>,
        storage: Storage,
        row: &BlockRow<'_>,
        decoded: &[f32],
    ) -> Self {
        match rounding {
            Some(ActivationLayout::Bf16Tiles { n_parts }) if storage.block().0 == 1 => {
                Self::of_bf16(decoded, n_parts as usize)
            }
            Some(ActivationLayout::Bf16Tiles { .. }) => {
                let blocks = (0..decoded.len() / 32).map(|idx| row.unpack(storage, idx));
                Self::of_bf16(&blocks.flat_map(|block| widened(storage, block)).collect::<Vec<_>>(), 1)
            }
            Some(ActivationLayout::Int14) => {
                Self(vec![decoded.chunks(32).flat_map(of_words).map(Number::value).collect()])
            }
            _ => Self(vec![decoded.iter().map(|w| f64::from(*w)).collect()]),
        }
    }

    /// The product with a column, and the sum of magnitudes: of each 32 weights the largest counts, since an offset or
    /// a zero point is multiplied apart. Products of two second parts are left out.
    pub(crate) fn product(&self, x: &Self) -> (f64, f64) {
        let [w, x] = [&self.0, &x.0];
        let dot = |w: &[f64], x: &[f64]| w.iter().zip(x).map(|(w, x)| w * x).sum::<f64>();
        let mut exact = dot(&w[0], &x[0]);
        if let ([first_w, second_w], [first_x, second_x]) = (&w[..], &x[..]) {
            exact += dot(first_w, second_x) + dot(second_w, first_x);
        }
        let largest = |w: &[f64]| w.iter().fold(0.0, |most: f64, w| most.max(w.abs()));
        let groups = w[0].chunks(32).zip(x[0].chunks(32));
        (exact, groups.map(|(w, x)| largest(w) * x.iter().map(|x| x.abs()).sum::<f64>()).sum())
    }
}

/// A block in single precision as it is computed for tiles of bfloat16 numbers, where it is not exact.
fn widened(storage: Storage, DequantisedBlock { q, a, b }: DequantisedBlock) -> [f32; 32] {
    let zero = if storage.has_offsets() { 0.0 } else { 128.0 };
    std::array::from_fn(|i| {
        let (a, b) = (a[i / 16], b[i / 16]);
        (256.0 + zero + f32::from(q[i])).mul_add(a, b - (256.0 + zero) * a)
    })
}

/// Who writes the rows of a level.
fn writer(level: Level) -> Writer {
    match level {
        Level::Amx | Level::Avx512Bf16 | Level::Avx512 => Writer::Avx512,
        Level::Avx2 => Writer::Avx2,
        Level::Neon | Level::Portable => Writer::Portable,
    }
}

/// All formats that products have, and some groups.
fn formats() -> impl Iterator<Item = Format> {
    let groups = [32, 64, 96].map(|group| (Storage::Int8, group));
    let fixed = Storage::ALL.into_iter().filter(|storage| *storage != Storage::Int8);
    fixed.map(|storage| (storage, GROUP)).chain(groups)
}

/// The sizes of a product.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    n_rows: usize,
    n_cols: usize,
    k: usize,
}

/// Columns of `k + 3` elements, of which the first `k` are quantised, and the function for a product with them.
fn quantised(
    level: Level,
    layout: Option<ActivationLayout>,
    x: &[f32],
    (n_cols, k): (usize, usize),
) -> (Vec<u8>, unsafe extern "C-unwind" fn(*const GemmArgs)) {
    let table = table(level);
    let Some(layout) = layout else { return (Vec::new(), table.gemm_f32) };
    let mut rounded = vec![0xa5_u8; activation_bytes(layout, n_cols, k)];
    let (x, out, x_col, n_cols, k) =
        (x.as_ptr(), rounded.as_mut_ptr(), k as i64 + 3, n_cols as i64, k as i64);
    if let ActivationLayout::Bf16Tiles { n_parts } = layout {
        let functions = table.bf16.unwrap();
        let job = Bf16Args { x, out, x_col, n_cols, k, n_parts };
        // SAFETY: the argument struct describes the memory above.
        unsafe { (functions.to_bf16_tiles)(&raw const job) };
        return (rounded, functions.product);
    }
    let functions = table.quantised_functions(layout);
    let job = QuantiseArgs { x, out, x_col, n_cols, k, group: layout.parameter() };
    // SAFETY: the argument struct describes the memory above.
    unsafe { (functions.quantise)(&raw const job) };
    (rounded, functions.product)
}

fn check_product(
    format: Format,
    level: Level,
    sizes: Sizes,
    rounding: Option<ActivationLayout>,
    noise: &mut Noise,
) {
    let (storage, group) = format;
    let Sizes { n_rows, n_cols, k } = sizes;
    let w = weight(format, n_rows * k, noise);
    let mut x: Vec<f32> = (0..n_cols * (k + 3)).map(|_| noise.float()).collect();
    // Here and there is a number far larger than its neighbours.
    for _ in 0..x.len() / 100 {
        let place = noise.next() as usize % x.len();
        x[place] *= 40.0;
    }
    let decoded = decoded(format, &w, n_rows * k);
    let (out_row, out_col) = if noise.next().is_multiple_of(2) { (n_cols + 1, 1) } else { (1, n_rows + 2) };
    let mut out = vec![0.5_f32; n_rows * out_row + n_cols * out_col];
    let (rounded, function) = quantised(level, rounding, &x, (n_cols, k));
    let number = rounding.map_or(0, ActivationLayout::parameter);
    let is_apart = storage == Storage::Int8;
    let job = GemmArgs {
        w: w.as_ptr(),
        scales: w[if is_apart { n_rows * k } else { 0 }..].as_ptr(),
        x: if rounding.is_some() { rounded.as_ptr() } else { x.as_ptr().cast() },
        out: out.as_mut_ptr(),
        w_row: storage.bytes(k) as i64,
        scales_row: (k / group * 4) as i64,
        x_col: k as i64 + 3,
        out_row: out_row as i64,
        out_col: out_col as i64,
        n_rows: n_rows as i64,
        n_cols: n_cols as i64,
        k: k as i64,
        storage: storage.number(),
        group: group as i64,
        columns: std::ptr::null(),
        n_parts: number,
        next: std::ptr::null(),
    };
    // SAFETY: the argument struct describes the memory above.
    unsafe { function(&raw const job) };
    let columns: Vec<&[f32]> = x.chunks(k + 3).map(|x| &x[..k]).collect();
    if let Some(layout) = rounding {
        assert_eq!(rounded, bytes(writer(level), layout, &columns), "{level} {sizes:?} {layout:?}");
    }
    let columns: Vec<Factors> = columns.iter().map(|x| Factors::of_column(rounding, n_cols, x)).collect();
    for r in 0..n_rows {
        let row = BlockRow {
            bytes: &w[storage.bytes(k) * r..][..storage.bytes(k)],
            scales: if is_apart { &w[n_rows * k + k / group * 4 * r..][..k / group * 4] } else { &[] },
            group,
        };
        let row = Factors::of_row(rounding, storage, &row, &decoded[r * k..][..k]);
        for (c, x) in columns.iter().enumerate() {
            let (exact, size) = row.product(x);
            let actual = f64::from(out[r * out_row + c * out_col]);
            let (off, allowed) = ((actual - 0.5 - exact).abs(), TOLERANCE * (0.5 + size));
            assert!(
                off <= allowed,
                "{format:?} {level} {sizes:?} {rounding:?} {r},{c}: {actual} {exact} {allowed}"
            );
        }
    }
}

#[test]
fn products_of_odd_sizes_are_those_of_double_precision() {
    let mut noise = Noise(7);
    for level in Level::supported() {
        for format in formats() {
            let ((storage, group), block) = (format, block_len(format));
            let ks: &[usize] = if block == 1 { &[1, 7, 16, 37, 200, 1100] } else { &[1, 2, 3, 5, 33] };
            for k in ks {
                for n_cols in [1, 2, 3, 4, 5, 8, 15, 16, 17, 33, 49, 64] {
                    for n_rows in [1, 2, 3, 4, 5, 9, 33] {
                        let sizes = Sizes { n_rows, n_cols, k: k * block };
                        if sizes.k * n_cols * n_rows > 400_000 {
                            continue;
                        }
                        let bytes = int8_rows_layout(level, storage, group).filter(|_| block > 1);
                        let one_by_one = activation_layout(level, storage, group, 1);
                        // A program for many columns may get few of them.
                        let of_many = activation_layout(level, storage, group, 64);
                        let most = *INTERLEAVED_COLS.end();
                        let of_few =
                            activation_layout(level, storage, group, most).filter(|_| n_cols <= most);
                        let own = activation_layout(level, storage, group, n_cols);
                        let roundings = [None, bytes, one_by_one, of_many, of_few, own];
                        for (i, rounding) in roundings.iter().enumerate() {
                            if !roundings[..i].contains(rounding) {
                                check_product(format, level, sizes, *rounding, &mut noise);
                            }
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn products_of_widths_that_fill_no_last_vector_are_those_of_double_precision() {
    let mut noise = Noise(29);
    for level in Level::supported() {
        for format in formats() {
            let (storage, group) = format;
            let ks: &[usize] =
                if block_len(format) == 1 { &[577, 600, 1031] } else { &[544, 576, 608, 960, 2880] };
            for k in ks.iter().copied().filter(|k| k.is_multiple_of(block_len(format))) {
                for (n_rows, n_cols) in [(6, 1), (17, 8), (35, 64)] {
                    let sizes = Sizes { n_rows, n_cols, k };
                    for rounding in [None, activation_layout(level, storage, group, n_cols)] {
                        check_product(format, level, sizes, rounding, &mut noise);
                    }
                }
            }
        }
    }
}

#[test]
fn a_row_gives_what_it_gives_when_zeros_fill_its_last_unit() {
    let mut noise = Noise(31);
    for format in formats().filter(|format| block_len(*format) == GROUP) {
        for (level, n_cols) in Level::supported().flat_map(|level| [1, 8, 64].map(|n_cols| (level, n_cols))) {
            for (k, whole) in [(32, 128), (544, 640), (576, 640), (608, 640), (960, 1024)] {
                let w = weight(format, k, &mut noise);
                let mut padded = w.clone();
                if format.0 == Storage::Int8 {
                    // Scales follow all numbers.
                    padded.splice(k..k, repeat_n(0, whole - k));
                }
                padded.resize(bytes_for(format, whole), 0);
                let x: Vec<f32> = (0..k * n_cols).map(|_| noise.float()).collect();
                let longer: Vec<f32> =
                    (x.chunks(k)).flat_map(|x| x.iter().copied().chain(repeat_n(0.0, whole - k))).collect();
                let actual = of_a_row(level, format, &w, &x, n_cols);
                let expected = of_a_row(level, format, &padded, &longer, n_cols);
                for (actual, expected) in actual.into_iter().zip(expected) {
                    let off = (actual - expected).abs();
                    assert!(off <= 1e-5 * (k as f32).sqrt(), "{format:?} {level} {k} {actual} {expected}");
                }
            }
        }
    }
}

/// The products of a row with columns in the layout for their number, and as rows of a GEMM if they are many.
fn of_a_row(level: Level, (storage, group): Format, row: &[u8], x: &[f32], n_cols: usize) -> Vec<f32> {
    let k = x.len() / n_cols;
    let is_many = n_cols > *INTERLEAVED_COLS.end();
    let rounding = if is_many {
        int8_rows_layout(level, storage, group)
    } else {
        activation_layout(level, storage, group, n_cols)
    };
    let mut rounded = bytemuck::cast_slice(x).to_vec();
    let mut function = table(level).gemm_f32;
    if let Some(rounding) = rounding {
        rounded = vec![0_u8; activation_bytes(rounding, n_cols, k)];
        function = table(level).quantised_functions(rounding).product;
        // SAFETY: the vectors are there, and the room for them.
        unsafe {
            quantise_activations(level, rounding, (x.as_ptr().cast(), rounded.as_mut_ptr()), (n_cols, k));
        }
    }
    let mut out = vec![0.0_f32; n_cols];
    let job = GemmArgs {
        w: row.as_ptr(),
        scales: row[if storage == Storage::Int8 { k } else { 0 }..].as_ptr(),
        x: rounded.as_ptr(),
        out: out.as_mut_ptr(),
        w_row: row.len() as i64,
        scales_row: row.len() as i64,
        x_col: k as i64,
        out_row: 1,
        out_col: 1,
        n_rows: 1,
        n_cols: n_cols as i64,
        k: k as i64,
        storage: storage.number(),
        group: group as i64,
        columns: std::ptr::null(),
        n_parts: 0,
        next: std::ptr::null(),
    };
    // SAFETY: the argument struct describes the memory above.
    unsafe { function(&raw const job) };
    out
}

#[test]
fn no_sum_of_the_largest_numbers_overflows() {
    for (storage, block) in [
        // Scales and offsets of 63, and all numbers the largest.
        (Storage::Q4K, [&[0, 60, 0, 60][..], &[0xff; 12], &[0xff; 128]].concat()),
        (Storage::Q5K, [&[0, 60, 0, 60][..], &[0xff; 12], &[0xff; 160]].concat()),
        // Numbers of 31, then those of -32, with scales of -128.
        (Storage::Q6K, [&[0xff; 192][..], &[0x80; 16], &[0, 60]].concat()),
        (Storage::Q6K, [&[0; 192][..], &[0x80; 16], &[0, 60]].concat()),
        // Scales and offsets of 15, and numbers of 3.
        (Storage::Q2K, [&[0xff; 80][..], &[0, 60, 0, 60]].concat()),
        // Numbers of -4 with scales of -32, and numbers of 3 with scales of 31.
        (Storage::Q3K, [&[0; 108][..], &[0, 60]].concat()),
        (Storage::Q3K, [&[0xff; 108][..], &[0, 60]].concat()),
        // Numbers of 113 and -127 with scales of 31 and -32.
        (Storage::IQ4XS, [&[0, 60][..], &[0xff; 134]].concat()),
        (Storage::IQ4XS, [&[0, 60][..], &[0; 134]].concat()),
    ] {
        let format = (storage, GROUP);
        let exact: f32 = decoded(format, &block, 256).iter().sum();
        for (level, n_cols) in Level::supported().flat_map(|level| [1, 3, 17].map(|n_cols| (level, n_cols))) {
            for actual in of_a_row(level, format, &block, &vec![1.0; 256 * n_cols], n_cols) {
                assert!((actual - exact).abs() <= 1e-5 * exact.abs(), "{format:?} {level} {actual} {exact}");
            }
        }
    }
}

#[test]
fn numbers_that_are_infinite_or_none_are_not_lost() {
    let (mut noise, k) = (Noise(23), 768);
    for format in formats().filter(|format| block_len(*format) > 1) {
        let w = weight(format, k, &mut noise);
        for (level, n_cols) in Level::supported().flat_map(|level| [1, 3, 17].map(|n_cols| (level, n_cols))) {
            for large in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
                let mut x: Vec<f32> = (0..k * n_cols).map(|_| noise.float()).collect();
                x[noise.next() as usize % k] = large;
                let out = of_a_row(level, format, &w, &x, n_cols);
                assert!(!out[0].is_finite(), "{format:?} {level} {large}: {out:?}");
                assert!(
                    out[1..].iter().all(|other| other.is_finite()),
                    "{format:?} {level} {large}: {out:?}"
                );
            }
        }
    }
}

#[test]
fn products_of_more_elements_than_a_panel_has_are_those_of_double_precision() {
    let mut noise = Noise(19);
    for level in Level::supported() {
        for format in [Storage::F32, Storage::F16, Storage::BF16].map(|storage| (storage, GROUP)) {
            for (n_rows, n_cols) in [(1, 8), (3, 15), (16, 17), (33, 64)] {
                let sizes = Sizes { n_rows, n_cols, k: 272 };
                for rounding in [None, activation_layout(level, format.0, GROUP, n_cols)] {
                    check_product(format, level, sizes, rounding, &mut noise);
                }
            }
        }
    }
}

#[test]
fn mixtures_of_odd_sizes_are_those_of_double_precision() {
    let mut noise = Noise(11);
    for level in Level::supported() {
        for storage in [Storage::F32, Storage::F16, Storage::BF16, Storage::Q8_0, Storage::Q4_0] {
            let format = (storage, GROUP);
            let odd = [(1, 1, 1), (7, 17, 77), (5, 3, 40), (3, 2, 16), (150, 40, 70)];
            let whole = [(64, 2, 128), (64, 5, 128), (64, 32, 128), (3, 2, 32), (33, 9, 320), (70, 1, 544)];
            let many = [(64, 64, 128), (150, 71, 320)];
            for (n_rows, n_cols, n) in odd.into_iter().chain(whole).chain(many) {
                if n % block_len(format) != 0 {
                    continue;
                }
                let v = weight(format, n_rows * n, &mut noise);
                let decoded = decoded(format, &v, n_rows * n);
                let p: Vec<f32> = (0..n_rows * n_cols).map(|_| noise.float()).collect();
                let mut out = vec![0.25_f32; n_cols * (n + 1)];
                let job = WeightedSumArgs {
                    v: v.as_ptr(),
                    p: p.as_ptr(),
                    out: out.as_mut_ptr(),
                    v_row: storage.bytes(n) as i64,
                    p_col: n_rows as i64,
                    p_row: 1,
                    out_col: n as i64 + 1,
                    n_rows: n_rows as i64,
                    n_cols: n_cols as i64,
                    n: n as i64,
                    storage: storage.number(),
                    next: std::ptr::null(),
                };
                let table = table(level);
                // Factors and rows of these are sums of two bfloat16 numbers.
                let are_halved =
                    n_cols >= 8 && matches!(storage, Storage::F16 | Storage::Q8_0 | Storage::Q4_0);
                let of_bf16 = table.bf16.map(|bf16| (bf16.weighted_sum, are_halved && level == Level::Amx));
                for (function, is_halved) in
                    [Some((table.weighted_sum, false)), of_bf16].into_iter().flatten()
                {
                    out.fill(0.25);
                    // SAFETY: the argument struct describes the memory above.
                    unsafe { function(&raw const job) };
                    let factors = |x: &mut dyn Iterator<Item = f32>| {
                        let x: Vec<f32> = x.collect();
                        let rounding = is_halved.then_some(ActivationLayout::Bf16Tiles { n_parts: 2 });
                        Factors::of_column(rounding, 1, &x)
                    };
                    let columns: Vec<Factors> =
                        (0..n).map(|e| factors(&mut decoded.iter().skip(e).step_by(n).copied())).collect();
                    for (out, p) in out.chunks_exact(n + 1).zip(p.chunks(n_rows)) {
                        let p = factors(&mut p.iter().copied());
                        for (e, column) in columns.iter().enumerate() {
                            let (exact, size) = p.product(column);
                            let off = (f64::from(out[e]) - 0.25 - exact).abs();
                            assert!(off <= TOLERANCE * (0.25 + size), "{format:?} {level} {job:?} {e}");
                        }
                        assert_eq!(out[n], 0.25);
                    }
                }
            }
        }
    }
}

/// The first number of greatest size, as llama.cpp's reference finds it.
fn greatest(x: &[f32; 32]) -> f32 {
    x.iter().fold(0.0, |found: f32, x| if x.abs() > found.abs() { *x } else { found })
}

fn divided_by(d: f32) -> f32 {
    if d == 0.0 { 0.0 } else { 1.0 / d }
}

/// A block as llama.cpp's reference writes it, number by number.
fn q8_0(x: &[f32; 32]) -> Vec<u8> {
    let d = greatest(x).abs() / 127.0;
    let numbers = x.iter().map(|x| ((x * divided_by(d)).round() as i8).cast_unsigned());
    f16::from_f32(d).to_le_bytes().into_iter().chain(numbers).collect()
}

/// The same with two numbers in a byte.
fn q4_0(x: &[f32; 32]) -> Vec<u8> {
    let d = greatest(x) / -8.0;
    let number = |x: f32| ((x * divided_by(d) + 8.5) as u8).min(15);
    let pairs = x[..16].iter().zip(&x[16..]).map(|(low, high)| number(*low) | number(*high) << 4);
    f16::from_f32(d).to_le_bytes().into_iter().chain(pairs).collect()
}

#[test]
fn blocks_are_those_of_the_format() {
    let mut noise = Noise(17);
    let mut x: Vec<f32> = (0..32 * 50).map(|_| noise.float()).collect();
    x[..32].fill(0.0);
    for (i, x) in x[32..160].iter_mut().enumerate() {
        // Halves of steps, which go away from zero; and blocks so small that their scale is none.
        *x = if i < 64 { (i as f32 - 31.5) * 2.0 + 64.0 } else { 1e-30 * i as f32 };
    }
    (x[170], x[210], x[240]) = (65504.0 * 127.0, f32::NAN, f32::NEG_INFINITY);
    // So small that nothing divides by their scale.
    x[320..352].iter_mut().for_each(|x| *x *= 1e-38);
    // Two of greatest size, of which the first has the sign; and nothing but what counts as 0.
    (x[360], x[380]) = (-7.0, 7.0);
    (x[390], x[410]) = (7.0, -7.0);
    x[416..448].fill(-0.0);
    x[448..480].fill(f32::NAN);
    let formats = [(Storage::Q8_0, q8_0 as fn(&[f32; 32]) -> Vec<u8>), (Storage::Q4_0, q4_0)];
    for (level, (storage, reference)) in Level::supported().flat_map(|level| formats.map(|of| (level, of))) {
        let expected: Vec<u8> = x.as_chunks().0.iter().flat_map(reference).collect();
        let mut out = vec![0xa5_u8; storage.bytes(x.len()) + 1];
        let (n, storage) = (x.len() as i64, storage.number());
        let job = EncodeArgs { x: x.as_ptr(), out: out.as_mut_ptr(), n, storage };
        // SAFETY: the argument struct describes the memory above.
        unsafe { (table(level).encode)(&raw const job) };
        assert_eq!(out.pop(), Some(0xa5));
        assert_eq!(out, expected, "{level}");
    }
}

/// The layouts that a level writes.
fn layouts(level: Level) -> impl Iterator<Item = ActivationLayout> {
    let table = table(level);
    let rows = [32, 64, 96, 256].map(|group| ActivationLayout::Int8Rows { group });
    let tiles = [32, 64, 96].map(|group| ActivationLayout::Int8Amx { group });
    let parts = [1, 2].map(|n_parts| ActivationLayout::Bf16Tiles { n_parts });
    let own = rows.into_iter().chain(table.int8_gemv.map(|_| ActivationLayout::Int8Gemv));
    let own = own.chain(table.int8_interleaved.map(|_| ActivationLayout::Int8Interleaved));
    let own = own.chain(tiles.into_iter().filter(move |_| table.int8_amx.is_some()));
    own.chain(table.int14.map(|_| ActivationLayout::Int14))
        .chain(parts.into_iter().filter(move |_| table.bf16.is_some()))
}

/// Numbers of all sizes; 32 neighbours are alike, but for one.
fn of_all_sizes(noise: &mut Noise, n: usize) -> Vec<f32> {
    let mut x: Vec<f32> = (0..n).map(|_| noise.float()).collect();
    for x in x.chunks_mut(32) {
        let outlier = noise.next() as usize % x.len();
        x[outlier] *= [1.0, 3.0, 100.0][noise.next() as usize % 3];
        let by = [0.0, 1e-44, 1e-40, 1e-37, 1e-35, 1e-32, 1e-5, 1.0, 1.0, 1.0, 1e30, 1e36];
        let by = by[noise.next() as usize % by.len()];
        for x in &mut *x {
            *x *= by;
        }
        if let Some(large) = [f32::INFINITY, f32::NEG_INFINITY, f32::NAN].get(noise.next() as usize % 100) {
            x[outlier] = *large;
        }
    }
    x
}

#[test]
fn every_layout_has_the_bytes_of_plain_rust() {
    let mut noise = Noise(37);
    for (level, layout) in Level::supported().flat_map(|level| layouts(level).map(move |own| (level, own))) {
        let unit = match layout {
            ActivationLayout::Int8Rows { group } | ActivationLayout::Int8Amx { group } => group,
            ActivationLayout::Int8Gemv | ActivationLayout::Int8Interleaved => GROUP,
            ActivationLayout::Int14 | ActivationLayout::Bf16Tiles { .. } => 1,
        };
        let ks = [1, 2, 31, 33, 100, 32, 64, 96, 160, 192, 256, 288, 576, 768, 1024, 1056, 2304, 2592];
        for k in ks.into_iter().filter(|k| k % unit == 0) {
            for n_cols in [1, 2, 3, 4, 8, 9, 15, 16, 17, 33] {
                let x = of_all_sizes(&mut noise, n_cols * (k + 3));
                let (actual, _) = quantised(level, Some(layout), &x, (n_cols, k));
                let columns: Vec<&[f32]> = x.chunks(k + 3).map(|x| &x[..k]).collect();
                let expected = bytes(writer(level), layout, &columns);
                let first = actual.iter().zip(&expected).position(|(actual, expected)| actual != expected);
                assert_eq!(first, None, "{level} {layout:?} {n_cols} of {k}");
            }
        }
    }
}

#[test]
fn plain_rust_rounds_to_half_a_step() {
    let mut noise = Noise(41);
    let layouts = [32, 64, 256].map(|group| ActivationLayout::Int8Rows { group }).into_iter();
    let others = [ActivationLayout::Int8Gemv, ActivationLayout::Int8Interleaved, ActivationLayout::Int14];
    for layout in layouts.chain(others) {
        let x: Vec<f32> = (0..1280).map(|_| noise.float() * 10.0).collect();
        let (group, steps) = match layout {
            ActivationLayout::Int8Rows { group } => (group, 127.0),
            // A scale is a whole number of 63rds of the largest.
            ActivationLayout::Int8Gemv => (256, 127.0 * 63.0 / 64.0),
            ActivationLayout::Int14 => (32, 8191.0),
            _ => (32, 127.0),
        };
        for (x, numbers) in x.chunks(group).zip(rounded(layout, 8, &x).chunks(group)) {
            let most = x.iter().fold(0.0, |most: f64, x| most.max(x.abs().into()));
            for (x, number) in x.iter().zip(numbers) {
                let off = (f64::from(*x) - number.value()).abs();
                assert!(off <= 0.5001 * most / steps, "{layout:?} {x} {}", number.value());
            }
        }
    }
    for x in (0..1000).map(|_| noise.float()) {
        let [first, second] = parts(x).map(f64::from);
        let size = f64::from(x.abs());
        assert!((f64::from(x) - first).abs() <= size / 256.0);
        assert!((f64::from(x) - first - second).abs() <= size / 65536.0);
    }
}

/// A column of `n` copies of a group, quantised.
fn rounded_rows(level: Level, group: &[f32; GROUP], n: usize) -> Vec<u8> {
    let x = group.repeat(n);
    let mut out = vec![0xa5_u8; activation_bytes(ActivationLayout::Int8Rows { group: GROUP }, 1, x.len())];
    let (k, group) = (x.len() as i64, GROUP as i64);
    let job = QuantiseArgs { x: x.as_ptr(), out: out.as_mut_ptr(), x_col: k, n_cols: 1, k, group };
    // SAFETY: the argument struct describes the memory above.
    unsafe { (table(level).quantise_int8_rows)(&raw const job) };
    out
}

#[test]
fn a_group_is_rounded_alike_alone_and_among_others() {
    let mut noise = Noise(19);
    let random: [f32; GROUP] = std::array::from_fn(|_| noise.float());
    let mut groups = vec![random, [0.0; GROUP], [-1.5; GROUP], [1e-40; GROUP]];
    for four in 0..GROUP / 4 {
        for large in [3.0, -300.0, f32::INFINITY, f32::NAN] {
            let mut group = random;
            group[4 * four + four % 4] = large;
            groups.push(group);
        }
    }
    for (level, group) in Level::supported().flat_map(|level| groups.iter().map(move |group| (level, group)))
    {
        let (alone, five) = (rounded_rows(level, group, 1), rounded_rows(level, group, 5));
        let (alone, five) = (Int8Row::new(&alone, GROUP), Int8Row::new(&five, 5 * GROUP));
        for i in 0..5 {
            // Levels of 512 bits have bytes, and all else in tails.
            if table(level).int8_gemv.is_some() {
                assert_eq!(five.wide[32 * i..][..32], alone.wide[..32], "{level} {group:?} {i}");
                assert_eq!(five.tails[32 * i..][..32], alone.tails[..32], "{level} {group:?} {i}");
                continue;
            }
            assert_eq!(five.scale(i).to_bits(), alone.scale(0).to_bits(), "{level} {group:?} {i}");
            assert_eq!(five.sum(i).to_bits(), alone.sum(0).to_bits(), "{level} {group:?} {i}");
            assert_eq!(five.wide(i), alone.wide(0), "{level} {group:?} {i}");
        }
    }
}
