//! Micro-kernels: hand-written GEMV, GEMM, weighted sums and activation quantisation for each instruction set.
//!
//! In: the address of an argument struct ([`GemmArgs`], [`RoutedGemmArgs`], [`QuantiseArgs`], [`Bf16Args`],
//! [`WeightedSumArgs`] or [`EncodeArgs`]) that generated code fills in: addresses, strides, sizes. Strides are never
//! negative; sizes may be zero or negative, which means no work.
//! Out: `out += W * x`, quantised activations, or encoded blocks. No state is kept; any thread may call.
//!
//! What multiplies a weight depends on its format, the level and the number of activation columns:
//!
//! ```text
//! weights    level            columns  activations      entry                  file                    unpacked by
//! blocks     avx512*, amx        1..2  Int8Gemv         gemv_int8              gemv                    unpack_blocks
//!            avx512*            3..16  Int8Interleaved  gemm_int8_interleaved  gemm_small              unpack_rows
//!            avx512*             17..  Int8Rows         gemm_int8_rows         gemm_packed, tile_32x6  pack_int8
//!            amx                 3..4  Int8Interleaved  gemm_int8_interleaved  gemm_small              unpack_rows
//!            amx                5..15  Int8Amx          gemm_int8_amx          gemm_amx_int8           unpack_blocks
//!            amx (some)         5..15  Int8Interleaved  gemm_int8_interleaved  gemm_small              unpack_rows
//!            amx                 16..  Bf16Tiles, 1     gemm_bf16_amx          gemm_amx_bf16           pack_bf16
//!            avx2                 few  Int8Rows         gemm_int8_rows         gemm_small_int8/16    unpack_int8/16
//!            avx2                more  Int8Rows         gemm_int8_rows         gemm_packed, tile_16x4  pack_panels
//!            neon, portable       all  Int8Rows         gemm_int8_rows         ../generic              block_formats
//! Q2_K       avx512*, amx        3..  Int8Rows         gemm_int8_rows         gemm_packed             pack_int8
//!            other levels          all  single           gemm_f32               ../generic              block_formats
//! BF16       avx512-bf16          5..  Bf16Tiles, 1     gemm_bf16              gemm_bf16               pack_bf16
//!            amx                 16..  Bf16Tiles, 1     gemm_bf16_amx          gemm_amx_bf16           pack_bf16
//! F16        amx                 16..  Bf16Tiles, 2     gemm_bf16_amx          gemm_amx_bf16           pack_bf16
//! F16, BF16  other x86           16..  Int14            gemm_int14             gemm_int14              gemm_int14
//! plain      avx512*, amx    8../64..  single           gemm_f32_packed        gemm_f32                gemm_f32
//!   short    avx512*, amx         ..7  single           gemm_f32_packed        gemm_short              -
//!            all                 rest  single           gemm_f32               ../generic              -
//! ```
//!
//! A program for up to sixteen columns that gets one or two multiplies them as a program for two does.
//! `avx512*` is avx512 and avx512-bf16; files without `../` are in the folder of the level. [`activation_layout`]
//! chooses the row of the table, [`Table`] has the entries of a level. `block_formats.rs` defines the block formats,
//! `view.rs` turns addresses into slices, so that the kernels are safe code; `prefetch.rs` prefetches, `routed.rs`
//! groups activations by expert.

use std::ops::RangeInclusive;

use crate::codegen::cpu::level::Level;
use crate::tensor::quant::Format;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod block_formats;
mod encode_q8_0;
mod generic;
#[cfg(target_arch = "x86_64")]
mod int14_rows;
mod int8_rows;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;
#[cfg(target_arch = "x86_64")]
mod prefetch;
mod routed;
#[cfg(target_arch = "x86_64")]
mod stack_buffer;
#[cfg(test)]
mod tests;
mod view;

use block_formats::Storage;

/// Elements of a group: activations that share a scale.
pub(super) const GROUP: usize = 32;

