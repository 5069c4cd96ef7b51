//! A nest as an AVX-512 function over rows.
//!
//! In: a nest, and its memory accesses. Out: the bytes of a function, or `None` where an instruction is missing or
//! registers run out. What is the same for all elements of a row is computed once for it. Each number is rounded as the
//! other code of this stage rounds it, so results do not depend on which was used; only sums along a row are added in
//! another order.

use crate::codegen::cpu::wide::access::{Access, Extent, Field, Places, Steps};
use crate::codegen::cpu::wide::evex::{
    ADD, ADD_TIMES, ADD_WHOLE, ADDRESSES, AT_MOST, AT_MOST_WHOLE, Address, Assembler, BLEND, DIV, EQUAL,
    EQUAL_WHOLE, FLOAT, LESS, LESS_WHOLE, LOAD, LOAD_F16, LOAD_ONE, LOAD_SHORT, MAX, MAX_WHOLE, MEET, MIN,
    MIN_WHOLE, MUL, MUL_WHOLE, Mask, N_SIZES, Op, SCALE, SHIFT_LEFT, SQRT, STORE, STORE_F16, STORE_ONE, SUB,
    SUB_WHOLE, Source, TIMES_ADD, UNORDERED, XOR, Zmm,
};
use crate::codegen::polynomials::{EXP, LN_2, ROUNDER};
use crate::foundation::entity::List;
use crate::graph::op::{Binary, Fold, Scalar, Unary};
use crate::kernel::{Expr, ExprId, Nest};
use crate::tensor::dtype::DType;

/// The bits of one, and of the sign.
const ONE: Source = Source::Bits(0x3f80_0000);
const SIGN: Source = Source::Bits(0x8000_0000);

/// What an expression is.
#[derive(Clone, Copy)]
enum Value {
    Zmm(Zmm),
    Bits(u32),
    Mask(Mask),
}

/// The function of some rows, which may end with less than a vector.
pub(super) fn function(nest: &Nest, places: &Places, has_rest: bool) -> Option<Vec<u8>> {
    let mut writer = Writer::new(nest, places, has_rest);
    writer.numbers()?;
    writer.code.begin_rows();
    writer.begin_row()?;
    writer.code.begin_lanes();
    writer.lanes(Mask::ALL)?;
    writer.code.end_lanes();
    if has_rest {
        writer.code.begin_rest();
        writer.lanes(Mask::REST)?;
        writer.code.end_rest();
    }
    writer.store_fold()?;
    if let Some(counter) = writer.row_counter {
        writer.code.put(ADD_WHOLE, counter, counter, Source::Bits(1));
    }
    writer.code.end_rows(&places.row_steps);
    Some(writer.code.finish())
}

/// A function, as far as it is written.
struct Writer<'a> {
    nest: &'a Nest,
    places: &'a Places,
    code: Assembler,
    values: List<ExprId, Option<Value>>,
    /// Where the first positions are.
    firsts: List<ExprId, Option<Zmm>>,
    free: Vec<Zmm>,
    free_masks: Vec<Mask>,
    /// What the expression that is being written has taken for itself.
    spare: Vec<Zmm>,
    /// Count rows, and the lanes of a row.
    row_counter: Option<Zmm>,
    lane_counter: Option<Zmm>,
    /// Where lanes are folded, if they are.
    sums: Option<Zmm>,
}

impl<'a> Writer<'a> {
    fn new(nest: &'a Nest, places: &'a Places, has_rest: bool) -> Self {
        let constant = |expr: &Expr| match expr {
            Expr::Const(Scalar::F32(bits)) => Some(Value::Bits(*bits)),
            Expr::Const(Scalar::I32(number)) => Some(Value::Bits(number.cast_unsigned())),
            _ => None,
        };
        Self {
            nest,
            places,
            code: Assembler::new(places.row_steps.len(), has_rest),
            values: nest.exprs.values().map(constant).collect(),
            firsts: nest.exprs.ids().map(|_| None).collect(),
            free: (0..32).rev().map(Zmm).collect(),
            free_masks: (2..8).rev().map(Mask).collect(),
            spare: Vec::new(),
            row_counter: None,
            lane_counter: None,
            sums: None,
        }
    }

