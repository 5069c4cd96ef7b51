//! A conversation, line by line.
//!
//! In: lines on standard input; `/quit` or the end of input ends it. Out: answers, each as it comes.
//! The session goes on: of every message only what is new is fed to the model.

use std::io::{BufRead, IsTerminal, Read, stdin};

use fusebox_models::chat::Chat;
use fusebox_models::generate::{Finish, Generator};
use fusebox_models::tokenizer::Tokenizer;
use serde_json::{Map, Value, json};

use crate::output;

/// No line is as long as this.
const MAX_LINE_BYTES: u64 = 16 << 20;
/// What ends a conversation.
const QUIT: &str = "/quit";

/// Something that was said.
pub(crate) fn message(role: &str, content: &str) -> Value {
    json!({ "role": role, "content": content })
}

/// The tokens of a conversation, up to where an answer begins.
pub(crate) fn tokens(messages: &[Value], tokenizer: &Tokenizer, chat: &Chat) -> Result<Vec<u32>, String> {
    let text = chat.render(messages, true, &Map::new()).map_err(|error| error.to_string())?;
    tokenizer.encode(&text, false).map_err(|error| error.to_string())
}

/// Answers line after line.
pub(crate) fn hold(generator: &mut Generator<'_>, tokenizer: &Tokenizer, chat: &Chat) -> Result<(), String> {
    let is_terminal = stdin().is_terminal();
    let mut messages = Vec::new();
    loop {
        if is_terminal && output::say("> ").is_break() {
            return Ok(());
        }
        let mut line = String::new();
        let n_bytes = stdin().lock().take(MAX_LINE_BYTES).read_line(&mut line);
        let n_bytes = n_bytes.map_err(|error| format!("standard input: {error}"))?;
        if n_bytes as u64 == MAX_LINE_BYTES {
            return Err(format!("standard input: expected lines of less than {MAX_LINE_BYTES} bytes"));
        }
        if line.trim() == QUIT {
            return Ok(());
        }
        if n_bytes == 0 {
            break;
        }
        if line.trim().is_empty() {
            continue;
        }
        messages.push(message("user", line.trim()));
        let answer = tokens(&messages, tokenizer, chat).and_then(|prompt| {
            generator.answer(&prompt, &mut |piece| output::say(piece)).map_err(|error| error.to_string())
        });
        let answer = match answer {
            Ok(answer) => answer,
            // Whoever types may say it in other words.
            Err(sentence) if is_terminal => {
                output::complain(&sentence);
                messages.pop();
                continue;
            }
            Err(sentence) => return Err(sentence),
        };
        output::print("\n");
        match answer.finish {
            Finish::Closed => return Ok(()),
            Finish::Context => return Err("the context is full; -c sets a larger one".to_owned()),
            Finish::Length | Finish::End | Finish::Stop => {}
        }
        messages.push(message("assistant", &answer.text));
    }
    if messages.is_empty() && !is_terminal {
        return Err("a message is needed: -p TEXT, -f FILE or a line on standard input".to_owned());
    }
    Ok(())
}
