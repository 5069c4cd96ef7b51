//! Reads the parts of a line of the text form: sizes, shapes, axes, types, names and numbers.
//!
//! In: a scanner and the symbols declared so far. Out: the part, or what would have been accepted in its place.
//! No size that passes here makes symbolic arithmetic overflow: [`is_too_large`] bounds every number and every product
//! that can arise. `parse.rs` puts the parts together.

use crate::foundation::text::{Scanner, SyntaxError};
use crate::graph::Name;
use crate::graph::op::Scalar;
use crate::tensor::dtype::DType;
use crate::tensor::label::Label;
use crate::tensor::quant::Format;
use crate::tensor::shape::{Axis, Shape, Type};
use crate::tensor::sym::{Sym, Symbol};

/// The largest magnitude of a number, and the most elements of a value.
const LIMIT: i64 = 1 << 40;
/// What a reader of numbers accepts.
const WHOLE: &str = "a whole number of at most 2^40";
/// The most terms of a size and factors of a term.
const MAX_PARTS: usize = 16;
/// The most terms a product of all sizes of a shape may have.
const MAX_PRODUCT_TERMS: usize = 1024;

/// Whether arithmetic on the sizes of this shape could overflow, or its length not be laid out.
pub(super) fn is_too_large(shape: &Shape) -> bool {
    let len = shape.iter().fold(1i64, |len, (_, size)| len.saturating_mul(magnitude(size).max(1)));
    let n_terms = shape.iter().fold(1usize, |n, (_, size)| n.saturating_mul(size.terms().count() + 1));
    len > LIMIT || n_terms > MAX_PRODUCT_TERMS
}

/// An error at `at` that says in its own words what is wrong there.
pub(super) fn fail(at: &Scanner<'_>, found: impl Into<String>, expected: impl Into<String>) -> SyntaxError {
    SyntaxError { found: found.into(), ..at.clone().error(expected) }
}

/// `blk.0.attn_norm`
pub(super) fn name(s: &mut Scanner<'_>) -> Result<Name, SyntaxError> {
    Ok(s.word("a name")?.into())
}

/// `d`
pub(super) fn axis(s: &mut Scanner<'_>) -> Result<Axis, SyntaxError> {
    let at = s.clone();
    let text = s.word("an axis")?;
    label(&at, text)
}

/// A short name that was read at `at`.
pub(super) fn label(at: &Scanner<'_>, text: &str) -> Result<Label, SyntaxError> {
    Label::new(text).ok_or_else(|| fail(at, format!("a name of {} bytes", text.len()), "at most 16 bytes"))
}

/// `[h, e]`, no axis twice.
pub(super) fn axes(s: &mut Scanner<'_>) -> Result<Vec<Axis>, SyntaxError> {
    let mut axes = Vec::new();
    list(s, |s| {
        let at = s.clone();
        let axis = axis(s)?;
        if axes.contains(&axis) {
            return Err(fail(&at, format!("axis {axis} stands twice"), "another axis"));
        }
        axes.push(axis);
        Ok(())
    })?;
    Ok(axes)
}

/// `t:T`
pub(super) fn dim(s: &mut Scanner<'_>, symbols: &[Symbol]) -> Result<(Axis, Sym), SyntaxError> {
    let axis = axis(s)?;
    s.expect(":")?;
    let at = s.clone();
    let len = size(s, symbols)?;
    if len.least() < 0 {
        return Err(fail(&at, format!("{len} may be {}", len.least()), "a size of 0 or more"));
    }
    Ok((axis, len))
}

/// `[t:T, d:64]`
pub(super) fn shape(s: &mut Scanner<'_>, symbols: &[Symbol]) -> Result<Shape, SyntaxError> {
    let at = s.clone();
    let mut dims = Vec::new();
    list(s, |s| {
        dims.push(dim(s, symbols)?);
        Ok(())
    })?;
    let shape =
        Shape::new(dims).ok_or_else(|| fail(&at, "an axis stands twice", "axes of different names"))?;
    if is_too_large(&shape) {
        return Err(fail(&at, "a shape that is too large", "at most 2^40 elements"));
    }
    Ok(shape)
}

