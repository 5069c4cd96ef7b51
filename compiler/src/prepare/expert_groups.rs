//! Grouped GEMM: tasks are grouped by expert, for tensor cores.
//!
//! In: a part whose tasks each multiply one vector with rows of one expert's matrix, chosen by a lookup. Out: a part
//! that computes the same, regrouped: a task has an expert and a block of its rows, and handles all vectors routed to
//! that expert, 64 at a time. A matrix is read once for all of its vectors, and tensor cores multiply them.
//!
//! ```text
//!  before   grid (token, slot, rows)   y[t, s] = W[expert(t, s)] · x[t]
//!  after    grid (expert, rows)        list = rows routed to the expert
//!             loop 64 of the list        Y = 0
//!               loop K by 64               X tile = x of 64 rows; W tile = 64 columns; Y += X · Wᵀ
//!               store Y                    to the places of the 64 rows
//! ```
//!
//! A tile of one task becomes a tile with an axis of 64 rows. An expert without rows reads nothing.

use std::collections::BTreeSet;

use crate::foundation::entity::List;
use crate::graph::op::{Binary, Fold, Scalar};
use crate::kernel::index::{Atom, Index, Vars};
use crate::kernel::product::tiles::TileProduct;
use crate::kernel::product::{Kind, MmaType, Product, Side};
use crate::kernel::walk::{needed, nests, tiles_read};
use crate::kernel::{
    Blocks, Expr, ExprId, Folding, Kernel, Nest, Part, Place, Range, RoutedRows, Stmt, Tile, TileId, Var,
    VarId,
};
use crate::options::Options;
use crate::tensor::dtype::DType;
use crate::tensor::label::Label;
use crate::tensor::sym::Sym;

/// Routed tasks that are handled at a time: M of the product.
const ROWS_PER_BATCH: i64 = 64;
/// Elements of K in an operand tile.
const K_STEP: i64 = 64;

/// The kernel, with the tasks of its parts grouped by expert where each multiplies with a matrix that a lookup chooses.
pub(super) fn group_by_expert(kernel: &Kernel, _: &Options) -> Kernel {
    let parts = kernel.parts.iter().map(|part| grouped(kernel, part).unwrap_or_else(|| part.clone()));
    Kernel { parts: parts.collect(), ..kernel.clone() }
}

/// A part regrouped by expert, if it can be.
fn grouped(kernel: &Kernel, part: &Part) -> Option<Part> {
    let nests: Vec<&Nest> = part.body.iter().map(Stmt::nest).collect::<Option<_>>()?;
    let lookup = nests.iter().find_map(|nest| routed_product(nest)).map(|(lookup, ..)| lookup)?;
    let Atom::Lookup { from: Place::Param(_), at, below } = lookup else { return None };
    let (rows, rest): (Vec<VarId>, Vec<VarId>) =
        part.grid.iter().copied().partition(|var| at.contains(&Index::var(*var)));
    let lens: Vec<Sym> =
        rows.iter().map(|var| part.vars[*var].range.whole_len().cloned()).collect::<Option<_>>()?;
    let is_numbered = lens.iter().skip(1).all(|len| len.as_const().is_some());
    let starts = part.vars.values().filter_map(|var| match &var.range {
        Range::Blocks(blocks) => Some(&blocks.start),
        Range::Whole { .. } | Range::Within { .. } => None,
    });
    let is_apart = starts.into_iter().all(|start| !start.uses_var(|var| rows.contains(&var)));
    let is_plain = nests.iter().all(|nest| nest.blocks(kernel).is_none());
    if rows.len() != at.len() || !is_numbered || !is_apart || !is_plain {
        return None;
    }
    let mut new = part.clone();
    for tile in new.tiles.values_mut() {
        tile.dims.insert(0, ROWS_PER_BATCH as usize);
    }
    let n_rows: i64 = lens.iter().map(|len| len.most().max(1)).product();
    let list = new.tiles.push(Tile { dtype: DType::I32, dims: vec![n_rows as usize] });
    let expert = add_var(&mut new, "expert", Range::Whole { len: Sym::from(*below) });
    let along = add_var(&mut new, "block", blocks(ROWS_PER_BATCH, Sym::from(n_rows)));
    let number = add_var(&mut new, "row", Range::Within { of: along });
    new.grid = [vec![expert], rest].concat();
    let routed = RoutedRows { rows, by: Index::atom(lookup.clone()), expert, list, along };
    let mut gemm = GroupedGemm {
        kernel,
        lens,
        n_rows,
        number,
        lookup,
        routed,
        of_one_task: &nests,
        part: new,
        operand_tiles: Vec::new(),
    };
    let mut body = Vec::new();
    for nest in &nests {
        body.extend(gemm.nest(nest)?);
    }
    let GroupedGemm { routed, mut part, .. } = gemm;
    part.routed = Some(routed);
    drop_unread(&mut part, &mut body);
    part.body = vec![Stmt::Loop { var: along, body }];
    Some(part)
}

