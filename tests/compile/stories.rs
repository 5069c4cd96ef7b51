//! One small graph for each idea, with its story and its kernels beside it.
//!
//! In: `tests/cases/*.graph`. Out: snapshots of the same name, the story in one and the loops of every kernel in
//! another, read in review as code is.
//! Every case is also compiled, run slowly and compared with the reference, so that a story never tells of a kernel
//! that is wrong. A first line `# target: NAME` picks another device than `cpu`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use fusebox_compiler::graph::Graph;
use fusebox_compiler::graph::op::Op;
use fusebox_compiler::graph::parse::parse;
use fusebox_compiler::kernel::Kernel;
use fusebox_compiler::options::Options;
use fusebox_compiler::pipeline::compile;
use fusebox_compiler::story::Story;
use fusebox_compiler::target::{CPU, Target};
use fusebox_compiler::tensor::quant::Format;
use fusebox_compiler::tensor::sym::Sym;
use fusebox_models::blocks;
use fusebox_models::config::attention::{Grouped, Latent, Window};
use fusebox_models::config::{Config, Formats, Mixer};
use support::plain::with_micro_kernels;
use tree::root;

use crate::road::check;

fn cases() -> Vec<PathBuf> {
    let folder = root().join("tests/cases");
    let entries = std::fs::read_dir(folder).expect("the cases are there");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("a readable folder").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|end| end == "graph"));
    paths.sort();
    paths
}

fn options(text: &str) -> Options {
    let name = text.lines().find_map(|line| line.strip_prefix("# target: "));
    Options::for_target(Target::named(name.unwrap_or("cpu")).expect("a named target"))
}

#[test]
fn every_case_tells_its_story() {
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path("../cases");
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
            let kernels: Vec<String> = compiled.plan.kernels.values().map(Kernel::to_string).collect();
            insta::assert_snapshot!(format!("{name}.kernels"), kernels.join("\n"));
            insta::assert_snapshot!(name, compiled.to_string());
        }
    });
}

/// A block of a model for a number of tokens.
fn block(config: &Config, tokens: i64) -> Graph {
    blocks::block(config, &Sym::from(tokens)).expect("a block that fits together")
}

/// What compiling it for a device tells.
fn told(graph: &Graph, target: Target) -> Story {
    compile(graph, &Options::for_target(target)).expect("a block that compiles").story
}

/// What a block becomes, in numbers that only a better or worse compiler changes.
#[test]
fn every_named_block_keeps_its_counts() {
    let mut lines = Vec::new();
    for name in blocks::NAMES {
        let config = blocks::named(name).expect("a named block");
        for (tokens, target) in [(1, "cpu"), (1, "cuda-sm90"), (512, "cpu")] {
            let tokens = config.most_tokens().min(tokens) as i64;
            let story = told(&block(&config, tokens), Target::named(target).expect("a named target"));
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

/// Matrices in the formats that a file of mixed K-quants has: blocks of 256 where rows are whole ones, else of 32.
fn mixed(config: &Config) -> Config {
    let graph = block(config, 1);
    let mut formats = BTreeMap::new();
    for node in graph.nodes.values() {
        let Op::Weight { name, shape, format } = &node.op else { continue };
        let row = shape.iter().last().map_or(1, |(_, size)| size.most());
        let is_finer = ["attn_v", "ffn_down", "ffn_down_exps"].iter().any(|part| name.ends_with(part));
        let format = match (format, row % 256, row % 32) {
            (Format::F32, ..) | (_, _, 1..) => Format::F32,
            (_, 0, _) => {
                if is_finer {
                    Format::Q6K
                } else {
                    Format::Q4K
                }
            }
            (_, _, _) => {
                if is_finer {
                    Format::Q8_0
                } else {
                    Format::Q5_0
                }
            }
        };
        formats.insert(name.to_string(), format);
    }
    Config { formats: Formats::Each(formats), ..config.clone() }
}

/// As files of all kinds have them: in one format, in mixed ones, and with one matrix for keys and values.
fn as_in_files(name: &str) -> Vec<Config> {
    let config = blocks::named(name).expect("a named block");
    let mut all = vec![mixed(&config)];
    if let Mixer::Latent(sizes) = &config.blocks[0].mixer {
        let joint = Mixer::Latent(Latent { is_joint: true, ..sizes.clone() });
        let joint = config.clone().with_mixer(&joint);
        all.extend([mixed(&joint), joint]);
    }
    all.push(config);
    all
}

#[test]
fn a_dense_block_is_at_most_five_kernels_and_one_with_latents_and_experts_at_most_ten() {
    for name in with_micro_kernels() {
        for config in as_in_files(name) {
            let story = told(&block(&config, 1), CPU);
            let most = if config.experts().is_none() { 5 } else { 10 };
            let names: Vec<&str> = story.launches().map(|kernel| &*kernel.name).collect();
            assert!(names.len() <= most, "{name}: {}", names.join("\n"));
        }
    }
}

#[test]
fn one_token_reads_what_lies_in_its_window_and_nothing_before() {
    let mistral = blocks::named("mistral-7b").expect("a named block");
    let Mixer::Grouped(heads) = &mistral.blocks[0].mixer else { panic!("latents") };
    let windowed = |window: Option<Window>| {
        let mixer = Mixer::Grouped(Grouped { window, ..heads.clone() });
        block(&mistral.clone().with_mixer(&mixer), 1)
    };
    let of_position = stored_bytes(&windowed(None))[2] / mistral.context as f64;
    for target in ["cpu", "cuda-sm90"] {
        let device = Target::named(target).expect("a named target");
        let read = |window: Option<usize>| {
            let graph = windowed(window.map(Window::Sliding));
            told(&graph, device).totals().0
        };
        // The caches are a quarter full; some positions are taken at a time, with the heads that share a key.
        let before = mistral.context as f64 / 4.0;
        for window in [300, 1000] {
            let n_positions = before - (read(None) - read(Some(window))) / of_position;
            let most = (window + device.tuning.positions_per_step(heads.n_heads / heads.n_kv)) as f64;
            assert!(
                (window as f64 - 1.0..=most).contains(&n_positions),
                "{target}: {n_positions} of {window}"
            );
        }
    }
}

/// Bytes of the weights that a block has, without experts and of experts, and of its states.
fn stored_bytes(graph: &Graph) -> [f64; 3] {
    let mut bytes = [0.0; 3];
    for node in graph.nodes.values() {
        match &node.op {
            Op::Weight { name, shape, format } => {
                let n_bytes = format.bytes_for(shape.max_len()).expect("whole blocks") as f64;
                bytes[usize::from(name.ends_with("_exps"))] += n_bytes;
            }
            Op::State { shape, format, .. } => {
                bytes[2] += shape.max_len() as f64 * format.bytes_per_element();
            }
            _ => {}
        }
    }
    bytes
}

#[test]
fn one_token_reads_the_experts_it_uses_and_no_others() {
    for name in with_micro_kernels() {
        for config in as_in_files(name) {
            let Some(experts) = config.experts() else { continue };
            let graph = block(&config, 1);
            let (read, ..) = told(&graph, CPU).totals();
            let [others, all, states] = stored_bytes(&graph);
            let used = others + all * experts.top_k as f64 / experts.n_routed as f64;
            // The caches are a quarter full; what flows between kernels is small.
            let flows = read - used - states / 4.0;
            assert!(flows.abs() < 0.02 * used, "{name}: {read} read, {used} used, {flows} more");
        }
    }
}
