//! Reads one operation of the text form: its attributes, which follow its name and arguments.
//!
//! In: the name, and a scanner placed after the arguments. Out: the operation, or what would have been accepted.
//! Whether the arguments fit is checked by `parse.rs`, which also resolves them.
//! A new operation gets an arm in `read_op`, a name in `NAMES` and a line in the tests of `parse.rs`.

use crate::foundation::text::{Scanner, SyntaxError};
use crate::graph::attributes::{
    axes, axis, dim, dtype, floats, number, scalar, shape, size, stored, typed_name,
};
use crate::graph::op::{Binary, Fold, Op, Unary};
use crate::tensor::shape::Axis;
use crate::tensor::sym::Symbol;

/// Names of operations other than functions of elements.
const NAMES: [&str; 21] = [
    "input", "weight", "state", "const", "table", "iota", "symbolic", "select", "cast", "split", "merge",
    "rename", "expand", "slice", "concat", "contract", "gather", "top-k", "attend", "write", "barrier",
];

/// The operation of this name, which was read at `at`, with the attributes after its arguments.
pub(super) fn read_op(
    at: &Scanner<'_>,
    op_name: &str,
    s: &mut Scanner<'_>,
    symbols: &[Symbol],
) -> Result<Op, SyntaxError> {
    let op = match op_name {
        "input" => typed_name(s, symbols).map(|(name, ty)| Op::Input { name, ty })?,
        "weight" => stored(s, symbols).map(|(name, shape, format)| Op::Weight { name, shape, format })?,
        "state" => stored(s, symbols).map(|(name, shape, format)| Op::State { name, shape, format })?,
        "const" => Op::Const(scalar(s)?),
        "table" => Op::Table { axis: axis(s)?, values: floats(s)?.into() },
        "iota" => dim(s, symbols).map(|(axis, len)| Op::Iota { axis, len })?,
        "symbolic" => Op::Symbolic(size(s, symbols)?),
        "select" => Op::Select,
        "cast" => Op::Cast(dtype(s)?),
        "split" => {
            let axis = axis(s)?;
            s.expect("into")?;
            Op::Split { axis, into: shape(s, symbols)? }
        }
        "merge" => {
            let axes = axes(s)?;
            s.expect("into")?;
            Op::Merge { axes, into: axis(s)? }
        }
        "rename" => {
            let from = axis(s)?;
            s.expect("to")?;
            Op::Rename { from, to: axis(s)? }
        }
        "expand" => dim(s, symbols).map(|(axis, len)| Op::Expand { axis, len })?,
        "slice" => read_slice(s, symbols)?,
        "concat" => Op::Concat { axis: axis_after("along", s)? },
        "contract" => {
            s.expect("over")?;
            let mut over = axes(s)?;
            over.sort();
            Op::Contract { over }
        }
        "gather" => Op::Gather { axis: axis_after("along", s)? },
        "top-k" => read_top_k(s)?,
        "attend" => {
            s.expect("over")?;
            Op::Attend { over: axes(s)? }
        }
        "write" => {
            s.expect("along")?;
            Op::Write { axes: axes(s)? }
        }
        "barrier" => Op::Barrier,
        _ => read_function(op_name, s)?.ok_or_else(|| at.clone().error(op_names()))?,
    };
    Ok(op)
}

fn axis_after(word: &str, s: &mut Scanner<'_>) -> Result<Axis, SyntaxError> {
    s.expect(word)?;
    axis(s)
}

fn read_slice(s: &mut Scanner<'_>, symbols: &[Symbol]) -> Result<Op, SyntaxError> {
    let axis = axis(s)?;
    s.expect("at")?;
    let start = size(s, symbols)?;
    s.expect("len")?;
    Ok(Op::Slice { axis, start, len: size(s, symbols)? })
}

fn read_top_k(s: &mut Scanner<'_>) -> Result<Op, SyntaxError> {
    let axis = axis(s)?;
    s.expect("into")?;
    let into = self::axis(s)?;
    s.expect(":")?;
    let at = s.clone();
    let k = usize::try_from(number(s)?).map_err(|_| at.clone().error("a number of ranks"))?;
    Ok(Op::TopK { axis, into, k })
}

/// A function of elements or a fold; nothing where there is none of this name.
fn read_function(op_name: &str, s: &mut Scanner<'_>) -> Result<Option<Op>, SyntaxError> {
    if let Some(fold) = op_name.strip_prefix("reduce-").and_then(Fold::named) {
        return Ok(Some(Op::Reduce { fold, axis: axis_after("over", s)? }));
    }
    Ok(Unary::named(op_name).map(Op::Unary).or_else(|| Binary::named(op_name).map(Op::Binary)))
}

