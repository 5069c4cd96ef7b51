//! Proves that no two tasks of a kernel store to the same element.
//!
//! In: a kernel whose accesses are all inside. Out: a complaint for each buffer that tasks may race for.
//! Suppose two tasks store to one element. Then the indices of both stores are equal, axis by axis, and each equation
//! is solved for what has the same value in both tasks. Once every variable of the grid has, the two are one task.
//! An equation yields a term `f·x` where all other terms together cannot make up for `f` times one step of `x`: of
//! `64·a + b` with `b < 64` it yields `a`, then `b`.
//! What is not proven is a complaint, even if it never happens at run time; everything that `lower/` makes is proven.

use std::collections::{BTreeMap, BTreeSet};

use crate::error::Complaint;
use crate::kernel::index::{Atom, Index, Vars, strides};
use crate::kernel::print::{access_text, var_text};
use crate::kernel::walk::nests;
use crate::kernel::{Blocks, Kernel, ParamId, Part, Place, Range, TileId, VarId};
use crate::tensor::sym::Sym;

/// The values between two numbers, both included.
type Interval = (i128, i128);

/// What a part stores to a buffer.
#[derive(Clone, Copy)]
struct Store<'a> {
    part: usize,
    at: &'a [Index],
}

/// Complains about every buffer of which two tasks may store the same element.
pub(super) fn verify_disjoint(kernel: &Kernel, complaints: &mut Vec<Complaint>) {
    for (param, stores) in stores(kernel) {
        let mut pairs =
            stores.iter().enumerate().flat_map(|(n, b)| stores[..=n].iter().map(move |a| (*a, *b)));
        complaints.extend(pairs.find_map(|(a, b)| collision(kernel, param, a, b)));
    }
}

/// The stores to each buffer; those of a part to equal indices count once.
fn stores(kernel: &Kernel) -> BTreeMap<ParamId, Vec<Store<'_>>> {
    let mut stores: BTreeMap<ParamId, Vec<Store<'_>>> = BTreeMap::new();
    for (part, own) in kernel.parts.iter().enumerate() {
        for nest in nests(&own.body) {
            let Place::Param(param) = nest.target else { continue };
            let of_param = stores.entry(param).or_default();
            if !of_param.iter().any(|store| store.part == part && store.at == nest.at) {
                of_param.push(Store { part, at: &nest.at });
            }
        }
    }
    stores
}

/// Numbers that the proof takes on trust: of any two elements of these buffers, which have one shape, at least one pair
/// of numbers differs, each brought into `0..below`. Elements are those of the shape as it is at run time, no others.
/// Who binds the buffers sees to it before every replay.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Promise {
    /// The buffers, and what their numbers are below.
    pub indices: Vec<(ParamId, i64)>,
}

/// What has to be promised of the buffers of a kernel that verifies, each once.
pub fn promises(kernel: &Kernel) -> Vec<Promise> {
    let mut found: Vec<Promise> = Vec::new();
    for (param, stores) in stores(kernel) {
        for (n, b) in stores.iter().enumerate() {
            for a in stores[..=n].iter().filter(|a| a.part == b.part) {
                let part = &kernel.parts[a.part];
                let dims = kernel.dims(part, Place::Param(param));
                if Pair::new(part, &dims, a.at, b.at).undecided().is_some() {
                    found.extend(Places::of(kernel, part, a.at).map(Places::promise));
                }
            }
        }
    }
    found.sort();
    found.dedup();
    found
}

