//! A conversation as an [`Ask`]: what every chat interface has in common.
//!
//! In: messages, tools, variables of the template. Out: the prompt, and how its answer is read.
//! A trailing message of the assistant is continued, unless the request says otherwise.

use serde_json::{Map, Value};

use crate::ask::Ask;
use crate::grammar::Grammar;
use crate::http::problem::Problem;
use crate::model::Served;
use crate::tools::{Choice, Tool};

/// A conversation.
#[derive(Clone, Debug)]
pub(crate) struct Conversation {
    /// As `messages.rs` makes them.
    pub(crate) messages: Vec<Value>,
    pub(crate) tools: Vec<Tool>,
    pub(crate) choice: Choice,
    pub(crate) is_parallel: bool,
    pub(crate) variables: Map<String, Value>,
    /// Whether the start of an answer is appended.
    pub(crate) adds_prompt: bool,
    /// Whether a trailing message of the assistant is continued.
    pub(crate) continues: bool,
}

impl Conversation {
    pub(crate) fn new(messages: Vec<Value>) -> Self {
        Self {
            messages,
            tools: Vec::new(),
            choice: Choice::None,
            is_parallel: true,
            variables: Map::new(),
            adds_prompt: true,
            continues: true,
        }
    }

    /// The text of the prompt.
    ///
    /// # Errors
    /// Where the template refuses the messages.
    pub(crate) fn text(&self, served: &Served) -> Result<String, Problem> {
        let tools = if self.choice == Choice::None { &[][..] } else { &self.tools };
        let is_prefill = |last: &Value| last["role"] == "assistant" && last.get("tool_calls").is_none();
        let (messages, prefill) = match self.messages.split_last() {
            Some((last, before)) if self.continues && !before.is_empty() && is_prefill(last) => {
                (before, last["content"].as_str())
            }
            _ => (&self.messages[..], None),
        };
        let adds_prompt = self.adds_prompt || prefill.is_some();
        let text = served.render(messages, tools, adds_prompt, &self.variables)?;
        Ok(text + prefill.unwrap_or_default())
    }

    /// Puts the prompt into an ask, with how its answer is read and what it must match.
    ///
    /// # Errors
    /// Where the template refuses the messages, or tools and a grammar are wanted together.
    pub(crate) fn fill(&self, served: &Served, ask: &mut Ask) -> Result<(), Problem> {
        let text = self.text(served)?;
        // A grammar leaves no room for reasoning.
        let thinks = served.thinks && ask.grammar.is_none();
        ask.reading.thinks = thinks.then(|| text.trim_end().ends_with("<think>"));
        ask.prompts = vec![served.tokens(&text, false)?];
        if self.choice == Choice::None {
            return Ok(());
        }
        let format = served.call_format();
        ask.reading.tools = Some((format, self.tools.clone()));
        let callable: Vec<&Tool> = match &self.choice {
            Choice::Named(name) => self.tools.iter().filter(|tool| tool.name == *name).collect(),
            Choice::Required => self.tools.iter().collect(),
            Choice::None | Choice::Auto => return Ok(()),
        };
        if ask.grammar.is_some() {
            let what = "a required call and a response format exclude each other";
            return Err(Problem::field("tool_choice", what));
        }
        let is_many = self.is_parallel && self.choice == Choice::Required;
        ask.reading.thinks = None;
        ask.grammar = Some(Grammar::Lark(format.grammar(&callable, is_many, &|text| served.literal(text))));
        Ok(())
    }
}
