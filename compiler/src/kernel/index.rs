//! Where an element lies: whole-number expressions over loop variables and symbols.
//!
//! An [`Index`] is a sum of atoms with factors; quotients, remainders and numbers read from memory are atoms. The
//! form is canonical, so equal sums are equal values, and `a·(x / a) + x % a` is `x`.
//! [`Index::bounds`] is the proof that an access stays inside; it may be wider than the truth, never narrower.

use crate::foundation::entity::List;
use crate::kernel::{Blocks, Place, Range, Var, VarId};
use crate::tensor::sym::{Sym, Symbol, merged};

/// A sum of atoms with whole factors.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Index {
    /// Sorted by atom, no zero factor.
    terms: Vec<(Atom, i64)>,
    constant: i64,
}

/// What a sum is made of.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Atom {
    /// A loop variable.
    Var(VarId),
    /// A product of run-time integers.
    Symbols(Vec<Symbol>),
    /// A quotient, rounded down.
    Div(Box<Index>, i64),
    /// The remainder of that.
    Rem(Box<Index>, i64),
    /// A whole number read from memory (an expert, a token, a page), clamped to `0..below`.
    Lookup {
        /// Where from.
        from: Place,
        /// Which element.
        at: Vec<Index>,
        /// One past the largest.
        below: i64,
    },
    /// The smaller of a sum and a number.
    Min(Box<Index>, i64),
    /// The larger of a sum and a number.
    Max(Box<Index>, i64),
}

/// The loop variables an index is judged by.
pub type Vars = List<VarId, Var>;

impl Index {
    /// A number.
    pub fn constant(value: i64) -> Self {
        Self { terms: Vec::new(), constant: value }
    }

    /// A loop variable.
    pub fn var(var: VarId) -> Self {
        Self::atom(Atom::Var(var))
    }

    /// One atom.
    pub fn atom(atom: Atom) -> Self {
        Self { terms: vec![(atom, 1)], constant: 0 }
    }

    /// A symbolic integer.
    pub fn sym(value: &Sym) -> Self {
        let terms = value.terms().map(|(symbols, factor)| (Atom::Symbols(symbols.to_vec()), factor));
        Self::collect(terms.collect(), value.constant())
    }

    /// The number, where it is one.
    pub fn as_const(&self) -> Option<i64> {
        self.terms.is_empty().then_some(self.constant)
    }

    /// The atoms with their factors, in canonical order.
    pub fn terms(&self) -> &[(Atom, i64)] {
        &self.terms
    }

    /// What is added to the terms.
    pub fn offset(&self) -> i64 {
        self.constant
    }

