//! Who may import whom: the layer table of each crate.
//!
//! In: the table below and every `crate::…` path in production code. Out: an offence for each path that does not lead
//! downhill. Inside one top-level module anything goes, and `lib.rs` and test modules are free.
//! A module that is not in the table is an offence too: a new module needs a place.
//! `docs/architecture.md` has these tables; this file writes them.

use tree::marked::hold;
use tree::{Offence, assert_none, exists, offence, root};

use crate::source::{Source, braced, find_word, leading_name, line_at, sources, split_commas};

/// What one crate may use.
struct Layers {
    folder: &'static str,
    /// The other crates of the workspace it may name.
    crates: &'static [&'static str],
    /// Its top-level modules; each may import from smaller numbers only.
    modules: &'static [Module],
    /// Its macros, which Rust keeps at the root of the crate, with the modules they belong to.
    macros: &'static [(&'static str, &'static str)],
}

/// A module: its name, its layer, what it is, and what it never does.
type Module = (&'static str, u8, &'static str, &'static str);

const LAYERS: [Layers; 5] = [
    Layers {
        folder: "compiler/src/",
        crates: &["fusebox_formats", "fusebox_simd"],
        modules: &[
            (
                "foundation",
                0,
                "ids, lists, hash, scanner, seeded numbers, amounts and tables as text",
                "know tensors",
            ),
            (
                "tensor",
                1,
                "data types, quantised formats, symbolic sizes, named shapes, values",
                "know operations",
            ),
            ("target", 1, "what a device offers: capabilities, rates, tuning", "talk to a device"),
            ("error", 1, "what went wrong, with its place", "decide anything"),
            ("story", 1, "what each stage did and why", "decide anything"),
            ("options", 5, "every knob, declared once", "hold global state"),
            ("graph", 2, "operations, types, text form, division into blocks", "run anything"),
            ("reference", 3, "the meaning of each operation: a slow evaluator", "hold a fast path"),
            ("rewrite", 4, "equal forms in an e-graph, the cheapest extracted", "approximate"),
            (
                "fuse",
                4,
                "which values are stored, which share a launch, and why",
                "look at loops or instruction sets",
            ),
            (
                "kernel",
                5,
                "tasks, tiles, loop nests; lowering, counting, interpreting",
                "decide what is fused",
            ),
            ("schedule", 6, "order of launches, buffer lifetimes, the arena", "know e-graphs or models"),
            (
                "prepare",
                7,
                "passes that make the kernels of a target: products selected, tasks ordered, activations quantised",
                "know a code generator",
            ),
            (
                "codegen",
                7,
                "kernels as code for one kind of device",
                "change a kernel or a format, or look for products",
            ),
            ("forms", 8, "what computes each product, for people", "decide anything"),
            ("recount", 8, "what each stage reports to the story", "decide anything"),
            ("pipeline", 9, "the stages in order, as one function", "decide anything"),
            ("program", 10, "a plan on disk, and its cache key", "trust what it reads"),
        ],
        macros: &[("define_id", "foundation")],
    },
    Layers {
        folder: "runtime/src/",
        crates: &["fusebox_compiler"],
        modules: &[
            ("error", 0, "what went wrong, with file and place", "print"),
            ("own", 0, "files and folders that no other user can write", "follow a name to another place"),
            ("signal_list", 0, "a list that a signal handler may read at any time", "take a lock"),
            (
                "threads",
                0,
                "a thread pool whose threads enter each job together, and barriers",
                "know what a job is",
            ),
            ("buffer", 1, "zeroed, aligned memory that never moves", "grow"),
            ("files", 1, "reading, atomic writing, pruning", "know a file format"),
            ("device", 2, "plans bound to addresses, and their replay", "look anything up in a replay"),
            (
                "weights",
                2,
                "weight files: checked, mapped, written",
                "copy a tensor that kernels can read in place",
            ),
            ("session", 3, "sequences over one paged KV cache; programs kept on disk", "know a model"),
        ],
        macros: &[],
    },
    Layers {
        folder: "models/src/",
        crates: &["fusebox_compiler", "fusebox_runtime"],
        modules: &[
            ("config", 0, "hyper-parameters as plain data", "read a file"),
            ("error", 0, "what went wrong", "print"),
            ("naming", 0, "names of keys, tensors and files in every kind of checkpoint", "read a file"),
            ("sidecar", 0, "files beside the weights: tokenizer, templates, settings", "read weights"),
            (
                "hparams",
                1,
                "hyper-parameters of a checkpoint, by one name for every kind of file",
                "judge them",
            ),
            ("layers", 1, "attention, MLP, experts, norms: formulas on named axes", "help the compiler"),
            ("sample", 1, "logits in, a token out", "know a session"),
            ("families", 2, "a `Config` from a file; sizes of well-known models", "build a graph"),
            ("tokenizer", 2, "text to tokens and back", "know weights"),
            ("chat", 2, "messages to text, by the model's template", "know weights"),
            ("blocks", 3, "graphs by name: a block, a whole model", "run anything"),
            ("binding", 3, "which tensor of the file each weight of the graph is", "run anything"),
            ("own", 4, "decoders written elsewhere, and their families", "look into a file"),
            (
                "adapters",
                4,
                "LoRA and control vectors: files that add to the weights of a model",
                "write a file",
            ),
            ("quantize", 5, "a model written as GGUF", "know a command line"),
            ("load", 5, "a file opened as a model that makes sessions and engines", "know a command line"),
            ("draft", 5, "guesses at the next tokens, and how many pay", "draw a token"),
            ("generate", 6, "prompt in, pieces of text out", "print"),
            ("imatrix", 6, "how large the inputs of each weight are, over a text", "quantise"),
            ("embed", 6, "a text in, a vector or a score out", "print"),
        ],
        macros: &[],
    },
    Layers {
        folder: "src/",
        crates: &["fusebox_compiler", "fusebox_hub", "fusebox_models", "fusebox_runtime"],
        modules: &[
            ("error", 0, "what went wrong, in one sentence", "print"),
            ("host", 0, "this machine: threads, processor, caches, memory, bandwidth", "choose"),
            ("watch", 0, "what a program hears while a model is started", "print"),
            ("sampling", 0, "how tokens are drawn where nobody says it", "draw one"),
            ("profile", 0, "where the time of a replay goes", "print"),
            ("devices", 1, "devices by name, whether each can run here, and their rates", "read a model"),
            ("hub", 1, "models by name: stored, or fetched", "read a model"),
            ("engine", 1, "many sequences over one KV cache", "draw a token"),
            ("open", 2, "device, threads, context and memory of a model: stated, or chosen", "print"),
            ("chat", 3, "messages, and answers to them", "know a terminal"),
            ("writer", 3, "what follows a text, and vectors of texts", "know a terminal"),
            ("drafts", 3, "which draft guesses for a generator", "draw a token"),
            ("model", 4, "a model and what can be made of it", "know a command line"),
            ("program", 5, "a graph that is no language model, compiled", "know a model"),
        ],
        macros: &[],
    },
    Layers {
        folder: "serve/src/",
        crates: &["fusebox"],
        modules: &[
            ("http", 0, "fields, replies, refusals in every dialect, streams, sockets", "know an endpoint"),
            (
                "engine",
                1,
                "the seam to the library: open, fork, step, rows, truncate, release",
                "know a request",
            ),
            ("tools", 1, "tool calls in text, by the format of a family", "know HTTP"),
            ("grammar", 1, "constrained decoding by `llguidance`", "drop a keyword in silence"),
            ("sampling", 1, "bias, penalties, mask and scores of one sequence", "know a session"),
            ("scheduler", 2, "which tokens the next replay takes", "wait, or read a clock"),
            ("metrics", 3, "counters and histograms, and their text", "know HTTP"),
            ("answer", 3, "tokens of a choice as text, reasoning and calls", "know an interface"),
            ("worker", 4, "the thread that owns an engine", "parse a request"),
            ("model", 5, "a model that is served: its text side and its worker", "know HTTP"),
            ("settings", 6, "what a server is started with", "decide anything"),
            ("app", 7, "models by name, loaded on demand; whether the server is ready", "answer"),
            ("ask", 7, "a request that was understood, and its answer on its way", "know an interface"),
            ("endpoints", 8, "what OpenAI, Anthropic, Ollama and llama.cpp answer, a file each", "schedule"),
            (
                "routes",
                9,
                "which path is answered by what; keys, origins, limits",
                "read a body before the key",
            ),
            ("server", 10, "the socket, connections, and an orderly end", "know an endpoint"),
        ],
        macros: &[],
    },
];

/// The crates of the workspace, as code names them.
const CRATES: [&str; 9] = [
    "fusebox",
    "fusebox_cli",
    "fusebox_compiler",
    "fusebox_formats",
    "fusebox_hub",
    "fusebox_models",
    "fusebox_runtime",
    "fusebox_serve",
    "fusebox_simd",
];

fn module_offences(layers: &Layers, source: &Source) -> Vec<Offence> {
    let Some(inner) = source.path.strip_prefix(layers.folder) else { return Vec::new() };
    let own = inner.split('/').next().unwrap_or(inner).trim_end_matches(".rs");
    if own == "lib" {
        return Vec::new();
    }
    let layer = |module: &str| layers.modules.iter().find(|(name, ..)| *name == module).map(|(_, n, ..)| *n);
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
    let uses =
        refused.flat_map(|name| find_word(&source.production, name).into_iter().map(move |at| (at, name)));
    let uses = uses.filter(|(at, name)| source.production[at + name.len()..].starts_with("::"));
    let what = |name: &str| format!("`{name}` stands above this crate, which may use {:?}", layers.crates);
    uses.map(|(at, name)| offence(&source.path, line_at(&source.production, at), what(name))).collect()
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

/// The modules of a crate as a table for readers.
fn table(layers: &Layers, is_folder: impl Fn(&str) -> bool) -> String {
    let mut modules: Vec<&Module> = layers.modules.iter().collect();
    modules.sort_by_key(|(_, layer, ..)| *layer);
    let head = "| layer | module | what it is | what it never does |\n|---|---|---|---|\n".to_owned();
    modules.iter().fold(head, |all, (name, layer, what, never)| {
        let ending = if is_folder(&format!("{}{name}", layers.folder)) { "/" } else { ".rs" };
        all + &format!("| {layer} | `{name}{ending}` | {what} | {never} |\n")
    })
}

#[test]
fn the_layers_in_the_documents_are_these() {
    let faults = LAYERS.iter().filter_map(|layers| {
        let name = format!("the layers of {}", layers.folder);
        let made = table(layers, |path| root().join(path).is_dir());
        hold("docs/architecture.md", &name, &made).err()
    });
    let faults: Vec<String> = faults.collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn every_module_of_the_table_exists() {
    let places = LAYERS.iter().flat_map(|l| l.modules.iter().map(|(name, ..)| format!("{}{name}", l.folder)));
    let lost = places.filter(|place| !exists(place) && !exists(&format!("{place}.rs")));
    assert_none(
        &lost
            .map(|place| offence(&place, 1, "is in the layer table and not in the tree"))
            .collect::<Vec<_>>(),
    );
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
            offending_lines("compiler/src/fuse/merge.rs", "use crate::{error, rewrite::improve};"),
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
