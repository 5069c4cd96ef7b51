//! The sample kernels, every function and every format against the interpreter, and arguments that do not fit.

use std::collections::BTreeMap;

use super::hoist::{rounded, steps};
use super::jit::Bytes;
use super::product::{Plan, plan};
use super::*;
use crate::foundation::entity::Id;
use crate::kernel::index::Index;
use crate::kernel::parse::parse;
use crate::kernel::print::symbols;
use crate::kernel::run::memory::{Buffer, Buffers};
use crate::kernel::run::run;
use crate::kernel::{Access, Expr, Nest, Stmt, VarId, samples};
use crate::tensor::dtype::DType;
use crate::tensor::quant::Format;

fn code(text: &str) -> Code {
    Cpu::host(Numbers::Exact).unwrap().compile(&parse(text).unwrap()).unwrap()
}

/// The bytes of elements of a plain format.
fn encoded(format: Format, elements: &[f32]) -> Vec<u8> {
    let bytes = |x: &f32| match format.plain() {
        Some(DType::F32) => x.to_le_bytes().to_vec(),
        Some(DType::F16) => half::f16::from_f32(*x).to_le_bytes().to_vec(),
        Some(DType::BF16) => half::bf16::from_f32(*x).to_le_bytes().to_vec(),
        Some(DType::I32) => (*x as i32).to_le_bytes().to_vec(),
        None => panic!("a plain format"),
    };
    elements.iter().flat_map(bytes).collect()
}

/// Runs a kernel both ways on the same bytes, its code in ranges of `step` tasks.
fn check(text: &str, values: &[i64], inputs: &[Vec<u8>], step: usize) {
    check_near(text, values, inputs, step, (&code(text), 0.0));
}

/// The same with code of the caller's, and how far it may be off for each unit of the typical size.
fn check_near(text: &str, values: &[i64], inputs: &[Vec<u8>], step: usize, (code, tolerance): (&Code, f32)) {
    let kernel = &parse(text).unwrap();
    let names = symbols(kernel).into_iter().map(|symbol| symbol.name);
    let named: BTreeMap<_, _> = names.zip(values.iter().copied()).collect();
    let mut inputs = inputs.iter();
    let mut memory: Vec<Vec<u8>> = Vec::new();
    for param in kernel.params.values() {
        let zeros = vec![0; param.format.bytes_for(param.shape.max_len()).unwrap()];
        memory.push(if param.access == Access::Read { inputs.next().unwrap().clone() } else { zeros });
    }
    let pairs = kernel.params.values().zip(&memory).map(|(param, bytes)| decoded(param.format, bytes));
    let mut expected = Buffers(pairs.collect());
    run(kernel, &named, &mut expected).unwrap();
    let accesses = kernel.params.values().map(|param| param.access);
    let mut buffers: Vec<Bytes<'_>> = (memory.iter_mut().zip(accesses))
        .map(|(b, access)| if access == Access::Read { Bytes::Read(b) } else { Bytes::Write(b) })
        .collect();
    let mut scratch = vec![0; code.scratch_bytes()];
    let n_tasks = code.n_tasks(values).unwrap();
    for first in (0..n_tasks).step_by(step) {
        let tasks = first..(first + step as i64).min(n_tasks);
        code.run(tasks, &mut buffers, values, &mut scratch).unwrap();
    }
    for ((param, bytes), expected) in kernel.params.values().zip(&memory).zip(expected.0.values()) {
        let actual = decoded(param.format, bytes);
        let is_same = same(&actual, expected) || near(&actual, expected, tolerance);
        assert!(is_same, "{}\n{actual:?}\n{expected:?}\n{text}", param.name);
    }
}

/// The elements of bytes; whole numbers exactly.
fn decoded(format: Format, bytes: &[u8]) -> Buffer {
    if format == Format::I32 {
        let whole = |bytes: &[u8]| i32::from_le_bytes(bytes.try_into().unwrap());
        return Buffer::Int(bytes.chunks(4).map(whole).collect());
    }
    let n_elements = bytes.len() / format.block_bytes() * format.block_len();
    Buffer::Float(format.decode_all(bytes, n_elements).unwrap())
}

fn same(a: &Buffer, b: &Buffer) -> bool {
    match (a, b) {
        (Buffer::Float(a), Buffer::Float(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a == b || a.is_nan() && b.is_nan())
        }
        _ => a == b,
    }
}

fn near(a: &Buffer, b: &Buffer, tolerance: f32) -> bool {
    let (Buffer::Float(a), Buffer::Float(b)) = (a, b) else { return false };
    let typical = (b.iter().map(|x| x * x).sum::<f32>() / b.len() as f32).sqrt();
    a.iter().zip(b).all(|(a, b)| (a - b).abs() <= tolerance * typical.max(b.abs()))
}

