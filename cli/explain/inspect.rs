//! `fusebox inspect`: the metadata and tensors of a model file.
//!
//! In: the path of a checkpoint of any kind. Out: its kind, metadata and tensors as text, or as one JSON object; with a
//! text also its perplexity.
//! Text from the file is escaped before it reaches a terminal; of a long list the length is printed.

use clap::Args;
use fusebox::open::n_threads;
use fusebox::text::amount::{bytes, counted};
use fusebox::text::table::table;
use fusebox::weights::expand::expanded;
use fusebox::weights::value::Value;
use fusebox::weights::{Checkpoint, Stored, TensorInfo};
use serde_json::{Map, Value as Json, json};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use crate::flags::given::Given;
use crate::flags::model::{DeviceFlags, ModelName};
use crate::measure::perplexity::Estimate;
use crate::terminal::output::print;
use crate::terminal::progress::Progress;

/// What to inspect.
#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    model: ModelName,
    /// Print one JSON object instead of text.
    #[arg(long)]
    json: bool,
    /// Also score a text, as `fusebox perplexity` does; - is standard input.
    #[arg(long, value_name = "FILE")]
    perplexity: Option<PathBuf>,
}

/// The tensors of one format, summed.
pub(crate) struct Total {
    pub(crate) format: String,
    n_tensors: usize,
    pub(crate) n_bytes: usize,
}

/// Prints what the file holds.
pub(crate) fn run(arguments: &Arguments) -> Result<(), String> {
    let path = arguments.model.path()?;
    let checkpoint = Checkpoint::open(&path).map_err(|error| error.to_string())?;
    if let Some(text) = &arguments.perplexity {
        Given::new("--perplexity", text).check_text()?;
    }
    let estimate = arguments.perplexity.as_deref().map(|text| score(&path, text)).transpose()?;
    if arguments.json {
        let mut json = to_json(&checkpoint);
        if let Some(estimate) = estimate {
            json["perplexity"] = estimate.to_json();
        }
        print(&format!("{json:#}\n"));
    } else {
        let score = estimate.map_or_else(String::new, |own| format!("\nperplexity    {}\n", own.to_text()));
        print(&format!("{}{score}", to_text(&checkpoint)));
    }
    Ok(())
}

/// The perplexity of a text, with the defaults of all flags.
fn score(path: &Path, text: &Path) -> Result<Estimate, String> {
    let mut opened = DeviceFlags::default().open(Some(path), &mut Progress::new(1), true)?;
    Estimate::of_file(&mut opened, text, n_threads(None)?)
}

/// The size of all files.
pub(crate) fn n_bytes(checkpoint: &Checkpoint) -> usize {
    checkpoint.files().map(|(_, n_bytes)| n_bytes).sum()
}

/// The totals by format, in the order of their first tensor.
pub(crate) fn totals(checkpoint: &Checkpoint) -> Vec<Total> {
    let mut totals: Vec<Total> = Vec::new();
    for tensor in checkpoint.tensors().values() {
        let format = tensor.stored.to_string();
        let at = totals.iter().position(|total| total.format == format).unwrap_or_else(|| {
            totals.push(Total { format, n_tensors: 0, n_bytes: 0 });
            totals.len() - 1
        });
        totals[at].n_tensors += 1;
        totals[at].n_bytes += tensor.n_bytes();
    }
    totals
}

fn to_text(checkpoint: &Checkpoint) -> String {
    let mut text = format!("kind          {}\n", checkpoint.kind());
    for (path, n_bytes) in checkpoint.files() {
        let _ = writeln!(text, "file          {}, {}", path.display(), bytes(n_bytes as f64));
    }
    let architecture = checkpoint.architecture().map_or("not stated".to_owned(), escaped);
    let _ = writeln!(text, "architecture  {architecture}");
    let rows = checkpoint.metadata().iter().map(|(key, value)| [escaped(key), value.to_string()]);
    section(&mut text, &format!("metadata ({})", checkpoint.metadata().len()), &rows.collect::<Vec<_>>());
    let rows = checkpoint.tensors().iter().map(|(name, tensor)| tensor_row(name, tensor));
    section(&mut text, &format!("tensors ({})", checkpoint.tensors().len()), &rows.collect::<Vec<_>>());
    let rows = totals(checkpoint).into_iter().map(|Total { format, n_tensors, n_bytes }| {
        [format, counted(n_tensors, "tensor"), bytes(n_bytes as f64)]
    });
    section(&mut text, "by format", &rows.collect::<Vec<_>>());
    text
}

fn tensor_row(name: &str, tensor: &TensorInfo) -> [String; 4] {
    let format = match tensor.stored {
        Stored::As(format) => format.to_string(),
        Stored::Other(name) if expanded(name).is_some() => name.to_owned(),
        Stored::Other(name) => format!("{name} (not supported)"),
    };
    [escaped(name), format!("{:?}", tensor.shape), format, bytes(tensor.n_bytes() as f64)]
}

/// A name from the file, escaped for a terminal.
fn escaped(name: &str) -> String {
    name.escape_debug().to_string()
}

/// A headline and a table with aligned columns.
fn section<const N: usize>(text: &mut String, headline: &str, rows: &[[String; N]]) {
    let _ = writeln!(text, "\n{headline}");
    for line in table(&"l".repeat(N), "  ", rows).lines() {
        let _ = writeln!(text, "  {line}");
    }
}

fn to_json(checkpoint: &Checkpoint) -> Json {
    let files = checkpoint.files().map(|(path, n)| json!({ "path": path.to_string_lossy(), "bytes": n }));
    let metadata: Map<String, Json> =
        checkpoint.metadata().iter().map(|(key, value)| (key.clone(), value_json(value))).collect();
    let tensors = checkpoint.tensors().iter().map(|(name, tensor)| {
        json!({
            "name": name,
            "shape": tensor.shape,
            "format": tensor.stored.to_string(),
            "supported": matches!(tensor.stored, Stored::As(_)),
            "bytes": tensor.n_bytes(),
        })
    });
    let totals = totals(checkpoint).into_iter().map(|Total { format, n_tensors, n_bytes }| {
        json!({ "format": format, "tensors": n_tensors, "bytes": n_bytes })
    });
    json!({
        "kind": checkpoint.kind().to_string(),
        "bytes": n_bytes(checkpoint),
        "files": files.collect::<Vec<_>>(),
        "architecture": checkpoint.architecture(),
        "metadata": metadata,
        "tensors": tensors.collect::<Vec<_>>(),
        "totals": totals.collect::<Vec<_>>(),
    })
}

/// Numbers and strings as JSON values; a list as its printed form.
fn value_json(value: &Value) -> Json {
    match value {
        Value::Bool(value) => json!(value),
        Value::Unsigned(value) => json!(value),
        Value::Signed(value) => json!(value),
        Value::Float(value) => json!(value),
        Value::Text(value) => json!(value),
        Value::List(list) => json!(list.to_string()),
    }
}
