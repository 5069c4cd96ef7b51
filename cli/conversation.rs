//! `fusebox run --chat` without a prompt: a chat, line by line.
//!
//! In: lines on standard input; `/clear` starts a new chat, `/quit` or the end of input ends it. Out: answers,
//! streamed.
//! The session and its KV cache are kept between messages: only new tokens are fed to the model. A line that cannot be
//! answered is reported, and the next one is read. On a terminal, Ctrl-C stops an answer.

use std::io::{BufRead, IsTerminal, Read, stdin};
use std::ops::ControlFlow;

use fusebox_compiler::foundation::amount::counted;
use fusebox_models::chat::Chat;
use fusebox_models::generate::{Finish, Generator};
use fusebox_models::tokenizer::Tokenizer;
use serde_json::{Map, Value, json};

use crate::context::ContextLimit;
use crate::output;
use crate::signals::{self, CtrlC};

/// Longer lines are refused.
const MAX_LINE_BYTES: u64 = 16 << 20;
/// Printed when a chat starts, and by `/help`.
const HELP: &str = "type a message; Ctrl-C stops an answer, /clear starts a new chat, /quit exits";

/// The messages so far, rendered by the model's chat template.
pub(crate) struct Conversation<'a> {
    chat: &'a Chat,
    tokenizer: &'a Tokenizer,
    /// Further variables of the template.
    variables: Map<String, Value>,
    messages: Vec<Value>,
    /// Messages that `/clear` keeps: the system message, if there is one.
    n_fixed: usize,
}

/// One line of input.
enum Line {
    Message(String),
    /// Not UTF-8.
    NotUtf8,
    /// Longer than [`MAX_LINE_BYTES`].
    TooLong,
    Clear,
    Help,
    Empty,
    Quit,
    End,
}

impl<'a> Conversation<'a> {
    /// A chat that starts with the system message, if any; `thinking` switches reasoning on or off, for templates that
    /// have such a switch.
    pub(crate) fn new(
        (chat, tokenizer): (&'a Chat, &'a Tokenizer),
        system: Option<&str>,
        thinking: Option<bool>,
    ) -> Self {
        let messages: Vec<Value> = system.map(|text| message("system", text)).into_iter().collect();
        // Templates use one name or the other.
        let names = ["enable_thinking", "thinking"].map(str::to_owned);
        let variables = thinking.into_iter().flat_map(|is_on| names.clone().map(|name| (name, is_on.into())));
        Self { chat, tokenizer, variables: variables.collect(), n_fixed: messages.len(), messages }
    }

    /// The token ids of the chat with a new user message, up to where its answer starts.
    pub(crate) fn prompt_with(&mut self, text: &str, limit: ContextLimit) -> Result<Vec<u32>, String> {
        self.messages.push(message("user", text));
        let text =
            self.chat.render(&self.messages, true, &self.variables).map_err(|error| error.to_string())?;
        limit.encode("the conversation has", self.tokenizer, &text, false)
    }

    /// Reads lines and answers them until the input ends.
    pub(crate) fn run(mut self, generator: &mut Generator<'_>, limit: ContextLimit) -> Result<(), String> {
        let is_terminal = stdin().is_terminal();
        let (mut n_lines, mut n_failed) = (0, 0);
        if is_terminal {
            output::note(HELP);
        }
        loop {
            if is_terminal && output::stream("> ").is_break() {
                return Ok(());
            }
            let answer = match read_line()? {
                Line::End if n_lines == 0 && !is_terminal => {
                    return Err(
                        "a message is needed: -p TEXT, -f FILE or a line on standard input".to_owned()
                    );
                }
                Line::End | Line::Quit => break,
                Line::Empty => continue,
                Line::Help => {
                    output::note(HELP);
                    continue;
                }
                Line::Clear => {
                    self.messages.truncate(self.n_fixed);
                    continue;
                }
                Line::Message(text) => self.answer(&text, generator, limit, is_terminal),
                Line::NotUtf8 => {
                    Err("standard input: expected UTF-8 text, found a line of other bytes".to_owned())
                }
                Line::TooLong => {
                    Err(format!("standard input: expected lines of less than {MAX_LINE_BYTES} bytes"))
                }
            };
            n_lines += 1;
            match answer {
                Ok(Finish::Closed) => return Ok(()),
                Ok(Finish::Length) if is_terminal => {
                    output::note("the answer was cut at the limit of -n tokens");
                }
                Ok(Finish::Length | Finish::Eos | Finish::Stop) => {}
                Ok(Finish::Context) => {
                    output::print_error(&format!(
                        "the context is full: /clear starts a new chat, {}",
                        limit.remedy()
                    ));
                    n_failed += 1;
                }
                Err(sentence) => {
                    output::print_error(&sentence);
                    n_failed += 1;
                }
            }
        }
        // On a terminal each failure was seen when it happened.
        if n_failed > 0 && !is_terminal {
            return Err(format!("{} not answered in full", counted(n_failed, "message")));
        }
        Ok(())
    }

    /// Answers one message; where that fails, the message is dropped from the chat.
    fn answer(
        &mut self,
        text: &str,
        generator: &mut Generator<'_>,
        limit: ContextLimit,
        is_terminal: bool,
    ) -> Result<Finish, String> {
        let n_before = self.messages.len();
        let _ctrl_c = is_terminal.then(CtrlC::catch);
        let is_stopped = || is_terminal && signals::ctrl_c_pressed();
        let mut each = |piece: &str| match output::stream(piece) {
            ControlFlow::Continue(()) if is_stopped() => ControlFlow::Break(()),
            flow => flow,
        };
        let prompt = self.prompt_with(text, limit);
        let answer = prompt
            .and_then(|prompt| generator.answer(&prompt, &mut each).map_err(|error| error.to_string()))
            .inspect_err(|_| self.messages.truncate(n_before))?;
        output::print("\n");
        self.messages.push(message("assistant", &answer.text));
        Ok(if answer.finish == Finish::Closed && is_stopped() { Finish::Stop } else { answer.finish })
    }
}

/// A message of a chat template.
fn message(role: &str, content: &str) -> Value {
    json!({ "role": role, "content": content })
}

/// Reads the next line of standard input.
fn read_line() -> Result<Line, String> {
    let mut line = Vec::new();
    let n_bytes = stdin().lock().take(MAX_LINE_BYTES).read_until(b'\n', &mut line);
    let n_bytes = n_bytes.map_err(|error| format!("standard input: {error}"))?;
    if n_bytes as u64 == MAX_LINE_BYTES && line.last() != Some(&b'\n') {
        let rest = stdin().lock().skip_until(b'\n');
        return rest.map(|_| Line::TooLong).map_err(|error| format!("standard input: {error}"));
    }
    Ok(match str::from_utf8(&line).map(str::trim) {
        _ if n_bytes == 0 => Line::End,
        Ok("/quit") => Line::Quit,
        Ok("/clear") => Line::Clear,
        Ok("/help") => Line::Help,
        Ok("") => Line::Empty,
        Ok(text) => Line::Message(text.to_owned()),
        Err(_) => Line::NotUtf8,
    })
}
