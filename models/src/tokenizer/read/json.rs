//! The `tokenizer.json` next to safetensors, with its sidecar files.
//!
//! In: `tokenizer.json`, `tokenizer_config.json`, `generation_config.json` and `config.json` of a folder. Out: a
//! [`TokenizerSpec`].
//! BPE, `WordPiece` and `Unigram` are supported, with normalizers, pre-tokenizers and decoders that are safe on any
//! text: a file selects the code that runs, so whatever is not on a list here is refused.

use std::path::{Path, PathBuf};

use fusebox_runtime::error::{Error, Place, quoted};
use fusebox_runtime::weights::Checkpoint;
use fusebox_runtime::weights::value::{List, Value};
use indexmap::IndexMap;
use serde::Deserialize;
use serde_json::Value as Json;
use serde_json::value::RawValue;
use tokenizers::AddedToken;

use crate::naming::files;
use crate::sidecar;
use crate::tokenizer::byte_encoding::{ByteEncoding, CONTINUES};
use crate::tokenizer::charsmap;
use crate::tokenizer::pattern::repeats_repetitions;
use crate::tokenizer::spec::{BERT, Content, Keys, MAX_TOKENS, Part, ROBERTA, Rules, TokenizerSpec};

/// The key of the end-of-sequence tokens.
const EOS_KEY: &str = "eos_token_id";
/// The largest vocabulary file that is read.
const MAX_BYTES: usize = 256 << 20;

/// The largest factor by which a normalizer may lengthen a text.
const MAX_GROWTH: usize = 64;
/// The longest decomposition in Unicode.
const MAX_DECOMPOSITION: usize = 11;
/// The most steps of a component, and the most bytes of all its patterns.
const MAX_STEPS: usize = 64;
const MAX_PATTERN_BYTES: usize = 16 << 10;
/// The most ids without a token in a file of few tokens.
const MAX_UNUSED: usize = 1 << 18;
/// The supported normalizers.
const NORMALIZERS: [&str; 12] = [
    "BertNormalizer",
    "NFC",
    "NFD",
    "NFKC",
    "NFKD",
    "Precompiled",
    "Sequence",
    "Lowercase",
    "Prepend",
    "Replace",
    "Strip",
    "StripAccents",
];
const PRE_TOKENIZERS: [&str; 8] = [
    "BertPreTokenizer",
    "ByteLevel",
    "Digits",
    "Metaspace",
    "Punctuation",
    "Sequence",
    "Split",
    "WhitespaceSplit",
];
/// The models of BERT, and of T5 and XLM-R.
const WORDPIECE: &str = "WordPiece";
const UNIGRAM: &str = "Unigram";
/// The regular expression of runs of spaces, the only one that a normalizer may replace.
const SPACES: &str = " {2,}";

#[derive(Deserialize)]
#[serde(expecting = "an object")]
struct File<'a> {
    #[serde(default)]
    added_tokens: Vec<Added>,
    normalizer: Option<Json>,
    pre_tokenizer: Option<Json>,
    post_processor: Option<Json>,
    decoder: Option<Json>,
    #[serde(borrow)]
    model: &'a RawValue,
}

#[derive(Deserialize)]
#[serde(expecting = "an object")]
struct Added {
    id: u32,
    #[serde(flatten)]
    token: AddedToken,
}

#[derive(Deserialize)]
#[serde(expecting = "an object")]
struct ModelKind {
    #[serde(rename = "type")]
    kind: Option<String>,
}

#[derive(Deserialize)]
#[serde(expecting = "an object")]
struct Model {
    vocab: IndexMap<String, u32>,
    merges: Option<Vec<Merge>>,
    dropout: Option<f64>,
    unk_token: Option<String>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    #[serde(default)]
    fuse_unk: bool,
    #[serde(default)]
    byte_fallback: bool,
    #[serde(default)]
    ignore_merges: bool,
}

#[derive(Deserialize)]
#[serde(expecting = "an object")]
struct UnigramModel {
    vocab: Vec<(String, f64)>,
    unk_id: Option<usize>,
    #[serde(default)]
    byte_fallback: bool,
}

/// A merge: a pair of tokens, or one string with a space between them.
#[derive(Deserialize)]
#[serde(untagged, expecting = "two tokens, in a list or with a space between")]
enum Merge {
    Pair(String, String),
    Text(String),
}

