//! Writes CubeCL instructions, one at a time.
//!
//! In: operations on values. Out: a body that any of CubeCL's compilers takes. Constants are folded while code is made,
//! so that sources stay short. Whole numbers are `u32` and wrap around; a negative number is its two's complement, and
//! `signed` reinterprets it where the sign matters.

use std::mem;

use cubecl_core::ir::{
    Arithmetic, AtomicOp, BinaryOperator, Bitwise, Branch, Builtin, Comparison, ConstantValue, ElemType,
    FloatKind, If, IndexAssignOperator, IndexOperator, Instruction, IntKind, ManagedVariable, Operation,
    Operator, Plane, RangeLoop, Scope, Select, StorageType, Synchronization, Type, UIntKind, UnaryOperator,
    Variable,
};

/// Unsigned whole numbers.
pub(super) const U32: ElemType = ElemType::UInt(UIntKind::U32);
/// Signed whole numbers.
pub(super) const I32: ElemType = ElemType::Int(IntKind::I32);
/// Single-precision numbers.
pub(super) const F32: ElemType = ElemType::Float(FloatKind::F32);

/// A body under construction.
pub(super) struct Writer {
    pub(super) scope: Scope,
}

/// A mutable variable.
pub(super) struct MutableVar(ManagedVariable);

impl MutableVar {
    /// Its current value.
    pub(super) fn value(&self) -> Variable {
        *self.0
    }
}

impl Writer {
    /// A float constant; one that a language cannot spell is put together from its bits.
    pub(super) fn float_number(&mut self, number: f32) -> Variable {
        if number.is_finite() {
            return Variable::constant(ConstantValue::Float(f64::from(number)), scalar(F32));
        }
        // Compilers reject such a constant, so it goes through a variable.
        let bits = self.mutable(constant(i64::from(number.to_bits())));
        self.reinterpreted(F32, bits.value())
    }

    /// The result of an operation.
    pub(super) fn result(&mut self, elem: ElemType, operation: impl Into<Operation>) -> Variable {
        self.result_of(scalar(elem), operation)
    }

    pub(super) fn result_of(&mut self, ty: Type, operation: impl Into<Operation>) -> Variable {
        let out = *self.scope.create_local(ty);
        self.scope.register(Instruction::new(operation, out));
        out
    }

    pub(super) fn arithmetic(
        &mut self,
        f: fn(BinaryOperator) -> Arithmetic,
        lhs: Variable,
        rhs: Variable,
    ) -> Variable {
        self.result(lhs.elem_type(), f(BinaryOperator { lhs, rhs }))
    }

    pub(super) fn function(&mut self, f: fn(UnaryOperator) -> Arithmetic, input: Variable) -> Variable {
        self.result(input.elem_type(), f(UnaryOperator { input }))
    }

    pub(super) fn add(&mut self, a: Variable, b: Variable) -> Variable {
        match (known(a), known(b)) {
            (Some(x), Some(y)) => constant(i64::from(x.wrapping_add(y))),
            (Some(0), None) => b,
            (None, Some(0)) => a,
            _ => self.arithmetic(Arithmetic::Add, a, b),
        }
    }

    pub(super) fn sub(&mut self, a: Variable, b: Variable) -> Variable {
        match (known(a), known(b)) {
            (Some(x), Some(y)) => constant(i64::from(x.wrapping_sub(y))),
            (None, Some(0)) => a,
            _ => self.arithmetic(Arithmetic::Sub, a, b),
        }
    }

    pub(super) fn mul(&mut self, a: Variable, b: Variable) -> Variable {
        match (known(a), known(b)) {
            (Some(x), Some(y)) => constant(i64::from(x.wrapping_mul(y))),
            (Some(0), None) | (None, Some(0)) => constant(0),
            (Some(1), None) => b,
            (None, Some(1)) => a,
            _ => self.arithmetic(Arithmetic::Mul, a, b),
        }
    }

    /// Unsigned division.
    pub(super) fn div(&mut self, a: Variable, by: Variable) -> Variable {
        match (known(a), known(by)) {
            (Some(x), Some(y)) if y > 0 => constant(i64::from(x / y)),
            (None, Some(1)) => a,
            (None, Some(y)) if y.is_power_of_two() => self.shift_right(a, y.trailing_zeros()),
            _ => self.arithmetic(Arithmetic::Div, a, by),
        }
    }

    /// Unsigned remainder.
    pub(super) fn rem(&mut self, a: Variable, by: Variable) -> Variable {
        match (known(a), known(by)) {
            (Some(x), Some(y)) if y > 0 => constant(i64::from(x % y)),
            (None, Some(y)) if y.is_power_of_two() => self.and(a, y - 1),
            _ => self.arithmetic(Arithmetic::Modulo, a, by),
        }
    }

