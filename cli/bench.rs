//! `fusebox bench`: how many tokens a second a model takes and gives.
//!
//! In: a model, lengths, depths and numbers of threads. Out: a rate for every repetition of every test, as a table, as
//! JSON or as comma-separated values. Beside each stand the bytes that were moved in a second, their share of what
//! memory gave just before and after, and a hash of the likeliest tokens: equal hashes mean equal answers.
//! `prefill` takes tokens at once, at the start and behind each depth; `decode` takes them one by one behind each, of
//! one text or of several together.
//! A warm-up goes before. The tokens are made up: what they are makes no difference to the time.

use std::fmt::Write as _;
use std::ops::Range;
use std::time::Instant;

use clap::{Args, ValueEnum};
use fusebox_compiler::foundation::hash::stable_hash;
use fusebox_compiler::foundation::table::table;
use fusebox_compiler::schedule::Plan;
use fusebox_models::layers::embed::Scored;
use fusebox_models::sample::{self, Sampler};
use fusebox_runtime::session::Session;
use serde_json::json;

use crate::kernels::{bytes_of_replay, percent};
use crate::machine;
use crate::opening::{Context, Opened, Which, n_threads};
use crate::output::{note, print};
use crate::progress::Progress;

/// The most texts that are gone on with together.
const MOST_TEXTS: usize = 64;
/// The most repetitions of a test.
const MOST_REPEATS: usize = 1000;
/// How many tokens one by one warm up.
const N_WARM: usize = 4;

/// What to measure.
#[derive(Args)]
#[command(allow_negative_numbers = true)]
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
    /// Texts to go on with together, one token of each at a time.
    #[arg(long, value_name = "N", default_value_t = 1)]
    texts: usize,
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
    /// Of each text.
    n_tokens: usize,
    depth: usize,
    n_texts: usize,
}

/// A test and what came of it.
struct Measured {
    subject: Subject,
    test: Test,
    n_threads: usize,
    /// Bytes that a repetition moves.
    bytes: f64,
    /// Bytes a second that memory gave, before and after; that of a GPU is not measured.
    bandwidth: Option<f64>,
    repeats: Vec<Repeat>,
}

/// What was measured on what, as every record of it says.
#[derive(Clone)]
struct Subject {
    model: String,
    device: String,
    kv_type: String,
}

/// A test, done once.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Repeat {
    seconds: f64,
    /// Of the tokens that were likeliest behind each replay.
    hash: u64,
}

impl Measured {
    /// Tokens a second.
    fn rate(&self, repeat: &Repeat) -> f64 {
        (self.test.n_tokens * self.test.n_texts) as f64 / repeat.seconds
    }

    /// Bytes a second.
    fn moved(&self, repeat: &Repeat) -> f64 {
        self.bytes / repeat.seconds
    }
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
    let is_quiet = arguments.output != Form::Md;
    let mut opened = arguments.which.open(&mut Progress::new(1), is_quiet)?;
    let needed = tests.iter().map(|test| test.depth.saturating_add(test.n_tokens)).max().unwrap_or(0);
    let context = opened.context(arguments.context)?;
    let most = arguments.context.unwrap_or(opened.model.config.context);
    opened.room(most).check("the longest test has", needed)?;
    let context = context.at_least(needed);
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
    let Arguments { prefill, decode, depths, repeats, texts, .. } = arguments;
    if !(1..=MOST_TEXTS).contains(texts) {
        return Err(format!("--texts is {texts}; 1 to {MOST_TEXTS} is possible"));
    }
    if !(1..=MOST_REPEATS).contains(repeats) {
        return Err(format!("--repeats is {repeats}; 1 to {MOST_REPEATS} is possible"));
    }
    let test = |kind, n_tokens: usize, n_texts: usize| {
        move |depth: &usize| Test { kind, n_tokens, depth: *depth, n_texts }
    };
    let starts = Some(&0).filter(|start| !depths.contains(start)).into_iter().chain(depths);
    let mut tests: Vec<Test> = starts.map(test(Kind::Prefill, *prefill, 1)).collect();
    tests.extend(depths.iter().map(test(Kind::Decode, *decode, *texts)));
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
    context: Context,
    n_repeats: usize,
) -> Result<Vec<Measured>, String> {
    let mut progress = Progress::new(tests.len() + 1);
    progress.begin("compiling");
    let n_texts = tests.iter().map(|test| test.n_texts).max().unwrap_or(1);
    let mut session = opened.session_of_texts(n_threads, context, Scored::Best(1), n_texts)?;
    let subject = Subject {
        model: opened
            .model
            .checkpoint()
            .files()
            .next()
            .map_or_else(String::new, |(path, _)| path.display().to_string()),
        device: session.device(),
        kv_type: opened.kv_type.to_string(),
    };
    let mut measured = Vec::new();
    let mut before = machine::bandwidth(n_threads, &opened.target());
    for test in tests {
        progress.begin(&format!("{} of {} behind {}", test.kind.name(), test.n_tokens, test.depth));
        let warm = match test.kind {
            Kind::Prefill => *test,
            Kind::Decode => Test { n_tokens: test.n_tokens.min(N_WARM), ..*test },
        };
        once(&mut session, warm)?;
        let repeats = (0..n_repeats).map(|_| once(&mut session, *test)).collect::<Result<_, _>>()?;
        let after = machine::bandwidth(n_threads, &opened.target());
        let bandwidth = before.zip(after).map(|(before, after)| f64::midpoint(before, after));
        let bytes = bytes_of(&session, *test);
        measured.push(Measured {
            subject: subject.clone(),
            test: *test,
            n_threads,
            bytes,
            bandwidth,
            repeats,
        });
        before = after;
    }
    drop(progress);
    note(&format!("measured on {}", subject.device));
    Ok(measured)
}

