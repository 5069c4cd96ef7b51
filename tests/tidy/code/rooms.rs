//! How the tree is cut into folders and files: how many lie side by side, and which import each other in circles.
//!
//! In: paths, and the import paths of production code. Out: an offence for each folder with many files, and for each
//! circle of many files; a reader of one file of a circle has to know all of them.
//! The lists below are what is still too large (known gap `large-rooms`); an entry that is no longer true is an offence
//! as well.

use std::collections::{BTreeMap, BTreeSet};

use tree::{Offence, assert_none, offence, paths};

use crate::source::{Source, braced, find_word, leading_name, sources, split_commas};

/// The most Rust files that lie side by side in a folder.
const MAX_FILES: usize = 12;

/// The most files that import each other in a circle.
const MAX_CIRCLE: usize = 3;

/// Folders with more files, and the number of these.
const LARGE_FOLDERS: &[(&str, usize)] = &[("examples", 13)];

/// Larger circles, by the file of each that comes first, and the number of its files.
const LARGE_CIRCLES: &[(&str, usize)] = &[];

/// The folders that crates begin in.
const ROOTS: [&str; 10] = [
    "cli/",
    "compiler/formats/src/",
    "compiler/simd/src/",
    "compiler/src/",
    "fuzz/",
    "hub/src/",
    "models/src/",
    "runtime/src/",
    "serve/src/",
    "src/",
];

fn folder_offences(paths: &[String], large: &[(&str, usize)]) -> Vec<Offence> {
    let mut folders: BTreeMap<&str, usize> = BTreeMap::new();
    let files = paths.iter().filter_map(|path| path.strip_suffix(".rs")?.rsplit_once('/'));
    for (folder, _) in files {
        *folders.entry(folder).or_default() += 1;
    }
    folders.retain(|_, n| *n > MAX_FILES);
    let what =
        |_: &str, n: usize| format!("{n} files lie side by side, at most {MAX_FILES} are taken in at once");
    differences(&folders, large, what)
}

fn circle_offences(sources: &[Source], large: &[(&str, usize)]) -> Vec<Offence> {
    let circles = circles(sources);
    let sizes = circles.iter().map(|circle| (circle[0], circle.len())).collect();
    let what = |first: &str, n: usize| {
        let others = circles.iter().find(|circle| circle[0] == first).map(|circle| circle[1..].join(", "));
        let others = others.unwrap_or_default();
        format!("{n} files import each other in a circle, at most {MAX_CIRCLE} may: this one, {others}")
    };
    differences(&sizes, large, what)
}

/// Offences for what is not on a list, and for what is on it and not so.
fn differences(
    found: &BTreeMap<&str, usize>,
    listed: &[(&str, usize)],
    what: impl Fn(&str, usize) -> String,
) -> Vec<Offence> {
    let unlisted = found.iter().filter(|(path, n)| !listed.contains(&(**path, **n)));
    let stale = listed.iter().filter(|(path, n)| found.get(path) != Some(n));
    let stale = stale.map(|(path, n)| offence(path, 1, format!("is on the list with {n}, which it has not")));
    unlisted.map(|(path, n)| offence(path, 1, what(path, *n))).chain(stale).collect()
}

/// The circles of more than [`MAX_CIRCLE`] files, each sorted.
fn circles(sources: &[Source]) -> Vec<Vec<&str>> {
    let imports = imports(sources);
    let reachable: BTreeMap<&str, BTreeSet<&str>> =
        imports.keys().map(|path| (*path, reached(&imports, path))).collect();
    let mut circles = BTreeSet::new();
    for (path, others) in &reachable {
        let circle: Vec<&str> =
            others.iter().copied().filter(|other| reachable[other].contains(path)).collect();
        if circle.len() > MAX_CIRCLE {
            circles.insert(circle);
        }
    }
    circles.into_iter().collect()
}

/// The files that a file comes to by one import or several.
fn reached<'s>(imports: &BTreeMap<&'s str, BTreeSet<&'s str>>, path: &'s str) -> BTreeSet<&'s str> {
    let (mut reached, mut next) = (BTreeSet::new(), vec![path]);
    while let Some(path) = next.pop() {
        next.extend(imports[path].iter().copied().filter(|other| reached.insert(*other)));
    }
    reached
}

/// The files that each file imports from, within its crate.
fn imports(sources: &[Source]) -> BTreeMap<&str, BTreeSet<&str>> {
    let mut imports = BTreeMap::new();
    for root in ROOTS {
        let own = sources.iter().filter_map(|source| Some((module(source.path.strip_prefix(root)?), source)));
        let own: BTreeMap<Vec<&str>, &Source> = own.collect();
        for (module, source) in &own {
            let mut files = BTreeSet::new();
            for path in module_paths(&own, module, &source.production) {
                let known = (0..=path.len()).rev().find_map(|n| own.get(&path[..n]));
                files.extend(known.map(|other| other.path.as_str()).filter(|other| *other != source.path));
            }
            imports.insert(source.path.as_str(), files);
        }
    }
    imports
}

