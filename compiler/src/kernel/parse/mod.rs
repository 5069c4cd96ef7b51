//! Reads a kernel from its text form.
//!
//! In: text as `print` writes it, or as a person does. Out: the kernel, or the first place that does not read with
//! what would be accepted there.
//! No text makes it panic: numbers, sizes and nesting are limited, and an id that reads has been declared above.
//! Expressions are numbered in the order of the text, equal ones once. `index.rs` reads places and positions,
//! `expr.rs` scalars; `verify` says what a text alone cannot.

use crate::foundation::entity::{Id, List};
use crate::foundation::text::{Scanner, SyntaxError};
use crate::graph::op::Fold;
use crate::kernel::print::spelled;
use crate::kernel::product::{Activations, Kind, Product, Side};
use crate::kernel::{
    Access, ActivationsId, Blocks, Folding, Kernel, Nest, Param, ParamId, Part, Place, Range, RoutedRows,
    Skeleton, Stmt, Tile, Var, VarId,
};
use crate::tensor::dtype::DType;
use crate::tensor::label::Label;
use crate::tensor::quant::Format;
use crate::tensor::shape::Shape;
use crate::tensor::sym::Symbol;

mod expr;
mod index;

/// The largest magnitude of a number, and the most elements of a buffer.
const LIMIT: i64 = 1 << 40;
/// How deep calls, positions and loops may nest.
const MAX_DEPTH: usize = 64;

/// The kernel this text describes.
pub fn parse(text: &str) -> Result<Kernel, SyntaxError> {
    let mut reader = Reader {
        s: Scanner::new(text),
        symbols: Vec::new(),
        params: List::default(),
        part: Part::default(),
        depth: 0,
    };
    reader.s.skip_lines();
    reader.kernel()
}

/// What the text above has declared.
struct Reader<'a> {
    s: Scanner<'a>,
    symbols: Vec<Symbol>,
    params: List<ParamId, Param>,
    /// The part that is being read, so far.
    part: Part,
    depth: usize,
}

type Read<T> = Result<T, SyntaxError>;

