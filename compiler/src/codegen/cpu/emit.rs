//! One part of a kernel as a function.
//!
//! In: a part, and a function of the signature of [`signature`] to fill. Out: its loops and nests as blocks of code.
//! The function runs tasks `first..end`, one after another, in the order of the grid; the tiles of a task lie in the
//! scratch memory, and a fold's value in a register. Nothing is reordered here: sums are sums in the order of the text.
//! What a kernel says is done once for several tasks is done by the first of them; for which tasks that was is kept
//! there too, for a call that goes on. Code for a whole nest, where there is a faster form, belongs in `nest`:
//! `product.rs`, `vector.rs` has one, and `encode_call.rs` the only one.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::slice::from_ref;

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::{F32, I32, I64};
use cranelift_codegen::ir::{AbiParam, Block, FuncRef, InstBuilder, MemFlagsData, Signature, Type, Value};
use cranelift_codegen::isa::CallConv;
use cranelift_frontend::{FunctionBuilder, Variable};
use cranelift_jit::JITModule;
use cranelift_module::{FuncId, Module};
use fusebox_simd::{Table, table};

use crate::codegen::cpu::product::quantise_ahead::{self, ahead};
use crate::codegen::cpu::product::{Quantised, quantised, routing_bytes};
use crate::codegen::cpu::{ALIGNMENT, Cpu};
use crate::foundation::entity::List;
use crate::kernel::index::Index;
use crate::kernel::verify::types::expr_dtypes;
use crate::kernel::{
    Blocks, Expr, Folding, Kernel, Nest, ParamId, Part, Place, Range, Stmt, Tile, TileId, Var, VarId,
};
use crate::tensor::dtype::DType;
use crate::tensor::quant::Format;
use crate::tensor::sym::Symbol;

/// Flags of an access that is proven inside; its address may be odd.
pub(super) const PROVEN: MemFlagsData = MemFlagsData::new().with_notrap();
/// Flags of an access to memory that nothing writes while the code runs.
pub(super) const CONSTANT: MemFlagsData = PROVEN.with_readonly().with_can_move();

/// The type of a number while it is computed.
pub(super) fn type_of(dtype: DType) -> Type {
    if dtype.is_float() { F32 } else { I32 }
}

/// The arguments of a part's code: the addresses of the buffers, last that of the activations that were quantised
/// ahead; the values of the symbols; the first task; one past the last; the scratch memory; and whether the call
/// continues the one before.
pub(super) fn signature(convention: CallConv) -> Signature {
    let mut signature = Signature::new(convention);
    signature.params = vec![AbiParam::new(I64); 6];
    signature
}

/// A part that is emitted: the bytes of scratch memory that it takes, and the functions that it calls and that are to
/// be defined.
pub(super) struct Emitted {
    pub(super) scratch_bytes: usize,
    pub(super) functions: Vec<(FuncId, Vec<u8>)>,
}

/// Fills a function with a part.
pub(super) fn emit(
    builder: FunctionBuilder<'_>,
    module: &mut JITModule,
    (cpu, kernel, part): (&Cpu, &Kernel, &Part),
    symbols: &[Symbol],
    functions: Vec<FuncRef>,
) -> Emitted {
    let table = table(cpu.level);
    let config = module.target_config();
    let mut emitter = Emitter {
        builder,
        module,
        own_functions: Vec::new(),
        cpu,
        table,
        kernel,
        part,
        functions,
        params: List::default(),
        tiles: List::default(),
        slots: Vec::new(),
        routing: None,
        symbols: BTreeMap::new(),
        vars: BTreeMap::new(),
        masks: BTreeMap::new(),
    };
    let slots = quantised(cpu, kernel, part);
    let layout = ScratchLayout::new(part, &slots);
    let scratch_bytes = layout.end + routing_bytes(cpu, kernel, part);
    let call = emitter.arguments(symbols, layout, slots);
    emitter.tasks(&call);
    emitter.builder.ins().return_(&[]);
    emitter.builder.finalize(config);
    Emitted { scratch_bytes, functions: emitter.own_functions }
}

/// The arguments of a call, as values.
struct Call {
    first: Value,
    end: Value,
    /// Memory that holds, for each `once`, the tasks for which it has been done.
    done: Value,
    /// Whether the call continues the one before, so that this memory is valid.
    continues: Value,
}

