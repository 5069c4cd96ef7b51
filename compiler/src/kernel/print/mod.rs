//! Writes a kernel as text that a person follows and `parse` reads back.
//!
//! In: any kernel. Out: its symbols, its buffers, and for each part its tiles, variables, grid and statements.
//! Variables are written as axis and number (`h1`), tiles as `tile0`, buffers as `@0`; equal scalars of a nest stand
//! once, in the order of the text.
//! What parses back prints alike, whatever the kernel; nothing here may panic on one that does not verify.
//! Indices are written by `index.rs`, scalars by `expr.rs`; `docs/kernel.md` describes the text.

use std::fmt;

use crate::foundation::entity::Id;
use crate::kernel::product::{Activations, Product};
use crate::kernel::{
    Access, ActivationsId, Blocks, Kernel, Nest, Param, Part, Place, Range, RoutedRows, Stmt, VarId,
};
use crate::tensor::shape::Shape;

mod expr;
mod index;
mod symbols;

pub(super) use index::{access_text, index_text, place_text, spelled, var_text};
use index::{quoted_unless_word, sym_text, symbol_text};
pub(super) use symbols::all_symbols;
pub(crate) use symbols::symbols;

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for symbol in symbols(self) {
            let name = symbol_text(&symbol);
            writeln!(f, "symbol {name} in {}..{} near {}", symbol.min, symbol.max, symbol.near)?;
        }
        writeln!(f, "kernel {:?} {}", self.name, self.skeleton)?;
        for (id, param) in self.params.iter() {
            writeln!(f, "  {} {id} {}", access_word(param.access), param_text(param))?;
        }
        self.parts.iter().try_for_each(|part| write_part(f, part))
    }
}

fn access_word(access: Access) -> &'static str {
    match access {
        Access::Read => "read",
        Access::Write => "write",
    }
}

fn param_text(param: &Param) -> String {
    format!("{} : {}{}", quoted_unless_word(&param.name), param.format, shape_text(&param.shape))
}

fn shape_text(shape: &Shape) -> String {
    let axis = |name: &str| quoted_unless_word(name);
    let axes: Vec<String> =
        shape.iter().map(|(name, size)| format!("{}:{}", axis(name.as_str()), sym_text(size))).collect();
    format!("[{}]", axes.join(", "))
}

fn write_part(f: &mut fmt::Formatter<'_>, part: &Part) -> fmt::Result {
    writeln!(f, "part")?;
    for (id, tile) in part.tiles.iter() {
        writeln!(f, "  tile tile{} : {}{:?}", id.index(), tile.dtype, tile.dims)?;
    }
    for id in part.vars.ids() {
        writeln!(f, "  var {}", declaration(part, id))?;
    }
    writeln!(f, "  {}", with_vars("grid", part, &part.grid))?;
    if let Some(routed) = &part.routed {
        writeln!(f, "  {}", routed_text(part, routed))?;
    }
    for (id, activations) in part.activations.iter() {
        writeln!(f, "  {}", activations_text(part, id, activations))?;
    }
    write_body(f, part, &part.body, 1)
}

fn declaration(part: &Part, id: VarId) -> String {
    let var = &part.vars[id];
    let label = match spelled(var.name.as_str(), id) {
        Some(name) => name,
        None => format!("v{} {:?}", id.index(), var.name.as_str()),
    };
    let range = match &var.range {
        Range::Whole { len } => format!("in 0..{}", sym_text(len)),
        Range::Blocks(Blocks { start, step, block, end }) => {
            let start = index_text(start, &part.vars);
            format!("in blocks of {block} step {step} from {start} to {}", sym_text(end))
        }
        Range::Within { of } => format!("within {}", var_text(&part.vars, *of)),
    };
    let until = var.until.iter().map(|bound| index_text(bound, &part.vars));
    [format!("{label} {range}")].into_iter().chain(until).collect::<Vec<_>>().join(" until ")
}

/// `list tile3 along block10 of t0, k1 where lookup(@2[t0, k1], 8) = expert9`
fn routed_text(part: &Part, routed: &RoutedRows) -> String {
    let RoutedRows { rows, by, expert, list, along } = routed;
    let [along, expert] = [along, expert].map(|var| var_text(&part.vars, *var));
    let (list, by) = (place_text(Place::Tile(*list)), index_text(by, &part.vars));
    let rows = with_vars("of", part, rows);
    format!("list {list} along {along} {rows} where {by} = {expert}")
}

/// `quantised ahead activations0 : @0[t2, d4] columns t2 along d4`
fn activations_text(part: &Part, id: ActivationsId, activations: &Activations) -> String {
    let Activations { from, at, around, columns, along, is_ahead } = activations;
    let from = access_text(*from, at, &part.vars);
    let loops = [("around", around), ("columns", columns), ("along", along)];
    let loops = loops.map(|(word, vars)| with_some_vars(word, part, vars)).concat();
    format!("quantised {}{id} : {from}{loops}", if *is_ahead { "ahead " } else { "" })
}