/// `f16`
pub(super) fn dtype(s: &mut Scanner<'_>) -> Result<DType, SyntaxError> {
    let expected = format!("an element type: {}", DType::ALL.map(DType::name).join(", "));
    let at = s.clone();
    let name = s.word(&expected)?;
    DType::named(name).ok_or_else(|| at.clone().error(expected))
}

/// `q8_0`
pub(super) fn format(s: &mut Scanner<'_>) -> Result<Format, SyntaxError> {
    let names = Format::FIXED.map(Format::name).join(", ");
    let expected = format!("a format: {names}, int8.g64 (or another group)");
    let at = s.clone();
    let name = s.word(&expected)?;
    Format::named(name).ok_or_else(|| at.clone().error(expected))
}

/// `w : q8_0[o:64, d:32]`
pub(super) fn stored(s: &mut Scanner<'_>, symbols: &[Symbol]) -> Result<(Name, Shape, Format), SyntaxError> {
    let name = name(s)?;
    s.expect(":")?;
    let format = format(s)?;
    Ok((name, shape(s, symbols)?, format))
}

/// `x : f32[t:T]`
pub(super) fn typed_name(s: &mut Scanner<'_>, symbols: &[Symbol]) -> Result<(Name, Type), SyntaxError> {
    let name = name(s)?;
    s.expect(":")?;
    Ok((name, Type::new(dtype(s)?, shape(s, symbols)?)))
}

/// `1.5`, or `3 : i32`; a number without a point must say that it is whole.
pub(super) fn scalar(s: &mut Scanner<'_>) -> Result<Scalar, SyntaxError> {
    let mut ahead = s.clone();
    let is_whole = ahead.integer("").is_ok() && (ahead.peek(":") || ahead.end_of_line().is_ok());
    if !is_whole {
        return Ok(Scalar::F32(float_bits(s)?));
    }
    let at = s.clone();
    let value = s.integer("a whole number")?;
    s.expect(":")?;
    s.expect("i32")?;
    let value = i32::try_from(value).map_err(|_| at.clone().error("a whole number of 32 bits"))?;
    Ok(Scalar::I32(value))
}

/// `[1.0, 0.5]`, as bits.
pub(super) fn floats(s: &mut Scanner<'_>) -> Result<Vec<u32>, SyntaxError> {
    let mut values = Vec::new();
    list(s, |s| {
        values.push(float_bits(s)?);
        Ok(())
    })?;
    Ok(values)
}

/// A whole number of a magnitude that arithmetic can take.
pub(super) fn number(s: &mut Scanner<'_>) -> Result<i64, SyntaxError> {
    let at = s.clone();
    let value = s.integer(WHOLE)?;
    if (-LIMIT..=LIMIT).contains(&value) { Ok(value) } else { Err(at.clone().error(WHOLE)) }
}

/// A sum of products of symbols and whole numbers: `2*P+T-1`.
pub(super) fn size(s: &mut Scanner<'_>, symbols: &[Symbol]) -> Result<Sym, SyntaxError> {
    let at = s.clone();
    let mut sum = Sym::default();
    let mut negative = s.take("-");
    for _ in 0..MAX_PARTS {
        let term = term(s, symbols)?;
        sum = if negative { sum - term } else { sum + term };
        if magnitude(&sum) > LIMIT {
            return Err(too_far(&at));
        }
        negative = s.take("-");
        if !negative && !s.take("+") {
            return Ok(sum);
        }
    }
    Err(s.error(format!("at most {MAX_PARTS} terms")))
}

fn term(s: &mut Scanner<'_>, symbols: &[Symbol]) -> Result<Sym, SyntaxError> {
    let at = s.clone();
    let mut product = factor(s, symbols)?;
    for _ in 1..MAX_PARTS {
        if !s.take("*") {
            return Ok(product);
        }
        let factor = factor(s, symbols)?;
        if magnitude(&product).saturating_mul(magnitude(&factor)) > LIMIT {
            return Err(too_far(&at));
        }
        product = product * factor;
    }
    if s.peek("*") { Err(s.error(format!("at most {MAX_PARTS} factors"))) } else { Ok(product) }
}

