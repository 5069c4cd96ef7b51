//! `fusebox run`: completes a prompt, or chats.
//!
//! In: a model, a prompt, and sampling settings. Out: text as it is generated, or one JSON object with the text, its
//! tokens, timing, kernel counts and memory. `--print-kernels` adds the kernels that ran.
//! Without a model or a prompt the default model tells a story. A model without a prompt chats on a terminal: `chat/`.
//! Words after the model, and a pipe, are a message where the model has a chat template; `-p` and `-f` are continued as
//! they are unless `--chat` is given.

use std::ffi::OsString;
use std::io::{IsTerminal, stdin, stdout};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use fusebox::Session;
use fusebox::chat::Conversation;
use fusebox::generate::{Answer, Finish, Generator, Settings};
use fusebox::host;
use fusebox::host::milliseconds;
use fusebox::nn::embed::Scored;
use fusebox::open::{Opened, n_threads};
use fusebox::profile::per_block;
use fusebox::sample::recommended::Recommended;
use fusebox::template::Chat;
use fusebox::text::amount::counted;
use fusebox::tokenizer::Tokenizer;
use fusebox_compiler::target::Target;
use serde_json::{Value, json};

use crate::chat::Controls;
use crate::explain::print_kernels::{self, View};
use crate::explain::story::target;
use crate::flags::draft::DraftFlags;
use crate::flags::evict::EvictFlags;
use crate::flags::model::ModelFlags;
use crate::flags::prompt::{self, Prompt, PromptFlags, open_tokenizer};
use crate::flags::prompt_cache::PromptCache;
use crate::flags::sampling::{SamplingFlags, in_words};
use crate::flags::switch::SwitchFlags;
use crate::terminal::output;
use crate::terminal::progress::{Progress, Reading};
use crate::terminal::signals::{self, CtrlC};

/// The prompt of the default model, unless another is given.
const STORY: &str = "Once upon a time";
/// The most tokens of a completion, unless `-n` says otherwise.
const MAX_TOKENS: usize = 256;

/// What to generate.
#[derive(Args)]
#[command(allow_negative_numbers = true)]
pub(crate) struct Arguments {
    /// The model, unless -m names it, and a message: `fusebox run model.gguf Why is the sky blue?`.
    #[arg(value_name = "MODEL [MESSAGE]", num_args = 0..)]
    words: Vec<OsString>,
    #[command(flatten)]
    model: ModelFlags,
    #[command(flatten)]
    prompt: PromptFlags,
    /// Maximum number of tokens to generate; -1 is no limit [default: 256; in a chat -1].
    #[arg(
        short, long, value_name = "N", allow_negative_numbers = true, value_parser = output::count_or_all,
        aliases = ["predict", "n-predict", "max-tokens"]
    )]
    n: Option<usize>,
    #[command(flatten)]
    chat: ChatFlags,
    /// Threads [default: all hardware threads].
    #[arg(short, long, value_name = "N")]
    threads: Option<usize>,
    /// Context length in tokens [default: the model's, at most 4096].
    #[arg(short, long, value_name = "N", alias = "ctx-size")]
    context: Option<usize>,
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
    /// After the run, print the kernels: a table of a decode step with times, the same for the prefill, both as data in
    /// the object of --json, the plan of a decode step, or the kernel sources.
    #[arg(long, value_name = "VIEW", num_args = 0..=1, require_equals = true, default_missing_value = "table")]
    print_kernels: Option<View>,
    /// With --print-kernels=source, print only the sources, for this device, which need not be present: cpu, cuda-sm80,
    /// cuda-sm89, cuda-sm90, vulkan, metal; with compute units and GB/s as in cpu:2:40.
    #[arg(long, value_name = "NAME", requires = "print_kernels")]
    target: Option<String>,
    /// Print one JSON object instead of text.
    #[arg(long, conflicts_with = "print_kernels")]
    json: bool,
    #[command(flatten)]
    sampling: SamplingFlags,
    #[command(flatten)]
    prompt_cache: PromptCache,
    #[command(flatten)]
    draft: DraftFlags,
    #[command(flatten)]
    evict: EvictFlags,
    #[command(flatten)]
    switch: SwitchFlags,
}