/// What `tokenizer_config.json` adds.
#[derive(Default, Deserialize)]
#[serde(expecting = "an object")]
struct Config {
    #[serde(rename = "add_bos_token")]
    adds_bos: Option<bool>,
    #[serde(rename = "add_eos_token")]
    adds_eos: Option<bool>,
    #[serde(rename = "bos_token")]
    bos: Option<Name>,
    #[serde(rename = "eos_token")]
    eos: Option<Name>,
}

/// A token by its text, bare or in an object.
#[derive(Deserialize)]
#[serde(untagged, expecting = "a token, or an object with its `content`")]
enum Name {
    Text(String),
    Object { content: String },
}

#[derive(Default, Deserialize)]
#[serde(expecting = "an object")]
struct Generation {
    eos_token_id: Option<Ids>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "a token id, or a list of them")]
enum Ids {
    One(u32),
    Many(Vec<u32>),
}

/// Reads the files of the folder.
pub(crate) fn read(checkpoint: &Checkpoint) -> Result<TokenizerSpec, Error> {
    let path = sidecar::in_folder(checkpoint, files::TOKENIZER);
    let bytes = sidecar::read_required(&path, MAX_BYTES, "a tokenizer")?;
    let config = sidecar::read_json(&sidecar::in_folder(checkpoint, files::TOKENIZER_CONFIG))?;
    let generation = sidecar::read_json(&sidecar::in_folder(checkpoint, files::GENERATION))?;
    let (config, generation): (Config, Generation) =
        (config.unwrap_or_default(), generation.unwrap_or_default());
    let mut spec = spec(path, &bytes, &config)?;
    let own = generation.eos_token_id.map_or(Vec::new(), Ids::into_vec);
    for (file, ids) in [(files::GENERATION, own), (files::MODEL, model_eos(checkpoint)?)] {
        if let Some(id) = ids.iter().find(|id| **id as usize >= spec.tokens.len()) {
            let what = format!("expected ids below {}, the number of tokens, found {id}", spec.tokens.len());
            return Err(refused_eos(checkpoint, file, what));
        }
        spec.eos.extend(ids);
    }
    Ok(spec)
}

fn spec(path: PathBuf, bytes: &[u8], config: &Config) -> Result<TokenizerSpec, Error> {
    let file: File = sidecar::parse_json(&path, bytes)?;
    let kind: ModelKind = sidecar::parse_json(&path, file.model.get().as_bytes())?;
    if kind.kind.as_deref().is_some_and(|kind| !["BPE", WORDPIECE, UNIGRAM].contains(&kind)) {
        let found = quoted(&kind.kind.unwrap_or_default());
        let what = format!("{found} is not supported, expected `BPE`, `{WORDPIECE}` or `{UNIGRAM}`");
        return Err(unsupported(&path, "model.type", what));
    }
    let (model, unigram) = if kind.kind.as_deref() == Some(UNIGRAM) {
        let own: UnigramModel = sidecar::parse_json(&path, file.model.get().as_bytes())?;
        let (model, scores) = unigram(&path, own)?;
        (model, Some(scores))
    } else {
        (sidecar::parse_json::<Model>(&path, file.model.get().as_bytes())?, None)
    };
    let is_wordpiece = kind.kind.as_deref() == Some(WORDPIECE);
    check_model(&path, &model, is_wordpiece)?;
    let merges = match model.merges {
        None if !is_wordpiece => {
            let what = "expected a list of merges, found none";
            return Err(Error::input(&path, Place::Key("model.merges".to_owned()), what));
        }
        merges => merges.unwrap_or_default(),
    };
    let (encoding, space_prefix) = decoder(&path, file.decoder.as_ref())?;
    for (key, part) in [("normalizer", &file.normalizer), ("pre_tokenizer", &file.pre_tokenizer)] {
        part.as_ref().map_or(Ok(()), |part| check_sizes(&path, key, part))?;
    }
    check_growth(&path, file.normalizer.as_ref(), file.pre_tokenizer.as_ref())?;
    let rules = Rules {
        ignore_merges: model.ignore_merges,
        byte_fallback: model.byte_fallback,
        unknown: model.unk_token.map(|text| (text, model.fuse_unk)),
        space_prefix,
    };
    let added = file.added_tokens.into_iter().filter(|added| !added.token.content.is_empty());
    // A token in both lists has the id of the vocabulary.
    let with_id =
        |added: Added| (model.vocab.get(&added.token.content).copied().unwrap_or(added.id), added.token);
    let added: Vec<(u32, AddedToken)> = added.map(with_id).collect();
    let tokens = tokens(&path, model.vocab, &added)?;
    let id = |text: &str| tokens.iter().position(|token| token == text).map(|id| id as u32);
    let Around { mut prefix, mut suffix, pair } = around(&path, file.post_processor.as_ref())?;
    let apply_flag = |ids: &mut Vec<u32>, flag: Option<bool>, name: Option<&Name>| match flag {
        Some(false) => ids.clear(),
        Some(true) if ids.is_empty() => ids.extend(name.and_then(|name| id(name.text()))),
        Some(true) | None => {}
    };
    apply_flag(&mut prefix, config.adds_bos, config.bos.as_ref());
    apply_flag(&mut suffix, config.adds_eos, config.eos.as_ref());
    let eos = config.eos.as_ref().and_then(|name| id(name.text())).into_iter().collect();
    let keys = Keys { tokens: "model.vocab", merges: "model.merges", added: "added_tokens" };
    Ok(TokenizerSpec {
        normalizer: component(&path, "normalizer", file.normalizer, &NORMALIZERS)?,
        pre: component(&path, "pre_tokenizer", file.pre_tokenizer, &PRE_TOKENIZERS)?,
        merges: merges.into_iter().map(Merge::into_pair).collect(),
        unigram,
        added,
        rules,
        prefix,
        suffix,
        pair,
        eos,
        ..TokenizerSpec::new(path, keys, tokens, encoding)
    })
}

