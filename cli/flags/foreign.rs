//! Flags as other programs spell them: llama.cpp, Ollama and mistral.rs.
//!
//! In: a command line. Out: the same in our own spelling, or a sentence in the name that was typed. What makes no
//! difference here is dropped with a note that says why.
//! The table is looked at before the parser, which would take `-ngl` for `-n gl`; a spelling that is our own flag of
//! the command is left alone.

use std::ffi::OsString;

use crate::terminal::output::note;

/// What becomes of a spelling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    /// It is this flag of ours, and its value follows if it has one.
    Is(&'static str),
    /// It is this flag of ours with this value, and takes none.
    Means(&'static str, &'static str),
    /// It makes no difference here, for this reason.
    Nothing(&'static str),
    /// The same; a value follows.
    NothingWith(&'static str),
    /// The same; a value may follow: one of these words.
    NothingMaybe(&'static str, &'static [&'static str]),
    /// It cannot be had; this says what can.
    No(&'static str),
}

use Answer::{Is, Means, No, Nothing, NothingMaybe, NothingWith};

/// Why flags of devices make no difference.
const WHOLE: &str = "a model runs whole on one device; --device names it";
const MAPPED: &str = "weights stay in the mapped file";
const CHUNKED: &str = "a prompt is fed in pieces of up to 512 tokens";
const SWITCHES: &[&str] = &["on", "off", "auto", "0", "1", "true", "false"];

/// The spellings of `run`, and of the examples, which take its flags.
const FLAGS: &[(&[&str], Answer)] = &[
    (&["-hf", "-hfr", "--hf-repo"], Is("-m")),
    (&["--model-id"], Is("-m")),
    (&["-cnv", "-i", "--interactive", "--interactive-first", "--instruct", "-ins"], Is("--chat")),
    (&["-no-cnv"], Is("--no-chat")),
    (&["-sys"], Is("--system")),
    (&["-st", "--single-turn"], Nothing("a message on the command line has one answer")),
    (&["-ngl", "--gpu-layers", "--n-gpu-layers", "-ncmoe", "--n-cpu-moe"], NothingWith(WHOLE)),
    (&["-sm", "--split-mode", "-ts", "--tensor-split", "-mg", "--main-gpu", "-dev"], NothingWith(WHOLE)),
    (&["-cmoe", "--cpu-moe"], Nothing(WHOLE)),
    (
        &["-fa", "--flash-attn"],
        NothingMaybe("attention always streams over the KV cache in one pass", SWITCHES),
    ),
    (&["-ctk", "-ctv", "--cache-type-k", "--cache-type-v"], Is("--kv-type")),
    (&["-nkvo", "--no-kv-offload"], Nothing(WHOLE)),
    (&["--jinja"], Nothing("the model's chat template is always run as Jinja")),
    (&["--mmap"], Nothing(MAPPED)),
    (&["--no-mmap", "--mlock"], Nothing(MAPPED)),
    (&["-co", "--color"], NothingMaybe("a terminal has colours", SWITCHES)),
    (&["-v", "--verbose", "--verbose-prompt"], Nothing("times are always printed, and in a chat by /stats")),
    (&["-q", "--quiet", "--log-disable"], Nothing("notes go to standard error")),
    (&["-lv", "--log-verbosity", "--verbosity"], NothingWith("notes go to standard error")),
    (
        &["--no-display-prompt", "--simple-io", "-e", "--escape", "--no-escape", "--no-perf"],
        Nothing("it is so already"),
    ),
    (&["--no-warmup", "--warmup"], Nothing("there is no warm-up")),
    (&["-b", "--batch-size", "-ub", "--ubatch-size", "--prompt-chunksize"], NothingWith(CHUNKED)),
    (&["-tb", "--threads-batch"], NothingWith("prompts and answers use the threads of -t")),
    (&["--numa", "-C", "--cpu-mask", "--prio", "--poll"], NothingWith("threads are not bound to processors")),
    (&["--no-context-shift"], Nothing("nothing is dropped from a context")),
    (&["-r", "--reverse-prompt"], Is("--stop")),
    (&["-l", "--logit-bias"], No("there is no logit bias")),
    (&["--sampling-seq", "--sampler-seq"], Is("--samplers")),
    (&["--num-predict", "--max-new-tokens", "--max-tokens-to-sample"], Is("-n")),
    (&["--num-ctx", "--max-seq-len", "--max-seq-length"], Is("-c")),
    (&["--repetition-penalty"], Is("--repeat-penalty")),
    (&["-mli", "--multiline-input"], Nothing("\\\"\\\"\\\" starts and ends a message of several lines")),
    (&["--think", "-think"], Means("--thinking", "on")),
    (&["--no-think", "--hidethinking", "--disable-thinking"], Means("--thinking", "off")),
    (&["--reasoning-budget"], No("there is no budget of reasoning; --thinking off switches it off")),
    (&["--nowordwrap"], Nothing("words are wrapped on a terminal only")),
    (&["--keepalive"], NothingWith("a model is loaded for one run")),
    (&["--insecure"], No("models are fetched with verified certificates only")),
    (&["--format"], No("answers cannot be held to a format yet; --json prints the answer with its figures")),
    (&["--grammar", "--grammar-file", "-j", "--json-schema"], No("answers cannot be held to a grammar yet")),
    (&["--mmproj", "-mm", "--image", "--audio"], No("models take text only")),
    (&["-md"], Is("--draft")),
    (&["--draft-min", "--draft-n-min", "--draft-p-min"], NothingWith("as many tokens are guessed as pays")),
    (
        &["--mirostat", "--mirostat-lr", "--mirostat-ent"],
        No("there is no Mirostat; --top-p, --min-p, --typical-p and --xtc-probability narrow the choice"),
    ),
    (&["--dynatemp-range", "--dynatemp-exp"], No("the temperature is the same for every token")),
    (
        &["--rope-scaling", "--rope-scale", "--rope-freq-base", "--rope-freq-scale", "--yarn-orig-ctx"],
        No("RoPE is as the model's file says"),
    ),
    (
        &["--chat-template", "--chat-template-file"],
        No("the chat template is the model's own; -p without --chat takes any text"),
    ),
    (&["--isq"], No("models are quantised ahead: fusebox quantize MODEL FILE Q4_K_M")),
    (&["--port", "--host", "--api-key"], No("fusebox run serves nobody; fusebox serve does")),
    (&["-hff", "--hf-file"], No("the file is chosen by its quantisation: -m owner/name:Q4_K_M")),
    (&["-mu", "--model-url"], No("a model is a path or owner/name")),
];

/// Commands that others have.
const COMMANDS: &[(&str, Answer)] = &[
    ("chat", Means("run", "--chat")),
    ("generate", Is("run")),
    ("cli", Is("run")),
    ("llama-cli", Is("run")),
    ("version", Is("--version")),
    ("benchmark", Is("bench")),
    ("tokenize", Is("tokens")),
    ("list", Is("ls")),
    ("download", Is("pull")),
    ("delete", Is("rm")),
    ("remove", Is("rm")),
    ("ps", No("no model stays loaded between runs")),
    ("stop", No("no model stays loaded between runs")),
    ("create", No("there are no model descriptions; flags of run say what is wanted")),
    ("push", No("models are fetched, not published")),
    ("cp", No("models are files")),
];

/// The command line in our own spelling; `has_command` where the first word is a command.
pub(crate) fn translated(arguments: Vec<OsString>, has_command: bool) -> Result<Vec<OsString>, String> {
    let (arguments, notes) = translate(arguments, has_command)?;
    for line in notes {
        note(&line);
    }
    Ok(arguments)
}

/// The same, with the notes.
fn translate(arguments: Vec<OsString>, has_command: bool) -> Result<(Vec<OsString>, Vec<String>), String> {
    let mut given = arguments.into_iter();
    let mut out: Vec<OsString> = given.next().into_iter().collect();
    let mut rest: Vec<OsString> = given.collect();
    let mut is_run = !has_command;
    if has_command && let Some(first) = rest.first().and_then(|first| first.to_str()).map(str::to_owned) {
        let known = COMMANDS.iter().find(|(name, _)| *name == first);
        match known.map(|(_, answer)| *answer) {
            Some(Means(command, flag)) => {
                rest.splice(..1, [command, flag].map(OsString::from));
            }
            Some(Is(command)) => rest[0] = command.into(),
            Some(No(why)) => return Err(format!("{first}: {why}")),
            Some(Nothing(_) | NothingWith(_) | NothingMaybe(..)) | None => {}
        }
        is_run = rest[0] == "run";
    }
    let mut notes = Vec::new();
    if !is_run {
        out.extend(rest);
        return Ok((out, notes));
    }
    let mut rest = rest.into_iter().peekable();
    while let Some(argument) = rest.next() {
        let Some(text) = argument.to_str() else {
            out.push(argument);
            continue;
        };
        if text == "--" {
            out.push(argument);
            out.extend(rest);
            break;
        }
        let (name, value) = match text.split_once('=') {
            Some((name, value)) if name.starts_with('-') => (name, Some(value)),
            _ => (text, None),
        };
        let Some((_, answer)) = FLAGS.iter().find(|(names, _)| names.contains(&name)) else {
            // The value of a flag of ours may look like a foreign flag.
            let takes_value = TEXT_FLAGS.contains(&text);
            out.push(argument);
            if takes_value {
                out.extend(rest.next());
            }
            continue;
        };
        let dropped = |why: &str| format!("{name} makes no difference: {why}");
        match answer {
            Is(flag) => {
                out.push((*flag).into());
                out.extend(value.map(OsString::from));
            }
            Means(flag, meant) => {
                let is_off = matches!(value, Some("false" | "off" | "0"));
                let meant = if is_off && *meant == "on" { "off" } else { meant };
                out.extend([*flag, meant].map(OsString::from));
            }
            Nothing(why) => notes.push(dropped(why)),
            NothingWith(why) => {
                if value.is_none() {
                    rest.next();
                }
                notes.push(dropped(why));
            }
            NothingMaybe(why, words) => {
                let _ = rest.next_if(|next| {
                    value.is_none() && next.to_str().is_some_and(|next| words.contains(&next))
                });
                notes.push(dropped(why));
            }
            No(why) => return Err(format!("{name}: {why}")),
        }
    }
    Ok((out, notes))
}

/// Flags of ours whose value is any text.
const TEXT_FLAGS: &[&str] = &[
    "-p",
    "--prompt",
    "-f",
    "--file",
    "-m",
    "--model",
    "--system",
    "--system-prompt",
    "--stop",
    "--dry-sequence-breaker",
];

#[cfg(test)]
mod tests {
    use clap::Args;

    use super::*;
    use crate::run;

    fn spelled(line: &str) -> Result<(Vec<String>, usize), String> {
        let words = ["fusebox"].into_iter().chain(line.split(' ')).map(OsString::from).collect();
        let (words, notes) = translate(words, true)?;
        Ok((words.into_iter().skip(1).map(|word| word.into_string().unwrap()).collect(), notes.len()))
    }

    #[test]
    fn what_others_spell_is_what_we_spell() {
        for (line, ours, n_notes) in [
            ("run -hf org/x -ngl 99 -p a", "run -m org/x -p a", 1),
            ("run -hf=org/x", "run -m org/x", 0),
            ("run x -fa on -fa -cnv", "run x --chat", 2),
            ("run -fa auto x", "run x", 1),
            ("run -ctk q8_0 -sys a -st", "run --kv-type q8_0 --system a", 1),
            ("run -p -ngl -n 5", "run -p -ngl -n 5", 0),
            ("run -- -ngl", "run -- -ngl", 0),
            ("run --think=false", "run --thinking off", 0),
            ("run --no-mmap --jinja --color -v -q", "run", 5),
            ("chat x", "run --chat x", 0),
            ("version", "--version", 0),
            ("bench -b 5", "bench -b 5", 0),
        ] {
            let ours: Vec<String> = ours.split(' ').map(str::to_owned).collect();
            assert_eq!(spelled(line), Ok((ours, n_notes)), "{line}");
        }
        for line in ["run --port 80", "run --grammar x", "run --mmproj=x", "ps"] {
            let (word, sentence) =
                (line.split([' ', '=']).rfind(|word| word.starts_with('-')), spelled(line));
            let sentence = sentence.unwrap_err();
            assert!(sentence.starts_with(word.unwrap_or(line)), "{sentence}");
        }
    }

    #[test]
    fn no_spelling_is_a_flag_of_ours_and_each_leads_to_one() {
        let command = run::Arguments::augment_args(clap::Command::new("fusebox"));
        let ours: Vec<String> = command
            .get_arguments()
            .flat_map(|flag| {
                let longs = flag.get_long_and_visible_aliases().unwrap_or_default();
                let hidden = flag.get_all_aliases().unwrap_or_default();
                let short = flag.get_short().map(|short| format!("-{short}"));
                let longs = longs.into_iter().chain(hidden).map(|long| format!("--{long}"));
                longs.chain(short).collect::<Vec<String>>()
            })
            .collect();
        let mut all: Vec<&str> = FLAGS.iter().flat_map(|(names, _)| names.iter().copied()).collect();
        assert!(all.len() >= 40);
        for name in &all {
            assert!(!ours.contains(&(*name).to_owned()), "{name} is a flag of ours");
        }
        all.sort_unstable();
        assert!(all.windows(2).all(|pair| pair[0] != pair[1]), "a spelling stands twice");
        for (names, answer) in FLAGS {
            if let Is(flag) | Means(flag, _) = answer {
                assert!(ours.contains(&(*flag).to_owned()), "{names:?} leads to {flag}");
            }
        }
        for flag in TEXT_FLAGS {
            assert!(ours.contains(&(*flag).to_owned()), "{flag}");
        }
    }
}
