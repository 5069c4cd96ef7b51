//! Chat templates: conversations as the text that a model was trained on.
//!
//! In: the chat template of a checkpoint, and messages as JSON. Out: one text, byte for byte that of Transformers.
//! A template is an untrusted program: it sees its variables and nothing else, and its steps, depth and memory are
//! bounded, so a hostile one ends in one sentence. `jinja.rs` runs it, `limits.rs` bounds it.

use fusebox_runtime::error::{Error as FileError, Place};
use fusebox_runtime::weights::value::{List, Value};
use fusebox_runtime::weights::{Checkpoint, Kind};
use serde::Deserialize;
use serde_json::{Map, Value as Json};

use crate::chat::jinja::Jinja;
use crate::chat::qwen3c::Templates as Qwen3cTemplates;
use crate::error::Error;
use crate::naming::files::{TEMPLATE, TOKENIZER_CONFIG};
use crate::naming::tokenizer as names;
use crate::sidecar;

mod jinja;
mod limits;
mod qwen3c;
pub mod strftime;
mod values;

/// The longest template that is read.
const MAX_TEMPLATE_BYTES: usize = 1 << 20;
/// The name of the template that Transformers takes where there are several.
const DEFAULT: &str = "default";
/// The special tokens that templates know by name.
const TOKENS: [&str; 4] = ["bos_token", "eos_token", "unk_token", "pad_token"];

/// The name of a file and the template in it.
type Found = (&'static str, String);

/// The chat template of a model.
#[derive(Debug)]
pub struct Chat {
    form: Form,
    /// Variables of every rendering: the special tokens.
    constants: Map<String, Json>,
}

#[derive(Debug)]
enum Form {
    Jinja(Box<Jinja>),
    Qwen3c(Qwen3cTemplates),
}

/// The parts of `tokenizer_config.json` that matter here.
#[derive(Default, Deserialize)]
#[serde(expecting = "an object")]
struct Config {
    chat_template: Option<Templates>,
    #[serde(flatten)]
    rest: Map<String, Json>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "a template, or a list of templates with names")]
enum Templates {
    One(String),
    Named(Vec<Named>),
}

#[derive(Deserialize)]
#[serde(expecting = "a template with a name")]
struct Named {
    name: String,
    template: String,
}

impl Chat {
    /// Opens the template of a checkpoint: in a GGUF file itself, in `chat_template.jinja` or `tokenizer_config.json`
    /// next to safetensors, or in the `.template` files next to a qwen3.c checkpoint; `None` where there is none.
    ///
    /// # Errors
    /// [`Error::File`] where a file is invalid, and [`Error::Template`] where the template does not parse.
    pub fn open(checkpoint: &Checkpoint) -> Result<Option<Self>, Error> {
        match checkpoint.kind() {
            Kind::Gguf { .. } => Self::from_gguf(checkpoint),
            Kind::Safetensors => Self::from_folder(checkpoint),
            Kind::Qorus => Ok(None),
            Kind::Ajc1 => {
                let templates = Qwen3cTemplates::open(checkpoint)?;
                Ok(templates.map(|templates| Self { form: Form::Qwen3c(templates), constants: Map::new() }))
            }
        }
    }

    /// A template from its source.
    ///
    /// # Errors
    /// [`Error::Template`] where it does not parse.
    pub fn from_source(source: &str, constants: Map<String, Json>) -> Result<Self, Error> {
        Self::named("chat", source, constants)
    }

    fn named(name: &str, source: &str, constants: Map<String, Json>) -> Result<Self, Error> {
        Ok(Self { form: Form::Jinja(Box::new(Jinja::new(name, source)?)), constants })
    }

    /// Defines `strftime_now` with this time, in seconds since 1970; without it, templates cannot ask for the time.
    pub fn set_clock(&mut self, seconds: i64) {
        match &mut self.form {
            Form::Jinja(jinja) => jinja.set_clock(seconds),
            Form::Qwen3c(_) => {}
        }
    }

    /// The source of the template, where it is Jinja.
    pub fn template(&self) -> Option<&str> {
        match &self.form {
            Form::Jinja(jinja) => Some(jinja.source()),
            Form::Qwen3c(_) => None,
        }
    }

