//! Scalars as code: single precision and whole numbers of 32 bits, alone or four at a time.
//!
//! In: the expressions of a nest. Out: the value of one of them, computed from what it needs and nothing else.
//! The interpreter computes with double precision and rounds every result. For sums, products, quotients and square
//! roots of single-precision numbers this is the single-precision instruction; `rsqrt` is done the long way.
//! Exact functions are calls of `math.rs`, others are the polynomials of `approx.rs`. A comparison of vectors keeps its
//! mask beside its ones and zeros, for the selection that follows.

use cranelift_codegen::ir::condcodes::{FloatCC, IntCC};
use cranelift_codegen::ir::immediates::Ieee32;
use cranelift_codegen::ir::types::{F32, F32X4, F64, I32, I32X4};
use cranelift_codegen::ir::{InstBuilder, Value};

use crate::codegen::cpu::emit::Emitter;
use crate::codegen::cpu::value::math::Function;
use crate::foundation::entity::List;
use crate::graph::op::{Binary, Fold, Scalar, Unary};
use crate::kernel::walk::needed;
use crate::kernel::{Expr, ExprId, Nest};
use crate::options::Numbers;
use crate::tensor::dtype::DType;

impl Emitter<'_, '_> {
    /// The value of one expression of a nest.
    pub(crate) fn scalar(&mut self, nest: &Nest, root: ExprId) -> Value {
        let is_needed = needed(&nest.exprs, &[root], |_| false);
        let mut values: List<ExprId, Option<Value>> = List::default();
        for (id, expr) in nest.exprs.iter() {
            let value = is_needed[id]
                .then(|| self.expr(expr, &|id| values[id].expect("operands come first and are needed")));
            values.push(value);
        }
        values[root].expect("the root is needed")
    }

    /// One expression of the values of its operands: scalars, or vectors unless it is a leaf.
    pub(crate) fn expr(&mut self, expr: &Expr, of: &dyn Fn(ExprId) -> Value) -> Value {
        let value = |id: &ExprId| of(*id);
        match expr {
            Expr::Const(scalar) => self.constant(*scalar),
            Expr::Position(index) => {
                let index = self.index(index);
                self.builder.ins().ireduce(I32, index)
            }
            Expr::Load { from, at } => self.load(*from, at),
            Expr::Unary(f, a) => self.unary(*f, value(a)),
            Expr::Binary(f, a, b) => self.binary(*f, value(a), value(b)),
            Expr::Select(a, b, c) => self.select(value(a), value(b), value(c)),
            Expr::Cast(dtype, a) => self.cast(*dtype, value(a)),
        }
    }

    /// A number.
    pub(crate) fn constant(&mut self, scalar: Scalar) -> Value {
        match scalar {
            Scalar::F32(bits) => self.builder.ins().f32const(Ieee32::with_bits(bits)),
            Scalar::I32(number) => self.builder.ins().iconst(I32, i64::from(number)),
        }
    }

    fn unary(&mut self, f: Unary, a: Value) -> Value {
        let is_exact = self.cpu.numbers == Numbers::Exact;
        match f {
            Unary::Neg if self.is_float(a) => self.builder.ins().fneg(a),
            Unary::Neg => self.builder.ins().ineg(a),
            Unary::Exp if is_exact => self.call(Function::Exp, a),
            Unary::Ln if is_exact => self.call(Function::Ln, a),
            Unary::Sin if is_exact => self.call(Function::Sin, a),
            Unary::Cos if is_exact => self.call(Function::Cos, a),
            Unary::Rsqrt if is_exact => self.rsqrt(a),
            Unary::Exp => self.exp(a),
            Unary::Ln => self.ln(a),
            Unary::Sin => self.sin(a),
            Unary::Cos => self.cos(a),
            Unary::Rsqrt => self.reciprocal_root(a),
            Unary::Sqrt => self.builder.ins().sqrt(a),
            Unary::Recip => self.recip(a),
        }
    }

    /// Rounded once, after the root and the quotient.
    fn rsqrt(&mut self, a: Value) -> Value {
        let wide = self.builder.ins().fpromote(F64, a);
        let root = self.builder.ins().sqrt(wide);
        let one = self.builder.ins().f64const(1.0);
        let quotient = self.builder.ins().fdiv(one, root);
        self.builder.ins().fdemote(F32, quotient)
    }

