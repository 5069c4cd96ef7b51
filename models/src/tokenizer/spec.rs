//! The tokenizer as its file describes it.
//!
//! In: the parts of any kind of file. Out: a [`TokenizerSpec`], from which `build.rs` makes the tokenizer. Nothing is
//! checked here.

use std::path::PathBuf;

use tokenizers::AddedToken;
use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;

use crate::tokenizer::byte_encoding::ByteEncoding;

/// The largest vocabulary.
pub(super) const MAX_TOKENS: usize = 1 << 22;

/// Special tokens with these names are end-of-sequence tokens, whatever else a file says.
const EOS_NAMES: [&str; 11] = [
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|end|>",
    "<|return|>",
    "<end_of_turn>",
    "<｜end▁of▁sentence｜>",
    "<|EOT|>",
    "<EOT>",
];

/// Whether a special token of this text is an end-of-sequence token.
pub(super) fn is_eos_name(text: &str) -> bool {
    EOS_NAMES.contains(&text)
}

/// A tokenizer as its file describes it.
pub(super) struct TokenizerSpec {
    pub(super) path: PathBuf,
    /// The keys of its parts in the file, for errors.
    pub(super) keys: Keys,
    /// The text of each token, in the file's byte encoding; an empty one is no token.
    pub(super) tokens: Vec<String>,
    pub(super) encoding: ByteEncoding,
    /// BPE merges by rank.
    pub(super) merges: Vec<(String, String)>,
    /// Scores of `SentencePiece` BPE, instead of merges.
    pub(super) scores: Option<Vec<f32>>,
    /// Scores of the first tokens, of which a text gets those with the largest sum (`Unigram`).
    pub(super) unigram: Option<Vec<f64>>,
    /// Added tokens, which are found in a text before anything else.
    pub(super) added: Vec<(u32, AddedToken)>,
    /// Unused tokens.
    pub(super) unused: Vec<u32>,
    pub(super) normalizer: Option<NormalizerWrapper>,
    pub(super) pre: Option<PreTokenizerWrapper>,
    pub(super) rules: Rules,
    pub(super) prefix: Vec<u32>,
    pub(super) suffix: Vec<u32>,
    /// How two texts become one input; empty where nothing says it.
    pub(super) pair: Vec<Part>,
    pub(super) eos: Vec<u32>,
}

/// A part of an input that two texts are joined to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) content: Content,
    /// The kind of its tokens (`token_type_ids` in Transformers).
    pub(super) kind: u32,
}

/// What a part is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    Token(u32),
    First,
    Second,
}

/// The keys under which a file has the parts of a tokenizer.
#[derive(Clone, Copy)]
pub(super) struct Keys {
    pub(super) tokens: &'static str,
    pub(super) merges: &'static str,
    pub(super) added: &'static str,
}

/// Options of BPE.
#[derive(Clone, Debug, Default)]
pub(super) struct Rules {
    /// A word that is a token is not split, whatever the merges say.
    pub(super) ignore_merges: bool,
    /// An unknown character becomes the tokens of its bytes.
    pub(super) byte_fallback: bool,
    /// The token of unknown characters, and whether a run of them becomes one.
    pub(super) unknown: Option<(String, bool)>,
    /// Whether decoding strips the leading space; with scores, whether encoding prepends it.
    pub(super) space_prefix: bool,
}

impl TokenizerSpec {
    /// A vocabulary alone: no merges, added tokens or normalisation.
    pub(super) fn new(path: PathBuf, keys: Keys, tokens: Vec<String>, encoding: ByteEncoding) -> Self {
        Self {
            path,
            keys,
            tokens,
            encoding,
            merges: Vec::new(),
            scores: None,
            unigram: None,
            added: Vec::new(),
            unused: Vec::new(),
            normalizer: None,
            pre: None,
            rules: Rules::default(),
            prefix: Vec::new(),
            suffix: Vec::new(),
            pair: Vec::new(),
            eos: Vec::new(),
        }
    }
}

/// How the parts of a joined input follow from the tokens around a single text.
#[derive(Clone, Copy)]
pub(super) struct Joining {
    /// How many times what ends a text stands between two.
    n_between: usize,
    /// The kind of the second text and of what ends it; the first has 0.
    second: u32,
}

/// Of BERT and `ModernBERT`.
pub(super) const BERT: Joining = Joining { n_between: 1, second: 1 };
/// Of `RoBERTa` and XLM-R.
pub(super) const ROBERTA: Joining = Joining { n_between: 2, second: 0 };

impl Joining {
    /// The parts; none where a text has no token before it or none after it.
    pub(super) fn parts(self, prefix: &[u32], suffix: &[u32]) -> Vec<Part> {
        if prefix.is_empty() || suffix.is_empty() {
            return Vec::new();
        }
        let tokens = |ids: &[u32]| ids.iter().map(|id| Content::Token(*id)).collect::<Vec<_>>();
        let first = [tokens(prefix), vec![Content::First], tokens(suffix).repeat(self.n_between)].concat();
        let second = [vec![Content::Second], tokens(suffix)].concat();
        let of_kind = |kind| move |content| Part { content, kind };
        first.into_iter().map(of_kind(0)).chain(second.into_iter().map(of_kind(self.second))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_texts_are_joined_by_what_ends_one() {
        let shown = |joining: Joining| -> Vec<String> {
            let parts = joining.parts(&[7], &[8]);
            parts.iter().map(|part| format!("{:?}:{}", part.content, part.kind)).collect()
        };
        assert_eq!(shown(BERT), ["Token(7):0", "First:0", "Token(8):0", "Second:1", "Token(8):1"]);
        let roberta = ["Token(7):0", "First:0", "Token(8):0", "Token(8):0", "Second:0", "Token(8):0"];
        assert_eq!(shown(ROBERTA), roberta);
        assert!(BERT.parts(&[], &[8]).is_empty() && BERT.parts(&[7], &[]).is_empty());
    }
}
