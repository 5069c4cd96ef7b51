//! Quantised GEMM for 3 to 16 columns.
//!
//! In: rows and columns in the layout of `quantise_interleaved.rs`. Out: their products. A register of activations
//! holds eight elements of each of eight columns. Sixteen rows are unpacked at a time (`unpack_rows.rs`; formats of
//! whole bytes are read in place), and eight elements of a row, broadcast, are multiplied with all eight columns at
//! once. Weights have a zero point; accumulators start from the value that cancels it.

use std::arch::asm;
use std::arch::x86_64::{
    __m512i, _mm512_add_epi32, _mm512_castps_si512, _mm512_cvtepi32_ps, _mm512_dpbusd_epi32, _mm512_mul_ps,
    _mm512_set1_epi8, _mm512_setzero_si512, _mm512_sub_epi32,
};
use std::ops::Range;

use crate::abi::{GROUP, INTERLEAVED_COLS};
use crate::avx512::quantise::quantise_interleaved::{EIGHT, Group, eights};
use crate::avx512::unpack::last_blocks::FOUR;
use crate::avx512::unpack::unpack_blocks::{Order, order, zero_point};
use crate::avx512::unpack::unpack_rows::{ROWS, STRIPS, Strip, fill, place};
use crate::avx512::vector::{V, add, lanes, load, load_bytes, splat, transpose_f32, zero};
use crate::layout::block_formats::Storage;
use crate::prefetch::prefetch_l2;
use crate::stack_buffer::StackBuffer;
use crate::view::GemmView;

/// Runs of eight columns, at most.
const EIGHTS: usize = INTERLEAVED_COLS.end().div_ceil(EIGHT);

/// All columns with all rows.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn gemm<const S: usize, const B: usize>(job: &GemmView<'_>) {
    let mut buffer = StackBuffer::<Strip, STRIPS>::new();
    let slab = buffer.open();
    let mut first = 0;
    if const { are_bytes(Storage::ALL[S]) } {
        first = job.n_rows / ROWS * ROWS;
        rows::<S, B, true>(slab, job, 0..first);
    }
    rows::<S, B, false>(slab, job, first..job.n_rows);
}

/// Whether numbers are whole bytes, which only need the zero point added: that is faster in the product than in
/// advance.
const fn are_bytes(storage: Storage) -> bool {
    matches!(storage, Storage::Q8_0 | Storage::Int8)
}

/// All columns with some rows. With `L` numbers are read in place, of sixteen rows at a time.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn rows<const S: usize, const B: usize, const L: bool>(
    slab: &mut [Strip; STRIPS],
    job: &GemmView<'_>,
    all: Range<usize>,
) {
    let n_groups = job.k / GROUP;
    let n_eights = job.n_cols.div_ceil(EIGHT);
    assert!(n_eights <= EIGHTS, "a few vectors");
    for r in all.clone().step_by(ROWS) {
        let n_rows = ROWS.min(all.end - r);
        let mut sums = [[zero(); ROWS]; EIGHTS];
        for from in (0..n_groups).step_by(FOUR * STRIPS) {
            let n = (n_groups - from).min(FOUR * STRIPS);
            fill::<S, B, L>(slab, job, (r, n_rows), (from, n));
            let stored = Stored::new::<S>(job, (r, n_rows), from);
            for (e, (sums, x)) in sums.iter_mut().zip(eights(job.x.tiles(), job.k)).enumerate() {
                let next = (e == 0).then(|| Next::new(job, (r, n_rows), from));
                multiply::<S, L>(sums, slab, stored, &x[from..from + n], next);
            }
        }
        for (e, sums) in sums.iter().enumerate().take(n_eights) {
            put(job, (r, n_rows), EIGHT * e, sums);
        }
    }
}

/// The address of a group of some rows; the numbers of byte formats are the last bytes of a group.
#[derive(Clone, Copy)]
struct Stored {
    start: *const u8,
    stride: usize,
}

impl Stored {
    /// Group `from` of some rows.
    #[inline(always)]
    fn new<const S: usize>(job: &GemmView<'_>, (r, n_rows): (usize, usize), from: usize) -> Self {
        Self { start: job.w.block(r, n_rows).as_ptr(), stride: job.w.stride() }.advanced::<S>(from)
    }

