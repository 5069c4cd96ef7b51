//! Vectorised nests, four lanes of 32 bits at a time.
//!
//! In: a nest. Out: code for it, or `false` where `vector_plan.rs` finds nothing to gain; then nothing was emitted. The
//! iterations of one loop become lanes. What does not change with them is computed before that loop, and before outer
//! loops where possible; left-over iterations are done one at a time by the same expressions. A reduction along the
//! lanes keeps several accumulators and joins them at the end, a reduction across them keeps one for each lane: so
//! numbers are added in another order than in the text, which `Numbers::Exact` forbids.

use cranelift_codegen::ir::condcodes::FloatCC;
use cranelift_codegen::ir::types::{F32X4, I8X16, I32, I32X4};
use cranelift_codegen::ir::{Endianness, InstBuilder, MemFlagsData, Value};
use cranelift_frontend::Variable;
use fusebox_formats::{Code, Plane};

use crate::codegen::cpu::emit::{CONSTANT, Emitter};
use crate::codegen::cpu::vector::lane_strides::{LANES, Stride};
use crate::codegen::cpu::vector::plan::{Flat, Form, Plan};
use crate::foundation::entity::List;
use crate::graph::op::{Binary, Fold, Scalar};
use crate::kernel::index::Index;
use crate::kernel::walk::needed;
use crate::kernel::{Expr, ExprId, Folding, Nest, VarId};
use crate::options::Numbers;
use crate::tensor::dtype::DType;

pub(super) mod lane_strides;
pub(super) mod plan;

/// Values computed before a loop: its invariants, and the start of each load that moves with it.
#[derive(Clone)]
struct Ready {
    scalars: List<ExprId, Option<Value>>,
    starts: List<ExprId, Option<Value>>,
    target: Option<Value>,
}

/// The number of vectors that are processed at once, or a scalar.
#[derive(Clone, Copy, PartialEq)]
enum Width {
    Groups(i64),
    One,
}

impl Width {
    fn n_values(self) -> usize {
        match self {
            Self::Groups(n) => n as usize,
            Self::One => 1,
        }
    }
}

impl Emitter<'_, '_> {
    /// Emits a nest with vectors, if it gains by that.
    pub(super) fn vectorised(&mut self, nest: &Nest) -> bool {
        if self.cpu.numbers == Numbers::Exact {
            return false;
        }
        let Some(plan) = self.plan(nest) else { return false };
        if self.in_rows(&plan) {
            return true;
        }
        let empty = || nest.exprs.ids().map(|_| None).collect();
        let mut ready = Ready { scalars: empty(), starts: empty(), target: None };
        let open = [&nest.loops, nest.folds()].concat();
        self.prepare(&plan, &mut ready, &open);
        match (&nest.fold, plan.form) {
            (Some(folding), Form::Along) => self.along(&plan, folding, &ready),
            (Some(folding), Form::Across | Form::Map) => self.across(&plan, folding, &ready),
            (None, _) => self.mapped(&plan, &ready),
        }
        true
    }

    fn mapped(&mut self, plan: &Plan<'_>, ready: &Ready) {
        self.each(&plan.others, &mut |emitter| {
            let mut ready = ready.clone();
            emitter.prepare(plan, &mut ready, &[plan.lane.var]);
            emitter.lane_loop(plan, &mut |emitter, width| {
                let values = emitter.lanes_of(plan, &ready, &[plan.nest.value], width);
                emitter.store_lanes(plan, &ready, &values[0], width);
            });
        });
    }

    /// One sum for each lane; the folded loops run inside.
    fn across(&mut self, plan: &Plan<'_>, folding: &Folding, ready: &Ready) {
        let open = [&[plan.lane.var], &folding.loops[..]].concat();
        self.each(&plan.others, &mut |emitter| {
            let mut ready = ready.clone();
            emitter.prepare(plan, &mut ready, &open);
            emitter.lane_loop(plan, &mut |emitter, width| {
                let start = emitter.identities(plan, folding.fold, width);
                let sums: Vec<Variable> = start.into_iter().map(|value| emitter.variable(value)).collect();
                emitter.each(&folding.loops, &mut |emitter| {
                    let mut ready = ready.clone();
                    emitter.prepare(plan, &mut ready, &[plan.lane.var]);
                    emitter.accumulate(plan, &ready, folding.fold, &sums, width);
                });
                let mut values: Vec<Value> = sums.iter().map(|sum| emitter.builder.use_var(*sum)).collect();
                if let Some(init) = folding.init {
                    let init = emitter.lanes_of(plan, &ready, &[init], width).remove(0);
                    let pairs = values.into_iter().zip(init);
                    values = pairs.map(|(sum, init)| emitter.fold_in(folding.fold, sum, init)).collect();
                }
                emitter.store_lanes(plan, &ready, &values, width);
            });
        });
    }