    fn binary(&mut self, f: Binary, a: Value, b: Value) -> Value {
        let is_float = self.is_float(a);
        match f {
            Binary::Add if is_float => self.builder.ins().fadd(a, b),
            Binary::Sub if is_float => self.builder.ins().fsub(a, b),
            Binary::Mul if is_float => self.builder.ins().fmul(a, b),
            Binary::Add => self.builder.ins().iadd(a, b),
            Binary::Sub => self.builder.ins().isub(a, b),
            Binary::Mul => self.builder.ins().imul(a, b),
            Binary::Div => self.builder.ins().fdiv(a, b),
            Binary::Max if is_float => self.outer(FloatCC::GreaterThan, a, b),
            Binary::Min if is_float => self.outer(FloatCC::LessThan, a, b),
            Binary::Max => self.builder.ins().smax(a, b),
            Binary::Min => self.builder.ins().smin(a, b),
            Binary::Lt => self.truth(FloatCC::LessThan, IntCC::SignedLessThan, a, b),
            Binary::Le => self.truth(FloatCC::LessThanOrEqual, IntCC::SignedLessThanOrEqual, a, b),
            Binary::Eq => self.truth(FloatCC::Equal, IntCC::Equal, a, b),
        }
    }

    /// The first where it is beyond the second, or where the second is NaN; else the second.
    fn outer(&mut self, beyond: FloatCC, a: Value, b: Value) -> Value {
        let is_beyond = self.builder.ins().fcmp(beyond, a, b);
        let is_alone = self.builder.ins().fcmp(FloatCC::Unordered, b, b);
        let is_first = self.builder.ins().bor(is_beyond, is_alone);
        self.blend(is_first, a, b)
    }

    /// The second where the first is not zero, else the third.
    fn select(&mut self, a: Value, b: Value, c: Value) -> Value {
        if !self.is_vector(a) {
            return self.builder.ins().select(a, b, c);
        }
        let holds = self.masks.get(&a).copied().unwrap_or_else(|| {
            let zero = self.wholes(a, 0);
            self.builder.ins().icmp(IntCC::NotEqual, a, zero)
        });
        self.blend(holds, b, c)
    }

    fn truth(&mut self, float: FloatCC, whole: IntCC, a: Value, b: Value) -> Value {
        let holds = if self.is_float(a) {
            self.builder.ins().fcmp(float, a, b)
        } else {
            self.builder.ins().icmp(whole, a, b)
        };
        if !self.is_vector(holds) {
            return self.builder.ins().uextend(I32, holds);
        }
        let one = self.wholes(holds, 1);
        let truth = self.builder.ins().band(holds, one);
        self.masks.insert(truth, holds);
        truth
    }

    fn cast(&mut self, to: DType, a: Value) -> Value {
        match (to, self.is_float(a)) {
            (DType::I32, false) | (DType::F32, true) => a,
            (DType::I32, true) => {
                let ty = if self.is_vector(a) { I32X4 } else { I32 };
                self.builder.ins().fcvt_to_sint_sat(ty, a)
            }
            (DType::F32, false) => self.float(a),
            (DType::F16 | DType::BF16, true) if self.is_vector(a) => self.rounded_lanes(to, a),
            (DType::F16 | DType::BF16, true) => {
                let bits = self.narrowed(to, a);
                self.widened(to, bits)
            }
            (DType::F16 | DType::BF16, false) => {
                let float = self.float(a);
                self.cast(to, float)
            }
        }
    }

    /// A whole number as a single-precision one.
    pub(crate) fn float(&mut self, whole: Value) -> Value {
        let ty = if self.is_vector(whole) { F32X4 } else { F32 };
        self.builder.ins().fcvt_from_sint(ty, whole)
    }

    /// The initial value of a fold.
    pub(crate) fn identity(&mut self, fold: Fold, dtype: DType) -> Value {
        self.constant(fold.identity(dtype))
    }

    /// Folds one more number in.
    pub(crate) fn fold(&mut self, fold: Fold, so_far: Value, x: Value) -> Value {
        match fold {
            Fold::Sum => self.binary(Binary::Add, so_far, x),
            Fold::Max => self.binary(Binary::Max, so_far, x),
        }
    }

    pub(crate) fn is_float(&self, value: Value) -> bool {
        self.builder.func.dfg.value_type(value).lane_type() == F32
    }

    /// Whether it is a vector.
    pub(crate) fn is_vector(&self, value: Value) -> bool {
        self.builder.func.dfg.value_type(value).is_vector()
    }
}
