//! `fusebox perplexity`: how well a model predicts a text, and how far it is from another.
//!
//! In: a model and a text, or a file of probabilities. Out: perplexity with its standard error, as llama.cpp's tool
//! prints it; with `--kl` also the KL divergence from the probabilities of a base model, which `--save` wrote.
//! The text is cut into chunks of a context; the second half of each is scored, so that every token has at least half a
//! context before it, and where the model wants it each chunk starts with BOS. Files of probabilities have the form of
//! llama.cpp's: 16 bits a token, relative to the largest logit, and at most 16 below it.

use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::iter;
use std::path::{Path, PathBuf};

use clap::Args;
use fusebox::files;
use fusebox::nn::embed::Scored;
use fusebox::open::{Opened, n_threads};
use fusebox::sample;
use fusebox::tokenizer::Tokenizer;
use fusebox::{Policy, Session};
use serde_json::{Value, json};

use crate::flags::evict::EvictFlags;
use crate::flags::given::Given;
use crate::flags::model::NamedModel;
use crate::flags::prompt::open_tokenizer;
use crate::terminal::output;
use crate::terminal::progress::Progress;

/// The largest text that is read.
const MAX_TEXT_BYTES: usize = 256 << 20;
/// Tokens per chunk, unless `-c` says otherwise.
const CONTEXT: usize = 512;
/// How a file of probabilities begins.
const MAGIC: &[u8] = b"_logits_";
/// The largest distance from the most likely token that is kept.
const DEPTH: f32 = 16.0;
/// Steps of a probability that is kept.
const STEPS: f32 = 65535.0;
/// Tokens of a step behind a prompt, where what is dropped is chosen between steps.
const STEP: usize = 16;
/// Numbers of 16 bits in front of those of the tokens: the step and the least, in 32 bits each.
const N_HEAD: usize = 4;

/// What to score.
#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    model: NamedModel,
    /// The text; - is standard input.
    #[arg(short, long, value_name = "FILE", required_unless_present = "kl")]
    file: Option<PathBuf>,
    /// Tokens per chunk.
    #[arg(short, long, value_name = "N", default_value_t = CONTEXT, alias = "ctx-size")]
    context: usize,
    /// Score only the first N chunks [default: all].
    #[arg(long, value_name = "N")]
    chunks: Option<usize>,
    /// Threads [default: all hardware threads].
    #[arg(short, long, value_name = "N")]
    threads: Option<usize>,
    #[command(flatten)]
    evict: EvictFlags,
    /// Write the probabilities of every scored position to a file, for --kl.
    #[arg(long, value_name = "FILE", conflicts_with = "kl", alias = "save-all-logits")]
    save: Option<PathBuf>,
    /// Compare with the probabilities in a file, which --save or llama.cpp wrote; its text and chunks are used.
    #[arg(long, value_name = "BASE", conflicts_with_all = ["file", "context"], alias = "kl-divergence-base")]
    kl: Option<PathBuf>,
    /// Print one JSON object instead of text.
    #[arg(long)]
    json: bool,
}

/// How a chunk is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reading {
    /// In one go.
    Whole,
    /// Its first half as a prompt, and what follows in short steps.
    Prompt,
}

/// A sum, and that of squares.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    n: usize,
    sum: f64,
    squares: f64,
}

impl Sums {
    fn add(&mut self, x: f64) {
        self.n += 1;
        self.sum += x;
        self.squares += x * x;
    }

    fn mean(self) -> f64 {
        self.sum / self.n.max(1) as f64
    }

    /// The standard error of the mean.
    fn error(self) -> f64 {
        let variance = self.squares / self.n.max(1) as f64 - self.mean() * self.mean();
        if variance > 0.0 && self.n > 1 { (variance / (self.n - 1) as f64).sqrt() } else { 0.0 }
    }
}

/// The perplexity of a text, as other commands show it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Estimate {
    /// Tokens that were scored.
    n_tokens: usize,
    perplexity: f64,
    /// Its standard error.
    error: f64,
}