    /// Several accumulators, each of every fourth element, joined at the end.
    fn along(&mut self, plan: &Plan<'_>, folding: &Folding, ready: &Ready) {
        self.each(&plan.nest.loops, &mut |emitter| {
            let mut ready = ready.clone();
            emitter.prepare(plan, &mut ready, &folding.loops);
            let start = emitter.identities(plan, folding.fold, Width::One)[0];
            let rest = [emitter.variable(start)];
            let start = emitter.identities(plan, folding.fold, Width::Groups(plan.groups));
            let sums: Vec<Variable> = start.into_iter().map(|value| emitter.variable(value)).collect();
            emitter.each(&plan.others, &mut |emitter| {
                let mut ready = ready.clone();
                emitter.prepare(plan, &mut ready, &[plan.lane.var]);
                emitter.lane_loop(plan, &mut |emitter, width| {
                    let sums = if width == Width::One { &rest[..] } else { &sums };
                    emitter.accumulate(plan, &ready, folding.fold, sums, width);
                });
            });
            let sums = sums.iter().map(|sum| emitter.builder.use_var(*sum)).collect();
            let sum = emitter.joined_lanes(folding.fold, sums);
            let rest = emitter.builder.use_var(rest[0]);
            let mut value = emitter.fold_in(folding.fold, rest, sum);
            if let Some(init) = folding.init {
                let init = emitter.scalar(plan.nest, init);
                value = emitter.fold_in(folding.fold, value, init);
            }
            emitter.store(plan.nest.target, &plan.nest.at, value);
        });
    }

    /// Adds one iteration to the accumulators, with an FMA where the value is a product.
    fn accumulate(&mut self, plan: &Plan<'_>, ready: &Ready, fold: Fold, sums: &[Variable], width: Width) {
        let value = plan.nest.value;
        let product = match plan.nest.exprs[value] {
            Expr::Binary(Binary::Mul, a, b) if fold == Fold::Sum && plan.dtype == DType::F32 => Some([a, b]),
            _ => None,
        };
        if let Some(pair) = product.filter(|_| ready.scalars[value].is_none()) {
            let factors = self.lanes_of(plan, ready, &pair, width);
            for (group, sum) in sums.iter().enumerate() {
                let before = self.builder.use_var(*sum);
                let after = self.mul_add(factors[0][group], factors[1][group], before);
                self.builder.def_var(*sum, after);
            }
            return;
        }
        let values = self.lanes_of(plan, ready, &[value], width).remove(0);
        for (value, sum) in values.into_iter().zip(sums) {
            let before = self.builder.use_var(*sum);
            let after = self.fold_in(fold, before, value);
            self.builder.def_var(*sum, after);
        }
    }

    /// Folds one more number in; NaN is ignored.
    fn fold_in(&mut self, fold: Fold, so_far: Value, x: Value) -> Value {
        if fold == Fold::Max && self.is_float(x) {
            let is_beyond = self.builder.ins().fcmp(FloatCC::LessThan, so_far, x);
            return self.blend(is_beyond, x, so_far);
        }
        self.fold(fold, so_far, x)
    }

    fn joined_lanes(&mut self, fold: Fold, mut sums: Vec<Value>) -> Value {
        while sums.len() > 1 {
            let upper = sums.split_off(sums.len() / 2);
            let pairs: Vec<_> = sums.into_iter().zip(upper).collect();
            sums = pairs.into_iter().map(|(a, b)| self.fold_in(fold, a, b)).collect();
        }
        let lanes = [0, 1, 2, 3].map(|lane| self.builder.ins().extractlane(sums[0], lane));
        let pairs = [[lanes[0], lanes[1]], [lanes[2], lanes[3]]].map(|[a, b]| self.fold_in(fold, a, b));
        self.fold_in(fold, pairs[0], pairs[1])
    }

    fn identities(&mut self, plan: &Plan<'_>, fold: Fold, width: Width) -> Vec<Value> {
        let one = self.identity(fold, plan.dtype);
        let value = if width == Width::One { one } else { self.splat(one) };
        vec![value; width.n_values()]
    }

