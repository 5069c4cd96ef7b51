//! Index expressions as instructions.
//!
//! In: an [`Index`] whose variables have values. Out: a `u32`. Sums wrap around and come out right, because `limits.rs`
//! has made sure that every index fits 32 bits; signs matter in quotients and bounds only.

use cubecl_core::ir::{Arithmetic, Comparison, Variable};

use crate::codegen::gpu::emit::Emitter;
use crate::codegen::gpu::writer::{constant, known, signed_constant};
use crate::kernel::index::{Atom, Index};
use crate::tensor::sym::{Sym, Symbol};

impl Emitter<'_> {
    /// The value of an index.
    pub(crate) fn index(&mut self, index: &Index) -> Variable {
        let mut sum: Option<Variable> = None;
        for (atom, factor) in index.terms() {
            let atom = self.atom(atom);
            let (size, is_less) = (constant(factor.abs()), *factor < 0);
            let term = self.writer.mul(atom, size);
            sum = Some(match sum {
                None if is_less => {
                    let zero = constant(0);
                    self.writer.sub(zero, term)
                }
                None => term,
                Some(sum) if is_less => self.writer.sub(sum, term),
                Some(sum) => self.writer.add(sum, term),
            });
        }
        let offset = index.offset();
        let size = constant(offset.abs());
        match sum {
            None => constant(offset),
            Some(sum) if offset < 0 => self.writer.sub(sum, size),
            Some(sum) => self.writer.add(sum, size),
        }
    }

    /// The value of a symbolic size; no size is negative.
    pub(crate) fn size(&mut self, sym: &Sym) -> Variable {
        let size = self.index(&Index::sym(sym));
        if sym.least() >= 0 { size } else { self.at_least(size, 0) }
    }

    fn atom(&mut self, atom: &Atom) -> Variable {
        match atom {
            Atom::Var(var) => self.vars[var],
            Atom::Symbols(symbols) => self.product_of(symbols),
            Atom::Div(inner, by) => self.quotient(inner, *by).0,
            Atom::Rem(inner, by) => self.quotient(inner, *by).1,
            Atom::Min(inner, most) => {
                let inner = self.index(inner);
                self.at_most(inner, *most)
            }
            Atom::Max(inner, least) => {
                let inner = self.index(inner);
                self.at_least(inner, *least)
            }
            Atom::Lookup { from, at, below } => {
                let found = self.load(*from, at);
                let found = self.writer.unsigned(found);
                let found = self.at_least(found, 0);
                self.at_most(found, below - 1)
            }
        }
    }

    fn product_of(&mut self, symbols: &[Symbol]) -> Variable {
        let one = constant(1);
        symbols.iter().fold(one, |product, symbol| {
            let value = self.symbols[symbol];
            self.writer.mul(product, value)
        })
    }

    fn at_most(&mut self, x: Variable, most: i64) -> Variable {
        let (x, most) = (self.writer.signed(x), signed_constant(most as i32));
        let least = self.writer.arithmetic(Arithmetic::Min, x, most);
        self.writer.unsigned(least)
    }

    fn at_least(&mut self, x: Variable, least: i64) -> Variable {
        let (x, least) = (self.writer.signed(x), signed_constant(least as i32));
        let most = self.writer.arithmetic(Arithmetic::Max, x, least);
        self.writer.unsigned(most)
    }

    /// The quotient, rounded down, and the remainder.
    fn quotient(&mut self, inner: &Index, by: i64) -> (Variable, Variable) {
        let x = self.index(inner);
        let by_number = constant(by);
        if inner.bounds(&self.part.vars).0 >= 0 || known(x).is_some_and(|x| x.cast_signed() >= 0) {
            return (self.writer.div(x, by_number), self.writer.rem(x, by_number));
        }
        // Floor division of a negative x: -1 - (-1 - x) / by.
        let zero = signed_constant(0);
        let as_signed = self.writer.signed(x);
        let is_negative = self.writer.compare(Comparison::Lower, as_signed, zero);
        let all = constant(-1);
        let missing = self.writer.sub(all, x);
        let size = self.writer.select(is_negative, missing, x);
        let size = self.writer.div(size, by_number);
        let below = self.writer.sub(all, size);
        let quotient = self.writer.select(is_negative, below, size);
        let whole = self.writer.mul(quotient, by_number);
        (quotient, self.writer.sub(x, whole))
    }
}