/// A vocabulary with scores, as a model without merges and the scores.
fn unigram(path: &Path, own: UnigramModel) -> Result<(Model, Vec<f64>), Error> {
    let refuse = |what: String| Error::input(path, Place::Key("model.vocab".to_owned()), what);
    let (n_tokens, unknown) = (own.vocab.len(), own.unk_id);
    let unk_token = unknown.and_then(|id| own.vocab.get(id)).map(|(text, _)| text.clone());
    let scores = own.vocab.iter().map(|(_, score)| *score).collect();
    let vocab: IndexMap<String, u32> = own.vocab.into_iter().map(|(text, _)| text).zip(0..).collect();
    if vocab.len() != n_tokens {
        return Err(refuse("expected each token once, found some twice".to_owned()));
    }
    let model = Model {
        vocab,
        merges: Some(Vec::new()),
        dropout: None,
        unk_token,
        continuing_subword_prefix: None,
        end_of_word_suffix: None,
        fuse_unk: true,
        byte_fallback: own.byte_fallback,
        ignore_merges: false,
    };
    Ok((model, scores))
}

fn unsupported(path: &Path, key: &str, what: String) -> Error {
    Error::Unsupported { path: path.to_owned(), place: Place::Key(key.to_owned()), what }
}

fn check_model(path: &Path, model: &Model, is_wordpiece: bool) -> Result<(), Error> {
    let known = if is_wordpiece { CONTINUES } else { "" };
    let is_set = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty() && text != known);
    let unsupported_field = [
        (is_set(&model.continuing_subword_prefix), "model.continuing_subword_prefix"),
        (is_set(&model.end_of_word_suffix), "model.end_of_word_suffix"),
        (model.dropout.is_some_and(|dropout| dropout != 0.0), "model.dropout"),
    ];
    if let Some((_, key)) = unsupported_field.iter().find(|(is_present, _)| *is_present) {
        return Err(unsupported(path, key, "it is not supported, expected nothing".to_owned()));
    }
    match &model.unk_token {
        Some(text) if !model.vocab.contains_key(text) => {
            let what = format!("expected a token of the vocabulary, found {}", quoted(text));
            Err(Error::input(path, Place::Key("model.unk_token".to_owned()), what))
        }
        _ => Ok(()),
    }
}