/// `product left row f3 columns t2 along d4 quantised activations0`
fn product_text(part: &Part, product: &Product) -> String {
    let Product { kind, weight, row, columns, along, routed, activations } = product;
    let loops = [("row", row.as_slice()), ("columns", columns), ("along", along), ("routed", routed)];
    let loops = loops.map(|(word, vars)| with_some_vars(word, part, vars)).concat();
    let quantised = activations.map(|id| format!(" quantised {id}")).unwrap_or_default();
    format!("{} {}{loops}{quantised}", kind.name(), weight.name())
}

/// A space, a word and then the names of variables, where there are any.
fn with_some_vars(word: &str, part: &Part, vars: &[VarId]) -> String {
    if vars.is_empty() { String::new() } else { format!(" {}", with_vars(word, part, vars)) }
}

/// A word and then the names of variables.
fn with_vars(word: &str, part: &Part, vars: &[VarId]) -> String {
    let names: Vec<String> = vars.iter().map(|var| var_text(&part.vars, *var)).collect();
    if names.is_empty() { word.to_owned() } else { format!("{word} {}", names.join(", ")) }
}

fn write_body(f: &mut fmt::Formatter<'_>, part: &Part, body: &[Stmt], depth: usize) -> fmt::Result {
    let indent = "  ".repeat(depth);
    for stmt in body {
        match stmt {
            Stmt::Nest(nest) => write_nest(f, part, nest, &indent)?,
            Stmt::Loop { var, body } => {
                writeln!(f, "{indent}loop {}", var_text(&part.vars, *var))?;
                write_body(f, part, body, depth + 1)?;
                writeln!(f, "{indent}end")?;
            }
            Stmt::Once { per, body } => {
                writeln!(f, "{indent}once{}", with_some_vars("per", part, per))?;
                write_body(f, part, body, depth + 1)?;
                writeln!(f, "{indent}end")?;
            }
            Stmt::Quantise(id) => writeln!(f, "{indent}quantise {id}")?,
        }
    }
    Ok(())
}

fn write_nest(f: &mut fmt::Formatter<'_>, part: &Part, nest: &Nest, indent: &str) -> fmt::Result {
    let scalars = expr::scalars(nest, &part.vars);
    let mut indent = indent.to_owned();
    if !nest.loops.is_empty() {
        writeln!(f, "{indent}{}", with_vars("for", part, &nest.loops))?;
        indent.push_str("  ");
    }
    for (number, text) in scalars.lets.iter().enumerate() {
        writeln!(f, "{indent}let %{number} = {text}")?;
    }
    if let Some(product) = &nest.product {
        writeln!(f, "{indent}{}", product_text(part, product))?;
    }
    write!(f, "{indent}{} = ", access_text(nest.target, &nest.at, &part.vars))?;
    if let Some(folding) = &nest.fold {
        write!(f, "{} of ", with_vars(folding.fold.name(), part, &folding.loops))?;
    }
    let init = scalars.init.map(|init| format!(" from {init}")).unwrap_or_default();
    writeln!(f, "{}{init}", scalars.value)
}

#[cfg(test)]
mod tests {
    use crate::foundation::entity::Id;
    use crate::graph::op::{Binary, Scalar};
    use crate::kernel::parse::parse;
    use crate::kernel::samples;
    use crate::kernel::{Expr, ExprId, Stmt};

    #[test]
    fn samples_print_as_they_are_written() {
        for text in samples::ALL {
            let kernel = parse(text).unwrap();
            assert_eq!(kernel.to_string(), text);
            assert_eq!(parse(&kernel.to_string()).unwrap(), kernel);
        }
    }

    #[test]
    fn equal_scalars_stand_once_and_deep_ones_are_cut() {
        let mut kernel = parse(samples::MAP).unwrap();
        let Stmt::Nest(nest) = &mut kernel.parts[0].body[0] else { unreachable!() };
        let one = || Expr::Const(Scalar::float(f32::from_bits(0xffc0_0001)));
        nest.exprs = std::iter::once(one()).collect();
        let mut last = ExprId::from_index(0);
        for _ in 0..40 {
            let again = nest.exprs.push(one());
            last = nest.exprs.push(Expr::Binary(Binary::Add, last, again));
        }
        nest.value = last;
        let text = kernel.to_string();
        assert!(text.contains("let %2 = add(add("), "{text}");
        assert!(text.contains("nan.ffc00001"), "{text}");
        assert_eq!(parse(&text).unwrap().to_string(), text);
    }

    #[test]
    fn a_broken_kernel_prints_too() {
        let mut kernel = parse(samples::MAP).unwrap();
        let Stmt::Nest(nest) = &mut kernel.parts[0].body[0] else { unreachable!() };
        nest.value = ExprId::from_index(99);
        assert!(kernel.to_string().contains("= ?"));
    }
}
