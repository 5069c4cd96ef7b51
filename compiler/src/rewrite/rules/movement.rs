//! Movement disappears: what only cuts, joins or names positions cancels out.
//!
//! What remains of it is index arithmetic inside kernels. None of these rules makes a value larger.

use egg::Id;

use crate::graph::op::{Binary, Op};
use crate::rewrite::language::{EGraph, ENode, Kind};
use crate::rewrite::rules::rule::{HoldsFor, Rule, Search};
use crate::rewrite::term::{Term, facts, mul, rename, slice};
use crate::tensor::shape::{Axis, Shape};
use crate::tensor::sym::Sym;

pub(super) const RULES: &[Rule] = &[
    RENAME_RENAME,
    SPLIT_MERGE,
    MERGE_SPLIT,
    SLICE_SLICE,
    SLICE_RENAME,
    SLICE_SCALE,
    SLICE_CONCAT,
    CONCAT_SLICES,
];

/// What: two renames become one, or none where the first name comes back.
/// Why equal: only the last name is seen.
/// Why cheaper: less to follow; other rules see through one rename, not through two.
const RENAME_RENAME: Rule = Rule {
    name: "rename-join",
    holds_for: HoldsFor::Every,
    search: Search::Nodes(&[Kind::Rename], rename_rename),
};

fn rename_rename(egraph: &EGraph, node: &ENode) -> Vec<Term> {
    let Op::Rename { from, to } = *node.op else { return Vec::new() };
    let join = |inner: &ENode| match *inner.op {
        Op::Rename { from: first, to: middle } if middle == from => Some(rename(inner.args[0], first, to)),
        _ => None,
    };
    let mut found: Vec<Term> = egraph[node.args[0]].iter().filter_map(join).collect();
    if from == to {
        found.push(node.args[0].into());
    }
    found
}

/// What: merging axes and splitting them again is nothing, or a rename; splitting into one axis is a rename.
/// Why equal: both list positions in the same order, the last axis running fastest.
/// Why cheaper: two movements less.
const SPLIT_MERGE: Rule = Rule {
    name: "split-of-merge",
    holds_for: HoldsFor::Every,
    search: Search::Nodes(&[Kind::Split], split_merge),
};

fn split_merge(egraph: &EGraph, node: &ENode) -> Vec<Term> {
    let Op::Split { axis, into } = &*node.op else { return Vec::new() };
    let undo = |inner: &ENode| {
        let Op::Merge { axes, into: merged } = &*inner.op else { return None };
        let own = &facts(egraph, inner.args[0]).ty.shape;
        if merged == axis { renamed(inner.args[0], own, axes, into) } else { None }
    };
    let mut found: Vec<Term> = egraph[node.args[0]].iter().filter_map(undo).collect();
    if into.rank() == 1 {
        found.extend(into.axes().map(|to| rename(node.args[0], *axis, to)));
    }
    found
}

/// `x` with its `axes` called as those of `names`, where they have the same sizes and no name is in the way.
fn renamed(x: Id, own: &Shape, axes: &[Axis], names: &Shape) -> Option<Term> {
    let same_sizes = axes.len() == names.rank()
        && axes.iter().zip(names.iter()).all(|(axis, (_, size))| own.size(*axis) == Some(size));
    let in_place = axes.iter().copied().eq(names.axes());
    if !same_sizes || !in_place && names.axes().any(|name| own.has(name)) {
        return None;
    }
    Some(axes.iter().zip(names.axes()).fold(Term::from(x), |x, (axis, name)| rename(x, *axis, name)))
}

/// What: splitting an axis and merging the parts again is nothing, or a rename; merging one axis is a rename.
/// Why equal: as for `split-of-merge`.
/// Why cheaper: two movements less.
const MERGE_SPLIT: Rule = Rule {
    name: "merge-of-split",
    holds_for: HoldsFor::Every,
    search: Search::Nodes(&[Kind::Merge], merge_split),
};

