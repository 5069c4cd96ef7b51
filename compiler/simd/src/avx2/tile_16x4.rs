//! The inner loop of `gemm_packed.rs` and `gemm_int14.rs`: sixteen rows by up to four columns, in assembly.
//!
//! In: panels of `pack_panels.rs` or `gemm_int14.rs`, and one group of the activations. Out: accumulators with the
//! group's products added. Of the sixteen registers eight hold integer accumulators, 0 to 3 for the first panel and 10
//! to 13 for the second; those in single precision stay in memory. The compiler would go column by column and spill the
//! panels. Steps of 16-bit numbers have two elements of each row, steps of bytes four.

use std::arch::asm;
use std::mem::{MaybeUninit, offset_of};

use crate::avx2::pack_panels::{Group, PANEL, Panel};
use crate::layout::int8_rows::Tail;
use crate::view::Out;

/// Sums in single precision of two panels, for four columns each.
#[derive(Default)]
#[repr(align(32))]
pub(super) struct Sums([[[f32; PANEL]; 4]; 2]);

impl Sums {
    /// Adds those of `C` columns to the results of some rows, from row `r` and column `c` on.
    #[inline(always)]
    pub(super) fn add_to<const C: usize>(&self, out: &Out<'_>, (r, n_rows): (usize, usize), c: usize) {
        for (p, sums) in self.0.iter().enumerate().take(n_rows.div_ceil(PANEL)) {
            for (i, sums) in sums[..C].iter().enumerate() {
                out.add_down(r + p * PANEL, c + i, &sums[..(n_rows - p * PANEL).min(PANEL)]);
            }
        }
    }
}

/// A group of a column.
#[derive(Clone, Copy)]
pub(super) struct Column<'a, const T: usize> {
    /// 16-bit integers, or half the number of bytes.
    pub(super) numbers: &'a [u8; 64],
    /// A whole [`Tail`], or the scale alone.
    pub(super) tail: &'a [u8; T],
}

/// Bytes of a whole tail.
pub(super) const TAIL: usize = 32;

/// The same assembly for each column; `c` is its number.
macro_rules! each {
    ($($piece:tt)*) => {
        concat!(
            text!("0" $($piece)*), text!("1" $($piece)*), text!("2" $($piece)*), text!("3" $($piece)*),
        )
    };
}

macro_rules! text {
    ($c:literal $($piece:tt)*) => {
        concat!(".if ", $c, " < {n}\n", $(piece!($c $piece)),*, ".endif\n")
    };
}

macro_rules! piece {
    ($c:literal c) => {
        $c
    };
    ($c:literal $text:literal) => {
        $text
    };
}

/// A step with each column: the first step of a sum starts it.
macro_rules! step {
    ($multiply:literal, $add:literal) => {
        concat!(
            "vmovdqa ymm4, [{w} + 32 * \\step]\n",
            "vmovdqa ymm5, [{w} + {panel} + 32 * \\step]\n",
            each!(
                "vpbroadcastd ymm6, dword ptr [{x" c "} + 4 * \\step]\n"
                ".if \\step % {n_steps}\n"
                $multiply " ymm7, ymm4, ymm6\n"
                $multiply " ymm8, ymm5, ymm6\n"
                $add " ymm" c ", ymm" c ", ymm7\n"
                $add " ymm1" c ", ymm1" c ", ymm8\n"
                ".else\n"
                $multiply " ymm" c ", ymm4, ymm6\n"
                $multiply " ymm1" c ", ymm5, ymm6\n"
                ".endif\n"
            ),
        )
    };
}

