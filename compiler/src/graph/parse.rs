//! Reads a graph from its text form.
//!
//! In: text as `print.rs` writes it, or as a person does. Out: a graph whose types are inferred, or the first place
//! that does not read, with what would be accepted there.
//! No text makes it panic. Comments and the numbers of nodes are free; a node stands before its readers.
//! A line's operation is read by `parse_op.rs`, its sizes and names by `attributes.rs`; `verify.rs` says what a text
//! alone cannot.

use std::collections::BTreeMap;

use crate::foundation::text::{Scanner, SyntaxError};
use crate::graph::attributes::{axes, fail, is_too_large, label, name, number};
use crate::graph::parse_op::read_op;
use crate::graph::{BlockId, Graph, Name, Node, NodeId};
use crate::tensor::shape::Shape;
use crate::tensor::sym::Symbol;

/// The graph this text describes.
pub fn parse(text: &str) -> Result<Graph, SyntaxError> {
    let mut scanner = Scanner::new(text);
    let s = &mut scanner;
    let mut page = Page::default();
    while !s.at_end() {
        page.line(s)?;
        s.end_of_line()?;
    }
    if page.block.is_some() { Err(s.error("`end`")) } else { Ok(page.graph) }
}

/// What the lines above have said.
#[derive(Default)]
struct Page {
    graph: Graph,
    symbols: Vec<Symbol>,
    nodes: BTreeMap<i64, NodeId>,
    blocks: BTreeMap<Name, BlockId>,
    block: Option<BlockId>,
}

/// More arguments than any text needs, and few enough that their sizes can be added.
const MAX_ARGS: usize = 4096;

impl Page {
    fn line(&mut self, s: &mut Scanner<'_>) -> Result<(), SyntaxError> {
        if s.peek("%") {
            self.node(s)
        } else if s.take("symbol") {
            self.symbol(s)
        } else if s.take("output") {
            let name = name(s)?;
            s.expect("=")?;
            let (at, number) = id(s)?;
            let node = self.resolve(&at, number)?;
            if s.take("stored") {
                self.store(s, node)?;
            }
            self.graph.outputs.push((name, node));
            Ok(())
        } else if self.block.is_none() && s.take("block") {
            let name = name(s)?;
            let blocks = &mut self.graph.blocks;
            self.block = Some(*self.blocks.entry(name.clone()).or_insert_with(|| blocks.push(name)));
            Ok(())
        } else if self.block.is_some() && s.take("end") {
            self.block = None;
            Ok(())
        } else {
            let border = if self.block.is_some() { "end" } else { "block" };
            Err(s.error(format!("`%`, `symbol`, `{border}` or `output`")))
        }
    }

    /// The order in which the axes of an output lie in memory.
    fn store(&mut self, s: &mut Scanner<'_>, node: NodeId) -> Result<(), SyntaxError> {
        let at = s.clone();
        let order = axes(s)?;
        let own = &self.graph.nodes[node].ty.shape;
        let sized = order.iter().filter_map(|axis| Some((*axis, own.size(*axis)?.clone())));
        match Shape::new(sized).filter(|shape| order.len() == own.rank() && shape.same_axes(own)) {
            Some(shape) => {
                self.graph.nodes[node].ty.shape = shape;
                Ok(())
            }
            None => Err(fail(&at, format!("{own} has other axes"), "each of its axes once")),
        }
    }

    fn symbol(&mut self, s: &mut Scanner<'_>) -> Result<(), SyntaxError> {
        let at = s.clone();
        let name = label(&at, s.identifier("a symbol")?)?;
        if self.symbols.iter().any(|symbol| symbol.name == name) {
            return Err(fail(&at, format!("symbol {name} is declared already"), "another name"));
        }
        s.expect("in")?;
        let at_bounds = s.clone();
        let min = number(s)?;
        s.expect("..")?;
        let max = number(s)?;
        if min > max {
            return Err(fail(&at_bounds, format!("{min}..{max} is empty"), "the smaller bound first"));
        }
        s.expect("near")?;
        let at_near = s.clone();
        let near = number(s)?;
        if !(min..=max).contains(&near) {
            return Err(fail(
                &at_near,
                format!("{near} is out of bounds"),
                format!("a number in {min}..{max}"),
            ));
        }
        self.symbols.push(Symbol::new(name, min, max, near));
        Ok(())
    }

