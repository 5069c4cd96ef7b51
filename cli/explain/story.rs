//! `fusebox story`: how a graph becomes kernels.
//!
//! In: a `.graph` file, the name of a built-in block or a model, and a target. Out: the story as text, or as one JSON
//! object; with `--time` the times of its kernels, which `timed.rs` measures.
//! An unknown name is answered with the known ones.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use fusebox::blocks;
use fusebox::host::milliseconds;
use fusebox::nn::step::Step;
use fusebox::open::n_threads;
use fusebox::weights::Checkpoint;
use fusebox_compiler::error::Error;
use fusebox_compiler::graph::{Graph, parse};
use fusebox_compiler::options::Options;
use fusebox_compiler::pipeline::{Compiled, compile};
use fusebox_compiler::story::{BlockStory, KernelStory, Story};
use fusebox_compiler::target::Target;
use fusebox_compiler::tensor::sym::Sym;
use fusebox_runtime::session::cache::tell;
use fusebox_runtime::session::classes::{Class, Form};
use serde_json::{Map, Value, json};

use crate::explain::print_kernels::sources;
use crate::flags::given::Given;
use crate::flags::model::DeviceFlags;
use crate::measure::timed::Timed;
use crate::terminal::output;
use crate::terminal::progress::Progress;

/// The most sequences of a step.
const MAX_BATCH: usize = 256;
/// The most tokens of a step.
const MAX_TOKENS: usize = 2048;
/// The most layers.
const MAX_LAYERS: usize = 4096;

/// The largest graph file that is read.
const MAX_GRAPH_BYTES: usize = 64 << 20;

/// What to compile.
#[derive(Args)]
#[command(allow_negative_numbers = true)]
pub(crate) struct Arguments {
    /// A graph in its text form; - is standard input.
    #[arg(conflicts_with_all = ["block", "model", "tokens", "batch", "layers"])]
    file: Option<PathBuf>,
    /// A model as `run` names it: the graph of a step, from token ids to logits.
    #[arg(short, long, value_name = "MODEL", conflicts_with_all = ["block", "layers"])]
    model: Option<PathBuf>,
    /// A built-in block: qwen3-0.6b, qwen3-8b, qwen3-30b-a3b, llama-3.2-1b, mistral-7b, qwen2.5-0.5b, deepseek-v2-lite,
    /// glm-4.7-flash.
    #[arg(long, value_name = "NAME")]
    block: Option<String>,
    /// Tokens per step: 1 is decode, more is prefill.
    #[arg(long, value_name = "T", default_value_t = 1)]
    tokens: usize,
    /// Decode one token of each of B sequences per step, instead of tokens of one sequence.
    #[arg(long, value_name = "B", conflicts_with = "tokens")]
    batch: Option<usize>,
    /// Compile a whole model with N layers, from token ids to logits, instead of one block.
    #[arg(long, value_name = "N")]
    layers: Option<usize>,
    /// Device to compile for: cpu, cuda-sm80, cuda-sm89, cuda-sm90, vulkan, metal; with compute units and GB/s as in
    /// cpu:2:40.
    #[arg(long, value_name = "NAME")]
    target: Option<String>,
    /// Print one JSON object instead of text.
    #[arg(long)]
    json: bool,
    /// Run the kernels on this processor, with zeros for weights, and print their times instead of the story.
    #[arg(long, conflicts_with_all = ["kernels", "print_kernels"])]
    time: bool,
    /// Threads for --time [default: all hardware threads].
    #[arg(short = 't', long, value_name = "N", requires = "time")]
    threads: Option<usize>,
    /// Print every kernel as text after the story.
    #[arg(long, conflicts_with = "json")]
    kernels: bool,
    /// Print only the source that each kernel is compiled from: CUDA C++, WGSL or Metal for GPUs.
    #[arg(long, value_name = "VIEW", require_equals = true, conflicts_with_all = ["json", "kernels"])]
    print_kernels: Option<View>,
}