    fn variable(&mut self, value: Value) -> Variable {
        let ty = self.builder.func.dfg.value_type(value);
        let variable = self.builder.declare_var(ty);
        self.builder.def_var(variable, value);
        variable
    }

    /// The loop whose values are lanes: as many iterations at once as the plan has, then one at a time.
    fn lane_loop(&mut self, plan: &Plan<'_>, body: &mut dyn FnMut(&mut Self, Width)) {
        let (var, rounds) = (plan.lane.var, plan.groups * LANES);
        let (first, _, end) = self.values(var);
        if plan.lane.length_divisor() % rounds == 0 {
            return self.counted((first, rounds, end), |emitter, value| {
                emitter.vars.insert(var, value);
                body(emitter, Width::Groups(plan.groups));
            });
        }
        let n_rounds = self.builder.ins().isub(end, first);
        let n_whole = self.builder.ins().band_imm_s(n_rounds, -rounds);
        let middle = self.builder.ins().iadd(first, n_whole);
        let middle = self.builder.ins().smax(middle, first);
        self.counted((first, rounds, middle), |emitter, value| {
            emitter.vars.insert(var, value);
            body(emitter, Width::Groups(plan.groups));
        });
        self.counted((middle, 1, end), |emitter, value| {
            emitter.vars.insert(var, value);
            body(emitter, Width::One);
        });
    }

    /// Computes what does not depend on inner loops.
    fn prepare(&mut self, plan: &Plan<'_>, ready: &mut Ready, open: &[VarId]) {
        let is_open = |index: &Index| index.uses_var(|var| open.contains(&var));
        for (id, expr) in plan.nest.exprs.iter().filter(|(id, _)| plan.is_needed[*id]) {
            if ready.scalars[id].is_some() {
                continue;
            }
            if let Some(flat) = plan.flats[id].as_ref().filter(|flat| plan.moves[id] && !is_open(&flat.still))
            {
                ready.starts[id].get_or_insert_with(|| self.index(&flat.still));
            }
            let is_closed = !expr.indices().iter().any(is_open)
                && expr.operands().into_iter().all(|operand| ready.scalars[operand].is_some());
            if is_closed {
                let value = self.expr(expr, &|id| ready.scalars[id].expect("its operands are ready"));
                ready.scalars[id] = Some(value);
            }
        }
        if let Some(flat) = plan.target.as_ref().filter(|flat| !is_open(&flat.still)) {
            ready.target.get_or_insert_with(|| self.index(&flat.still));
        }
    }

    /// Some expressions in the lanes of this iteration.
    fn lanes_of(
        &mut self,
        plan: &Plan<'_>,
        ready: &Ready,
        roots: &[ExprId],
        width: Width,
    ) -> Vec<Vec<Value>> {
        let exprs = &plan.nest.exprs;
        let is_needed = needed(exprs, roots, |id| ready.scalars[id].is_some());
        let mut values: List<ExprId, Vec<Value>> = List::default();
        for (id, expr) in exprs.iter() {
            let lanes = match (expr, ready.scalars[id]) {
                _ if !is_needed[id] => Vec::new(),
                (_, Some(value)) => {
                    let value = if width == Width::One { value } else { self.splat(value) };
                    vec![value; width.n_values()]
                }
                (Expr::Load { .. }, None) => {
                    let flat = plan.flats[id].as_ref().expect("a load has a place");
                    let start = ready.starts[id].expect("where a load starts is ready");
                    self.load_lanes(plan, flat, start, width)
                }
                (Expr::Position(index), None) if width != Width::One => self.positions(plan, index),
                (_, None) => {
                    let groups = 0..width.n_values();
                    groups.map(|group| self.expr(expr, &|id| values[id][group])).collect()
                }
            };
            values.push(lanes);
        }
        roots.iter().map(|root| values[*root].clone()).collect()
    }

    /// Does something with the lane variable advanced by a number of iterations.
    fn ahead<T>(&mut self, plan: &Plan<'_>, by: i64, act: impl FnOnce(&mut Self) -> T) -> T {
        let var = plan.lane.var;
        let here = self.vars[&var];
        let there = self.builder.ins().iadd_imm_s(here, by);
        self.vars.insert(var, there);
        let result = act(self);
        self.vars.insert(var, here);
        result
    }

