//! `fusebox bench`: how many tokens a second a model takes and gives.
//!
//! In: a model, lengths, depths and numbers of threads. Out: a rate for every repetition of every test, as a table, as
//! JSON or as comma-separated values.
//! `prefill` takes tokens at once, at the start and behind each depth; `decode` takes them one by one behind each.
//! A warm-up goes before. The tokens are made up: what they are makes no difference to the time.

use std::fmt::Write as _;
use std::time::Instant;

use clap::{Args, ValueEnum};
use fusebox_models::layers::embed::Scored;
use fusebox_runtime::session::Session;
use serde_json::json;

use crate::opening::{Opened, Which, n_threads};
use crate::output::{note, print, table};
use crate::progress::Progress;

/// The most repetitions of a test.
const MOST_REPEATS: usize = 1000;
/// How many tokens one by one warm up.
const N_WARM: usize = 4;

/// What to measure.
#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    which: Which,
    /// Tokens to take at once; 0 for none.
    #[arg(short, long, value_name = "N", default_value_t = 512)]
    prefill: usize,
    /// Tokens to take one by one; 0 for none.
    #[arg(short = 'n', long, value_name = "N", default_value_t = 128)]
    decode: usize,
    /// How many tokens the text has before.
    #[arg(short, long, value_name = "LIST", value_delimiter = ',', default_value = "0")]
    depths: Vec<usize>,
    /// Threads to run on [default: as many as the machine runs at once].
    #[arg(short, long, value_name = "LIST", value_delimiter = ',')]
    threads: Vec<usize>,
    /// How many tokens the text may have [default: the model's, at most 4096, but as many as are needed].
    #[arg(short, long, value_name = "N")]
    context: Option<usize>,
    /// How many times each test is measured.
    #[arg(short, long, value_name = "N", default_value_t = 5)]
    repeats: usize,
    /// The form of the answer.
    #[arg(short, long, value_name = "FORM", default_value = "md")]
    output: Form,
}

/// A form of the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Form {
    /// A table.
    Md,
    /// An array of objects.
    Json,
    /// Comma-separated values.
    Csv,
}

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Tokens are taken at once.
    Prefill,
    /// Tokens are taken one by one.
    Decode,
}

/// A test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Test {
    kind: Kind,
    n_tokens: usize,
    depth: usize,
}

/// A test and what came of it.
struct Measured {
    test: Test,
    n_threads: usize,
    /// Tokens a second, for every repetition.
    rates: Vec<f64>,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Prefill => "prefill",
            Self::Decode => "decode",
        }
    }
}

/// Measures.
pub(crate) fn run(arguments: &Arguments) -> Result<(), String> {
    let tests = tests(arguments)?;
    let asked = arguments.threads.iter().map(|asked| n_threads(Some(*asked)));
    let mut threads = asked.collect::<Result<Vec<usize>, String>>()?;
    if threads.is_empty() {
        threads.push(n_threads(None)?);
    }
    let mut opened = arguments.which.open(&mut Progress::new(1))?;
    let needed = tests.iter().map(|test| test.depth.saturating_add(test.n_tokens)).max().unwrap_or(0);
    let most = match arguments.context {
        None => opened.model.config.context,
        asked @ Some(_) => opened.context(asked)?,
    };
    if needed > most {
        return Err(format!("the longest test has {needed} tokens; at most {most} are possible"));
    }
    let context = opened.context(arguments.context)?.max(needed);
    let mut all = Vec::new();
    for n_threads in threads {
        all.extend(measure(&mut opened, &tests, n_threads, context, arguments.repeats)?);
    }
    print(&match arguments.output {
        Form::Md => as_table(&all),
        Form::Json => as_json(&all),
        Form::Csv => as_csv(&all),
    });
    Ok(())
}

/// The tests that are asked for: prefill at the start and at each depth, decoding at each depth.
fn tests(arguments: &Arguments) -> Result<Vec<Test>, String> {
    let Arguments { prefill, decode, depths, repeats, .. } = arguments;
    if !(1..=MOST_REPEATS).contains(repeats) {
        return Err(format!("--repeats is {repeats}; 1 to {MOST_REPEATS} is possible"));
    }
    let test = |kind, n_tokens: usize| move |depth: &usize| Test { kind, n_tokens, depth: *depth };
    let starts = Some(&0).filter(|start| !depths.contains(start)).into_iter().chain(depths);
    let mut tests: Vec<Test> = starts.map(test(Kind::Prefill, *prefill)).collect();
    tests.extend(depths.iter().map(test(Kind::Decode, *decode)));
    tests.retain(|test| test.n_tokens > 0);
    if tests.is_empty() {
        return Err("-p and -n are 0; at least one token is needed".to_owned());
    }
    Ok(tests)
}