impl Estimate {
    /// The perplexity of the text in a file, in chunks of the usual length, or of the model's context.
    pub(crate) fn of_file(opened: &mut Opened, path: &Path, n_threads: usize) -> Result<Self, String> {
        let text = text_of("--perplexity", path)?;
        let context = CONTEXT.min(opened.model.config.context);
        let tokenizer = tokenizer_of(opened)?;
        let tokens = tokens_of(&tokenizer, &text, context, "`fusebox perplexity -c` makes them shorter")?;
        let range = opened.context(Some(context))?;
        opened.scores_every = true;
        let mut session = opened.session(n_threads, range, Scored::Last)?;
        let bos = bos_of(&tokenizer)?;
        let (mut own, mut compared) = (Sums::default(), Comparison::default());
        let chunks = tokens.chunks_exact(context);
        let mut progress = Progress::new(chunks.len());
        for chunk in chunks {
            progress.begin("scoring the text");
            let mut scoring = Scoring { own: &mut own, compared: &mut compared, base: None, save: None };
            score_chunk(&mut session, chunk, bos, Reading::Whole, &mut scoring)
                .map_err(|error| opened.in_model(error))?;
        }
        Ok(own.into())
    }

    /// As a line for people.
    pub(crate) fn to_text(self) -> String {
        format!("{:.4} ± {:.4} over {} tokens", self.perplexity, self.error, self.n_tokens)
    }

    /// As an object for machines.
    pub(crate) fn to_json(self) -> Value {
        json!({ "tokens": self.n_tokens, "perplexity": self.perplexity, "perplexity_error": self.error })
    }
}

impl From<Sums> for Estimate {
    fn from(own: Sums) -> Self {
        let perplexity = own.mean().exp();
        Self { n_tokens: own.n, perplexity, error: own.error() * perplexity }
    }
}

/// Everything that is compared with a base.
#[derive(Default)]
struct Comparison {
    base: Sums,
    /// Of the products of both negative log-likelihoods.
    products: f64,
    divergence: Sums,
    /// Of squared differences in the probability of the token that came.
    difference: Sums,
    n_same: usize,
    divergences: Vec<f32>,
}

/// Probabilities of a base model: the head of the file, then a row for each scored position.
struct Base {
    from: BufReader<File>,
    context: usize,
    n_vocab: usize,
    n_chunks: usize,
    tokens: Vec<u32>,
}

/// Scores the text.
pub(crate) fn run(arguments: &Arguments) -> Result<(), String> {
    let n_threads = n_threads(arguments.threads)?;
    let base = arguments.kl.as_deref().map(|path| {
        Given::new("--kl", path).check_file("a file that --save or llama.cpp wrote")?;
        Base::open(path)
    });
    let mut base = base.transpose()?;
    let context = base.as_ref().map_or(arguments.context, |base| base.context);
    if context < 4 {
        return Err(format!("--context is {context}, expected at least 4"));
    }
    let text = arguments.file.as_deref().map(|path| text_of("--file", path)).transpose()?;
    if let Some(path) = &arguments.save {
        Given::new("--save", path).check_target()?;
    }
    let mut progress = Progress::new(2);
    let mut opened = arguments.model.open(&mut progress, arguments.json)?;
    let tokenizer = tokenizer_of(&opened)?;
    let tokens = match &base {
        Some(base) => base.tokens.clone(),
        None => tokens_of(&tokenizer, &text.unwrap_or_default(), context, "-c makes them shorter")?,
    };
    let n_chunks = (tokens.len() / context).min(arguments.chunks.unwrap_or(usize::MAX));
    if n_chunks == 0 {
        return Err("--chunks is 0, expected at least 1".to_owned());
    }
    progress.begin("compiling");
    opened.evict = arguments.evict.evict();
    // After a prompt each head chooses its rows, and goes on with these.
    let chooses = opened.evict.is_some_and(|evict| evict.policy == Policy::SnapKv);
    let reading = if chooses { Reading::Prompt } else { Reading::Whole };
    // A sequence that drops tokens may be longer than the context.
    let most = if opened.evict.is_some() { opened.model.config.context } else { usize::MAX };
    let range = opened.context(Some(context.min(most)))?;
    opened.scores_every = true;
    let mut session = opened.session(n_threads, range, Scored::Last)?;
    drop(progress);
    if let Some(base) = base.as_ref().filter(|base| base.n_vocab != session.n_vocab()) {
        return Err(format!(
            "the base has {} tokens in its vocabulary, the model {}",
            base.n_vocab,
            session.n_vocab()
        ));
    }
    let mut save =
        arguments.save.as_deref().map(|path| Save::begin(path, context, n_chunks, &session, &tokens));
    let mut save = save.take().transpose()?;
    let bos = bos_of(&tokenizer)?;
    let (mut own, mut compared) = (Sums::default(), Comparison::default());
    for chunk in 0..n_chunks {
        let mut scored =
            Scoring { own: &mut own, compared: &mut compared, base: base.as_mut(), save: save.as_mut() };
        let tokens = &tokens[chunk * context..(chunk + 1) * context];
        score_chunk(&mut session, tokens, bos, reading, &mut scored)
            .map_err(|error| opened.in_model(error))?;
        if !arguments.json {
            let _ = output::stream(&format!("[{}]{:.4},", chunk + 1, own.mean().exp()));
        }
    }
    if let Some(save) = save {
        save.finish()?;
    }
    report(arguments, &opened, own, &mut compared, base.is_some());
    Ok(())
}

