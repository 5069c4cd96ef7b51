//! Products of weights and vectors, written by hand for each level of instructions.
//!
//! In: the address of a [`Product`], a [`Picked`], a [`Quantise`], a [`Halve`], a [`Mix`] or an [`Encode`],
//! filled in by generated code: addresses, strides, sizes.
//! Out: sums added to what is there, rows of 8-bit numbers, or blocks of a format. Strides are not negative, sizes may
//! be zero or less.
//! `unpack.rs` knows the block formats, `forms.rs` is what the levels have in common; `view.rs` makes slices of
//! addresses, so that everything behind it is safe code. No memory is kept, and any thread may call.
//!
//! A vector of 8-bit numbers is a row: the numbers, then what belongs to each 32 of them, as `rounding.rs` tells, and
//! `words.rs` of numbers of 14 bits.

use std::ops::RangeInclusive;

use crate::codegen::cpu::level::Level;
use crate::tensor::quant::Format;

#[cfg(target_arch = "x86_64")]
mod asking;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod encode;
mod forms;
#[cfg(target_arch = "aarch64")]
mod neon;
mod picked;
mod portable;
#[cfg(target_arch = "x86_64")]
mod room;
mod rounding;
#[cfg(test)]
mod tests;
mod unpack;
mod view;
#[cfg(target_arch = "x86_64")]
mod words;

use unpack::Storage;

/// Elements that share a scale in vectors of whole numbers.
pub(super) const GROUP: usize = 32;

/// Elements of a large block.
const LARGE: usize = 256;

/// Vectors from which on it pays to unpack weights for bfloat16 numbers and words.
const MANY: usize = 16;

/// Vectors that lie apart from which on unpacked weights pay.
const MANY_APART: usize = 3;

/// How many vectors lie side by side, where they may: fewer are multiplied one by one, more with unpacked weights.
const IN_LANES: RangeInclusive<usize> = 3..=16;

/// Vectors from which on tiles of eight pay, where there are such tiles, and dot products of bfloat16 numbers.
const FEW: usize = 5;

/// How vectors are rounded before they are multiplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rounding {
    /// To 8 bits a number, with a scale for every group.
    Bytes { group: usize },
    /// To 8 bits a number, with a scale for every sixteen, for products of one vector at a time.
    Sixteens,
    /// To 8 bits a number, with a scale for every sixteen, eight vectors side by side.
    Lanes,
    /// As bytes, in tiles of eight vectors.
    Eights { group: usize },
    /// To 14 bits a number, with a scale for every [`GROUP`].
    Words,
    /// To the sum of so many bfloat16 numbers.
    Halves { n_parts: i64 },
}

impl Rounding {
    /// What the function that rounds is told: how many numbers share a scale, or how many parts a number has.
    pub(super) fn number(self) -> i64 {
        match self {
            Self::Bytes { group } | Self::Eights { group } => group as i64,
            Self::Sixteens | Self::Lanes | Self::Words => GROUP as i64,
            Self::Halves { n_parts } => n_parts,
        }
    }

    /// The name in tables.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Bytes { .. } => "bytes",
            Self::Sixteens => "sixteens",
            Self::Lanes => "lanes",
            Self::Eights { .. } => "eights",
            Self::Words => "words",
            Self::Halves { n_parts: 1 } => "bf16",
            Self::Halves { .. } => "2xbf16",
        }
    }
}

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
    /// Of how many bfloat16 numbers each number of a vector is the sum; zero where it is none.
    pub(super) n_parts: i64,
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

/// Rounds vectors to bfloat16 numbers, each to the sum of one or two.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Halve {
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

/// `out[i / 32]` is the block of `x[i]`, of format `Q8_0`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Encode {
    pub(super) x: *const f32,
    pub(super) out: *mut u8,
    pub(super) n: i64,
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
    pub(super) encode: unsafe extern "C" fn(*const Encode),
    /// Elements of a vector of bytes that share a scale where rows are large blocks.
    pub(super) large_group: usize,
    /// The functions for one vector at a time, if there are any.
    pub(super) sixteens: Option<Whole>,
    /// The functions for eight vectors side by side, if there are any.
    pub(super) lanes: Option<Whole>,
    /// The functions for tiles of eight vectors, if there are any.
    pub(super) eights: Option<Whole>,
    /// The functions for vectors of words, and rows of 16-bit numbers, if there are any.
    pub(super) words: Option<Whole>,
    /// The functions for bfloat16 numbers, if there are any.
    pub(super) halves: Option<Halves>,
}

