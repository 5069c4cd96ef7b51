//! The sample kernels, every function and every format against the interpreter, and arguments that do not fit.

use std::collections::BTreeMap;
use std::slice;

use super::jit::{Bytes, Code};
use super::*;
use crate::foundation::entity::Id;
use crate::kernel::index::Index;
use crate::kernel::parse::parse;
use crate::kernel::print::symbols;
use crate::kernel::run::memory::{Buffer, Buffers};
use crate::kernel::run::run;
use crate::kernel::verify::verify;
use crate::kernel::{Access, Expr, Kernel, Stmt, VarId, samples};
use crate::options::Options;
use crate::prepare::prepare_kernel;
use crate::target::CPU;
use crate::tensor::dtype::DType;
use crate::tensor::quant::Format;

#[cfg(unix)]
mod far;
mod products;
mod rounds;
mod until;
mod wide;

fn code(text: &str) -> Code {
    Cpu::host(Numbers::Exact).unwrap().compile(&parse(text).unwrap()).unwrap()
}

#[test]
fn a_level_that_the_processor_lacks_is_refused() {
    let lacking = Level::ALL.into_iter().find(|level| !level.is_supported()).unwrap();
    let error = Cpu::at(lacking, Numbers::Exact).err().unwrap().to_string();
    assert!(error.contains(&format!("`{lacking}`")) && error.contains("portable"), "{error}");
}

/// A kernel as it is prepared for the processor: its products are selected.
fn prepared(text: &str) -> Kernel {
    prepare_kernel(&parse(text).unwrap(), &Options::for_target(CPU)).unwrap()
}

/// Runs a kernel as the interpreter does, on the same bytes, exactly and in single precision.
fn check(text: &str, values: &[i64], inputs: &[Vec<u8>], step: usize) {
    check_by(near, text, values, inputs, step);
}

/// The same with a judge of the numbers in single precision.
fn check_by(judge: Judge, text: &str, values: &[i64], inputs: &[Vec<u8>], step: usize) {
    check_at((Level::host(), Numbers::Exact, same), text, values, inputs, step);
    for level in [Level::host(), Level::Portable] {
        check_at((level, Numbers::Single, judge), text, values, inputs, step);
    }
}

/// Says whether numbers are right.
type Judge = fn(&Buffer, &Buffer) -> bool;

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
fn check_at(
    (level, numbers, judge): (Level, Numbers, Judge),
    text: &str,
    values: &[i64],
    inputs: &[Vec<u8>],
    step: usize,
) {
    let code = Cpu::at(level, numbers).unwrap().compile(&prepared(text)).unwrap();
    check_code(&code, &format!("{level} {numbers:?}"), judge, values, inputs, step);
}

