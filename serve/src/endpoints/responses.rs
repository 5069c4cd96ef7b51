//! `POST /v1/responses`.
//!
//! In: items and instructions. Out: a response, or its events in order, each with its number and its places.
//! Nothing is stored: what asks for stored answers is refused by name.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::answer::{Piece, Reason};
use crate::app::{App, Request, blocking};
use crate::ask::{Answering, Ask, Told};
use crate::endpoints::chat::Conversation;
use crate::endpoints::messages;
use crate::endpoints::openai;
use crate::endpoints::params;
use crate::http::fields::{Fields, kind};
use crate::http::frames::{Frames, Framing, stream};
use crate::http::ids;
use crate::http::problem::{Dialect, Problem};
use crate::http::reply::{self, Response};
use crate::model::{Served, now};
use crate::sampling::Scored;

/// What the response repeats of its request.
#[derive(Clone, Debug)]
struct Shown {
    id: String,
    created: u64,
    model: String,
    /// Fields that are given back as they came.
    given: Map<String, Value>,
    scores: bool,
}

/// An output item as it grows.
#[derive(Debug)]
enum Item {
    Reasoning { id: String, text: String },
    Message { id: String, text: String, scores: Vec<Scored> },
    Call { id: String, call_id: String, name: String, arguments: String },
}

/// The items of one answer, and the events that they make.
struct Output<'a> {
    served: &'a Served,
    shows_scores: bool,
    items: Vec<Item>,
    is_open: bool,
}

/// Messages of input items.
fn input(value: Value, instructions: Option<String>) -> Result<Vec<Value>, Problem> {
    let mut told: Vec<Value> = Vec::new();
    if let Some(text) = instructions {
        told.push(json!({ "role": "system", "content": text }));
    }
    let items = match value {
        Value::String(text) => vec![json!({ "role": "user", "content": text })],
        Value::Array(items) if !items.is_empty() => items,
        Value::Array(_) => return Err(Problem::field("input", "expected at least one item, found none")),
        other => {
            let what = format!("expected a string or an array of items, found {}", kind(&other));
            return Err(Problem::field("input", what));
        }
    };
    for (number, item) in items.into_iter().enumerate() {
        let path = format!("input[{number}]");
        let name = item["type"].as_str().unwrap_or("message").to_owned();
        let text = |key: &str| item[key].as_str().map(str::to_owned);
        let missing = |key: &str| Problem::field(format!("{path}.{key}"), "expected a string, found none");
        match name.as_str() {
            "message" => told.push(item),
            "function_call" => {
                let name = text("name").ok_or_else(|| missing("name"))?;
                let id = text("call_id").unwrap_or_default();
                let call = messages::call(&id, &name, &item["arguments"]);
                match told.last_mut().filter(|last| last["role"] == "assistant") {
                    Some(last) => match last["tool_calls"].as_array_mut() {
                        Some(calls) => calls.push(call),
                        None => last["tool_calls"] = json!([call]),
                    },
                    None => told.push(json!({ "role": "assistant", "content": null, "tool_calls": [call] })),
                }
            }
            "function_call_output" => {
                let output = match &item["output"] {
                    Value::Null => return Err(missing("output")),
                    Value::String(text) => json!(text),
                    Value::Array(parts) => json!(parts),
                    other => json!(other.to_string()),
                };
                told.push(json!({ "role": "tool", "tool_call_id": item["call_id"], "content": output }));
            }
            "reasoning" => {
                let parts =
                    item["content"].as_array().or(item["summary"].as_array()).cloned().unwrap_or_default();
                let thought: String = parts.iter().filter_map(|part| part["text"].as_str()).collect();
                told.push(json!({ "role": "assistant", "content": "", "reasoning_content": thought }));
            }
            _ => {
                let what = format!("items of type {} are not supported", Value::from(name));
                return Err(Problem::unsupported(format!("{path}.type"), what));
            }
        }
    }
    messages::openai(told).map_err(|problem| Problem {
        message: problem.message.replace("messages", "input"),
        param: problem.param.map(|param| param.replace("messages", "input")),
        ..problem
    })
}

