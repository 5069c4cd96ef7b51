//! `fusebox embed`: turns texts into vectors, or scores how well they answer a query.
//!
//! In: a model, and a text, or a file with a text in each line. Out: a vector of length 1 for each text, pooled as the
//! model says; of a model that ranks texts, or with `--query`, a score from 0 to 1.
//! A ranker that is a decoder (Qwen3-Reranker) answers yes or no: the score is the probability of yes against no.

use std::fmt::Display;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use fusebox_models::layers::embed::Scored;
use fusebox_models::pooling::{Pooling, normalised};
use fusebox_models::tokenizer::Tokenizer;
use fusebox_runtime::session::Session;
use serde_json::{Value, json};

use crate::model::{ModelFlags, OpenModel, n_threads};
use crate::output;
use crate::progress::Progress;
use crate::prompt::{Prompt, PromptFlags, open_tokenizer};

/// What Qwen3-Reranker was trained on: the text around a query and a document, and the default task.
const BEFORE: &str = concat!(
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct ",
    "provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n",
);
const AFTER: &str = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";
const TASK: &str = "Given a web search query, retrieve relevant passages that answer the query";

/// What to embed.
#[derive(Args)]
#[command(allow_negative_numbers = true)]
pub(crate) struct Arguments {
    /// The model, as -m names it.
    #[arg(value_name = "MODEL", conflicts_with = "model")]
    place: Option<PathBuf>,
    #[command(flatten)]
    model: ModelFlags,
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
enum PoolingName {
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
    let name = arguments.place.as_deref().or(arguments.model.path());
    let ranks = arguments.query.is_some();
    let mut opened = if ranks {
        arguments.model.open(name, &mut progress, arguments.json)?
    } else {
        arguments.model.open_embedder(name, &mut progress, arguments.json)?
    };
    let tokenizer = open_tokenizer(opened.model.checkpoint(), matches!(prompt, Prompt::Text(_)))?;
    let texts = texts(&prompt, arguments, tokenizer.as_ref(), &opened)?;
    let longest = texts.iter().map(Vec::len).max().unwrap_or(1);
    let context = opened.context(None)?.no_less_than(longest);
    progress.begin("compiling");
    let rows = if let Some(tokenizer) = tokenizer.as_ref().filter(|_| ranks) {
        let answers = answers(tokenizer).ok_or_else(|| opened.in_model(NO_ANSWERS))?;
        let mut session = opened.session(n_threads, context, Scored::Last)?;
        drop(progress);
        let score = |tokens: &Vec<u32>| judged(&mut session, tokens, answers);
        texts.iter().map(score).collect::<Result<Vec<_>, _>>()?
    } else {
        let pooling = pooling(arguments, &opened)?;
        let scored = if pooling == Pooling::Rank { Scored::Ranked } else { Scored::Embedded };
        let mut session = opened.session(n_threads, context, scored)?;
        drop(progress);
        let embed = |tokens: &Vec<u32>| embedded(&mut session, tokens, pooling);
        texts.iter().map(embed).collect::<Result<Vec<_>, _>>()?
    };
    if let Some(text) = rows.iter().position(|row| row.iter().any(|x| !x.is_finite())) {
        return Err(opened.in_model(format!("the vector of text {} is no number", text + 1)));
    }
    print(&rows, ranks, arguments.json);
    Ok(())
}

/// What is said of a model that cannot rank.
const NO_ANSWERS: &str = "it cannot rank texts: expected the tokens `yes` and `no`, found none";

/// The tokens of each text.
fn texts(
    prompt: &Prompt,
    arguments: &Arguments,
    tokenizer: Option<&Tokenizer>,
    opened: &OpenModel,
) -> Result<Vec<Vec<u32>>, String> {
    let limit = opened.limit(opened.model.config.context);
    let text = match prompt {
        Prompt::Tokens(_) => {
            return Ok(vec![prompt.tokens(tokenizer, limit).map_err(|error| opened.in_model(error))?]);
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
        let wanted = match &arguments.query {
            Some(query) => format!("{BEFORE}<Instruct>: {TASK}\n<Query>: {query}\n<Document>: {line}{AFTER}"),
            None => (*line).to_owned(),
        };
        let tokens = limit.encode("it has", tokenizer, &wanted, arguments.query.is_none());
        let tokens = tokens.map_err(|what| in_line(&what))?;
        if tokens.is_empty() { Err(in_line(&"expected at least one token, found none")) } else { Ok(tokens) }
    };
    let texts = lines.iter().enumerate().map(one).collect::<Result<Vec<_>, _>>()?;
    if texts.is_empty() { Err("expected a text, found none".to_owned()) } else { Ok(texts) }
}

/// How a model pools, by the flag or its file.
fn pooling(arguments: &Arguments, opened: &OpenModel) -> Result<Pooling, String> {
    if let Some(name) = arguments.pooling {
        return Ok(name.into());
    }
    if opened.model.config.ends.ranking.is_some() {
        return Ok(Pooling::Rank);
    }
    let stated = Pooling::of(opened.model.checkpoint()).map_err(|error| error.to_string())?;
    stated.filter(|stated| *stated != Pooling::Rank).ok_or_else(|| {
        opened
            .in_model("it does not say how hidden states become one vector; --pooling mean, cls or last does")
    })
}

/// The vector or the scores of a text.
fn embedded(session: &mut Session, tokens: &[u32], pooling: Pooling) -> Result<Vec<f32>, String> {
    session.truncate(0).map_err(|error| error.to_string())?;
    let (mut rows, mut width) = (Vec::new(), 0);
    let mut each = |row: &[f32]| {
        width = row.len();
        rows.extend_from_slice(row);
    };
    session.score(tokens, &mut each).map_err(|error| error.to_string())?;
    let vector = pooling.pooled(&rows, width);
    Ok(if pooling == Pooling::Rank { vector } else { normalised(&vector) })
}

/// The tokens of `yes` and `no`.
fn answers(tokenizer: &Tokenizer) -> Option<[u32; 2]> {
    let one = |text: &str| match tokenizer.encode(text, false).ok()?[..] {
        [id] => Some(id),
        _ => None,
    };
    Some([one("yes")?, one("no")?])
}

/// The probability of `yes` against `no` after a text.
fn judged(session: &mut Session, tokens: &[u32], [yes, no]: [u32; 2]) -> Result<Vec<f32>, String> {
    session.truncate(0).map_err(|error| error.to_string())?;
    let logits = session.feed(tokens).map_err(|error| error.to_string())?;
    let of = |id: u32| logits.get(id as usize).copied().map_or(f64::NAN, f64::from);
    Ok(vec![(1.0 / (1.0 + (of(no) - of(yes)).exp())) as f32])
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
