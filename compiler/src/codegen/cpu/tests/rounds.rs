//! What is done in each round of a loop, and what all rounds have in common: Cranelift takes that out, if blocks come
//! in an order that it follows.
//!
//! In: a kernel as text. Out: in how many loops its instructions lie.

use cranelift_codegen::Context;
use cranelift_codegen::control::ControlPlane;
use cranelift_codegen::ir::Opcode;
use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext};
use cranelift_jit::{JITBuilder, JITModule};
use cranelift_module::default_libcall_names;

use super::*;
use crate::codegen::cpu::emit::{emit, signature};

/// Rows with a factor each, two of them a task.
const SCALED: &str = r#"kernel "scaled" map
  read @0 x : f32[t:4, e:64]
  read @1 s : f32[t:4]
  write @2 y : f32[t:4, e:64]
part
  var t0 in blocks of 2 step 2 from 0 to 4
  var t1 within t0
  var e2 in 0..64
  grid t0
  for t1, e2
    @2[t1, e2] = mul(@0[t1, e2], sqrt(@1[t1]))
"#;

/// The code of a kernel's only part, and how many functions of its own it calls.
pub(super) fn emitted(level: Level, text: &str) -> (Context, usize) {
    let kernel = parse(text).unwrap();
    let cpu = Cpu::at(level, Numbers::Single).unwrap();
    let mut module = JITModule::new(JITBuilder::with_isa(cpu.isa.clone(), default_libcall_names()));
    let mut context = Context::new();
    context.func.signature = signature(cpu.isa.default_call_conv());
    let mut buffers = FunctionBuilderContext::new();
    let builder = FunctionBuilder::new(&mut context.func, &mut buffers);
    let emitted =
        emit(builder, &mut module, (&cpu, &kernel, &kernel.parts[0]), &symbols(&kernel), Vec::new());
    context.optimize(&*cpu.isa, &mut ControlPlane::default()).unwrap();
    (context, emitted.functions.len())
}

/// The code of a kernel's only part, with nothing left to such functions.
fn optimised(text: &str) -> Context {
    emitted(Level::Portable, text).0
}

/// In how many loops each instruction of a kind lies.
fn depths(context: &Context, wanted: Opcode) -> Vec<usize> {
    let func = &context.func;
    let insts = func.layout.blocks().flat_map(|block| func.layout.block_insts(block));
    let insts = insts.filter(|inst| func.dfg.insts[*inst].opcode() == wanted);
    let block = |inst| func.layout.inst_block(inst).expect("it is in a block");
    insts.map(|inst| context.loop_analysis.loop_level(block(inst)).level()).collect()
}

#[test]
fn what_is_the_same_in_all_rounds_is_computed_before_them() {
    let context = optimised(SCALED);
    let code = context.func.display();
    // Inside of the loops over tasks, rows and numbers.
    assert!(depths(&context, Opcode::Store).contains(&3), "{code}");
    assert_eq!(depths(&context, Opcode::Sqrt), [2], "{code}");
    assert!(depths(&context, Opcode::Splat).iter().all(|depth| *depth == 2), "{code}");
}

#[test]
fn what_is_stored_in_half_precision_is_rounded_once() {
    let stored = SCALED.replace("y : f32", "y : f16");
    let twice = stored.replace("mul(@0[t1, e2], sqrt(@1[t1]))", "cast.f16(mul(@0[t1, e2], sqrt(@1[t1])))");
    let [stored, twice] = [stored, twice].map(|text| optimised(&text));
    for opcode in [Opcode::Fmul, Opcode::Fadd, Opcode::Ushr] {
        let (wanted, actual) = (depths(&stored, opcode), depths(&twice, opcode));
        assert_eq!(actual, wanted, "{opcode} {}", twice.func.display());
    }
}
