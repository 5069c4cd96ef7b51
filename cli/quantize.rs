//! `fusebox quantize` and `fusebox merge`: write a model in another format, or with adapters in its weights.
//!
//! In: the path of a checkpoint, the path of the GGUF file to write, and a type. Out: the file or several, and a
//! summary as text or as one JSON object. Progress goes to standard error, where that is a terminal.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use clap::Args;
use fusebox::open::n_threads;
use fusebox::quantize::importance::Importance;
use fusebox::quantize::overrides::{Overrides, written};
use fusebox::quantize::split::Split;
use fusebox::quantize::types::Type;
use fusebox::quantize::{Job, Summary, quantize};
use fusebox::text::amount::{bytes, counted};
use fusebox::text::table::table;
use serde_json::{Value as Json, json};

use crate::flags::adapters::{ADAPTER, with_scales};
use crate::flags::given::{Given, MODEL};
use crate::terminal::output::print;
use crate::terminal::progress::Progress;

/// The type that keeps the format of each tensor.
const COPY: &str = "COPY";

/// What to convert.
#[derive(Args)]
#[command(allow_negative_numbers = true)]
pub(crate) struct Arguments {
    /// A GGUF file, a folder with safetensors, a qwen3.c checkpoint or a Qorus file.
    input: PathBuf,
    /// The GGUF file to write; an existing one is replaced once the new file is complete.
    output: PathBuf,
    /// Format of most weight matrices, such as `Q8_0`, `Q4_0`, `Q4_K_M`, `Q6_K` or `F16`; `COPY` keeps that of each.
    #[arg(value_name = "TYPE")]
    ty: String,
    /// Importance matrix: what the columns of weights count, a file of `fusebox imatrix` or of llama.cpp.
    #[arg(long, value_name = "FILE")]
    imatrix: Option<PathBuf>,
    /// Another format for tensors whose names match a pattern; repeatable, the first that matches holds.
    #[arg(long, value_name = "NAME=TYPE")]
    tensor_type: Vec<String>,
    /// Format of the output head.
    #[arg(long, value_name = "TYPE")]
    output_tensor_type: Option<String>,
    /// Format of the embedding matrix.
    #[arg(long, value_name = "TYPE")]
    token_embedding_type: Option<String>,
    #[command(flatten)]
    written: Written,
}

/// What is merged, and what is written.
#[derive(Args)]
pub(crate) struct MergeArguments {
    /// A GGUF file, a folder with safetensors, a qwen3.c checkpoint or a Qorus file.
    base: PathBuf,
    /// The GGUF file to write; an existing one is replaced once the new file is complete.
    output: PathBuf,
    /// LoRA adapter to merge into the weights: a GGUF file or a folder of PEFT; repeatable.
    #[arg(long, value_name = "PATH", value_delimiter = ',', required_unless_present = "lora_scaled")]
    lora: Vec<String>,
    /// The same with a factor on what it changes; repeatable.
    #[arg(long, value_name = "PATH:SCALE", value_delimiter = ',')]
    lora_scaled: Vec<String>,
    /// Format of most weight matrices, as `fusebox quantize` takes it [default: that of each].
    #[arg(long = "type", value_name = "TYPE")]
    ty: Option<String>,
    #[command(flatten)]
    written: Written,
}

/// How files are written, and what is said of it.
#[derive(Args)]
struct Written {
    /// Write several files of at most this size, such as 500M or 2G: `NAME-00001-of-00003.gguf` and so on.
    #[arg(long, value_name = "SIZE", conflicts_with = "split_max_tensors")]
    split_max_size: Option<String>,
    /// Write several files with at most N tensors.
    #[arg(long, value_name = "N")]
    split_max_tensors: Option<usize>,
    /// Write nothing; list every tensor with its size.
    #[arg(long)]
    dry_run: bool,
    /// Threads [default: all hardware threads].
    #[arg(short, long, value_name = "N")]
    threads: Option<usize>,
    /// Print one JSON object instead of text.
    #[arg(long)]
    json: bool,
}

/// Converts the model.
pub(crate) fn run(arguments: &Arguments) -> Result<(), String> {
    let format = |flag: &str, name: &Option<String>| {
        let format = name.as_deref().map(written).transpose();
        format.map_err(|what| format!("{flag} is {what}"))
    };
    let mut overrides = Overrides::of_ends(
        format("--output-tensor-type", &arguments.output_tensor_type)?,
        format("--token-embedding-type", &arguments.token_embedding_type)?,
    );
    for text in &arguments.tensor_type {
        overrides.add(text).map_err(|what| format!("--tensor-type is {what}"))?;
    }
    let importance = arguments.imatrix.as_deref().map(|path| {
        Given::new("--imatrix", path).check_file("a file of `fusebox imatrix` or of llama.cpp")?;
        Importance::open(path).map_err(|error| error.to_string())
    });
    let importance = importance.transpose()?;
    let job = Job { ty: ty("TYPE", &arguments.ty)?, overrides, importance, ..Job::default() };
    let files = [("INPUT", &*arguments.input), ("OUTPUT", &*arguments.output)];
    write(files, job, &arguments.written)
}

