//! Whole-number expressions as code.
//!
//! In: an [`Index`] whose variables have values. Out: a value of 64 bits.
//! `limits.rs` has seen to it that no sum overflows; divisors are positive, and a lookup is brought into its range
//! before it is used, whatever memory holds.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::I64;
use cranelift_codegen::ir::{InstBuilder, Value};

use crate::codegen::cpu::emit::Emitter;
use crate::kernel::index::{Atom, Index};
use crate::tensor::sym::{Sym, Symbol};

impl Emitter<'_, '_> {
    /// The value of an index.
    pub(crate) fn index(&mut self, index: &Index) -> Value {
        let mut sum = self.whole(index.offset());
        for (atom, factor) in index.terms() {
            let atom = self.atom(atom);
            let term = self.builder.ins().imul_imm_s(atom, *factor);
            sum = self.builder.ins().iadd(sum, term);
        }
        sum
    }

    /// The value of a symbolic size.
    pub(crate) fn sym(&mut self, sym: &Sym) -> Value {
        self.index(&Index::sym(sym))
    }

    /// A number of 64 bits.
    pub(crate) fn whole(&mut self, number: i64) -> Value {
        self.builder.ins().iconst(I64, number)
    }

    fn atom(&mut self, atom: &Atom) -> Value {
        match atom {
            Atom::Var(var) => self.vars[var],
            Atom::Symbols(symbols) => self.product_of(symbols),
            Atom::Div(inner, by) => self.quotient(inner, *by).0,
            Atom::Rem(inner, by) => self.quotient(inner, *by).1,
            Atom::Min(inner, most) => {
                let (inner, most) = (self.index(inner), self.whole(*most));
                self.builder.ins().smin(inner, most)
            }
            Atom::Max(inner, least) => {
                let (inner, least) = (self.index(inner), self.whole(*least));
                self.builder.ins().smax(inner, least)
            }
            Atom::Lookup { from, at, below } => {
                let found = self.load(*from, at);
                let found = self.builder.ins().sextend(I64, found);
                let (least, most) = (self.whole(0), self.whole(below - 1));
                let found = self.builder.ins().smax(found, least);
                self.builder.ins().smin(found, most)
            }
        }
    }

    fn product_of(&mut self, symbols: &[Symbol]) -> Value {
        let one = self.whole(1);
        symbols.iter().fold(one, |product, symbol| {
            let value = self.symbols[symbol];
            self.builder.ins().imul(product, value)
        })
    }

    /// The quotient, rounded down, and the remainder; unsigned where the dividend cannot be negative.
    fn quotient(&mut self, inner: &Index, by: i64) -> (Value, Value) {
        let x = self.index(inner);
        if inner.bounds(&self.part.vars).0 >= 0 {
            return self.split(x, by);
        }
        let by = self.whole(by);
        let quotient = self.builder.ins().sdiv(x, by);
        let rest = self.builder.ins().srem(x, by);
        let is_below = self.builder.ins().icmp_imm_s(IntCC::SignedLessThan, rest, 0);
        let (less, more) = (self.builder.ins().iadd_imm_s(quotient, -1), self.builder.ins().iadd(rest, by));
        let quotient = self.builder.ins().select(is_below, less, quotient);
        (quotient, self.builder.ins().select(is_below, more, rest))
    }

    /// The quotient and the remainder of what is not negative by a positive number.
    pub(crate) fn split(&mut self, x: Value, by: i64) -> (Value, Value) {
        let by = self.whole(by);
        let quotient = self.builder.ins().udiv(x, by);
        (quotient, self.builder.ins().urem(x, by))
    }
}