impl Table {
    /// The functions that round to whole numbers, and multiply them.
    pub(super) fn whole(&self, rounding: Rounding) -> Whole {
        let own = match rounding {
            Rounding::Sixteens => self.sixteens,
            Rounding::Lanes => self.lanes,
            Rounding::Eights { .. } => self.eights,
            Rounding::Words => self.words,
            Rounding::Bytes { .. } | Rounding::Halves { .. } => None,
        };
        own.unwrap_or(Whole { quantise: self.quantise, product: self.quantised })
    }
}

/// The functions for vectors of whole numbers that lie in one way.
#[derive(Clone, Copy)]
pub(super) struct Whole {
    pub(super) quantise: unsafe extern "C" fn(*const Quantise),
    pub(super) product: unsafe extern "C" fn(*const Product),
}

/// The functions of a level that multiplies bfloat16 numbers.
#[derive(Clone, Copy)]
pub(super) struct Halves {
    pub(super) halve: unsafe extern "C" fn(*const Halve),
    /// A product with vectors of bfloat16 numbers.
    pub(super) product: unsafe extern "C" fn(*const Product),
    /// A mixture whose factors are rounded to sums of two bfloat16 numbers, if that is faster.
    pub(super) mix: unsafe extern "C" fn(*const Mix),
    /// Vectors from which on such a product is faster.
    least: usize,
    /// Of how many numbers the vectors of a product with a format are the sums, if it is faster.
    n_parts: fn(Storage) -> Option<i64>,
}