/// Elements of a super-block, the block of a K-quant.
const SUPER_BLOCK: usize = 256;

/// Columns from which packing weights pays for `Bf16Tiles` with AMX and for `Int14`.
const MIN_COLS_PACKED: usize = 16;

/// Scattered columns (those of an expert) from which packing weights pays.
const MIN_SCATTERED_COLS_PACKED: usize = 3;

/// Columns for which activations are interleaved: fewer take one GEMV each, more are multiplied with packed weights.
const INTERLEAVED_COLS: RangeInclusive<usize> = 3..=16;

/// Columns from which AMX with integers pays, and `vdpbf16ps`.
const MIN_COLS_TILED: usize = 5;

/// How activations are quantised and stored before a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ActivationLayout {
    /// 8-bit integers with a scale for each `group`, one row per column (`int8_rows.rs`).
    Int8Rows { group: usize },
    /// 8-bit integers with a scale for each sixteen, for GEMV (`avx512/quantise_gemv.rs`).
    Int8Gemv,
    /// 8-bit integers with a scale for each sixteen, eight columns interleaved (`avx512/quantise_interleaved.rs`).
    Int8Interleaved,
    /// 8-bit integers with a scale for each `group`, in AMX tiles of eight columns (`avx512/quantise_amx.rs`).
    Int8Amx { group: usize },
    /// 14-bit integers with a scale for each [`GROUP`] (`int14_rows.rs`).
    Int14,
    /// Sums of `n_parts` bfloat16 numbers, in tiles of sixteen columns (`avx512/bf16_tiles.rs`).
    Bf16Tiles { n_parts: i64 },
}

impl ActivationLayout {
    /// The parameter of the function that quantises: the group size, or the number of parts.
    pub(super) fn parameter(self) -> i64 {
        match self {
            Self::Int8Rows { group } | Self::Int8Amx { group } => group as i64,
            Self::Int8Gemv | Self::Int8Interleaved | Self::Int14 => GROUP as i64,
            Self::Bf16Tiles { n_parts } => n_parts,
        }
    }

    /// The name in tables.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Int8Rows { .. } => "int8",
            Self::Int8Gemv => "int8x16",
            Self::Int8Interleaved => "int8-interleaved",
            Self::Int8Amx { .. } => "int8-amx",
            Self::Int14 => "int14",
            Self::Bf16Tiles { n_parts: 1 } => "bf16",
            Self::Bf16Tiles { .. } => "2xbf16",
        }
    }
}

/// `out[r * out_row + c * out_col] += sum of w[r][i] * x[c][i]`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct GemmArgs {
    /// The first row of the weight.
    pub(super) w: *const u8,
    /// The scales of that row where they are stored apart (`Int8`).
    pub(super) scales: *const u8,
    /// The first column of activations: single precision, or quantised by [`QuantiseArgs`] or [`Bf16Args`].
    pub(super) x: *const u8,
    pub(super) out: *mut f32,
    /// Bytes from one row to the next.
    pub(super) w_row: i64,
    /// Bytes from the scales of one row to those of the next.
    pub(super) scales_row: i64,
    /// Elements from one column in single precision to the next.
    pub(super) x_col: i64,
    pub(super) out_row: i64,
    pub(super) out_col: i64,
    pub(super) n_rows: i64,
    pub(super) n_cols: i64,
    pub(super) k: i64,
    /// The number of the weight format, from [`storage`].
    pub(super) storage: i64,
    /// Elements that share a scale where scales are stored apart.
    pub(super) group: i64,
    /// The address of each column and of its results; null where the strides above give them.
    pub(super) columns: *const Column,
    /// The parts of `Bf16Tiles`; zero with other layouts.
    pub(super) n_parts: i64,
    /// Where reading goes on after the last row: what is prefetched near the end. Nothing is read there.
    pub(super) next: *const u8,
}

/// A scattered column of a product.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Column {
    pub(super) x: *const u8,
    /// Its first result.
    pub(super) out: *mut f32,
}