/// Takes everything but the settings that all endpoints have in common.
fn conversation(
    fields: &mut Fields,
    given: &mut Map<String, Value>,
    ask: &mut Ask,
) -> Result<Conversation, Problem> {
    let instructions = fields.string("instructions")?;
    given.insert("instructions".to_owned(), instructions.clone().into());
    let missing = || Problem::field("input", "expected a string or an array of items, found none");
    let items = fields.take("input").ok_or_else(missing)?;
    let mut conversation = Conversation::new(input(items, instructions)?);
    let list = fields.array("tools")?;
    given.insert("tools".to_owned(), list.clone().unwrap_or_default().into());
    conversation.tools = params::tools(list, true)?;
    let choice = fields.take("tool_choice");
    given.insert("tool_choice".to_owned(), choice.clone().unwrap_or_else(|| "auto".into()));
    conversation.choice = params::tool_choice(choice, &mut conversation.tools)?;
    conversation.is_parallel = fields.bool("parallel_tool_calls")?.unwrap_or(true);
    given.insert("parallel_tool_calls".to_owned(), conversation.is_parallel.into());
    // The last item is never continued: an answer is an item of its own.
    conversation.continues = false;
    let mut text = Map::from_iter([("format".to_owned(), json!({ "type": "text" }))]);
    if let Some(mut wanted) = fields.fields("text")? {
        if let Some(format) = wanted.take("format") {
            text.insert("format".to_owned(), format.clone());
            let mut format = Fields::new(format, "text.format")?;
            ask.grammar = params::response_format(&mut format)?;
            format.finish()?;
        }
        wanted.ignore(&["verbosity"]);
        wanted.finish()?;
    }
    given.insert("text".to_owned(), text.into());
    let mut reasoning =
        Map::from_iter([("effort".to_owned(), Value::Null), ("summary".to_owned(), Value::Null)]);
    if let Some(mut wanted) = fields.fields("reasoning")? {
        if let Some(effort) = wanted.string("effort")? {
            params::effort_variables("reasoning.effort", &effort, &mut conversation.variables)?;
            reasoning.insert("effort".to_owned(), effort.into());
        }
        wanted.ignore(&["summary", "generate_summary"]);
        wanted.finish()?;
    }
    given.insert("reasoning".to_owned(), reasoning.into());
    Ok(conversation)
}

/// Refuses what needs answers that are stored.
fn refuse_stored(fields: &mut Fields) -> Result<(), Problem> {
    for name in ["previous_response_id", "conversation", "prompt", "context_management", "max_tool_calls"] {
        fields.refuse(name, &[], "answers are not stored here; send the items themselves")?;
    }
    fields.refuse("background", &[json!(false)], "answers are not computed in the background")?;
    fields.refuse("truncation", &[json!("disabled")], "a conversation is never truncated")?;
    fields.bool("store")?;
    Ok(())
}

