//! Models by name, and the commands on them: `pull`, `ls`, `rm` and `show`.
//!
//! In: `owner/name` with or without a quantisation, or the name of a stored model. Out: paths, tables, and bars of what
//! is being fetched. `fusebox_hub` does the work and shares its cache with other tools.

use std::path::PathBuf;

use clap::Args;
use fusebox::sample::recommended::Recommended;
use fusebox::template::Chat;
use fusebox::text::amount::{bytes, counted};
use fusebox::text::table::table;
use fusebox::weights::{Checkpoint, TensorInfo};
use fusebox_hub::cache::{Cache, Stored};
use fusebox_hub::fetch::{Caller, fetch};
use fusebox_hub::name::Name;
use fusebox_hub::settings::Settings;
use fusebox_models::load::Model;
use serde_json::json;

use crate::explain::inspect;
use crate::flags::fetch::Shown;
use crate::flags::model::model_path;
use crate::terminal::output::{note, print};

/// What to fetch.
#[derive(Args)]
pub(crate) struct Pull {
    /// The model: owner/name, or owner/name:QUANT for one of its quantisations.
    #[arg(value_name = "MODEL")]
    name: String,
}

/// How to list.
#[derive(Args)]
pub(crate) struct Ls {
    /// Print one JSON array instead of a table.
    #[arg(long)]
    json: bool,
}

/// What to delete.
#[derive(Args)]
pub(crate) struct Rm {
    /// The model, as `fusebox ls` names it.
    #[arg(value_name = "MODEL")]
    name: String,
}

/// What to describe.
#[derive(Args)]
pub(crate) struct Show {
    /// The model: a path, or a name as `fusebox ls` has it.
    #[arg(value_name = "MODEL")]
    name: PathBuf,
    /// Print one JSON object instead of text.
    #[arg(long)]
    json: bool,
}

fn fetched(name: &Name, settings: &Settings) -> Result<PathBuf, String> {
    let mut shown = Shown::new();
    let path = fetch(name, settings, &mut shown);
    shown.end();
    path.map_err(|error| error.to_string())
}

fn cache() -> Result<Cache, String> {
    let folder = Settings::from_env().cache;
    folder.map(Cache::new).ok_or_else(|| "there is no folder for models: set HF_HOME".to_owned())
}

/// Fetches a model, even where one is here: it may have changed.
pub(crate) fn pull(arguments: &Pull) -> Result<(), String> {
    let name = Name::parse(&arguments.name);
    let name =
        name.ok_or_else(|| format!("`{}`: expected owner/name or owner/name:QUANT", arguments.name))?;
    let path = fetched(&name, &Settings::from_env())?;
    print(&format!("{}\n", path.display()));
    Ok(())
}

/// Lists the stored models.
pub(crate) fn ls(arguments: &Ls) -> Result<(), String> {
    let cache = cache()?;
    let all = cache.all();
    if arguments.json {
        let object = |stored: &Stored| {
            let name = stored.name.to_string();
            json!({ "name": name, "bytes": stored.size, "path": stored.path })
        };
        print(&format!("{:#}\n", json!(all.iter().map(object).collect::<Vec<_>>())));
        return Ok(());
    }
    if all.is_empty() {
        note(&format!("no models in {}; fusebox pull owner/name fetches one", cache.folder().display()));
        return Ok(());
    }
    let row = |stored: &Stored| [stored.name.to_string(), bytes(stored.size as f64)];
    let heads = ["model", "size"].map(str::to_owned);
    let rows: Vec<[String; 2]> = [heads].into_iter().chain(all.iter().map(row)).collect();
    print(&table("lr", "  ", &rows));
    Ok(())
}

/// Deletes a stored model.
pub(crate) fn rm(arguments: &Rm) -> Result<(), String> {
    let cache = cache()?;
    let stored = cache.find(&arguments.name).map_err(|error| error.to_string())?;
    let stored = stored
        .ok_or_else(|| format!("no stored model is called {}; fusebox ls lists them", arguments.name))?;
    let n_bytes = cache.delete(&stored).map_err(|error| error.to_string())?;
    note(&format!("{} is deleted, {}", stored.name, bytes(n_bytes as f64)));
    Ok(())
}

/// Describes a model.
pub(crate) fn show(arguments: &Show) -> Result<(), String> {
    let path = model_path(Some(&arguments.name))?;
    let model = Model::open(&path).map_err(|error| error.to_string())?;
    let checkpoint = model.checkpoint();
    let chat = Chat::open(checkpoint).map_err(|error| error.to_string())?;
    let recommended = Recommended::of(checkpoint).map_err(|error| error.to_string())?;
    let formats = formats(checkpoint);
    let n_parameters: usize = checkpoint.tensors().values().map(TensorInfo::n_elements).sum();
    if arguments.json {
        let json = json!({
            "path": path,
            "kind": checkpoint.kind().to_string(),
            "architecture": checkpoint.architecture(),
            "parameters": n_parameters,
            "bytes": inspect::n_bytes(checkpoint),
            "formats": formats,
            "context": model.config.context,
            "layers": model.config.n_layers(),
            "vocabulary": model.config.vocab,
            "chat": chat.is_some(),
            "sampling": {
                "temperature": recommended.temperature,
                "top_k": recommended.top_k,
                "top_p": recommended.top_p,
                "min_p": recommended.min_p,
            },
        });
        print(&format!("{json:#}\n"));
        return Ok(());
    }
    let stated = [
        ("temperature", recommended.temperature),
        ("top-k", recommended.top_k.map(|k| k as f32)),
        ("top-p", recommended.top_p),
        ("min-p", recommended.min_p),
    ];
    let stated: Vec<String> =
        stated.iter().filter_map(|(name, value)| value.map(|value| format!("{name} {value}"))).collect();
    let sampling = if stated.is_empty() { "nothing recommended".to_owned() } else { stated.join(", ") };
    let size = format!(
        "{}, {:.1} M parameters",
        bytes(inspect::n_bytes(checkpoint) as f64),
        n_parameters as f64 / 1e6
    );
    let rows = [
        ["path", &path.display().to_string()],
        [
            "kind",
            &format!(
                "{}, architecture {}",
                checkpoint.kind(),
                checkpoint.architecture().unwrap_or("not stated")
            ),
        ],
        ["size", &size],
        ["formats", &formats.join(", ")],
        ["context", &counted(model.config.context, "token")],
        ["layers", &model.config.n_layers().to_string()],
        ["vocabulary", &counted(model.config.vocab, "token")],
        ["chat", if chat.is_some() { "has a template" } else { "has no template" }],
        ["sampling", &sampling],
    ];
    print(&table("ll", "  ", &rows.map(|row| row.map(str::to_owned))));
    Ok(())
}

/// The formats of the tensors, the one with most bytes first.
fn formats(checkpoint: &Checkpoint) -> Vec<String> {
    let mut totals = inspect::totals(checkpoint);
    totals.sort_by_key(|total| std::cmp::Reverse(total.n_bytes));
    totals.into_iter().map(|total| total.format).collect()
}
