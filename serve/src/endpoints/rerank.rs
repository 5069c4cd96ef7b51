//! `POST /v1/rerank`: how well documents answer a query, as Jina and llama.cpp have it.
//!
//! In: a query and documents. Out: their scores, the best first.
//! A model with a head reads the query with each document, one after the other, as embeddings are made. A decoder that
//! was trained for it (Qwen3-Reranker) answers yes or no after each document: documents are prompts of one token more,
//! so that they are batched, and share the pages of what stands before them.

use std::sync::Arc;
use std::time::Instant;

use fusebox::embed::relevance::Relevance;
use fusebox::tokenizer::Pair;
use serde_json::{Map, Value, json};

use crate::answer::Piece;
use crate::app::{App, Request, blocking};
use crate::ask::{Answering, Ask, Told};
use crate::endpoints::params;
use crate::http::fields::Fields;
use crate::http::problem::Problem;
use crate::http::reply::{self, Response};
use crate::model::Served;

/// The most documents of a request.
const MAX_DOCUMENTS: usize = 1024;

/// A document: a string, or an object with its text.
fn text_of(value: Value, number: usize) -> Result<String, Problem> {
    let path = format!("documents[{number}]");
    match value {
        Value::String(text) => Ok(text),
        object @ Value::Object(_) => {
            let mut fields = Fields::new(object, &path)?;
            let text = fields.required_string("text")?;
            fields.finish().map(|()| text)
        }
        _ => Err(Problem::field(path, "expected a string, or an object with a text")),
    }
}

/// Answers.
pub(crate) async fn answer(app: Arc<App>, request: Request) -> Result<Response, Problem> {
    let mut fields = Fields::new(request.body, "")?;
    let name = fields.string("model")?;
    let served = app.models.get(name.as_deref()).await?;
    let query = fields.required_string("query")?;
    let documents = fields.array("documents")?.unwrap_or_default();
    if documents.is_empty() || documents.len() > MAX_DOCUMENTS {
        let what = format!("expected 1 to {MAX_DOCUMENTS} documents, found {}", documents.len());
        return Err(Problem::field("documents", what));
    }
    let documents: Vec<String> =
        (0..).zip(documents).map(|(n, text)| text_of(text, n)).collect::<Result<_, _>>()?;
    let n_best = fields.size("top_n", 1)?.unwrap_or(documents.len());
    let returns_documents = fields.bool("return_documents")?.unwrap_or(false);
    fields.ignore(&["user"]);
    fields.finish()?;
    let relevance = served.relevance.clone().map_err(Problem::model)?;
    let deadline = params::deadline(&request.headers, app.settings.timeout)?;
    let texts = documents.clone();
    let inputs = blocking(&served, move |served| {
        texts.iter().map(|document| served.pair(relevance, [&query, document])).collect::<Result<Vec<_>, _>>()
    });
    let inputs = inputs.await?;
    let (scores, n_tokens) = match relevance {
        Relevance::Tokens { yes, no } => {
            let prompts = inputs.into_iter().map(|input| input.tokens).collect();
            let mut ask =
                Ask { prompts, max_tokens: Some(1), deadline, ignores_ends: true, ..Ask::default() };
            ask.reading.is_scored = true;
            ask.adapters = served.named(name.as_deref());
            (ask.sampling.logprobs, ask.sampling.reported) = (Some(0), vec![yes, no]);
            ask.sampling.chain.temperature = 0.0;
            asked(&served, ask).await?
        }
        Relevance::Head | Relevance::Answers => by_head(&served, relevance, inputs, deadline).await?,
    };
    if scores.iter().any(|score| !score.is_finite()) {
        return Err(Problem::fault("The model's score is no number."));
    }
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]).then(a.cmp(b)));
    let result = |index: usize| {
        let mut result = Map::new();
        result.insert("index".to_owned(), index.into());
        result.insert("relevance_score".to_owned(), scores[index].into());
        if returns_documents {
            result.insert("document".to_owned(), json!({ "text": documents[index] }));
        }
        Value::Object(result)
    };
    Ok(reply::json(&json!({
        "object": "list",
        "model": name.unwrap_or_else(|| served.name.clone()),
        "usage": { "prompt_tokens": n_tokens, "total_tokens": n_tokens },
        "results": order.into_iter().take(n_best).map(result).collect::<Value>(),
    })))
}

/// The score of each input by the model's head, and how many tokens they have.
async fn by_head(
    served: &Served,
    relevance: Relevance,
    inputs: Vec<Pair>,
    deadline: Option<Instant>,
) -> Result<(Vec<f32>, usize), Problem> {
    let context = served.worker.capacity.context;
    if let Some(input) = inputs.iter().find(|input| input.tokens.len() > context) {
        return Err(Problem::too_long(context, input.tokens.len()));
    }
    let n_tokens = inputs.iter().map(|input| input.tokens.len()).sum();
    let mut scores = Vec::with_capacity(inputs.len());
    for input in inputs {
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return Err(Problem::late());
        }
        let row = served.worker.embed(input).await?;
        scores.push(relevance.score(&row));
    }
    Ok((scores, n_tokens))
}

/// The score of each prompt by the logits of its answer, and how many tokens they have.
async fn asked(served: &Served, ask: Ask) -> Result<(Vec<f32>, usize), Problem> {
    let mut answering = Answering::submit(served, ask)?;
    let mut scores = vec![f32::NAN; answering.readers.len()];
    while let Some(told) = answering.next().await? {
        let Told::Piece(choice, Piece::Text(_, found)) = told else { continue };
        if let Some([(_, yes), (_, no)]) = found.first().map(|scored| &*scored.top) {
            scores[choice] = Relevance::Answers.score(&[*yes, *no]);
        }
    }
    Ok((scores, answering.n_prompt))
}
