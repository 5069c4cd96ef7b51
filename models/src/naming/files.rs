//! What the small files beside weights are called.
//!
//! In: nothing. Out: their names, or the endings that stand behind the name of the weights.

/// What a folder says of its model.
pub(crate) const MODEL: &str = "config.json";
/// How a folder's texts become tokens.
pub(crate) const TOKENIZER: &str = "tokenizer.json";
/// What is done with these tokens; it may hold the chat template.
pub(crate) const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
/// How a folder's model is sampled, and what ends its answers.
pub(crate) const GENERATION: &str = "generation_config.json";
/// The chat template of a folder.
pub(crate) const TEMPLATE: &str = "chat_template.jinja";
/// The ending of the tokenizer beside a checkpoint of qwen3.c or a file of Qorus.
pub(crate) const TOKENIZER_ENDING: &str = ".tokenizer";
/// The tokenizer in the folder of a file of Qorus, where none has its name.
pub(crate) const TOKENIZER_OF_QORUS: &str = "tokenizer.bin";
