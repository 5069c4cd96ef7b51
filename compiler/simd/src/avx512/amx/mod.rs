//! Tiles of bfloat16 numbers or bytes and the unit that multiplies them: AMX.
//!
//! In: tiles in memory and a square of sums. Out: the sums with the products added. The instructions are written out,
//! because the compiler has no stable functions for them; it uses no tile registers of its own.
//! A thread that multiplies holds a [`Unit`] or [`Bytes`]: it sets the tile registers up and gives them back at its
//! end, so that switching threads does not save them for nothing.

use std::arch::asm;
#[cfg(target_os = "linux")]
use std::arch::x86_64::{__cpuid, __cpuid_count};
use std::marker::PhantomData;

use crate::view::Square;

pub(super) mod bf16_tiles;
pub(super) mod gemm_amx_bf16;
pub(super) mod gemm_amx_int8;

/// Sixteen lines of 64 bytes: 32 elements of sixteen columns, or sixteen pairs of elements of sixteen rows.
pub(super) type Tile = [[u8; 64]; 16];

/// Lines of a square of sums.
pub(super) const SQUARE: usize = 32;

/// Products along the elements: two columns of activation tiles, one of pairs of weight tiles.
#[derive(Clone, Copy)]
pub(super) struct Run<'a> {
    pub(super) vectors: [&'a [Tile]; 2],
    pub(super) rows: &'a [[Tile; 2]],
}

/// The eight tile registers of this thread, each of a whole tile.
pub(super) struct Unit(Registers);

/// The tile registers of this thread for bytes: two pairs for sums of sixteen rows with eight columns, two of 64 bytes
/// of sixteen rows, and one of as many bytes of eight columns.
pub(super) struct Bytes(Registers);

/// Tile registers that are set up.
struct Registers(PhantomData<*mut Tile>);

/// What describes the registers: a palette, bytes of a line, lines.
#[repr(C, align(64))]
struct Shapes {
    palette: [u8; 16],
    line_bytes: [u16; 16],
    n_lines: [u8; 16],
}

/// Bytes of a line and lines of a whole tile.
const WHOLE: (u16, u8) = (64, 16);

impl Registers {
    /// Sets them up: bytes of a line and lines of each.
    ///
    /// # Safety
    /// The processor must have AMX, and the process the permission that [`is_there`] requests.
    unsafe fn new(lines: [(u16, u8); 8]) -> Self {
        let mut shapes = Shapes { palette: [0; 16], line_bytes: [0; 16], n_lines: [0; 16] };
        shapes.palette[0] = 1;
        for (i, lines) in lines.into_iter().enumerate() {
            (shapes.line_bytes[i], shapes.n_lines[i]) = lines;
        }
        // SAFETY: the caller promises the instruction; it reads 64 bytes, which are there.
        unsafe {
            asm!("ldtilecfg [{}]", in(reg) &raw const shapes, options(nostack, readonly, preserves_flags));
        }
        Self(PhantomData)
    }
}

impl Drop for Registers {
    fn drop(&mut self) {
        // SAFETY: they are set up, so there is the instruction.
        unsafe { asm!("tilerelease", options(nostack, nomem, preserves_flags)) };
    }
}

impl Unit {
    /// Sets the registers up.
    ///
    /// # Safety
    /// As for [`Registers::new`].
    pub(super) unsafe fn new() -> Self {
        // SAFETY: the caller promises it.
        Self(unsafe { Registers::new([WHOLE; 8]) })
    }

