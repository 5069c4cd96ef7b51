//! Gathers the symbols a kernel mentions.
//!
//! In: a kernel. Out: every symbol in its shapes, ranges and indices, sorted by name, each name once.
//! A symbol that is missed here would print a text that does not parse. `verify` complains of one name with two
//! ranges, with the help of [`all_symbols`].

use crate::kernel::index::{Atom, Index};
use crate::kernel::walk::nests;
use crate::kernel::{Blocks, Kernel, Nest, Part, Range};
use crate::tensor::sym::Symbol;

/// Every symbol, sorted by name, each name once.
pub(crate) fn symbols(kernel: &Kernel) -> Vec<Symbol> {
    let mut symbols = all_symbols(kernel);
    symbols.sort();
    symbols.dedup();
    symbols
}

/// Every mention of a symbol, in the order of the text.
pub(in crate::kernel) fn all_symbols(kernel: &Kernel) -> Vec<Symbol> {
    let sizes = kernel.params.values().flat_map(|param| param.shape.iter());
    let mut symbols: Vec<Symbol> = sizes.flat_map(|(_, size)| size.symbols()).collect();
    for part in &kernel.parts {
        of_ranges(part, &mut symbols);
        part.routed.iter().for_each(|routed| of_index(&routed.by, &mut symbols));
        nests(&part.body).flat_map(Nest::indices).for_each(|index| of_index(index, &mut symbols));
    }
    symbols
}

fn of_ranges(part: &Part, symbols: &mut Vec<Symbol>) {
    for var in part.vars.values() {
        match &var.range {
            Range::Whole { len } => symbols.extend(len.symbols()),
            Range::Blocks(Blocks { start, end, .. }) => {
                of_index(start, symbols);
                symbols.extend(end.symbols());
            }
            Range::Within { .. } => {}
        }
        var.until.iter().for_each(|bound| of_index(bound, symbols));
    }
}

fn of_index(index: &Index, symbols: &mut Vec<Symbol>) {
    index.any(&mut |atom| {
        if let Atom::Symbols(product) = atom {
            symbols.extend(product);
        }
        false
    });
}
