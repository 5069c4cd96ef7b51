//! An assembler for AVX-512 (EVEX) functions.
//!
//! In: instructions on registers, one after another. Out: the bytes of a function that takes the address of its fields.
//! A register has sixteen 32-bit lanes. The last operand of an instruction is a register, memory, or a constant that is
//! broadcast from after the code. The first two fields are the elements of a row and the number of rows; the loops
//! over both are the only ones. Encodings follow Intel's manual.

/// A register of sixteen numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Zmm(pub(super) u8);

/// A register of a truth for each lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mask(pub(super) u8);

impl Mask {
    /// All lanes.
    pub(super) const ALL: Self = Self(0);
    /// The lanes after the last whole vector of a row.
    pub(super) const REST: Self = Self(1);
}

/// A register of 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gpr(u8);

/// Where the fields are.
const FIELDS: Gpr = Gpr(7);
/// Counts the elements of a row.
const COUNTER: Gpr = Gpr(1);
/// Registers for addresses. Those after the first six are callee-saved.
pub(super) const ADDRESSES: [Gpr; 12] =
    [Gpr(0), Gpr(6), Gpr(8), Gpr(9), Gpr(10), Gpr(11), Gpr(3), Gpr(5), Gpr(12), Gpr(13), Gpr(14), Gpr(15)];
const N_FREE: usize = 6;

/// The fields in front of the addresses.
pub(super) const N_SIZES: usize = 2;

/// A function starts at a multiple of this many bytes.
pub(in crate::codegen::cpu) const ALIGNMENT: u64 = 64;

/// The last operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Zmm(Zmm),
    Memory(Address),
    /// The bits of a number, in every lane.
    Bits(u32),
    /// The numbers from zero to fifteen.
    Lanes,
}

/// A place in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) base: Gpr,
    pub(super) offset: i32,
    /// The bytes of an element, where the place moves with the elements of a row: 2 or 4.
    pub(super) element: Option<u8>,
}

impl Address {
    pub(super) fn field(number: usize) -> Self {
        Self { base: FIELDS, offset: 8 * number as i32, element: None }
    }
}

/// An instruction: the numbers of its prefix, its map and itself, and what follows its operands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Op {
    prefix: u8,
    map: u8,
    code: u8,
    immediate: Option<u8>,
}

/// `out = a op b`, of numbers in single precision.
pub(super) const ADD: Op = op(0, 1, 0x58);
pub(super) const SUB: Op = op(0, 1, 0x5c);
pub(super) const MUL: Op = op(0, 1, 0x59);
pub(super) const DIV: Op = op(0, 1, 0x5e);
/// The second where one is NaN, or both are zero.
pub(super) const MIN: Op = op(0, 1, 0x5d);
pub(super) const MAX: Op = op(0, 1, 0x5f);
/// `out = a · 2^b`
pub(super) const SCALE: Op = op(1, 2, 0x2c);
/// `out = out · a + b`, rounded once.
pub(super) const TIMES_ADD: Op = op(1, 2, 0xa8);
/// `out = out + a · b`, rounded once.
pub(super) const ADD_TIMES: Op = op(1, 2, 0xb8);

/// `out = a op b`, of whole numbers.
pub(super) const ADD_WHOLE: Op = op(1, 1, 0xfe);
pub(super) const SUB_WHOLE: Op = op(1, 1, 0xfa);
pub(super) const MUL_WHOLE: Op = op(1, 2, 0x40);
pub(super) const MIN_WHOLE: Op = op(1, 2, 0x39);
pub(super) const MAX_WHOLE: Op = op(1, 2, 0x3d);
pub(super) const SHIFT_LEFT: Op = op(1, 2, 0x47);
pub(super) const XOR: Op = op(1, 1, 0xef);

/// `out = op b`
pub(super) const LOAD: Op = op(0, 1, 0x10);
/// One number of memory, in every lane.
pub(super) const LOAD_ONE: Op = op(1, 2, 0x18);
/// Numbers of 16 bits without sign.
pub(super) const LOAD_SHORT: Op = op(1, 2, 0x33);
pub(super) const LOAD_F16: Op = op(1, 2, 0x13);
pub(super) const SQRT: Op = op(0, 1, 0x51);
/// Of whole numbers.
pub(super) const FLOAT: Op = op(0, 1, 0x5b);

/// `b = op out`
pub(super) const STORE: Op = op(0, 1, 0x11);
/// The first lane.
pub(super) const STORE_ONE: Op = op(2, 1, 0x11);
/// Rounded to the nearest, ties to even.
pub(super) const STORE_F16: Op = op(1, 3, 0x1d).with(0);

