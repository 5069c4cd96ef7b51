//! Every operation is complete: typed, printed, parsed, defined and described.
//!
//! In: the variants of `Op`, read from the text of its declaration. Out: an offence for each place that forgot one.
//! It goes by names only; that the places say the right thing is for their own tests.

use tree::{Offence, assert_none, files, offence};

use crate::source::{Source, braced, find_word, leading_name, line_at, sources, split_commas};

/// Where `Op` is declared.
const DECLARATION: &str = "compiler/src/graph/op.rs";

/// Where each operation must be named: a file, or a folder with some file that does.
const PLACES: [&str; 4] = [
    "compiler/src/graph/infer",
    "compiler/src/graph/print",
    "compiler/src/graph/parse_op",
    "compiler/src/reference",
];

/// The document that describes them.
const DOCUMENT: &str = "docs/graph.md";

/// The variants of `pub enum Op`, each with its line.
fn variants(code: &str) -> Vec<(usize, &str)> {
    const HEAD: &str = "pub enum Op ";
    let Some(start) = code.find(HEAD).map(|at| at + HEAD.len()) else { return Vec::new() };
    let Some(body) = braced(&code[start..]) else { return Vec::new() };
    let parts = split_commas(body).into_iter().map(without_attributes);
    let names = parts.map(leading_name).filter(|name| !name.is_empty());
    names.map(|name| (line_at(code, name.as_ptr() as usize - code.as_ptr() as usize), name)).collect()
}

fn without_attributes(part: &str) -> &str {
    let part = part.trim_start();
    match part.strip_prefix("#[").and_then(|p| p.split_once(']')) {
        Some((_, rest)) => without_attributes(rest),
        None => part,
    }
}

/// The name of a variant in text forms, as its `name` function gives it; for a family, the family's.
fn text_name(text: &str, variant: &str) -> String {
    let arm = text.lines().map(str::trim).find_map(|line| {
        let (pattern, value) = line.split_once(" => \"")?;
        let own = pattern.strip_prefix("Self::").is_some_and(|p| leading_name(p) == variant);
        own.then(|| value.split('"').next()).flatten()
    });
    arm.map_or_else(|| variant.to_owned(), str::to_owned)
}

/// Whether a file is `place` or lies in it.
fn is_at(path: &str, place: &str) -> bool {
    path.strip_prefix(place).is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
}

fn missing_in_code(variants: &[(usize, &str)], place: &str, sources: &[Source]) -> Vec<Offence> {
    let own: Vec<&Source> = sources.iter().filter(|s| is_at(&s.path, place)).collect();
    let is_named = |variant: &str| {
        let path = format!("Op::{variant}");
        own.iter().any(|s| !find_word(&s.production, &path).is_empty())
    };
    let missing = variants.iter().filter(|(_, variant)| !is_named(variant));
    let what = |variant: &str| format!("`Op::{variant}` is not in {place}");
    missing.map(|(line, variant)| offence(DECLARATION, *line, what(variant))).collect()
}

#[test]
fn every_operation_is_typed_printed_parsed_and_defined() {
    let sources = sources();
    let declaration = sources.iter().find(|s| s.path == DECLARATION).expect("the operations are declared");
    let variants = variants(&declaration.code);
    assert!(!variants.is_empty(), "no `pub enum Op` in {DECLARATION}");
    assert_none(&PLACES.iter().flat_map(|p| missing_in_code(&variants, p, &sources)).collect::<Vec<_>>());
}

#[test]
fn every_operation_is_described() {
    let sources = sources();
    let declaration = sources.iter().find(|s| s.path == DECLARATION).expect("the operations are declared");
    let document = files(&["md"]).into_iter().find(|f| f.path == DOCUMENT).map_or(String::new(), |f| f.text);
    let names =
        variants(&declaration.code).into_iter().map(|(line, v)| (line, text_name(&declaration.text, v)));
    let missing = names.filter(|(_, name)| find_word(&document, name).is_empty());
    let what = |name: &str| format!("`{name}` is not described in {DOCUMENT}");
    assert_none(&missing.map(|(line, name)| offence(DECLARATION, line, what(&name))).collect::<Vec<_>>());
}

#[cfg(test)]
mod tests {
    use super::*;
    use tree::File;

    const ENUM: &str = "/// Doc, with comma.\npub enum Op {\n    /// A, b.\n    Input { name: Name, ty: Type },\n    \
        Const(Scalar),\n    #[default]\n    TopK,\n}\nimpl Op {\n  Self::TopK { .. } => \"top-k\",\n}\n";

    fn source(path: &str, text: &str) -> Source {
        Source::new(File { path: path.to_owned(), text: text.to_owned() })
    }

    #[test]
    fn variants_are_read_from_the_declaration() {
        let source = source(DECLARATION, ENUM);
        assert_eq!(variants(&source.code), [(4, "Input"), (5, "Const"), (7, "TopK")]);
        assert_eq!(text_name(ENUM, "TopK"), "top-k");
        assert_eq!(text_name(ENUM, "Const"), "Const");
    }

    #[test]
    fn a_forgotten_variant_is_found() {
        let code =
            "Op::Input => 1, // Op::Top\nOp::TopKind\n#[cfg(test)]\nmod tests { const A: Op = Op::Top; }";
        let sources = [source("compiler/src/graph/infer.rs", code)];
        let missing = missing_in_code(&[(4, "Input"), (7, "Top")], PLACES[0], &sources);
        assert_eq!(missing.iter().map(|o| o.line).collect::<Vec<_>>(), [7]);
    }

    #[test]
    fn a_place_is_a_file_or_a_folder() {
        assert!(is_at("a/print.rs", "a/print") && is_at("a/print/x.rs", "a/print"));
        assert!(!is_at("a/printer.rs", "a/print"));
    }
}