    /// `n_groups` groups further on.
    #[inline(always)]
    fn advanced<const S: usize>(self, n_groups: usize) -> Self {
        Self { start: self.start.wrapping_add(n_groups * Self::n_bytes::<S>()), ..self }
    }

    /// The numbers of the first row.
    #[inline(always)]
    fn numbers<const S: usize>(self) -> *const u8 {
        self.start.wrapping_add(Self::n_bytes::<S>() - GROUP)
    }

    /// Bytes of a group.
    #[inline(always)]
    const fn n_bytes<const S: usize>() -> usize {
        Storage::ALL[S].bytes(GROUP)
    }
}

/// The rows that are unpacked next, prefetched as one stream.
#[derive(Clone, Copy)]
struct Next {
    start: *const u8,
    n_bytes: usize,
}

impl Next {
    /// The share of the following rows that group `from` of these rows prefetches.
    #[inline(always)]
    fn new(job: &GemmView<'_>, (r, n_rows): (usize, usize), from: usize) -> Self {
        let block = job.w.block(r, n_rows);
        let n_bytes = block.len() * GROUP / job.k;
        Self { start: block.as_ptr().wrapping_add(block.len() + from * n_bytes), n_bytes }
    }

    /// Prefetches the share of the `g`-th group after that.
    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    fn prefetch(&self, g: usize) {
        prefetch_l2(self.start.wrapping_add(g * self.n_bytes), self.n_bytes);
    }
}

/// Adds the products of a slab with eight columns.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn multiply<const S: usize, const L: bool>(
    sums: &mut [V; ROWS],
    slab: &[Strip; STRIPS],
    stored: Stored,
    x: &[Group],
    next: Option<Next>,
) {
    let mut own = *sums;
    for (g, x) in x.iter().enumerate() {
        if let Some(next) = next {
            next.prefetch(g);
        }
        add_group::<S, L>(&mut own, (&slab[g / FOUR], g % FOUR), stored.advanced::<S>(g), x);
    }
    *sums = own;
}