/// A part, as far as it has been emitted.
pub(super) struct Emitter<'a, 'f> {
    pub(super) builder: FunctionBuilder<'f>,
    /// What the function belongs to.
    pub(super) module: &'a mut JITModule,
    /// Functions that are known there, and the bytes that they are to have.
    pub(super) own_functions: Vec<(FuncId, Vec<u8>)>,
    /// The instruction set and the numeric mode.
    pub(super) cpu: &'a Cpu,
    /// The micro-kernels of this level.
    pub(super) table: Table,
    pub(super) kernel: &'a Kernel,
    pub(super) part: &'a Part,
    /// The functions of `math.rs`, in their order.
    pub(super) functions: Vec<FuncRef>,
    /// Where each buffer starts.
    pub(super) params: List<ParamId, Value>,
    /// Where each tile starts.
    pub(super) tiles: List<TileId, Value>,
    /// Activations that products quantise.
    pub(super) slots: Vec<Slot>,
    /// Scratch memory to group columns by expert.
    pub(super) routing: Option<Value>,
    pub(super) symbols: BTreeMap<Symbol, Value>,
    /// The variables that have a value here, and those of loops that are done.
    pub(super) vars: BTreeMap<VarId, Value>,
    /// The masks of vector comparisons, by the vector of ones and zeros made from each.
    pub(super) masks: BTreeMap<Value, Value>,
}

/// Scratch memory for activations that products quantise.
pub(super) struct Slot {
    pub(super) quantised: Quantised,
    /// Where it starts.
    pub(super) start: Value,
}

impl Emitter<'_, '_> {
    /// Reads the arguments.
    fn arguments(&mut self, symbols: &[Symbol], layout: ScratchLayout, slots: Vec<Quantised>) -> Call {
        let entry = self.builder.create_block();
        self.builder.append_block_params_for_function_params(entry);
        self.enter(entry);
        let arguments: Vec<Value> = self.builder.block_params(entry).to_vec();
        for idx in 0..self.kernel.params.len() {
            let base = self.builder.ins().load(I64, CONSTANT, arguments[0], 8 * idx as i32);
            self.params.push(base);
        }
        for (idx, symbol) in symbols.iter().enumerate() {
            let value = self.builder.ins().load(I64, CONSTANT, arguments[1], 8 * idx as i32);
            self.symbols.insert(*symbol, value);
        }
        let ScratchLayout { tiles, quantised, done, end } = layout;
        let ahead = ahead(self.cpu, self.kernel);
        let ahead_start = (!ahead.is_empty()).then(|| {
            let offset = 8 * self.kernel.params.len() as i32;
            self.builder.ins().load(I64, CONSTANT, arguments[0], offset)
        });
        for offset in tiles {
            let base = self.builder.ins().iadd_imm_s(arguments[4], offset as i64);
            self.tiles.push(base);
        }
        for (quantised, offset) in slots.into_iter().zip(quantised) {
            let start = match (quantise_ahead::of(&ahead, self.part, &quantised), ahead_start) {
                (Some(own), Some(ahead_start)) => {
                    self.builder.ins().iadd_imm_s(ahead_start, own.offset as i64)
                }
                _ => self.builder.ins().iadd_imm_s(arguments[4], offset as i64),
            };
            self.slots.push(Slot { quantised, start });
        }
        self.routing = Some(self.builder.ins().iadd_imm_s(arguments[4], end as i64));
        let done = self.builder.ins().iadd_imm_s(arguments[4], done as i64);
        Call { first: arguments[2], end: arguments[3], done, continues: arguments[5] }
    }

    fn tasks(&mut self, call: &Call) {
        let part = self.part;
        let lens: Vec<Value> = part.grid.iter().map(|var| self.n_values(*var)).collect();
        let mut done = Vec::new();
        for number in 0..n_once(part) {
            let before = self.builder.ins().load(I64, PROVEN, call.done, 8 * number as i32);
            let nothing = self.whole(-1);
            let before = self.builder.ins().select(call.continues, before, nothing);
            let variable = self.builder.declare_var(I64);
            self.builder.def_var(variable, before);
            done.push(variable);
        }
        self.counted((call.first, 1, call.end), |emitter, task| {
            let mut rest = task;
            let mut positions = Vec::new();
            // The linear number of the outer variables: first that of all of them.
            let mut numbers = vec![task];
            for len in lens.iter().skip(1).rev() {
                positions.push(emitter.builder.ins().urem(rest, *len));
                rest = emitter.builder.ins().udiv(rest, *len);
                numbers.push(rest);
            }
            positions.push(rest);
            positions.reverse();
            numbers.push(emitter.whole(0));
            numbers.reverse();
            emitter.task(&part.grid, &positions, &mut |emitter| emitter.shared(&done, &numbers));
        });
        for (number, done) in done.into_iter().enumerate() {
            let now = self.builder.use_var(done);
            self.builder.ins().store(PROVEN, now, call.done, 8 * number as i32);
        }
    }