/// Answers.
pub(crate) async fn answer(app: Arc<App>, request: Request) -> Result<Response, Problem> {
    let mut fields = Fields::new(request.body, "")?;
    let name = fields.string("model")?;
    let served = app.models.get(name.as_deref()).await?;
    let mut ask = Ask { adapters: served.named(name.as_deref()), ..Ask::default() };
    let mut given = Map::new();
    given.insert("metadata".to_owned(), fields.object("metadata")?.unwrap_or_default().into());
    given.insert("user".to_owned(), fields.string("user")?.into());
    refuse_stored(&mut fields)?;
    let conversation = conversation(&mut fields, &mut given, &mut ask)?;
    ask.max_tokens = fields.size("max_output_tokens", 1)?;
    given.insert("max_output_tokens".to_owned(), ask.max_tokens.into());
    let top = fields.integer("top_logprobs", 0..=20)?;
    given.insert("top_logprobs".to_owned(), top.unwrap_or(0).into());
    let mut scores = false;
    for wanted in fields.strings("include", 32)? {
        match wanted.as_str() {
            "message.output_text.logprobs" => scores = true,
            "reasoning.encrypted_content" => {}
            _ => {
                return Err(Problem::unsupported(
                    "include",
                    format!("{} is not supported", Value::from(wanted)),
                ));
            }
        }
    }
    let grammar = ask.grammar.take();
    params::openai(&mut fields, &served, &mut ask)?;
    ask.grammar = ask.grammar.or(grammar);
    if ask.n != 1 {
        return Err(Problem::unsupported("n", "a response has one answer"));
    }
    if scores {
        ask.sampling.logprobs = Some(top.unwrap_or(0) as usize);
        ask.reading.is_scored = true;
    }
    given.insert("temperature".to_owned(), ask.sampling.chain.temperature.into());
    given.insert("top_p".to_owned(), ask.sampling.chain.top_p.into());
    let is_stream = fields.bool("stream")?.unwrap_or(false);
    if let Some(mut options) = fields.fields("stream_options")? {
        options.ignore(&["include_obfuscation"]);
        options.finish()?;
    }
    fields.finish()?;
    ask.deadline = params::deadline(&request.headers, app.settings.timeout)?;
    let ask = blocking(&served, move |served| {
        conversation.fill(served, &mut ask)?;
        Ok(ask)
    })
    .await?;
    let model = name.unwrap_or_else(|| served.name.clone());
    let shown = Shown { id: ids::name("resp_"), created: now(), model, given, scores };
    if is_stream {
        return stream(Framing::Responses, Dialect::OpenAi, |frames| async move {
            events(&frames, &served, ask, &shown).await
        })
        .await;
    }
    let mut answering = Answering::submit(&served, ask)?;
    let mut output =
        Output { served: &served, shows_scores: shown.scores, items: Vec::new(), is_open: false };
    while let Some(told) = answering.next().await? {
        if let Told::Piece(_, piece) = told {
            output.add(piece);
        }
    }
    output.close();
    output.ensure_message();
    Ok(reply::json(&response(&shown, &output, Some(&answering))))
}

/// The response as it is so far.
fn response(shown: &Shown, output: &Output<'_>, answering: Option<&Answering<'_>>) -> Value {
    let reason = answering.and_then(|answering| answering.readers[0].reason.as_ref());
    let is_incomplete = matches!(reason, Some(Reason::Length | Reason::Context));
    let status = match answering {
        None => "in_progress",
        Some(_) if is_incomplete => "incomplete",
        Some(_) => "completed",
    };
    let last = output.items.len().wrapping_sub(1);
    let item = |(number, item): (usize, &Item)| {
        output.item(item, if is_incomplete && number == last { "incomplete" } else { "completed" })
    };
    let mut body = json!({
        "id": shown.id,
        "object": "response",
        "created_at": shown.created,
        "completed_at": answering.map(|_| now()),
        "status": status,
        "background": false,
        "error": null,
        "incomplete_details": if is_incomplete { json!({ "reason": "max_output_tokens" }) } else { Value::Null },
        "model": shown.model,
        "output": output.items.iter().enumerate().map(item).collect::<Value>(),
        "previous_response_id": null,
        "store": false,
        "truncation": "disabled",
        "service_tier": "default",
        "usage": answering.map(Answering::responses_usage),
    });
    if let Some(object) = body.as_object_mut() {
        object.extend(shown.given.clone());
    }
    body
}