/// Whether the prompt is a message, and what a chat starts with.
#[derive(Args)]
struct ChatFlags {
    /// Answer the prompt as a chat message, formatted with the model's chat template; without a prompt, chat. A
    /// terminal, words and a pipe are a chat anyway where the model has a template.
    #[arg(long, visible_alias = "conversation")]
    chat: bool,
    /// Continue words or a pipe as plain text, even where the model has a chat template.
    #[arg(long, conflicts_with = "chat", visible_alias = "no-conversation")]
    no_chat: bool,
    /// System message of a chat.
    #[arg(
        long,
        value_name = "TEXT",
        conflicts_with = "no_chat",
        allow_hyphen_values = true,
        alias = "system-prompt"
    )]
    system: Option<String>,
    /// When a chat fills its context, forget its oldest messages; the system message stays.
    #[arg(long, conflicts_with_all = ["no_chat", "evict"])]
    context_shift: bool,
    /// Reasoning on or off, for chat templates that have such a switch [default: the template's].
    #[arg(long, value_name = "on|off", conflicts_with = "no_chat", value_parser = on_or_off)]
    thinking: Option<bool>,
}

impl ChatFlags {
    /// A chat without messages.
    fn conversation(&self, parts: (Chat, Arc<Tokenizer>)) -> Conversation {
        let mut new = Conversation::new(parts, self.system.as_deref(), self.thinking);
        new.context_shift = self.context_shift;
        new
    }

    /// Refuses what only a chat has.
    fn check(&self, is_chat: bool) -> Result<(), String> {
        if !is_chat && (self.system.is_some() || self.thinking.is_some() || self.context_shift) {
            let what = "--system, --thinking and --context-shift are for a chat";
            return Err(format!("{what}; --chat makes the prompt a message"));
        }
        Ok(())
    }
}

/// Parses `on` or `off`.
fn on_or_off(text: &str) -> Result<bool, String> {
    match text {
        "on" | "true" => Ok(true),
        "off" | "false" => Ok(false),
        _ => Err("expected on or off".to_owned()),
    }
}

/// What is wanted, before the model is known.
enum Wanted {
    /// A prompt that a flag gave.
    Prompt(Prompt),
    /// Words, or a pipe.
    Text(String),
    /// Nothing; messages may come from standard input.
    Nothing,
}

/// What to do.
enum Task {
    Complete(Prompt),
    Answer(String),
    /// Messages come from standard input.
    Chat,
}

/// Times before the first token, and resident memory after each.
#[derive(Default)]
struct Times {
    load: Duration,
    compile: Duration,
    rss_after_load: Option<u64>,
    rss_after_compile: Option<u64>,
}

impl Arguments {
    /// Whether one JSON object is printed instead of text.
    fn is_json(&self) -> bool {
        self.json || self.print_kernels == Some(View::Json)
    }

    /// The model that is named by a flag or by the first word, and the other words.
    fn named(&self) -> Result<(Option<&Path>, String), String> {
        let (name, words) = match (self.model.path(), self.words.split_first()) {
            (None, Some((first, rest))) => (Some(Path::new(first)), rest),
            (name, _) => (name, self.words.as_slice()),
        };
        let words: Option<Vec<&str>> = words.iter().map(|word| word.to_str()).collect();
        let words = words.ok_or("a message is expected in UTF-8, found other bytes")?;
        Ok((name, words.join(" ")))
    }

