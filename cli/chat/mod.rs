//! A chat: messages in, answers out, until the input ends.
//!
//! In: messages from a terminal or from lines on standard input, and commands that start with a slash. Out: answers,
//! streamed; on a terminal also what each took.
//! The session and its KV cache are kept between messages: only new tokens are fed to the model. A line that cannot be
//! answered is reported, and the next one is read. On a terminal, Ctrl-C stops an answer.

use std::io::{IsTerminal, stderr, stdout};
use std::ops::ControlFlow;
use std::path::Path;

use clap::{Args, FromArgMatches};
use fusebox::chat::{Conversation, message};
use fusebox::files;
use fusebox::generate::{Answer, Finish, Generator, Settings, Timing};
use fusebox::host;
use fusebox::open::context::ContextLimit;
use fusebox::sample::recommended::Recommended;
use fusebox::text::amount::{bytes, counted};
use fusebox::text::table::table;
use fusebox_compiler::codegen::cpu::Cpu;
use fusebox_compiler::target::Target;
use serde_json::{Value, json};

use crate::chat::command::Line;
use crate::chat::editor::{Entry, Input, MAX_LINE_BYTES};
use crate::chat::screen::{DIM, Screen};
use crate::explain::print_kernels::{self, View};
use crate::flags::sampling::{SamplingFlags, in_words};
use crate::terminal::output;
use crate::terminal::progress::Reading;
use crate::terminal::signals::{self, CtrlC};

mod command;
mod editor;
mod screen;

/// The largest file of messages that is read.
const MAX_SAVED_BYTES: usize = 64 << 20;
/// How every file of messages begins.
const SAVED: &[u8] = b"[\n  {\n    \"";
/// Printed when a chat starts on a terminal.
const GREETING: &str = "type a message; /help lists commands, Ctrl-C stops an answer, Ctrl-D ends";

/// What commands may look at and change.
pub(crate) struct Controls {
    pub(crate) sampling: SamplingFlags,
    pub(crate) recommended: Recommended,
    pub(crate) settings: Settings,
    pub(crate) limit: ContextLimit,
    pub(crate) n_threads: usize,
    pub(crate) target: Target,
    pub(crate) cpu: Option<Cpu>,
}

/// All answers so far, summed.
#[derive(Default)]
struct Totals {
    n_answers: usize,
    n_tokens: usize,
    timing: Timing,
}

/// A chat that runs.
struct Running<'c> {
    conversation: &'c mut Conversation,
    controls: Controls,
    generator: &'c mut Generator,
    totals: Totals,
    /// Whether a person types the messages, and whether one reads the answers.
    is_typed: bool,
    is_shown: bool,
}

impl Controls {
    /// Reads messages and answers them until the input ends.
    pub(crate) fn run(self, mut conversation: Conversation, generator: &mut Generator) -> Result<(), String> {
        let mut input = Input::open()?;
        let is_typed = input.is_terminal();
        if is_typed {
            dim(&format!("{}\n{GREETING}", in_words(&self.settings.sampling)));
        }
        let is_shown = is_typed && stdout().is_terminal();
        let totals = Totals::default();
        let mut running = Running {
            conversation: &mut conversation,
            controls: self,
            generator,
            totals,
            is_typed,
            is_shown,
        };
        let (mut n_entries, mut n_failed) = (0, 0);
        loop {
            let done = match input.next()? {
                Entry::End if n_entries == 0 && !is_typed => {
                    return Err(
                        "a message is needed: -p TEXT, -f FILE or a line on standard input".to_owned()
                    );
                }
                Entry::End => break,
                Entry::Cleared => {
                    dim("Ctrl-D or /quit ends the chat");
                    continue;
                }
                Entry::Message(text) => running.take(&text),
                Entry::NotUtf8 => {
                    Err("standard input: expected UTF-8 text, found a line of other bytes".to_owned())
                }
                Entry::TooLong => {
                    Err(format!("standard input: expected lines of less than {MAX_LINE_BYTES} bytes"))
                }
            };
            n_entries += 1;
            match done {
                Ok(ControlFlow::Continue(())) => {}
                Ok(ControlFlow::Break(())) => break,
                Err(sentence) => {
                    output::print_error(&sentence);
                    n_failed += 1;
                }
            }
        }
        // On a terminal each failure was seen when it happened.
        if n_failed > 0 && !is_typed {
            return Err(format!("{} not answered in full", counted(n_failed, "message")));
        }
        Ok(())
    }
}

