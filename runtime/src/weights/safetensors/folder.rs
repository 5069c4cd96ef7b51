//! A folder as Transformers writes it: `config.json` and safetensors, in one file or in shards.
//!
//! In: the path of the folder. Out: a checkpoint over all its weight files; the metadata is `config.json`,
//! with names of nested objects joined by dots.
//! An index may name files of the folder itself only, and no tensor may be in two of them.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::path::{Component, Path};

use indexmap::IndexMap;
use serde::Deserialize;
use serde_json::Value as Json;

use crate::error::{Error, Place, quoted};
use crate::weights::json::{self, Entries};
use crate::weights::made;
use crate::weights::made::part::{Folder, Part};
use crate::weights::mapping::Mapping;
use crate::weights::value::{List, Value};
use crate::weights::{Checkpoint, Kind, Stored, TensorInfo, safetensors};

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
const CONFIG: &str = "config.json";
/// Where `ModelOpt` says how it quantised, if not in the configuration.
const QUANT_CONFIG: &str = "hf_quant_config.json";
/// Folders of projections behind the model, as sentence-transformers has them: one matrix in each.
const PROJECTIONS: [(&str, &str); 2] = [("2_Dense", "dense_2"), ("3_Dense", "dense_3")];

/// The longest index and the longest configuration that are read.
const MAX_INDEX_BYTES: usize = 64 << 20;
const MAX_CONFIG_BYTES: usize = 1 << 20;
const MAX_SHARDS: usize = 4096;
/// The longest joined name of a nested value.
const MAX_KEY_BYTES: usize = 256;

/// Which shard holds which tensor.
#[derive(Deserialize)]
#[serde(expecting = "an object")]
struct Index {
    weight_map: Entries<String>,
}

/// What a configuration says, by joined names.
#[derive(Default)]
struct Config {
    values: IndexMap<String, Value>,
    /// The names whose value is null.
    nulls: BTreeSet<String>,
}

/// Opens all weight files of a folder.
pub(in crate::weights) fn open(folder: &Path) -> Result<Checkpoint, Error> {
    let index = if is_file(&folder.join(INDEX))? {
        read_index(&folder.join(INDEX))?
    } else if is_file(&folder.join(SINGLE))? {
        IndexMap::new()
    } else {
        let what = format!("expected {SINGLE} or {INDEX} in the folder, found neither");
        return Err(Error::input(folder, Place::Whole, what));
    };
    let shards: BTreeSet<&str> = index.values().map(String::as_str).collect();
    let names = if index.is_empty() { vec![SINGLE] } else { shards.into_iter().collect() };
    let Config { mut values, nulls } = read_config(&folder.join(CONFIG))?;
    let beside = read_config(&folder.join(QUANT_CONFIG))?;
    if let Some(algorithm) = beside.values.get("quantization.quant_algo")
        && !values.contains_key("quantization_config.quant_method")
    {
        values.insert("quantization_config.quant_method".to_owned(), Value::Text("modelopt".to_owned()));
        values.insert("quantization_config.quant_algo".to_owned(), algorithm.clone());
    }
    let mut checkpoint = Checkpoint::new(Kind::Safetensors, values, nulls);
    for name in names {
        let path = folder.join(name);
        let mapping = Mapping::open(&path)?;
        let shard = safetensors::read(&path, mapping.bytes());
        let shard = shard.or_else(|fault| mapping.check().and(Err(fault)))?;
        checkpoint.add(path, mapping, shard.tensors)?;
    }
    check_index(&checkpoint, &folder.join(INDEX), &index)?;
    add_projections(folder, &mut checkpoint)?;
    make(folder, &mut checkpoint)?;
    Ok(checkpoint)
}

/// Adds the matrices of projections under the names that GGUF has for them.
fn add_projections(folder: &Path, checkpoint: &mut Checkpoint) -> Result<(), Error> {
    for (name, own) in PROJECTIONS {
        let path = folder.join(name).join(SINGLE);
        if !is_file(&path)? {
            continue;
        }
        let mapping = Mapping::open(&path)?;
        let read = safetensors::read(&path, mapping.bytes());
        let read = read.or_else(|fault| mapping.check().and(Err(fault)))?;
        let renamed = read.tensors.into_iter().map(|(name, info)| (name.replace("linear", own), info));
        checkpoint.add(path, mapping, renamed.collect())?;
    }
    Ok(())
}

/// Puts the tensors that a quantised folder stands for in the place of those that they are made of.
fn make(folder: &Path, checkpoint: &mut Checkpoint) -> Result<(), Error> {
    let part = |info: &TensorInfo| Part {
        shape: info.shape.clone(),
        ty: info.stored.to_string(),
        file_idx: info.file_idx,
        range: info.range.clone(),
    };
    let parts = checkpoint.tensors().iter().map(|(name, info)| (name.clone(), part(info))).collect();
    let (config, files) = (checkpoint.metadata(), &checkpoint.files[..]);
    let unpacked = made::unpack(&Folder { path: folder, config, parts, files })?;
    let taken: BTreeSet<&String> = unpacked.taken.iter().collect();
    checkpoint.contents.tensors.retain(|name, _| !taken.contains(name));
    for made in unpacked.made {
        let (shape, stored) = (made.shape.clone(), Stored::As(made.format));
        let idx = checkpoint.made.len();
        let info = TensorInfo { shape, stored, file_idx: 0, made: Some(idx), range: 0..made.n_bytes };
        checkpoint.contents.tensors.insert(made.name.clone(), info);
        checkpoint.made.push(made);
    }
    Ok(())
}

