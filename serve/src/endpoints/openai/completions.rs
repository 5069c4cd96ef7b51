//! `POST /v1/completions`: text, or tokens, continued; with `echo` and `logprobs` for evaluation.
//!
//! In: OpenAI's request. Out: one answer, or its chunks.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::answer::Piece;
use crate::app::{App, Request, blocking};
use crate::ask::{Answering, Ask, Told};
use crate::endpoints::openai::chat::max_tokens;
use crate::endpoints::openai::choices::{Kind, Shown, insert_reason};
use crate::endpoints::params;
use crate::http::fields::{Fields, to_integer};
use crate::http::frames::{Frames, Framing, stream};
use crate::http::problem::{Dialect, Problem};
use crate::http::reply::{self, Response};
use crate::model::Served;
use crate::sampling::Scored;

/// The most prompts of a request.
const MAX_PROMPTS: usize = 1024;

const KIND: Kind = Kind { prefix: "cmpl-", whole: "text_completion", chunk: "text_completion" };

/// What a choice shows beside what was generated.
struct Beside {
    /// Whether there are log-probabilities.
    scores: bool,
    /// The texts before the answers, by prompt.
    echoes: Option<Vec<String>>,
    n: usize,
}

/// Scores of a text as it grows.
#[derive(Debug, Default)]
struct Scores {
    tokens: Vec<Value>,
    logprobs: Vec<Value>,
    top: Vec<Value>,
    offsets: Vec<Value>,
    /// Characters so far.
    n_chars: usize,
}

impl Scores {
    fn extend(&mut self, found: &[Scored], served: &Served) {
        for one in found {
            self.add(one, served);
        }
    }

    fn add(&mut self, scored: &Scored, served: &Served) {
        let text = |id: u32| String::from_utf8_lossy(served.tokenizer.token_bytes(id)).into_owned();
        let token = text(scored.id);
        self.offsets.push(self.n_chars.into());
        self.n_chars += token.chars().count();
        self.logprobs.push(scored.logprob.into());
        self.top.push(match scored.logprob {
            None => Value::Null,
            Some(logprob) => {
                let mut top: Map<String, Value> = Map::new();
                for (id, logprob) in &scored.top {
                    // Two tokens may have one text: the likelier stays.
                    top.entry(text(*id)).or_insert_with(|| (*logprob).into());
                }
                top.entry(token.clone()).or_insert_with(|| logprob.into());
                Value::Object(top)
            }
        });
        self.tokens.push(token.into());
    }

    /// The scores since the last time.
    fn take(&mut self) -> Value {
        json!({
            "tokens": std::mem::take(&mut self.tokens),
            "token_logprobs": std::mem::take(&mut self.logprobs),
            "top_logprobs": std::mem::take(&mut self.top),
            "text_offset": std::mem::take(&mut self.offsets),
        })
    }
}

/// Prompts in any of their forms.
fn prompts(value: &Value, served: &Served) -> Result<Vec<Vec<u32>>, Problem> {
    let vocab = served.worker.capacity.vocab as i64;
    let id = |value: &Value| {
        let id = to_integer(value).filter(|id| (0..vocab).contains(id));
        id.map(|id| id as u32)
            .ok_or_else(|| Problem::field("prompt", format!("expected token ids below {vocab}")))
    };
    let ids = |list: &[Value]| list.iter().map(id).collect::<Result<Vec<u32>, Problem>>();
    let text = |text: &str| {
        let tokens = served.tokens(text, true)?;
        if tokens.is_empty() {
            // Without a token there is nothing to continue.
            return Err(Problem::field(
                "prompt",
                "expected a text that is not empty: this model has no BOS token",
            ));
        }
        Ok(tokens)
    };
    let found = match value {
        Value::String(one) => vec![text(one)?],
        Value::Array(list) if list.is_empty() => Vec::new(),
        Value::Array(list) if list.iter().all(Value::is_number) => vec![ids(list)?],
        Value::Array(list) => {
            let one = |value: &Value| match value {
                Value::String(one) => text(one),
                Value::Array(list) => ids(list),
                _ => Err(Problem::field("prompt", "expected strings, or arrays of token ids")),
            };
            list.iter().map(one).collect::<Result<_, _>>()?
        }
        _ => return Err(Problem::field("prompt", "expected a string, an array of strings, or token ids")),
    };
    if found.is_empty() || found.iter().any(Vec::is_empty) {
        return Err(Problem::field("prompt", "expected at least one token, found none"));
    }
    if found.len() > MAX_PROMPTS {
        return Err(Problem::field(
            "prompt",
            format!("expected at most {MAX_PROMPTS} prompts, found {}", found.len()),
        ));
    }
    Ok(found)
}

