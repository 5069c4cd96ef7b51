//! A part prepared for interpretation: symbols are numbers, places have sizes, scalars have types.
//!
//! In: a verified part and the values of its symbols. Out: a [`Program`] whose evaluation allocates nothing.
//! Nothing is simplified or moved: the order of evaluation is that of the text. `mod.rs` executes it.

use std::collections::{BTreeMap, BTreeSet};

use crate::foundation::entity::List;
use crate::graph::op::{Binary, Fold, Unary};
use crate::kernel::index::{Atom, Index};
use crate::kernel::run::fault::Fault;
use crate::kernel::verify::types::expr_dtypes;
use crate::kernel::walk::{needed, nests};
use crate::kernel::{
    Blocks, Expr, ExprId, Kernel, Nest, Part, Place, Range, RoutedRows, Stmt, TileId, Var, VarId,
};
use crate::tensor::dtype::DType;
use crate::tensor::label::Label;
use crate::tensor::quant::Format;
use crate::tensor::sym::{Sym, Symbol};

/// A part ready to run.
pub(super) struct Program {
    pub(super) vars: List<VarId, FlatVar>,
    pub(super) routed: Option<FlatRows>,
    pub(super) body: Vec<FlatStmt>,
}

/// The rows that are routed to a task.
pub(super) struct FlatRows {
    pub(super) rows: Vec<VarId>,
    pub(super) by: FlatIndex,
    pub(super) expert: VarId,
    pub(super) list: TileId,
    pub(super) along: VarId,
}

/// A variable: its values are those of the range below every bound.
pub(super) struct FlatVar {
    pub(super) range: FlatRange,
    pub(super) until: Vec<FlatIndex>,
}

pub(super) enum FlatRange {
    Whole { len: i64 },
    Blocks { start: FlatIndex, step: i64, end: i64 },
    Within { of: VarId, block: i64, end: i64 },
}

pub(super) enum FlatStmt {
    Nest(FlatNest),
    Loop { var: VarId, body: Vec<Self> },
    Once(FlatOnce),
}

/// Statements that a task skips where one before has done them for the same values of some variables.
pub(super) struct FlatOnce {
    /// Its place in the body of the part.
    pub(super) number: usize,
    pub(super) per: Vec<VarId>,
    pub(super) body: Vec<FlatStmt>,
    /// The tiles that it fills.
    pub(super) tiles: BTreeSet<TileId>,
}

pub(super) struct FlatNest {
    pub(super) target: Access,
    /// The format that what is stored is rounded to, where it is one of blocks.
    pub(super) blocks: Option<Format>,
    pub(super) loops: Vec<VarId>,
    pub(super) fold: Option<FlatFold>,
    pub(super) dtype: DType,
    pub(super) exprs: Vec<Step>,
    pub(super) value: ExprId,
    pub(super) n_exprs: usize,
}

pub(super) struct FlatFold {
    pub(super) fold: Fold,
    pub(super) loops: Vec<VarId>,
    pub(super) init: Option<(Vec<Step>, ExprId)>,
}

/// One expression with the register its value goes to.
pub(super) struct Step {
    pub(super) to: ExprId,
    pub(super) expr: FlatExpr,
}

pub(super) enum FlatExpr {
    Const(f64),
    Position(FlatIndex),
    Load(Access),
    Unary(Unary, DType, ExprId),
    Binary(Binary, DType, ExprId, ExprId),
    Select(ExprId, ExprId, ExprId),
    Cast(DType, ExprId),
}

/// An element of a place.
pub(super) struct Access {
    pub(super) place: Place,
    pub(super) dtype: DType,
    /// One index and size for each axis.
    pub(super) at: Vec<(FlatIndex, i64)>,
}

/// A sum of variables and other atoms.
pub(super) struct FlatIndex {
    pub(super) constant: i64,
    pub(super) vars: Vec<(VarId, i64)>,
    pub(super) others: Vec<(FlatAtom, i64)>,
}

