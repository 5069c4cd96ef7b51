//! The `fusebox` command as a library: reads arguments, calls the crates below, prints.
//!
//! In: a command line. Out: text or JSON on standard output; a sentence on standard error and exit code 2 where the
//! input is at fault. Nothing is decided here.
//! One file a command: `run.rs`, `logits.rs`, `tokens.rs`, `bench.rs`, `inspect.rs`, `story.rs`, `quantize.rs`,
//! `doctor.rs`.
//! `opening.rs` has the flags that all commands on models share, `example.rs` what examples of families show.

use std::ffi::OsString;
use std::io::{Write, stdout};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, CommandFactory, Error, FromArgMatches, Parser, Subcommand};

mod asked;
mod bench;
mod conversation;
mod devices;
mod doctor;
mod example;
#[cfg_attr(not(feature = "gpu"), path = "no_gpus.rs")]
mod gpus;
mod inspect;
mod kernels;
mod logits;
mod machine;
mod npy;
mod opening;
mod output;
mod process;
mod progress;
mod quantize;
mod room;
mod run;
mod story;
mod tokens;

/// Compiles language models into a few fused kernels, runs them, and tells how.
#[derive(Parser)]
#[command(name = "fusebox", version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Goes on with a text, or answers a message.
    Run(Box<run::Arguments>),
    /// Gives the scores of what may follow a text.
    Logits(logits::Arguments),
    /// Gives the tokens of a text, or the text of tokens.
    Tokens(tokens::Arguments),
    /// Measures how many tokens a second a model takes and gives.
    Bench(bench::Arguments),
    /// Tells how a graph becomes kernels: what was asked, improved, fused, lowered and planned.
    Story(story::Arguments),
    /// Tells what a weight file holds: its metadata, and every tensor with its shape and format.
    Inspect(inspect::Arguments),
    /// Writes a model as a GGUF file in another format.
    Quantize(quantize::Arguments),
    /// Tells what this machine has, and what is missing.
    Doctor(doctor::Arguments),
}

/// `fusebox`: does what the command line asks for.
pub fn main() -> ExitCode {
    process::begin();
    ended(match Cli::try_parse() {
        Ok(Cli { command }) => succeeded(match command {
            Command::Run(arguments) => run::run(&arguments),
            Command::Logits(arguments) => logits::run(&arguments),
            Command::Tokens(arguments) => tokens::run(&arguments),
            Command::Bench(arguments) => bench::run(&arguments),
            Command::Story(arguments) => story::run(&arguments),
            Command::Inspect(arguments) => inspect::run(&arguments),
            Command::Quantize(arguments) => quantize::run(&arguments),
            Command::Doctor(arguments) => doctor::run(&arguments),
        }),
        Err(error) => refused(&error),
    })
}

/// An example of a family: `fusebox run` where there are arguments, else what a block of this name becomes.
pub fn example(block: &str) -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    if arguments.len() > 1 {
        return run();
    }
    process::begin();
    let path = arguments.first().map(PathBuf::from).unwrap_or_default();
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    ended(succeeded(example::show(block, &name)))
}

/// `fusebox run`, without the word `run`.
pub fn run() -> ExitCode {
    process::begin();
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let command = run::Arguments::augment_args(clap::Command::new("fusebox"));
    let arguments = command
        .try_get_matches_from(arguments)
        .and_then(|matches| run::Arguments::from_arg_matches(&matches));
    ended(match arguments {
        Ok(arguments) => succeeded(run::run(&arguments)),
        Err(error) => refused(&error),
    })
}

/// What a command line that cannot be read comes to: the exit code of a question for help, or a sentence.
fn refused(error: &Error) -> Result<ExitCode, String> {
    let is_help = [
        ErrorKind::DisplayHelp,
        ErrorKind::DisplayVersion,
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand,
    ];
    if is_help.contains(&error.kind()) {
        let printed = error.print().and_then(|()| stdout().flush());
        if error.use_stderr() {
            return Ok(ExitCode::from(2));
        }
        // Nothing follows that could be left out.
        let _ = output::said(printed);
        return Ok(ExitCode::SUCCESS);
    }
    if error.kind() == ErrorKind::InvalidUtf8 {
        return Err(format!("expected a text in UTF-8, found {}", not_utf8()));
    }
    let known = match error.kind() {
        ErrorKind::InvalidSubcommand => {
            let command = Cli::command();
            let names = command.get_subcommands().map(clap::Command::get_name);
            format!("; commands are {}", names.collect::<Vec<_>>().join(", "))
        }
        ErrorKind::UnknownArgument if may_name_a_model(error) => "; a model is named with -m".to_owned(),
        ErrorKind::UnknownArgument => "; --help lists what there is".to_owned(),
        _ => String::new(),
    };
    let text = error.to_string();
    let lines = text.lines().take_while(|line| !line.trim().is_empty()).map(str::trim);
    let mut sentence = lines.collect::<Vec<_>>().join(" ");
    // The words of a parser of numbers are not those of its users.
    for theirs in ["invalid digit found in string", "cannot parse integer from empty string"] {
        sentence = sentence.replace(theirs, "expected a whole number of at least 0");
    }
    let sentence = sentence.replace("number too large to fit in target type", "the number is too large");
    Err(format!("{}{known}", sentence.strip_prefix("error: ").unwrap_or(&sentence)))
}

/// Whether what a command does not know is no flag, where the command takes a model by a flag.
fn may_name_a_model(error: &Error) -> bool {
    let first = std::env::args_os().nth(1).unwrap_or_default();
    // An example has no commands and takes a model.
    let takes_model =
        |command: &clap::Command| command.get_arguments().any(|flag| flag.get_short() == Some('m'));
    let has_flag = Cli::command().find_subcommand(first).is_none_or(takes_model);
    let argument = error.get(ContextKind::InvalidArg);
    has_flag && matches!(argument, Some(ContextValue::String(text)) if !text.starts_with('-'))
}

/// The arguments that are not UTF-8, by their places; the parser does not say which one it is about.
fn not_utf8() -> String {
    let arguments = std::env::args_os().enumerate().filter(|(_, argument)| argument.to_str().is_none());
    let each = arguments.map(|(place, argument)| format!("`{}` as argument {place}", argument.display()));
    each.collect::<Vec<_>>().join(" and ")
}

fn succeeded(done: Result<(), String>) -> Result<ExitCode, String> {
    done.map(|()| ExitCode::SUCCESS)
}

/// The exit code of what was done; says why it was not.
fn ended(done: Result<ExitCode, String>) -> ExitCode {
    done.unwrap_or_else(|sentence| {
        output::complain(&sentence);
        ExitCode::from(2)
    })
}
