//! Nests as functions with AVX-512, which Cranelift does not support.
//!
//! In: a nest, and which of its loops becomes lanes. Out: calls of a function that computes rows of elements, or
//! `false` where `access.rs` or `row_function.rs` find no way or little to gain; then nothing was emitted. One loop
//! runs over the elements of a row, one over rows; the others are generated around the call. Cranelift has vectors of
//! up to 128 bits, so `evex.rs` encodes these functions.

mod access;
pub(super) mod evex;
mod row_function;

use std::cmp::Reverse;

use cranelift_codegen::ir::types::I64;
use cranelift_codegen::ir::{AbiParam, FuncRef, InstBuilder, Signature, Value};
use cranelift_codegen::isa::CallConv;
use cranelift_module::{Linkage, Module};
use fusebox_simd::Level;

use crate::codegen::cpu::emit::Emitter;
use crate::codegen::cpu::vector::lane_strides::Lane;
use crate::codegen::cpu::vector::plan::{Form, Plan};
use crate::codegen::cpu::wide::access::{Field, Loops, Places};
use crate::codegen::cpu::wide::row_function::function;
use crate::kernel::stored::at_start;
use crate::kernel::{Nest, VarId};

/// The lanes of a vector.
const N: i64 = 16;

/// Row lengths that are tried where indices have one stride over part of a loop only.
const WIDTHS: [i64; 7] = [1024, 512, 256, 128, 64, 32, N];

/// What a call and a row cost besides their elements, in the units of `vector_plan.rs`.
const CALL: i64 = 60;
const ROW: i64 = 15;

/// A function, and the loops that it does not do.
struct Rows<'a> {
    loops: Loops<'a>,
    around: Vec<VarId>,
    places: Places,
    bytes: Vec<u8>,
}

impl Emitter<'_, '_> {
    /// Emits a nest as calls of a function of its own, if that is faster.
    pub(super) fn in_rows(&mut self, plan: &Plan<'_>) -> bool {
        let Some(rows) = self.rows(plan) else { return false };
        let Loops { lane, is_whole, row } = rows.loops;
        let function = self.import(rows.bytes);
        let inner: Vec<VarId> = row.into_iter().chain(is_whole.then_some(lane.var)).collect();
        self.each(&rows.around, &mut |emitter| {
            if is_whole {
                // A length that symbols make may be below zero, and such a row is empty.
                let (n, zero) = (emitter.n(Some(lane.var)), emitter.whole(0));
                let n = emitter.builder.ins().smax(n, zero);
                return emitter.call_rows(function, (plan.nest, &rows.places), &inner, (n, row));
            }
            let (first, _, end) = emitter.values(lane.var);
            emitter.counted((first, lane.rounds, end), |emitter, value| {
                emitter.vars.insert(lane.var, value);
                let n = emitter.whole(lane.rounds);
                emitter.call_rows(function, (plan.nest, &rows.places), &inner, (n, row));
            });
        });
        true
    }

    fn call_rows(
        &mut self,
        function: FuncRef,
        (nest, places): (&Nest, &Places),
        inner: &[VarId],
        (n, row): (Value, Option<VarId>),
    ) {
        let mut fields = vec![n, self.n(row)];
        for field in &places.fields {
            fields.push(match field {
                Field::Address(stored) => self.place_of(stored, inner).0,
                Field::Position(index) => self.index(&at_start(index, inner, &self.part.vars)),
                Field::Number(id) => {
                    let number = self.scalar(nest, *id);
                    let bits = if self.is_float(number) { self.as_bits(number) } else { number };
                    self.builder.ins().uextend(I64, bits)
                }
            });
        }
        let description = self.description(&fields);
        self.builder.ins().call(function, &[description]);
    }

    /// Makes a function known; it is defined when this one is.
    fn import(&mut self, bytes: Vec<u8>) -> FuncRef {
        let mut signature = Signature::new(CallConv::SystemV);
        signature.params.push(AbiParam::new(I64));
        let number = self.module.declarations().get_functions().count();
        let name = format!("{} rows {number}", self.kernel.name);
        let id = self.module.declare_function(&name, Linkage::Local, &signature);
        let id = id.expect("a name that nothing else has");
        self.own_functions.push((id, bytes));
        let function = self.module.declare_func_in_func(id, self.builder.func);
        // Each function is wherever the system allocates it, perhaps farther away than a near call reaches.
        self.builder.func.dfg.ext_funcs[function].colocated = false;
        function
    }
}

impl<'a> Emitter<'a, '_> {
    /// The function of a nest, if there is one and it pays.
    fn rows(&self, plan: &Plan<'a>) -> Option<Rows<'a>> {
        let is_wide = matches!(self.cpu.level, Level::Amx | Level::Avx512Bf16 | Level::Avx512);
        let (nest, folding) = (plan.nest, plan.nest.fold.as_ref());
        let is_row_fold = folding.is_none_or(|folding| folding.loops == [plan.lane.var]);
        let mut vars = nest.loops.iter().chain(folding.map_or(&[][..], |folding| &folding.loops));
        if !is_wide
            || !is_row_fold
            || plan.form == Form::Across
            || !vars.all(|var| nest.is_simple(self.part, *var))
        {
            return None;
        }
        let others = || nest.loops.iter().copied().filter(|var| *var != plan.lane.var);
        // Many rows a call are better than few.
        let may_be_rows = others().filter(|var| !nest.bounds_another(self.part, *var));
        let mut rows: Vec<Option<VarId>> = may_be_rows.map(Some).chain([None]).collect();
        rows.sort_by_key(|row| Reverse(row.and_then(|row| self.usual(row))));
        let widths = WIDTHS.into_iter().filter(|_| folding.is_none());
        let lanes = widths.map(|width| (Lane { rounds: width, group: width, ..plan.lane }, false));
        let lanes = lanes.filter(|(lane, _)| lane.length_divisor() % lane.rounds == 0);
        let ways = [(plan.lane, true)].into_iter().chain(lanes);
        for ((lane, is_whole), row) in ways.flat_map(|way| rows.iter().map(move |row| (way, *row))) {
            let loops = Loops { lane, is_whole, row };
            let Some(places) = Places::new(self.kernel, self.part, nest, loops) else { continue };
            let n = if is_whole { self.usual(lane.var)? } else { lane.rounds };
            let n_rows = row.and_then(|row| self.usual(row)).unwrap_or(1);
            let here = CALL + n_rows * (ROW + (n + N - 1) / N * plan.cost);
            if here >= n_rows * (n / 4 * plan.cost) {
                continue;
            }
            let has_rest = is_whole && lane.length_divisor() % N != 0;
            let Some(bytes) = function(nest, &places, has_rest) else { continue };
            let around = others().filter(|var| Some(*var) != row).collect();
            return Some(Rows { loops, around, places, bytes });
        }
        None
    }
}
