//! Who may import whom: the layer table of each crate.
//!
//! In: the table below and every `crate::…` path in production code. Out: an offence for each path that does not lead
//! downhill. Inside one top-level module anything goes, and `lib.rs` and test modules are free.
//! A module that is not in the table is an offence too: a new module needs a place.

use tree::{Offence, assert_none, offence};

use crate::source::{Source, braced, find_word, leading_name, line_at, sources, split_commas};

/// What one crate may use.
struct Layers {
    folder: &'static str,
    /// The other crates of the workspace it may name.
    crates: &'static [&'static str],
    /// Its top-level modules; each may import from smaller numbers only.
    modules: &'static [(&'static str, u8)],
    /// Its macros, which Rust keeps at the root of the crate, with the modules they belong to.
    macros: &'static [(&'static str, &'static str)],
}

const LAYERS: [Layers; 3] = [
    Layers {
        folder: "compiler/src/",
        crates: &[],
        modules: &[
            ("foundation", 0),
            ("tensor", 1),
            ("error", 1),
            ("options", 2),
            ("target", 1),
            ("story", 1),
            ("graph", 2),
            ("reference", 3),
            ("rewrite", 3),
            ("fuse", 4),
            ("kernel", 5),
            ("schedule", 6),
            ("codegen", 7),
            ("recount", 7),
            ("pipeline", 8),
            ("program", 9),
        ],
        macros: &[("define_id", "foundation")],
    },
    Layers {
        folder: "runtime/src/",
        crates: &["fusebox_compiler"],
        modules: &[
            ("error", 0),
            ("noted", 0),
            ("own", 0),
            ("files", 1),
            ("buffer", 1),
            ("threads", 0),
            ("device", 2),
            ("weights", 2),
            ("session", 3),
        ],
        macros: &[],
    },
    Layers {
        folder: "models/src/",
        crates: &["fusebox_compiler", "fusebox_runtime"],
        modules: &[
            ("config", 0),
            ("error", 0),
            ("naming", 0),
            ("sidecar", 0),
            ("hparams", 1),
            ("layers", 1),
            ("tokenizer", 2),
            ("chat", 2),
            ("sample", 1),
            ("stop", 1),
            ("families", 2),
            ("blocks", 3),
            ("binding", 3),
            ("quantize", 4),
            ("load", 4),
            ("generate", 5),
        ],
        macros: &[],
    },
];

/// The crates of the workspace, as code names them.
const CRATES: [&str; 4] = ["fusebox", "fusebox_compiler", "fusebox_models", "fusebox_runtime"];

fn module_offences(layers: &Layers, source: &Source) -> Vec<Offence> {
    let Some(inner) = source.path.strip_prefix(layers.folder) else { return Vec::new() };
    let own = inner.split('/').next().unwrap_or(inner).trim_end_matches(".rs");
    if own == "lib" {
        return Vec::new();
    }
    let layer = |module: &str| layers.modules.iter().find(|(name, _)| *name == module).map(|(_, n)| *n);
    let Some(own_layer) = layer(own) else {
        return vec![offence(&source.path, 1, format!("`{own}` is not in the layer table: give it a layer"))];
    };
    let mut offences = Vec::new();
    for (line, name) in crate_paths(&source.production) {
        let module = layers.macros.iter().find(|(m, _)| *m == name).map_or(name, |(_, module)| module);
        let what = match layer(module) {
            _ if module == own => continue,
            Some(n) if n < own_layer => continue,
            Some(n) => {
                format!("`{own}` (layer {own_layer}) uses `{module}` (layer {n}): imports go downhill only")
            }
            None => format!("`crate::{name}` is in no layer: name the module it comes from"),
        };
        offences.push(offence(&source.path, line, what));
    }
    offences
}

