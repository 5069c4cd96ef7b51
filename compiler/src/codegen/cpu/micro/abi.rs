//! What generated code and micro-kernels agree on: argument structs, layouts of activations, tables of functions.
//!
//! In: nothing. Out: types that both sides know. Nothing is computed here; `sizes.rs` has the bytes of each layout.

use std::ops::RangeInclusive;

use crate::codegen::cpu::micro::layout::block_formats::Storage;

/// Elements of a group: activations that share a scale.
pub(crate) const GROUP: usize = 32;

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
pub(crate) enum ActivationLayout {
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
    pub(crate) fn parameter(self) -> i64 {
        match self {
            Self::Int8Rows { group } | Self::Int8Amx { group } => group as i64,
            Self::Int8Gemv | Self::Int8Interleaved | Self::Int14 => GROUP as i64,
            Self::Bf16Tiles { n_parts } => n_parts,
        }
    }

    /// The name in tables.
    pub(crate) fn name(self) -> &'static str {
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
pub(crate) struct GemmArgs {
    /// The first row of the weight.
    pub(crate) w: *const u8,
    /// The scales of that row where they are stored apart (`Int8`).
    pub(crate) scales: *const u8,
    /// The first column of activations: single precision, or quantised by [`QuantiseArgs`] or [`Bf16Args`].
    pub(crate) x: *const u8,
    pub(crate) out: *mut f32,
    /// Bytes from one row to the next.
    pub(crate) w_row: i64,
    /// Bytes from the scales of one row to those of the next.
    pub(crate) scales_row: i64,
    /// Elements from one column in single precision to the next.
    pub(crate) x_col: i64,
    pub(crate) out_row: i64,
    pub(crate) out_col: i64,
    pub(crate) n_rows: i64,
    pub(crate) n_cols: i64,
    pub(crate) k: i64,
    /// The number of the weight format, from [`storage`].
    pub(crate) storage: i64,
    /// Elements that share a scale where scales are stored apart.
    pub(crate) group: i64,
    /// The address of each column and of its results; null where the strides above give them.
    pub(crate) columns: *const Column,
    /// The parts of `Bf16Tiles`; zero with other layouts.
    pub(crate) n_parts: i64,
    /// Where reading goes on after the last row: what is prefetched near the end. Nothing is read there.
    pub(crate) next: *const u8,
}

/// A scattered column of a product.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Column {
    pub(crate) x: *const u8,
    /// Its first result.
    pub(crate) out: *mut f32,
}

/// Products of each activation row with the matrix of its expert.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct RoutedGemmArgs {
    /// The product with the first matrix; its columns are ignored.
    pub(crate) product: GemmArgs,
    /// The GEMM of the level.
    pub(crate) function: unsafe extern "C-unwind" fn(*const GemmArgs),
    pub(crate) rows: *mut RoutedRow,
    pub(crate) n_rows: i64,
    /// Scratch: the first row of each matrix.
    pub(crate) firsts: *mut i64,
    pub(crate) n_matrices: i64,
    /// Bytes from one matrix to the next.
    pub(crate) w_matrix: i64,
    /// Bytes from the scales of one matrix to those of the next.
    pub(crate) scales_matrix: i64,
}

/// An activation row and its expert's matrix.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct RoutedRow {
    pub(crate) matrix: i64,
    pub(crate) column: Column,
    /// Scratch: the next row of the same matrix.
    pub(crate) next: i64,
}

/// Quantises activations to integers, with a scale for each `group` of them.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct QuantiseArgs {
    pub(crate) x: *const f32,
    pub(crate) out: *mut u8,
    pub(crate) x_col: i64,
    pub(crate) n_cols: i64,
    pub(crate) k: i64,
    pub(crate) group: i64,
}

/// Rounds activations to sums of one or two bfloat16 numbers.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Bf16Args {
    pub(crate) x: *const f32,
    pub(crate) out: *mut u8,
    pub(crate) x_col: i64,
    pub(crate) n_cols: i64,
    pub(crate) k: i64,
    pub(crate) n_parts: i64,
}

/// `out[c * out_col + e] += sum of p[c * p_col + s * p_row] * v[s][e]`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct WeightedSumArgs {
    pub(crate) v: *const u8,
    pub(crate) p: *const f32,
    pub(crate) out: *mut f32,
    /// Bytes from one row to the next.
    pub(crate) v_row: i64,
    pub(crate) p_col: i64,
    pub(crate) p_row: i64,
    pub(crate) out_col: i64,
    pub(crate) n_rows: i64,
    pub(crate) n_cols: i64,
    /// Elements of a row.
    pub(crate) n: i64,
    pub(crate) storage: i64,
    /// As in [`GemmArgs`].
    pub(crate) next: *const u8,
}

/// `out[i / 32]` is the block of `x[i]`, of format `Q8_0`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct EncodeArgs {
    pub(crate) x: *const f32,
    pub(crate) out: *mut u8,
    pub(crate) n: i64,
}

/// The kernels of a level.
#[derive(Clone, Copy)]
pub(crate) struct Table {
    /// GEMM with activations in single precision.
    pub(crate) gemm_f32: unsafe extern "C-unwind" fn(*const GemmArgs),
    /// GEMM with `Int8Rows`.
    pub(crate) gemm_int8_rows: unsafe extern "C-unwind" fn(*const GemmArgs),
    pub(crate) quantise_int8_rows: unsafe extern "C-unwind" fn(*const QuantiseArgs),
    pub(crate) weighted_sum: unsafe extern "C-unwind" fn(*const WeightedSumArgs),
    pub(crate) encode: unsafe extern "C-unwind" fn(*const EncodeArgs),
    /// Activations of `Int8Rows` that share a scale where the weight is a K-quant.
    pub(crate) super_block_group: usize,
    /// The kernels for `Int8Gemv`, if the level has them.
    pub(crate) int8_gemv: Option<QuantisedFunctions>,
    /// The kernels for `Int8Interleaved`, if the level has them.
    pub(crate) int8_interleaved: Option<QuantisedFunctions>,
    /// The kernels for `Int8Amx`, if the level has them.
    pub(crate) int8_amx: Option<QuantisedFunctions>,
    /// The kernels for `Int14` and rows of 16-bit numbers, if the level has them.
    pub(crate) int14: Option<QuantisedFunctions>,
    /// The kernels for `Bf16Tiles`, if the level has them.
    pub(crate) bf16: Option<Bf16Functions>,
}

impl Table {
    /// The kernels that quantise to a layout of integers, and multiply.
    pub(crate) fn quantised_functions(&self, activation_layout: ActivationLayout) -> QuantisedFunctions {
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
pub(crate) struct QuantisedFunctions {
    pub(crate) quantise: unsafe extern "C-unwind" fn(*const QuantiseArgs),
    pub(crate) product: unsafe extern "C-unwind" fn(*const GemmArgs),
}

/// The kernels for `Bf16Tiles`.
#[derive(Clone, Copy)]
pub(crate) struct Bf16Functions {
    pub(crate) to_bf16_tiles: unsafe extern "C-unwind" fn(*const Bf16Args),
    /// GEMM with `Bf16Tiles`.
    pub(crate) product: unsafe extern "C-unwind" fn(*const GemmArgs),
    /// A weighted sum whose factors are rounded to sums of two bfloat16 numbers, where that is faster.
    pub(crate) weighted_sum: unsafe extern "C-unwind" fn(*const WeightedSumArgs),
    /// Columns from which such a product is faster.
    pub(super) min_cols: usize,
    /// The parts of activations for a weight format, where such a product is faster.
    pub(super) n_parts: fn(Storage) -> Option<i64>,
}