impl Reader<'_> {
    fn kernel(&mut self) -> Read<Kernel> {
        while self.s.take("symbol") {
            self.symbol()?;
            self.s.end_of_line()?;
        }
        if !self.s.take("kernel") {
            return Err(self.s.error("`symbol` or `kernel`"));
        }
        let name = self.s.quoted("a name in quotes")?;
        let skeleton = self.named("a skeleton", &Skeleton::ALL, Skeleton::name)?;
        self.s.end_of_line()?;
        while let Some(access) = self.access() {
            self.param(access)?;
            self.s.end_of_line()?;
        }
        let mut parts = Vec::new();
        while self.s.take("part") {
            self.s.end_of_line()?;
            parts.push(self.part()?);
        }
        if self.s.at_end() {
            Ok(Kernel { name, skeleton, params: std::mem::take(&mut self.params), parts })
        } else if parts.is_empty() {
            Err(self.s.error("`read`, `write` or `part`"))
        } else {
            Err(self.s.error("a statement, `part` or the end"))
        }
    }

    /// `P in 0..4095 near 1024`
    fn symbol(&mut self) -> Read<()> {
        let at = self.s.clone();
        let name = if self.s.peek("\"") {
            self.s.quoted("a symbol")?
        } else {
            self.s.identifier("a symbol")?.to_owned()
        };
        let name = label(&at, &name)?;
        if self.symbols.iter().any(|symbol| symbol.name == name) {
            return Err(fail(&at, format!("symbol {name} is declared already"), "another name"));
        }
        self.s.expect("in")?;
        let at = self.s.clone();
        let min = self.number()?;
        self.s.expect("..")?;
        let max = self.number()?;
        self.s.expect("near")?;
        let near = self.number()?;
        if !(min..=max).contains(&near) {
            return Err(fail(&at, format!("{min}..{max} near {near}"), "a range with a number inside"));
        }
        self.symbols.push(Symbol::new(name, min, max, near));
        Ok(())
    }

    fn access(&mut self) -> Option<Access> {
        if self.s.take("read") {
            return Some(Access::Read);
        }
        self.s.take("write").then_some(Access::Write)
    }

    /// `@1 attn_q : q8_0[h:16, e:128, d:1024]`
    fn param(&mut self, access: Access) -> Read<()> {
        self.s.expect("@")?;
        let n_params = self.params.len();
        self.declared_number(&format!("`@{n_params}`"), n_params)?;
        let name = self.name("a name")?.into();
        self.s.expect(":")?;
        let names = Format::FIXED.map(Format::name).join(", ");
        let expected = format!("a format: {names}, int8.g64 (or another group)");
        let at = self.s.clone();
        let format = Format::named(self.s.word(&expected)?).ok_or_else(|| at.clone().error(expected))?;
        let shape = self.shape()?;
        self.params.push(Param { name, format, shape, access });
        Ok(())
    }

    /// `[t:T, d:1024]`
    fn shape(&mut self) -> Read<Shape> {
        let at = self.s.clone();
        let axes = self.list("[", "]", |reader| {
            let at = reader.s.clone();
            let axis = label(&at, &reader.name("an axis")?)?;
            reader.s.expect(":")?;
            Ok((axis, reader.sym()?))
        })?;
        let n_elements = axes.iter().fold(1i64, |n, (_, size)| n.saturating_mul(size.most().max(1)));
        if n_elements > LIMIT {
            return Err(fail(&at, "a shape that is too large", "at most 2^40 elements"));
        }
        Shape::new(axes).ok_or_else(|| fail(&at, "an axis stands twice", "axes of different names"))
    }

    fn part(&mut self) -> Read<Part> {
        self.part = Part::default();
        while self.s.take("tile") {
            self.tile()?;
            self.s.end_of_line()?;
        }
        while self.s.take("var") {
            self.var()?;
            self.s.end_of_line()?;
        }
        if !self.s.take("grid") {
            return Err(self.s.error("`tile`, `var` or `grid`"));
        }
        self.part.grid = self.vars()?;
        self.s.end_of_line()?;
        if self.s.take("list") {
            self.part.routed = Some(self.routed_rows()?);
            self.s.end_of_line()?;
        }
        while self.s.take("quantised") {
            self.activations()?;
            self.s.end_of_line()?;
        }
        self.part.body = self.body()?;
        Ok(std::mem::take(&mut self.part))
    }

    /// `tile0 : f32[128]`
    fn tile(&mut self) -> Read<()> {
        let expected = format!("`tile{}`", self.part.tiles.len());
        let at = self.s.clone();
        if format!("`{}`", self.s.identifier(&expected)?) != expected {
            return Err(at.clone().error(expected));
        }
        self.s.expect(":")?;
        let dtype = self.named("an element type", &DType::ALL, DType::name)?;
        let dims = self.list("[", "]", |reader| {
            let at = reader.s.clone();
            let size = reader.number()?;
            usize::try_from(size).map_err(|_| at.clone().error("a size"))
        })?;
        self.part.tiles.push(Tile { dtype, dims });
        Ok(())
    }

    /// `h1 in blocks of 8 step 8 from 0 to 100 until @2[b0]`
    fn var(&mut self) -> Read<()> {
        let id = VarId::from_index(self.part.vars.len());
        let name = self.var_label(id)?;
        let range = if self.s.take("within") {
            Range::Within { of: self.var_id()? }
        } else if self.s.take("in") {
            if self.s.take("blocks") { self.blocks()? } else { self.whole()? }
        } else {
            return Err(self.s.error("`in` or `within`"));
        };
        let mut until = Vec::new();
        while self.s.take("until") {
            until.push(self.index()?);
        }
        self.part.vars.push(Var { name, range, until });
        Ok(())
    }

    /// The axis of a variable, from its name or from the quotes after it.
    fn var_label(&mut self, id: VarId) -> Read<Label> {
        let at = self.s.clone();
        let number = id.index().to_string();
        let expected = format!("an axis and the number {number}, as in `h{number}`");
        let written = self.s.identifier(&expected)?;
        if self.s.peek("\"") {
            let axis = label(&at, &self.s.quoted("an axis")?)?;
            let is_right = written == format!("v{number}") && spelled(axis.as_str(), id).is_none();
            return if is_right { Ok(axis) } else { Err(at.clone().error(expected)) };
        }
        let stem = written.strip_suffix(number.as_str()).unwrap_or_default();
        let stems = [stem, stem.strip_suffix('_').unwrap_or_default()];
        let stem = stems.into_iter().find(|stem| spelled(stem, id).is_some_and(|name| name == written));
        label(&at, stem.ok_or_else(|| at.clone().error(expected))?)
    }

    fn whole(&mut self) -> Read<Range> {
        self.declared_number("`0` or `blocks`", 0)?;
        self.s.expect("..")?;
        Ok(Range::Whole { len: self.sym()? })
    }

    fn blocks(&mut self) -> Read<Range> {
        self.s.expect("of")?;
        let block = self.number()?;
        self.s.expect("step")?;
        let step = self.number()?;
        self.s.expect("from")?;
        let start = self.index()?;
        self.s.expect("to")?;
        Ok(Range::Blocks(Blocks { start, step, block, end: self.sym()? }))
    }

    /// `tile3 along block10 of t0, k1 where lookup(@2[t0, k1], 8) = expert9`
    fn routed_rows(&mut self) -> Read<RoutedRows> {
        let at = self.s.clone();
        let Place::Tile(list) = self.place("a tile")? else { return Err(at.clone().error("a tile")) };
        self.s.expect("along")?;
        let along = self.var_id()?;
        self.s.expect("of")?;
        let rows = self.vars()?;
        self.s.expect("where")?;
        let by = self.index()?;
        self.s.expect("=")?;
        Ok(RoutedRows { rows, by, expert: self.var_id()?, list, along })
    }

    /// `ahead activations0 : @0[t2, d4] columns t2 along d4`
    fn activations(&mut self) -> Read<()> {
        let is_ahead = self.s.take("ahead");
        let next = ActivationsId::from_index(self.part.activations.len()).to_string();
        let at = self.s.clone();
        if self.s.identifier(&next)? != next {
            return Err(at.clone().error(format!("`{next}`")));
        }
        self.s.expect(":")?;
        let (from, at) = self.element("a buffer or a tile")?;
        let mut vars = |word: &str| self.some_vars(word);
        let (around, columns, along) = (vars("around")?, vars("columns")?, vars("along")?);
        self.part.activations.push(Activations { from, at, around, columns, along, is_ahead });
        Ok(())
    }

    /// `activations0`
    fn activations_id(&mut self) -> Read<ActivationsId> {
        let names: Vec<String> = self.part.activations.ids().map(|id| id.to_string()).collect();
        let expected = if names.is_empty() {
            "activations; none are declared".to_owned()
        } else {
            format!("activations: {}", names.join(", "))
        };
        let at = self.s.clone();
        let name = self.s.identifier(&expected)?;
        let number = names.iter().position(|own| own == name);
        number.map(ActivationsId::from_index).ok_or_else(|| at.clone().error(expected))
    }

    /// Statements up to `end`, `part` or the end of the text.
    fn body(&mut self) -> Read<Vec<Stmt>> {
        let mut body = Vec::new();
        loop {
            if self.s.take("loop") {
                body.push(self.nested(Self::repeat)?);
            } else if self.s.take("once") {
                body.push(self.nested(Self::once)?);
            } else if self.s.take("quantise") {
                body.push(Stmt::Quantise(self.activations_id()?));
                self.s.end_of_line()?;
            } else if self.s.at_end() || self.s.peek("end") || self.s.peek("part") {
                return Ok(body);
            } else {
                body.push(Stmt::Nest(self.nest()?));
            }
        }
    }

    fn repeat(&mut self) -> Read<Stmt> {
        let var = self.var_id()?;
        Ok(Stmt::Loop { var, body: self.body_to_end()? })
    }

    /// `per t0, f1`, and what is done once for them.
    fn once(&mut self) -> Read<Stmt> {
        let per = self.some_vars("per")?;
        Ok(Stmt::Once { per, body: self.body_to_end()? })
    }

    /// The end of a line, and statements up to `end`.
    fn body_to_end(&mut self) -> Read<Vec<Stmt>> {
        self.s.end_of_line()?;
        let body = self.body()?;
        if !self.s.take("end") {
            return Err(self.s.error("a statement or `end`"));
        }
        self.s.end_of_line()?;
        Ok(body)
    }

    fn nest(&mut self) -> Read<Nest> {
        let mut loops = Vec::new();
        if self.s.take("for") {
            loops = self.vars()?;
            self.s.end_of_line()?;
        }
        let mut scalars = expr::Scalars::default();
        while self.s.take("let") {
            self.binding(&mut scalars)?;
            self.s.end_of_line()?;
        }
        let product = self.product()?;
        let (target, at) =
            self.element("a statement: `loop`, `once`, `quantise`, `for`, `let`, a buffer or a tile")?;
        self.s.expect("=")?;
        let mut fold = self.fold()?;
        let value = self.expr(&mut scalars)?;
        if let Some(folding) = &mut fold
            && self.s.take("from")
        {
            folding.init = Some(self.expr(&mut scalars)?);
        }
        self.s.end_of_line()?;
        Ok(Nest { target, at, loops, fold, exprs: scalars.into_exprs(), value, product })
    }

    /// `product left row f3 columns t2 along d4 quantised activations0`
    fn product(&mut self) -> Read<Option<Product>> {
        let Some(kind) = Kind::ALL.into_iter().find(|kind| self.s.take(kind.name())) else { return Ok(None) };
        let weight = self.named("the factor that is the weight", &Side::ALL, Side::name)?;
        let row = if self.s.take("row") { Some(self.var_id()?) } else { None };
        let mut vars = |word: &str| self.some_vars(word);
        let (columns, along, routed) = (vars("columns")?, vars("along")?, vars("routed")?);
        let activations = if self.s.take("quantised") { Some(self.activations_id()?) } else { None };
        self.s.end_of_line()?;
        Ok(Some(Product { kind, weight, row, columns, along, routed, activations }))
    }

    /// `sum d3 of`; a call such as `max(…)` is none.
    fn fold(&mut self) -> Read<Option<Folding>> {
        let mut ahead = self.s.clone();
        let named = ahead.word("").ok().and_then(Fold::named);
        let Some(fold) = named.filter(|_| !ahead.peek("(")) else { return Ok(None) };
        self.s = ahead;
        let loops = if self.s.peek("of") { Vec::new() } else { self.vars()? };
        self.s.expect("of")?;
        Ok(Some(Folding { fold, loops, init: None }))
    }

    /// Variables up to the end of the line or a word; there may be none only at the end of the line.
    fn vars(&mut self) -> Read<Vec<VarId>> {
        let mut vars = Vec::new();
        if self.s.clone().end_of_line().is_ok() {
            return Ok(vars);
        }
        loop {
            vars.push(self.var_id()?);
            if !self.s.take(",") {
                return Ok(vars);
            }
        }
    }

    /// Variables after a word, if it is there.
    fn some_vars(&mut self, word: &str) -> Read<Vec<VarId>> {
        if self.s.take(word) { self.vars() } else { Ok(Vec::new()) }
    }

    /// A word or a text in quotes.
    fn name(&mut self, what: &str) -> Read<String> {
        if self.s.peek("\"") { self.s.quoted(what) } else { Ok(self.s.word(what)?.to_owned()) }
    }

    fn named<T: Copy>(&mut self, what: &str, all: &[T], name: impl Fn(T) -> &'static str) -> Read<T> {
        let names: Vec<&str> = all.iter().map(|item| name(*item)).collect();
        let expected = format!("{what}: {}", names.join(", "));
        let at = self.s.clone();
        let word = self.s.word(&expected)?;
        let found = all.iter().copied().find(|item| name(*item) == word);
        found.ok_or_else(|| at.clone().error(expected))
    }

    /// Exactly this number, which the next thing declared must have.
    fn declared_number(&mut self, expected: &str, number: usize) -> Read<()> {
        let at = self.s.clone();
        let is_right = self.s.integer(expected)? == number as i64;
        if is_right { Ok(()) } else { Err(at.clone().error(expected)) }
    }

    /// A whole number of a magnitude that arithmetic can take.
    fn number(&mut self) -> Read<i64> {
        const EXPECTED: &str = "a whole number of at most 2^40";
        let at = self.s.clone();
        let value = self.s.integer(EXPECTED)?;
        if (-LIMIT..=LIMIT).contains(&value) { Ok(value) } else { Err(at.clone().error(EXPECTED)) }
    }

    fn list<T>(
        &mut self,
        open: &str,
        close: &str,
        mut item: impl FnMut(&mut Self) -> Read<T>,
    ) -> Read<Vec<T>> {
        let mut items = Vec::new();
        self.s.expect(open)?;
        if self.s.take(close) {
            return Ok(items);
        }
        loop {
            items.push(item(self)?);
            if self.s.take(close) {
                return Ok(items);
            }
            if !self.s.take(",") {
                return Err(self.s.error(format!("`,` or `{close}`")));
            }
        }
    }

    /// Reads something that may contain its own kind.
    fn nested<T>(&mut self, read: impl FnOnce(&mut Self) -> Read<T>) -> Read<T> {
        if self.depth == MAX_DEPTH {
            return Err(fail(&self.s, "too deep a nest", format!("at most {MAX_DEPTH} levels")));
        }
        self.depth += 1;
        let result = read(self);
        self.depth -= 1;
        result
    }
}

/// An error at `at` that says in its own words what is wrong there.
fn fail(at: &Scanner<'_>, found: impl Into<String>, expected: impl Into<String>) -> SyntaxError {
    SyntaxError { found: found.into(), ..at.clone().error(expected) }
}

fn label(at: &Scanner<'_>, text: &str) -> Read<Label> {
    Label::new(text).ok_or_else(|| fail(at, format!("a name of {} bytes", text.len()), "at most 16 bytes"))
}

#[cfg(test)]
mod tests;