fn crate_offences(layers: &Layers, source: &Source) -> Vec<Offence> {
    if !source.path.starts_with(layers.folder) {
        return Vec::new();
    }
    let refused = CRATES.iter().filter(|name| !layers.crates.contains(name));
    let uses = refused.flat_map(|name| find_word(&source.code, name).into_iter().map(move |at| (at, name)));
    let uses = uses.filter(|(at, name)| source.code[at + name.len()..].starts_with("::"));
    let what = |name: &str| format!("`{name}` stands above this crate, which may use {:?}", layers.crates);
    uses.map(|(at, name)| offence(&source.path, line_at(&source.code, at), what(name))).collect()
}

/// The first names after `crate::`, each with its line.
fn crate_paths(code: &str) -> Vec<(usize, &str)> {
    let mut paths = Vec::new();
    for at in find_word(code, "crate") {
        let Some(rest) = code[at + "crate".len()..].strip_prefix("::") else { continue };
        let names = braced(rest).map_or_else(|| vec![rest], split_commas);
        let names = names.into_iter().map(|name| leading_name(name.trim_start()));
        paths.extend(names.filter(|n| !n.is_empty() && *n != "self").map(|n| (line_at(code, at), n)));
    }
    paths
}

#[test]
fn modules_import_from_lower_layers_only() {
    let sources = sources();
    let pairs = LAYERS.iter().flat_map(|layers| sources.iter().map(move |source| (layers, source)));
    let offences: Vec<Offence> = pairs.flat_map(|(layers, source)| module_offences(layers, source)).collect();
    assert_none(&offences);
}

#[test]
fn crates_depend_one_way() {
    let sources = sources();
    let pairs = LAYERS.iter().flat_map(|layers| sources.iter().map(move |source| (layers, source)));
    let offences: Vec<Offence> = pairs.flat_map(|(layers, source)| crate_offences(layers, source)).collect();
    assert_none(&offences);
}

#[cfg(test)]
mod tests {
    use super::*;
    use tree::File;

    fn source(path: &str, text: &str) -> Source {
        Source::new(File { path: path.to_owned(), text: text.to_owned() })
    }

    fn offending_lines(path: &str, text: &str) -> Vec<usize> {
        module_offences(&LAYERS[0], &source(path, text)).iter().map(|o| o.line).collect()
    }

    #[test]
    fn paths_are_found_in_lists_and_in_code() {
        let code = "use crate::{\n    a::{b, c}, d,\n};\nfn f() { crate::e::g() }\npub(crate) fn h() {}";
        assert_eq!(crate_paths(code), [(1, "a"), (1, "d"), (4, "e")]);
    }

    #[test]
    fn uphill_and_level_imports_are_offences() {
        assert_eq!(offending_lines("compiler/src/tensor/sym.rs", "//!\nuse crate::graph::Graph;"), [2]);
        assert_eq!(
            offending_lines("compiler/src/rewrite/mod.rs", "use crate::{error, reference::run};"),
            [1]
        );
        assert_eq!(offending_lines("compiler/src/mystery.rs", ""), [1]);
        assert_eq!(offending_lines("compiler/src/graph/op.rs", "use crate::Gone;"), [1]);
    }

    #[test]
    fn downhill_imports_and_tests_are_free() {
        assert_eq!(offending_lines("compiler/src/graph/op.rs", "use crate::tensor::sym::Sym;"), [0; 0]);
        assert_eq!(
            offending_lines("compiler/src/graph/op.rs", "use crate::graph::Name; // crate::fuse"),
            [0; 0]
        );
        assert_eq!(offending_lines("compiler/src/foundation/entity.rs", "use crate::define_id;"), [0; 0]);
        let tests = "#[cfg(test)]\nmod tests { use crate::fuse::Region; }";
        assert_eq!(offending_lines("compiler/src/graph/op.rs", tests), [0; 0]);
    }

    #[test]
    fn a_crate_above_may_not_be_named() {
        let upward =
            source("runtime/src/device/mod.rs", "use fusebox_compiler::graph;\nuse fusebox_models::load;");
        let lines: Vec<usize> = crate_offences(&LAYERS[1], &upward).iter().map(|o| o.line).collect();
        assert_eq!(lines, [2]);
    }
}
