//! `POST /v1/messages` and `/v1/messages/count_tokens`, as Anthropic has them.
//!
//! In: messages of blocks. Out: a message of blocks, or its events. Event names are part of the contract: clients drop
//! events without one.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::answer::{Piece, Reason};
use crate::app::{App, Request, blocking};
use crate::ask::{Answering, Ask, Told};
use crate::endpoints::chat::Conversation;
use crate::endpoints::messages;
use crate::endpoints::openai::chat::Whole;
use crate::endpoints::params::{checked_stops, deadline, effort_variables, push_tool, response_format, tool};
use crate::http::fields::{Fields, kind};
use crate::http::frames::{Frames, Framing, stream};
use crate::http::ids;
use crate::http::problem::{Dialect, Problem};
use crate::http::reply::{self, Response};
use crate::model::Served;
use crate::tools::{Choice, Tool};

/// The signature of reasoning: clients send it back, and nobody checks it.
const SIGNATURE: &str = "fusebox";

fn text_blocks(content: &Value, path: &str) -> Result<String, Problem> {
    match content {
        Value::String(text) => Ok(text.clone()),
        Value::Array(blocks) => {
            let mut text = String::new();
            for (number, block) in blocks.iter().enumerate() {
                match block["type"].as_str() {
                    Some("text") => text += block["text"].as_str().unwrap_or_default(),
                    other => return Err(wrong_block(&format!("{path}[{number}]"), other)),
                }
            }
            Ok(text)
        }
        other => Err(Problem::field(path, format!("expected a string or blocks, found {}", kind(other)))),
    }
}

fn wrong_block(path: &str, name: Option<&str>) -> Problem {
    match name {
        Some(name) => Problem::unsupported(
            format!("{path}.type"),
            format!("blocks of type {} are not supported", Value::from(name)),
        ),
        None => Problem::field(format!("{path}.type"), "expected a string, found none"),
    }
}

/// A message of blocks as messages of a template: results of tools are messages of their own.
fn message(value: &Value, path: &str, told: &mut Vec<Value>) -> Result<(), Problem> {
    if !value.is_object() {
        return Err(Problem::field(path, format!("expected an object, found {}", kind(value))));
    }
    let role = match value["role"].as_str() {
        Some(role @ ("user" | "assistant")) => role,
        Some("system") => "system",
        _ => return Err(Problem::field(format!("{path}.role"), "expected user or assistant")),
    };
    let blocks = match &value["content"] {
        Value::Array(blocks) => blocks,
        content => {
            let text = text_blocks(content, &format!("{path}.content"))?;
            told.push(json!({ "role": role, "content": text }));
            return Ok(());
        }
    };
    let (mut text, mut thought, mut calls) = (String::new(), String::new(), Vec::new());
    for (number, block) in blocks.iter().enumerate() {
        let path = format!("{path}.content[{number}]");
        match block["type"].as_str() {
            Some("text") => match block["text"].as_str() {
                Some(one) => text += one,
                None => return Err(Problem::field(format!("{path}.text"), "expected a string, found none")),
            },
            Some("thinking") => thought += block["thinking"].as_str().unwrap_or_default(),
            Some("redacted_thinking") => {}
            Some("tool_use") => {
                let name = block["name"].as_str();
                let name = name.ok_or_else(|| Problem::field(format!("{path}.name"), "expected a string"))?;
                calls.push(messages::call(block["id"].as_str().unwrap_or_default(), name, &block["input"]));
            }
            Some("tool_result") => {
                let content = match &block["content"] {
                    Value::Null => String::new(),
                    content => text_blocks(content, &format!("{path}.content"))?,
                };
                told.push(
                    json!({ "role": "tool", "tool_call_id": block["tool_use_id"], "content": content }),
                );
            }
            other => return Err(wrong_block(&path, other)),
        }
    }
    let has_results = told.last().is_some_and(|last| last["role"] == "tool") && role == "user";
    if text.is_empty() && calls.is_empty() && thought.is_empty() && has_results {
        return Ok(());
    }
    let mut one = Map::from_iter([("role".to_owned(), role.into()), ("content".to_owned(), text.into())]);
    if !calls.is_empty() {
        one.insert("tool_calls".to_owned(), calls.into());
    }
    if !thought.is_empty() {
        one.insert("reasoning_content".to_owned(), thought.into());
    }
    told.push(Value::Object(one));
    Ok(())
}