/// Products of each activation row with the matrix of its expert.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct RoutedGemmArgs {
    /// The product with the first matrix; its columns are ignored.
    pub(super) product: GemmArgs,
    /// The GEMM of the level.
    pub(super) function: unsafe extern "C" fn(*const GemmArgs),
    pub(super) rows: *mut RoutedRow,
    pub(super) n_rows: i64,
    /// Scratch: the first row of each matrix.
    pub(super) firsts: *mut i64,
    pub(super) n_matrices: i64,
    /// Bytes from one matrix to the next.
    pub(super) w_matrix: i64,
    /// Bytes from the scales of one matrix to those of the next.
    pub(super) scales_matrix: i64,
}

/// An activation row and its expert's matrix.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct RoutedRow {
    pub(super) matrix: i64,
    pub(super) column: Column,
    /// Scratch: the next row of the same matrix.
    pub(super) next: i64,
}

/// Quantises activations to integers, with a scale for each `group` of them.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct QuantiseArgs {
    pub(super) x: *const f32,
    pub(super) out: *mut u8,
    pub(super) x_col: i64,
    pub(super) n_cols: i64,
    pub(super) k: i64,
    pub(super) group: i64,
}

/// Rounds activations to sums of one or two bfloat16 numbers.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Bf16Args {
    pub(super) x: *const f32,
    pub(super) out: *mut u8,
    pub(super) x_col: i64,
    pub(super) n_cols: i64,
    pub(super) k: i64,
    pub(super) n_parts: i64,
}

/// `out[c * out_col + e] += sum of p[c * p_col + s * p_row] * v[s][e]`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct WeightedSumArgs {
    pub(super) v: *const u8,
    pub(super) p: *const f32,
    pub(super) out: *mut f32,
    /// Bytes from one row to the next.
    pub(super) v_row: i64,
    pub(super) p_col: i64,
    pub(super) p_row: i64,
    pub(super) out_col: i64,
    pub(super) n_rows: i64,
    pub(super) n_cols: i64,
    /// Elements of a row.
    pub(super) n: i64,
    pub(super) storage: i64,
    /// As in [`GemmArgs`].
    pub(super) next: *const u8,
}

/// `out[i / 32]` is the block of `x[i]`, of format `Q8_0`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct EncodeArgs {
    pub(super) x: *const f32,
    pub(super) out: *mut u8,
    pub(super) n: i64,
}

/// The kernels of a level.
#[derive(Clone, Copy)]
pub(super) struct Table {
    /// GEMM with activations in single precision.
    pub(super) gemm_f32: unsafe extern "C" fn(*const GemmArgs),
    /// GEMM with `Int8Rows`.
    pub(super) gemm_int8_rows: unsafe extern "C" fn(*const GemmArgs),
    pub(super) quantise_int8_rows: unsafe extern "C" fn(*const QuantiseArgs),
    pub(super) weighted_sum: unsafe extern "C" fn(*const WeightedSumArgs),
    pub(super) encode: unsafe extern "C" fn(*const EncodeArgs),
    /// Activations of `Int8Rows` that share a scale where the weight is a K-quant.
    pub(super) super_block_group: usize,
    /// The kernels for `Int8Gemv`, if the level has them.
    pub(super) int8_gemv: Option<QuantisedFunctions>,
    /// The kernels for `Int8Interleaved`, if the level has them.
    pub(super) int8_interleaved: Option<QuantisedFunctions>,
    /// The kernels for `Int8Amx`, if the level has them.
    pub(super) int8_amx: Option<QuantisedFunctions>,
    /// The kernels for `Int14` and rows of 16-bit numbers, if the level has them.
    pub(super) int14: Option<QuantisedFunctions>,
    /// The kernels for `Bf16Tiles`, if the level has them.
    pub(super) bf16: Option<Bf16Functions>,
}

