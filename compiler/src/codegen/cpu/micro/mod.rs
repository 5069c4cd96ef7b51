//! Products of weights and vectors, written by hand for each level of instructions.
//!
//! In: the address of a [`Product`], a [`Picked`], a [`Quantise`] or a [`Mix`], filled in by generated code: addresses,
//! strides, sizes.
//! Out: sums added to what is there, or rows of 8-bit numbers. Strides are not negative, sizes may be zero or less.
//! `unpack.rs` knows the block formats, `forms.rs` is what the levels have in common; `view.rs` makes slices of
//! addresses, so that everything behind it is safe code. No memory is kept, and any thread may call.
//!
//! A vector of 8-bit numbers is a row: the numbers, then what belongs to each 32 of them, as `rounding.rs` tells.

use crate::codegen::cpu::level::Level;
use crate::tensor::quant::Format;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod forms;
#[cfg(target_arch = "aarch64")]
mod neon;
mod picked;
mod portable;
mod rounding;
#[cfg(test)]
mod tests;
mod unpack;
mod view;

use unpack::Storage;

/// Elements that share a scale in vectors of 8-bit numbers.
pub(super) const GROUP: usize = 32;

/// `out[r * out_row + c * out_col] += sum of w[r][i] * x[c][i]`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Product {
    /// The first row of the weight.
    pub(super) w: *const u8,
    /// The scales of that row where they lie apart.
    pub(super) scales: *const u8,
    /// The first vector: single precision, or what [`Quantise`] made of it.
    pub(super) x: *const u8,
    pub(super) out: *mut f32,
    /// Bytes from one row to the next.
    pub(super) w_row: i64,
    /// Bytes from the scales of one row to those of the next.
    pub(super) scales_row: i64,
    /// Elements from one vector in single precision to the next.
    pub(super) x_col: i64,
    pub(super) out_row: i64,
    pub(super) out_col: i64,
    pub(super) n_rows: i64,
    pub(super) n_cols: i64,
    pub(super) k: i64,
    /// What [`storage`] gives.
    pub(super) storage: i64,
    /// Elements that share a scale where they lie apart.
    pub(super) group: i64,
    /// Where each vector and its results lie; null where they lie evenly, as the steps say.
    pub(super) columns: *const Column,
}

/// A vector of a product.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Column {
    pub(super) x: *const u8,
    /// Its first result.
    pub(super) out: *mut f32,
}

/// Products of vectors with the matrix that is picked for each.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Picked {
    /// That of the first matrix, but for what belongs to vectors.
    pub(super) product: Product,
    /// The function that multiplies.
    pub(super) function: unsafe extern "C" fn(*const Product),
    pub(super) picks: *mut Pick,
    pub(super) n_picks: i64,
    /// Room for a number for each matrix.
    pub(super) firsts: *mut i64,
    pub(super) n_matrices: i64,
    /// Bytes from one matrix to the next.
    pub(super) w_matrix: i64,
    /// Bytes from the scales of one matrix to those of the next.
    pub(super) scales_matrix: i64,
}

/// A vector and the matrix that is picked for it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Pick {
    pub(super) matrix: i64,
    pub(super) column: Column,
    /// The next one of the same matrix: room for the function.
    pub(super) next: i64,
}

/// Rounds vectors to 8 bits a number, with a scale for every `group` of them.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Quantise {
    pub(super) x: *const f32,
    pub(super) out: *mut u8,
    pub(super) x_col: i64,
    pub(super) n_cols: i64,
    pub(super) k: i64,
    pub(super) group: i64,
}

/// `out[c * out_col + e] += sum of p[c * p_col + s * p_row] * v[s][e]`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Mix {
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
}

/// The functions of a level.
#[derive(Clone, Copy)]
pub(super) struct Table {
    /// A product with vectors in single precision.
    pub(super) single: unsafe extern "C" fn(*const Product),
    /// A product with vectors of 8-bit numbers.
    pub(super) quantised: unsafe extern "C" fn(*const Product),
    pub(super) quantise: unsafe extern "C" fn(*const Quantise),
    pub(super) mix: unsafe extern "C" fn(*const Mix),
}

/// The function that sorts vectors by the matrix picked for them; any level may call it.
pub(super) const PICKED: unsafe extern "C" fn(*const Picked) = picked::picked;

/// The functions of a level that this processor has.
pub(super) fn table(level: Level) -> Table {
    match level {
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => avx512::TABLE,
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => avx2::TABLE,
        #[cfg(target_arch = "aarch64")]
        Level::Neon => neon::TABLE,
        _ => portable::TABLE,
    }
}

/// The number that stands for a format, if there are products for it.
pub(super) fn storage(format: Format) -> Option<i64> {
    let storage = Storage::of(format)?;
    Storage::ALL.iter().position(|own| *own == storage).map(|place| place as i64)
}

/// Bytes of the room that so many picks among so many matrices take.
pub(super) fn picks_bytes(n_picks: usize, n_matrices: usize) -> usize {
    n_picks * size_of::<Pick>() + n_matrices * size_of::<i64>()
}

/// Bytes of vectors of 8-bit numbers.
pub(super) fn quantised_bytes(n_cols: usize, k: usize) -> usize {
    n_cols * rounding::row_bytes(k)
}
