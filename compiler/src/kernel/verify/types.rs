//! The types of a nest's scalars.
//!
//! In: expressions that refer to earlier ones, and the type of every place they load from. Out: `F32` or `I32` for
//! each, or what does not fit.
//! Half precisions exist only in memory: a load widens them, and a cast to one rounds a single-precision number.

use crate::foundation::entity::List;
use crate::graph::op::{Binary, Unary};
use crate::kernel::{Expr, ExprId, Place};
use crate::tensor::dtype::DType;

/// The type of every expression, `F32` or `I32`; an error says which expression does not fit, and why.
pub fn expr_dtypes(
    exprs: &List<ExprId, Expr>,
    of_place: impl Fn(Place) -> DType,
) -> Result<List<ExprId, DType>, String> {
    let mut dtypes: List<ExprId, DType> = List::default();
    for (id, expr) in exprs.iter() {
        let dtype = match expr {
            Expr::Const(scalar) => Ok(scalar.dtype()),
            Expr::Position(_) => Ok(DType::I32),
            Expr::Load { from, .. } => Ok(computed(of_place(*from))),
            Expr::Cast(dtype, _) => Ok(computed(*dtype)),
            Expr::Unary(f, a) => unary(*f, dtypes[*a]),
            Expr::Binary(f, a, b) => binary(*f, dtypes[*a], dtypes[*b]),
            Expr::Select(a, b, c) => select(dtypes[*a], dtypes[*b], dtypes[*c]),
        };
        dtypes.push(dtype.map_err(|misfit| format!("{id}: {misfit}"))?);
    }
    Ok(dtypes)
}

/// The type that an element has while it is computed.
fn computed(dtype: DType) -> DType {
    if dtype.is_float() { DType::F32 } else { DType::I32 }
}

fn unary(f: Unary, a: DType) -> Result<DType, String> {
    match (f, a) {
        (Unary::Neg, _) | (_, DType::F32) => Ok(a),
        _ => Err(format!("{} of {a}, f32 is needed", f.name())),
    }
}

fn binary(f: Binary, a: DType, b: DType) -> Result<DType, String> {
    match f {
        _ if a != b => Err(format!("{} of {a} and {b}, one type is needed", f.name())),
        Binary::Div if a == DType::I32 => Err("div of i32, f32 is needed".to_owned()),
        _ if f.is_comparison() => Ok(DType::I32),
        _ => Ok(a),
    }
}

fn select(condition: DType, yes: DType, no: DType) -> Result<DType, String> {
    if condition != DType::I32 {
        return Err(format!("select by {condition}, i32 is needed"));
    }
    if yes == no { Ok(yes) } else { Err(format!("select of {yes} and {no}, one type is needed")) }
}
