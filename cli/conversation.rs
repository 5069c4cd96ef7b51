//! A conversation, line by line.
//!
//! In: lines on standard input; `/clear` begins anew, `/quit` or the end of input ends it. Out: answers, each as it
//! comes.
//! The session goes on: of every message only what is new is fed to the model. A line that cannot be answered is said
//! to be so, and the next one is read; whoever types may also stop an answer.

use std::io::{BufRead, IsTerminal, Read, stdin};
use std::ops::ControlFlow;

use fusebox_compiler::foundation::amount::counted;
use fusebox_models::chat::Chat;
use fusebox_models::generate::{Finish, Generator};
use fusebox_models::tokenizer::Tokenizer;
use serde_json::{Map, Value, json};

use crate::output;
use crate::process::{self, Interrupts};
use crate::room::Room;

/// No line is as long as this.
const MAX_LINE_BYTES: u64 = 16 << 20;
/// What is typed that is no message.
const HELP: &str = "a line is a message; Ctrl-C stops an answer, /clear begins anew, /quit ends";

/// What was said so far, in the form of a model's template.
pub(crate) struct Conversation<'a> {
    chat: &'a Chat,
    tokenizer: &'a Tokenizer,
    /// What the template is told besides.
    arguments: Map<String, Value>,
    messages: Vec<Value>,
    /// How many of them stay when it begins anew.
    n_fixed: usize,
}

/// What a line asks for.
enum Line {
    Message(String),
    /// Bytes that are no text.
    Other,
    Clear,
    Help,
    Nothing,
    Quit,
    End,
}

impl<'a> Conversation<'a> {
    /// One that begins with what the model is told about its part, if it is; `thinks` is whether it reasons before it
    /// answers, where its template asks.
    pub(crate) fn new(
        (chat, tokenizer): (&'a Chat, &'a Tokenizer),
        system: Option<&str>,
        thinks: Option<bool>,
    ) -> Self {
        let messages: Vec<Value> = system.map(|text| message("system", text)).into_iter().collect();
        // Templates call it one or the other.
        let names = ["enable_thinking", "thinking"].map(str::to_owned);
        let arguments = thinks.into_iter().flat_map(|thinks| names.clone().map(|name| (name, thinks.into())));
        Self { chat, tokenizer, arguments: arguments.collect(), n_fixed: messages.len(), messages }
    }

    /// The tokens up to where the answer to a message begins.
    pub(crate) fn ask(&mut self, text: &str, room: Room) -> Result<Vec<u32>, String> {
        self.messages.push(message("user", text));
        let text =
            self.chat.render(&self.messages, true, &self.arguments).map_err(|error| error.to_string())?;
        room.tokens("the conversation has", (self.tokenizer, &text, false))
    }

    /// Answers line after line.
    pub(crate) fn hold(mut self, generator: &mut Generator<'_>, room: Room) -> Result<(), String> {
        let is_terminal = stdin().is_terminal();
        let (mut n_lines, mut n_failed) = (0, 0);
        if is_terminal {
            output::note(HELP);
        }
        loop {
            if is_terminal && output::say("> ").is_break() {
                return Ok(());
            }
            let answer = match line()? {
                Line::End if n_lines == 0 && !is_terminal => {
                    return Err(
                        "a message is needed: -p TEXT, -f FILE or a line on standard input".to_owned()
                    );
                }
                Line::End | Line::Quit => break,
                Line::Nothing => continue,
                Line::Help => {
                    output::note(HELP);
                    continue;
                }
                Line::Clear => {
                    self.messages.truncate(self.n_fixed);
                    continue;
                }
                Line::Message(text) => self.answer(&text, generator, room, is_terminal),
                Line::Other => {
                    Err("standard input: expected a text in UTF-8, found other bytes in a line".to_owned())
                }
            };
            n_lines += 1;
            match answer {
                Ok(Finish::Closed) => return Ok(()),
                Ok(Finish::Length) if is_terminal => output::note("it goes on: -n takes more tokens"),
                Ok(Finish::Length | Finish::End | Finish::Stop) => {}
                Ok(Finish::Context) => {
                    output::complain(&format!("the context is full: /clear begins anew, {}", room.remedy()));
                    n_failed += 1;
                }
                Err(sentence) => {
                    output::complain(&sentence);
                    n_failed += 1;
                }
            }
        }
        // Whoever types has seen it, and may have said it in other words.
        if n_failed > 0 && !is_terminal {
            return Err(format!("{} without a whole answer", counted(n_failed, "message")));
        }
        Ok(())
    }

    /// Answers a message, which is forgotten where that fails.
    fn answer(
        &mut self,
        text: &str,
        generator: &mut Generator<'_>,
        room: Room,
        is_terminal: bool,
    ) -> Result<Finish, String> {
        let n_before = self.messages.len();
        let _interrupts = is_terminal.then(Interrupts::noted);
        let is_stopped = || is_terminal && process::came();
        let mut each = |piece: &str| match output::say(piece) {
            ControlFlow::Continue(()) if is_stopped() => ControlFlow::Break(()),
            flow => flow,
        };
        let prompt = self.ask(text, room);
        let answer = prompt
            .and_then(|prompt| generator.answer(&prompt, &mut each).map_err(|error| error.to_string()))
            .inspect_err(|_| self.messages.truncate(n_before))?;
        output::print("\n");
        self.messages.push(message("assistant", &answer.text));
        Ok(if answer.finish == Finish::Closed && is_stopped() { Finish::Stop } else { answer.finish })
    }
}

/// Something that was said.
fn message(role: &str, content: &str) -> Value {
    json!({ "role": role, "content": content })
}

/// The next line of standard input.
fn line() -> Result<Line, String> {
    let mut line = Vec::new();
    let n_bytes = stdin().lock().take(MAX_LINE_BYTES).read_until(b'\n', &mut line);
    let n_bytes = n_bytes.map_err(|error| format!("standard input: {error}"))?;
    if n_bytes as u64 == MAX_LINE_BYTES {
        return Err(format!("standard input: expected lines of less than {MAX_LINE_BYTES} bytes"));
    }
    Ok(match str::from_utf8(&line).map(str::trim) {
        _ if n_bytes == 0 => Line::End,
        Ok("/quit") => Line::Quit,
        Ok("/clear") => Line::Clear,
        Ok("/help") => Line::Help,
        Ok("") => Line::Nothing,
        Ok(text) => Line::Message(text.to_owned()),
        Err(_) => Line::Other,
    })
}
