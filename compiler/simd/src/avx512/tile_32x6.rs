//! The inner loop of `gemm_packed.rs`: 32 rows by six columns, in assembly.
//!
//! In: panels of `pack_int8.rs`, and one group of six activation rows. Out: accumulators with the group's products
//! added. Of the 32 registers 24 are accumulators; the integer ones are 20 to 25 for the first panel and 10 to 15 for
//! the second. The compiler would order instructions so that some of them are spilled, and keep an address for each
//! piece of each row.

use std::arch::asm;
use std::mem::offset_of;

use crate::avx512::unpack::pack_int8::{Group, Panel};
use crate::avx512::vector::V;
use crate::layout::block_formats::Storage;
use crate::layout::int8_rows::{Column, Tail};

/// The same assembly for each column; `c` is its number.
macro_rules! each {
    ($($piece:tt)*) => {
        concat!(
            text!("0" $($piece)*), text!("1" $($piece)*), text!("2" $($piece)*),
            text!("3" $($piece)*), text!("4" $($piece)*), text!("5" $($piece)*),
        )
    };
}

macro_rules! text {
    ($c:literal $($piece:tt)*) => { concat!($(piece!($c $piece)),*) };
}

macro_rules! piece {
    ($c:literal c) => {
        $c
    };
    ($c:literal $text:literal) => {
        $text
    };
}

/// Adds the products of two panels with six columns. Products start from zero where the format has offsets.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn add_products<const S: usize>(sums: &mut [V; 12], group: &Group, x: &[Column<'_>; 6]) {
    let [u0, u1, u2, u3, u4, u5, v0, v1, v2, v3, v4, v5] = sums;
    let tail = x[0].tail.as_ptr().addr().wrapping_sub(x[0].numbers.as_ptr().addr());
    assert!(
        x.iter().all(|x| x.numbers.as_ptr().addr().wrapping_add(tail) == x.tail.as_ptr().addr()),
        "rows of one length lie alike"
    );
    // SAFETY: what is read lies in the group, at a place below its eighth, and in numbers and tails: in all rows of
    // quantised columns of one length a tail is at the same distance from its numbers. Nothing is written.
    unsafe {
        asm!(
            // Cancels the zero point of the weights.
            each!(
                "vpbroadcastd zmm2" c ", dword ptr [{x" c "} + {tail} + 4 * {start}]\n"
                "vmovdqa64 zmm1" c ", zmm2" c "\n"
            ),
            ".irp four, 0, 1, 2, 3, 4, 5, 6, 7",
            "vmovdqa64 zmm16, [{w} + 64 * \\four]",
            "vmovdqa64 zmm17, [{w} + {panel} + 64 * \\four]",
            each!(
                "vpbroadcastd zmm18, dword ptr [{x" c "} + 4 * \\four]\n"
                "vpdpbusd zmm2" c ", zmm16, zmm18\n"
                "vpdpbusd zmm1" c ", zmm17, zmm18\n"
            ),
            ".endr",
            // The excess of the run of four.
            each!(
                "mov {place:e}, dword ptr [{x" c "} + {tail} + 4 * {place_at}]\n"
                "vpbroadcastd zmm18, dword ptr [{x" c "} + {tail} + 4 * {excess_at}]\n"
                "and {place:e}, 64 * 7\n"
                "vmovdqa64 zmm16, [{w} + {place}]\n"
                "vmovdqa64 zmm17, [{w} + {place} + {panel}]\n"
                "vpdpbusd zmm2" c ", zmm16, zmm18\n"
                "vpdpbusd zmm1" c ", zmm17, zmm18\n"
            ),
            "vmovaps zmm16, [{w} + {factors}]",
            "vmovaps zmm17, [{w} + {panel} + {factors}]",
            ".if {is_large}",
            each!(
                "vcvtdq2ps zmm2" c ", zmm2" c "\n"
                "vcvtdq2ps zmm1" c ", zmm1" c "\n"
                "vfmadd231ps {u" c "}, zmm2" c ", zmm16\n"
                "vfmadd231ps {v" c "}, zmm1" c ", zmm17\n"
            ),
            ".else",
            each!(
                "vbroadcastss zmm18, dword ptr [{x" c "} + {tail} + 4 * {scale_at}]\n"
                "vcvtdq2ps zmm2" c ", zmm2" c "\n"
                "vcvtdq2ps zmm1" c ", zmm1" c "\n"
                "vmulps zmm19, zmm16, zmm18\n"
                "vmulps zmm18, zmm17, zmm18\n"
                "vfmadd231ps {u" c "}, zmm2" c ", zmm19\n"
                "vfmadd231ps {v" c "}, zmm1" c ", zmm18\n"
            ),
            ".endif",
            is_large = const Storage::ALL[S].is_super_block() as usize,
            panel = const size_of::<Panel>(),
            factors = const offset_of!(Panel, factors),
            start = const if Storage::ALL[S].has_offsets() { Tail::Zero as usize } else { Tail::Start as usize },
            place_at = const Tail::Place as usize,
            excess_at = const Tail::Excess as usize,
            scale_at = const Tail::Scale as usize,
            w = in(reg) group,
            tail = in(reg) tail,
            place = out(reg) _,
            x0 = in(reg) x[0].numbers, x1 = in(reg) x[1].numbers, x2 = in(reg) x[2].numbers,
            x3 = in(reg) x[3].numbers, x4 = in(reg) x[4].numbers, x5 = in(reg) x[5].numbers,
            u0 = inout(zmm_reg) *u0, u1 = inout(zmm_reg) *u1, u2 = inout(zmm_reg) *u2,
            u3 = inout(zmm_reg) *u3, u4 = inout(zmm_reg) *u4, u5 = inout(zmm_reg) *u5,
            v0 = inout(zmm_reg) *v0, v1 = inout(zmm_reg) *v1, v2 = inout(zmm_reg) *v2,
            v3 = inout(zmm_reg) *v3, v4 = inout(zmm_reg) *v4, v5 = inout(zmm_reg) *v5,
            out("zmm20") _, out("zmm21") _, out("zmm22") _, out("zmm23") _,
            out("zmm24") _, out("zmm25") _, out("zmm10") _, out("zmm11") _,
            out("zmm12") _, out("zmm13") _, out("zmm14") _, out("zmm15") _,
            out("zmm16") _, out("zmm17") _, out("zmm18") _, out("zmm19") _,
            options(pure, readonly, nostack),
        );
    }
}