/// The mask of `a op b`, of numbers in single precision.
pub(super) const EQUAL: Op = op(0, 1, 0xc2).with(0);
pub(super) const LESS: Op = op(0, 1, 0xc2).with(17);
pub(super) const AT_MOST: Op = op(0, 1, 0xc2).with(18);
/// Whether one is NaN.
pub(super) const UNORDERED: Op = op(0, 1, 0xc2).with(3);
/// The mask of `a op b`, of whole numbers.
pub(super) const EQUAL_WHOLE: Op = op(1, 3, 0x1f).with(0);
pub(super) const LESS_WHOLE: Op = op(1, 3, 0x1f).with(1);
pub(super) const AT_MOST_WHOLE: Op = op(1, 3, 0x1f).with(2);
/// Whether they have a bit in common.
pub(super) const MEET: Op = op(1, 2, 0x27);
/// `out = b` under the mask, else `a`.
pub(super) const BLEND: Op = op(1, 2, 0x65);

/// Puts the second half first; and of each half, quarter and pair of lanes.
const TURN_QUARTERS: [Op; 2] = [op(1, 3, 0x23).with(0x4e), op(1, 3, 0x23).with(0xb1)];
const TURN_LANES: [Op; 2] = [op(1, 3, 0x04).with(0x4e), op(1, 3, 0x04).with(0xb1)];

const fn op(prefix: u8, map: u8, code: u8) -> Op {
    Op { prefix, map, code, immediate: None }
}

impl Op {
    const fn with(self, immediate: u8) -> Self {
        Self { immediate: Some(immediate), ..self }
    }
}

/// A function, while its code is written.
pub(super) struct Assembler {
    code: Vec<u8>,
    /// The constants after the code.
    numbers: Vec<Source>,
    /// Displacements of constants that are still missing, and what they are relative to.
    missing: Vec<(usize, usize, usize)>,
    n_addresses: usize,
    /// Where the loops over rows and over lanes start.
    rows: usize,
    lanes: usize,
    /// Forward jumps.
    ahead: Vec<usize>,
}

impl Assembler {
    /// Begins a function with `n_addresses` addresses after the sizes; `has_rest`: rows may end with part of a vector.
    pub(super) fn new(n_addresses: usize, has_rest: bool) -> Self {
        let (numbers, missing, ahead) = (Vec::new(), Vec::new(), Vec::new());
        let mut own = Self { code: Vec::new(), numbers, missing, n_addresses, rows: 0, lanes: 0, ahead };
        for register in own.kept() {
            // push register
            own.code.extend([0x40 | register.0 >> 3, 0x50 | register.0 & 7]);
        }
        // mov rdx, [rdi]
        own.code.extend([0x48, 0x8b, 0x17]);
        if has_rest {
            // mov ecx, edx; and ecx, 15; mov eax, 1; shl eax, cl; dec eax; kmovw k1, eax; and rdx, -16
            own.code.extend([0x89, 0xd1, 0x83, 0xe1, 0x0f, 0xb8, 1, 0, 0, 0, 0xd3, 0xe0, 0xff, 0xc8]);
            own.code.extend([0xc5, 0xf8, 0x92, 0xc8, 0x48, 0x83, 0xe2, 0xf0]);
        }
        for (idx, register) in ADDRESSES[..n_addresses].iter().enumerate() {
            // mov register, [rdi + field]
            own.code.extend([0x48 | register.0 >> 3 << 2, 0x8b, 0x87 | (register.0 & 7) << 3]);
            own.code.extend((8 * (N_SIZES + idx) as i32).to_le_bytes());
        }
        // cmp qword [rdi + 8], 0; jle
        own.code.extend([0x48, 0x83, 0x7f, 0x08, 0x00]);
        own.jump_ahead(0x8e);
        own
    }

    /// The registers that the caller wants back.
    fn kept(&self) -> Vec<Gpr> {
        ADDRESSES[..self.n_addresses].iter().skip(N_FREE).copied().collect()
    }

    /// `out = a op b` in all lanes.
    pub(super) fn put(&mut self, op: Op, out: Zmm, a: Zmm, b: Source) {
        self.masked(op, out, a, b, Mask::ALL);
    }

    /// `out = op b` in all lanes.
    pub(super) fn unary(&mut self, op: Op, out: Zmm, b: Source) {
        self.put(op, out, Zmm(0), b);
    }

    /// `out = a op b`; lanes without a truth keep what `out` has.
    pub(super) fn masked(&mut self, op: Op, out: Zmm, a: Zmm, b: Source, mask: Mask) {
        self.encode(op, (out.0, a.0, b), mask, false);
    }

