//! Scalar expressions as instructions: f32 and i32.
//!
//! In: the expressions of a nest. Out: the value of one of them, computed from what it needs and nothing else.
//! Sines, and all functions of languages with imprecise math, are the polynomials of `approx.rs`.

use cubecl_core::ir::{Arithmetic, BinaryOperator, Comparison, Variable};

use crate::codegen::gpu::emit::Emitter;
use crate::codegen::gpu::writer::{F32, I32, signed_constant};
use crate::foundation::entity::List;
use crate::graph::op::{Binary, Fold, Scalar, Unary};
use crate::kernel::walk::needed;
use crate::kernel::{Expr, ExprId, Nest};
use crate::tensor::dtype::DType;

impl Emitter<'_> {
    /// The value of a nest's expression.
    pub(crate) fn scalar(&mut self, nest: &Nest, root: ExprId) -> Variable {
        self.scalar_with(nest, root, &|_| None)
    }

    /// The same, where some expressions have a value already.
    pub(crate) fn scalar_with(
        &mut self,
        nest: &Nest,
        root: ExprId,
        known: &dyn Fn(ExprId) -> Option<Variable>,
    ) -> Variable {
        let mut values: List<ExprId, Option<Variable>> = nest.exprs.ids().map(known).collect();
        let is_needed = needed(&nest.exprs, &[root], |id| values[id].is_some());
        for (id, expr) in nest.exprs.iter() {
            if is_needed[id] && values[id].is_none() {
                let of = |id| values[id].expect("operands come first and are needed");
                let value = self.expr(expr, &of);
                values[id] = Some(value);
            }
        }
        values[root].expect("the root is needed")
    }

    /// One expression, from the values of its operands.
    pub(crate) fn expr(&mut self, expr: &Expr, of: &dyn Fn(ExprId) -> Variable) -> Variable {
        let value = |id: &ExprId| of(*id);
        match expr {
            Expr::Const(scalar) => self.constant(*scalar),
            Expr::Position(index) => {
                let index = self.index(index);
                self.writer.signed(index)
            }
            Expr::Load { from, at } => self.load(*from, at),
            Expr::Unary(f, a) => self.unary(*f, value(a)),
            Expr::Binary(f, a, b) => self.binary(*f, value(a), value(b)),
            Expr::Select(a, b, c) => {
                let (a, zero) = (value(a), signed_constant(0));
                let a = self.writer.signed(a);
                let holds = self.writer.compare(Comparison::NotEqual, a, zero);
                self.writer.select(holds, value(b), value(c))
            }
            Expr::Cast(dtype, a) => self.cast(*dtype, value(a)),
        }
    }

    pub(crate) fn constant(&mut self, scalar: Scalar) -> Variable {
        match scalar {
            Scalar::F32(bits) => self.writer.float_number(f32::from_bits(bits)),
            Scalar::I32(number) => signed_constant(number),
        }
    }

    fn unary(&mut self, f: Unary, a: Variable) -> Variable {
        let has_imprecise_math = self.dialect.language.has_imprecise_math();
        match f {
            Unary::Exp if has_imprecise_math => self.exp(a),
            Unary::Ln if has_imprecise_math => self.ln(a),
            // CUDA's exact sine keeps the digits of π on the stack, for angles far beyond any position.
            Unary::Sin => self.sin(a),
            Unary::Cos => self.cos(a),
            Unary::Rsqrt if has_imprecise_math => {
                let root = self.writer.function(Arithmetic::Sqrt, a);
                self.recip(root)
            }
            Unary::Neg => self.writer.function(Arithmetic::Neg, a),
            Unary::Exp => self.writer.function(Arithmetic::Exp, a),
            Unary::Ln => self.writer.function(Arithmetic::Log, a),
            Unary::Rsqrt => self.writer.function(Arithmetic::InverseSqrt, a),
            Unary::Sqrt => self.writer.function(Arithmetic::Sqrt, a),
            Unary::Recip => self.recip(a),
        }
    }

    fn recip(&mut self, a: Variable) -> Variable {
        let one = self.writer.float_number(1.0);
        self.writer.arithmetic(Arithmetic::Div, one, a)
    }

    pub(crate) fn binary(&mut self, f: Binary, a: Variable, b: Variable) -> Variable {
        match f {
            Binary::Add => self.writer.arithmetic(Arithmetic::Add, a, b),
            Binary::Sub => self.writer.arithmetic(Arithmetic::Sub, a, b),
            Binary::Mul => self.writer.arithmetic(Arithmetic::Mul, a, b),
            Binary::Div => self.writer.arithmetic(Arithmetic::Div, a, b),
            Binary::Max => self.writer.arithmetic(Arithmetic::Max, a, b),
            Binary::Min => self.writer.arithmetic(Arithmetic::Min, a, b),
            Binary::Lt => self.truth(Comparison::Lower, a, b),
            Binary::Le => self.truth(Comparison::LowerEqual, a, b),
            Binary::Eq => self.truth(Comparison::Equal, a, b),
        }
    }

    fn truth(&mut self, f: fn(BinaryOperator) -> Comparison, a: Variable, b: Variable) -> Variable {
        let holds = self.writer.compare(f, a, b);
        let (one, zero) = (signed_constant(1), signed_constant(0));
        self.writer.select(holds, one, zero)
    }

    fn cast(&mut self, to: DType, a: Variable) -> Variable {
        match to {
            DType::I32 if a.elem_type() == F32 => self.whole(a),
            DType::I32 | DType::F32 => self.writer.cast(if to == DType::I32 { I32 } else { F32 }, a),
            DType::F16 | DType::BF16 => {
                let float = self.writer.cast(F32, a);
                self.rounded_to_half(to, float)
            }
        }
    }

    /// Truncates to a whole number that fits 32 bits; 0 for NaN.
    fn whole(&mut self, a: Variable) -> Variable {
        // Conversion of a number that does not fit is undefined, so numbers are clamped first: to the largest `f32`
        // below 2³¹.
        let (low, high) =
            (self.writer.float_number(-2_147_483_648.0), self.writer.float_number(2_147_483_648.0));
        let [least, most, none] = [i32::MIN, i32::MAX, 0].map(signed_constant);
        let fits = self.writer.compare(Comparison::Lower, a, high);
        let is_low = self.writer.compare(Comparison::Lower, a, low);
        let is_number = self.writer.compare(Comparison::Equal, a, a);
        let zero = self.writer.float_number(0.0);
        let inside = self.writer.select(fits, a, zero);
        let inside = self.writer.select(is_low, zero, inside);
        let whole = self.writer.cast(I32, inside);
        let whole = self.writer.select(fits, whole, most);
        let whole = self.writer.select(is_low, least, whole);
        self.writer.select(is_number, whole, none)
    }

    /// The identity of a fold.
    pub(crate) fn identity(&mut self, fold: Fold, dtype: DType) -> Variable {
        self.constant(fold.identity(dtype))
    }

    /// Folds one more number in.
    pub(crate) fn fold(&mut self, fold: Fold, so_far: Variable, x: Variable) -> Variable {
        match fold {
            Fold::Sum => self.binary(Binary::Add, so_far, x),
            Fold::Max => self.binary(Binary::Max, so_far, x),
        }
    }
}
