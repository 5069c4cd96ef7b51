//! The type of an operation's result, or why its arguments do not fit.
//!
//! In: an operation and the types of its arguments. Out: a type, or a [`Misfit`] that shows the types it was given.
//! This is the only place that says which arguments an operation accepts; the evaluator and the rewrites trust it.

use thiserror::Error;

use crate::foundation::amount::counted;
use crate::graph::op::{Binary, Op, Unary};
use crate::tensor::dtype::DType;
use crate::tensor::quant::Format;
use crate::tensor::shape::{Axis, Shape, Type};
use crate::tensor::sym::Sym;

/// Why arguments do not fit an operation.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Misfit {
    /// The wrong number of arguments.
    #[error("takes {}, got {found}", counted(*expected, "argument"))]
    Arity {
        /// How many it takes.
        expected: usize,
        /// How many there are.
        found: usize,
    },
    /// An axis has one size on the left and another on the right.
    #[error("axis {axis} has two sizes: {left} meets {right}")]
    Sizes {
        /// The axis.
        axis: Axis,
        /// The left argument's axes.
        left: Shape,
        /// The right argument's axes.
        right: Shape,
    },
    /// An axis that does not exist.
    #[error("axis {axis} is not in {shape}")]
    Missing {
        /// The axis.
        axis: Axis,
        /// The axes there are.
        shape: Shape,
    },
    /// An axis would stand twice in the result.
    #[error("axis {axis} would stand twice beside {shape}")]
    Twice {
        /// The axis.
        axis: Axis,
        /// The axes there are.
        shape: Shape,
    },
    /// Elements of a type the operation does not take.
    #[error("elements are {found}, accepted: {accepted}")]
    Elements {
        /// The types found, as text.
        found: String,
        /// The types accepted.
        accepted: &'static str,
    },
    /// A run of positions that leaves the axis.
    #[error("positions {start} to {end} of axis {axis} leave {shape}")]
    Range {
        /// The axis.
        axis: Axis,
        /// The first position.
        start: Sym,
        /// One past the last.
        end: Sym,
        /// The axes there are.
        shape: Shape,
    },
    /// Sizes that do not multiply to the size they replace.
    #[error("{into} does not hold the {size} positions of axis {axis}")]
    Product {
        /// The axis that is split.
        axis: Axis,
        /// Its size.
        size: Sym,
        /// What it should become.
        into: Shape,
    },
    /// A stored tensor that is no whole number of blocks of its format.
    #[error(
        "{shape} does not fill blocks of {format}: it must have a multiple of {block} elements, all sizes fixed"
    )]
    Blocks {
        /// The format.
        format: Format,
        /// Elements of a block.
        block: i64,
        /// The axes of the tensor.
        shape: Shape,
    },
    /// A state of a format that nothing is put into.
    #[error("a state cannot be stored as {format}; f32, f16, bf16, i32, q8_0 and q4_0 are possible")]
    Unwritten {
        /// The format.
        format: Format,
    },
    /// A state whose rows are no whole number of blocks of its format.
    #[error(
        "rows of {shape} do not fill blocks of {format}: the last axis must have a multiple of {block} elements"
    )]
    Rows {
        /// The format.
        format: Format,
        /// Elements of a block.
        block: i64,
        /// The axes of the state.
        shape: Shape,
    },
    /// The first argument of a write is not a state.
    #[error("only a state can be written to")]
    NoState,
    /// A write that would change a part of a block.
    #[error("blocks of {format} run along axis {axis}, so nothing can be written at a position of it")]
    InBlocks {
        /// The format of the state.
        format: Format,
        /// The axis written along.
        axis: Axis,
    },
}