/// Bytes for each parameter that is read: small numbers, or whatever bits a block may have.
fn inputs(text: &str) -> Vec<Vec<u8>> {
    let kernel = parse(text).unwrap();
    let read = kernel.params.values().filter(|param| param.access == Access::Read);
    let bytes = |format: Format, n: usize| match format.plain() {
        Some(_) => encoded(format, &(0..n).map(|i| (i * 7 % 23) as f32 * 0.75 - 4.0).collect::<Vec<f32>>()),
        // Without the bits that would make an exponent too great.
        None => (0..format.bytes_for(n).unwrap()).map(|i| (i * 37 % 251) as u8 & 0xbf).collect(),
    };
    read.map(|param| bytes(param.format, param.shape.max_len())).collect()
}

#[test]
fn samples_run_as_they_are_interpreted() {
    for text in samples::ALL {
        let symbols = symbols(&parse(text).unwrap());
        for near in [false, true] {
            let values: Vec<i64> = symbols.iter().map(|s| if near { s.near } else { s.max }).collect();
            for step in [1, 2, 1000] {
                check(text, &values, &inputs(text), step);
            }
        }
    }
}

#[test]
fn every_format_is_decoded() {
    let formats = Format::FIXED.into_iter().chain([Format::Int8 { group: 64 }, Format::Int8 { group: 3 }]);
    for format in formats {
        let n = 3 * format.block_len();
        let result = format.dtype();
        let text = format!(
            "kernel \"copy\" map\n  read @0 x : {format}[d:{n}]\n  write @1 y : {result}[d:{n}]\npart\n  \
             var d0 in 0..{n}\n  grid\n  for d0\n    @1[d0] = @0[d0]\n"
        );
        check(&text, &[], &inputs(&text), 1);
    }
}

#[test]
fn every_half_precision_number_is_decoded() {
    let bits: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    for format in [Format::F16, Format::BF16] {
        let text = format!(
            "kernel \"widen\" map\n  read @0 x : {format}[d:65536]\n  write @1 y : f32[d:65536]\n  \
             write @2 z : {format}[d:65536]\npart\n  var d0 in 0..65536\n  grid d0\n  @1[d0] = @0[d0]\n  \
             @2[d0] = @0[d0]\n"
        );
        check(&text, &[], std::slice::from_ref(&bits), 65536);
    }
}

/// Numbers at the edges of what the functions take.
const FLOATS: [f32; 16] = [
    0.0,
    1.0,
    -1.0,
    0.3,
    -2.7,
    88.9,
    -104.0,
    65519.0,
    65520.0,
    3e9,
    -3e9,
    1e-40,
    f32::MAX,
    f32::INFINITY,
    f32::NEG_INFINITY,
    f32::NAN,
];

#[test]
fn every_function_of_floats_is_that_of_the_interpreter() {
    let data = [encoded(Format::F32, &FLOATS)];
    let unary = ["neg", "exp", "ln", "sin", "cos", "sqrt", "rsqrt", "recip", "cast.f16", "cast.bf16"];
    let unary = unary.map(|f| ("f32", format!("{f}(@0[a0])")));
    let pairs = ["add", "sub", "mul", "div", "max", "min"].map(|f| ("f32", format!("{f}(@0[a0], @0[b1])")));
    let truths = ["lt", "le", "eq"].map(|f| ("i32", format!("{f}(@0[a0], @0[b1])")));
    let cast = ("i32", "cast.i32(@0[a0])".to_owned());
    for (dtype, value) in unary.into_iter().chain(pairs).chain(truths).chain([cast]) {
        check(&table(dtype, "f32", &value), &[], &data, 100);
    }
}

#[test]
fn every_function_of_whole_numbers_is_that_of_the_interpreter() {
    let whole = [0, 1, -1, 7, -13, i32::MAX, i32::MIN, 46_341, 65_536, 3, -2, 100, 16_777_217, 5, 6, -8];
    let data = [whole.into_iter().flat_map(i32::to_le_bytes).collect()];
    for f in ["add", "sub", "max", "min", "lt", "le", "eq"] {
        check(&table("i32", "i32", &format!("{f}(@0[a0], @0[b1])")), &[], &data, 100);
    }
    for (dtype, value) in [
        ("i32", "mul(@0[a0], @0[b1])"),
        ("i32", "neg(@0[a0])"),
        ("i32", "select(lt(@0[a0], @0[b1]), @0[a0], position(2*b1-3))"),
        ("i32", "position(((a0-9)%4)+10*((a0-9)/4))"),
        ("f32", "cast.f32(@0[a0])"),
        ("f32", "cast.f16(@0[a0])"),
    ] {
        check(&table(dtype, "i32", value), &[], &data, 7);
    }
}

