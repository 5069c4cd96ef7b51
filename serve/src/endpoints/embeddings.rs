//! `POST /v1/embeddings`, `/api/embed` and `/api/embeddings`.
//!
//! In: texts or tokens. Out: vectors of length 1, for models that say how hidden vectors are pooled, or where a flag
//! does. Encoders and decoders embed by one road, that of `fusebox embed`.

use std::sync::Arc;
use std::time::Instant;

use fusebox::pooling::{Pooling, normalised};
use fusebox::tokenizer::Pair;
use serde_json::{Value, json};

use crate::app::{App, Request, blocking};
use crate::http::fields::{Fields, to_integer};
use crate::http::problem::Problem;
use crate::http::reply::{self, Response};
use crate::model::Served;

/// The most inputs of a request.
const MAX_INPUTS: usize = 2048;

/// Inputs in any of their forms, as tokens.
fn inputs(value: &Value, served: &Served) -> Result<Vec<Vec<u32>>, Problem> {
    let vocab = served.worker.capacity.vocab as i64;
    let wrong = || Problem::field("input", "expected strings, or arrays of token ids");
    let ids = |list: &[Value]| -> Result<Vec<u32>, Problem> {
        let id = |value: &Value| to_integer(value).filter(|id| (0..vocab).contains(id)).map(|id| id as u32);
        list.iter().map(|value| id(value).ok_or_else(wrong)).collect()
    };
    let one = |value: &Value| match value {
        Value::String(text) => served.tokens(text, true),
        Value::Array(list) => ids(list),
        _ => Err(wrong()),
    };
    let found = match value {
        Value::Array(list) if !list.is_empty() && list.iter().all(Value::is_number) => vec![ids(list)?],
        Value::Array(list) => list.iter().map(one).collect::<Result<_, _>>()?,
        other => vec![one(other)?],
    };
    if found.is_empty() || found.len() > MAX_INPUTS || found.iter().any(Vec::is_empty) {
        return Err(Problem::field("input", format!("expected 1 to {MAX_INPUTS} inputs, none empty")));
    }
    Ok(found)
}

/// The vectors of inputs; those that are too long are cut where that is wanted.
async fn vectors(
    served: &Arc<Served>,
    input: Value,
    dimensions: Option<usize>,
    cuts: bool,
) -> Result<(Vec<Vec<f32>>, usize), Problem> {
    match served.pooling {
        Some(Pooling::Rank) => {
            return Err(Problem::model("this model scores texts and makes no vectors; use /v1/rerank"));
        }
        None => {
            let what = "this model does not say how hidden vectors are pooled; --pooling of the server does";
            return Err(Problem::model(what));
        }
        Some(Pooling::Mean | Pooling::First | Pooling::Last) => {}
    }
    let width = served.width;
    if dimensions.is_some_and(|n| n > width) {
        return Err(Problem::field("dimensions", format!("expected at most {width}")));
    }
    let context = served.worker.capacity.context;
    let mut inputs = blocking(served, move |served| inputs(&input, served)).await?;
    for tokens in &mut inputs {
        if tokens.len() > context {
            if !cuts {
                return Err(Problem::too_long(context, tokens.len()));
            }
            tokens.truncate(context);
        }
    }
    let n_tokens = inputs.iter().map(Vec::len).sum();
    let mut vectors = Vec::with_capacity(inputs.len());
    for tokens in inputs {
        let mut vector = served.worker.embed(Pair { tokens, kinds: Vec::new() }).await?;
        if dimensions.is_some_and(|n| n < vector.len()) {
            vector.truncate(dimensions.unwrap_or(width));
            vector = normalised(&vector);
        }
        if vector.iter().any(|x| !x.is_finite()) {
            return Err(Problem::fault("The model's hidden vector is no number."));
        }
        vectors.push(vector);
    }
    Ok((vectors, n_tokens))
}

/// Bytes as base64.
fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let bits =
            chunk.iter().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for at in 0..4 {
            let letter = ALPHABET[(bits >> (18 - 6 * at) & 63) as usize];
            text.push(if at <= chunk.len() { char::from(letter) } else { '=' });
        }
    }
    text
}

/// The model of a name, which is no adapter.
async fn model(app: &App, name: Option<&str>) -> Result<Arc<Served>, Problem> {
    let served = app.models.get(name).await?;
    if served.named(name).contains(&1.0) {
        return Err(Problem::field(
            "model",
            format!("an adapter makes no embeddings; expected {}", served.name),
        ));
    }
    Ok(served)
}

/// `POST /v1/embeddings`.
pub(crate) async fn openai(app: Arc<App>, request: Request) -> Result<Response, Problem> {
    let mut fields = Fields::new(request.body, "")?;
    let name = fields.string("model")?;
    let served = model(&app, name.as_deref()).await?;
    let format = fields.string("encoding_format")?.unwrap_or_else(|| "float".to_owned());
    if format != "float" && format != "base64" {
        return Err(Problem::field("encoding_format", "expected float or base64"));
    }
    let dimensions = fields.size("dimensions", 1)?;
    fields.ignore(&["user"]);
    let input =
        fields.take("input").ok_or_else(|| Problem::field("input", "expected an input, found none"))?;
    fields.finish()?;
    let (vectors, n_tokens) = vectors(&served, input, dimensions, false).await?;
    let data = vectors.iter().enumerate().map(|(index, vector)| {
        let embedding = if format == "base64" {
            let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
            json!(base64(&bytes))
        } else {
            json!(vector)
        };
        json!({ "object": "embedding", "index": index, "embedding": embedding })
    });
    Ok(reply::json(&json!({
        "object": "list",
        "data": data.collect::<Value>(),
        "model": name.unwrap_or_else(|| served.name.clone()),
        "usage": { "prompt_tokens": n_tokens, "total_tokens": n_tokens },
    })))
}

/// `POST /api/embed`, and the older `/api/embeddings` with one `prompt`.
pub(crate) async fn ollama(app: Arc<App>, request: Request) -> Result<Response, Problem> {
    let start = Instant::now();
    let mut fields = Fields::new(request.body, "")?;
    let name = fields.required_string("model")?;
    let served = model(&app, Some(&name)).await?;
    let loaded = start.elapsed();
    let cuts = fields.bool("truncate")?.unwrap_or(true);
    let dimensions = fields.size("dimensions", 1)?;
    fields.ignore(&["keep_alive", "options"]);
    let prompt = fields.string("prompt")?;
    let is_old = prompt.is_some();
    let missing = || Problem::field("input", "expected an input, found none");
    let input = prompt.map(Value::from).or_else(|| fields.take("input")).ok_or_else(missing)?;
    fields.finish()?;
    let (mut vectors, n_tokens) = vectors(&served, input, dimensions, cuts).await?;
    if is_old {
        return Ok(reply::json(&json!({ "embedding": vectors.pop() })));
    }
    Ok(reply::json(&json!({
        "model": name,
        "embeddings": vectors,
        "total_duration": start.elapsed().as_nanos() as u64,
        "load_duration": loaded.as_nanos() as u64,
        "prompt_eval_count": n_tokens,
    })))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_padded() {
        let cases = ["", "f", "fo", "foo", "foob", "fooba", "foobar"].map(|text| base64(text.as_bytes()));
        assert_eq!(cases, ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy"]);
    }
}
