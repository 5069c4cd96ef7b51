//! Conversations as the text that a model was trained on.
//!
//! In: the chat template of a checkpoint, and messages as JSON. Out: one text, byte for byte that of Transformers.
//! A template is a program from a file that others wrote: it sees its arguments and nothing else, and its steps,
//! its depth and all it makes are bounded, so a hostile one is one sentence. `jinja.rs` runs it, `guard.rs` counts.

use fusebox_runtime::error::{Error as FileError, Place};
use fusebox_runtime::weights::value::{List, Value};
use fusebox_runtime::weights::{Checkpoint, Kind};
use serde::Deserialize;
use serde_json::{Map, Value as Json};

use crate::beside;
use crate::chat::jinja::Jinja;
use crate::chat::pieces::Pieces;
use crate::error::Error;
use crate::naming::files::{TEMPLATE, TOKENIZER_CONFIG};
use crate::naming::tokenizer as names;

mod clock;
mod guard;
mod jinja;
mod pieces;
mod values;

/// The longest template that is read.
const MAX_TEMPLATE_BYTES: usize = 1 << 20;
/// The template that Transformers takes of several.
const DEFAULT: &str = "default";
/// The tokens that templates know by name.
const TOKENS: [&str; 4] = ["bos_token", "eos_token", "unk_token", "pad_token"];

/// The name of a file and the template in it.
type Found = (&'static str, String);

/// The chat template of a model.
#[derive(Debug)]
pub struct Chat {
    form: Form,
    /// What every rendering is given: names of tokens, as a rule.
    constants: Map<String, Json>,
}

#[derive(Debug)]
enum Form {
    Jinja(Box<Jinja>),
    Pieces(Pieces),
}

/// What `tokenizer_config.json` says.
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
    /// The template of a checkpoint: in a GGUF file itself, in `chat_template.jinja` or `tokenizer_config.json` beside
    /// safetensors, or in the `.template` files beside a checkpoint of qwen3.c; nothing where there is none.
    ///
    /// # Errors
    /// [`Error::File`] where a file is not as its kind wants it, and [`Error::Template`] where the template is none.
    pub fn open(checkpoint: &Checkpoint) -> Result<Option<Self>, Error> {
        match checkpoint.kind() {
            Kind::Gguf { .. } => Self::from_gguf(checkpoint),
            Kind::Safetensors => Self::from_folder(checkpoint),
            Kind::Qorus => Ok(None),
            Kind::Ajc1 => {
                let pieces = Pieces::open(checkpoint)?;
                Ok(pieces.map(|pieces| Self { form: Form::Pieces(pieces), constants: Map::new() }))
            }
        }
    }

    /// A template by its text.
    ///
    /// # Errors
    /// [`Error::Template`] where it is none.
    pub fn from_source(source: &str, constants: Map<String, Json>) -> Result<Self, Error> {
        Self::named("chat", source, constants)
    }

    fn named(name: &str, source: &str, constants: Map<String, Json>) -> Result<Self, Error> {
        Ok(Self { form: Form::Jinja(Box::new(Jinja::new(name, source)?)), constants })
    }

    /// Tells templates that ask for it what time it is, in seconds since 1970; without it, they cannot ask.
    pub fn set_clock(&mut self, seconds: i64) {
        match &mut self.form {
            Form::Jinja(jinja) => jinja.set_clock(seconds),
            Form::Pieces(_) => {}
        }
    }

    /// The text of messages, each an object with a `role` and a `content` as a rule. With `add_generation_prompt` it
    /// ends where the answer begins. More arguments are given to the template by their names, as `enable_thinking`.
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
            Form::Pieces(pieces) => pieces.render(messages, add_generation_prompt, arguments),
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
            let what = format!("expected a text, found {value}");
            FileError::input(beside::weights(checkpoint), Place::Key(names::CHAT_TEMPLATE.to_owned()), what)
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

    /// The text of the template beside a checkpoint, where there is one; that of qwen3.c is said in Jinja.
    pub(crate) fn source(checkpoint: &Checkpoint) -> Result<Option<String>, FileError> {
        match checkpoint.kind() {
            Kind::Safetensors => Ok(Self::in_folder(checkpoint)?.0.map(|(_, source)| source)),
            Kind::Ajc1 => Ok(Pieces::open(checkpoint)?.map(|pieces| pieces.source())),
            Kind::Gguf { .. } | Kind::Qorus => Ok(None),
        }
    }

    /// The template with its file, and what else `tokenizer_config.json` says.
    fn in_folder(checkpoint: &Checkpoint) -> Result<(Option<Found>, Map<String, Json>), FileError> {
        let config = beside::config(&beside::in_folder(checkpoint, TOKENIZER_CONFIG))?;
        let config: Config = config.unwrap_or_default();
        let file = beside::text(&beside::in_folder(checkpoint, TEMPLATE), MAX_TEMPLATE_BYTES)?;
        let own = config.chat_template.and_then(|templates| match templates {
            Templates::One(source) => Some(source),
            Templates::Named(all) => all.into_iter().find(|own| own.name == DEFAULT).map(|own| own.template),
        });
        let found = file.map(|source| (TEMPLATE, source));
        let found = found.or(own.map(|source| (TOKENIZER_CONFIG, source)));
        Ok((found, config.rest))
    }
}