/// The strings of all tokens, by id.
fn tokens(
    path: &Path,
    vocab: IndexMap<String, u32>,
    added: &[(u32, AddedToken)],
) -> Result<Vec<String>, Error> {
    let refuse = |what| Error::input(path, Place::Key("model.vocab".to_owned()), what);
    let ids = vocab.values().chain(added.iter().map(|(id, _)| id));
    let n_tokens = ids.max().map_or(0, |id| *id as usize + 1);
    // Each id below takes memory, so a file with few tokens may not leave many ids out.
    let most = (MAX_UNUSED + 4 * (vocab.len() + added.len())).min(MAX_TOKENS);
    if n_tokens > most {
        return Err(refuse(format!("expected ids below {most}, found {}", n_tokens - 1)));
    }
    let mut tokens = vec![String::new(); n_tokens];
    let added = added.iter().map(|(id, token)| (token.content.clone(), *id));
    for (text, id) in vocab.into_iter().chain(added) {
        let place = &mut tokens[id as usize];
        if !place.is_empty() && *place != text {
            let what =
                format!("expected one token for id {id}, found {} and {}", quoted(place), quoted(&text));
            return Err(refuse(what));
        }
        *place = text;
    }
    Ok(tokens)
}

/// A component whose type is on the list, and so are all components nested in it.
fn component<T: for<'de> Deserialize<'de>>(
    path: &Path,
    key: &str,
    json: Option<Json>,
    known: &[&str],
) -> Result<Option<T>, Error> {
    let Some(json) = json else { return Ok(None) };
    for kind in kinds(&json) {
        if !known.contains(&kind) {
            let what = format!("{} is not supported, expected one of {}", quoted(kind), known.join(", "));
            return Err(unsupported(path, key, what));
        }
    }
    let part = serde_json::from_value(json);
    part.map(Some).map_err(|error| {
        let what = format!("expected a valid component: {}", quoted(&error.to_string()));
        Error::input(path, Place::Key(key.to_owned()), what)
    })
}

/// The types of a component and of those nested in it.
fn kinds(json: &Json) -> Vec<&str> {
    steps(json).into_iter().map(|step| step.get("type").and_then(Json::as_str).unwrap_or("")).collect()
}

/// A component and those nested in it.
pub(crate) fn steps(json: &Json) -> Vec<&Json> {
    let inner = ["normalizers", "pretokenizers", "decoders", "processors"];
    let inner = inner.iter().filter_map(|key| json.get(key)?.as_array()).flatten();
    std::iter::once(json).chain(inner.flat_map(steps)).collect()
}

/// Bounds the growth of a text by normalizers and pre-tokenizers, and refuses empty patterns and prefixes: the library
/// that runs these steps fails on them.
fn check_growth(path: &Path, normalizer: Option<&Json>, pre: Option<&Json>) -> Result<(), Error> {
    let refuse = |what: String| Err(Error::input(path, Place::Key("normalizer".to_owned()), what));
    let (mut growth, mut is_replaced) = (1usize, false);
    for step in [normalizer, pre].into_iter().flatten().flat_map(steps) {
        let text = |place: &str| step.pointer(place).and_then(Json::as_str);
        let is_set = |key: &str| step.get(key).and_then(Json::as_bool) != Some(false);
        let own = match text("/type") {
            // It is prepended to each piece between special tokens, and a piece may have one byte.
            Some("Prepend") => match text("/prepend").unwrap_or_default().len() {
                0 => return refuse("expected a text to prepend, found an empty one".to_owned()),
                n => 1 + n,
            },
            Some("Replace") if text("/pattern/Regex") == Some(SPACES) => {
                text("/content").unwrap_or_default().len().max(1)
            }
            Some("Precompiled") => {
                let table = text("/precompiled_charsmap").and_then(charsmap::from_base64);
                match table.and_then(|table| charsmap::normalizer(&table)) {
                    // As with other decompositions, once is allowed.
                    Some((_, growth)) if !is_replaced => growth.div_ceil(MAX_DECOMPOSITION),
                    Some((_, growth)) => growth,
                    None => return refuse("expected a valid precompiled_charsmap".to_owned()),
                }
            }
            Some("Replace") => {
                let Some(replaced) = text("/pattern/String").filter(|text| !text.is_empty()) else {
                    return refuse("expected a non-empty string to replace".to_owned());
                };
                text("/content").unwrap_or_default().len().div_ceil(replaced.len()).max(1)
            }
            // These steps are idempotent unless a replacement ran before.
            Some("NFKC" | "NFKD") if is_replaced => MAX_DECOMPOSITION,
            Some("NFC" | "NFD") if is_replaced => 3,
            Some("Lowercase") if is_replaced => 2,
            // Spaces around each Chinese character, and the decomposition of accents.
            Some("BertNormalizer") => 6,
            // Each byte becomes a character of at most two bytes.
            Some("ByteLevel") => {
                if is_set("add_prefix_space") {
                    4
                } else {
                    2
                }
            }
            // A space becomes a character of at most four bytes, and one is prepended.
            Some("Metaspace") => 8,
            _ => 1,
        };
        is_replaced |= matches!(text("/type"), Some("Prepend" | "Replace"));
        growth = growth.saturating_mul(own);
    }
    if growth > MAX_GROWTH {
        return refuse(format!(
            "expected steps that lengthen a text at most {MAX_GROWTH} times, found {growth} times"
        ));
    }
    Ok(())
}