impl Running<'_> {
    /// Does what a line asks for; breaks where the chat ends.
    fn take(&mut self, line: &str) -> Result<ControlFlow<()>, String> {
        match Line::of(line) {
            Line::Message(text) => return self.answer(text),
            Line::Regen => return self.answer_again(),
            Line::Quit => return Ok(ControlFlow::Break(())),
            Line::Empty => {}
            Line::Clear => {
                let n_fixed = self.conversation.n_fixed();
                self.conversation.messages.truncate(n_fixed);
                self.tell("a new chat");
            }
            Line::Help => output::note(command::HELP.trim_end()),
            Line::Kernels => self.show_kernels()?,
            Line::Load(path) => self.load(Path::new(path))?,
            Line::Save(path) => self.save(Path::new(path))?,
            Line::Set(text) => self.set(text)?,
            Line::Stats => output::note(self.stats().trim_end()),
            Line::System(text) => self.set_system(text),
            Line::Unknown(word) => {
                let names: Vec<&str> = command::NAMES.iter().map(|name| name.trim()).collect();
                return Err(format!(
                    "{word} is no command, expected one of {}; a blank before it makes it a message",
                    names.join(" ")
                ));
            }
            Line::Wrong(sentence) => return Err(sentence.to_owned()),
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Answers one message; where that fails, the message is dropped from the chat.
    fn answer(&mut self, text: &str) -> Result<ControlFlow<()>, String> {
        let n_before = self.conversation.messages.len();
        let answer = self.generate(text).inspect_err(|_| self.conversation.take_back())?;
        // The new message is one more.
        if let Some(n) = (n_before + 1).checked_sub(self.conversation.messages.len()).filter(|n| *n > 0) {
            self.tell(&format!("the context was full: {} forgotten", counted(n, "message")));
        }
        let is_stopped = self.is_typed && signals::ctrl_c_pressed();
        if is_stopped && answer.tokens.is_empty() {
            // Stopped while the prompt was read: as if it had not been typed.
            self.conversation.take_back();
        } else {
            self.conversation.push_answer(&answer.text);
        }
        self.totals.add(&answer);
        if self.is_typed {
            self.show_status(&answer, is_stopped);
        }
        match answer.finish {
            Finish::Closed if !is_stopped => Ok(ControlFlow::Break(())),
            Finish::Context if self.conversation.context_shift => {
                Err("the context is full, and the answer ends here; the next message makes room".to_owned())
            }
            Finish::Context => Err(format!(
                "the context is full: /clear starts a new chat, --context-shift forgets its beginning, {}",
                self.controls.limit.remedy()
            )),
            Finish::Closed | Finish::Length | Finish::Eos | Finish::Stop => Ok(ControlFlow::Continue(())),
        }
    }

    fn generate(&mut self, text: &str) -> Result<Answer, String> {
        let (prompt, is_thinking) = self.conversation.prompt_with(text, self.controls.limit)?;
        let is_typed = self.is_typed;
        let _ctrl_c = is_typed.then(CtrlC::catch);
        let mut screen = self.is_shown.then(|| Screen::new(is_thinking));
        if let Some(screen) = &screen {
            output::print(screen.start());
        }
        let n_new = prompt.len() - self.generator.n_kept(&prompt);
        let mut reading =
            self.is_shown.then(|| Reading::new(self.generator.session().pieces(n_new).count(), n_new));
        let mut each = |piece: &str| {
            if let Some(reading) = &mut reading {
                reading.take(piece);
            }
            let flow = match &mut screen {
                Some(screen) => output::stream(&screen.push(piece, output::width())),
                None => output::stream(piece),
            };
            if is_typed && signals::ctrl_c_pressed() { ControlFlow::Break(()) } else { flow }
        };
        let answer = self.generator.answer(&prompt, &mut each).map_err(|error| error.to_string());
        match &mut screen {
            Some(screen) => output::print(&screen.finish(output::width())),
            None if answer.is_ok() => output::print("\n"),
            None => {}
        }
        answer
    }

    /// Answers the last message anew.
    fn answer_again(&mut self) -> Result<ControlFlow<()>, String> {
        let messages = &mut self.conversation.messages;
        let last = messages.iter().rposition(|message| message["role"] == "user");
        let last = last.ok_or("there is no message yet to answer again")?;
        let text = messages[last]["content"].as_str().unwrap_or_default().to_owned();
        messages.truncate(last);
        if self.controls.settings.sampling.temperature == 0.0 {
            self.tell("greedy: the answer is the same again; /set temp 0.7 draws another");
        }
        self.answer(&text)
    }

    /// A dim line about the answer.
    fn show_status(&self, answer: &Answer, is_stopped: bool) {
        let session = self.generator.session();
        let rate = answer.timing.decode_rate().map_or_else(String::new, |rate| format!(", {rate:.1} tok/s"));
        let cut = match answer.finish {
            Finish::Length => {
                format!("; cut at {} tokens, /set n -1 lifts that", self.controls.settings.max_tokens)
            }
            Finish::Closed if is_stopped => "; stopped".to_owned(),
            Finish::Closed | Finish::Eos | Finish::Stop | Finish::Context => String::new(),
        };
        dim(&format!(
            "{}{rate}, context {} of {}{cut}",
            counted(answer.tokens.len(), "token"),
            session.position(),
            session.context()
        ));
    }

    /// A remark for the person who types.
    fn tell(&self, text: &str) {
        if self.is_typed {
            dim(text);
        }
    }

    fn set_system(&mut self, text: &str) {
        let messages = &mut self.conversation.messages;
        let n_fixed = usize::from(messages.first().is_some_and(|first| first["role"] == "system"));
        if text.is_empty() {
            let own = messages[..n_fixed].first().and_then(|own| own["content"].as_str());
            output::note(own.unwrap_or("no system message"));
            return;
        }
        messages.splice(..n_fixed, [message("system", text)]);
        self.tell("the system message is another from now on");
    }

    /// `/set`: another value of a sampling flag.
    fn set(&mut self, text: &str) -> Result<(), String> {
        let text = text.strip_prefix("parameter ").unwrap_or(text);
        let (name, value) =
            text.split_once([' ', '=']).map_or((text, ""), |(name, value)| (name, value.trim()));
        let name = name.trim_start_matches('-').replace('_', "-");
        if name.is_empty() {
            output::note(&self.all_settings());
            return Ok(());
        }
        if value.is_empty() {
            return Err(format!("/set {name} needs a value"));
        }
        match name.as_str() {
            "system" => {
                self.set_system(value);
                return Ok(());
            }
            "thinking" | "think" => {
                let is_on = ["on", "true"].contains(&value);
                if !is_on && !["off", "false"].contains(&value) {
                    return Err("/set thinking: expected on or off".to_owned());
                }
                self.conversation.set_thinking(is_on);
            }
            "n" | "num-predict" => {
                let count = output::count_or_all(value).map_err(|expected| format!("/set n: {expected}"))?;
                self.controls.settings.max_tokens = count;
            }
            _ => self.set_flag(&name, value)?,
        }
        let sampling = &self.controls.sampling;
        let mut new = self.controls.settings.clone();
        let seed = new.sampling.seed;
        new.sampling =
            sampling.settings(&self.controls.recommended, true, Some(self.conversation.tokenizer()));
        if !sampling.has_seed() {
            new.sampling.seed = seed;
        }
        self.generator.set(new.clone()).map_err(|error| error.to_string())?;
        self.controls.settings = new;
        self.tell(&in_words(&self.controls.settings.sampling));
        Ok(())
    }

    fn set_flag(&mut self, name: &str, value: &str) -> Result<(), String> {
        let parser = SamplingFlags::augment_args_for_update(clap::Command::new("/set"));
        let parser = parser.no_binary_name(true).disable_help_flag(true);
        let is_known = |flag: &clap::Arg| {
            flag.get_long() == Some(name) || flag.get_all_aliases().is_some_and(|all| all.contains(&name))
        };
        if !parser.get_arguments().any(is_known) {
            let names: Vec<&str> = parser.get_arguments().filter_map(clap::Arg::get_long).collect();
            return Err(format!("/set {name}: expected one of n, thinking, {}", names.join(", ")));
        }
        let mut matches = parser
            .try_get_matches_from([format!("--{name}={value}")])
            .map_err(|error| crate::first_sentence(&error))?;
        let updated = self.controls.sampling.update_from_arg_matches_mut(&mut matches);
        updated.map_err(|error| crate::first_sentence(&error))
    }

    fn all_settings(&self) -> String {
        let settings = &self.controls.settings;
        let limit = if settings.max_tokens == usize::MAX { -1 } else { settings.max_tokens as i64 };
        format!("{}, n {limit}", in_words(&settings.sampling))
    }

    fn show_kernels(&mut self) -> Result<(), String> {
        let Controls { n_threads, target, cpu, .. } = &self.controls;
        let view = (View::Table, *target, cpu.as_ref());
        let shown =
            self.generator.lend(|session, tokens| print_kernels::show(session, tokens, *n_threads, view))?;
        output::print(&shown);
        Ok(())
    }

    fn save(&self, path: &Path) -> Result<(), String> {
        if self.conversation.messages.is_empty() {
            return Err("there is no message yet to save".to_owned());
        }
        let text = format!("{:#}\n", json!(self.conversation.messages));
        files::write(path, SAVED, text.as_bytes()).map_err(|error| error.to_string())?;
        self.tell(&format!("{} in {}", counted(self.conversation.messages.len(), "message"), path.display()));
        Ok(())
    }

    fn load(&mut self, path: &Path) -> Result<(), String> {
        let text = files::text(path, MAX_SAVED_BYTES).map_err(|error| error.to_string())?;
        let parsed: Result<Vec<Value>, _> = serde_json::from_str(&text);
        let is_message = |message: &Value| message["role"].is_string() && message["content"].is_string();
        let messages = parsed.ok().filter(|messages| messages.iter().all(is_message)).ok_or_else(|| {
            format!(
                "{}: expected a list of messages with `role` and `content`, as /save writes it",
                path.display()
            )
        })?;
        self.conversation.messages = messages;
        self.tell(&counted(self.conversation.messages.len(), "message"));
        Ok(())
    }

    fn stats(&self) -> String {
        let (session, Totals { n_answers, n_tokens, timing }) = (self.generator.session(), &self.totals);
        let rate = |rate: Option<f64>| rate.map_or_else(|| "-".to_owned(), |rate| format!("{rate:.1} tok/s"));
        let footprint = session.footprint();
        let memory = [footprint.weights, footprint.state, footprint.arena].map(|n| bytes(n as f64));
        let [weights, state, arena] = memory;
        let peak =
            host::peak_rss().map_or_else(String::new, |n| format!(", peak resident {}", bytes(n as f64)));
        let rows = [
            ["answers", &n_answers.to_string()],
            ["generated", &format!("{}, {}", counted(*n_tokens, "token"), rate(timing.decode_rate()))],
            ["prompts", &format!("{}, {}", counted(timing.n_prompt, "token"), rate(timing.prefill_rate()))],
            ["context", &format!("{} of {}", session.position(), session.context())],
            ["memory", &format!("weights {weights}, KV cache {state}, activations {arena}{peak}")],
            ["device", &session.device()],
            ["sampling", &self.all_settings()],
        ]
        .map(|row| row.map(str::to_owned));
        table("ll", "  ", &rows)
    }
}

impl Totals {
    fn add(&mut self, answer: &Answer) {
        self.n_answers += 1;
        self.n_tokens += answer.tokens.len();
        self.timing.n_prompt += answer.timing.n_prompt;
        self.timing.prefill += answer.timing.prefill;
        self.timing.n_decoded += answer.timing.n_decoded;
        self.timing.decode += answer.timing.decode;
    }
}

/// A remark on standard error, dimmed where a person reads it.
fn dim(text: &str) {
    if stderr().is_terminal() {
        output::note(&format!("{}{text}{}", DIM[0], DIM[1]));
    } else {
        output::note(text);
    }
}
