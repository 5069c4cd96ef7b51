//! What callers and micro-kernels agree on: argument structs, layouts of activations, tables of functions.
//!
//! In: nothing. Out: types that both sides know. Nothing is computed here; `sizes.rs` has the bytes of each layout.

use std::ops::RangeInclusive;

use crate::layout::block_formats::Storage;

/// Elements of a group: activations that share a scale.
pub const GROUP: usize = 32;

/// Columns from which packing weights pays for `Bf16Tiles` with AMX and for `Int14`.
pub(super) const MIN_COLS_PACKED: usize = 16;

/// Scattered columns (those of an expert) from which packing weights pays.
pub(super) const MIN_SCATTERED_COLS_PACKED: usize = 3;

/// Columns for which activations are interleaved: fewer take one GEMV each, more are multiplied with packed weights.
pub(super) const INTERLEAVED_COLS: RangeInclusive<usize> = 3..=16;

/// Columns from which AMX with integers pays, and `vdpbf16ps`.
pub(super) const MIN_COLS_TILED: usize = 5;

/// How activations are quantised and stored before a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActivationLayout {
    /// 8-bit integers with a scale for each `group`, one row per column (`int8_rows.rs`).
    Int8Rows {
        /// Activations that share a scale.
        group: usize,
    },
    /// 8-bit integers with a scale for each sixteen, for GEMV (`avx512/quantise_gemv.rs`).
    Int8Gemv,
    /// 8-bit integers with a scale for each sixteen, eight columns interleaved (`avx512/quantise_interleaved.rs`).
    Int8Interleaved,
    /// 8-bit integers with a scale for each `group`, in AMX tiles of eight columns (`avx512/quantise_amx.rs`).
    Int8Amx {
        /// Activations that share a scale.
        group: usize,
    },
    /// 14-bit integers with a scale for each [`GROUP`] (`int14_rows.rs`).
    Int14,
    /// Sums of `n_parts` bfloat16 numbers, in tiles of sixteen columns (`avx512/bf16_tiles.rs`).
    Bf16Tiles {
        /// One or two.
        n_parts: i64,
    },
}

impl ActivationLayout {
    /// The parameter of the function that quantises: the group size, or the number of parts.
    pub fn parameter(self) -> i64 {
        match self {
            Self::Int8Rows { group } | Self::Int8Amx { group } => group as i64,
            Self::Int8Gemv | Self::Int8Interleaved | Self::Int14 => GROUP as i64,
            Self::Bf16Tiles { n_parts } => n_parts,
        }
    }

    /// The name in tables.
    pub fn name(self) -> &'static str {
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
pub struct GemmArgs {
    /// The first row of the weight.
    pub w: *const u8,
    /// The scales of that row where they are stored apart (`Int8`).
    pub scales: *const u8,
    /// The first column of activations: single precision, or quantised by [`QuantiseArgs`] or [`Bf16Args`].
    pub x: *const u8,
    /// The result of the first row and the first column, which the product is added to.
    pub out: *mut f32,
    /// Bytes from one row to the next.
    pub w_row: i64,
    /// Bytes from the scales of one row to those of the next.
    pub scales_row: i64,
    /// Elements from one column in single precision to the next.
    pub x_col: i64,
    /// Elements from the result of one row to that of the next.
    pub out_row: i64,
    /// Elements from the result of one column to that of the next.
    pub out_col: i64,
    /// Rows of the weight.
    pub n_rows: i64,
    /// Columns of activations.
    pub n_cols: i64,
    /// Elements of a row, and of a column.
    pub k: i64,
    /// The number of the weight format, from [`Storage::number`].
    pub storage: i64,
    /// Elements that share a scale where scales are stored apart.
    pub group: i64,
    /// The address of each column and of its results; null where the strides above give them.
    pub columns: *const Column,
    /// The parts of `Bf16Tiles`; zero with other layouts.
    pub n_parts: i64,
    /// Where reading goes on after the last row: what is prefetched near the end. Nothing is read there.
    pub next: *const u8,
}

/// A scattered column of a product.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Column {
    /// Its first element.
    pub x: *const u8,
    /// Its first result.
    pub out: *mut f32,
}

/// Products of each activation row with the matrix of its expert.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RoutedGemmArgs {
    /// The product with the first matrix; its columns are ignored.
    pub product: GemmArgs,
    /// The GEMM of the level.
    pub function: unsafe extern "C-unwind" fn(*const GemmArgs),
    /// The activation rows, each with the number of its matrix.
    pub rows: *mut RoutedRow,
    /// How many there are.
    pub n_rows: i64,
    /// Scratch: the first row of each matrix.
    pub firsts: *mut i64,
    /// The number of matrices.
    pub n_matrices: i64,
    /// Bytes from one matrix to the next.
    pub w_matrix: i64,
    /// Bytes from the scales of one matrix to those of the next.
    pub scales_matrix: i64,
}

/// An activation row and its expert's matrix.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RoutedRow {
    /// The number of the matrix.
    pub matrix: i64,
    /// Where the activations lie, and where the results go.
    pub column: Column,
    /// Scratch: the next row of the same matrix.
    pub next: i64,
}

