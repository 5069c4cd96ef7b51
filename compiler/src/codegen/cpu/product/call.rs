//! Emits calls of micro-kernels.
//!
//! In: a [`Plan`] of a nest. Out: code that stores the initial values of sums, and calls the kernel for each iteration
//! of the loops around it, with the addresses and sizes at that point. Activations are quantised by calls of their own.
//! Argument structs are on the stack; kernels are called by their addresses in this process.

use cranelift_codegen::ir::types::I64;
use cranelift_codegen::ir::{AbiParam, InstBuilder, Signature, StackSlotData, StackSlotKind, Value};
use fusebox_simd::{ActivationLayout, Bf16Functions, ROUTED_GEMM, Table, activation_bytes, routing_bytes};

use crate::codegen::cpu::emit::{Emitter, PROVEN};
use crate::codegen::cpu::product::boundary::{self, storage};
use crate::codegen::cpu::product::{Plan, Quantised};
use crate::foundation::entity::List;
use crate::graph::op::Scalar;
use crate::kernel::index::Index;
use crate::kernel::product::Kind;
use crate::kernel::product::activations::COLUMNS;
use crate::kernel::product::routing::Routing;
use crate::kernel::stored::{Stored, at_start};
use crate::kernel::{ActivationsId, Expr, Folding, Nest, Place, Range, VarId};
use crate::options::Numbers;
use crate::tensor::quant::Format;

impl Emitter<'_, '_> {
    /// Emits a nest as calls of micro-kernels, if it is a product.
    pub(crate) fn product(&mut self, nest: &Nest) -> bool {
        let Some(plan) = Plan::of(self.cpu, self.kernel, self.part, nest) else {
            return false;
        };
        self.starts(nest);
        let quantised = plan.quantised.as_ref().and_then(|quantised| self.slot(quantised));
        let is_sorted =
            |var: &&VarId| plan.routing.as_ref().is_none_or(|routing| !routing.loops.contains(var));
        let around: Vec<VarId> = plan.around.iter().filter(is_sorted).copied().collect();
        self.each(&around, &mut |emitter| match &plan.routing {
            _ if plan.kind == Kind::WeightedSum => emitter.call_weighted_sum(&plan),
            None => emitter.call_product(&plan, quantised),
            Some(routing) => emitter.call_routed(&plan, routing, quantised),
        });
        true
    }

    /// Stores the initial values of sums, unless they are there.
    fn starts(&mut self, nest: &Nest) {
        let Some(Folding { init, .. }) = &nest.fold else { return };
        let mut first = Nest { fold: None, product: None, ..nest.clone() };
        if let Some(init) = init {
            let own = Expr::Load { from: nest.target, at: nest.at.clone() };
            if nest.exprs[*init] == own {
                return;
            }
            first.value = *init;
        } else {
            first.exprs = List::default();
            first.value = first.exprs.push(Expr::Const(Scalar::float(0.0)));
        }
        self.nest(&first);
    }

    /// The slot of the activations that a plan multiplies.
    fn slot(&self, quantised: &Quantised) -> Option<usize> {
        self.slots.iter().position(|slot| slot.quantised == *quantised)
    }

    /// Quantises activations, in each layout that some product wants.
    pub(crate) fn quantise(&mut self, id: ActivationsId) {
        let own = &self.part.activations[id];
        let x = own.stored(self.kernel, self.part);
        let inner = [&own.along[..], &own.columns].concat();
        for idx in 0..self.slots.len() {
            if self.slots[idx].quantised.id != id {
                continue;
            }
            let (table, layout) = (self.table, self.slots[idx].quantised.layout);
            let function = match layout {
                ActivationLayout::Bf16Tiles { .. } => halves(&table).to_bf16_tiles as *const u8,
                whole => table.quantised_functions(whole).quantise as *const u8,
            };
            self.each(&own.around, &mut |emitter| {
                let fields = [
                    emitter.place_of(&x, &inner).0,
                    emitter.set(&own.around, idx),
                    emitter.step(&x, own.columns.first().copied()),
                    emitter.len(&own.columns),
                    emitter.len(&own.along),
                    emitter.whole(layout.parameter()),
                ];
                emitter.call_micro(function, &fields);
            });
        }
    }

