//! The `fusebox` command: reads arguments, calls the library, prints.
//!
//! In: a command line. Out: text or JSON on standard output; a sentence on standard error and exit code 2 where the
//! input is at fault. Nothing is decided here. One file a command: `story.rs`,
//! `inspect.rs`.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod inspect;
mod story;

/// Compiles language models into a few fused kernels, and tells how.
#[derive(Parser)]
#[command(name = "fusebox", version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Tells how a graph becomes kernels: what was asked, improved, fused, lowered and planned.
    Story(story::Arguments),
    /// Tells what a weight file holds: its metadata, and every tensor with its shape and format.
    Inspect(inspect::Arguments),
}

fn main() -> ExitCode {
    let Cli { command } = Cli::parse();
    let result = match command {
        Command::Story(arguments) => story::run(&arguments),
        Command::Inspect(arguments) => inspect::run(&arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(sentence) => {
            eprintln!("fusebox: {sentence}");
            ExitCode::from(2)
        }
    }
}