    pub(super) fn bits(
        &mut self,
        f: fn(BinaryOperator) -> Bitwise,
        lhs: Variable,
        rhs: Variable,
    ) -> Variable {
        self.result(lhs.elem_type(), f(BinaryOperator { lhs, rhs }))
    }

    pub(super) fn and(&mut self, a: Variable, mask: u32) -> Variable {
        match known(a) {
            Some(x) => constant(i64::from(x & mask)),
            None if mask == 0 => constant(0),
            None => {
                let mask = constant(i64::from(mask));
                self.bits(Bitwise::BitwiseAnd, a, mask)
            }
        }
    }

    pub(super) fn or(&mut self, a: Variable, b: Variable) -> Variable {
        self.bits(Bitwise::BitwiseOr, a, b)
    }

    pub(super) fn shift_left(&mut self, a: Variable, by: u32) -> Variable {
        match (known(a), by) {
            (Some(x), _) => constant(i64::from(x << by)),
            (None, 0) => a,
            (None, _) => {
                let by = constant(i64::from(by));
                self.bits(Bitwise::ShiftLeft, a, by)
            }
        }
    }

    /// Logical for `U32`, arithmetic for `I32`.
    pub(super) fn shift_right(&mut self, a: Variable, by: u32) -> Variable {
        match (known(a), by) {
            (Some(x), _) => constant(i64::from(x >> by)),
            (None, 0) => a,
            (None, _) => {
                let by = constant(i64::from(by));
                self.bits(Bitwise::ShiftRight, a, by)
            }
        }
    }

    pub(super) fn shift_right_by(&mut self, a: Variable, by: Variable) -> Variable {
        match known(by) {
            Some(by) => self.shift_right(a, by),
            None => self.bits(Bitwise::ShiftRight, a, by),
        }
    }

    pub(super) fn compare(
        &mut self,
        f: fn(BinaryOperator) -> Comparison,
        lhs: Variable,
        rhs: Variable,
    ) -> Variable {
        self.result(ElemType::Bool, f(BinaryOperator { lhs, rhs }))
    }

    pub(super) fn below(&mut self, a: Variable, b: Variable) -> Variable {
        self.compare(Comparison::Lower, a, b)
    }

    /// `if cond { then } else { or_else }`
    pub(super) fn select(&mut self, cond: Variable, then: Variable, or_else: Variable) -> Variable {
        self.result_of(then.ty, Operator::Select(Select { cond, then, or_else }))
    }

    /// Converts to another type.
    pub(super) fn cast(&mut self, elem: ElemType, input: Variable) -> Variable {
        if input.elem_type() == elem {
            return input;
        }
        self.result(elem, Operator::Cast(UnaryOperator { input }))
    }

    /// The same bits as another type.
    pub(super) fn reinterpreted(&mut self, elem: ElemType, input: Variable) -> Variable {
        if input.elem_type() == elem {
            return input;
        }
        // C++ takes no address of a constant.
        let input = if input.as_const().is_some() { self.mutable(input).value() } else { input };
        self.result(elem, Operator::Reinterpret(UnaryOperator { input }))
    }

    /// A whole number as `i32`.
    pub(super) fn signed(&mut self, a: Variable) -> Variable {
        match known(a) {
            Some(x) => signed_constant(x.cast_signed()),
            None => self.cast(I32, a),
        }
    }

    /// A whole number as `u32`.
    pub(super) fn unsigned(&mut self, a: Variable) -> Variable {
        match a.as_const() {
            Some(x) => constant(x.as_i64()),
            None => self.cast(U32, a),
        }
    }

    /// Loads element `index` of an array, unchecked; a vector where it is an array of vectors.
    pub(super) fn load(&mut self, list: Variable, index: Variable) -> Variable {
        let index = IndexOperator { list, index, vector_size: 0, unroll_factor: 1 };
        self.result_of(list.ty, Operator::UncheckedIndex(index))
    }

    /// A component of a vector.
    pub(super) fn component(&mut self, list: Variable, number: usize) -> Variable {
        let index = constant(number as i64);
        let index = IndexOperator { list, index, vector_size: 0, unroll_factor: 1 };
        self.result(list.elem_type(), Operator::UncheckedIndex(index))
    }

    /// Stores to element `index` of an array, unchecked.
    pub(super) fn store(&mut self, list: Variable, index: Variable, value: Variable) {
        let assign = IndexAssignOperator { index, value, vector_size: 0, unroll_factor: 1 };
        self.scope.register(Instruction::new(Operator::UncheckedIndexAssign(assign), list));
    }

    /// Stores bits to element `index` of an array, unchecked.
    pub(super) fn store_reinterpreted(&mut self, list: Variable, index: Variable, input: Variable) {
        let value = self.result_of(list.ty, Operator::Reinterpret(UnaryOperator { input }));
        self.store(list, index, value);
    }

