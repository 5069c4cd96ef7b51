//! What documents say about the command: its flags in `docs/commands.md`, and its counts of kernels in `README.md`.
//!
//! In: the parser of command lines, and the named blocks. Out: the blocks of these documents that are made from them.
//! `UPDATE_DOCS=1` writes them, as `tests/tidy/marked.rs` says.

use clap::builder::StyledStr;
use clap::{Arg, Command, CommandFactory};
use fusebox::blocks::{NAMES, block, named};
use fusebox_compiler::options::Options;
use fusebox_compiler::pipeline::compile;
use fusebox_compiler::target::TARGETS;
use fusebox_compiler::tensor::sym::Sym;
use tree::marked::hold;

use crate::Cli;

/// A text as it stands in a cell of a table.
fn cell(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

/// How a flag or an argument is written.
fn written(arg: &Arg) -> String {
    let short = arg.get_short().map(|short| format!("-{short}"));
    let long = arg.get_long().map(|long| format!("--{long}"));
    let flags = short.into_iter().chain(long).collect::<Vec<_>>().join(", ");
    let values = arg.get_value_names().unwrap_or_default();
    let takes_value = arg.get_action().takes_values();
    let names: Vec<String> = values.iter().map(|name| format!("<{name}>")).collect();
    let value = if takes_value { names.concat() } else { String::new() };
    let value = match arg.get_num_args().map(|range| range.min_values()) {
        _ if flags.is_empty() => value,
        Some(0) if takes_value => format!("[={value}]"),
        _ if arg.is_require_equals_set() => format!("={value}"),
        _ if takes_value => format!(" {value}"),
        _ => String::new(),
    };
    cell(&format!("`{flags}{value}`"))
}

/// What a flag means, and its default where the help gives it in words.
fn help(arg: &Arg) -> (String, Option<String>) {
    let help = arg.get_long_help().or_else(|| arg.get_help()).map(StyledStr::to_string).unwrap_or_default();
    let parts = help.trim_end_matches(']').split_once(" [default: ").filter(|_| help.ends_with(']'));
    parts.map_or_else(|| (cell(&help), None), |(help, default)| (cell(help), Some(cell(default))))
}

/// What a flag means, what it may be, and how else it is called.
fn meaning(arg: &Arg) -> String {
    let values: Vec<String> =
        arg.get_possible_values().iter().map(|value| format!("`{}`", value.get_name())).collect();
    let values = if arg.get_action().takes_values() && !values.is_empty() {
        format!(": {}", values.join(", "))
    } else {
        String::new()
    };
    let others = arg.get_all_aliases().unwrap_or_default();
    let others: Vec<String> = others.iter().map(|name| format!("`--{name}`")).collect();
    let others = if others.is_empty() { String::new() } else { format!("; also {}", others.join(", ")) };
    format!("{}{values}{others}", help(arg).0)
}

fn default_of(arg: &Arg) -> String {
    let values = arg.get_default_values().iter().map(|value| format!("`{}`", value.to_string_lossy()));
    let values = values.filter(|_| arg.get_action().takes_values()).collect::<Vec<_>>().join(" ");
    help(arg).1.unwrap_or(values)
}

/// The usage of a command and the table of its flags.
fn flags(command: &Command) -> String {
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ").trim();
    let args = command.get_arguments().filter(|arg| !arg.is_hide_set() && arg.get_id() != "help");
    let head = format!("`{}`\n\n| flag | meaning | default |\n|---|---|---|\n", cell(usage));
    args.fold(head, |all, arg| {
        all + &format!("| {} | {} | {} |\n", written(arg), meaning(arg), default_of(arg))
    })
}

#[test]
fn the_flags_in_the_documents_are_those_of_the_parser() {
    let mut whole = Cli::command().bin_name("fusebox");
    whole.build();
    let commands: Vec<&Command> =
        whole.get_subcommands().filter(|command| command.get_name() != "help").collect();
    let line = |command: &&Command| {
        let about = command.get_about().map(StyledStr::to_string).unwrap_or_default();
        format!("| `fusebox {}` | {} |\n", command.get_name(), cell(&about))
    };
    let all = commands
        .iter()
        .map(line)
        .fold("| command | what it does |\n|---|---|\n".to_owned(), |all, line| all + &line);
    let each = commands.iter().map(|command| (format!("fusebox {}", command.get_name()), flags(command)));
    let made = [("fusebox".to_owned(), all)].into_iter().chain(each);
    let faults = made.filter_map(|(name, made)| hold("docs/commands.md", &name, &made).err());
    let faults: Vec<String> = faults.collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn the_kernels_in_the_documents_are_those_of_the_story() {
    let names = TARGETS.map(|target| target.name);
    let head = format!("| block | {} |\n|---|{}\n", names.join(" | "), "---|".repeat(names.len()));
    let table = NAMES.iter().fold(head, |all, name| {
        let config = named(name).expect("a named block");
        let graph = block(&config, &Sym::from(1)).expect("a block that fits together");
        let counts = TARGETS.map(|target| {
            let compiled = compile(&graph, &Options::for_target(target)).expect("a block that compiles");
            compiled.story.steps.len().to_string()
        });
        all + &format!("| {name} | {} |\n", counts.join(" | "))
    });
    let held = hold("README.md", "fusebox story", &table);
    assert!(held.is_ok(), "{}", held.unwrap_err());
}
