//! The GGUF keys of a tokenizer.
//!
//! In: nothing. Out: keys, and the numbers of token types, for readers and writers.

pub(crate) const MODEL: &str = "tokenizer.ggml.model";
pub(crate) const PRE: &str = "tokenizer.ggml.pre";
pub(crate) const TOKENS: &str = "tokenizer.ggml.tokens";
pub(crate) const TYPES: &str = "tokenizer.ggml.token_type";
pub(crate) const MERGES: &str = "tokenizer.ggml.merges";
pub(crate) const SCORES: &str = "tokenizer.ggml.scores";
pub(crate) const BOS: &str = "tokenizer.ggml.bos_token_id";
pub(crate) const EOS: &str = "tokenizer.ggml.eos_token_id";
pub(crate) const UNKNOWN: &str = "tokenizer.ggml.unknown_token_id";
pub(crate) const PADDING: &str = "tokenizer.ggml.padding_token_id";
pub(crate) const ADD_BOS: &str = "tokenizer.ggml.add_bos_token";
pub(crate) const ADD_EOS: &str = "tokenizer.ggml.add_eos_token";
pub(crate) const CHARSMAP: &str = "tokenizer.ggml.precompiled_charsmap";
pub(crate) const MERGES_SPACES: &str = "tokenizer.ggml.remove_extra_whitespaces";
pub(crate) const ADD_SPACE: &str = "tokenizer.ggml.add_space_prefix";
pub(crate) const CHAT_TEMPLATE: &str = "tokenizer.chat_template";

/// The first and the last token of a text for BERT.
pub(crate) const CLS: &str = "tokenizer.ggml.cls_token_id";
pub(crate) const SEPARATOR: &str = "tokenizer.ggml.seperator_token_id";

/// The keys of end-of-sequence tokens besides EOS itself.
pub(crate) const MORE_EOS: [&str; 2] = ["tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"];

/// Values of [`MODEL`]: `WordPiece`, byte-level BPE, Unigram, and `SentencePiece` BPE with merges or with scores.
pub(crate) const WORDPIECE: &str = "bert";
pub(crate) const GPT2: &str = "gpt2";
pub(crate) const UNIGRAM: &str = "t5";
pub(crate) const GEMMA4: &str = "gemma4";
pub(crate) const SENTENCEPIECE: &str = "llama";

/// The token types, values of [`TYPES`].
pub(crate) mod kind {
    pub(crate) const NORMAL: u64 = 1;
    pub(crate) const UNKNOWN: u64 = 2;
    pub(crate) const CONTROL: u64 = 3;
    pub(crate) const USER_DEFINED: u64 = 4;
    pub(crate) const UNUSED: u64 = 5;
    pub(crate) const BYTE: u64 = 6;
}