    fn call_product(&mut self, plan: &Plan, slot: Option<usize>) {
        let w = self.place_of(&plan.w, &Self::inner(plan));
        let column = self.column(plan, slot);
        let nowhere = self.whole(0);
        let (function, n_parts) = self.function(slot);
        let mut fields = self.fields(plan, w, column, nowhere, n_parts);
        fields.push(self.next_place(plan, w.0));
        self.call_micro(function, &fields);
    }

    /// Groups the rows of some loops by expert, and multiplies them.
    fn call_routed(&mut self, plan: &Plan, routing: &Routing, slot: Option<usize>) {
        let scratch = self.routing.expect("the arguments are read before the body");
        let next = self.builder.declare_var(I64);
        self.builder.def_var(next, scratch);
        self.each(&routing.loops, &mut |emitter| {
            let matrix = emitter.index(&routing.matrix);
            let (x, out) = emitter.column(plan, slot);
            let row = emitter.builder.use_var(next);
            for (idx, field) in [matrix, x, out].into_iter().enumerate() {
                emitter.builder.ins().store(PROVEN, field, row, 8 * idx as i32);
            }
            let after = emitter.builder.ins().iadd_imm_s(row, routing_bytes(1, 0) as i64);
            emitter.builder.def_var(next, after);
        });
        let end = self.builder.use_var(next);
        let n_bytes = self.builder.ins().isub(end, scratch);
        let n_rows = self.split(n_bytes, routing_bytes(1, 0) as i64).0;
        let w = self.place_of(&routing.w, &Self::inner(plan));
        let nowhere = self.whole(0);
        let (function, n_parts) = self.function(slot);
        let mut fields = self.fields(plan, w, (nowhere, nowhere), nowhere, n_parts);
        fields.push(nowhere);
        let firsts = self.builder.ins().iadd_imm_s(scratch, routing_bytes(routing.most as usize, 0) as i64);
        let function = self.whole(function as i64);
        let n_matrices = self.whole(routing.n_matrices);
        fields.extend([function, scratch, n_rows, firsts, n_matrices]);
        fields.extend(bytes_of(plan.w.format, routing.step).map(|n_bytes| self.whole(n_bytes)));
        self.call_micro(ROUTED_GEMM as *const u8, &fields);
    }

    /// The addresses of a column and of its results.
    fn column(&mut self, plan: &Plan, slot: Option<usize>) -> (Value, Value) {
        let inner = Self::inner(plan);
        let x = match slot {
            Some(slot) => self.set_of(plan, slot),
            None => self.place_of(&plan.x, &inner).0,
        };
        (x, self.place_of(&plan.out, &inner).0)
    }

    /// The GEMM function for quantised or plain activations, and the number of parts of each activation.
    fn function(&self, slot: Option<usize>) -> (*const u8, i64) {
        let layout = slot.map(|slot| self.slots[slot].quantised.layout);
        let (function, n_parts) = match layout {
            None => (self.table.gemm_f32, 0),
            Some(ActivationLayout::Bf16Tiles { n_parts }) => (halves(&self.table).product, n_parts),
            Some(whole) => (self.table.quantised_functions(whole).product, 0),
        };
        (function as *const u8, n_parts)
    }

    /// The argument struct of a product.
    fn fields(
        &mut self,
        plan: &Plan,
        (w, scales): (Value, Value),
        (x, out): (Value, Value),
        columns: Value,
        n_parts: i64,
    ) -> Vec<Value> {
        let row = plan.row.map_or(0, |var| plan.w.element.step_of(var).unwrap_or(0));
        let format = plan.w.format;
        let (storage, group) = storage(format).expect("a plan has a format of micro-kernels");
        let rows = bytes_of(format, row).map(|n_bytes| self.whole(n_bytes));
        vec![
            w,
            scales,
            x,
            out,
            rows[0],
            rows[1],
            self.step(&plan.x, plan.cols.first().copied()),
            self.step(&plan.out, plan.row),
            self.step(&plan.out, plan.cols.first().copied()),
            self.n(plan.row),
            self.len(&plan.cols),
            self.len(&plan.run),
            self.whole(storage.number()),
            self.whole(group as i64),
            columns,
            self.whole(n_parts),
        ]
    }

