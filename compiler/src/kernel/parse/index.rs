//! Reads places, positions and sizes.
//!
//! In: text such as `128*h1+e2+P-1` or `lookup(tile0[t0], 64)`. Out: the same index, not simplified any further.
//! [`magnitude`] bounds every number and every partial sum by 2^40, so no arithmetic on an index that was read can
//! overflow. A size is an index of numbers and symbols only.

use crate::foundation::entity::{Id, List};
use crate::foundation::text::{Scanner, SyntaxError};
use crate::kernel::index::{Atom, Index};
use crate::kernel::parse::{LIMIT, Read, Reader, fail};
use crate::kernel::print::{place_text, var_text};
use crate::kernel::{ParamId, Place, TileId, VarId};
use crate::tensor::sym::{Sym, Symbol};

/// What stands between `*`.
enum Factor {
    Number(i64),
    Symbol(Symbol),
    Index(Index),
}

impl Reader<'_> {
    /// A sum: `128*h1+e2+P-1`.
    pub(super) fn index(&mut self) -> Read<Index> {
        self.nested(Self::sum)
    }

    /// A size: `T-1`.
    pub(super) fn sym(&mut self) -> Read<Sym> {
        let at = self.s.clone();
        let index = self.index()?;
        let mut sum = Sym::from(index.offset());
        for (atom, factor) in index.terms() {
            let Atom::Symbols(symbols) = atom else {
                return Err(at.clone().error("a size of numbers and symbols"));
            };
            sum = sum + symbols.iter().fold(Sym::from(*factor), |product, symbol| product * *symbol);
        }
        Ok(sum)
    }

    /// `tile0[e2-h1, 0]`
    pub(super) fn element(&mut self, expected: &str) -> Read<(Place, Vec<Index>)> {
        let place = self.place(expected)?;
        Ok((place, self.list("[", "]", Self::index)?))
    }

    /// `h1`
    pub(super) fn var_id(&mut self) -> Read<VarId> {
        let expected = accepted("a variable", &self.var_names());
        let at = self.s.clone();
        let text = self.s.identifier(&expected)?;
        self.find_var(text).ok_or_else(|| at.clone().error(expected))
    }

    pub(super) fn place(&mut self, expected: &str) -> Read<Place> {
        let at = self.s.clone();
        let found = if self.s.take("@") {
            let number = self.s.integer("the number of a buffer")?;
            nth::<ParamId, _>(&self.params, usize::try_from(number).ok()).map(Place::Param)
        } else {
            let text = self.s.identifier(expected)?;
            let number = text.strip_prefix("tile").and_then(|digits| digits.parse().ok());
            let tile = nth::<TileId, _>(&self.part.tiles, number).map(Place::Tile);
            tile.filter(|tile| place_text(*tile) == text)
        };
        found.ok_or_else(|| at.clone().error(accepted("a buffer or a tile", &self.place_names())))
    }

    fn sum(&mut self) -> Read<Index> {
        let at = self.s.clone();
        let mut sum = Index::default();
        let mut negative = self.s.take("-");
        loop {
            let term = self.term()?;
            sum = if negative { sum.minus(&term) } else { sum.plus(&term) };
            if magnitude(&sum) > LIMIT {
                return Err(too_far(&at));
            }
            negative = self.s.take("-");
            if !negative && !self.s.take("+") {
                return Ok(sum);
            }
        }
    }

    /// `2*P*T`, `128*h1`, `3*(h1/128)`
    fn term(&mut self) -> Read<Index> {
        let at = self.s.clone();
        let mut number = 1i64;
        let mut symbols = Vec::new();
        let mut index = None;
        loop {
            match self.factor()? {
                Factor::Number(factor) => number = number.saturating_mul(factor),
                Factor::Symbol(symbol) => symbols.push(symbol),
                Factor::Index(factor) if index.is_none() => index = Some(factor),
                Factor::Index(_) => {
                    return Err(fail(&at, "a product of positions", "a product with a number"));
                }
            }
            if !self.s.take("*") {
                break;
            }
        }
        let product = product(symbols, index)
            .ok_or_else(|| fail(&at, "a product of a position and a symbol", "a product with a number"))?;
        let is_small = magnitude(&product).max(1).saturating_mul(number.saturating_abs()) <= LIMIT;
        if is_small { Ok(product.times(number)) } else { Err(too_far(&at)) }
    }

    fn factor(&mut self) -> Read<Factor> {
        if self.s.take("(") {
            return self.quotient().map(Factor::Index);
        }
        if self.s.peek("\"") {
            let at = self.s.clone();
            let name = self.s.quoted("a symbol")?;
            return self.find_symbol(&name).ok_or_else(|| at.clone().error("a symbol that is declared"));
        }
        let mut ahead = self.s.clone();
        if let Ok(word) = ahead.identifier("") {
            let is_call = ahead.take("(");
            if is_call && matches!(word, "lookup" | "min" | "max") {
                self.s = ahead;
                return self.call(word);
            }
            let named = self.find_var(word).map(|var| Factor::Index(Index::var(var)));
            let named = named.or_else(|| self.find_symbol(word)).filter(|_| !is_call);
            let found = named.ok_or_else(|| self.expected_factor())?;
            self.s = ahead;
            return Ok(found);
        }
        // One sign belongs to the term; a second one is a slip.
        if self.s.peek("-") || self.s.clone().integer("").is_err() {
            return Err(self.expected_factor());
        }
        self.number().map(Factor::Number)
    }

    /// What follows an opening parenthesis: a sum, perhaps divided.
    fn quotient(&mut self) -> Read<Index> {
        let inner = self.index()?;
        let quotient = if self.s.take("/") {
            Index::atom(Atom::Div(Box::new(inner), self.divisor()?))
        } else if self.s.take("%") {
            Index::atom(Atom::Rem(Box::new(inner), self.divisor()?))
        } else if self.s.peek(")") {
            inner
        } else {
            return Err(self.s.error("`/`, `%` or `)`"));
        };
        self.s.expect(")")?;
        Ok(quotient)
    }

    fn divisor(&mut self) -> Read<i64> {
        let at = self.s.clone();
        let by = self.number()?;
        if by > 0 { Ok(by) } else { Err(at.clone().error("a positive number")) }
    }

    /// What follows `lookup(`, `min(` or `max(`.
    fn call(&mut self, name: &str) -> Read<Factor> {
        let atom = if name == "lookup" {
            let (from, at) = self.element("a buffer or a tile")?;
            self.s.expect(",")?;
            Atom::Lookup { from, at, below: self.divisor()? }
        } else {
            let inner = Box::new(self.index()?);
            self.s.expect(",")?;
            let number = self.number()?;
            if name == "min" { Atom::Min(inner, number) } else { Atom::Max(inner, number) }
        };
        self.s.expect(")")?;
        Ok(Factor::Index(Index::atom(atom)))
    }

    fn find_var(&self, text: &str) -> Option<VarId> {
        let vars = &self.part.vars;
        let number = text.rsplit(|c: char| !c.is_ascii_digit()).next()?;
        let id = nth::<VarId, _>(vars, number.parse().ok())?;
        (var_text(vars, id) == text).then_some(id)
    }

    fn find_symbol(&self, text: &str) -> Option<Factor> {
        let symbol = self.symbols.iter().find(|symbol| symbol.name.as_str() == text);
        symbol.copied().map(Factor::Symbol)
    }

    fn expected_factor(&mut self) -> SyntaxError {
        let symbols = self.symbols.iter().map(|symbol| symbol.name.to_string());
        let names: Vec<String> = self.var_names().into_iter().chain(symbols).collect();
        self.s.error(accepted("a number or a name", &names))
    }

    fn var_names(&self) -> Vec<String> {
        self.part.vars.ids().map(|id| var_text(&self.part.vars, id)).collect()
    }

    fn place_names(&self) -> Vec<String> {
        let params = self.params.ids().map(Place::Param);
        params.chain(self.part.tiles.ids().map(Place::Tile)).map(place_text).collect()
    }
}

