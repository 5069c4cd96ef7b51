//! The chat templates of qwen3.c: four strings with placeholders for the system and user messages.
//!
//! In: the `.template` files next to the checkpoint. Out: the text of one user message, with or without a system
//! message.
//! Earlier turns have no form in qwen3.c, so longer chats are refused.

use fusebox_compiler::foundation::amount::counted;
use fusebox_runtime::error::{Error as FileError, Place};
use fusebox_runtime::weights::Checkpoint;
use serde_json::{Map, Value as Json};

use crate::error::Error;
use crate::sidecar;

/// The placeholder of a message.
const PLACEHOLDER: &str = "%s";
/// The longest template that is read.
const MAX_BYTES: usize = 1 << 16;
/// The suffix of each file: with or without a system message, then with or without thinking.
const SUFFIXES: [[&str; 2]; 2] = [
    [".template", ".template.with-thinking"],
    [".template.with-system", ".template.with-system-and-thinking"],
];

/// The messages that these templates can render.
const EXPECTED: &str = "expected one user message, with or without a system message before it";

/// The four templates, in the order of [`SUFFIXES`].
#[derive(Debug)]
pub(super) struct Templates([[String; 2]; 2]);

impl Templates {
    /// Opens the templates next to a checkpoint; `None` where there are none.
    pub(super) fn open(checkpoint: &Checkpoint) -> Result<Option<Self>, FileError> {
        let mut templates = [const { [const { String::new() }; 2] }; 2];
        for (n_placeholders, (suffixes, templates)) in (1..).zip(SUFFIXES.into_iter().zip(&mut templates)) {
            for (suffix, template) in suffixes.into_iter().zip(templates) {
                let path = sidecar::with_suffix(checkpoint, suffix);
                let Some(text) = sidecar::read_text(&path, MAX_BYTES)? else { return Ok(None) };
                let found = text.matches(PLACEHOLDER).count();
                if found != n_placeholders {
                    let what = format!(
                        "expected `%s` {}, found it {}",
                        counted(n_placeholders, "time"),
                        counted(found, "time")
                    );
                    return Err(FileError::input(&path, Place::Whole, what));
                }
                *template = text;
            }
        }
        Ok(Some(Self(templates)))
    }

    /// The same as one Jinja template.
    pub(super) fn to_jinja(&self) -> String {
        let form = |template: &str, contents: &[&str]| -> String {
            let texts = template.split(PLACEHOLDER).map(|text| format!("{{{{ {} }}}}", Json::from(text)));
            let contents = contents.iter().map(|content| format!("{{{{ {content}.content }}}}"));
            texts.zip(contents.chain([String::new()])).map(|(text, content)| text + &content).collect()
        };
        let either = |[plain, thinking]: &[String; 2], contents: &[&str]| {
            let (plain, thinking) = (form(plain, contents), form(thinking, contents));
            format!(
                "{{% if enable_thinking is not defined or enable_thinking %}}{thinking}{{% else %}}{plain}{{% endif %}}"
            )
        };
        let [alone, led] = &self.0;
        let (alone, led) = (either(alone, &["messages[0]"]), either(led, &["messages[0]", "messages[1]"]));
        let is_alone = r#"messages|length == 1 and messages[0].role == "user""#;
        let is_led =
            r#"messages|length == 2 and messages[0].role == "system" and messages[1].role == "user""#;
        let refusal = format!("{{{{ raise_exception({}) }}}}", Json::from(EXPECTED));
        format!("{{% if {is_alone} %}}{alone}{{% elif {is_led} %}}{led}{{% else %}}{refusal}{{% endif %}}")
    }

    /// Renders one user message.
    pub(super) fn render(
        &self,
        messages: &[Json],
        add_generation_prompt: bool,
        arguments: &Map<String, Json>,
    ) -> Result<String, Error> {
        let refuse = |what: &str| Error::Template { what: what.to_owned() };
        if !add_generation_prompt {
            return Err(refuse("expected add_generation_prompt, as these templates always start an answer"));
        }
        let content = |message: &Json, role: &str| {
            let has_role = message.get("role").and_then(Json::as_str) == Some(role);
            message.get("content").and_then(Json::as_str).filter(|_| has_role).map(str::to_owned)
        };
        let contents: Option<Vec<String>> = match messages {
            [user] => [content(user, "user")].into_iter().collect(),
            [system, user] => [content(system, "system"), content(user, "user")].into_iter().collect(),
            _ => None,
        };
        let contents = contents.ok_or_else(|| refuse(EXPECTED))?;
        let thinking = arguments.get("enable_thinking").and_then(Json::as_bool).unwrap_or(true);
        let template = &self.0[contents.len() - 1][usize::from(thinking)];
        let mut places = template.split(PLACEHOLDER);
        let mut text = places.next().unwrap_or("").to_owned();
        for (content, after) in contents.iter().zip(places) {
            text += content;
            text += after;
        }
        Ok(text)
    }
}