fn merge_split(egraph: &EGraph, node: &ENode) -> Vec<Term> {
    let Op::Merge { axes, into } = &*node.op else { return Vec::new() };
    let undo = |inner: &ENode| match &*inner.op {
        Op::Split { axis, into: parts } if parts.axes().eq(axes.iter().copied()) => {
            Some(rename(inner.args[0], *axis, *into))
        }
        _ => None,
    };
    let mut found: Vec<Term> = egraph[node.args[0]].iter().filter_map(undo).collect();
    if let [from] = axes[..] {
        found.push(rename(node.args[0], from, *into));
    }
    found
}

/// What: a slice of a slice is one slice; a slice of everything is nothing.
/// Why equal: positions add up.
/// Why cheaper: one movement less; other rules see through one slice.
const SLICE_SLICE: Rule = Rule {
    name: "slice-join",
    holds_for: HoldsFor::Every,
    search: Search::Nodes(&[Kind::Slice], slice_slice),
};

fn slice_slice(egraph: &EGraph, node: &ENode) -> Vec<Term> {
    let Op::Slice { axis, start, len } = &*node.op else { return Vec::new() };
    let join = |inner: &ENode| match &*inner.op {
        Op::Slice { axis: other, start: first, .. } if other == axis => {
            Some(slice(inner.args[0], *axis, first.clone() + start, len.clone()))
        }
        _ => None,
    };
    let mut found: Vec<Term> = egraph[node.args[0]].iter().filter_map(join).collect();
    if facts(egraph, node.args[0]).ty.shape.size(*axis) == Some(len) {
        found.push(node.args[0].into());
    }
    found
}

/// What: a slice of a renamed tensor is the renamed slice.
/// Why equal: a name moves nothing.
/// Why cheaper: slices of one tensor are seen to be that, under whatever names.
const SLICE_RENAME: Rule = Rule {
    name: "slice-before-rename",
    holds_for: HoldsFor::Every,
    search: Search::Nodes(&[Kind::Slice], slice_rename),
};

fn slice_rename(egraph: &EGraph, node: &ENode) -> Vec<Term> {
    let Op::Slice { axis, start, len } = &*node.op else { return Vec::new() };
    let swap = |inner: &ENode| {
        let Op::Rename { from, to } = *inner.op else { return None };
        let axis = if to == *axis { from } else { *axis };
        Some(rename(slice(inner.args[0], axis, start.clone(), len.clone()), from, to))
    };
    egraph[node.args[0]].iter().filter_map(swap).collect()
}

/// What: a slice of a scaled tensor is the scaled slice.
/// Why equal: the scale does not have the axis.
/// Why cheaper: a slice of a contraction is seen to be that, and needs its own rows only.
const SLICE_SCALE: Rule = Rule {
    name: "slice-before-scale",
    holds_for: HoldsFor::Every,
    search: Search::Nodes(&[Kind::Slice], slice_scale),
};

fn slice_scale(egraph: &EGraph, node: &ENode) -> Vec<Term> {
    let Op::Slice { axis, .. } = *node.op else { return Vec::new() };
    let mut found = Vec::new();
    for product in egraph[node.args[0]].iter().filter(|inner| *inner.op == Op::Binary(Binary::Mul)) {
        for (x, scale) in [(product.args[0], product.args[1]), (product.args[1], product.args[0])] {
            if !facts(egraph, scale).has(axis) {
                found.push(mul(Term::like(node, vec![x.into()]), scale));
            }
        }
    }
    found
}

/// What: a slice of a concatenation that stays within one part is a slice of that part.
/// Why equal: the parts lie one after another, in full.
/// Why cheaper: the other parts are not needed.
const SLICE_CONCAT: Rule = Rule {
    name: "slice-of-concat",
    holds_for: HoldsFor::Every,
    search: Search::Nodes(&[Kind::Slice], slice_concat),
};

