//! Finds loop rounds that the causal mask hides completely, such as blocks of future positions in attention.
//!
//! In: the body of a loop. Out: for each comparison that masks scores, an index; where it is above zero, the comparison
//! is false for everything in the round, and the round changes nothing that outlives it. This is proven by abstract
//! interpretation of the body, given that the comparison is false: masked scores are -∞, their exponentials 0, and what
//! is scaled by 1 or grows by 0 is unchanged. Other numbers count as finite, as they do wherever -∞ is a mask.

use std::collections::{BTreeMap, BTreeSet};

use crate::graph::op::{Binary, Fold, Scalar, Unary};
use crate::kernel::index::Index;
use crate::kernel::mask::{above_zero_where_false, least};
use crate::kernel::{Expr, ExprId, Nest, Part, Place, Stmt, TileId};

/// What is known of a scalar.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Known {
    BelowAll,
    Zero,
    One,
    /// An element of a tile, as it was before the round.
    Before(TileId, Vec<Index>),
    Nothing,
}

/// What is known of all elements of a tile that the round has written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    BelowAll,
    Zero,
    One,
    /// The same element of a tile, as it was before the round.
    Before(TileId),
    Nothing,
}

/// Indices above zero where a round of the loop may be skipped.
pub(super) fn hidden(part: &Part, body: &[Stmt]) -> Vec<Index> {
    let mut nests = Vec::new();
    for stmt in body {
        let Stmt::Nest(nest) = stmt else { return Vec::new() };
        nests.push(nest);
    }
    let mut found = Vec::new();
    for (number, nest) in nests.iter().enumerate() {
        let loops = [&nest.loops, nest.folds()].concat();
        for expr in nest.exprs.values() {
            let Expr::Select(test, ..) = expr else { continue };
            let hidden = above_zero_where_false(&nest.exprs, *test);
            let Some(index) = hidden.and_then(|sum| least(&sum, &loops, &part.vars)) else { continue };
            if Round::new((number, *test)).changes_nothing(part, &nests, body) {
                found.push(index);
            }
        }
    }
    found
}

/// A round in which a comparison is false.
struct Round {
    /// The number of its nest, and which scalar it is.
    test: (usize, ExprId),
    contents: BTreeMap<TileId, Content>,
    read_before: BTreeSet<TileId>,
}

impl Round {
    fn new(test: (usize, ExprId)) -> Self {
        Self { test, contents: BTreeMap::new(), read_before: BTreeSet::new() }
    }

    /// Whether nothing that outlives the round changes.
    fn changes_nothing(mut self, part: &Part, nests: &[&Nest], body: &[Stmt]) -> bool {
        for (number, nest) in nests.iter().enumerate() {
            let Place::Tile(tile) = nest.target else { return false };
            let content = match self.stored(number, nest) {
                Known::BelowAll => Content::BelowAll,
                Known::Zero => Content::Zero,
                Known::One => Content::One,
                Known::Before(tile, at) if at == nest.at => Content::Before(tile),
                Known::Before(..) | Known::Nothing => Content::Nothing,
            };
            self.contents.insert(tile, content);
        }
        let is_kept = |tile: &TileId| {
            let is_inner = !self.read_before.contains(tile) && !is_read(&part.body, *tile, body);
            is_inner || self.contents[tile] == Content::Before(*tile)
        };
        self.contents.keys().all(is_kept)
    }

    /// What a nest stores.
    fn stored(&mut self, number: usize, nest: &Nest) -> Known {
        let value = self.known(number, nest, nest.value);
        let Some(folding) = &nest.fold else { return value };
        let init = folding.init.map(|init| self.known(number, nest, init));
        match (folding.fold, value) {
            (Fold::Max, Known::BelowAll) => init.unwrap_or(Known::BelowAll),
            (Fold::Sum, Known::Zero) => init.unwrap_or(Known::Zero),
            _ => Known::Nothing,
        }
    }

    fn known(&mut self, number: usize, nest: &Nest, id: ExprId) -> Known {
        match &nest.exprs[id] {
            Expr::Const(Scalar::F32(bits)) => match f32::from_bits(*bits) {
                f32::NEG_INFINITY => Known::BelowAll,
                0.0 => Known::Zero,
                1.0 => Known::One,
                _ => Known::Nothing,
            },
            Expr::Load { from: Place::Tile(tile), at } => match self.contents.get(tile) {
                None => {
                    self.read_before.insert(*tile);
                    Known::Before(*tile, at.clone())
                }
                Some(Content::BelowAll) => Known::BelowAll,
                Some(Content::Zero) => Known::Zero,
                Some(Content::One) => Known::One,
                Some(Content::Before(tile)) => Known::Before(*tile, at.clone()),
                Some(Content::Nothing) => Known::Nothing,
            },
            Expr::Select(test, a, b) => {
                let (a, b) = (self.known(number, nest, *a), self.known(number, nest, *b));
                if a == b || (number, *test) == self.test { b } else { Known::Nothing }
            }
            Expr::Unary(Unary::Exp, a) => match self.known(number, nest, *a) {
                Known::BelowAll => Known::Zero,
                Known::Zero => Known::One,
                Known::One | Known::Before(..) | Known::Nothing => Known::Nothing,
            },
            Expr::Binary(op, a, b) => {
                let pair = (self.known(number, nest, *a), self.known(number, nest, *b));
                match (op, pair) {
                    (Binary::Add, (Known::BelowAll, _) | (_, Known::BelowAll))
                    | (Binary::Sub, (Known::BelowAll, _)) => Known::BelowAll,
                    (Binary::Sub, (Known::Before(a, i), Known::Before(b, j))) if (a, &i) == (b, &j) => {
                        Known::Zero
                    }
                    (Binary::Mul, (Known::Zero, _) | (_, Known::Zero)) => Known::Zero,
                    (Binary::Mul, (Known::One, x) | (x, Known::One)) => x,
                    _ => Known::Nothing,
                }
            }
            Expr::Const(Scalar::I32(_))
            | Expr::Position(_)
            | Expr::Load { from: Place::Param(_), .. }
            | Expr::Unary(..)
            | Expr::Cast(..) => Known::Nothing,
        }
    }
}

/// Whether a tile is read outside of a body.
fn is_read(all: &[Stmt], tile: TileId, body: &[Stmt]) -> bool {
    all.iter().any(|stmt| match stmt {
        Stmt::Loop { body: own, .. } if std::ptr::eq(own.as_slice(), body) => false,
        Stmt::Loop { body: own, .. } => is_read(own, tile, body),
        Stmt::Nest(nest) => nest
            .exprs
            .values()
            .any(|expr| matches!(expr, Expr::Load { from: Place::Tile(from), .. } if *from == tile)),
    })
}