impl Table {
    /// The kernels that quantise to a layout of integers, and multiply.
    pub(super) fn quantised_functions(&self, activation_layout: ActivationLayout) -> QuantisedFunctions {
        let own = match activation_layout {
            ActivationLayout::Int8Gemv => self.int8_gemv,
            ActivationLayout::Int8Interleaved => self.int8_interleaved,
            ActivationLayout::Int8Amx { .. } => self.int8_amx,
            ActivationLayout::Int14 => self.int14,
            ActivationLayout::Int8Rows { .. } | ActivationLayout::Bf16Tiles { .. } => None,
        };
        own.unwrap_or(QuantisedFunctions { quantise: self.quantise_int8_rows, product: self.gemm_int8_rows })
    }
}

/// The kernels for one layout of integers.
#[derive(Clone, Copy)]
pub(super) struct QuantisedFunctions {
    pub(super) quantise: unsafe extern "C" fn(*const QuantiseArgs),
    pub(super) product: unsafe extern "C" fn(*const GemmArgs),
}

/// The kernels for `Bf16Tiles`.
#[derive(Clone, Copy)]
pub(super) struct Bf16Functions {
    pub(super) to_bf16_tiles: unsafe extern "C" fn(*const Bf16Args),
    /// GEMM with `Bf16Tiles`.
    pub(super) product: unsafe extern "C" fn(*const GemmArgs),
    /// A weighted sum whose factors are rounded to sums of two bfloat16 numbers, where that is faster.
    pub(super) weighted_sum: unsafe extern "C" fn(*const WeightedSumArgs),
    /// Columns from which such a product is faster.
    min_cols: usize,
    /// The parts of activations for a weight format, where such a product is faster.
    n_parts: fn(Storage) -> Option<i64>,
}