    /// Adds the products of a run to a square; of numbers in two parts those of both first parts, and of each first
    /// part with the other's second.
    #[expect(clippy::unused_self, reason = "who has a unit has set its tiles up")]
    pub(super) fn add<const P: usize>(&self, square: &mut Square<'_>, parts: [Run<'_>; P]) {
        const { assert!(P == 1 || P == 2) };
        let (first, last) = (parts[0], parts[P - 1]);
        let n = first.rows.len();
        let all = [first.vectors[0], first.vectors[1], last.vectors[0], last.vectors[1]];
        assert!(all.iter().all(|tiles| tiles.len() == n) && last.rows.len() == n, "as many tiles of each");
        let [a, b, more_a, more_b] = all.map(<[Tile]>::as_ptr);
        let (start, line) = square.lines();
        // SAFETY: there is a unit, so there are the instructions. They read as many tiles as there are, one kilobyte
        // each, and read and write 32 lines of 32 numbers that the square has.
        unsafe {
            asm!(
                "tileloadd tmm0, [{sums} + {line}]",
                "tileloadd tmm1, [{sums} + {line} + 64]",
                "tileloadd tmm2, [{lower} + {line}]",
                "tileloadd tmm3, [{lower} + {line} + 64]",
                "test {left}, {left}",
                "jz 4f",
                "2:",
                "tileloadd tmm6, [{w} + {step}]",
                "tileloadd tmm7, [{w} + {step} + 1024]",
                ".if {two}",
                "tileloadd tmm4, [{more_a} + {step}]",
                "tileloadd tmm5, [{more_b} + {step}]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "add {more_a}, 1024",
                "add {more_b}, 1024",
                ".endif",
                "tileloadd tmm4, [{a} + {step}]",
                "tileloadd tmm5, [{b} + {step}]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                ".if {two}",
                "tileloadd tmm6, [{more_w} + {step}]",
                "tileloadd tmm7, [{more_w} + {step} + 1024]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "add {more_w}, 2048",
                ".endif",
                "add {a}, 1024",
                "add {b}, 1024",
                "add {w}, 2048",
                "dec {left}",
                "jnz 2b",
                "4:",
                "tilestored [{sums} + {line}], tmm0",
                "tilestored [{sums} + {line} + 64], tmm1",
                "tilestored [{lower} + {line}], tmm2",
                "tilestored [{lower} + {line} + 64], tmm3",
                two = const P - 1,
                sums = in(reg) start,
                lower = in(reg) start.wrapping_byte_add(16 * line),
                line = in(reg) line,
                step = in(reg) 64_usize,
                left = inout(reg) n => _,
                a = inout(reg) a => _,
                b = inout(reg) b => _,
                w = inout(reg) first.rows.as_ptr() => _,
                more_a = inout(reg) more_a => _,
                more_b = inout(reg) more_b => _,
                more_w = inout(reg) last.rows.as_ptr() => _,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
    }
}

impl Bytes {
    /// Sets the registers up.
    ///
    /// # Safety
    /// As for [`Registers::new`].
    pub(super) unsafe fn new() -> Self {
        let half = (32, 16);
        // SAFETY: the caller promises it.
        Self(unsafe { Registers::new([half, half, half, half, WHOLE, WHOLE, half, half]) })
    }

    /// Multiplies a group of two tiles of rows, which have it twice, with eight columns: their numbers and their
    /// excess. Keeps the sums in the odd or the even pair of registers, and stores those of the other pair: a line for
    /// each row of the first tile, followed by one for a row of the second.
    #[inline(always)]
    #[expect(clippy::unused_self, reason = "who has a unit has set its tiles up")]
    pub(super) fn dots<const ODD: usize>(
        &self,
        rows: &[[u8; 64]; 32],
        vectors: &[[u8; 64]; 8],
        before: &mut Tile,
    ) {
        // SAFETY: there is a unit, so there are the instructions. They read the lines of two tiles and sixteen half
        // lines, and write a tile.
        unsafe {
            asm!(
                "tileloadd tmm4, [{w} + {line}]",
                "tileloadd tmm5, [{w} + {line} + 1024]",
                "tileloadd tmm6, [{x} + {half}]",
                "tilezero tmm{a}",
                "tdpbssd tmm{a}, tmm4, tmm6",
                "tilezero tmm{b}",
                "tdpbssd tmm{b}, tmm5, tmm6",
                "tilestored [{before} + {line}], tmm{c}",
                "tilestored [{before} + {line} + 32], tmm{d}",
                a = const 2 * ODD,
                b = const 2 * ODD + 1,
                c = const 2 - 2 * ODD,
                d = const 3 - 2 * ODD,
                w = in(reg) rows.as_ptr(),
                x = in(reg) vectors.as_ptr(),
                line = in(reg) 64_usize,
                half = in(reg) 32_usize,
                before = in(reg) before.as_mut_ptr(),
                out("tmm4") _, out("tmm5") _, out("tmm6") _,
                options(nostack, preserves_flags),
            );
        }
    }

    /// Stores the sums of the odd pair of registers.
    #[inline(always)]
    #[expect(clippy::unused_self, reason = "who has a unit has set its tiles up")]
    pub(super) fn odd_sums(&self, sums: &mut Tile) {
        // SAFETY: there is a unit, so there are the instructions, which write a tile.
        unsafe {
            asm!(
                "tilestored [{sums} + {line}], tmm2",
                "tilestored [{sums} + {line} + 32], tmm3",
                sums = in(reg) sums.as_mut_ptr(),
                line = in(reg) 64_usize,
                options(nostack, preserves_flags),
            );
        }
    }
}

/// Copies 32 bytes of each of 32 rows, twice side by side.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn twice_each(rows: &[u8], stride: usize, lines: &mut [[u8; 64]; 32]) {
    assert!(rows.len() >= 31 * stride + 32, "32 rows");
    // SAFETY: the instructions are those of the function. They read rows that are there, and write as many lines.
    unsafe {
        asm!(
            ".rept 8",
            "vbroadcasti64x4 zmm28, [{row}]",
            "vbroadcasti64x4 zmm29, [{row} + {stride}]",
            "vbroadcasti64x4 zmm30, [{row} + 2*{stride}]",
            "vbroadcasti64x4 zmm31, [{row} + {three}]",
            "lea {row}, [{row} + 4*{stride}]",
            "vmovdqu64 [{line}], zmm28",
            "vmovdqu64 [{line} + 64], zmm29",
            "vmovdqu64 [{line} + 128], zmm30",
            "vmovdqu64 [{line} + 192], zmm31",
            "add {line}, 256",
            ".endr",
            row = inout(reg) rows.as_ptr() => _,
            line = inout(reg) lines.as_mut_ptr() => _,
            stride = in(reg) stride,
            three = in(reg) 3 * stride,
            out("zmm28") _, out("zmm29") _, out("zmm30") _, out("zmm31") _,
            options(nostack),
        );
    }
}

/// Whether the processor has AMX and the system grants it to this process, which is requested here.
#[cfg(target_os = "linux")]
pub(super) fn is_there() -> bool {
    // `arch_prctl` with `ARCH_REQ_XCOMP_PERM` for the data of tiles.
    const CALL: i64 = 158;
    const ASK: u64 = 0x1023;
    const TILE_DATA: u64 = 18;
    const TILES_OF_BOTH: u32 = 1 << 24 | 1 << 25 | 1 << 22;
    if __cpuid(0).eax < 7 || __cpuid_count(7, 0).edx & TILES_OF_BOTH != TILES_OF_BOTH {
        return false;
    }
    let mut result = CALL;
    // SAFETY: the call only changes what this process may use; a system that does not know it says so.
    unsafe {
        asm!(
            "syscall",
            inout("rax") result,
            in("rdi") ASK,
            in("rsi") TILE_DATA,
            out("rcx") _,
            out("r11") _,
            options(nostack),
        );
    }
    result == 0
}

/// Other systems are not supported.
#[cfg(not(target_os = "linux"))]
pub(super) fn is_there() -> bool {
    false
}