    fn call_weighted_sum(&mut self, plan: &Plan) {
        let inner = Self::inner(plan);
        let row = plan.row.and_then(|var| plan.w.element.step_of(var)).unwrap_or(0);
        let v = self.place_of(&plan.w, &inner).0;
        let (storage, _) = storage(plan.w.format).expect("a plan has a format of micro-kernels");
        let fields = [
            v,
            self.place_of(&plan.x, &inner).0,
            self.place_of(&plan.out, &inner).0,
            self.whole(bytes_of(plan.w.format, row)[0]),
            self.step(&plan.x, plan.cols.first().copied()),
            self.step(&plan.x, plan.row),
            self.step(&plan.out, plan.cols.first().copied()),
            self.n(plan.row),
            self.len(&plan.cols),
            self.len(&plan.run),
            self.whole(storage.number()),
            self.next_place(plan, v),
        ];
        let function = match (self.table.bf16, self.cpu.numbers) {
            (Some(halves), Numbers::Quantised) => halves.weighted_sum,
            _ => self.table.weighted_sum,
        };
        self.call_micro(function as *const u8, &fields);
    }

    /// Where reading goes on after the rows of a call: straight on, or with rows that a loop looks up (pages of a KV
    /// cache), where those of its next round lie; after its last round, once more with the same.
    fn next_place(&mut self, plan: &Plan, place: Value) -> Value {
        let is_looked_up = |var: &&VarId| plan.w.element.step_of(**var).is_none();
        let Some(var) = plan.around.iter().rev().find(is_looked_up).copied() else {
            let row = plan.row.and_then(|var| plan.w.element.step_of(var)).unwrap_or(0);
            let n_bytes = bytes_of(plan.w.format, row)[0];
            let n_rows = self.n(plan.row);
            let n_bytes = self.builder.ins().imul_imm_s(n_rows, n_bytes);
            return self.builder.ins().iadd(place, n_bytes);
        };
        let whole = if let Range::Within { of } = self.part.vars[var].range { of } else { var };
        let end = self.values(whole).2;
        let last = self.builder.ins().iadd_imm_s(end, -1);
        let here = self.vars[&var];
        let next = self.builder.ins().iadd_imm_s(here, 1);
        let next = self.builder.ins().smin(next, last);
        self.vars.insert(var, next);
        let place = self.place_of(&plan.w, &Self::inner(plan)).0;
        self.vars.insert(var, here);
        place
    }

    /// The loops inside the function.
    fn inner(plan: &Plan) -> Vec<VarId> {
        plan.run.iter().chain(&plan.row).chain(&plan.cols).copied().collect()
    }

    /// The address of the first element, and of its scale where scales are stored apart.
    pub(crate) fn place_of(&mut self, stored: &Stored, inner: &[VarId]) -> (Value, Value) {
        let base = match stored.place {
            Place::Param(id) => self.params[id],
            Place::Tile(id) => self.tiles[id],
        };
        let first = at_start(&stored.element, inner, &self.part.vars);
        let element = self.index(&first);
        if let Format::Int8 { group } = stored.format {
            let place = self.builder.ins().iadd(base, element);
            let group = self.split(element, i64::from(group)).0;
            let offset = self.builder.ins().imul_imm_s(group, 4);
            let scales = self.builder.ins().iadd_imm_s(base, stored.n_elements);
            return (place, self.builder.ins().iadd(scales, offset));
        }
        let block = self.split(element, stored.format.block_len() as i64).0;
        let offset = self.builder.ins().imul_imm_s(block, stored.format.block_bytes() as i64);
        let place = self.builder.ins().iadd(base, offset);
        (place, place)
    }

    /// The address of the quantised activations of a product, for the loops around.
    fn set_of(&mut self, plan: &Plan, slot: usize) -> Value {
        if self.part.activations[self.slots[slot].quantised.id].is_ahead {
            return self.set_ahead(plan, slot);
        }
        let moves = |var: &&VarId| plan.x.element.step_of(**var) != Some(0);
        let around: Vec<VarId> = plan.around.iter().filter(moves).copied().collect();
        self.set(&around, slot)
    }