    /// Positions as whole numbers, lane by lane.
    fn positions(&mut self, plan: &Plan<'_>, index: &Index) -> Vec<Value> {
        let one = |emitter: &mut Self, by: i64| {
            let value = emitter.ahead(plan, by, |emitter| emitter.index(index));
            emitter.builder.ins().ireduce(I32, value)
        };
        let groups = (0..plan.groups).map(|group| {
            let from = group * LANES;
            let Some(Stride { step, .. }) = plan.lane.stride(index) else {
                let lanes = [0, 1, 2, 3].map(|lane| one(self, from + lane));
                return self.gathered(lanes);
            };
            let first = one(self, from);
            let first = self.splat(first);
            if step == 0 {
                return first;
            }
            let steps = [0, 1, 2, 3].map(|lane| (step * lane) as i32);
            let bytes: Vec<u8> = steps.into_iter().flat_map(i32::to_le_bytes).collect();
            let steps = self.builder.func.dfg.constants.insert(bytes.into());
            let steps = self.builder.ins().vconst(I32X4, steps);
            self.builder.ins().iadd(first, steps)
        });
        groups.collect()
    }

    fn load_lanes(&mut self, plan: &Plan<'_>, flat: &Flat, start: Value, width: Width) -> Vec<Value> {
        let Some(dtype) = flat.format.plain() else { return self.decoded_lanes(plan, flat, start, width) };
        let layout = self.layout(flat.place);
        let address = |emitter: &mut Self| {
            let moved = emitter.moved(flat, start);
            emitter.address(layout.base, moved, dtype)
        };
        if width == Width::One {
            let address = address(self);
            return vec![self.plain(dtype, layout.flags, address, 0)];
        }
        let shared = address(self);
        let groups = (0..plan.groups).map(|group| {
            let from = group * LANES;
            let Some(Stride { step, is_even }) = flat.stride else {
                let lanes = [0, 1, 2, 3].map(|lane| {
                    let address = self.ahead(plan, from + lane, address);
                    self.plain(dtype, layout.flags, address, 0)
                });
                return self.gathered(lanes);
            };
            let bytes = step * dtype.bytes() as i64;
            let (address, offset) = if is_even || group == 0 {
                (shared, (from * bytes) as i32)
            } else {
                (self.ahead(plan, from, address), 0)
            };
            let flags = layout.flags;
            match (step, dtype) {
                (0, _) => {
                    let value = self.plain(dtype, flags, address, offset);
                    self.splat(value)
                }
                (1, DType::F32) => self.builder.ins().load(F32X4, flags, address, offset),
                (1, DType::I32) => self.builder.ins().load(I32X4, flags, address, offset),
                (1, DType::F16 | DType::BF16) => self.halves(dtype, flags, address, offset),
                _ => {
                    let offsets = [0, 1, 2, 3].map(|lane| offset + (lane * bytes) as i32);
                    let lanes = offsets.map(|offset| self.plain(dtype, flags, address, offset));
                    self.gathered(lanes)
                }
            }
        });
        groups.collect()
    }

    /// The index of an element: its constant part, and the part that moves with the lanes.
    fn moved(&mut self, flat: &Flat, start: Value) -> Value {
        let moving = self.index(&flat.moving);
        self.builder.ins().iadd(start, moving)
    }

