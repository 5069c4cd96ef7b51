//! Quantises rows to blocks: `Q8_0` and `Q4_0`.
//!
//! In: a nest that copies rows of a tile to a buffer of blocks. Out: its stores. Threads take blocks in turn: each
//! finds the element of greatest size, and packs the quants into words, with the formulas of `tensor::quant`. Two
//! scales share a word, which is stored atomically.

use cubecl_core::ir::{Arithmetic, Comparison, Variable};
use fusebox_formats::{Code, Numbers};

use crate::codegen::gpu::emit::Emitter;
use crate::codegen::gpu::value::layout::{FieldKind, field_bytes, field_offset};
use crate::codegen::gpu::writer::{F32, I32, Writes, constant, signed_constant};
use crate::kernel::{Nest, Place, VarId};
use crate::target::THREADS;
use crate::tensor::dtype::DType;
use crate::tensor::quant::Format;

/// Bytes of a word.
const WORD: i64 = 4;

impl Emitter<'_> {
    pub(crate) fn quantise_rows(&mut self, nest: &Nest, format: Format) {
        let (row, outer) = nest.loops.split_last().expect("a row is a loop");
        let len = constant(format.block_len() as i64);
        let counts: Vec<Variable> = outer.iter().map(|var| self.count(*var)).collect();
        let n_elements = self.count(*row);
        let n_blocks = self.writer.div(n_elements, len);
        let n_rows = self.product(&counts);
        let n = self.writer.mul(n_rows, n_blocks);
        let (thread, threads) = (self.thread, constant(i64::from(THREADS)));
        self.counted(thread, n, threads, |emitter, i| {
            let (number, block) = (emitter.writer.div(i, n_blocks), emitter.writer.rem(i, n_blocks));
            emitter.bind(outer, &counts, number);
            let first = emitter.writer.mul(block, len);
            let first = emitter.writer.add(emitter.start(*row), first);
            emitter.quantise_block(nest, format, (*row, first));
        });
    }

    /// Quantises the block that begins where a variable has a value.
    fn quantise_block(&mut self, nest: &Nest, format: Format, (row, first): (VarId, Variable)) {
        let Place::Param(id) = nest.target else { unreachable!("tiles have no blocks") };
        let list = self.params[id].list;
        let n_elements = self.kernel.params[id].shape.max_len();
        let len = constant(format.block_len() as i64);
        self.vars.insert(row, first);
        let element = self.element(nest.target, &nest.at);
        let block = self.writer.div(element, len);

        let Numbers { planes: [plane], code } =
            format.blocks().expect("only blocks are rounded as such").quanta
        else {
            unreachable!("numbers that kernels store lie in one plane")
        };
        let greatest = self.greatest(nest, (row, first), len);
        let d = self.scale_of(code, greatest);
        let [zero, one] = [0.0, 1.0].map(|number| self.writer.float_number(number));
        let inverse = self.writer.arithmetic(Arithmetic::Div, one, d);
        let is_none = self.equals(d, zero);
        let inverse = self.writer.select(is_none, zero, inverse);

        let first_word = field_offset(format, n_elements, FieldKind::Elements) / 4;
        let n_words = constant(field_bytes(format, FieldKind::Elements) as i64 / WORD);
        let start = self.writer.mul(block, n_words);
        let words = self.writer.add(start, constant(first_word as i64));
        self.counted(constant(0), n_words, constant(1), |emitter, number| {
            let mut word = constant(0);
            for (byte, layer) in
                (0..WORD).flat_map(|byte| (0..plane.per_byte).map(move |layer| (byte, layer)))
            {
                let i = emitter.writer.mul(number, constant(WORD));
                let i = emitter.writer.add(i, constant(byte + (plane.width * layer) as i64));
                let x = emitter.source_value(nest, row, (first, i));
                let bits = emitter.quant_of(code, x, inverse);
                let bits = emitter.writer.shift_left(bits, 8 * byte as u32 + plane.bits * layer as u32);
                word = emitter.writer.or(word, bits);
            }
            let place = emitter.writer.add(words, number);
            emitter.writer.store_word(list, place, word);
        });
        let scales = field_offset(format, n_elements, FieldKind::Scales) / 2;
        let scale = self.writer.add(block, constant(scales as i64));
        let bits = self.narrowed(DType::F16, d);
        self.store_half(list, scale, bits);
    }

    /// An element of a block.
    fn source_value(&mut self, nest: &Nest, row: VarId, (first, i): (Variable, Variable)) -> Variable {
        let value = self.writer.add(first, i);
        self.vars.insert(row, value);
        self.scalar(nest, nest.value)
    }

    /// The first element of greatest size in a block.
    fn greatest(&mut self, nest: &Nest, (row, first): (VarId, Variable), len: Variable) -> Variable {
        let zero = self.writer.float_number(0.0);
        let greatest = self.writer.mutable(zero);
        self.counted(constant(0), len, constant(1), |emitter, i| {
            let x = emitter.source_value(nest, row, (first, i));
            let sizes = [x, greatest.value()].map(|x| emitter.writer.function(Arithmetic::Abs, x));
            let is_greater = emitter.writer.compare(Comparison::Greater, sizes[0], sizes[1]);
            let found = emitter.writer.select(is_greater, x, greatest.value());
            emitter.writer.set(&greatest, found);
        });
        greatest.value()
    }

    /// The scale that makes the element of greatest size the last quant with a sign, or the first one of others.
    fn scale_of(&mut self, code: Code, greatest: Variable) -> Variable {
        let (greatest, steps) = match code {
            Code::Signed => (self.writer.function(Arithmetic::Abs, greatest), 127.0),
            Code::From(zero) => (greatest, -f32::from(zero)),
            Code::Table(_) => unreachable!("no kernel stores numbers of a table"),
        };
        let steps = self.writer.float_number(steps);
        self.writer.arithmetic(Arithmetic::Div, greatest, steps)
    }

    /// The bits of the quant of an element.
    fn quant_of(&mut self, code: Code, x: Variable, inverse: Variable) -> Variable {
        match code {
            Code::Signed => self.rounded_quant(x, inverse),
            Code::From(zero) => self.quant_above(zero, x, inverse),
            Code::Table(_) => unreachable!("no kernel stores numbers of a table"),
        }
    }

    /// The nearest quant above a zero point, ties upwards; there are as many above it as below.
    fn quant_above(&mut self, zero: u8, x: Variable, inverse: Variable) -> Variable {
        let quotient = self.times(x, inverse);
        let moved = self.writer.float_number(f32::from(zero) + 0.5);
        let moved = self.writer.arithmetic(Arithmetic::Add, quotient, moved);
        let whole = self.writer.cast(I32, moved);
        let bits = self.writer.unsigned(whole);
        self.writer.arithmetic(Arithmetic::Min, bits, constant(2 * i64::from(zero) - 1))
    }

    /// The nearest 8-bit quant, ties away from zero.
    fn rounded_quant(&mut self, x: Variable, inverse: Variable) -> Variable {
        let quotient = self.times(x, inverse);
        let whole = self.writer.cast(I32, quotient);
        let near = self.writer.cast(F32, whole);
        let rest = self.writer.arithmetic(Arithmetic::Sub, quotient, near);
        let [half, minus_half] = [0.5, -0.5].map(|number| self.writer.float_number(number));
        let [none, one, minus_one] = [0, 1, -1].map(signed_constant);
        let is_more = self.writer.compare(Comparison::GreaterEqual, rest, half);
        let is_less = self.writer.compare(Comparison::LowerEqual, rest, minus_half);
        let less = self.writer.select(is_less, minus_one, none);
        let change = self.writer.select(is_more, one, less);
        let whole = self.writer.arithmetic(Arithmetic::Add, whole, change);
        let bits = self.writer.unsigned(whole);
        self.writer.and(bits, 0xff)
    }
}