/// The module that a file of a crate is; the root is empty.
fn module(path: &str) -> Vec<&str> {
    let mut names: Vec<&str> = path.trim_end_matches(".rs").split('/').collect();
    names.pop_if(|name| ["lib", "main", "mod"].contains(name));
    names
}

/// The paths in the code of a module, from the root of its crate.
fn module_paths<'c>(
    modules: &BTreeMap<Vec<&str>, &Source>,
    module: &[&'c str],
    code: &'c str,
) -> Vec<Vec<&'c str>> {
    let children = modules.keys().filter_map(|path| Some((path.split_last()?, path)));
    let children: Vec<&str> =
        children.filter(|((_, parent), _)| *parent == module).map(|((name, _), _)| *name).collect();
    let mut found = Vec::new();
    for word in ["crate", "self", "super"].into_iter().chain(children) {
        for at in find_word(code, word) {
            let before = &code[..at];
            if before.ends_with("::") || before.ends_with("in ") || !code[at + word.len()..].starts_with("::")
            {
                continue;
            }
            found.extend(import_paths(&code[at..]).into_iter().map(|path| absolute(module, &path)));
        }
    }
    found
}

/// The paths of an import, or of a name in code.
fn import_paths(code: &str) -> Vec<Vec<&str>> {
    let code = code.trim_start();
    let name = leading_name(code);
    let after = code[name.len()..].strip_prefix("::").filter(|_| !name.is_empty());
    let inner = match after.map(|rest| (rest, braced(rest))) {
        None => Vec::new(),
        Some((_, Some(list))) => split_commas(list).into_iter().flat_map(import_paths).collect(),
        Some((rest, None)) => import_paths(rest),
    };
    let inner = if inner.is_empty() { vec![Vec::new()] } else { inner };
    inner.into_iter().map(|path| [vec![name], path].concat()).collect()
}

/// A path from the root of the crate.
fn absolute<'c>(module: &[&'c str], path: &[&'c str]) -> Vec<&'c str> {
    let mut base = module.to_vec();
    let mut rest = path;
    while let [first, others @ ..] = rest {
        match *first {
            "crate" => base.clear(),
            "super" => drop(base.pop()),
            "self" => {}
            _ => break,
        }
        rest = others;
    }
    base.extend(rest);
    base
}

#[test]
fn folders_have_few_files() {
    assert_none(&folder_offences(&paths(), LARGE_FOLDERS));
}

#[test]
fn few_files_import_each_other() {
    assert_none(&circle_offences(&sources(), LARGE_CIRCLES));
}

#[cfg(test)]
mod tests {
    use super::*;
    use tree::File;

    /// A ring of modules, each importing from the next in a way of its own.
    fn ring(last: &str) -> Vec<Source> {
        let files = [
            ("compiler/src/lib.rs", "pub mod a;\npub mod b;"),
            ("compiler/src/a/mod.rs", "mod c;\nfn f() { c::g() }"),
            ("compiler/src/a/c.rs", "use super::d::{self, G};"),
            ("compiler/src/a/d.rs", "use crate::{b, x::Y};\npub(in crate::a) fn g() {}"),
            ("compiler/src/b.rs", last),
        ];
        let source =
            |(path, text): (&str, &str)| Source::new(File { path: path.to_owned(), text: text.to_owned() });
        files.map(source).into()
    }

    #[test]
    fn a_circle_is_found_through_every_kind_of_path() {
        let all =
            ["compiler/src/a/c.rs", "compiler/src/a/d.rs", "compiler/src/a/mod.rs", "compiler/src/b.rs"];
        for last in ["use crate::a::F;", "fn f() -> crate::a::F { }", "use super::{a::F};"] {
            assert_eq!(circles(&ring(last)), [all], "{last}");
        }
        for last in ["", "use std::a;", "// use crate::a::F;", "#[cfg(test)]\nmod tests { use crate::a::F; }"]
        {
            assert!(circles(&ring(last)).is_empty(), "{last}");
        }
    }

    #[test]
    fn what_is_listed_must_be_so() {
        let n = |list| circle_offences(&ring("use crate::a::F;"), list).len();
        assert_eq!([n(&[]), n(&[("compiler/src/a/c.rs", 4)]), n(&[("compiler/src/a/c.rs", 5)])], [1, 0, 2]);
        let paths: Vec<String> = (0..=MAX_FILES).map(|n| format!("a/b{n}.rs")).collect();
        let n = |paths, list| folder_offences(paths, list).len();
        assert_eq!([n(&paths, &[]), n(&paths, &[("a", 13)]), n(&paths[1..], &[("a", 13)])], [1, 0, 1]);
    }
}
