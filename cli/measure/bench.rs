//! `fusebox bench`: prefill and decode throughput.
//!
//! In: a model, token counts, depths, batch sizes and thread counts. Out: the tokens per second of every repetition of
//! every test, as a table, JSON or CSV, with the memory traffic per second, its share of the memory bandwidth measured
//! just before and after, and a hash of the most likely tokens: equal hashes mean equal answers.
//! `prefill` runs tokens at once, at depth 0 and at each depth; `decode` runs one step per token at each depth, for one
//! sequence or a batch. `--save` keeps the results as a file, which `saved.rs` writes.
//! Each test is preceded by a warm-up. The token ids are made up: they do not affect the time.

use std::fmt::Write as _;
use std::ops::Range;
use std::path::PathBuf;
use std::time::Instant;

use clap::{Args, ValueEnum};
use fusebox::host;
use fusebox::nn::embed::Scored;
use fusebox::open::context::ContextRange;
use fusebox::open::{Opened, n_threads};
use fusebox::sample;
use fusebox::text::table::table;
use fusebox_compiler::foundation::hash::stable_hash;
use fusebox_runtime::session::classes::Form;
use fusebox_runtime::session::engine::{Engine, Piece, SequenceId};
use serde_json::{Map, Value, json};

use crate::explain::print_kernels::{bytes_of_step, percent};
use crate::flags::given::Given;
use crate::flags::model::{KvPoolFlags, NamedModel};
use crate::measure::perplexity::Estimate;
use crate::measure::saved::{self, Run};
use crate::terminal::output::{note, print};
use crate::terminal::progress::Progress;

/// The largest batch.
const MAX_BATCH: usize = 256;
/// The most repetitions of a test.
const MAX_REPEATS: usize = 1000;
/// Decode steps of a warm-up.
const N_WARM_UP: usize = 4;

/// What to measure.
#[derive(Args)]
#[command(allow_negative_numbers = true)]
pub(crate) struct Arguments {
    #[command(flatten)]
    model: NamedModel,
    /// Prompt tokens per prefill test; a list runs each, 0 skips prefill.
    #[arg(short, long, value_name = "LIST", value_delimiter = ',', default_value = "512")]
    prefill: Vec<usize>,
    /// Tokens per decode test; a list runs each, 0 skips decode.
    #[arg(short = 'n', long, value_name = "LIST", value_delimiter = ',', default_value = "128")]
    decode: Vec<usize>,
    /// Tokens in the KV cache before each test; a list runs every test at each depth.
    #[arg(short, long, value_name = "LIST", value_delimiter = ',', default_value = "0")]
    depths: Vec<usize>,
    /// Batch size: sequences decoded together, one token of each per step; a list runs every decode test with each.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1", alias = "texts")]
    batch: Vec<usize>,
    #[command(flatten)]
    kv_pool: KvPoolFlags,
    /// Threads; a list runs every test with each [default: all hardware threads].
    #[arg(short, long, value_name = "LIST", value_delimiter = ',')]
    threads: Vec<usize>,
    /// Context length in tokens [default: the model's, at most 4096, raised to what the tests need].
    #[arg(short, long, value_name = "N")]
    context: Option<usize>,
    /// Repetitions of each test.
    #[arg(short, long, alias = "repeats", value_name = "N", default_value_t = 5)]
    repetitions: usize,
    /// Output format.
    #[arg(short, long, value_name = "FORMAT", default_value = "md")]
    output: OutputFormat,
    /// Also score a text, as `fusebox perplexity` does; - is standard input.
    #[arg(long, value_name = "FILE")]
    perplexity: Option<PathBuf>,
    /// Write the results as a new JSON file into this folder, with the commit, the flags, the model and the machine.
    #[arg(long, value_name = "DIR")]
    save: Option<PathBuf>,
}

/// An output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum OutputFormat {
    /// A Markdown table of means.
    Md,
    /// A JSON array with an object per test.
    Json,
    /// CSV with a line per repetition.
    Csv,
}