    /// Sets the variables of the grid and runs the body, unless a variable is past its end.
    fn task(&mut self, grid: &[VarId], positions: &[Value], body: &mut dyn FnMut(&mut Self)) {
        let part = self.part;
        let Some((var, inner)) = grid.split_first() else { return body(self) };
        let Range::Blocks(Blocks { start, step, end, .. }) = &part.vars[*var].range else {
            self.vars.insert(*var, positions[0]);
            return self.task(inner, &positions[1..], body);
        };
        let (start, end) = (self.index(start), self.sym(end));
        let offset = self.builder.ins().imul_imm_s(positions[0], *step);
        let value = self.builder.ins().iadd(start, offset);
        self.vars.insert(*var, value);
        let is_there = self.builder.ins().icmp(IntCC::SignedLessThan, value, end);
        self.when(is_there, |emitter| emitter.task(inner, &positions[1..], body));
    }

    /// The body of the part, without what the previous task has done for this one.
    fn shared(&mut self, done: &[Variable], numbers: &[Value]) {
        let part = self.part;
        let mut done = done.iter();
        for stmt in &part.body {
            let Stmt::Once { per, body } = stmt else {
                self.body(from_ref(stmt));
                continue;
            };
            let done = *done.next().expect("each has a variable");
            let (before, now) = (self.builder.use_var(done), numbers[per.len()]);
            let is_new = self.builder.ins().icmp(IntCC::NotEqual, before, now);
            self.when(is_new, |emitter| {
                emitter.body(body);
                emitter.builder.def_var(done, now);
            });
        }
    }

    /// Does something where a condition holds.
    fn when(&mut self, condition: Value, act: impl FnOnce(&mut Self)) {
        let (inside, after) = (self.builder.create_block(), self.builder.create_block());
        self.builder.ins().brif(condition, inside, &[], after, &[]);
        self.enter(inside);
        act(self);
        self.builder.ins().jump(after, &[]);
        self.enter(after);
    }

    /// The largest number of values of a grid variable, as `Part::n_values` counts.
    fn n_values(&mut self, var: VarId) -> Value {
        match &self.part.vars[var].range {
            Range::Whole { len } => self.sym(len),
            Range::Blocks(Blocks { step, end, .. }) => {
                let end = self.sym(end);
                let zero = self.whole(0);
                let end = self.builder.ins().smax(end, zero);
                let rounded_up = self.builder.ins().iadd_imm_s(end, step - 1);
                self.split(rounded_up, *step).0
            }
            Range::Within { .. } => unreachable!("a grid takes whole axes and blocks"),
        }
    }

    fn body(&mut self, body: &[Stmt]) {
        for stmt in body {
            match stmt {
                Stmt::Nest(nest) => self.nest(nest),
                Stmt::Loop { var, body } => {
                    self.each(&[*var], &mut |emitter| emitter.body(body));
                }
                Stmt::Once { body, .. } => self.body(body),
                Stmt::Quantise(id) => self.quantise(*id),
            }
        }
    }

    pub(super) fn nest(&mut self, nest: &Nest) {
        let nest = &self.rounded_once(nest);
        if self.blocks(nest) || self.product(nest) || self.vectorised(nest) {
            return;
        }
        self.each(&nest.loops, &mut |emitter| {
            let value = match &nest.fold {
                Some(folding) => emitter.folded(nest, folding),
                None => emitter.scalar(nest, nest.value),
            };
            emitter.store(nest.target, &nest.at, value);
        });
    }

