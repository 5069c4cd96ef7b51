//! Sources that do not parse, and sources that parse in another spelling.

use super::*;
use crate::graph::op::Scalar;
use crate::kernel::Expr;
use crate::kernel::samples;

/// A map kernel with one line replaced.
fn check(line: &str, with: &str, expected: &str) {
    assert!(samples::MAP.contains(line), "{line}");
    let error = parse(&samples::MAP.replacen(line, with, 1)).unwrap_err();
    assert_eq!(error.to_string(), expected, "{with}");
}

#[test]
fn heads_that_do_not_read() {
    check("kernel ", "colonel ", "line 1, column 1: found `colonel`, expected `symbol` or `kernel`");
    check("\"scale x\"", "scale", "line 1, column 8: found `scale`, expected a name in quotes");
    check(
        " map",
        " mop",
        "line 1, column 18: found `mop`, expected a skeleton: map, row-reduction, matrix-vector, matrix-matrix, \
         attention, combine, experts, top-k",
    );
    check("@0 x", "@1 x", "line 2, column 9: found `1`, expected `@0`");
    check("  read", "  raed", "line 2, column 3: found `raed`, expected `read`, `write` or `part`");
    check(
        "[d:13]",
        "[d:13, d:2]",
        "line 2, column 18: an axis stands twice, expected axes of different names",
    );
    check("[d:13]", "[d:13; e:2]", "line 2, column 23: found `;`, expected `,` or `]`");
    check("[d:13]", "[d:T]", "line 2, column 21: found `T`, expected a number or a name; none is declared");
    check(
        "[d:13]",
        "[d:1048577, e:1048577]",
        "line 2, column 18: a shape that is too large, expected at most 2^40 elements",
    );
    check(
        "[d:13]",
        "[abcdefghijklmnopq:1]",
        "line 2, column 19: a name of 17 bytes, expected at most 16 bytes",
    );
}

#[test]
fn symbols_that_do_not_read() {
    let parse = |text: &str| parse(text).unwrap_err().to_string();
    assert_eq!(
        parse("symbol P in 0..4 near 5"),
        "line 1, column 13: 0..4 near 5, expected a range with a number inside"
    );
    assert_eq!(
        parse("symbol P in 0..4 near 1\nsymbol P in 0..4 near 1"),
        "line 2, column 8: symbol P is declared already, expected another name"
    );
    assert_eq!(
        parse("symbol P in 0..1099511627777 near 1"),
        "line 1, column 16: found `1099511627777`, expected a whole number of at most 2^40"
    );
}

#[test]
fn parts_that_do_not_read() {
    check("var d0", "var d1", "line 5, column 7: found `d1`, expected an axis and the number 0, as in `h0`");
    check("d0 in blocks", "d0 of blocks", "line 5, column 10: found `of`, expected `in` or `within`");
    check("in blocks of 4", "in 1..4", "line 5, column 13: found `1..4`, expected `0` or `blocks`");
    check("within d0", "within d1", "line 6, column 17: found `d1`, expected a variable: d0");
    check("grid d0", "grit d0", "line 7, column 3: found `grit`, expected `tile`, `var` or `grid`");
    check("grid d0", "grid d0 d1", "line 7, column 11: found `d1`, expected the end of the line");
    check("for d1", "for d2", "line 8, column 7: found `d2`, expected a variable: d0, d1");
    check(
        "grid d0",
        "grid d0\n end",
        "line 8, column 2: found `end`, expected a statement, `part` or the end",
    );
    check("for d1", "loop d0\nfor d1", "line 11, column 1: the text ends, expected a statement or `end`");
    check("from 0", "from (0", "line 5, column 40: found `to`, expected `/`, `%` or `)`");
    check("to 13", "to (13/2)", "line 5, column 42: found `(`, expected a size of numbers and symbols");
}

#[test]
fn activations_that_do_not_read() {
    let check = |piece: &str, with: &str, expected: &str| {
        assert!(samples::SHARED.contains(piece), "{piece}");
        let error = parse(&samples::SHARED.replacen(piece, with, 1)).unwrap_err();
        assert_eq!(error.to_string(), expected, "{with}");
    };
    check(
        "activations0 :",
        "activations1 :",
        "line 12, column 13: found `activations1`, expected `activations0`",
    );
    let none = "line 15, column 14: found `activations0`, expected activations; none are declared";
    check("  quantised activations0 : tile0[d3] along d3\n", "", none);
    let other = "line 16, column 14: found `activations1`, expected activations: activations0";
    check("quantise activations0", "quantise activations1", other);
    check("  end\n", "", "line 20, column 1: the text ends, expected a statement or `end`");
}