    /// Elements of quantised blocks: four bytes at a time where they are contiguous, else one by one.
    fn decoded_lanes(&mut self, plan: &Plan<'_>, flat: &Flat, start: Value, width: Width) -> Vec<Value> {
        let layout = self.layout(flat.place);
        let n_elements = layout.dims.iter().product();
        let one = |emitter: &mut Self| {
            let element = emitter.moved(flat, start);
            emitter.decode(flat.format, layout.base, element, n_elements)
        };
        if width == Width::One {
            return vec![one(self)];
        }
        if !flat.is_in_quads() {
            let groups = (0..plan.groups).map(|group| {
                let lanes = [0, 1, 2, 3].map(|lane| self.ahead(plan, group * LANES + lane, one));
                self.gathered(lanes)
            });
            return groups.collect();
        }
        let blocks = flat.format.blocks().expect("plain elements are loaded as they are");
        let plane = &blocks.quanta.planes[0];
        let block_len = blocks.len as i64;
        let is_one_block = flat.divisor % block_len == 0 && plan.groups * LANES <= block_len;
        let mut shared = None;
        let groups = (0..plan.groups).map(|group| {
            let from = group * LANES;
            let is_shared = is_one_block && flat.stride.is_some_and(|stride| stride.is_even);
            let (block, i, scale) = match shared {
                Some(own) if is_shared => own,
                _ => self.ahead(plan, from, |emitter| {
                    let element = emitter.moved(flat, start);
                    let (block, i) = emitter.split(element, block_len);
                    let offset = emitter.builder.ins().imul_imm_s(block, blocks.bytes as i64);
                    let block = emitter.builder.ins().iadd(layout.base, offset);
                    let scale = emitter.half(block, blocks.scale.at as i32);
                    (block, i, emitter.splat(scale))
                }),
            };
            shared = Some((block, i, scale));
            let bytes = if is_shared {
                self.four_numbers(plane, block, from as usize)
            } else {
                self.four_numbers_at(plane, block, i)
            };
            let bytes = self.builder.ins().scalar_to_vector(I32X4, bytes);
            let little = MemFlagsData::new().with_endianness(Endianness::Little);
            let bytes = self.builder.ins().bitcast(I8X16, little, bytes);
            let pairs = self.builder.ins().swiden_low(bytes);
            let whole = self.builder.ins().swiden_low(pairs);
            let mut q = self.float(whole);
            if let Code::From(zero) = blocks.quanta.code {
                let zero = self.constant(Scalar::float(f32::from(zero)));
                let zero = self.splat(zero);
                q = self.builder.ins().fsub(q, zero);
            }
            self.builder.ins().fmul(scale, q)
        });
        groups.collect()
    }

    /// The bits of four numbers of a block, the first of which is known: a byte each.
    fn four_numbers(&mut self, plane: &Plane, block: Value, first: usize) -> Value {
        let (byte, shift) = plane.place(first);
        let bytes = self.builder.ins().load(I32, CONSTANT, block, byte as i32);
        let bytes = self.builder.ins().ushr_imm_u(bytes, i64::from(shift));
        self.masked(plane, bytes)
    }

    /// The same from any multiple of four on.
    fn four_numbers_at(&mut self, plane: &Plane, block: Value, i: Value) -> Value {
        if plane.per_byte == 1 {
            let address = self.builder.ins().iadd(block, i);
            return self.builder.ins().load(I32, CONSTANT, address, plane.at as i32);
        }
        let column = self.builder.ins().band_imm_u(i, plane.width as i64 - 1);
        let address = self.builder.ins().iadd(block, column);
        let bytes = self.builder.ins().load(I32, CONSTANT, address, plane.at as i32);
        let layer = self.builder.ins().ushr_imm_u(i, i64::from(plane.width.ilog2()));
        let shift = self.builder.ins().imul_imm_s(layer, i64::from(plane.bits));
        let bytes = self.builder.ins().ushr(bytes, shift);
        self.masked(plane, bytes)
    }

    /// The lowest bits of each of four bytes: those of a number.
    fn masked(&mut self, plane: &Plane, bytes: Value) -> Value {
        let mask = u32::from_le_bytes([plane.mask(); 4]);
        self.builder.ins().band_imm_u(bytes, i64::from(mask))
    }

    fn store_lanes(&mut self, plan: &Plan<'_>, ready: &Ready, values: &[Value], width: Width) {
        let flat = plan.target.as_ref().expect("lanes that are stored have a place");
        let start = ready.target.expect("where a store starts is ready");
        let layout = self.layout(flat.place);
        let (dtype, flags) = (flat.format.dtype(), layout.flags);
        let address = |emitter: &mut Self| {
            let moved = emitter.moved(flat, start);
            emitter.address(layout.base, moved, dtype)
        };
        let shared = address(self);
        if width == Width::One {
            return self.store_plain((dtype, flags), values[0], shared);
        }
        let is_even = flat.stride.is_some_and(|stride| stride.is_even);
        for (group, value) in (0..).zip(values) {
            let from = group * LANES;
            let (address, offset) = if is_even || group == 0 {
                (shared, (from * dtype.bytes() as i64) as i32)
            } else {
                (self.ahead(plan, from, address), 0)
            };
            match dtype {
                DType::F32 | DType::I32 => {
                    self.builder.ins().store(flags, *value, address, offset);
                }
                DType::F16 | DType::BF16 => self.store_halves((dtype, flags), *value, address, offset),
            }
        }
    }
}