/// What is wrong where two stores may meet in different tasks.
fn collision(kernel: &Kernel, param: ParamId, a: Store<'_>, b: Store<'_>) -> Option<Complaint> {
    let part = &kernel.parts[a.part];
    let dims = kernel.dims(part, Place::Param(param));
    let who = if a.part == b.part {
        let places = [a, b].map(|store| Places::of(kernel, part, store.at));
        let var = Pair::new(part, &dims, a.at, b.at).trusting(places).undecided()?;
        format!("tasks that differ in {}", var_text(&part.vars, var))
    } else {
        if are_apart(kernel, a, b) {
            return None;
        }
        format!("tasks of part {} and of part {}", a.part, b.part)
    };
    let text = |store: Store<'_>| access_text(Place::Param(param), store.at, &kernel.parts[store.part].vars);
    let other = if (a.part, a.at) == (b.part, b.at) { String::new() } else { format!(" as {}", text(b)) };
    let (name, buffer) = (&kernel.name, &kernel.params[param].name);
    Some(Complaint::new(
        format!("kernel {name:?}, part {}, {}", a.part, text(a)),
        format!("{who} may store to the same element of {buffer}{other}"),
    ))
}

/// Whether two parts store to different positions of some axis, whatever their variables are.
fn are_apart(kernel: &Kernel, a: Store<'_>, b: Store<'_>) -> bool {
    let [own, other] = [a, b].map(|store| &kernel.parts[store.part].vars);
    a.at.iter().zip(b.at).any(|(left, right)| {
        let sums = [(left, own), (right, other)].map(|(index, vars)| {
            let mut sum = Sum::default();
            sum.add(index, 1)?;
            sum.only_symbols(vars)
        });
        let [Some(left), Some(right)] = sums else { return false };
        // Symbols have one value in all parts, and of them alone the variables do not matter.
        Equation::new(left, right)
            .and_then(|equation| equation.range(|_| true, own))
            .is_some_and(excludes_zero)
    })
}

/// A sum of atoms with factors. `rest` is where all that has no atom lies.
#[derive(Clone, Default)]
struct Sum {
    terms: BTreeMap<Atom, i128>,
    rest: Interval,
}

// Numbers of a text may be of any size, so every operation that could overflow ends a proof with `None`.
impl Sum {
    fn add(&mut self, index: &Index, factor: i128) -> Option<()> {
        self.widen(scaled((index.offset().into(), index.offset().into()), factor)?)?;
        for (atom, own) in index.terms() {
            self.add_atom(atom.clone(), i128::from(*own).checked_mul(factor)?)?;
        }
        Some(())
    }

    fn add_atom(&mut self, atom: Atom, factor: i128) -> Option<()> {
        let sum = self.terms.entry(atom).or_default();
        *sum = sum.checked_add(factor)?;
        Some(())
    }

    fn widen(&mut self, by: Interval) -> Option<()> {
        self.rest = plus(self.rest, by)?;
        Some(())
    }

    /// `f·a·(x / a) + f·(x % a)` becomes `f·x`.
    fn rejoin(&mut self) -> Option<()> {
        let joined = |sum: &Self| {
            sum.terms.iter().find_map(|(atom, factor)| {
                let Atom::Rem(inner, by) = atom else { return None };
                let quotient = Atom::Div(inner.clone(), *by);
                let is_multiple = *sum.terms.get(&quotient)? == factor.checked_mul((*by).into())?;
                (is_multiple && *factor != 0).then(|| (atom.clone(), quotient, inner.clone(), *factor))
            })
        };
        while let Some((remainder, quotient, inner, factor)) = joined(self) {
            self.terms.remove(&remainder);
            self.terms.remove(&quotient);
            self.add(&inner, factor)?;
        }
        Some(())
    }

    /// The same with every position within a block as the start of the block plus an offset.
    fn relative_to_blocks(&self, vars: &Vars) -> Option<Self> {
        let mut sum = Self { terms: BTreeMap::new(), rest: self.rest };
        for (atom, factor) in &self.terms {
            let block = match atom {
                Atom::Var(var) => block_of(*var, vars),
                _ => None,
            };
            match block {
                Some((start, block)) => {
                    sum.add_atom(Atom::Var(start), *factor)?;
                    sum.widen(scaled((0, i128::from(block) - 1), *factor)?)?;
                }
                None => sum.add_atom(atom.clone(), *factor)?,
            }
        }
        Some(sum)
    }