#[test]
fn nests_that_do_not_read() {
    check("@1[d1] =", "@2[d1] =", "line 9, column 5: found `@`, expected a buffer or a tile: @0, @1");
    check(
        "@1[d1] =",
        "!",
        "line 9, column 5: found `!`, expected a statement: `loop`, `once`, `quantise`, `for`, `let`, a buffer \
         or a tile",
    );
    check(
        "mul(@0[d1], 2.0)",
        "tile0[]",
        "line 9, column 18: found `tile0`, expected a buffer or a tile: @0, @1",
    );
    check("mul(@0[d1], 2.0)", "mul(@0[d1])", "line 9, column 21: 1 given, expected 2 operands");
    check(
        "mul(@0[d1], 2.0)",
        "%0",
        "line 9, column 18: found `%`, expected the number of a `let` line above",
    );
    check(
        "add(",
        "plus(",
        "line 9, column 14: found `plus`, expected a function: neg, exp, ln, sin, cos, sqrt, rsqrt, recip, add, sub, \
         mul, div, max, min, lt, le, eq, select, position, cast.f16 (or another type)",
    );
    check("0.5", "!", "line 9, column 36: found `!`, expected a number, a buffer, a tile, `%` or a function");
    check("0.5", "2147483648", "line 9, column 36: found `2147483648`, expected a whole number of 32 bits");
    check("for d1", "for d1\nlet %1 = 2.0", "line 9, column 6: found `1`, expected `%0`");
}

#[test]
fn indices_that_do_not_read() {
    check("@0[d1]", "@0[]]", "line 9, column 26: found `]`, expected `,` or `)`");
    check(
        "@0[d1]",
        "@0[d1*d1]",
        "line 9, column 25: a product of positions, expected a product with a number",
    );
    check("@0[d1]", "@0[d1*+2]", "line 9, column 28: found `+`, expected a number or a name: d0, d1");
    check("@0[d1]", "@0[(d1/0)]", "line 9, column 29: found `0`, expected a positive number");
    check(
        "@0[d1]",
        "@0[1048577*(1048577*d1)]",
        "line 9, column 25: a number that may pass 2^40, expected a smaller one",
    );
    check(
        "@0[d1]",
        "@0[most(d1, 3)]",
        "line 9, column 25: found `most`, expected a number or a name: d0, d1",
    );
    let deep = format!("@0[{}d1{}]", "(".repeat(99), ")".repeat(99));
    check("@0[d1]", &deep, "line 9, column 86: too deep a nest, expected at most 64 levels");
}

#[test]
fn sums_quotients_and_quotes_read_in_other_spellings() {
    let text = samples::MAP.replacen("@0[d1]", "@0[ -1*3 + (d1 - d0) + 1*d0+3 ]", 1).replacen(
        "read @0 x",
        "read @0 \"x\"",
        1,
    );
    assert_eq!(parse(&text).unwrap(), parse(samples::MAP).unwrap());
    let rejoined = samples::MAP.replacen("@0[d1]", "@0[4*(d1/4)+(d1%4)]", 1);
    assert_eq!(parse(&rejoined).unwrap(), parse(samples::MAP).unwrap());
}

#[test]
fn constants_keep_their_bits() {
    for (text, scalar) in [
        ("-0.0", Scalar::float(-0.0)),
        ("1e-45", Scalar::F32(1)),
        ("-inf", Scalar::float(f32::NEG_INFINITY)),
        ("nan", Scalar::float(f32::NAN)),
        ("nan.ffc00001", Scalar::F32(0xffc0_0001)),
        ("-2147483648", Scalar::I32(i32::MIN)),
    ] {
        let kernel = parse(&samples::MAP.replacen("0.5", text, 1)).unwrap();
        assert!(kernel.to_string().contains(&format!(", {text})")), "{kernel}");
        let Stmt::Nest(nest) = &kernel.parts[0].body[0] else { unreachable!() };
        assert!(nest.exprs.values().any(|expr| *expr == Expr::Const(scalar)), "{text}");
    }
}
