//! `fusebox run`: completes a prompt, or chats.
//!
//! In: a model, a prompt, and sampling settings. Out: text as it is generated, or one JSON object with the text, its
//! tokens, timing, kernel counts and memory. `--print-kernels` adds the kernels that ran.
//! Without a prompt the default model tells a story; with `--chat`, a chat starts: `conversation.rs`.

use std::ops::ControlFlow;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use fusebox_compiler::foundation::amount::counted;
use fusebox_compiler::target::Target;
use fusebox_models::chat::Chat;
use fusebox_models::error::Error;
use fusebox_models::generate::{Answer, Generator, Settings};
use fusebox_models::layers::embed::Scored;
use fusebox_models::sample::{self, Sampler};
use serde_json::{Value, json};

use crate::conversation::Conversation;
use crate::host::milliseconds;
use crate::model::{ModelFlags, OpenModel, n_threads};
use crate::print_kernels::{self, View};
use crate::progress::Progress;
use crate::prompt::{Prompt, PromptFlags, open_tokenizer};
use crate::story::target;
use crate::{host, output};

/// The prompt of the default model, unless another is given.
const STORY: &str = "Once upon a time";

/// What to generate.
#[derive(Args)]
#[command(allow_negative_numbers = true)]
pub(crate) struct Arguments {
    #[command(flatten)]
    model: ModelFlags,
    #[command(flatten)]
    prompt: PromptFlags,
    /// Maximum number of tokens to generate.
    #[arg(short, long, value_name = "N", default_value_t = 256, aliases = ["predict", "n-predict", "max-tokens"])]
    n: usize,
    /// Answer the prompt as a chat message, formatted with the model's chat template; without a prompt, chat line by
    /// line.
    #[arg(long)]
    chat: bool,
    /// System message; needs --chat.
    #[arg(long, value_name = "TEXT", requires = "chat", allow_hyphen_values = true, alias = "system-prompt")]
    system: Option<String>,
    /// Reasoning on or off, for chat templates that have such a switch; needs --chat [default: the template's].
    #[arg(long, value_name = "on|off", requires = "chat", value_parser = on_or_off)]
    thinking: Option<bool>,
    /// Threads [default: all hardware threads].
    #[arg(short, long, value_name = "N")]
    threads: Option<usize>,
    /// Context length in tokens [default: the model's, at most 4096].
    #[arg(short, long, value_name = "N", alias = "ctx-size")]
    context: Option<usize>,
    #[command(flatten)]
    sampling: Sampling,
    /// Stop string: ends generation and is not printed; may be repeated.
    #[arg(
        long,
        value_name = "TEXT",
        value_parser = NonEmptyStringValueParser::new(),
        allow_hyphen_values = true
    )]
    stop: Vec<String>,
    /// Keep generating after an end-of-sequence (EOS) token.
    #[arg(long)]
    ignore_eos: bool,
    /// After the run, print the kernels: a table of a decode step with times, the same for the prefill, the plan of a
    /// decode step, or the kernel sources.
    #[arg(long, value_name = "VIEW", num_args = 0..=1, require_equals = true, default_missing_value = "table")]
    print_kernels: Option<View>,
    /// With --print-kernels=source, print only the sources, for this device, which need not be present: cpu, cuda-sm90,
    /// vulkan, metal.
    #[arg(long, value_name = "NAME", requires = "print_kernels")]
    target: Option<String>,
    /// Print one JSON object instead of text.
    #[arg(long, conflicts_with = "print_kernels")]
    json: bool,
}

/// Sampling settings.
#[derive(Args)]
struct Sampling {
    /// Sampling temperature; 0 is greedy: always the most likely token.
    #[arg(long, alias = "temperature", value_name = "X", default_value = "0", value_parser = |text: &str| {
        sampling_number(text, |temperature| sample::Settings { temperature, ..sample::Settings::default() })
    })]
    temp: f32,
    /// Top-k sampling: keep only the N most likely tokens; 0 keeps all.
    #[arg(long, value_name = "N", default_value_t = 0, requires = "temp")]
    top_k: usize,
    /// Top-p (nucleus) sampling: keep the smallest set of most likely tokens whose probabilities sum to P.
    #[arg(long, value_name = "P", default_value = "1", requires = "temp", value_parser = |text: &str| {
        sampling_number(text, |top_p| sample::Settings { top_p, ..sample::Settings::default() })
    })]
    top_p: f32,
    /// Min-p sampling: drop tokens less likely than P times the most likely one.
    #[arg(long, value_name = "P", default_value = "0", requires = "temp", value_parser = |text: &str| {
        sampling_number(text, |min_p| sample::Settings { min_p, ..sample::Settings::default() })
    })]
    min_p: f32,
    /// Repeat penalty: divides the logits of tokens among the last 64 (multiplies negative ones).
    #[arg(long, value_name = "X", default_value = "1", value_parser = |text: &str| {
        sampling_number(text, |repeat_penalty| sample::Settings { repeat_penalty, ..sample::Settings::default() })
    })]
    repeat_penalty: f32,
    /// Seed of the random number generator.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
}