    /// The same without atoms other than symbols.
    fn only_symbols(self, vars: &Vars) -> Option<Self> {
        let mut sum = Self { terms: BTreeMap::new(), rest: self.rest };
        for (atom, factor) in self.terms {
            match atom {
                Atom::Symbols(_) => sum.add_atom(atom, factor)?,
                _ => sum.widen(scaled(bounds(&atom, vars), factor)?)?,
            }
        }
        Some(sum)
    }
}

/// Two sums that are equal, the atoms of each with values of its own.
struct Equation {
    /// The factors on either side.
    terms: BTreeMap<Atom, (i128, i128)>,
    /// Where the difference of all else lies.
    rest: Interval,
}

impl Equation {
    fn new(left: Sum, right: Sum) -> Option<Self> {
        let mut terms: BTreeMap<Atom, (i128, i128)> = BTreeMap::new();
        for (atom, factor) in left.terms {
            terms.entry(atom).or_default().0 = factor;
        }
        for (atom, factor) in right.terms {
            terms.entry(atom).or_default().1 = factor;
        }
        Some(Self { terms, rest: plus(left.rest, scaled(right.rest, -1)?)? })
    }

    /// Where the difference of both sides lies.
    fn range(&self, is_equal: impl Fn(&Atom) -> bool, vars: &Vars) -> Option<Interval> {
        self.terms.iter().try_fold(self.rest, |range, (atom, factors)| {
            plus(range, difference(*factors, bounds(atom, vars), is_equal(atom))?)
        })
    }
}

/// Two iterations of tasks of one part that store to the same element, and what is known to be equal in them.
struct Pair<'a> {
    part: &'a Part,
    equations: Vec<Equation>,
    equal: BTreeSet<Atom>,
    /// Quotients and remainders from which an equation was made.
    opened: BTreeSet<Atom>,
}

impl<'a> Pair<'a> {
    fn new(part: &'a Part, dims: &[i64], left: &[Index], right: &[Index]) -> Self {
        let mut pair = Self { part, equations: Vec::new(), equal: BTreeSet::new(), opened: BTreeSet::new() };
        let divides = |index: &Index| index.any(&mut |atom| matches!(atom, Atom::Rem(..)));
        // Parts of one number on neighbouring axes are one again in the number of the element.
        let longest = if left.iter().any(divides) { dims.len() } else { 1 };
        for first in 0..dims.len() {
            for end in first + 1..=dims.len().min(first + longest) {
                let sides = [left, right].map(|at| element(&at[first..end], &dims[first..end]));
                pair.add(sides, 0);
            }
        }
        pair
    }

