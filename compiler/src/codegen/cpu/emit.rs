//! One part of a kernel as a function.
//!
//! In: a part, and a function of the signature of [`signature`] to fill. Out: its loops and nests as blocks of code.
//! The function runs tasks `first..end`, one after another, in the order of the grid; the tiles of a task lie in the
//! scratch memory, and a fold's value in a register. Nothing is reordered here: sums are sums in the order of the text.
//! Code for a whole nest, where there is a faster form, belongs in `nest`; `vector.rs` has one.

use std::collections::BTreeMap;

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::I64;
use cranelift_codegen::ir::{AbiParam, Block, FuncRef, InstBuilder, Signature, Value};
use cranelift_codegen::isa::{CallConv, TargetFrontendConfig};
use cranelift_frontend::FunctionBuilder;

use crate::codegen::cpu::Cpu;
use crate::codegen::cpu::memory::CONSTANT;
use crate::codegen::cpu::scalar::type_of;
use crate::foundation::entity::List;
use crate::kernel::index::Index;
use crate::kernel::verify::types::expr_dtypes;
use crate::kernel::{Folding, Kernel, Nest, ParamId, Part, Place, Range, Stmt, TileId, VarId};
use crate::tensor::dtype::DType;
use crate::tensor::sym::Symbol;

/// Tiles start at multiples of this many bytes.
pub(super) const ALIGNMENT: usize = 64;

/// What the code of a part takes: the addresses of the buffers, the values of the symbols, the first task, one past
/// the last, and the scratch memory.
pub(super) fn signature(convention: CallConv) -> Signature {
    let mut signature = Signature::new(convention);
    signature.params = vec![AbiParam::new(I64); 5];
    signature
}

/// Bytes of scratch memory that the tiles of a part take.
pub(super) fn scratch_bytes(part: &Part) -> usize {
    tile_offsets(part).1
}

/// Fills a function with a part.
pub(super) fn emit(
    builder: FunctionBuilder<'_>,
    config: TargetFrontendConfig,
    (cpu, kernel, part): (&Cpu, &Kernel, &Part),
    symbols: &[Symbol],
    functions: Vec<FuncRef>,
) {
    let mut emitter = Emitter {
        builder,
        cpu,
        kernel,
        part,
        functions,
        params: List::default(),
        tiles: List::default(),
        symbols: BTreeMap::new(),
        vars: BTreeMap::new(),
        masks: BTreeMap::new(),
    };
    let [first, end] = emitter.arguments(symbols);
    emitter.tasks(first, end);
    emitter.builder.ins().return_(&[]);
    emitter.builder.finalize(config);
}

/// A part, as far as it has been emitted.
pub(super) struct Emitter<'a, 'f> {
    pub(super) builder: FunctionBuilder<'f>,
    /// The level and the numbers that the code is for.
    pub(super) cpu: &'a Cpu,
    pub(super) kernel: &'a Kernel,
    pub(super) part: &'a Part,
    /// The functions of `math.rs`, in their order.
    pub(super) functions: Vec<FuncRef>,
    /// Where each buffer starts.
    pub(super) params: List<ParamId, Value>,
    /// Where each tile starts.
    pub(super) tiles: List<TileId, Value>,
    pub(super) symbols: BTreeMap<Symbol, Value>,
    /// The variables that have a value here, and those of loops that are done.
    pub(super) vars: BTreeMap<VarId, Value>,
    /// The masks that comparisons of vectors gave, by their ones and zeros.
    pub(super) masks: BTreeMap<Value, Value>,
}

impl Emitter<'_, '_> {
    /// Reads the arguments; gives the range of tasks.
    fn arguments(&mut self, symbols: &[Symbol]) -> [Value; 2] {
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
        for offset in tile_offsets(self.part).0 {
            let base = self.builder.ins().iadd_imm_s(arguments[4], offset as i64);
            self.tiles.push(base);
        }
        [arguments[2], arguments[3]]
    }

