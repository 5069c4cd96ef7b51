//! `/api/*`, as Ollama has them.
//!
//! In: Ollama's requests. Out: one object, or a line for each piece; streams unless `stream` is false.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fusebox::Pooling;
use fusebox::sample::Settings;
use serde_json::{Map, Value, json};

use crate::answer::{Piece, Reason};
use crate::app::{App, Listed, Request, blocking};
use crate::ask::{Answering, Ask, Told};
use crate::endpoints::chat::Conversation;
use crate::endpoints::messages;
use crate::endpoints::openai::chat::{Whole, scores};
use crate::endpoints::params::{checked_stops, deadline, tools};
use crate::grammar::Grammar;
use crate::http::fields::{Fields, kind};
use crate::http::frames::{Framing, stream};
use crate::http::problem::{Dialect, Problem};
use crate::http::reply::{self, Response};
use crate::model::{Served, now};
use crate::tools::Choice;

/// The version of the interface that is spoken here: clients compare it.
const VERSION: &str = "0.12.0";

/// What a request wants of memory.
enum Keep {
    Usual,
    For(Duration),
    Unload,
}

/// A time as RFC 3339.
fn time(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Days since the first of March of the year 0, in the calendar of Gregory.
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let of_era = shifted % 146_097;
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// How long a model stays loaded: seconds, or a number with a unit.
fn keep_alive(fields: &mut Fields) -> Result<Keep, Problem> {
    let Some(value) = fields.take("keep_alive") else { return Ok(Keep::Usual) };
    let seconds = match &value {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => {
            let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
            let unit = match &text[digits.len()..] {
                "" | "s" => Some(1.0),
                "ms" => Some(0.001),
                "m" => Some(60.0),
                "h" => Some(3600.0),
                _ => None,
            };
            digits.parse::<f64>().ok().zip(unit).map(|(n, unit)| n * unit)
        }
        _ => None,
    };
    match seconds {
        Some(0.0) => Ok(Keep::Unload),
        Some(seconds) if seconds < 0.0 => Ok(Keep::For(Duration::MAX)),
        Some(seconds) => Ok(Duration::try_from_secs_f64(seconds).map_or(Keep::For(Duration::MAX), Keep::For)),
        None => Err(Problem::field("keep_alive", "expected seconds, or a number with a unit such as 5m")),
    }
}

/// Settings under `options`.
fn options(fields: &mut Fields, served: &Served, ask: &mut Ask) -> Result<(), Problem> {
    let chain = &mut ask.sampling.chain;
    *chain = Settings { temperature: 0.8, top_k: 40, top_p: 0.9, ..Settings::default() };
    let Some(mut options) = fields.fields("options")? else { return Ok(()) };
    if let Some(x) = options.number("temperature", 0.0..=5.0)? {
        chain.temperature = x;
    }
    if let Some(k) = options.integer("top_k", -1..=i64::MAX)? {
        chain.top_k = k.max(0) as usize;
    }
    if let Some(x) = options.number("top_p", 0.0..=1.0)? {
        chain.top_p = x.max(f32::MIN_POSITIVE);
    }
    if let Some(x) = options.number("min_p", 0.0..=1.0)? {
        chain.min_p = x.min(0.999_999);
    }
    if let Some(x) = options.number("repeat_penalty", 1e-3..=1e3)? {
        chain.repeat_penalty = x;
    }
    if let Some(n) = options.integer("repeat_last_n", -1..=i64::MAX)? {
        chain.repeat_last = usize::try_from(n).unwrap_or(usize::MAX);
    }
    ask.seed = options.integer("seed", i64::MIN..=i64::MAX)?.map(|seed| seed as u64);
    if let Some(x) = options.number("frequency_penalty", -2.0..=2.0)? {
        ask.sampling.frequency = x;
    }
    if let Some(x) = options.number("presence_penalty", -2.0..=2.0)? {
        ask.sampling.presence = x;
    }
    ask.reading.stops = checked_stops("options.stop", options.strings("stop", 64)?)?;
    match options.integer("num_predict", -2..=i64::MAX)? {
        None | Some(-1) => {}
        Some(-2) => return Err(Problem::unsupported("options.num_predict", "the context is never slid")),
        Some(n) => ask.max_tokens = Some(n as usize),
    }
    let context = served.worker.capacity.context as i64;
    if let Some(n) = options.integer("num_ctx", 1..=i64::MAX)?
        && n > context
    {
        let what = format!("expected at most {context}, the context length served here, found {n}");
        return Err(Problem::field("options.num_ctx", what));
    }
    if let Some(x) = options.number("typical_p", 0.0..=1.0)? {
        chain.typical_p = x.max(f32::MIN_POSITIVE);
    }
    for name in ["mirostat", "mirostat_tau", "mirostat_eta", "tfs_z"] {
        options.refuse(name, &[json!(0), json!(0.0), json!(1), json!(1.0)], "it is not supported")?;
    }
    options.ignore(&[
        "num_thread",
        "num_gpu",
        "num_batch",
        "main_gpu",
        "use_mmap",
        "use_mlock",
        "numa",
        "low_vram",
        "penalize_newline",
        "num_keep",
        "f16_kv",
        "vocab_only",
    ]);
    options.finish()
}

/// What chat and generate have in common.
struct Common {
    served: Arc<Served>,
    name: String,
    ask: Ask,
    is_stream: bool,
    variables: Map<String, Value>,
    keep: Keep,
    start: Instant,
    loaded: Duration,
    shows_scores: bool,
}

async fn common(
    app: &App,
    fields: &mut Fields,
    request_deadline: Option<Instant>,
) -> Result<Common, Problem> {
    let start = Instant::now();
    let name = fields.required_string("model")?;
    let keep = keep_alive(fields)?;
    let served = app.models.get(Some(&name)).await?;
    let loaded = start.elapsed();
    let mut ask = Ask { deadline: request_deadline, adapters: served.named(Some(&name)), ..Ask::default() };
    options(fields, &served, &mut ask)?;
    ask.grammar = match fields.take("format") {
        None => None,
        Some(Value::String(text)) if text.is_empty() => None,
        Some(Value::String(text)) if text == "json" => Some(Grammar::JsonObject),
        Some(schema @ Value::Object(_)) => Some(Grammar::Schema(schema)),
        Some(other) => {
            let found = if other.is_string() { other.to_string() } else { kind(&other).to_owned() };
            return Err(Problem::field("format", format!("expected json or a schema, found {found}")));
        }
    };
    let mut variables = Map::new();
    match fields.take("think") {
        None => {}
        Some(Value::Bool(thinks)) => drop(variables.insert("enable_thinking".to_owned(), thinks.into())),
        Some(Value::String(effort)) if ["low", "medium", "high"].contains(&effort.as_str()) => {
            variables.insert("reasoning_effort".to_owned(), effort.into());
        }
        Some(_) => return Err(Problem::field("think", "expected true, false, low, medium or high")),
    }
    let shows_scores = fields.bool("logprobs")?.unwrap_or(false);
    let top = fields.integer("top_logprobs", 0..=20)?;
    if shows_scores {
        ask.sampling.logprobs = Some(top.unwrap_or(0) as usize);
        ask.reading.is_scored = true;
    }
    fields.bool("truncate")?;
    fields.refuse("shift", &[json!(true), json!(false)], "expected true or false")?;
    let is_stream = fields.bool("stream")?.unwrap_or(true);
    Ok(Common { served, name, ask, is_stream, variables, keep, start, loaded, shows_scores })
}

/// Remembers how long the model stays.
fn note_keep(app: &App, name: &str, keep: &Keep) -> Result<(), Problem> {
    match keep {
        Keep::Usual => Ok(()),
        Keep::For(time) => app.models.keep(Some(name), Some(*time)),
        Keep::Unload => app.models.keep(Some(name), Some(Duration::ZERO)),
    }
}

/// The answer to a request that only loads or unloads.
fn only_load(app: &App, common: Common, is_chat: bool) -> Result<Response, Problem> {
    let reason = if matches!(common.keep, Keep::Unload) { "unload" } else { "load" };
    let Common { served, name, keep, .. } = common;
    drop(served);
    note_keep(app, &name, &keep)?;
    let mut body = json!({ "model": name, "created_at": time(now()) });
    if is_chat {
        body["message"] = json!({ "role": "assistant", "content": "" });
    } else {
        body["response"] = "".into();
    }
    body["done"] = true.into();
    body["done_reason"] = reason.into();
    Ok(reply::json(&body))
}

/// `POST /api/chat`.
pub(crate) async fn chat(app: Arc<App>, request: Request) -> Result<Response, Problem> {
    let mut fields = Fields::new(request.body, "")?;
    let limit = deadline(&request.headers, app.settings.timeout)?;
    let mut common = common(&app, &mut fields, limit).await?;
    let list = fields.array("messages")?.unwrap_or_default();
    let tools = tools(fields.array("tools")?, false)?;
    fields.finish()?;
    if list.is_empty() {
        return only_load(&app, common, true);
    }
    for (number, message) in list.iter().enumerate() {
        if message["images"].as_array().is_some_and(|images| !images.is_empty()) {
            return Err(Problem::unsupported(format!("messages[{number}].images"), "this model reads text"));
        }
    }
    let list = list.into_iter().map(plain).collect();
    let mut conversation = Conversation::new(messages::openai(list)?);
    conversation.choice = if tools.is_empty() { Choice::None } else { Choice::Auto };
    conversation.tools = tools;
    conversation.variables = std::mem::take(&mut common.variables);
    common.ask = blocking(&common.served, {
        let mut ask = common.ask;
        move |served| {
            conversation.fill(served, &mut ask)?;
            Ok(ask)
        }
    })
    .await?;
    answer(&app, common, true).await
}

/// A message of Ollama as one of OpenAI.
fn plain(mut message: Value) -> Value {
    if let Some(object) = message.as_object_mut() {
        if let Some(thought) = object.remove("thinking") {
            object.insert("reasoning_content".to_owned(), thought);
        }
        if let Some(name) = object.remove("tool_name") {
            object.insert("name".to_owned(), name);
        }
        if object.get("content").is_none_or(Value::is_null) {
            object.insert("content".to_owned(), "".into());
        }
    }
    message
}

/// `POST /api/generate`.
pub(crate) async fn generate(app: Arc<App>, request: Request) -> Result<Response, Problem> {
    let mut fields = Fields::new(request.body, "")?;
    let limit = deadline(&request.headers, app.settings.timeout)?;
    let mut common = common(&app, &mut fields, limit).await?;
    let prompt = fields.string("prompt")?.unwrap_or_default();
    let system = fields.string("system")?;
    let is_raw = fields.bool("raw")?.unwrap_or(false);
    fields.refuse("suffix", &[json!("")], "filling in the middle is not supported")?;
    fields.refuse("template", &[json!("")], "a template is code, and is not taken from a request")?;
    fields.refuse("context", &[json!([])], "it is not supported; send a conversation to /api/chat")?;
    fields.refuse("images", &[json!([])], "this model reads text")?;
    fields.finish()?;
    if prompt.is_empty() {
        return only_load(&app, common, false);
    }
    let variables = std::mem::take(&mut common.variables);
    common.ask = blocking(&common.served, {
        let mut ask = common.ask;
        move |served| {
            if is_raw || !served.has_chat() {
                ask.prompts = vec![served.tokens(&prompt, true)?];
                return Ok(ask);
            }
            let system = system.map(|text| json!({ "role": "system", "content": text }));
            let user = json!({ "role": "user", "content": prompt });
            let mut conversation = Conversation::new(system.into_iter().chain([user]).collect());
            conversation.variables = variables;
            conversation.fill(served, &mut ask)?;
            Ok(ask)
        }
    })
    .await?;
    answer(&app, common, false).await
}

/// A piece as a line, or as the whole answer.
fn line(name: &str, is_chat: bool, text: &str, thought: &str, calls: &[(String, String)]) -> Value {
    let mut body = json!({ "model": name, "created_at": time(now()) });
    if is_chat {
        let mut message = json!({ "role": "assistant", "content": text });
        if !thought.is_empty() {
            message["thinking"] = thought.into();
        }
        if !calls.is_empty() {
            let call = |(name, arguments): &(String, String)| {
                let arguments: Value = serde_json::from_str(arguments).unwrap_or_else(|_| json!({}));
                json!({ "function": { "name": name, "arguments": arguments } })
            };
            message["tool_calls"] = calls.iter().map(call).collect();
        }
        body["message"] = message;
    } else {
        body["response"] = text.into();
        if !thought.is_empty() {
            body["thinking"] = thought.into();
        }
    }
    body["done"] = false.into();
    body
}

/// Adds the end of an answer to its last line.
fn end(body: &mut Value, answering: &Answering<'_>, start: Instant, loaded: Duration) {
    let (prompt, decode) = answering.times();
    let reason = match answering.readers[0].reason {
        Some(Reason::Length | Reason::Context) => "length",
        _ => "stop",
    };
    let nanoseconds = |time: Duration| time.as_nanos() as u64;
    body["done"] = true.into();
    body["done_reason"] = reason.into();
    body["total_duration"] = nanoseconds(start.elapsed()).into();
    body["load_duration"] = nanoseconds(loaded).into();
    body["prompt_eval_count"] = answering.n_prompt.into();
    body["prompt_eval_duration"] = nanoseconds(prompt).into();
    body["eval_count"] = answering.n_generated().into();
    body["eval_duration"] = nanoseconds(decode).into();
}

async fn answer(app: &Arc<App>, common: Common, is_chat: bool) -> Result<Response, Problem> {
    let Common { served, name, ask, is_stream, keep, start, loaded, shows_scores, .. } = common;
    note_keep(app, &name, &keep)?;
    if is_stream {
        return stream(Framing::Lines, Dialect::Ollama, |frames| async move {
            let mut answering = Answering::submit(&served, ask)?;
            let mut whole = Whole::default();
            while let Some(told) = frames.wait(answering.next()).await? {
                let Told::Piece(_, piece) = told else { continue };
                let mut body = match &piece {
                    Piece::Text(text, found) => {
                        let mut body = line(&name, is_chat, text, "", &[]);
                        if shows_scores {
                            body["logprobs"] = scores(found, &served)["content"].clone();
                        }
                        body
                    }
                    Piece::Reasoning(text) => line(&name, is_chat, "", text, &[]),
                    Piece::Call(..) | Piece::Arguments(..) => {
                        // Calls come whole, at the end.
                        whole.add(piece);
                        continue;
                    }
                };
                body["done"] = false.into();
                frames.send(&body).await?;
            }
            if !whole.calls.is_empty() {
                frames.send(&line(&name, is_chat, "", "", &whole.calls)).await?;
            }
            let mut last = line(&name, is_chat, "", "", &[]);
            end(&mut last, &answering, start, loaded);
            frames.send(&last).await
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
    let mut body = line(&name, is_chat, &whole.text, &whole.reasoning, &whole.calls);
    if shows_scores {
        body["logprobs"] = scores(&whole.scores, &served)["content"].clone();
    }
    end(&mut body, &answering, start, loaded);
    Ok(reply::json(&body))
}

/// What is known of a model without its weights.
fn details(listed: &Listed) -> Value {
    let (family, parameters, format) = match &listed.served {
        Some(served) => {
            let millions = served.n_params as f64 / 1e6;
            let parameters = if millions >= 1000.0 {
                format!("{:.1}B", millions / 1000.0)
            } else {
                format!("{millions:.2}M")
            };
            (served.architecture.clone(), parameters, served.quantization.clone())
        }
        None => Default::default(),
    };
    json!({
        "parent_model": "",
        "format": "gguf",
        "family": family,
        "families": [family],
        "parameter_size": parameters,
        "quantization_level": format,
    })
}

fn digest(listed: &Listed) -> String {
    listed.served.as_ref().map_or_else(|| "0".repeat(64), |served| served.digest.clone())
}

/// `GET /api/tags`.
pub(crate) fn tags(app: &App) -> Response {
    let model = |listed: &Listed| {
        json!({
            "name": listed.names.first(),
            "model": listed.names.first(),
            "modified_at": time(listed.served.as_ref().map_or_else(now, |served| served.created)),
            "size": listed.size,
            "digest": digest(listed),
            "details": details(listed),
        })
    };
    reply::json(&json!({ "models": app.models.list_all().iter().map(model).collect::<Value>() }))
}

/// `GET /api/ps`.
pub(crate) fn running(app: &App) -> Response {
    let model = |listed: &Listed| {
        let served = listed.served.as_ref()?;
        let expires = now() + app.settings.keep_alive.saturating_sub(listed.used.elapsed()).as_secs();
        Some(json!({
            "name": served.name,
            "model": served.name,
            "size": served.size,
            "size_vram": 0,
            "digest": digest(listed),
            "details": details(listed),
            "expires_at": time(expires),
            "context_length": served.worker.capacity.context,
        }))
    };
    reply::json(&json!({ "models": app.models.list().iter().filter_map(model).collect::<Value>() }))
}

/// `GET /api/version`.
pub(crate) fn version() -> Response {
    reply::json(&json!({ "version": VERSION }))
}

/// `POST /api/show`.
pub(crate) async fn show(app: Arc<App>, request: Request) -> Result<Response, Problem> {
    let mut fields = Fields::new(request.body, "")?;
    let name = match fields.string("model")? {
        Some(name) => name,
        None => fields
            .required_string("name")
            .map_err(|_| Problem::field("model", "expected a string, found none"))?,
    };
    fields.ignore(&["verbose", "system", "template", "options"]);
    fields.finish()?;
    let served = app.models.get(Some(&name)).await?;
    let mut capabilities = Vec::new();
    if served.generates {
        capabilities.push("completion");
    }
    if served.generates && served.has_chat() {
        capabilities.push("tools");
    }
    if served.thinks {
        capabilities.push("thinking");
    }
    if served.pooling.is_some_and(|pooling| pooling != Pooling::Rank) {
        capabilities.push("embedding");
    }
    let mut info = served.info.clone();
    info.entry("general.architecture").or_insert_with(|| served.architecture.clone().into());
    info.entry("general.parameter_count").or_insert_with(|| served.n_params.into());
    info.insert(format!("{}.context_length", served.architecture), served.trained_context.into());
    Ok(reply::json(&json!({
        "modelfile": "",
        "parameters": "",
        "template": served.template().unwrap_or_default(),
        "license": served.info.get("general.license").cloned().unwrap_or_else(|| "".into()),
        "details": details(&app.models.listed(&name)?),
        "model_info": info,
        "capabilities": capabilities,
        "modified_at": time(served.created),
    })))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_of_the_calendar() {
        assert_eq!(time(0), "1970-01-01T00:00:00Z");
        assert_eq!(time(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(time(1_795_850_623), "2026-11-28T07:23:43Z");
    }
}