/// A view of kernels that needs no device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum View {
    /// The source they are compiled from.
    Source,
}

/// Prints the story.
pub(crate) fn run(arguments: &Arguments) -> Result<(), String> {
    let mut options = Options::from_env()?;
    if let Some(name) = &arguments.target {
        options.target = target(name)?;
    }
    if arguments.time && !options.target.is_processor() {
        return Err(format!("--time runs on this processor, not on {}", options.target));
    }
    let n_threads = n_threads(arguments.threads)?;
    let graph = graph(arguments)?;
    if graph.outputs.is_empty() {
        return Err("the graph has no output, expected a line such as `output y = %1`".to_owned());
    }
    let compiled = compile(&graph, &options).map_err(|error| sentence(&error))?;
    if let Some(path) = &options.story {
        tell(path, &compiled.to_string()).map_err(|error| error.to_string())?;
    }
    let timed = arguments.time.then(|| Timed::of(&compiled, n_threads)).transpose()?;
    let text = match (arguments.print_kernels, &timed) {
        (Some(View::Source), _) => sources(&compiled.plan, &options.target)?,
        (None, timed) if arguments.json => {
            let mut story = to_json(&compiled.story);
            if let Some(timed) = timed {
                story["measured"] = timed.to_json();
            }
            format!("{story:#}\n")
        }
        (None, Some(timed)) => timed.to_text(),
        (None, None) => to_text(&compiled, arguments.kernels),
    };
    if !arguments.json {
        output::note(&format!("times: {}", times(&compiled.story)));
    }
    output::print(&text);
    Ok(())
}

/// The target of this name.
pub(crate) fn target(name: &str) -> Result<Target, String> {
    name.parse().map_err(|accepted| format!("--target is `{name}`, expected {accepted}"))
}

fn graph(arguments: &Arguments) -> Result<Graph, String> {
    if let Some(path) = &arguments.file {
        return graph_of_file(path);
    }
    let tokens = arguments.tokens;
    if tokens == 0 || tokens > MAX_TOKENS {
        return Err(format!("--tokens is {tokens}, expected 1 to {MAX_TOKENS}"));
    }
    if let Some(n) = arguments.batch.filter(|n| !(1..=MAX_BATCH).contains(n)) {
        return Err(format!("--batch is {n}, expected 1 to {MAX_BATCH}"));
    }
    if let Some(model) = &arguments.model {
        return graph_of_model(model, arguments);
    }
    let name = arguments.block.as_deref().ok_or("a graph is needed: a FILE, --block NAME or -m MODEL")?;
    let config = blocks::named(name)
        .ok_or_else(|| format!("unknown block `{name}`, expected one of {}", blocks::NAMES.join(", ")))?;
    let step = match arguments.batch {
        None => Step::Run(Sym::from(tokens)),
        Some(n) => Step::Batch(Sym::from(n)),
    };
    let graph = match arguments.layers {
        None => blocks::block(&config, step),
        Some(n) if (1..=MAX_LAYERS).contains(&n) => blocks::model(&config, step, n),
        Some(n) => return Err(format!("--layers is {n}, expected 1 to {MAX_LAYERS}")),
    };
    graph.map_err(|error| error.to_string())
}

fn graph_of_file(path: &Path) -> Result<Graph, String> {
    // A file that is no text may well be a model.
    let is_model = || path.is_dir() || Checkpoint::open(path).is_ok();
    let text = Given::new("FILE", path).text(MAX_GRAPH_BYTES).map_err(|error| {
        if is_model() {
            return format!("{} is a model, expected a graph as text; -m takes a model", path.display());
        }
        error
    })?;
    parse::parse(&text).map_err(|error| format!("{}: {error}", path.display()))
}

