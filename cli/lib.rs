//! The `fusebox` command: it parses arguments, calls the library `fusebox` and the crates below, prints.
//!
//! In: a command line. Out: text or JSON on standard output; for bad input one sentence on standard error and exit code
//! 2. No decision about models or kernels is made here.
//! One file per command: `run.rs` with `chat/`, `serve.rs`, `embed.rs`, `tokens.rs`, `quantize.rs` (with `merge`),
//! `hub.rs` (models by name), those that measure in `measure/`, those that explain in `explain/`. `flags/` has what
//! commands share, `terminal/` what a person sees. Opening a model, the device, the context and the chat are those of
//! the library; `explain/example.rs` is what the examples of model families show.

use std::ffi::OsString;
use std::io::{Write, stdout};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, CommandFactory, Error as ParserError, FromArgMatches, Parser, Subcommand};

mod chat;
#[cfg(test)]
mod documents;
mod embed;
mod explain;
mod flags;
#[cfg(feature = "serve")]
mod heaps;
#[cfg(feature = "hub")]
mod hub;
mod measure;
mod quantize;
mod run;
#[cfg(feature = "serve")]
mod serve;
mod terminal;
mod tokens;

use explain::{doctor, example, inspect, story};
use flags::foreign;
use measure::{bench, imatrix, logits, perplexity};
use terminal::{output, shell, signals, welcome};

/// Compiles language models into a few fused kernels, runs them, and explains how.
#[derive(Parser)]
#[command(name = "fusebox", version = env!("FUSEBOX_VERSION"), about)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Complete a prompt, or chat.
    Run(Box<run::Arguments>),
    /// Serve models over HTTP, as OpenAI, Anthropic, Ollama and llama.cpp do.
    #[cfg(feature = "serve")]
    Serve(Box<serve::Arguments>),
    /// Print the logits of the next token.
    Logits(logits::Arguments),
    /// Turn strings into vectors, or score how well they answer a query.
    Embed(embed::Arguments),
    /// Score a text: perplexity, and the KL divergence from another model.
    Perplexity(perplexity::Arguments),
    /// Tokenise text, or decode token ids.
    Tokens(tokens::Arguments),
    /// Benchmark prefill and decode throughput.
    Bench(bench::Arguments),
    /// Explain how a graph is rewritten, fused, lowered to kernels and planned.
    Story(story::Arguments),
    /// List the metadata of a model file, and the shape and format of each tensor.
    Inspect(inspect::Arguments),
    /// Convert a model to a GGUF file, quantised to another format.
    Quantize(quantize::Arguments),
    /// Collect an importance matrix over a text, for `quantize --imatrix`.
    Imatrix(imatrix::Arguments),
    /// Write a model with LoRA adapters merged into its weights, as a GGUF file.
    Merge(quantize::MergeArguments),
    /// Show the processor, memory, devices, program cache and default model.
    Doctor(doctor::Arguments),
    /// Fetch a model from the hub into the cache that other tools share.
    #[cfg(feature = "hub")]
    Pull(hub::Pull),
    /// List the stored models.
    #[cfg(feature = "hub")]
    Ls(hub::Ls),
    /// Delete a stored model.
    #[cfg(feature = "hub")]
    Rm(hub::Rm),
    /// Describe a model: architecture, size, formats, context, recommended sampling.
    #[cfg(feature = "hub")]
    Show(hub::Show),
    /// Print a script that completes commands and flags in a shell.
    Completions(shell::Completions),
    /// Print the manual page, or write those of all commands.
    Man(shell::Man),
}

/// The `fusebox` command.
pub fn main() -> ExitCode {
    signals::init();
    let arguments = match foreign::translated(std::env::args_os().collect(), true) {
        Ok(arguments) => arguments,
        Err(sentence) => return exit_code(Err(sentence)),
    };
    exit_code(match Cli::try_parse_from(&arguments) {
        Ok(Cli { command: None }) => {
            output::print(welcome::TEXT);
            Ok(ExitCode::SUCCESS)
        }
        Ok(Cli { command: Some(command) }) => success(match command {
            Command::Run(arguments) => run::run(&arguments),
            #[cfg(feature = "serve")]
            Command::Serve(arguments) => serve::run(&arguments),
            Command::Logits(arguments) => logits::run(&arguments),
            Command::Embed(arguments) => embed::run(&arguments),
            Command::Perplexity(arguments) => perplexity::run(&arguments),
            Command::Tokens(arguments) => tokens::run(&arguments),
            Command::Bench(arguments) => bench::run(&arguments),
            Command::Story(arguments) => story::run(&arguments),
            Command::Inspect(arguments) => inspect::run(&arguments),
            Command::Quantize(arguments) => quantize::run(&arguments),
            Command::Imatrix(arguments) => imatrix::run(&arguments),
            Command::Merge(arguments) => quantize::merge(&arguments),
            Command::Doctor(arguments) => doctor::run(&arguments),
            #[cfg(feature = "hub")]
            Command::Pull(arguments) => hub::pull(&arguments),
            #[cfg(feature = "hub")]
            Command::Ls(arguments) => hub::ls(&arguments),
            #[cfg(feature = "hub")]
            Command::Rm(arguments) => hub::rm(&arguments),
            #[cfg(feature = "hub")]
            Command::Show(arguments) => hub::show(&arguments),
            Command::Completions(arguments) => {
                shell::complete(&arguments, Cli::command());
                Ok(())
            }
            Command::Man(arguments) => shell::man(&arguments, Cli::command()),
        }),
        Err(error) => parser_error(&error),
    })
}