/// Drops tiles that are no longer read, and the nests that fill them.
fn drop_unread(part: &mut Part, body: &mut Vec<Stmt>) {
    let read: BTreeSet<TileId> = nests(body).flat_map(tiles_read).collect();
    let is_read = |place: &Place| !matches!(place, Place::Tile(tile) if !read.contains(tile));
    body.retain(|stmt| stmt.nest().is_none_or(|nest| is_read(&nest.target)));
    let unread: Vec<TileId> = part.tiles.ids().filter(|tile| !read.contains(tile)).collect();
    for tile in unread {
        part.tiles[tile].dims = Vec::new();
    }
}

/// A regrouped part under construction.
struct GroupedGemm<'a> {
    kernel: &'a Kernel,
    /// The nests of a single task.
    of_one_task: &'a [&'a Nest],
    /// The trip counts of the variables that numbered rows, and the most rows.
    lens: Vec<Sym>,
    n_rows: i64,
    /// The variable for a position in the list.
    number: VarId,
    lookup: &'a Atom,
    routed: RoutedRows,
    part: Part,
    /// The operand tiles: vectors, then rows of the matrix.
    operand_tiles: Vec<TileId>,
}

impl GroupedGemm<'_> {
    /// A nest of one task, for a block of tasks.
    fn nest(&mut self, nest: &Nest) -> Option<Vec<Stmt>> {
        match routed_product(nest) {
            Some((lookup, weight, vector)) if lookup == self.lookup => self.product(nest, weight, vector),
            _ => Some(vec![Stmt::Nest(self.batched(nest))]),
        }
    }

    /// The nest, repeated for each task of a block.
    fn batched(&self, nest: &Nest) -> Nest {
        Nest {
            target: nest.target,
            at: self.own(nest.target).into_iter().chain(nest.at.iter().map(|at| self.index(at))).collect(),
            loops: [&[self.number][..], &nest.loops].concat(),
            fold: nest.fold.clone(),
            exprs: nest.exprs.values().map(|expr| self.expr(expr)).collect(),
            value: nest.value,
            product: None,
        }
    }

    fn expr(&self, expr: &Expr) -> Expr {
        reindexed(expr, &|index| self.index(index), &|place| self.own(place))
    }

    /// The leading index of a tile: which task of the block.
    fn own(&self, place: Place) -> Option<Index> {
        match place {
            Place::Tile(_) => Some(self.in_block(self.number)),
            Place::Param(_) => None,
        }
    }

    /// An index, with the task variables replaced by lookups in the list.
    fn index(&self, index: &Index) -> Index {
        let vars = &self.part.vars;
        let RoutedRows { rows, expert, list, .. } = &self.routed;
        let mut rest = Index::atom(Atom::Lookup {
            from: Place::Tile(*list),
            at: vec![Index::var(self.number)],
            below: self.n_rows,
        });
        let mut values = Vec::new();
        for len in self.lens.iter().skip(1).rev().map(Sym::near) {
            values.push(rest.rem(len, vars));
            rest = rest.div(len, vars);
        }
        values.push(rest);
        values.reverse();
        let of = |var: VarId| match rows.iter().position(|own| *own == var) {
            Some(position) => values[position].clone(),
            None => Index::var(var),
        };
        let terms = index.terms().iter().map(|(atom, factor)| {
            let is_lookup = atom == self.lookup;
            let term =
                if is_lookup { Index::var(*expert) } else { Index::atom(atom.clone()).replaced(&of, vars) };
            term.times(*factor)
        });
        terms.fold(Index::constant(index.offset()), |sum, term| sum.plus(&term))
    }

    /// A variable's position in its block.
    fn in_block(&self, var: VarId) -> Index {
        match self.part.vars[var].range {
            Range::Within { of } => Index::var(var).minus(&Index::var(of)),
            Range::Whole { .. } | Range::Blocks(_) => Index::var(var),
        }
    }

    /// The product of a block of vectors with rows of the matrix, blocked along K.
    fn product(&mut self, nest: &Nest, weight: ExprId, vector: ExprId) -> Option<Vec<Stmt>> {
        let [row] = nest.loops[..] else { return None };
        let [whole] = nest.folds()[..] else { return None };
        let Var { name, range, .. } = self.part.vars[whole].clone();
        let len = range.whole_len().filter(|len| len.as_const().is_some())?;
        let outer = add_var(&mut self.part, "step", blocks(K_STEP, len.clone()));
        let inner = self.part.vars.push(Var::new(name, Range::Within { of: outer }));
        let nest = &folding_along(nest, whole, inner, &self.part.vars);
        let all = self.batched(nest);
        if uses(&all, vector, row) || uses(&all, weight, self.number) {
            return None;
        }
        let [a, b] = [
            self.inlined_vector(nest, vector).unwrap_or((all.exprs.clone(), vector)),
            (all.exprs.clone(), weight),
        ];
        let mut fills = Vec::new();
        let mut exprs: List<ExprId, Expr> = List::default();
        let mut factors = Vec::new();
        for (number, (var, (own, value))) in [(self.number, a), (row, b)].into_iter().enumerate() {
            let target = Place::Tile(self.operand_tile(number, var)?);
            let at = vec![self.in_block(var), self.in_block(inner)];
            factors.push(exprs.push(Expr::Load { from: target, at: at.clone() }));
            let (loops, exprs) = (vec![var, inner], only(&own, value));
            fills.push(Stmt::Nest(Nest { target, at, loops, fold: None, exprs, value, product: None }));
        }
        let init = exprs.push(Expr::Load { from: all.target, at: all.at.clone() });
        let value = exprs.push(Expr::Binary(Binary::Mul, factors[0], factors[1]));
        let fold = nest.fold.clone().map(|folding| Folding { init: Some(init), ..folding });
        let sum = Nest { fold, exprs, value, ..all.clone() };
        let kind = Kind::Mma(MmaType::Tf32);
        let (columns, along) = (vec![self.number], vec![inner]);
        let (weight, row, routed) = (Side::Right, Some(row), Vec::new());
        let product = Product { kind, weight, row, columns, along, routed, activations: None };
        TileProduct::checked(self.kernel, &self.part, &sum, &product)?;
        let mut exprs = List::default();
        let value = exprs.push(Expr::Const(Scalar::float(0.0)));
        let zero = Nest { fold: None, exprs, value, ..all };
        fills.push(Stmt::Nest(sum));
        Some(vec![Stmt::Nest(zero), Stmt::Loop { var: outer, body: fills }])
    }

    /// The expression that fills the vector's tile, at the element that is read: then whole vectors need no tile.
    fn inlined_vector(&self, nest: &Nest, vector: ExprId) -> Option<(List<ExprId, Expr>, ExprId)> {
        let Expr::Load { from: from @ Place::Tile(_), at } = &nest.exprs[vector] else { return None };
        let filler = self.only_writer(*from).filter(|filler| filler.fold.is_none())?;
        let ([along], [index]) = (&filler.loops[..], &at[..]) else { return None };
        // What it reads is unchanged where the vector is read.
        let stays = tiles_read(filler).into_iter().all(|tile| self.only_writer(Place::Tile(tile)).is_some());
        if filler.at != [Index::var(*along)] || !stays {
            return None;
        }
        let of = |var: VarId| if var == *along { index.clone() } else { Index::var(var) };
        let here = |index: &Index| index.replaced(&of, &self.part.vars);
        let exprs = filler.exprs.values().map(|expr| self.expr(&reindexed(expr, &here, &|_| None)));
        Some((exprs.collect(), filler.value))
    }

    /// The only nest that writes a place.
    fn only_writer(&self, place: Place) -> Option<&Nest> {
        let mut fillers = self.of_one_task.iter().filter(|nest| nest.target == place);
        fillers.next().filter(|_| fillers.next().is_none()).copied()
    }

    /// The tile of the first or second operand, whose rows a variable numbers.
    fn operand_tile(&mut self, number: usize, row: VarId) -> Option<TileId> {
        let n_rows = self.part.n_values(row, &Sym::most);
        let dims = vec![n_rows as usize, K_STEP as usize];
        if let Some(tile) = self.operand_tiles.get(number) {
            return (self.part.tiles[*tile].dims == dims).then_some(*tile);
        }
        let tile = self.part.tiles.push(Tile { dtype: DType::F32, dims });
        self.operand_tiles.push(tile);
        Some(tile)
    }
}