fn graph_of_model(model: &Path, arguments: &Arguments) -> Result<Graph, String> {
    let opened = DeviceFlags::default().open(Some(model), &mut Progress::new(1), true)?;
    let (form, n) = arguments.batch.map_or((Form::Run, arguments.tokens), |n| (Form::Batch, n));
    opened.graph(Class { form, least: n, most: n })
}

/// All errors of a graph in one line.
fn sentence(error: &Error) -> String {
    error.to_string().replace('\n', "; ")
}

fn to_text(compiled: &Compiled, with_kernels: bool) -> String {
    let story = &compiled.story;
    let mut text = compiled.to_string();
    if with_kernels {
        for kernel in story.blocks.iter().flat_map(|block| &block.kernels) {
            text.push('\n');
            text.push_str(&kernel.text);
        }
    }
    text
}

/// The time of each stage; not part of the story, so that equal compilations print equal bytes.
fn times(story: &Story) -> String {
    let times: Vec<String> = story.stage_ms.iter().map(|(stage, ms)| format!("{stage} {ms:.2} ms")).collect();
    times.join(", ")
}

fn to_json(story: &Story) -> Value {
    let (bytes_read, bytes_written, flops) = story.totals();
    let largest = story.blocks.iter().max_by_key(|block| block.egraph.nodes);
    let egraph = largest.map(|block| {
        let egraph = &block.egraph;
        json!({ "nodes": egraph.nodes, "classes": egraph.classes, "rounds": egraph.rounds, "stopped": egraph.stopped })
    });
    let mut fired = Map::new();
    for (rule, n) in story.blocks.iter().flat_map(|block| &block.rules_fired) {
        let before = fired.get(rule).and_then(Value::as_u64).unwrap_or(0);
        fired.insert(rule.clone(), json!(before + *n as u64));
    }
    let stage_ms: Map<String, Value> = story
        .stage_ms
        .iter()
        .map(|(stage, ms)| ((*stage).to_owned(), json!(milliseconds(ms / 1e3))))
        .collect();
    json!({
        "target": story.target,
        "kernels": story.steps.len(),
        "barriers": barriers(story),
        "bytes_read": bytes_read.round() as u64,
        "bytes_written": bytes_written.round() as u64,
        "flops": flops.round() as u64,
        "arena_bytes": story.arena_bytes,
        "stage_ms": stage_ms,
        "egraph": egraph,
        "rules_fired": fired,
        "blocks": story.blocks.iter().map(block).collect::<Vec<_>>(),
    })
}

/// Why each kernel ends where it does.
fn barriers(story: &Story) -> Vec<Value> {
    let launches = story.launches().enumerate();
    launches
        .map(|(step, kernel)| json!({ "after": step, "kernel": kernel.name, "reasons": kernel.barriers }))
        .collect()
}

fn block(block: &BlockStory) -> Value {
    json!({
        "name": block.name,
        "uses": block.n_uses,
        "operations": { "written": block.n_written, "improved": block.n_improved },
        "rules_used": block.rules_used,
        "forms": block.forms,
        "seconds": { "written": block.seconds.0, "improved": block.seconds.1 },
        "egraph": { "nodes": block.egraph.nodes, "rounds": block.egraph.rounds, "stopped": block.egraph.stopped },
        "kernels": block.kernels.iter().map(kernel).collect::<Vec<_>>(),
    })
}

fn kernel(kernel: &KernelStory) -> Value {
    json!({
        "name": kernel.name,
        "skeleton": kernel.skeleton,
        "operations": kernel.n_ops,
        "fuses": kernel.fuses,
        "parts": kernel.n_parts,
        "tasks": kernel.n_tasks,
        "bytes_read": kernel.bytes_read.round() as u64,
        "bytes_written": kernel.bytes_written.round() as u64,
        "flops": kernel.flops.round() as u64,
        "tile_bytes": kernel.tile_bytes,
        "estimate_us": kernel.microseconds,
        "traffic": kernel.traffic,
        "prepared": kernel.prepared,
        "barriers": kernel.barriers,
    })
}
