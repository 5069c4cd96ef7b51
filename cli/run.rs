//! `fusebox run`: goes on with a text, or answers a message.
//!
//! In: a model, a prompt, and how tokens are chosen. Out: text as it comes, or one JSON object with the text, its
//! tokens, times, kernels and memory. `--print-kernels` adds what ran for every token.
//! Without a prompt the default model begins a story; with `--chat`, a conversation begins: `conversation.rs`.

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

use crate::asked::{Asked, Prompt, words};
use crate::conversation::Conversation;
use crate::kernels::{self, View};
use crate::machine::milliseconds;
use crate::opening::{Opened, Which, n_threads};
use crate::progress::Progress;
use crate::story::target;
use crate::{machine, output};

/// What the default model goes on with, if nothing else is asked for.
const STORY: &str = "Once upon a time";

/// What to go on with, and how.
#[derive(Args)]
#[command(allow_negative_numbers = true)]
pub(crate) struct Arguments {
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    asked: Asked,
    /// The most tokens of the answer.
    #[arg(short, long, value_name = "N", default_value_t = 256, aliases = ["predict", "n-predict", "max-tokens"])]
    n: usize,
    /// Take the text for a message, and answer it in the form that the model was trained on; without a text, answer
    /// line after line.
    #[arg(long)]
    chat: bool,
    /// With --chat, what the model is told about its part.
    #[arg(long, value_name = "TEXT", requires = "chat", allow_hyphen_values = true, alias = "system-prompt")]
    system: Option<String>,
    /// With --chat, whether the model reasons before it answers, where its template asks [default: the template's].
    #[arg(long, value_name = "on|off", requires = "chat", value_parser = switch)]
    thinking: Option<bool>,
    /// Threads to run on [default: as many as the machine runs at once].
    #[arg(short, long, value_name = "N")]
    threads: Option<usize>,
    /// How many tokens the text may have [default: the model's, at most 4096].
    #[arg(short, long, value_name = "N", alias = "ctx-size")]
    context: Option<usize>,
    #[command(flatten)]
    sampling: Sampling,
    /// A text that ends the answer; may be given several times.
    #[arg(
        long,
        value_name = "TEXT",
        value_parser = NonEmptyStringValueParser::new(),
        allow_hyphen_values = true
    )]
    stop: Vec<String>,
    /// Go on behind tokens that end an answer.
    #[arg(long)]
    ignore_eos: bool,
    /// Afterwards, show what ran for every token, as a table with times; the same for a prompt; the plan of a token; or
    /// what its kernels are compiled from.
    #[arg(long, value_name = "VIEW", num_args = 0..=1, require_equals = true, default_missing_value = "table")]
    print_kernels: Option<View>,
    /// With --print-kernels=source, show only that, for this device, which need not be there:
    /// cpu, cuda-sm90, vulkan, metal.
    #[arg(long, value_name = "NAME", requires = "print_kernels")]
    target: Option<String>,
    /// One JSON object instead of text.
    #[arg(long, conflicts_with = "print_kernels")]
    json: bool,
}

/// How tokens are chosen.
#[derive(Args)]
struct Sampling {
    /// How bold the choice is; 0 always takes the likeliest token.
    #[arg(long, alias = "temperature", value_name = "X", default_value = "0", value_parser = |text: &str| {
        taken(text, |temperature| sample::Settings { temperature, ..sample::Settings::default() })
    })]
    temp: f32,
    /// Choose among so many of the likeliest; 0 for all.
    #[arg(long, value_name = "N", default_value_t = 0, requires = "temp")]
    top_k: usize,
    /// Choose among the likeliest that have this probability together.
    #[arg(long, value_name = "P", default_value = "1", requires = "temp", value_parser = |text: &str| {
        taken(text, |top_p| sample::Settings { top_p, ..sample::Settings::default() })
    })]
    top_p: f32,
    /// Choose among those that are at least this part as likely as the likeliest.
    #[arg(long, value_name = "P", default_value = "0", requires = "temp", value_parser = |text: &str| {
        taken(text, |min_p| sample::Settings { min_p, ..sample::Settings::default() })
    })]
    min_p: f32,
    /// Divide the scores of the last 64 tokens by this.
    #[arg(long, value_name = "X", default_value = "1", value_parser = |text: &str| {
        taken(text, |repeat_penalty| sample::Settings { repeat_penalty, ..sample::Settings::default() })
    })]
    repeat_penalty: f32,
    /// What the choices follow from.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
}

/// A number, if it is one that tokens are chosen by.
fn taken(text: &str, settings: fn(f32) -> sample::Settings) -> Result<f32, String> {
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

/// A switch.
fn switch(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("expected on or off".to_owned()),
    }
}

/// What is to be done.
enum Task {
    GoOn(Prompt),
    Answer(String),
    /// Messages are still to come.
    Converse,
}

/// What is known of a run besides its answer.
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
        let (stops, ignores_ends) = (self.stop.clone(), self.ignore_eos);
        Settings { most_tokens: self.n, stops, ignores_ends, sampling }
    }

    fn task(&self) -> Result<Task, String> {
        match self.asked.prompt()? {
            Some(Prompt::Tokens(_)) if self.chat => {
                Err("--chat answers words: -p TEXT or -f FILE".to_owned())
            }
            Some(Prompt::Text(text)) if self.chat => Ok(Task::Answer(text)),
            Some(prompt) => Ok(Task::GoOn(prompt)),
            None if self.chat && self.json => Err("--json needs a message: -p TEXT or -f FILE".to_owned()),
            None if self.chat => Ok(Task::Converse),
            None if self.which.is_default() => Ok(Task::GoOn(Prompt::Text(STORY.to_owned()))),
            None => Err("a prompt is needed: -p TEXT, -f FILE or --tokens 1,2,3".to_owned()),
        }
    }
}