    /// `out = op b`; lanes without a truth are zero, and memory is not read for them.
    pub(super) fn load(&mut self, op: Op, out: Zmm, b: Source, mask: Mask) {
        self.encode(op, (out.0, 0, b), mask, mask != Mask::ALL);
    }

    /// The mask of `a op b`.
    pub(super) fn compare(&mut self, op: Op, out: Mask, a: Zmm, b: Source) {
        self.encode(op, (out.0, a.0, b), Mask::ALL, false);
    }

    /// Folds the lanes of a register with each other; each has the result.
    pub(super) fn join(&mut self, op: Op, sums: Zmm, spare: Zmm) {
        for turn in TURN_QUARTERS {
            self.put(turn, spare, sums, Source::Zmm(sums));
            self.put(op, sums, spare, Source::Zmm(sums));
        }
        for turn in TURN_LANES {
            self.unary(turn, spare, Source::Zmm(sums));
            self.put(op, sums, spare, Source::Zmm(sums));
        }
    }

    fn encode(&mut self, op: Op, (out, a, b): (u8, u8, Source), mask: Mask, is_zeroed: bool) {
        // The numbers of registers are spread over the prefix, inverted.
        let (high, index) = match b {
            Source::Zmm(Zmm(b)) => (b >> 3 & 1, b >> 4 & 1),
            Source::Memory(address) => (address.base.0 >> 3 & 1, 0),
            Source::Bits(_) | Source::Lanes => (0, 0),
        };
        let is_spread = matches!(b, Source::Bits(_)) && op.code != LOAD_ONE.code;
        let inverted = (out >> 3 & 1) << 7 | index << 6 | high << 5 | (out >> 4 & 1) << 4;
        self.code.extend([
            0x62,
            0xf0 ^ inverted | op.map,
            0x78 ^ (a & 15) << 3 | 4 | op.prefix,
            u8::from(is_zeroed) << 7 | 0x40 | u8::from(is_spread) << 4 | 8 ^ (a >> 4) << 3 | mask.0,
            op.code,
        ]);
        let out = (out & 7) << 3;
        match b {
            Source::Zmm(Zmm(b)) => self.code.push(0xc0 | out | b & 7),
            Source::Memory(Address { base, offset, element }) => {
                // Without an index there is the one that stands for none.
                let index = element.map_or(0x20, |bytes| COUNTER.0 << 3 | (bytes >> 1) << 6);
                self.code.extend([0x84 | out, index | base.0 & 7]);
                self.code.extend(offset.to_le_bytes());
            }
            Source::Bits(_) | Source::Lanes => {
                self.code.push(0x05 | out);
                let number = self.numbers.iter().position(|own| *own == b).unwrap_or(self.numbers.len());
                if number == self.numbers.len() {
                    self.numbers.push(b);
                }
                let place = self.code.len();
                self.missing.push((number, place, place + 4 + usize::from(op.immediate.is_some())));
                self.code.extend([0; 4]);
            }
        }
        self.code.extend(op.immediate);
    }

    /// What follows is done for every row.
    pub(super) fn begin_rows(&mut self) {
        self.rows = self.code.len();
    }

    /// What follows is done for every whole vector of a row.
    pub(super) fn begin_lanes(&mut self) {
        // xor ecx, ecx; cmp rcx, rdx; jge
        self.code.extend([0x31, 0xc9, 0x48, 0x39, 0xd1]);
        self.jump_ahead(0x8d);
        self.lanes = self.code.len();
    }

    pub(super) fn end_lanes(&mut self) {
        // add rcx, 16; cmp rcx, rdx; jl
        self.code.extend([0x48, 0x83, 0xc1, 0x10, 0x48, 0x39, 0xd1]);
        self.jump_back(0x8c, self.lanes);
        self.land();
    }

    /// What follows is done with [`Mask::REST`], if that has a lane.
    pub(super) fn begin_rest(&mut self) {
        // kortestw k1, k1; jz
        self.code.extend([0xc5, 0xf8, 0x98, 0xc9]);
        self.jump_ahead(0x84);
    }

    pub(super) fn end_rest(&mut self) {
        self.land();
    }

    /// Advances addresses by their steps in bytes, and begins the next row.
    pub(super) fn end_rows(&mut self, steps: &[i32]) {
        for (register, step) in ADDRESSES.iter().zip(steps).filter(|(_, step)| **step != 0) {
            // add register, step
            self.code.extend([0x48 | register.0 >> 3, 0x81, 0xc0 | register.0 & 7]);
            self.code.extend(step.to_le_bytes());
        }
        // sub qword [rdi + 8], 1; jnz
        self.code.extend([0x48, 0x83, 0x6f, 0x08, 0x01]);
        self.jump_back(0x85, self.rows);
    }