    /// Loads what is the same in all rounds.
    fn numbers(&mut self) -> Option<()> {
        let positions: Vec<ExprId> =
            self.nest.exprs.ids().filter(|id| self.places.positions[*id].is_some()).collect();
        let mut positions = positions.into_iter();
        for (idx, field) in self.places.fields.iter().enumerate() {
            let register = match field {
                Field::Address(_) => continue,
                Field::Number(_) | Field::Position(_) => self.free.pop()?,
            };
            self.code.unary(LOAD_ONE, register, Source::Memory(Address::field(N_SIZES + idx)));
            match field {
                Field::Number(id) => self.values[*id] = Some(Value::Zmm(register)),
                _ => self.firsts[positions.next()?] = Some(register),
            }
        }
        let moving = self.places.positions.values().flatten();
        let (is_in_rows, is_in_lanes) = moving
            .fold((false, false), |(rows, lanes), steps| (rows || steps.row != 0, lanes || steps.lane != 0));
        if is_in_rows {
            let counter = self.free.pop()?;
            self.code.put(XOR, counter, counter, Source::Zmm(counter));
            self.row_counter = Some(counter);
        }
        if is_in_lanes {
            self.lane_counter = Some(self.free.pop()?);
        }
        Some(())
    }

    /// Computes what is the same for all elements of a row, and begins to fold them.
    fn begin_row(&mut self) -> Option<()> {
        if let Some(counter) = self.lane_counter {
            self.code.unary(LOAD, counter, Source::Lanes);
        }
        for (id, expr) in self.nest.exprs.iter() {
            if self.places.is_needed[id] && self.places.extents[id] == Extent::Rows {
                self.values[id] = Some(self.expr(id, expr, Mask::ALL)?);
                self.free.append(&mut self.spare);
            }
        }
        if let Some(folding) = &self.nest.fold {
            let sums = self.free.pop()?;
            match folding.fold.identity(self.places.dtypes[self.nest.value]) {
                Scalar::F32(bits) => self.code.unary(LOAD_ONE, sums, Source::Bits(bits)),
                Scalar::I32(_) => return None,
            }
            self.sums = Some(sums);
        }
        Some(())
    }

    /// Computes some lanes, and stores or folds them. Registers are given back.
    fn lanes(&mut self, mask: Mask) -> Option<()> {
        let nest = self.nest;
        let before = (self.values.clone(), self.free.clone(), self.free_masks.clone());
        let factors = self.factors();
        for (id, expr) in nest.exprs.iter() {
            let is_skipped = factors.is_some() && id == nest.value;
            if self.places.is_needed[id] && self.places.extents[id] == Extent::Lanes && !is_skipped {
                self.values[id] = Some(self.expr(id, expr, mask)?);
                self.free.append(&mut self.spare);
                self.give_back(id, expr);
            }
        }
        match (self.sums, factors, &nest.fold) {
            (Some(sums), Some([a, b]), _) => {
                let (a, b) = (self.register(a)?, self.source(b)?);
                self.code.masked(ADD_TIMES, sums, a, b, mask);
            }
            (Some(sums), None, Some(folding)) => {
                let value = self.register(nest.value)?;
                self.code.masked(fold_op(folding.fold), sums, value, Source::Zmm(sums), mask);
            }
            _ => self.store(mask)?,
        }
        if let Some(counter) = self.lane_counter {
            self.code.put(ADD_WHOLE, counter, counter, Source::Bits(16));
        }
        self.spare.clear();
        (self.values, self.free, self.free_masks) = before;
        Some(())
    }

    /// What is multiplied before it is added up: that is done at once.
    fn factors(&self) -> Option<[ExprId; 2]> {
        let is_sum = self.nest.fold.as_ref().is_some_and(|folding| folding.fold == Fold::Sum);
        match self.nest.exprs[self.nest.value] {
            Expr::Binary(Binary::Mul, a, b) if is_sum => Some([a, b]),
            _ => None,
        }
    }

