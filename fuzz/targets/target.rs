//! What every target is, and what several of them read.
//!
//! In: an input, or a checkpoint made of one. Out: whether it was taken for a good one.

use fusebox_compiler::foundation::random::Random;
use fusebox_compiler::program::Key;
use fusebox_models::chat::Chat;
use fusebox_models::tokenizer::Tokenizer;
use fusebox_runtime::weights::Checkpoint;
use serde_json::{Map, json};

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

/// Strings that tokenizers meet.
const STRINGS: [&str; 4] =
    ["Hello wörld 123 \n\n  \u{0} \u{1d54f} \u{fdfa}", "", "<|im_end|>  \t▁a<0x41>'ll", "aaaa  aaaa"];

/// Whether an input is one of few that are read by what is slow and not what varies.
pub(super) fn is_sample(input: &[u8]) -> bool {
    Key::of_bytes(input).to_string().starts_with('0')
}

/// Reads the tokenizer and the template of a checkpoint, and uses them; whether there is a tokenizer.
pub(super) fn read_text_side(checkpoint: &Checkpoint) -> bool {
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