/// Adds the products of two panels with `C` columns; the others may have any content. Panels hold 16-bit integers, or
/// bytes of `BITS` bits; their pairs of products add up in 16 bits: eight of weights up to 15, four of up to 31.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn add_products<const C: usize, const BITS: usize, const HAS_OFFSETS: bool, const T: usize>(
    sums: &mut Sums,
    group: &Group,
    x: [Column<'_, T>; 4],
) {
    const { assert!(matches!(BITS, 4 | 5 | 16) && C <= 4) };
    const { assert!(T == TAIL || T == 4 && BITS == 16 && !HAS_OFFSETS) };
    let numbers = x.map(|x| x.numbers.as_ptr());
    let tail = x[0].tail.as_ptr().addr().wrapping_sub(numbers[0].addr());
    assert!(
        x.iter().zip(numbers).all(|(x, numbers)| numbers.addr().wrapping_add(tail) == x.tail.as_ptr().addr()),
        "rows of one length lie alike"
    );
    let mut halves = MaybeUninit::<[[[u8; 32]; 4]; 2]>::uninit();
    // SAFETY: what is read lies in numbers and tails, and in the group, at most 255 bytes after its beginning for the
    // four that are large: all quantised columns of one length have their tails at the same distance. Written are the
    // sums, aligned as their type, and the buffer for halves, which is read after that.
    unsafe {
        asm!(
            ".if {bits} == 16",
            ".irp step, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15",
            step!("vpmaddwd", "vpaddd"),
            ".endr",
            ".else",
            "vpcmpeqw ymm9, ymm9, ymm9",
            "vpabsw ymm9, ymm9",
            ".irp step, 0, 1, 2, 3, 4, 5, 6, 7",
            ".if \\step == {n_steps}",
            each!(
                "vpmaddwd ymm" c ", ymm" c ", ymm9\n"
                "vpmaddwd ymm1" c ", ymm1" c ", ymm9\n"
                "vmovdqu [{halves} + 32 * " c "], ymm" c "\n"
                "vmovdqu [{halves} + 32 * (4 + " c ")], ymm1" c "\n"
            ),
            ".endif",
            step!("vpmaddubsw", "vpaddw"),
            ".endr",
            // The excess of the run of four.
            each!(
                "movzx {place:e}, byte ptr [{x" c "} + {tail} + 4 * {place_at}]\n"
                "vpbroadcastd ymm6, dword ptr [{x" c "} + {tail} + 4 * {excess_at}]\n"
                "vmovdqa ymm7, [{w} + {place}]\n"
                "vmovdqa ymm8, [{w} + {place} + {panel}]\n"
                "vpmaddubsw ymm7, ymm7, ymm6\n"
                "vpmaddubsw ymm8, ymm8, ymm6\n"
                "vpmaddwd ymm" c ", ymm" c ", ymm9\n"
                "vpmaddwd ymm1" c ", ymm1" c ", ymm9\n"
                "vpmaddwd ymm7, ymm7, ymm9\n"
                "vpmaddwd ymm8, ymm8, ymm9\n"
                "vpaddd ymm" c ", ymm" c ", ymm7\n"
                "vpaddd ymm1" c ", ymm1" c ", ymm8\n"
                ".if {n_steps} == 4\n"
                "vpaddd ymm" c ", ymm" c ", [{halves} + 32 * " c "]\n"
                "vpaddd ymm1" c ", ymm1" c ", [{halves} + 32 * (4 + " c ")]\n"
                ".endif\n"
            ),
            ".endif",
            "vmovaps ymm4, [{w} + {factors}]",
            "vmovaps ymm5, [{w} + {panel} + {factors}]",
            each!(
                "vbroadcastss ymm6, dword ptr [{x" c "} + {tail} + 4 * {scale_at}]\n"
                "vcvtdq2ps ymm" c ", ymm" c "\n"
                "vcvtdq2ps ymm1" c ", ymm1" c "\n"
                "vmulps ymm7, ymm4, ymm6\n"
                "vmulps ymm8, ymm5, ymm6\n"
                "vfmadd213ps ymm" c ", ymm7, [{sums} + 32 * " c "]\n"
                "vfmadd213ps ymm1" c ", ymm8, [{sums} + 32 * (4 + " c ")]\n"
            ),
            ".if {has_offsets}",
            "vmovaps ymm4, [{w} + {offsets}]",
            "vmovaps ymm5, [{w} + {panel} + {offsets}]",
            each!(
                "vbroadcastss ymm6, dword ptr [{x" c "} + {tail} + 4 * {sum_at}]\n"
                "vfmadd231ps ymm" c ", ymm4, ymm6\n"
                "vfmadd231ps ymm1" c ", ymm5, ymm6\n"
            ),
            ".endif",
            each!(
                "vmovaps [{sums} + 32 * " c "], ymm" c "\n"
                "vmovaps [{sums} + 32 * (4 + " c ")], ymm1" c "\n"
            ),
            n = const C,
            bits = const BITS,
            // Steps that add to the same sums.
            n_steps = const if BITS == 5 { 4 } else { 16 },
            has_offsets = const HAS_OFFSETS as usize,
            panel = const size_of::<Panel>(),
            factors = const offset_of!(Panel, factors),
            offsets = const offset_of!(Panel, offsets),
            place_at = const Tail::Place as usize,
            excess_at = const Tail::Excess as usize,
            scale_at = const if T == TAIL { Tail::Scale as usize } else { 0 },
            sum_at = const Tail::Sum as usize,
            w = in(reg) group,
            sums = in(reg) sums,
            halves = in(reg) halves.as_mut_ptr(),
            tail = in(reg) tail,
            place = out(reg) _,
            x0 = in(reg) numbers[0], x1 = in(reg) numbers[1], x2 = in(reg) numbers[2], x3 = in(reg) numbers[3],
            out("ymm0") _, out("ymm1") _, out("ymm2") _, out("ymm3") _, out("ymm4") _, out("ymm5") _,
            out("ymm6") _, out("ymm7") _, out("ymm8") _, out("ymm9") _, out("ymm10") _, out("ymm11") _,
            out("ymm12") _, out("ymm13") _,
            options(nostack),
        );
    }
}
