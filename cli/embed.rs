//! `fusebox embed`: turns texts into vectors, or scores how well they answer a query.
//!
//! In: a model, and a text, or a file with a text in each line. Out: a vector of length 1 for each text, pooled as the
//! model says, or the scores of a model with a head that scores texts; with `--query`, a score from 0 to 1 of how well
//! each text answers it.

use std::fmt::Display;

use clap::{Args, ValueEnum};
use fusebox::Pooling;
use fusebox::embed::relevance::Relevance;
use fusebox::embed::{Embedder, pooling_of, scored};
use fusebox::open::{Opened, n_threads};
use fusebox::tokenizer::{Pair, Tokenizer};
use serde_json::{Value, json};

use crate::flags::model::NamedModel;
use crate::flags::prompt::{Prompt, PromptFlags, open_tokenizer};
use crate::terminal::output;
use crate::terminal::progress::Progress;

/// What to embed.
#[derive(Args)]
#[command(allow_negative_numbers = true)]
pub(crate) struct Arguments {
    #[command(flatten)]
    model: NamedModel,
    #[command(flatten)]
    prompt: PromptFlags,
    /// Take all of a file as one text, not each of its lines.
    #[arg(long)]
    whole: bool,
    /// Score how well each text answers this query, with a model that ranks.
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["pooling", "tokens"])]
    query: Option<String>,
    /// How the hidden states of a text become one vector [default: as the model says].
    #[arg(long, value_name = "HOW")]
    pooling: Option<PoolingName>,
    /// Threads [default: all hardware threads].
    #[arg(short, long, value_name = "N")]
    threads: Option<usize>,
    /// Print one JSON object instead of a line of numbers for each text.
    #[arg(long)]
    json: bool,
}

/// A way of pooling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PoolingName {
    /// The mean of all tokens.
    Mean,
    /// The first token.
    Cls,
    /// The last token.
    Last,
}

impl From<PoolingName> for Pooling {
    fn from(name: PoolingName) -> Self {
        match name {
            PoolingName::Mean => Self::Mean,
            PoolingName::Cls => Self::First,
            PoolingName::Last => Self::Last,
        }
    }
}

/// Prints the vectors or scores.
pub(crate) fn run(arguments: &Arguments) -> Result<(), String> {
    let Some(prompt) = arguments.prompt.read()? else {
        return Err(
            "texts are needed: -p TEXT, -f FILE with a text in each line, or --tokens 1,2,3".to_owned()
        );
    };
    let n_threads = n_threads(arguments.threads)?;
    let mut progress = Progress::new(2);
    let ranks = arguments.query.is_some();
    let mut opened = if ranks {
        arguments.model.open_ranker(&mut progress, arguments.json)?
    } else {
        arguments.model.open_embedder(&mut progress, arguments.json)?
    };
    let tokenizer = open_tokenizer(opened.model.checkpoint(), matches!(prompt, Prompt::Text(_)))?;
    let relevance = tokenizer.as_ref().filter(|_| ranks).map(|own| Relevance::of(&opened.model, own));
    let relevance = relevance.transpose().map_err(|what| opened.in_model(what))?;
    let texts = texts(&prompt, arguments, (tokenizer.as_ref(), relevance), &opened)?;
    let longest = texts.iter().map(|text| text.tokens.len()).max().unwrap_or(1);
    let context = opened.context(None)?.no_less_than(longest);
    progress.begin("compiling");
    let pooling = if relevance.is_some() { Pooling::Rank } else { pooling(arguments, &opened)? };
    let returned = relevance.map_or_else(|| scored(pooling), Relevance::scored);
    let session = opened.session(n_threads, context, returned)?;
    let mut embedder = Embedder::new(&opened.model, session, pooling);
    drop(progress);
    let row = |text: &Pair| -> Result<Vec<f32>, String> {
        let row = embedder.embed_pair(text).map_err(|error| error.to_string())?;
        Ok(match relevance {
            Some(relevance) => vec![relevance.score(&row)],
            None => row,
        })
    };
    let rows = texts.iter().map(row).collect::<Result<Vec<_>, _>>()?;
    if let Some(text) = rows.iter().position(|row| row.iter().any(|x| !x.is_finite())) {
        return Err(opened.in_model(format!("the vector of text {} is no number", text + 1)));
    }
    print(&rows, ranks, arguments.json);
    Ok(())
}

/// The tokens of each text, with those of the query where there is one.
fn texts(
    prompt: &Prompt,
    arguments: &Arguments,
    (tokenizer, relevance): (Option<&Tokenizer>, Option<Relevance>),
    opened: &Opened,
) -> Result<Vec<Pair>, String> {
    let limit = opened.limit(opened.model.config.context);
    let alone = |tokens| Pair { tokens, kinds: Vec::new() };
    let text = match prompt {
        Prompt::Tokens(_) => {
            let tokens = prompt.tokens(tokenizer, limit).map_err(|error| opened.in_model(error))?;
            return Ok(vec![alone(tokens)]);
        }
        Prompt::Text(text) => text,
    };
    let Some(tokenizer) = tokenizer else { return Err(opened.in_model("it has no tokenizer")) };
    let lines: Vec<&str> = if arguments.whole {
        vec![text]
    } else {
        text.lines().filter(|line| !line.trim().is_empty()).collect()
    };
    let one = |(number, line): (usize, &&str)| {
        let in_line = |what: &dyn Display| opened.in_model(format!("text {}: {what}", number + 1));
        let found = match (&arguments.query, relevance) {
            (Some(query), Some(relevance)) => {
                limit.encode_pair("it has with the query", tokenizer, relevance, [query, line])
            }
            _ => limit.encode("it has", tokenizer, line, true).map(alone),
        };
        let found = found.map_err(|what| in_line(&what))?;
        if found.tokens.is_empty() {
            return Err(in_line(&"expected at least one token, found none"));
        }
        Ok(found)
    };
    let texts = lines.iter().enumerate().map(one).collect::<Result<Vec<_>, _>>()?;
    if texts.is_empty() { Err("expected a text, found none".to_owned()) } else { Ok(texts) }
}

/// How a model pools, by the flag or its file.
fn pooling(arguments: &Arguments, opened: &Opened) -> Result<Pooling, String> {
    let pooling = pooling_of(&opened.model, arguments.pooling.map(Pooling::from));
    pooling.map_err(|error| error.to_string())?.ok_or_else(|| {
        opened
            .in_model("it does not say how hidden states become one vector; --pooling mean, cls or last does")
    })
}

fn print(rows: &[Vec<f32>], ranks: bool, as_json: bool) {
    if as_json {
        let key = if ranks { "scores" } else { "embeddings" };
        let one = |row: &Vec<f32>| if ranks { json!(row.first()) } else { json!(row) };
        let all: Vec<Value> = rows.iter().map(one).collect();
        output::print(&format!("{:#}\n", json!({ key: all })));
        return;
    }
    for row in rows {
        let numbers: Vec<String> = row.iter().map(|x| format!("{x:?}")).collect();
        output::print(&format!("{}\n", numbers.join(" ")));
    }
}