/// The same of code that was made before.
fn check_code(code: &Code, how: &str, judge: Judge, values: &[i64], inputs: &[Vec<u8>], step: usize) {
    let kernel = code.kernel();
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
    let pieces = (0..n_tasks).step_by(step).map(|first| first..(first + step as i64).min(n_tasks));
    code.run(&pieces.collect::<Vec<_>>(), &mut buffers, values, &mut scratch).unwrap();
    for ((param, bytes), expected) in kernel.params.values().zip(&memory).zip(expected.0.values()) {
        let actual = decoded(param.format, bytes);
        let which = format!("{} {how}", param.name);
        assert!(judge(&actual, expected), "{which}\n{actual:?}\n{expected:?}\n{kernel}");
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

/// Whether every number is right to some units in the last place of the typical one.
fn near(a: &Buffer, b: &Buffer) -> bool {
    let Buffer::Float(numbers) = b else { return a == b };
    let squares: f64 = numbers.iter().filter(|x| x.is_finite()).map(|x| f64::from(*x).powi(2)).sum();
    within((squares / numbers.len().max(1) as f64).sqrt(), a, b)
}

/// Whether every number is right to some units in its last place.
fn close(a: &Buffer, b: &Buffer) -> bool {
    within(0.0, a, b)
}

fn within(typical: f64, a: &Buffer, b: &Buffer) -> bool {
    let (Buffer::Float(a), Buffer::Float(b)) = (a, b) else { return a == b };
    let is_near = |a: f32, b: f32| {
        let allowed = 1e-6 * typical.max(f64::from(b).abs()) + f64::from(f32::MIN_POSITIVE);
        a == b || a.is_nan() && b.is_nan() || (f64::from(a) - f64::from(b)).abs() <= allowed && b.is_finite()
    };
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| is_near(*a, *b))
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
    // Lists of routed rows are for GPUs.
    for text in samples::ALL.into_iter().filter(|text| *text != samples::ROUTED) {
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
fn a_list_of_routed_rows_is_refused() {
    let refused = Cpu::host(Numbers::Exact).unwrap().compile(&parse(samples::ROUTED).unwrap());
    let refused = refused.map(|_| ()).unwrap_err().to_string();
    assert_eq!(
        refused,
        "kernel \"scale by experts\", whose tasks list routed rows, on a processor, which is not supported"
    );
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
        check(&text, &[], slice::from_ref(&bits), 65536);
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
    for f in ["sin", "cos"] {
        let text = table("f32", "f32", &format!("{f}(@0[a0])"));
        check_at((Level::host(), Numbers::Exact, same), &text, &[], &data, 100);
    }
    let unary = ["neg", "exp", "ln", "sqrt", "rsqrt", "recip", "cast.f16", "cast.bf16"];
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

/// The same function of the elements of an axis, alone and in lanes.
fn lanes(dtype: &str, of: &str, n: usize, value: &str) -> String {
    format!(
        "kernel \"lanes\" map\n  read @0 x : {of}[a:{n}]\n  write @1 y : {dtype}[a:{n}]\npart\n  \
         var a0 in 0..{n}\n  grid\n  for a0\n    @1[a0] = {value}\n"
    )
}

#[test]
fn functions_in_lanes_take_the_same_edges() {
    let data = [encoded(Format::F32, &FLOATS)];
    let pairs = ["add", "sub", "mul", "div", "max", "min"].map(|f| format!("{f}(@0[a0], @0[((a0+4)%16)])"));
    let unary = ["neg", "exp", "ln", "sqrt", "rsqrt", "recip", "cast.f16", "cast.bf16"];
    let unary = unary.map(|f| format!("{f}(@0[a0])"));
    let select = "select(lt(@0[a0], @0[((a0+4)%16)]), @0[a0], cast.f32(cast.i32(@0[-a0+15])))".to_owned();
    for value in pairs.into_iter().chain(unary).chain([select]) {
        for dtype in ["f32", "f16", "bf16"] {
            let judge = if dtype == "f32" { close } else { near };
            check_by(judge, &lanes(dtype, "f32", 16, &value), &[], &data, 1);
        }
    }
    for value in ["lt(@0[a0], @0[((a0+8)%16)])", "cast.i32(@0[a0])", "position(((a0-9)%8)+10*((a0-9)/4))"] {
        check(&lanes("i32", "f32", 16, value), &[], &data, 1);
    }
}

#[test]
fn every_half_precision_number_is_converted_in_lanes() {
    let bits: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    for format in ["f16", "bf16"] {
        check(&lanes("f32", format, 65536, "@0[a0]"), &[], slice::from_ref(&bits), 1);
        // Halfway to the next number, which goes to even, and a little to either side.
        for more in ["1.0", "1.00048828125", "1.0004884", "1.0004882", "1.00390625", "1.003907", "1.003906"] {
            let value = format!("mul(@0[a0], {more})");
            check_by(same, &lanes(format, format, 65536, &value), &[], slice::from_ref(&bits), 1);
        }
    }
}

/// The results of a function in lanes.
fn results(level: Level, f: &str, x: &[f32]) -> Vec<f32> {
    let text = lanes("f32", "f32", x.len(), &format!("{f}(@0[a0])"));
    let code = Cpu::at(level, Numbers::Single).unwrap().compile(&prepared(&text)).unwrap();
    let (x, mut y) = (encoded(Format::F32, x), vec![0; 4 * x.len()]);
    let mut buffers = [Bytes::Read(&x), Bytes::Write(&mut y)];
    code.run(slice::from_ref(&(0..1)), &mut buffers, &[], &mut vec![0; code.scratch_bytes()]).unwrap();
    y.chunks(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect()
}

/// The greatest distance from the function of double precision, in units in the last place.
fn greatest_error(level: Level, f: &str, of: fn(f64) -> f64, x: &[f32]) -> f64 {
    let error = |(x, y): (&f32, f32)| {
        let wanted = of(f64::from(*x));
        let unit = f64::from(f32::EPSILON) * 2f64.powi((wanted.abs().log2().floor() as i32).max(-126));
        if y == wanted as f32 {
            return 0.0;
        }
        assert!(y.is_finite(), "{f} of {x} is {y}, not {wanted}");
        (f64::from(y) - wanted).abs() / unit
    };
    x.iter().zip(results(level, f, x)).map(error).fold(0.0, f64::max)
}

#[test]
fn polynomials_are_within_a_few_units_in_the_last_place() {
    let spread = |from: f32, to: f32| -> Vec<f32> {
        (0..200_000).map(|i| from + (to - from) * (i as f32 / 199_999.0)).collect()
    };
    // Every 4099th number above zero, those below the normal ones included.
    let positive: Vec<f32> = (1..0x7f80_0000).step_by(4099).map(f32::from_bits).collect();
    let exponents = [spread(-110.0, 95.0), spread(-1.0, 1.0), vec![88.72, 88.73, -87.4, -103.9, -104.1]];
    let near_one = [positive.clone(), spread(0.5, 2.0)].concat();
    for level in [Level::host(), Level::Portable] {
        let errors = [
            ("exp", 2.0, greatest_error(level, "exp", f64::exp, &exponents.concat())),
            ("ln", 2.0, greatest_error(level, "ln", f64::ln, &near_one)),
            ("rsqrt", 2.0, greatest_error(level, "rsqrt", |x| 1.0 / x.sqrt(), &positive)),
            ("recip", 0.5, greatest_error(level, "recip", |x| 1.0 / x, &positive)),
            ("sin", 2.0, greatest_error(level, "sin", f64::sin, &spread(-30.0, 30.0))),
            ("cos", 2.0, greatest_error(level, "cos", f64::cos, &spread(-30.0, 30.0))),
        ];
        for (f, allowed, error) in errors {
            assert!(error <= allowed, "{f} at {level}: {error} units\n{errors:?}");
        }
    }
}

#[test]
fn angles_of_a_million_turn_right() {
    let angles: Vec<f32> = (0..400_000).map(|i| (i as f32 - 200_000.0) * 5.37).collect();
    for (f, of) in [("sin", f64::sin as fn(f64) -> f64), ("cos", f64::cos)] {
        let error = |(x, y): (&f32, f32)| (f64::from(y) - of(f64::from(*x))).abs();
        let worst = angles.iter().zip(results(Level::host(), f, &angles)).map(error).fold(0.0, f64::max);
        assert!(worst <= 2e-7, "{f}: {worst}");
        let beyond =
            results(Level::host(), f, &[f32::INFINITY, f32::NAN, 1e9, -1e30, f32::MAX, 0.0, -1.0, 2.0]);
        assert!(beyond[0].is_nan() && beyond[1].is_nan() && beyond[2..].iter().all(|y| y.abs() <= 1.0));
    }
}

#[test]
fn arguments_that_do_not_fit_are_refused() {
    let code = code(samples::ROW_REDUCTION);
    let (x, mut y) = (vec![0; 48], vec![0; 16]);
    let refused = |tasks: std::ops::Range<i64>, x: &[u8], y: &mut [u8], symbols: &[i64], scratch: usize| {
        let mut buffers = [Bytes::Read(x), Bytes::Write(y)];
        let outcome = code.run(slice::from_ref(&tasks), &mut buffers, symbols, &mut vec![0; scratch]);
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
    let error = code.run(slice::from_ref(&(0..4)), &mut swapped, &[4], &mut vec![0; enough]).unwrap_err();
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