/// Does a test once. With one text, every replay finds the likeliest token as well; else nobody is timed who looks.
fn once(session: &mut Session, test: Test) -> Result<Repeat, String> {
    let Test { kind, n_tokens, depth, n_texts } = test;
    for text in 0..n_texts {
        session.turn_to(text).map_err(|error| error.to_string())?;
        session.truncate(depth);
        if session.position() < depth {
            let missing = made_up(session, session.position()..depth);
            fed(session, &missing)?;
        }
    }
    let tokens = made_up(session, depth..depth + n_tokens);
    let n_at_once = if kind == Kind::Prefill { tokens.len() } else { 1 };
    let mut sampler =
        Sampler::new(sample::Settings::default(), session.n_vocab()).map_err(|error| error.to_string())?;
    let (mut seconds, mut likeliest) = (0.0, Vec::new());
    let mut each = vec![None; session.n_texts()];
    for tokens in tokens.chunks(n_at_once) {
        each.fill(Some(tokens[0]));
        let start = Instant::now();
        match kind {
            Kind::Prefill => fed(session, tokens)?,
            Kind::Decode => session.feed_each(&each).map_err(|error| error.to_string())?,
        }
        seconds += start.elapsed().as_secs_f64();
        let token = match session.best() {
            Some(ids) => sampler.next_of(ids, session.logits()),
            None => sampler.next(session.logits(), &[]),
        };
        likeliest.push(token.map_err(|error| error.to_string())? as usize);
    }
    Ok(Repeat { seconds: seconds.max(1e-9), hash: stable_hash(&likeliest) })
}

/// Tokens of no meaning for some positions.
fn made_up(session: &Session, positions: Range<usize>) -> Vec<u32> {
    let token = |position: usize| (position.wrapping_mul(7919).wrapping_add(13) % session.n_vocab()) as u32;
    positions.map(token).collect()
}

fn fed(session: &mut Session, tokens: &[u32]) -> Result<(), String> {
    session.feed(tokens).map(|_| ()).map_err(|error| error.to_string())
}

/// Bytes that a test moves; one by one, as many as the token in the middle.
fn bytes_of(session: &Session, test: Test) -> f64 {
    if test.kind == Kind::Decode {
        let plan = session.plan_of_each();
        return test.n_tokens as f64 * bytes_of_replay(plan, test.depth + test.n_tokens / 2, 1);
    }
    let pieces = session.pieces(test.n_tokens);
    let mut position = test.depth;
    let mut of_piece = |(plan, n_tokens): (&Plan, usize)| {
        position += n_tokens;
        bytes_of_replay(plan, position - n_tokens, n_tokens)
    };
    pieces.map(&mut of_piece).sum()
}

/// The mean, and how far the rates are from it.
fn spread(rates: &[f64]) -> (f64, f64) {
    let mean = rates.iter().sum::<f64>() / rates.len() as f64;
    let square = rates.iter().map(|rate| (rate - mean).powi(2)).sum::<f64>();
    (mean, (square / (rates.len().max(2) - 1) as f64).sqrt())
}