pub(super) enum FlatAtom {
    Div(Box<FlatIndex>, i64),
    Rem(Box<FlatIndex>, i64),
    Min(Box<FlatIndex>, i64),
    Max(Box<FlatIndex>, i64),
    Lookup(Access, i64),
}

/// Prepares a part.
pub(super) fn flatten(
    kernel: &Kernel,
    part: &Part,
    symbols: &BTreeMap<Label, i64>,
) -> Result<Program, Fault> {
    let flattener = Flattener { kernel, part, symbols };
    let ranges: Result<List<VarId, FlatVar>, Fault> =
        part.vars.values().map(|var| flattener.var(var)).collect();
    let routed = part.routed.as_ref().map(|routed| flattener.routed(routed)).transpose()?;
    Ok(Program { vars: ranges?, routed, body: flattener.body(&part.body)? })
}

struct Flattener<'a> {
    kernel: &'a Kernel,
    part: &'a Part,
    symbols: &'a BTreeMap<Label, i64>,
}

impl Flattener<'_> {
    fn routed(&self, routed: &RoutedRows) -> Result<FlatRows, Fault> {
        let RoutedRows { rows, by, expert, list, along } = routed;
        let by = self.index(by)?;
        Ok(FlatRows { rows: rows.clone(), by, expert: *expert, list: *list, along: *along })
    }

    fn var(&self, var: &Var) -> Result<FlatVar, Fault> {
        let until = var.until.iter().map(|bound| self.index(bound)).collect::<Result<_, _>>()?;
        Ok(FlatVar { range: self.range(&var.range)?, until })
    }

    fn range(&self, range: &Range) -> Result<FlatRange, Fault> {
        Ok(match range {
            Range::Whole { len } => FlatRange::Whole { len: self.sym(len)? },
            Range::Blocks(Blocks { start, step, end, .. }) => {
                FlatRange::Blocks { start: self.index(start)?, step: *step, end: self.sym(end)? }
            }
            Range::Within { of } => match self.part.vars[*of].range.blocks() {
                Some(Blocks { block, end, .. }) => {
                    FlatRange::Within { of: *of, block: *block, end: self.sym(end)? }
                }
                None => FlatRange::Whole { len: 0 },
            },
        })
    }

    fn body(&self, body: &[Stmt]) -> Result<Vec<FlatStmt>, Fault> {
        let mut flat = Vec::new();
        for (number, stmt) in body.iter().enumerate() {
            flat.push(match stmt {
                Stmt::Nest(nest) => FlatStmt::Nest(self.nest(nest)?),
                Stmt::Loop { var, body } => FlatStmt::Loop { var: *var, body: self.body(body)? },
                Stmt::Once { per, body } => {
                    let tiles = nests(body).filter_map(Nest::tile).collect();
                    FlatStmt::Once(FlatOnce { number, per: per.clone(), body: self.body(body)?, tiles })
                }
                Stmt::Quantise(_) => continue,
            });
        }
        Ok(flat)
    }

    fn nest(&self, nest: &Nest) -> Result<FlatNest, Fault> {
        let dtypes =
            expr_dtypes(&nest.exprs, |place| self.layout(place).0).map_err(|what| Fault::Untyped { what })?;
        let fold = match &nest.fold {
            None => None,
            Some(folding) => {
                let init =
                    folding.init.map(|init| self.steps(nest, &dtypes, init).map(|steps| (steps, init)));
                Some(FlatFold { fold: folding.fold, loops: folding.loops.clone(), init: init.transpose()? })
            }
        };
        Ok(FlatNest {
            target: self.access(nest.target, &nest.at)?,
            blocks: nest.blocks(self.kernel),
            loops: nest.loops.clone(),
            fold,
            dtype: dtypes[nest.value],
            exprs: self.steps(nest, &dtypes, nest.value)?,
            value: nest.value,
            n_exprs: nest.exprs.len(),
        })
    }

    /// What `root` is computed from, in order, and `root` itself.
    fn steps(&self, nest: &Nest, dtypes: &List<ExprId, DType>, root: ExprId) -> Result<Vec<Step>, Fault> {
        let is_needed = needed(&nest.exprs, &[root], |_| false);
        let needed = nest.exprs.iter().filter(|(id, _)| is_needed[*id]);
        needed.map(|(to, expr)| Ok(Step { to, expr: self.expr(expr, dtypes)? })).collect()
    }

    fn expr(&self, expr: &Expr, dtypes: &List<ExprId, DType>) -> Result<FlatExpr, Fault> {
        Ok(match expr {
            Expr::Const(scalar) => FlatExpr::Const(scalar.number()),
            Expr::Position(index) => FlatExpr::Position(self.index(index)?),
            Expr::Load { from, at } => FlatExpr::Load(self.access(*from, at)?),
            Expr::Unary(f, a) => FlatExpr::Unary(*f, dtypes[*a], *a),
            Expr::Binary(f, a, b) => FlatExpr::Binary(*f, dtypes[*a], *a, *b),
            Expr::Select(a, b, c) => FlatExpr::Select(*a, *b, *c),
            Expr::Cast(dtype, a) => FlatExpr::Cast(*dtype, *a),
        })
    }

    fn access(&self, place: Place, at: &[Index]) -> Result<Access, Fault> {
        let (dtype, dims) = self.layout(place);
        let at = at.iter().zip(dims).map(|(index, dim)| Ok((self.index(index)?, dim)));
        Ok(Access { place, dtype, at: at.collect::<Result<_, Fault>>()? })
    }

    /// The type of an element, and the sizes that storage is laid out for.
    fn layout(&self, place: Place) -> (DType, Vec<i64>) {
        match place {
            Place::Param(id) => {
                let param = &self.kernel.params[id];
                (param.format.dtype(), param.shape.iter().map(|(_, size)| size.most().max(0)).collect())
            }
            Place::Tile(id) => {
                let tile = &self.part.tiles[id];
                (tile.dtype, tile.dims.iter().map(|dim| *dim as i64).collect())
            }
        }
    }

    fn index(&self, index: &Index) -> Result<FlatIndex, Fault> {
        let mut flat = FlatIndex { constant: index.offset(), vars: Vec::new(), others: Vec::new() };
        let inner = |index| self.index(index).map(Box::new);
        for (atom, factor) in index.terms() {
            let other = match atom {
                Atom::Var(var) => {
                    flat.vars.push((*var, *factor));
                    continue;
                }
                Atom::Symbols(symbols) => {
                    let multiply = |product: i64, s: &Symbol| Ok(product.saturating_mul(self.symbol(*s)?));
                    flat.constant = flat.constant.saturating_add(symbols.iter().try_fold(*factor, multiply)?);
                    continue;
                }
                Atom::Div(index, by) => FlatAtom::Div(inner(index)?, *by),
                Atom::Rem(index, by) => FlatAtom::Rem(inner(index)?, *by),
                Atom::Min(index, most) => FlatAtom::Min(inner(index)?, *most),
                Atom::Max(index, least) => FlatAtom::Max(inner(index)?, *least),
                Atom::Lookup { from, at, below } => FlatAtom::Lookup(self.access(*from, at)?, *below),
            };
            flat.others.push((other, *factor));
        }
        Ok(flat)
    }

    fn sym(&self, sym: &Sym) -> Result<i64, Fault> {
        Ok(self.index(&Index::sym(sym))?.constant)
    }

    fn symbol(&self, symbol: Symbol) -> Result<i64, Fault> {
        let Symbol { name, min, max, .. } = symbol;
        let value = *self.symbols.get(&name).ok_or(Fault::MissingSymbol { name })?;
        if (min..=max).contains(&value) {
            Ok(value)
        } else {
            Err(Fault::SymbolOutside { name, value, min, max })
        }
    }
}