/// The text in a file, or on standard input.
pub(crate) fn text_of(flag: &str, path: &Path) -> Result<String, String> {
    Given::new(flag, path).text(MAX_TEXT_BYTES)
}

pub(crate) fn tokenizer_of(opened: &Opened) -> Result<Tokenizer, String> {
    let tokenizer = open_tokenizer(opened.model.checkpoint(), true)?;
    tokenizer.ok_or_else(|| "this model has no tokenizer".to_owned())
}

/// The tokens of a text that has at least two chunks; `remedy` says what helps where it has not.
fn tokens_of(tokenizer: &Tokenizer, text: &str, context: usize, remedy: &str) -> Result<Vec<u32>, String> {
    let tokens = tokenizer.encode(text, true).map_err(|error| error.to_string())?;
    if tokens.len() < 2 * context {
        return Err(format!(
            "the text has {} tokens, expected at least {} for two chunks; {remedy}",
            tokens.len(),
            2 * context
        ));
    }
    Ok(tokens)
}

/// Where the scores of a chunk go.
struct Scoring<'s> {
    own: &'s mut Sums,
    compared: &'s mut Comparison,
    base: Option<&'s mut Base>,
    save: Option<&'s mut Save>,
}

/// The token that starts a chunk, for models that want one.
pub(crate) fn bos_of(tokenizer: &Tokenizer) -> Result<Option<u32>, String> {
    let with = tokenizer.encode("a", true).map_err(|error| error.to_string())?;
    let without = tokenizer.encode("a", false).map_err(|error| error.to_string())?;
    Ok(with.first().copied().filter(|first| without.first() != Some(first)))
}

/// Scores the second half of a chunk.
fn score_chunk(
    session: &mut Session,
    tokens: &[u32],
    bos: Option<u32>,
    reading: Reading,
    scoring: &mut Scoring<'_>,
) -> Result<(), String> {
    let first = tokens.len() / 2;
    let mut fed = tokens.to_vec();
    if let Some(bos) = bos {
        fed[0] = bos;
    }
    session.truncate(0).map_err(|error| error.to_string())?;
    let (mut position, mut fault) = (0, None);
    let mut each = |row: &[f32]| {
        if (first..tokens.len() - 1).contains(&position) && fault.is_none() {
            fault = sample::check_logits(row).err().map(|error| error.to_string());
            fault = fault.take().or_else(|| scoring.take(row, tokens[position + 1] as usize).err());
        }
        position += 1;
    };
    let (prompt, step) = match reading {
        Reading::Whole => (fed.len(), fed.len()),
        Reading::Prompt => (first, STEP),
    };
    for part in iter::once(&fed[..prompt]).chain(fed[prompt..].chunks(step)) {
        session.score(part, &mut each).map_err(|error| error.to_string())?;
    }
    fault.map_or(Ok(()), Err)
}

impl Scoring<'_> {
    /// Takes the logits before a token.
    fn take(&mut self, logits: &[f32], token: usize) -> Result<(), String> {
        let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = logits.iter().map(|logit| f64::from(logit - largest).exp()).sum();
        let log_sum = sum.ln();
        let loss = log_sum + f64::from(largest - logits[token]);
        self.own.add(loss);
        if let Some(save) = &mut self.save {
            save.row(logits, largest, log_sum as f32)?;
        }
        if let Some(base) = &mut self.base {
            let row = base.row()?;
            self.compared.add(&row, logits, f64::from(largest) + log_sum, loss, token);
        }
        Ok(())
    }
}