/// The type of `op` applied to arguments of types `args`.
pub(crate) fn infer(op: &Op, args: &[&Type]) -> Result<Type, Misfit> {
    if let Some(expected) = op.n_args().filter(|n| *n != args.len()) {
        return Err(Misfit::Arity { expected, found: args.len() });
    }
    match op {
        Op::Input { ty, .. } => Ok(ty.clone()),
        Op::Weight { shape, format, .. } => weight(shape, *format),
        Op::State { shape, format, .. } => state(shape, *format),
        Op::Const(scalar) => Ok(Type::new(scalar.dtype(), Shape::scalar())),
        Op::Table { axis, values } => Ok(Type::new(DType::F32, line(*axis, Sym::from(values.len())))),
        Op::Iota { axis, len } => Ok(Type::new(DType::I32, line(*axis, len.clone()))),
        Op::Symbolic(_) => Ok(Type::new(DType::I32, Shape::scalar())),
        Op::Unary(f) => unary(*f, args[0]),
        Op::Binary(f) => binary(*f, args[0], args[1]),
        Op::Select => select(args[0], args[1], args[2]),
        Op::Cast(dtype) => Ok(Type::new(*dtype, args[0].shape.clone())),
        Op::Reduce { axis, .. } => {
            require(args[0], &[DType::F32, DType::I32], "f32 or i32")?;
            size(args[0], *axis)?;
            Ok(Type::new(args[0].dtype, args[0].shape.without(*axis)))
        }
        Op::Split { axis, into } => split(args[0], *axis, into),
        Op::Merge { axes, into } => merge(args[0], axes, *into),
        Op::Rename { from, to } => {
            let len = size(args[0], *from)?.clone();
            reshape(args[0], *from, vec![(*to, len)], *to)
        }
        Op::Expand { axis, len } => {
            let axes = [(*axis, len.clone())].into_iter().chain(args[0].shape.iter().cloned());
            let shape = Shape::new(axes).ok_or_else(|| twice(*axis, &args[0].shape))?;
            Ok(Type::new(args[0].dtype, shape))
        }
        Op::Slice { axis, start, len } => slice(args[0], *axis, start, len),
        Op::Concat { axis } => concat(*axis, args),
        Op::Contract { over } => contract(over, args[0], args[1]),
        Op::Gather { axis } => gather(*axis, args[0], args[1]),
        Op::TopK { axis, into, k } => {
            require(args[0], &[DType::F32], "f32")?;
            let len = size(args[0], *axis)?;
            within(*axis, &Sym::from(0i64), &Sym::from(*k), len, &args[0].shape)?;
            let ty = reshape(args[0], *axis, vec![(*into, Sym::from(*k))], *into)?;
            Ok(Type::new(DType::I32, ty.shape))
        }
        Op::Attend { over } => attend(over, args),
        Op::Write { axes } => write(args[0], args[1], axes, &args[2..]),
        Op::Barrier => Ok(args[0].clone()),
    }
}

/// Blocks run along the last axes, over enough of them to fill a block: a row of a file may be several axes here.
fn weight(shape: &Shape, format: Format) -> Result<Type, Misfit> {
    let n_elements = shape.iter().fold(1i64, |n, (_, size)| n.saturating_mul(size.most()));
    let block = format.block_len() as i64;
    if shape.iter().any(|(_, size)| size.as_const().is_none()) || n_elements % block != 0 {
        return Err(Misfit::Blocks { format, block, shape: shape.clone() });
    }
    Ok(Type::new(format.dtype(), shape.clone()))
}

/// What is written fills whole blocks, so each row of the last axis does.
fn state(shape: &Shape, format: Format) -> Result<Type, Misfit> {
    let block = format.block_len() as i64;
    let row = shape.iter().last().map_or(1, |(_, size)| size.most());
    if !format.is_written() {
        return Err(Misfit::Unwritten { format });
    }
    if row % block != 0 {
        return Err(Misfit::Rows { format, block, shape: shape.clone() });
    }
    weight(shape, format)
}

fn unary(f: Unary, x: &Type) -> Result<Type, Misfit> {
    match f {
        Unary::Neg => require(x, &[DType::F32, DType::I32], "f32 or i32")?,
        Unary::Exp | Unary::Ln | Unary::Sin | Unary::Cos | Unary::Sqrt | Unary::Rsqrt | Unary::Recip => {
            require(x, &[DType::F32], "f32")?;
        }
    }
    Ok(x.clone())
}

