//! `POST /v1/chat/completions`.
//!
//! In: OpenAI's request. Out: one answer, or its chunks. Whole answers are folded from the same pieces as streams.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::answer::Piece;
use crate::app::{App, Request, blocking};
use crate::ask::{Answering, Ask, Told};
use crate::endpoints::chat::Conversation;
use crate::endpoints::messages;
use crate::endpoints::openai::choices::{Kind, Shown, insert_reason};
use crate::endpoints::params;
use crate::http::fields::Fields;
use crate::http::frames::{Frames, Framing, stream};
use crate::http::ids;
use crate::http::problem::{Dialect, Problem};
use crate::http::reply::{self, Response};
use crate::model::Served;
use crate::sampling::Scored;

const KIND: Kind = Kind { prefix: "chatcmpl-", whole: "chat.completion", chunk: "chat.completion.chunk" };

/// The conversation of a body, and what is left of its fields.
///
/// # Errors
/// The problem of one field.
pub(crate) fn conversation(fields: &mut Fields) -> Result<Conversation, Problem> {
    let missing = || Problem::field("messages", "expected an array of messages, found none");
    let list = fields.array("messages")?.ok_or_else(missing)?;
    let mut conversation = Conversation::new(messages::openai(list)?);
    conversation.tools = params::tools(fields.array("tools")?, false)?;
    conversation.choice = params::tool_choice(fields.take("tool_choice"), &mut conversation.tools)?;
    conversation.is_parallel = fields.bool("parallel_tool_calls")?.unwrap_or(true);
    fields.refuse("functions", &[json!([])], "it is deprecated; give tools")?;
    fields.refuse("function_call", &[json!("none"), json!("auto")], "it is deprecated; give tool_choice")?;
    conversation.variables = params::variables(fields)?;
    let adds_prompt = fields.bool("add_generation_prompt")?;
    let continues = fields.bool("continue_final_message")?;
    if adds_prompt == Some(true) && continues == Some(true) {
        let what = "it excludes add_generation_prompt";
        return Err(Problem::field("continue_final_message", what));
    }
    conversation.adds_prompt = adds_prompt.unwrap_or(true);
    conversation.continues = continues.unwrap_or(adds_prompt.is_none());
    fields.refuse("modalities", &[json!(["text"])], "only text is made")?;
    for name in ["audio", "web_search_options", "moderation"] {
        fields.refuse(name, &[], "it is not supported")?;
    }
    fields.ignore(&["documents"]);
    Ok(conversation)
}

/// Answers.
pub(crate) async fn answer(app: Arc<App>, request: Request) -> Result<Response, Problem> {
    let mut fields = Fields::new(request.body, "")?;
    let name = fields.string("model")?;
    let served = app.models.get(name.as_deref()).await?;
    let mut ask = Ask { adapters: served.named(name.as_deref()), ..Ask::default() };
    params::openai(&mut fields, &served, &mut ask)?;
    ask.max_tokens = max_tokens(&mut fields, 1)?;
    let wants_scores = fields.bool("logprobs")?.unwrap_or(false);
    let top = fields.integer("top_logprobs", 0..=20)?;
    if top.is_some_and(|n| n > 0) && !wants_scores {
        return Err(Problem::field("top_logprobs", "it needs logprobs: true"));
    }
    if wants_scores {
        ask.sampling.logprobs = Some(top.unwrap_or(0) as usize);
        ask.reading.is_scored = true;
    }
    fields.refuse("echo", &[json!(false)], "it is for /v1/completions")?;
    fields.refuse("prompt_logprobs", &[json!(0)], "it is for /v1/completions, with echo")?;
    let is_stream = fields.bool("stream")?.unwrap_or(false);
    let name = name.unwrap_or_else(|| served.name.clone());
    let shown = Shown::take(&mut fields, KIND, &app, &name, is_stream)?;
    let conversation = conversation(&mut fields)?;
    fields.finish()?;
    ask.deadline = params::deadline(&request.headers, app.settings.timeout)?;
    let ask = blocking(&served, move |served| {
        conversation.fill(served, &mut ask)?;
        Ok(ask)
    })
    .await?;
    if is_stream {
        return stream(Framing::Data, Dialect::OpenAi, |frames| async move {
            chunks(&frames, &served, ask, &shown, wants_scores).await
        })
        .await;
    }
    let mut answering = Answering::submit(&served, ask)?;
    let mut choices: Vec<Whole> = answering.readers.iter().map(|_| Whole::default()).collect();
    while let Some(told) = answering.next().await? {
        if let Told::Piece(choice, piece) = told {
            choices[choice].add(piece);
        }
    }
    let choices: Vec<Value> = choices
        .iter()
        .zip(&answering.readers)
        .enumerate()
        .map(|(index, (whole, reader))| {
            let mut choice = Map::new();
            choice.insert("index".to_owned(), index.into());
            choice.insert("message".to_owned(), whole.message(app.settings.shows_reasoning));
            let scores = if wants_scores { scores(&whole.scores, &served) } else { Value::Null };
            choice.insert("logprobs".to_owned(), scores);
            insert_reason(&mut choice, reader.reason.as_ref());
            Value::Object(choice)
        })
        .collect();
    Ok(reply::json(&shown.whole(&served, &answering, &choices)))
}

