//! One small graph for each idea, with its story beside it.
//!
//! In: `tests/cases/*.graph`. Out: snapshots of the same name, read in review as code is.
//! Every case is also compiled, run slowly and compared with the reference, so that a story never tells of a kernel
//! that is wrong. A first line `# target: NAME` picks another device than `cpu-avx512`.

use std::path::{Path, PathBuf};

use fusebox_compiler::graph::parse::parse;
use fusebox_compiler::options::Options;
use fusebox_compiler::pipeline::compile;
use fusebox_compiler::target::Target;
use fusebox_compiler::tensor::sym::Sym;
use fusebox_models::blocks;

use crate::road::check;

fn cases() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases");
    let entries = std::fs::read_dir(folder).expect("the cases are there");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("a readable folder").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|end| end == "graph"));
    paths.sort();
    paths
}

fn options(text: &str) -> Options {
    let name = text.lines().find_map(|line| line.strip_prefix("# target: "));
    Options::for_target(Target::named(name.unwrap_or("cpu-avx512")).expect("a named target"))
}

#[test]
fn every_case_tells_its_story() {
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path("cases");
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.bind(|| {
        for path in cases() {
            let text = std::fs::read_to_string(&path).expect("a readable case");
            let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
            let graph = parse(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
            let options = options(&text);
            check(&graph, &options, 1).unwrap_or_else(|what| panic!("{name}: {what}"));
            let compiled = compile(&graph, &options).unwrap_or_else(|error| panic!("{name}: {error}"));
            insta::assert_snapshot!(name, compiled.to_string());
        }
    });
}

/// What a block becomes, in numbers that only a better or worse compiler changes.
#[test]
fn every_named_block_keeps_its_counts() {
    let mut lines = Vec::new();
    for name in blocks::NAMES {
        let config = blocks::named(name).expect("a named block");
        for (tokens, target) in [(1, "cpu-avx512"), (1, "cuda-sm90"), (512, "cpu-avx512")] {
            let graph = blocks::block(&config, &Sym::from(tokens)).expect("a block that fits together");
            let options = Options::for_target(Target::named(target).expect("a named target"));
            let story = compile(&graph, &options).expect("a block that compiles").story;
            let egraph = &story.blocks[0].egraph;
            let (read, written, _) = story.totals();
            lines.push(format!(
                "{name}, {tokens} tokens, {target}: {} kernels, {read} bytes read, {written} written, arena {}, \
                 e-graph {} nodes, {} rounds",
                story.steps.len(),
                story.arena_bytes,
                egraph.nodes,
                egraph.rounds
            ));
            lines.extend(
                story.launches().map(|kernel| format!("  {}: {}", kernel.name, kernel.barriers.join(", "))),
            );
        }
    }
    insta::assert_snapshot!("named_blocks", lines.join("\n"));
}