    /// The sum of two.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        let terms = self.terms.iter().chain(&other.terms).cloned().collect();
        Self::collect(terms, self.constant + other.constant)
    }

    /// The difference of two.
    #[must_use]
    pub fn minus(&self, other: &Self) -> Self {
        self.plus(&other.times(-1))
    }

    /// A multiple.
    #[must_use]
    pub fn times(&self, factor: i64) -> Self {
        if factor == 0 {
            return Self::default();
        }
        let terms = self.terms.iter().map(|(atom, f)| (atom.clone(), f * factor)).collect();
        Self { terms, constant: self.constant * factor }
    }

    /// The quotient by a positive number, rounded down.
    #[must_use]
    pub fn div(&self, by: i64, vars: &Vars) -> Self {
        let (whole, rest) = self.divide(by);
        match rest.bounds(vars) {
            (low, high) if low >= 0 && high < by => whole,
            _ => whole.plus(&Self::atom(Atom::Div(Box::new(rest), by))),
        }
    }

    /// The remainder of that.
    #[must_use]
    pub fn rem(&self, by: i64, vars: &Vars) -> Self {
        let (_, rest) = self.divide(by);
        match rest.bounds(vars) {
            (low, high) if low >= 0 && high < by => rest,
            _ => Self::atom(Atom::Rem(Box::new(rest), by)),
        }
    }

    /// This, brought into `0..=most`.
    #[must_use]
    pub fn clamped(&self, most: i64, vars: &Vars) -> Self {
        let (low, high) = self.bounds(vars);
        let above = if low < 0 { Self::atom(Atom::Max(Box::new(self.clone()), 0)) } else { self.clone() };
        if high > most { Self::atom(Atom::Min(Box::new(above), most)) } else { above }
    }

    /// Splits into the quotient of what `by` divides and the rest.
    fn divide(&self, by: i64) -> (Self, Self) {
        let (whole, rest): (Vec<_>, Vec<_>) =
            self.terms.iter().cloned().partition(|(_, factor)| factor % by == 0);
        let whole = whole.into_iter().map(|(atom, factor)| (atom, factor / by)).collect();
        let whole = Self { terms: whole, constant: self.constant.div_euclid(by) };
        (whole, Self { terms: rest, constant: self.constant.rem_euclid(by) })
    }

    /// The variable that it is, if it is one.
    pub fn single_var(&self) -> Option<VarId> {
        match self.terms() {
            [(Atom::Var(var), 1)] if self.offset() == 0 => Some(*var),
            _ => None,
        }
    }

    /// The smallest and largest value, for any values of variables and symbols in their ranges.
    ///
    /// They are bounds of whole numbers of any size: where a sum could leave 64 bits, they are the ends of those.
    pub fn bounds(&self, vars: &Vars) -> (i64, i64) {
        let direct = self.bounds_of_terms(vars);
        let relative = self.relative_to_blocks(vars).map(|index| index.0.bounds_with(index.1, vars));
        let (low, high) = relative.map_or(direct, |(low, high)| (low.max(direct.0), high.min(direct.1)));
        if self.symbols().is_none() {
            return (low, high);
        }
        let end = |highest| self.at_ends(highest, vars).map(|index| index.bounds_of_terms(vars));
        let low = end(false).map_or(low, |own| low.max(own.0));
        (low, end(true).map_or(high, |own| high.min(own.1)).max(low))
    }

    /// The first product of symbols, if there is one.
    fn symbols(&self) -> Option<&Atom> {
        self.terms.iter().map(|(atom, _)| atom).find(|atom| matches!(atom, Atom::Symbols(_)))
    }

    /// The index with every loop at the end of its range that makes it highest, or lowest: `t - T` is `-1` at most.
    ///
    /// Nothing where a factor could leave 64 bits.
    fn at_ends(&self, highest: bool, vars: &Vars) -> Option<Self> {
        let at_end = |(atom, factor): &(Atom, i64)| {
            let Atom::Var(var) = atom else { return Self::atom(atom.clone()).checked_times(*factor) };
            if (*factor > 0) != highest {
                return Some(Self::default());
            }
            let end = vars[*var].range.end(vars);
            let last =
                end.map_or(Some(Self::var(*var)), |end| Self::sym(end).checked_plus(&Self::constant(-1)));
            last?.checked_times(*factor)
        };
        let mut terms = self.terms.iter().map(at_end);
        terms.try_fold(Self::constant(self.constant), |sum, term| sum.checked_plus(&term?))
    }

    /// [`Index::plus`], where every number of the sum fits.
    fn checked_plus(&self, other: &Self) -> Option<Self> {
        let constant = self.constant.checked_add(other.constant)?;
        let mut factors = self.terms.iter().chain(&other.terms).map(|(_, factor)| factor.checked_abs());
        factors.try_fold(0i64, |sum, factor| sum.checked_add(factor?))?;
        Some(Self::collect(self.terms.iter().chain(&other.terms).cloned().collect(), constant))
    }

    /// [`Index::minus`], where every number of the difference fits.
    pub(crate) fn checked_minus(&self, other: &Self) -> Option<Self> {
        self.checked_plus(&other.checked_times(-1)?)
    }

    /// [`Index::times`], where every number of the product fits.
    fn checked_times(&self, factor: i64) -> Option<Self> {
        let mut numbers = self.terms.iter().map(|(_, own)| *own).chain([self.constant]);
        numbers.all(|own| own.checked_mul(factor).is_some()).then(|| self.times(factor))
    }

    /// Whether it is always a multiple of a number.
    pub fn is_multiple(&self, of: i64, vars: &Vars) -> bool {
        let step = |atom: &Atom| match atom {
            Atom::Var(var) => match &vars[*var].range {
                Range::Blocks(Blocks { start, step, .. }) => {
                    start.as_const().map_or(1, |start| gcd(start.abs(), *step))
                }
                Range::Whole { .. } | Range::Within { .. } => 1,
            },
            _ => 1,
        };
        self.constant % of == 0 && self.terms.iter().all(|(atom, factor)| step(atom) * factor % of == 0)
    }

    /// What it grows by with each value of a variable; nothing where it does not grow evenly.
    pub fn step_of(&self, var: VarId) -> Option<i64> {
        let own =
            self.terms.iter().find(|(atom, _)| *atom == Atom::Var(var)).map_or(0, |(_, factor)| *factor);
        let is_other = |atom: &Atom| *atom != Atom::Var(var) && atom.uses_var(&|other| other == var);
        (!self.terms.iter().any(|(atom, _)| is_other(atom))).then_some(own)
    }

    /// Whether any atom, at any depth, satisfies `test`.
    pub fn any(&self, test: &mut impl FnMut(&Atom) -> bool) -> bool {
        self.terms.iter().any(|(atom, _)| atom.any(test))
    }

    /// Whether a variable that satisfies `test` occurs.
    pub fn uses_var(&self, test: impl Fn(VarId) -> bool) -> bool {
        self.terms.iter().any(|(atom, _)| atom.uses_var(&test))
    }

    /// Whether it reads a number from memory.
    pub fn has_lookup(&self) -> bool {
        self.any(&mut |atom| matches!(atom, Atom::Lookup { .. }))
    }

    /// The same index with every variable replaced.
    #[must_use]
    pub fn replaced(&self, with: &impl Fn(VarId) -> Self, vars: &Vars) -> Self {
        let mut sum = Self::constant(self.constant);
        for (atom, factor) in &self.terms {
            let term = match atom {
                Atom::Var(var) => with(*var),
                Atom::Symbols(_) => Self::atom(atom.clone()),
                Atom::Div(inner, by) => inner.replaced(with, vars).div(*by, vars),
                Atom::Rem(inner, by) => inner.replaced(with, vars).rem(*by, vars),
                Atom::Min(inner, most) => Self::atom(Atom::Min(Box::new(inner.replaced(with, vars)), *most)),
                Atom::Max(inner, least) => {
                    Self::atom(Atom::Max(Box::new(inner.replaced(with, vars)), *least))
                }
                Atom::Lookup { from, at, below } => {
                    let at = at.iter().map(|index| index.replaced(with, vars)).collect();
                    Self::atom(Atom::Lookup { from: *from, at, below: *below })
                }
            };
            sum = sum.plus(&term.times(*factor));
        }
        sum
    }

    fn bounds_of_terms(&self, vars: &Vars) -> (i64, i64) {
        self.bounds_with((0, 0), vars)
    }

    fn bounds_with(&self, start: (i64, i64), vars: &Vars) -> (i64, i64) {
        let wide = i128::from;
        let (start_low, start_high, constant) = (wide(start.0), wide(start.1), wide(self.constant));
        let sum = self.terms.iter().try_fold((start_low + constant, start_high + constant), |sum, term| {
            let ((least, most), factor) = (term.0.bounds(vars), wide(term.1));
            // The product of two numbers of 64 bits fits; a sum of many may not.
            let (a, b) = (factor * wide(least), factor * wide(most));
            Some((sum.0.checked_add(a.min(b))?, sum.1.checked_add(a.max(b))?))
        });
        let narrow = |end: i128| end.clamp(i64::MIN.into(), i64::MAX.into()) as i64;
        sum.map_or((i64::MIN, i64::MAX), |(low, high)| (narrow(low), narrow(high)))
    }

    /// Every position within a block written as the block's start plus `0..block`; the bounds of those summed. Nothing
    /// without such a position, or where a factor could leave 64 bits.
    fn relative_to_blocks(&self, vars: &Vars) -> Option<(Self, (i64, i64))> {
        let mut rest = self.clone();
        let mut span = (0i64, 0i64);
        let mut found = false;
        for (atom, factor) in &self.terms {
            let Atom::Var(var) = atom else { continue };
            let Range::Within { of } = &vars[*var].range else { continue };
            let Some(Blocks { block, .. }) = vars[*of].range.blocks() else { continue };
            found = true;
            rest = rest.checked_plus(&Self::var(*of).minus(&Self::var(*var)).checked_times(*factor)?)?;
            let reach = factor.saturating_mul(block - 1);
            span = (span.0.saturating_add(reach.min(0)), span.1.saturating_add(reach.max(0)));
        }
        found.then_some((rest, span))
    }

    fn collect(terms: Vec<(Atom, i64)>, constant: i64) -> Self {
        Self { terms: merged(terms), constant }.rejoined()
    }

    /// `a·f·(x / a) + f·(x % a)` becomes `f·x`.
    fn rejoined(self) -> Self {
        for (atom, factor) in &self.terms {
            let Atom::Rem(inner, by) = atom else { continue };
            let quotient = Atom::Div(inner.clone(), *by);
            let is_multiple = |(other, f): &(Atom, i64)| {
                *other == quotient && factor.checked_mul(*by).is_some_and(|product| product == *f)
            };
            if !self.terms.iter().any(is_multiple) {
                continue;
            }
            let pair = [atom.clone(), quotient];
            let terms: Vec<_> = self.terms.iter().filter(|(a, _)| !pair.contains(a)).cloned().collect();
            let rest = Self { terms, constant: self.constant };
            let joined = inner.checked_times(*factor).and_then(|inner| rest.checked_plus(&inner));
            if let Some(joined) = joined {
                return joined;
            }
        }
        self
    }
}