    /// What is wanted; reads files, and standard input where it is the prompt.
    fn wanted(&self, name: Option<&Path>, words: &str) -> Result<Wanted, String> {
        let flag = self.prompt.read()?;
        if flag.is_some() && !words.is_empty() {
            return Err(format!("the prompt is given twice: by a flag, and as `{words}`"));
        }
        let has_words = !words.is_empty();
        Ok(match flag {
            Some(Prompt::Tokens(_)) if self.chat.chat => {
                return Err("--chat takes text, not token ids: -p TEXT or -f FILE".to_owned());
            }
            Some(prompt) => Wanted::Prompt(prompt),
            // With --chat and without words, each line is a message.
            None if name.is_none() || (self.chat.chat && !has_words) => Wanted::Nothing,
            None => match prompt::piped(has_words)? {
                Some(text) if has_words => Wanted::Text(format!("{text}\n{words}")),
                Some(text) => Wanted::Text(text),
                None if has_words => Wanted::Text(words.to_owned()),
                None => Wanted::Nothing,
            },
        })
    }

    /// What to do with a model that has a chat template or has none.
    fn task(&self, wanted: Wanted, is_default: bool, has_template: bool) -> Result<Task, String> {
        let is_typed = stdin().is_terminal();
        Ok(match wanted {
            Wanted::Prompt(Prompt::Text(text)) if self.chat.chat => Task::Answer(text),
            Wanted::Prompt(prompt) => Task::Complete(prompt),
            Wanted::Text(text) if self.chat.chat || (has_template && !self.chat.no_chat) => {
                Task::Answer(text)
            }
            Wanted::Text(text) => Task::Complete(Prompt::Text(text)),
            Wanted::Nothing if self.chat.chat && self.is_json() => {
                return Err("a chat as JSON needs a message: -p TEXT or -f FILE".to_owned());
            }
            Wanted::Nothing if self.chat.chat => Task::Chat,
            Wanted::Nothing if is_default => Task::Complete(Prompt::Text(STORY.to_owned())),
            Wanted::Nothing if is_typed && has_template && !self.chat.no_chat && !self.is_json() => {
                Task::Chat
            }
            Wanted::Nothing => {
                let why = if is_typed && !has_template { "; the model has no chat template" } else { "" };
                return Err(format!("a prompt is needed: -p TEXT, -f FILE or --tokens 1,2,3{why}"));
            }
        })
    }
}

impl Arguments {
    /// What generates, with a draft where one is wanted.
    fn generator(
        &self,
        session: Session,
        tokenizer: Option<&Arc<Tokenizer>>,
        settings: &Settings,
        n_threads: usize,
    ) -> Result<Generator, String> {
        let generator = Generator::new(session, tokenizer.cloned(), settings.clone());
        let mut generator = generator.map_err(|error| error.to_string())?;
        let by = (tokenizer.map(AsRef::as_ref), n_threads);
        self.draft.begin(&mut generator, &self.model, by, self.is_json())?;
        Ok(generator)
    }
}

impl Arguments {
    /// A line of timings and settings, with what guessing and moving won.
    fn summary(&self, answer: &Answer, times: &Times, settings: &Settings) -> String {
        let more = self.draft.in_words(&answer.timing) + &self.switch.in_words(answer);
        format!("{}; {}{more}", summary(answer, times), in_words(&settings.sampling))
    }

    /// Adds what guessing and moving won.
    fn add_to(&self, json: &mut Value, answer: &Answer) {
        json["speculation"] = self.draft.to_json(&answer.timing);
        json["switch"] = self.switch.to_json(answer);
    }
}

