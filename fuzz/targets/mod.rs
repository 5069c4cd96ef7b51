//! What is fuzzed: one file an area.
//!
//! In: the name of a target, and a folder of its own. Out: a [`Target`], which makes inputs and reads them.

use std::path::Path;

use crate::targets::target::Target;

mod arguments;
mod beside;
mod folder;
mod gguf;
mod graph;
mod headers;
mod http;
mod program;
mod saved;
pub(crate) mod target;
mod template;

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
    ("lora", |folder| Box::new(beside::Beside::new(folder, beside::Kind::Lora))),
    ("peft", |folder| Box::new(beside::Beside::new(folder, beside::Kind::Peft))),
    ("control", |folder| Box::new(beside::Beside::new(folder, beside::Kind::Control))),
    ("importance", |folder| Box::new(beside::Beside::new(folder, beside::Kind::Importance))),
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