/// `max_completion_tokens`, or `max_tokens`.
pub(crate) fn max_tokens(fields: &mut Fields, least: i64) -> Result<Option<usize>, Problem> {
    let usual = fields.integer("max_tokens", least..=i64::MAX)?;
    let newer = fields.integer("max_completion_tokens", least..=i64::MAX)?;
    Ok(newer.or(usual).map(|n| n as usize))
}

/// A choice as a whole.
#[derive(Debug, Default)]
pub(crate) struct Whole {
    pub(crate) text: String,
    pub(crate) reasoning: String,
    /// Names and arguments.
    pub(crate) calls: Vec<(String, String)>,
    pub(crate) scores: Vec<Scored>,
}

impl Whole {
    pub(crate) fn add(&mut self, piece: Piece) {
        match piece {
            Piece::Text(text, scores) => {
                self.text += &text;
                self.scores.extend(scores);
            }
            Piece::Reasoning(text) => self.reasoning += &text,
            Piece::Call(_, name) => self.calls.push((name, String::new())),
            Piece::Arguments(number, text) => {
                if let Some((_, arguments)) = self.calls.get_mut(number) {
                    *arguments += &text;
                }
            }
        }
    }

    fn message(&self, shows_reasoning: bool) -> Value {
        let mut message = Map::new();
        message.insert("role".to_owned(), "assistant".into());
        let content = if self.text.is_empty() && !self.calls.is_empty() {
            Value::Null
        } else {
            self.text.clone().into()
        };
        message.insert("content".to_owned(), content);
        message.insert("refusal".to_owned(), Value::Null);
        if !self.reasoning.is_empty() {
            message.insert("reasoning_content".to_owned(), self.reasoning.clone().into());
            if shows_reasoning {
                message.insert("reasoning".to_owned(), self.reasoning.clone().into());
            }
        }
        if !self.calls.is_empty() {
            let call = |(name, arguments): &(String, String)| {
                json!({
                    "id": ids::name("call_"),
                    "type": "function",
                    "function": { "name": name, "arguments": arguments },
                })
            };
            message.insert("tool_calls".to_owned(), self.calls.iter().map(call).collect());
        }
        Value::Object(message)
    }
}

/// Log-probabilities in the form of chat.
pub(crate) fn scores(scores: &[Scored], served: &Served) -> Value {
    let entry = |id: u32, logprob: f32| {
        let bytes = served.tokenizer.token_bytes(id);
        json!({ "token": String::from_utf8_lossy(bytes), "logprob": logprob, "bytes": bytes })
    };
    let each = scores.iter().map(|scored| {
        let mut one = entry(scored.id, scored.logprob.unwrap_or_default());
        one["top_logprobs"] = scored.top.iter().map(|(id, logprob)| entry(*id, *logprob)).collect();
        one
    });
    json!({ "content": each.collect::<Vec<_>>(), "refusal": null })
}

/// The chunks of a stream.
async fn chunks(
    frames: &Frames,
    served: &Served,
    ask: Ask,
    shown: &Shown,
    wants_scores: bool,
) -> Result<(), Problem> {
    let mut answering = Answering::submit(served, ask)?;
    let mut has_role = vec![false; answering.readers.len()];
    let choice = |index: usize, delta: Value, logprobs: Value| {
        let fields = [("index", index.into()), ("delta", delta), ("logprobs", logprobs)];
        fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect::<Map<String, Value>>()
    };
    while let Some(told) = frames.wait(answering.next()).await? {
        let (index, delta, logprobs, is_end) = match told {
            Told::Prompt(..) => continue,
            Told::Started(index) => (index, None, Value::Null, false),
            Told::Done(index) => (index, Some(json!({})), Value::Null, true),
            Told::Piece(index, piece) => {
                let mut logprobs = Value::Null;
                let delta = match piece {
                    Piece::Text(text, found) => {
                        if wants_scores {
                            logprobs = scores(&found, served);
                        }
                        if text.is_empty() && !wants_scores {
                            continue;
                        }
                        json!({ "content": text })
                    }
                    Piece::Reasoning(text) => json!({ "reasoning_content": text }),
                    Piece::Call(number, name) => json!({ "tool_calls": [{
                        "index": number,
                        "id": ids::name("call_"),
                        "type": "function",
                        "function": { "name": name, "arguments": "" },
                    }] }),
                    Piece::Arguments(number, text) => {
                        json!({ "tool_calls": [{ "index": number, "function": { "arguments": text } }] })
                    }
                };
                (index, Some(delta), logprobs, false)
            }
        };
        if !has_role[index] {
            // The role comes with the first token, so that a failure before it is still a status.
            if delta.is_none() {
                continue;
            }
            has_role[index] = true;
            let first = choice(index, json!({ "role": "assistant", "content": "" }), Value::Null);
            shown.send(frames, served, &answering, (index, first), false).await?;
        }
        let next = choice(index, delta.unwrap_or_default(), logprobs);
        shown.send(frames, served, &answering, (index, next), is_end).await?;
    }
    shown.end(frames, served, &answering).await
}