    /// Where elements go to places that are read from memory, no two go to one place: that is a [`Promise`]. So where
    /// the same axes have the same places, the elements are the same.
    fn trusting(mut self, sides: [Option<Places<'_>>; 2]) -> Self {
        let [Some(left), Some(right)] = sides else { return self };
        if left.axes == right.axes {
            for (left, right) in left.element.iter().zip(right.element) {
                self.add([whole(left), whole(right)], 0);
            }
        }
        self
    }

    /// Adds that two sums are equal, or so far apart at most.
    fn add(&mut self, sides: [Option<Sum>; 2], slack: i64) {
        let [Some(left), Some(right)] = sides else { return };
        let vars = &self.part.vars;
        let is_within = |sum: &Sum| {
            sum.terms.keys().any(|atom| matches!(atom, Atom::Var(var) if block_of(*var, vars).is_some()))
        };
        let mut equations = Vec::new();
        if is_within(&left) || is_within(&right) {
            equations.push([left.relative_to_blocks(vars), right.relative_to_blocks(vars)]);
        }
        equations.push([Some(left), Some(right)]);
        for [left, right] in equations {
            let (Some(left), Some(right)) = (left, right) else { continue };
            let Some(mut equation) = Equation::new(left, right) else { continue };
            let slack = (-i128::from(slack), i128::from(slack));
            let Some(rest) = plus(equation.rest, slack) else { continue };
            equation.rest = rest;
            self.equations.push(equation);
        }
    }

    /// A variable of the grid that may differ in the two; nothing where they are one task or never meet.
    fn undecided(mut self) -> Option<VarId> {
        loop {
            let open = self.part.grid.iter().find(|var| !self.is_decided(**var)).copied()?;
            let n_known = (self.equal.len(), self.equations.len());
            for number in 0..self.equations.len() {
                if self.solve(number) {
                    return None;
                }
            }
            self.open();
            if (self.equal.len(), self.equations.len()) == n_known {
                return Some(open);
            }
        }
    }

    fn is_decided(&self, var: VarId) -> bool {
        let (least, most) = bounds(&Atom::Var(var), &self.part.vars);
        least == most || self.equal.contains(&Atom::Var(var))
    }

    /// Learns what it can from an equation; says whether it is never true.
    fn solve(&mut self, number: usize) -> bool {
        let vars = &self.part.vars;
        loop {
            let equation = &self.equations[number];
            let Some(all) = equation.range(|atom| self.is_equal(atom), vars) else { return false };
            if excludes_zero(all) {
                return true;
            }
            let solved = equation.terms.iter().find(|(atom, factors)| {
                let (left, right) = **factors;
                left == right && left != 0 && !self.is_equal(atom) && {
                    let step = left.unsigned_abs().checked_mul(self.step(atom));
                    let others = difference((left, right), bounds(atom, vars), false)
                        .and_then(|own| Some((all.0.checked_sub(own.0)?, all.1.checked_sub(own.1)?)));
                    step.zip(others)
                        .is_some_and(|(step, (low, high))| low.unsigned_abs().max(high.unsigned_abs()) < step)
                }
            });
            let Some(atom) = solved.map(|(atom, _)| atom.clone()) else { return false };
            self.equal.insert(atom);
        }
    }

    /// Learns from quotients and remainders that are equal how far apart is what they were made of.
    fn open(&mut self) {
        let known: Vec<Atom> = self.equal.difference(&self.opened).cloned().collect();
        for atom in known {
            match &atom {
                Atom::Div(inner, by) => {
                    let is_exact = self.is_equal(&Atom::Rem(inner.clone(), *by));
                    let sides = [whole(inner), whole(inner)];
                    self.add(sides, if is_exact { 0 } else { by - 1 });
                }
                Atom::Rem(inner, by) if self.is_equal(&Atom::Div(inner.clone(), *by)) => {
                    self.add([whole(inner), whole(inner)], 0);
                }
                // Of numbers less than that apart no two have one remainder.
                Atom::Rem(inner, by) if self.span(inner).is_some_and(|span| span < i128::from(*by)) => {
                    self.add([whole(inner), whole(inner)], 0);
                }
                Atom::Rem(..) => continue,
                Atom::Lookup { from: Place::Tile(tile), at, below } => self.open_list(*tile, at, *below),
                Atom::Var(_) | Atom::Symbols(_) | Atom::Lookup { .. } | Atom::Min(..) | Atom::Max(..) => {}
            }
            self.opened.insert(atom);
        }
    }

    /// A row has one expert and stands once in that one's list, so equal rows have equal experts and positions.
    fn open_list(&mut self, tile: TileId, at: &[Index], below: i64) {
        let Some(routed) = self.part.routed.as_ref().filter(|routed| routed.list == tile) else { return };
        // Rows that are clamped to one number may differ.
        if self.part.tiles[tile].dims.iter().product::<usize>() as i64 > below {
            return;
        }
        self.equal.insert(Atom::Var(routed.expert));
        for index in at {
            self.add([whole(index), whole(index)], 0);
        }
    }

    /// How far apart a sum may be in the two.
    fn span(&self, index: &Index) -> Option<i128> {
        let equation = Equation::new(whole(index)?, whole(index)?)?;
        let (low, high) = equation.range(|atom| self.is_equal(atom), &self.part.vars)?;
        Some(high.max(low.checked_neg()?))
    }

    /// Whether an atom surely has one value in both.
    fn is_equal(&self, atom: &Atom) -> bool {
        let is_equal = |index: &Index| index.terms().iter().all(|(atom, _)| self.is_equal(atom));
        self.equal.contains(atom)
            || match atom {
                Atom::Symbols(_) => true,
                Atom::Div(inner, _) | Atom::Rem(inner, _) | Atom::Min(inner, _) | Atom::Max(inner, _) => {
                    is_equal(inner)
                }
                // Buffers that are read do not change; tiles are each task's own.
                Atom::Lookup { from: Place::Param(_), at, .. } => at.iter().all(is_equal),
                Atom::Var(_) | Atom::Lookup { from: Place::Tile(_), .. } => false,
            }
    }

    /// What divides every difference of two values of an atom.
    fn step(&self, atom: &Atom) -> u128 {
        let Atom::Var(var) = atom else { return 1 };
        match self.part.vars[*var].range.blocks() {
            Some(Blocks { start, step, .. }) if start.terms().iter().all(|(atom, _)| self.is_equal(atom)) => {
                step.unsigned_abs().into()
            }
            _ => 1,
        }
    }
}

/// The places of a store that are looked up, all of them for one element.
struct Places<'a> {
    /// The axes of the store with places, the buffer that has them, and what they are below.
    axes: Vec<(usize, ParamId, i64)>,
    /// The element that is looked up in all buffers.
    element: &'a [Index],
}

