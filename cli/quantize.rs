//! `fusebox quantize`: converts a model to another format.
//!
//! In: the path of a checkpoint, the path of the GGUF file to write, and a type. Out: the file, and a summary as text
//! or as one JSON object. Progress goes to standard error, where that is a terminal.

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::Args;
use fusebox::open::n_threads;
use fusebox::quantize::types::Type;
use fusebox::quantize::{Summary, quantize};
use fusebox::text::amount::{bytes, counted};
use fusebox::text::table::table;
use serde_json::{Value as Json, json};

use crate::output::print;
use crate::progress::Progress;

/// What to convert.
#[derive(Args)]
#[command(allow_negative_numbers = true)]
pub(crate) struct Arguments {
    /// A GGUF file, a folder with safetensors, a qwen3.c checkpoint or a Qorus file.
    input: PathBuf,
    /// The GGUF file to write; an existing one is replaced once the new file is complete.
    output: PathBuf,
    /// Format of most weight matrices, such as `Q8_0`, `Q4_0`, `Q4_K_M`, `Q6_K` or `F16`.
    #[arg(value_name = "TYPE")]
    ty: String,
    /// Threads [default: all hardware threads].
    #[arg(short, long, value_name = "N")]
    threads: Option<usize>,
    /// Print one JSON object instead of text.
    #[arg(long)]
    json: bool,
}

/// Converts the model.
pub(crate) fn run(arguments: &Arguments) -> Result<(), String> {
    let Arguments { input, output, ty, threads, json } = arguments;
    let n_threads = n_threads(*threads)?;
    let ty = Type::named(ty)
        .ok_or_else(|| format!("TYPE is `{}`, expected one of {}", ty.escape_debug(), Type::names()))?;
    let mut progress: Option<Progress> = None;
    let summary = quantize(input, output, ty, n_threads, &mut |n_done, n_tensors| {
        progress
            .get_or_insert_with(|| Progress::new(n_tensors))
            .begin(&format!("{n_done} of {}", counted(n_tensors, "tensor")));
    });
    drop(progress);
    let summary = summary.map_err(|error| error.to_string())?;
    print(&if *json { format!("{:#}\n", to_json(&summary)) } else { to_text(&summary) });
    Ok(())
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
    json!({
        "bytes_before": summary.bytes[0],
        "bytes_after": summary.bytes[1],
        "bits_per_weight": bits_per_weight(summary),
        "formats": formats.collect::<Vec<_>>(),
        "unfit": summary.n_fallback,
        "twice": summary.n_requantised,
    })
}