/// A kernel that stores a value for each pair of elements.
fn table(dtype: &str, of: &str, value: &str) -> String {
    format!(
        "kernel \"table\" map\n  read @0 x : {of}[a:16]\n  write @1 y : {dtype}[a:16, b:16]\npart\n  \
         var a0 in 0..16\n  var b1 in 0..16\n  grid a0, b1\n  @1[a0, b1] = {value}\n"
    )
}

/// Products as they occur: rows and vectors in blocks, runs of several axes, weights picked by numbers from memory, one
/// vector for two weights, sums that are carried on, and mixtures.
const PRODUCTS: [(&str, usize); 4] = [
    (
        r#"kernel "gate and up" matrix-matrix
  read @0 x : f32[t:37, d:64]
  read @1 w : FORMAT[f:21, d:64]
  read @2 v : FORMAT[f:21, d:64]
  write @3 y : f32[t:37, f:21]
part
  tile tile0 : f32[5, 64]
  tile tile1 : f32[5, 8]
  tile tile2 : f32[5, 8]
  tile tile3 : f32[5]
  var t0 in blocks of 5 step 5 from 0 to 37
  var f1 in blocks of 8 step 8 from 0 to 21
  var t2 within t0
  var f3 within f1
  var d4 in 0..64
  grid t0, f1
  for t2, d4
    tile0[-t0+t2, d4] = mul(@0[t2, d4], 0.5)
  for t2
    tile3[-t0+t2] = sum d4 of mul(tile0[-t0+t2, d4], tile0[-t0+t2, d4])
  for t2, f3
    tile1[-t0+t2, -f1+f3] = sum d4 of mul(tile0[-t0+t2, d4], @1[f3, d4])
  for t2, f3
    tile2[-t0+t2, -f1+f3] = sum d4 of mul(@2[f3, d4], tile0[-t0+t2, d4]) from tile1[-t0+t2, -f1+f3]
  for t2, f3
    @3[t2, f3] = add(mul(tile1[-t0+t2, -f1+f3], tile3[-t0+t2]), tile2[-t0+t2, -f1+f3])
"#,
        3,
    ),
    (
        r#"kernel "heads" matrix-vector
  read @0 x : f32[t:2, kv:2, g:2, side:2, pair:32]
  read @1 w : FORMAT[d:9, kv:2, g:2, e:64]
  write @2 y : f32[t:2, d:9]
part
  var t0 in 0..2
  var d1 in 0..9
  var e2 in 0..64
  var g3 in 0..2
  var kv4 in 0..2
  grid t0
  for d1
    @2[t0, d1] = sum e2, g3, kv4 of mul(@0[t0, kv4, g3, (e2/32), (e2%32)], @1[d1, kv4, g3, e2]) from 2.0
"#,
        1,
    ),
    (
        r#"kernel "picked" experts
  read @0 x : f32[k:3, f:64]
  read @1 ids : i32[k:3]
  read @2 w : FORMAT[x:5, d:7, f:64]
  write @3 y : f32[d:7]
part
  var d0 in 0..7
  var f1 in 0..64
  var k2 in 0..3
  grid
  for d0
    @3[d0] = sum f1, k2 of mul(@0[k2, f1], @2[lookup(@1[k2], 5), d0, f1])
"#,
        1,
    ),
    (
        r#"symbol P in 0..40 near 33
kernel "mixture" attention
  read @0 p : f32[g:3, s:41]
  read @1 v : f16[s:41, e:64]
  write @2 y : f32[g:3, e:64]
part
  tile tile0 : f32[3, 64]
  var g0 in 0..3
  var e1 in 0..64
  var s2 in blocks of 16 step 16 from 0 to P+1
  var s3 within s2
  grid
  for g0, e1
    tile0[g0, e1] = 1.0
  loop s2
    for g0, e1
      tile0[g0, e1] = sum s3 of mul(@0[g0, s3], cast.f32(@1[s3, e1])) from mul(tile0[g0, e1], 0.5)
  end
  for g0, e1
    @2[g0, e1] = tile0[g0, e1]
"#,
        1,
    ),
];

#[test]
fn products_are_near_what_is_interpreted() {
    let formats = ["f32", "f16", "q8_0", "q4_0", "q5_1", "int8.g64", "int8.g32"];
    for (text, n_products) in PRODUCTS {
        for format in formats {
            // Halves need a cast where they are multiplied.
            let text = if format == "f16" {
                let weights =
                    ["@1[f3, d4]", "@2[f3, d4]", "@1[d1, kv4, g3, e2]", "@2[lookup(@1[k2], 5), d0, f1]"];
                let cast = |text: String, weight: &str| text.replace(weight, &format!("cast.f32({weight})"));
                weights.into_iter().fold(text.to_owned(), cast)
            } else {
                text.to_owned()
            };
            let text = &text.replace("FORMAT", format);
            let kernel = parse(text).unwrap();
            let values: Vec<i64> = symbols(&kernel).iter().map(|symbol| symbol.near).collect();
            for level in Level::ALL.into_iter().filter(|level| level.is_supported()) {
                for (numbers, tolerance) in [(Numbers::Single, 1e-5), (Numbers::Quantised, 0.05)] {
                    let of_nest =
                        |nest: &Nest| plan(&kernel, &kernel.parts[0], nest, (numbers, micro::table(level)));
                    assert_eq!(count(&kernel.parts[0].body, &of_nest), n_products, "{text}");
                    let code = Cpu::at(level, numbers).unwrap().compile(&kernel).unwrap();
                    for step in [1, 3, 1000] {
                        check_near(text, &values, &inputs(text), step, (&code, tolerance));
                    }
                }
            }
        }
    }
}