    fn node(&mut self, s: &mut Scanner<'_>) -> Result<(), SyntaxError> {
        let (at_id, number) = id(s)?;
        if self.nodes.contains_key(&number) {
            return Err(fail(&at_id, format!("%{number} is defined already"), "another number"));
        }
        s.expect("=")?;
        let at = s.clone();
        let op_name = s.word("an operation")?;
        let mut written = Vec::new();
        while s.peek("%") && written.len() < MAX_ARGS {
            written.push(id(s)?);
        }
        let op = read_op(&at, op_name, s, &self.symbols)?;
        let args: Result<Vec<NodeId>, _> =
            written.iter().map(|(at, number)| self.resolve(at, *number)).collect();
        let args = args?;
        let ty = self
            .graph
            .infer(&op, &args)
            .map_err(|misfit| fail(&at, format!("`{op_name}`: {misfit}"), "arguments that fit"))?;
        if is_too_large(&ty.shape) {
            return Err(fail(&at, format!("`{op_name}` makes {ty}"), "at most 2^40 elements"));
        }
        let node = self.graph.push(Node { op, args, ty, block: self.block, site: None });
        self.nodes.insert(number, node);
        Ok(())
    }

    fn resolve(&self, at: &Scanner<'_>, number: i64) -> Result<NodeId, SyntaxError> {
        let node = self.nodes.get(&number).copied();
        node.ok_or_else(|| fail(at, format!("%{number} is not defined above"), "an earlier node"))
    }
}

