//! A few vectors with rows of quantised weights.
//!
//! In: rows and vectors that `lanes.rs` has rounded. Out: their products.
//! Sixteen rows are unpacked (`strips.rs`). Eight elements of one, in every pair of lanes, are then multiplied with
//! eight vectors at once, each of which has two lanes. Weights are moved up, and sums start from what takes this off
//! again.

use std::arch::asm;
use std::arch::x86_64::{
    __m512i, _mm512_add_epi32, _mm512_castps_si512, _mm512_cvtepi32_ps, _mm512_dpbusd_epi32, _mm512_mul_ps,
    _mm512_set1_epi8, _mm512_setzero_si512, _mm512_sub_epi32,
};

use crate::codegen::cpu::micro::asking::ask_far;
use crate::codegen::cpu::micro::avx512::fours::{Order, moved, order};
use crate::codegen::cpu::micro::avx512::lanes::{EIGHT, Group, eights};
use crate::codegen::cpu::micro::avx512::strips::{FOUR, ROWS, STRIPS, Strip, fill, place};
use crate::codegen::cpu::micro::avx512::vector::{V, add, lanes, load, load_bytes, splat, turned, zero};
use crate::codegen::cpu::micro::room::Room;
use crate::codegen::cpu::micro::unpack::Storage;
use crate::codegen::cpu::micro::view::ProductView;
use crate::codegen::cpu::micro::{GROUP, IN_LANES};

/// Eights of vectors, at most.
const EIGHTS: usize = IN_LANES.end().div_ceil(EIGHT);

/// All vectors with all rows.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn product<const S: usize, const B: usize>(job: &ProductView<'_>) {
    let n_groups = job.k / GROUP;
    let n_eights = job.n_cols.div_ceil(EIGHT);
    assert!(n_eights <= EIGHTS, "a few vectors");
    let mut room = Room::<Strip, STRIPS>::new();
    let slab = room.open();
    for r in (0..job.n_rows).step_by(ROWS) {
        let n_rows = ROWS.min(job.n_rows - r);
        let mut sums = [[zero(); ROWS]; EIGHTS];
        for from in (0..n_groups).step_by(FOUR * STRIPS) {
            let n = (n_groups - from).min(FOUR * STRIPS);
            fill::<S, B>(slab, job, (r, n_rows), (from, n));
            for (e, (sums, x)) in sums.iter_mut().zip(eights(job.x.tiles(), job.k)).enumerate() {
                let next = (e == 0).then(|| Next::new(job, (r, n_rows), from));
                multiply::<S>(sums, slab, &x[from..from + n], next);
            }
        }
        for (e, sums) in sums.iter().enumerate().take(n_eights) {
            put(job, (r, n_rows), EIGHT * e, sums);
        }
    }
}

/// Rows that are unpacked next, as one stream: memory comes fastest so.
#[derive(Clone, Copy)]
struct Next {
    start: *const u8,
    n_bytes: usize,
}

impl Next {
    /// The share that group `from` of these rows asks for of what lies behind them.
    #[inline(always)]
    fn new(job: &ProductView<'_>, (r, n_rows): (usize, usize), from: usize) -> Self {
        let block = job.w.block(r, n_rows);
        let n_bytes = block.len() * GROUP / job.k;
        Self { start: block.as_ptr().wrapping_add(block.len() + from * n_bytes), n_bytes }
    }

    /// Asks for the share of the `g`-th group behind.
    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    fn ask(&self, g: usize) {
        ask_far(self.start.wrapping_add(g * self.n_bytes), self.n_bytes);
    }
}

/// Adds the products of a slab with eight vectors.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn multiply<const S: usize>(sums: &mut [V; ROWS], slab: &[Strip; STRIPS], x: &[Group], next: Option<Next>) {
    let mut own = *sums;
    for (g, x) in x.iter().enumerate() {
        if let Some(next) = next {
            next.ask(g);
        }
        add_group::<S>(&mut own, &slab[g / FOUR], g % FOUR, x);
    }
    *sums = own;
}

/// Adds the products of group `g` of a strip, in assembly: the compiler would have the sums on the stack.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn add_group<const S: usize>(sums: &mut [V; ROWS], strip: &Strip, g: usize, x: &Group) {
    let storage = const { Storage::ALL[S] };
    let mut lines = [_mm512_setzero_si512(); 4];
    for (line, numbers) in lines.iter_mut().zip(&x.numbers) {
        *line = load_bytes(numbers);
    }
    let scales = load(&x.scales);
    let by = if storage.has_offsets() { 1 } else { moved(storage) };
    let [first, second] = [taken_off(&lines[..2], by), taken_off(&lines[2..], by)];
    let both = _mm512_add_epi32(first, second);
    // What products start from; beside it what the second halves start from, or what offsets are multiplied by.
    let (start, other) = if storage.has_offsets() {
        let sign = if storage.block().0 == 256 { 1.0 } else { -1.0 };
        let sums = _mm512_mul_ps(_mm512_cvtepi32_ps(both), _mm512_mul_ps(scales, splat(sign)));
        (_mm512_setzero_si512(), _mm512_castps_si512(sums))
    } else if storage.is_halved() {
        (first, second)
    } else {
        (both, both)
    };
    let numbers = (&raw const strip.numbers).wrapping_byte_add(8 * place(storage, g, 0));
    let factors =
        (&raw const strip.factors).wrapping_byte_add(if storage.is_halved() { 8 * g } else { 4 * g });
    // SAFETY: what is read lies in the strip, whose rows of numbers are 128 bytes apart, and those of factors 32.
    // Nothing is written.
    unsafe {
        asm!(
            ".irp row, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15",
            "vpbroadcastq zmm24, qword ptr [{w} + 128 * \\row]",
            "vpbroadcastq zmm25, qword ptr [{w} + 128 * \\row + 8]",
            "vpbroadcastq zmm26, qword ptr [{w} + 128 * \\row + {half}]",
            "vpbroadcastq zmm27, qword ptr [{w} + 128 * \\row + {half} + 8]",
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
            half = const if matches!(order(Storage::ALL[S]), Order::Straight) { 16 } else { 64 },
            is_halved = const Storage::ALL[S].is_halved() as usize,
            has_offsets = const Storage::ALL[S].has_offsets() as usize,
            w = in(reg) numbers,
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
            options(pure, readonly, nostack, preserves_flags),
        );
    }
}

/// Minus the sums of eight numbers of each lane, times a factor.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn taken_off(lines: &[__m512i], factor: u8) -> __m512i {
    let (mut sum, factor) = (_mm512_setzero_si512(), _mm512_set1_epi8(factor.cast_signed()));
    for line in lines {
        sum = _mm512_dpbusd_epi32(sum, factor, *line);
    }
    _mm512_sub_epi32(_mm512_setzero_si512(), sum)
}

/// Adds up the lanes of each vector.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn put(job: &ProductView<'_>, (r, n_rows): (usize, usize), c: usize, sums: &[V; ROWS]) {
    for (i, two) in turned(sums).as_chunks::<2>().0.iter().enumerate().take(job.n_cols - c) {
        job.out.add_down(r, c + i, &lanes(add(two[0], two[1]))[..n_rows]);
    }
}
