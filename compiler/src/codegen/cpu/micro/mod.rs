//! Micro-kernels: hand-written GEMV, GEMM, weighted sums and activation quantisation for each instruction set.
//!
//! In: the address of an argument struct of `abi.rs` that generated code fills in: addresses, strides, sizes. Strides
//! are never negative; sizes may be zero or negative, which means no work.
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
//! chooses the row of the table, `Table` of `abi.rs` has the entries of a level. `layout/` says how weights and
//! activations lie in memory, `view.rs` turns addresses into slices, so that the kernels are safe code; `prefetch.rs`
//! prefetches, `routed.rs` groups activations by expert, `boundary.rs` catches panics.

use crate::codegen::cpu::level::Level;
use crate::codegen::cpu::micro::abi::{
    ActivationLayout, Bf16Args, GROUP, INTERLEAVED_COLS, MIN_COLS_PACKED, MIN_COLS_TILED,
    MIN_SCATTERED_COLS_PACKED, QuantiseArgs, RoutedGemmArgs, RoutedRow, Table,
};
use crate::tensor::quant::Format;

pub(super) mod abi;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
pub(super) mod boundary;
mod generic;
pub(super) mod layout;
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

use layout::block_formats::{SUPER_BLOCK, Storage};

/// Whether the processor has AMX and this process may use it.
pub(super) fn has_amx() -> bool {
    #[cfg(target_arch = "x86_64")]
    return avx512::has_amx();
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// GEMM of routed rows, for every level.
pub(super) const ROUTED_GEMM: unsafe extern "C-unwind" fn(*const RoutedGemmArgs) = routed::routed_gemm;

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

/// Evicts memory from all caches; `false` where there is no fast instruction for it.
pub(super) fn evict(piece: &[u8]) -> bool {
    #[cfg(target_arch = "x86_64")]
    let is_evicted = prefetch::evict(piece);
    #[cfg(not(target_arch = "x86_64"))]
    let (_, is_evicted) = (piece, false);
    is_evicted
}