fn binary(f: Binary, a: &Type, b: &Type) -> Result<Type, Misfit> {
    if a.dtype != b.dtype {
        let found = format!("{a} and {b}");
        return Err(Misfit::Elements { found, accepted: "twice the same type" });
    }
    match f {
        Binary::Div => require(a, &[DType::F32], "f32")?,
        _ => require(a, &[DType::F32, DType::I32], "f32 or i32")?,
    }
    let dtype = if f.is_comparison() { DType::I32 } else { a.dtype };
    Ok(Type::new(dtype, meet(&a.shape, &b.shape)?))
}

fn select(condition: &Type, yes: &Type, no: &Type) -> Result<Type, Misfit> {
    require(condition, &[DType::I32], "an i32 condition")?;
    if yes.dtype != no.dtype {
        let found = format!("{yes} and {no}");
        return Err(Misfit::Elements { found, accepted: "twice the same type" });
    }
    let shape = meet(&meet(&condition.shape, &yes.shape)?, &no.shape)?;
    Ok(Type::new(yes.dtype, shape))
}

fn split(x: &Type, axis: Axis, into: &Shape) -> Result<Type, Misfit> {
    let len = size(x, axis)?.clone();
    // Storage is laid out for the largest sizes, so only the outermost part may vary.
    let inner_varies = into.iter().skip(1).any(|(_, n)| n.as_const().is_none());
    if into.len() != len || inner_varies {
        return Err(Misfit::Product { axis, size: len, into: into.clone() });
    }
    let clash = into.axes().find(|a| *a != axis && x.shape.has(*a)).unwrap_or(axis);
    reshape(x, axis, into.iter().cloned().collect(), clash)
}

fn attend(over: &[Axis], args: &[&Type]) -> Result<Type, Misfit> {
    let (scores, values, sink) = match *args {
        [scores, values] => (scores, values, None),
        [scores, values, sink] => (scores, values, Some(sink)),
        _ => return Err(Misfit::Arity { expected: 2, found: args.len() }),
    };
    require(scores, &[DType::F32], "f32 scores")?;
    let averaged = contract(over, scores, values)?;
    let Some(sink) = sink else { return Ok(averaged) };
    require(sink, &[DType::F32], "an f32 sink")?;
    let rows = scores.shape.without_all(over);
    for (axis, len) in &sink.shape {
        if rows.size(*axis) != Some(len) {
            return Err(Misfit::Sizes { axis: *axis, left: rows, right: sink.shape.clone() });
        }
    }
    Ok(averaged)
}

fn merge(x: &Type, axes: &[Axis], into: Axis) -> Result<Type, Misfit> {
    let mut len = Sym::from(1i64);
    for (position, axis) in axes.iter().enumerate() {
        let own = size(x, *axis)?;
        if axes[..position].contains(axis) {
            return Err(twice(*axis, &x.shape));
        }
        if position > 0 && own.as_const().is_none() {
            let parts = Shape::new(axes.iter().filter_map(|a| Some((*a, x.shape.size(*a)?.clone()))));
            return Err(Misfit::Product { axis: into, size: own.clone(), into: parts.unwrap_or_default() });
        }
        len = len * own;
    }
    let Some((first, rest)) = axes.split_first() else {
        return Err(Misfit::Missing { axis: into, shape: x.shape.clone() });
    };
    let kept = rest.iter().fold(x.shape.clone(), |shape, axis| shape.without(*axis));
    reshape(&Type::new(x.dtype, kept), *first, vec![(into, len)], into)
}

fn slice(x: &Type, axis: Axis, start: &Sym, len: &Sym) -> Result<Type, Misfit> {
    let whole = size(x, axis)?;
    within(axis, start, &(start.clone() + len), whole, &x.shape)?;
    reshape(x, axis, vec![(axis, len.clone())], axis)
}