impl Comparison {
    /// Takes the log-probabilities of the base and the logits of the model.
    fn add(&mut self, base: &[f32], logits: &[f32], log_total: f64, loss: f64, token: usize) {
        let base_loss = -f64::from(base[token]);
        self.base.add(base_loss);
        self.products += loss * base_loss;
        let mut divergence = 0.0;
        for (base, logit) in base.iter().zip(logits) {
            if *base > -DEPTH {
                divergence += f64::from(*base).exp() * (f64::from(*base) - f64::from(*logit) + log_total);
            }
        }
        self.divergence.add(divergence);
        self.divergences.push(divergence as f32);
        self.difference.add(((-loss).exp() - (-base_loss).exp()).powi(2));
        self.n_same += usize::from(first_largest(base) == first_largest(logits));
    }
}

/// The place of the largest number, the first of equals.
fn first_largest(numbers: &[f32]) -> usize {
    let larger = |best: usize, at: usize| if numbers[at] > numbers[best] { at } else { best };
    (0..numbers.len()).fold(0, larger)
}

impl Base {
    fn open(path: &Path) -> Result<Self, String> {
        let fault = |what: &str| format!("{}: {what}", path.display());
        let file = File::open(path).map_err(|error| fault(&error.to_string()))?;
        let n_bytes = file.metadata().map_err(|error| fault(&error.to_string()))?.len();
        let mut from = BufReader::with_capacity(1 << 20, file);
        let mut magic = [0; 8];
        let mut numbers = [0; 12];
        let read = from.read_exact(&mut magic).and_then(|()| from.read_exact(&mut numbers));
        if read.is_err() || magic != *MAGIC {
            return Err(fault("expected probabilities as --save writes them, found another file"));
        }
        let number = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| numbers[4 * at + i])) as usize;
        let (context, n_vocab, n_chunks) = (number(0), number(1), number(2));
        let row = 2 * (n_vocab as u64).div_ceil(2) + N_HEAD as u64;
        let n_rows = (n_chunks as u64).saturating_mul((context.max(4) - 1 - context / 2) as u64);
        let tokens_bytes = 4 * (context as u64).saturating_mul(n_chunks as u64);
        if n_rows.saturating_mul(2 * row).saturating_add(tokens_bytes + 20) != n_bytes {
            return Err(fault("expected as many probabilities as its head says, found another number"));
        }
        let mut bytes = vec![0; tokens_bytes as usize];
        from.read_exact(&mut bytes).map_err(|error| fault(&error.to_string()))?;
        let token = |bytes: &[u8]| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        let tokens = bytes.chunks_exact(4).map(token).collect();
        Ok(Self { from, context, n_vocab, n_chunks, tokens })
    }

    /// The log-probabilities of the next position.
    fn row(&mut self) -> Result<Vec<f32>, String> {
        let mut bytes = vec![0; 2 * (2 * self.n_vocab.div_ceil(2) + N_HEAD)];
        let read = self.from.read_exact(&mut bytes);
        read.map_err(|error| format!("the base of {} chunks: {error}", self.n_chunks))?;
        let number = |at: usize| f32::from_le_bytes([0, 1, 2, 3].map(|i| bytes[at + i]));
        let (step, least) = (number(0), number(4));
        let steps = bytes[2 * N_HEAD..].chunks_exact(2).take(self.n_vocab);
        Ok(steps.map(|two| f32::from(u16::from_le_bytes([two[0], two[1]])) * step + least).collect())
    }
}

/// A file of probabilities in the making.
struct Save {
    path: PathBuf,
    to: BufWriter<File>,
}