/// How many nests have a plan.
fn count(body: &[Stmt], plan: &dyn Fn(&Nest) -> Option<Plan>) -> usize {
    let n = body.iter().map(|stmt| match stmt {
        Stmt::Nest(nest) => usize::from(plan(nest).is_some()),
        Stmt::Loop { body, .. } => count(body, plan),
    });
    n.sum()
}

#[test]
fn what_tasks_have_in_common_is_done_once_for_them() {
    let kernel = parse(&PRODUCTS[0].0.replace("FORMAT", "q8_0")).unwrap();
    let (cpu, functions) = (Cpu::host(Numbers::Quantised).unwrap(), micro::table(Level::host()));
    let part = &kernel.parts[0];
    let slots = rounded(&cpu, functions, &kernel, part);
    let depths: Vec<usize> =
        steps((&cpu, functions), &kernel, part, &slots).iter().map(|step| step.depth).collect();
    // The tile and its squares go with the tokens, and so do its numbers of 8 bits, which both weights share.
    assert_eq!((slots.len(), depths), (1, vec![1, 1, 1, 2, 2, 2]));
}

#[test]
fn arguments_that_do_not_fit_are_refused() {
    let code = code(samples::ROW_REDUCTION);
    let (x, mut y) = (vec![0; 48], vec![0; 16]);
    let refused = |tasks: std::ops::Range<i64>, x: &[u8], y: &mut [u8], symbols: &[i64], scratch: usize| {
        let mut buffers = [Bytes::Read(x), Bytes::Write(y)];
        let outcome = code.run(tasks, &mut buffers, symbols, &mut vec![0; scratch]);
        outcome.err().map_or_else(String::new, |error| error.to_string())
    };
    let enough = code.scratch_bytes();
    assert_eq!(refused(0..4, &x, &mut y, &[4], enough), "");
    assert_eq!(refused(1..1, &x, &mut y, &[4], enough), "");
    assert_eq!(refused(0..5, &x, &mut y, &[4], enough), "tasks: 0..5 given, 0..4 is possible");
    assert_eq!(refused(0..1, &x, &mut y, &[5], enough), "symbol T: is 5, it must be in 0..4");
    assert_eq!(refused(0..1, &x, &mut y, &[], enough), "symbols: 0 given, 1 are needed");
    assert_eq!(refused(0..4, &x[1..], &mut y, &[4], enough), "buffer x: has 47 bytes, 48 are needed");
    assert_eq!(refused(0..4, &x, &mut y[..15], &[4], enough), "buffer y: has 15 bytes, 16 are needed");
    let scratch = "scratch memory: 126 bytes given, 127 are needed";
    assert_eq!(refused(0..4, &x, &mut y, &[4], enough - 1), scratch);
    let mut swapped = [Bytes::Read(&x), Bytes::Read(&x)];
    let error = code.run(0..4, &mut swapped, &[4], &mut vec![0; enough]).unwrap_err();
    assert_eq!(error.to_string(), "buffer y: is given as Read, Write is needed");
}

#[test]
fn indices_that_could_overflow_are_refused() {
    let mut kernel = parse(&table("i32", "i32", "position(a0)")).unwrap();
    let Stmt::Nest(nest) = &mut kernel.parts[0].body[0] else { unreachable!() };
    nest.exprs[nest.value] = Expr::Position(Index::var(VarId::from_index(0)).times(1 << 60));
    assert_eq!(verify(&kernel), []);
    let error = Cpu::host(Numbers::Exact).unwrap().compile(&kernel).err().unwrap();
    assert!(matches!(error, Error::Limit { .. }), "{error}");
    let unsound = parse(&samples::MAP.replacen("@0[d1]", "@0[d1+1]", 1)).unwrap();
    assert!(matches!(Cpu::host(Numbers::Exact).unwrap().compile(&unsound), Err(Error::Bug { .. })));
}

#[test]
fn code_may_be_used_from_any_thread() {
    fn is_shared<T: Send + Sync>() {}
    is_shared::<Code>();
    is_shared::<Cpu>();
}
