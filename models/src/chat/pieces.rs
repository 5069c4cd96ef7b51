//! The templates of qwen3.c: four texts with places for the system's and the user's.
//!
//! In: the `.template` files beside the checkpoint. Out: a text for one question, with or without a system message.
//! There is no form for earlier answers, as qwen3.c has no memory of them: such messages are refused.

use fusebox_compiler::foundation::amount::counted;
use fusebox_runtime::error::{Error as FileError, Place};
use fusebox_runtime::weights::Checkpoint;
use serde_json::{Map, Value as Json};

use crate::beside;
use crate::error::Error;

/// Where a message goes.
const PLACE: &str = "%s";
/// The longest template that is read.
const MAX_BYTES: usize = 1 << 16;
/// The ending of each file: with or without a system message, then with or without thinking.
const ENDINGS: [[&str; 2]; 2] = [
    [".template", ".template.with-thinking"],
    [".template.with-system", ".template.with-system-and-thinking"],
];

/// What messages these templates have a form for.
const EXPECTED: &str = "expected one user message, with or without a system message before it";

/// The four templates, in the order of [`ENDINGS`].
#[derive(Debug)]
pub(super) struct Pieces([[String; 2]; 2]);

impl Pieces {
    /// The templates beside a checkpoint; nothing where there are none.
    pub(super) fn open(checkpoint: &Checkpoint) -> Result<Option<Self>, FileError> {
        let mut pieces = [const { [const { String::new() }; 2] }; 2];
        for (n_more, (endings, pieces)) in (1..).zip(ENDINGS.into_iter().zip(&mut pieces)) {
            for (ending, piece) in endings.into_iter().zip(pieces) {
                let path = beside::with_ending(checkpoint, ending);
                let Some(text) = beside::text(&path, MAX_BYTES)? else { return Ok(None) };
                let found = text.matches(PLACE).count();
                if found != n_more {
                    let what = format!(
                        "expected `%s` {}, found it {}",
                        counted(n_more, "time"),
                        counted(found, "time")
                    );
                    return Err(FileError::input(&path, Place::Whole, what));
                }
                *piece = text;
            }
        }
        Ok(Some(Self(pieces)))
    }

    /// The same as a template of Jinja.
    pub(super) fn source(&self) -> String {
        let form = |template: &str, contents: &[&str]| -> String {
            let texts = template.split(PLACE).map(|text| format!("{{{{ {} }}}}", Json::from(text)));
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

    /// The text of a question.
    pub(super) fn render(
        &self,
        messages: &[Json],
        add_generation_prompt: bool,
        arguments: &Map<String, Json>,
    ) -> Result<String, Error> {
        let refuse = |what: &str| Error::Template { what: what.to_owned() };
        if !add_generation_prompt {
            return Err(refuse("expected to go on with an answer, which these templates always do"));
        }
        let content = |message: &Json, role: &str| {
            let is_right = message.get("role").and_then(Json::as_str) == Some(role);
            message.get("content").and_then(Json::as_str).filter(|_| is_right).map(str::to_owned)
        };
        let contents: Option<Vec<String>> = match messages {
            [user] => [content(user, "user")].into_iter().collect(),
            [system, user] => [content(system, "system"), content(user, "user")].into_iter().collect(),
            _ => None,
        };
        let contents = contents.ok_or_else(|| refuse(EXPECTED))?;
        let thinks = arguments.get("enable_thinking").and_then(Json::as_bool).unwrap_or(true);
        let template = &self.0[contents.len() - 1][usize::from(thinks)];
        let mut places = template.split(PLACE);
        let mut text = places.next().unwrap_or("").to_owned();
        for (content, after) in contents.iter().zip(places) {
            text += content;
            text += after;
        }
        Ok(text)
    }
}