impl Atom {
    fn any(&self, test: &mut impl FnMut(&Self) -> bool) -> bool {
        test(self)
            || match self {
                Self::Var(_) | Self::Symbols(_) => false,
                Self::Div(inner, _) | Self::Rem(inner, _) | Self::Min(inner, _) | Self::Max(inner, _) => {
                    inner.any(test)
                }
                Self::Lookup { at, .. } => at.iter().any(|index| index.any(test)),
            }
    }

    pub(crate) fn uses_var(&self, test: &impl Fn(VarId) -> bool) -> bool {
        self.any(&mut |atom| matches!(atom, Self::Var(var) if test(*var)))
    }

    fn bounds(&self, vars: &Vars) -> (i64, i64) {
        match self {
            Self::Var(var) => match &vars[*var].range {
                Range::Blocks(Blocks { start, step, end, .. }) => {
                    let last = (end.most() - 1).max(0);
                    let first = start.as_const().filter(|first| (0..=last).contains(first));
                    (0, first.map_or(last, |first| first + (last - first) / step.max(&1) * step))
                }
                range @ (Range::Whole { .. } | Range::Within { .. }) => {
                    (0, range.end(vars).map_or(0, |end| (end.most() - 1).max(0)))
                }
            },
            Self::Symbols(symbols) => {
                let product = symbols.iter().fold(Sym::from(1i64), |product, symbol| product * *symbol);
                (product.least(), product.most())
            }
            Self::Div(inner, by) => {
                let (low, high) = inner.bounds(vars);
                (low.div_euclid(*by), high.div_euclid(*by))
            }
            Self::Rem(inner, by) => {
                let (low, high) = inner.bounds(vars);
                if low >= 0 && high < *by { (low, high) } else { (0, by - 1) }
            }
            Self::Lookup { below, .. } => (0, (below - 1).max(0)),
            Self::Min(inner, most) => {
                let (low, high) = inner.bounds(vars);
                (low.min(*most), high.min(*most))
            }
            Self::Max(inner, least) => {
                let (low, high) = inner.bounds(vars);
                (low.max(*least), high.max(*least))
            }
        }
    }
}