/// Bounds the steps of a component and the bytes of its patterns: every text goes through all of them.
fn check_sizes(path: &Path, key: &str, json: &Json) -> Result<(), Error> {
    let refuse = |what: String| Err(Error::input(path, Place::Key(key.to_owned()), what));
    let steps = steps(json);
    if steps.len() > MAX_STEPS {
        return refuse(format!("expected at most {MAX_STEPS} steps, found {}", steps.len()));
    }
    let patterns = steps.iter().filter_map(|step| step.get("pattern"));
    let n_bytes = |pattern: &Json| {
        ["/String", "/Regex"]
            .iter()
            .filter_map(|kind| pattern.pointer(kind)?.as_str())
            .map(str::len)
            .sum::<usize>()
    };
    let n_bytes: usize = patterns.map(n_bytes).sum();
    if n_bytes > MAX_PATTERN_BYTES {
        return refuse(format!("expected patterns of at most {MAX_PATTERN_BYTES} bytes, found {n_bytes}"));
    }
    let mut regexes = steps.iter().filter_map(|step| step.pointer("/pattern/Regex")?.as_str());
    match regexes.find(|regex| repeats_repetitions(regex)) {
        Some(regex) => {
            refuse(format!("expected patterns whose repeated groups repeat nothing, found {}", quoted(regex)))
        }
        None => Ok(()),
    }
}

/// The byte encoding of tokens, and whether decoding strips the leading space.
fn decoder(path: &Path, json: Option<&Json>) -> Result<(ByteEncoding, bool), Error> {
    let kinds = json.map_or(Vec::new(), kinds);
    let unsupported_field = |kind: &&&str| {
        !["Sequence", WORDPIECE, "ByteLevel", "Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"]
            .contains(kind)
    };
    if let Some(kind) = kinds.iter().find(unsupported_field) {
        return Err(unsupported(path, "decoder", format!("{} is not supported", quoted(kind))));
    }
    if kinds.contains(&WORDPIECE) {
        return Ok((ByteEncoding::WordPiece, true));
    }
    if kinds.contains(&"ByteLevel") {
        return Ok((ByteEncoding::Gpt2, false));
    }
    if kinds.iter().any(|kind| ["ByteFallback", "Metaspace"].contains(kind)) {
        let space_prefix = kinds.iter().any(|kind| ["Strip", "Metaspace"].contains(kind));
        return Ok((ByteEncoding::SentencePiece, space_prefix));
    }
    let what = "expected `ByteLevel`, `ByteFallback` or `Metaspace`, found neither".to_owned();
    Err(unsupported(path, "decoder", what))
}

/// What a file adds around texts.
#[derive(Default)]
struct Around {
    prefix: Vec<u32>,
    suffix: Vec<u32>,
    pair: Vec<Part>,
}