/// Runs a model.
pub(crate) fn run(arguments: &Arguments) -> Result<(), String> {
    if let Some(name) = &arguments.target {
        return list(arguments, target(name)?);
    }
    let (settings, task) = (arguments.settings(), arguments.task()?);
    let n_threads = n_threads(arguments.threads)?;
    let mut progress = Progress::new(3);
    let start = Instant::now();
    let mut opened = arguments.which.open(&mut progress, arguments.json)?;
    let context = opened.context(arguments.context)?;
    let needs_words = !matches!(task, Task::GoOn(Prompt::Tokens(_)));
    let tokenizer = words(opened.model.checkpoint(), needs_words)?;
    let chat = if arguments.chat { Some(chat(&opened)?) } else { None };
    let with = chat.as_ref().zip(tokenizer.as_ref());
    let mut conversation =
        with.map(|with| Conversation::new(with, arguments.system.as_deref(), arguments.thinking));
    let room = opened.room(context.most);
    let tokens = match (&task, conversation.as_mut()) {
        (Task::GoOn(prompt), _) => Some(prompt.tokens("the prompt", tokenizer.as_ref(), room)?),
        (Task::Answer(text), Some(conversation)) => Some(conversation.ask(text, room)?),
        (Task::Answer(_) | Task::Converse, _) => None,
    };
    let load = start.elapsed();
    progress.begin("compiling");
    let start = Instant::now();
    let session = opened.session(n_threads, context, scored(&settings))?;
    let times = Times { load, compile: start.elapsed() };
    drop(progress);
    let generator = Generator::new(session, tokenizer.as_ref(), settings);
    let mut generator = generator.map_err(|error| error.to_string())?;
    match (tokens, conversation) {
        (Some(tokens), _) if arguments.json => {
            let answer = generator.answer(&tokens, &mut |_| ControlFlow::Continue(()));
            let answer = answer.map_err(|error| error.to_string())?;
            let told = as_json(&answer, tokens.len(), &times, &generator, &opened);
            output::print(&format!("{told:#}\n"));
        }
        (Some(tokens), _) => {
            // A story is told from its beginning.
            let is_story = arguments.which.is_default()
                && matches!(&task, Task::GoOn(Prompt::Text(text)) if text == STORY);
            speak(&mut generator, &tokens, if is_story { STORY } else { "" }, &times)?;
        }
        (None, Some(conversation)) => {
            let room = opened.room(generator.session().context());
            conversation.hold(&mut generator, room)?;
        }
        (None, None) => {}
    }
    if let Some(view) = arguments.print_kernels {
        let (session, taken) = generator.into_session();
        let view = (view, opened.target());
        output::print(&format!("\n{}", kernels::show(session, &taken, n_threads, view)?));
    }
    Ok(())
}

/// Shows the sources of a model's kernels for a target, without a device.
fn list(arguments: &Arguments, target: Target) -> Result<(), String> {
    if arguments.print_kernels != Some(View::Source) {
        return Err("--target shows sources: --print-kernels=source".to_owned());
    }
    let mut opened = arguments.which.open(&mut Progress::new(1), arguments.json)?;
    let context = opened.context(arguments.context)?;
    // Those that go on with a text come first, then those that read one.
    for program in opened.programs(context, scored(&arguments.settings()), target)? {
        output::print(&kernels::sources(&program.plan, &target)?);
    }
    Ok(())
}

/// What a replay has to give: no more logits than tokens are chosen from.
fn scored(settings: &Settings) -> Scored {
    settings.sampling.n_best().map_or(Scored::Last, Scored::Best)
}

fn chat(opened: &Opened) -> Result<Chat, String> {
    let chat = Chat::open(opened.model.checkpoint()).map_err(|error| error.to_string())?;
    let mut chat =
        chat.ok_or("--chat needs a chat template, which this model has not; without it, -p is gone on with")?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    chat.set_clock(now.as_secs() as i64);
    Ok(chat)
}

/// Prints an answer as it comes, behind what it goes on from.
fn speak(generator: &mut Generator<'_>, tokens: &[u32], before: &str, times: &Times) -> Result<(), String> {
    let mut before = Some(before);
    let answer = generator.answer(tokens, &mut |piece| match before.take() {
        Some(before) => output::say(&format!("{before}{piece}")),
        None => output::say(piece),
    });
    let answer = answer.map_err(|error| error.to_string())?;
    // An answer without a word has not handed on what stands before it.
    let before = before.unwrap_or_default();
    let is_open = |text: &str| !text.is_empty() && !text.ends_with('\n');
    if is_open(before) || is_open(&answer.text) {
        output::print(&format!("{before}\n"));
    }
    output::note(&summary(&answer, times));
    Ok(())
}

/// A line about times.
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

fn as_json(
    answer: &Answer,
    n_prompt: usize,
    times: &Times,
    generator: &Generator<'_>,
    opened: &Opened,
) -> Value {
    let session = generator.session();
    let footprint = session.footprint();
    let [decode, _] = session.plans();
    let timing = json!({
        "load_ms": ms(times.load),
        "compile_ms": ms(times.compile),
        "first_token_ms": answer.timing.first_token.map(ms),
        "prefill_tok_s": answer.timing.prefill_rate(),
        "decode_tok_s": answer.timing.decode_rate(),
    });
    let counts = opened.cache.counts;
    json!({
        "tokens": answer.tokens,
        "text": answer.text,
        "prompt_tokens": n_prompt,
        "finish": answer.finish.name(),
        "device": session.device(),
        "timing": timing,
        "kernels": {
            "per_step": decode.steps.len(),
            "per_block": kernels::per_block(decode),
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
            "peak_rss": machine::peak(),
        },
    })
}