fn tools(list: Option<Vec<Value>>) -> Result<Vec<Tool>, Problem> {
    let mut tools = Vec::new();
    for (number, value) in list.unwrap_or_default().into_iter().enumerate() {
        let path = format!("tools[{number}]");
        let mut fields = Fields::new(value, &path)?;
        if let Some(name) = fields.string("type")?
            && name != "custom"
        {
            let what = format!("tools of type {} are not supported", Value::from(name));
            return Err(Problem::unsupported(format!("{path}.type"), what));
        }
        let one = tool(&mut fields, "input_schema")?;
        push_tool(&mut tools, one, &path)?;
    }
    Ok(tools)
}

/// Takes a conversation.
fn conversation(fields: &mut Fields) -> Result<Conversation, Problem> {
    let missing = || Problem::field("messages", "expected an array of messages, found none");
    let list = fields.array("messages")?.ok_or_else(missing)?;
    if list.is_empty() {
        return Err(Problem::field("messages", "expected at least one message, found none"));
    }
    let mut told = Vec::new();
    if let Some(system) = fields.take("system") {
        told.push(json!({ "role": "system", "content": text_blocks(&system, "system")? }));
    }
    for (number, value) in list.iter().enumerate() {
        message(value, &format!("messages[{number}]"), &mut told)?;
    }
    let mut conversation = Conversation::new(told);
    conversation.tools = tools(fields.array("tools")?)?;
    conversation.choice = if conversation.tools.is_empty() { Choice::None } else { Choice::Auto };
    if let Some(mut choice) = fields.fields("tool_choice")? {
        let wrong = |what: &str| Problem::field("tool_choice", what);
        let name = choice.required_string("type")?;
        if conversation.tools.is_empty() && name != "none" && name != "auto" {
            return Err(wrong("it needs tools, found none"));
        }
        conversation.choice = match name.as_str() {
            "auto" => conversation.choice,
            "none" => Choice::None,
            "any" => Choice::Required,
            "tool" => {
                let name = choice.required_string("name")?;
                if !conversation.tools.iter().any(|tool| tool.name == name) {
                    return Err(wrong(&format!("there is no tool of the name {}", Value::from(name))));
                }
                Choice::Named(name)
            }
            _ => return Err(wrong("expected auto, any, tool or none")),
        };
        conversation.is_parallel = !choice.bool("disable_parallel_tool_use")?.unwrap_or(false);
        choice.finish()?;
    }
    if let Some(mut thinking) = fields.fields("thinking")? {
        match thinking.required_string("type")?.as_str() {
            "enabled" => {
                thinking.integer("budget_tokens", 1024..=i64::MAX)?;
                conversation.variables.insert("enable_thinking".to_owned(), true.into());
            }
            "adaptive" => {}
            "disabled" => {
                conversation.variables.insert("enable_thinking".to_owned(), false.into());
            }
            _ => return Err(Problem::field("thinking.type", "expected enabled, disabled or adaptive")),
        }
        thinking.ignore(&["display"]);
        thinking.finish()?;
    }
    Ok(conversation)
}

/// Takes what has no effect, and refuses what is not supported.
fn others(fields: &mut Fields) -> Result<(), Problem> {
    for name in ["container", "mcp_servers", "context_management"] {
        fields.refuse(name, &[json!([])], "it is not supported")?;
    }
    fields.ignore(&["metadata", "service_tier", "inference_geo", "cache_control", "betas"]);
    Ok(())
}

