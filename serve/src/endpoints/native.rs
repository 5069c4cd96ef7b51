//! Endpoints about the server and its text side, as llama.cpp names them.
//!
//! In: requests without answers of a model. Out: health, properties, slots, metrics, tokens, texts.

use std::sync::Arc;
use std::time::Duration;

use hyper::{HeaderMap, header};
use serde_json::{Value, json};

use crate::app::{App, Listed, Request, Stage, blocking};
use crate::ask::Ask;
use crate::endpoints::openai;
use crate::endpoints::params;
use crate::http::fields::{Fields, to_integer};
use crate::http::page;
use crate::http::problem::Problem;
use crate::http::reply::{self, Response};

/// After how long a replay counts as stuck.
const STUCK: Duration = Duration::from_mins(2);

/// `GET /health`: whether the process is of use.
pub(crate) fn health(app: &App) -> Response {
    let body =
        |message: &str| json!({ "error": { "code": 503, "message": message, "type": "unavailable_error" } });
    if app.stage() == Stage::Loading {
        return reply::json_with(503, &body("Loading model"));
    }
    let is_stuck =
        |listed: &Listed| listed.served.as_ref().is_some_and(|served| served.worker.stuck() > STUCK);
    if app.models.list().iter().any(is_stuck) {
        return reply::json_with(503, &body("A replay does not end."));
    }
    reply::json(&json!({ "status": "ok" }))
}

/// `GET /ready`: whether a balancer should send requests.
pub(crate) fn ready(app: &App) -> Response {
    match app.stage() {
        Stage::Ready => reply::json(&json!({ "status": "ready" })),
        Stage::Loading | Stage::Leaving | Stage::Draining => {
            let message =
                if app.stage() == Stage::Loading { "Loading model" } else { "The server is stopping." };
            let error = json!({ "code": 503, "message": message, "type": "unavailable_error" });
            reply::json_with(503, &json!({ "error": error }))
        }
    }
}

/// `GET /`: the page for browsers, and what probes of Ollama look for.
pub(crate) fn front(_: &App, headers: &HeaderMap) -> Response {
    let accepts = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    if !accepts.contains("text/html") {
        return reply::text("text/plain; charset=utf-8", "Ollama is running");
    }
    page::html()
}

/// `GET /version`.
pub(crate) fn version() -> Response {
    reply::json(&json!({ "version": env!("CARGO_PKG_VERSION") }))
}

/// `GET /metrics`.
pub(crate) fn metrics(app: &App) -> Response {
    let listed = app.models.list();
    let served = listed.into_iter().find_map(|listed| listed.served);
    let text = served.map_or_else(|| app.metrics.text(), |served| served.worker.metrics.text());
    reply::text("text/plain; version=0.0.4; charset=utf-8", text)
}

/// `GET /props`.
pub(crate) async fn props(app: &App) -> Result<Response, Problem> {
    let served = app.models.get(None).await?;
    let capacity = served.worker.capacity;
    Ok(reply::json(&json!({
        "default_generation_settings": {
            "n_ctx": capacity.context,
            "params": {
                "temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repeat_penalty": 1.0,
                "presence_penalty": 0.0, "frequency_penalty": 0.0, "n_predict": -1, "stop": [],
            },
        },
        "total_slots": capacity.sequences,
        "model_alias": served.name,
        "model_path": served.name,
        "chat_template": served.template().unwrap_or_default(),
        "modalities": { "vision": false, "audio": false },
        "build_info": format!("fusebox {}", env!("CARGO_PKG_VERSION")),
    })))
}

/// `GET /lora-adapters`: what a request may choose from; none is used where it chooses none.
pub(crate) async fn adapters(app: &App) -> Result<Response, Problem> {
    let served = app.models.get(None).await?;
    let one = |(id, (name, _)): (usize, &(String, _))| json!({ "id": id, "path": name, "scale": 0.0 });
    Ok(reply::json(&served.adapters.iter().enumerate().map(one).collect::<Value>()))
}

/// `GET /slots`: what runs, without its text.
pub(crate) async fn slots(app: &App) -> Result<Response, Problem> {
    let served = app.models.get(None).await?;
    let (capacity, looks) = (served.worker.capacity, served.worker.look());
    let slot = |id: usize| {
        let look = looks.get(id);
        json!({
            "id": id,
            "id_task": look.map_or(-1, |_| id as i64),
            "n_ctx": capacity.context,
            "is_processing": look.is_some(),
            "n_prompt_tokens": look.map_or(0, |look| look.prompt),
            "n_past": look.map_or(0, |look| look.done),
            "n_decoded": look.map_or(0, |look| look.generated),
            "params": {},
        })
    };
    Ok(reply::json(&(0..capacity.sequences.max(looks.len())).map(slot).collect::<Value>()))
}

/// `GET /tokenizer_info`: special tokens and the chat template, under the names of `tokenizer_config.json`. With it
/// and the two endpoints below, evaluation harnesses need no tokenizer of their own.
pub(crate) async fn tokenizer_info(app: &App) -> Result<Response, Problem> {
    let served = app.models.get(None).await?;
    let name = |id: u32| String::from_utf8_lossy(served.tokenizer.token_bytes(id)).into_owned();
    let bos = served.tokenizer.bos();
    Ok(reply::json(&json!({
        "bos_token": bos.map(name),
        "eos_token": served.tokenizer.eos().first().copied().map(name),
        "add_bos_token": bos.is_some(),
        "model_max_length": served.worker.capacity.context,
        "chat_template": served.template(),
    })))
}