/// What a test runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// All tokens at once.
    Prefill,
    /// One decode step per token.
    Decode,
}

/// One test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Test {
    kind: Kind,
    /// Per sequence.
    n_tokens: usize,
    depth: usize,
    batch: usize,
}

/// A test and its results.
struct Measured {
    subject: Subject,
    test: Test,
    n_threads: usize,
    /// Bytes of memory traffic per repetition.
    bytes: f64,
    /// Memory bandwidth in bytes per second, the mean of before and after; not measured on a GPU.
    bandwidth: Option<f64>,
    repetitions: Vec<Repetition>,
}

/// What every record says about the measured model and device.
#[derive(Clone)]
struct Subject {
    model: String,
    device: String,
    kv_type: String,
}

/// One repetition of a test.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Repetition {
    seconds: f64,
    /// Of the most likely token after each step.
    hash: u64,
}

impl Measured {
    /// Tokens per second, of the whole batch.
    fn rate(&self, repeat: &Repetition) -> f64 {
        (self.test.n_tokens * self.test.batch) as f64 / repeat.seconds
    }

    /// Memory traffic in bytes per second.
    fn traffic(&self, repeat: &Repetition) -> f64 {
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

/// Runs the benchmark.
pub(crate) fn run(arguments: &Arguments) -> Result<(), String> {
    let tests = tests(arguments)?;
    if arguments.perplexity.is_some() && arguments.output == OutputFormat::Csv {
        return Err("-o csv has no column for a perplexity, expected -o md or -o json".to_owned());
    }
    if let Some(folder) = &arguments.save {
        Given::new("--save", folder).make_folder()?;
    }
    if let Some(path) = &arguments.perplexity {
        Given::new("--perplexity", path).check_text()?;
    }
    let threads = arguments.threads.iter().map(|n| n_threads(Some(*n)));
    let mut threads = threads.collect::<Result<Vec<usize>, String>>()?;
    if threads.is_empty() {
        threads.push(n_threads(None)?);
    }
    let is_quiet = arguments.output != OutputFormat::Md;
    let mut opened = arguments.model.open(&mut Progress::new(1), is_quiet)?;
    let needed = tests.iter().map(|test| test.depth.saturating_add(test.n_tokens)).max().unwrap_or(0);
    opened.kv_pool = arguments.kv_pool.pool();
    let context = opened.context(arguments.context)?;
    let max = arguments.context.unwrap_or(opened.model.config.context);
    let fits = opened.limit(max).check("the longest test has", needed);
    fits.map_err(|error| opened.in_model(error))?;
    let context = context.no_less_than(needed);
    let mut all = Vec::new();
    for n_threads in &threads {
        all.extend(measure(&mut opened, &tests, *n_threads, context, arguments.repetitions)?);
    }
    let score = |path: &PathBuf| Estimate::of_file(&mut opened, path, threads[0]);
    let estimate = arguments.perplexity.as_ref().map(score).transpose()?;
    print(&match arguments.output {
        OutputFormat::Md => {
            let score = estimate.map_or_else(String::new, |own| format!("\nperplexity {}\n", own.to_text()));
            format!("{}{score}", to_table(&all))
        }
        OutputFormat::Json => format!("{:#}\n", json!(to_json(&all, estimate))),
        OutputFormat::Csv => to_csv(&all),
    });
    if let Some(folder) = &arguments.save {
        let device = all.first().map_or_else(String::new, |own| own.subject.device.clone());
        let run = Run { opened: &opened, device, flags: arguments.to_json(&threads, context) };
        let tests = to_json(&all, estimate).into();
        let path = saved::save(folder, &run, Map::from_iter([("tests".to_owned(), tests)]))?;
        note(&format!("saved as {}", path.display()));
    }
    Ok(())
}

impl Arguments {
    /// The values of all flags.
    fn to_json(&self, threads: &[usize], context: ContextRange) -> Value {
        let Self { prefill, decode, depths, batch, repetitions, .. } = self;
        let mut flags = json!({
            "prefill": prefill,
            "decode": decode,
            "depths": depths,
            "batch": batch,
            "threads": threads,
            "context": context.max,
            "repetitions": repetitions,
        });
        for (key, value) in self.model.to_json() {
            flags[key] = value;
        }
        flags
    }
}

/// The tests: prefill at depth 0 and at each depth, decode at each depth.
fn tests(arguments: &Arguments) -> Result<Vec<Test>, String> {
    let Arguments { prefill, decode, depths, repetitions, batch, .. } = arguments;
    if let Some(wrong) = batch.iter().find(|batch| !(1..=MAX_BATCH).contains(*batch)) {
        return Err(format!("--batch is {wrong}, expected 1 to {MAX_BATCH}"));
    }
    if !(1..=MAX_REPEATS).contains(repetitions) {
        return Err(format!("--repetitions is {repetitions}, expected 1 to {MAX_REPEATS}"));
    }
    let test = |kind, n_tokens: usize, batch: usize| {
        move |depth: &usize| Test { kind, n_tokens, depth: *depth, batch }
    };
    let starts = Some(&0).filter(|start| !depths.contains(start)).into_iter().chain(depths);
    let at_starts = |n_tokens: &usize| starts.clone().map(test(Kind::Prefill, *n_tokens, 1));
    let mut tests: Vec<Test> = prefill.iter().flat_map(at_starts).collect();
    for n_tokens in decode {
        tests.extend(batch.iter().flat_map(|batch| depths.iter().map(test(Kind::Decode, *n_tokens, *batch))));
    }
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
    context: ContextRange,
    n_repeats: usize,
) -> Result<Vec<Measured>, String> {
    let mut progress = Progress::new(tests.len() + 1);
    progress.begin("compiling");
    let batch = tests.iter().map(|test| test.batch).max().unwrap_or(1);
    let mut engine = opened.engine(n_threads, context, Scored::TopK(1), batch)?;
    let sequences: Vec<SequenceId> = (0..batch).map(|_| engine.open()).collect();
    let subject = Subject {
        model: opened
            .model
            .checkpoint()
            .files()
            .next()
            .map_or_else(String::new, |(path, _)| path.display().to_string()),
        device: engine.device(),
        kv_type: opened.kv_type.to_string(),
    };
    let mut measured = Vec::new();
    let mut before = host::memory_bandwidth(n_threads, &opened.target());
    for test in tests {
        progress.begin(&format!("{} of {} tokens at depth {}", test.kind.name(), test.n_tokens, test.depth));
        let warm = match test.kind {
            Kind::Prefill => *test,
            Kind::Decode => Test { n_tokens: test.n_tokens.min(N_WARM_UP), ..*test },
        };
        let mut run = |test| run_once(&mut engine, &sequences, test).map_err(|error| opened.in_model(error));
        run(warm)?;
        let repetitions = (0..n_repeats).map(|_| run(*test)).collect::<Result<_, _>>()?;
        let after = host::memory_bandwidth(n_threads, &opened.target());
        let bandwidth = before.zip(after).map(|(before, after)| f64::midpoint(before, after));
        let bytes = bytes_of(&mut engine, *test)?;
        measured.push(Measured {
            subject: subject.clone(),
            test: *test,
            n_threads,
            bytes,
            bandwidth,
            repetitions,
        });
        before = after;
    }
    drop(progress);
    note(&format!("measured on {}", subject.device));
    Ok(measured)
}

/// Runs a test once. The programs find the most likely token themselves, inside the timed step.
fn run_once(engine: &mut Engine, sequences: &[SequenceId], test: Test) -> Result<Repetition, String> {
    let Test { kind, n_tokens, depth, batch } = test;
    let sequences = &sequences[..batch];
    for sequence in sequences {
        let len = |engine: &Engine| engine.len(*sequence).map_err(|error| error.to_string());
        let is_cut = depth < len(engine)? && engine.is_forward_only();
        engine.truncate(*sequence, if is_cut { 0 } else { depth }).map_err(|error| error.to_string())?;
        let len = len(engine)?;
        if len < depth {
            step(engine, &[*sequence], &fake_tokens(engine, len..depth))?;
        }
    }
    let tokens = fake_tokens(engine, depth..depth + n_tokens);
    let n_at_once = if kind == Kind::Prefill { tokens.len() } else { 1 };
    let (mut seconds, mut likeliest) = (0.0, Vec::new());
    for tokens in tokens.chunks(n_at_once) {
        let start = Instant::now();
        step(engine, sequences, tokens)?;
        seconds += start.elapsed().as_secs_f64();
        for sequence in sequences {
            let logits = engine.logits(*sequence).map_err(|error| error.to_string())?;
            sample::check_logits(logits).map_err(|error| error.to_string())?;
        }
        let best = engine.best(sequences[0]).map_err(|error| error.to_string())?;
        likeliest.extend(best.and_then(|best| best.last()).map(|token| *token as usize));
    }
    Ok(Repetition { seconds: seconds.max(1e-9), hash: stable_hash(&likeliest) })
}

/// Made-up token ids for a range of positions.
fn fake_tokens(engine: &Engine, positions: Range<usize>) -> Vec<u32> {
    let n_vocab = engine.limits().n_vocab;
    let token = |position: usize| (position.wrapping_mul(7919).wrapping_add(13) % n_vocab) as u32;
    positions.map(token).collect()
}

/// Extends every sequence by the same tokens.
fn step(engine: &mut Engine, sequences: &[SequenceId], tokens: &[u32]) -> Result<(), String> {
    let piece = |sequence: &SequenceId| Piece::of(*sequence, tokens);
    engine.step(&sequences.iter().map(piece).collect::<Vec<_>>()).map_err(|error| error.to_string())
}

/// Bytes of memory traffic of a test; for decode, those of the middle step times the number of steps.
fn bytes_of(engine: &mut Engine, test: Test) -> Result<f64, String> {
    let Test { kind, n_tokens, depth, batch } = test;
    let page_size = engine.limits().page_rows;
    if kind == Kind::Decode {
        let middle = depth + n_tokens / 2;
        let form = if batch > 1 { Form::Batch } else { Form::Run };
        let plan = engine.plan_of(form, batch).map_err(|error| error.to_string())?;
        return Ok(n_tokens as f64 * bytes_of_step(plan, page_size, middle..middle + batch));
    }
    let (mut position, mut bytes) = (depth, 0.0);
    for n_now in engine.pieces(n_tokens) {
        let plan = engine.plan_of(Form::Run, n_now).map_err(|error| error.to_string())?;
        bytes += bytes_of_step(plan, page_size, position..position + n_now);
        position += n_now;
    }
    Ok(bytes)
}

/// Mean and standard deviation.
fn mean_and_deviation(rates: &[f64]) -> (f64, f64) {
    let mean = rates.iter().sum::<f64>() / rates.len() as f64;
    let square = rates.iter().map(|rate| (rate - mean).powi(2)).sum::<f64>();
    (mean, (square / (rates.len().max(2) - 1) as f64).sqrt())
}

fn to_table(all: &[Measured]) -> String {
    let heads =
        ["test", "tokens", "depth", "batch", "threads", "tok/s", "±", "ms", "GB/s", "of peak", "hash"];
    let row = |measured: &Measured| {
        let Measured { test, n_threads, bandwidth, repetitions, .. } = measured;
        let (mean, deviation) =
            mean_and_deviation(&repetitions.iter().map(|own| measured.rate(own)).collect::<Vec<_>>());
        let (traffic, _) =
            mean_and_deviation(&repetitions.iter().map(|own| measured.traffic(own)).collect::<Vec<_>>());
        let (seconds, _) = mean_and_deviation(&repetitions.iter().map(|own| own.seconds).collect::<Vec<_>>());
        let is_same = repetitions.iter().all(|own| own.hash == repetitions[0].hash);
        vec![
            test.kind.name().to_owned(),
            test.n_tokens.to_string(),
            test.depth.to_string(),
            test.batch.to_string(),
            n_threads.to_string(),
            format!("{mean:.1}"),
            if repetitions.len() > 1 { format!("{deviation:.1}") } else { "-".to_owned() },
            format!("{:.1}", 1e3 * seconds),
            format!("{:.1}", traffic / 1e9),
            percent(traffic, *bandwidth),
            if is_same { format!("{:016x}", repetitions[0].hash) } else { "differs".to_owned() },
        ]
    };
    let rule = (0..heads.len()).map(|column| if column == 0 { "---" } else { "---:" }.to_owned()).collect();
    let heads = heads.map(str::to_owned).to_vec();
    let rows: Vec<Vec<String>> = [heads, rule].into_iter().chain(all.iter().map(row)).collect();
    let barred = |line: &str| format!("| {line} |\n");
    table("lrrrrrrrrrr", " | ", &rows).lines().map(barred).collect()
}

fn to_json(all: &[Measured], estimate: Option<Estimate>) -> Vec<Value> {
    let object = |measured: &Measured| {
        let Measured { subject, test, n_threads, bandwidth, repetitions, .. } = measured;
        let each = |value: &dyn Fn(&Repetition) -> f64| repetitions.iter().map(value).collect::<Vec<f64>>();
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "commit": saved::commit(),
            "model": subject.model,
            "device": subject.device,
            "kv_type": subject.kv_type,
            "test": test.kind.name(),
            "tokens": test.n_tokens,
            "depth": test.depth,
            "batch": test.batch,
            "texts": test.batch,
            "threads": n_threads,
            "tok_s": each(&|own| measured.rate(own)),
            "ms": each(&|own| host::milliseconds(own.seconds)),
            "gb_s": each(&|own| measured.traffic(own) / 1e9),
            "share": bandwidth.map(|peak| each(&|own| host::share(measured.traffic(own), peak))),
            "bandwidth_gb_s": bandwidth.map(|peak| peak / 1e9),
            "hash": repetitions.iter().map(|own| format!("{:016x}", own.hash)).collect::<Vec<_>>(),
        })
    };
    let score = estimate.map(|own| {
        let mut object = own.to_json();
        object["test"] = "perplexity".into();
        object
    });
    all.iter().map(object).chain(score).collect()
}

