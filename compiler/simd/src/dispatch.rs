//! Which kernels run: those of a level, for a weight format and a number of columns.
//!
//! In: a level that this processor has, a format, columns. Out: the functions of the level, and the layout of
//! activations that its product wants; the table in `lib.rs` has them all. What is of no level, prefetching and reading
//! memory, is here where the kind of processor has it.

use crate::abi::{
    ActivationLayout, Bf16Args, INTERLEAVED_COLS, MIN_COLS_PACKED, MIN_COLS_TILED, MIN_SCATTERED_COLS_PACKED,
    QuantiseArgs, RoutedGemmArgs, RoutedRow, Table,
};
use crate::layout::block_formats::{SUPER_BLOCK, Storage};
use crate::level::Level;
#[cfg(target_arch = "aarch64")]
use crate::neon;
#[cfg(target_arch = "x86_64")]
use crate::{avx2, avx512, prefetch};
use crate::{portable, routed};

/// GEMM of routed rows, for every level.
pub const ROUTED_GEMM: unsafe extern "C-unwind" fn(*const RoutedGemmArgs) = routed::routed_gemm;

/// The functions of a level that this processor has.
pub fn table(level: Level) -> Table {
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

/// Bytes of scratch memory for a number of routed rows and matrices.
pub fn routing_bytes(n_rows: usize, n_matrices: usize) -> usize {
    n_rows * size_of::<RoutedRow>() + n_matrices * size_of::<i64>()
}

/// The layout of activations for a product of a weight format with up to `n_cols` columns; none for single precision.
/// `group` is the number of elements that share a scale where scales are stored apart, and [`GROUP`](crate::GROUP)
/// elsewhere.
pub fn activation_layout(
    level: Level,
    storage: Storage,
    group: usize,
    n_cols: usize,
) -> Option<ActivationLayout> {
    let bf16 = table(level).bf16.filter(|bf16| n_cols >= bf16.min_cols);
    let n_parts = bf16.and_then(|bf16| (bf16.n_parts)(storage));
    let is_amx_int8 = n_cols >= MIN_COLS_TILED && table(level).int8_amx.is_some() && has_amx_int8(storage);
    let int8 = match n_cols {
        n if n < *INTERLEAVED_COLS.start() && table(level).int8_gemv.is_some() => {
            Some(ActivationLayout::Int8Gemv)
        }
        _ if is_amx_int8 => Some(ActivationLayout::Int8Amx { group }),
        n if INTERLEAVED_COLS.contains(&n) && table(level).int8_interleaved.is_some() => {
            let is_interleaved = !storage.has_two_offsets();
            if is_interleaved {
                Some(ActivationLayout::Int8Interleaved)
            } else {
                int8_rows_layout(level, storage, group)
            }
        }
        _ => int8_rows_layout(level, storage, group),
    };
    let quantised_functions = match storage {
        Storage::F32 => None,
        Storage::F16 | Storage::BF16 => int14_layout(level, n_cols),
        _ => int8,
    };
    n_parts.map(|n_parts| ActivationLayout::Bf16Tiles { n_parts }).or(quantised_functions)
}

/// The same for scattered columns, `n_per_matrix` for each matrix: they cannot be interleaved.
pub fn activation_layout_scattered(
    level: Level,
    storage: Storage,
    group: usize,
    n_per_matrix: usize,
) -> Option<ActivationLayout> {
    match storage {
        Storage::F32 => None,
        Storage::F16 | Storage::BF16 => int14_layout(level, n_per_matrix),
        _ if n_per_matrix < MIN_SCATTERED_COLS_PACKED => activation_layout(level, storage, group, 1),
        _ => int8_rows_layout(level, storage, group),
    }
}

/// `Int14`, where the level has it and the number of columns makes it pay.
fn int14_layout(level: Level, n_cols: usize) -> Option<ActivationLayout> {
    (n_cols >= MIN_COLS_PACKED && table(level).int14.is_some()).then_some(ActivationLayout::Int14)
}

/// `Int8Rows` with the group that suits a weight format, if the level has products for it: most have one offset for 32
/// elements.
pub(crate) fn int8_rows_layout(level: Level, storage: Storage, group: usize) -> Option<ActivationLayout> {
    let block_len = if storage == Storage::Int8 { group } else { storage.block().0 };
    let group = if block_len == SUPER_BLOCK { table(level).super_block_group } else { group };
    let has_products = table(level).int8_gemv.is_some() || !storage.has_two_offsets();
    has_products.then_some(ActivationLayout::Int8Rows { group })
}

/// Whether `Int8Amx` has kernels for a format: all 32 elements of a group must share one scale.
const fn has_amx_int8(storage: Storage) -> bool {
    !storage.has_two_scales() && !matches!(storage, Storage::IQ4NL | Storage::IQ4XS | Storage::MXFP4)
}

/// Quantises `n_cols` columns of `k` elements, stored one after another.
///
/// # Safety
/// The processor must have the level. The first address must be of the columns, the second of memory for as many bytes
/// as [`activation_bytes`](crate::activation_bytes) says.
pub unsafe fn quantise_activations(
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
pub fn prepare() {
    #[cfg(target_arch = "x86_64")]
    prefetch::prepare();
}

/// Prefetches the start of a stream.
#[cfg_attr(
    target_arch = "x86_64",
    expect(clippy::not_unsafe_ptr_arg_deref, reason = "a prefetch reads nothing, whatever the address")
)]
pub fn prefetch_first(start: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: all of these processors have the instruction.
    unsafe {
        prefetch::prefetch_first(start);
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = start;
}

/// Reads memory as kernels do, and returns something that depends on it.
pub fn read(piece: &[u8]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: all of these processors have the instruction.
    let sum = unsafe { prefetch::read(piece) };
    #[cfg(not(target_arch = "x86_64"))]
    let sum = piece.iter().step_by(64).fold(0, |sum, byte| sum ^ u64::from(*byte));
    sum
}

/// Evicts memory from all caches; `false` where there is no fast instruction for it.
pub fn evict(piece: &[u8]) -> bool {
    #[cfg(target_arch = "x86_64")]
    let is_evicted = prefetch::evict(piece);
    #[cfg(not(target_arch = "x86_64"))]
    let (_, is_evicted) = (piece, false);
    is_evicted
}