/// Whether the processor has AMX and this process may use it.
pub(super) fn has_amx() -> bool {
    #[cfg(target_arch = "x86_64")]
    return avx512::has_amx();
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// GEMM of routed rows, for every level.
pub(super) const ROUTED_GEMM: unsafe extern "C" fn(*const RoutedGemmArgs) = routed::routed_gemm;

/// The functions of a level that this processor has.
pub(super) fn table(level: Level) -> Table {
    match level {
        #[cfg(target_arch = "x86_64")]
        Level::Amx => avx512::TABLE_AMX,
        #[cfg(target_arch = "x86_64")]
        Level::Avx512Bf16 => avx512::TABLE_BF16,
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => avx512::TABLE,
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => avx2::TABLE,
        #[cfg(target_arch = "aarch64")]
        Level::Neon => neon::TABLE,
        _ => portable::TABLE,
    }
}

/// The number of a weight format, if there are products for it.
pub(super) fn storage(format: Format) -> Option<i64> {
    let storage = Storage::of(format)?;
    Storage::ALL.iter().position(|own| *own == storage).map(|place| place as i64)
}

/// Bytes of scratch memory for a number of routed rows and matrices.
pub(super) fn routing_bytes(n_rows: usize, n_matrices: usize) -> usize {
    n_rows * size_of::<RoutedRow>() + n_matrices * size_of::<i64>()
}

/// The layout of activations for a product of a weight format with up to `n_cols` columns.
pub(super) fn activation_layout(level: Level, format: Format, n_cols: usize) -> Option<ActivationLayout> {
    let storage = Storage::of(format)?;
    let bf16 = table(level).bf16.filter(|bf16| n_cols >= bf16.min_cols);
    let n_parts = bf16.and_then(|bf16| (bf16.n_parts)(storage));
    let is_amx_int8 = n_cols >= MIN_COLS_TILED && table(level).int8_amx.is_some() && has_amx_int8(storage);
    let int8 = match n_cols {
        n if n < *INTERLEAVED_COLS.start() && table(level).int8_gemv.is_some() => {
            Some(ActivationLayout::Int8Gemv)
        }
        _ if is_amx_int8 => Some(ActivationLayout::Int8Amx { group: group_of(format) }),
        n if INTERLEAVED_COLS.contains(&n) && table(level).int8_interleaved.is_some() => {
            let is_interleaved = !storage.has_two_offsets();
            if is_interleaved {
                Some(ActivationLayout::Int8Interleaved)
            } else {
                int8_rows_layout(level, format)
            }
        }
        _ => int8_rows_layout(level, format),
    };
    let quantised_functions = match storage {
        Storage::F32 => None,
        Storage::F16 | Storage::BF16 => int14_layout(level, n_cols),
        _ => int8,
    };
    n_parts.map(|n_parts| ActivationLayout::Bf16Tiles { n_parts }).or(quantised_functions)
}

/// The same for scattered columns, `n_per_matrix` for each matrix: they cannot be interleaved.
pub(super) fn activation_layout_scattered(
    level: Level,
    format: Format,
    n_per_matrix: usize,
) -> Option<ActivationLayout> {
    match Storage::of(format)? {
        Storage::F32 => None,
        Storage::F16 | Storage::BF16 => int14_layout(level, n_per_matrix),
        _ if n_per_matrix < MIN_SCATTERED_COLS_PACKED => activation_layout(level, format, 1),
        _ => int8_rows_layout(level, format),
    }
}

/// `Int14`, where the level has it and the number of columns makes it pay.
fn int14_layout(level: Level, n_cols: usize) -> Option<ActivationLayout> {
    (n_cols >= MIN_COLS_PACKED && table(level).int14.is_some()).then_some(ActivationLayout::Int14)
}

/// `Int8Rows` with the group that suits a weight format, if the level has products for it: most have one offset for 32
/// elements.
fn int8_rows_layout(level: Level, format: Format) -> Option<ActivationLayout> {
    let is_super_block = format.block_len() == SUPER_BLOCK;
    let group = if is_super_block { table(level).super_block_group } else { group_of(format) };
    let has_two = table(level).int8_gemv.is_some();
    let has_products = Storage::of(format).is_some_and(|storage| has_two || !storage.has_two_offsets());
    has_products.then_some(ActivationLayout::Int8Rows { group })
}

/// Activations that share a scale with a weight format.
fn group_of(format: Format) -> usize {
    if let Format::Int8 { group } = format { group as usize } else { GROUP }
}

/// Whether `Int8Amx` has kernels for a format: all 32 elements of a group must share one scale.
const fn has_amx_int8(storage: Storage) -> bool {
    !storage.has_two_scales() && !matches!(storage, Storage::IQ4NL | Storage::IQ4XS | Storage::MXFP4)
}

/// Quantises `n_cols` columns of `k` elements, stored one after another.
///
/// # Safety
/// The first address must be of the columns, the second of memory for [`activation_bytes`].
pub(super) unsafe fn quantise_activations(
    level: Level,
    activation_layout: ActivationLayout,
    (from, to): (*const u8, *mut u8),
    (n_cols, k): (usize, usize),
) {
    let (x, out, x_col, n_cols, k) = (from.cast(), to, k as i64, n_cols as i64, k as i64);
    match activation_layout {
        ActivationLayout::Int8Rows { .. }
        | ActivationLayout::Int8Gemv
        | ActivationLayout::Int8Interleaved
        | ActivationLayout::Int8Amx { .. }
        | ActivationLayout::Int14 => {
            let job = QuantiseArgs { x, out, x_col, n_cols, k, group: activation_layout.parameter() };
            // SAFETY: the caller promises what the description says.
            unsafe { (table(level).quantised_functions(activation_layout).quantise)(&raw const job) };
        }
        ActivationLayout::Bf16Tiles { n_parts } => {
            let job = Bf16Args { x, out, x_col, n_cols, k, n_parts };
            let bf16 = table(level).bf16.expect("a level without them has no such layout");
            // SAFETY: as above.
            unsafe { (bf16.to_bf16_tiles)(&raw const job) };
        }
    }
}

/// Chooses how to prefetch on this processor.
pub(super) fn prepare() {
    #[cfg(target_arch = "x86_64")]
    prefetch::prepare();
}

/// Prefetches the start of a stream.
pub(super) fn prefetch_first(start: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: all of these processors have the instruction.
    unsafe {
        prefetch::prefetch_first(start);
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = start;
}

/// Reads memory as kernels do, and returns something that depends on it.
pub(super) fn read(piece: &[u8]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: all of these processors have the instruction.
    let sum = unsafe { prefetch::read(piece) };
    #[cfg(not(target_arch = "x86_64"))]
    let sum = piece.iter().step_by(64).fold(0, |sum, byte| sum ^ u64::from(*byte));
    sum
}

/// Evicts memory from all caches; `false` where there is no instruction for it.
pub(super) fn evict(piece: &[u8]) -> bool {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: all of these processors have the instruction.
    unsafe {
        prefetch::evict(piece);
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = piece;
    cfg!(target_arch = "x86_64")
}

/// Bytes of quantised activations.
pub(super) fn activation_bytes(activation_layout: ActivationLayout, n_cols: usize, k: usize) -> usize {
    match activation_layout {
        ActivationLayout::Int8Rows { .. } => int8_rows_bytes(n_cols, k),
        ActivationLayout::Int8Gemv => int8_gemv_bytes(n_cols, k),
        // One or two columns are stored as for GEMV.
        ActivationLayout::Int8Interleaved => {
            int8_interleaved_bytes(n_cols, k).max(int8_gemv_bytes(n_cols.min(2), k))
        }
        ActivationLayout::Int8Amx { .. } => int8_amx_bytes(n_cols, k),
        ActivationLayout::Int14 => int14_bytes(n_cols, k),
        ActivationLayout::Bf16Tiles { n_parts } => bf16_tiles_bytes(n_cols, k, n_parts as usize),
    }
}

/// Bytes of `Bf16Tiles`: tiles of sixteen columns by 32 elements.
fn bf16_tiles_bytes(n_cols: usize, k: usize, n_parts: usize) -> usize {
    n_parts * n_cols.div_ceil(16) * k.div_ceil(32) * 1024
}

/// Bytes of the pieces of an `Int8Gemv` row, as `avx512/quantise_gemv.rs` lists them.
fn int8_gemv_pieces(k: usize) -> [usize; 6] {
    let ends = |n: usize| n.next_multiple_of(64);
    let all = k.next_multiple_of(128);
    [all, all, ends(k / 8), ends(k / 8), ends(k / 8), (k / 256).div_ceil(4) * SUPER_BLOCK_ACTIVATION_BYTES]
}

/// Bytes of the last piece of such a row for four super-blocks.
const SUPER_BLOCK_ACTIVATION_BYTES: usize = 2368;

/// Bytes of `Int8Gemv`.
fn int8_gemv_bytes(n_cols: usize, k: usize) -> usize {
    n_cols * int8_gemv_pieces(k).into_iter().sum::<usize>()
}

/// Bytes of `Int8Interleaved`: for each 32 elements of eight columns four lines of numbers and a line of scales.
fn int8_interleaved_bytes(n_cols: usize, k: usize) -> usize {
    n_cols.div_ceil(8) * (k / GROUP) * (4 + 1) * 64
}

/// Bytes of `Int8Amx`: for each 32 elements of eight columns, padded to four times as many, four lines of numbers, four
/// of their excess, a line of scales and a line of sums.
fn int8_amx_bytes(n_cols: usize, k: usize) -> usize {
    n_cols.div_ceil(8) * (k / GROUP).next_multiple_of(4) * (8 + 1 + 1) * 64
}

/// Bytes of `Int14`: a line for each 32 elements, then a scale for each.
fn int14_bytes(n_cols: usize, k: usize) -> usize {
    n_cols * (k.div_ceil(GROUP) * (2 * GROUP + 4)).next_multiple_of(64)
}

/// Bytes of `Int8Rows`.
fn int8_rows_bytes(n_cols: usize, k: usize) -> usize {
    n_cols * int8_rows::row_bytes(k)
}