fn as_table(all: &[Measured]) -> String {
    let heads = ["test", "tokens", "depth", "texts", "threads", "tok/s", "±", "ms", "GB/s", "share", "hash"];
    let row = |measured: &Measured| {
        let Measured { test, n_threads, bandwidth, repeats, .. } = measured;
        let (mean, deviation) = spread(&repeats.iter().map(|own| measured.rate(own)).collect::<Vec<_>>());
        let (moved, _) = spread(&repeats.iter().map(|own| measured.moved(own)).collect::<Vec<_>>());
        let (seconds, _) = spread(&repeats.iter().map(|own| own.seconds).collect::<Vec<_>>());
        let is_same = repeats.iter().all(|own| own.hash == repeats[0].hash);
        vec![
            test.kind.name().to_owned(),
            test.n_tokens.to_string(),
            test.depth.to_string(),
            test.n_texts.to_string(),
            n_threads.to_string(),
            format!("{mean:.1}"),
            if repeats.len() > 1 { format!("{deviation:.1}") } else { "-".to_owned() },
            format!("{:.1}", 1e3 * seconds),
            format!("{:.1}", moved / 1e9),
            percent(moved, *bandwidth),
            if is_same { format!("{:016x}", repeats[0].hash) } else { "differs".to_owned() },
        ]
    };
    let rule = (0..heads.len()).map(|column| if column == 0 { "---" } else { "---:" }.to_owned()).collect();
    let heads = heads.map(str::to_owned).to_vec();
    let rows: Vec<Vec<String>> = [heads, rule].into_iter().chain(all.iter().map(row)).collect();
    let barred = |line: &str| format!("| {line} |\n");
    table("lrrrrrrrrrr", " | ", &rows).lines().map(barred).collect()
}

fn as_json(all: &[Measured]) -> String {
    let object = |measured: &Measured| {
        let Measured { subject, test, n_threads, bandwidth, repeats, .. } = measured;
        let each = |value: &dyn Fn(&Repeat) -> f64| repeats.iter().map(value).collect::<Vec<f64>>();
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "model": subject.model,
            "device": subject.device,
            "kv_type": subject.kv_type,
            "test": test.kind.name(),
            "tokens": test.n_tokens,
            "depth": test.depth,
            "texts": test.n_texts,
            "threads": n_threads,
            "tok_s": each(&|own| measured.rate(own)),
            "ms": each(&|own| machine::milliseconds(own.seconds)),
            "gb_s": each(&|own| measured.moved(own) / 1e9),
            "share": bandwidth.map(|most| each(&|own| machine::share(measured.moved(own), most))),
            "bandwidth_gb_s": bandwidth.map(|most| most / 1e9),
            "hash": repeats.iter().map(|own| format!("{:016x}", own.hash)).collect::<Vec<_>>(),
        })
    };
    format!("{:#}\n", json!(all.iter().map(object).collect::<Vec<_>>()))
}

fn as_csv(all: &[Measured]) -> String {
    let mut text = "version,model,device,kv_type,test,tokens,depth,texts,threads,repeat,".to_owned();
    text += "tok_s,ms,gb_s,share,bandwidth_gb_s,hash\n";
    for measured in all {
        let Measured {
            subject: Subject { model, device, kv_type }, test, n_threads, bandwidth, repeats, ..
        } = measured;
        let Test { kind, n_tokens, depth, n_texts } = test;
        let quoted = |text: &str| format!("\"{}\"", text.replace('"', "\"\""));
        let about = format!("{},{},{},{kv_type}", env!("CARGO_PKG_VERSION"), quoted(model), quoted(device));
        for (repeat, own) in repeats.iter().enumerate() {
            let (rate, ms, moved) =
                (measured.rate(own), machine::milliseconds(own.seconds), measured.moved(own));
            let rest = format!("{n_threads},{repeat},{rate},{ms}");
            let of_most = |number: &dyn Fn(f64) -> f64| {
                bandwidth.map_or_else(String::new, |most| number(most).to_string())
            };
            let share = of_most(&|most| machine::share(moved, most));
            let (gb_s, most) = (moved / 1e9, of_most(&|most| most / 1e9));
            let _ = writeln!(
                text,
                "{about},{},{n_tokens},{depth},{n_texts},{rest},{gb_s},{share},{most},{:016x}",
                kind.name(),
                own.hash
            );
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