/// `%7`, and where it stands.
fn id<'a>(s: &mut Scanner<'a>) -> Result<(Scanner<'a>, i64), SyntaxError> {
    let at = s.clone();
    s.expect("%")?;
    if s.peek("-") {
        return Err(s.error("the number of a node"));
    }
    let number = s.integer("the number of a node")?;
    Ok((at, number))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    const HEAD: &str = "\
symbol P in 0..4095 near 1024
symbol T in 1..8 near 1

%0 = input x : f32[t:T, d:64]
%1 = weight blk.0.attn_norm : q8_0[d:64]
%2 = state blk.0.k : f32[s:4103, h:4, e:16]
%3 = iota v:T
";

    /// One line for each operation and form of an operation, to follow `HEAD`.
    pub(in crate::graph) const LINES: [&str; 34] = [
        "input z : i32[]",
        "weight w : int8.g64[v:10, d:64]",
        "state s : f16[s:4096, h:2]",
        "state s : q8_0[s:4096, h:64]",
        "const 1e-5",
        "const -3 : i32",
        "const 3.0",
        "table i [1.0, -0.0, inf]",
        "table i []",
        "iota q:2*P+T+1",
        "symbolic P*T-4",
        "symbolic -P",
        "neg %3",
        "rsqrt %0",
        "mul %0 %1",
        "lt %3 %3",
        "select %3 %0 %0",
        "cast %0 f16",
        "cast %0 bf16",
        "reduce-sum %0 over d",
        "reduce-max %0 over t",
        "split %0 d into [h:4, e:16]",
        "merge %2 [h, e] into d",
        "rename %0 d to k",
        "expand %0 h:4",
        "slice %0 d at 32 len 32",
        "slice %2 s at P len T",
        "concat %0 %0 along d",
        "contract %0 %1 over [d]",
        "contract %0 %1 over []",
        "gather %1 %3 along d",
        "top-k %0 d into r:2",
        "attend %0 %0 over [d]",
        "barrier %2",
    ];

    pub(in crate::graph) fn with_line(line: &str) -> String {
        format!("{HEAD}%4 = {line}\n")
    }

    /// The error of a line after `HEAD`, which is line 8.
    pub(in crate::graph) fn check(line: &str, expected: &str) {
        let error = parse(&with_line(line)).unwrap_err();
        assert_eq!(error.to_string(), expected);
    }

    /// The error of a whole text.
    pub(in crate::graph) fn check_text(text: &str, expected: &str) {
        assert_eq!(parse(text).unwrap_err().to_string(), expected);
    }

    #[test]
    fn blocks_of_one_name_are_one_block_and_numbers_are_free() {
        let graph = parse(
            "block a # first\n%70 = const 1.0\nend\n%7 = neg %70\nblock a\n%8 = neg %7\nend\noutput y = %8",
        )
        .unwrap();
        assert_eq!(graph.blocks.len(), 1);
        let blocks: Vec<bool> = graph.nodes.values().map(|node| node.block.is_some()).collect();
        assert_eq!(blocks, [true, false, true]);
        assert_eq!(graph.outputs[0].1.to_string(), "%2");
    }

    #[test]
    fn lines_that_do_not_start_well() {
        check_text("node", "line 1, column 1: found `node`, expected `%`, `symbol`, `block` or `output`");
        check_text(
            "block a\n block b",
            "line 2, column 2: found `block`, expected `%`, `symbol`, `end` or `output`",
        );
        check_text("block a\n", "line 2, column 1: the text ends, expected `end`");
        check_text("%x = const 1.0", "line 1, column 2: found `x`, expected the number of a node");
        check_text("%-1 = const 1.0", "line 1, column 2: found `-1`, expected the number of a node");
        check_text("%1 const 1.0", "line 1, column 4: found `const`, expected `=`");
        check_text(
            "%0 = input x : f32[t:2, d:4]\noutput y = %0 stored [d]",
            "line 2, column 22: [t:2, d:4] has other axes, expected each of its axes once",
        );
        check_text("output y = %1", "line 1, column 12: %1 is not defined above, expected an earlier node");
    }

    #[test]
    fn symbols_that_do_not_read() {
        check_text(
            "symbol P in 5..3 near 4",
            "line 1, column 13: 5..3 is empty, expected the smaller bound first",
        );
        check_text(
            "symbol P in 0..3 near 4",
            "line 1, column 23: 4 is out of bounds, expected a number in 0..3",
        );
        check_text("symbol P in 0..3", "line 1, column 17: the text ends, expected `near`");
        check_text(
            "symbol P in 0..3 near 1\nsymbol P in 0..3 near 1",
            "line 2, column 8: symbol P is declared already, expected another name",
        );
        check_text(
            "symbol a_very_long_symbol in 0..3 near 1",
            "line 1, column 8: a name of 18 bytes, expected at most 16 bytes",
        );
        check_text(
            "symbol P in 0..1099511627777 near 1",
            "line 1, column 16: found `1099511627777`, expected a whole number of at most 2^40",
        );
    }

    #[test]
    fn nodes_that_do_not_fit() {
        check("mul %0 %9", "line 8, column 13: %9 is not defined above, expected an earlier node");
        check("mul %0 %4", "line 8, column 13: %4 is not defined above, expected an earlier node");
        check("mul %0", "line 8, column 6: `mul`: takes 2 arguments, got 1, expected arguments that fit");
        check("mul %0 %1 d", "line 8, column 16: found `d`, expected the end of the line");
        check(
            "slice %0 d at 40 len 32",
            "line 8, column 6: `slice`: positions 40 to 72 of axis d leave [t:T, d:64], expected arguments that fit",
        );
        check(
            "write %0 %0 along []",
            "line 8, column 6: `write`: only a state can be written to, expected arguments that fit",
        );
        check(
            "expand %0 h:1099511627776",
            "line 8, column 6: `expand` makes f32[h:1099511627776, t:T, d:64], expected at most 2^40 elements",
        );
        check_text(
            &format!("{HEAD}%3 = neg %0"),
            "line 8, column 1: %3 is defined already, expected another number",
        );
    }

    #[test]
    fn the_example_in_the_docs_reads_and_verifies() {
        let docs = include_str!("../../../docs/graph.md");
        let example = docs.split("```graph\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
        assert_eq!(crate::graph::verify::verify(&parse(example).unwrap()), []);
    }

    fn valid_text() -> String {
        let nodes: Vec<String> =
            LINES.iter().enumerate().map(|(i, line)| format!("%{} = {line}\n", i + 4)).collect();
        format!("{HEAD}block blk.0\n{}end\noutput y = %9\n", nodes.concat())
    }

    /// Deletes, doubles or replaces what stands at `at`.
    fn mutate<T: Clone>(items: &mut Vec<T>, kind: u8, at: usize, with: &T) {
        let at = at % items.len().max(1);
        if items.is_empty() {
            items.push(with.clone());
        }
        match kind % 3 {
            0 => drop(items.remove(at)),
            1 => items.insert(at, items[at].clone()),
            _ => items[at] = with.clone(),
        }
    }

    #[test]
    fn the_text_that_is_mutated_is_valid() {
        let graph = parse(&valid_text()).unwrap();
        assert_eq!(parse(&graph.to_string()).unwrap(), graph);
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "(\\PC|\n)*") {
            let _ = parse(&text);
        }

        #[test]
        fn no_words_make_it_panic(words in prop::collection::vec(
            "(\n|%[0-3]|=|:|-|\\*|\\[|\\]|,|\\.\\.|[0-9]{1,19}|const|mul|split|slice|input|symbol|in|near|\
             block|end|at|len|x|d|nan\\.[0-9a-f]{8})",
            0..60,
        )) {
            let _ = parse(&words.join(" "));
        }

        #[test]
        fn no_slip_makes_it_panic(slips in prop::collection::vec((0u8..6, any::<usize>(), any::<char>()), 1..6)) {
            let mut text = valid_text();
            for (kind, at, with) in slips {
                if kind < 3 {
                    let mut chars: Vec<char> = text.chars().collect();
                    mutate(&mut chars, kind, at, &with);
                    text = chars.into_iter().collect();
                } else {
                    let mut lines: Vec<&str> = text.lines().collect();
                    let with = lines.get(at / 7 % lines.len().max(1)).copied().unwrap_or_default();
                    mutate(&mut lines, kind, at, &with);
                    text = lines.join("\n");
                }
            }
            if let Ok(graph) = parse(&text) {
                prop_assert_eq!(parse(&graph.to_string()).unwrap(), graph);
            }
        }
    }
}
