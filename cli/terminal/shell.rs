//! `fusebox completions` and `fusebox man`: what a shell and a manual need to know.
//!
//! In: the parser of command lines, and the name of a shell or a folder. Out: a script, or manual pages.

use std::path::{Path, PathBuf};

use clap::{Args, Command};
use clap_complete::Shell;
use clap_mangen::Man as Page;
use fusebox::files;

use crate::terminal::output;

/// How every manual page begins.
const MAGIC: &[u8] = b".ie \\n(.g .ds Aq";

/// For which shell.
#[derive(Args)]
pub(crate) struct Completions {
    /// The shell; for bash: fusebox completions bash > ~/.local/share/bash-completion/completions/fusebox.
    shell: Shell,
}

/// Where to.
#[derive(Args)]
pub(crate) struct Man {
    /// Write a page for each command into this folder instead.
    #[arg(short, long, value_name = "FOLDER")]
    output: Option<PathBuf>,
}

/// Prints the completions of a shell.
pub(crate) fn complete(arguments: &Completions, mut command: Command) {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut command, "fusebox", &mut script);
    output::print(&String::from_utf8_lossy(&script));
}

/// Prints or writes manual pages.
pub(crate) fn man(arguments: &Man, mut command: Command) -> Result<(), String> {
    command.build();
    let Some(folder) = &arguments.output else {
        output::print(&String::from_utf8_lossy(&page(command)?));
        return Ok(());
    };
    write_all(folder, command, "")
}

/// Writes the page of a command and of each command in it.
fn write_all(folder: &Path, command: Command, before: &str) -> Result<(), String> {
    let name = format!("{before}{}", command.get_name());
    for inner in command.get_subcommands().filter(|inner| inner.get_name() != "help") {
        write_all(folder, inner.clone(), &format!("{name}-"))?;
    }
    let path = folder.join(format!("{name}.1"));
    files::write(&path, MAGIC, &page(command)?).map_err(|error| error.to_string())
}

fn page(command: Command) -> Result<Vec<u8>, String> {
    let mut page = Vec::new();
    Page::new(command).render(&mut page).map_err(|error| error.to_string())?;
    Ok(page)
}