/// Quantises activations to integers, with a scale for each `group` of them.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct QuantiseArgs {
    /// The first column.
    pub x: *const f32,
    /// Memory for the bytes of the layout ([`activation_bytes`](crate::activation_bytes)).
    pub out: *mut u8,
    /// Elements from one column to the next.
    pub x_col: i64,
    /// Columns.
    pub n_cols: i64,
    /// Elements of a column.
    pub k: i64,
    /// Elements that share a scale.
    pub group: i64,
}

/// Rounds activations to sums of one or two bfloat16 numbers.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Bf16Args {
    /// The first column.
    pub x: *const f32,
    /// Memory for the bytes of the layout.
    pub out: *mut u8,
    /// Elements from one column to the next.
    pub x_col: i64,
    /// Columns.
    pub n_cols: i64,
    /// Elements of a column.
    pub k: i64,
    /// Numbers that are added up to one: one or two.
    pub n_parts: i64,
}

/// `out[c * out_col + e] += sum of p[c * p_col + s * p_row] * v[s][e]`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct WeightedSumArgs {
    /// The first row.
    pub v: *const u8,
    /// The factor of the first row for the first column.
    pub p: *const f32,
    /// The first sum, which the rows are added to.
    pub out: *mut f32,
    /// Bytes from one row to the next.
    pub v_row: i64,
    /// Elements from the factors of one column to those of the next.
    pub p_col: i64,
    /// Elements from the factor of one row to that of the next.
    pub p_row: i64,
    /// Elements from the sums of one column to those of the next.
    pub out_col: i64,
    /// Rows.
    pub n_rows: i64,
    /// Columns of factors.
    pub n_cols: i64,
    /// Elements of a row.
    pub n: i64,
    /// The number of the format of the rows, from [`Storage::number`].
    pub storage: i64,
    /// As in [`GemmArgs`].
    pub next: *const u8,
}

/// `out[i / 32]` is the block of `x[i]`, of a format of KV caches: `Q8_0` or `Q4_0`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct EncodeArgs {
    /// Numbers in single precision.
    pub x: *const f32,
    /// Memory for the blocks.
    pub out: *mut u8,
    /// How many numbers: a multiple of 32.
    pub n: i64,
    /// The number of the format, from [`Storage::number`].
    pub storage: i64,
}

/// The kernels of a level. Only a processor that has the level may call them, with the address of an argument struct
/// whose memory is there and overlaps no result.
#[derive(Clone, Copy)]
pub struct Table {
    /// GEMM with activations in single precision.
    pub gemm_f32: unsafe extern "C-unwind" fn(*const GemmArgs),
    /// GEMM with `Int8Rows`.
    pub gemm_int8_rows: unsafe extern "C-unwind" fn(*const GemmArgs),
    /// Quantises to `Int8Rows`.
    pub quantise_int8_rows: unsafe extern "C-unwind" fn(*const QuantiseArgs),
    /// A weighted sum of rows.
    pub weighted_sum: unsafe extern "C-unwind" fn(*const WeightedSumArgs),
    /// Encodes rows as blocks.
    pub encode: unsafe extern "C-unwind" fn(*const EncodeArgs),
    /// Activations of `Int8Rows` that share a scale where the weight is a K-quant.
    pub super_block_group: usize,
    /// The kernels for `Int8Gemv`, if the level has them.
    pub int8_gemv: Option<QuantisedFunctions>,
    /// The kernels for `Int8Interleaved`, if the level has them.
    pub int8_interleaved: Option<QuantisedFunctions>,
    /// The kernels for `Int8Amx`, if the level has them.
    pub int8_amx: Option<QuantisedFunctions>,
    /// The kernels for `Int14` and rows of 16-bit numbers, if the level has them.
    pub int14: Option<QuantisedFunctions>,
    /// The kernels for `Bf16Tiles`, if the level has them.
    pub bf16: Option<Bf16Functions>,
}

impl Table {
    /// The kernels that quantise to a layout of integers, and multiply.
    pub fn quantised_functions(&self, activation_layout: ActivationLayout) -> QuantisedFunctions {
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
pub struct QuantisedFunctions {
    /// Quantises to the layout.
    pub quantise: unsafe extern "C-unwind" fn(*const QuantiseArgs),
    /// GEMM with the layout.
    pub product: unsafe extern "C-unwind" fn(*const GemmArgs),
}

/// The kernels for `Bf16Tiles`.
#[derive(Clone, Copy)]
pub struct Bf16Functions {
    /// Rounds to the layout.
    pub to_bf16_tiles: unsafe extern "C-unwind" fn(*const Bf16Args),
    /// GEMM with `Bf16Tiles`.
    pub product: unsafe extern "C-unwind" fn(*const GemmArgs),
    /// A weighted sum whose factors are rounded to sums of two bfloat16 numbers, where that is faster.
    pub weighted_sum: unsafe extern "C-unwind" fn(*const WeightedSumArgs),
    /// Columns from which such a product is faster.
    pub(crate) min_cols: usize,
    /// The parts of activations for a weight format, where such a product is faster.
    pub(crate) n_parts: fn(Storage) -> Option<i64>,
}