    /// Renders messages, usually objects with `role` and `content`. `add_generation_prompt` appends the start of the
    /// assistant's answer. `arguments` are further variables, such as `enable_thinking`.
    ///
    /// # Errors
    /// [`Error::Template`] where the template fails, refuses the messages or takes too long.
    pub fn render(
        &self,
        messages: &[Json],
        add_generation_prompt: bool,
        arguments: &Map<String, Json>,
    ) -> Result<String, Error> {
        match &self.form {
            Form::Qwen3c(templates) => templates.render(messages, add_generation_prompt, arguments),
            Form::Jinja(jinja) => {
                let mut all = self.constants.clone();
                all.insert("tools".to_owned(), Json::Null);
                all.insert("documents".to_owned(), Json::Null);
                all.extend(arguments.clone());
                all.insert("messages".to_owned(), Json::Array(messages.to_vec()));
                all.insert("add_generation_prompt".to_owned(), Json::Bool(add_generation_prompt));
                jinja.render(&all)
            }
        }
    }

    fn from_gguf(checkpoint: &Checkpoint) -> Result<Option<Self>, Error> {
        let metadata = checkpoint.metadata();
        let Some(value) = metadata.get(names::CHAT_TEMPLATE) else { return Ok(None) };
        let source = value.as_text().ok_or_else(|| {
            let what = format!("expected a string, found {value}");
            FileError::input(
                sidecar::weights_path(checkpoint),
                Place::Key(names::CHAT_TEMPLATE.to_owned()),
                what,
            )
        })?;
        let Some(Value::List(List::Texts(tokens))) = metadata.get(names::TOKENS) else {
            return Self::named(names::CHAT_TEMPLATE, source, Map::new()).map(Some);
        };
        let constant = |(name, key): (&str, &str)| {
            let id = metadata.get(key)?.to_u64()?;
            let text = tokens.get(usize::try_from(id).ok()?)?;
            Some((name.to_owned(), Json::String(text.clone())))
        };
        let keys = [names::BOS, names::EOS, names::UNKNOWN, names::PADDING];
        let constants = TOKENS.into_iter().zip(keys).filter_map(constant).collect();
        Self::named(names::CHAT_TEMPLATE, source, constants).map(Some)
    }

    fn from_folder(checkpoint: &Checkpoint) -> Result<Option<Self>, Error> {
        let (found, rest) = Self::in_folder(checkpoint)?;
        let Some((name, source)) = found else { return Ok(None) };
        let text = |name: &str| {
            let token = rest.get(name)?;
            let text = token.as_str().or_else(|| token.get("content")?.as_str())?;
            Some((name.to_owned(), Json::String(text.to_owned())))
        };
        let constants = TOKENS.into_iter().filter_map(text).collect();
        Self::named(name, &source, constants).map(Some)
    }

    /// The Jinja source of the template next to a checkpoint, if there is one; the templates of qwen3.c are converted
    /// to Jinja.
    pub(crate) fn source(checkpoint: &Checkpoint) -> Result<Option<String>, FileError> {
        match checkpoint.kind() {
            Kind::Safetensors => Ok(Self::in_folder(checkpoint)?.0.map(|(_, source)| source)),
            Kind::Ajc1 => Ok(Qwen3cTemplates::open(checkpoint)?.map(|templates| templates.to_jinja())),
            Kind::Gguf { .. } | Kind::Qorus => Ok(None),
        }
    }

    /// The template of a folder with the name of its file, and the other keys of `tokenizer_config.json`.
    fn in_folder(checkpoint: &Checkpoint) -> Result<(Option<Found>, Map<String, Json>), FileError> {
        let config = sidecar::read_json(&sidecar::in_folder(checkpoint, TOKENIZER_CONFIG))?;
        let config: Config = config.unwrap_or_default();
        let file = sidecar::read_text(&sidecar::in_folder(checkpoint, TEMPLATE), MAX_TEMPLATE_BYTES)?;
        let own = config.chat_template.and_then(|templates| match templates {
            Templates::One(source) => Some(source),
            Templates::Named(all) => all.into_iter().find(|own| own.name == DEFAULT).map(|own| own.template),
        });
        let found = file.map(|source| (TEMPLATE, source));
        let found = found.or(own.map(|source| (TOKENIZER_CONFIG, source)));
        Ok((found, config.rest))
    }
}
