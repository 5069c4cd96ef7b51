//! Writes the scalars of a nest as nested calls, with a `let` for what is used twice or nested deep.
//!
//! In: a nest. Out: the text of its `let` lines, of its value and of its fold's start.
//! Equal expressions are made one first, so the text depends on nothing but what is computed.
//! A reference to a later expression, which no verified nest has, is written `?`.

use std::collections::BTreeMap;

use indexmap::IndexSet;

use crate::foundation::entity::{Id, List};
use crate::graph::op::Scalar;
use crate::kernel::index::Vars;
use crate::kernel::print::index::{access_text, index_text};
use crate::kernel::{Expr, ExprId, Nest};

/// How deep calls may nest before a `let` cuts them; well below what `parse` accepts.
const MAX_DEPTH: usize = 12;

/// The text of each scalar of a nest.
pub(super) struct Scalars {
    pub(super) lets: Vec<String>,
    pub(super) value: String,
    pub(super) init: Option<String>,
}

/// The text of each scalar of a nest.
pub(super) fn scalars(nest: &Nest, vars: &Vars) -> Scalars {
    let (exprs, new_ids) = joined(&nest.exprs);
    let new_id = |id: ExprId| new_ids.get(id).copied().unwrap_or(id);
    let value = new_id(nest.value);
    let init = nest.init().map(new_id);
    let is_named = named(&exprs, &[Some(value), init]);
    let mut writer = Writer { exprs: &exprs, vars, is_named, numbers: BTreeMap::new(), lets: Vec::new() };
    let past_all = ExprId::from_index(exprs.len());
    let value = writer.text(value, past_all);
    let init = init.map(|init| writer.text(init, past_all));
    Scalars { lets: writer.lets, value, init }
}

/// The same expressions with equal ones made one, and the new id of each old one.
fn joined(exprs: &List<ExprId, Expr>) -> (List<ExprId, Expr>, List<ExprId, ExprId>) {
    let mut unique: IndexSet<Expr> = IndexSet::new();
    let mut new_ids: List<ExprId, ExprId> = List::default();
    for expr in exprs.values() {
        // An operand that does not come earlier keeps its id, which is then not below the new id either.
        let expr = expr.with_operands(|id| new_ids.get(id).copied().unwrap_or(id));
        new_ids.push(ExprId::from_index(unique.insert_full(expr).0));
    }
    (unique.into_iter().collect(), new_ids)
}

/// Which expressions get a `let`: those used twice, and those in which calls would nest too deep.
fn named(exprs: &List<ExprId, Expr>, roots: &[Option<ExprId>]) -> List<ExprId, bool> {
    let mut n_uses: List<ExprId, usize> = exprs.ids().map(|_| 0).collect();
    for root in roots.iter().flatten().filter(|root| exprs.get(**root).is_some()) {
        n_uses[*root] += 1;
    }
    for id in exprs.ids().rev() {
        let operands = if n_uses[id] > 0 { exprs[id].operands() } else { Vec::new() };
        for operand in operands.into_iter().filter(|operand| *operand < id) {
            n_uses[operand] += 1;
        }
    }
    let mut depths: List<ExprId, usize> = List::default();
    let mut is_named: List<ExprId, bool> = List::default();
    for (id, expr) in exprs.iter() {
        let operands = expr.operands().into_iter().filter(|operand| *operand < id);
        let depth = operands.map(|operand| depths[operand] + 1).max().unwrap_or(0);
        let named =
            !matches!(expr, Expr::Const(_) | Expr::Position(_)) && (n_uses[id] > 1 || depth >= MAX_DEPTH);
        depths.push(if named { 0 } else { depth });
        is_named.push(named);
    }
    is_named
}

struct Writer<'a> {
    exprs: &'a List<ExprId, Expr>,
    vars: &'a Vars,
    is_named: List<ExprId, bool>,
    numbers: BTreeMap<ExprId, usize>,
    lets: Vec<String>,
}

impl Writer<'_> {
    /// The expression as an operand of the expression `of`.
    fn text(&mut self, id: ExprId, of: ExprId) -> String {
        if id >= of {
            return "?".to_owned();
        }
        if let Some(number) = self.numbers.get(&id) {
            return format!("%{number}");
        }
        let text = self.call(id);
        if !self.is_named[id] {
            return text;
        }
        self.numbers.insert(id, self.lets.len());
        self.lets.push(text);
        format!("%{}", self.lets.len() - 1)
    }

    fn call(&mut self, id: ExprId) -> String {
        let operands: Vec<String> =
            self.exprs[id].operands().into_iter().map(|operand| self.text(operand, id)).collect();
        let operands = operands.join(", ");
        match &self.exprs[id] {
            Expr::Const(scalar) => scalar_text(*scalar),
            Expr::Position(index) => format!("position({})", index_text(index, self.vars)),
            Expr::Load { from, at } => access_text(*from, at, self.vars),
            Expr::Unary(f, _) => format!("{}({operands})", f.name()),
            Expr::Binary(f, ..) => format!("{}({operands})", f.name()),
            Expr::Select(..) => format!("select({operands})"),
            Expr::Cast(dtype, _) => format!("cast.{dtype}({operands})"),
        }
    }
}

/// `1.0` is a float, `1` a whole number; a NaN shows its bits unless they are the usual ones.
fn scalar_text(scalar: Scalar) -> String {
    match scalar {
        Scalar::I32(value) => value.to_string(),
        Scalar::F32(bits) => match f32::from_bits(bits) {
            value if !value.is_nan() => format!("{value:?}"),
            _ if bits == f32::NAN.to_bits() => "nan".to_owned(),
            _ => format!("nan.{bits:08x}"),
        },
    }
}

impl Expr {
    /// The same with other operands.
    fn with_operands(&self, new: impl Fn(ExprId) -> ExprId) -> Self {
        match self {
            Self::Const(_) | Self::Position(_) | Self::Load { .. } => self.clone(),
            Self::Unary(f, a) => Self::Unary(*f, new(*a)),
            Self::Cast(dtype, a) => Self::Cast(*dtype, new(*a)),
            Self::Binary(f, a, b) => Self::Binary(*f, new(*a), new(*b)),
            Self::Select(a, b, c) => Self::Select(new(*a), new(*b), new(*c)),
        }
    }
}
