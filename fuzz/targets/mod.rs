//! What is fuzzed: one file an area.
//!
//! In: the name of a target, and a folder of its own. Out: a [`Target`], which makes inputs and reads them.

use std::path::Path;

use fusebox_compiler::foundation::random::Random;
use fusebox_compiler::program::Key;
use fusebox_models::chat::Chat;
use fusebox_models::tokenizer::Tokenizer;
use fusebox_runtime::weights::Checkpoint;
use serde_json::{Map, json};

mod arguments;
mod folder;
mod gguf;
mod graph;
mod headers;
mod http;
mod program;
mod saved;
mod template;

/// Something that reads.
pub(crate) trait Target {
    /// An input that is nearly right.
    fn input(&self, random: &mut Random) -> Vec<u8>;

    /// Reads an input; whether it was taken for a good one, or what is wrong with the program.
    fn run(&mut self, input: &[u8]) -> Result<bool, String>;

    /// Whether memory is held to the size of the input.
    fn is_bounded(&self) -> bool {
        true
    }
}

/// Makes a target in a folder of its own, which is there when it first runs.
type Make = fn(&Path) -> Box<dyn Target>;

/// All targets.
pub(crate) const TARGETS: &[(&str, Make)] = &[
    ("gguf", |folder| Box::new(gguf::Gguf::new(folder))),
    ("safetensors", |folder| Box::new(folder::Folder::new(folder, folder::Part::Weights))),
    ("config", |folder| Box::new(folder::Folder::new(folder, folder::Part::Config))),
    ("tokenizer", |folder| Box::new(folder::Folder::new(folder, folder::Part::Tokenizer))),
    ("sidecar", |folder| Box::new(folder::Folder::new(folder, folder::Part::Sidecar))),
    ("qwen3c", |folder| Box::new(headers::Headers::new(folder, headers::Kind::Qwen3c))),
    ("vocabulary", |folder| Box::new(headers::Headers::new(folder, headers::Kind::Vocabulary))),
    ("qorus", |folder| Box::new(headers::Headers::new(folder, headers::Kind::Qorus))),
    ("template", |_| Box::new(template::Template::new())),
    ("graph", |_| Box::new(graph::Text::new(false))),
    ("story", |_| Box::new(graph::Text::new(true))),
    ("program", |_| Box::new(program::Programs::default())),
    ("saved", |folder| Box::new(saved::Saved::new(folder))),
    ("http", |_| Box::new(http::Http::default())),
    ("arguments", |_| Box::new(arguments::Arguments::new())),
];

/// The target of a name that is on the list.
pub(crate) fn make(name: &str, folder: &Path) -> Box<dyn Target> {
    let make = TARGETS.iter().find(|(own, _)| *own == name).map(|(_, make)| *make);
    make.expect("the name was looked for before")(folder)
}

/// Strings that tokenizers meet.
const STRINGS: [&str; 4] =
    ["Hello wörld 123 \n\n  \u{0} \u{1d54f} \u{fdfa}", "", "<|im_end|>  \t▁a<0x41>'ll", "aaaa  aaaa"];

/// Whether an input is one of few that are read by what is slow and not what varies.
fn is_sample(input: &[u8]) -> bool {
    Key::of_bytes(input).to_string().starts_with('0')
}

/// Reads the tokenizer and the template of a checkpoint, and uses them; whether there is a tokenizer.
fn read_text_side(checkpoint: &Checkpoint) -> bool {
    if let Ok(Some(chat)) = Chat::open(checkpoint) {
        let messages = [json!({"role": "user", "content": "Hello"})];
        let _ = chat.render(&messages, true, &Map::new());
    }
    let Ok(tokenizer) = Tokenizer::open(checkpoint) else { return false };
    for text in STRINGS {
        if let Ok(ids) = tokenizer.encode(text, true) {
            tokenizer.decode(&ids, false);
        }
    }
    let last = tokenizer.n_tokens() as u32;
    tokenizer.decode(&[0, last.saturating_sub(1), last, u32::MAX], true);
    true
}