    /// The nest without a rounding of its value that storing repeats.
    fn rounded_once<'n>(&self, nest: &'n Nest) -> Cow<'n, Nest> {
        let Expr::Cast(dtype @ (DType::F16 | DType::BF16), value) = nest.exprs[nest.value] else {
            return Cow::Borrowed(nest);
        };
        let bare = Nest { value, ..nest.clone() };
        let store_rounds = nest.fold.is_none() && self.layout(nest.target).format == Format::of(dtype);
        if store_rounds && self.dtype(&bare) == DType::F32 { Cow::Owned(bare) } else { Cow::Borrowed(nest) }
    }

    fn folded(&mut self, nest: &Nest, folding: &Folding) -> Value {
        let dtype = self.dtype(nest);
        let start = match folding.init {
            Some(init) => self.scalar(nest, init),
            None => self.identity(folding.fold, dtype),
        };
        let so_far = self.builder.declare_var(type_of(dtype));
        self.builder.def_var(so_far, start);
        self.each(&folding.loops, &mut |emitter| {
            let x = emitter.scalar(nest, nest.value);
            let before = emitter.builder.use_var(so_far);
            let after = emitter.fold(folding.fold, before, x);
            emitter.builder.def_var(so_far, after);
        });
        self.builder.use_var(so_far)
    }

    pub(super) fn dtype(&self, nest: &Nest) -> DType {
        let of_place = |place| match place {
            Place::Param(id) => self.kernel.params[id].format.dtype(),
            Place::Tile(id) => self.part.tiles[id].dtype,
        };
        expr_dtypes(&nest.exprs, of_place).expect("a verified nest has types")[nest.value]
    }

    /// Does something for every combination of values of some variables, the last running fastest.
    pub(super) fn each(&mut self, vars: &[VarId], act: &mut dyn FnMut(&mut Self)) {
        let Some((var, inner)) = vars.split_first() else { return act(self) };
        let range = self.values(*var);
        self.counted(range, |emitter, value| {
            emitter.vars.insert(*var, value);
            emitter.each(inner, act);
        });
    }

    /// The first value of a variable, its step, and one past the last.
    pub(super) fn values(&mut self, var: VarId) -> (Value, i64, Value) {
        let Var { range, until, .. } = &self.part.vars[var];
        let (first, step, mut end) = self.range(range);
        for bound in until {
            let bound = self.index(bound);
            end = self.builder.ins().smin(end, bound);
        }
        if !until.is_empty() {
            // No value is left where it ends before it begins.
            end = self.builder.ins().smax(end, first);
        }
        (first, step, end)
    }

    fn range(&mut self, range: &Range) -> (Value, i64, Value) {
        let part = self.part;
        match range {
            Range::Whole { len } => (self.whole(0), 1, self.sym(len)),
            Range::Blocks(Blocks { start, step, end, .. }) => (self.index(start), *step, self.sym(end)),
            Range::Within { of } => {
                let blocks = part.vars[*of].range.blocks().expect("a variable runs within one of blocks");
                let base = self.index(&Index::var(*of));
                let last = self.builder.ins().iadd_imm_s(base, blocks.block);
                let end = self.sym(&blocks.end);
                (base, 1, self.builder.ins().smin(last, end))
            }
        }
    }

    /// A loop from the first value by steps to below the last.
    pub(super) fn counted(
        &mut self,
        (first, step, end): (Value, i64, Value),
        body: impl FnOnce(&mut Self, Value),
    ) {
        let [head, inside, after] = [0; 3].map(|_| self.builder.create_block());
        let value = self.builder.append_block_param(head, I64);
        self.builder.ins().jump(head, &[first.into()]);
        self.builder.switch_to_block(head);
        // The exit block is created first: Cranelift then visits the loop body before the code after it, without which
        // it hoists nothing out of the loop.
        let is_over = self.builder.ins().icmp(IntCC::SignedGreaterThanOrEqual, value, end);
        self.builder.ins().brif(is_over, after, &[], inside, &[]);
        self.enter(inside);
        body(self, value);
        let next = self.builder.ins().iadd_imm_s(value, step);
        self.builder.ins().jump(head, &[next.into()]);
        self.builder.seal_block(head);
        self.enter(after);
    }

    /// Switches to a block whose predecessors are all known.
    fn enter(&mut self, block: Block) {
        self.builder.switch_to_block(block);
        self.builder.seal_block(block);
    }
}

/// How many statements of a part are done once for several tasks.
fn n_once(part: &Part) -> usize {
    part.body.iter().filter(|stmt| matches!(stmt, Stmt::Once { .. })).count()
}

/// The layout of the scratch memory: where each tile starts, each set of quantised activations, and the memory of what
/// has been done for which tasks; and its end.
struct ScratchLayout {
    tiles: Vec<usize>,
    quantised: Vec<usize>,
    done: usize,
    end: usize,
}

impl ScratchLayout {
    fn new(part: &Part, slots: &[Quantised]) -> Self {
        let mut end = 0;
        let mut place = |n_bytes: usize| {
            let start = end;
            end += n_bytes.next_multiple_of(ALIGNMENT);
            start
        };
        let bytes_of = |tile: &Tile| tile.dims.iter().product::<usize>() * tile.dtype.bytes();
        let tiles = part.tiles.values().map(|tile| place(bytes_of(tile))).collect();
        let bytes_here = |slot: &Quantised| if part.activations[slot.id].is_ahead { 0 } else { slot.bytes() };
        let quantised = slots.iter().map(|slot| place(bytes_here(slot))).collect();
        let done = place(8 * n_once(part));
        Self { tiles, quantised, done, end }
    }
}