/// Merges adapters into the weights of a model.
pub(crate) fn merge(arguments: &MergeArguments) -> Result<(), String> {
    let MergeArguments { base, output, lora, lora_scaled, ty: name, written } = arguments;
    let mut job = Job { ty: name.as_deref().map_or(Ok(None), |name| ty("--type", name))?, ..Job::default() };
    let loras = with_scales("--lora-scaled", lora, lora_scaled)?;
    job.adapters.loras = loras.into_iter().map(|(path, scale)| (path.into(), scale)).collect();
    for (path, _) in &job.adapters.loras {
        Given::new("--lora", path).check_there(ADAPTER)?;
    }
    write([("BASE", base), ("OUTPUT", output)], job, written)
}

fn ty(flag: &str, name: &str) -> Result<Option<Type>, String> {
    if name.eq_ignore_ascii_case(COPY) {
        return Ok(None);
    }
    let what = || format!("{flag} is `{}`, expected one of {}, {COPY}", name.escape_debug(), Type::names());
    Type::named(name).map(Some).ok_or_else(what)
}

fn write([input, output]: [(&str, &Path); 2], job: Job, written: &Written) -> Result<(), String> {
    Given::new(input.0, input.1).check_there(MODEL)?;
    Given::new(output.0, output.1).check_target()?;
    let (input, output) = (input.1, output.1);
    let Written { split_max_size, split_max_tensors, dry_run, threads, json } = written;
    let split = match (split_max_size, split_max_tensors) {
        (Some(size), _) => Some(Split::Bytes(size_of(size)?)),
        (None, Some(0)) => return Err("--split-max-tensors is 0, expected at least 1".to_owned()),
        (None, n) => n.map(Split::Tensors),
    };
    let job = Job { split, is_dry: *dry_run, n_threads: n_threads(*threads)?, ..job };
    let mut progress: Option<Progress> = None;
    let summary = quantize(input, output, &job, &mut |n_done, n_tensors| {
        progress
            .get_or_insert_with(|| Progress::new(n_tensors))
            .begin(&format!("{n_done} of {}", counted(n_tensors, "tensor")));
    });
    drop(progress);
    let summary = summary.map_err(|error| error.to_string())?;
    let text = || if *dry_run { list(&summary) + &to_text(&summary) } else { to_text(&summary) };
    print(&if *json { format!("{:#}\n", to_json(&summary)) } else { text() });
    Ok(())
}

/// A number of bytes, in units of thousands, as llama.cpp's tools take it.
fn size_of(text: &str) -> Result<u64, String> {
    let unit = match text.to_ascii_uppercase().chars().last() {
        Some('K') => 1000,
        Some('M') => 1_000_000,
        Some('G') => 1_000_000_000,
        _ => 1,
    };
    let number = if unit == 1 { text } else { &text[..text.len() - 1] };
    let size = number.parse::<u64>().ok().and_then(|n| n.checked_mul(unit)).filter(|n| *n > 0);
    size.ok_or_else(|| {
        format!("--split-max-size is `{}`, expected a size such as 500M or 2G", text.escape_debug())
    })
}

/// Every tensor with what becomes of it.
fn list(summary: &Summary) -> String {
    let rows = summary.tensors.iter().map(|tensor| {
        let [before, after] = &tensor.formats;
        let change = if before == after { after.clone() } else { format!("{before} to {after}") };
        vec![tensor.name.clone(), format!("{:?}", tensor.shape), change, bytes(tensor.n_bytes as f64)]
    });
    table("lllr", "  ", &rows.collect::<Vec<_>>())
}

fn bits_per_weight(summary: &Summary) -> f64 {
    let tensor_bytes: u64 = summary.formats.iter().map(|(_, _, n_bytes)| n_bytes).sum();
    tensor_bytes as f64 * 8.0 / summary.n_elements.max(1) as f64
}

fn to_text(summary: &Summary) -> String {
    let rows: Vec<Vec<String>> = summary
        .formats
        .iter()
        .map(|(name, n, n_bytes)| vec![name.clone(), counted(*n, "tensor"), bytes(*n_bytes as f64)])
        .collect();
    let mut text = table("lrr", "  ", &rows);
    let [before, after] = summary.bytes.map(|n_bytes| bytes(n_bytes as f64));
    let _ = writeln!(text, "{before} before, {after} after, {:.2} bits per weight", bits_per_weight(summary));
    if summary.n_files > 1 {
        let _ = writeln!(text, "{} of one model", counted(summary.n_files, "file"));
    }
    if summary.n_fallback > 0 {
        let fallback = counted(summary.n_fallback, "tensor");
        let _ = writeln!(text, "{fallback} in a fallback format: rows are no multiple of the block size");
    }
    if summary.n_requantised > 0 {
        let requantised = counted(summary.n_requantised, "tensor");
        let _ = writeln!(text, "{requantised} already quantised before: both rounding errors add up");
    }
    text
}

fn to_json(summary: &Summary) -> Json {
    let formats = summary.formats.iter();
    let formats = formats.map(|(name, n, n_bytes)| json!({ "format": name, "tensors": n, "bytes": n_bytes }));
    let tensors = summary.tensors.iter().map(|tensor| {
        let [before, after] = &tensor.formats;
        json!({
            "name": tensor.name,
            "shape": tensor.shape,
            "from": before,
            "format": after,
            "bytes": tensor.n_bytes,
        })
    });
    json!({
        "files": summary.n_files,
        "tensors": tensors.collect::<Vec<_>>(),
        "bytes_before": summary.bytes[0],
        "bytes_after": summary.bytes[1],
        "bits_per_weight": bits_per_weight(summary),
        "formats": formats.collect::<Vec<_>>(),
        "unfit": summary.n_fallback,
        "twice": summary.n_requantised,
    })
}
