//! `POST /v1/chat/completions`.
//!
//! In: OpenAI's request. Out: one answer, or its chunks. Whole answers are folded from the same pieces as streams.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::answer::{Piece, Reason};
use crate::app::{App, Request, blocking};
use crate::ask::{Answering, Ask, Told};
use crate::endpoints::chat::Conversation;
use crate::endpoints::messages;
use crate::endpoints::params;
use crate::http::fields::Fields;
use crate::http::frames::{Frames, Framing, stream};
use crate::http::ids;
use crate::http::problem::{Dialect, Problem};
use crate::http::reply::{self, Response};
use crate::model;
use crate::model::Served;
use crate::sampling::Scored;

/// What the answer shows beside its text.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "switches of a request, each with its own name there")]
struct Shown {
    model: String,
    id: String,
    created: u64,
    includes_usage: bool,
    continuous_usage: bool,
    timings: bool,
    scores: bool,
}

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
    let shown = shown(&mut fields, &app, &served, name, is_stream, wants_scores, "chatcmpl-")?;
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
            chunks(&frames, &served, ask, &shown).await
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
            let scores = if shown.scores { scores(&whole.scores, &served) } else { Value::Null };
            choice.insert("logprobs".to_owned(), scores);
            insert_reason(&mut choice, reader.reason.as_ref());
            Value::Object(choice)
        })
        .collect();
    let mut body = json!({
        "id": shown.id,
        "object": "chat.completion",
        "created": shown.created,
        "model": shown.model,
        "system_fingerprint": served.fingerprint(),
        "choices": choices,
        "usage": answering.usage(),
    });
    if shown.timings {
        body["timings"] = answering.timings();
    }
    Ok(reply::json(&body))
}

/// `max_completion_tokens`, or `max_tokens`.
pub(crate) fn max_tokens(fields: &mut Fields, least: i64) -> Result<Option<usize>, Problem> {
    let usual = fields.integer("max_tokens", least..=i64::MAX)?;
    let newer = fields.integer("max_completion_tokens", least..=i64::MAX)?;
    Ok(newer.or(usual).map(|n| n as usize))
}

/// Takes what a request says of the form of its answer.
fn shown(
    fields: &mut Fields,
    app: &App,
    served: &Served,
    name: Option<String>,
    is_stream: bool,
    scores: bool,
    prefix: &str,
) -> Result<Shown, Problem> {
    let (includes_usage, continuous_usage) = stream_options(fields, is_stream)?;
    Ok(Shown {
        model: name.unwrap_or_else(|| served.name.clone()),
        id: ids::name(prefix),
        created: model::now(),
        includes_usage,
        continuous_usage,
        timings: fields.bool("timings_per_token")?.unwrap_or(app.settings.shows_timings),
        scores,
    })
}

/// Whether usage is sent at the end, and with each chunk.
///
/// # Errors
/// Where there are options without a stream.
pub(crate) fn stream_options(fields: &mut Fields, is_stream: bool) -> Result<(bool, bool), Problem> {
    let Some(mut options) = fields.fields("stream_options")? else { return Ok((false, false)) };
    if !is_stream {
        return Err(Problem::field("stream_options", "it needs stream: true"));
    }
    let usage = options.bool("include_usage")?.unwrap_or(false);
    let continuous = options.bool("continuous_usage_stats")?.unwrap_or(false);
    options.bool("include_obfuscation")?;
    options.finish()?;
    Ok((usage, continuous))
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

/// The end of a choice: OpenAI's reason, and vLLM's.
pub(crate) fn insert_reason(choice: &mut Map<String, Value>, reason: Option<&Reason>) {
    let name = reason.map_or("stop", Reason::openai);
    choice.insert("finish_reason".to_owned(), name.into());
    let stop = match reason {
        Some(Reason::StopText(text)) => Value::from(text.as_str()),
        Some(Reason::StopToken(id)) => Value::from(*id),
        _ => Value::Null,
    };
    choice.insert("stop_reason".to_owned(), stop);
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
async fn chunks(frames: &Frames, served: &Served, ask: Ask, shown: &Shown) -> Result<(), Problem> {
    let mut answering = Answering::submit(served, ask)?;
    let mut has_role = vec![false; answering.readers.len()];
    let base = json!({
        "id": shown.id,
        "object": "chat.completion.chunk",
        "created": shown.created,
        "model": shown.model,
        "system_fingerprint": served.fingerprint(),
    });
    let chunk = |choices: Value, usage: Option<Value>| {
        let mut chunk = base.clone();
        chunk["choices"] = choices;
        if shown.includes_usage || shown.continuous_usage {
            chunk["usage"] = usage.unwrap_or_default();
        }
        chunk
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
                        if shown.scores {
                            logprobs = scores(&found, served);
                        }
                        if text.is_empty() && !shown.scores {
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
        let usage = shown.continuous_usage.then(|| answering.usage());
        if !has_role[index] {
            // The role comes with the first token, so that a failure before it is still a status.
            if delta.is_none() {
                continue;
            }
            has_role[index] = true;
            let first = json!([{
                "index": index,
                "delta": { "role": "assistant", "content": "" },
                "logprobs": null,
                "finish_reason": null,
            }]);
            frames.send(&chunk(first, usage.clone())).await?;
        }
        let mut choice = Map::new();
        choice.insert("index".to_owned(), index.into());
        choice.insert("delta".to_owned(), delta.unwrap_or_default());
        choice.insert("logprobs".to_owned(), logprobs);
        choice.insert("finish_reason".to_owned(), Value::Null);
        if is_end {
            insert_reason(&mut choice, answering.readers[index].reason.as_ref());
        }
        let mut whole = chunk(json!([choice]), usage);
        if is_end && shown.timings {
            whole["timings"] = answering.timings();
        }
        frames.send(&whole).await?;
    }
    if shown.includes_usage {
        frames.send(&chunk(json!([]), Some(answering.usage()))).await?;
    }
    frames.done().await
}
