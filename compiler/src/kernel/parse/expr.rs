//! Reads the scalars of a nest: numbers, elements, positions, calls and references to `let` lines.
//!
//! In: text such as `mul(@0[t0, d3], %1)`. Out: expressions numbered as they are read, operands first, equal ones once.
//! Types are not known here; `verify` computes them.

use indexmap::IndexSet;

use crate::foundation::entity::{Id, List};
use crate::foundation::text::SyntaxError;
use crate::graph::op::{Binary, Scalar, Unary};
use crate::kernel::parse::{Read, Reader, fail};
use crate::kernel::{Expr, ExprId};
use crate::tensor::dtype::DType;

/// The expressions of a nest so far, and what its `let` lines name.
#[derive(Default)]
pub(super) struct Scalars {
    exprs: IndexSet<Expr>,
    lets: Vec<ExprId>,
}

impl Scalars {
    pub(super) fn into_exprs(self) -> List<ExprId, Expr> {
        self.exprs.into_iter().collect()
    }

    fn push(&mut self, expr: Expr) -> ExprId {
        ExprId::from_index(self.exprs.insert_full(expr).0)
    }
}

impl Reader<'_> {
    /// What follows `let`: `%0 = add(…)`.
    pub(super) fn binding(&mut self, scalars: &mut Scalars) -> Read<()> {
        let number = scalars.lets.len();
        self.s.expect("%")?;
        self.declared_number(&format!("`%{number}`"), number)?;
        self.s.expect("=")?;
        let id = self.expr(scalars)?;
        scalars.lets.push(id);
        Ok(())
    }

    /// A scalar.
    pub(super) fn expr(&mut self, scalars: &mut Scalars) -> Read<ExprId> {
        self.nested(|reader| reader.scalar(scalars))
    }

    fn scalar(&mut self, scalars: &mut Scalars) -> Read<ExprId> {
        let mut ahead = self.s.clone();
        if ahead.take("%") {
            return self.reference(scalars);
        }
        let word = ahead.word("").ok();
        let is_number = word.is_none_or(|word| word == "inf" || word.starts_with("nan"));
        if self.s.peek("@") || word.is_some_and(|word| word.starts_with("tile")) {
            let (from, at) = self.element("a buffer or a tile")?;
            return Ok(scalars.push(Expr::Load { from, at }));
        }
        if is_number {
            let number = self.constant()?;
            return Ok(scalars.push(Expr::Const(number)));
        }
        self.call_of(scalars)
    }

    fn reference(&mut self, scalars: &Scalars) -> Read<ExprId> {
        let at = self.s.clone();
        self.s.expect("%")?;
        let number = self.s.integer("the number of a `let` line")?;
        let id = usize::try_from(number).ok().and_then(|number| scalars.lets.get(number));
        id.copied().ok_or_else(|| at.clone().error("the number of a `let` line above"))
    }

    /// `1` is whole, `1.0` is not.
    fn constant(&mut self) -> Read<Scalar> {
        let expected = "a number, a buffer, a tile, `%` or a function";
        let at = self.s.clone();
        let mut ahead = self.s.clone();
        if let Ok(value) = ahead.integer("") {
            let ends = ahead.peek(",")
                || ahead.peek(")")
                || ahead.peek("from")
                || ahead.clone().end_of_line().is_ok();
            if ends {
                self.s = ahead;
                let value =
                    i32::try_from(value).map_err(|_| at.clone().error("a whole number of 32 bits"))?;
                return Ok(Scalar::I32(value));
            }
        }
        let mut ahead = self.s.clone();
        let bits =
            ahead.word("").ok().and_then(|word| u32::from_str_radix(word.strip_prefix("nan.")?, 16).ok());
        if let Some(bits) = bits.filter(|bits| f32::from_bits(*bits).is_nan()) {
            self.s = ahead;
            return Ok(Scalar::F32(bits));
        }
        Ok(Scalar::float(self.s.float(expected)?))
    }

    fn call_of(&mut self, scalars: &mut Scalars) -> Read<ExprId> {
        let at = self.s.clone();
        let name = self.s.word("a function")?;
        let expr = if name == "position" {
            self.s.expect("(")?;
            let index = self.index()?;
            self.s.expect(")")?;
            Expr::Position(index)
        } else if let Some(f) = Unary::named(name) {
            let [a] = self.operands(scalars)?;
            Expr::Unary(f, a)
        } else if let Some(f) = Binary::named(name) {
            let [a, b] = self.operands(scalars)?;
            Expr::Binary(f, a, b)
        } else if name == "select" {
            let [a, b, c] = self.operands(scalars)?;
            Expr::Select(a, b, c)
        } else if let Some(dtype) = name.strip_prefix("cast.").and_then(DType::named) {
            let [a] = self.operands(scalars)?;
            Expr::Cast(dtype, a)
        } else {
            return Err(no_function(at.clone().error("")));
        };
        Ok(scalars.push(expr))
    }

    fn operands<const N: usize>(&mut self, scalars: &mut Scalars) -> Read<[ExprId; N]> {
        let at = self.s.clone();
        let operands = self.list("(", ")", |reader| reader.expr(scalars))?;
        let n_operands = operands.len();
        let plural = if N == 1 { "operand" } else { "operands" };
        operands.try_into().map_err(|_| fail(&at, format!("{n_operands} given"), format!("{N} {plural}")))
    }
}

fn no_function(error: SyntaxError) -> SyntaxError {
    let unary = Unary::ALL.iter().map(|f| f.name());
    let names: Vec<&str> = unary.chain(Binary::ALL.iter().map(|f| f.name())).collect();
    let expected = format!("a function: {}, select, position, cast.f16 (or another type)", names.join(", "));
    SyntaxError { expected, ..error }
}
