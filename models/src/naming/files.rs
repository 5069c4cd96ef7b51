//! The names of sidecar files: the small files next to the weights.
//!
//! In: nothing. Out: names, or suffixes appended to the name of the weights.

/// The hyper-parameters of a folder's model.
pub(crate) const MODEL: &str = "config.json";
/// The tokenizer of a folder.
pub(crate) const TOKENIZER: &str = "tokenizer.json";
/// Options of the tokenizer; may hold the chat template.
pub(crate) const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
/// Sampling defaults and end-of-sequence tokens of a folder.
pub(crate) const GENERATION: &str = "generation_config.json";
/// The chat template of a folder.
pub(crate) const TEMPLATE: &str = "chat_template.jinja";
/// Suffix of the tokenizer next to a qwen3.c checkpoint or a Qorus file.
pub(crate) const TOKENIZER_SUFFIX: &str = ".tokenizer";
/// The tokenizer in the folder of a Qorus file, where none has its name.
pub(crate) const TOKENIZER_OF_QORUS: &str = "tokenizer.bin";
/// How the vectors of a folder of sentence-transformers are pooled.
pub(crate) const POOLING: &str = "1_Pooling/config.json";
/// The folders of what such a folder multiplies pooled vectors by, and what each says of it.
pub(crate) const PROJECTIONS: [&str; 3] = ["2_Dense", "3_Dense", "4_Dense"];
/// The weights of one, which are read with those of the model.
pub(crate) const PROJECTION_WEIGHTS: &str = "model.safetensors";
/// What it says of itself.
pub(crate) const PROJECTION_CONFIG: &str = "config.json";
