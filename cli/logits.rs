//! `fusebox logits`: the scores of what may follow a text.
//!
//! In: a model and a text, as words or as tokens. Out: the scores after the last token, or with `--all` after each, as
//! a table of the likeliest, as JSON, or as a `.npy` file.

use std::mem;
use std::path::PathBuf;

use clap::Args;
use fusebox_compiler::foundation::table::table;
use fusebox_models::layers::embed::Scored;
use fusebox_models::sample;
use fusebox_models::tokenizer::Tokenizer;
use fusebox_runtime::files;

use crate::asked::{Asked, Prompt, words};
use crate::opening::{Which, n_threads};
use crate::progress::Progress;
use crate::{npy, output};

/// How many tokens a table has.
const N_SHOWN: usize = 10;

/// What to score.
#[derive(Args)]
#[command(allow_negative_numbers = true)]
pub(crate) struct Arguments {
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    asked: Asked,
    /// Threads to run on [default: as many as the machine runs at once].
    #[arg(short, long, value_name = "N")]
    threads: Option<usize>,
    /// After every token, not only after the last.
    #[arg(long)]
    all: bool,
    /// Write them to a `.npy` file.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// One JSON object instead of a table.
    #[arg(long)]
    json: bool,
}

/// Scores.
pub(crate) fn run(arguments: &Arguments) -> Result<(), String> {
    let Some(prompt) = arguments.asked.prompt()? else {
        return Err("a text is needed: -p TEXT, -f FILE or --tokens 1,2,3".to_owned());
    };
    if arguments.all && arguments.output.is_none() && !arguments.json {
        return Err("--all needs a place for all scores: -o FILE or --json".to_owned());
    }
    let n_threads = n_threads(arguments.threads)?;
    let mut progress = Progress::new(2);
    let mut opened = arguments.which.open(&mut progress, arguments.json)?;
    let tokenizer = words(opened.model.checkpoint(), matches!(prompt, Prompt::Text(_)))?;
    let room = opened.room(opened.model.config.context);
    let tokens = prompt.tokens("the text", tokenizer.as_ref(), room)?;
    progress.begin("compiling");
    let scored = if arguments.all { Scored::All } else { Scored::Last };
    // Texts of any usual length share a program.
    let context = opened.context(None)?.at_least(tokens.len());
    let mut session = opened.session(n_threads, context, scored)?;
    drop(progress);
    let n_vocab = session.n_vocab();
    let shape = if arguments.all { vec![tokens.len(), n_vocab] } else { vec![n_vocab] };
    let mut told = Told { shape: &shape, is_begun: false };
    // What a file refuses is not printed either, so its numbers are kept until it is written.
    let is_file = arguments.output.is_some();
    let mut rows = Vec::new();
    let mut fault = None;
    let mut each = |row: &[f32]| {
        // What no token can be chosen by is no answer here either.
        fault = fault.take().or_else(|| sample::check_logits(row).err());
        if fault.is_some() {
            return;
        }
        if is_file {
            rows.extend_from_slice(row);
        } else if arguments.json {
            output::print(&told.next(row));
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
        return Err(fault.to_string());
    }
    if let Some(path) = &arguments.output {
        let written = files::write(path, npy::MAGIC, &npy::array(&shape, &rows));
        written.map_err(|error| error.to_string())?;
    }
    if arguments.json {
        rows.chunks(n_vocab).for_each(|row| output::print(&told.next(row)));
        output::print(Told::END);
    } else if !is_file {
        output::print(&likeliest(&rows, tokenizer.as_ref()));
    }
    Ok(())
}

/// An object with the sizes, and the numbers in row-major order, each as short as it reads back the same. It is told
/// row by row, so that not all of it is in memory.
struct Told<'a> {
    shape: &'a [usize],
    is_begun: bool,
}

impl Told<'_> {
    /// What follows the last row.
    const END: &'static str = "]}\n";

    /// The text up to the end of another row.
    fn next(&mut self, row: &[f32]) -> String {
        let number =
            |number: &f32| if number.is_finite() { format!("{number:?}") } else { "null".to_owned() };
        let numbers: Vec<String> = row.iter().map(number).collect();
        let is_begun = mem::replace(&mut self.is_begun, true);
        let before =
            if is_begun { ", ".to_owned() } else { format!("{{\"shape\": {:?}, \"logits\": [", self.shape) };
        format!("{before}{}", numbers.join(", "))
    }
}

/// A table of the likeliest tokens.
fn likeliest(logits: &[f32], tokenizer: Option<&Tokenizer>) -> String {
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
        let mut told = Told { shape: &[2, 2], is_begun: false };
        let text = [&told.next(&[0.1, -3e-20]), &told.next(&[f32::NEG_INFINITY, 2.0]), Told::END].concat();
        let told: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(told["shape"], serde_json::json!([2, 2]));
        assert_eq!(told["logits"][0].as_f64().map(|x| x as f32), Some(0.1));
        assert_eq!(told["logits"][1].as_f64().map(|x| x as f32), Some(-3e-20));
        assert!(told["logits"][2].is_null());
        assert_eq!(told["logits"][3].as_f64(), Some(2.0));
    }
}
