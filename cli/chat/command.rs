//! The commands of a chat: lines that start with a slash.
//!
//! In: a line. Out: what it asks for, or that it is a message. A word after a slash that is no command is refused with
//! the list, and never sent to the model; a path, or a line that starts with a blank, is a message.

/// The commands, for completion.
pub(super) const NAMES: [&str; 10] =
    ["/clear", "/help", "/kernels", "/load ", "/quit", "/regen", "/save ", "/set ", "/stats", "/system "];

/// What `/help` prints.
pub(super) const HELP: &str = "\
/help            this list
/clear           start a new chat; the system message stays
/system TEXT     another system message; alone, shows it
/set NAME VALUE  a sampling flag, as in /set temp 0.5; also n, thinking; alone, shows all
/regen           another answer to the last message
/save FILE       write the messages to a file; /load FILE reads them
/stats           tokens, speed, context and memory
/kernels         the kernels of a token, with times
/quit            end; so does Ctrl-D
\"\"\" starts and ends a message of several lines, \\ at the end of a line joins the next, Ctrl-C stops an answer.
";

/// A line of a chat.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line<'l> {
    Message(&'l str),
    Clear,
    Help,
    Kernels,
    Load(&'l str),
    Quit,
    Regen,
    Save(&'l str),
    Set(&'l str),
    Stats,
    System(&'l str),
    Empty,
    /// A word after a slash that is no command.
    Unknown(&'l str),
    /// A command and what it lacks or has too much of.
    Wrong(&'static str),
}

impl<'l> Line<'l> {
    /// Reads a line.
    pub(super) fn of(line: &'l str) -> Self {
        let text = line.trim();
        if text.is_empty() {
            return Self::Empty;
        }
        let word = text.split_whitespace().next().unwrap_or_default();
        let name = word.strip_prefix('/').filter(|_| line.starts_with('/'));
        let is_name = |name: &&str| !name.contains(['/', '.']);
        let Some(name) = name.filter(is_name) else {
            return if text == "?" { Self::Help } else { Self::Message(text) };
        };
        let rest = text[word.len()..].trim();
        let alone =
            |line: Self, sentence: &'static str| if rest.is_empty() { line } else { Self::Wrong(sentence) };
        match name {
            "clear" | "new" | "reset" => alone(Self::Clear, "/clear takes nothing"),
            "help" | "?" | "h" => Self::Help,
            "kernels" => alone(Self::Kernels, "/kernels takes nothing"),
            "quit" | "exit" | "bye" | "q" => alone(Self::Quit, "/quit takes nothing"),
            "regen" | "retry" => alone(Self::Regen, "/regen takes nothing"),
            "stats" => alone(Self::Stats, "/stats takes nothing"),
            "save" if rest.is_empty() => Self::Wrong("/save needs a file"),
            "save" => Self::Save(rest),
            "load" if rest.is_empty() => Self::Wrong("/load needs a file that /save wrote"),
            "load" => Self::Load(rest),
            "set" => Self::Set(rest),
            "system" => Self::System(rest),
            _ => Self::Unknown(word),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slash_makes_a_command_and_a_path_does_not() {
        assert_eq!(Line::of(" \t"), Line::Empty);
        assert_eq!(Line::of("/clear"), Line::Clear);
        assert_eq!(Line::of("/bye "), Line::Quit);
        assert_eq!(Line::of("?"), Line::Help);
        assert_eq!(Line::of("/system  Be brief. "), Line::System("Be brief."));
        assert_eq!(Line::of("/foo bar"), Line::Unknown("/foo"));
        assert_eq!(Line::of("/"), Line::Unknown("/"));
        assert_eq!(Line::of("/etc/passwd is what?"), Line::Message("/etc/passwd is what?"));
        assert_eq!(Line::of(" /foo"), Line::Message("/foo"));
        assert!(matches!(Line::of("/save"), Line::Wrong(_)));
        assert!(matches!(Line::of("/clear all"), Line::Wrong(_)));
    }

    #[test]
    fn every_command_is_in_the_help() {
        for name in NAMES {
            assert!(HELP.contains(name.trim()), "{name}");
        }
    }
}