    fn tasks(&mut self, first: Value, end: Value) {
        let part = self.part;
        let lens: Vec<Value> = part.grid.iter().map(|var| self.n_values(*var)).collect();
        self.counted((first, 1, end), |emitter, task| {
            let mut rest = task;
            let mut positions = Vec::new();
            for len in lens.iter().skip(1).rev() {
                positions.push(emitter.builder.ins().urem(rest, *len));
                rest = emitter.builder.ins().udiv(rest, *len);
            }
            positions.push(rest);
            positions.reverse();
            emitter.task(&part.grid, &positions);
        });
    }

    /// Gives the variables of the grid their values and runs the body, but where a variable is past its end.
    fn task(&mut self, grid: &[VarId], positions: &[Value]) {
        let part = self.part;
        let Some((var, inner)) = grid.split_first() else { return self.body(&part.body) };
        let Range::Blocks { start, step, end, .. } = &part.vars[*var].range else {
            self.vars.insert(*var, positions[0]);
            return self.task(inner, &positions[1..]);
        };
        let (start, end) = (self.index(start), self.sym(end));
        let offset = self.builder.ins().imul_imm_s(positions[0], *step);
        let value = self.builder.ins().iadd(start, offset);
        self.vars.insert(*var, value);
        let is_there = self.builder.ins().icmp(IntCC::SignedLessThan, value, end);
        let (inside, after) = (self.builder.create_block(), self.builder.create_block());
        self.builder.ins().brif(is_there, inside, &[], after, &[]);
        self.enter(inside);
        self.task(inner, &positions[1..]);
        self.builder.ins().jump(after, &[]);
        self.enter(after);
    }

    /// How many values a variable of the grid takes at most, as `Part::n_values` counts.
    fn n_values(&mut self, var: VarId) -> Value {
        match &self.part.vars[var].range {
            Range::Whole { len } => self.sym(len),
            Range::Blocks { step, end, .. } => {
                let end = self.sym(end);
                let zero = self.whole(0);
                let end = self.builder.ins().smax(end, zero);
                let rounded = self.builder.ins().iadd_imm_s(end, step - 1);
                self.split(rounded, *step).0
            }
            Range::Within { .. } => unreachable!("a grid takes whole axes and blocks"),
        }
    }

    fn body(&mut self, body: &[Stmt]) {
        for stmt in body {
            match stmt {
                Stmt::Nest(nest) => self.nest(nest),
                Stmt::Loop { var, body } => self.each(&[*var], &mut |emitter| emitter.body(body)),
            }
        }
    }

    fn nest(&mut self, nest: &Nest) {
        if self.vectorised(nest) {
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

    /// The first value of a variable, what lies between two, and one past the last.
    pub(super) fn values(&mut self, var: VarId) -> (Value, i64, Value) {
        let part = self.part;
        match &part.vars[var].range {
            Range::Whole { len } => (self.whole(0), 1, self.sym(len)),
            Range::Blocks { start, step, end, .. } => (self.index(start), *step, self.sym(end)),
            Range::Within { of } => {
                let Range::Blocks { block, end, .. } = &part.vars[*of].range else {
                    unreachable!("a variable runs within one of blocks")
                };
                let base = self.index(&Index::var(*of));
                let (last, end) = (self.builder.ins().iadd_imm_s(base, *block), self.sym(end));
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
        let goes_on = self.builder.ins().icmp(IntCC::SignedLessThan, value, end);
        self.builder.ins().brif(goes_on, inside, &[], after, &[]);
        self.enter(inside);
        body(self, value);
        let next = self.builder.ins().iadd_imm_s(value, step);
        self.builder.ins().jump(head, &[next.into()]);
        self.builder.seal_block(head);
        self.enter(after);
    }

    /// Goes on in a block that everything already leads to.
    fn enter(&mut self, block: Block) {
        self.builder.switch_to_block(block);
        self.builder.seal_block(block);
    }
}

/// Where each tile starts in the scratch memory, and how many bytes there are.
fn tile_offsets(part: &Part) -> (Vec<usize>, usize) {
    let mut end = 0;
    let mut offsets = Vec::new();
    for tile in part.tiles.values() {
        offsets.push(end);
        let n_bytes = tile.dims.iter().product::<usize>() * tile.dtype.bytes();
        end += n_bytes.next_multiple_of(ALIGNMENT);
    }
    (offsets, end)
}