/// Parses a command line and runs nothing: whether it is understood, or the sentence that it is refused with.
///
/// # Errors
/// As the command prints them.
pub fn understand(arguments: &[OsString]) -> Result<(), String> {
    let arguments = foreign::translated(arguments.to_vec(), true)?;
    match Cli::try_parse_from(arguments) {
        Ok(_) => Ok(()),
        Err(error) if is_help(&error) => Ok(()),
        Err(error) => Err(sentence(&error)),
    }
}

/// The example of a model family: `fusebox run` if there are arguments, else the kernels of a built-in block.
pub fn example(block: &str) -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    if arguments.len() > 1 {
        return run();
    }
    signals::init();
    let path = arguments.first().map(PathBuf::from).unwrap_or_default();
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    exit_code(success(example::show(block, &name)))
}

/// `fusebox run`, without the word `run`.
pub fn run() -> ExitCode {
    signals::init();
    let arguments = match foreign::translated(std::env::args_os().collect(), false) {
        Ok(arguments) => arguments,
        Err(sentence) => return exit_code(Err(sentence)),
    };
    let command = run::Arguments::augment_args(clap::Command::new("fusebox"));
    let arguments = command
        .try_get_matches_from(arguments)
        .and_then(|matches| run::Arguments::from_arg_matches(&matches));
    exit_code(match arguments {
        Ok(arguments) => success(run::run(&arguments)),
        Err(error) => parser_error(&error),
    })
}

/// Turns an error of the argument parser into an exit code, for `--help` and `--version`, or a sentence.
fn parser_error(error: &ParserError) -> Result<ExitCode, String> {
    if is_help(error) {
        let printed = error.print().and_then(|()| stdout().flush());
        if error.use_stderr() {
            return Ok(ExitCode::from(2));
        }
        // Nothing follows that could be skipped.
        let _ = output::check_written(printed);
        return Ok(ExitCode::SUCCESS);
    }
    Err(sentence(error))
}

/// Whether the error is a help or a version to print.
fn is_help(error: &ParserError) -> bool {
    let kinds = [
        ErrorKind::DisplayHelp,
        ErrorKind::DisplayVersion,
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand,
    ];
    kinds.contains(&error.kind())
}

/// An error of the argument parser in one sentence.
fn sentence(error: &ParserError) -> String {
    if error.kind() == ErrorKind::InvalidUtf8 {
        return format!("expected UTF-8 text, found {}", not_utf8());
    }
    let suggested = suggestion(error);
    let hint = match error.kind() {
        _ if suggested.is_some() => suggested.unwrap_or_default(),
        ErrorKind::InvalidSubcommand => {
            let command = Cli::command();
            let names = command.get_subcommands().map(clap::Command::get_name);
            format!("; commands are {}", names.collect::<Vec<_>>().join(", "))
        }
        ErrorKind::UnknownArgument if may_be_model_path(error) => "; choose a model with -m".to_owned(),
        ErrorKind::UnknownArgument => "; --help lists all flags".to_owned(),
        _ => String::new(),
    };
    format!("{}{hint}", first_sentence(error))
}

/// What the parser thinks was meant.
fn suggestion(error: &ParserError) -> Option<String> {
    let kinds = [ContextKind::SuggestedArg, ContextKind::SuggestedSubcommand, ContextKind::SuggestedValue];
    kinds.into_iter().find_map(|kind| match error.get(kind)? {
        ContextValue::String(meant) => Some(format!("; did you mean {meant}?")),
        ContextValue::Strings(all) if !all.is_empty() => {
            Some(format!("; did you mean {}?", all.join(" or ")))
        }
        _ => None,
    })
}

/// The first sentence of an error of the argument parser.
fn first_sentence(error: &ParserError) -> String {
    let text = error.to_string();
    let lines = text.lines().take_while(|line| !line.trim().is_empty()).map(str::trim);
    let mut sentence = lines.collect::<Vec<_>>().join(" ");
    // Replaces messages of Rust's number parser.
    for message in ["invalid digit found in string", "cannot parse integer from empty string"] {
        sentence = sentence.replace(message, "expected a whole number of at least 0");
    }
    let sentence = sentence.replace("number too large to fit in target type", "the number is too large");
    sentence.strip_prefix("error: ").unwrap_or(&sentence).to_owned()
}

/// Whether an unexpected argument may be a model path, in a command that has `-m`.
fn may_be_model_path(error: &ParserError) -> bool {
    let first = std::env::args_os().nth(1).unwrap_or_default();
    // An example has no subcommands and takes a model.
    let takes_model =
        |command: &clap::Command| command.get_arguments().any(|flag| flag.get_short() == Some('m'));
    let has_flag = Cli::command().find_subcommand(first).is_none_or(takes_model);
    let argument = error.get(ContextKind::InvalidArg);
    has_flag && matches!(argument, Some(ContextValue::String(text)) if !text.starts_with('-'))
}

/// Arguments that are not UTF-8, with their places; the parser does not say which one it means.
fn not_utf8() -> String {
    let arguments = std::env::args_os().enumerate().filter(|(_, argument)| argument.to_str().is_none());
    let each = arguments.map(|(place, argument)| format!("`{}` as argument {place}", argument.display()));
    each.collect::<Vec<_>>().join(" and ")
}

fn success(result: Result<(), String>) -> Result<ExitCode, String> {
    result.map(|()| ExitCode::SUCCESS)
}

/// The exit code; prints the sentence of a failure.
fn exit_code(result: Result<ExitCode, String>) -> ExitCode {
    result.unwrap_or_else(|sentence| {
        output::print_error(&sentence);
        ExitCode::from(2)
    })
}