fn factor(s: &mut Scanner<'_>, symbols: &[Symbol]) -> Result<Sym, SyntaxError> {
    let names: Vec<&str> = symbols.iter().map(|symbol| symbol.name.as_str()).collect();
    let expected = match names.as_slice() {
        [] => format!("{WHOLE}; no symbol is declared"),
        names => format!("{WHOLE} or a symbol: {}", names.join(", ")),
    };
    let mut at = s.clone();
    if let Ok(text) = s.identifier("") {
        let symbol = symbols.iter().find(|symbol| symbol.name.as_str() == text);
        return symbol.map(|symbol| Sym::from(*symbol)).ok_or_else(|| at.error(expected));
    }
    // One sign belongs to the term; a second one is a slip.
    if s.peek("-") {
        return Err(s.error(expected));
    }
    number(s).map(Sym::from).map_err(|error| SyntaxError { expected, ..error })
}

fn too_far(at: &Scanner<'_>) -> SyntaxError {
    fail(at, "a number that may pass 2^40", "a smaller one")
}

/// A bound of every value, every coefficient and every partial sum: products and sums of sizes obey it too.
fn magnitude(size: &Sym) -> i64 {
    let term = |product: &[Symbol], factor: i64| {
        let widest = |s: &Symbol| s.min.saturating_abs().max(s.max.saturating_abs()).max(1);
        product.iter().fold(factor.saturating_abs(), |bound, s| bound.saturating_mul(widest(s)))
    };
    let constant = size.constant().saturating_abs();
    size.terms().fold(constant, |bound, (product, factor)| bound.saturating_add(term(product, factor)))
}

fn float_bits(s: &mut Scanner<'_>) -> Result<u32, SyntaxError> {
    let mut ahead = s.clone();
    let odd_nan =
        ahead.word("").ok().and_then(|word| u32::from_str_radix(word.strip_prefix("nan.")?, 16).ok());
    if let Some(bits) = odd_nan.filter(|bits| f32::from_bits(*bits).is_nan()) {
        *s = ahead;
        return Ok(bits);
    }
    Ok(s.float("a number")?.to_bits())
}

fn list<'a>(
    s: &mut Scanner<'a>,
    mut item: impl FnMut(&mut Scanner<'a>) -> Result<(), SyntaxError>,
) -> Result<(), SyntaxError> {
    s.expect("[")?;
    if s.take("]") {
        return Ok(());
    }
    loop {
        item(s)?;
        if s.take("]") {
            return Ok(());
        }
        if !s.take(",") {
            return Err(s.error("`,` or `]`"));
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::graph::parse::tests::{check, check_text};

    #[test]
    fn sizes_that_could_overflow() {
        let large = "line 8, column 15: a number that may pass 2^40, expected a smaller one";
        check("symbolic P*P*P*P*P*P", large);
        check("symbolic 1099511627776*P-1099511627776*P", large);
        check("symbolic 1099511627776+1", large);
        check(
            "symbolic 9223372036854775808",
            "line 8, column 15: found `9223372036854775808`, expected a whole number of at most 2^40 or a symbol: P, T",
        );
        check(
            &format!("symbolic P{}", "+P".repeat(16)),
            "line 8, column 47: found `P`, expected at most 16 terms",
        );
        check(
            &format!("symbolic 1{}", "*1".repeat(16)),
            "line 8, column 46: found `*`, expected at most 16 factors",
        );
        let axes: Vec<String> = (0..12).map(|n| format!("a{n}:P{n}+Q")).collect();
        let symbols: String =
            (0..12).map(|n| format!("symbol P{n} in 0..1 near 0\n")).collect::<Vec<_>>().concat();
        let text = format!("{symbols}symbol Q in 0..1 near 0\n%0 = input x : f32[{}]", axes.join(", "));
        check_text(&text, "line 14, column 19: a shape that is too large, expected at most 2^40 elements");
    }
}