/// For a product with a routed matrix: the lookup, then the two operands, the matrix first.
fn routed_product(nest: &Nest) -> Option<(&Atom, ExprId, ExprId)> {
    let folding = nest.fold.as_ref().filter(|folding| folding.fold == Fold::Sum && folding.init.is_none())?;
    let Expr::Binary(Binary::Mul, a, b) = nest.exprs[nest.value] else { return None };
    let lookup = |id: ExprId| match &nest.exprs[id] {
        Expr::Load { from: Place::Param(_), at } => at.iter().find_map(|index| match index.terms() {
            [(atom @ Atom::Lookup { .. }, 1)] if index.offset() == 0 => Some(atom),
            _ => None,
        }),
        _ => None,
    };
    let is_one = folding.loops.len() == 1;
    match (lookup(a), lookup(b)) {
        (Some(lookup), None) if is_one => Some((lookup, a, b)),
        (None, Some(lookup)) if is_one => Some((lookup, b, a)),
        _ => None,
    }
}

/// The same expressions, with those that `root` does not need replaced by zero.
fn only(exprs: &List<ExprId, Expr>, root: ExprId) -> List<ExprId, Expr> {
    let is_needed = needed(exprs, &[root], |_| false);
    let nothing = Expr::Const(Scalar::float(0.0));
    exprs.iter().map(|(id, expr)| if is_needed[id] { expr } else { &nothing }.clone()).collect()
}