/// Answers.
pub(crate) async fn answer(app: Arc<App>, request: Request) -> Result<Response, Problem> {
    let mut fields = Fields::new(request.body, "")?;
    let name = fields.string("model")?;
    let served = app.models.get(name.as_deref()).await?;
    let mut ask = Ask { adapters: served.named(name.as_deref()), ..Ask::default() };
    params::openai(&mut fields, &served, &mut ask)?;
    let echoes = fields.bool("echo")?.unwrap_or(false);
    ask.max_tokens = Some(max_tokens(&mut fields, i64::from(!echoes))?.unwrap_or(16));
    let scores = fields.integer("logprobs", 0..=20)?;
    if let Some(n) = scores {
        ask.sampling.logprobs = Some(n as usize);
        ask.reading.is_scored = true;
        ask.prompt_scores = echoes.then_some(n as usize);
    }
    fields.refuse("prompt_logprobs", &[json!(0)], "give echo with logprobs")?;
    fields.refuse("suffix", &[json!("")], "filling in the middle is not supported")?;
    if let Some(best_of) = fields.integer("best_of", 1..=128)?
        && best_of as usize != ask.n
    {
        return Err(Problem::unsupported("best_of", "expected the value of n"));
    }
    fields.refuse("tools", &[json!([])], "it is for /v1/chat/completions")?;
    let is_stream = fields.bool("stream")?.unwrap_or(false);
    let name = name.unwrap_or_else(|| served.name.clone());
    let shown = Shown::take(&mut fields, KIND, &app, &name, is_stream)?;
    let prompt =
        fields.take("prompt").ok_or_else(|| Problem::field("prompt", "expected a prompt, found none"))?;
    fields.finish()?;
    ask.deadline = params::deadline(&request.headers, app.settings.timeout)?;
    ask.prompts = blocking(&served, move |served| prompts(&prompt, served)).await?;
    let beside = Beside {
        scores: scores.is_some(),
        echoes: echoes
            .then(|| ask.prompts.iter().map(|prompt| served.tokenizer.decode(prompt, true)).collect()),
        n: ask.n,
    };
    if is_stream {
        return stream(Framing::Data, Dialect::OpenAi, |frames| async move {
            chunks(&frames, &served, ask, &shown, &beside).await
        })
        .await;
    }
    whole(&served, ask, &shown, &beside).await
}

async fn whole(served: &Served, ask: Ask, shown: &Shown, beside: &Beside) -> Result<Response, Problem> {
    let mut answering = Answering::submit(served, ask)?;
    let n_choices = answering.readers.len();
    let mut texts: Vec<String> = (0..n_choices).map(|choice| beside.echo(choice)).collect();
    let mut scores: Vec<Scores> = texts.iter().map(|_| Scores::default()).collect();
    while let Some(told) = answering.next().await? {
        match told {
            Told::Prompt(choice, found) => scores[choice].extend(&found, served),
            Told::Piece(choice, Piece::Text(text, found)) => {
                texts[choice] += &text;
                scores[choice].extend(&found, served);
            }
            Told::Piece(..) | Told::Started(_) | Told::Done(_) => {}
        }
    }
    let choice = |index: usize| {
        let mut choice = Map::new();
        choice.insert("index".to_owned(), index.into());
        choice.insert("text".to_owned(), std::mem::take(&mut texts[index]).into());
        let found = if beside.scores { scores[index].take() } else { Value::Null };
        choice.insert("logprobs".to_owned(), found);
        insert_reason(&mut choice, answering.readers[index].reason.as_ref());
        Value::Object(choice)
    };
    let choices: Vec<Value> = (0..n_choices).map(choice).collect();
    Ok(reply::json(&shown.whole(served, &answering, &choices)))
}

impl Beside {
    /// The text before an answer.
    fn echo(&self, choice: usize) -> String {
        self.echoes.as_ref().map_or_else(String::new, |echoes| echoes[choice / self.n].clone())
    }
}

async fn chunks(
    frames: &Frames,
    served: &Served,
    ask: Ask,
    shown: &Shown,
    beside: &Beside,
) -> Result<(), Problem> {
    let mut answering = Answering::submit(served, ask)?;
    let mut scores: Vec<Scores> = answering.readers.iter().map(|_| Scores::default()).collect();
    while let Some(told) = frames.wait(answering.next()).await? {
        let (index, text, is_end) = match told {
            Told::Started(index) if beside.echoes.is_some() && !beside.scores => {
                (index, beside.echo(index), false)
            }
            Told::Prompt(index, found) => {
                scores[index].extend(&found, served);
                (index, beside.echo(index), false)
            }
            Told::Piece(index, Piece::Text(text, found)) => {
                scores[index].extend(&found, served);
                (index, text, false)
            }
            Told::Done(index) => (index, String::new(), true),
            Told::Started(_) | Told::Piece(..) => continue,
        };
        let mut choice = Map::new();
        choice.insert("index".to_owned(), index.into());
        choice.insert("text".to_owned(), text.into());
        let found = if beside.scores && !is_end { scores[index].take() } else { Value::Null };
        choice.insert("logprobs".to_owned(), found);
        shown.send(frames, served, &answering, (index, choice), is_end).await?;
    }
    shown.end(frames, served, &answering).await
}