    /// Frees the registers that nothing needs after an expression.
    fn give_back(&mut self, id: ExprId, expr: &Expr) {
        let nest = self.nest;
        let factors = self.factors().unwrap_or([nest.value; 2]);
        let is_needed_later = |of: ExprId| {
            let mut later = nest.exprs.iter().filter(|(user, _)| *user > id && self.places.is_needed[*user]);
            of == nest.value || factors.contains(&of) || later.any(|(_, expr)| expr.operands().contains(&of))
        };
        let mut done: Vec<ExprId> = expr.operands().into_iter().collect();
        done.sort_unstable();
        done.dedup();
        done.retain(|of| self.places.extents[*of] == Extent::Lanes && !is_needed_later(*of));
        for of in done {
            match self.values[of] {
                Some(Value::Zmm(register)) => self.free.push(register),
                Some(Value::Mask(mask)) => self.free_masks.push(mask),
                Some(Value::Bits(_)) | None => {}
            }
        }
    }

    fn store(&mut self, mask: Mask) -> Option<()> {
        let target = self.places.target;
        let op = match target.dtype {
            _ if target.extent != Extent::Lanes => return None,
            DType::F32 | DType::I32 => STORE,
            DType::F16 => STORE_F16,
            DType::BF16 => return None,
        };
        let value = self.register(self.nest.value)?;
        self.code.masked(op, value, Zmm(0), Source::Memory(address(target)), mask);
        Some(())
    }

    /// Folds the lanes with each other and with what they start from, and stores that.
    fn store_fold(&mut self) -> Option<()> {
        let (Some(folding), Some(sums)) = (&self.nest.fold, self.sums) else { return Some(()) };
        let target = self.places.target;
        if target.dtype != DType::F32 || target.extent != Extent::Rows {
            return None;
        }
        let (op, spare) = (fold_op(folding.fold), self.take()?);
        self.code.join(op, sums, spare);
        if let Some(init) = folding.init {
            let init = self.register(init)?;
            self.code.put(op, sums, init, Source::Zmm(sums));
        }
        self.code.masked(STORE_ONE, sums, Zmm(0), Source::Memory(address(target)), Mask::ALL);
        Some(())
    }

    fn expr(&mut self, id: ExprId, expr: &Expr, mask: Mask) -> Option<Value> {
        match expr {
            Expr::Const(_) => self.values[id],
            Expr::Load { .. } => self.load(self.places.loads[id]?, mask),
            Expr::Position(_) => self.position(self.firsts[id]?, self.places.positions[id]?),
            Expr::Unary(f, a) => self.unary(*f, *a),
            Expr::Binary(f, a, b) => self.binary(*f, *a, *b),
            Expr::Select(a, b, c) => self.select(*a, *b, *c),
            Expr::Cast(to, a) => self.cast(*to, *a),
        }
    }

    fn load(&mut self, access: Access, mask: Mask) -> Option<Value> {
        let out = self.free.pop()?;
        let from = Source::Memory(address(access));
        match (access.extent, access.dtype) {
            (Extent::Lanes, DType::F32 | DType::I32) => self.code.load(LOAD, out, from, mask),
            (Extent::Lanes, DType::F16) => self.code.load(LOAD_F16, out, from, mask),
            (Extent::Lanes, DType::BF16) => {
                self.code.load(LOAD_SHORT, out, from, mask);
                self.code.put(SHIFT_LEFT, out, out, Source::Bits(16));
            }
            (_, DType::F32 | DType::I32) => self.code.unary(LOAD_ONE, out, from),
            (_, DType::F16 | DType::BF16) => return None,
        }
        Some(Value::Zmm(out))
    }