/// Parses a number and checks it as a sampling setting.
fn sampling_number(text: &str, settings: fn(f32) -> sample::Settings) -> Result<f32, String> {
    let number = text.parse().unwrap_or(f32::NAN);
    match Sampler::new(settings(number), 0) {
        Ok(_) => Ok(number),
        Err(Error::Setting { expected, .. }) if number == f32::INFINITY => {
            Err(format!("expected {expected}, no larger than {:e}", f32::MAX))
        }
        Err(Error::Setting { expected, .. }) => Err(format!("expected {expected}")),
        Err(error) => Err(error.to_string()),
    }
}

/// Parses `on` or `off`.
fn on_or_off(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("expected on or off".to_owned()),
    }
}

/// What to do.
enum Task {
    Complete(Prompt),
    Answer(String),
    /// Messages come from standard input.
    Chat,
}

/// Times before the first token.
struct Times {
    load: Duration,
    compile: Duration,
}

impl Arguments {
    fn settings(&self) -> Settings {
        let Sampling { temp, top_k, top_p, min_p, repeat_penalty, seed } = self.sampling;
        let sampling = sample::Settings {
            temperature: temp,
            top_k,
            top_p,
            min_p,
            repeat_penalty,
            seed,
            ..sample::Settings::default()
        };
        let (stops, ignore_eos) = (self.stop.clone(), self.ignore_eos);
        Settings { max_tokens: self.n, stops, ignore_eos, sampling }
    }

    fn task(&self) -> Result<Task, String> {
        match self.prompt.read()? {
            Some(Prompt::Tokens(_)) if self.chat => {
                Err("--chat takes text, not token ids: -p TEXT or -f FILE".to_owned())
            }
            Some(Prompt::Text(text)) if self.chat => Ok(Task::Answer(text)),
            Some(prompt) => Ok(Task::Complete(prompt)),
            None if self.chat && self.json => {
                Err("--chat --json needs a message: -p TEXT or -f FILE".to_owned())
            }
            None if self.chat => Ok(Task::Chat),
            None if self.model.is_default() => Ok(Task::Complete(Prompt::Text(STORY.to_owned()))),
            None => Err("a prompt is needed: -p TEXT, -f FILE or --tokens 1,2,3".to_owned()),
        }
    }
}

/// Runs a model.
pub(crate) fn run(arguments: &Arguments) -> Result<(), String> {
    if let Some(name) = &arguments.target {
        return print_sources(arguments, target(name)?);
    }
    let (settings, task) = (arguments.settings(), arguments.task()?);
    let n_threads = n_threads(arguments.threads)?;
    let mut progress = Progress::new(3);
    let start = Instant::now();
    let mut opened = arguments.model.open(&mut progress, arguments.json)?;
    let context = opened.context(arguments.context)?;
    let needs_tokenizer = !matches!(task, Task::Complete(Prompt::Tokens(_)));
    let tokenizer = open_tokenizer(opened.model.checkpoint(), needs_tokenizer)?;
    let chat = if arguments.chat { Some(open_chat(&opened)?) } else { None };
    let parts = chat.as_ref().zip(tokenizer.as_ref());
    let mut conversation =
        parts.map(|parts| Conversation::new(parts, arguments.system.as_deref(), arguments.thinking));
    let limit = opened.limit(context.max);
    let tokens = match (&task, conversation.as_mut()) {
        (Task::Complete(prompt), _) => {
            let tokens = prompt.tokens(tokenizer.as_ref(), limit);
            Some(tokens.map_err(|error| opened.in_model(error))?)
        }
        (Task::Answer(text), Some(conversation)) => Some(conversation.prompt_with(text, limit)?),
        (Task::Answer(_) | Task::Chat, _) => None,
    };
    let load = start.elapsed();
    progress.begin("compiling");
    let start = Instant::now();
    let mut session = opened.session(n_threads, context, scored(&settings))?;
    let n_tokens = tokens.as_ref().map_or(0, Vec::len);
    session.prepare(n_tokens).map_err(|error| error.to_string())?;
    let times = Times { load, compile: start.elapsed() };
    drop(progress);
    let generator = Generator::new(session, tokenizer.as_ref(), settings);
    let mut generator = generator.map_err(|error| error.to_string())?;
    match (tokens, conversation) {
        (Some(tokens), _) if arguments.json => {
            let answer = generator.answer(&tokens, &mut |_| ControlFlow::Continue(()));
            let answer = answer.map_err(|error| opened.in_model(error))?;
            let json = to_json(&answer, tokens.len(), &times, &generator, &opened);
            output::print(&format!("{json:#}\n"));
        }
        (Some(tokens), _) => {
            // The built-in prompt is printed as part of the story.
            let is_story = arguments.model.is_default()
                && matches!(&task, Task::Complete(Prompt::Text(text)) if text == STORY);
            let before = if is_story { STORY } else { "" };
            stream_answer(&mut generator, &tokens, before, &times).map_err(|error| opened.in_model(error))?;
        }
        (None, Some(conversation)) => {
            let limit = opened.limit(generator.session().context());
            conversation.run(&mut generator, limit)?;
        }
        (None, None) => {}
    }
    if let Some(view) = arguments.print_kernels {
        let (session, sequence) = generator.into_session();
        let view = (view, opened.target(), opened.cpu()?);
        output::print(&format!("\n{}", print_kernels::show(session, &sequence, n_threads, view)?));
    }
    Ok(())
}