fn to_csv(all: &[Measured]) -> String {
    let mut text = "version,model,device,kv_type,test,tokens,depth,batch,threads,repeat,".to_owned();
    text += "tok_s,ms,gb_s,share,bandwidth_gb_s,hash\n";
    for measured in all {
        let Measured {
            subject: Subject { model, device, kv_type },
            test,
            n_threads,
            bandwidth,
            repetitions,
            ..
        } = measured;
        let Test { kind, n_tokens, depth, batch } = test;
        let quoted = |text: &str| format!("\"{}\"", text.replace('"', "\"\""));
        let about = format!("{},{},{},{kv_type}", env!("CARGO_PKG_VERSION"), quoted(model), quoted(device));
        for (repeat, own) in repetitions.iter().enumerate() {
            let (rate, ms, traffic) =
                (measured.rate(own), host::milliseconds(own.seconds), measured.traffic(own));
            let rest = format!("{n_threads},{repeat},{rate},{ms}");
            let with_peak = |number: &dyn Fn(f64) -> f64| {
                bandwidth.map_or_else(String::new, |peak| number(peak).to_string())
            };
            let share = with_peak(&|peak| host::share(traffic, peak));
            let (gb_s, peak) = (traffic / 1e9, with_peak(&|peak| peak / 1e9));
            let _ = writeln!(
                text,
                "{about},{},{n_tokens},{depth},{batch},{rest},{gb_s},{share},{peak},{:016x}",
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
        assert_eq!(mean_and_deviation(&[2.0, 4.0]), (3.0, 2f64.sqrt()));
        assert_eq!(mean_and_deviation(&[5.0]), (5.0, 0.0));
    }
}