impl Save {
    fn begin(
        path: &Path,
        context: usize,
        n_chunks: usize,
        session: &Session,
        tokens: &[u32],
    ) -> Result<Self, String> {
        // A file of another kind is not replaced.
        files::write(path, MAGIC, MAGIC).map_err(|error| error.to_string())?;
        let file = File::create(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let mut new = Self { path: path.to_owned(), to: BufWriter::with_capacity(1 << 20, file) };
        let mut head = MAGIC.to_vec();
        for number in [context, session.n_vocab(), n_chunks] {
            head.extend((number as u32).to_le_bytes());
        }
        head.extend(tokens[..context * n_chunks].iter().flat_map(|token| token.to_le_bytes()));
        new.put(&head)?;
        Ok(new)
    }

    fn row(&mut self, logits: &[f32], largest: f32, log_sum: f32) -> Result<(), String> {
        let smallest = logits.iter().copied().fold(f32::INFINITY, f32::min).max(largest - DEPTH);
        let step = (largest - smallest) / STEPS;
        let mut row = Vec::with_capacity(2 * logits.len() + 16);
        row.extend(step.to_le_bytes());
        row.extend((smallest - largest - log_sum).to_le_bytes());
        for logit in logits {
            let steps = if step > 0.0 && *logit > smallest { (logit - smallest) / step } else { 0.0 };
            row.extend((steps.round_ties_even() as u16).to_le_bytes());
        }
        if logits.len() % 2 == 1 {
            row.extend([0; 2]);
        }
        self.put(&row)
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.to.write_all(bytes).map_err(|error| format!("{}: {error}", self.path.display()))
    }

    fn finish(mut self) -> Result<(), String> {
        self.to.flush().map_err(|error| format!("{}: {error}", self.path.display()))
    }
}

/// Prints the results.
fn report(arguments: &Arguments, opened: &Opened, own: Sums, compared: &mut Comparison, has_base: bool) {
    let estimate = Estimate::from(own);
    let Estimate { perplexity, error, .. } = estimate;
    let path = opened.path().display().to_string();
    let mut json = estimate.to_json();
    json["model"] = path.into();
    let mut text = format!("\nFinal estimate: PPL = {perplexity:.4} +/- {error:.5}\n");
    if has_base {
        let Comparison { base, products, divergence, difference, n_same, divergences } = compared;
        divergences.sort_by(f32::total_cmp);
        let n = own.n.max(2) as f64;
        let covariance = (*products / n - own.mean() * base.mean()) / (n - 1.0);
        let ratio = own.mean() - base.mean();
        let ratio_error = (own.error().powi(2) + base.error().powi(2) - 2.0 * covariance).max(0.0).sqrt();
        let base_perplexity = base.mean().exp();
        let rms = difference.mean().sqrt();
        let rms_error = if rms > 0.0 { 0.5 / rms * difference.error() } else { 0.0 };
        let same = *n_same as f64 / own.n.max(1) as f64;
        let same_error = (same * (1.0 - same) / (n - 1.0)).sqrt();
        let at = |share: f64| percentile(divergences, share);
        json["base_perplexity"] = base_perplexity.into();
        json["ln_ratio"] = ratio.into();
        json["ln_ratio_error"] = ratio_error.into();
        json["kl_divergence"] = divergence.mean().into();
        json["kl_divergence_error"] = divergence.error().into();
        json["kl_divergence_median"] = at(0.5).into();
        json["kl_divergence_99"] = at(0.99).into();
        json["kl_divergence_max"] = at(1.0).into();
        json["rms_probability_difference"] = rms.into();
        json["same_top"] = same.into();
        text = format!(
            "\nMean PPL(Q)                   : {perplexity:10.6} ± {error:10.6}\n\
             Mean PPL(base)                : {base_perplexity:10.6} ± {:10.6}\n\
             Mean ln(PPL(Q)/PPL(base))     : {ratio:10.6} ± {ratio_error:10.6}\n\
             Mean    KLD: {:10.6} ± {:10.6}\n\
             Maximum KLD: {:10.6}\n99.0%   KLD: {:10.6}\nMedian  KLD: {:10.6}\n\
             RMS Δp    : {:6.3} ± {:5.3} %\n\
             Same top p: {:6.3} ± {:5.3} %\n",
            base.error() * base_perplexity,
            divergence.mean(),
            divergence.error(),
            at(1.0),
            at(0.99),
            at(0.5),
            100.0 * rms,
            100.0 * rms_error,
            100.0 * same,
            100.0 * same_error
        );
    }
    if arguments.json {
        output::print(&format!("{json:#}\n"));
    } else {
        output::print(&text);
    }
}

/// A percentile of sorted numbers, between the two that are next to it.
fn percentile(sorted: &[f32], share: f64) -> f32 {
    let at = share * sorted.len().saturating_sub(1) as f64;
    let (low, rest) = (at as usize, at.fract() as f32);
    let number = |at: usize| sorted.get(at).or(sorted.last()).copied().unwrap_or(0.0);
    (1.0 - rest) * number(low) + rest * number(low + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_have_a_mean_and_an_error() {
        let mut sums = Sums::default();
        for x in [2.0, 4.0] {
            sums.add(x);
        }
        assert_eq!((sums.mean(), sums.error()), (3.0, 1.0));
    }

    #[test]
    fn percentiles_lie_between_numbers() {
        let sorted = [1.0, 2.0, 4.0];
        assert_eq!([0.0, 0.25, 0.5, 1.0].map(|share| percentile(&sorted, share)), [1.0, 1.5, 2.0, 4.0]);
        assert_eq!(percentile(&[], 0.5), 0.0);
    }
}