/// Runs a model.
pub(crate) fn run(arguments: &Arguments) -> Result<(), String> {
    let (name, words) = arguments.named()?;
    if let Some(target_name) = &arguments.target {
        return print_sources(arguments, name, target(target_name)?);
    }
    let wanted = arguments.wanted(name, &words)?;
    let n_threads = n_threads(arguments.threads)?;
    let mut progress = Progress::new(3);
    let start = Instant::now();
    let mut opened = arguments.model.open(name, &mut progress, arguments.is_json())?;
    opened.evict = arguments.evict.evict();
    let context = opened.context(arguments.context)?;
    let chat = open_chat(&opened, arguments.chat.chat)?;
    let task = arguments.task(wanted, name.is_none(), chat.is_some())?;
    let is_chat = matches!(task, Task::Answer(_) | Task::Chat);
    arguments.chat.check(is_chat)?;
    let needs_tokenizer = !matches!(task, Task::Complete(Prompt::Tokens(_)));
    let tokenizer = open_tokenizer(opened.model.checkpoint(), needs_tokenizer)?.map(Arc::new);
    let recommended = Recommended::of(opened.model.checkpoint()).map_err(|error| error.to_string())?;
    let settings = Settings {
        max_tokens: arguments.n.unwrap_or(if is_chat { usize::MAX } else { MAX_TOKENS }),
        stops: arguments.stop.clone(),
        ignore_eos: arguments.ignore_eos,
        sampling: arguments.sampling.settings(&recommended, is_chat, tokenizer.as_deref()),
    };
    let parts = chat.zip(tokenizer.clone());
    let mut conversation = parts.map(|parts| arguments.chat.conversation(parts));
    let limit = opened.limit(context.max);
    let tokens = match (&task, conversation.as_mut()) {
        (Task::Complete(prompt), _) => {
            let tokens = prompt.tokens(tokenizer.as_deref(), limit);
            Some(tokens.map_err(|error| opened.in_model(error))?)
        }
        (Task::Answer(text), Some(conversation)) => Some(conversation.prompt_with(text, limit)?.0),
        (Task::Answer(_) | Task::Chat, _) => None,
    };
    let mut times = Times { load: start.elapsed(), rss_after_load: host::rss(), ..Times::default() };
    progress.begin("compiling");
    let start = Instant::now();
    // `/set` may ask for a sampler that needs all logits.
    let scored = if matches!(task, Task::Chat) { Scored::Last } else { scored(&settings) };
    opened.scores_every = arguments.draft.is_on();
    let mut session = opened.session(n_threads, context, scored)?;
    let n_tokens = tokens.as_ref().map_or(0, Vec::len);
    session.prepare(n_tokens).map_err(|error| error.to_string())?;
    (times.compile, times.rss_after_compile) = (start.elapsed(), host::rss());
    let mut generator = arguments.generator(session, tokenizer.as_ref(), &settings, n_threads)?;
    drop(progress);
    arguments.switch.begin(&mut generator, tokens.as_deref(), (n_threads, scored), |device| {
        arguments.model.open_on(device, name, arguments.is_json())
    })?;
    let cache = &arguments.prompt_cache;
    cache.begin(&mut generator, tokens.as_deref())?;
    match (tokens, conversation) {
        (Some(tokens), _) if arguments.is_json() => {
            let answer = generator.answer(&tokens, &mut |_| ControlFlow::Continue(()));
            let answer = answer.map_err(|error| opened.in_model(error))?;
            cache.write_all(&mut generator)?;
            let mut json = to_json(&answer, tokens.len(), &times, &generator, &opened, &settings);
            arguments.add_to(&mut json, &answer);
            if arguments.print_kernels == Some(View::Json) {
                let (mut session, sequence) = generator.into_session();
                let (target, cpu) = (opened.target(), opened.cpu()?);
                let on = (target, cpu.as_ref());
                json["profile"] = print_kernels::profile_json(&mut session, &sequence, n_threads, on)?;
            }
            output::print(&format!("{json:#}\n"));
            return Ok(());
        }
        (Some(tokens), _) => {
            // The built-in prompt is printed as part of the story.
            let is_story =
                name.is_none() && matches!(&task, Task::Complete(Prompt::Text(text)) if text == STORY);
            let before = if is_story { STORY } else { "" };
            let answer = stream_answer(&mut generator, &tokens, before);
            let answer = answer.map_err(|error| opened.in_model(error))?;
            cache.write_all(&mut generator)?;
            output::note(&arguments.summary(&answer, &times, &settings));
            if answer.finish == Finish::Closed {
                signals::end_if_interrupted();
            }
        }
        (None, Some(conversation)) => {
            let controls = Controls {
                sampling: arguments.sampling.clone(),
                recommended,
                settings,
                limit: opened.limit(generator.session().context()),
                n_threads,
                target: opened.target(),
                cpu: opened.cpu()?,
            };
            controls.run(conversation, &mut generator)?;
        }
        (None, None) => {}
    }
    if let Some(view) = arguments.print_kernels {
        let (mut session, sequence) = generator.into_session();
        let cpu = opened.cpu()?;
        let view = (view, opened.target(), cpu.as_ref());
        output::print(&format!("\n{}", print_kernels::show(&mut session, &sequence, n_threads, view)?));
    }
    Ok(())
}