/// An expression at other positions; `own` gives places a leading index.
fn reindexed(expr: &Expr, index: &impl Fn(&Index) -> Index, own: &impl Fn(Place) -> Option<Index>) -> Expr {
    match expr {
        Expr::Position(at) => Expr::Position(index(at)),
        Expr::Load { from, at } => {
            Expr::Load { from: *from, at: own(*from).into_iter().chain(at.iter().map(index)).collect() }
        }
        Expr::Const(_) | Expr::Unary(..) | Expr::Binary(..) | Expr::Select(..) | Expr::Cast(..) => {
            expr.clone()
        }
    }
}

fn blocks(block: i64, end: Sym) -> Range {
    Range::Blocks(Blocks { start: Index::default(), step: block, block, end })
}

fn add_var(part: &mut Part, name: &str, range: Range) -> VarId {
    part.vars.push(Var::new(Label::new(name).expect("a short word names an axis"), range))
}

/// The nest, with a fold along one variable instead of another.
fn folding_along(nest: &Nest, from: VarId, to: VarId, vars: &Vars) -> Nest {
    let of = |var: VarId| Index::var(if var == from { to } else { var });
    let index = |index: &Index| index.replaced(&of, vars);
    let fold = nest.fold.clone().map(|folding| Folding { loops: vec![to], ..folding });
    let exprs = nest.exprs.values().map(|expr| reindexed(expr, &index, &|_| None)).collect();
    Nest { fold, exprs, ..nest.clone() }
}