    /// The address of quantised activations for the loops around that move to others.
    fn set(&mut self, around: &[VarId], slot: usize) -> Value {
        let mut set = self.whole(0);
        for (number, var) in around.iter().enumerate() {
            let most = self.slots[slot].quantised.columns.dims[number].most;
            let start = at_start(&Index::var(*var), &[*var], &self.part.vars);
            let position = self.index(&Index::var(*var).minus(&start));
            set = self.builder.ins().imul_imm_s(set, most as i64);
            set = self.builder.ins().iadd(set, position);
        }
        let set_bytes = self.slots[slot].quantised.set_bytes();
        let offset = self.builder.ins().imul_imm_s(set, set_bytes as i64);
        let start = self.slots[slot].start;
        self.builder.ins().iadd(start, offset)
    }

    /// The address of activations that were quantised ahead, for the loops around.
    fn set_ahead(&mut self, plan: &Plan, slot: usize) -> Value {
        let Quantised { columns, layout, .. } = &self.slots[slot].quantised;
        let (k, n_bytes) = (columns.k, activation_bytes(*layout, COLUMNS, columns.k));
        let first = at_start(&plan.x.element, &Self::inner(plan), &self.part.vars);
        let element = self.index(&first);
        let set = self.split(element, (k * COLUMNS) as i64).0;
        let offset = self.builder.ins().imul_imm_s(set, n_bytes as i64);
        let start = self.slots[slot].start;
        self.builder.ins().iadd(start, offset)
    }

    /// The stride of a loop.
    pub(crate) fn step(&mut self, stored: &Stored, var: Option<VarId>) -> Value {
        let step = var.and_then(|var| stored.element.step_of(var)).unwrap_or(0);
        self.whole(step)
    }

    /// The number of values of a loop here; one where there is no loop.
    pub(crate) fn n(&mut self, var: Option<VarId>) -> Value {
        let Some(var) = var else { return self.whole(1) };
        let (first, _, end) = self.values(var);
        self.builder.ins().isub(end, first)
    }

    /// The number of values of some loops together.
    fn len(&mut self, loops: &[VarId]) -> Value {
        let one = self.whole(1);
        loops.iter().fold(one, |len, var| {
            let n = self.n(Some(*var));
            self.builder.ins().imul(len, n)
        })
    }

    /// Calls a micro-kernel with an argument struct of 64-bit fields.
    pub(crate) fn call_micro(&mut self, function: *const u8, fields: &[Value]) {
        let description = self.description(fields);
        let mut arguments = vec![self.whole(function as i64), description];
        let boundary = if let Some(planted) = self.cpu.planted {
            arguments.push(self.whole(boundary::packed(planted)));
            boundary::call_planted as *const u8
        } else {
            boundary::call as *const u8
        };
        let mut signature = Signature::new(self.builder.func.signature.call_conv);
        signature.params.extend(arguments.iter().map(|_| AbiParam::new(I64)));
        let signature = self.builder.import_signature(signature);
        let boundary = self.whole(boundary as i64);
        self.builder.ins().call_indirect(signature, boundary, &arguments);
    }

    /// Stores 64-bit numbers on the stack, and gives the address of the first.
    pub(crate) fn description(&mut self, fields: &[Value]) -> Value {
        let size = 8 * fields.len() as u32;
        let slot = StackSlotData::new(StackSlotKind::ExplicitSlot, size, 3);
        let slot = self.builder.create_sized_stack_slot(slot);
        for (idx, field) in fields.iter().enumerate() {
            self.builder.ins().stack_store(I64, *field, slot, 8 * idx as i32);
        }
        self.builder.ins().stack_addr(I64, slot, 0)
    }
}

/// Bytes of `n` elements, and of their scales where these are stored apart.
fn bytes_of(format: Format, n_elements: i64) -> [i64; 2] {
    match format {
        Format::Int8 { group } => [n_elements, n_elements / i64::from(group) * 4],
        _ => [n_elements / format.block_len() as i64 * format.block_bytes() as i64, 0],
    }
}

fn halves(table: &Table) -> Bf16Functions {
    table.bf16.expect("a level without them has no such layout")
}