/// Prints the kernel sources of a model for a target, without a device.
fn print_sources(arguments: &Arguments, name: Option<&Path>, target: Target) -> Result<(), String> {
    if arguments.print_kernels != Some(View::Source) {
        return Err("--target prints kernel sources only; add --print-kernels=source".to_owned());
    }
    let opened = arguments.model.open(name, &mut Progress::new(1), arguments.json)?;
    let context = opened.context(arguments.context)?;
    // The decode program comes first, then those for more and more tokens.
    let mut programs = opened.programs(context, Scored::TopK(1), target)?;
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

/// The chat template of the model; one is required where `--chat` asks for it.
fn open_chat(opened: &Opened, is_required: bool) -> Result<Option<Chat>, String> {
    match opened.chat() {
        Ok(None) if is_required => {
            Err("this model has no chat template; drop --chat to complete the prompt as plain text"
                .to_owned())
        }
        // A plain completion needs no template, broken or not.
        Err(_) if !is_required => Ok(None),
        chat => chat,
    }
}

/// Streams a completion, with `before` in front of it.
fn stream_answer(generator: &mut Generator, tokens: &[u32], before: &str) -> Result<Answer, String> {
    let mut before = Some(before);
    let ctrl_c = stdout().is_terminal().then(CtrlC::catch);
    let mut reading = Reading::new(generator.session().pieces(tokens.len()).count(), tokens.len());
    let answer = generator.answer(tokens, &mut |piece| {
        reading.take(piece);
        let flow = match before.take_if(|_| !piece.is_empty()) {
            Some(before) => output::stream(&format!("{before}{piece}")),
            None => output::stream(piece),
        };
        if ctrl_c.is_some() && signals::ctrl_c_pressed() { ControlFlow::Break(()) } else { flow }
    });
    drop((ctrl_c, reading));
    let answer = answer.map_err(|error| error.to_string())?;
    // If no piece came, `before` is still to be printed.
    let before = before.unwrap_or_default();
    let is_open = |text: &str| !text.is_empty() && !text.ends_with('\n');
    if is_open(before) || is_open(&answer.text) {
        output::print(&format!("{before}\n"));
    }
    Ok(answer)
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
    generator: &Generator,
    opened: &Opened,
    settings: &Settings,
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
        "token_ms": answer.times.iter().map(|time| ms(*time)).collect::<Vec<_>>(),
        "between_ms": answer.times.windows(2).map(|two| ms(two[1].saturating_sub(two[0]))).collect::<Vec<_>>(),
    });
    let sampling = &settings.sampling;
    let counts = opened.cache.counts();
    json!({
        "tokens": answer.tokens,
        "text": answer.text,
        "prompt_tokens": n_prompt,
        "finish": answer.finish.name(),
        "evicted": session.n_evicted(),
        "device": session.device(),
        "sampling": {
            "temperature": sampling.temperature,
            "top_k": sampling.top_k,
            "top_p": sampling.top_p,
            "min_p": sampling.min_p,
            "seed": sampling.seed,
        },
        "timing": timing,
        "kernels": {
            "per_step": decode.steps.len(),
            "per_block": per_block(decode),
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
            "rss_after_load": times.rss_after_load,
            "rss_after_compile": times.rss_after_compile,
            "rss": host::rss(),
            "peak_rss": host::peak_rss(),
        },
    })
}
