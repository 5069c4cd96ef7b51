//! `fusebox logits`: the logits of the next token.
//!
//! In: a model and a prompt. Out: the logits after the last token, or with `--all` after each, as a table of the most
//! likely tokens, as JSON, or as a `.npy` file.

use std::mem;
use std::path::PathBuf;

use clap::Args;
use fusebox::files;
use fusebox::nn::embed::Scored;
use fusebox::open::n_threads;
use fusebox::sample;
use fusebox::text::table::table;
use fusebox::tokenizer::Tokenizer;

use crate::flags::given::Given;
use crate::flags::model::NamedModel;
use crate::flags::prompt::{Prompt, PromptFlags, open_tokenizer};
use crate::measure::npy;
use crate::terminal::output;
use crate::terminal::progress::Progress;

/// Tokens in the table.
const N_SHOWN: usize = 10;

/// What to score.
#[derive(Args)]
#[command(allow_negative_numbers = true)]
pub(crate) struct Arguments {
    #[command(flatten)]
    model: NamedModel,
    #[command(flatten)]
    prompt: PromptFlags,
    /// Threads [default: all hardware threads].
    #[arg(short, long, value_name = "N")]
    threads: Option<usize>,
    /// Logits after every token, not only after the last.
    #[arg(long)]
    all: bool,
    /// Write the logits to a `.npy` file.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
}

/// Prints or writes the logits.
pub(crate) fn run(arguments: &Arguments) -> Result<(), String> {
    let Some(prompt) = arguments.prompt.read()? else {
        return Err("a prompt is needed: -p TEXT, -f FILE or --tokens 1,2,3".to_owned());
    };
    if arguments.all && arguments.output.is_none() && !arguments.json {
        return Err("--all is too much for a table; add -o FILE or --json".to_owned());
    }
    if let Some(path) = &arguments.output {
        Given::new("--output", path).check_target()?;
    }
    let n_threads = n_threads(arguments.threads)?;
    let mut progress = Progress::new(2);
    let mut opened = arguments.model.open(&mut progress, arguments.json)?;
    let tokenizer = open_tokenizer(opened.model.checkpoint(), matches!(prompt, Prompt::Text(_)))?;
    let limit = opened.limit(opened.model.config.context);
    let tokens = prompt.tokens(tokenizer.as_ref(), limit).map_err(|error| opened.in_model(error))?;
    progress.begin("compiling");
    opened.scores_every = arguments.all;
    // The default context length, so that prompts of usual lengths share a program.
    let context = opened.context(None)?.no_less_than(tokens.len());
    let mut session = opened.session(n_threads, context, Scored::Last)?;
    drop(progress);
    let n_vocab = session.n_vocab();
    let shape = if arguments.all { vec![tokens.len(), n_vocab] } else { vec![n_vocab] };
    let mut json = JsonRows { shape: &shape, is_started: false };
    // With -o nothing is printed before the file is written: rows are kept until then.
    let is_file = arguments.output.is_some();
    let mut rows = Vec::new();
    let mut fault = None;
    let mut each = |row: &[f32]| {
        // Logits that are not finite are refused, as in sampling.
        fault = fault.take().or_else(|| sample::check_logits(row).err());
        if fault.is_some() {
            return;
        }
        if is_file {
            rows.extend_from_slice(row);
        } else if arguments.json {
            output::print(&json.next(row));
        } else {
            rows.clear();
            rows.extend_from_slice(row);
        }
    };
    if arguments.all {
        session.score(&tokens, &mut each).map_err(|error| error.to_string())?;
    } else {
        each(session.feed(&tokens).map_err(|error| error.to_string())?);
    }
    if let Some(fault) = fault {
        return Err(opened.in_model(fault));
    }
    if let Some(path) = &arguments.output {
        let written = files::write(path, npy::MAGIC, &npy::array(&shape, &rows));
        written.map_err(|error| error.to_string())?;
    }
    if arguments.json {
        rows.chunks(n_vocab).for_each(|row| output::print(&json.next(row)));
        output::print(JsonRows::END);
    } else if !is_file {
        output::print(&most_likely(&rows, tokenizer.as_ref()));
    }
    Ok(())
}

/// A JSON object with `shape` and `logits` in row-major order, each number as short as it parses back the same. It is
/// printed row by row, so that not all of it is in memory.
struct JsonRows<'a> {
    shape: &'a [usize],
    is_started: bool,
}

impl JsonRows<'_> {
    /// Follows the last row.
    const END: &'static str = "]}\n";

    /// The text of another row, and of the start of the object before the first.
    fn next(&mut self, row: &[f32]) -> String {
        let number =
            |number: &f32| if number.is_finite() { format!("{number:?}") } else { "null".to_owned() };
        let numbers: Vec<String> = row.iter().map(number).collect();
        let is_started = mem::replace(&mut self.is_started, true);
        let before = if is_started {
            ", ".to_owned()
        } else {
            format!("{{\"shape\": {:?}, \"logits\": [", self.shape)
        };
        format!("{before}{}", numbers.join(", "))
    }
}

/// A table of the most likely tokens.
fn most_likely(logits: &[f32], tokenizer: Option<&Tokenizer>) -> String {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b)));
    let row = |token: &usize| {
        let text = tokenizer.map_or_else(String::new, |tokenizer| tokenizer.decode(&[*token as u32], false));
        vec![token.to_string(), format!("{:.4}", logits[*token]), format!("{text:?}")]
    };
    let heads = ["token", "logit", "text"].map(str::to_owned).to_vec();
    let rows: Vec<Vec<String>> = [heads].into_iter().chain(order.iter().take(N_SHOWN).map(row)).collect();
    table("rrl", "  ", &rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_json_read_back_the_same() {
        let mut json = JsonRows { shape: &[2, 2], is_started: false };
        let text =
            [&json.next(&[0.1, -3e-20]), &json.next(&[f32::NEG_INFINITY, 2.0]), JsonRows::END].concat();
        let parsed: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(parsed["shape"], serde_json::json!([2, 2]));
        assert_eq!(parsed["logits"][0].as_f64().map(|x| x as f32), Some(0.1));
        assert_eq!(parsed["logits"][1].as_f64().map(|x| x as f32), Some(-3e-20));
        assert!(parsed["logits"][2].is_null());
        assert_eq!(parsed["logits"][3].as_f64(), Some(2.0));
    }
}