/// How many elements apart neighbours along each axis lie in storage, where the last axis runs fastest.
pub fn strides(dims: &[i64]) -> impl Iterator<Item = i64> {
    (1..=dims.len()).map(|inner| dims[inner..].iter().product())
}

/// The number of an element in storage order.
pub fn element_of(dims: &[i64], at: &[Index]) -> Index {
    let terms = at.iter().zip(strides(dims)).map(|(index, stride)| index.times(stride));
    terms.fold(Index::default(), |element, term| element.plus(&term))
}

/// The largest number that divides both.
pub(crate) fn gcd(a: i64, b: i64) -> i64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::label::Label;

    fn vars() -> (Vars, [VarId; 3]) {
        let mut vars = Vars::default();
        let mut add = |name: &str, range| vars.push(Var::new(Label::new(name).unwrap(), range));
        let h = add("h", Range::Whole { len: Sym::from(16i64) });
        let b = add(
            "b",
            Range::Blocks(Blocks { start: Index::default(), step: 8, block: 8, end: Sym::from(100i64) }),
        );
        let e = add("e", Range::Within { of: b });
        (vars, [h, b, e])
    }

    #[test]
    fn positions_within_a_block_are_bounded_by_the_block() {
        let (vars, [h, b, e]) = vars();
        assert_eq!(Index::var(e).bounds(&vars), (0, 99));
        assert_eq!(Index::var(e).minus(&Index::var(b)).bounds(&vars), (0, 7));
        assert_eq!(Index::var(b).bounds(&vars), (0, 96));
        assert_eq!(Index::var(h).times(100).plus(&Index::var(e)).bounds(&vars), (0, 1599));
    }

    #[test]
    fn an_index_grows_evenly_with_a_variable_unless_that_is_divided() {
        let (vars, [h, b, e]) = vars();
        let index = Index::var(h).times(128).plus(&Index::var(e).div(10, &vars));
        assert_eq!([h, b, e].map(|var| index.step_of(var)), [Some(128), Some(0), None]);
        assert_eq!(index.plus(&Index::var(e)).step_of(e), None);
    }

    #[test]
    fn quotients_and_remainders_of_a_sum_simplify() {
        let (vars, [h, _, e]) = vars();
        let row = Index::var(h).times(128).plus(&Index::var(e));
        assert_eq!(row.div(128, &vars), Index::var(h));
        assert_eq!(row.rem(128, &vars), Index::var(e));
        let (q, r) = (Index::var(e).div(10, &vars), Index::var(e).rem(10, &vars));
        assert_eq!(r.bounds(&vars), (0, 9));
        assert_eq!(q.times(10).plus(&r), Index::var(e));
    }

    #[test]
    fn a_loop_never_reaches_the_symbol_that_ends_it() {
        let (mut vars, _) = vars();
        let len = Sym::from(Symbol::new(Label::new("T").unwrap(), 1, 5, 2));
        let t = vars.push(Var::new(Label::new("t").unwrap(), Range::Whole { len: len.clone() }));
        let from_the_end = Index::var(t).minus(&Index::sym(&len)).plus(&Index::constant(6));
        assert_eq!(from_the_end.bounds(&vars), (1, 5));
        assert_eq!(Index::sym(&len).minus(&Index::var(t)).bounds(&vars), (1, 5));
    }

    #[test]
    fn no_bound_of_huge_factors_is_narrower_than_the_truth() {
        let (mut vars, [h, b, e]) = vars();
        let len = Sym::from(Symbol::new(Label::new("T").unwrap(), 1, 5, 2));
        let t = vars.push(Var::new(Label::new("t").unwrap(), Range::Whole { len: len.clone() }));
        let huge = i64::MAX / 2;
        for terms in [
            vec![(Atom::Var(h), huge), (Atom::Var(e), -huge)],
            vec![(Atom::Var(e), huge), (Atom::Var(b), -huge)],
            vec![(Atom::Var(h), i64::MIN), (Atom::Var(t), huge)],
            vec![(Atom::Var(t), huge), (Atom::Symbols(vec![len.symbols()[0]]), -huge)],
        ] {
            let index = Index { terms: merged(terms), constant: -3 };
            let (low, high) = index.bounds(&vars);
            for (at_h, at_e, at_t) in [(0, 0, 0), (15, 99, 4), (15, 0, 0), (0, 99, 4), (1, 1, 1)] {
                let value = |atom: &Atom| match atom {
                    Atom::Var(var) if *var == h => at_h,
                    Atom::Var(var) if *var == e => at_e,
                    Atom::Var(var) if *var == b => at_e / 8 * 8,
                    Atom::Var(_) => at_t,
                    _ => at_t + 1,
                };
                let terms = index.terms.iter().map(|(atom, factor)| i128::from(*factor) * value(atom));
                let sum = terms.sum::<i128>() - 3;
                let is_above = low == i64::MIN || i128::from(low) <= sum;
                assert!(
                    is_above && (high == i64::MAX || sum <= i128::from(high)),
                    "{index:?}: {low}..={high}, {sum}"
                );
            }
        }
    }

    #[test]
    fn clamping_is_dropped_where_it_is_not_needed() {
        let (vars, [h, ..]) = vars();
        assert_eq!(Index::var(h).clamped(15, &vars), Index::var(h));
        assert_eq!(Index::var(h).minus(&Index::constant(3)).clamped(9, &vars).bounds(&vars), (0, 9));
    }
}