    /// Ends the function, and gives its bytes.
    pub(super) fn finish(mut self) -> Vec<u8> {
        self.land();
        // vzeroupper
        self.code.extend([0xc5, 0xf8, 0x77]);
        for register in self.kept().into_iter().rev() {
            // pop register
            self.code.extend([0x40 | register.0 >> 3, 0x58 | register.0 & 7]);
        }
        // ret
        self.code.push(0xc3);
        let mut places = Vec::new();
        for number in &self.numbers {
            let n_bytes = if *number == Source::Lanes { 64 } else { 4 };
            self.code.resize(self.code.len().next_multiple_of(n_bytes), 0);
            places.push(self.code.len());
            match number {
                Source::Bits(bits) => self.code.extend(bits.to_le_bytes()),
                Source::Lanes => self.code.extend((0..16_u32).flat_map(u32::to_le_bytes)),
                Source::Zmm(_) | Source::Memory(_) => unreachable!("only constants are after the code"),
            }
        }
        for (number, at, from) in self.missing {
            let way = (places[number] - from) as i32;
            self.code[at..at + 4].copy_from_slice(&way.to_le_bytes());
        }
        self.code
    }

    /// A jump on a condition, to where something lands.
    fn jump_ahead(&mut self, condition: u8) {
        self.code.extend([0x0f, condition, 0, 0, 0, 0]);
        self.ahead.push(self.code.len());
    }

    /// What the last jump that leads ahead leads to begins here.
    fn land(&mut self) {
        let from = self.ahead.pop().expect("each landing has a jump before");
        let way = (self.code.len() - from) as i32;
        self.code[from - 4..from].copy_from_slice(&way.to_le_bytes());
    }

    fn jump_back(&mut self, condition: u8, to: usize) {
        self.code.extend([0x0f, condition]);
        let way = to as i32 - (self.code.len() as i32 + 4);
        self.code.extend(way.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes of an instruction as an assembler prints them.
    fn spelled(put: impl FnOnce(&mut Assembler)) -> String {
        let mut code = Assembler::new(0, false);
        let before = code.code.len();
        put(&mut code);
        let bytes: Vec<String> = code.code[before..].iter().map(|byte| format!("{byte:02x}")).collect();
        bytes.join(" ")
    }

    #[test]
    fn instructions_are_those_of_another_assembler() {
        let place =
            |number: u8, element| Source::Memory(Address { base: Gpr(number), offset: 0x12345, element });
        let of = |number| Source::Zmm(Zmm(number));
        let cases = [
            ("62 81 64 48 58 cc", spelled(|code| code.put(ADD, Zmm(17), Zmm(3), of(28)))),
            ("62 d2 3d 47 65 cf", spelled(|code| code.masked(BLEND, Zmm(1), Zmm(24), of(15), Mask(7)))),
            ("62 f2 4d 49 b8 ef", spelled(|code| code.masked(ADD_TIMES, Zmm(5), Zmm(6), of(7), Mask::REST))),
            ("62 f3 55 48 23 e6 4e", spelled(|code| code.put(TURN_QUARTERS[0], Zmm(4), Zmm(5), of(6)))),
            ("62 b3 7d 48 04 e5 b1", spelled(|code| code.unary(TURN_LANES[1], Zmm(4), of(21)))),
            ("62 b1 3c 48 c2 d0 11", spelled(|code| code.compare(LESS, Mask(2), Zmm(8), of(16)))),
            (
                "62 51 7c c9 10 8c 8d 45 23 01 00",
                spelled(|code| code.load(LOAD, Zmm(9), place(13, Some(4)), Mask::REST)),
            ),
            (
                "62 62 7d 48 13 b4 48 45 23 01 00",
                spelled(|code| code.load(LOAD_F16, Zmm(30), place(0, Some(2)), Mask::ALL)),
            ),
            (
                "62 72 7d 48 33 84 4d 45 23 01 00",
                spelled(|code| code.unary(LOAD_SHORT, Zmm(8), place(5, Some(2)))),
            ),
            (
                "62 c3 7d 49 1d a4 4c 45 23 01 00 00",
                spelled(|code| code.masked(STORE_F16, Zmm(20), Zmm(0), place(12, Some(2)), Mask::REST)),
            ),
        ];
        for (wanted, actual) in cases {
            assert_eq!(actual, wanted);
        }
    }
}