impl<'a> Places<'a> {
    /// Nothing where places come from several elements, from buffers of several shapes, or from none; nor where the
    /// element may lie outside of the shape as it is at run time: nobody looks at numbers there.
    fn of(kernel: &Kernel, part: &Part, at: &'a [Index]) -> Option<Self> {
        let mut axes = Vec::new();
        let mut found: Option<&[Index]> = None;
        for (axis, index) in at.iter().enumerate() {
            let ([(Atom::Lookup { from: Place::Param(from), at, below }, 1)], 0) =
                (index.terms(), index.offset())
            else {
                continue;
            };
            if found.is_some_and(|element| element != at) {
                return None;
            }
            found = Some(at);
            axes.push((axis, *from, *below));
        }
        let element = found?;
        let mut shapes = axes.iter().map(|(_, buffer, _)| &kernel.params[*buffer].shape);
        let shape = shapes.next()?;
        let is_inside = |(index, (_, size)): (&Index, &(_, Sym))| {
            Index::sym(size).checked_minus(index).is_some_and(|rest| rest.bounds(&part.vars).0 >= 1)
        };
        let is_proven = shapes.all(|other| other == shape) && element.iter().zip(shape.iter()).all(is_inside);
        is_proven.then_some(Self { axes, element })
    }

    fn promise(self) -> Promise {
        Promise { indices: self.axes.into_iter().map(|(_, buffer, below)| (buffer, below)).collect() }
    }
}

/// The number of an element among some axes.
fn element(at: &[Index], dims: &[i64]) -> Option<Sum> {
    let mut sum = Sum::default();
    for (index, stride) in at.iter().zip(strides(dims)) {
        sum.add(index, stride.into())?;
    }
    sum.rejoin()?;
    Some(sum)
}

fn whole(index: &Index) -> Option<Sum> {
    element(std::slice::from_ref(index), &[1])
}

/// The variable that a block starts at and how long it is, for a position within one.
fn block_of(var: VarId, vars: &Vars) -> Option<(VarId, i64)> {
    let Range::Within { of } = vars[var].range else { return None };
    vars[of].range.blocks().map(|blocks| (of, blocks.block))
}

fn bounds(atom: &Atom, vars: &Vars) -> Interval {
    let (least, most) = Index::atom(atom.clone()).bounds(vars);
    (least.into(), most.into())
}

/// Where `left·x - right·y` lies, for `x` and `y` in an interval that may be one number.
fn difference((left, right): (i128, i128), values: Interval, are_equal: bool) -> Option<Interval> {
    if are_equal {
        return scaled(values, left.checked_sub(right)?);
    }
    plus(scaled(values, left)?, scaled(values, right.checked_neg()?)?)
}