impl Output<'_> {
    /// An item as it is given.
    fn item(&self, item: &Item, status: &str) -> Value {
        match item {
            Item::Reasoning { id, text } => json!({
                "type": "reasoning",
                "id": id,
                "summary": [],
                "content": [{ "type": "reasoning_text", "text": text }],
                "status": status,
            }),
            Item::Message { id, text, scores } => json!({
                "type": "message",
                "id": id,
                "role": "assistant",
                "status": status,
                "content": [self.part(text, scores)],
            }),
            Item::Call { id, call_id, name, arguments } => json!({
                "type": "function_call",
                "id": id,
                "call_id": call_id,
                "name": name,
                "arguments": arguments,
                "status": status,
            }),
        }
    }

    fn part(&self, text: &str, scores: &[Scored]) -> Value {
        json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": self.scores(scores) })
    }

    fn scores(&self, scores: &[Scored]) -> Value {
        if self.shows_scores {
            openai::chat::scores(scores, self.served)["content"].clone()
        } else {
            json!([])
        }
    }

    /// An answer without any item has an empty message.
    fn ensure_message(&mut self) {
        if self.items.is_empty() {
            self.items.push(Item::Message { id: ids::name("msg_"), text: String::new(), scores: Vec::new() });
        }
    }

    /// Adds a piece; the events that it makes.
    fn add(&mut self, piece: Piece) -> Vec<Value> {
        let mut events = Vec::new();
        match piece {
            Piece::Text(text, scores) => {
                if !matches!(self.items.last(), Some(Item::Message { .. })) || !self.is_open {
                    if text.is_empty() {
                        return events;
                    }
                    let id = ids::name("msg_");
                    self.open(Item::Message { id, text: String::new(), scores: Vec::new() }, &mut events);
                }
                let (at, found) = (self.items.len() - 1, self.scores(&scores));
                if let Some(Item::Message { id, text: whole, scores: all }) = self.items.last_mut() {
                    *whole += &text;
                    all.extend(scores);
                    if !text.is_empty() {
                        events.push(json!({
                            "type": "response.output_text.delta",
                            "item_id": id,
                            "output_index": at,
                            "content_index": 0,
                            "delta": text,
                            "logprobs": found,
                        }));
                    }
                }
            }
            Piece::Reasoning(text) => {
                if !matches!(self.items.last(), Some(Item::Reasoning { .. })) || !self.is_open {
                    self.open(Item::Reasoning { id: ids::name("rs_"), text: String::new() }, &mut events);
                }
                let at = self.items.len() - 1;
                if let Some(Item::Reasoning { id, text: whole }) = self.items.last_mut() {
                    *whole += &text;
                    events.push(json!({
                        "type": "response.reasoning_text.delta",
                        "item_id": id,
                        "output_index": at,
                        "content_index": 0,
                        "delta": text,
                    }));
                }
            }
            Piece::Call(_, name) => {
                let (id, call_id) = (ids::name("fc_"), ids::name("call_"));
                self.open(Item::Call { id, call_id, name, arguments: String::new() }, &mut events);
            }
            Piece::Arguments(_, text) => {
                let at = self.items.len().wrapping_sub(1);
                if let Some(Item::Call { id, arguments, .. }) = self.items.last_mut() {
                    *arguments += &text;
                    events.push(json!({
                        "type": "response.function_call_arguments.delta",
                        "item_id": id,
                        "output_index": at,
                        "delta": text,
                    }));
                }
            }
        }
        events
    }

    fn open(&mut self, item: Item, events: &mut Vec<Value>) {
        events.extend(self.close());
        let mut empty = self.item(&item, "in_progress");
        if !matches!(item, Item::Call { .. }) {
            empty["content"] = json!([]);
        }
        self.items.push(item);
        self.is_open = true;
        let at = self.items.len() - 1;
        let added = json!({ "type": "response.output_item.added", "output_index": at, "item": empty });
        events.push(added);
        let part = match &self.items[at] {
            Item::Message { id, .. } => Some((id, self.part("", &[]))),
            Item::Reasoning { id, .. } => Some((id, json!({ "type": "reasoning_text", "text": "" }))),
            Item::Call { .. } => None,
        };
        if let Some((id, part)) = part {
            events.push(json!({
                "type": "response.content_part.added",
                "item_id": id,
                "output_index": at,
                "content_index": 0,
                "part": part,
            }));
        }
    }

    /// Ends the item that grows.
    fn close(&mut self) -> Vec<Value> {
        let mut events = Vec::new();
        if !std::mem::take(&mut self.is_open) {
            return events;
        }
        let at = self.items.len() - 1;
        let item = &self.items[at];
        let part = match item {
            Item::Message { id, text, scores } => {
                events.push(json!({
                    "type": "response.output_text.done",
                    "item_id": id,
                    "output_index": at,
                    "content_index": 0,
                    "text": text,
                    "logprobs": self.scores(scores),
                }));
                Some((id, self.part(text, scores)))
            }
            Item::Reasoning { id, text } => {
                events.push(json!({
                    "type": "response.reasoning_text.done",
                    "item_id": id,
                    "output_index": at,
                    "content_index": 0,
                    "text": text,
                }));
                Some((id, json!({ "type": "reasoning_text", "text": text })))
            }
            Item::Call { id, name, arguments, .. } => {
                events.push(json!({
                    "type": "response.function_call_arguments.done",
                    "item_id": id,
                    "output_index": at,
                    "name": name,
                    "arguments": arguments,
                }));
                None
            }
        };
        if let Some((id, part)) = part {
            events.push(json!({
                "type": "response.content_part.done",
                "item_id": id,
                "output_index": at,
                "content_index": 0,
                "part": part,
            }));
        }
        let item = self.item(item, "completed");
        events.push(json!({ "type": "response.output_item.done", "output_index": at, "item": item }));
        events
    }
}