/// The tokens added before and after a text, and those that join two.
fn around(path: &Path, json: Option<&Json>) -> Result<Around, Error> {
    let refuse = |what: &str| Error::input(path, Place::Key("post_processor".to_owned()), what);
    let mut around = Around::default();
    let Some(json) = json else { return Ok(around) };
    let inner = json.get("processors").and_then(Json::as_array);
    for step in inner.map_or(std::slice::from_ref(json), Vec::as_slice) {
        let kind = step.get("type").and_then(Json::as_str).unwrap_or("");
        match kind {
            "ByteLevel" => {}
            "BertProcessing" | "RobertaProcessing" => {
                let id = |side: &str| step.get(side).and_then(|pair| pair.get(1)?.as_u64()?.try_into().ok());
                let (Some(first), Some(last)) = (id("cls"), id("sep")) else {
                    return Err(refuse("expected a token under `cls` and one under `sep`"));
                };
                around.prefix.push(first);
                around.suffix.push(last);
                let joining = if kind == "BertProcessing" { BERT } else { ROBERTA };
                around.pair = joining.parts(&[first], &[last]);
            }
            "TemplateProcessing" => {
                let single = step.get("single").and_then(Json::as_array);
                let single = single.ok_or_else(|| refuse("expected a list under `single`"))?;
                let mut side = &mut around.prefix;
                for Part { content, .. } in template(path, step, single)? {
                    match content {
                        Content::Token(id) => side.push(id),
                        Content::First | Content::Second => side = &mut around.suffix,
                    }
                }
                if let Some(pair) = step.get("pair").and_then(Json::as_array) {
                    around.pair = template(path, step, pair)?;
                }
            }
            kind => {
                return Err(unsupported(
                    path,
                    "post_processor",
                    format!("{} is not supported", quoted(kind)),
                ));
            }
        }
    }
    Ok(around)
}

/// The parts of a template.
fn template(path: &Path, step: &Json, pieces: &[Json]) -> Result<Vec<Part>, Error> {
    let refuse = |what: &str| Error::input(path, Place::Key("post_processor".to_owned()), what);
    let mut parts = Vec::new();
    for piece in pieces {
        let (is_token, own) = match (piece.get("SpecialToken"), piece.get("Sequence")) {
            (Some(token), _) => (true, token),
            (None, Some(text)) => (false, text),
            (None, None) => return Err(refuse("expected a `SpecialToken` or a `Sequence`")),
        };
        let kind = own.get("type_id").and_then(Json::as_u64).and_then(|kind| u32::try_from(kind).ok());
        let kind = kind.unwrap_or(0);
        let name = own.get("id").and_then(Json::as_str).unwrap_or_default();
        if !is_token {
            let content = if name == "B" { Content::Second } else { Content::First };
            parts.push(Part { content, kind });
            continue;
        }
        let ids = step.get("special_tokens").and_then(|all| all.get(name)?.get("ids")?.as_array());
        for id in ids.ok_or_else(|| refuse("expected a list of ids for each special token"))? {
            let id = id.as_u64().and_then(|id| u32::try_from(id).ok());
            let content = Content::Token(id.ok_or_else(|| refuse("expected token ids"))?);
            parts.push(Part { content, kind });
        }
    }
    Ok(parts)
}

/// The end-of-sequence tokens in `config.json`.
fn model_eos(checkpoint: &Checkpoint) -> Result<Vec<u32>, Error> {
    let Some(value) = checkpoint.metadata().get(EOS_KEY) else { return Ok(Vec::new()) };
    let ids = if let Value::List(List::Unsigned(ids)) = value {
        Some(ids.clone())
    } else {
        value.to_u64().map(|id| vec![id])
    };
    let ids = ids.and_then(|ids| ids.into_iter().map(|id| u32::try_from(id).ok()).collect());
    ids.ok_or_else(|| {
        let what = format!("expected a token id, or a list of them, found {value}");
        refused_eos(checkpoint, files::MODEL, what)
    })
}

/// The error of an invalid end-of-sequence token.
fn refused_eos(checkpoint: &Checkpoint, file: &str, what: String) -> Error {
    Error::input(&sidecar::in_folder(checkpoint, file), Place::Key(EOS_KEY.to_owned()), what)
}

impl Merge {
    fn into_pair(self) -> (String, String) {
        match self {
            Self::Pair(a, b) => (a, b),
            Self::Text(text) => {
                let (a, b) = text.split_once(' ').unwrap_or((&text, ""));
                (a.to_owned(), b.to_owned())
            }
        }
    }
}

impl Name {
    fn text(&self) -> &str {
        match self {
            Self::Text(text) | Self::Object { content: text } => text,
        }
    }
}

impl Ids {
    fn into_vec(self) -> Vec<u32> {
        match self {
            Self::One(id) => vec![id],
            Self::Many(ids) => ids,
        }
    }
}