/// The folder of a file that is all of its weights.
pub(in crate::weights) fn around(path: &Path) -> Result<Option<&Path>, Error> {
    let Some(folder) = path.parent().filter(|_| path.ends_with(SINGLE)) else { return Ok(None) };
    let is_whole = is_file(&folder.join(CONFIG))? && !is_file(&folder.join(INDEX))?;
    Ok(is_whole.then_some(folder))
}

/// Whether a file is there; one that cannot be looked at may be.
fn is_file(path: &Path) -> Result<bool, Error> {
    match fs::metadata(path) {
        Ok(found) => Ok(found.is_file()),
        Err(source) if source.kind() == ErrorKind::NotFound => Ok(false),
        Err(source) => Err(Error::Io { path: path.to_owned(), source }),
    }
}

/// Reads the index; it names at least one file, and only files of the folder.
fn read_index(path: &Path) -> Result<IndexMap<String, String>, Error> {
    let Index { weight_map: Entries(map) } = read_json(path, MAX_INDEX_BYTES)?;
    for (name, shard) in &map {
        let mut parts = Path::new(shard).components();
        let is_plain = matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None));
        if !is_plain || shard.contains(['/', '\\']) || shard.contains(char::is_control) {
            let what = format!("expected a file of the same folder, found {}", quoted(shard));
            return Err(Error::input(path, Place::Tensor(name.clone()), what));
        }
    }
    let n_shards = map.values().collect::<BTreeSet<_>>().len();
    if !(1..=MAX_SHARDS).contains(&n_shards) {
        let what = format!("expected 1 to {MAX_SHARDS} files, found {n_shards}");
        return Err(Error::input(path, Place::Key("weight_map".to_owned()), what));
    }
    Ok(map)
}

/// Every tensor of the index is in the shard that it names.
fn check_index(checkpoint: &Checkpoint, path: &Path, index: &IndexMap<String, String>) -> Result<(), Error> {
    for (name, shard) in index {
        let file = checkpoint.tensors().get(name).and_then(|tensor| checkpoint.files.get(tensor.file_idx));
        let is_there =
            file.is_some_and(|(file, _)| file.file_name().is_some_and(|found| found == shard.as_str()));
        if !is_there {
            let what = format!("expected it in {}, found nothing there", quoted(shard));
            return Err(Error::input(path, Place::Tensor(name.clone()), what));
        }
    }
    Ok(())
}

/// The configuration, if there is one.
fn read_config(path: &Path) -> Result<Config, Error> {
    let mut config = Config::default();
    if is_file(path)? {
        let Entries::<Json>(entries) = read_json(path, MAX_CONFIG_BYTES)?;
        for (key, json) in entries {
            config.add(key, json).map_err(|key| {
                let what = format!("expected at most {MAX_KEY_BYTES} bytes, found {}", key.len());
                Error::input(path, Place::Key(key), what)
            })?;
        }
    }
    Ok(config)
}

fn read_json<T: for<'de> Deserialize<'de>>(path: &Path, max_bytes: usize) -> Result<T, Error> {
    let mapping = Mapping::open(path)?;
    let bytes = mapping.bytes();
    if bytes.len() > max_bytes {
        let what = format!("expected at most {max_bytes} bytes, found {}", bytes.len());
        return Err(Error::input(path, Place::Whole, what));
    }
    let parsed = json::parse(bytes);
    mapping.check()?;
    parsed.map_err(|(at, what)| Error::input(path, Place::Byte(at), what))
}

impl Config {
    /// Adds a value under its key, and the values of an object under `key.name`.
    fn add(&mut self, key: String, json: Json) -> Result<(), String> {
        // The keys of an object repeat its own, so without a limit few bytes could become very many.
        if key.len() > MAX_KEY_BYTES {
            return Err(key);
        }
        if let Json::Object(object) = json {
            for (name, json) in object {
                self.add(format!("{key}.{name}"), json)?;
            }
        } else if let Some(value) = value(json) {
            self.values.insert(key, value);
        } else {
            self.nulls.insert(key);
        }
        Ok(())
    }
}

fn value(json: Json) -> Option<Value> {
    match json {
        Json::Null => None,
        Json::Bool(value) => Some(Value::Bool(value)),
        Json::Number(number) => match (number.as_u64(), number.as_i64()) {
            (Some(n), _) => Some(Value::Unsigned(n)),
            (None, Some(n)) => Some(Value::Signed(n)),
            (None, None) => number.as_f64().map(Value::Float),
        },
        Json::String(text) => Some(Value::Text(text)),
        Json::Array(values) => {
            Some(list(&values).map_or_else(|| Value::Text(Json::Array(values).to_string()), Value::List))
        }
        Json::Object(_) => Some(Value::Text(json.to_string())),
    }
}

/// The values as a list, if they are of one type.
fn list(values: &[Json]) -> Option<List> {
    fn all<T>(values: &[Json], as_one: impl Fn(&Json) -> Option<T>) -> Option<Vec<T>> {
        values.iter().map(as_one).collect()
    }
    let unsigned = || all(values, Json::as_u64).map(List::Unsigned);
    let signed = || all(values, Json::as_i64).map(List::Signed);
    let floats = || all(values, Json::as_f64).map(List::Floats);
    let bools = || all(values, Json::as_bool).map(List::Bools);
    let texts = || all(values, |json| json.as_str().map(str::to_owned)).map(List::Texts);
    unsigned().or_else(signed).or_else(floats).or_else(bools).or_else(texts)
}