/// Adds the products of a group, in assembly: the compiler would spill the accumulators.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn add_group<const S: usize, const L: bool>(
    sums: &mut [V; ROWS],
    (strip, g): (&Strip, usize),
    stored: Stored,
    x: &Group,
) {
    let storage = const { Storage::ALL[S] };
    let mut lines = [_mm512_setzero_si512(); 4];
    for (line, numbers) in lines.iter_mut().zip(&x.numbers) {
        *line = load_bytes(numbers);
    }
    let scales = load(&x.scales);
    let by = if storage.has_offsets() { 1 } else { zero_point(storage) };
    let [first, second] = [taken_off(&lines[..2], by), taken_off(&lines[2..], by)];
    let both = _mm512_add_epi32(first, second);
    // The start of accumulators; and the start of the second halves, the sums that offsets multiply, or the zero point.
    let (start, other) = if storage.has_offsets() {
        let sign = if storage.is_super_block() { 1.0 } else { -1.0 };
        let sums = _mm512_mul_ps(_mm512_cvtepi32_ps(both), _mm512_mul_ps(scales, splat(sign)));
        (_mm512_setzero_si512(), _mm512_castps_si512(sums))
    } else if storage.has_two_scales() {
        (first, second)
    } else {
        (both, _mm512_set1_epi8(by.cast_signed()))
    };
    let numbers = if L {
        stored.numbers::<S>()
    } else {
        (&raw const strip.numbers).wrapping_byte_add(8 * place(storage, g, 0)).cast()
    };
    let factors =
        (&raw const strip.factors).wrapping_byte_add(if storage.has_two_scales() { 8 * g } else { 4 * g });
    // SAFETY: what is read lies in the strip, whose rows of factors are 32 bytes apart, and of numbers 128, or with `L`
    // in sixteen rows of weights, the number that `rows` has then. Nothing is written.
    unsafe {
        asm!(
            ".irp row, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15",
            ".if {is_stored}",
            "vpxorq zmm24, {other}, qword ptr [{w}]{{1to8}}",
            "vpxorq zmm25, {other}, qword ptr [{w} + 8]{{1to8}}",
            "vpxorq zmm26, {other}, qword ptr [{w} + 16]{{1to8}}",
            "vpxorq zmm27, {other}, qword ptr [{w} + 24]{{1to8}}",
            "add {w}, {stride}",
            ".else",
            "vpbroadcastq zmm24, qword ptr [{w} + 128 * \\row]",
            "vpbroadcastq zmm25, qword ptr [{w} + 128 * \\row + 8]",
            "vpbroadcastq zmm26, qword ptr [{w} + 128 * \\row + {half}]",
            "vpbroadcastq zmm27, qword ptr [{w} + 128 * \\row + {half} + 8]",
            ".endif",
            "vmovdqa64 zmm28, {start}",
            "vmulps zmm30, {scales}, dword ptr [{f} + 32 * \\row]{{1to16}}",
            "vpdpbusd zmm28, zmm24, {a}",
            "vpdpbusd zmm28, zmm25, {b}",
            ".if {is_halved}",
            "vmovdqa64 zmm29, {other}",
            "vmulps zmm31, {scales}, dword ptr [{f} + 32 * \\row + 4]{{1to16}}",
            "vpdpbusd zmm29, zmm26, {c}",
            "vpdpbusd zmm29, zmm27, {d}",
            "vcvtdq2ps zmm29, zmm29",
            "vfmadd231ps zmm\\row, zmm29, zmm31",
            ".else",
            "vpdpbusd zmm28, zmm26, {c}",
            "vpdpbusd zmm28, zmm27, {d}",
            ".endif",
            ".if {has_offsets}",
            "vfmadd231ps zmm\\row, {other}, dword ptr [{f} + 32 * \\row + 16]{{1to16}}",
            ".endif",
            "vcvtdq2ps zmm28, zmm28",
            "vfmadd231ps zmm\\row, zmm28, zmm30",
            ".endr",
            is_stored = const L as usize,
            half = const if matches!(order(Storage::ALL[S]), Order::Sequential) { 16 } else { 64 },
            is_halved = const Storage::ALL[S].has_two_scales() as usize,
            has_offsets = const Storage::ALL[S].has_offsets() as usize,
            w = inout(reg) numbers => _,
            stride = in(reg) stored.stride,
            f = in(reg) factors,
            start = in(zmm_reg) start,
            other = in(zmm_reg) other,
            scales = in(zmm_reg) scales,
            a = in(zmm_reg) lines[0],
            b = in(zmm_reg) lines[1],
            c = in(zmm_reg) lines[2],
            d = in(zmm_reg) lines[3],
            inout("zmm0") sums[0], inout("zmm1") sums[1], inout("zmm2") sums[2], inout("zmm3") sums[3],
            inout("zmm4") sums[4], inout("zmm5") sums[5], inout("zmm6") sums[6], inout("zmm7") sums[7],
            inout("zmm8") sums[8], inout("zmm9") sums[9], inout("zmm10") sums[10], inout("zmm11") sums[11],
            inout("zmm12") sums[12], inout("zmm13") sums[13], inout("zmm14") sums[14], inout("zmm15") sums[15],
            out("zmm24") _, out("zmm25") _, out("zmm26") _, out("zmm27") _,
            out("zmm28") _, out("zmm29") _, out("zmm30") _, out("zmm31") _,
            options(pure, readonly, nostack),
        );
    }
}

/// Minus the sum of the eight numbers of each lane, times a factor.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn taken_off(lines: &[__m512i], factor: u8) -> __m512i {
    let (mut sum, factor) = (_mm512_setzero_si512(), _mm512_set1_epi8(factor.cast_signed()));
    for line in lines {
        sum = _mm512_dpbusd_epi32(sum, factor, *line);
    }
    _mm512_sub_epi32(_mm512_setzero_si512(), sum)
}

/// Reduces the two lanes of each column.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn put(job: &GemmView<'_>, (r, n_rows): (usize, usize), c: usize, sums: &[V; ROWS]) {
    for (i, two) in transpose_f32(sums).as_chunks::<2>().0.iter().enumerate().take(job.n_cols - c) {
        job.out.add_down(r, c + i, &lanes(add(two[0], two[1]))[..n_rows]);
    }
}