/// Whether an expression of a nest depends on a variable.
fn uses(nest: &Nest, scalar: ExprId, var: VarId) -> bool {
    let scalar = &nest.exprs[scalar];
    let is_own = scalar.indices().iter().any(|index| index.uses_var(|own| own == var));
    is_own || scalar.operands().into_iter().any(|operand| uses(nest, operand, var))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::parse::parse;
    use crate::kernel::product::tiles::tile_products;
    use crate::kernel::verify::verify;
    use crate::prepare::select_tile_products::select_tile_products;
    use crate::target::CUDA_SM90;

    /// Two products of rows of experts with a vector that each task scales first.
    const KERNEL: &str = r#"symbol T in 1..64 near 64
kernel "experts gate up" experts
  read @0 x : f32[t:T, d:128]
  read @1 scale : f32[d:128]
  read @2 picked : i32[t:T, k:2]
  read @3 gate : q8_0[x:8, r:64, d:128]
  read @4 up : q8_0[x:8, r:64, d:128]
  write @5 y : f32[t:T, k:2, r:64]
part
  tile tile0 : f32[128]
  tile tile1 : f32[32]
  tile tile2 : f32[32]
  var t0 in 0..T
  var k1 in 0..2
  var r2 in blocks of 32 step 32 from 0 to 64
  var d3 in 0..128
  var r4 within r2
  var d5 in 0..128
  var r6 within r2
  var d7 in 0..128
  var r8 within r2
  grid t0, k1, r2
  for d3
    tile0[d3] = mul(@0[t0, d3], @1[d3])
  for r4
    tile1[-r2+r4] = sum d5 of mul(tile0[d5], @3[lookup(@2[t0, k1], 8), r4, d5])
  for r6
    tile2[-r2+r6] = sum d7 of mul(@4[lookup(@2[t0, k1], 8), r6, d7], tile0[d7])
  for r8
    @5[t0, k1, r8] = mul(tile1[-r2+r8], tile2[-r2+r8])
"#;

    fn grouped(text: &str) -> Kernel {
        group_by_expert(&parse(text).unwrap(), &Options::for_target(CUDA_SM90))
    }

    #[test]
    fn tasks_of_an_expert_become_one_with_tile_products() {
        let kernel = grouped(KERNEL);
        assert_eq!(verify(&kernel), [], "{kernel}");
        let part = &kernel.parts[0];
        let routed = part.routed.as_ref().unwrap();
        assert_eq!((part.grid[0], part.grid.len(), routed.rows.len()), (routed.expert, 2, 2));
        let products = select_tile_products(&kernel, &Options::for_target(CUDA_SM90));
        assert_eq!(tile_products(&products, &products.parts[0]).len(), 2);
        let text = kernel.to_string();
        assert_eq!(parse(&text).unwrap().to_string(), text);
    }

    #[test]
    fn vectors_are_computed_where_operand_tiles_take_them() {
        let kernel = grouped(KERNEL);
        // The tile of whole vectors is now a scalar; then two sums, the list, and two operands.
        let dims: Vec<&[usize]> = kernel.parts[0].tiles.values().map(|tile| tile.dims.as_slice()).collect();
        assert_eq!(dims, [&[][..], &[64, 32], &[64, 32], &[128], &[64, 64], &[32, 64]]);
    }

    #[test]
    fn other_tasks_are_not_grouped() {
        let few_rows =
            KERNEL.replace("blocks of 32 step 32", "blocks of 4 step 4").replace("f32[32]", "f32[4]");
        let same = KERNEL.replace("lookup(@2[t0, k1], 8)", "lookup(@2[t0, 0], 8)");
        let no_sum = KERNEL.replace("= sum", "= max");
        for text in [few_rows, same, no_sum] {
            assert_eq!(grouped(&text), parse(&text).unwrap(), "{text}");
        }
    }

    #[test]
    fn a_loop_that_two_products_share_is_cut_for_each() {
        let one_loop = KERNEL.replace("  var d7 in 0..128\n", "").replace("r8", "r7").replace("d7", "d5");
        let kernel = grouped(&one_loop);
        assert!(kernel.parts[0].routed.is_some() && verify(&kernel).is_empty(), "{kernel}");
    }
}