/// Takes the settings of sampling.
fn sampling(fields: &mut Fields, ask: &mut Ask, conversation: &mut Conversation) -> Result<(), Problem> {
    let chain = &mut ask.sampling.chain;
    if let Some(x) = fields.number("temperature", 0.0..=1.0)? {
        chain.temperature = x;
    }
    if let Some(x) = fields.number("top_p", 0.0..=1.0)? {
        chain.top_p = x.max(f32::MIN_POSITIVE);
    }
    if let Some(k) = fields.size("top_k", 0)? {
        chain.top_k = k;
    }
    ask.seed = fields.integer("seed", i64::MIN..=i64::MAX)?.map(|seed| seed as u64);
    ask.reading.stops = checked_stops("stop_sequences", fields.strings("stop_sequences", 64)?)?;
    if let Some(mut config) = fields.fields("output_config")? {
        if let Some(mut format) = config.fields("format")? {
            ask.grammar = response_format(&mut format)?;
            format.finish()?;
        }
        if let Some(effort) = config.string("effort")? {
            effort_variables("output_config.effort", &effort, &mut conversation.variables)?;
        }
        config.finish()?;
    }
    if let Some(mut format) = fields.fields("output_format")? {
        ask.grammar = response_format(&mut format)?;
        format.finish()?;
    }
    Ok(())
}

/// `POST /v1/messages/count_tokens`.
pub(crate) async fn count_tokens(app: Arc<App>, request: Request) -> Result<Response, Problem> {
    let mut fields = Fields::new(request.body, "")?;
    let served = app.models.get(Some(&fields.required_string("model")?)).await?;
    let mut conversation = conversation(&mut fields)?;
    sampling(&mut fields, &mut Ask::default(), &mut conversation)?;
    others(&mut fields)?;
    fields.ignore(&["max_tokens", "stream"]);
    fields.finish()?;
    let count = blocking(&served, move |served| {
        let mut ask = Ask::default();
        conversation.fill(served, &mut ask)?;
        Ok(ask.prompts[0].len())
    });
    Ok(reply::json(&json!({ "input_tokens": count.await? })))
}

/// What every event and the answer say.
struct Shown {
    id: String,
    model: String,
}

/// `POST /v1/messages`.
pub(crate) async fn answer(app: Arc<App>, request: Request) -> Result<Response, Problem> {
    let mut fields = Fields::new(request.body, "")?;
    let name = fields.required_string("model")?;
    let served = app.models.get(Some(&name)).await?;
    let missing = || Problem::field("max_tokens", "expected an integer of at least 1, found none");
    let max_tokens = Some(fields.size("max_tokens", 1)?.ok_or_else(missing)?);
    let mut ask = Ask { max_tokens, adapters: served.named(Some(&name)), ..Ask::default() };
    let mut conversation = conversation(&mut fields)?;
    sampling(&mut fields, &mut ask, &mut conversation)?;
    others(&mut fields)?;
    let is_stream = fields.bool("stream")?.unwrap_or(false);
    fields.finish()?;
    ask.deadline = deadline(&request.headers, app.settings.timeout)?;
    let ask = blocking(&served, move |served| {
        conversation.fill(served, &mut ask)?;
        Ok(ask)
    })
    .await?;
    let shown = Shown { id: ids::name("msg_"), model: name };
    if is_stream {
        return stream(Framing::Events, Dialect::Anthropic, |frames| async move {
            events(&frames, &served, ask, &shown).await
        })
        .await;
    }
    let mut answering = Answering::submit(&served, ask)?;
    let mut whole = Whole::default();
    while let Some(told) = answering.next().await? {
        if let Told::Piece(_, piece) = told {
            whole.add(piece);
        }
    }
    let mut content: Vec<Value> = Vec::new();
    if !whole.reasoning.is_empty() {
        content.push(json!({ "type": "thinking", "thinking": whole.reasoning, "signature": SIGNATURE }));
    }
    if !whole.text.is_empty() {
        content.push(json!({ "type": "text", "text": whole.text }));
    }
    for (name, arguments) in &whole.calls {
        let input: Value = serde_json::from_str(arguments).unwrap_or_else(|_| json!({}));
        content.push(json!({ "type": "tool_use", "id": ids::name("toolu_"), "name": name, "input": input }));
    }
    let (reason, sequence) = stop(&answering);
    let mut usage = input_usage(&answering);
    usage["output_tokens"] = answering.n_generated().into();
    Ok(reply::json(&json!({
        "id": shown.id,
        "type": "message",
        "role": "assistant",
        "model": shown.model,
        "content": content,
        "stop_reason": reason,
        "stop_sequence": sequence,
        "usage": usage,
    })))
}