fn scaled((low, high): Interval, by: i128) -> Option<Interval> {
    let (a, b) = (low.checked_mul(by)?, high.checked_mul(by)?);
    Some((a.min(b), a.max(b)))
}

fn plus(a: Interval, b: Interval) -> Option<Interval> {
    Some((a.0.checked_add(b.0)?, a.1.checked_add(b.1)?))
}

fn excludes_zero((low, high): Interval) -> bool {
    low > 0 || high < 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::foundation::entity::Id;
    use crate::kernel::parse::parse;
    use crate::kernel::verify::verify;

    /// A kernel that stores to `y`, of 8 rows of 16 elements, and to `z`, of 128.
    fn kernel(parts: &[&str]) -> Kernel {
        let parts = parts.iter().map(|part| format!("part\n{part}")).collect::<Vec<_>>().concat();
        let text = format!(
            "symbol P in 0..4 near 2\nkernel \"k\" map\n  read @0 i : i32[a:8]\n  write @1 y : f32[a:8, b:16]\n  \
             write @2 z : f32[c:128]\n  read @3 j : i32[a:8]\n  read @4 p : i32[p:P]\n  \
             read @5 k : i32[a:4, b:2]\n  read @6 l : i32[a:4, b:3]\n{parts}"
        );
        parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
    }

    fn complaints(parts: &[&str]) -> Vec<String> {
        verify(&kernel(parts)).iter().map(ToString::to_string).collect()
    }

    fn are_disjoint(parts: &[&str]) {
        assert_eq!(complaints(parts), [""; 0], "{parts:?}");
    }

    fn race(part: &str, store: &str, who: &str, buffer: &str) {
        let expected = format!(
            "kernel \"k\", part 0, {store}: tasks that differ in {who} may store to the same element of {buffer}"
        );
        assert_eq!(complaints(&[part]), [expected], "{part}");
    }

    const ROWS: &str = "  var a0 in 0..8\n  var b1 in 0..16\n";
    const BLOCKS: &str =
        "  var c0 in blocks of 8 step 8 from 0 to 128\n  var c1 within c0\n  var a2 in 0..4\n";

    #[test]
    fn each_variable_of_the_grid_decides_where_is_stored() {
        for store in ["@1[a0, b1]", "@1[-a0+7, b1]", "@2[16*a0+b1]", "@2[a0+8*b1]", "@2[-a0-8*b1+127]"] {
            are_disjoint(&[&format!("{ROWS}  grid a0, b1\n  {store} = 1.0\n")]);
        }
        let rows = |store: &str| format!("{ROWS}  grid a0\n  for b1\n    {store} = 1.0\n");
        are_disjoint(&[&rows("@1[a0, b1]"), "  grid\n  @2[0] = 1.0\n"]);
        race(&rows("@1[0, b1]"), "@1[0, b1]", "a0", "y");
        race(&rows("@1[(a0/2), b1]"), "@1[(a0/2), b1]", "a0", "y");
        race(&rows("@1[min(a0, 6), b1]"), "@1[min(a0, 6), b1]", "a0", "y");
        // No two indices of a write are equal, so their places are not.
        are_disjoint(&[&rows("@1[lookup(@0[a0], 8), b1]"), "  grid\n  @2[0] = 1.0\n"]);
        are_disjoint(&[&rows("@1[lookup(@0[a0], 8), lookup(@0[a0], 16)]"), "  grid\n  @2[0] = 1.0\n"]);
        race(&rows("@1[lookup(@0[(b1/2)], 8), b1]"), "@1[lookup(@0[(b1/2)], 8), b1]", "a0", "y");
        // Of two lists of places each has its own promise, and both may have the same place.
        let lists = rows("@1[lookup(@0[a0], 8), 0]")
            .replace("  for b1", "  @1[lookup(@3[a0], 8), 0] = 1.0\n  for b1");
        let expected = "kernel \"k\", part 0, @1[lookup(@3[a0], 8), 0]: tasks that differ in a0 may store to the same \
                        element of y as @1[lookup(@0[a0], 8), 0]";
        assert_eq!(complaints(&[&lists]), [expected]);
        race(&rows("@2[a0+b1]"), "@2[a0+b1]", "a0", "z");
        race(&rows("@2[8*a0+b1]"), "@2[8*a0+b1]", "a0", "z");
        are_disjoint(&[&format!("{ROWS}  grid\n  for a0\n    @1[0, 0] = 1.0\n")]);
    }

    #[test]
    fn places_are_trusted_only_where_they_can_be_looked_at() {
        let rest = "  grid\n  @2[0] = 1.0\n";
        let part = |vars: &str, grid: &str, body: &str| format!("{vars}  grid {grid}\n{body}");
        // Nothing reads elements beyond `P`.
        let places =
            |end: &str| part(&format!("  var p0 in 0..{end}\n"), "p0", "  @1[lookup(@4[p0], 8), 0] = 1.0\n");
        are_disjoint(&[&places("P"), rest]);
        race(&places("4"), "@1[lookup(@4[p0], 8), 0]", "p0", "y");
        // An element of one shape lies elsewhere in a buffer of another.
        let pages = |other: u32| {
            let store = format!("  @1[lookup(@5[a0, b1], 8), lookup(@{other}[a0, b1], 16)] = 1.0\n");
            part("  var a0 in 0..4\n  var b1 in 0..2\n", "a0, b1", &store)
        };
        are_disjoint(&[&pages(5), rest]);
        race(&pages(6), "@1[lookup(@5[a0, b1], 8), lookup(@6[a0, b1], 16)]", "a0", "y");
        // Places of one list meet where one is moved, or is of another axis.
        let rows = |first: &str, second: &str| {
            let stores = format!("  @1[{first}] = 1.0\n  @1[{second}] = 2.0\n");
            part("  var a0 in 0..7\n", "a0", &stores)
        };
        are_disjoint(&[&rows("lookup(@0[a0], 7), 1", "lookup(@0[a0], 7), 2"), rest]);
        for (first, second) in [
            ("lookup(@0[a0], 7), 0", "lookup(@0[a0], 7)+1, 0"),
            ("lookup(@0[a0], 7), a0", "a0, lookup(@0[a0], 7)"),
        ] {
            let found = complaints(&[&rows(first, second), rest]);
            let meets = format!("tasks that differ in a0 may store to the same element of y as @1[{second}]");
            assert!(matches!(&found[..], [only] if only.ends_with(&meets)), "{found:?}");
        }
    }

    #[test]
    fn only_what_indices_alone_do_not_prove_is_a_promise() {
        let promised = |store: &str| {
            let part = format!("{ROWS}  grid a0\n  for b1\n    {store} = 1.0\n");
            promises(&kernel(&[&part, "  grid\n  @2[0] = 1.0\n"]))
        };
        let of = |indices: &[(usize, i64)]| {
            let indices =
                indices.iter().map(|(param, below)| (ParamId::from_index(*param), *below)).collect();
            vec![Promise { indices }]
        };
        assert_eq!(promised("@1[a0, b1]"), []);
        assert_eq!(promised("@1[lookup(@0[a0], 8), b1]"), of(&[(0, 8)]));
        assert_eq!(promised("@1[lookup(@0[a0], 8), lookup(@3[a0], 16)]"), of(&[(0, 8), (3, 16)]));
        assert_eq!(promised("@1[a0, lookup(@0[a0], 16)]"), []);
    }

    #[test]
    fn blocks_are_apart_where_none_is_longer_than_a_step() {
        let part = |blocks: &str, store: &str| {
            let vars = BLOCKS.replacen("blocks of 8", blocks, 1);
            format!("{vars}  grid c0\n  for c1\n    {store} = 1.0\n")
        };
        are_disjoint(&[&part("blocks of 8", "@2[c1]"), "  grid\n  @1[0, 0] = 1.0\n"]);
        are_disjoint(&[&part("blocks of 5", "@2[c1]")]);
        race(&part("blocks of 9", "@2[c1]"), "@2[c1]", "c0", "z");
        race(&part("blocks of 8", "@2[-c0+c1]"), "@2[-c0+c1]", "c0", "z");
        // The parts of a number tell as much as the number, and one of them alone does not.
        are_disjoint(&[&part("blocks of 8", "@1[(c1/16), (c1%16)]")]);
        are_disjoint(&[&part("blocks of 8", "@1[(c1%8), (c1/8)]")]);
        are_disjoint(&[&part("blocks of 8", "@1[0, (c0/8)]")]);
        race(&part("blocks of 8", "@1[(c1/16), 0]"), "@1[(c1/16), 0]", "c0", "y");
        race(&part("blocks of 8", "@1[0, (c1%16)]"), "@1[0, (c1%16)]", "c0", "y");
    }

    #[test]
    fn starts_that_depend_on_the_grid_are_apart_where_that_is_decided() {
        let vars = "  var a0 in 0..8\n  var c1 in blocks of 4 step 4 from 16*a0 to 128\n  var c2 within c1\n";
        race(&format!("{vars}  grid a0, c1\n  for c2\n    @2[c2] = 1.0\n"), "@2[c2]", "a0", "z");
        let vars = "  var a0 in 0..8\n  var b1 in blocks of 4 step 4 from a0 to 16\n  var b2 within b1\n";
        are_disjoint(&[&format!("{vars}  grid a0, b1\n  for b2\n    @1[a0, b2] = 1.0\n")]);
    }

    #[test]
    fn positions_that_go_around_are_apart_up_to_one_round() {
        let ring = |n: i64, by: i64| format!("  var a0 in 0..{n}\n  grid a0\n  @1[((a0+P)%{by}), 0] = 1.0\n");
        are_disjoint(&[&ring(4, 8)]);
        are_disjoint(&[&ring(4, 4)]);
        race(&ring(4, 3), "@1[((a0+P)%3), 0]", "a0", "y");
    }

    #[test]
    fn every_two_stores_of_a_part_are_compared() {
        let both = |other: &str| format!("{ROWS}  grid a0\n  @1[a0, 0] = 1.0\n  for b1\n    {other} = 1.0\n");
        are_disjoint(&[&both("@1[a0, b1]")]);
        let found = complaints(&[&both("@1[-a0+7, b1]")]);
        let expected = "kernel \"k\", part 0, @1[a0, 0]: tasks that differ in a0 may store to the same element \
                        of y as @1[-a0+7, b1]";
        assert_eq!(found, [expected]);
        // One of the two never reaches what the other stores.
        are_disjoint(&[&format!("{ROWS}  grid a0\n  @1[a0, 0] = 1.0\n  @1[-a0+7, 1] = 1.0\n")]);
    }

    #[test]
    fn parts_store_apart_from_each_other() {
        let rows = |first: i64, n: i64| {
            let blocks = format!("  var a0 in blocks of 2 step 2 from 0 to {n}\n  var a1 within a0\n");
            format!("{blocks}  grid a0\n  for a1\n    @1[a1+{first}, 0] = 1.0\n")
        };
        are_disjoint(&[&rows(0, 5), &rows(5, 3)]);
        let found = complaints(&[&rows(0, 5), &rows(4, 3)]);
        let expected = "kernel \"k\", part 0, @1[a1, 0]: tasks of part 0 and of part 1 may store to the same element \
                        of y as @1[a1+4, 0]";
        assert_eq!(found, [expected]);
        let at = |place: &str| format!("  grid\n  @1[{place}, 0] = 1.0\n");
        are_disjoint(&[&at("P"), &at("P+1")]);
        assert_eq!(complaints(&[&at("P"), &at("3")]).len(), 1);
    }

    #[test]
    fn factors_of_any_size_are_no_proof_and_no_fault() {
        let huge = (1i64 << 40) - 1;
        let store = format!("@1[(({huge}*a0+b1)%8), 0]");
        race(&format!("{ROWS}  grid a0, b1\n  {store} = 1.0\n"), &store, "a0", "y");
    }
}