/// `POST /tokenize`.
pub(crate) async fn tokenize(app: Arc<App>, request: Request) -> Result<Response, Problem> {
    let mut fields = Fields::new(request.body, "")?;
    let served = app.models.get(fields.string("model")?.as_deref()).await?;
    // vLLM names the text `prompt`.
    let text = match fields.string("content")? {
        Some(text) => Some(text),
        None => fields.string("prompt")?,
    };
    let text = text.ok_or_else(|| Problem::field("content", "expected a string, found none"))?;
    let add_special = match fields.bool("add_special_tokens")? {
        Some(add) => add,
        None => fields.bool("add_special")?.unwrap_or(false),
    };
    if fields.bool("parse_special")? == Some(false) {
        return Err(Problem::unsupported("parse_special", "special tokens in a text are always recognised"));
    }
    let with_pieces = fields.bool("with_pieces")?.unwrap_or(false);
    fields.bool("return_token_strs")?;
    fields.finish()?;
    let tokens = blocking(&served, move |served| {
        served.tokenizer.encode(&text, add_special).map_err(|error| Problem::invalid(error.to_string()))
    });
    let tokens = tokens.await?;
    let piece = |id: &u32| {
        let bytes = served.tokenizer.token_bytes(*id);
        let piece = std::str::from_utf8(bytes).map_or_else(|_| json!(bytes), |text| json!(text));
        json!({ "id": id, "piece": piece })
    };
    let (count, context) = (tokens.len(), served.worker.capacity.context);
    let shown: Value = if with_pieces { tokens.iter().map(piece).collect() } else { json!(tokens) };
    Ok(reply::json(&json!({ "tokens": shown, "count": count, "max_model_len": context })))
}

/// `POST /detokenize`.
pub(crate) async fn detokenize(app: Arc<App>, request: Request) -> Result<Response, Problem> {
    let mut fields = Fields::new(request.body, "")?;
    let served = app.models.get(fields.string("model")?.as_deref()).await?;
    let missing = || Problem::field("tokens", "expected an array of token ids, found none");
    let list = fields.array("tokens")?.ok_or_else(missing)?;
    fields.finish()?;
    let n = served.tokenizer.n_tokens() as i64;
    let id = |value: &Value| {
        let id = to_integer(value).filter(|id| (0..n).contains(id));
        id.map(|id| id as u32)
            .ok_or_else(|| Problem::field("tokens", format!("expected token ids below {n}")))
    };
    let ids = list.iter().map(id).collect::<Result<Vec<u32>, Problem>>()?;
    let text = served.tokenizer.decode(&ids, false);
    Ok(reply::json(&json!({ "content": text, "prompt": text })))
}

/// `POST /apply-template`: the prompt of a chat request.
pub(crate) async fn apply_template(app: Arc<App>, request: Request) -> Result<Response, Problem> {
    let (served, prompt) = rendered(&app, request).await?;
    drop(served);
    Ok(reply::json(&json!({ "prompt": prompt })))
}

/// `POST /v1/chat/completions/input_tokens`: how many tokens the prompt of a chat request has.
pub(crate) async fn input_tokens(app: Arc<App>, request: Request) -> Result<Response, Problem> {
    let (served, prompt) = rendered(&app, request).await?;
    let n = blocking(&served, move |served| Ok(served.tokens(&prompt, false)?.len())).await?;
    Ok(reply::json(&json!({ "object": "response.input_tokens", "input_tokens": n })))
}

async fn rendered(app: &App, request: Request) -> Result<(Arc<crate::model::Served>, String), Problem> {
    let mut fields = Fields::new(request.body, "")?;
    let served = app.models.get(fields.string("model")?.as_deref()).await?;
    params::openai(&mut fields, &served, &mut Ask::default())?;
    openai::chat::max_tokens(&mut fields, 1)?;
    fields.ignore(&["stream", "stream_options", "logprobs", "top_logprobs"]);
    let conversation = openai::chat::conversation(&mut fields)?;
    fields.finish()?;
    let prompt = blocking(&served, move |served| conversation.text(served)).await?;
    Ok((served, prompt))
}

/// One model in OpenAI's list.
fn model(listed: &Listed, created: u64) -> Value {
    let mut model = json!({
        "id": listed.names.first(),
        "object": "model",
        "created": created,
        "owned_by": "fusebox",
    });
    if let Some(parent) = &listed.parent {
        model["parent"] = json!(parent);
    }
    if listed.names.len() > 1 {
        model["aliases"] = json!(listed.names[1..]);
    }
    if let Some(served) = &listed.served {
        model["created"] = json!(served.created);
        model["max_model_len"] = json!(served.worker.capacity.context);
        model["meta"] = json!({
            "n_ctx_train": served.trained_context,
            "n_vocab": served.worker.capacity.vocab,
            "n_embd": served.width,
            "n_params": served.n_params,
            "size": served.size,
        });
    }
    model
}

/// `GET /v1/models`.
pub(crate) fn models(app: &App) -> Response {
    let created = crate::model::now() - app.start.elapsed().as_secs();
    let data: Vec<Value> = app.models.list_all().iter().map(|listed| model(listed, created)).collect();
    reply::json(&json!({ "object": "list", "data": data }))
}

/// `GET /v1/models/{id}`.
pub(crate) fn one_model(app: &App, name: &str) -> Result<Response, Problem> {
    let created = crate::model::now() - app.start.elapsed().as_secs();
    Ok(reply::json(&model(&app.models.listed(name)?, created)))
}
