//! Symbolic integers: sizes and positions that are known only at run time.
//!
//! A [`Symbol`] is a name with the bounds it keeps and the value it is usually near; a [`Sym`] is a polynomial over
//! symbols with whole coefficients. Equal polynomials are equal values: the form is canonical.
//! Bounds come from interval arithmetic and may be wider than the truth, never narrower.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::{Add, Mul, Sub};

use crate::tensor::label::Label;

/// A run-time integer with its bounds.
#[derive(Clone, Copy, Debug)]
pub struct Symbol {
    /// How it is written.
    pub name: Label,
    /// The smallest value it takes.
    pub min: i64,
    /// The largest value it takes.
    pub max: i64,
    /// The value that costs are estimated at.
    pub near: i64,
}

impl Symbol {
    /// A symbol of this name and range. Estimates use `near`, which is brought into the range.
    pub fn new(name: Label, min: i64, max: i64, near: i64) -> Self {
        let max = max.max(min);
        Self { name, min, max, near: near.clamp(min, max) }
    }
}

// A symbol is its name; a graph whose symbols disagree about the bounds of one name does not verify.
impl PartialEq for Symbol {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}
impl Eq for Symbol {}
impl PartialOrd for Symbol {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Symbol {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.name.cmp(&other.name)
    }
}
impl Hash for Symbol {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

/// A product of symbols; the empty product is one.
type Product = Vec<Symbol>;

/// A polynomial over symbols with whole coefficients.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Sym {
    /// Sorted by product, no zero coefficient, never the empty product.
    terms: Vec<(Product, i64)>,
    constant: i64,
}

impl Sym {
    /// The value, where it does not depend on any symbol.
    pub fn as_const(&self) -> Option<i64> {
        self.terms.is_empty().then_some(self.constant)
    }

    /// Every symbol in it, sorted, each once.
    pub fn symbols(&self) -> Vec<Symbol> {
        let mut all: Vec<Symbol> =
            self.terms.iter().flat_map(|(product, _)| product.iter().copied()).collect();
        all.sort();
        all.dedup();
        all
    }

    /// The terms in canonical order: symbols of the product, coefficient.
    pub fn terms(&self) -> impl Iterator<Item = (&[Symbol], i64)> {
        self.terms.iter().map(|(product, factor)| (product.as_slice(), *factor))
    }

    /// What is added to the terms.
    pub fn constant(&self) -> i64 {
        self.constant
    }

    /// A value it is never below.
    pub fn least(&self) -> i64 {
        self.bounds().0
    }

    /// A value it is never above.
    pub fn most(&self) -> i64 {
        self.bounds().1
    }

    /// The value when every symbol is where it usually is.
    pub fn near(&self) -> i64 {
        self.evaluate(|symbol| symbol.near)
    }

    /// The value when every symbol has the value `of` gives it.
    pub fn evaluate(&self, of: impl Fn(Symbol) -> i64) -> i64 {
        let product = |symbols: &Product| symbols.iter().map(|s| of(*s)).product::<i64>();
        self.terms.iter().map(|(symbols, factor)| factor * product(symbols)).sum::<i64>() + self.constant
    }

    fn bounds(&self) -> (i64, i64) {
        if self.terms.is_empty() {
            return (self.constant, self.constant);
        }
        let narrow = |end: i128| end.clamp(i64::MIN.into(), i64::MAX.into()) as i64;
        self.wide_bounds().map_or((i64::MIN, i64::MAX), |(low, high)| (narrow(low), narrow(high)))
    }

    /// The same as numbers that do not saturate on the way; nothing where even these are too small.
    fn wide_bounds(&self) -> Option<(i128, i128)> {
        let mut sum = (i128::from(self.constant), i128::from(self.constant));
        for (product, factor) in &self.terms {
            let mut own = (i128::from(*factor), i128::from(*factor));
            for symbol in product {
                let [min, max] = [symbol.min, symbol.max].map(i128::from);
                let ends = [
                    own.0.checked_mul(min)?,
                    own.0.checked_mul(max)?,
                    own.1.checked_mul(min)?,
                    own.1.checked_mul(max)?,
                ];
                own =
                    ends.iter().fold((ends[0], ends[0]), |(low, high), end| (low.min(*end), high.max(*end)));
            }
            sum = (sum.0.checked_add(own.0)?, sum.1.checked_add(own.1)?);
        }
        Some(sum)
    }

    fn collect(terms: Vec<(Product, i64)>, constant: i64) -> Self {
        Self { terms: merged(terms), constant }
    }
}

/// The terms of a sum in order, each once with all of its factors, and none that is zero.
pub(crate) fn merged<T: Ord>(mut terms: Vec<(T, i64)>) -> Vec<(T, i64)> {
    terms.sort_by(|a, b| a.0.cmp(&b.0));
    let mut merged: Vec<(T, i64)> = Vec::with_capacity(terms.len());
    for (term, factor) in terms {
        match merged.last_mut() {
            Some(last) if last.0 == term => last.1 += factor,
            _ => merged.push((term, factor)),
        }
    }
    merged.retain(|(_, factor)| *factor != 0);
    merged
}