/// Prints the kernel sources of a model for a target, without a device.
fn print_sources(arguments: &Arguments, target: Target) -> Result<(), String> {
    if arguments.print_kernels != Some(View::Source) {
        return Err("--target prints kernel sources only; add --print-kernels=source".to_owned());
    }
    let opened = arguments.model.open(&mut Progress::new(1), arguments.json)?;
    let context = opened.context(arguments.context)?;
    // The decode program comes first, then those for more and more tokens.
    let mut programs = opened.programs(context, scored(&arguments.settings()), target)?;
    for class in 0..programs.classes().len() {
        let program = programs.program(class).map_err(|error| error.to_string())?;
        output::print(&print_kernels::sources(&program.plan, &target)?);
    }
    Ok(())
}

/// What each step computes: no more logits than tokens are sampled from.
fn scored(settings: &Settings) -> Scored {
    settings.sampling.device_top_k().map_or(Scored::Last, Scored::TopK)
}

fn open_chat(opened: &OpenModel) -> Result<Chat, String> {
    let chat = Chat::open(opened.model.checkpoint()).map_err(|error| error.to_string())?;
    let mut chat =
        chat.ok_or("this model has no chat template; drop --chat to complete the prompt as plain text")?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    chat.set_clock(now.as_secs() as i64);
    Ok(chat)
}

/// Streams a completion, with `before` in front of it.
fn stream_answer(
    generator: &mut Generator<'_>,
    tokens: &[u32],
    before: &str,
    times: &Times,
) -> Result<(), String> {
    let mut before = Some(before);
    let answer = generator.answer(tokens, &mut |piece| match before.take() {
        Some(before) => output::stream(&format!("{before}{piece}")),
        None => output::stream(piece),
    });
    let answer = answer.map_err(|error| error.to_string())?;
    // If no piece came, `before` is still to be printed.
    let before = before.unwrap_or_default();
    let is_open = |text: &str| !text.is_empty() && !text.ends_with('\n');
    if is_open(before) || is_open(&answer.text) {
        output::print(&format!("{before}\n"));
    }
    output::note(&summary(&answer, times));
    Ok(())
}

/// A line of timings.
fn summary(answer: &Answer, times: &Times) -> String {
    let rate =
        |rate: Option<f64>| rate.map_or_else(|| "no tokens".to_owned(), |rate| format!("{rate:.1} tok/s"));
    let first = answer.timing.first_token.unwrap_or_default();
    format!(
        "{} ({}); load {:.0} ms, compile {:.0} ms, first token {:.0} ms; prefill {}, decode {}",
        counted(answer.tokens.len(), "token"),
        answer.finish.name(),
        ms(times.load),
        ms(times.compile),
        ms(first),
        rate(answer.timing.prefill_rate()),
        rate(answer.timing.decode_rate()),
    )
}

fn ms(time: Duration) -> f64 {
    milliseconds(time.as_secs_f64())
}

fn to_json(
    answer: &Answer,
    n_prompt: usize,
    times: &Times,
    generator: &Generator<'_>,
    opened: &OpenModel,
) -> Value {
    let session = generator.session();
    let footprint = session.footprint();
    let decode = session.plan();
    let timing = json!({
        "load_ms": ms(times.load),
        "compile_ms": ms(times.compile),
        "first_token_ms": answer.timing.first_token.map(ms),
        "prefill_tok_s": answer.timing.prefill_rate(),
        "decode_tok_s": answer.timing.decode_rate(),
    });
    let counts = opened.cache.counts();
    json!({
        "tokens": answer.tokens,
        "text": answer.text,
        "prompt_tokens": n_prompt,
        "finish": answer.finish.name(),
        "device": session.device(),
        "timing": timing,
        "kernels": {
            "per_step": decode.steps.len(),
            "per_block": print_kernels::per_block(decode),
            "lowered": counts.n_lowered,
            "emitted": footprint.n_emitted,
            "from_cache": counts.n_from_cache,
            "compiled": footprint.n_compiled,
            "kept": footprint.n_kept,
        },
        "memory": {
            "weights_mapped": footprint.weights,
            "arena": footprint.arena,
            "state": footprint.state,
            "returned": footprint.returned,
            "peak_rss": host::peak_rss(),
        },
    })
}
