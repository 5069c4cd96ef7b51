//! A conversation, line by line.
//!
//! In: lines on standard input; `/quit` or the end of input ends it. Out: answers, each as it comes.
//! The session goes on: of every message only what is new is fed to the model. A line that cannot be answered is said
//! to be so, and the next one is read.

use std::io::{BufRead, IsTerminal, Read, stdin};

use fusebox_compiler::foundation::amount::counted;
use fusebox_models::chat::Chat;
use fusebox_models::generate::{Finish, Generator};
use fusebox_models::tokenizer::Tokenizer;
use serde_json::{Map, Value, json};

use crate::output;
use crate::room::Room;

/// No line is as long as this.
const MAX_LINE_BYTES: u64 = 16 << 20;
/// What ends a conversation.
const QUIT: &str = "/quit";

/// Something that was said.
pub(crate) fn message(role: &str, content: &str) -> Value {
    json!({ "role": role, "content": content })
}

/// The tokens of a conversation, up to where an answer begins.
pub(crate) fn tokens(
    messages: &[Value],
    tokenizer: &Tokenizer,
    chat: &Chat,
    room: Room,
) -> Result<Vec<u32>, String> {
    let text = chat.render(messages, true, &Map::new()).map_err(|error| error.to_string())?;
    room.tokens("the conversation has", (tokenizer, &text, false))
}

/// Answers line after line.
pub(crate) fn hold(
    generator: &mut Generator<'_>,
    tokenizer: &Tokenizer,
    chat: &Chat,
    room: Room,
) -> Result<(), String> {
    let is_terminal = stdin().is_terminal();
    let (mut messages, mut n_unanswered) = (Vec::new(), 0);
    loop {
        if is_terminal && output::say("> ").is_break() {
            return Ok(());
        }
        let mut line = Vec::new();
        let n_bytes = stdin().lock().take(MAX_LINE_BYTES).read_until(b'\n', &mut line);
        let n_bytes = n_bytes.map_err(|error| format!("standard input: {error}"))?;
        if n_bytes as u64 == MAX_LINE_BYTES {
            return Err(format!("standard input: expected lines of less than {MAX_LINE_BYTES} bytes"));
        }
        if n_bytes == 0 && messages.is_empty() && n_unanswered == 0 && !is_terminal {
            return Err("a message is needed: -p TEXT, -f FILE or a line on standard input".to_owned());
        }
        let text = str::from_utf8(&line).map(str::trim);
        if n_bytes == 0 || text == Ok(QUIT) {
            break;
        }
        if text == Ok("") {
            continue;
        }
        let not_text = |_| "standard input: expected a text in UTF-8, found other bytes in a line".to_owned();
        let n_before = messages.len();
        let prompt = text.map_err(not_text).and_then(|text| {
            messages.push(message("user", text));
            tokens(&messages, tokenizer, chat, room)
        });
        let answer = prompt.and_then(|prompt| {
            generator.answer(&prompt, &mut |piece| output::say(piece)).map_err(|error| error.to_string())
        });
        let answer = match answer {
            Ok(answer) => answer,
            Err(sentence) => {
                output::complain(&sentence);
                messages.truncate(n_before);
                n_unanswered += 1;
                continue;
            }
        };
        output::print("\n");
        match answer.finish {
            Finish::Closed => return Ok(()),
            Finish::Context => return Err(format!("the context is full; {}", room.remedy())),
            Finish::Length | Finish::End | Finish::Stop => {}
        }
        messages.push(message("assistant", &answer.text));
    }
    // Whoever types has seen it, and may have said it in other words.
    if n_unanswered > 0 && !is_terminal {
        return Err(format!("{} without an answer", counted(n_unanswered, "message")));
    }
    Ok(())
}