/// Sends events with their numbers.
struct Numbered<'a> {
    frames: &'a Frames,
    next: u64,
}

impl Numbered<'_> {
    async fn send(&mut self, mut event: Value) -> Result<(), Problem> {
        event["sequence_number"] = self.next.into();
        self.next += 1;
        self.frames.send(&event).await
    }
}

async fn events(frames: &Frames, served: &Served, ask: Ask, shown: &Shown) -> Result<(), Problem> {
    let mut answering = Answering::submit(served, ask)?;
    let mut output = Output { served, shows_scores: shown.scores, items: Vec::new(), is_open: false };
    let mut numbered = Numbered { frames, next: 0 };
    let mut is_started = false;
    loop {
        let told = match frames.wait(answering.next()).await {
            Ok(Some(told)) => told,
            Ok(None) => break,
            Err(problem) if is_started => {
                let mut failed = response(shown, &output, None);
                failed["status"] = "failed".into();
                failed["error"] = json!({ "code": "server_error", "message": problem.message });
                return numbered.send(json!({ "type": "response.failed", "response": failed })).await;
            }
            Err(problem) => return Err(problem),
        };
        if !is_started {
            is_started = true;
            let empty = Output { served, shows_scores: false, items: Vec::new(), is_open: false };
            for name in ["response.created", "response.in_progress"] {
                let body = response(shown, &empty, None);
                numbered.send(json!({ "type": name, "response": body })).await?;
            }
        }
        if let Told::Piece(_, piece) = told {
            for event in output.add(piece) {
                numbered.send(event).await?;
            }
        }
    }
    if output.items.is_empty() {
        let mut events = Vec::new();
        let id = ids::name("msg_");
        output.open(Item::Message { id, text: String::new(), scores: Vec::new() }, &mut events);
        for event in events {
            numbered.send(event).await?;
        }
    }
    for event in output.close() {
        numbered.send(event).await?;
    }
    let body = response(shown, &output, Some(&answering));
    let name = format!("response.{}", body["status"].as_str().unwrap_or("completed"));
    numbered.send(json!({ "type": name, "response": body })).await
}