/// The reason of the end, and the stop string.
fn stop(answering: &Answering<'_>) -> (&'static str, Value) {
    match &answering.readers[0].reason {
        Some(Reason::StopText(text)) => ("stop_sequence", text.clone().into()),
        Some(Reason::Length) => ("max_tokens", Value::Null),
        Some(Reason::Context) => ("model_context_window_exceeded", Value::Null),
        Some(Reason::Calls) => ("tool_use", Value::Null),
        Some(Reason::End | Reason::StopToken(_)) | None => ("end_turn", Value::Null),
    }
}

/// Tokens of the prompt; those of the cache are counted apart.
fn input_usage(answering: &Answering<'_>) -> Value {
    json!({
        "input_tokens": answering.n_prompt - answering.n_cached.min(answering.n_prompt),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": answering.n_cached,
    })
}

/// The block that is open in a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Block {
    Text,
    Thinking,
    Call(usize),
}

async fn events(frames: &Frames, served: &Served, ask: Ask, shown: &Shown) -> Result<(), Problem> {
    let mut answering = Answering::submit(served, ask)?;
    let mut open: Option<Block> = None;
    let mut index = 0;
    let mut is_started = false;
    while let Some(told) = frames.wait(answering.next()).await? {
        if !is_started {
            is_started = true;
            let mut usage = input_usage(&answering);
            usage["output_tokens"] = 1.into();
            frames
                .send(&json!({ "type": "message_start", "message": {
                    "id": shown.id,
                    "type": "message",
                    "role": "assistant",
                    "model": shown.model,
                    "content": [],
                    "stop_reason": null,
                    "stop_sequence": null,
                    "usage": usage,
                } }))
                .await?;
        }
        let Told::Piece(_, piece) = told else { continue };
        let (block, start, delta) = match piece {
            Piece::Text(text, _) if text.is_empty() => continue,
            Piece::Text(text, _) => {
                let start = json!({ "type": "text", "text": "" });
                (Block::Text, start, Some(json!({ "type": "text_delta", "text": text })))
            }
            Piece::Reasoning(text) => {
                let start = json!({ "type": "thinking", "thinking": "", "signature": "" });
                (Block::Thinking, start, Some(json!({ "type": "thinking_delta", "thinking": text })))
            }
            Piece::Call(number, name) => {
                let start =
                    json!({ "type": "tool_use", "id": ids::name("toolu_"), "name": name, "input": {} });
                (Block::Call(number), start, None)
            }
            Piece::Arguments(number, text) => {
                let delta = json!({ "type": "input_json_delta", "partial_json": text });
                (Block::Call(number), Value::Null, Some(delta))
            }
        };
        if open != Some(block) {
            if let Some(before) = open.replace(block) {
                close(frames, before, index).await?;
                index += 1;
            }
            frames
                .send(&json!({ "type": "content_block_start", "index": index, "content_block": start }))
                .await?;
        }
        if let Some(delta) = delta {
            frames.send(&json!({ "type": "content_block_delta", "index": index, "delta": delta })).await?;
        }
    }
    if let Some(last) = open {
        close(frames, last, index).await?;
    }
    let (reason, sequence) = stop(&answering);
    let mut usage = input_usage(&answering);
    usage["output_tokens"] = answering.n_generated().into();
    frames
        .send(&json!({
            "type": "message_delta",
            "delta": { "stop_reason": reason, "stop_sequence": sequence },
            "usage": usage,
        }))
        .await?;
    frames.send(&json!({ "type": "message_stop" })).await
}

async fn close(frames: &Frames, block: Block, index: usize) -> Result<(), Problem> {
    if block == Block::Thinking {
        let delta = json!({ "type": "signature_delta", "signature": SIGNATURE });
        frames.send(&json!({ "type": "content_block_delta", "index": index, "delta": delta })).await?;
    }
    frames.send(&json!({ "type": "content_block_stop", "index": index })).await
}