fn concat(axis: Axis, args: &[&Type]) -> Result<Type, Misfit> {
    let Some(first) = args.first() else { return Err(Misfit::Arity { expected: 1, found: 0 }) };
    let mut len = Sym::from(0i64);
    for part in args {
        len = len + size(part, axis)?;
        let (left, right) = (first.shape.without(axis), part.shape.without(axis));
        let union = meet(&left, &right)?;
        if let Some(odd) = union.axes().find(|a| !left.has(*a) || !right.has(*a)) {
            let lacking = if left.has(odd) { right } else { left };
            return Err(Misfit::Missing { axis: odd, shape: lacking });
        }
        if part.dtype != first.dtype {
            let found = format!("{first} and {part}");
            return Err(Misfit::Elements { found, accepted: "parts of one type" });
        }
    }
    reshape(first, axis, vec![(axis, len)], axis)
}

fn contract(over: &[Axis], a: &Type, b: &Type) -> Result<Type, Misfit> {
    const FLOATS: [DType; 3] = [DType::F32, DType::F16, DType::BF16];
    require(a, &FLOATS, "f32, f16 or bf16")?;
    require(b, &FLOATS, "f32, f16 or bf16")?;
    for axis in over {
        size(a, *axis)?;
        size(b, *axis)?;
    }
    let union = meet(&a.shape, &b.shape)?;
    Ok(Type::new(DType::F32, over.iter().fold(union, |shape, axis| shape.without(*axis))))
}

fn gather(axis: Axis, table: &Type, index: &Type) -> Result<Type, Misfit> {
    require(index, &[DType::I32], "an i32 index")?;
    size(table, axis)?;
    if index.shape.has(axis) {
        return Err(twice(axis, &index.shape));
    }
    Ok(Type::new(table.dtype, meet(&index.shape, &table.shape.without(axis))?))
}

fn write(state: &Type, value: &Type, axes: &[Axis], indices: &[&Type]) -> Result<Type, Misfit> {
    let mut rest = value.shape.clone();
    for index in indices {
        require(index, &[DType::I32], "an i32 index")?;
        for (axis, len) in &index.shape {
            if size(value, *axis)? != len {
                return Err(Misfit::Sizes {
                    axis: *axis,
                    left: value.shape.clone(),
                    right: index.shape.clone(),
                });
            }
            if state.shape.has(*axis) {
                return Err(twice(*axis, &state.shape));
            }
            rest = rest.without(*axis);
        }
    }
    for axis in axes {
        size(state, *axis)?;
    }
    let own = state.shape.without_all(axes);
    if !own.same_axes(&rest) {
        let odd = own.axes().chain(rest.axes()).find(|axis| own.size(*axis) != rest.size(*axis));
        let axis = odd.unwrap_or(axes[0]);
        return Err(Misfit::Sizes { axis, left: state.shape.clone(), right: value.shape.clone() });
    }
    if state.dtype != value.dtype {
        let found = format!("{state} and {value}");
        return Err(Misfit::Elements { found, accepted: "a value of the state's type" });
    }
    Ok(state.clone())
}

fn line(axis: Axis, len: Sym) -> Shape {
    Shape::new([(axis, len)]).unwrap_or_default()
}

fn size(x: &Type, axis: Axis) -> Result<&Sym, Misfit> {
    x.shape.size(axis).ok_or_else(|| Misfit::Missing { axis, shape: x.shape.clone() })
}

fn twice(axis: Axis, shape: &Shape) -> Misfit {
    Misfit::Twice { axis, shape: shape.clone() }
}

fn meet(left: &Shape, right: &Shape) -> Result<Shape, Misfit> {
    left.union(right).map_err(|axis| Misfit::Sizes { axis, left: left.clone(), right: right.clone() })
}

fn require(x: &Type, dtypes: &[DType], accepted: &'static str) -> Result<(), Misfit> {
    let fits = dtypes.contains(&x.dtype);
    if fits { Ok(()) } else { Err(Misfit::Elements { found: x.to_string(), accepted }) }
}

fn reshape(x: &Type, axis: Axis, with: Vec<(Axis, Sym)>, clash: Axis) -> Result<Type, Misfit> {
    let shape = x.shape.replaced(axis, with).ok_or_else(|| twice(clash, &x.shape))?;
    Ok(Type::new(x.dtype, shape))
}