fn op_names() -> String {
    let functions = Unary::ALL.iter().map(|f| f.name()).chain(Binary::ALL.iter().map(|f| f.name()));
    let folds = Fold::ALL.iter().map(|fold| format!("reduce-{}", fold.name()));
    let names: Vec<String> = NAMES.iter().copied().chain(functions).map(str::to_owned).chain(folds).collect();
    format!("an operation: {}", names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::parse::parse;
    use crate::graph::parse::tests::{LINES, check, check_text, with_line};

    #[test]
    fn every_operation_reads_back_as_it_prints() {
        for line in LINES {
            let graph = parse(&with_line(line)).unwrap();
            let last = graph.nodes.ids().last().unwrap();
            assert_eq!(crate::graph::print::node_line(&graph, last), format!("%4 = {line}"));
            let again = parse(&graph.to_string()).unwrap();
            assert_eq!((again.to_string(), again), (graph.to_string(), graph));
        }
        let write = with_line("split %0 d into [h:4, e:16]")
            + "%5 = iota t:T\n%6 = symbolic P\n%7 = add %5 %6\n"
            + "%8 = write %2 %4 %7 along [s]\n%9 = write %8 %4 %5 along [s]\n";
        let graph = parse(&write).unwrap();
        assert_eq!(parse(&graph.to_string()).unwrap(), graph);
    }

    #[test]
    fn every_name_of_an_operation_is_known() {
        for name in op_names().trim_start_matches("an operation: ").split(", ") {
            let text = format!("%0 = {name}");
            let error = parse(&text).unwrap_err();
            assert!(!error.expected.starts_with("an operation"), "{error}");
        }
    }

    #[test]
    fn an_unknown_operation_lists_those_there_are() {
        check(
            "matmul %0 %1",
            "line 8, column 6: found `matmul`, expected an operation: input, weight, state, const, table, iota, \
             symbolic, select, cast, split, merge, rename, expand, slice, concat, contract, gather, top-k, attend, \
             write, barrier, neg, exp, ln, sin, cos, sqrt, rsqrt, recip, add, sub, mul, div, max, min, lt, le, eq, \
             reduce-sum, reduce-max",
        );
    }

    #[test]
    fn attributes_that_do_not_read() {
        check("cast %0 f64", "line 8, column 14: found `f64`, expected an element type: f32, f16, bf16, i32");
        check(
            "weight w : q9[d:64]",
            "line 8, column 17: found `q9`, expected a format: f32, f16, bf16, i32, q4_0, q4_1, q5_0, q5_1, q8_0, \
             q2_k, q3_k, q4_k, q5_k, q6_k, iq4_nl, iq4_xs, mxfp4, q4_pairs, int8.g64 (or another group)",
        );
        check(
            "symbolic P+Q",
            "line 8, column 17: found `Q`, expected a whole number of at most 2^40 or a symbol: P, T",
        );
        check(
            "symbolic --1",
            "line 8, column 16: found `-1`, expected a whole number of at most 2^40 or a symbol: P, T",
        );
        check_text(
            "%0 = iota t:T",
            "line 1, column 13: found `T`, expected a whole number of at most 2^40; no symbol is declared",
        );
        check(
            "rename %0 d to far_too_long_a_name",
            "line 8, column 21: a name of 19 bytes, expected at most 16 bytes",
        );
        check("const 3", "line 8, column 13: the line ends, expected `:`");
        check(
            "const 3000000000 : i32",
            "line 8, column 12: found `3000000000`, expected a whole number of 32 bits",
        );
        check("const x", "line 8, column 12: found `x`, expected a number");
        check("merge %2 [h, h] into d", "line 8, column 19: axis h stands twice, expected another axis");
        check(
            "input y : f32[t:2, t:3]",
            "line 8, column 19: an axis stands twice, expected axes of different names",
        );
        check("input y : f32[t:2 d:3]", "line 8, column 24: found `d`, expected `,` or `]`");
        check("input y : f32[t:T-2]", "line 8, column 22: T-2 may be -1, expected a size of 0 or more");
        check("top-k %0 d into r:-1", "line 8, column 24: found `-1`, expected a number of ranks");
        check(
            "input y : f32[a:1048576, b:1048577]",
            "line 8, column 19: a shape that is too large, expected at most 2^40 elements",
        );
    }
}