/// Whether there are tiles of bfloat16 numbers, and this process may use them.
pub(super) fn has_amx() -> bool {
    #[cfg(target_arch = "x86_64")]
    return avx512::has_tiles();
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// The function that sorts vectors by the matrix picked for them; any level may call it.
pub(super) const PICKED: unsafe extern "C" fn(*const Picked) = picked::picked;

/// The functions of a level that this processor has.
pub(super) fn table(level: Level) -> Table {
    match level {
        #[cfg(target_arch = "x86_64")]
        Level::Amx => avx512::WITH_TILES,
        #[cfg(target_arch = "x86_64")]
        Level::Avx512Bf16 => avx512::WITH_HALVES,
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

/// How a level wants vectors rounded that are multiplied with a format, up to so many at once.
pub(super) fn rounding(level: Level, format: Format, n_cols: usize) -> Option<Rounding> {
    let storage = Storage::of(format)?;
    let halves = table(level).halves.filter(|halves| n_cols >= halves.least);
    let n_parts = halves.and_then(|halves| (halves.n_parts)(storage));
    let is_few = n_cols >= FEW && table(level).eights.is_some() && has_eights(storage);
    let bytes = match n_cols {
        n if n < *IN_LANES.start() && table(level).sixteens.is_some() => Rounding::Sixteens,
        _ if is_few => Rounding::Eights { group: group_of(format) },
        n if IN_LANES.contains(&n) && table(level).lanes.is_some() => Rounding::Lanes,
        _ => in_rows(level, format),
    };
    let whole = match storage {
        Storage::F32 => None,
        Storage::F16 | Storage::BF16 => in_words(level, n_cols),
        _ => Some(bytes),
    };
    n_parts.map(|n_parts| Rounding::Halves { n_parts }).or(whole)
}

/// The same of vectors that lie apart, of which so many meet a matrix: none shares a register with its neighbours.
pub(super) fn rounding_apart(level: Level, format: Format, n_beside: usize) -> Option<Rounding> {
    match Storage::of(format)? {
        Storage::F32 => None,
        Storage::F16 | Storage::BF16 => in_words(level, n_beside),
        _ if n_beside < MANY_APART => rounding(level, format, 1),
        _ => Some(in_rows(level, format)),
    }
}

/// How vectors are rounded to words, each a row, where so many pay.
fn in_words(level: Level, n_cols: usize) -> Option<Rounding> {
    (n_cols >= MANY && table(level).words.is_some()).then_some(Rounding::Words)
}

/// How vectors are rounded to bytes, each a row.
fn in_rows(level: Level, format: Format) -> Rounding {
    let is_large = format.block_len() == LARGE;
    Rounding::Bytes { group: if is_large { table(level).large_group } else { group_of(format) } }
}

/// Elements of a vector that share a scale where it is rounded to bytes.
fn group_of(format: Format) -> usize {
    if let Format::Int8 { group } = format { group as usize } else { GROUP }
}

/// Whether there are products with tiles of eight: all 32 elements of a group must have one factor.
const fn has_eights(storage: Storage) -> bool {
    !storage.is_halved()
}

/// Rounds so many vectors of so many elements, one after another.
///
/// # Safety
/// The first address must be of the vectors, the second of room for them.
pub(super) unsafe fn round(
    level: Level,
    rounding: Rounding,
    (from, to): (*const u8, *mut u8),
    (n_cols, k): (usize, usize),
) {
    let (x, out, x_col, n_cols, k) = (from.cast(), to, k as i64, n_cols as i64, k as i64);
    match rounding {
        Rounding::Bytes { .. }
        | Rounding::Sixteens
        | Rounding::Lanes
        | Rounding::Eights { .. }
        | Rounding::Words => {
            let job = Quantise { x, out, x_col, n_cols, k, group: rounding.number() };
            // SAFETY: the caller promises what the description says.
            unsafe { (table(level).whole(rounding).quantise)(&raw const job) };
        }
        Rounding::Halves { n_parts } => {
            let job = Halve { x, out, x_col, n_cols, k, n_parts };
            let halves = table(level).halves.expect("a level without them asks for no such rounding");
            // SAFETY: as above.
            unsafe { (halves.halve)(&raw const job) };
        }
    }
}

/// Finds out how memory is asked for on this processor.
pub(super) fn prepare() {
    #[cfg(target_arch = "x86_64")]
    asking::prepare();
}

/// Asks for memory that will be read from this address on.
pub(super) fn ask_from(start: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: all of these processors have the instruction.
    unsafe {
        asking::ask_from(start);
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = start;
}

/// Reads memory as kernels do, and gives something that depends on it.
pub(super) fn read(piece: &[u8]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: all of these processors have the instruction.
    let sum = unsafe { asking::read(piece) };
    #[cfg(not(target_arch = "x86_64"))]
    let sum = piece.iter().step_by(64).fold(0, |sum, byte| sum ^ u64::from(*byte));
    sum
}

/// Bytes of vectors that are rounded.
pub(super) fn rounded_bytes(rounding: Rounding, n_cols: usize, k: usize) -> usize {
    match rounding {
        Rounding::Bytes { .. } => quantised_bytes(n_cols, k),
        Rounding::Sixteens => sixteens_bytes(n_cols, k),
        Rounding::Lanes => lanes_bytes(n_cols, k),
        Rounding::Eights { .. } => eights_bytes(n_cols, k),
        Rounding::Words => words_bytes(n_cols, k),
        Rounding::Halves { n_parts } => halved_bytes(n_cols, k, n_parts as usize),
    }
}

/// Bytes of vectors of bfloat16 numbers: tiles of 32 elements of sixteen vectors.
fn halved_bytes(n_cols: usize, k: usize, n_parts: usize) -> usize {
    n_parts * n_cols.div_ceil(16) * k.div_ceil(32) * 1024
}

/// Bytes of the pieces of a vector of 8-bit numbers with a scale for each sixteen: the numbers twice, two scales and a
/// sum for each 32, and what large blocks want, for four of them at a time.
fn sixteens_pieces(k: usize) -> [usize; 6] {
    let ends = |n: usize| n.next_multiple_of(64);
    let all = k.next_multiple_of(128);
    [all, all, ends(k / 8), ends(k / 8), ends(k / 8), (k / 256).div_ceil(4) * LARGE_BYTES]
}

/// Bytes that four large blocks want of such a vector.
const LARGE_BYTES: usize = 2368;

/// Bytes of such vectors.
fn sixteens_bytes(n_cols: usize, k: usize) -> usize {
    n_cols * sixteens_pieces(k).into_iter().sum::<usize>()
}

/// Bytes of vectors of 8-bit numbers eight of which lie side by side: for each 32 elements the numbers and a line of
/// scales.
fn lanes_bytes(n_cols: usize, k: usize) -> usize {
    n_cols.div_ceil(8) * (k / GROUP) * (4 + 1) * 64
}

/// Bytes of vectors of 8-bit numbers in tiles of eight: for each 32 elements, and for four times as many at once, the
/// numbers with what they exceed 127 by, a line of scales, and one of sums.
fn eights_bytes(n_cols: usize, k: usize) -> usize {
    n_cols.div_ceil(8) * (k / GROUP).next_multiple_of(4) * (8 + 1 + 1) * 64
}

/// Bytes of vectors of words: a line for each 32 elements, then a scale for each.
fn words_bytes(n_cols: usize, k: usize) -> usize {
    n_cols * (k.div_ceil(GROUP) * (2 * GROUP + 4)).next_multiple_of(64)
}

/// Bytes of vectors of 8-bit numbers.
fn quantised_bytes(n_cols: usize, k: usize) -> usize {
    n_cols * rounding::row_bytes(k)
}
