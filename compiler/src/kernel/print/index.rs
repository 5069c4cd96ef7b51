//! Writes places, positions, sizes and names.
//!
//! In: indices with the variables they are over. Out: text such as `128*h1+e2+P-1` or `lookup(tile0[t0], 64)`.
//! A variable ends in its number and a bare symbol never ends in a digit, so the two cannot be mistaken.
//! Complaints and faults use the same spelling. `parse/index.rs` reads it back.

use crate::foundation::entity::Id;
use crate::kernel::index::{Atom, Index, Vars};
use crate::kernel::{Place, VarId};
use crate::tensor::sym::{Sym, Symbol};

/// `tile0[e2-h1, 0]`
pub(in crate::kernel) fn access_text(place: Place, at: &[Index], vars: &Vars) -> String {
    let at: Vec<String> = at.iter().map(|index| index_text(index, vars)).collect();
    format!("{}[{}]", place_text(place), at.join(", "))
}

/// `@0` or `tile0`
pub(in crate::kernel) fn place_text(place: Place) -> String {
    match place {
        Place::Param(param) => param.to_string(),
        Place::Tile(tile) => format!("tile{}", tile.index()),
    }
}

/// The name of a variable: axis and number, or `v` and number where the axis is no identifier.
pub(in crate::kernel) fn var_text(vars: &Vars, id: VarId) -> String {
    let name = vars.get(id).and_then(|var| spelled(var.name.as_str(), id));
    name.unwrap_or_else(|| format!("v{}", id.index()))
}

/// `h1` for axis `h`, `row0_1` for axis `row0`; nothing where the result would not tell the axis.
pub(in crate::kernel) fn spelled(axis: &str, id: VarId) -> Option<String> {
    let last = axis.chars().last().filter(|_| is_identifier(axis))?;
    match last {
        '_' => None,
        '0'..='9' => Some(format!("{axis}_{}", id.index())),
        _ => Some(format!("{axis}{}", id.index())),
    }
}

/// `128*h1+e2+P-1`
pub(in crate::kernel) fn index_text(index: &Index, vars: &Vars) -> String {
    let mut text = String::new();
    for (atom, factor) in index.terms() {
        text.push_str(match (*factor < 0, text.is_empty()) {
            (true, _) => "-",
            (false, true) => "",
            (false, false) => "+",
        });
        if factor.unsigned_abs() != 1 {
            text.push_str(&format!("{}*", factor.unsigned_abs()));
        }
        text.push_str(&atom_text(atom, vars));
    }
    match (text.is_empty(), index.offset()) {
        (true, offset) => offset.to_string(),
        (false, 0) => text,
        (false, offset) => format!("{text}{offset:+}"),
    }
}

fn atom_text(atom: &Atom, vars: &Vars) -> String {
    match atom {
        Atom::Var(var) => var_text(vars, *var),
        Atom::Symbols(symbols) => symbols.iter().map(symbol_text).collect::<Vec<_>>().join("*"),
        Atom::Div(inner, by) => format!("({}/{by})", operand_text(inner, vars)),
        Atom::Rem(inner, by) => format!("({}%{by})", operand_text(inner, vars)),
        Atom::Lookup { from, at, below } => format!("lookup({}, {below})", access_text(*from, at, vars)),
        Atom::Min(inner, most) => format!("min({}, {most})", index_text(inner, vars)),
        Atom::Max(inner, least) => format!("max({}, {least})", index_text(inner, vars)),
    }
}

/// A sum in parentheses, so that a quotient of it is not read as one of its last term.
fn operand_text(inner: &Index, vars: &Vars) -> String {
    let text = index_text(inner, vars);
    let is_plain = matches!(inner.terms(), [(_, 1)]) && inner.offset() == 0;
    if is_plain || inner.as_const().is_some() { text } else { format!("({text})") }
}

/// `T-1`
pub(super) fn sym_text(sym: &Sym) -> String {
    index_text(&Index::sym(sym), &Vars::default())
}

/// `P`, or `"P0"` where it could be mistaken for a variable.
pub(super) fn symbol_text(symbol: &Symbol) -> String {
    let name = symbol.name.as_str();
    let is_bare = is_identifier(name) && !name.ends_with(|c: char| c.is_ascii_digit());
    if is_bare { name.to_owned() } else { format!("{name:?}") }
}

/// The text itself where the scanner takes it as one word, else in quotes.
pub(super) fn quoted_unless_word(text: &str) -> String {
    let is_word =
        starts_word(text) && text.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '.' | '-'));
    if is_word { text.to_owned() } else { format!("{text:?}") }
}

fn is_identifier(text: &str) -> bool {
    starts_word(text) && text.chars().all(|c| c.is_alphanumeric() || c == '_')
}

fn starts_word(text: &str) -> bool {
    text.starts_with(|c: char| c.is_alphabetic() || c == '_')
}