/// What would be accepted, with all names that would do.
fn accepted(what: &str, names: &[String]) -> String {
    if names.is_empty() {
        format!("{what}; none is declared")
    } else {
        format!("{what}: {}", names.join(", "))
    }
}

/// The id of an item that is there.
fn nth<I: Id, T>(list: &List<I, T>, number: Option<usize>) -> Option<I> {
    number.filter(|number| *number < list.len()).map(I::from_index)
}

/// The product of symbols, or the index where there are none; nothing where both stand.
fn product(symbols: Vec<Symbol>, index: Option<Index>) -> Option<Index> {
    match (symbols.is_empty(), index) {
        (true, index) => Some(index.unwrap_or_else(|| Index::constant(1))),
        (false, Some(_)) => None,
        (false, None) => {
            let mut symbols = symbols;
            symbols.sort();
            Some(Index::atom(Atom::Symbols(symbols)))
        }
    }
}

fn too_far(at: &Scanner<'_>) -> SyntaxError {
    fail(at, "a number that may pass 2^40", "a smaller one")
}

/// A bound of every factor, every divisor and what symbols can make of them.
fn magnitude(index: &Index) -> i64 {
    let terms =
        index.terms().iter().map(|(atom, factor)| factor.saturating_abs().saturating_mul(of_atom(atom)));
    terms.fold(index.offset().saturating_abs(), i64::saturating_add)
}

fn of_atom(atom: &Atom) -> i64 {
    let widest = |s: &Symbol| s.min.saturating_abs().max(s.max.saturating_abs()).max(1);
    match atom {
        Atom::Var(_) => 1,
        Atom::Symbols(symbols) => symbols.iter().map(widest).fold(1, i64::saturating_mul),
        Atom::Div(inner, by) | Atom::Rem(inner, by) | Atom::Min(inner, by) | Atom::Max(inner, by) => {
            magnitude(inner).max(by.saturating_abs()).max(1)
        }
        Atom::Lookup { at, below, .. } => at.iter().map(magnitude).fold(*below, i64::max),
    }
}
