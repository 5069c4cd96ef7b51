//! Chats: messages so far, rendered by the model's own template, and answers to new ones.
//!
//! In: messages. Out: answers, whole or in pieces.
//! A session and its KV cache are kept between messages: only new tokens are fed to the model.

use std::ops::ControlFlow;
use std::sync::Arc;

use fusebox_models::chat::Chat as Template;
use fusebox_models::generate::{Answer, Generator};
use fusebox_models::tokenizer::Tokenizer;
use serde_json::{Map, Value, json};

use crate::error::Error;
use crate::open::context::ContextLimit;

/// What reasoning begins with.
pub const THINK: &str = "<think>";

/// The messages so far, and the template that renders them.
pub struct Conversation {
    template: Template,
    tokenizer: Arc<Tokenizer>,
    /// Further variables of the template.
    variables: Map<String, Value>,
    /// The messages, each with a role and content.
    pub messages: Vec<Value>,
    /// Whether the oldest turns are forgotten where the chat does not fit into the context.
    pub context_shift: bool,
}

/// A chat: messages so far, and a session that holds them.
pub struct Chat {
    conversation: Conversation,
    generator: Generator,
    limit: ContextLimit,
}

/// A message of a chat template.
pub fn message(role: &str, content: &str) -> Value {
    json!({ "role": role, "content": content })
}

impl Conversation {
    /// A chat that starts with the system message, if any; `thinking` switches reasoning on or off, for templates that
    /// have such a switch.
    pub fn new(
        (template, tokenizer): (Template, Arc<Tokenizer>),
        system: Option<&str>,
        thinking: Option<bool>,
    ) -> Self {
        let messages = system.map(|text| message("system", text)).into_iter().collect();
        let mut new = Self { template, tokenizer, variables: Map::new(), messages, context_shift: false };
        if let Some(thinking) = thinking {
            new.set_thinking(thinking);
        }
        new
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Switches reasoning on or off.
    pub fn set_thinking(&mut self, is_on: bool) {
        // Templates use one name or the other.
        for name in ["enable_thinking", "thinking"] {
            self.variables.insert(name.to_owned(), is_on.into());
        }
    }

    /// The token ids of the chat with a new user message, up to where its answer starts, and whether that starts with
    /// reasoning. With [`Self::context_shift`] the oldest turns are forgotten until the rest leaves a quarter of the
    /// context to the answer, or nothing else is left but the new message.
    ///
    /// # Errors
    /// Where the template does not take the message, or the chat does not fit into the context. Nothing is forgotten
    /// then, and the message stays.
    pub fn prompt_with(&mut self, text: &str, limit: ContextLimit) -> Result<(Vec<u32>, bool), String> {
        self.messages.push(message("user", text));
        let whole = self.prompt(&self.messages, limit);
        if !self.context_shift || whole.as_ref().is_ok_and(|(tokens, _)| leaves_room(tokens, limit)) {
            return whole;
        }
        let mut messages = self.messages.clone();
        while forget_turn(&mut messages, self.n_fixed()) {
            let prompt = self.prompt(&messages, limit);
            let is_last = messages.len() == self.n_fixed() + 1;
            if prompt.as_ref().is_ok_and(|(tokens, _)| is_last || leaves_room(tokens, limit)) {
                self.messages = messages;
                return prompt;
            }
        }
        whole
    }

    /// The token ids of messages, up to where an answer starts, and whether that starts with reasoning.
    fn prompt(&self, messages: &[Value], limit: ContextLimit) -> Result<(Vec<u32>, bool), String> {
        let text = self.template.render(messages, true, &self.variables);
        let text = text.map_err(|error| error.to_string())?;
        let is_thinking = text.trim_end().ends_with(THINK);
        Ok((limit.encode("the conversation has", &self.tokenizer, &text, false)?, is_thinking))
    }

    /// Takes back the last message, which was not answered.
    pub fn take_back(&mut self) {
        self.messages.pop();
    }

    /// Takes the answer to the last message.
    pub fn push_answer(&mut self, text: &str) {
        self.messages.push(message("assistant", text));
    }

    /// How many messages a new chat keeps: the system message, if there is one.
    pub fn n_fixed(&self) -> usize {
        usize::from(self.messages.first().is_some_and(|first| first["role"] == "system"))
    }
}

/// Whether a prompt leaves a quarter of the context to its answer.
fn leaves_room(tokens: &[u32], limit: ContextLimit) -> bool {
    tokens.len() + limit.context / 4 <= limit.context
}

/// Drops the oldest message of a user and what follows up to the next one; not the last.
fn forget_turn(messages: &mut Vec<Value>, n_fixed: usize) -> bool {
    let next = messages.iter().skip(n_fixed + 1).position(|message| message["role"] == "user");
    if let Some(n) = next {
        messages.drain(n_fixed..=n_fixed + n);
    }
    next.is_some()
}

impl Chat {
    pub(crate) fn new(conversation: Conversation, generator: Generator, limit: ContextLimit) -> Self {
        Self { conversation, generator, limit }
    }

    /// The answer to a message.
    ///
    /// # Errors
    /// As [`Chat::stream`].
    pub fn say(&mut self, message: &str) -> Result<Answer, Error> {
        self.stream(message, |_| ControlFlow::Continue(()))
    }

    /// The same, and `each` gets the text in pieces as it comes; it may stop the answer.
    ///
    /// # Errors
    /// Where the template does not take the message, or the chat does not fit into the context; then the chat is as it
    /// was.
    pub fn stream(
        &mut self,
        message: &str,
        mut each: impl FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Answer, Error> {
        let prompt = self.conversation.prompt_with(message, self.limit).map_err(Error::from);
        let answer =
            prompt.and_then(|(tokens, _)| self.generator.answer(&tokens, &mut each).map_err(Error::from));
        let answer = answer.inspect_err(|_| self.conversation.take_back())?;
        self.conversation.push_answer(&answer.text);
        Ok(answer)
    }

    /// The messages so far, but for those that were forgotten.
    pub fn messages(&self) -> &[Value] {
        &self.conversation.messages
    }
}
