//! What `fusebox` says without a command: what one can do, in eight lines.
//!
//! In: nothing. Out: a text, each line of which can be typed.

/// The text.
pub(crate) const TEXT: &str = "\
Fusebox runs language models, and shows how it compiles them into a few fused kernels. For example:

  fusebox run                                a small built-in model tells a story
  fusebox run model.gguf                     chat with a model: a file, a folder, or owner/name on the hub
  fusebox run model.gguf \"Why is it dark?\"   one question; a pipe works, too
  fusebox run --print-kernels                the kernels of every token, with times and reasons
  fusebox story --block qwen3-0.6b           how a block becomes kernels
  fusebox bench -m model.gguf                tokens per second
  fusebox doctor                             what this machine has
  fusebox --help                             all commands
";

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::TEXT;
    use crate::Cli;

    #[test]
    fn every_line_is_a_command() {
        let command = Cli::command();
        let lines = TEXT.lines().filter_map(|line| line.strip_prefix("  fusebox "));
        let words: Vec<&str> = lines.map(|line| line.split(' ').next().unwrap()).collect();
        assert_eq!(words.len(), 8);
        for word in words {
            assert!(word == "--help" || command.find_subcommand(word).is_some(), "{word}");
        }
    }
}