impl From<i64> for Sym {
    fn from(constant: i64) -> Self {
        Self { terms: Vec::new(), constant }
    }
}

impl From<usize> for Sym {
    fn from(constant: usize) -> Self {
        Self::from(constant as i64)
    }
}

impl From<i32> for Sym {
    fn from(constant: i32) -> Self {
        Self::from(i64::from(constant))
    }
}

impl From<Symbol> for Sym {
    fn from(symbol: Symbol) -> Self {
        Self { terms: vec![(vec![symbol], 1)], constant: 0 }
    }
}

impl From<&Self> for Sym {
    fn from(value: &Self) -> Self {
        value.clone()
    }
}

impl<R: Into<Sym>> Add<R> for Sym {
    type Output = Self;
    fn add(self, other: R) -> Self {
        let other = other.into();
        if other.terms.is_empty() {
            return Self { constant: self.constant + other.constant, terms: self.terms };
        }
        let mut terms = self.terms;
        terms.extend(other.terms);
        Self::collect(terms, self.constant + other.constant)
    }
}

impl<R: Into<Sym>> Sub<R> for Sym {
    type Output = Self;
    fn sub(self, other: R) -> Self {
        self + other.into() * -1
    }
}

impl<R: Into<Sym>> Mul<R> for Sym {
    type Output = Self;
    fn mul(self, other: R) -> Self {
        let other = other.into();
        let mut terms = Vec::new();
        let with_constant = |s: &Self| -> Vec<(Product, i64)> {
            s.terms.iter().cloned().chain([(Vec::new(), s.constant)]).collect()
        };
        let mut constant = 0;
        for (left, a) in with_constant(&self) {
            for (right, b) in with_constant(&other) {
                let mut product: Product = left.iter().chain(&right).copied().collect();
                product.sort();
                if product.is_empty() {
                    constant += a * b;
                } else {
                    terms.push((product, a * b));
                }
            }
        }
        Self::collect(terms, constant)
    }
}

impl fmt::Display for Sym {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.terms.is_empty() {
            return write!(f, "{}", self.constant);
        }
        for (position, (product, factor)) in self.terms.iter().enumerate() {
            let sign = if *factor < 0 { "-" } else { "+" };
            if position > 0 || *factor < 0 {
                f.write_str(sign)?;
            }
            if factor.abs() != 1 {
                write!(f, "{}*", factor.abs())?;
            }
            let names: Vec<String> = product.iter().map(|s| s.name.to_string()).collect();
            f.write_str(&names.join("*"))?;
        }
        if self.constant != 0 {
            write!(f, "{:+}", self.constant)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn symbol(name: &str) -> Symbol {
        Symbol::new(Label::new(name).unwrap(), 0, 9, 3)
    }

    #[test]
    fn equal_polynomials_are_equal_values_and_print_alike() {
        let (p, t) = (Sym::from(symbol("P")), Sym::from(symbol("T")));
        let a = (p.clone() + 1) * 2 + t.clone() - 2;
        let b = t.clone() + p.clone() * 2;
        assert_eq!(a, b);
        assert_eq!(a.to_string(), "2*P+T");
        assert_eq!((t * p - 4).to_string(), "P*T-4");
        assert_eq!((a.clone() - b).as_const(), Some(0));
        assert_eq!((a.least(), a.most(), a.near()), (0, 27, 9));
    }

    #[test]
    fn bounds_of_huge_products_are_never_narrower_than_the_truth() {
        let [p, t] = ["P", "T"].map(|name| Sym::from(Symbol::new(Label::new(name).unwrap(), 0, 1 << 40, 1)));
        let product = p.clone() * t.clone();
        assert_eq!((product.least(), product.most()), (0, i64::MAX));
        assert_eq!((product.clone() * -1).least(), i64::MIN);
        // The first may be as large as the second, or nothing.
        let difference = product - t.clone() * (1i64 << 40);
        assert_eq!((difference.least(), difference.most()), (i64::MIN, i64::MAX));
        let many = [&p, &p, &t, &t, &t].into_iter().fold(Sym::from(1i64), |all, one| all * one);
        assert_eq!((many.least(), many.most()), (i64::MIN, i64::MAX));
    }

    proptest! {
        #[test]
        fn arithmetic_agrees_with_evaluation(x in 0i64..9, y in 0i64..9, a in -5i64..5, b in -5i64..5, c in -5i64..5) {
            let (p, t) = (symbol("P"), symbol("T"));
            let of = |s: Symbol| if s == p { x } else { y };
            let left = Sym::from(p) * a + b;
            let right = Sym::from(t) * c - Sym::from(p);
            let (l, r) = (left.evaluate(of), right.evaluate(of));
            prop_assert_eq!((left.clone() + right.clone()).evaluate(of), l + r);
            prop_assert_eq!((left.clone() - right.clone()).evaluate(of), l - r);
            let product = left * right;
            prop_assert_eq!(product.evaluate(of), l * r);
            prop_assert!(product.least() <= l * r && l * r <= product.most());
        }
    }
}