fn measure(
    opened: &mut Opened,
    tests: &[Test],
    n_threads: usize,
    context: usize,
    n_repeats: usize,
) -> Result<Vec<Measured>, String> {
    let mut progress = Progress::new(tests.len() + 1);
    progress.begin("compiling");
    let mut session = opened.session(n_threads, context, Scored::Last)?;
    let mut measured = Vec::new();
    for test in tests {
        progress.begin(&format!("{} of {} behind {}", test.kind.name(), test.n_tokens, test.depth));
        let warm = match test.kind {
            Kind::Prefill => *test,
            Kind::Decode => Test { n_tokens: test.n_tokens.min(N_WARM), ..*test },
        };
        once(&mut session, warm)?;
        let rates = (0..n_repeats).map(|_| once(&mut session, *test));
        measured.push(Measured { test: *test, n_threads, rates: rates.collect::<Result<_, _>>()? });
    }
    drop(progress);
    note(&format!("measured on {}", session.device()));
    Ok(measured)
}

/// Tokens a second of a test done once.
fn once(session: &mut Session, test: Test) -> Result<f64, String> {
    let fed = |session: &mut Session, tokens: &[u32]| {
        session.feed(tokens).map(|_| ()).map_err(|error| error.to_string())
    };
    let token = |position: usize, n: usize| (position.wrapping_mul(7919).wrapping_add(13) % n) as u32;
    let n_vocab = session.n_vocab();
    let made_up = |from: usize, to: usize| -> Vec<u32> { (from..to).map(|at| token(at, n_vocab)).collect() };
    session.truncate(test.depth);
    if session.position() < test.depth {
        let missing = made_up(session.position(), test.depth);
        fed(session, &missing)?;
    }
    let tokens = made_up(test.depth, test.depth + test.n_tokens);
    let start = Instant::now();
    match test.kind {
        Kind::Prefill => fed(session, &tokens)?,
        Kind::Decode => tokens.iter().try_for_each(|token| fed(session, &[*token]))?,
    }
    Ok(test.n_tokens as f64 / start.elapsed().as_secs_f64().max(1e-9))
}

/// The mean, and how far the rates are from it.
fn spread(rates: &[f64]) -> (f64, f64) {
    let mean = rates.iter().sum::<f64>() / rates.len() as f64;
    let square = rates.iter().map(|rate| (rate - mean).powi(2)).sum::<f64>();
    (mean, (square / (rates.len().max(2) - 1) as f64).sqrt())
}

fn as_table(all: &[Measured]) -> String {
    let heads = ["test", "tokens", "depth", "threads", "tok/s", "±"].map(str::to_owned);
    let row = |Measured { test, n_threads, rates }: &Measured| {
        let (mean, deviation) = spread(rates);
        [
            test.kind.name().to_owned(),
            test.n_tokens.to_string(),
            test.depth.to_string(),
            n_threads.to_string(),
            format!("{mean:.1}"),
            format!("{deviation:.1}"),
        ]
    };
    let rule = ["---", "---:", "---:", "---:", "---:", "---:"].map(str::to_owned);
    let rows: Vec<Vec<String>> =
        [heads, rule].into_iter().chain(all.iter().map(row)).map(Vec::from).collect();
    let barred = |line: &str| format!("| {line} |\n");
    table("lrrrrr", " | ", &rows).lines().map(barred).collect()
}

fn as_json(all: &[Measured]) -> String {
    let object = |Measured { test, n_threads, rates }: &Measured| {
        json!({
            "test": test.kind.name(),
            "tokens": test.n_tokens,
            "depth": test.depth,
            "threads": n_threads,
            "tok_s": rates,
        })
    };
    format!("{:#}\n", json!(all.iter().map(object).collect::<Vec<_>>()))
}

fn as_csv(all: &[Measured]) -> String {
    let mut text = "test,tokens,depth,threads,repeat,tok_s\n".to_owned();
    for Measured { test, n_threads, rates } in all {
        for (repeat, rate) in rates.iter().enumerate() {
            let Test { kind, n_tokens, depth } = test;
            let _ = writeln!(text, "{},{n_tokens},{depth},{n_threads},{repeat},{rate}", kind.name());
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_have_a_mean_and_a_spread() {
        assert_eq!(spread(&[2.0, 4.0]), (3.0, 2f64.sqrt()));
        assert_eq!(spread(&[5.0]), (5.0, 0.0));
    }
}