    fn position(&mut self, first: Zmm, steps: Steps) -> Option<Value> {
        let out = self.free.pop()?;
        let mut so_far = first;
        for (counter, step) in [(self.row_counter, steps.row), (self.lane_counter, steps.lane)] {
            let (Some(counter), true) = (counter, step != 0) else { continue };
            let mut way = counter;
            if step != 1 {
                way = self.take()?;
                let step = Source::Bits(i32::try_from(step).ok()?.cast_unsigned());
                self.code.put(MUL_WHOLE, way, counter, step);
            }
            self.code.put(ADD_WHOLE, out, so_far, Source::Zmm(way));
            so_far = out;
        }
        Some(Value::Zmm(out))
    }

    fn unary(&mut self, f: Unary, a: ExprId) -> Option<Value> {
        let is_float = self.places.dtypes[a] != DType::I32;
        let out = self.free.pop()?;
        match f {
            Unary::Neg if is_float => {
                let a = self.register(a)?;
                self.code.put(XOR, out, a, SIGN);
            }
            Unary::Exp => self.exp(out, a)?,
            Unary::Sqrt => {
                let a = self.register(a)?;
                self.code.unary(SQRT, out, Source::Zmm(a));
            }
            Unary::Rsqrt => {
                let (a, one) = (self.register(a)?, self.spread(ONE)?);
                self.code.unary(SQRT, out, Source::Zmm(a));
                self.code.put(DIV, out, one, Source::Zmm(out));
            }
            Unary::Recip => {
                let (a, one) = (self.register(a)?, self.spread(ONE)?);
                self.code.put(DIV, out, one, Source::Zmm(a));
            }
            Unary::Neg | Unary::Ln | Unary::Sin | Unary::Cos => return None,
        }
        Some(Value::Zmm(out))
    }

    /// `e^x`, as `approx.rs` has it.
    fn exp(&mut self, out: Zmm, x: ExprId) -> Option<()> {
        let number = |x: f32| Source::Bits(x.to_bits());
        let x = self.source(x)?;
        let (most, least) = (self.spread(number(88.8))?, self.spread(number(-104.5))?);
        let r = self.take()?;
        self.code.put(MIN, r, most, x);
        self.code.put(MAX, r, least, Source::Zmm(r));
        let n = self.spread(number(std::f32::consts::LOG2_E))?;
        self.code.put(TIMES_ADD, n, r, number(ROUNDER));
        self.code.put(SUB, n, n, number(ROUNDER));
        for part in LN_2 {
            self.code.put(ADD_TIMES, r, n, number(-part));
        }
        let (first, rest) = EXP.split_first()?;
        self.code.unary(LOAD_ONE, out, number(*first));
        for factor in rest {
            self.code.put(TIMES_ADD, out, r, number(*factor));
        }
        let square = self.take()?;
        self.code.put(MUL, square, r, Source::Zmm(r));
        self.code.put(TIMES_ADD, out, square, Source::Zmm(r));
        self.code.put(ADD, out, out, ONE);
        self.code.put(SCALE, out, out, Source::Zmm(n));
        Some(())
    }

    fn binary(&mut self, f: Binary, a: ExprId, b: ExprId) -> Option<Value> {
        let is_float = self.places.dtypes[a] != DType::I32;
        let op = match (f, is_float) {
            (Binary::Add, true) => ADD,
            (Binary::Sub, true) => SUB,
            (Binary::Mul, true) => MUL,
            (Binary::Div, true) => DIV,
            (Binary::Max, true) => return self.outer(MAX, a, b),
            (Binary::Min, true) => return self.outer(MIN, a, b),
            (Binary::Add, false) => ADD_WHOLE,
            (Binary::Sub, false) => SUB_WHOLE,
            (Binary::Mul, false) => MUL_WHOLE,
            (Binary::Max, false) => MAX_WHOLE,
            (Binary::Min, false) => MIN_WHOLE,
            (Binary::Lt, true) => return self.truth(LESS, a, b),
            (Binary::Le, true) => return self.truth(AT_MOST, a, b),
            (Binary::Eq, true) => return self.truth(EQUAL, a, b),
            (Binary::Lt, false) => return self.truth(LESS_WHOLE, a, b),
            (Binary::Le, false) => return self.truth(AT_MOST_WHOLE, a, b),
            (Binary::Eq, false) => return self.truth(EQUAL_WHOLE, a, b),
            (Binary::Div, false) => return None,
        };
        let (out, a, b) = (self.free.pop()?, self.register(a)?, self.source(b)?);
        self.code.put(op, out, a, b);
        Some(Value::Zmm(out))
    }