fn within(axis: Axis, start: &Sym, end: &Sym, whole: &Sym, shape: &Shape) -> Result<(), Misfit> {
    let room = whole.clone() - end;
    if start.least() < 0 || (end.clone() - start).least() < 0 || room.least() < 0 {
        let (start, end) = (start.clone(), end.clone());
        return Err(Misfit::Range { axis, start, end, shape: shape.clone() });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::label::Label;

    fn ty(axes: &[(&str, i64)]) -> Type {
        let axes = axes.iter().map(|(a, n)| (Label::new(a).unwrap(), Sym::from(*n)));
        Type::new(DType::F32, Shape::new(axes).unwrap())
    }

    fn axis(name: &str) -> Axis {
        Label::new(name).unwrap()
    }

    #[test]
    fn a_contraction_keeps_every_axis_it_does_not_sum() {
        let (x, w) = (ty(&[("t", 2), ("d", 8)]), ty(&[("h", 3), ("e", 4), ("d", 8)]));
        let out = infer(&Op::Contract { over: vec![axis("d")] }, &[&x, &w]).unwrap();
        assert_eq!(out.to_string(), "f32[t:2, h:3, e:4]");
    }

    #[test]
    fn a_mismatch_shows_both_shapes() {
        let (x, g) = (ty(&[("t", 2), ("d", 8)]), ty(&[("d", 9)]));
        let misfit = infer(&Op::Binary(Binary::Mul), &[&x, &g]).unwrap_err();
        assert_eq!(misfit.to_string(), "axis d has two sizes: [t:2, d:8] meets [d:9]");
    }

    #[test]
    fn a_slice_must_stay_inside_for_every_value_of_a_symbol() {
        let p = Sym::from(crate::tensor::sym::Symbol::new(axis("P"), 0, 8, 4));
        let x = ty(&[("s", 8)]);
        let slice = |len: Sym| infer(&Op::Slice { axis: axis("s"), start: Sym::from(0i64), len }, &[&x]);
        assert!(slice(p.clone()).is_ok());
        assert_eq!(slice(p + 1).unwrap_err().to_string(), "positions 0 to P+1 of axis s leave [s:8]");
    }

    #[test]
    fn a_weight_is_whole_blocks() {
        let weight = |n: i64| Op::Weight {
            name: "w".into(),
            shape: ty(&[("r", 3), ("d", n)]).shape,
            format: Format::Q8_0,
        };
        assert!(infer(&weight(64), &[]).is_ok());
        let misfit = infer(&weight(48), &[]).unwrap_err().to_string();
        assert_eq!(
            misfit,
            "[r:3, d:48] does not fill blocks of q8_0: it must have a multiple of 32 elements, all sizes fixed"
        );
    }

    #[test]
    fn rows_of_a_state_are_whole_blocks_of_a_format_that_is_written() {
        let state = |n: i64, format| {
            let shape = ty(&[("s", 32), ("d", n)]).shape;
            infer(&Op::State { name: "k".into(), shape, format }, &[]).map_err(|misfit| misfit.to_string())
        };
        assert_eq!(state(64, Format::Q8_0), Ok(ty(&[("s", 32), ("d", 64)])));
        assert_eq!(
            state(48, Format::Q8_0),
            Err("rows of [s:32, d:48] do not fill blocks of q8_0: the last axis must have a multiple of 32 elements"
                .to_owned())
        );
        assert_eq!(
            state(64, Format::Q4_1),
            Err("a state cannot be stored as q4_1; f32, f16, bf16, i32, q8_0 and q4_0 are possible"
                .to_owned())
        );
    }

    #[test]
    fn splits_and_merges_are_each_others_inverse() {
        let x = ty(&[("t", 2), ("d", 12)]);
        let into = ty(&[("h", 3), ("e", 4)]).shape;
        let parts = infer(&Op::Split { axis: axis("d"), into }, &[&x]).unwrap();
        let merge = Op::Merge { axes: vec![axis("h"), axis("e")], into: axis("d") };
        assert_eq!(infer(&merge, &[&parts]).unwrap(), x);
    }
}