    /// Stores a word atomically.
    pub(super) fn store_word(&mut self, list: Variable, index: Variable, input: Variable) {
        let place = *self.scope.create_local(list.ty);
        let index = IndexOperator { list, index, vector_size: 0, unroll_factor: 1 };
        self.scope.register(Instruction::new(Operator::UncheckedIndex(index), place));
        self.scope.register(Instruction::new(AtomicOp::Store(UnaryOperator { input }), place));
    }

    /// Replaces the bits outside of `mask` in a word, atomically.
    pub(super) fn store_bits(&mut self, list: Variable, index: Variable, mask: Variable, bits: Variable) {
        let place = *self.scope.create_local(list.ty);
        let index = IndexOperator { list, index, vector_size: 0, unroll_factor: 1 };
        self.scope.register(Instruction::new(Operator::UncheckedIndex(index), place));
        for (f, rhs) in [(AtomicOp::And as fn(BinaryOperator) -> AtomicOp, mask), (AtomicOp::Or, bits)] {
            let before = self.mutable(constant(0));
            let operation = f(BinaryOperator { lhs: place, rhs });
            self.scope.register(Instruction::new(operation, before.value()));
        }
    }

    /// A mutable variable with an initial value.
    pub(super) fn mutable(&mut self, start: Variable) -> MutableVar {
        let variable = MutableVar(self.scope.create_local_mut(start.ty));
        self.set(&variable, start);
        variable
    }

    pub(super) fn set(&mut self, variable: &MutableVar, value: Variable) {
        self.scope.register(Instruction::new(Operation::Copy(value), variable.value()));
    }

    /// A copy of a variable's value: the variable may be reused once it is dropped.
    pub(super) fn copied(&mut self, variable: &MutableVar) -> Variable {
        let value = variable.value();
        self.result(value.elem_type(), Operation::Copy(value))
    }

    /// `__shfl_xor_sync`: the value of the lane whose number differs by `mask`.
    pub(super) fn shuffle_xor(&mut self, value: Variable, mask: u32) -> Variable {
        let rhs = constant(i64::from(mask));
        self.result(value.elem_type(), Plane::ShuffleXor(BinaryOperator { lhs: value, rhs }))
    }

    /// A workgroup barrier, for global scratch as well where tiles lie there.
    pub(super) fn barrier(&mut self, is_memory_shared: bool) {
        self.scope.register(Synchronization::SyncCube);
        if is_memory_shared {
            self.scope.register(Synchronization::SyncStorage);
        }
    }
}

/// What writes instructions, and nests them in blocks.
pub(super) trait Writes: Sized {
    fn writer(&mut self) -> &mut Writer;

    /// Instructions of an inner block.
    fn inner(&mut self, write: impl FnOnce(&mut Self)) -> Scope {
        let writer = self.writer();
        let child = writer.scope.child();
        let outer = mem::replace(&mut writer.scope, child);
        write(self);
        mem::replace(&mut self.writer().scope, outer)
    }

    /// A counted loop.
    fn counted(
        &mut self,
        first: Variable,
        end: Variable,
        step: Variable,
        body: impl FnOnce(&mut Self, Variable),
    ) {
        let i = *self.writer().scope.create_local_restricted(scalar(U32));
        let scope = self.inner(|own| body(own, i));
        let step = (known(step) != Some(1)).then_some(step);
        let range = RangeLoop { i, start: first, end, step, inclusive: false, scope };
        self.writer().scope.register(Branch::RangeLoop(Box::new(range)));
    }

    /// An `if`.
    fn when(&mut self, cond: Variable, body: impl FnOnce(&mut Self)) {
        let scope = self.inner(body);
        self.writer().scope.register(Branch::If(Box::new(If { cond, scope })));
    }
}

impl Writes for Writer {
    fn writer(&mut self) -> &mut Writer {
        self
    }
}

/// A `u32` constant.
pub(super) fn constant(number: i64) -> Variable {
    Variable::constant(ConstantValue::UInt(u64::from(number as u32)), scalar(U32))
}

/// An `i32` constant.
pub(super) fn signed_constant(number: i32) -> Variable {
    Variable::constant(ConstantValue::Int(i64::from(number)), scalar(I32))
}

/// A builtin such as the thread's index.
pub(super) fn builtin(builtin: Builtin) -> Variable {
    Variable::builtin(builtin, StorageType::Scalar(U32))
}

/// A scalar type.
pub(super) fn scalar(elem: ElemType) -> Type {
    Type::scalar(elem)
}

/// The value of a `u32` that is constant.
pub(super) fn known(value: Variable) -> Option<u32> {
    if value.elem_type() != U32 || value.ty.vector_size() > 1 {
        return None;
    }
    value.as_const().map(|value| value.as_u64() as u32)
}