    /// The first where it is beyond the second or the second is NaN, else the second.
    fn outer(&mut self, op: Op, a: ExprId, b: ExprId) -> Option<Value> {
        let (out, a, b) = (self.free.pop()?, self.register(a)?, self.source(b)?);
        self.code.put(op, out, a, b);
        if let Source::Zmm(own) = b {
            let mask = *self.free_masks.last()?;
            self.code.compare(UNORDERED, mask, own, b);
            self.code.masked(BLEND, out, out, Source::Zmm(a), mask);
        }
        Some(Value::Zmm(out))
    }

    fn truth(&mut self, op: Op, a: ExprId, b: ExprId) -> Option<Value> {
        let (out, a, b) = (self.free_masks.pop()?, self.register(a)?, self.source(b)?);
        self.code.compare(op, out, a, b);
        Some(Value::Mask(out))
    }

    /// The second where the first is not zero, else the third.
    fn select(&mut self, a: ExprId, b: ExprId, c: ExprId) -> Option<Value> {
        let mask = match self.values[a]? {
            Value::Mask(mask) => mask,
            Value::Zmm(a) => {
                let mask = *self.free_masks.last()?;
                self.code.compare(MEET, mask, a, Source::Zmm(a));
                mask
            }
            Value::Bits(_) => return None,
        };
        let (out, b, c) = (self.free.pop()?, self.source(b)?, self.register(c)?);
        self.code.masked(BLEND, out, c, b, mask);
        Some(Value::Zmm(out))
    }

    fn cast(&mut self, to: DType, a: ExprId) -> Option<Value> {
        let (out, from, a) = (self.free.pop()?, self.places.dtypes[a], self.register(a)?);
        match (to, from) {
            _ if to == from => self.code.unary(LOAD, out, Source::Zmm(a)),
            (DType::F32, DType::I32) => self.code.unary(FLOAT, out, Source::Zmm(a)),
            (DType::F32, _) => self.code.unary(LOAD, out, Source::Zmm(a)),
            (DType::F16, DType::F32 | DType::F16 | DType::BF16) => {
                self.code.unary(STORE_F16, a, Source::Zmm(out));
                self.code.unary(LOAD_F16, out, Source::Zmm(out));
            }
            (DType::F16, DType::I32) | (DType::BF16 | DType::I32, _) => return None,
        }
        Some(Value::Zmm(out))
    }

    /// An operand; truths are none.
    fn source(&self, id: ExprId) -> Option<Source> {
        match self.values[id]? {
            Value::Zmm(register) => Some(Source::Zmm(register)),
            Value::Bits(bits) => Some(Source::Bits(bits)),
            Value::Mask(_) => None,
        }
    }

    /// An operand in a register.
    fn register(&mut self, id: ExprId) -> Option<Zmm> {
        match self.source(id)? {
            Source::Zmm(register) => Some(register),
            number => self.spread(number),
        }
    }

    /// A number in all lanes of a register.
    fn spread(&mut self, number: Source) -> Option<Zmm> {
        let register = self.take()?;
        self.code.unary(LOAD_ONE, register, number);
        Some(register)
    }

    /// A register for the expression that is being written.
    fn take(&mut self) -> Option<Zmm> {
        let register = self.free.pop()?;
        self.spare.push(register);
        Some(register)
    }
}

fn address(access: Access) -> Address {
    let element = (access.extent == Extent::Lanes).then_some(access.dtype.bytes() as u8);
    Address { base: ADDRESSES[access.address], offset: access.offset, element }
}

/// Folds a number, the first, with what there is so far; NaN is passed over.
fn fold_op(fold: Fold) -> Op {
    match fold {
        Fold::Sum => ADD,
        Fold::Max => MAX,
    }
}