fn slice_concat(egraph: &EGraph, node: &ENode) -> Vec<Term> {
    let Op::Slice { axis, start, len } = &*node.op else { return Vec::new() };
    let end = start.clone() + len;
    let mut found = Vec::new();
    for inner in egraph[node.args[0]].iter().filter(|inner| *inner.op == Op::Concat { axis: *axis }) {
        let mut before = Sym::from(0i64);
        for part in &inner.args {
            let Some(size) = facts(egraph, *part).ty.shape.size(*axis) else { break };
            let after = before.clone() + size;
            let is_inside = (start.clone() - &before).least() >= 0 && (after.clone() - &end).least() >= 0;
            if is_inside && size == len {
                found.push((*part).into());
            } else if is_inside {
                found.push(slice(*part, *axis, start.clone() - &before, len.clone()));
            }
            before = after;
        }
    }
    found
}

/// What: a concatenation of neighbouring slices of one tensor is one slice; of a single part it is that part.
/// Why equal: the positions come out in the order they were in.
/// Why cheaper: movements less.
const CONCAT_SLICES: Rule = Rule {
    name: "concat-of-slices",
    holds_for: HoldsFor::Every,
    search: Search::Nodes(&[Kind::Concat], concat_slices),
};

fn concat_slices(egraph: &EGraph, node: &ENode) -> Vec<Term> {
    let Op::Concat { axis } = *node.op else { return Vec::new() };
    let [first, rest @ ..] = &node.args[..] else { return Vec::new() };
    if rest.is_empty() {
        return vec![(*first).into()];
    }
    let cuts = |part: Id| {
        egraph[part].iter().filter_map(move |node| match &*node.op {
            Op::Slice { axis: own, start, len } if *own == axis => Some((node.args[0], start, len)),
            _ => None,
        })
    };
    let whole = |(x, start, len): (Id, &Sym, &Sym)| {
        let mut end = start.clone() + len;
        for part in rest {
            let (_, _, len) = cuts(*part).find(|(other, next, _)| *other == x && **next == end)?;
            end = end + len;
        }
        Some(slice(x, axis, start.clone(), end - start))
    };
    cuts(*first).filter_map(whole).collect()
}

#[cfg(test)]
mod tests {
    use crate::rewrite::rules::tests::{fires, sizes};
    use crate::tensor::dtype::DType::F32;

    #[test]
    fn names_that_come_and_go_are_not_there() {
        let (g, [t, a, b]) = sizes([("t", 2), ("a", 3), ("b", 3)]);
        let x = g.input("x", F32, &[&t, &a]);
        fires("rename-join", &g, &x.rename(&a, &b).rename(&b, &a));
    }

    #[test]
    fn splits_undo_merges_and_merges_undo_splits() {
        let (g, [h, e, m, i, j]) = sizes([("h", 2), ("e", 3), ("m", 6), ("i", 2), ("j", 3)]);
        let x = g.input("x", F32, &[&h, &e]);
        fires("split-of-merge", &g, &x.merge(&[&h, &e], &m).split(&m, &[&i, &j]));
        let y = g.input("y", F32, &[&m]);
        fires("merge-of-split", &g, &y.split(&m, &[&h, &e]).merge(&[&h, &e], &i));
    }

    #[test]
    fn slices_add_up() {
        let (g, [t, a, b]) = sizes([("t", 2), ("a", 9), ("b", 9)]);
        let x = g.input("x", F32, &[&t, &a]);
        fires("slice-join", &g, &x.slice(&a, 2, 5).slice(&a, 1, 3));
        fires("slice-join", &g, &x.slice(&a, 0, 9));
        fires("slice-before-rename", &g, &x.rename(&a, &b).slice(&b, 1, 3));
        fires("slice-before-scale", &g, &(&x * g.input("s", F32, &[&t])).slice(&a, 1, 3));
        fires("concat-of-slices", &g, &g.concat(&a, &[&x.slice(&a, 1, 3), &x.slice(&a, 4, 2)]));
    }

    #[test]
    fn a_slice_needs_only_its_own_part() {
        let (g, [t, a]) = sizes([("t", 2), ("a", 4)]);
        let (x, y) = (g.input("x", F32, &[&t, &a]), g.input("y", F32, &[&t, &a]));
        fires("slice-of-concat", &g, &g.concat(&a, &[&x, &y]).slice(&a, 5, 2));
    }
}
